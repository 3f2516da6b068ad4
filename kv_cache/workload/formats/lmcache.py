"""LMCache's storage traces (`.lct`): the calls of its StorageManager.

The file is binary: frames, each a length (4 bytes, big-endian) and so many bytes of MessagePack.
The first is the header: {"type": "header", "magic": b"LMCT", "format_version": 1, "level":
"storage", ...}; each other one a record: {"type": "record", "t_mono": s since the recording began,
"t_wall": s, "qualname": "...StorageManager.finish_write", "args": {...}}. Values of other types are
wrapped as {"__t__": type, "v": value}. Sources: lmcache/v1/mp_observability/trace/format.py and
codecs.py, docs/source/mp/tracing_and_debugging.rst of LMCache/LMCache.

A format reads text, so `FramesAsText` tells each frame as one line of JSON (bytes in hex); the
line's number is the frame's. A frame that is no value, or is cut, becomes a line that is no row.

Rule: `finish_write` wrote its keys, and entering `read_prefetched_results` read its keys: each key
is one object and one row. The other calls (`reserve_write`, `submit_prefetch_task`, `finish_read_
prefetched`, leaving `read_prefetched_results`) reserve, ask ahead and release, and are passed over;
the first two say how long objects are (`layout_desc`: shapes and dtypes), for all objects of one
model, rank and group from there on. An object of which no call has said so is no row. A record of
any other call is left out and counted. The level `events` (what a coordinator is told) is refused.
"""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.base import (
    Bad,
    Note,
    Noted,
    RowClock,
    RowError,
    WrongHeaderError,
    ignore,
    parsed,
    shown,
    stated_ns,
)
from kv_cache.workload.formats.iotrace import MAX_OBJECT_BYTES, Access
from kv_cache.workload.formats.jsonlines import read_object
from kv_cache.workload.formats.msgpack import unpack
from kv_cache.workload.formats.names import ident
from kv_cache.workload.formats.row import TraceRow

MAGIC = b"LMCT"
HEAD_BYTES = 64
VERSION = 1
LEVEL = "storage"

_LENGTH_BYTES = 4
_MAX_FRAME_BYTES = 64 << 20
_BROKEN = "!"
_AROUND = " \t\r\n\ufeff"

_READ = "read_prefetched_results.__enter__"
_WRITTEN = "finish_write"
_SIZING = ("reserve_write", "submit_prefetch_task")
_RELEASES = ("finish_read_prefetched", "read_prefetched_results.__exit__")

# Bytes of the dtypes that PyTorch calls so.
_DTYPE_BYTES: Mapping[str, int] = {
    "torch.uint8": 1,
    "torch.int8": 1,
    "torch.bool": 1,
    "torch.float8_e4m3fn": 1,
    "torch.float8_e5m2": 1,
    "torch.float8_e4m3fnuz": 1,
    "torch.float8_e5m2fnuz": 1,
    "torch.float16": 2,
    "torch.bfloat16": 2,
    "torch.int16": 2,
    "torch.uint16": 2,
    "torch.float32": 4,
    "torch.int32": 4,
    "torch.uint32": 4,
    "torch.float64": 8,
    "torch.int64": 8,
    "torch.uint64": 8,
}


# --- frames ---


def is_lct(head: bytes) -> bool:
    """Whether a file that begins with these bytes (the first 64) is one of frames."""
    return head[:1] == b"\0" and MAGIC in head[:HEAD_BYTES]


def frame_texts(stream: BinaryIO) -> Iterator[str]:
    """Each frame as JSON text."""
    while prefix := stream.read(_LENGTH_BYTES):
        length = int.from_bytes(prefix)
        if length > _MAX_FRAME_BYTES:
            yield f"{_BROKEN}expected a frame of at most {_MAX_FRAME_BYTES} bytes, found {length}"
            return
        frame = stream.read(length)
        if len(prefix) < _LENGTH_BYTES or len(frame) < length:
            yield f"{_BROKEN}expected a whole frame, found the file's end inside it"
            return
        yield _as_text(frame)


class FramesAsText(io.RawIOBase):
    """The text of a file of frames, one line each. Closes what it reads from."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._texts = frame_texts(stream)
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._ready:
            text = next(self._texts, None)
            self._ready = memoryview(b"" if text is None else f"{text}\n".encode())
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _as_text(frame: bytes) -> str:
    try:
        return json.dumps(unpack(frame), default=bytes.hex, separators=(",", ":"))
    except (ValueError, TypeError) as problem:
        return f"{_BROKEN}expected MessagePack, found what is none: {problem}"


# --- records ---


class LmCache:
    name = "lmcache"
    document = False
    timed = True
    grouped = False
    description = (
        "LMCache storage trace (.lct): finish_write and read_prefetched_results of its "
        "StorageManager, one object each key"
    )

    def matches(self, head: str) -> bool:
        first = next((text.strip(_AROUND) for text in head.splitlines() if text.strip(_AROUND)), "")
        return first.startswith("{") and f'"magic":"{MAGIC.hex()}"' in first

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        if not _took_header(lines):
            return
        clock, sizes = RowClock(note), _Sizes()
        for line, fields in parsed(lines, _record, bad):
            try:
                accesses = _accesses(fields, sizes)
            except RowError as problem:
                bad(line, str(problem))
                continue
            if accesses is None:
                note(line, Note.LEFT_OUT)
                continue
            for access in accesses:
                yield access.row(line, clock.at(line, access.time_ns))


def _took_header(lines: Iterator[tuple[int, str]]) -> bool:
    """Takes the first line that is not blank; False where there is none."""
    for line, text in lines:
        text = text.strip(_AROUND)
        if not text:
            continue
        try:
            _check_header(read_object(text, ("magic", "format_version", "level")))
        except RowError as problem:
            raise WrongHeaderError(f"line {line} is not the header: {problem}") from None
        return True
    return False


def _check_header(header: dict[str, Any]) -> None:
    if header["magic"] != MAGIC.hex():
        raise RowError(f"expected the magic {MAGIC.decode()}, found {shown(header['magic'])}")
    if header["format_version"] != VERSION:
        raise RowError(
            f"expected format version {VERSION}, found {shown(header['format_version'])}"
        )
    if header["level"] != LEVEL:
        raise RowError(f"expected a trace of level {LEVEL!r}, found {shown(header['level'])}")


def _record(text: str) -> dict[str, Any]:
    if text.startswith(_BROKEN):
        raise RowError(text.removeprefix(_BROKEN))
    fields = read_object(text, ("t_mono", "qualname", "args"))
    if not isinstance(fields["args"], dict):
        raise RowError(f"args: expected an object, found {shown(fields['args'])}")
    return fields


def _accesses(fields: dict[str, Any], sizes: "_Sizes") -> list[Access] | None:
    """What a call moved; None for a call that is not known."""
    time_ns = stated_ns("t_mono", _no_text(fields["t_mono"]), NS_PER_S, "seconds")
    call = _call(fields["qualname"])
    args = fields["args"]
    if call in (_READ, _WRITTEN):
        keys = [_Key(one) for one in _list("keys", args.get("keys"))]
        return [Access(time_ns, key.text, sizes.of(key), call == _READ) for key in keys]
    if call in _SIZING:
        sizes.learn(args)
        return []
    return [] if call in _RELEASES else None


def _call(name: object) -> str:
    """What is behind the class's name: `finish_write`."""
    text = ident("qualname", name)
    return text.rpartition("StorageManager.")[2]


class _Key:
    """One ObjectKey: its text names the object, its group what all of a kind have in common."""

    __slots__ = ("group", "text")

    def __init__(self, value: object) -> None:
        found = _unwrapped(value)
        if not isinstance(found, dict):
            raise RowError(f"keys: expected object keys, found {shown(value)}")
        model, chunk = ident("model_name", found.get("model_name")), found.get("chunk_hash")
        if not isinstance(chunk, str | int) or isinstance(chunk, bool):
            raise RowError(f"chunk_hash: expected a hash, found {shown(chunk)}")
        rank, number = (
            _count("kv_rank", found.get("kv_rank")),
            _count("object_group_id", found.get("object_group_id", 0)),
        )
        salt = ident("cache_salt", found.get("cache_salt", ""))
        self.group = (model, rank, number)
        self.text = ident("key", "@".join([model, str(rank), str(chunk), str(number), salt]))


class _Sizes:
    """Bytes of an object, by model, rank and group. There are few of these, whatever the length of
    the trace: beyond `_MOST` a new one is not learnt."""

    _MOST = 100_000

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, int, int], int] = {}

    def of(self, key: _Key) -> int:
        size = self._bytes.get(key.group)
        if size is None:
            raise RowError(
                "expected a reserve_write or submit_prefetch_task that says how long the object "
                f"is before it, found none for {shown(key.text)}"
            )
        return size

    def learn(self, args: dict[str, Any]) -> None:
        """From `layout_desc`, or of newer versions `group_layout_descs`, each for its group."""
        spec = args.get("spec") or args.get("request") or {}
        said = {**args, **(_mapping("spec", _unwrapped(spec)))}
        one = said.get("layout_desc")
        groups = _mapping("group_layout_descs", _unwrapped(said.get("group_layout_descs") or {}))
        layouts = {str(group): _layout_bytes(layout) for group, layout in groups.items()}
        whole = None if one is None else _layout_bytes(one)
        for value in _list("keys", said.get("keys")):
            key = _Key(value)
            size = layouts.get(str(key.group[2]), whole)
            if size is not None and (key.group in self._bytes or len(self._bytes) < self._MOST):
                self._bytes[key.group] = size


def _layout_bytes(value: object) -> int:
    layout = _mapping("layout_desc", _unwrapped(value))
    shapes, dtypes = _list("shapes", layout.get("shapes")), _list("dtypes", layout.get("dtypes"))
    if not shapes or len(shapes) != len(dtypes):
        raise RowError("layout_desc: expected as many shapes as dtypes, and at least one")
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        name = _unwrapped(dtype)
        if not isinstance(name, str) or name not in _DTYPE_BYTES:
            raise RowError(f"dtypes: expected PyTorch's names, found {shown(dtype)}")
        sides = [_count("shape", side) for side in _list("shape", _unwrapped(shape))]
        total += math.prod(sides) * _DTYPE_BYTES[name]
    if not 0 < total <= MAX_OBJECT_BYTES:
        raise RowError(f"layout_desc: expected 1 to {MAX_OBJECT_BYTES} bytes, found {total}")
    return total


def _unwrapped(value: object) -> object:
    """What a wrapped value holds."""
    if isinstance(value, dict) and "__t__" in value and "v" in value:
        inner: object = value["v"]
        return inner
    return value


def _list(name: str, value: object) -> list[Any]:
    value = _unwrapped(value)
    if not isinstance(value, list):
        raise RowError(f"{name}: expected a list, found {shown(value)}")
    return value


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"{name}: expected an object, found {shown(value)}")
    return value


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise RowError(f"{name}: expected a whole number from 0, found {shown(value)}")
    return value


def _no_text(value: object) -> object:
    if isinstance(value, str):
        raise RowError(f"t_mono: expected a number, found the text {shown(value)}")
    return value
