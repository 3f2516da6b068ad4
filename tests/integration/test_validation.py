"""`--validation-trace`: a run beside the records of a real system, and files that are no such."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import Tier
from kv_cache.files.validation import read_validation
from tests.cli import SMALL, prepare, small

Entry = dict[str, Any]
Go = Callable[..., Any]


def entry(number: int = 0, **changed: Any) -> Entry:
    return {
        "timestamp": 100.0 + number,
        "request_id": f"req_{number}",
        "user_id": "user_1",
        "context_tokens": 300,
        "generation_tokens": 20,
        "phase": "decode",
        "cache_hit": True,
        "cache_tier": "nvme",
        "read_bytes": 4_000_000,
        "write_bytes": 1_000_000,
        "read_latency_ms": 2.0 + number,
        "write_latency_ms": 1.0,
        "model_name": "tiny-1b",
        **changed,
    }


MISS: Entry = {"cache_hit": False, "cache_tier": None, "read_bytes": 0, "read_latency_ms": 0}


def write(path: Path, entries: Any) -> Path:
    path.write_text(json.dumps(entries))
    return path


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """A run in virtual time, compared with these entries; the answer is the result."""
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run_here(entries: Any, *args: str) -> Any:
        write(Path("V.json"), entries)
        flags = [*SMALL, "--virtual-time", "--max-requests=80", "--no-progress", *args]
        assert main([*flags, "--validation-trace=V.json", "--output=R.json"]) == 0
        return json.loads(Path("R.json").read_bytes())

    return run_here


# --- the comparison ----------------------------------------------------------------------------


def test_a_run_is_compared_with_the_trace_number_by_number(
    go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [entry(n) for n in range(8)] + [entry(n, **MISS) for n in (8, 9)]
    result = go(entries)
    found = result["validation"]
    rate = found["comparison"]["cache_hit_rate"]
    assert rate["benchmark"] == result["cache_hit_rate"]
    assert rate["trace"] == 0.8
    assert rate["error_pct"] == pytest.approx(100 * abs(result["cache_hit_rate"] - 0.8) / 0.8)
    assert (found["passed"], found["avg_error_pct"]) == (rate["within_5pct"], rate["error_pct"])
    stats = result["summary"]["cache_stats"]
    assert not found["passed"]
    assert stats["cache_hit_rate"] > 0.9
    reuse = result["kv_cache"]["reuse"]
    rows = found["comparison"]
    assert rows["read_bytes"]["benchmark"] == reuse["loaded_bytes"]
    assert rows["read_bytes"]["trace"] == 8 * 4_000_000
    assert rows["write_bytes"]["benchmark"] == reuse["stored_bytes"]
    assert rows["write_bytes_per_request"]["benchmark"] == reuse["stored_bytes"] / 80
    assert rows["write_bytes_per_request"]["trace"] == 1_000_000
    assert rows["storage_read_share"]["trace"] == 1.0
    told = capsys.readouterr().out
    assert "\nvalidated  hit rate" in told
    assert "in the trace 80.0 %" in told
    assert "NOT within 5 %" in told


def test_a_run_that_hits_as_often_passes(go: Go) -> None:
    own = go([entry()])["cache_hit_rate"]
    misses = round(1000 * (1 - own))
    entries = [entry(n) for n in range(1000 - misses)] + [entry(n, **MISS) for n in range(misses)]
    found = go(entries)["validation"]
    assert found["passed"]
    assert found["comparison"]["cache_hit_rate"]["error_pct"] < 0.2


def test_virtual_time_has_no_latencies_to_compare(go: Go) -> None:
    rows = go([entry()])["validation"]["comparison"]
    assert not [name for name in rows if "latency" in name]
    assert set(rows) == {
        "cache_hit_rate", "read_bytes", "read_bytes_per_request", "write_bytes",
        "write_bytes_per_request", "storage_read_share",
    }  # fmt: skip


def test_a_real_run_is_compared_in_latencies_too(tmp_path: Path) -> None:
    write(tmp_path / "V.json", [entry(n) for n in range(20)])
    ran = small(tmp_path, "--max-requests=150", "--validation-trace=V.json")
    assert ran.code == 0, ran.err
    rows = ran.result["validation"]["comparison"]
    for side in ("read", "write", "storage_read"):
        for part in ("mean", "p50"):
            row = rows[f"{side}_latency_{part}_ms"]
            assert row["benchmark"] > 0
            error = 100 * abs(row["benchmark"] - row["trace"]) / row["trace"]
            assert row["error_pct"] == pytest.approx(error)
    assert rows["read_latency_mean_ms"]["trace"] == pytest.approx(mean(range(2, 22)))
    assert rows["read_latency_p95_ms"]["trace"] is None  # of 20


def test_where_nothing_is_looked_up_there_is_no_rate_to_judge(go: Go) -> None:
    found = go([entry()], "--prefill-only", "--disable-multi-turn", "--disable-prefix-caching")
    row = found["validation"]["comparison"]["cache_hit_rate"]
    assert row == {"benchmark": None, "trace": 1.0, "error_pct": None, "within_5pct": False}
    assert found["validation"]["passed"] is False


def test_a_trace_without_hits_has_no_relative_error(go: Go) -> None:
    row = go([entry(**MISS)])["validation"]["comparison"]["cache_hit_rate"]
    assert (row["trace"], row["error_pct"], row["within_5pct"]) == (0.0, None, False)


# --- the file ----------------------------------------------------------------------------------


def test_what_the_trace_says_of_its_system(tmp_path: Path) -> None:
    entries = [
        entry(0, cache_tier="GPU", read_bytes=10),
        entry(5, cache_tier="disk", read_bytes=30, conversation_id="c", turn_number=2),
        entry(2, cache_tier="tape", request_id=7, user_id=8, prefix_cached=None),
        entry(3, context_tokens=900.0, model_name="big", **MISS),
    ]
    path = write(tmp_path / "V.json", entries)
    trace = read_validation(path)
    stats = trace.stats()
    assert stats["total_requests"] == 4
    assert stats["duration_seconds"] == 5.0
    assert stats["cache_hit_rate"] == 0.75
    assert stats["context_tokens_mean"] == 450
    assert stats["cache_tiers"] == {"GPU": 1, "disk": 1, "tape": 1}
    assert stats["models"] == {"tiny-1b": 3, "big": 1}
    assert stats["read_bytes"] == 4_000_040
    assert {tier: side.bytes for tier, side in trace.tiers.items()} == {Tier.GPU: 10, Tier.NVME: 30}
    assert trace.read.latency.count == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"timestamp": "12:00"}, "timestamp: expected float, got str"),
        ({"timestamp": -1}, "timestamp: expected float >= 0"),
        ({"request_id": None}, "request_id: expected int | str, got null"),
        ({"context_tokens": 1.5}, "context_tokens: expected float that's a multiple of 1"),
        ({"generation_tokens": -3}, "generation_tokens: expected float >= 0"),
        ({"phase": 3}, "phase: expected str, got int"),
        ({"cache_hit": 1}, "cache_hit: expected bool, got int"),
        ({"cache_tier": 2}, "cache_tier: expected str | null, got int"),
        ({"read_bytes": "4096"}, "read_bytes: expected float, got str"),
        ({"write_bytes": 2**60}, "write_bytes: expected float <= 9007199254740992"),
        ({"read_latency_ms": True}, "read_latency_ms: expected float, got bool"),
        ({"write_latency_ms": 1e300}, "write_latency_ms: expected float <= 1000000000000"),
        ({"model_name": {}}, "model_name: expected str, got object"),
        ({"turn_number": "2"}, "turn_number: expected float | null, got str"),
        ({"prefix_cached": "yes"}, "prefix_cached: expected bool | null, got str"),
    ],
)
def test_an_entry_that_is_not_right_is_named_with_its_number(
    changed: Entry, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "V.json", [entry(0), entry(1, **changed), entry(2)])
    with pytest.raises(TraceError) as caught:
        read_validation(path)
    assert "1 of 3 entries are not right (entry 2." in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", sorted(entry()))
def test_every_field_of_the_reference_is_needed(name: str, tmp_path: Path) -> None:
    lacking = {key: value for key, value in entry().items() if key != name}
    with pytest.raises(TraceError, match=f"entry 1: object missing required field {name}"):
        read_validation(write(tmp_path / "V.json", [lacking]))


def test_of_many_wrong_entries_the_first_five_are_told_and_the_rest_counted(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "V.json", [entry(), *([7] * 9), entry()])
    with pytest.raises(TraceError) as caught:
        read_validation(path)
    said = str(caught.value)
    assert "9 of 11 entries" in said
    assert "entry 2: expected object, got int" in said
    assert "entry 6:" in said
    assert "entry 7:" not in said
    assert "and 4 more" in said


CASES: dict[str, tuple[bytes | None, list[str]]] = {
    "missing": (None, ["no such file", "leave --validation-trace out"]),
    "empty": (b"", ["it is empty"]),
    "blank": (b"\n \n", ["it is empty"]),
    "cut": (b'[{"timestamp": 1,', ["not JSON"]),
    "binary": (b"\x00\xff\x93NUMPY", ["not JSON"]),
    "nan": (b'[{"timestamp": NaN}]', ["not JSON"]),
    "an object": (b'{"entries": []}', ["expected a list", "an object"]),
    "a number": (b"3", ["expected a list", "found 3"]),
    "no entries": (b"[]", ["the list is empty"]),
    "another list": (b'[{"a": 1}]', ["entry 1: object missing required field timestamp"]),
    "nested": (b"[" * 5000 + b"]" * 5000, ["V.json"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_ends_with_one_sentence_before_the_run(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, words = CASES[case]
    if data is not None:
        (tmp_path / "V.json").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(["--virtual-time", "--validation-trace=V.json", "--output=R.json"]) == 2
    told = capsys.readouterr()
    (sentence,) = told.err.splitlines()
    assert told.out == ""
    for word in ("kv-cache: --validation-trace V.json", *words):
        assert word in sentence
    assert sorted(tmp_path.iterdir()) == before


def test_a_directory_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not a regular file"):
        read_validation(tmp_path)


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "V.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([entry()]).encode())
    assert read_validation(path).entries == 1
