"""Small blocks beside fio: the data path alone, and the whole program beside the twin of its run.

    python benchmarks/small_blocks.py [--groups 5] [--seconds 8] [--only whole] [--layout file]
                                      [--runs 'writes 2 MiB']

All but the last is on a block device in RAM, where the client is what counts, in groups of
ours-fio-fio-ours (A B B A); a ratio is the median of the groups' with its interval.

    alone   reads and stores by the native transfers, 8 objects a call, stamped and verified, of
            tables that are made before: beside fio psync with as many threads, on the same
            preallocated file; through one io_uring beside fio's; a file an object beside a loop in
            C of the same system calls (`io_path.py --alone`; of one thread with `--awake`, as it
            waits for processors that have halted, which fio's other threads keep awake)
    whole   runs of eight users without think times, and of a Mooncake slice (95 % writes) from
            $KV_TRACES or ../shared/traces, eight requests at a time, storage tier alone: bytes a
            second of storage in the window, beside fio as it replays the log of such a run, its
            reads and writes at the places where an arena would have them, as many at a time as the
            run had in flight (the median of its windows' means). CPU an operation is that of all
            threads, kernel included; fio's that of its job. What of it the client limits, V13 and
            V25 name.
    throttled  runs that read, or write, 64 KiB objects on a device whose rate is set, by one user
            and by four, beside their `twin`: bandwidth, and percentiles of an operation
"""

import argparse
import heapq
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import io_path
from benchmarks.devices import leave_cleanly_on_sigterm, ram_directory, throttled_directory
from benchmarks.figures import Figure, middle, middle_ratio, percentile, table
from benchmarks.quiet import awake
from benchmarks.twin import program
from kv_cache.app.twin import TwinJob, TwinOptions, checked, run_twin, twin_of
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import GIB, MIB
from kv_cache.files.fio_report import Measured, ours

ROOT = Path(__file__).resolve().parents[1]
ALONE = {64: (0.9, 0.85, 0.85), 256: (0.9, 0.9, 0.85), 1024: (0.9, 0.9, 0.9), 2048: (0.95,) * 3}
"""By KiB of an object: wanted of fio's rate by 1, 4 and 16 threads."""
_USERS = """
user_templates:
  chatbot: {context_range: [1024, 4096], generation_range: [10, 40], think_time_range: [0, 0]}
  coding: {context_range: [1024, 4096], generation_range: [10, 40], think_time_range: [0, 0]}
  document: {context_range: [1024, 4096], generation_range: [10, 40], think_time_range: [0, 0]}
"""
_LOAD = (
    "--config=users.yaml", "--model=llama3.1-8b", "--semantics=serving", "--block-tokens=16",
    "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=3", "--generation-mode=none",
    "--num-users=8", "--warmup=3", "--no-progress", "--seed=1",
)  # fmt: skip
_EIGHTH = ("--tensor-parallel=8", "--num-gpus=8")  # 256 KiB of 2 MiB
_NEW = ("--prefill-only", "--disable-multi-turn")  # nothing is asked for again
_TRACES = Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")
_TRACE = _TRACES / "mooncake_conversation_6000.jsonl"
_ROWS = (f"--trace={_TRACE}", "--trace-speedup=0")
WHOLE: Mapping[str, tuple[tuple[str, ...], float]] = {
    "Mooncake 256 KiB": ((*_EIGHTH, *_ROWS), 0.7),
    "decode-only 256 KiB": ((*_EIGHTH, "--decode-only"), 0.7),
    "decode-only 2 MiB": (("--decode-only",), 0.9),
    "prefill-only 256 KiB": ((*_EIGHTH, "--prefill-only"), 0.7),
    "reads and writes 256 KiB": (_EIGHTH, 0.7),
    "writes 256 KiB": ((*_EIGHTH, *_NEW), 0.7),
    "writes 2 MiB": (_NEW, 0.9),
}
"""What is run, and what is wanted of fio's rate."""
MOST_CPU = 2.0
"""Of fio's an operation, in runs of 2 MiB objects that read, or write, alone."""
RATES_MB = (150, 350)
_LOGGED_S = 4.0
_WINDOW_S = 0.1


def alone(groups: int) -> Iterator[Figure]:
    """Measure the transfers without the program around them."""
    plan = replace(
        io_path.plan_of(quick=False, directory=Path.cwd(), groups=groups),
        sizes_kib=list(ALONE), concurrencies=(1, 4, 16), unit_gib=0.5, batches=(8,), alone=True,
    )  # fmt: skip
    one = replace(plan, concurrencies=(1,))
    rings = replace(one, unit_gib=0.1)
    plans = (
        (one, _of_threads),
        (replace(plan, concurrencies=(4, 16)), _of_threads),
        (replace(rings, sizes_kib=[4], batches=(64,), depth=16), lambda _: 0.7),
        (replace(rings, sizes_kib=[0.5], batches=(1024,), depth=128), lambda _: 0.5),
        (replace(plan, sizes_kib=[64, 256, 2048], concurrencies=(4,), layout="file"), _of_files),
    )
    for each, wanted in plans:
        with awake() if each is one else nullcontext():
            for seen in io_path.measure("ram", each):
                ours, fio = (
                    side(lambda unit: unit.cpu_s_per_gib).median * seen.case.block / GIB
                    for side in (seen.ours, seen.fio)
                )
                cost = f"; {1e6 * ours:.1f} (fio {1e6 * fio:.1f}) us of CPU an operation"
                ratios = [group.rate_ratio for group in seen.groups]
                yield _figure("alone", seen.name, wanted(seen.case), ratios, cost)


def _of_threads(case: io_path.Case) -> float:
    return ALONE[case.block // 1024][(1, 4, 16).index(case.concurrency)]


def _of_files(_: io_path.Case) -> float:
    return 0.9


def whole(groups: int, seconds: float, layout: str, names: Sequence[str]) -> Iterator[Figure]:
    """Measure runs and fio beside them."""
    for name in names:
        flags, wanted = WHOLE[name]
        if flags[-2:] == _ROWS and not _TRACE.exists():
            print(f"{name}: left out, as there is no {_TRACE}")
            continue
        ratios, cpu = [], []
        journal = layout == "file"  # which makes and deletes files all the time
        with (
            ram_directory(9, journal=journal) as device,
            tempfile.TemporaryDirectory() as scratch,
        ):
            place = Path(scratch)
            (place / "users.yaml").write_text(_USERS)
            log = _Log(place, device, [*flags, f"--layout={layout}"])
            for _ in range(groups):
                first = _run(place, device, [*flags, f"--layout={layout}"], seconds)
                fio = [log.replay(seconds) for _ in range(2)]
                second = _run(place, device, [*flags, f"--layout={layout}"], seconds)
                pairs = list(zip((first, second), fio, strict=True))
                ratios.append(math.sqrt(math.prod(a["rate"] / b["rate"] for a, b in pairs)))
                cpu += [(_cpu_us(a), _cpu_us(b)) for a, b in pairs]
                rates = (f"{one['rate'] / GIB:.2f}" for one in (first, second, *fio))
                print(name, layout, *rates, second["named"], flush=True)
        ours, theirs = (percentile(list(side), 50) for side in zip(*cpu, strict=True))
        cost = f"; {ours:.0f} (fio {theirs:.0f}, {log.depth} at a time) us of CPU an operation"
        yield _figure("whole", f"{name}, {layout}", wanted, ratios, cost)
        if name in ("decode-only 2 MiB", "writes 2 MiB"):
            times = middle([a / b for a, b in cpu])
            yield Figure(
                number="whole", what=f"CPU of {name}, {layout}", wanted=f"<= {MOST_CPU:g}",
                seen=f"{times} of fio's", met=times.median <= MOST_CPU,
            )  # fmt: skip


def _cpu_us(of: Mapping[str, Any]) -> float:
    return 1e6 * float(of["cpu_s"]) * float(of["object_bytes"]) / float(of["bytes"])


class _Log:
    """The reads and writes of a run, in the order in which they ended, for fio."""

    def __init__(self, place: Path, device: Path, flags: Sequence[str]) -> None:
        """Run once with records, which cost time: rates are those of other runs."""
        _run(place, device, [*flags, "--records", f"--results-dir={place / 'logged'}"], _LOGGED_S)
        (lines,) = place.glob("logged/**/transfers.jsonl")
        rows = [row for row in map(orjson.loads, lines.open("rb")) if row["error"] is None]
        began_ns = rows[-1]["finished_ns"] - round(_LOGGED_S * 1e9)  # the window is the last
        self._file, self._log = device / "replayed", place / "iolog"
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        self._extent = 0
        calls, spent = [], Counter[int]()
        for row in rows:
            at = self._place_of(row)
            for leg in row["legs"] if at is not None else ():
                if row["finished_ns"] >= began_ns:
                    calls.append(f"{self._file} {leg['operation']} {at} {leg['bytes']}")
                    spent[int(row["finished_ns"] / 1e9 / _WINDOW_S)] += leg["device_ns"]
        self.object_bytes = rows[0]["legs"][0]["bytes"]
        self.depth = max(1, round(percentile([ns / 1e9 / _WINDOW_S for ns in spent.values()], 50)))
        opened = ["fio version 2 iolog", f"{self._file} add", f"{self._file} open"]
        self._log.write_text("\n".join([*opened, *calls, f"{self._file} close", ""]))
        with self._file.open("xb") as file:  # what was never written is read from nowhere
            piece = os.urandom(MIB)
            for _ in range(-(-self._extent // MIB)):
                file.write(piece)
            os.fsync(file.fileno())

    def _place_of(self, row: Mapping[str, Any]) -> int | None:
        """Return where the object of an operation is: the first place that is free, as in an
        arena. A delete frees it."""
        copy = row["copy_id"]
        if row["operation"] == "delete":
            if copy in self._places:
                heapq.heappush(self._free, self._places.pop(copy))
            return None
        if copy not in self._places:
            if not self._free:
                heapq.heappush(self._free, self._extent)
                self._extent += row["legs"][0]["bytes"]
            self._places[copy] = heapq.heappop(self._free)
        return self._places[copy]

    def replay(self, seconds: float) -> dict[str, float]:
        """Return bytes a second, and CPU seconds, of fio, which goes on for `seconds`."""
        command = (
            "fio", "--name=replay", f"--read_iolog={self._log}", "--replay_no_stall=1",
            "--direct=1", "--ioengine=io_uring", f"--iodepth={self.depth}", "--thread",
            "--scramble_buffers=0", "--iomem_align=2m", "--time_based", f"--runtime={seconds:g}",
            "--output-format=json",
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=io_path.HUGE)
        (job,) = json.loads(done.stdout)["jobs"]
        nbytes = job["read"]["io_bytes"] + job["write"]["io_bytes"]
        took_s = job["job_runtime"] / 1000
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * took_s
        return {
            "rate": nbytes / took_s, "bytes": nbytes, "cpu_s": cpu_s,
            "object_bytes": self.object_bytes,
        }  # fmt: skip


def throttled(groups: int, seconds: float) -> Iterator[Figure]:
    """Measure runs on devices of known rates, and their twins beside them."""
    for megabytes, users, kind in product(RATES_MB, (4, 1), (OpKind.READ, OpKind.WRITE)):
        mode = ("--decode-only",) if kind is OpKind.READ else _NEW
        flags = (
            *mode,
            "--object=layer",
            "--layout=arena",
            f"--num-users={users}",
            "--storage-capacity-gb=1",
        )
        pairs: list[tuple[Measured, Measured]] = []
        against_itself: list[float] = []
        with (
            throttled_directory(megabytes * 1_000_000, 4) as device,
            tempfile.TemporaryDirectory() as scratch,
        ):
            place = Path(scratch)
            (place / "users.yaml").write_text(_USERS)
            for _ in range(groups):
                first, job = _side_and_twin(place, device, flags, seconds, kind)
                fio = [_of_fio(job, kind) for _ in range(2)]
                second, _ = _side_and_twin(place, device, flags, seconds, kind)
                pairs += zip((first, second), fio, strict=True)
                against_itself.append(abs(_p(fio[0], 99) / _p(fio[1], 99) - 1))
                rates = (f"{each.bytes_per_s / 1e6:.1f}" for each in (first, *fio, second))
                print(kind.value, users, megabytes, *rates, flush=True)
        name = f"{kind.value}s 64 KiB, {users} at a time, {megabytes} MB/s"
        for what, most, of in (
            ("bandwidth", 0.01, lambda side: side.bytes_per_s),
            ("p50", 0.05, lambda side: _p(side, 50)),
            ("p99", median(against_itself), lambda side: _p(side, 99)),
        ):
            seen = middle([of(a) / of(b) for a, b in pairs])
            yield Figure(
                number="throttled", what=f"{what} of {name}", wanted=f"1 +- {most:.3f}",
                seen=f"{seen} of fio's", met=abs(seen.median - 1) <= most,
            )  # fmt: skip


def _p(side: Measured, percent: float) -> float:
    value = side.latency_ns[percent]
    assert value is not None, "too few operations for a percentile"
    return value


def _side_and_twin(
    place: Path, device: Path, flags: Sequence[str], seconds: float, kind: OpKind
) -> tuple[Measured, TwinJob]:
    """Run once; return what it measured of one kind, and the job that does the same."""
    _run(place, device, flags, seconds)
    options = TwinOptions(result=str(place / "R.json"), dir=(str(device),), seconds=seconds)
    twin = twin_of(options)
    (side,) = (side for side in twin.sides if side.kind is kind)
    return ours(side, twin.window_s), checked(options, twin)


def _of_fio(job: TwinJob, kind: OpKind) -> Measured:
    result = run_twin(job)
    assert result.answer is not None, result.problem
    return result.answer.sides[kind]


def _figure(
    number: str, what: str, wanted: float, ratios: Sequence[float], more: str = ""
) -> Figure:
    """The interval reaches what is wanted, and its median is at most three points below."""
    seen = middle_ratio(ratios)
    met = seen.high >= wanted and seen.median >= wanted - 0.03
    return Figure(number=number, what=what, wanted=f"{wanted:g}", seen=f"{seen}{more}", met=met)


def _run(place: Path, device: Path, flags: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run once; return bytes of storage a second, CPU seconds and the rules that spoke."""
    program(
        place, "run", *_LOAD, *flags, f"--duration={seconds:g}", f"--cache-dir={device}",
        "--output=R.json",
    )  # fmt: skip
    own = json.loads((place / "R.json").read_text())["kv_cache"]
    storage = own["tiers"]["storage"]
    rules = own["passport"]["rules"]
    moved = [storage[kind]["object_bytes"] for kind in ("read", "write")]
    return {
        "bytes": sum(one["sum"] for one in moved),
        "object_bytes": sum(one["sum"] for one in moved) / sum(one["objects"] for one in moved),
        "rate": sum(storage[kind]["bytes_per_second"] for kind in ("read", "write")),
        "cpu_s": own["kernel_counters"]["window"]["process_cpu_ns"] / 1e9,
        "named": [row["rule"] for row in rules if row["status"] in ("suspect", "invalid")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--layout", default="arena", choices=("arena", "file"))
    parts = ("alone", "whole", "throttled")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--runs", nargs="+", choices=list(WHOLE), default=list(WHOLE))
    given = parser.parse_args()
    leave_cleanly_on_sigterm()
    rows: list[Figure] = []
    if "whole" in given.only:
        rows += whole(given.groups, given.seconds, given.layout, given.runs)
    if "alone" in given.only:
        rows += alone(given.groups)
    if "throttled" in given.only:
        rows += throttled(given.groups, given.seconds)
    print(table(rows))


if __name__ == "__main__":
    main()
