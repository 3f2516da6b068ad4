"""Small blocks beside fio: the data path alone, and the whole program beside the twin of its run.

    python benchmarks/small_blocks.py [--groups 5] [--seconds 8] [--only whole] [--layout file]

Everything is on a block device in RAM, where the client is what counts, in groups of
ours-fio-fio-ours (A B B A); a ratio is the median of the groups' with its interval.

    alone   reads and stores by the native transfers, 8 objects a call, stamped and verified, beside
            fio psync with as many threads, on the same preallocated file (`io_path.py --alone`)
    whole   runs of eight users without think times, storage tier alone: bytes a second of
            storage in the window, beside what `kv-cache.py twin` makes of that run: fio with the
            run's sizes, mix and depth. What of it the client limits, V13 and V25 name.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import io_path
from benchmarks.devices import leave_cleanly_on_sigterm, ram_directory
from benchmarks.figures import Figure, middle_ratio, percentile, table
from benchmarks.twin import program
from kv_cache.app.twin import TwinOptions, checked, run_twin, twin_of
from kv_cache.core.units import GIB

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
WHOLE: Mapping[str, tuple[tuple[str, ...], float]] = {
    "decode-only 256 KiB": ((*_EIGHTH, "--decode-only"), 0.7),
    "decode-only 2 MiB": (("--decode-only",), 0.9),
    "prefill-only 256 KiB": ((*_EIGHTH, "--prefill-only"), 0.7),
    "reads and writes 256 KiB": (_EIGHTH, 0.7),
}
"""What is run, and what is wanted of fio's rate."""


def alone(groups: int) -> Iterator[Figure]:
    """Measure the transfers without the program around them."""
    plan = replace(
        io_path.plan_of(quick=False, directory=Path.cwd(), groups=groups),
        sizes_kib=list(ALONE), concurrencies=(1, 4, 16), unit_gib=0.5, batches=(8,), alone=True,
    )  # fmt: skip
    for seen in io_path.measure("ram", plan):
        wanted = ALONE[seen.case.block // 1024][(1, 4, 16).index(seen.case.concurrency)]
        each = seen.ours(lambda unit: unit.cpu_s_per_gib).median * seen.case.block / GIB
        fio = seen.fio(lambda unit: unit.cpu_s_per_gib).median * seen.case.block / GIB
        cost = f"; {1e6 * each:.0f} (fio {1e6 * fio:.0f}) us of CPU an operation"
        ratios = [group.rate_ratio for group in seen.groups]
        yield _figure("alone", seen.name, wanted, ratios, cost)


def whole(groups: int, seconds: float, layout: str) -> Iterator[Figure]:
    """Measure runs and their twins."""
    for name, (flags, wanted) in WHOLE.items():
        ratios, cpu = [], []
        with ram_directory(5) as device, tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            (place / "users.yaml").write_text(_USERS)
            for _ in range(groups):
                first = _run(place, device, [*flags, f"--layout={layout}"], seconds)
                fio = [_twin(place, device, seconds) for _ in range(2)]
                second = _run(place, device, [*flags, f"--layout={layout}"], seconds)
                ours = [first["rate"], second["rate"]]
                ratios.append(math.sqrt(math.prod(ours) / math.prod(fio)))
                cpu += [each["cpu_s"] * each["object_bytes"] / each["rate"] / seconds
                        for each in (first, second)]  # fmt: skip
                print(
                    name, layout, *(f"{rate / GIB:.2f}" for rate in (*ours, *fio)), second["named"]
                )
                sys.stdout.flush()
        cost = f"; {1e6 * percentile(cpu, 50):.0f} us of CPU an operation"
        yield _figure("whole", f"{name}, {layout}", wanted, ratios, cost)


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
        "object_bytes": sum(one["sum"] for one in moved) / sum(one["objects"] for one in moved),
        "rate": sum(storage[kind]["bytes_per_second"] for kind in ("read", "write")),
        "cpu_s": own["kernel_counters"]["window"]["process_cpu_ns"] / 1e9,
        "named": [row["rule"] for row in rules if row["status"] in ("suspect", "invalid")],
    }


def _twin(place: Path, device: Path, seconds: float) -> float:
    """Return what fio makes of the last run: bytes a second."""
    options = TwinOptions(result=str(place / "R.json"), dir=(str(device),), seconds=seconds)
    result = run_twin(checked(options, twin_of(options)))
    if result.answer is None:
        sys.exit(f"fio: {result.problem}")
    return sum(side.bytes_per_s for side in result.answer.sides.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--layout", default="arena", choices=("arena", "file"))
    parser.add_argument("--only", nargs="+", choices=("alone", "whole"), default=("alone", "whole"))
    given = parser.parse_args()
    leave_cleanly_on_sigterm()
    rows: list[Figure] = []
    if "whole" in given.only:
        rows += whole(given.groups, given.seconds, given.layout)
    if "alone" in given.only:
        rows += alone(given.groups)
    print(table(rows))


if __name__ == "__main__":
    main()
