"""The laws of `kv_cache.workload.formats.base`, on every format of the table."""

import gc
import json
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import count, groupby, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.testing.trace_format import Walked, check_trace_format, without_lines
from kv_cache.testing.trace_format import pieces as pieces_of
from kv_cache.testing.trace_format import walk as walk_text
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import (
    MAX_ID_CHARS,
    MAX_TIME_NS,
    MAX_TOKENS,
    Note,
    TimeUnit,
    WrongHeaderError,
)
from kv_cache.workload.formats.burstgpt import BurstGpt
from kv_cache.workload.formats.lmcache import frame_texts
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.text_files import open_lines
from kv_cache.workload.samples import SAMPLES, sample_bytes
from tests.traces import real_trace

_IDS = count(1000)  # where a format wants one that no other row has


@dataclass(frozen=True)
class Dialect:
    """One format's way to write a row: what the laws need to speak about."""

    header: str | None
    row: Callable[[int, object, object], str]  # from seconds, prompt and output tokens
    tokens: bool = True
    comma: bool = False  # a table of comma-separated fields with a header

    def line(self, seconds: int, prompt: object = 100, output: object = 10) -> str:
        return self.row(seconds, prompt, output)

    def text(self, *rows: str) -> list[str]:
        return [*([self.header] if self.header is not None else []), *rows]

    @property
    def first(self) -> int:
        """The line number of the first row."""
        return 1 if self.header is None else 2


def _own(timed: str) -> Dialect:
    return Dialect(
        header=f'{{"schema": "kv-cache-trace/1", "grouped": false, "timed": {timed}}}',
        row=lambda s, p, o: f'{{"at_ns": {s * 10**9}, "prompt": {p}, "output": {o}}}',
    )


# The formats of lines with a time each; the others have tests of their own.
DIALECTS = {
    "azure": Dialect(
        header="TIMESTAMP,ContextTokens,GeneratedTokens",
        row=lambda s, p, o: f"2023-11-16 18:{s // 60:02}:{s % 60:02}.0000000,{p},{o}",
        comma=True,
    ),
    "burstgpt": Dialect(
        header="Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        row=lambda s, p, o: f"{s},ChatGPT,{p},{o},1,Conversation log",
        comma=True,
    ),
    "splitwise": Dialect(
        header="request_id,arrival_timestamp,prompt_size,token_size",
        row=lambda s, p, o: f"7,{s},{p},{o}",
        comma=True,
    ),
    "mooncake-csv": Dialect(
        header="timestamp,input_length,output_length,hash_ids",
        row=lambda s, p, o: f"{s}e3,{p},{o},0 1",
        comma=True,
    ),
    "requests": Dialect(
        header="Arrived At,num_prefill_tokens,num_decode_tokens,Session-ID",
        row=lambda s, p, o: f"{s},{p},{o},",
        comma=True,
    ),
    "requests-ms": Dialect(
        header="request,arrival_ms,PromptTokens,completion_tokens",
        row=lambda s, p, o: f"7,{s}000.0,{p},{o}",
        comma=True,
    ),
    "five-columns": Dialect(
        header="# id arrival_ms prompt_tokens gen_tokens streaming",
        row=lambda s, p, o: f"7\t{s}e3 {p}  {o} 1",
    ),
    "mooncake": Dialect(
        header=None,
        row=lambda s, p, o: (
            f'{{"timestamp": {s}e3, "input_length": {p}, "output_length": {o}, "hash_ids": [0, 1]}}'
        ),
    ),
    "qwen": Dialect(
        header=None,
        row=lambda s, p, o: (
            f'{{"chat_id": {next(_IDS)}, "parent_chat_id": -1, "timestamp": {s}, '
            f'"input_length": {p}, "output_length": {o}, "hash_ids": [0, 1]}}'
        ),
    ),
    "kv-cache": _own("true"),
    "kv-cache-untimed": _own("false"),
    "iotrace": Dialect(
        header="Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase",
        row=lambda s, p, o: f"{s}.000000,Read,4096,Tier-2,k,Decode",
        tokens=False,
        comma=True,
    ),
    "msr": Dialect(
        header=None,
        row=lambda s, p, o: f"{128_166_372_000_000_000 + s * 10**7},web,0,Read,0,4096,100",
        tokens=False,
    ),
    "blkparse": Dialect(
        header=None,
        row=lambda s, p, o: f"8,0 1 1 {s}.000000000 9 Q R 8 + 8 [cat]",
        tokens=False,
    ),
    "fio-iolog3": Dialect(
        header="fio version 3 iolog",
        row=lambda s, p, o: f"{s * 10**6} /dev/sda read 0 4096",
        tokens=False,
    ),
}

every = pytest.mark.parametrize("name", sorted(TRACE_FORMATS))
each_sample = pytest.mark.parametrize("sample", sorted(SAMPLES))
each = pytest.mark.parametrize("name", sorted(DIALECTS))
each_counted = pytest.mark.parametrize("name", sorted(n for n, d in DIALECTS.items() if d.tokens))
each_table = pytest.mark.parametrize("name", sorted(n for n, d in DIALECTS.items() if d.comma))


def walk(name: str, texts: Iterable[str]) -> Walked:
    return walk_text(TRACE_FORMATS[name], texts)


def sample_text(sample: str, rows: int | None = None) -> str:
    data = sample_bytes(sample, rows=rows)
    if SAMPLES[sample].format == "lmcache":
        return "".join(f"{text}\n" for text in frame_texts(BytesIO(data)))
    return data.decode()


def pieces(sample: str, text: str) -> list[str]:
    return pieces_of(TRACE_FORMATS[SAMPLES[sample].format], text)


def walk_sample(sample: str, text: str | None = None) -> Walked:
    text = sample_text(sample) if text is None else text
    return walk(SAMPLES[sample].format, pieces(sample, text))


# --- every format, on its samples ---


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_every_format_passes_the_check_that_users_call(sample: str) -> None:
    check_trace_format(TRACE_FORMATS[SAMPLES[sample].format], sample_text(sample))


def test_every_format_is_named_by_its_key_and_has_a_sample() -> None:
    assert all(name == trace_format.name for name, trace_format in TRACE_FORMATS.items())
    assert all(f.description and "\n" not in f.description for f in TRACE_FORMATS.values())
    assert {sample.format for sample in SAMPLES.values()} == set(TRACE_FORMATS)
    assert set(DIALECTS) <= set(TRACE_FORMATS)


@each_sample
def test_a_sample_is_matched_by_its_own_format_and_no_other(sample: str) -> None:
    head = sample_text(sample)[: 64 << 10]
    matching = [name for name, of in TRACE_FORMATS.items() if of.matches(head)]
    assert matching == [SAMPLES[sample].format]


@every
@pytest.mark.parametrize("head", ["", "\n\n", "{", '"', "a,b,c\n1,2,3\n", "[]", "\ufeff", "{}"])
def test_a_format_matches_no_foreign_head(name: str, head: str) -> None:
    assert not TRACE_FORMATS[name].matches(head)


def test_qwen_lines_are_not_taken_for_mooncake() -> None:
    head = (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, '
        '"output_length": 3, "type": "text", "turn": 1, "hash_ids": [1, 2]}'
    )
    assert not TRACE_FORMATS["mooncake"].matches(head)
    assert TRACE_FORMATS["qwen"].matches(head)


@pytest.mark.parametrize("name", ["mooncake", "qwen"])
def test_a_line_longer_than_the_head_is_still_matched(name: str) -> None:
    line = DIALECTS[name].line(0).replace("[0, 1]", str(list(range(50_000))))
    assert TRACE_FORMATS[name].matches(line[: 64 << 10])


@each_sample
def test_a_sample_has_no_bad_row_and_its_rows_are_lawful(sample: str) -> None:
    got = walk_sample(sample)
    assert got.rows
    assert got.bad == []
    if TRACE_FORMATS[SAMPLES[sample].format].grouped:
        for _, rows in groupby(got.rows, lambda row: row.session):
            assert_lawful(list(rows))
    else:
        assert_lawful(got.rows)


@each_sample
def test_sessions_stand_together_and_rows_follow_only_what_was_named_before(sample: str) -> None:
    grouped = TRACE_FORMATS[SAMPLES[sample].format].grouped
    rows = walk_sample(sample).rows
    sessions = [session for session, _ in groupby(rows, lambda row: row.session)]
    if grouped:
        assert None not in sessions
        assert len(sessions) == len(set(sessions))
    named: set[tuple[str | None, str]] = set()
    for row in rows:
        scope = row.session if grouped else None
        assert {(scope, name) for name in row.after} <= named
        if row.name is not None:
            assert (scope, row.name) not in named
            named.add((scope, row.name))


@each_sample
def test_rows_without_instants_have_none(sample: str) -> None:
    if not TRACE_FORMATS[SAMPLES[sample].format].timed:
        assert {row.at_ns for row in walk_sample(sample).rows} == {0}


@each_sample
def test_mark_crlf_and_blank_lines_change_nothing(sample: str) -> None:
    text = sample_text(sample)
    if TRACE_FORMATS[SAMPLES[sample].format].document:
        decorated = ["\ufeff\r\n", *pieces(sample, text.replace("\n", "\r\n")), "\r\n\r\n"]
    else:
        decorated = ["\ufeff" + text.splitlines()[0] + "\r\n"]
        for line in text.splitlines()[1:]:
            decorated += ["\r\n", "  " + line + "  \r\n"]
    got = walk(SAMPLES[sample].format, decorated)
    assert without_lines(got.rows) == without_lines(walk_sample(sample, text).rows)
    assert got.bad == []


@every
def test_nothing_gives_no_row(name: str) -> None:
    assert walk(name, []) == Walked([], [], [])
    if not TRACE_FORMATS[name].document:
        assert walk(name, ["", "  ", "\r\n"]) == Walked([], [], [])


@each_sample
def test_two_walks_at_once_do_not_know_of_each_other(sample: str) -> None:
    texts = pieces(sample, sample_text(sample))
    one, two = (
        TRACE_FORMATS[SAMPLES[sample].format].rows(enumerate(texts, 1), lambda line, reason: None)
        for _ in range(2)
    )
    assert [pair[0] for pair in zip(one, two, strict=True)] == walk_sample(sample).rows


@each_sample
def test_rows_take_text_only_when_they_need_it(sample: str) -> None:
    taken = 0
    texts = pieces(sample, sample_text(sample))

    def feed() -> Iterator[tuple[int, str]]:
        nonlocal taken
        for number, text in enumerate(texts, 1):
            taken += 1
            yield number, text

    of = TRACE_FORMATS[SAMPLES[sample].format]
    rows = of.rows(feed(), lambda line, reason: None)
    assert taken == 0
    last = list(islice(rows, 2))[-1]
    assert taken < len(texts)
    assert of.document or taken == last.line


@each_sample
def test_memory_does_not_grow_with_the_trace(sample: str) -> None:
    of = TRACE_FORMATS[SAMPLES[sample].format]
    text = sample_text(sample)

    def peak(times: int) -> int:
        gc.disable()  # rows make no cycles; a collection in the midst of them allocates as well
        tracemalloc.start()
        for _ in of.rows(repeated(sample, text, times), lambda line, reason: None):
            pass
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.enable()
        return high

    peak(1)  # what is made once and kept, such as what reads a kind of line
    few = peak(3)
    # Some thousand rows more; the interpreter's own free lists may grow a little.
    assert peak(12) < few + 200_000


def repeated(sample: str, text: str, times: int) -> Iterator[tuple[int, str]]:
    """The sample's items so many times, in one file."""
    if text.startswith("["):
        yield 1, "["
        for time in range(times):
            yield 1, f"{',' if time else ''}{text[1:-1]}"
        yield 1, "]"
        return
    number = 0
    header = DIALECTS[SAMPLES[sample].format].header if SAMPLES[sample].format in DIALECTS else None
    lines = text.splitlines(keepends=TRACE_FORMATS[SAMPLES[sample].format].document)
    begin = 0 if header is None and not lines[0].startswith(("fio ", '{"schema"')) else 1
    for time in range(times):
        for line in lines if not time else lines[begin:]:
            number += 1
            yield number, line


# --- formats of lines with a time each ---


@each
def test_a_row_says_line_time_and_tokens(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text(dialect.line(7, 472, 18), dialect.line(45, 1087, 230)))
    counts = [(472, 18), (1087, 230)] if dialect.tokens else [(1, 0)] * 2
    assert [row[:4] for row in got.rows] == [
        (dialect.first, 0, *counts[0]),
        (dialect.first + 1, 38_000_000_000, *counts[1]),
    ]
    assert (got.bad, got.notes) == ([], [])


@each
def test_a_time_that_goes_back_is_taken_as_the_time_before_and_counted(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text(*(dialect.line(s) for s in (30, 10, 40, 35, 40, 50))))
    assert [row.at_ns // 10**9 for row in got.rows] == [0, 0, 10, 10, 10, 20]
    assert got.notes == [
        (dialect.first + 1, Note.BACKWARD),
        (dialect.first + 3, Note.BACKWARD),
    ]


@each_counted
def test_a_bad_first_row_sets_no_time(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text(dialect.line(5, "x"), dialect.line(30), dialect.line(31)))
    assert [row.at_ns for row in got.rows] == [0, 10**9]


@each_counted
@pytest.mark.parametrize(
    "tokens",
    ["", "NaN", "nan", "Infinity", "-1", "1.5", "1_000", '"1,087"', "0x10", "ten", "1e999999999",
     "9" * 5000, "10000001", "true", "null", "[]", "1e8", "--1", "\u0663"],
)  # fmt: skip
def test_a_row_without_whole_tokens_is_reported_with_its_number(name: str, tokens: str) -> None:
    dialect = DIALECTS[name]
    for spoilt in (dialect.line(1, prompt=tokens), dialect.line(1, output=tokens)):
        got = walk(name, dialect.text(dialect.line(0), spoilt, dialect.line(2)))
        assert [line for line, _ in got.bad] == [dialect.first + 1]
        assert "expected" in got.bad[0][1]
        assert "found" in got.bad[0][1]
        assert len(got.bad[0][1]) < 400
        assert [row.at_ns for row in got.rows] == [0, 2 * 10**9]


@each_counted
def test_an_empty_prompt_is_bad_and_the_bounds_are_good(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(
        name,
        dialect.text(
            dialect.line(0, prompt=0), dialect.line(1, prompt=1), dialect.line(2, MAX_TOKENS, 1)
        ),
    )
    assert [line for line, _ in got.bad] == [dialect.first]
    assert [row.prompt_tokens for row in got.rows] == [1, MAX_TOKENS]


@each_counted
def test_a_whole_number_written_with_a_point_is_one(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text(dialect.line(0, "472.0", "18.0")))
    assert [(row.prompt_tokens, row.output_tokens) for row in got.rows] == [(472, 18)]
    assert type(got.rows[0].prompt_tokens) is int


@each
@given(data=st.data())
def test_a_mangled_line_spoils_itself_and_no_other(name: str, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    good = [dialect.line(s) for s in range(4)]
    victim = data.draw(st.integers(0, 3), "victim")
    good[victim] = data.draw(mangled(good[victim]), "line")
    got = walk(name, dialect.text(*good))
    seen = {row.line for row in got.rows} | {line for line, _ in got.bad}
    left_out = {line for line, note in got.notes if note in (Note.FAILED, Note.LEFT_OUT)}
    others = {dialect.first + i for i in range(4) if i != victim}
    assert others <= {row.line for row in got.rows}
    assert len(got.rows) + len(got.bad) + len(left_out) <= 4
    assert seen | left_out | {dialect.first + victim} == others | {dialect.first + victim}
    assert_lawful(got.rows)


def mangled(line: str) -> st.SearchStrategy[str]:
    """The line cut, with something put in, or replaced altogether; never with a line end."""
    place = st.integers(0, len(line))
    junk = st.one_of(
        st.text(st.characters(exclude_characters="\r\n"), max_size=12),
        st.sampled_from(['"', ",", ",,", "{", "}", "NaN", "-", "1e9", "\0", "\ud800", "[" * 9999]),
    )
    return st.one_of(
        st.builds(lambda at: line[:at], place),
        st.builds(lambda at, text: line[:at] + text + line[at:], place, junk),
        st.builds(lambda at, upto, text: line[:at] + text + line[upto:], place, place, junk),
        junk,
    )


def assert_lawful(rows: list[TraceRow]) -> None:
    last = 0
    for row in rows:
        assert type(row.at_ns) is type(row.prompt_tokens) is type(row.output_tokens) is int
        assert last <= row.at_ns <= MAX_TIME_NS
        last = row.at_ns
        assert 1 <= row.prompt_tokens <= MAX_TOKENS
        assert 0 <= row.output_tokens <= MAX_TOKENS
        if row.nbytes:
            assert (row.hash_ids is not None, row.block_tokens) == (True, 0)
        else:
            assert (row.hash_ids is None) == (row.block_tokens == 0)
        for text in (row.session, row.name, row.model, row.scope, *row.after):
            assert len((text or "").encode()) <= 4 * MAX_ID_CHARS
    assert not rows or rows[0].at_ns == 0


@each
@given(
    times=st.lists(st.integers(0, 3599), min_size=1, max_size=20),
)
def test_any_order_of_times_is_lawful_and_fully_counted(name: str, times: list[int]) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text(*(dialect.line(s) for s in times)))
    assert len(got.rows) == len(times)
    assert_lawful(got.rows)
    high, back = times[0], 0
    for second, row in zip(times, got.rows, strict=True):
        back += second < high
        high = max(high, second)
        assert row.at_ns == (high - times[0]) * 10**9
    assert Counter(note for _, note in got.notes)[Note.BACKWARD] == back


# --- tables ---


NEEDED = ("Response tokens", "output_length", "GeneratedTokens", "token_size", "Object_Size_Bytes")


@each_table
def test_columns_are_found_by_name_whatever_their_order(name: str) -> None:
    sample = next(s for s, of in SAMPLES.items() if of.format == name)
    lines = sample_text(sample).splitlines()[:20]
    turned = [",".join(reversed(text.split(","))) for text in lines]
    assert walk(name, turned).rows == walk(name, lines).rows


@pytest.mark.parametrize(
    "name", sorted(n for n, d in DIALECTS.items() if d.comma and not n.startswith("requests"))
)
def test_a_missing_column_is_named(name: str) -> None:
    header = DIALECTS[name].header or ""
    gone = next(c for c in header.split(",") if c in NEEDED)
    with pytest.raises(WrongHeaderError, match=f"line 1 .*missing column '{gone}'"):
        walk(name, [header.replace(gone, "Other"), DIALECTS[name].line(0)])


@each_table
@pytest.mark.parametrize("header", ['"', "{}", "1,2,3"])
def test_a_file_without_a_header_is_refused(name: str, header: str) -> None:
    with pytest.raises(WrongHeaderError, match="line 2 is not"):
        walk(name, ["", header, DIALECTS[name].line(0)])


@each_table
def test_a_column_that_stands_there_twice_is_refused(name: str) -> None:
    header = DIALECTS[name].header or ""
    with pytest.raises(WrongHeaderError, match="more than once"):
        walk(name, [f"{header},{header}"])


@each_table
def test_a_row_of_another_width_is_bad(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text(dialect.line(0) + ",9", dialect.line(1).rpartition(",")[0]))
    assert [line for line, _ in got.bad] == [2, 3]
    assert all("fields as in the header" in reason for _, reason in got.bad)


@each_table
def test_an_open_quote_spoils_its_own_line_only(name: str) -> None:
    dialect = DIALECTS[name]
    got = walk(name, dialect.text('"' + dialect.line(0), dialect.line(1), dialect.line(2)))
    assert [line for line, _ in got.bad] == [2]
    assert [row.line for row in got.rows] == [3, 4]


# --- one format each ---


@pytest.mark.parametrize("ids", ["[0, 7]", "0;7", "0 7", "[0,7]"])
def test_the_ids_of_a_cell_may_be_separated_in_several_ways(ids: str) -> None:
    got = walk("mooncake-csv", [DIALECTS["mooncake-csv"].text()[0], f'0,900,10,"{ids}"'])
    assert (got.rows[0].hash_ids, got.rows[0].block_tokens) == ((0, 7), 512)


@pytest.mark.parametrize("ids", ["", "[]", "a", "-1"])
def test_a_cell_without_ids_is_a_bad_row(ids: str) -> None:
    got = walk("mooncake-csv", [DIALECTS["mooncake-csv"].text()[0], f'0,900,10,"{ids}"'])
    assert got.rows == []
    assert "hash_ids" in got.bad[0][1]


def test_a_list_of_mooncake_rows_is_what_its_lines_are() -> None:
    lines = sample_text("mooncake_sample.jsonl", 40).splitlines()
    listed = f"[{','.join(lines)}]"
    cut = [listed[at : at + 100] for at in range(0, len(listed), 100)]
    assert walk("mooncake-list", cut) == walk("mooncake", lines)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("arrived_at,num_prefill_tokens,num_decode_tokens", "requests"),
        ("Time (s),Input Tokens,Output Tokens", "requests"),
        ("timestamp,contexttokens,generatedtokens", "requests"),
        ("timestamp,input_length,output_length", "requests-ms"),
        ("time_in_ms,prompt_len,output_len", "requests-ms"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "azure"),
        ("time,prompt_tokens,input_tokens,output_tokens", None),
        ("time_us,prompt_tokens,output_tokens", None),
        ("time,prompt_tokens", None),
    ],
)
def test_columns_are_known_by_their_names_whatever_is_between_the_words(
    header: str, name: str | None
) -> None:
    found = [of.name for of in TRACE_FORMATS.values() if of.matches(f"{header}\n1,2,3\n")]
    assert found == ([] if name is None else [name])


@pytest.mark.parametrize(
    ("row", "name", "second_ns"),
    [
        ({"timestamp": 1500, "input_length": 9, "output_length": 2},
         "requests-json-ms", 15 * 10**8),
        ({"chat_id": 4, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 9,
          "output_length": 2}, "requests-json", 15 * 10**8),
        ({"created_time": 2, "input_tokens": 9, "output_tokens": 2, "session_id": 7},
         "requests-json", 2 * 10**9),
        ({"time": "2026-01-01T00:00:01Z", "prompt_len": 9, "output_len": 2}, "requests-json", None),
    ],
)  # fmt: skip
def test_rows_of_benchmark_clients_are_known_by_their_keys(
    row: dict[str, Any], name: str, second_ns: int | None
) -> None:
    first = row if second_ns is None else {k: 0 if "time" in k else v for k, v in row.items()}
    lines = f"{json.dumps(first)}\n{json.dumps(row)}\n"
    listed = json.dumps([first, row], indent=1)
    for text in (lines, listed):
        assert [of.name for of in TRACE_FORMATS.values() if of.matches(text)] == [name]
        got = walk(name, pieces_of(TRACE_FORMATS[name], text))
        assert [each[2:4] for each in got.rows] == [(9, 2), (9, 2)]
        assert got.rows[1].at_ns == (second_ns or 0)
        assert got.bad == []
    assert [each.session for each in got.rows] == ["7" if "session_id" in row else None] * 2


def test_objects_that_may_mean_something_else_spoil_their_own_row_alone() -> None:
    rows = [
        {"time": 0, "prompt": 5, "output": 1}, {"time_ms": 1, "prompt": 5, "output": 1},
        {"time": 1, "prompt": 5}, {"time": 2, "prompt": 5, "output": 1, "hashes": [1]},
        {"time": 3, "prompt": "5", "output": 1}, {"time": 4, "prompt": 5, "output": 1},
    ]  # fmt: skip
    got = walk("requests-json", ["".join(f"{json.dumps(row)}\n" for row in rows)])
    assert [(row.line, row.at_ns) for row in got.rows] == [(1, 0), (6, 4 * 10**9)]
    assert [item for item, _ in got.bad] == [2, 3, 4, 5]


def test_a_format_that_is_named_reads_a_column_that_says_no_unit_in_its_own() -> None:
    got = walk("requests-ms", ["time,prompt,output", "0,9,1", "1500,9,1"])
    assert got.rows[1].at_ns == 15 * 10**8


def test_an_arrival_may_be_a_date_and_a_time_of_day() -> None:
    lines = ["time,prompt_tokens,output_tokens,model", "2026-01-01 00:00:00,9,1,m",
             "2026-01-01T00:01:00.5Z,9,1,"]  # fmt: skip
    got = walk("requests", lines)
    assert [row.at_ns for row in got.rows] == [0, 60_500_000_000]
    assert [row.model for row in got.rows] == ["m", None]


@pytest.mark.parametrize(
    ("name", "header", "why"),
    [
        ("requests", "time,prompt_tokens", "expected arrival, .* found no output tokens"),
        ("requests", "time_ms,prompt_tokens,output_tokens", "'time_ms' counts ms, and requests s"),
        ("requests", "time,input_tokens,prompt,output", "prompt tokens are there more than once"),
        ("requests", "time,prompt,output,block_hashes", "how many tokens an id stands for"),
    ],
)
def test_columns_that_may_mean_something_else_are_refused(name: str, header: str, why: str) -> None:
    with pytest.raises(WrongHeaderError, match=why):
        walk(name, [header, "1,2,3,4"])


def test_a_quoted_field_may_hold_a_comma() -> None:
    dialect = DIALECTS["burstgpt"]
    got = walk("burstgpt", dialect.text('5,"GPT-4, turbo",472,18,490,"a ""log"""'))
    assert [row[1:4] for row in got.rows] == [(0, 472, 18)]


def test_burstgpt_rows_without_a_response_are_left_out_and_counted_as_failed() -> None:
    dialect = DIALECTS["burstgpt"]
    got = walk(
        "burstgpt",
        dialect.text(
            dialect.line(5, 80, 0), dialect.line(7), dialect.line(8, 0, 0), dialect.line(9)
        ),
    )
    assert [(row.line, row.at_ns) for row in got.rows] == [(3, 0), (5, 2 * 10**9)]
    assert got.notes == [(2, Note.FAILED), (4, Note.FAILED)]
    assert got.bad == []


def test_burstgpt_rows_without_a_response_are_rows_where_they_are_wanted() -> None:
    dialect = DIALECTS["burstgpt"]
    lines = dialect.text(dialect.line(5, 80, 0), dialect.line(7), dialect.line(8, 0, 0))
    for of in (BurstGpt().with_failed(), BurstGpt().with_failed().in_unit(TimeUnit.S)):
        got = walk_text(of, lines)
        assert [(row.line, row.at_ns) for row in got.rows] == [(2, 0), (3, 2 * 10**9)]
        assert got.rows[0][2:4] == (80, 0)
        assert (got.notes, got.bad) == ([(4, Note.FAILED)], [])


def test_burstgpt_takes_the_session_of_the_third_release() -> None:
    got = walk(
        "burstgpt",
        [
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type",
            "5,17,1.5,ChatGPT,472,18,Conversation log",
            "45.25,,,ChatGPT,1087,230,API log",
        ],
    )
    assert [row.session for row in got.rows] == ["17", None]
    assert got.rows[1].at_ns == 40_250_000_000


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("0.1", 100_000_000),
        ("45.0", 45_000_000_000),
        ("1700000000.1234567", 1_700_000_000_123_456_700),
        ("1.5e-05", 15_000),
        ("0.0000000019", 1),
        (" 7 ", 7_000_000_000),
        ("9223372036", 9_223_372_036_000_000_000),
    ],
)
def test_a_time_in_seconds_is_exact(text: str, at_ns: int) -> None:
    dialect = DIALECTS["burstgpt"]
    got = walk("burstgpt", dialect.text(dialect.line(0), f"{text},m,1,1,2,log"))
    assert [row.at_ns for row in got.rows] == [0, at_ns]


@pytest.mark.parametrize("text", ["", "-1", "NaN", "inf", "1700000000000", "1e999", "12:00", "1,5"])
def test_a_time_that_is_no_time_is_bad(text: str) -> None:
    dialect = DIALECTS["burstgpt"]
    got = walk("burstgpt", dialect.text(f'"{text}",m,1,1,2,log'))
    assert got.rows == []
    assert "Timestamp: expected a time in seconds" in got.bad[0][1]


def test_a_mooncake_time_with_a_fraction_is_exact() -> None:
    line = DIALECTS["mooncake"].line(0, 1, 1)
    texts = [line.replace("0e3", t) for t in ("1700000000123.1", "1700000000123.1000001")]
    assert [row.at_ns for row in walk("mooncake", texts).rows] == [0, 0]
    texts[1] = texts[0].replace("1700000000123.1", "1700000000123.100001")
    assert [row.at_ns for row in walk("mooncake", texts).rows] == [0, 1]


@pytest.mark.parametrize(
    "ids", ["[]", "null", "3", '"0"', "[0, -1]", "[1.5]", '["a"]', "[true]", "[[0]]", "{}"]
)
def test_hash_ids_must_be_a_list_of_whole_numbers(ids: str) -> None:
    line = DIALECTS["mooncake"].line(0).replace("[0, 1]", ids)
    got = walk("mooncake", [line])
    assert got.rows == []
    assert "hash_ids: expected" in got.bad[0][1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1, 2]", "expected one JSON object, found '\\[1, 2\\]'"),
        ('{"timestamp": 0', "expected one JSON object"),
        ('{"timestamp": 0, "hash_ids": [1]}', "found no input_length, output_length"),
        (
            DIALECTS["mooncake"].line(0, '"100"'),
            "input_length: expected a number, found the text '100'",
        ),
    ],
)
def test_json_of_another_shape_is_bad(line: str, reason: str) -> None:
    got = walk("mooncake", [line])
    assert got.rows == []
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(got.bad[0][1])


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2023-11-16 18:00:00.0000001", 100),
        ("2023-11-16T18:00:00.123456789Z", 123_456_789),
        ("2023-11-16 18:00:00.009930+00:00", 9_930_000),
        ("2023-11-16 18:00:01", 1_000_000_000),
        ("2023-11-17 00:00:00", 6 * 3600 * 10**9),
        ("2024-03-01 18:00:00", 106 * 86_400 * 10**9),
        ("2023-11-16 20:00:01+02:00", 1_000_000_000),
        ("2023-11-16 11:00:02.5-0700", 2_500_000_000),
        ("2023-11-17 02:00:00+05:30", (2 * 3600 + 30 * 60) * 10**9),
    ],
)
def test_an_azure_instant_is_exact(text: str, ns: int) -> None:
    dialect = DIALECTS["azure"]
    got = walk("azure", dialect.text(dialect.line(0), f"{text},1,1"))
    assert [row.at_ns for row in got.rows] == [0, ns]


@pytest.mark.parametrize(
    "text",
    ["", "2023-02-29 00:00:00", "2023-11-16 24:00:00", "2023-11-16 18:60:00", "18:00:00",
     "2023-11-16 18:00:00+2:00", "2023-11-16 18:00:00+24:00", "2023-11-16 18:00:00 UTC",
     "2023-11-16 18:00:00.1234567890", "9999-01-01 00:00:00", "1700000000"],
)  # fmt: skip
def test_an_instant_that_is_none_is_bad(text: str) -> None:
    got = walk("azure", DIALECTS["azure"].text(f"{text},1,1"))
    assert got.rows == []
    assert "TIMESTAMP: expected an instant like" in got.bad[0][1]


# --- the real traces ---


def real(name: str, file: str) -> Walked:
    return walk(name, (text for _, text in open_lines(real_trace(file))))


def test_the_real_mooncake_trace_gives_the_known_answers() -> None:
    got = real("mooncake", "mooncake_conversation_6000.jsonl")
    ids = [one for row in got.rows for one in row.hash_ids or ()]
    assert (len(got.rows), len(ids), len(set(ids))) == (6000, 152_537, 99_716)
    assert (got.bad, got.notes) == ([], [])
    assert {row.block_tokens for row in got.rows} == {512}
    assert prefix_hits(got.rows) == 52_821
    assert lru_hits(ids, 9_971) == 31_657


def prefix_hits(rows: list[TraceRow]) -> int:
    """Blocks that an unlimited cache has already, up to the first that it has not."""
    known: set[int | str] = set()
    hits = 0
    for row in rows:
        ids = row.hash_ids or ()
        hits += next((i for i, one in enumerate(ids) if one not in known), len(ids))
        known.update(ids)
    return hits


def lru_hits(ids: list[int | str], capacity: int) -> int:
    kept: OrderedDict[int | str, None] = OrderedDict()
    hits = 0
    for one in ids:
        hits += one in kept
        kept[one] = None
        kept.move_to_end(one)
        if len(kept) > capacity:
            kept.popitem(last=False)
    return hits


@pytest.mark.parametrize(
    ("file", "rows", "span_s", "p50", "p99", "gap_cv"),
    [
        ("azure_2023_code.csv", 8819, 3435.9, 1469, 7436, 13.2),
        ("azure_2023_conv_6000.csv", 6000, 1202.2, 1042, 4107, 1.0555),
    ],
)
def test_the_real_azure_traces_give_the_known_answers(
    file: str, rows: int, span_s: float, p50: int, p99: int, gap_cv: float
) -> None:
    got = real("azure", file)
    assert (len(got.rows), got.bad, got.notes) == (rows, [], [])
    assert got.rows[-1].at_ns / 1e9 == pytest.approx(span_s, abs=0.05)
    prompts = [row.prompt_tokens for row in got.rows]
    assert [round(float(np.percentile(prompts, p))) for p in (50, 99)] == [p50, p99]
    gaps = np.diff([row.at_ns for row in got.rows])
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(gap_cv, rel=0.005)
