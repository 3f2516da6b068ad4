"""In which unit a trace's times are: as asked for, as the format says, or as its pace tells."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.core.errors import TraceError
from kv_cache.workload.formats.base import TimeUnit
from kv_cache.workload.formats.surveying import Survey, doubts, facts, read, refuse_doubts
from kv_cache.workload.formats.time_units import TracePace, chosen_unit
from kv_cache.workload.formats.trace_files import open_trace

MS, S = TimeUnit.MS, TimeUnit.S


def mooncake(tmp_path: Path, times: list[Any], prompt: int = 12_000) -> Path:
    path = tmp_path / "mooncake.jsonl"
    rows = (
        {"timestamp": at, "input_length": prompt, "output_length": 300, "hash_ids": [number]}
        for number, at in enumerate(times)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def found(path: Path, unit: str = "auto") -> tuple[Survey, dict[str, Any], tuple[str, ...]]:
    trace, survey = read(open_trace(str(path), time_unit=unit))
    assert max(row.at_ns for row in trace.rows()) == survey.span_ns
    return survey, facts(trace, survey), doubts(trace, survey)


@pytest.mark.parametrize("step", [1, 0.5])
def test_a_trace_in_seconds_is_not_read_as_milliseconds(tmp_path: Path, step: float) -> None:
    path = mooncake(tmp_path, [step * number for number in range(60)])
    survey, said, warnings = found(path)
    assert survey.span_ns == step * 59 * 10**9
    assert (said["time_unit"], said["time_unit_from"]) == ("s", "detected")
    assert len(warnings) == 1
    assert "taken for s" in warnings[0]


@pytest.mark.parametrize(
    ("times", "prompt"),
    [
        ([3000 * (number // 10) for number in range(60)], 12_000),  # as Mooncake's own
        (list(range(60)), 100),  # a burst of short prompts
        ([number // 20 for number in range(60)], 12_000),  # all but at once
        ([0, 1, 2], 12_000),  # too few to tell
        ([0] * 60, 12_000),
        ([number / 5 for number in range(60_000)], 3000),  # 5,000/s for 12 s: a large cluster
    ],
)
def test_a_trace_in_milliseconds_is_never_taken_for_one_in_seconds(
    tmp_path: Path, times: list[int], prompt: int
) -> None:
    survey, said, _ = found(mooncake(tmp_path, times, prompt))
    assert (said["time_unit"], said["time_unit_from"]) == ("ms", "format")
    assert survey.span_ns == (times[-1] - times[0]) * 10**6


def test_an_unlikely_pace_is_said_and_kept(tmp_path: Path) -> None:
    _, said, warnings = found(mooncake(tmp_path, [number / 2 for number in range(60)], 100))
    assert (said["time_unit"], said["time_unit_from"]) == ("ms", "format")
    assert len(warnings) == 1
    assert "may be in another unit" in warnings[0]
    assert "--trace-time-unit" in warnings[0]


@pytest.mark.parametrize("unit", list(TimeUnit))
def test_the_unit_that_is_asked_for_is_taken(tmp_path: Path, unit: TimeUnit) -> None:
    path = mooncake(tmp_path, [7 * number for number in range(60)])
    survey, said, warnings = found(path, unit.value)
    assert survey.span_ns == 7 * 59 * unit.ns
    assert (said["time_unit"], said["time_unit_from"], warnings) == (unit.value, "option", ())


@pytest.mark.parametrize(
    "name",
    ["mooncake_sample.jsonl", "qwen_sample.jsonl", "splitwise_sample.csv", "burstgpt_sample.csv",
     "mooncake_sample.json", "mooncake_sample.csv", "requests_sample.csv",
     "requests_ms_sample.csv", "five_columns_sample.txt",
     "burstgpt3_sample.csv"],
)  # fmt: skip
def test_a_sample_keeps_the_unit_of_its_format_without_a_doubt(name: str) -> None:
    _, said, warnings = found(Path("datasets") / name)
    assert said["time_unit_from"] == "format"
    assert not any("unit" in warning for warning in warnings)
    _, other, _ = found(Path("datasets") / name, "us")
    assert other["time_unit"] == "us"


@pytest.mark.parametrize(
    ("name", "unidentified"),
    [("azure_sample.csv", True), ("splitwise_sample.csv", True), ("mooncake_sample.jsonl", False),
     ("burstgpt3_sample.csv", False), ("sharegpt_sample.json", False), ("msr_sample.csv", False)],
)  # fmt: skip
def test_that_no_row_can_share_anything_is_said(name: str, unidentified: bool) -> None:
    survey, said, warnings = found(Path("datasets") / name)
    assert (said["unidentified_rows"] == survey.rows) is unidentified
    assert any("nothing can be found again" in warning for warning in warnings) is unidentified
    trace = open_trace(f"datasets/{name}")
    assert not any("again" in warning for warning in doubts(trace, survey, shares=True))
    refuse_doubts(trace, survey, shares=True)
    with pytest.raises(TraceError, match="strict_trace") if unidentified else nullcontext():
        refuse_doubts(trace, survey)


@pytest.mark.parametrize("command", ["lab", "sim"])
def test_what_is_warned_of_is_refused_by_an_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as it is not given, there is a warning."""
    words = {
        "lab": ["datasets/azure_sample.csv", "--strict-trace"],
        "sim": ["single-node", "--preset", "smoke", "--set",
                "workload.trace=datasets/azure_sample.csv", "--set", "workload.strict_trace=true"],
    }[command]  # fmt: skip
    assert main([command, *words]) == 2
    error = capsys.readouterr().err
    assert "nothing can be found again" in error
    assert "leave it out" in error


@pytest.mark.parametrize(("last_ms", "is_told"), [(86_400_000, False), (1_732_700_000_000, True)])
def test_a_gap_that_no_window_outlasts_is_told_of(
    tmp_path: Path, last_ms: int, is_told: bool
) -> None:
    """One row since 1970 among rows since the trace's beginning: the replay would wait for it."""
    survey, _, warnings = found(mooncake(tmp_path, [0, 0, last_ms]), "ms")
    assert survey.longest_gap_ns == last_ms * 10**6
    assert any("20,054.4 days lie between two of its rows" in text for text in warnings) is is_told


@pytest.mark.parametrize(("back", "is_told"), [(1, False), (3, True)])
def test_rows_that_are_not_sorted_are_told_of(tmp_path: Path, back: int, is_told: bool) -> None:
    times = [3000 * number for number in range(200)]
    for place in range(1, back + 1):
        times[20 * place], times[20 * place + 1] = times[20 * place + 1], times[20 * place]
    _, _, warnings = found(mooncake(tmp_path, times))
    assert any("sort the rows by their time" in warning for warning in warnings) is is_told


def test_times_that_have_a_unit_of_their_own_keep_it() -> None:
    assert found(Path("datasets/azure_sample.csv"))[1]["time_unit"] is None
    with pytest.raises(TraceError, match="--trace-time-unit"):
        open_trace("datasets/azure_sample.csv", time_unit="ms")


def test_a_trace_of_decades_is_one_in_a_finer_unit() -> None:
    week = TracePace(rows=600_000, tokens=600_000_000, span_s=7 * 86_400 * 1000.0)
    assert chosen_unit(S, week).unit is MS
    slow = TracePace(rows=30, tokens=30_000, span_s=90_000)
    assert (chosen_unit(S, slow).unit, bool(chosen_unit(S, slow).doubt)) == (S, True)
