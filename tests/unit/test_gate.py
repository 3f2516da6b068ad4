"""An exit code by what a result says: `--fail-on`."""

from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import compare
from kv_cache.config.sections import FAIL_ON
from kv_cache.core.exits import Exit
from kv_cache.result.gate import broken
from tests.cli import small
from tests.passports import names

MISSED = {"interactive": {"slos": {"p95": {"target_ms": 50.0, "actual_ms": 61.0, "met": False}}}}
KEPT = {"interactive": {"slos": {"p95": {"target_ms": 50.0, "actual_ms": 6.0, "met": True}}}}
TOO_FEW = {"batch": {"slos": {"p99": {"target_ms": 50.0, "actual_ms": None, "met": None}}}}


def run(verdict: str, measured: Any = KEPT) -> dict[str, Any]:
    return {"passport": {"verdict": verdict}, "measured": measured}


@pytest.mark.parametrize(
    ("section", "levels"),
    [
        (run("valid"), []),
        (run("valid", TOO_FEW), []),
        (run("suspect"), ["suspect", "slo"]),
        (run("invalid"), ["invalid", "suspect", "slo"]),
        (run("valid", MISSED), ["slo"]),
        ({"verdict": "valid", "answer": {"load": 40.0}}, []),
        ({"verdict": "valid", "answer": {"load": 0}}, ["slo"]),
        ({"verdict": "suspect", "answer": {"load": 40.0}}, ["suspect", "slo"]),
    ],
)
def test_a_level_demands_all_below_it(section: dict[str, Any], levels: list[str]) -> None:
    assert [level for level in FAIL_ON if broken(section, level)] == levels
    assert broken(section, None) is None


def test_the_slo_that_was_missed_is_named() -> None:
    assert broken(run("valid", MISSED), "slo") == "interactive missed its SLO at p95 (50.0 ms)"


def test_a_run_that_does_not_hold_what_was_demanded_is_written_and_exits_with_4(
    tmp_path: Path,
) -> None:
    ran = small(tmp_path, "--virtual-time", "--fail-on=invalid")
    assert ran.code == Exit.GATE
    names(ran.own, V26="invalid")
    assert ran.err.splitlines()[-1] == "kv-cache: --fail-on invalid: the verdict is invalid"
    assert small(tmp_path, "--virtual-time").code == Exit.DONE


def test_a_comparison_without_a_worse_number_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path, "--virtual-time", "--output=R.json")
    same = str(tmp_path / "R.json")
    assert compare.main([same, same, "--fail-on=worse"]) == Exit.DONE
    assert "other numbers 0 differ" in capsys.readouterr().out


def test_a_comparison_whose_headline_nobody_can_judge_is_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of B storage moved nothing at all, to which there is no ratio."""
    base, cached = "--cpu-mem-gb=0", "--cpu-mem-gb=64"
    small(tmp_path, "--virtual-time", base, "--output=A.json")
    small(tmp_path, "--virtual-time", cached, "--output=B.json")
    both = [str(tmp_path / "A.json"), str(tmp_path / "B.json")]
    assert compare.main(both) == Exit.DONE
    assert compare.main([*both, "--fail-on=worse"]) == Exit.GATE
    (said,) = capsys.readouterr().err.splitlines()
    assert "--fail-on worse: whether B is worse in storage.bytes_per_second is not known" in said
