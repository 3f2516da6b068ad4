"""`kv-cache.py probe --cache-dir D`: measure a device in a minute or two, and keep what was found.

The profile is written when everything has been measured, and the cache directory is left as it was
found, also after Ctrl-C.
"""

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from kv_cache import __version__
from kv_cache.bench.cache_dir import CacheDir, obtainable_bytes
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.memory import check_ram
from kv_cache.bench.path_checks import check_cache_dir, nearest_existing
from kv_cache.bench.probe import (
    BUFFER_BYTES,
    Probed,
    ProbePlan,
    StorageProbe,
    objects_needed,
    refusals,
)
from kv_cache.bench.progress import Bar
from kv_cache.bench.stillness import ANSWER_S, answered
from kv_cache.cli.parsing import RECLAIM, CommandParser
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.profile import HEADER, Profile, profile_text, profile_values
from kv_cache.core.errors import ConfigError, NoAnswerError, PlaceError
from kv_cache.core.exits import Exit
from kv_cache.core.units import GIB, MIB, PAGE_BYTES, human_bytes
from kv_cache.files.environment import Reader, filesystem
from kv_cache.files.keep import keep
from kv_cache.files.machine import captured
from kv_cache.files.reading import require_replaceable
from kv_cache.metrics.passport import findings_below
from kv_cache.tiers.file_options import FSYNC, LAYOUTS
from kv_cache.tiers.objects import is_object_url
from kv_cache.view.probe import probe_view, refusal_texts
from kv_cache.view.terminal import terminal

SIZES_MIB = (0.25, 2.0, 8.0, 32.0, 80.0)
CONCURRENCIES = (1, 4, 16)
DEFAULT_GIB = 6.0
DEFAULT_SECONDS = 90.0

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_FILL_SHARE = 0.9  # of the free space, at most
_ENOUGH = 0.05  # a difference that is worth a note

_ABOUT = """\
Measure the device behind a directory: service time (p50, p99, mean) and bandwidth of reads and
writes by object size, concurrency and share of reads, with direct I/O on unique data, in random
order; reads of data that nobody has read since it was written, and of the same data again (a
host's cache shows there).

The table is printed, and written to a hardware profile that virtual time can be given:
kv-cache.py run --virtual-time --profile FILE
"""

_EXAMPLES = """\
examples:
  kv-cache.py probe --cache-dir /mnt/nvme/kv
  kv-cache.py probe --cache-dir /mnt/nvme/kv --size-gib 20 --seconds 300 --profile nvme.yaml
  kv-cache.py probe --cache-dir /mnt/nvme/kv --sizes-mib 0.5,4,16 --concurrency 1,8,32

A slow device takes longer than --seconds: each thread does at least 3 operations in each step.
Other work on the device shows in the numbers.

exit code: 0 done, 1 operations failed, 2 bad input, 130 and 143 interrupted (nothing is written)
"""


def main(argv: Sequence[str]) -> int:
    """Measure and write; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(argv)
    if is_object_url(options.cache_dir):
        raise ConfigError(
            "--cache-dir s3://…: probe measures a device of this machine, and "
            "an object store is none; give a directory, or measure the store with run"
        )
    directory = Path(options.cache_dir)
    check_cache_dir(directory)
    refuse_memory(directory)
    plan = plan_of(options, directory)
    environment = captured(directory)
    output = _output(options.profile, environment)
    require_replaceable(output, HEADER, "--profile")
    check_ram({"buffers": plan.memory_bytes()})
    with interrupts() as signals:
        return _probe(directory, plan, environment, output, signals)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py probe",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--cache-dir",
        required=True,
        metavar="D",
        help="directory on the device to be measured; made and removed where it is not there",
    )
    add_options(parser)
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="where the profile is written (default: ./profile-<device>-<date>.yaml)",
    )
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is measured, of each directory."""
    parser.add_argument("--reclaim", metavar="HOST", help=RECLAIM)
    parser.add_argument(
        "--size-gib",
        type=float,
        metavar="G",
        help=f"data on the device (default: {DEFAULT_GIB:g}, or what is free)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="aimed at for all of it (default: %(default)g)",
    )
    parser.add_argument(
        "--read-shares",
        default="0.5",
        metavar="LIST",
        help="shares of reads among writes (default: %(default)s); all reads and all writes are "
        "always measured",
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="arena",
        help="how objects lie in files, as run --layout: with file or bucket, the time of a write "
        "has that of creating and naming files in it (default: %(default)s)",
    )
    parser.add_argument(
        "--fsync",
        choices=FSYNC,
        default="never",
        help="when a write is waited for, as run --fsync (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes-mib",
        default=",".join(f"{size:g}" for size in SIZES_MIB),
        metavar="LIST",
        help="object sizes in MiB (default: %(default)s)",
    )
    parser.add_argument(
        "--concurrency",
        default=",".join(map(str, CONCURRENCIES)),
        metavar="LIST",
        help="operations in flight; 1 is always measured (default: %(default)s)",
    )


# --- what to do ------------------------------------------------------------------------------


def refuse_memory(directory: Path) -> None:
    kind = filesystem(Reader(), directory)["type"]
    if kind in _IN_MEMORY:
        raise PlaceError(
            f"cache directory {directory}: it is in memory ({kind}), where no device accounts for "
            "what is moved; name a directory on the device to be measured"
        )


def plan_of(options: argparse.Namespace, directory: Path) -> ProbePlan:
    if not 1 <= options.seconds <= 86_400:
        raise ConfigError(f"--seconds {options.seconds:g} is not 1 to 86400; give another time")
    sizes = tuple(
        sorted(
            _page_bytes(size, options.sizes_mib)
            for size in _numbers(options.sizes_mib, "--sizes-mib", 1 / 256, 1024)
        )
    )
    depths = _numbers(options.concurrency, "--concurrency", 1, 256)
    if any(not depth.is_integer() for depth in depths):
        raise ConfigError(f"--concurrency {options.concurrency}: give whole numbers")
    plan = ProbePlan(
        sizes=tuple(dict.fromkeys(sizes)),
        concurrencies=tuple(sorted({1, *map(int, depths)})),
        data_bytes=_data_bytes(options.size_gib, directory, options.reclaim),
        seconds=options.seconds,
        layout=options.layout,
        reclaim=options.reclaim,
        fsync=options.fsync,
        shares=tuple(sorted(set(_numbers(options.read_shares, "--read-shares", 0.01, 0.99)))),
    )
    smallest = objects_needed(1) * max(plan.sizes)
    if plan.data_bytes < smallest:
        raise ConfigError(
            f"--size-gib {plan.data_bytes / GIB:.3g}: objects of {human_bytes(max(plan.sizes))} "
            f"need {human_bytes(smallest)} of data at least, and {human_bytes(plan.least_bytes)} "
            f"at concurrency {max(plan.concurrencies)}; give more, or smaller --sizes-mib"
        )
    return plan


def _numbers(text: str, flag: str, low: float, high: float) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of numbers such as 1,4,16") from None
    if any(not low <= number <= high for number in found):
        raise ConfigError(f"{flag} {text}: each must be {low:g} to {high:g}")
    return found


def _page_bytes(size_mib: float, text: str) -> int:
    nbytes = size_mib * MIB
    if nbytes % PAGE_BYTES:
        raise ConfigError(
            f"--sizes-mib {text}: {size_mib:g} MiB is no multiple of 4 KiB, as direct I/O wants; "
            f"{round(nbytes / PAGE_BYTES) * PAGE_BYTES / MIB:g} would be"
        )
    return int(nbytes)


def _data_bytes(size_gib: float | None, directory: Path, reclaim: str | None) -> int:
    free = int(obtainable_bytes(directory, reclaim) * _FILL_SHARE)
    if size_gib is None:
        return min(int(DEFAULT_GIB * GIB), free)
    if not 0 < size_gib <= 2**20:
        raise ConfigError(f"--size-gib {size_gib:g} is not above 0 and at most 1048576")
    wanted = int(size_gib * GIB)
    if wanted > free:
        raise PlaceError(
            f"cache directory {directory}: --size-gib {size_gib:g} is more than 90 % of the free "
            f"space; {math.floor(free / GIB * 100) / 100:g} would fit"
        )
    return wanted


def _output(given: Path | None, environment: Mapping[str, Any]) -> Path:
    """As given, or a name that is not taken."""
    if given is not None:
        return given
    device = environment["device"]["name"] or environment["filesystem"]["type"] or "unknown"
    stem = f"profile-{str(device).replace('/', '-')}-{datetime.now():%Y%m%d}"
    path, number = Path(f"{stem}.yaml"), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}.yaml")
    return path


# --- doing it --------------------------------------------------------------------------------


def _probe(
    directory: Path,
    plan: ProbePlan,
    environment: Mapping[str, Any],
    output: Path,
    signals: Interrupts,
) -> int:
    found, profile, report = measure(directory, plan, environment, output, signals)
    if signals.came:
        print("interrupted; no profile is written")
        return signals.exit_code
    print(report)
    if profile is None:
        return Exit.EARLY
    return _write(output, profile_text(profile), found)


def measure(
    directory: Path,
    plan: ProbePlan,
    environment: Mapping[str, Any],
    output: Path,
    signals: Interrupts,
) -> tuple[Probed, Profile | None, str]:
    """Carry out a plan: what was found, as a profile that will be called `output`, and as text.
    No profile where nothing could be measured, or a signal came."""
    began_s, started = time.monotonic(), datetime.now(UTC)
    what = f"opening the cache directory {directory}"
    place = answered(
        what, partial(CacheDir, directory, run="probe", reclaim=plan.reclaim), ANSWER_S
    )
    try:
        found = _probed(place, plan, signals)
    except NoAnswerError:  # nothing more is asked of it
        raise
    except BaseException:
        place.close()
        raise
    removed = answered(f"removing the cache files in {directory}", place.close, ANSWER_S)
    left = [f"  ! not removed: {path}" for path in (*removed.foreign, *removed.failed)]
    if signals.came:
        return found, None, "\n".join(left)
    if not found.cells:
        reasons = [f"  ! {text}" for text in refusal_texts(found.refused)]
        lines = ["nothing could be measured:", *reasons, *left]
        return found, None, "\n".join(lines)
    notes = list(_notes(found, environment))
    wall_s = time.monotonic() - began_s
    facts = _facts(directory, plan, found, environment, notes, wall_s) | {
        "measured_utc": started.isoformat(timespec="seconds")
    }
    profile = Profile(
        name=str(output), cells=tuple(found.cells), bursts=tuple(found.bursts), facts=facts
    )
    text = terminal(probe_view(profile_values(profile)))
    return found, profile, "\n".join([text, *left])


def _probed(place: CacheDir, plan: ProbePlan, signals: Interrupts) -> Probed:
    with TerminalProgress().bar(total=1.0) as bar:
        tick = partial(_tick, bar)
        make = partial(StorageProbe, place.objects, plan, stop=signals.stop, tick=tick)
        with answered(f"making files in {place.path}", make, ANSWER_S) as probe:
            return probe.run()


def _tick(bar: Bar, share: float, what: str) -> None:
    bar.to(share)
    bar.note(what)


def _write(output: Path, text: str, found: Probed) -> int:
    kept = keep(output, text.encode(), "profile")
    print(f"profile  {kept.shown}")
    print_unwritten(kept)
    return kept.code or (Exit.EARLY if found.failures else Exit.DONE)


def _notes(found: Probed, environment: Mapping[str, Any]) -> Iterator[str]:
    """What to know before the numbers."""
    device, counted = environment["device"], found.counted
    if device["name"] is None:
        yield f"no device accounts for what was moved: {device['reason']}"
    yield from findings_below(environment["drives"][0]["stack"])
    for kind in ("read", "write"):
        claimed, process = counted[f"claimed_{kind}_bytes"], counted[f"process_{kind}_bytes"]
        if claimed and process is not None and abs(process / claimed - 1) > _ENOUGH:
            yield (
                f"the kernel counted {100 * process / claimed:.1f} % of the bytes of the "
                f"{kind}s for this process: they were not all moved by a block device"
            )
    faster = _repeated_over_first(found)
    if faster is not None and abs(faster - 1) > _ENOUGH:
        yield (
            f"data that was read before came {abs(faster - 1):.0%} "
            f"{'faster' if faster > 1 else 'slower'} (median): "
            + ("a cache below this machine holds it" if faster > 1 else "the device is not steady")
        )


def _repeated_over_first(found: Probed) -> float | None:
    speeds: dict[tuple[int, int], dict[bool, float]] = {}
    for cell in found.cells:
        if cell.read_share == 1:
            point = speeds.setdefault((cell.object_bytes, cell.concurrency), {})
            point[cell.repeated] = cell.bytes_per_s
    ratios = sorted(both[True] / both[False] for both in speeds.values() if len(both) == 2)
    return ratios[len(ratios) // 2] if ratios else None


def _facts(
    directory: Path,
    plan: ProbePlan,
    found: Probed,
    environment: Mapping[str, Any],
    notes: Sequence[str],
    wall_s: float,
) -> dict[str, Any]:
    mount = {k: v for k, v in environment["filesystem"].items() if k != "free_bytes"}
    return {
        "program_version": __version__,
        "measured_utc": None,
        "cache_dir": str(nearest_existing(directory)),
        "device": dict(environment["device"]),
        "filesystem": mount,
        "stack": dict(environment["drives"][0]["stack"]),
        "kernel": environment["os"]["kernel"],
        "io": {**found.store, "verify": "stamps", "buffer_bytes": BUFFER_BYTES},
        "probe": {
            "data_bytes": plan.capacity_bytes,
            "wall_seconds": round(wall_s, 1),
            "verified_objects": found.verified_objects,
            "failed_operations": found.failures,
            "seed": plan.seed,
        },
        "counted": dict(found.counted),
        "notes": list(notes),
        "refused": [dict(row) for row in refusals(found)],
    }
