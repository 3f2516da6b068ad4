"""`report`: the forms, and Markdown above all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main as program
from kv_cache.cli.report import main
from kv_cache.core.errors import ConfigError, PlaceError, UsageError
from kv_cache.view.forms import DEFAULT, FORMATS
from tests.trials import GB, of, result, series, windows

DATA = Path(__file__).parents[1] / "data"


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def told(capsysbinary: pytest.CaptureFixture[bytes], *args: object) -> str:
    """What is printed; as Markdown where no file is named."""
    form = () if "--output" in args else ("--format", "markdown")
    assert main([*map(str, args), *form]) == 0
    return capsysbinary.readouterr().out.decode()


def cells(text: str, first: str) -> list[str]:
    """The cells of the row that begins so."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def steady(rate: float, seed: int = 1, **more: Any) -> dict[str, Any]:
    rows = windows([rate * (1 + 0.01 * (-1) ** k) for k in range(30)])
    return result(seed, rate, series=series(rows), **more)


def test_one_result_has_its_verdict_first(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = told(capsysbinary, write(tmp_path / "R.json", result(1, verdict="suspect")))
    lines = text.splitlines()
    assert lines[0].startswith("<!-- kv-cache report ")
    assert lines[2] == "# Run"
    assert lines[4].startswith("**suspect** The run finished after 10 s:")
    assert lines[6] == "- V9 clock: it jumped"
    assert cells(text, "Storage read") == ["Storage read", "0.9313 GiB/s (0 GiB)"]
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text


def test_single_runs_stand_side_by_side_with_intervals(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    one = write(tmp_path / "a.json", steady(GB))
    other = write(tmp_path / "b.json", steady(2 * GB))
    text = told(capsysbinary, one, other)
    metric, word, *values, low, high = cells(text, "storage read, GiB/s")
    assert (metric, word, values) == ("storage read, GiB/s", "better", ["0.9313", "1.863", "2"])
    assert float(low) < 2 < float(high)
    assert "cannot be told from one run each" in text


def test_trials_have_means_with_intervals(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    rates = (1.0, 1.02, 0.98)
    document = of([result(seed, GB * rate) for seed, rate in enumerate(rates)])
    text = told(capsysbinary, write(tmp_path / "T.json", document))
    assert "3 of 3 trials finished" in text
    median, mean, low, high, cv = map(float, cells(text, "storage read, GiB/s")[1:])
    assert (median, mean, cv) == (0.9313, 0.9312, 2.0)
    assert low < mean < high


def test_trials_are_compared_by_their_pairs(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def trials(factor: float) -> dict[str, Any]:
        rates = (1.0, 1.02, 0.98)
        return of([result(seed, GB * factor * rate) for seed, rate in enumerate(rates)])

    one, other = (write(tmp_path / f"{f}.json", trials(f)) for f in (1, 2))
    assert cells(told(capsysbinary, one, other), "storage read, GiB/s")[4:] == ["2", "2", "2"]


def test_results_that_are_not_comparable_have_no_ratios(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    one, other = write(tmp_path / "a.json", result(1)), write(tmp_path / "b.json", result(2))
    text = told(capsysbinary, one, other)
    assert len(cells(text, "storage read, GiB/s")) == 3
    assert "No ratio is given: " in text
    assert "its schedule is" in text


def test_text_out_of_a_file_stays_in_its_cell(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    nasty = {"hostname": "a|b\n# <script>[x](y) `c` \x1b[31m", "cpu": {"model": "x" * 1000}}
    text = told(capsysbinary, write(tmp_path / "R.json", result(1, environment=nasty)))
    [line] = [line for line in text.splitlines() if line.startswith("| machine |")]
    assert line.startswith("| machine | a\\|b \\# \\<script\\>\\[x\\](y) \\`c\\`  \\[31m, xxx")
    assert line.endswith("x... |")


def test_only_options_that_are_not_at_their_default_are_listed(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    config = {"run": {"num_users": 7, "drain_s": 10.0}, "output": {"output": "R.json"}}
    text = told(capsysbinary, write(tmp_path / "R.json", result(1, config=config)))
    assert cells(text, "run.num\\_users") == ["run.num\\_users", "7", "100"]
    assert "drain" not in text
    assert "output.output" not in text


def test_virtual_time_is_said_before_its_numbers(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    simulated = result(1, contains_performance=False, driver="virtual-time")
    text = told(capsysbinary, write(tmp_path / "R.json", simulated))
    assert text.index("nothing was measured") < text.index("Storage read")


def test_a_run_that_timed_nothing_has_no_numbers(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    config = {"output": {"io_trace_log": "t.csv"}}
    text = told(capsysbinary, write(tmp_path / "R.json", result(1, config=config)))
    assert "GiB/s" not in text


# --- forms and files ---------------------------------------------------------------------------

FILES = [
    (name, suffix)
    for name, form in FORMATS.items()
    for suffix in form.suffixes
    if name not in ("hdr", "html")  # which want histograms: test_hdr.py, test_report_command.py
]


@pytest.mark.parametrize(("name", "suffix"), FILES)
def test_a_form_is_chosen_by_the_files_suffix_and_replaces_its_own(
    name: str, suffix: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    one, target = write(tmp_path / "R.json", result(1)), tmp_path / f"out{suffix}"
    assert told(capsysbinary, one, "--output", target) == f"{name}  {target}\n"
    before = target.read_bytes()
    told(capsysbinary, one, "--output", target)
    assert target.read_bytes() == before
    target.write_bytes(b"somebody's")
    with pytest.raises(PlaceError, match="did not write"):
        main([str(one), "--output", str(target)])
    assert target.read_bytes() == b"somebody's"


def test_the_default_form_can_be_printed_or_has_a_place() -> None:
    assert FORMATS[DEFAULT].printable or FORMATS[DEFAULT].beside


BAD: dict[str, tuple[Sequence[str], str]] = {
    "a form without a file": (["R.json", "--format", "xlsx"], "name a file with --output"),
    "an unknown suffix": (["R.json", "--output", "x.pdf"], "--format"),
    "trials as rows": (["T.json", "--format", "csv"], "trials' own results"),
    "no results": ([], "RESULT"),
    "a missing result": (["nix.json"], "cannot be read"),
    "a result that was changed": (["C.json"], "was changed"),
    "no result": (["N.json"], "not a result of this program"),
    "a directory": (["R.json", "--format", "csv", "--output", "."], "is a directory"),
    "the result itself": (["R.json", "--format", "csv", "--output", "R.json"], "did not write"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "R.json", result(1))
    write(tmp_path / "T.json", of([result(1), result(2)]))
    changed = result(1)
    changed["kv_cache"]["window_s"] = 5.0
    write(tmp_path / "C.json", changed)
    write(tmp_path / "N.json", {"a": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    args, says = BAD[case]
    with pytest.raises(UsageError, match=says) as error:
        main(args)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, UsageError | ConfigError)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_more_results_than_labels_are_refused(tmp_path: Path) -> None:
    one = str(write(tmp_path / "R.json", result(1)))
    with pytest.raises(UsageError, match="up to 26"):
        main([*[one] * 27, "--format", "markdown"])


@pytest.mark.parametrize("schema", [7, 8])
def test_a_result_of_an_earlier_schema_is_shown_compared_and_drawn_and_not_verified(
    schema: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(DATA / f"result_{schema}.json")
    for form in ("html", "md", "csv"):
        assert program(["report", old, "-o", str(tmp_path / f"r.{form}")]) == 0
    shown = (tmp_path / "r.md").read_text()
    assert f"schema kv-cache-result/{schema}" not in shown
    for row in json.loads(Path(old).read_bytes())["kv_cache"]["passport"]["rules"]:
        assert row["says"][:30] in shown
    assert program(["compare", old, old]) == 0
    assert program(["plot", old, "-o", str(tmp_path / "r.svg")]) == 0
    capsys.readouterr()
    assert program(["verify", old]) == 2
    said = capsys.readouterr().err
    assert f"is of schema 'kv-cache-result/{schema}'" in said
    assert "verify it with the version that wrote it" in said


def test_a_search_of_an_earlier_schema_shows_what_each_slo_was_judged_by(tmp_path: Path) -> None:
    old = DATA / "capacity_1.json"
    assert program(["report", str(old), "-o", str(tmp_path / "r.md")]) == 0
    shown = (tmp_path / "r.md").read_text().replace("\\", "")
    assert "| interactive:p95<50ms | 8 | 1 | 20 | 100 |" in shown
    assert program(["verify", str(old)]) == 0
