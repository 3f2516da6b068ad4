"""Finding, opening, telling and surveying trace files."""

import gzip
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.errors import TraceError, UsageError
from kv_cache.core.units import MIB
from kv_cache.installing import install_hint
from kv_cache.workload.formats import TRACE_FORMATS, text_files
from kv_cache.workload.formats.base import Reading
from kv_cache.workload.formats.surveying import Survey, require_usable, survey
from kv_cache.workload.formats.text_files import open_lines, open_parts
from kv_cache.workload.formats.trace_files import (
    BadRow,
    Tally,
    Trace,
    detect,
    find_files,
    open_trace,
)
from kv_cache.workload.samples import SAMPLES, sample_bytes
from tests.traces import real_trace

HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def burst_row(second: object, prompt: object = 100, output: object = 10) -> str:
    return f"{second},ChatGPT,{prompt},{output},110,Conversation log"


def burst_file(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


@pytest.fixture
def burst(tmp_path: Path) -> Path:
    return burst_file(tmp_path / "b.csv", burst_row(5), burst_row(45, 1087, 230))


# --- which files ---


def test_a_file_is_itself_whatever_its_name(tmp_path: Path) -> None:
    path = burst_file(tmp_path / "odd[1]*.txt", burst_row(1))
    assert find_files(str(path)) == (path,)


def test_a_directory_gives_its_traces_by_name(tmp_path: Path) -> None:
    for name in ("b.csv", "a.jsonl", "c.JSON.GZ", "d.csv.zst", "README.md", ".hidden.csv", "x.gz"):
        (tmp_path / name).write_text("x")
    (tmp_path / "sub.csv").mkdir()
    assert [p.name for p in find_files(str(tmp_path))] == [
        "a.jsonl",
        "b.csv",
        "c.JSON.GZ",
        "d.csv.zst",
    ]


def test_a_pattern_gives_its_files_by_name_and_knows_no_brackets(tmp_path: Path) -> None:
    place = tmp_path / "run[1]"
    place.mkdir()
    for name in ("t2.csv", "t1.csv", "t10.csv", "u.csv"):
        (place / name).write_text("x")
    (place / "t3.csv").mkdir()
    assert [p.name for p in find_files(f"{place}/t?.csv")] == ["t1.csv", "t2.csv"]
    assert [p.name for p in find_files(f"{place}/t*.csv")] == ["t1.csv", "t10.csv", "t2.csv"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "empty"),
        ("nowhere.csv", r"nowhere\.csv: there is no such trace; give a file, a directory"),
        ("no*.csv", r"no\*\.csv: no file matches this pattern"),
        (".", "the directory holds no trace"),
    ],
)
def test_a_path_that_names_no_file_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match=says):
        find_files(path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(TraceError, match="not a regular file"):
        find_files(str(tmp_path / "pipe.csv"))


# --- text ---


def zstd(text: bytes) -> bytes:
    data: bytes = pytest.importorskip("zstandard").compress(text)
    return data


def packed(path: Path, text: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(text)
    if path.suffix == ".zst":
        return zstd(text)
    return text


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_are_the_same_plain_and_packed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(packed(path, "\ufeffone\r\n\r\n\xe9, three\u2028\nlast".encode()))
    assert list(open_lines(path)) == [(1, "one"), (2, ""), (3, "\xe9, three\u2028"), (4, "last")]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packing_is_told_by_content_and_may_have_several_parts(tmp_path: Path, suffix: str) -> None:
    parts = packed(Path("x" + suffix), b"one\ntw") + packed(Path("x" + suffix), b"o\nthree\n" * 9)
    (tmp_path / "t.csv").write_bytes(parts)
    assert [text for _, text in open_lines(tmp_path / "t.csv")] == [
        "one", "two", *["three", "o"] * 8, "three",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("spoil", ["cut", "flipped", "trailing"])
def test_a_broken_packed_file_is_an_error_and_not_a_shorter_trace(
    tmp_path: Path, suffix: str, spoil: str
) -> None:
    path = tmp_path / f"t.csv{suffix}"
    data = packed(path, b"".join(b"%d,%d\n" % (i, i * 7919 % 1009) for i in range(50_000)))
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:-20],
            "flipped": data[:middle] + bytes(b ^ 0xFF for b in data[middle : middle + 64])
            + data[middle + 64 :],
            "trailing": data + b"rubbish rubbish",
        }[spoil]
    )  # fmt: skip
    with pytest.raises(TraceError, match=r"t\.csv\.\w+: (cannot be read|line \d+ is not UTF-8)"):
        list(open_lines(path))


def test_zstd_unpacks_a_little_at_a_time_whatever_it_holds() -> None:
    """256 MiB of one letter are 8 KiB of zstd."""
    library = pytest.importorskip("zstandard")
    text = b"\n" * (256 * MIB)
    pieces = text_files._unzstd(io.BytesIO(zstd(text)), library)
    sizes = [len(piece) for piece in pieces]
    assert sum(sizes) == len(text)
    assert max(sizes) <= 64 * MIB


def test_zstd_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv.zst"
    path.write_bytes(zstd(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match=re.escape(install_hint("zstd"))):
        list(open_lines(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a\nb\n\xff\xfe\n", r"line 3 is not UTF-8 text \(found byte 0xff\)"),
        (b"a\n\0\0\n", r"line 2 is not UTF-8 text \(found a NUL byte\)"),
        ("Timestamp".encode("utf-16"), "line 1 is not UTF-8 text"),
    ],
)
def test_what_is_not_text_is_refused_with_its_line(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=rf"t\.csv: {says}"):
        list(open_lines(path))


def test_a_file_without_line_ends_does_not_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "t.json"
    path.write_bytes(b"[" * (3 << 20))
    with pytest.raises(TraceError, match="line 1 is longer than 1 MiB"):
        list(open_lines(path))


def test_a_directory_or_a_file_gone_is_a_trace_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.csv"):
        with pytest.raises(TraceError, match="cannot be read"):
            list(open_lines(path))


# --- parts of documents ---


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 18])
def test_parts_joined_are_the_text_and_say_where_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, size: int
) -> None:
    monkeypatch.setattr(text_files, "PART_BYTES", size)
    text = '[{"a": "\xe9\u20ac\U0001f600"},\r\n\n3,\n "\u2028"]\n'
    path = tmp_path / f"t.json{suffix}"
    path.write_bytes(packed(path, ("\ufeff" + text).encode()))
    before = ""
    for line, part in open_parts(path):
        assert line == before.count("\n") + 1
        before += part
    assert before == text


@pytest.mark.parametrize("size", [1, 5, 1 << 18])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1,\n\n\xff]", r"line 3 is not UTF-8 text \(found byte 0xff\)"),
        (b"[1,\n\0]", r"line 2 is not UTF-8 text \(found a NUL byte\)"),
        ("[\n\u20ac".encode()[:-1], r"line 2 is not UTF-8 text \(found byte 0xe2\)"),
    ],
)
def test_a_part_that_is_not_text_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, content: bytes, says: str
) -> None:
    monkeypatch.setattr(text_files, "PART_BYTES", size)
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=rf"t\.json: {says}"):
        list(open_parts(path))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_cut_packed_document_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.json{suffix}"
    data = packed(path, json.dumps([i * 7919 % 1009 for i in range(100_000)]).encode())
    path.write_bytes(data[:-20])
    with pytest.raises(TraceError, match=r"t\.json\.\w+: cannot be read"):
        list(open_parts(path))


def test_a_document_of_one_line_is_read_in_little_memory(tmp_path: Path) -> None:
    text = "so much was said that a line of it is longer than any other file has " * 150
    talk = {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": text}]}
    path = tmp_path / "t.json"
    with path.open("w") as file:
        file.write("[" + ", ".join([json.dumps(talk)] * 1200) + "]")
    assert path.stat().st_size > 20 << 20
    tracemalloc.start()
    trace = open_trace(str(path))
    found = survey(trace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (trace.format_name, found.rows, found.sessions) == ("sharegpt", 1200, 1200)
    assert found.prompt_tokens == 1200 * (len(text) // 4)
    assert peak < 5 << 20


@pytest.mark.parametrize(
    "name", [name for name, s in SAMPLES.items() if TRACE_FORMATS[s.format].document]
)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_document_of_spoilt_bytes_is_read_or_is_a_trace_error(
    name: str, data: st.DataObject
) -> None:
    content = bytearray(sample_bytes(name, rows=3))
    for _ in range(data.draw(st.integers(1, 3), "times")):
        at = data.draw(st.integers(0, len(content)), "at")
        upto = at + data.draw(st.integers(0, 9), "how many")
        content[at:upto] = data.draw(
            st.binary(max_size=5) | st.sampled_from([b'"', b"[", b"}", b"-", b"1e999", b"\\ud800"])
        )
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "t.json"
        path.write_bytes(content)
        trace = Trace(files=(path,), format_name=SAMPLES[name].format)
        with suppress(TraceError):
            require_usable(trace, survey(trace))


def test_items_are_named_as_what_they_are() -> None:
    assert str(BadRow("a.json", 17, "x", "item")) == "a.json, item 17: x"
    assert str(BadRow("a.csv", 17, "x")) == "a.csv, line 17: x"


def test_sessions_are_only_counted_where_rows_stand_by_session(burst: Path) -> None:
    with pytest.raises(TraceError, match=r"--max-conversations: .* \(burstgpt\) do not stand"):
        open_trace(str(burst), reading=Reading(max_sessions=5))
    assert open_trace(str(burst)).reading_facts() == {}


# --- which format ---


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_format_is_told_by_content(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"unnamed{suffix}"
    before = b"" if SAMPLES[name].format == "lmcache" else b"\xef\xbb\xbf\r\n"  # that is binary
    path.write_bytes(packed(path, before + sample_bytes(name)))
    assert detect(path).name == SAMPLES[name].format


def test_a_first_row_longer_than_the_head_does_not_hide_the_format(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    ids = list(range(100_000))
    path.write_text(
        f'{{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": {ids}}}\n' * 2
    )
    assert detect(path).name == "mooncake"
    assert survey(open_trace(str(path))).rows == 2


@pytest.mark.parametrize("name", sorted(TRACE_FORMATS))
def test_a_format_asked_for_by_name_is_given_unseen(tmp_path: Path, name: str) -> None:
    assert detect(tmp_path / "not-there", name) is TRACE_FORMATS[name]


def test_an_unknown_format_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace format 'burst_gpt'\. Did you mean 'burstgpt'"):
        detect(tmp_path, "burst_gpt")
    with pytest.raises(TraceError, match=r"Known: agentic, auto, azure, .* sharegpt"):
        detect(tmp_path, "???")


def test_a_file_of_no_known_format_is_shown_with_the_formats_there_are(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival,prompt,tokens\n0,1,2\n")
    with pytest.raises(TraceError, match=r"begins with 'arrival,.*azure, .*mooncake, .*agentic, "):
        detect(path)


@pytest.mark.parametrize("content", ["", "\n \r\n\n"])
def test_an_empty_file_is_refused_by_every_door(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(TraceError, match="the file is empty"):
        detect(path)
    for name in TRACE_FORMATS:
        with pytest.raises(TraceError, match=r"t\.csv: the file is empty"):
            survey(Trace(files=(path,), format_name=name, skip_bad_rows=True))


# --- walks ---


def test_files_follow_each_other_as_one_trace(tmp_path: Path) -> None:
    burst_file(tmp_path / "1.csv", burst_row(100), burst_row(110))
    burst_file(tmp_path / "2.csv", burst_row(5), burst_row(8))
    burst_file(tmp_path / "3.csv", burst_row(7), burst_row(6), burst_row(9))
    trace = open_trace(str(tmp_path))
    rows = list(trace.rows())
    assert [row.at_ns // 10**9 for row in rows] == [0, 10, 10, 13, 13, 13, 15]
    assert [row.line for row in rows] == [2, 3, 2, 3, 2, 3, 4]
    found = survey(trace)
    assert (found.rows, found.span_ns, found.backward_rows) == (7, 15 * 10**9, 1)


def test_files_of_several_formats_are_refused(tmp_path: Path) -> None:
    for name in ("azure_sample.csv", "sharegpt_sample.json"):
        (tmp_path / name).write_bytes(sample_bytes(name))
    with pytest.raises(TraceError, match=r"azure_sample\.csv: azure, sharegpt_sample\.json: share"):
        open_trace(str(tmp_path))


def test_a_bad_row_stops_a_walk_unless_it_may_be_skipped(tmp_path: Path) -> None:
    path = burst_file(tmp_path / "b.csv", burst_row(5), burst_row(6, "x"), burst_row(7))
    with pytest.raises(TraceError, match=r"b\.csv, line 3: Request tokens: .* --skip-bad-rows"):
        list(open_trace(str(path)).rows())
    tally = Tally()
    rows = list(open_trace(str(path), skip_bad_rows=True).rows(tally))
    assert [row.line for row in rows] == [2, 4]
    assert (tally.bad_rows, [row.line for row in tally.first_bad]) == (1, [3])


def test_a_walk_closed_early_leaves_no_file_open(burst: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    rows = open_trace(str(burst)).rows()
    next(rows)
    del rows
    assert len(os.listdir("/proc/self/fd")) == before


# --- the survey ---


def spoilt(tmp_path: Path, *, skip: bool) -> Trace:
    rows = [burst_row(i, "1.5" if i % 3 == 0 else 10, 0 if i % 5 == 0 else 2) for i in range(30)]
    path = burst_file(tmp_path / "b.csv", *rows, burst_row(1))
    return open_trace(str(path), skip_bad_rows=skip)


def test_failed_rows_are_asked_for_by_an_option_that_only_their_format_takes() -> None:
    path = "datasets/burstgpt_sample.csv"
    left, kept = (survey(open_trace(path, include_failed_rows=on)) for on in (False, True))
    assert (left.failed_rows, kept.failed_rows, kept.rows) == (33, 0, left.rows + 33)
    with pytest.raises(TraceError, match=r"azure\) marks no request as failed; leave it out"):
        open_trace("datasets/azure_sample.csv", include_failed_rows=True)


@pytest.mark.parametrize("skip", [True, False])
def test_a_survey_counts_everything(tmp_path: Path, skip: bool) -> None:
    trace = spoilt(tmp_path, skip=skip)
    seen: list[int] = []
    found = survey(trace, progress=seen.append)
    path = trace.files[0]
    reason = "Request tokens: expected a whole number from {} to 10000000, found '1.5'"
    assert found == Survey(
        rows=17,
        bad_rows=10,
        first_bad=tuple(
            BadRow(str(path), i + 2, reason.format(0 if i % 5 == 0 else 1))
            for i in (0, 3, 6, 9, 12)
        ),
        notes={"failed": 4, "backward": 1},
        unidentified_rows=17,
        sessions=0,
        span_ns=28 * 10**9,
        longest_gap_ns=3 * 10**9,
        prompt_tokens=16 * 10 + 100,
        output_tokens=16 * 2 + 10,
        has_hash_ids=False,
        block_tokens=0,
        most_tokens=100,
        most_bytes=0,
        follows=False,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    assert (found.failed_rows, found.backward_rows) == (4, 1)
    assert seen == [17]


def test_the_checksum_is_that_of_the_packed_files_joined(tmp_path: Path) -> None:
    for name in ("1.csv.gz", "2.csv.zst"):
        text = f"{HEADER}\n{burst_row(1)}\n".encode()
        (tmp_path / name).write_bytes(packed(tmp_path / name, text))
    trace = open_trace(str(tmp_path))
    joined = b"".join(path.read_bytes() for path in trace.files)
    assert survey(trace).sha256 == hashlib.sha256(joined).hexdigest()


def test_a_usable_trace_passes(burst: Path, tmp_path: Path) -> None:
    trace = open_trace(str(burst))
    require_usable(trace, survey(trace))
    trace = spoilt(tmp_path, skip=True)
    require_usable(trace, survey(trace))


def test_bad_rows_are_refused_with_file_lines_reasons_number_and_way_out(tmp_path: Path) -> None:
    trace = spoilt(tmp_path, skip=False)
    with pytest.raises(UsageError) as caught:
        require_usable(trace, survey(trace))
    text = str(caught.value)
    for part in ("b.csv: 10 of 31 rows", "line 2: Req", "line 14: Req", "and 5 more", "--skip-bad"):
        assert part in text
    assert "line 17" not in text


HEADED = (
    *("azure", "burstgpt", "splitwise", "mooncake-csv", "requests", "iotrace", "kv-cache"),
    "fio-iolog",
)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", sorted(TRACE_FORMATS))
def test_a_trace_without_a_good_row_is_refused_in_any_case(
    tmp_path: Path, name: str, skip: bool
) -> None:
    sample = next(s for s in SAMPLES if SAMPLES[s].format == name)
    header = (
        sample_bytes(sample).splitlines()[0]
        if name.startswith(HEADED) and "json" not in name
        else b""
    )
    path = tmp_path / "t.csv"
    path.write_bytes(header + b"\nrubbish\n")
    trace = Trace(files=(path,), format_name=name, skip_bad_rows=skip)
    with pytest.raises(
        TraceError, match=r"t\.csv: (1 of 1 rows cannot be read|not a [\w-]+ trace)"
    ):
        require_usable(trace, survey(trace))


def test_a_header_alone_and_failed_requests_alone_are_no_trace(tmp_path: Path) -> None:
    alone = open_trace(str(burst_file(tmp_path / "a.csv")))
    with pytest.raises(TraceError, match="no rows behind the header"):
        require_usable(alone, survey(alone))
    failed = open_trace(str(burst_file(tmp_path / "b.csv", burst_row(1, 5, 0))))
    with pytest.raises(TraceError, match="all 1 rows are failed requests"):
        require_usable(failed, survey(failed))


@pytest.mark.parametrize("skip", [True, False])
def test_a_wrong_header_is_refused_whatever_may_be_skipped(tmp_path: Path, skip: bool) -> None:
    path = burst_file(tmp_path / "b.csv", burst_row(1), header="Timestamp,Model,Tokens")
    trace = open_trace(str(path), "burstgpt", skip_bad_rows=skip)
    with pytest.raises(
        TraceError, match=r"b\.csv: .* missing columns 'Request tokens', 'Response tokens', found"
    ):
        survey(trace)


# --- the real traces ---


@pytest.mark.parametrize(
    ("file", "name", "rows", "span_s"),
    [
        ("mooncake_conversation_6000.jsonl", "mooncake", 6000, 1872.0),
        ("azure_2023_code.csv", "azure", 8819, 3435.9),
        ("azure_2023_conv_6000.csv", "azure", 6000, 1202.2),
    ],
)
def test_the_real_traces_survey_to_the_known_answers(
    file: str, name: str, rows: int, span_s: float
) -> None:
    trace = open_trace(str(real_trace(file)))
    found = survey(trace)
    require_usable(trace, found)
    assert (trace.format_name, found.rows, found.backward_rows) == (name, rows, 0)
    assert found.span_ns / 1e9 == pytest.approx(span_s, abs=0.05)
    assert found.block_tokens == (512 if name == "mooncake" else 0)
