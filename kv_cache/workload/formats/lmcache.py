"""LMCache's storage traces (`.lct`): the calls of its StorageManager.

The file is binary: frames, each a length (4 bytes, big-endian) and as many bytes of MessagePack.
The first is the header: {"type": "header", "magic": b"LMCT", "format_version": 1, "level":
"storage", ...}; each other one a record: {"type": "record", "t_mono": s since the recording began,
"t_wall": s, "qualname": "...StorageManager.finish_write", "args": {...}}. Values of other types are
wrapped as {"__t__": type, "v": value}. Sources: lmcache/v1/mp_observability/trace/format.py and
codecs.py, docs/source/mp/tracing_and_debugging.rst of LMCache/LMCache.

A format reads text, so `frame_texts` turns each frame into one line of JSON (bytes in hex); the
line's number is the frame's. A frame that is no value, or is cut, becomes a line that is no row.

Rule: `finish_write` wrote its keys, and entering `read_prefetched_results` read its keys: each key
is one object and one row. The other calls (`reserve_write`, `submit_prefetch_task`, `finish_read_
prefetched`, leaving `read_prefetched_results`) reserve, ask ahead and release, and are passed over;
the first two say how long objects are (`layout_desc`: shapes and dtypes), for all objects of one
model, rank and group from there on. An object of which no call has said so is no row. A record of
any other call is left out and counted. The level `events` (messages to a coordinator) is refused.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from kv_cache.workload.formats.base import Note, RowError, TimeUnit
from kv_cache.workload.formats.jsonlines import read_object
from kv_cache.workload.formats.line_formats import (
    Line,
    LineFormat,
    LineReader,
    first_text,
    take_header,
)
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import (
    MAX_OBJECT_BYTES,
    array,
    integer,
    mapping,
    misfit,
    number,
    shown,
    text,
    time_ns,
)

MAGIC = b"LMCT"
HEAD_BYTES = 64
VERSION = 1
LEVEL = "storage"

_LENGTH_BYTES = 4
_MAX_FRAME_BYTES = 64 << 20
_BROKEN = "!"

_READ = "read_prefetched_results.__enter__"
_WRITTEN = "finish_write"
_SIZING = ("reserve_write", "submit_prefetch_task")
_RELEASES = ("finish_read_prefetched", "read_prefetched_results.__exit__")

# By PyTorch's names.
_DTYPES = {
    1: "uint8 int8 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz",
    2: "float16 bfloat16 int16 uint16",
    4: "float32 int32 uint32",
    8: "float64 int64 uint64",
}
_DTYPE_BYTES = {
    f"torch.{name}": nbytes for nbytes, names in _DTYPES.items() for name in names.split()
}


# --- frames ---


def is_lct(head: bytes) -> bool:
    """Return whether a file that begins with these bytes (the first 64) is one of frames."""
    return head[:1] == b"\0" and MAGIC in head[:HEAD_BYTES]


def frame_texts(stream: BinaryIO) -> Iterator[str]:
    """Yield each frame as JSON text."""
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


def _as_text(frame: bytes) -> str:
    # Extension types, which LMCache does not write, are refused by `bytes.hex`.
    try:
        value = msgspec.msgpack.decode(frame)
        return json.dumps(value, default=bytes.hex, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as problem:
        return f"{_BROKEN}expected MessagePack, found what is not: {problem}"


# --- records ---


class LmCache(LineFormat):
    name = "lmcache"
    description = (
        "LMCache storage trace (.lct): finish_write and read_prefetched_results of its "
        "StorageManager, one object each key"
    )

    def matches(self, head: str) -> bool:
        first = first_text(head)
        return first.startswith("{") and f'"magic":"{MAGIC.hex()}"' in first

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader | None:
        return None if take_header(lines, _check_header) is None else _Calls().rows


def _check_header(line: str) -> bool:
    header = read_object(line, ("magic", "format_version", "level"))
    if header["magic"] != MAGIC.hex():
        raise misfit(f"the magic {MAGIC.decode()}", header["magic"])
    if header["format_version"] != VERSION:
        raise misfit(f"format version {VERSION}", header["format_version"])
    if header["level"] != LEVEL:
        raise misfit(f"a trace of level {LEVEL!r}", header["level"])
    return True


class _Calls:
    """The rows of one file's calls, with the sizes that the calls before them stated."""

    def __init__(self) -> None:
        self._sizes = _Sizes()

    def rows(self, line: str) -> Line:
        """Return the row of each object that a call moved."""
        if line.startswith(_BROKEN):
            raise RowError(line.removeprefix(_BROKEN))
        fields = read_object(line, ("t_mono", "qualname", "args"))
        args = mapping("args", fields["args"])
        at_ns = time_ns("t_mono", number("t_mono", fields["t_mono"]), TimeUnit.S)
        call = text("qualname", fields["qualname"]).rpartition("StorageManager.")[2]
        if call in (_READ, _WRITTEN):
            keys = [_Key(each) for each in _array("keys", args.get("keys"))]
            return tuple(self._row(at_ns, key, reads=call == _READ) for key in keys)
        if call in _SIZING:
            self._sizes.learn(args)
            return ()
        return () if call in _RELEASES else Note.LEFT_OUT

    def _row(self, at_ns: int, key: "_Key", *, reads: bool) -> TraceRow:
        return TraceRow(0, at_ns, 1, 0, (key.text,), nbytes=self._sizes.of(key), reads=reads)


class _Key:
    """One ObjectKey: its text names the object, its group all objects of one size."""

    __slots__ = ("group", "text")

    def __init__(self, value: object) -> None:
        key = _unwrapped(value)
        if not isinstance(key, dict):
            raise misfit("object keys", value, "keys")
        model, chunk = text("model_name", key.get("model_name")), key.get("chunk_hash")
        if not isinstance(chunk, str | int) or isinstance(chunk, bool):
            raise misfit("a hash", chunk, "chunk_hash")
        rank = integer("kv_rank", key.get("kv_rank"))
        group = integer("object_group_id", key.get("object_group_id", 0))
        salt = text("cache_salt", key.get("cache_salt", ""))
        self.group = (model, rank, group)
        self.text = text("key", "@".join([model, str(rank), str(chunk), str(group), salt]))


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
        """Take sizes from `layout_desc`, or of newer versions `group_layout_descs`, each for its
        group."""
        spec = args.get("spec") or args.get("request") or {}
        stated = {**args, **(mapping("spec", _unwrapped(spec)))}
        one = stated.get("layout_desc")
        groups = mapping("group_layout_descs", _unwrapped(stated.get("group_layout_descs") or {}))
        layouts = {str(group): _layout_bytes(layout) for group, layout in groups.items()}
        whole = None if one is None else _layout_bytes(one)
        for value in _array("keys", stated.get("keys")):
            key = _Key(value)
            size = layouts.get(str(key.group[2]), whole)
            if size is not None and (key.group in self._bytes or len(self._bytes) < self._MOST):
                self._bytes[key.group] = size


def _layout_bytes(value: object) -> int:
    layout = mapping("layout_desc", _unwrapped(value))
    shapes = _array("shapes", layout.get("shapes"))
    dtypes = _array("dtypes", layout.get("dtypes"))
    if not shapes or len(shapes) != len(dtypes):
        raise RowError("layout_desc: expected as many shapes as dtypes, and at least one")
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        name = _unwrapped(dtype)
        if not isinstance(name, str) or name not in _DTYPE_BYTES:
            raise misfit("PyTorch's names", dtype, "dtypes")
        sides = [integer("shape", side) for side in _array("shape", shape)]
        total += math.prod(sides) * _DTYPE_BYTES[name]
    if not 0 < total <= MAX_OBJECT_BYTES:
        raise RowError(f"layout_desc: expected 1 to {MAX_OBJECT_BYTES} bytes, found {total}")
    return total


def _unwrapped(value: object) -> object:
    """Return the value inside a wrapped one."""
    if isinstance(value, dict) and "__t__" in value and "v" in value:
        inner: object = value["v"]
        return inner
    return value


def _array(name: str, value: object) -> list[Any]:
    return array(name, _unwrapped(value))
