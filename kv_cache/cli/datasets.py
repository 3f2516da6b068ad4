"""`kv-cache.py datasets`: small generated samples of every trace format, and the real traces."""

import argparse
import gzip
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kv_cache.cli.parsing import CommandParser
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, did_you_mean
from kv_cache.files.writing import write_atomically
from kv_cache.installing import install_hint
from kv_cache.workload.public_traces import markdown, text
from kv_cache.workload.samples import SAMPLE_SEED, SAMPLES, sample_bytes

MOST_ROWS = 1_000_000

_ABOUT = """\
make: write small samples of the trace formats (of all of them, or of those that are named). They
are made from a seed: the same command writes the same bytes. They have the columns, units and the
rough shape of the real traces, and none of their data.

list: the real traces, their licences and how to fetch them.
"""

_EXAMPLES = """\
examples:
  kv-cache.py datasets make                             all samples, in datasets/
  kv-cache.py datasets make mooncake qwen --dir /tmp/traces --rows 10000 --pack zst
  kv-cache.py datasets list

A file that is there and differs is never written over. exit code: 0 done, 2 bad input
"""


def main(argv: Sequence[str]) -> int:
    """Make samples or list sources; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(argv)
    if options.action == "list":
        if options.formats:
            raise ConfigError("datasets: list takes no format; see datasets --help")
        print(markdown() if options.markdown else text(), end="")
        return 0
    return _make(options)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py datasets",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=("make", "list"), help="what to do")
    parser.add_argument(
        "formats", nargs="*", metavar="FORMAT", help="make: only samples of these formats"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("datasets"),
        metavar="D",
        help="make: directory to write in; made if it is not there (default: %(default)s)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="make: rows of each (sessions, where a row belongs to one); default: a few hundred",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SAMPLE_SEED,
        metavar="S",
        help="make: the seed (default: %(default)s)",
    )
    parser.add_argument("--pack", choices=tuple(_PACKERS), help="make: pack the files")
    parser.add_argument("--markdown", action="store_true", help="list: the table as Markdown")
    return parser


# --- making ---


def _make(options: argparse.Namespace) -> int:
    if options.rows is not None and not 1 <= options.rows <= MOST_ROWS:
        raise ConfigError(f"--rows {options.rows} is not 1 to {MOST_ROWS}; give a number of rows")
    if not 0 <= options.seed < 1 << 32:
        raise ConfigError(f"--seed {options.seed} is not 0 to 4294967295; give another seed")
    pack = _PACKERS[options.pack]() if options.pack else bytes
    suffix = f".{options.pack}" if options.pack else ""

    def made(name: str) -> bytes:
        return pack(sample_bytes(name, options.seed, options.rows))

    paths = {name: options.dir / (name + suffix) for name in _names(options.formats)}
    # All are looked at before the first is written.
    there = {name for name, path in paths.items() if _is_there(path, partial(made, name))}
    _make_directory(options.dir)
    for name, path in paths.items():
        if name not in there:
            _write(path, made(name))
        print(f"{path}: {path.stat().st_size} bytes{' (was there)' if name in there else ''}")
    return 0


def _names(formats: Sequence[str]) -> list[str]:
    """The samples of the formats, of all without any."""
    existing = {sample.format for sample in SAMPLES.values()}
    for wanted in formats:
        if wanted not in existing:
            raise ConfigError(
                f"datasets: there is no trace format {wanted!r}.{did_you_mean(wanted, existing)}"
            )
    return [name for name, sample in SAMPLES.items() if not formats or sample.format in formats]


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise PlaceError(
            f"--dir {path}: it cannot be made ({error.strerror}); name a directory in one that "
            "exists"
        ) from None


def _is_there(path: Path, made: Callable[[], bytes]) -> bool:
    """Whether the file is there already as it would be written; one that differs is refused."""
    try:
        if not path.exists():
            return False
        same = path.is_file() and path.read_bytes() == made()
    except OSError as error:
        raise PlaceError(
            f"{path}: it cannot be looked at ({error.strerror}); name another place with --dir"
        ) from None
    if not same:
        raise PlaceError(
            f"{path}: something else of that name is there, which is not written over; move it "
            "away, or name another place with --dir"
        )
    return True


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise PlaceError(
            f"{path}: it cannot be written ({error.strerror}); name another place with --dir"
        ) from None


def _gzip() -> Callable[[bytes], bytes]:
    return lambda data: gzip.compress(data, mtime=0)


def _zstd() -> Callable[[bytes], bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UsageError(
            f"--pack zst needs the package `zstandard`: {install_hint('zstd')}, or use --pack gz"
        ) from None
    compress: Callable[[bytes], bytes] = zstandard.ZstdCompressor(level=3).compress
    return compress


_PACKERS: Mapping[str, Callable[[], Callable[[bytes], bytes]]] = {"gz": _gzip, "zst": _zstd}
