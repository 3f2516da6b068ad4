"""Write down a machine: what was measured of it, and what is known of the rest, in one file.

Each drive is probed, or its probe is read; memory is copied; overlays bring what cannot be measured
here, each with its source. The file is written last, whole or not at all.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from kv_cache import __version__
from kv_cache.app.probe import DriveOptions, DriveProbe, ProbeJob, checked_plan, probe
from kv_cache.bench.cache_dir import obtainable_bytes
from kv_cache.bench.dram import Copied, NotCopied, measure_copies
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.path_checks import check_name
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.config.hardware import (
    HEADER,
    MEASURED,
    Dram,
    HardwareProfile,
    Provenance,
    Sheet,
    Storage,
    hardware_of,
    hardware_text,
    overlaid,
    read_sheet,
)
from kv_cache.config.profile import HEADER as PROBE_HEADER
from kv_cache.config.profile import Profile, read_profile
from kv_cache.config.schema import opt, same_option
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import ConfigError
from kv_cache.core.exits import Exit
from kv_cache.core.units import PAGE_BYTES
from kv_cache.files.environment import captured
from kv_cache.files.keep import Kept, keep
from kv_cache.files.reading import require_replaceable
from kv_cache.tiers.objects import is_object_url

_DEFAULT_NAME = "drive"
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.+)")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(DriveOptions):
    """Which parts of a machine are measured, and what is known of the others."""

    layout: str = same_option(DriveOptions, "layout", "file")
    sizes: tuple[str, ...] = same_option(DriveOptions, "sizes", ("256KiB", "2MiB", "8MiB", "32MiB"))
    concurrency: tuple[int, ...] = same_option(DriveOptions, "concurrency", (1, 2, 4, 8, 16, 32))
    read_shares: tuple[float, ...] = same_option(DriveOptions, "read_shares", (0.25, 0.5, 0.75))
    seconds: float = same_option(DriveOptions, "seconds", 150.0)
    cache_dir: tuple[str, ...] = opt(
        (), f"Directory on a drive to be measured, and the drive's name ({_DEFAULT_NAME}); may be "
        "repeated for several drives", flag="--cache-dir", metavar="[NAME=]DIR",
    )  # fmt: skip
    probe: tuple[str, ...] = opt(
        (), "A drive that was measured: the file that probe wrote; may be repeated", flag="--probe",
        metavar="[NAME=]FILE",
    )  # fmt: skip
    overlay: tuple[str, ...] = opt(
        (), "Values for what is not measured here: a file of the same schema, each section with "
        "source and date; may be repeated, and later ones win", flag="--overlay", metavar="PATH",
    )  # fmt: skip
    dram: bool = opt(True, "Measure how fast memory is copied", flag="--no-dram")
    name: str | None = opt(None, "Name of the machine", flag="--name")
    description: str | None = opt(None, "Description for readers", flag="--description")
    output: str = opt(
        "hardware.yaml", "The hardware profile; probes of --cache-dir are written beside it",
        flag="--output", short="-o", metavar="PATH",
    )  # fmt: skip
    dry_run: bool = opt(
        False, "Check everything, print what would be done, and do nothing", flag="--dry-run"
    )


class CalibrationPlan(Struct, frozen=True, kw_only=True):
    """A checked calibration: drives to measure, and those that were measured, by name."""

    output: Path
    base: Sheet
    overlays: tuple[tuple[str, Sheet], ...]
    to_measure: Mapping[str, ProbeJob]
    measured: Mapping[str, Path]
    dram: bool


class Calibration(Struct, frozen=True, kw_only=True):
    """A hardware profile, and where it was written."""

    hardware: HardwareProfile
    kept: Kept
    end: Exit


OnDrive = Callable[[str, DriveProbe], None]
OnMemory = Callable[[Copied | NotCopied], None]


# --- checking --------------------------------------------------------------------------------


def checked(options: CalibrateOptions) -> CalibrationPlan:
    """Return the calibration that the options describe. Creates nothing. Raises UsageError for
    everything that can be known to be wrong."""
    output = Path(options.output)
    check_name(output, f"--output {output}")
    require_replaceable(output, HEADER, "--output")
    directories = _named(options.cache_dir, "--cache-dir")
    files = _named(options.probe, "--probe")
    for name in directories:
        if name in files:
            raise ConfigError(
                f"two drives are called {name}; give each a name of its own (NAME=PATH)"
            )
    if not (options.dram or directories or files or options.overlay):
        raise ConfigError(
            "--no-dram, and no drive and no overlay: nothing would be in the profile; give "
            "--cache-dir, --probe or --overlay"
        )
    overlays = tuple((text, read_sheet(Path(text))) for text in options.overlay)
    for text, sheet in overlays:
        _check_dates(sheet, text)
    plan = CalibrationPlan(
        output=output,
        base=Sheet(name=options.name, description=options.description),
        overlays=overlays,
        to_measure={n: _drive(n, text, options, output) for n, text in directories.items()},
        measured={name: Path(text) for name, text in files.items()},
        dram=options.dram,
    )
    _rehearse(plan)
    return plan


def _named(words: Sequence[str], flag: str) -> dict[str, str]:
    """Return the paths of `[NAME=]PATH` words by name."""
    paths: dict[str, str] = {}
    for number, text in enumerate(words):
        match = _NAMED.fullmatch(text)
        default = _DEFAULT_NAME if not number else f"{_DEFAULT_NAME}{number + 1}"
        name, path = match.groups() if match else (default, text)
        if name in paths:
            raise ConfigError(f"{flag} {text}: another drive is called {name}; name one of them")
        paths[name] = path
    return paths


def _drive(name: str, text: str, options: CalibrateOptions, output: Path) -> ProbeJob:
    if is_object_url(text):
        raise ConfigError(
            "--cache-dir s3://…: calibrate measures devices of this machine, and an object store "
            "is not one; give a directory, and the store as an overlay of section remote"
        )
    directory = Path(text)
    plan = checked_plan(options, directory)
    file = output.with_name(f"{output.stem}.{name}.probe.yaml")
    check_name(file, f"--output {output}")
    require_replaceable(file, PROBE_HEADER, "--output")
    return ProbeJob(directory=directory, plan=plan, environment=captured(directory), output=file)


def _check_dates(sheet: Sheet, text: str) -> None:
    """Refuse an overlay whose values were read tomorrow."""
    today = date.today()
    for name, section in sheet.sections():
        day = section.provenance.date
        if day is not None and date.fromisoformat(day) > today:
            raise ConfigError(
                f"hardware {text}: {name}.provenance.date is {day}, and today is {today}; correct "
                "it"
            )


def _rehearse(plan: CalibrationPlan) -> None:
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


def _together(
    plan: CalibrationPlan, measured: Sheet, curves: Mapping[str, Profile]
) -> HardwareProfile:
    """Return the profile of what was measured, with the overlays over it. Raises ConfigError."""
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
    overlays = f" with {', '.join(text for text, _ in plan.overlays)}" if plan.overlays else ""
    return hardware_of(named, f"{plan.output}{overlays}", curves)


def _with(sheet: Sheet, name: str, storage: Storage) -> Sheet:
    return replace(sheet, storage={**sheet.storage, name: storage})


# --- measuring -------------------------------------------------------------------------------


def calibrate(
    plan: CalibrationPlan,
    *,
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
    on_drive: OnDrive = ignore,
    on_memory: OnMemory = ignore,
) -> Calibration | None:
    """Measure a machine as checked and write its profile; None if `stop` ended it.

    `on_memory` and `on_drive` get each part as soon as it is measured; the profile of each drive is
    written then.
    """
    caught = stop or Interrupts()
    sheet, curves = plan.base, dict[str, Profile]()
    for name, file in plan.measured.items():
        curves[name] = read_profile(file)
        sheet = _with(sheet, name, _storage(curves[name], file, plan.output, None))
    if plan.dram:
        copied = measure_copies(lambda: caught.came)
        on_memory(copied)
        if isinstance(copied, Copied):
            sheet = replace(sheet, dram=_dram(copied))
    end = Exit.DONE
    for name, job in plan.to_measure.items():
        if caught.came:
            break
        result = probe(job, stop=caught, progress=progress)
        if not caught.came:
            on_drive(name, result)
        end = end or (Exit.EARLY if result.end else Exit.DONE)
        if result.kept is not None and (written := result.kept.path) is not None:
            curves[name] = read_profile(written)
            room = obtainable_bytes(job.directory) // PAGE_BYTES * PAGE_BYTES
            sheet = _with(sheet, name, _storage(curves[name], written, plan.output, room))
    if caught.came:
        return None
    hardware = _together(plan, sheet, curves)
    kept = keep(plan.output, hardware_text(hardware).encode(), "hardware profile")
    return Calibration(hardware=hardware, kept=kept, end=kept.code or end)


def _storage(profile: Profile, file: Path, output: Path, room: int | None) -> Storage:
    """Return a reference to a probe file: its name if it is beside the output, else its path."""
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
