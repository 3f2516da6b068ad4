"""`kv-cache.py calibrate`: what was measured of a machine and what is known of the rest, in a file.

Each drive is probed, or was; memory is copied; overlays bring what cannot be measured here, each
with its source. What this can carry is printed. The file is written last, whole or not at all.
"""

import argparse
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psutil

from kv_cache import __version__
from kv_cache.bench.cache_dir import obtainable_bytes
from kv_cache.bench.dram import Copied, NotCopied, measure_copies
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.memory import check_ram
from kv_cache.bench.path_checks import check_cache_dir, check_name
from kv_cache.bench.probe import ProbePlan
from kv_cache.cli.parsing import CommandParser
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.probe import add_options, measure, plan_of, refuse_memory
from kv_cache.config.hardware import (
    HEADER,
    MEASURED,
    Dram,
    HardwareProfile,
    Provenance,
    Sheet,
    Storage,
    empty,
    hardware_of,
    hardware_text,
    overlaid,
    read_sheet,
    readiness_text,
)
from kv_cache.config.profile import HEADER as PROBE_HEADER
from kv_cache.config.profile import Profile, profile_text, read_profile
from kv_cache.core.errors import ConfigError
from kv_cache.core.exits import Exit
from kv_cache.core.format import gib_per_s
from kv_cache.core.units import whole_pages
from kv_cache.files.keep import keep
from kv_cache.files.machine import captured
from kv_cache.files.reading import require_replaceable
from kv_cache.tiers.objects import is_object_url

SIZES_MIB = "0.25,2,8,32"
CONCURRENCIES = "1,2,4,8,16,32"
READ_SHARES = "0.25,0.5,0.75"
DEFAULT_NAME = "drive"
DEFAULT_SECONDS = 150.0
_MOST_SPREAD = 0.5  # of the copies of memory, beyond which it is said

_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.+)")

_ABOUT = """\
Measure a machine, add what is known of the parts that are not here, and write one hardware profile:
the curves of each drive (as probe), how fast memory is copied, and overlays. Prints which sections
are measured, which are overlays with a source, which are missing, and so which questions the
profile can carry.

predict, run --predict and sim read the file.
"""

_EXAMPLES = """\
examples:
  kv-cache.py calibrate --cache-dir /mnt/nvme/kv --output machine.yaml
  kv-cache.py calibrate --cache-dir fast=/mnt/a/kv --cache-dir slow=/mnt/b/kv --overlay h100.yaml
  kv-cache.py calibrate --probe profile-nvme0n1.yaml --no-dram --overlay rack.yaml

The files are measured as run writes them by default (--layout file, no fsync); give the same
--layout and --fsync as the runs that are to be predicted (--semantics mlperf: --fsync object).

exit code: 0 done, 1 something could not be measured or written, 2 bad input, 130 and 143
interrupted (no hardware profile is written)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A checked calibration: drives to measure, and those that were."""

    output: Path
    base: Sheet
    overlays: tuple[tuple[str, Sheet], ...]
    to_measure: Mapping[str, tuple[Path, ProbePlan, Path]]  # directory, plan, file of the probe
    measured: Mapping[str, Path]
    dram: bool


def main(argv: Sequence[str]) -> int:
    """Measure and write; the exit code. UsageError is the caller's to print."""
    plan = _checked(_parser().parse_args(argv))
    with interrupts() as signals:
        return _calibrate(plan, signals)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py calibrate",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--cache-dir", action="append", default=[], metavar="[NAME=]D",
        help=f"directory on a drive to be measured, and what it is called ({DEFAULT_NAME}); "
        "several times for several drives",
    )  # fmt: skip
    parser.add_argument(
        "--probe", action="append", default=[], metavar="[NAME=]FILE",
        help="a drive that was measured: what probe wrote",
    )  # fmt: skip
    parser.add_argument(
        "--overlay", action="append", default=[], metavar="FILE",
        help="values for what is not measured here: a file of the same schema, each section with "
        "source and date; later ones win",
    )  # fmt: skip
    parser.add_argument("--no-dram", action="store_true", help="do not measure memory")
    parser.add_argument("--name", help="what the machine is called")
    parser.add_argument("--description", help="for a reader of the file")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("hardware.yaml"), metavar="FILE",
        help="the hardware profile (default: %(default)s); probes of --cache-dir are written "
        "beside it",
    )  # fmt: skip
    add_options(parser)
    parser.set_defaults(
        layout="file",
        sizes_mib=SIZES_MIB,
        concurrency=CONCURRENCIES,
        read_shares=READ_SHARES,
        seconds=DEFAULT_SECONDS,
    )
    return parser


# --- checking --------------------------------------------------------------------------------


def _checked(options: argparse.Namespace) -> _Plan:
    """Raises UsageError for everything that can be known to be wrong."""
    output: Path = options.output
    check_name(output, f"--output {output}")
    require_replaceable(output, HEADER, "--output")
    directories = _named(options.cache_dir, "--cache-dir")
    files = _named(options.probe, "--probe")
    for name in directories:
        if name in files:
            raise ConfigError(
                f"two drives are called {name}; give each a name of its own (NAME=PATH)"
            )
    if options.no_dram and not (directories or files or options.overlay):
        raise ConfigError(
            "--no-dram, and no drive and no overlay: nothing would be in the profile; give "
            "--cache-dir, --probe or --overlay"
        )
    overlays = tuple((text, read_sheet(Path(text))) for text in options.overlay)
    for text, sheet in overlays:
        _check_dates(sheet, text)
    base = empty(options.name, options.description)
    to_measure = {}
    for name, text in directories.items():
        to_measure[name] = _drive(name, text, options, output)
    plan = _Plan(
        output=output,
        base=base,
        overlays=overlays,
        to_measure=to_measure,
        measured={name: Path(text) for name, text in files.items()},
        dram=not options.no_dram,
    )
    _rehearse(plan)
    return plan


def _named(given: Sequence[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, text in enumerate(given):
        match = _NAMED.fullmatch(text)
        default = DEFAULT_NAME if not number else f"{DEFAULT_NAME}{number + 1}"
        name, path = match.groups() if match else (default, text)
        if name in found:
            raise ConfigError(f"{flag} {text}: another drive is called {name}; name one of them")
        found[name] = path
    return found


def _drive(
    name: str, text: str, options: argparse.Namespace, output: Path
) -> tuple[Path, ProbePlan, Path]:
    if is_object_url(text):
        raise ConfigError(
            "--cache-dir s3://…: a device of this machine is measured, and an object store is "
            "none; give a directory, and the store as an overlay of section remote"
        )
    directory = Path(text)
    check_cache_dir(directory)
    refuse_memory(directory)
    plan = plan_of(options, directory)
    check_ram({"buffers": plan.memory_bytes()})
    file = output.with_name(f"{output.stem}.{name}.probe.yaml")
    check_name(file, f"--output {output}")
    require_replaceable(file, PROBE_HEADER, "--output")
    return directory, plan, file


def _check_dates(sheet: Sheet, text: str) -> None:
    """An overlay cannot have been read tomorrow."""
    today = date.today()
    whole = HardwareProfile(file=text, **{f.name: getattr(sheet, f.name) for f in fields(sheet)})
    for name, section in whole.sections():
        told = section.provenance.date
        if told is not None and date.fromisoformat(told) > today:
            raise ConfigError(
                f"hardware {text}: {name}.provenance.date is {told}, and today is {today}; correct "
                "it"
            )


def _rehearse(plan: _Plan) -> None:
    """Put together what will be there, so that a contradiction is found before a drive is measured
    for minutes. Raises ConfigError."""
    sheet, curves = plan.base, dict[str, Profile]()
    pretended = Provenance(how=MEASURED, source="calibrate", date="2000-01-01")
    for name, file in plan.measured.items():
        curves[name] = read_profile(file)
        sheet = _with(sheet, name, Storage(probe=str(file), provenance=pretended))
    for name in plan.to_measure:
        curves[name] = Profile(name=name, cells=())
        sheet = _with(sheet, name, Storage(probe=name, provenance=pretended))
    if plan.dram:
        sheet = replace(sheet, dram=Dram(copy_bytes_per_s=1.0, provenance=pretended))
    _together(plan, sheet, curves)


def _together(plan: _Plan, measured: Sheet, curves: Mapping[str, Profile]) -> HardwareProfile:
    sheet = measured
    for text, over in plan.overlays:
        sheet = overlaid(sheet, over, text)
        for name, storage in over.storage.items():
            if storage.probe is not None:
                raise ConfigError(
                    f"hardware {text}: storage.{name}.probe: an overlay is for what was not "
                    f"measured; give the file as --probe {name}={storage.probe}"
                )
    named = replace(
        sheet,
        name=plan.base.name or sheet.name,
        description=plan.base.description or sheet.description,
    )
    given = f" with {', '.join(text for text, _ in plan.overlays)}" if plan.overlays else ""
    return hardware_of(named, f"{plan.output}{given}", curves)


def _with(sheet: Sheet, name: str, storage: Storage) -> Sheet:
    return replace(sheet, storage={**sheet.storage, name: storage})


# --- doing it --------------------------------------------------------------------------------


def _calibrate(plan: _Plan, signals: Interrupts) -> int:
    sheet, curves = plan.base, dict[str, Profile]()
    for name, file in plan.measured.items():
        curves[name] = read_profile(file)
        sheet = _with(sheet, name, _storage(curves[name], file, plan.output, None))
    if plan.dram:
        sheet = _with_memory(sheet, signals)
    whole = True
    for name, (directory, probing, file) in plan.to_measure.items():
        if signals.came:
            break
        written, complete = _measured(name, directory, probing, file, signals)
        whole = whole and complete
        if written is not None:
            curves[name] = read_profile(written)
            room = whole_pages(obtainable_bytes(directory))
            sheet = _with(sheet, name, _storage(curves[name], written, plan.output, room))
    if signals.came:
        print("interrupted; no hardware profile is written")
        return signals.exit_code
    hardware = _together(plan, sheet, curves)
    print(f"\n{readiness_text(hardware)}")
    kept = keep(plan.output, hardware_text(hardware).encode(), "hardware profile")
    print(f"hardware  {kept.shown}")
    print_unwritten(kept)
    return kept.code or (Exit.DONE if whole else Exit.EARLY)


def _with_memory(sheet: Sheet, signals: Interrupts) -> Sheet:
    copied = measure_copies(lambda: bool(signals.came))
    if isinstance(copied, NotCopied):
        print(f"memory is not measured: {copied.reason}")
        return sheet
    print(_told(copied))
    return replace(sheet, dram=_dram(copied))


def _measured(
    name: str, directory: Path, plan: ProbePlan, file: Path, signals: Interrupts
) -> tuple[Path | None, bool]:
    """One drive: the file of its probe, if there is one; and whether nothing failed."""
    found, profile, report = measure(directory, plan, captured(directory), file, signals)
    if signals.came:
        return None, False
    print(f"{name}: {report}")
    if profile is None:
        return None, False
    kept = keep(file, profile_text(profile).encode(), "profile")
    print(f"probe  {kept.shown}")
    print_unwritten(kept)
    return kept.path, kept.in_place and not found.failures


def _storage(profile: Profile, file: Path, output: Path, room: int | None) -> Storage:
    """A reference to a probe file: its name beside the output, else its whole path."""
    beside = file.resolve().parent == output.resolve().parent
    device: Any = profile.facts.get("device") or {}
    mount: Any = profile.facts.get("filesystem") or {}
    what = [device.get("name"), device.get("model"), mount.get("type")]
    measured = str(profile.facts.get("measured_utc") or "")
    versions = {
        "kv-cache": profile.facts.get("program_version"),
        "kernel": profile.facts.get("kernel"),
    }
    return Storage(
        probe=file.name if beside else str(file.resolve()),
        probe_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        capacity_bytes=room,
        provenance=Provenance(
            how=MEASURED,
            source=f"kv-cache probe of {', '.join(str(w) for w in what if w) or 'a drive'}",
            date=measured[:10] or None,
            versions={key: str(value) for key, value in versions.items() if value},
        ),
    )


def _dram(copied: Copied) -> Dram:
    return Dram(
        capacity_bytes=int(psutil.virtual_memory().total),
        copy_bytes_per_s=float(round(copied.bytes_per_s)),
        copy_one_thread_bytes_per_s=float(round(copied.one_thread_bytes_per_s)),
        provenance=Provenance(
            how=MEASURED,
            source=f"kv-cache calibrate, median of {copied.passes} copies by {copied.threads} "
            f"threads, spread {copied.spread:.0%}",
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            versions={"kv-cache": __version__},
        ),
    )


def _told(copied: Copied) -> str:
    told = (
        f"memory: {gib_per_s(copied.bytes_per_s)} copied by {copied.threads} threads, "
        f"{gib_per_s(copied.one_thread_bytes_per_s)} by one (median of {copied.passes}, spread "
        f"{copied.spread:.0%})"
    )
    if copied.spread <= _MOST_SPREAD:
        return told
    return (
        f"{told}\n  ! the passes differ by much: other work ran; calibrate again when it does not"
    )
