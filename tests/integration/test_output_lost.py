"""Output that cannot be written at the end: the numbers reach the user all the same, and no file is
named that is not there."""

import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.verify import VerifyOptions, verify
from kv_cache.cli import main
from tests.cli import PATIENCE_S, SMALL, command, environment, prepare, small_alone
from tests.stores import mounted

VIRTUAL = [*SMALL, "--virtual-time", "--max-requests=20"]


@dataclass(frozen=True, slots=True)
class Told:
    code: int
    out: str
    err: str

    @property
    def named(self) -> Path:
        """The file that the summary gives for the result."""
        found = re.search(r"^result +(\S+)$", self.out, re.MULTILINE)
        assert found is not None, self.out
        return Path(found[1])

    @property
    def after_summary(self) -> Any:
        return json.loads(self.out[self.out.index("\n{\n") :])


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes small files, and no result."""
    place = tmp_path / "full"
    place.mkdir()
    with mounted(place, "tmpfs", "size=8k"):
        yield place
        os.chdir(tmp_path)  # a test may be in it


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.chdir(place)
    prepare(place)
    return place


def told(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, *argv: str) -> Told:
    caplog.clear()
    code = main(argv)
    shown = capsys.readouterr()
    logged = "\n".join(record.getMessage() for record in caplog.records)
    return Told(code, shown.out, shown.err + logged)


def test_where_the_disk_is_full_the_result_is_in_the_current_directory_and_said_to_be(
    home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    ran = told(capsys, caplog, *VIRTUAL, f"--output={full}/R.json")
    assert ran.code == 1
    assert ran.named == home / "R.json"
    assert json.loads(ran.named.read_bytes())["requests_completed"] == 20
    assert f"{full}/R.json (no space left on device); it is in {home}/R.json" in ran.err
    assert list(full.iterdir()) == []


def test_a_file_that_stands_there_is_not_replaced_by_a_result_that_was_to_be_elsewhere(
    home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    (home / "R.json").write_text("mine")
    (home / "R-2.json").symlink_to(home / "nowhere")
    ran = told(capsys, caplog, *VIRTUAL, f"--output={full}/R.json")
    assert ran.named == home / "R-3.json"
    assert (home / "R.json").read_text() == "mine"


def test_where_the_current_directory_is_full_too_it_is_among_temporary_files(
    home: Path, full: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, caplog: Any
) -> None:
    prepare(full)
    monkeypatch.chdir(full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ran = told(capsys, caplog, *VIRTUAL, "--output=R.json")
    assert ran.code == 1
    assert ran.named.is_relative_to(tmp_path / ran.named.parent.name)
    assert ran.named.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(ran.named.read_bytes())["requests_completed"] == 20


@pytest.fixture
def nowhere(home: Path, full: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No place takes a result."""
    prepare(full)
    monkeypatch.chdir(full)
    monkeypatch.setattr(tempfile, "tempdir", str(full))
    return full


def test_where_nothing_can_be_written_the_whole_result_follows_the_summary(
    nowhere: Path, capsys: Any, caplog: Any
) -> None:
    ran = told(capsys, caplog, *VIRTUAL, "--output=R.json")
    assert ran.code == 1
    assert "\nresult  on stdout, below\n" in ran.out
    assert ran.after_summary["kv_cache"]["status"] == "finished"
    assert ran.after_summary["requests_completed"] == 20


def test_where_nothing_can_be_written_the_summary_for_programs_has_the_result_in_it(
    nowhere: Path, capsys: Any, caplog: Any
) -> None:
    ran = told(capsys, caplog, *VIRTUAL, "--output=R.json", "--json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert "result" not in document["files"]
    assert document["document"]["requests_completed"] == 20


def test_where_only_the_results_directory_is_full_exactly_that_is_said(
    home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    """48 KiB are enough for the configuration, and not for the result."""
    subprocess.run(["mount", "-o", "remount,size=48k", str(full)], check=True)
    ran = told(capsys, caplog, *VIRTUAL, f"--results-dir={full}/D", "--output=R.json")
    assert ran.code == 1
    assert ran.named == Path("R.json")
    assert ran.named.exists()
    assert "the result could not be written" not in ran.err
    assert re.search(r"D/run-\S+ has no result.json: .*no space left.*; it is in R.json", ran.err)


def test_a_result_that_its_directory_of_results_has_is_not_written_elsewhere(
    home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    ran = told(capsys, caplog, *VIRTUAL, "--results-dir=D", f"--output={full}/R.json")
    assert ran.code == 1
    assert ran.named.parent.parent == Path("D")
    assert ran.named.exists()
    assert not (home / "R.json").exists()


@pytest.mark.parametrize("vanishes", [False, True], ids=["read-only", "gone"])
def test_a_place_that_is_lost_during_the_run_loses_no_result(
    vanishes: bool, home: Path, tmp_path: Path, capsys: Any, caplog: Any
) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def lose() -> None:
        while not any(home.glob("cache/kv-cache-run-*")):
            time.sleep(0.01)
        if vanishes:
            place.rmdir()
        else:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)

    bound = subprocess.run(["mount", "--bind", str(place), str(place)], capture_output=True)
    if bound.returncode:
        pytest.skip(f"cannot bind a mount: {bound.stderr.decode().strip()}")
    if vanishes:
        subprocess.run(["umount", str(place)], check=True)
    loser = threading.Thread(target=lose)
    loser.start()
    try:
        ran = told(
            capsys, caplog, *SMALL, "--cache-dir=cache", "--max-requests=20",
            f"--output={place}/R.json",
        )  # fmt: skip
    finally:
        loser.join()
        if not vanishes:
            subprocess.run(["umount", str(place)], check=True)
    why = "no such file or directory" if vanishes else "read-only file system"
    assert ran.code == 1
    assert f"{place}/R.json ({why}); it is in {home}/R.json" in ran.err
    assert json.loads((home / "R.json").read_bytes())["requests_completed"] == 20
    assert not any(home.glob("cache/kv-cache-run-*"))


def test_trials_that_have_no_place_are_added_up_all_the_same(
    home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    ran = told(capsys, caplog, *VIRTUAL, "--trials=2", f"--output={full}/R.json")
    assert ran.code == 1
    found = {path.name for path in home.glob("R*.json")}
    assert found == {"R.json", "R.trial1.json"}  # a trial that broke ends the series
    assert "R.trial1.json" in ran.out


def test_a_search_that_has_no_place_ends_and_says_where_it_is(
    home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    ran = told(
        capsys, caplog, "capacity", "--slo=interactive:p95<1s", "--virtual-time", "--model=tiny-1b",
        "--gpu-mem-gb=0", "--cpu-mem-gb=0.1", "--storage-capacity-gb=1", "--probe=10",
        "--probe-warmup=1", "--most-probes=2", "--confirmations=1",
        f"--output={full}/R.json",
    )  # fmt: skip
    assert ran.code == 1
    assert ran.named == home / "R.json"
    assert ran.named.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["sim", "single-node", "--preset=smoke"],
        ["lab", "--pattern=rag_burst", "--policies=lru"],
    ],
    ids=["sim", "lab"],
)
def test_what_was_simulated_is_not_lost_with_its_file(
    command: list[str], home: Path, full: Path, capsys: Any, caplog: Any
) -> None:
    taken = full / "R.json"
    ran = told(capsys, caplog, *command, f"--output={taken}")
    assert ran.code == 1
    assert (home / "R.json").exists()
    assert f"{home}/R.json" in ran.out


def test_a_pipe_is_no_place_for_a_result_and_is_refused_before_the_run(tmp_path: Path) -> None:
    done = small_alone(tmp_path, "--virtual-time", "--output=/dev/stdout")
    assert (done.code, done.out) == (2, ""), done.err
    assert "/dev/stdout: it is not a regular file" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_whose_standard_files_are_closed_leaves_its_result(
    closed: str, tmp_path: Path
) -> None:
    prepare(tmp_path)
    run = command(*SMALL, "--virtual-time", "--output=R.json")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *run],
        cwd=tmp_path, env=environment(), capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert verify(VerifyOptions(result=str(tmp_path / "R.json"))).intact


@pytest.mark.parametrize("words", [[*SMALL, "--virtual-time", "--output=R.json"], ["config"]])
def test_where_stdout_takes_no_more_one_sentence_says_so(words: list[str], tmp_path: Path) -> None:
    prepare(tmp_path)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*words), cwd=tmp_path, env=environment(), stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "standard output takes no more (no space left on device)" in done.stderr
    if "--virtual-time" in words:
        assert verify(VerifyOptions(result=str(tmp_path / "R.json"))).intact


def without_readers(tmp_path: Path, *words: str) -> int:
    """The exit code of a command whose output nobody reads, as of `2>&1 | head` when it has seen
    enough."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command(*words), cwd=tmp_path, env=environment(), stdout=writer, stderr=writer,
            timeout=120, check=False,
        ).returncode  # fmt: skip
    finally:
        os.close(writer)


def test_trials_go_on_to_their_end_when_nobody_reads_what_they_print(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert without_readers(tmp_path, *VIRTUAL, "--trials=2", "--output=R.json") == 0
    found = {path.name for path in tmp_path.glob("R*.json")}
    assert found == {"R.json", "R.trial1.json", "R.trial2.json"}
    assert verify(VerifyOptions(result=str(tmp_path / "R.json"))).intact


def test_an_exit_code_that_says_no_says_so_when_nobody_reads_why(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert without_readers(tmp_path, *VIRTUAL, "--output=R.json") == 0
    file = tmp_path / "R.json"
    file.write_text(
        file.read_text().replace('"requests_completed": 20', '"requests_completed": 21')
    )
    with subprocess.Popen(
        command("verify", "R.json"), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE
    ) as read:
        assert read.stdout is not None
        assert read.stdout.read()
    assert read.returncode not in (0, None)
    assert without_readers(tmp_path, "verify", "R.json") == read.returncode
