"""The text of a trace file, by line or by part: gzip, zstd and LMCache's frames are unpacked.

Packing is recognised by the first bytes, not by the name. What is wrong with a file is a
`TraceError` that names the file and the line where there is one.
"""

import codecs
import gzip
import importlib
import io
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from kv_cache.core.errors import TraceError
from kv_cache.installing import install_hint
from kv_cache.workload.formats.chunk_stream import ChunkStream
from kv_cache.workload.formats.lmcache import HEAD_BYTES as LCT_HEAD_BYTES
from kv_cache.workload.formats.lmcache import frame_texts, is_lct

# The longest row of any trace is a few hundred KiB; a file without line ends must not fill memory.
MAX_LINE_BYTES = 16 << 20
PART_BYTES = 256 << 10

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_STEP_BYTES = 2 << 10  # of zeros: 64 MiB at once
_UNREADABLE = (OSError, EOFError, zlib.error)


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text without its end) of each line.

    Raises `TraceError` naming the line if the file cannot be read or unpacked, is not UTF-8 text,
    or has a line over 16 MiB.
    """
    number = 0
    try:
        with _open_bytes(path) as stream:
            limited = partial(stream.readline, MAX_LINE_BYTES + 1)
            for number, raw in enumerate(iter(limited, b""), 1):
                if len(raw) > MAX_LINE_BYTES:
                    raise _too_long(path, number)
                text = _decoded(path, number, raw, bytes.decode).rstrip("\r\n")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except _UNREADABLE as problem:
        raise _unreadable(path, number, problem) from None


def open_parts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number of the line at which it begins, text) of each part.

    A part is about 256 KiB and may begin and end anywhere, also within a line. Raises `TraceError`
    if the file cannot be read or unpacked or is not UTF-8 text.
    """
    line = 1
    try:
        with _open_bytes(path) as stream:
            decoder = codecs.getincrementaldecoder("utf-8")()
            while raw := stream.read(PART_BYTES):
                text = _decoded(path, line, raw, decoder.decode)
                yield line, text.removeprefix("\ufeff") if line == 1 else text
                line += text.count("\n")
            _decoded(path, line, b"", partial(decoder.decode, final=True))
    except _UNREADABLE as problem:
        raise _unreadable(path, line - 1, problem) from None


def _decoded(path: Path, line: int, raw: bytes, decode: Callable[[bytes], str]) -> str:
    """Return the text of bytes that begin in `line`."""
    try:
        text = decode(raw)
    except UnicodeDecodeError as problem:
        # The decoder puts what was left of the part before in front of this one.
        bad: bytes = problem.object
        at = line + bad.count(b"\n", 0, problem.start)
        raise _not_text(path, at, f"byte 0x{bad[problem.start]:02x}") from None
    if "\0" in text:
        raise _not_text(path, line + text.count("\n", 0, text.find("\0")), "a NUL byte")
    return text


def _unreadable(path: Path, number: int, problem: Exception) -> TraceError:
    where = f"after line {number}: " if number else ""
    return TraceError(f"{path}: cannot be read: {where}{problem}")


def _open_bytes(path: Path) -> BinaryIO:
    """Open the unpacked bytes; those of LMCache's binary traces as lines of text."""
    stream = _unpacked(path)
    try:
        binary = is_lct(stream.peek(LCT_HEAD_BYTES))
    except BaseException:
        stream.close()
        raise
    if not binary:
        return stream
    lines = (f"{text}\n".encode() for text in frame_texts(stream))
    return io.BufferedReader(ChunkStream(lines, stream))


def _unpacked(path: Path) -> io.BufferedReader:
    raw = path.open("rb")
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        raw.close()
        # gzip owns the file it opens by name, so that closing one closes both.
        return io.BufferedReader(gzip.open(path, "rb"))
    if magic == _ZSTD_MAGIC:
        try:
            library = _zstandard(path)
        except TraceError:
            raw.close()
            raise
        return io.BufferedReader(ChunkStream(_unzstd(raw, library), raw))
    return raw


def _zstandard(path: Path) -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise TraceError(
            f"{path}: packed with zstd, which needs the package `zstandard`: "
            f"{install_hint('zstd')}, or unpack the file first with `zstd -d`"
        ) from None


def _unzstd(packed: BinaryIO, library: Any) -> Iterator[bytes]:
    """Yield the unpacked bytes of a zstd file, all its frames.

    The library's own reader stops without a word where the file is cut, which would make a
    shorter trace of a broken download; here that is an `OSError`, as is anything else it refuses.
    """
    # The largest window that the format's own tool writes (--long=31).
    decompressor = library.ZstdDecompressor(max_window_size=1 << 31)
    frame = decompressor.decompressobj()
    inside = False
    while step := frame.unused_data or packed.read(_ZSTD_STEP_BYTES):
        if frame.eof:
            frame = decompressor.decompressobj()
        try:
            unpacked: bytes = frame.decompress(step)
        except library.ZstdError as problem:
            raise OSError(f"not valid zstd: {problem}") from None
        inside = not frame.eof
        yield unpacked
    if inside:
        raise OSError("the zstd file ends before its data does")


def _too_long(path: Path, number: int) -> TraceError:
    return TraceError(
        f"{path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MiB: this is not a "
        "file with one row a line"
    )


def _not_text(path: Path, number: int, culprit: str) -> TraceError:
    return TraceError(
        f"{path}: line {number} is not UTF-8 text (found {culprit}); give the CSV, JSON or JSONL "
        "file itself, plain, .gz or .zst"
    )
