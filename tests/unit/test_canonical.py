"""Our own trace format: whatever a row says is said again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from kv_cache.core.block import KEY_BYTES, Block
from kv_cache.core.kinds import Lookup, Qos
from kv_cache.core.request import Request
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import MAX_TIME_NS, MAX_TOKENS, RowError
from kv_cache.workload.formats.canonical import (
    FIELDS,
    LAYOUTS,
    MAX_LAYERS,
    Header,
    decode_request,
    encode_request,
    header_line,
    read_header,
    row_line,
)
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.trace_files import open_trace
from kv_cache.workload.formats.values import MAX_OBJECT_BYTES
from kv_cache.workload.samples import SAMPLES
from tests.traces import ROOT


def read(lines: list[str], header: Header) -> list[TraceRow]:
    name = next(
        of.name for of in LAYOUTS if (of.grouped, of.timed) == (header.grouped, header.timed)
    )
    bad: list[tuple[int, str]] = []
    notes: list[object] = []
    found = TRACE_FORMATS[name].rows(
        enumerate(lines, 1),
        lambda line, reason: bad.append((line, reason)),
        lambda line, note: notes.append(note),
    )
    rows = list(found)
    assert (bad, notes) == ([], [])
    return rows


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_rows_of_every_format_come_back_as_they_were(name: str) -> None:
    of = TRACE_FORMATS[SAMPLES[name].format]
    rows = list(open_trace(str(ROOT / "datasets" / name)).rows())
    header = Header(grouped=of.grouped, timed=of.timed, block_tokens=512, source=name)
    again = read([header_line(header), *(row_line(row, header) for row in rows)], header)
    assert [row._replace(line=0) for row in again] == [row._replace(line=0) for row in rows]
    assert [row.line for row in again] == list(range(2, len(rows) + 2))


ids = st.text(st.characters(codec="utf-8"), max_size=20)
whole = st.integers(0, 2**63 - 1)
blocks = st.builds(
    Block,
    st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    st.integers(0, MAX_TOKENS),
    st.integers(0, MAX_OBJECT_BYTES),
    st.sampled_from([1, 1, 2, MAX_LAYERS]),
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    sequence = tuple(draw(st.lists(blocks, max_size=4)))
    part = st.integers(0, len(sequence))
    return Request(
        request_id=draw(whole),
        intended_ns=draw(whole),
        user=draw(ids),
        conversation=draw(ids),
        turn=draw(whole),
        qos=draw(st.sampled_from(Qos)),
        priority=draw(whole),
        prompt_tokens=draw(whole),
        output_tokens=draw(whole),
        blocks=sequence,
        shared=draw(part),
        new_from=draw(part),
        tail_tokens=draw(whole),
        unfilled=draw(st.integers(0, sequence[-1].tokens - 1))
        if sequence and sequence[-1].tokens
        else 0,
        lookup=draw(st.sampled_from(Lookup)),
        model=draw(ids),
        retrieved=draw(st.booleans()),
        once=draw(st.booleans()),
    )


@st.composite
def lawful_rows(draw: st.DrawFn) -> TraceRow:
    row = TraceRow(
        line=0,
        at_ns=0,
        prompt_tokens=draw(st.integers(1, MAX_TOKENS)),
        output_tokens=draw(st.integers(0, MAX_TOKENS)),
        session=draw(ids),
        name=draw(st.none() | ids),
        think_ns=draw(st.none() | st.integers(0, MAX_TIME_NS)),
        adds=draw(st.booleans()),
        scope=draw(ids),
        model=draw(st.none() | ids),
        request=draw(st.none() | requests()),
    )
    kind = draw(st.sampled_from(("alone", "blocks", "object")))
    one = st.one_of(ids, st.integers(0, 2**200))
    if kind == "blocks":
        found = tuple(draw(st.lists(one, min_size=1, max_size=5)))
        return row._replace(hash_ids=found, block_tokens=draw(st.integers(1, MAX_TOKENS)))
    if kind == "object":
        size = draw(st.integers(1, MAX_OBJECT_BYTES))
        return row._replace(hash_ids=(draw(one),), nbytes=size, reads=draw(st.booleans()))
    return row


@given(row=lawful_rows(), grouped=st.booleans(), block_tokens=st.sampled_from((0, 16, 512)))
def test_any_row_comes_back_as_it_was(row: TraceRow, grouped: bool, block_tokens: int) -> None:
    header = Header(grouped=grouped, timed=True, block_tokens=block_tokens, source="x")
    line = row_line(row, header)
    assert "\n" not in line
    (again,) = read([header_line(header), line], header)
    assert again == row._replace(line=2)


def test_what_follows_whom_comes_back() -> None:
    header = Header(grouped=True, timed=True)
    first = TraceRow(2, 0, 5, 5, session="s", name="a")
    later = [
        TraceRow(3, 7, 5, 5, session="s", name="b", after=("a",), think_ns=0),
        TraceRow(4, 9, 5, 5, session="s", after=("a", "b")),
    ]
    rows = [first, *later]
    assert read([header_line(header), *(row_line(row, header) for row in rows)], header) == rows


def test_a_row_that_says_little_is_short() -> None:
    header = Header(grouped=False, timed=True, block_tokens=512)
    assert row_line(TraceRow(9, 5, 7, 0), header) == '{"at_ns":5,"prompt":7}'
    row = TraceRow(9, 5, 7, 3, (1, "a"), 512)
    assert row_line(row, header) == '{"at_ns":5,"prompt":7,"output":3,"ids":[1,"a"]}'


def test_every_field_of_a_row_and_of_a_request_is_said() -> None:
    assert {name for name, _ in FIELDS.values()} == set(TraceRow._fields) - {"line"}
    request = Request(
        request_id=1, intended_ns=2, user="u", conversation="c", turn=3, qos=Qos.BATCH, priority=4,
        prompt_tokens=5, output_tokens=6, blocks=(Block(b"k" * 16, 7, 8),), shared=1, new_from=1,
        tail_tokens=9, unfilled=3, lookup=Lookup.CONTENT, model="m", retrieved=True, once=True,
        offered_blocks=1, offered_tokens=7,
    )  # fmt: skip
    said = encode_request(request)
    assert set(said) == {f.name for f in fields(Request)} - {
        "offered_blocks", "offered_tokens", "cycle",
    }  # fmt: skip
    assert decode_request(json.loads(json.dumps(said))) == replace(
        request, offered_blocks=0, offered_tokens=0
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"qos": "fast"}, "request.qos: expected one of interactive, responsive, batch"),
        ({"qos": []}, "request.qos: expected one of"),
        ({"blocks": [["00", 1, 1]]}, "request.blocks: expected .key of 32 hex digits"),
        ({"blocks": [["zz" * 16, 1, 1]]}, "request.blocks: expected .key of 32 hex digits"),
        ({"blocks": [["00" * 16, -1, 1]]}, "request.blocks: expected a whole number"),
        ({"blocks": {}}, "request.blocks: expected a list"),
        ({"unfilled": 10**9}, "request: expected unfilled below the"),
        ({"shared": 1}, "expected shared and new_from up to its 0 blocks, found 1 and 0"),
        ({"turn": 1.0}, "request.turn: expected a whole number"),
        ({"user": 5}, "request.user: expected text, found 5"),
        ({"once": 1}, "request.once: expected true or false"),
        ({"offered_blocks": 1}, "expected the fields of a request, found 'offered_blocks'"),
    ],
)
def test_a_request_that_is_none_is_a_row_error(change: dict[str, object], reason: str) -> None:
    plain = Request(
        request_id=1, intended_ns=2, user="u", conversation="c", turn=3, qos=Qos.BATCH, priority=4,
        prompt_tokens=5, output_tokens=6, blocks=(),
    )  # fmt: skip
    with pytest.raises(RowError, match=reason):
        decode_request({**encode_request(plain), **change})


def test_a_header_comes_back() -> None:
    header = Header(grouped=True, timed=False, block_tokens=64, source='ein Weg/mit "Zeichen"')
    assert read_header(header_line(header)) == header


def test_our_formats_differ_in_what_their_headers_say() -> None:
    names = {of.name for of in LAYOUTS}
    assert names == {
        "kv-cache", "kv-cache-untimed", "kv-cache-sessions", "kv-cache-sessions-untimed"
    }  # fmt: skip
    for of in LAYOUTS:
        head = header_line(Header(grouped=of.grouped, timed=of.timed))
        assert [other.name for other in LAYOUTS if other.matches(head)] == [of.name]
