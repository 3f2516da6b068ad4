"""Devices that never answer: the command ends, with what there is, and says what is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.devices import NBD_TOOLS, THROTTLED_RULES, Faults, faulty_directory, why_not
from kv_cache.cli import console
from tests.cli import (
    PATIENCE_S,
    SMALL,
    anything,
    command,
    environment,
    finish,
    prepare,
    start,
    states_of_threads,
    wait_for,
    wait_until_at_work,
    worker_of,
)
from tests.passports import names

needs_device = pytest.mark.skipif(why_not(NBD_TOOLS) is not None, reason=str(why_not(NBD_TOOLS)))
pytestmark = pytest.mark.root


@pytest.fixture
def device() -> Iterator[Faults]:
    """Whoever is still in a call on it ends when it goes."""
    with faulty_directory(0.4) as faults:
        try:
            yield faults
        finally:
            faults.resume()


def begin(cwd: Path, *flags: str, hasty: str = "drain_s: 1, answer_s: 2") -> Any:
    prepare(cwd)
    config = cwd / "small.yaml"
    config.write_text(config.read_text().replace("drain_s: 5", hasty))
    return subprocess.Popen(
        command(*flags), cwd=cwd, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def until(process: Any, there: Callable[[], bool]) -> None:
    while not there():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def is_prepared(device: Faults) -> bool:
    """Whether a run is behind its preparations, which make files too."""
    try:
        return len(list(device.path.glob("c/*/*/*.kv"))) >= 5
    except FileNotFoundError:  # a directory went while it was looked at
        return False


def ended(process: Any) -> tuple[int, str]:
    """Exit code and stderr; a child that is left behind keeps the pipes open, so they are closed
    by hand."""
    try:
        code = process.wait(PATIENCE_S)
        told = b""
        os.set_blocking(process.stderr.fileno(), False)
        while part := _read(process.stderr.fileno()):
            told += part
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
    return code, told.decode()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def run_of(device: Faults, *more: str) -> list[str]:
    return [*SMALL, f"--cache-dir={device.path}/c", "--storage-capacity-gb=0.2", *more]


@needs_device
def test_a_device_that_never_answers_ends_the_run_with_its_result_and_is_named(
    tmp_path: Path, device: Faults
) -> None:
    process = begin(tmp_path, *run_of(device, "--output=R.json", "--duration=8"))
    until(process, lambda: is_prepared(device))
    worker = worker_of(process)
    device.pause()
    code, err = ended(process)
    assert code == 3, err
    assert (tmp_path / "R.json").exists(), err
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    assert own["status"] == "broken"
    names(own, V12="invalid", **THROTTLED_RULES)
    assert own["unanswered"]["pid"] == worker
    assert own["unanswered"]["directories"] == [f"{device.path}/c"]
    assert all(row["still_s"] >= 2 for row in own["unanswered"]["operations"])
    held = f"{len(own['unanswered']['operations'])} operations on {device.path}/c"
    assert f"the device did not answer: {held}" in err
    assert f"process {worker} is left behind" in err
    assert not gone(worker)
    device.resume()
    until_gone(worker)


def until_gone(pid: int) -> None:
    wait_for(lambda: gone(pid))


@needs_device
def test_a_signal_ends_a_run_whose_device_never_answers(tmp_path: Path, device: Faults) -> None:
    process = begin(
        tmp_path, *run_of(device, "--output=R.json", "--duration=600"), hasty="answer_s: 8"
    )
    until(process, lambda: is_prepared(device))
    worker = worker_of(process)
    device.pause()
    wait_for(lambda: "D" in states_of_threads(worker))
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    assert code == 3, err
    assert (tmp_path / "R.json").exists(), err
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    assert own["status"] == "interrupted"
    assert "are waited for" in err
    assert f"process {worker} is left" in err
    device.resume()
    until_gone(worker)


@needs_device
@pytest.mark.parametrize(
    "flags",
    [
        ["--max-requests=1000000"],
        ["--precondition", "--precondition-size-gb=0.35"],
    ],
    ids=["requests", "fill"],
)
def test_where_nothing_ends_the_wait_the_run_ends_all_the_same(
    flags: list[str], tmp_path: Path, device: Faults
) -> None:
    process = begin(tmp_path, *run_of(device, "--output=R.json", *flags))
    until(process, lambda: anything(device.path, "c/*/*/*"))
    worker = worker_of(process)
    device.pause()
    code, err = ended(process)
    assert code == 3, err
    assert "the device did not answer" in err
    device.resume()
    until_gone(worker)


@needs_device
def test_an_output_on_the_same_dead_device_goes_elsewhere(tmp_path: Path, device: Faults) -> None:
    process = begin(tmp_path, *run_of(device, f"--output={device.path}/R.json", "--duration=8"))
    until(process, lambda: is_prepared(device))
    worker = worker_of(process)
    device.pause()
    code, err = ended(process)
    assert code == 3
    assert f"it is in {tmp_path}/R.json" in err
    assert json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]["status"] == "broken"
    device.resume()
    until_gone(worker)


@needs_device
def test_a_probe_of_a_device_that_never_answers_ends(tmp_path: Path, device: Faults) -> None:
    """It has no configuration, so the wait is that of the default."""
    process = begin(
        tmp_path, "probe", f"--cache-dir={device.path}/c", "--size-gib=0.2", "--seconds=60",
        "--sizes-mib=1", "--concurrency=1",
    )  # fmt: skip
    until(process, lambda: anything(device.path, "c/*/*"))
    worker = worker_of(process)
    device.pause()
    code, err = ended(process)
    assert code == 3, err
    assert "the device did not answer" in err
    device.resume()
    until_gone(worker)


# --- the process that supervises -----------------------------------------------------------------


def at_work(cwd: Path) -> Any:
    process = start(cwd, [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=60"])
    wait_until_at_work(process)
    return process


def test_a_supervisor_that_is_killed_takes_its_child_with_it(tmp_path: Path) -> None:
    process = at_work(tmp_path)
    worker = worker_of(process)
    assert worker != process.pid
    process.kill()
    process.communicate()
    until_gone(worker)


def test_a_child_that_is_killed_ends_the_command_as_a_shell_says_it(tmp_path: Path) -> None:
    process = at_work(tmp_path)
    psutil.Process(worker_of(process)).kill()
    assert finish(process, tmp_path).code == 137


def test_a_signal_to_the_whole_group_ends_the_run_once(tmp_path: Path) -> None:
    prepare(tmp_path)
    process = subprocess.Popen(
        command(*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=60"), cwd=tmp_path,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_until_at_work(process)
    os.killpg(process.pid, signal.SIGINT)
    ran = finish(process, tmp_path)
    assert (ran.code, ran.own["status"]) == (130, "interrupted")
    assert not (tmp_path / "cache").exists()


def test_a_supervisor_moves_no_bytes_of_storage(tmp_path: Path) -> None:
    process = at_work(tmp_path)
    files = {str(file.path) for file in psutil.Process(process.pid).open_files()}
    held = [link for link in _links(process.pid) if str(tmp_path / "cache") in link]
    process.send_signal(signal.SIGTERM)
    assert finish(process, tmp_path).code == 143
    assert (files, held) == (set(), [])


def _links(pid: int) -> list[str]:
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]


def test_a_command_that_touches_no_device_has_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kv_cache.cli import supervisor

    seen: list[bool] = []
    monkeypatch.setattr(supervisor, "supervise", lambda own_session=False: seen.append(own_session))
    for argv in (["config"], ["run", "--virtual-time", "--help"], ["probe", "--help"]):
        monkeypatch.setattr(sys, "argv", ["kv-cache.py", *argv])
        with pytest.raises(SystemExit):
            console()
    assert seen == []
