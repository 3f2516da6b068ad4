"""The log of HdrHistogram, read back by the `hdrh` package."""

from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kv_cache.core.errors import UsageError
from kv_cache.files.hdr import TimedRun, encode, hdr_log, index_of, zigzag
from kv_cache.metrics.histogram import RELATIVE_ERROR, Histogram
from kv_cache.result.chain import seal
from tests.results import histogram, row
from tests.trials import requests, result

HOUR_NS = 3600 * 10**9
VALUES = st.lists(st.integers(0, 2**62) | st.integers(0, 3000), min_size=1, max_size=60)


def hdrh() -> Any:
    return pytest.importorskip("hdrh.histogram").HdrHistogram


def of(values: list[int]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


def at_rank(read: Any, rank: int) -> int:
    """What HdrHistogram says of the value of that rank."""
    seen = 0
    for index in range(read.counts_len):
        seen += read.get_count_at_index(index)
        if seen >= rank:
            value: int = read.get_highest_equivalent_value(read.get_value_from_index(index))
            return value
    raise AssertionError(rank)


@settings(deadline=None, max_examples=60)
@given(VALUES)
@example([0])
@example([2047, 2048, 2049])
@example([511, 512, 1023, 1024] * 3)
def test_counts_are_kept_and_each_rank_is_within_the_stated_error(values: list[int]) -> None:
    ours = of(values)
    read = hdrh().decode(encode(ours))
    assert read.get_total_count() == len(values)
    for rank, value in enumerate(sorted(values), start=1):
        assert abs(at_rank(read, rank) - value) <= max(1, RELATIVE_ERROR * value)


@settings(deadline=None, max_examples=30)
@given(VALUES)
def test_the_ends_are_those_that_are_known_exactly(values: list[int]) -> None:
    read = hdrh().decode(encode(of(values)))
    for seen, value in (
        (at_rank(read, 1), min(values)),
        (at_rank(read, len(values)), max(values)),
    ):
        assert value <= seen <= value * (1 + 1 / 1024)


def test_percentiles_of_many_values_are_those_of_the_result() -> None:
    values = [round(1e6 * 1.001**k) for k in range(9000)]
    ours = of(values)
    read = hdrh().decode(encode(ours))
    for percent in (1, 50, 90, 95, 99, 99.9):
        seen = at_rank(read, ceil(percent * len(values) / 100))
        assert seen == pytest.approx(ours.at_rank(percent), abs=1)


def test_values_have_the_index_that_hdrhistogram_gives_them() -> None:
    reference = hdrh()(1, 2**62, 3)
    for value in (0, 1, 1023, 2047, 2048, 2049, 4095, 4096, 10**6, 10**12, 2**62 - 1):
        assert index_of(value) == reference._counts_index_for(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"), (1, "02"), (-1, "01"), (63, "7e"), (64, "8001"), (-3, "05"),
        (2**62, "808080808080808080"), (2**63 - 1, "feffffffffffffffff"),
    ],
)  # fmt: skip
def test_words_are_zigzag_of_at_most_nine_bytes(value: int, expected: str) -> None:
    assert zigzag(value).hex() == expected


def run(seed: int = 1, begun: str | None = "2026-01-01T00:00:00+00:00", **more: Any) -> Any:
    document = result(seed)
    own = document["kv_cache"]
    class_of = {
        **requests(2),
        "histogram_response": histogram([10**6, 3 * 10**6], "ns"),
        "histogram_ttft": histogram([], "ns"),
    }
    nobody = {**requests(0), "histogram_response": histogram([], "ns")}
    nobody["histogram_ttft"] = histogram([], "ns")
    own |= {
        "started_utc": begun,
        "phases_ns": {"measure_start": 5 * 10**9},
        "operations": [
            row("read", [1, 1], [10**6, 2 * 10**6]),
            row("read", [1], [10**7], cause="promotion"),
            row("read", [1], [10**8], phase="warmup"),
        ],
        "measured": {
            "all": class_of, "interactive": class_of, "responsive": nobody, "batch": nobody,
        },
        "config": {"run": {"mode": "standard", "seed": seed}, "output": {"io_trace_log": None}},
        **more,
    }  # fmt: skip
    del document["kv_cache"]["chain"]
    return seal(document, {})


def read_log(path: Path) -> dict[str, Any]:
    reader = pytest.importorskip("hdrh.log").HistogramLogReader(str(path), hdrh()(1, HOUR_NS, 3))
    found = {}
    while (one := reader.get_next_interval_histogram()) is not None:
        found[one.get_tag()] = one
    reader.close()
    return found


def given_input(label: str, **more: Any) -> TimedRun:
    return TimedRun.of(label, Path(f"{label}.json"), run(**more)["kv_cache"])


def test_a_log_has_what_the_window_measured_by_tag(tmp_path: Path) -> None:
    (tmp_path / "x.hlog").write_bytes(hdr_log([given_input("A")]))
    found = read_log(tmp_path / "x.hlog")
    assert sorted(found) == ["response.all", "response.interactive", "storage.read.device"]
    device = found["storage.read.device"]  # of all causes, and none of the warm-up
    assert device.get_total_count() == 3
    assert at_rank(device, 3) == pytest.approx(10**7, rel=1 / 1024)
    begin_ms = 1767225600_000 + 5000
    assert device.get_start_time_stamp() == begin_ms
    assert device.get_end_time_stamp() == begin_ms + 10_000


def test_several_results_are_told_apart_and_stand_in_the_order_of_time(tmp_path: Path) -> None:
    later = given_input("A", begun="2026-01-01T00:01:00+00:00")
    (tmp_path / "x.hlog").write_bytes(hdr_log([later, given_input("B", seed=2)]))
    text = (tmp_path / "x.hlog").read_text()
    tags = [line.split(",")[0] for line in text.splitlines() if line.startswith("Tag=")]
    assert tags[0] == "Tag=B.response.all"
    assert tags[3] == "Tag=A.response.all"
    found = read_log(tmp_path / "x.hlog")
    assert found["A.response.all"].get_start_time_stamp() == 1767225600_000 + 65_000


def test_the_first_line_of_a_log_has_the_verdict_of_each_result() -> None:
    doubtful = given_input("B", passport={"verdict": "suspect", "reasons": [], "rules": []})
    first, *_ = hdr_log([given_input("A"), doubtful]).decode().splitlines()
    assert first.endswith("of the measured window of A A.json (valid), B B.json (suspect)]")


def test_virtual_time_begins_with_the_epoch(tmp_path: Path) -> None:
    (tmp_path / "x.hlog").write_bytes(hdr_log([given_input("A", begun=None)]))
    assert read_log(tmp_path / "x.hlog")["response.all"].get_start_time_stamp() == 5000


def test_a_run_that_timed_nothing_has_no_log() -> None:
    traced = given_input("A", config={"output": {"io_trace_log": "t.csv"}})
    with pytest.raises(UsageError, match="timed none"):
        hdr_log([traced])


def test_a_histogram_that_does_not_add_up_is_refused() -> None:
    broken = {**histogram([5], "ns"), "count": 2}
    one = run()["kv_cache"]["measured"]
    one["all"]["histogram_response"] = broken
    with pytest.raises(UsageError, match=r"A.json: kv_cache.measured.*is not a histogram"):
        hdr_log([given_input("A", measured=one)])
