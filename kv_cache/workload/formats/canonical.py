"""Our own traces, `kv-cache-trace/1`: JSON lines that hold all that a row of any format says.

The first line is the header:

    {"schema": "kv-cache-trace/1", "grouped": false, "timed": true, "block_tokens": 512,
     "source": "mooncake: conversation_trace.jsonl"}

`grouped` and `timed` are as in `TraceFormat`, `block_tokens` is the length of the rows' blocks (0:
there are none, or each row says its own), `source` says for a reader where the trace is from. A
recorded run also has `load` (`Load`), and its `at_ns` count from the beginning of its load. Each
line behind it is one row, an object with these fields, of which all but `at_ns` and `prompt` may
be absent (`FIELDS`):

    at_ns     ns from the trace's first row (grouped: from its session's), a whole number
    prompt    prompt tokens        output    answer tokens (0)
    ids       hash ids, numbers or texts     block     tokens of each (the header's)
    session, name, model, scope    texts
    after     names of the rows that it waits for
    think_ns  how long its user thinks after them
    adds      true: `prompt` is only what this row adds to its session's history
    nbytes    size of the one object of an I/O trace's row       reads   true: it was read
    request   a whole request, as it was asked (`encode_request`)
    id        what the trace's own file called the row, if no row waits for it by that

`trace convert` and `run --record` write it; see `header_line` and `row_line`. A row that is read
and written again is the same row, but for its line number. There is one format of the table for
each kind of trace (`LAYOUTS`), chosen by the header.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import asdict, fields

from kv_cache.core.block import KEY_BYTES, Block
from kv_cache.core.kinds import Lookup, Qos
from kv_cache.core.request import Request
from kv_cache.workload.formats.base import MAX_TOKENS, Bad, Noted, RowError, ignore
from kv_cache.workload.formats.ids import Recent, RowNames
from kv_cache.workload.formats.jsonlines import read_object, require_keys
from kv_cache.workload.formats.line_formats import RowClock, first_text, parsed, take_header
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import (
    MAX_OBJECT_BYTES,
    array,
    flag,
    integer,
    mapping,
    misfit,
    number,
    shown,
    text,
    tokens,
)

SCHEMA = "kv-cache-trace/1"
MAX_LAYERS = 65_536

_REQUIRED = ("at_ns", "prompt")


class Load(Struct, frozen=True, kw_only=True):
    """What the requests of a recorded run were sent under, and a replay has to be too.

    `block_tokens` is the run's geometry (0 = one object a turn), `prefill_only_from_tokens` as in
    `Semantics`.
    """

    block_tokens: int
    prefill_only_from_tokens: int


class Header(Struct, frozen=True, kw_only=True):
    grouped: bool
    timed: bool
    block_tokens: int = 0
    source: str = ""
    load: Load | None = None


# --- writing ---


def header_line(header: Header) -> str:
    """Return the first line, without its end."""
    stated: dict[str, object] = {
        "schema": SCHEMA,
        "grouped": header.grouped,
        "timed": header.timed,
        "block_tokens": header.block_tokens,
        "source": header.source,
    }
    if header.load is not None:
        stated["load"] = asdict(header.load)
    return _json(stated)


def row_line(row: TraceRow, header: Header) -> str:
    """Return one row's line, without its end; fields at their default are left out."""
    absent = {**TraceRow._field_defaults, "output_tokens": 0}
    absent["block_tokens"] = 0 if row.hash_ids is None else header.block_tokens
    stated = {}
    for key, (name, _) in FIELDS.items():
        value = getattr(row, name)
        if key in _REQUIRED or value != absent[name]:
            stated[key] = encode_request(value) if key == "request" else value
    return _json(stated)


def encode_request(request: Request) -> dict[str, Any]:
    """Return a request as JSON: the fields of `Request` by name, those at their default left out; a
    block is [key in hex, tokens, bytes], and its objects where it is kept as several. What the
    intake and the replay fill in (`offered_*`, `cycle`) is not kept."""
    stated: dict[str, Any] = {}
    for name, default in _REQUEST.items():
        value = getattr(request, name)
        if value != default:
            stated[name] = value
    stated["blocks"] = [encode_block(block) for block in request.blocks]
    return stated


def encode_block(block: Block) -> list[str | int]:
    stated: list[str | int] = [block.key.hex(), block.tokens, block.nbytes]
    return stated if block.objects == 1 else [*stated, block.objects]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- reading ---


class Canonical:
    document = False

    def __init__(self, *, grouped: bool, timed: bool) -> None:
        self.grouped = grouped
        self.timed = timed
        self.name = f"kv-cache{'-sessions' if grouped else ''}{'' if timed else '-untimed'}"
        self.description = (
            f"our own JSON lines ({SCHEMA}) {'by session' if grouped else 'in one stream'}, "
            f"{'with' if timed else 'without'} instants"
        )

    def matches(self, head: str) -> bool:
        try:
            header = read_header(first_text(head))
        except RowError:
            return False
        return (header.grouped, header.timed) == (self.grouped, self.timed)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        header = take_header(lines, self._header)
        if header is None:
            return
        read = parsed(lines, partial(_row, header), bad)
        if self.grouped:
            yield from _in_sessions(read, bad, note)
        else:
            clock, names = RowClock(note), RowNames(note)
            if header.load is not None:
                clock.at(0, 0)
            for line, row in read:
                yield _placed(row, line, clock, names)

    def _header(self, line: str) -> Header:
        header = read_header(line)
        if (header.grouped, header.timed) != (self.grouped, self.timed):
            raise RowError(
                f"it says grouped {header.grouped} and timed {header.timed}, which is another of "
                "our formats"
            )
        return header


LAYOUTS = tuple(
    Canonical(grouped=grouped, timed=timed) for grouped in (False, True) for timed in (True, False)
)


def read_header(line: str) -> Header:
    """Return the header. Raises `RowError` for a line that is not one of this version."""
    stated = read_object(line)
    if stated.get("schema") != SCHEMA:
        raise misfit(f'{{"schema": "{SCHEMA}", ...}}', line)
    return Header(
        grouped=flag("grouped", stated.get("grouped")),
        timed=flag("timed", stated.get("timed")),
        block_tokens=integer("block_tokens", stated.get("block_tokens", 0), most=MAX_TOKENS),
        source=text("source", stated.get("source", "")),
        load=_load(stated["load"]) if "load" in stated else None,
    )


def _load(value: object) -> Load:
    stated = mapping("load", value)
    names = [field.name for field in fields(Load)]
    require_keys(stated, names, "load: ")
    return Load(**{name: integer(f"load.{name}", stated[name]) for name in names})


def _placed(row: TraceRow, line: int, clock: RowClock, names: RowNames) -> TraceRow:
    return names.resolved(row.placed(line, clock.at(line, row.at_ns)))


def _in_sessions(read: Iterable[tuple[int, TraceRow]], bad: Bad, note: Noted) -> Iterator[TraceRow]:
    """Yield the rows as law 10 wants them: a session's together, on a clock of its own."""
    current: str | None = None
    clock, names = RowClock(note), RowNames(note)
    begun: Recent[bool] = Recent()
    for line, row in read:
        if row.session is None:
            bad(line, "session: expected one, since the header says that rows are grouped")
            continue
        if row.session != current:
            if row.session in begun:
                bad(line, f"session: {shown(row.session)} has ended before; its rows stand apart")
                continue
            current = row.session
            begun.put(current, True)
            clock, names = RowClock(note), RowNames(note)
        yield _placed(row, line, clock, names)


def _row(header: Header, line: str) -> TraceRow:
    stated = read_object(line, _REQUIRED)
    unknown = next((key for key in stated if key not in FIELDS), None)
    if unknown is not None:
        raise misfit(f"the fields {', '.join(FIELDS)}", unknown)
    values = {}
    for key, value in stated.items():
        name, check = FIELDS[key]
        values[name] = check(key, value)
    values.setdefault("output_tokens", 0)
    if "hash_ids" in values:
        values.setdefault("block_tokens", header.block_tokens)
    row = TraceRow(line=0, **values)
    _check_objects(row)
    return row


def _check_objects(row: TraceRow) -> None:
    ids = len(row.hash_ids or ())
    if row.nbytes and (ids != 1 or row.block_tokens):
        raise RowError(f"nbytes: expected one id and no block length beside it, found {ids} ids")
    if row.reads and not row.nbytes:
        raise RowError("reads: expected nbytes beside it, found none")
    if not row.nbytes and bool(ids) != bool(row.block_tokens):
        raise RowError(
            f"ids: expected blocks of a length, found {ids} ids and {row.block_tokens} tokens each"
        )


def _ids(name: str, value: object) -> tuple[int | str, ...]:
    ids = array(name, value)
    if not ids:
        raise RowError(f"{name}: expected at least one id, found none")
    return tuple(text(name, each) if isinstance(each, str) else _id(name, each) for each in ids)


def _id(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise misfit("whole numbers from 0, or texts", value, name)
    return value


def _names(name: str, value: object) -> tuple[str, ...]:
    return tuple(text(name, each) for each in array(name, value))


def decode_request(value: object) -> Request:
    """Return the request that `encode_request` wrote. Raises `RowError` for anything else."""
    stated = mapping("request", value)
    unknown = next((name for name in stated if name not in _REQUEST), None)
    if unknown is not None:
        raise misfit("the fields of a request", unknown, "request")
    missing = [n for n, default in _REQUEST.items() if default is NODEFAULT and n not in stated]
    if missing:
        raise RowError(f"request: expected {', '.join(missing)}, found none")
    request = Request(
        **{
            name: _REQUEST_CHECKS[_REQUEST_TYPES[name]](f"request.{name}", each)
            for name, each in stated.items()
        }
    )
    most = len(request.blocks)
    if not (request.shared <= most and request.new_from <= most):
        raise RowError(
            f"request: expected shared and new_from up to its {most} blocks, found "
            f"{request.shared} and {request.new_from}"
        )
    room = request.blocks[-1].tokens if request.blocks else 0
    if request.unfilled and request.unfilled >= room:
        raise RowError(
            f"request: expected unfilled below the {room} tokens of its last block, found "
            f"{request.unfilled}"
        )
    return request


def _blocks(name: str, value: object) -> tuple[Block, ...]:
    return tuple(_block(name, each) for each in array(name, value))


def _block(name: str, value: object) -> Block:
    if type(value) is list and len(value) in (3, 4) and isinstance(value[0], str):
        try:
            key = bytes.fromhex(value[0])
        except ValueError:
            key = b""
        if len(key) == KEY_BYTES:
            objects = _objects(name, value[3]) if value[3:] else 1
            return Block(key, _tokens(name, value[1]), _nbytes(name, value[2]), objects)
    raise misfit(f"[key of {2 * KEY_BYTES} hex digits, tokens, bytes, objects]", value, name)


def _word(words: type[StrEnum], name: str, value: object) -> StrEnum:
    known = [str(word) for word in words]
    if not isinstance(value, str) or value not in known:
        raise misfit(f"one of {', '.join(known)}", value, name)
    return words(value)


_tokens = partial(integer, most=MAX_TOKENS)
_nbytes = partial(integer, most=MAX_OBJECT_BYTES)
_objects = partial(integer, least=1, most=MAX_LAYERS)

FIELDS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = MappingProxyType(
    {
        "at_ns": ("at_ns", integer),
        "prompt": ("prompt_tokens", lambda name, value: tokens(name, number(name, value), 1)),
        "output": ("output_tokens", lambda name, value: tokens(name, number(name, value), 0)),
        "ids": ("hash_ids", _ids),
        "block": ("block_tokens", _tokens),
        "session": ("session", text),
        "name": ("name", text),
        "after": ("after", _names),
        "think_ns": ("think_ns", integer),
        "adds": ("adds", flag),
        "scope": ("scope", text),
        "model": ("model", text),
        "nbytes": ("nbytes", _nbytes),
        "reads": ("reads", flag),
        "request": ("request", lambda name, value: decode_request(value)),
        "id": ("request_id", text),
    }
)
"""A field of a row's line -> its name in `TraceRow`, and its check."""

_FILLED_IN = ("offered_blocks", "offered_tokens", "cycle")
_REQUEST: Mapping[str, Any] = MappingProxyType(
    {field.name: field.default for field in fields(Request) if field.name not in _FILLED_IN}
)
_REQUEST_TYPES = get_type_hints(Request)
_REQUEST_CHECKS: Mapping[Any, Callable[[str, Any], Any]] = MappingProxyType(
    {
        int: integer,
        str: text,
        bool: flag,
        Qos: partial(_word, Qos),
        Lookup: partial(_word, Lookup),
        tuple[Block, ...]: _blocks,
    }
)
