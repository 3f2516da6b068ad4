"""What each reader of line formats makes of its own odd rows; the laws are in the contract."""

import json
from collections.abc import Iterable
from io import BytesIO

import msgspec
import pytest

from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import MAX_ID_CHARS, Note, WrongHeaderError
from kv_cache.workload.formats.chunk_stream import ChunkStream
from kv_cache.workload.formats.ids import Recent, RowNames
from kv_cache.workload.formats.lmcache import frame_texts, is_lct
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.samples import sample_bytes

Bad = list[tuple[int, str]]
Notes = list[tuple[int, Note]]


def read(name: str, *texts: str) -> tuple[list[TraceRow], Bad, Notes]:
    bad: Bad = []
    notes: Notes = []
    rows = TRACE_FORMATS[name].rows(
        enumerate(texts, 1),
        lambda line, reason: bad.append((line, reason)),
        lambda line, note: notes.append((line, note)),
    )
    return list(rows), bad, notes


# --- ids ---


def test_the_oldest_id_is_forgotten_first() -> None:
    recent: Recent[int] = Recent(kept=2)
    for number, name in enumerate("abac"):
        recent.put(name, number)
    assert [recent.get(name) for name in "abc"] == [2, None, 3]


def test_a_name_that_was_used_means_the_later_row() -> None:
    notes: Notes = []
    names = RowNames(lambda line, note: notes.append((line, note)))
    assert [names.name(line, "x") for line in (1, 2)] == ["x", "x@2"]
    assert names.after(3, ["x", "y"]) == ("x@2",)
    assert notes == [(2, Note.DUPLICATE), (3, Note.ORPHAN)]


# --- BurstGPT ---

BURST3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type"


def test_burstgpt_think_time_is_from_the_sessions_last_answer() -> None:
    rows, bad, _ = read(
        "burstgpt",
        BURST3,
        "100,a,4,GPT-4,15,118,Conversation log",
        "101,b,2,ChatGPT,12,87,Conversation log",
        "103,,1,ChatGPT,9,9,API log",
        "137.5,a,8,GPT-4,147,125,Conversation log",
        "140,a,1,GPT-4,291,163,Conversation log",
        "141,b,,ChatGPT,151,617,Conversation log",
        "150,b,1,ChatGPT,812,534,Conversation log",
    )
    assert bad == []
    think_s = [None if row.think_ns is None else row.think_ns / 1e9 for row in rows]
    assert think_s == [None, None, None, 33.5, 0, 38, None]
    assert [row.session for row in rows] == ["a", "b", None, "a", "a", "b", "b"]
    assert {row.model for row in rows} == {"GPT-4", "ChatGPT"}
    assert not any(row.adds for row in rows)


def test_burstgpt_elapsed_time_that_is_none_leaves_the_think_time_unknown() -> None:
    rows, bad, _ = read(
        "burstgpt", BURST3, "1,a,-1,m,5,5,x", "2,a,NaN,m,5,5,x", "3,a,soon,m,5,5,x", "4,a,1,m,5,5,x"
    )
    assert (bad, [row.think_ns for row in rows]) == ([], [None] * 4)


def test_burstgpt_without_a_model_or_session_column_has_none() -> None:
    rows, _, _ = read("burstgpt", "Timestamp,Request tokens,Response tokens", "1,2,3")
    assert (rows[0].model, rows[0].session) == (None, None)


@pytest.mark.parametrize("name", ["Session ID", "Model"])
def test_burstgpt_ids_that_are_too_long_are_bad(name: str) -> None:
    long = "x" * (MAX_ID_CHARS + 1)
    row = f"1,{long},1,m,5,5,x" if name == "Session ID" else f"1,a,1,{long},5,5,x"
    rows, bad, _ = read("burstgpt", BURST3, row)
    assert rows == []
    assert bad[0][1].startswith(f"{name}: expected at most {MAX_ID_CHARS} characters, found 1001")


def test_ids_are_kept_as_they_are() -> None:
    odd = ["../x", "a/b", "x" * 300, "😀", "$(reboot)", "%s"]
    rows, bad, _ = read("burstgpt", BURST3, *(f"1,{one},1,m,5,5,x" for one in odd))
    assert (bad, [row.session for row in rows]) == ([], odd)


# --- times in another unit ---


@pytest.mark.parametrize("at", ["1700000000000", "1700000000000000", "1.7e18"])
@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("burstgpt", "Timestamp,Request tokens,Response tokens", "%s,5,5"),
        ("splitwise", "arrival_timestamp,prompt_size,token_size", "%s,5,5"),
        (
            "qwen",
            "",
            (
                '{"chat_id": 1, "parent_chat_id": -1, "timestamp": %s, "input_length": 5, '
                '"output_length": 5, "hash_ids": [1]}'
            ),
        ),
    ],
)
def test_milliseconds_since_1970_in_a_column_of_seconds_are_bad(
    name: str, header: str, row: str, at: str
) -> None:
    rows, bad, _ = read(name, header, row % at)
    assert rows == []
    assert "expected a time in seconds from 0 to 9223372036" in bad[0][1]
    rows, bad, _ = read(name, header, row % "1700000000", row % "1700000001.5")
    assert bad == []
    assert rows[-1].at_ns == 1_500_000_000


# --- Qwen ---


def qwen(chat: object, parent: object = -1, at: float = 0, **fields: object) -> str:
    return json.dumps(
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": at,
            "input_length": 20,
            "output_length": 3,
            "type": "text",
            "turn": 1,
            "hash_ids": [1, 2],
            **fields,
        }
    )


def test_qwen_follow_ups_wait_for_their_parent_in_their_roots_session() -> None:
    rows, bad, notes = read("qwen", qwen(7), qwen(9), qwen(8, 7), qwen(11, 8), qwen(12, 7))
    assert (bad, notes) == ([], [])
    assert [row.name for row in rows] == ["7", "9", "8", "11", "12"]
    assert [row.after for row in rows] == [(), (), ("7",), ("8",), ("7",)]
    assert [row.session for row in rows] == ["7", "9", "7", "7", "7"]
    assert {(row.block_tokens, row.scope, row.adds) for row in rows} == {(16, "", False)}


def test_a_qwen_parent_that_is_not_there_names_the_session_and_is_not_waited_for() -> None:
    rows, _, notes = read("qwen", qwen(8, 7), qwen(9, 8), qwen(5, 5))
    assert [(row.session, row.after) for row in rows] == [("7", ()), ("7", ("8",)), ("5", ())]
    assert notes == [(1, Note.ORPHAN), (3, Note.ORPHAN)]


def test_a_qwen_id_that_is_used_again_is_another_row_from_there_on() -> None:
    rows, _, notes = read("qwen", qwen(7), qwen(7), qwen(8, 7))
    assert [row.name for row in rows] == ["7", "7@2", "8"]
    assert [row.session for row in rows] == ["7", "7@2", "7@2"]
    assert rows[2].after == ("7@2",)
    assert notes == [(2, Note.DUPLICATE)]


@pytest.mark.parametrize("value", [-2, 1.5, "7", True, None, [], 2**63])
@pytest.mark.parametrize("name", ["chat_id", "parent_chat_id"])
def test_qwen_ids_are_whole_numbers(name: str, value: object) -> None:
    line = json.dumps({**json.loads(qwen(1)), name: value})
    rows, bad, _ = read("qwen", line)
    assert rows == []
    assert bad[0][1].startswith(f"{name}: expected a whole number from")


# --- the benchmark's I/O trace ---

IO = "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"


def test_an_io_trace_has_what_the_application_asked_and_counts_the_rest() -> None:
    rows, bad, notes = read(
        "iotrace",
        IO,
        "10.5,Write,131072,Tier-1,u_1,Prefill",
        '11.000001,Read,131072,Tier-2,"u,1",Decode',
        "12,Read,131072,Tier-1,u_1,Evict",
        "12,Write,131072,Tier-2,u_1,Evict",
        "13,Delete,131072,Tier-2,u_1,Evict",
        "13,Write,131072,Tier-2,p_1,Populate",
        "14,Read,131072,Tier-2,u_1,Reuse",
        "14,Read,131072,Tier-2,u_1,Both",
        "15,Read,0,Tier-2,u_1,Decode",
    )
    assert bad == []
    assert [(row.line, row.hash_ids, row.nbytes, row.reads) for row in rows] == [
        (2, ("u_1",), 131_072, False),
        (3, ("u,1",), 131_072, True),
        (8, ("u_1",), 131_072, True),
        (9, ("u_1",), 131_072, True),
    ]
    assert {(row.prompt_tokens, row.output_tokens, row.block_tokens) for row in rows} == {(1, 0, 0)}
    assert rows[1].at_ns == 500_001_000
    assert notes == [(line, Note.LEFT_OUT) for line in (4, 5, 6, 7, 10)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,,5,Tier-1,k,Decode", "Operation: expected Read or Write, found ''"),
        ("1,7,5,Tier-1,k,Decode", "Operation: expected Read or Write, found '7'"),
        ("1,Read,5,Tier-1,k,", "Phase: expected a word like Prefill or Decode, found ''"),
        ("1,Read,5,Tier-1,,Decode", "Key: expected an object's name, found nothing"),
        ("1,Read,-5,Tier-1,k,Decode", "Object_Size_Bytes: expected a whole number from 0 to"),
        ("1,Read,1e99,Tier-1,k,Decode", "Object_Size_Bytes: expected a whole number from 0 to"),
        ("x,Read,5,Tier-1,k,Decode", "Timestamp: expected a time in seconds"),
    ],
)
def test_an_operation_that_is_none_is_bad(row: str, reason: str) -> None:
    rows, bad, _ = read("iotrace", IO, row)
    assert rows == []
    assert bad[0][1].startswith(reason)


# --- block devices ---


def test_fio_with_times_reads_accesses_and_counts_what_is_none() -> None:
    rows, bad, notes = read(
        "fio-iolog3",
        "fio version 3 iolog",
        "19 /d/f add",
        "133 /d/f open",
        "137 /d/f read 61440 4096",
        "402 /d/f write 61440 4096",
        "500 /d/f datasync 0 0",
        "501 /d/f trim 0 4096",
        "990141 /d/g read 0 512",
        "1000090 /d/f close",
    )
    assert bad == []
    assert [(row.at_ns, row.hash_ids, row.nbytes, row.reads) for row in rows] == [
        (0, ("/d/f:61440:4096",), 4096, True),
        (265_000, ("/d/f:61440:4096",), 4096, False),
        (990_004_000, ("/d/g:0:512",), 512, True),
    ]
    assert notes == [(6, Note.LEFT_OUT), (7, Note.LEFT_OUT)]


def test_fio_without_times_has_its_waits_as_think_times() -> None:
    rows, bad, _ = read(
        "fio-iolog2",
        "fio version 2 iolog",
        "/f add",
        "/f open",
        "/f wait 5000 0",
        "/f wait 99 0",
        "/f wait 200 0",
        "/f read 0 4096",
        "/f write 4096 4096",
        "/f close",
    )
    assert bad == []
    assert [(row.at_ns, row.think_ns) for row in rows] == [(0, 5_200_000), (0, None)]


@pytest.mark.parametrize(
    ("version", "row", "reason"),
    [
        (3, "1 /f read 0", "expected TIME FILE ACTION"),
        (3, "1 /f wait 5 0", "expected an action (read, write, sync, datasync, trim)"),
        (3, "1 /f read -1 5", "offset: expected a whole number"),
        (3, "1 /f read 0 5.5", "length: expected a whole number"),
        (3, "x /f read 0 5", "time: expected a time in us"),
        (2, "/f unlink", "expected an action (add, open, close), found 'unlink'"),
        (2, "/f read 0 5 6", "expected FILE ACTION, or FILE ACTION OFFSET LENGTH"),
    ],
)
def test_a_fio_line_that_is_none_is_bad(version: int, row: str, reason: str) -> None:
    rows, bad, _ = read(f"fio-iolog{version}", f"fio version {version} iolog", row)
    assert rows == []
    assert reason in bad[0][1]


@pytest.mark.parametrize("header", ["fio version 1 iolog", "0, 0, 4096", "fio version 2 iolog "])
def test_fio_of_another_version_is_another_file(header: str) -> None:
    assert not TRACE_FORMATS["fio-iolog3"].matches(header + "\n")
    with pytest.raises(
        WrongHeaderError, match="line 1 is not the header: expected 'fio version 3 iolog'"
    ):
        read("fio-iolog3", header)


def test_blkparse_reads_each_queued_io_once() -> None:
    rows, bad, notes = read(
        "blkparse",
        "Input file sda.blktrace.0 added",
        "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]",
        "  8,0    3        2     0.000000700   697  G   W 223490 + 8 [kjournald]",
        "  8,0    3        3     0.000001000   697  P   N [kjournald]",
        "  8,0    3        4     0.000002000   697  D   W 223490 + 8 [kjournald]",
        "  8,0    1        5     0.000090000     0  C   W 223490 + 8 [0]",
        "  8,0    1        6     1.500000000     9  Q  RA 16 + 256 [cat]",
        "  8,0    1        7     1.600000000     9  Q  DS 16 + 256 [fstrim]",
        "  8,0    1        8     1.700000000     9  Q FWS [fsync]",
        "  8,0    1        9     1.800000000     9  m   N cfq9 slice",
        "CPU0 (8,0):",
        " Reads Queued:           1,      128KiB\t Writes Queued:           1,        4KiB",
        " IO unplugs:             1        \t Timer unplugs:           0",
        "Throughput (R/W): 128KiB/s / 4KiB/s",
        "Events (8,0): 9 entries",
        "Skips: 0 forward (0 -   0.0%)",
    )
    assert bad == []
    assert [(row.at_ns, row.hash_ids, row.nbytes, row.reads) for row in rows] == [
        (0, (f"8,0:{223490 * 512}:4096",), 4096, False),
        (1_500_000_000, ("8,0:8192:131072",), 131_072, True),
    ]
    assert notes == [(8, Note.LEFT_OUT), (9, Note.LEFT_OUT)]


def test_msr_times_are_windows_filetimes_with_or_without_a_header() -> None:
    lines = (
        "128166372003061629,hm,0,Write,7014912,4096,26",
        "128166372016382155,hm,1,Read,7014912,4096,113",
    )
    header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime"
    rows, bad, _ = read("msr", *lines)
    again, _, _ = read("msr", header, *lines)
    assert bad == []
    assert [row._replace(line=0) for row in again] == [row._replace(line=0) for row in rows]
    assert rows[1].at_ns == 1_332_052_600
    assert [row.hash_ids for row in rows] == [("hm.0:7014912:4096",), ("hm.1:7014912:4096",)]
    assert TRACE_FORMATS["msr"].matches(header)


@pytest.mark.parametrize("time", ["1700000000", "116444735999999999", "9" * 20, "x", "1.5"])
def test_an_msr_time_that_is_no_filetime_is_bad(time: str) -> None:
    rows, bad, _ = read("msr", f"{time},hm,0,Write,0,4096,26")
    assert rows == []
    assert "Timestamp: expected a Windows filetime" in bad[0][1]


# --- LMCache ---

HEADER = {"type": "header", "magic": b"LMCT", "format_version": 1, "level": "storage"}
SHAPES = [[2, 4, 8], {"__t__": "torch.Size", "v": [10]}]
DTYPES = ["torch.bfloat16", {"__t__": "torch.dtype", "v": "torch.uint8"}]
LAYOUT = {"__t__": "MemoryLayoutDesc", "v": {"shapes": SHAPES, "dtypes": DTYPES}}


def key(chunk: bytes, group: int = 0, salt: str = "") -> dict[str, object]:
    value = {"chunk_hash": chunk, "model_name": "m", "kv_rank": 1, "object_group_id": group}
    return {"__t__": "ObjectKey", "v": {**value, **({"cache_salt": salt} if salt else {})}}


def call(at: float, name: str, **args: object) -> dict[str, object]:
    qualname = f"lmcache.v1.distributed.storage_manager.StorageManager.{name}"
    return {"type": "record", "t_mono": at, "t_wall": 0.0, "qualname": qualname, "args": args}


def framed(*values: object) -> bytes:
    packed = [msgspec.msgpack.encode(value) for value in values]
    return b"".join(len(frame).to_bytes(4) + frame for frame in packed)


def lct(*values: object) -> tuple[list[TraceRow], Bad, Notes]:
    return read("lmcache", *frame_texts(BytesIO(framed(*values))))


def test_an_lct_file_says_what_was_written_and_read() -> None:
    a, b = key(b"\1" * 16), key(b"\2" * 16)
    rows, bad, notes = lct(
        HEADER,
        call(0.5, "reserve_write", keys=[a, b], layout_desc=LAYOUT, mode="new"),
        call(1.0, "finish_write", keys=[a]),
        call(2.0, "read_prefetched_results.__enter__", keys=[a, b]),
        call(2.5, "read_prefetched_results.__exit__", keys=[a, b]),
        call(2.5, "finish_read_prefetched", keys=[a, b], extra_count=0),
        call(3.0, "clear", force=True),
    )
    assert (bad, notes) == ([], [(7, Note.LEFT_OUT)])
    names = [f"m@1@{(bytes([n]) * 16).hex()}@0@" for n in (1, 2)]
    assert [(row.line, row.at_ns, row.hash_ids, row.nbytes, row.reads) for row in rows] == [
        (3, 0, (names[0],), 2 * 4 * 8 * 2 + 10, False),
        (4, 10**9, (names[0],), 138, True),
        (4, 10**9, (names[1],), 138, True),
    ]


def test_lct_sizes_are_those_of_the_group_also_where_a_spec_holds_them() -> None:
    one = {"__t__": "MemoryLayoutDesc", "v": {"shapes": [[8]], "dtypes": ["torch.uint8"]}}
    spec = {"keys": [key(b"a"), key(b"a", 1)], "group_layout_descs": {"0": one, "1": LAYOUT}}
    rows, bad, _ = lct(
        HEADER,
        call(0, "submit_prefetch_task", spec={"__t__": "PrefetchRequestSpec", "v": spec}),
        call(1, "read_prefetched_results.__enter__", keys=[key(b"a"), key(b"b", 1, "salt")]),
    )
    assert (bad, [row.nbytes for row in rows]) == ([], [8, 138])


def test_an_lct_object_whose_size_nobody_said_is_no_row() -> None:
    rows, bad, _ = lct(HEADER, call(1, "finish_write", keys=[key(b"x")]))
    assert rows == []
    assert "says how long the object is before it, found none for 'm@1@78@0@'" in bad[0][1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format_version": 2}, "expected format version 1, found 2"),
        ({"level": "events"}, "expected a trace of level 'storage', found 'events'"),
        ({"magic": b"LMCX"}, "expected the magic LMCT"),
    ],
)
def test_another_lct_file_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(WrongHeaderError, match=reason):
        lct({**HEADER, **change})


def test_a_cut_or_broken_frame_spoils_itself() -> None:
    whole = framed(HEADER, call(0, "reserve_write", keys=[key(b"a")], layout_desc=LAYOUT))
    broken = (3).to_bytes(4) + b"\xc1\xc1\xc1"
    more = framed(call(1, "finish_write", keys=[key(b"a")]))
    rows, bad, _ = read("lmcache", *frame_texts(BytesIO(whole + broken + more + more[:-1])))
    assert [row.line for row in rows] == [4]
    assert [line for line, _ in bad] == [3, 5]
    assert "expected MessagePack" in bad[0][1]
    assert "expected a whole frame" in bad[1][1]


def test_frames_are_read_as_text_a_byte_at_a_time() -> None:
    data = sample_bytes("lmcache_sample.lct")
    assert is_lct(data[:64])
    source = BytesIO(data)
    stream = ChunkStream((f"{text}\n".encode() for text in frame_texts(source)), source)
    text = b"".join(iter(lambda: stream.read(1000) or b"", b"")).decode()
    assert text.splitlines() == list(frame_texts(BytesIO(data)))


def frame_text(data: bytes) -> str:
    (text,) = frame_texts(BytesIO(len(data).to_bytes(4) + data))
    return text


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xc0", None),
        (b"\xcc\xff", 255),
        (b"\xcd\x01\x00", 256),
        (b"\xff", -1),
        (b"\xd0\x80", -128),
        (b"\xcf" + b"\xff" * 8, 2**64 - 1),
        (b"\x93\x01\x02\x03", [1, 2, 3]),
        (b"\x81\xa1a\xc3", {"a": True}),
        (b"\x81\x01\x02", {"1": 2}),
        (b"\xca\x3f\xc0\x00\x00", 1.5),
        (b"\xd9\x01a", "a"),
        (b"\xc4\x02\x00\xff", "00ff"),
    ],
)
def test_a_frame_is_json_with_bytes_in_hex(data: bytes, value: object) -> None:
    assert json.loads(frame_text(data)) == value


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x01\x01", b"\xa2a",
     b"\xd4\x01\x01", b"\xd6\xff\0\0\0\1", b"\x91" * 5000, b"\x81\x91\x01\x01",
     b"\x81\xc4\x01a\x01", b"\xa1\xff"],
)  # fmt: skip
def test_a_frame_that_is_not_messagepack_is_a_line_that_says_so(data: bytes) -> None:
    assert frame_text(data).startswith("!expected MessagePack, found what is not: ")


# --- our own ---


def own(*rows: object, grouped: bool = False, timed: bool = True) -> Iterable[str]:
    yield json.dumps({"schema": "kv-cache-trace/1", "grouped": grouped, "timed": timed})
    for row in rows:
        yield row if isinstance(row, str) else json.dumps(row)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"at_ns": 0}, "expected at_ns, prompt, found no prompt"),
        ({"at_ns": 0, "prompt": 1, "x": 1}, "expected the fields at_ns, prompt, output"),
        ({"at_ns": -1, "prompt": 1}, "at_ns: expected a whole number from 0"),
        ({"at_ns": 0.5, "prompt": 1}, "at_ns: expected a whole number from 0"),
        ({"at_ns": 0, "prompt": "1"}, "prompt: expected a number, found the text '1'"),
        ({"at_ns": 0, "prompt": 1, "ids": []}, "ids: expected at least one id, found none"),
        ({"at_ns": 0, "prompt": 1, "ids": [1]}, "ids: expected blocks of a length"),
        ({"at_ns": 0, "prompt": 1, "block": 16}, "ids: expected blocks of a length"),
        ({"at_ns": 0, "prompt": 1, "ids": [-1], "block": 16}, "ids: expected whole numbers"),
        ({"at_ns": 0, "prompt": 1, "ids": [True], "block": 16}, "ids: expected whole numbers"),
        ({"at_ns": 0, "prompt": 1, "nbytes": 5}, "nbytes: expected one id"),
        ({"at_ns": 0, "prompt": 1, "ids": ["a", "b"], "nbytes": 5}, "nbytes: expected one id"),
        ({"at_ns": 0, "prompt": 1, "reads": True}, "reads: expected nbytes beside it"),
        ({"at_ns": 0, "prompt": 1, "reads": 1}, "reads: expected true or false, found 1"),
        ({"at_ns": 0, "prompt": 1, "session": 5}, "session: expected text, found 5"),
        ({"at_ns": 0, "prompt": 1, "name": "x" * 1001}, "name: expected at most 1000 characters"),
        ('{"at_ns": 0, "prompt": 1, "name": "\\ud800"}', "half a surrogate pair"),
        ({"at_ns": 0, "prompt": 1, "after": "a"}, "after: expected a list, found 'a'"),
        ({"at_ns": 0, "prompt": 1, "think_ns": -5}, "think_ns: expected a whole number"),
        ({"at_ns": 0, "prompt": 1, "request": []}, "request: expected an object, found \\[\\]"),
        ({"at_ns": 0, "prompt": 1, "request": {}}, "request: expected request_id, intended_ns"),
        ("[]", "expected one JSON object"),
    ],
)
def test_a_line_of_ours_that_is_no_row_is_bad(row: object, reason: str) -> None:
    rows, bad, _ = read("kv-cache", *own(row))
    assert rows == []
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(bad[0][1])


def test_our_own_sessions_have_a_clock_each_and_stand_together() -> None:
    a = {"prompt": 1, "session": "a"}
    rows, bad, notes = read(
        "kv-cache-sessions",
        *own(
            {**a, "at_ns": 50, "name": "x"},
            {**a, "at_ns": 40, "after": ["x"]},
            {"at_ns": 7, "prompt": 1, "session": "b", "after": ["x"]},
            {**a, "at_ns": 60},
            {"at_ns": 9, "prompt": 1},
            grouped=True,
        ),
    )
    assert [(row.session, row.at_ns, row.after) for row in rows] == [
        ("a", 0, ()),
        ("a", 0, ("x",)),
        ("b", 0, ()),
    ]
    assert notes == [(3, Note.BACKWARD), (4, Note.ORPHAN)]
    assert bad[0] == (5, "session: 'a' has ended before; its rows stand apart")
    assert bad[1][1].startswith("session: expected one")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ('{"schema": "kv-cache-trace/2", "grouped": false, "timed": true}', 'expected {"schema"'),
        ('{"schema": "kv-cache-trace/1"}', "grouped: expected true or false, found None"),
        (
            '{"schema": "kv-cache-trace/1", "grouped": true, "timed": true}',
            "another of our formats",
        ),
        ("x", "expected one JSON object"),
    ],
)
def test_a_header_of_another_trace_is_refused(header: str, reason: str) -> None:
    with pytest.raises(WrongHeaderError, match=reason):
        read("kv-cache", header)
