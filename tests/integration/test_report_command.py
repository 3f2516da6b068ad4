"""`kv-cache.py report`, and the page that a run leaves in its directory."""

import json
from pathlib import Path

import pytest

from kv_cache.cli import main
from tests import cli, reports

SIMULATED = ("--virtual-time", "--duration=3", "--results-dir=runs")


def written(path: Path, old: str = "", new: str = "") -> Path:
    path.write_text(json.dumps(reports.run(12)).replace(old, new))
    return path


def test_a_run_leaves_a_page_beside_its_result_which_report_makes_again(tmp_path: Path) -> None:
    ran = cli.small(tmp_path, *SIMULATED)
    (directory,) = (tmp_path / "runs").iterdir()
    page = directory / "report.html"
    assert f"report  runs/{directory.name}/report.html" in ran.out
    assert "Virtual time: models say this, nothing was measured." in page.read_text()
    before = page.read_bytes()
    page.unlink()
    again = cli.run(tmp_path, "report", f"runs/{directory.name}")
    assert (again.code, again.err) == (0, "")
    assert page.read_bytes() == before


def test_several_need_a_place_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [str(written(tmp_path / f"{name}.json")) for name in "ab"]
    assert main(["report", *results]) == 2
    assert "say where it goes: -o FILE.html" in capsys.readouterr().err
    target = tmp_path / "both.html"
    assert main(["report", *results, "--format", "html", "-o", str(target)]) == 0
    assert "Side by side" in target.read_text()
    assert main(["report", *results, "-o", str(target)]) == 0  # its own page is replaced


def test_a_file_of_others_and_the_result_itself_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = written(tmp_path / "R.json")
    other = tmp_path / "R.html"
    other.write_text("<!doctype html>\n<p>mine")
    assert main(["report", str(result)]) == 2
    assert "did not write" in capsys.readouterr().err
    assert other.read_text().endswith("mine")
    assert main(["report", str(result), "--format", "html", "-o", str(result)]) == 2
    assert "did not write" in capsys.readouterr().err
    assert main(["report", str(result), "--format", "html", "-o", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_a_result_that_was_changed_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = written(tmp_path / "R.json", '"window_s": 10.0', '"window_s": 11.0')
    assert main(["report", str(result)]) == 2
    assert "was changed after its run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [result]


def test_what_is_no_result_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["report", str(tmp_path / "x.json")]) == 2
    assert "is JSON but not a result of this program" in capsys.readouterr().err


def test_ranks_have_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "ranks.json"
    result.write_text(json.dumps(reports.ranks()))
    assert main(["report", str(result)]) == 0
    assert "Run of several ranks" in (tmp_path / "ranks.html").read_text()
    result.write_text(result.read_text().replace('"expected": 3', '"expected": 2'))
    capsys.readouterr()
    assert main(["report", str(result)]) == 2
    assert "was changed after its run" in capsys.readouterr().err


def test_the_result_in_the_docs_is_as_its_run_left_it(tmp_path: Path) -> None:
    result = cli.ROOT / "docs" / "reports" / "result.json"
    target = tmp_path / "again.html"
    assert main(["report", str(result), "-o", str(target)]) == 0
    assert target.stat().st_size < 1_000_000
    assert (result.parent / "report.html").stat().st_size < 1_000_000
