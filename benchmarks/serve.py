"""What `serve` costs: the list of many results, a watcher, and what a run loses by being watched.

    python -m benchmarks.serve list [--results 10000]
    python -m benchmarks.serve watcher [--watchers 16] [--seconds 30]
    python -m benchmarks.serve page [--groups 5]
    python -m benchmarks.serve abba [--cache-dir D] [--groups 16] [--seconds 7] [--watchers 3]

`page` opens the page in a real browser, each time without a cache, and prints how long it takes
until its form can be used, and how many bytes came.

`abba` wants an idle machine and a device that is the limit itself: without `--cache-dir` one in RAM
that is throttled to 30 MB/s (needs root and nbdkit). In one run, so many counted clients come (B)
and go (A) every few seconds, in groups of A B B A and B A A B by turns, and of each block the
bandwidth and the percentiles of its storage reads are taken from the records of the run. It prints
the ratio B / A of each with its 95 % interval between groups. What differs between runs differs in
both; to keep blocks alike as well, eight users who never think read objects of 64 KiB one after
another, without writing, so that the device always has eight reads and their time is the device's
rate. 16 groups of 7 s take 8 to 9 minutes.
"""

import argparse
import http.client
import json
import math
import socket
import tempfile
import threading
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import orjson
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


STEADY = {
    "run.model": "tiny-1b",
    "run.kv_bytes_per_token": "256",
    "semantics.preset": "serving",  # blocks of 256 tokens: all objects have 64 KiB
    "run.mode": "decode-only",
    "io.threads": "1",
    "tiers.gpu_mem_gib": "0",
    "tiers.cpu_mem_gib": "0",
    "tiers.storage_capacity_gib": "0.25",
    "run.generation_mode": "none",
    "run.num_users": "8",
    "run.seed": "11",
    "run.warmup_s": "5",
    "run.drain_s": "2",
    "output.records": "true",
}
_USERS = """
user_templates:
  chatbot: {context_range: [1024, 4096], generation_range: [10, 40], think_time_range: [0, 0]}
  coding: {context_range: [1024, 4096], generation_range: [10, 40], think_time_range: [0, 0]}
  document: {context_range: [1024, 4096], generation_range: [10, 40], think_time_range: [0, 0]}
"""
_SETTLE_S = 2.0  # after watchers came or went: the server's last look, and what was in flight


class Watcher(threading.Thread):
    """A client that reads the events of a run until its end, or until it leaves, and counts
    them."""

    def __init__(self, server: Served, name: str) -> None:
        super().__init__(daemon=True)
        address = urlsplit(server.url)
        self._name = name
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port)
        self._connection.connect()
        self.events = 0

    def run(self) -> None:
        self._connection.request("GET", f"/runs/{self._name}/events")
        for line in self._connection.getresponse():
            self.events += line.startswith(b"data: {")
            if line.startswith(b"event: end"):
                return

    def leave(self) -> None:
        """Close the connection, as a browser does that goes away."""
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.join()


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


class Block(NamedTuple):
    """So many seconds of a run, by the system's clock, without watchers (A) or with (B)."""

    side: str
    begin_s: float
    end_s: float


def abba(cache_dir: Path, groups: int, seconds: float, watchers: int) -> None:
    """Print the ratios of blocks of a run that are watched to those that are not."""
    cache_dir = cache_dir.resolve()
    cache_dir.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(serving(Path(folder), f"--folder={cache_dir}"))
        length_s = groups * 4 * seconds + 20
        users = Path(folder) / "users.yaml"
        users.write_text(_USERS)
        name = server.start(**{
            **STEADY, "config": str(users), "run.duration_s": str(length_s),
            "tiers.cache_dir": str(cache_dir),
        })  # fmt: skip
        _until_measuring(server, name)
        blocks = [
            _block(server, name, side, seconds, watchers)
            for group in range(groups)
            for side in ("ABBA", "BAAB")[group % 2]
        ]
        server.ask(f"/runs/{name}/stop", {})
        server.ended(name, limit_s=120)
        _, document = server.ask(f"/runs/{name}/result")
        (records,) = (server.results / name).rglob("transfers.jsonl")
        began_s = datetime.fromisoformat(document["kv_cache"]["started_utc"]).timestamp()
        found = _measured(records, began_s, blocks)
    _print_ratios(blocks, found)


def _until_measuring(server: Served, name: str) -> None:
    """Wait for the measured window, asking the run itself: nobody watches meanwhile."""
    while True:
        _, run = server.ask(f"/runs/{name}")
        if run["state"] != "running":
            raise SystemExit("\n".join(run["log"]))
        if run["metrics"] is not None:
            with urllib.request.urlopen(run["metrics"], timeout=30) as answer:
                if b'doing{what="measure"}' in answer.read():
                    return
        time.sleep(1)


def _block(server: Served, name: str, side: str, seconds: float, watchers: int) -> Block:
    begin_s = time.time()
    clients = [Watcher(server, name) for _ in range(watchers * (side == "B"))]
    for client in clients:
        client.start()
    time.sleep(max(0.0, begin_s + seconds - time.time()))
    block = Block(side, begin_s + _SETTLE_S, time.time())
    for client in clients:
        client.leave()
        assert client.events >= seconds - _SETTLE_S, "a watcher did not get an event each second"
    return block


def _measured(records: Path, began_s: float, blocks: Sequence[Block]) -> list[dict[str, float]]:
    """Return of each block what its storage reads were: those that ended in it."""
    taken: list[list[int]] = [[] for _ in blocks]
    ends = [block.end_s for block in blocks]
    with records.open("rb") as lines:
        for line in lines:
            for leg in orjson.loads(line)["legs"]:
                at_s = began_s + leg["finished_ns"] / 1e9
                number = bisect_left(ends, at_s)
                if leg["operation"] != "read" or number == len(blocks):
                    continue
                if at_s >= blocks[number].begin_s:
                    taken[number].append(leg["device_ns"])
    return [
        {"bandwidth": len(times) / (block.end_s - block.begin_s),
         **{f"read p{p}": float(np.percentile(times, p)) for p in (50, 95, 99)}}
        for block, times in zip(blocks, taken, strict=True)
    ]  # fmt: skip


def _print_ratios(blocks: Sequence[Block], found: Sequence[Mapping[str, float]]) -> None:
    alone = [row for block, row in zip(blocks, found, strict=True) if block.side == "A"]
    means = {what: fmean(row[what] for row in alone) for what in found[0]}
    print(f"{len(blocks)} blocks; without watchers {means['bandwidth']:.0f} reads/s, p50 "
          f"{means['read p50'] / 1e6:.2f} ms, p99 {means['read p99'] / 1e6:.2f} ms")  # fmt: skip
    for what in found[0]:
        logs = [math.log(row[what]) * (1 if block.side == "B" else -1) / 2
                for block, row in zip(blocks, found, strict=True)]  # fmt: skip
        known = [sum(logs[at : at + 4]) for at in range(0, len(logs), 4)]
        interval = mean_interval(known, 0.95) if len(known) > 1 else None
        ends = "" if interval is None else f" ({_shown(interval.low)} to {_shown(interval.high)})"
        print(f"{what}: B / A {_shown(fmean(known))}{ends}")


def _shown(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.4f}"


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
    parser.add_argument("--groups", type=int)
    parser.add_argument("--cache-dir", type=Path)
    options = parser.parse_args(argv)
    if options.what == "list":
        listed(options.results)
    elif options.what == "watcher":
        watched(options.watchers or 16, options.seconds or 30)
    elif options.what == "page":
        opened(options.groups or 5)
    else:
        with ExitStack() as stack:
            place = options.cache_dir
            if place is None:
                place = stack.enter_context(throttled_directory(30_000_000, gib=0.6)) / "cache"
            abba(place, options.groups or 16, options.seconds or 7, options.watchers or 3)


if __name__ == "__main__":
    main()
