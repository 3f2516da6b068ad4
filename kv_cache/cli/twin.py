"""`kv-cache.py twin RESULT`: fio does the I/O of a run's storage tier; both side by side."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_cache.bench.cache_dir import CacheDir, obtainable_bytes
from kv_cache.bench.counters import device_of
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.memory import check_ram
from kv_cache.bench.path_checks import check_cache_dir
from kv_cache.cli.parsing import RECLAIM, CommandParser
from kv_cache.core.errors import ConfigError, PlaceError, UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.units import human_bytes
from kv_cache.crew.child_processes import tied
from kv_cache.files.fio import (
    DEFAULT_SECONDS,
    Twin,
    derive,
    export_job,
    job_text,
    what_it_does,
)
from kv_cache.files.fio_report import Answer, comparison, read_answer, read_logs
from kv_cache.files.reading import read_result, require_intact
from kv_cache.tiers.objects import is_object_url

_SHARD = "00"  # what is in it, and ends with .kv, is removed with the cache directory
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as our buffers have

_ABOUT = """\
Read a result, derive the fio job that does the same I/O as the run's storage tier did in its
measured window, run it, and print what both measured side by side.

fio works in a directory of its own below --dir, which is removed in the end, also after Ctrl-C.
What fio cannot do as the run did is printed under the comparison.
"""

_EXAMPLES = """\
examples:
  kv-cache.py twin result.json                          where the run had its cache directory
  kv-cache.py twin result.json --dir /mnt/nvme --seconds 60
  kv-cache.py twin result.json --fio-export run.fio     write the job, and run nothing

exit code: 0 done, 1 fio failed, 2 bad input or no fio, 130 and 143 interrupted
"""


def main(argv: Sequence[str]) -> int:
    """Compare, or only export; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(argv)
    if not 1 <= options.seconds <= 86_400:
        raise ConfigError(f"--seconds {options.seconds:g} is not 1 to 86400; give whole seconds")
    document = read_result(options.result)
    require_intact(document, options.result)
    twin = derive(document, options.result)
    if options.fio_export is not None:
        return _export(twin, options)
    if shutil.which("fio") is None:
        raise UsageError(
            "fio is not installed; install it (apt-get install fio), or write the job for another "
            "machine with --fio-export FILE"
        )
    for name in options.dir:
        if is_object_url(name):
            raise ConfigError("--dir s3://…: fio does the I/O of files; give a directory")
    directories = [Path(name) for name in options.dir] or _where_it_was(twin)
    _check_room(twin, directories, options.seconds)
    with interrupts() as signals:
        return _compare(twin, directories, options, signals)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py twin",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "result", type=Path, metavar="RESULT", help="result file, or a run's directory"
    )
    parser.add_argument(
        "--dir",
        action="append",
        default=[],
        metavar="D",
        help="directory on the device to be measured; several times for several drives (default: "
        "the cache directory of the run, or what it was in)",
    )
    parser.add_argument("--reclaim", metavar="HOST", help=RECLAIM)
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="how long fio measures (default: %(default)g)",
    )
    parser.add_argument(
        "--fio-export", type=Path, metavar="FILE", help="only write the job file there"
    )
    return parser


def _export(twin: Twin, options: argparse.Namespace) -> int:
    path: Path = options.fio_export
    export_job(twin, path, options.seconds, options.dir)
    print(what_it_does(twin))
    print(f"job  {path}")
    return 0


# --- where -----------------------------------------------------------------------------------


def _where_it_was(twin: Twin) -> list[Path]:
    """The run's cache directories; where one is gone, what it was in."""
    if not twin.cache_dirs:
        raise UsageError(
            f"{twin.result}: the run had a temporary cache directory; say with --dir where the "
            "device to be measured is mounted"
        )
    found = []
    for name in twin.cache_dirs:
        path = Path(name)
        near = next((p for p in (path, path.parent) if p.is_dir()), None)
        if near is None:
            raise UsageError(
                f"{twin.result}: the run's cache directory {name} is not here, nor what it was in; "
                "say with --dir where the device to be measured is mounted"
            )
        found.append(near)
    return list(dict.fromkeys(found))


def _check_room(twin: Twin, directories: Sequence[Path], seconds: float) -> None:
    each = twin.space_bytes(seconds) // len(directories)
    for directory in directories:
        if not directory.is_dir():
            raise PlaceError(f"--dir {directory}: there is no such directory; create it first")
        check_cache_dir(directory)
        if not os.path.realpath(directory).isprintable():
            raise PlaceError(
                f"--dir {directory}: its real path holds bytes that a job file of fio cannot name; "
                "rename it, or name another directory on that device"
            )
        free = obtainable_bytes(directory)
        if each > free:
            raise PlaceError(
                f"--dir {directory}: fio's files take {human_bytes(each)} there, but "
                f"{human_bytes(free)} are free; give fewer --seconds, or a larger place with --dir"
            )
    check_ram({"fio's buffers": twin.memory_bytes()})


# --- running ---------------------------------------------------------------------------------


def _compare(
    twin: Twin, directories: Sequence[Path], options: argparse.Namespace, signals: Interrupts
) -> int:
    seconds: float = options.seconds
    print(what_it_does(twin))
    taken: list[CacheDir] = []
    problem: str | None = None
    answer: Answer | None = None
    try:
        for directory in directories:
            taken.append(CacheDir(directory, run="twin", reclaim=options.reclaim))
        places = [place.objects / _SHARD for place in taken]
        for place in places:
            place.mkdir()
        print(f"fio: {seconds:g} s in {', '.join(str(p.path) for p in taken)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="kv-cache-twin-") as scratch:
            job = job_text(twin, seconds, [str(place) for place in places], Path(scratch))
            answer, problem = _fio(twin, job, Path(scratch), signals)
    finally:
        left = [path for place in taken for path in _left(place)]
    for path in left:
        print(f"  ! not removed: {path}")
    if signals.came:
        print("interrupted; nothing is compared")
        return signals.exit_code
    if answer is None:
        print(f"fio failed: {problem}")
        return Exit.EARLY
    print()
    print(comparison(twin, answer))
    print()
    for text in [*_other_device(twin, directories), *twin.unlike()]:
        print(f"  ! {text}")
    return 0


def _left(place: CacheDir) -> tuple[str, ...]:
    removed = place.close()
    return (*removed.foreign, *removed.failed)


def _other_device(twin: Twin, directories: Sequence[Path]) -> list[str]:
    """That the run was on a device of another name."""
    here = sorted({device_of(directory) or "none" for directory in directories})
    same = twin.device is None or any(name.startswith(twin.device) for name in here)
    if same:
        return []
    return [f"the run was on device {twin.device}, fio on {', '.join(here)}"]


def _fio(
    twin: Twin, job: str, scratch: Path, signals: Interrupts
) -> tuple[Answer | None, str | None]:
    """fio's answer, or what went wrong. A signal kills fio: of one that was interrupted nothing is
    wanted, and its own handler allocates memory, which deadlocks where it came within malloc."""
    file, report = scratch / "twin.fio", scratch / "report.json"
    file.write_text(job)
    command = ["fio", str(file), "--output-format=json", f"--output={report}", "--eta=never"]
    if signals.came:
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
        signals.on_signal = process.kill
        if signals.came:  # between the look and the line above
            process.kill()
        told, _ = process.communicate()
    finally:
        signals.on_signal = lambda: None
        process.kill()  # does nothing to one that has ended
        process.wait()
    if process.returncode != 0:
        return None, _last_line(told) or f"exit code {process.returncode}"
    try:
        return read_answer(twin, _report(report), read_logs(twin, scratch)), None
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        return None, f"its report cannot be used ({error!r})"


def _report(path: Path) -> Mapping[str, Any]:
    """fio may write a line of warning before its JSON."""
    text = path.read_text(errors="replace")
    found: Mapping[str, Any] = json.loads(text[text.index("{") :])
    return found


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
