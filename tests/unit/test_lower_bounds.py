"""A percentile that is only a lower bound is listed beside the others, and shown with a sign."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.sweep_document import (
    against,
    best,
    cell_row,
    run_row,
    sweep_csv,
    sweep_document,
)
from kv_cache.core.units import AT_LEAST, AT_MOST, MISSING, NS_PER_MS
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.summary import latency_ms, reference_ms, slos_met
from kv_cache.result.chain import seal
from kv_cache.result.comparison import Finding, Row, compare, input_of
from kv_cache.result.metrics import METRICS
from kv_cache.result.published import Percentiles
from kv_cache.result.run import converted
from kv_cache.view.comparison import comparison_view
from kv_cache.view.latency import ms_text, percentile_cell, percentile_cells, percentile_figure
from kv_cache.view.parts import Figure
from kv_cache.view.sweep import sweep_view
from kv_cache.view.terminal import terminal
from kv_cache.view.trials import trials_view
from tests.trials import GB, LATENCIES, NOTHING, of, result


def hung() -> Histogram:
    """A thousand reads of 1 to 1.5 ms, and sixty that the device had not answered for 5 s."""
    histogram = Histogram()
    for number in range(1000):
        histogram.add(NS_PER_MS + 500 * number)
    for _ in range(60):
        histogram.add_in_flight(5000 * NS_PER_MS)
    return histogram


def test_lower_bounds_are_listed_and_the_reference_has_the_same_numbers() -> None:
    told = latency_ms(hung())
    assert told["at_least"] == ["p95", "p99"]
    assert (told["p95"], told["p99"]) == (5000, 5000)
    assert told["p50"] < 1.5
    assert told["p999"] is None
    reference = reference_ms(hung())
    assert reference["p99"] == reference["p9999"] == 5000
    assert "at_least" not in reference
    young = hung()
    young.in_flight = None
    assert "at_least" not in latency_ms(young)


def test_people_see_a_sign_before_a_lower_bound() -> None:
    row: dict[str, Any] = {"device_ms": latency_ms(hung()), "operations": 1000}
    latency = converted(row["device_ms"], Percentiles, "")
    assert ms_text(latency, "p99") == percentile_cell(latency, "p99") == f"{AT_LEAST}5,000"
    assert not ms_text(latency, "p50").startswith(AT_LEAST)
    assert isinstance(percentile_cell(latency, "p50"), float)
    assert percentile_cells(hung(), (99, 99.99)) == [f"{AT_LEAST}5,000", None]
    own = {"tiers": {"storage": {"read": row}}}
    assert METRICS["storage.read.device_ms.p95"].at_least(own)
    assert not METRICS["storage.read.device_ms.p50"].at_least(own)


def test_a_line_of_percentiles_has_no_lower_bounds() -> None:
    figure = percentile_figure("Reads", [("one", hung())])
    assert figure is not None
    assert max(point.y for point in figure.lines[0].points) < 2 * NS_PER_MS
    assert "lower bounds" in figure.caption


READ_P95 = "storage.read.device_ms.p95"


def over(trial: int) -> dict[str, Any]:
    """The result of a trial whose p95 is at least 30 ms, which is above that of the others."""
    reads = {"operations": 1000, "bytes_per_second": GB}
    latency = {**LATENCIES, "p95": 30.0, "at_least": ["p95"]}
    writes = {"operations": 0, "bytes_per_second": 0.0, "device_ms": NOTHING}
    return result(
        trial, tiers={"storage": {"read": {**reads, "device_ms": latency}, "write": writes}}
    )


def compared(tmp_path: Path, a: dict[str, Any], b: dict[str, Any]) -> tuple[Row, str]:
    """Return the row of the p95, and its line on the screen."""
    inputs = [input_of(label, tmp_path / label, doc) for label, doc in (("A", a), ("B", b))]
    (row,) = (row for row in compare(inputs).rows if row.metric.name == READ_P95)
    lines = terminal(comparison_view(inputs)).splitlines()
    return row, next(line for line in lines if line.startswith("storage read device p95"))


def slow(trial: int) -> dict[str, Any]:
    """The result of a trial whose p95 is 60 ms, exactly."""
    reads = {"operations": 1000, "bytes_per_second": GB, "device_ms": {**LATENCIES, "p95": 60.0}}
    writes = {"operations": 0, "bytes_per_second": 0.0, "device_ms": NOTHING}
    return result(trial, tiers={"storage": {"read": reads, "write": writes}})


def test_a_ratio_of_a_lower_bound_is_one_itself_and_has_no_interval(tmp_path: Path) -> None:
    fast = [result(1), result(2)]
    for a, b in ((fast[0], over(1)), (of(fast), of([over(1), over(2)]))):
        row, line = compared(tmp_path, a, b)
        assert row.ratio == pytest.approx(30 / 8)
        assert row.interval is None
        assert row.why_none is not None
        assert "lower bound" in row.why_none
        assert f"{AT_LEAST}30 " in line
        assert f"{AT_LEAST}3.75 " in line
    assert row.finding is Finding.DIFFERS, "at least so much worse is worse"
    row, line = compared(tmp_path, of([over(1), over(2)]), of(fast))
    assert f"{AT_MOST}0.2667 " in line
    assert row.better


def test_a_lower_bound_is_not_less_than_anything(tmp_path: Path) -> None:
    """It may be as large as the other, or larger."""
    exact, least = of([slow(1), slow(2)]), of([over(1), over(2)])
    for a, b in ((exact, least), (least, exact), (least, least)):
        row, _ = compared(tmp_path, a, b)
        assert (row.ratio, row.interval, row.finding) == (None, None, Finding.NOT_JUDGED)


def test_numbers_side_by_side_have_the_sign_too(tmp_path: Path) -> None:
    other = {**over(1)["kv_cache"], "model": {"name": "Other 2B"}}
    documents = (over(1), seal({"kv_cache": other}, {}))
    inputs = [
        input_of(label, tmp_path / label, d) for label, d in zip("AB", documents, strict=True)
    ]
    (line,) = (
        line for line in terminal(comparison_view(inputs)).splitlines()
        if line.startswith("storage read device p95")
    )  # fmt: skip
    assert line.split()[-2:] == [f"{AT_LEAST}30", f"{AT_LEAST}30"]


def test_trials_of_which_one_has_a_lower_bound_have_one_and_no_interval() -> None:
    section = of([result(1), over(2), result(3)])["kv_cache"]
    numbers = section["metrics"][READ_P95]
    assert numbers["at_least"]
    assert numbers["interval"] is None
    assert numbers["coefficient_of_variation"] is None
    assert numbers["mean"] == pytest.approx((8 * 8 * 30) ** (1 / 3))
    assert "at_least" not in section["metrics"]["storage.read.device_ms.p50"]
    (line,) = (
        line for line in terminal(trials_view(section)).splitlines()
        if line.startswith("storage read device p95, ms")
    )  # fmt: skip
    assert line.split()[-5:] == [f"{AT_LEAST}8", f"{AT_LEAST}12.43", *[MISSING] * 3]


def test_no_cell_of_a_sweep_is_the_best_by_a_lower_bound() -> None:
    def cell(number: int, documents: list[dict[str, Any]]) -> dict[str, Any]:
        runs = [
            run_row(k, k, "d", exit_code=0, sha256="0" * 64, document=document)
            for k, document in enumerate(documents, start=1)
        ]
        return cell_row(number, f"cell-{number:03}", {"io.threads": number}, runs)

    cells = [
        cell(1, [over(k) for k in (1, 2, 3)]),
        cell(2, [slow(k) for k in (1, 2, 3)]),
    ]
    assert cells[0]["metrics"][READ_P95]["at_least"]
    assert READ_P95 not in best(cells, turns=None)
    assert READ_P95 not in against(cells[0], cells[1], turns=None)
    document = sweep_document(
        {"vary": {"io.threads": [1, 2]}}, cells, source="g.yaml", paths=["io.threads"], seed=7,
        repeat=3, digest="0" * 64, workers=1, real=False, interrupted=None, notes=[],
    )  # fmt: skip
    view = sweep_view(document["kv_cache"])
    assert f"{AT_LEAST}30" in terminal(view)
    (of_p95,) = (part for part in view.sections[0].parts if part.title == "Read p95")
    assert isinstance(of_p95, Figure)
    assert [point.y for point in of_p95.lines[0].points] == pytest.approx([60])
    document["kv_cache"]["cells"][1]["metrics"] = cells[0]["metrics"]
    titles = [part.title for part in sweep_view(document["kv_cache"]).sections[0].parts]
    assert "Read" in titles
    assert "Read p95" not in titles
    first, _ = csv.DictReader(io.StringIO(sweep_csv(document).decode()))
    assert first[f"{READ_P95} [ms]"] == ""


def test_who_waits_for_longer_than_was_promised_has_been_let_down() -> None:
    kept = slos_met(hung(), {"p95": 10.0})["p95"]
    assert (kept["within"], kept["requests"]) == (1000, 1060)
