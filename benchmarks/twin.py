"""How near the twin comes: a prediction in virtual time beside the real run that follows.

    python benchmarks/twin.py [--quick] [--dir D] [--pairs N] [--keep DIR]

Once on a device that is throttled to 200 MB/s (bandwidth of storage within
5 %, p50 of a load within 10 %, hit ratio within 1 point), once on the disk of --dir, where no
bandwidth is promised: it changes while it is measured. Each is calibrated once, then `run
--predict` is done with several seeds; what counts is the median of the errors' sizes. The same
seed run twice tells how far the run itself repeats: no twin can be nearer than that.

The load is four users of a serving engine who hardly think, on blocks of 2 MiB with nothing but
storage below them, for a fixed number of requests: evictions, write-behind and mixed reads and
writes at up to 32 operations at once. Storage holds the conversations that go on. With room for
half of that, hits depend on who of the four comes first: in the twin alone they then move by 10
points when one buffer is taken away, and neither a twin nor a second run can meet the first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.devices import NBD_TOOLS, leave_cleanly_on_sigterm, throttled_directory, why_not
from benchmarks.figures import Figure, finish

ROOT = Path(__file__).resolve().parents[1]
RATE = 200_000_000
MOST_BANDWIDTH = 0.05
MOST_P50 = 0.10
MOST_HITS = 0.01
_USERS = """
user_templates:
  chatbot: {context_range: [128, 512], generation_range: [10, 40], think_time_range: [0, 0.1]}
  coding: {context_range: [256, 1024], generation_range: [10, 40], think_time_range: [0, 0.1]}
  document: {context_range: [512, 1024], generation_range: [10, 40], think_time_range: [0, 0.1]}
"""
_LOAD = (
    "--config=users.yaml", "--model=llama3.1-8b", "--semantics=serving", "--block-tokens=16",
    "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=2", "--generation-mode=none",
    "--num-users=4", "--no-progress",
)  # fmt: skip


def program(place: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "kv-cache.py"), *args],
        cwd=place, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    print(done.stderr, end="", file=sys.stderr)
    done.check_returncode()
    return done.stdout


def calibrate(place: Path, directory: Path, *, seconds: float) -> None:
    print(
        program(
            place, "calibrate", f"--cache-dir={directory}/probe", "--output=hw.yaml",
            "--sizes-mib=1,2,4", "--size-gib=1.5", f"--seconds={seconds:g}",
        )
    )  # fmt: skip


def pair(place: Path, directory: Path, seed: int, requests: int) -> Mapping[str, Any]:
    """The section `twin` of a run of this seed."""
    output = place / "R.json"
    told = program(
        place, "run", "--predict=hw.yaml", f"--cache-dir={directory}/cache", f"--seed={seed}",
        f"--max-requests={requests}", f"--output={output}", *_LOAD,
    )  # fmt: skip
    print(f"seed {seed}\n{told[told.index('twin  ') :]}", flush=True)
    found: Mapping[str, Any] = json.loads(output.read_bytes())["kv_cache"]["twin"]
    return found


def errors(twins: Sequence[Mapping[str, Any]], name: str, part: str) -> list[float]:
    """The sizes of a quantity's errors."""
    return [abs(twin["error"][name][part]) for twin in twins]


def all_bytes(twin: Mapping[str, Any]) -> float:
    """The error of reads and writes together, relative."""
    names = ("storage_read_bytes_per_s", "storage_write_bytes_per_s")
    predicted, measured = (sum(twin[k][n] for n in names) for k in ("prediction", "measurement"))
    return float(abs(predicted / measured - 1))


def repeats(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How far two runs of the same seed differ."""
    parts = []
    for name in ("storage_read_bytes_per_s", "storage_load_device_p50_ms", "block_hit_ratio"):
        first, second = (twin["measurement"][name] for twin in (one, other))
        far = abs(first - second) if name.endswith("_ratio") else abs(first / second - 1)
        parts.append(f"{100 * far:.1f} {'pt' if name.endswith('_ratio') else '%'}")
    return " / ".join(parts)


def figures_of(
    where: str,
    place: Path,
    directory: Path,
    *,
    pairs: int,
    requests: int,
    judged: bool,
    reuse: bool,
) -> Iterator[Figure]:
    (place / "users.yaml").write_text(_USERS)
    if not (reuse and (place / "hw.yaml").exists()):
        calibrate(place, directory, seconds=120)
    twins = [pair(place, directory, seed, requests) for seed in range(1, pairs + 1)]
    again = repeats(twins[0], pair(place, directory, 1, requests))
    moved = [all_bytes(twin) for twin in twins]
    bandwidth = {
        "storage bandwidth": moved,
        "reads": errors(twins, "storage_read_bytes_per_s", "relative"),
        "writes": errors(twins, "storage_write_bytes_per_s", "relative"),
    }
    for what, found in bandwidth.items():
        yield _figure(where, f"error of {what}", found, MOST_BANDWIDTH, judged=judged)
    loads = errors(twins, "storage_load_device_p50_ms", "relative")
    yield _figure(where, "error of load p50", loads, MOST_P50)
    hits = errors(twins, "block_hit_ratio", "absolute")
    yield _figure(where, "error of hit ratio", hits, MOST_HITS, unit="pt")
    yield _row(f"{where}: same seed twice: reads / p50 / hits", "-", again, met=True)


def _figure(
    where: str,
    what: str,
    found: Sequence[float],
    most: float,
    *,
    judged: bool = True,
    unit: str = "%",
) -> Figure:
    middle = median(found)
    seen = f"{100 * middle:.2f} {unit} ({100 * min(found):.1f} to {100 * max(found):.1f})"
    wanted = f"< {100 * most:g} {unit}" if judged else "-"
    return _row(f"{where}: {what}", wanted, seen, met=middle < most or not judged)


def _row(what: str, wanted: str, seen: str, *, met: bool) -> Figure:
    return Figure(number="19", what=what, wanted=wanted, seen=seen, met=met)


@contextmanager
def kept_in(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="kv-twin-") as scratch:
        yield Path(scratch)


def figures(directory: Path, *, pairs: int = 5, requests: int = 60, keep: Path | None = None,
            only: str = "both", reuse: bool = False) -> Iterator[Figure]:  # fmt: skip
    if only != "disk":
        reason = why_not(NBD_TOOLS)
        if reason is not None:
            yield _row("200 MB/s: error of storage bandwidth", "< 5 %", reason, met=False)
        else:
            with kept_in(keep) as place, throttled_directory(RATE, 5) as slow:
                yield from figures_of(
                    "200 MB/s", place, slow, pairs=pairs, requests=requests, judged=True,
                    reuse=reuse,
                )  # fmt: skip
    if only != "throttled":
        with (
            kept_in(None if keep is None else keep / "disk") as place,
            tempfile.TemporaryDirectory(prefix="kv-twin-", dir=directory) as own,
        ):
            yield from figures_of(
                "disk", place, Path(own), pairs=pairs, requests=4 * requests, judged=False,
                reuse=reuse,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three pairs of half the length")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--only", choices=("throttled", "disk", "both"), default="both")
    parser.add_argument("--reuse", action="store_true", help="the profile that is in --keep")
    parser.add_argument("--keep", type=Path, help="where profiles and the last result stay")
    given = parser.parse_args()
    leave_cleanly_on_sigterm()
    pairs, requests = (3, given.requests // 2) if given.quick else (given.pairs, given.requests)
    finish(
        figures(
            given.dir,
            pairs=pairs,
            requests=requests,
            keep=given.keep,
            only=given.only,
            reuse=given.reuse,
        )
    )


if __name__ == "__main__":
    main()
