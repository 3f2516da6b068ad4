"""The document of a sweep, from results made by hand."""

import csv
import io
import math
import random
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.sweep_document import (
    best,
    cell_row,
    run_row,
    sweep_csv,
    sweep_document,
    sweep_text,
)
from kv_cache.result.chain import check
from kv_cache.result.trials import precision_part
from kv_cache.view.run import VIRTUAL
from tests.trials import GB, result

READ = "storage.read.bytes_per_second"


def runs(rates: list[float], **changed: Any) -> list[dict[str, Any]]:
    return [
        run_row(
            trial, trial, f"c/trial{trial}", exit_code=0, sha256=f"{trial:064x}",
            document=result(trial, rate, **changed),
        )
        for trial, rate in enumerate(rates, start=1)
    ]  # fmt: skip


def cell(number: int, rates: list[float], **changed: Any) -> dict[str, Any]:
    return cell_row(number, f"cell-{number:03}", {"io.threads": number}, runs(rates, **changed))


def document(cells: list[dict[str, Any]], repeat: int = 3, real: bool = False) -> dict[str, Any]:
    return sweep_document(
        {"vary": {"io.threads": [1, 2]}}, cells, source="g.yaml", paths=["io.threads"], seed=7,
        repeat=repeat, digest="0" * 64, workers=1, real=real, interrupted=None, notes=[],
    )  # fmt: skip


def ranked(cells: list[dict[str, Any]]) -> dict[str, int]:
    return best(cells, turns=None)


def slowing(seed: int, turns: int) -> list[dict[str, Any]]:
    """Two cells that took turns on a device that becomes a third slower meanwhile."""
    rng = random.Random(seed)
    logs = [-0.4 * k / turns + rng.gauss(0, 0.04) for k in range(turns)]
    rates = [GB * math.exp(log) for log in logs]
    return [cell(1, rates[::2]), cell(2, rates[1::2])]


def test_a_device_that_becomes_slower_makes_no_cell_better() -> None:
    """By pairs the second of two, which always came later, was the slower one in 17 % of draws."""
    documents = (document(slowing(seed, 16), repeat=8, real=True) for seed in range(40))
    cells = [own["kv_cache"]["cells"][1] for own in documents]
    ends = [each["against_first"][READ]["interval"] for each in cells]
    assert sum(not each["low"] <= 1 <= each["high"] for each in ends) <= 5
    assert sum(READ in each["best"] for each in cells) <= 4


SLOW, FAST = [GB, 1.01 * GB, 0.99 * GB], [2 * GB, 2.02 * GB, 1.98 * GB]


def test_a_cell_is_the_best_only_where_that_is_more_than_chance() -> None:
    assert ranked([cell(1, SLOW), cell(2, FAST)])[READ] == 2
    assert READ not in ranked([cell(1, SLOW), cell(2, [2 * GB, 0.5 * GB, GB])])
    assert ranked([cell(1, [GB]), cell(2, [2 * GB])]) == {}
    near = [1.2 * GB, 1.25 * GB, 1.22 * GB]
    assert READ in ranked([cell(1, SLOW), cell(2, near)])
    others = [cell(number, SLOW[::-1] if number % 2 else SLOW) for number in range(3, 11)]
    assert READ not in ranked([cell(1, SLOW), cell(2, near), *others]), "of 45 pairs some differ"


@pytest.mark.parametrize("changed", [{"verdict": "invalid"}, {"status": "interrupted"}])
def test_an_invalid_or_unfinished_cell_has_no_rank(changed: dict[str, str]) -> None:
    cells = [cell(1, SLOW), cell(2, [1.5 * rate for rate in SLOW]), cell(3, FAST, **changed)]
    assert ranked(cells)[READ] == 2


def test_cells_in_virtual_time_are_ranked_among_each_other() -> None:
    """A study of policies in virtual time had no best cell, as nothing in it was measured."""

    def modelled(number: int, rates: list[float], **changed: Any) -> dict[str, Any]:
        made = cell(number, rates, verdict="invalid")
        for run in made["runs"]:
            run |= {"reasons": ["V26 real I/O: virtual time"], **changed}
        return made

    fast = [1.5 * rate for rate in SLOW]
    cells = [modelled(1, SLOW), modelled(2, fast)]
    assert ranked(cells)[READ] == 2
    text = sweep_text(document(cells), Path("D"))
    assert "Better than every other cell: cell 2" in text
    assert VIRTUAL in text
    assert READ not in ranked([cells[0], modelled(2, fast, reasons=["V26 x", "V1 y"])])
    assert READ not in ranked([cells[0], modelled(2, fast, status="failed")])
    assert READ not in ranked([*cells, cell(3, SLOW)]), "one was measured, and is no match of them"


def test_runs_of_the_same_seed_are_held_against_each_other() -> None:
    """Each run is twice as fast as its pair: the ratio is sure although the runs differ."""
    slow = [GB, 3 * GB, 9 * GB]
    own = document([cell(1, slow), cell(2, [2 * rate for rate in slow])])["kv_cache"]
    ratio = own["cells"][1]["against_first"][READ]
    assert (ratio["ratio"], ratio["pairs"]) == (pytest.approx(2), 3)
    assert ratio["interval"] == {"low": pytest.approx(2), "high": pytest.approx(2)}
    assert ranked(own["cells"])[READ] == 2


def test_a_run_that_failed_is_a_row_that_says_so() -> None:
    rows = [*runs(FAST[:2]), run_row(3, 3, "c/trial3", exit_code=2, message="no room")]
    made = document([cell(1, SLOW), cell_row(2, "cell-002", {"io.threads": 2}, rows)])
    own = made["kv_cache"]
    assert (own["runs"], own["finished"], own["failed"]) == (6, 5, 1)
    assert [c["verdict"] for c in own["cells"]] == ["valid", "invalid"]
    assert len(own["cells"][1]["metrics"][READ]["values"]) == 2
    text = sweep_text(made, Path("D"))
    assert "! cell 2, run 3: failed, exit code 2: no room (c/trial3/log.txt)" in text


def test_the_table_says_why_nothing_is_called_the_best() -> None:
    once = document([cell(1, [GB]), cell(2, [2 * GB])], repeat=1)
    assert "3 runs each are the least" in sweep_text(once, Path("D"))
    invalid = document([cell(1, SLOW, verdict="invalid"), cell(2, FAST, verdict="invalid")])
    assert "have no rank" in sweep_text(invalid, Path("D"))
    sure = sweep_text(document([cell(1, SLOW), cell(2, FAST)]), Path("D"))
    assert "* better than every other cell" in sure
    assert "1.863*" in sure


def test_a_row_of_the_csv_is_a_cell() -> None:
    made = document([cell(1, SLOW), cell(2, FAST)])
    rows = list(csv.DictReader(io.StringIO(sweep_csv(made).decode())))
    assert [row["io.threads"] for row in rows] == ["1", "2"]
    assert float(rows[1][f"{READ} [bytes/s]"]) == pytest.approx(2 * GB, rel=1e-4)
    assert float(rows[1][f"{READ} [bytes/s] / first"]) == pytest.approx(2)
    assert {row["verdict"] for row in rows} == {"valid"}


def test_a_sweep_says_by_which_rules_a_cell_is_not_valid() -> None:
    """Its table said `suspect`, and why was nowhere but in JSON."""
    clock, timers = "V9 clock: it jumped", "V25 timers: 9 ms late"
    made = document([cell(1, SLOW, verdict="suspect"), cell(2, FAST), cell(3, SLOW)])
    cells = made["kv_cache"]["cells"]
    cells[0]["runs"][1]["reasons"] = [f"{clock} twice", timers]
    cells[2]["verdict"], cells[2]["runs"][2]["reasons"] = "suspect", [f"{clock} back"]
    text = sweep_text(made, Path("D"))
    assert "suspect (V9, V25)" in text
    assert f"  ! cells 1, 3: {clock} (cell 1, run 1; 4 runs in all)" in text
    assert f"  ! cell 1: {timers} (run 2)" in text
    rows = list(csv.DictReader(io.StringIO(sweep_csv(made).decode())))
    assert [row["rules"] for row in rows] == ["V9 V25", "", "V9"]


def test_a_cell_says_how_many_of_its_runs_became_as_sure_as_was_wanted() -> None:
    """A run that --duration cut off at ±40 % stood in its cell as one that reached its ±5 %."""
    cells = [cell(1, SLOW), cell(2, FAST), cell(3, FAST)]
    wanted = {"figure": "headline", "share": 0.05, "bound_s": 60}
    for number, widths in ((1, [0.04, 0.4, None]), (2, [0.04, 0.03, 0.02])):
        for row, half in zip(cells[number - 1]["runs"], widths, strict=True):
            reached = half is not None and half <= 0.05
            section = {"precision": {**wanted, "half_width": half, "reached": reached}}
            row |= precision_part(section)
    assert precision_part({"precision": None}) == {}
    made = document(cells)
    text = sweep_text(made, Path("D"))
    assert (
        "! cell 1: wanted was ±5 % of the headline in each run: 1 of 3 reached it (±4 %, ±40 %, "
        "no interval)" in text
    )
    assert "as sure as wanted" in text
    assert "cell 2: wanted" not in text
    rows = list(csv.DictReader(io.StringIO(sweep_csv(made).decode())))
    assert [row["as sure as wanted"] for row in rows] == ["1", "3", ""]
    assert "as sure as wanted" not in sweep_text(document([cell(1, SLOW)]), Path("D"))


def test_a_cell_whose_runs_were_in_several_places_says_so() -> None:
    """A sweep that goes on after another drive was mounted has cells of two drives."""
    cells = [cell(1, SLOW), cell(2, FAST)]
    cells[1]["runs"][2]["place"] = "host there, /dev/sdb"
    text = sweep_text(document(cells), Path("D"))
    wanted = (
        "its runs were not all in one place: host here (run 1, 2); host there, /dev/sdb (run 3)"
    )
    assert f"  ! cell 2: {wanted}" in text
    assert "cell 1: its runs" not in text


def test_the_document_is_sealed() -> None:
    made = document([cell(1, SLOW), cell(2, FAST)])
    assert check(made, {}) == []
    made["kv_cache"]["cells"][0]["verdict"] = "invalid"
    assert [change.link for change in check(made, {})] == ["measurements"]
