"""What is on the terminal while a run goes on, and after it, on a real pseudo terminal."""

import json
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.prepare import prepare as prepared
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunPlan
from kv_cache.cli.flags import parse
from kv_cache.cli.progress import STATUS_S, RunProgress, Status
from tests.cli import SMALL, command, environment, prepare, run
from tests.screen import Screen, Terminal

RUN = [*SMALL, "--cache-dir=cache", "--output=R.json", "--warmup=0.3", "--duration=0.8"]


def terminal(
    cwd: Path, *args: str, env: Mapping[str, str] | None = None, **options: Any
) -> Terminal:
    prepare(cwd)
    own = {**environment(), "TERM": "xterm", **(env or {})}
    return Terminal(command(*RUN, *args), cwd, own, **options)


def ignore(*_: object) -> None:
    """Neither records nor operations are kept."""


def phases(frames: Sequence[Sequence[str]]) -> list[str]:
    """In the order in which they were seen first."""
    return list(dict.fromkeys(lines[0].split()[0] for lines in frames if lines))


def test_a_block_of_lines_follows_the_phases_and_leaves_nothing(tmp_path: Path) -> None:
    seen = terminal(tmp_path, "--warmup=1", "--duration=1.5")
    code, out = seen.finish()
    assert code == 0
    assert seen.screen.text == []
    assert seen.screen.y == 0
    order = phases(seen.frames)
    assert [phase for phase in order if phase in ("warmup", "measure", "check")] == [
        *("warmup", "measure", "check")
    ]
    full = max(seen.frames, key=len)
    assert any(line.startswith("storage ") for line in full)
    assert any("failed operations" in line for line in full)
    assert out.startswith("Run: ")
    assert json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]["status"] == "finished"


def test_nothing_is_drawn_to_a_pipe(tmp_path: Path) -> None:
    ran = run(tmp_path, *RUN)
    assert (ran.code, ran.err) == (0, "")


def test_a_log_has_a_line_of_status_every_ten_seconds_in_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a real run of about two seconds by a clock that runs thirty times as fast."""
    began_s = time.monotonic()
    monkeypatch.setattr(Status.__init__, "__defaults__", (time.monotonic, STATUS_S))
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    job = prepared(parse([*RUN, "--warmup=1.2", "--duration=1.5"]).config())
    fast = RunProgress(job.config, "trial 2", clock=lambda: 30 * (time.monotonic() - began_s))
    plan = RunPlan(job.config, job.load, job.specs, job.seed)
    with open_run(plan, threading.Event()) as run, fast as progress:
        run.execute(progress.tick)
    lines = capsys.readouterr().err.splitlines()
    pattern = re.compile(
        r"trial 2, (\w+) \d+( of \d+)? s, (?:\d+ users, )?\d+ requests done, \d+ running, "
        r"\d+ queued, storage read \d+\.\d\d GiB, written \d+\.\d\d GiB, \d+\.\d\d GiB/s"
    )
    said = [found[1] for line in lines if (found := pattern.search(line))]
    assert len(said) == len(lines) >= 2
    assert {"warmup", "measure"} <= set(said)


def test_a_run_that_is_not_over_in_time_says_its_status_in_a_log_and_quiet_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half second, in place of ten."""
    monkeypatch.setattr(Status.__init__, "__defaults__", (time.monotonic, 0.5))
    long = [*RUN[:-2], "--warmup=0", "--duration=1"]
    for quiet in ([], ["--no-progress"]):
        ran = run(tmp_path, *long, *quiet)
        assert ran.code == 0
        assert any(line.startswith(("measure ", "drain ")) for line in ran.err.splitlines()) == (
            not quiet
        )
        assert "\r" not in ran.err


def test_nothing_is_drawn_that_was_not_wanted(tmp_path: Path) -> None:
    seen = terminal(tmp_path, "--no-progress", "--json")
    assert seen.finish()[0] == 0
    assert seen.told == ""


def test_a_log_line_goes_above_and_stays(tmp_path: Path) -> None:
    seen = terminal(tmp_path, "--enable-latency-tracing", columns=70, env={"PATH": "/nowhere"})
    assert seen.finish()[0] == 0
    kept = seen.screen.text
    assert kept[0].startswith("WARNING --enable-latency-tracing: ")
    assert not any("running" in line or "measure" in line for line in kept)
    assert any(line.startswith("1 warning: ") for line in max(seen.frames, key=len))


@pytest.mark.parametrize(
    ("columns", "lines"), [pytest.param(40, 24, marks=pytest.mark.nightly), (20, 3)]
)
def test_a_small_terminal_is_not_torn(tmp_path: Path, columns: int, lines: int) -> None:
    seen = terminal(tmp_path, columns=columns, lines=lines)
    assert seen.finish()[0] == 0
    assert seen.screen.text == []
    assert all(len(frame) < lines for frame in seen.frames)
    assert "measure" in phases(seen.frames)


def test_a_window_that_becomes_narrower_leaves_nothing_behind(tmp_path: Path) -> None:
    seen = terminal(tmp_path, "--duration=4", columns=120, lines=30)
    seen.until(lambda t: "measure" in t.told)
    assert max(map(len, max(seen.frames))) > 45
    seen.resize_between_drawings(45, 12)
    before = len(seen.frames)
    assert seen.finish()[0] == 0
    assert seen.screen.text == []
    _, *narrow = [frame for frame in seen.frames[before:] if frame]  # one may have been under way
    assert narrow
    assert all(max(map(len, frame)) < 45 for frame in narrow)


def test_ctrl_c_leaves_a_clean_screen_and_the_summary_comes_after_it(tmp_path: Path) -> None:
    seen = terminal(tmp_path, "--duration=60", stdout=True)
    seen.until(lambda t: any("GiB/s" in line for line in t.screen.text))
    seen.process.send_signal(signal.SIGINT)
    code, _ = seen.finish()
    assert code == 130
    assert seen.screen.text[0].startswith("Run: INVALID. ")
    assert not any("running" in line for line in seen.screen.text)


def test_a_terminal_that_can_do_little_has_one_line(tmp_path: Path) -> None:
    seen = terminal(tmp_path, env={"TERM": "dumb"})
    assert seen.finish()[0] == 0
    assert "\x1b" not in seen.told
    assert "measure" in seen.told
    assert all(len(frame) <= 1 for frame in seen.frames)
    assert seen.screen.text == []


def test_the_screen_of_these_tests_does_what_a_terminal_does() -> None:
    screen = Screen(5, 3)
    screen.feed("abcdefg\r\nx\r\ny\x1b[2A\rZ\x1b[K")
    assert screen.text == ["abcde", "Z", "x", "y"]
    screen.feed("\x1b[J\r\x1b[9AQ")  # the first line has scrolled away
    assert screen.text == ["abcde", "Q"]
