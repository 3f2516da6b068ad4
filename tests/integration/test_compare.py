"""`kv-cache.py compare`: real results, and what stays on the disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.result.chain import file_digest, seal
from kv_cache.result.trials import aggregate
from tests.cli import as_a_process, small
from tests.passports import names
from tests.trials import GB, series, windows


def run(cwd: Path, *args: str) -> tuple[int, str, str]:
    with as_a_process(cwd) as printed:
        code = main(["compare", *args])
    return code, printed[0], printed[1]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two real runs that were asked for the same."""
    directory = tmp_path_factory.mktemp("runs")
    made = []
    for _ in range(2):
        ran = small(directory, "--max-requests=40", "--duration=20")
        assert ran.code == 0, ran.err
        names(ran.own)
        made.append(ran.result)
    return made


@pytest.fixture
def pair(tmp_path: Path, real: list[dict[str, Any]]) -> Path:
    """A directory with A.json and B.json."""
    for name, document in zip("AB", real, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def altered(document: dict[str, Any], **own: Any) -> str:
    """A real result in which parts of our section are others, sealed again."""
    return json.dumps(seal({**document, "kv_cache": {**document["kv_cache"], **own}}, {}))


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_two_real_runs_are_compared_and_nothing_is_written(pair: Path) -> None:
    code, out, err = run(pair, "A.json", "B.json")
    assert (code, err) == (0, "")
    assert out.startswith("Comparison: COMPARED. Whether storage read + write of B differs is not")
    assert "without interval. Of 1" in out
    assert "\nof  " in out
    for name in ("storage read + write", "requests", "hit ratio"):
        assert f"\n{name}, " in out
    assert tree(pair) == ["A.json", "B.json"]


def test_the_comparison_is_written_where_it_was_asked_for_and_may_be_replaced(pair: Path) -> None:
    for _ in range(2):
        code, out, err = run(pair, "A.json", "B.json", "--json=C.json")
        assert (code, err) == (0, "")
        assert out.endswith("json  C.json\n")
    document = json.loads((pair / "C.json").read_text())
    assert document["schema"] == "kv-cache-comparison/1"
    assert [row["file"] for row in document["inputs"]] == ["A.json", "B.json"]
    assert tree(pair) == ["A.json", "B.json", "C.json"]


def test_a_slower_series_of_a_real_result_is_found_worse(
    tmp_path: Path, real: list[dict[str, Any]]
) -> None:
    """What a real run wrote, with windows and rates that are known."""
    for name, rate in (("A", GB), ("B", GB / 2)):
        tiers = real[0]["kv_cache"]["tiers"]
        reads = {**tiers["storage"]["read"], "bytes_per_second": rate}
        rows = windows([rate * (1 + 0.01 * (k * 7 % 5)) for k in range(40)])
        changed = {**tiers, "storage": {**tiers["storage"], "read": reads}}
        text = altered(real[0], tiers=changed, series=series(rows))
        (tmp_path / f"{name}.json").write_text(text)
    code, out, err = run(tmp_path, "A.json", "B.json")
    assert (code, err) == (0, "")
    (read,) = [line for line in out.splitlines() if line.startswith("storage read, ")]
    assert read.split()[3:7] == ["worse", "0.9313", "0.4657", "0.5"]


def test_trials_made_of_real_results_are_compared(
    tmp_path: Path, real: list[dict[str, Any]]
) -> None:
    for name, documents in (("A", real), ("B", real[::-1])):
        files = {}
        for number, document in enumerate(documents, start=1):
            file = tmp_path / f"{name}.trial{number}.json"
            file.write_text(json.dumps(document))
            files[file.name] = file_digest(file)
        whole = aggregate(documents, files, master_seed=3, planned=2)
        (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    code, out, err = run(tmp_path, "A.json", "B.json")
    assert (code, err) == (0, "")
    assert "2 finished trials" in out
    # The same trials in another order do not differ.
    assert out.startswith("Comparison: COMPARED. No difference was found in storage read + write")
    code, _, err = run(tmp_path, "A.json", "A.trial1.json")
    assert code == 2
    assert "it is of a single run, not of 2 finished trials" in err


def test_a_run_of_another_seed_is_refused(pair: Path, real: list[dict[str, Any]]) -> None:
    other = small(pair, "--max-requests=40", "--virtual-time", "--seed=4")
    assert other.code == 0, other.err
    code, out, err = run(pair, "A.json", "R.json")
    assert (code, out) == (2, "")
    assert err.startswith("kv-cache: R.json cannot be compared with A.json: driver is virtual")
    assert "its schedule is " in err
    assert err.count("\n") == 1


def test_text_out_of_a_file_cannot_drive_the_terminal(
    pair: Path, real: list[dict[str, Any]]
) -> None:
    passport = {**real[0]["kv_cache"]["passport"], "verdict": "invalid", "reasons": ["\x1b[2J\na"]}
    (pair / "B.json").write_text(altered(real[0], passport=passport))
    code, out, _ = run(pair, "A.json", "B.json")
    assert code == 0
    assert "\x1b" not in out
    assert "  ! B is invalid: ?[2J?a" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "the following arguments are required: RESULT"),
        (["A.json"], "compare needs 2 to 26 results, the baseline first, and was given 1; "),
        (["A.json", "none.json"], "result none.json cannot be read"),
        (["A.json", "B.json", "--json=A.json"], "--json A.json: a file of that name is there"),
        (["A.json", "B.json", "--json=no/C.json"], "--json no/C.json: there is no directory no"),
        (["A.json", "B.json", "--jso=x"], "--jso is not a flag. Did you mean '--json'?"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    pair: Path, args: list[str], says: str
) -> None:
    before = {path: path.read_bytes() for path in pair.iterdir()}
    code, out, err = run(pair, *args)
    assert (code, out) == (2, "")
    assert err.startswith("kv-cache: ")
    assert err.count("\n") == 1
    assert says in err
    assert {path: path.read_bytes() for path in pair.iterdir()} == before
