"""The figures by which the I/O path and the search for the limit are judged, in one table: what
`make bench` prints.

    python benchmarks/all.py [--quick] [--dir D] [--only 1 4 6]

Sets up the throttled devices itself and takes them down again; needs root, fio, nbdkit and nbdfuse
for figures 1 to 5, 8, 14 and 21. In full about 120 minutes on a machine with nothing else to do (a
busy one makes units noisy, and they are repeated); --quick about 40. Exits with 1 when a figure is
not met.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    capacity,
    cluster,
    discrimination,
    distortion,
    first_run,
    harness,
    io_path,
    lab,
    live,
    monitors,
    policies,
    ranks,
    replay,
    report_page,
    resize,
    s3,
    startup,
    trace_stats,
    twin,
)
from benchmarks.devices import leave_cleanly_on_sigterm
from benchmarks.figures import Figure, table
from kv_cache.core.errors import UsageError
from tests.s3server import missing

STEADY_RATE = 1000  # block operations/s of figure 6
STEADY_S = 20.0
USERS = 4
MONITOR_TICKS = 200
LIVE_S = 10.0

Section = tuple[str, Callable[[], Sequence[Figure]]]


def sections(*, quick: bool, directory: Path) -> dict[str, Section]:
    """By the figures that they measure. The shortest first, so that what is broken shows soon."""
    plan = io_path.plan_of(quick=quick, directory=directory)
    return {
        "22": ("starting a command", lambda: startup.figures(5 if quick else 11)),
        "12": ("looking at traces", trace_stats.figures),
        "17": ("the policy lab", lab.figures),
        "18": ("the cluster simulator", lambda: cluster.figures(3 if quick else 5)),
        "13": ("the page of an hour", lambda: report_page.figures(quick=quick)),
        "16": ("the live view", lambda: live.figures(LIVE_S, directory)),
        "21": ("the first run", first_run.figures),
        "20": (
            "eviction policies",
            lambda: policies.figures(sizes=policies.SIZES[:1] if quick else policies.SIZES),
        ),
        "14": ("ranks that run together", lambda: ranks.figures(directory, quick=quick)),
        "15": ("object storage", lambda: _object_storage(2 if quick else 4)),
        "9": ("the monitors", lambda: [monitors.tell(MONITOR_TICKS, 1.0, directory)]),
        "7": ("users who come and go", resize.figures),
        "6": ("the harness alone", lambda: [harness.steady(STEADY_RATE, STEADY_S, USERS)]),
        "4": ("two devices told apart", lambda: discrimination.discriminate(quick=quick)),
        "5": ("the same run again", lambda: discrimination.repeat(quick=quick)),
        "10": (
            "replay of traces (10, 11)",
            lambda: list(replay.figures(replay.traces(None), directory, quick=quick)),
        ),
        "8": ("the capacity of two devices", lambda: capacity.figures(quick=quick)),
        "19": (
            "the twin's error",
            lambda: list(twin.figures(directory, pairs=3 if quick else 5)),
        ),
        "1": ("the I/O path beside fio (1, 2, 3)", lambda: io_path.run(io_path.PLACES, plan)),
    }


def _object_storage(groups: int) -> Sequence[Figure]:
    why = missing()
    assert why is None, why
    return list(s3.figures(groups))


def measured(number: str, section: Section) -> Sequence[Figure]:
    """A section's figures; where it cannot be measured, a row that says why, and the rest goes
    on."""
    title, measure = section
    print(f"\n=== {title}", flush=True)
    try:
        return measure()
    except (UsageError, AssertionError, subprocess.CalledProcessError) as error:
        return [Figure(number=number, what=title, wanted="", seen=f"failed: {error}", met=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, groups and loads")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="on the disk of figure 1")
    numbers = ("1", *map(str, range(4, 11)), *map(str, range(12, 23)))
    parser.add_argument("--only", nargs="+", choices=numbers)
    options = parser.parse_args()
    leave_cleanly_on_sigterm()
    began = time.monotonic()
    if not options.quick and options.only is None:
        print("=== what our machinery adds to a read", flush=True)
        distortion.tell()
    rows: list[Figure] = []
    for number, section in sections(quick=options.quick, directory=options.dir).items():
        if options.only is None or number in options.only:
            rows += measured(number, section)
    rows.sort(key=lambda row: int(row.number.split()[0]))
    print(f"\n{table(rows)}\n\n{(time.monotonic() - began) / 60:.0f} minutes")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
