"""Whatever a file holds, reading it ends with rows or with a `TraceError`."""

import gzip
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import MAX_TIME_NS, MAX_TOKENS
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import require_usable, survey
from kv_cache.workload.formats.trace_files import AUTO, open_trace
from kv_cache.workload.samples import SAMPLES, sample_bytes

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

ROWS = 6


@cache
def small(sample: str) -> bytes:
    return sample_bytes(sample, rows=ROWS)


# --- what is done to a file ---

JUNK = (
    b"\0", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b'"', b'"\n"', b",", b"\n", b"\r", b"\r\n\r\n",
    b"9" * 30, b"9" * 5000, b"-1", b"1e999999", b"0.1e-400", b"NaN", b"Infinity", b"null", b"true",
    b"[" * 4000, b'{"a":' * 4000, b"]" * 50, b"}", b"{}", b"[]", b'""', b"\\ud800", b"\\", b" ",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x0c", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\0\0\0\x05LMCT",
)  # fmt: skip

Change = Callable[[bytes], bytes]


def _flip(at: int, mask: int) -> Change:
    def change(data: bytes) -> bytes:
        place = at % max(1, len(data))
        return data[:place] + bytes(b ^ mask for b in data[place : place + 1]) + data[place + 1 :]

    return change


def _put(at: int, junk: bytes, over: int) -> Change:
    def change(data: bytes) -> bytes:
        place = at % (len(data) + 1)
        return data[:place] + junk + data[place + over :]

    return change


def _cut(at: int) -> Change:
    return lambda data: data[: at % (len(data) + 1)]


def _lines(one: int, other: int, how: str) -> Change:
    """A line twice, gone, or in another's place."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True) or [b""]
        a, b = one % len(lines), other % len(lines)
        if how == "twice":
            lines.insert(b, lines[a])
        elif how == "gone":
            del lines[a]
        else:
            lines[a], lines[b] = lines[b], lines[a]
        return b"".join(lines)

    return change


places = st.integers(0, 10**6)
changes = st.one_of(
    st.builds(_flip, places, st.integers(1, 255)),
    st.builds(_put, places, st.sampled_from(JUNK) | st.binary(max_size=8), st.integers(0, 40)),
    st.builds(_cut, places),
    st.builds(_lines, places, places, st.sampled_from(("twice", "gone", "swapped"))),
)

PACKERS: dict[str, Change] = {
    "plain": bytes,
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zst": lambda data: bytes(zstandard.ZstdCompressor().compress(data)),
}


def spoilt(data: bytes, how: list[Change]) -> bytes:
    for change in how:
        data = change(data)
    return data


# --- what must hold ---


def read_through(data: bytes, wanted: str, *, skip_bad_rows: bool = True) -> str | None:
    """Reads a file of `data` as a run does: survey, then a whole walk. The error, if it is one."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace"
        path.write_bytes(data)
        try:
            trace = open_trace(str(path), wanted, skip_bad_rows=skip_bad_rows)
            found = survey(trace)
            require_usable(trace, found)
            rows = list(trace.rows())
        except TraceError as problem:
            said = str(problem)
            assert said.startswith(str(path)), said
            assert "\n" not in said
            assert len(said) < 4_000
            return said.replace(str(path), "FILE")
        assert len(rows) == found.rows
        check_rows(rows, grouped=trace.format.grouped)
        return None


def check_rows(rows: list[TraceRow], *, grouped: bool) -> None:
    last, session = 0, None
    for row in rows:
        if grouped and row.session != session:
            last, session = 0, row.session
        assert last <= row.at_ns <= MAX_TIME_NS
        last = row.at_ns
        assert 1 <= row.prompt_tokens <= MAX_TOKENS
        assert 0 <= row.output_tokens <= MAX_TOKENS
        texts = (row.session, row.name, row.scope, row.model, *row.after, *(row.hash_ids or ()))
        for text in texts:
            str(text).encode()  # what blocks and users are named by


formats = st.sampled_from((AUTO, *TRACE_FORMATS))


@few
@given(data=st.binary(max_size=400), wanted=formats, pack=st.sampled_from(sorted(PACKERS)))
def test_any_bytes_end_well(data: bytes, wanted: str, pack: str) -> None:
    read_through(PACKERS[pack](data), wanted)


@few
@given(text=st.text(max_size=300), wanted=formats)
def test_any_text_ends_well(text: str, wanted: str) -> None:
    read_through(text.encode("utf-8", "surrogatepass"), wanted)


@pytest.mark.parametrize("sample", sorted(SAMPLES))
@few
@given(
    how=st.lists(changes, min_size=1, max_size=4),
    own=st.booleans(),
    skip_bad_rows=st.booleans(),
)
def test_a_spoilt_sample_ends_well(
    sample: str, how: list[Change], own: bool, skip_bad_rows: bool
) -> None:
    wanted = SAMPLES[sample].format if own else AUTO
    read_through(spoilt(small(sample), how), wanted, skip_bad_rows=skip_bad_rows)


@pytest.mark.parametrize("pack", ["gz", "zst"])
@few
@given(
    sample=st.sampled_from(sorted(SAMPLES)),
    before=st.lists(changes, max_size=2),
    how=st.lists(changes, min_size=1, max_size=3),
)
def test_a_spoilt_packed_sample_ends_well(
    pack: str, sample: str, before: list[Change], how: list[Change]
) -> None:
    read_through(spoilt(PACKERS[pack](spoilt(small(sample), before)), how), SAMPLES[sample].format)


@few
@given(
    sample=st.sampled_from(sorted(SAMPLES)),
    other=st.sampled_from(sorted(SAMPLES)),
    how=st.lists(changes, max_size=2),
    wanted=formats,
)
def test_a_sample_behind_another_ends_well(
    sample: str, other: str, how: list[Change], wanted: str
) -> None:
    read_through(spoilt(small(sample) + small(other), how), wanted)


# --- a corpus: what exactly is said ---

QWEN = (
    b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 5, '
    b'"output_length": 5, "hash_ids": [1]}\n'
)
OWN = b'{"schema":"kv-cache-trace/1","grouped":false,"timed":true}\n'
IO = b"Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase\r\n"
WAY_OUT = "Correct the file, or leave such rows out with --skip-bad-rows"
TEXT = "give the CSV, JSON or JSONL file itself, plain, .gz or .zst"
KNOWN = f"Known are {', '.join(TRACE_FORMATS)}; docs/reference/trace-formats.md says what each"

PAGE = "<!DOCTYPE html><html>404</html>"
ANSWERED = "give a trace with at least one that was answered"


def bad(name: str, of: int, line: int, reason: str) -> str:
    return f"FILE: 1 of {of} rows cannot be read as {name} (FILE, line {line}: {reason}). {WAY_OUT}"


CORPUS: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", AUTO, "FILE: the file is empty; a trace has at least one row"),
    "blank": (b"\r\n \r\n", AUTO, "FILE: the file is empty; a trace has at least one row"),
    "png": (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        AUTO,
        f"FILE: line 1 is not UTF-8 text (found byte 0x89); {TEXT}",
    ),
    "UTF-16": (
        "Timestamp,Request tokens\n".encode("utf-16"),
        AUTO,
        f"FILE: line 1 is not UTF-8 text (found byte 0xff); {TEXT}",
    ),
    "NUL": (
        b"Timestamp,Request tokens,Response tokens\n1,\0,5\n",
        AUTO,
        f"FILE: line 2 is not UTF-8 text (found a NUL byte); {TEXT}",
    ),
    "an error page": (
        f"{PAGE}\n".encode(),
        AUTO,
        f"FILE: looks like no known trace format; it begins with {PAGE!r}. {KNOWN} looks like",
    ),
    "a pointer of Git LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4bb3\nsize 52283111\n",
        AUTO,
        "FILE: is a pointer of Git LFS and not the trace itself; fetch that with `git lfs pull`",
    ),
    "two formats at once": (
        b"arrival_timestamp,prompt_size,token_size,TIMESTAMP,ContextTokens,GeneratedTokens\n",
        AUTO,
        "FILE: looks like azure and splitwise; say with --trace-format which it is",
    ),
    "a header alone": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
        AUTO,
        "FILE: no rows behind the header; a trace has at least one row",
    ),
    "a column missing": (
        b"arrival_timestamp,prompt_size\n1,2\n",
        "splitwise",
        "FILE: not a splitwise trace: line 1 is not the header: missing column 'token_size', "
        "found 'arrival_timestamp,prompt_size'. Expected is "
        + TRACE_FORMATS["splitwise"].description,
    ),
    "a field missing": (
        b"arrival_timestamp,prompt_size,token_size\n1,2\n",
        AUTO,
        bad("splitwise", 1, 2, "expected 3 fields as in the header, found 2 in '1,2'"),
    ),
    "negative tokens": (
        b"arrival_timestamp,prompt_size,token_size\n1,-2,3\n",
        AUTO,
        bad(
            "splitwise", 1, 2, "prompt_size: expected a whole number from 1 to 10000000, found '-2'"
        ),
    ),
    "absurd tokens": (
        b"arrival_timestamp,prompt_size,token_size\n1,99999999999,3\n",
        AUTO,
        bad(
            "splitwise",
            1,
            2,
            "prompt_size: expected a whole number from 1 to 10000000, found '99999999999'",
        ),
    ),
    "milliseconds for seconds": (
        b"arrival_timestamp,prompt_size,token_size\n1700000000000,2,3\n",
        AUTO,
        bad(
            "splitwise",
            1,
            2,
            "arrival_timestamp: expected a time in seconds from 0 to 9223372036, found "
            "'1700000000000'; --trace-time-unit reads another unit",
        ),
    ),
    "failed rows alone": (
        b"Timestamp,Request tokens,Response tokens\n1,5,0\n",
        AUTO,
        f"FILE: all 1 rows are failed requests, which are left out; {ANSWERED}",
    ),
    "an open quote": (
        b'TIMESTAMP,ContextTokens,GeneratedTokens\n"2023-11-16 18:00:00,1,1\n',
        AUTO,
        bad(
            "azure",
            1,
            2,
            "expected comma-separated fields, found '\"2023-11-16 18:00:00,1,1': "
            "unexpected end of data",
        ),
    ),
    "a line cut": (
        QWEN + QWEN[:40],
        AUTO,
        bad("qwen", 2, 2, "expected one JSON object, found '" + QWEN[:40].decode() + "'"),
    ),
    "deep nesting": (
        QWEN + b"[" * 5000,
        AUTO,
        bad("qwen", 2, 2, f"expected one JSON object, found '{'[' * 60}'..."),
    ),
    "NaN": (
        QWEN.replace(b": 0,", b": NaN,"),
        AUTO,
        bad(
            "qwen",
            1,
            1,
            'expected one JSON object, found \'{"chat_id": 1, "parent_chat_id": -1, '
            '"timestamp": NaN, "inpu\'...',
        ),
    ),
    "Qwen said to be Mooncake": (
        QWEN,
        "mooncake",
        bad(
            "mooncake",
            1,
            1,
            "expected a row of Mooncake, found chat_id, which Qwen-Bailian's have: they count in "
            "other units",
        ),
    ),
    "another version of ours": (
        OWN.replace(b"/1", b"/2"),
        "kv-cache",
        "FILE: not a kv-cache trace: line 1 is not the header: expected "
        '{"schema": "kv-cache-trace/1", ...}, found '
        '\'{"schema":"kv-cache-trace/2","grouped":false,"timed":true}\'. Expected is '
        + TRACE_FORMATS["kv-cache"].description,
    ),
    "another of our formats": (
        OWN,
        "kv-cache-sessions",
        "FILE: not a kv-cache-sessions trace: line 1 is not the header: it says "
        "grouped False and timed True, which is another of our formats. Expected is "
        + TRACE_FORMATS["kv-cache-sessions"].description,
    ),
    "half a surrogate pair": (
        OWN + b'{"at_ns":0,"prompt":1,"name":"\\ud800"}\n',
        AUTO,
        bad(
            "kv-cache",
            1,
            2,
            "name: expected text, found half a surrogate pair in '\\ud800'",
        ),
    ),
    "no phase": (
        IO + b"1,Read,5,Tier-1,k,7\r\n",
        AUTO,
        bad("iotrace", 1, 2, "Phase: expected a word like Prefill or Decode, found '7'"),
    ),
    "a wait with times": (
        b"fio version 3 iolog\n1 /f wait 5 0\n",
        AUTO,
        bad(
            "fio-iolog3",
            1,
            2,
            "expected an action (read, write, sync, datasync, trim), found 'wait' in "
            "'1 /f wait 5 0'",
        ),
    ),
    "no event": (
        b"8,0 1 1 0.000000000 9 Q R 8 + 8 [x]\nsegfault\n",
        AUTO,
        bad(
            "blkparse",
            2,
            2,
            "expected an event like '8,0 3 1 0.000000000 697 Q R 223490 + 8 [cat]', found "
            "'segfault'",
        ),
    ),
    "no filetime": (
        b"128166372003061629,hm,0,Read,0,4096,1\n1700000000,hm,0,Read,0,4096,1\n",
        AUTO,
        bad(
            "msr",
            2,
            2,
            "Timestamp: expected a Windows filetime from 116444736000000000 (1970) to "
            "208678456368547758, found '1700000000'",
        ),
    ),
    "LMCache's events": (
        small("lmcache_sample.lct").replace(b"\xa7storage", b"\xa6events", 1)[:3]
        + bytes([small("lmcache_sample.lct")[3] - 1])
        + small("lmcache_sample.lct").replace(b"\xa7storage", b"\xa6events", 1)[4:],
        AUTO,
        "FILE: not a lmcache trace: line 1 is not the header: expected a trace of level 'storage', "
        "found 'events'. Expected is " + TRACE_FORMATS["lmcache"].description,
    ),
    "gzip cut": (
        PACKERS["gz"](small("azure_sample.csv"))[:-6],
        AUTO,
        "FILE: cannot be read: Compressed file ended before the end-of-stream marker was reached",
    ),
    "zstd cut": (
        PACKERS["zst"](small("azure_sample.csv"))[:-3],
        AUTO,
        "FILE: cannot be read: the zstd file ends before its data does",
    ),
}


@pytest.mark.parametrize("name", CORPUS)
def test_what_is_said_of_a_spoilt_file(name: str) -> None:
    data, wanted, said = CORPUS[name]
    assert read_through(data, wanted, skip_bad_rows=False) == said


def test_the_last_frame_of_a_server_that_was_killed_can_be_left_out() -> None:
    data = small("lmcache_sample.lct")[:-3]
    said = read_through(data, AUTO, skip_bad_rows=False) or ""
    assert "expected a whole frame, found the file's end inside it" in said
    assert read_through(data, AUTO) is None
