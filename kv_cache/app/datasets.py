"""Small samples of every trace format, written into a directory."""

import gzip
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import Struct

from kv_cache.config.schema import opt
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, did_you_mean, os_reason
from kv_cache.files.writing import write_output
from kv_cache.installing import install_hint
from kv_cache.workload.samples import SAMPLE_SEED, SAMPLES, sample_bytes

_PACKINGS = ("gz", "zst")


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Which samples are written, and where."""

    formats: tuple[str, ...] = opt((), "Formats; if none is given, all", flag="FORMAT")
    dir: str = opt(
        "datasets", "Directory to write in, which is created if it is missing", flag="--dir",
        metavar="DIR",
    )  # fmt: skip
    rows: int | None = opt(
        None, "Rows of each (sessions, if rows belong to sessions); if not given, a few hundred",
        low=1, high=1_000_000, flag="--rows", metavar="N",
    )  # fmt: skip
    seed: int = opt(
        SAMPLE_SEED, "Seed of what is random", low=0, high=(1 << 32) - 1, flag="--seed",
        metavar="N",
    )  # fmt: skip
    pack: str | None = opt(None, "How files are packed", choices=_PACKINGS, flag="--pack")


class SampleFile(Struct, frozen=True, kw_only=True):
    """A sample in the directory, and whether it was there already."""

    path: Path
    nbytes: int
    existed: bool


def write_samples(options: SampleOptions) -> list[SampleFile]:
    """Write samples that are not there yet. Raises UsageError, before anything is written if a
    file of one's name holds something else."""
    pack = _PACKERS[options.pack]()
    directory, suffix = Path(options.dir), f".{options.pack}" if options.pack else ""

    def content(name: str) -> bytes:
        return pack(sample_bytes(name, options.seed, options.rows))

    paths = {name: directory / (name + suffix) for name in _names(options.formats)}
    existing = {name for name, path in paths.items() if _exists(path, partial(content, name))}
    _create(directory)
    for name, path in paths.items():
        if name not in existing:
            write_output(path, content(name), "sample", "name another place with --dir")
    return [
        SampleFile(path=path, nbytes=path.stat().st_size, existed=name in existing)
        for name, path in paths.items()
    ]


def _names(formats: Sequence[str]) -> list[str]:
    """Return the samples of these formats, or all. Raises ConfigError."""
    known = {sample.format for sample in SAMPLES.values()}
    for name in formats:
        if name not in known:
            raise ConfigError(
                f"datasets: there is no trace format {name!r}.{did_you_mean(name, known)}"
            )
    return [name for name, sample in SAMPLES.items() if not formats or sample.format in formats]


def _create(directory: Path) -> None:
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise PlaceError(
            f"--dir {directory}: it cannot be created ({os_reason(error)}); name a directory in "
            "one that exists"
        ) from None


def _exists(path: Path, content: Callable[[], bytes]) -> bool:
    """Return whether a sample is there already. Raises PlaceError if its file holds something
    else."""
    try:
        if not path.exists():
            return False
        same = path.is_file() and path.read_bytes() == content()
    except OSError as error:
        raise PlaceError(
            f"{path}: it cannot be looked at ({os_reason(error)}); name another place with --dir"
        ) from None
    if not same:
        raise PlaceError(
            f"{path}: something else of that name is there, which is not written over; move it "
            "away, or name another place with --dir"
        )
    return True


def _gzip() -> Callable[[bytes], bytes]:
    return partial(gzip.compress, mtime=0)


def _zstd() -> Callable[[bytes], bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UsageError(
            f"--pack zst needs the package `zstandard`: {install_hint('zstd')}, or use --pack gz"
        ) from None
    compress: Callable[[bytes], bytes] = zstandard.ZstdCompressor(level=3).compress
    return compress


_PACKERS: Mapping[str | None, Callable[[], Callable[[bytes], bytes]]] = {
    None: lambda: bytes,
    "gz": _gzip,
    "zst": _zstd,
}
