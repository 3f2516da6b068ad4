"""What `serve` costs: the list of many results, a watcher, and what a run loses by being watched.

    python -m benchmarks.serve list [--results 10000]
    python -m benchmarks.serve watcher [--watchers 16] [--seconds 30]
    python -m benchmarks.serve page [--groups 5]
    python -m benchmarks.serve abba [--cache-dir D] [--groups 6] [--seconds 20] [--watchers 3]

`page` opens the page in a real browser, each time without a cache, and prints how long it takes
until its form can be used, and how many bytes came.

`abba` wants an idle machine and a device that is the limit itself: without `--cache-dir` one in RAM
that is throttled to 200 MB/s (needs root and nbdkit). It runs the same load unwatched (A) and with
so many counted clients (B), in groups of A B B A, and prints for bandwidth and percentiles of
storage reads the ratio B / A with its 95 % interval between groups. 6 groups take 11 minutes.
"""

import argparse
import http.client
import json
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.devices import throttled_directory
from kv_cache.metrics.intervals import mean_interval
from tests.browser import Browser
from tests.cli import ROOT
from tests.serving import Served, serving

LOAD = {
    "run.model": "tiny-1b",
    "run.kv_bytes_per_token": "256",  # small reads: their p99 has many beyond it
    "tiers.gpu_mem_gib": "0",
    "tiers.cpu_mem_gib": "0",
    "tiers.storage_capacity_gib": "2",
    "run.generation_mode": "none",
    "run.num_users": "8",
    "run.seed": "11",
    "run.warmup_s": "3",
    "run.drain_s": "2",
}


class Watcher(threading.Thread):
    """A client that reads the events of a run until its end, and counts them."""

    def __init__(self, server: Served, name: str) -> None:
        super().__init__(daemon=True)
        self._address, self._name = urlsplit(server.url), name
        self.events = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port)
        connection.request("GET", f"/runs/{self._name}/events")
        for line in connection.getresponse():
            self.events += line.startswith(b"data: {")
            if line.startswith(b"event: end"):
                return


def listed(count: int) -> None:
    """Print how long the first indexing of so many results takes, and a list from a warm index."""
    document = json.loads((ROOT / "tests/data/result_8.json").read_text())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        results = Path(folder) / "results"
        results.mkdir()
        for number in range(count):
            place = results / f"run-{number:05d}"
            place.mkdir()
            (place / "result.json").write_text(json.dumps(document))
        server = stack.enter_context(serving(Path(folder)))
        began = time.monotonic()
        first = None
        while True:
            asked = time.monotonic()
            _, answer = server.ask("/results?limit=100")
            took = time.monotonic() - asked
            first = took if first is None else max(first, took)
            progress = answer["indexing"]
            if answer["count"] == count and progress["done"] == progress["total"]:
                break
            time.sleep(0.2)
        indexed_s = time.monotonic() - began
        warm = []
        for _ in range(10):
            asked = time.monotonic()
            server.ask("/results?limit=100")
            warm.append(time.monotonic() - asked)
            time.sleep(1.1)
        size = (ROOT / "tests/data/result_8.json").stat().st_size
        print(f"{count} results of {size / 1024:.0f} KiB: first indexing {indexed_s:.1f} s, the "
              f"slowest answer meanwhile {first:.2f} s; warm list {sorted(warm)[5] * 1000:.0f} ms "
              f"(slowest {max(warm) * 1000:.0f})")  # fmt: skip


def watched(watchers: int, seconds: float) -> None:
    """Print what the server takes of a core for each watcher of a run."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        process = psutil.Process(server.process.pid)
        shares = {}
        for count in (1, watchers):
            name = server.start(**LOAD, **{"run.duration_s": str(seconds + 10)})
            clients = [Watcher(server, name) for _ in range(count)]
            for client in clients:
                client.start()
            time.sleep(8)
            before, began = process.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, passed = process.cpu_times(), time.monotonic() - began
            used = after.user + after.system - before.user - before.system
            shares[count] = used / passed
            server.ask(f"/runs/{name}", method="DELETE")
            server.ended(name)
            counted = fmean(client.events for client in clients)
            print(f"{count} watchers: {100 * used / passed:.2f} % of a core, "
                  f"{counted:.0f} events each")  # fmt: skip
        each = (shares[watchers] - shares[1]) / (watchers - 1)
        print(f"one run that is watched: {100 * shares[1]:.2f} %; each watcher more: "
              f"{100 * each:.3f} %")  # fmt: skip


def abba(cache_dir: Path, groups: int, seconds: float, watchers: int) -> None:
    """Print the ratios of runs that are watched to runs that are not."""
    ratios: dict[str, list[float]] = {"bandwidth": [], "read p95": [], "read p99": []}
    cache_dir = cache_dir.resolve()
    cache_dir.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(serving(Path(folder), f"--folder={cache_dir}"))
        for group in range(groups):
            sides: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
            for side in "ABBA":
                sides[side].append(_measured(server, cache_dir, seconds, watchers * (side == "B")))
            runs = [*sides["A"], *sides["B"]]
            for what in [each for each in ratios if any(run[each] is None for run in runs)]:
                print(f"{what}: too few reads in {seconds:g} s; give more --seconds")
                del ratios[what]
            for what, known in ratios.items():
                logs = {side: fmean(math.log(run[what]) for run in sides[side]) for side in "AB"}
                known.append(logs["B"] - logs["A"])
            shown = ", ".join(f"{what} {_shown(known[-1])}" for what, known in ratios.items())
            print(f"group {group + 1}: B / A {shown}", flush=True)
    for what, known in ratios.items():
        interval = mean_interval(known, 0.95) if len(known) > 1 else None
        ends = "" if interval is None else f" ({_shown(interval.low)} to {_shown(interval.high)})"
        print(f"{what}: {_shown(fmean(known))}{ends}")


def _shown(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.4f}"


def _measured(server: Served, place: Path, seconds: float, watchers: int) -> dict[str, Any]:
    values = {**LOAD, "run.duration_s": str(seconds), "tiers.cache_dir": str(place)}
    name = server.start(**values)
    for client in [Watcher(server, name) for _ in range(watchers)]:
        client.start()
    run = server.ended(name, limit_s=seconds + 120)
    _, document = server.ask(f"/runs/{name}/result")
    shutil.rmtree(server.results / run["id"])
    section: Any = document["kv_cache"]
    return {
        "bandwidth": section["headline"]["bytes_per_second"],
        "read p95": section["tiers"]["storage"]["read"]["device_ms"]["p95"],
        "read p99": section["tiers"]["storage"]["read"]["device_ms"]["p99"],
    }


def opened(times: int) -> None:
    """Print how long the page takes until its form is checked, by the browser's own clock."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(folder))
        window = stack.enter_context(Browser(folder))
        taken = []
        for _ in range(times):
            window.cdp("Network.clearBrowserCache")
            window.visit("about:blank")
            window.visit(f"{server.url}/")
            taken.append(window.run(
                "while (!document.querySelector('#line')?.textContent)"
                " await new Promise(requestAnimationFrame); return performance.now();"
            ))  # fmt: skip
        sizes = window.run(
            "return ['navigation', 'resource'].flatMap(k => performance.getEntriesByType(k))"
            ".reduce((sum, e) => [sum[0] + e.transferSize, sum[1] + e.decodedBodySize], [0, 0])"
        )
    print(f"the form can be used after {sorted(taken)[len(taken) // 2]:.0f} ms (median of {times}, "
          f"slowest {max(taken):.0f}); {sizes[0] / 1000:.0f} kB came, {sizes[1] / 1000:.0f} kB "
          "unpacked")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("list", "watcher", "page", "abba"))
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--watchers", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--cache-dir", type=Path)
    options = parser.parse_args(argv)
    if options.what == "list":
        listed(options.results)
    elif options.what == "watcher":
        watched(options.watchers or 16, options.seconds or 30)
    elif options.what == "page":
        opened(options.groups)
    else:
        with ExitStack() as stack:
            place = options.cache_dir
            if place is None:
                place = stack.enter_context(throttled_directory(200_000_000, gib=4)) / "cache"
            abba(place, options.groups, options.seconds or 20, options.watchers or 3)


if __name__ == "__main__":
    main()
