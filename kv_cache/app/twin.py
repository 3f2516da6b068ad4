"""Have fio do the I/O of a run's storage tier, so that both programs stand side by side.

fio works in a directory of its own below each given one, which is removed in the end, also after
Ctrl-C.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.bench.cache_dir import CacheDir, obtainable_bytes
from kv_cache.bench.counters import device_of
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.memory import available_ram_bytes, check_ram, usable_bytes
from kv_cache.bench.path_checks import check_cache_dir
from kv_cache.config.schema import opt, same_option
from kv_cache.config.sections import TiersConfig
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import ConfigError, PlaceError, UsageError
from kv_cache.core.units import human_bytes
from kv_cache.crew.child_processes import tied
from kv_cache.files.environment import Reader, filesystem
from kv_cache.files.fio import DEFAULT_SECONDS, HEADER, Twin, derive, export_job, job_text
from kv_cache.files.fio_report import Answer, read_answer, read_logs
from kv_cache.files.reading import read_result, require_replaceable
from kv_cache.tiers.objects import is_object_url

_SHARD = "00"  # what is in it, and ends with .kv, is removed with the cache directory
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as our buffers have


@dataclass(frozen=True, kw_only=True)
class TwinOptions:
    """Whose twin runs, where, and how long."""

    result: str = opt(
        "-", "Result file, or a run's directory", flag="RESULT", metavar="PATH", required=True
    )
    dir: tuple[str, ...] = opt(
        (), "Directory on the device to be measured; may be repeated for several drives; if not "
        "given, the cache directory of the run, or what it was in", flag="--dir", metavar="DIR",
    )  # fmt: skip
    reclaim: str | None = same_option(TiersConfig, "reclaim")
    seconds: float = opt(
        DEFAULT_SECONDS, "Time that fio measures", unit="s", low=1, high=86_400, flag="--seconds",
        metavar="S",
    )  # fmt: skip
    fio_export: str | None = opt(
        None, "Only write the job file there", flag="--fio-export", metavar="PATH"
    )
    dry_run: bool = opt(
        False, "Check everything, print what would be done, and do nothing", flag="--dry-run"
    )


class TwinJob(Struct, frozen=True, kw_only=True):
    """A checked comparison: what fio does, and where."""

    twin: Twin
    directories: tuple[Path, ...]
    seconds: float
    reclaim: str | None


class TwinResult(Struct, frozen=True, kw_only=True):
    """What fio measured, or the problem that it had; neither if a signal came."""

    answer: Answer | None
    problem: str | None
    notes: tuple[str, ...]  # in what the two are unlike
    left: tuple[str, ...]  # paths that could not be removed


# --- checking --------------------------------------------------------------------------------


def twin_of(options: TwinOptions) -> Twin:
    """Return what fio has to do to be the twin of the run. Raises UsageError."""
    path = Path(options.result)
    document = read_result(path)
    return derive(document, path)


def export(options: TwinOptions, twin: Twin) -> Path:
    """Write the job file alone, unless this is a dry run. Raises UsageError."""
    assert options.fio_export is not None
    path = Path(options.fio_export)
    if options.dry_run:
        require_replaceable(path, HEADER, "--fio-export")
    else:
        export_job(twin, path, options.seconds, options.dir)
    return path


def checked(options: TwinOptions, twin: Twin) -> TwinJob:
    """Return the comparison that the options describe. Creates nothing. Raises UsageError."""
    if shutil.which("fio") is None:
        raise UsageError(
            "fio is not installed; install it (apt-get install fio), or write the job for another "
            "machine with --fio-export FILE"
        )
    if any(is_object_url(name) for name in options.dir):
        raise ConfigError("--dir s3://…: fio does the I/O of files; give a directory")
    directories = tuple(map(Path, options.dir)) or _where_it_was(twin)
    twin = replace(twin, drives=len(directories), raw_device=None)
    for name in options.dir:
        if not Path(name).is_dir():
            raise PlaceError(f"--dir {name}: there is no such directory; create it first")
    _check_room(twin, directories, options)
    if twin.memory_bytes() > usable_bytes(available_ram_bytes()):
        twin = twin.in_less_memory()
    check_ram({"fio's buffers": twin.memory_bytes()})
    return TwinJob(
        twin=twin, directories=directories, seconds=options.seconds, reclaim=options.reclaim
    )


def _where_it_was(twin: Twin) -> tuple[Path, ...]:
    """Return the run's cache directories, which are made again where the run removed them."""
    if not twin.cache_dirs:
        raise UsageError(
            f"{twin.result}: the run had a temporary cache directory; say with --dir where the "
            "device to be measured is mounted"
        )
    if twin.raw_device is not None:
        raise UsageError(
            f"{twin.result}: the run was on the raw device {twin.raw_device}, which twin does not "
            "erase; write the job with --fio-export FILE and start fio on it, or give a directory "
            "with --dir"
        )
    directories = []
    for name in twin.cache_dirs:
        path = Path(name)
        mount_point = filesystem(Reader(), path)["mount_point"]
        if not path.parent.is_dir() and mount_point not in set(twin.mount_points) - {None}:
            raise UsageError(
                f"{twin.result}: the run's cache directory {name} is not here, nor what it was in; "
                "say with --dir where the device to be measured is mounted"
            )
        directories.append(path)
    return tuple(dict.fromkeys(directories))


def _check_room(twin: Twin, directories: Sequence[Path], options: TwinOptions) -> None:
    each = twin.space_bytes(options.seconds) // twin.drives
    for directory in directories:
        check_cache_dir(directory)
        if not os.path.realpath(directory).isprintable():
            raise PlaceError(
                f"--dir {directory}: its real path holds bytes that a job file of fio cannot name; "
                "rename it, or name another directory on that device"
            )
        free = obtainable_bytes(directory, options.reclaim)
        if each > free:
            raise PlaceError(
                f"--dir {directory}: fio's files take {human_bytes(each)} there, but "
                f"{human_bytes(free)} are free; give fewer --seconds, or a larger place with --dir"
            )


# --- running ---------------------------------------------------------------------------------


def run_twin(job: TwinJob, *, stop: Interrupts | None = None) -> TwinResult:
    """Run fio as checked, and remove what it made. Raises UsageError."""
    caught, twin = stop or Interrupts(), job.twin
    with ExitStack() as stack:
        left: list[str] = []
        places = []
        for directory in job.directories:
            place = CacheDir(directory, run="twin", reclaim=job.reclaim)
            stack.callback(_close, place, left)
            places.append(place.objects / _SHARD)
        for objects in places:
            objects.mkdir()
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-cache-twin-")))
        text = job_text(twin, job.seconds, [str(objects) for objects in places], scratch)
        answer, problem = _fio(twin, text, scratch, caught)
    return TwinResult(
        answer=answer,
        problem=problem,
        notes=(*_other_device(twin, job.directories), *twin.unlike()),
        left=tuple(left),
    )


def _close(place: CacheDir, left: list[str]) -> None:
    """Close a cache directory; what could not be removed goes into `left`."""
    removed = place.close()
    left += [str(path) for path in (*removed.foreign, *removed.failed)]


def _other_device(twin: Twin, directories: Sequence[Path]) -> list[str]:
    """Return a note if the run was on a device of another name."""
    here = sorted({device_of(directory) or "none" for directory in directories})
    if twin.device is None or any(name.startswith(twin.device) for name in here):
        return []
    return [f"the run was on device {twin.device}, fio on {', '.join(here)}"]


def _fio(twin: Twin, job: str, scratch: Path, stop: Interrupts) -> tuple[Answer | None, str | None]:
    """Return fio's answer, or what went wrong. A signal kills fio: of one that was interrupted
    nothing is wanted, and its own handler allocates memory, which deadlocks if it comes within
    malloc."""
    file, report = scratch / "twin.fio", scratch / "report.json"
    file.write_text(job)
    command = ["fio", str(file), "--output-format=json", f"--output={report}", "--eta=never"]
    if stop.came:
        return None, None
    # In a session of its own: Ctrl-C in the terminal is for us, and we end fio.
    process = subprocess.Popen(
        tied(command, signal.SIGKILL),
        cwd=scratch,
        env={**os.environ, **_HUGE_PAGES},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stop.on_signal = process.kill
        if stop.came:  # between the look and the line above
            process.kill()
        output, _ = process.communicate()
    finally:
        stop.on_signal = ignore
        process.kill()  # does nothing to one that has ended
        process.wait()
    if process.returncode != 0:
        return None, _last_line(output) or f"exit code {process.returncode}"
    try:
        return read_answer(twin, _report(report), read_logs(twin, scratch)), None
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        return None, f"its report cannot be used ({error!r})"


def _report(path: Path) -> Mapping[str, Any]:
    """Return fio's JSON, before which it may write a line of warning."""
    text = path.read_text(errors="replace")
    report: Mapping[str, Any] = json.loads(text[text.index("{") :])
    return report


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
