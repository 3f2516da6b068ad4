"""What does no I/O on storage runs where there is no Linux; what does it says so in a sentence."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli import PATIENCE_S, ROOT, SMALL, environment, prepare

ELSEWHERE = ROOT / "tests" / "elsewhere.py"
PORTABLE = ("config", "files", "lab", "metrics", "result", "sim", "view", "workload")


def elsewhere(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ELSEWHERE), *arguments],
        cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def test_the_packages_that_do_no_io_are_imported_anywhere(tmp_path: Path) -> None:
    run = elsewhere(tmp_path, "--import", *(f"kv_cache.{name}" for name in PORTABLE))
    assert (run.returncode, run.stderr) == (0, "")


def test_what_is_missing_elsewhere_is_missing_there(tmp_path: Path) -> None:
    """Else the test above proves nothing."""
    run = elsewhere(tmp_path, "--import", "termios")
    assert "No module named 'termios'" in run.stderr


PATTERN = ("lab", "--pattern", "long_tail_mix", "--seeds=2", "--pages=50", "--length=200")
CLUSTER = ("sim", "single-node", "--preset=smoke", "--seeds=1")
VIRTUAL = ("run", "--virtual-time", *SMALL, "--duration=2")


@pytest.mark.parametrize("words", [PATTERN, CLUSTER], ids=["lab", "sim"])
def test_what_measures_nothing_is_done_and_reported_anywhere(
    tmp_path: Path, words: Sequence[str]
) -> None:
    done = elsewhere(tmp_path, *words, "--output=result.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_bytes())
    shown = elsewhere(tmp_path, "report", "result.json", "--output=page.html")
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!")


def test_a_run_in_virtual_time_is_done_verified_and_reported_anywhere(tmp_path: Path) -> None:
    prepare(tmp_path)
    for words in (
        (*VIRTUAL, "--output=result.json"),
        ("verify", "result.json"),
        ("report", "result.json", "--output=page.html"),
    ):
        done = elsewhere(tmp_path, *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert (tmp_path / "page.html").read_text().startswith("<!")


@pytest.mark.parametrize("command", ["run", "precondition", "probe", "calibrate"])
def test_real_io_is_refused_elsewhere_in_one_sentence(tmp_path: Path, command: str) -> None:
    prepare(tmp_path)
    options = SMALL if command in ("run", "precondition") else []
    run = elsewhere(tmp_path, command, *options, "--cache-dir", str(tmp_path / "cache"))
    assert run.returncode == 2, run.stderr
    assert "real I/O needs Linux" in run.stderr.splitlines()[-1]
    assert not (tmp_path / "cache").exists()
