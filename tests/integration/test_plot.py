"""`kv-cache.py plot` as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kv_cache.cli import main
from kv_cache.installing import install_hint
from kv_cache.result.chain import seal
from tests import trials
from tests.cli import PATIENCE_S, as_a_process, environment, small

pytest.importorskip("matplotlib")

WITHOUT = """
import sys
sys.modules["matplotlib"] = None
from kv_cache.cli import console
console()
"""


def plot(cwd: Path, *args: str) -> tuple[int, str, str]:
    with as_a_process(cwd) as printed:
        code = main(["plot", *args])
    return code, printed[0], printed[1]


def ran(cwd: Path, words: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(
        words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.returncode, done.stdout, done.stderr


def made(file: Path) -> str:
    document = trials.of([trials.result(1), trials.result(2), trials.result(3)])
    file.write_text(json.dumps(document))
    return file.name


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_real_run_is_drawn_beside_its_result_with_the_same_bytes_again(tmp_path: Path) -> None:
    assert small(tmp_path, "--duration=2").code == 0
    assert plot(tmp_path, "R.json") == (0, "plot  R.svg\n", "")
    first = (tmp_path / "R.svg").read_bytes()
    assert plot(tmp_path, "R.json")[0] == 0
    assert (tmp_path / "R.svg").read_bytes() == first


def test_several_results_have_a_picture_each(tmp_path: Path) -> None:
    made(tmp_path / "A.json")
    (tmp_path / "run").mkdir()
    made(tmp_path / "run" / "result.json")
    code, out, _ = plot(tmp_path, "A.json", "run")
    assert (code, out) == (0, "plot  A.svg\nplot  run/result.svg\n")


@pytest.mark.parametrize("name", ["P.png", "P.pdf", "P.SVG"])
def test_the_name_says_the_format_and_our_own_picture_is_replaced(
    tmp_path: Path, name: str
) -> None:
    made(tmp_path / "A.json")
    for _ in range(2):
        assert plot(tmp_path, "A.json", f"--output={name}") == (0, f"plot  {name}\n", "")
    assert names(tmp_path) == ["A.json", name]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["none.json"], "result none.json cannot be read"),
        (["cut.json"], "give an untouched result file"),
        (["list.json"], "is JSON but not a result of this program"),
        (["other.json"], "which this program does not know"),
        (["edited.json"], "was changed after its run"),
        (["A.json", "cut.json"], "give an untouched result file"),
        (["A.json", "A.json"], "would both be A.svg"),
        (["A.json", "B.json", "--output=P.svg"], "is one file, and 2 results are given"),
        (["A.json", "--output=P.jpg"], "does not end in .svg, .png or .pdf"),
        (["A.json", "--output=A.json"], "does not end in .svg, .png or .pdf"),
        (["A.json", "--output=no/P.svg"], "there is no directory no"),
        (["A.json", "--output=theirs.svg"], "which plot did not write"),
        (["theirs.json"], "which plot did not write"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    tmp_path: Path,
    args: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("A.json", "B.json", "theirs.json"):
        made(tmp_path / name)
    whole = (tmp_path / "A.json").read_text()
    other = seal({"kv_cache": {"schema": "kv-cache-poem/1"}}, {})
    for name, text in {
        "cut.json": whole[: len(whole) // 2],
        "list.json": "[]",
        "other.json": json.dumps(other),
        "edited.json": whole.replace('"seed": 7', '"seed": 8'),
        "theirs.svg": "<svg/>",
    }.items():
        (tmp_path / name).write_text(text)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["plot", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_matplotlib_one_sentence_says_how_to_get_it(tmp_path: Path) -> None:
    made(tmp_path / "A.json")
    code, out, err = ran(tmp_path, [sys.executable, "-c", WITHOUT, "plot", "A.json"])
    assert (code, out) == (2, "")
    assert install_hint("plot") in err
    assert err.count("\n") == 1
    assert names(tmp_path) == ["A.json"]
