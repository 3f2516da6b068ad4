"""Where results go: into `results/` or the place that was named, once, and never beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from tests.cli import LIGHT, SMALL, alone, prepare

FAST = [*SMALL, "--virtual-time", "--duration=2", "--no-progress"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


def files(place: Path) -> list[str]:
    """What was written, without its times."""
    found = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
    return sorted(str(path) for path in found if path.name != "small.yaml")


def document(path: Path) -> Any:
    return json.loads(path.read_bytes())["kv_cache"]


def test_a_result_without_a_place_goes_into_results_and_nowhere_else(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *FAST]) == 0
    (result,) = files(place)
    assert Path(result).match("results/benchmark_results_*.json")
    assert f"result  {result}" in capsys.readouterr().out


def test_a_result_with_a_place_goes_there_alone(place: Path) -> None:
    assert main(["run", *FAST, "--output=R.json"]) == 0
    assert files(place) == ["R.json"]


def test_a_directory_of_results_holds_the_only_copy(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *FAST, "--results-dir=runs"]) == 0
    (own,) = (place / "runs").iterdir()
    assert files(place) == [
        f"runs/{own.name}/{name}"
        for name in ("config.yaml", "environment.json", "report.html", "result.json")
    ]
    assert f"result  runs/{own.name}/result.json" in capsys.readouterr().out
    assert main(["verify", str(own)]) == 0


def test_what_was_put_into_results_by_itself_is_no_stranger_there(place: Path) -> None:
    assert main(["run", *FAST]) == 0
    assert main(["run", *FAST, "--results-dir=results"]) == 0
    (place / "results" / "thesis.doc").touch()
    assert main(["run", *FAST]) == 0  # nothing of it is touched
    assert main(["run", *FAST, "--results-dir=results"]) == 2


def test_trials_in_a_directory_of_results_name_their_only_copies(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *FAST, "--results-dir=runs", "--trials=2"]) == 0
    (whole,) = (place / "runs").glob("benchmark_results_*.json")
    named = [row["file"] for row in document(whole)["trials"]]
    assert sorted(f"runs/{name}" for name in named) == [
        name for name in files(place) if name.endswith("/result.json")
    ]
    assert [path for path in files(place) if path.endswith(".json") and "/run-" not in path] == [
        f"runs/{whole.name}"
    ]
    capsys.readouterr()
    assert main(["verify", str(whole)]) == 0
    assert "2 of 2 that it names are there" in capsys.readouterr().out


def test_ranks_in_a_directory_of_results_write_nothing_beside_it(place: Path) -> None:
    words = [*SMALL, "--cache-dir=cache", "--duration=1", *LIGHT]
    ran = alone(place, *words, "--clients=2", "--results-dir=runs", "--no-progress")
    assert ran.code == 0, ran.err
    results = [name for name in files(place) if name.endswith(".json") and "environ" not in name]
    assert len(results) == 3
    assert Path(results[0]).match("runs/benchmark_results_*.json")
    for rank, name in enumerate(results[1:]):
        assert Path(name).match(f"runs/rank_{rank}/run-*/result.json")


def test_a_precondition_is_told_in_results_too(place: Path) -> None:
    words = [*SMALL, "--storage-capacity-gb=0.01", "--cache-dir=cache", "--max-rounds=0"]
    assert main(["precondition", *words, "--no-progress"]) == 0
    assert all(Path(name).match("results/precondition_*") for name in files(place))
    assert files(place)


def test_a_place_that_cannot_be_made_is_refused_before_the_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "results").touch()
    assert main(["run", *FAST]) == 2
    assert "there is no directory" in capsys.readouterr().err
