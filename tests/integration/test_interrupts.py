"""Signals in bursts: none is lost, and none stops who is told."""

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from kv_cache.bench.interrupts import Stop
from tests.cli import PATIENCE_S, SIGNALS, SMALL, anything, command, environment, finish, prepare
from tests.passports import names, says

# A child sends signals for a second or more while its parent sets, waits and looks.
BURST = """
import os, signal, sys, time
from kv_cache.bench.interrupts import interrupts

number, parent = int(sys.argv[1]), os.getpid()
with interrupts() as caught:
    seen = []
    caught.on_signal = lambda: seen.append(caught.came)
    child = os.fork()
    while not child:
        if os.getppid() != parent:
            os._exit(0)
        os.kill(parent, number)
    turns, until = 0, time.monotonic() + 1
    while turns <= 10 or len(seen) <= 10 or time.monotonic() < until:
        caught.stop.wait(0.0001)
        caught.stop.set()
        turns += 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(caught.exit_code, all(seen))
"""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signals_in_a_burst_never_stop_the_thread_that_waits_for_them(
    number: signal.Signals, code: int
) -> None:
    """A plain event has a lock, which a second signal waits for within the handler of the first."""
    done = subprocess.run(
        [sys.executable, "-c", BURST, str(int(number))],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{code} True\n", "")


def test_a_stop_wakes_all_who_wait_and_stays_set() -> None:
    stop, woken = Stop(), []
    waiting = [
        threading.Thread(target=lambda: woken.append(stop.wait()), daemon=True) for _ in range(5)
    ]
    for thread in waiting:
        thread.start()
    assert not stop.is_set()
    stop.set()
    stop.set()
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert woken == [True] * 5
    assert stop.is_set()
    assert stop.wait()


def test_a_stop_that_does_not_come_is_waited_for_as_long_as_was_said() -> None:
    stop, began = Stop(), time.monotonic()
    assert not stop.wait(0.1)
    assert time.monotonic() - began >= 0.1
    assert not stop.wait(-1)
    with pytest.raises(TypeError):
        stop.clear()


# --- a terminal that goes away ---------------------------------------------------------------


def test_a_terminal_that_is_closed_ends_the_run_with_its_result(tmp_path: Path) -> None:
    """As when ssh ends: SIGHUP comes, and from then on every write to the terminal fails."""
    prepare(tmp_path)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command(*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=60"),
        cwd=tmp_path, env=environment() | {"TERM": "xterm"}, stdin=slave, stdout=slave,
        stderr=slave, start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(slave)
    told = b""
    while b"\x1b[" not in told or not anything(tmp_path, "cache/*/*/*.kv"):
        assert process.poll() is None, told
        told += os.read(master, 65536)
    os.close(master)
    assert process.wait(PATIENCE_S) == 143
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    assert own["status"] == "interrupted"
    names(own, V12="invalid")
    assert "SIGHUP" in says(own, "V12")
    assert not (tmp_path / "cache").exists()


def take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_run_that_was_started_with_nohup_goes_on_when_the_terminal_is_closed(
    tmp_path: Path,
) -> None:
    prepare(tmp_path)
    process = subprocess.Popen(
        ["nohup", *command(*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=3")],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not anything(tmp_path, "cache/*"):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    ran = finish(process, tmp_path)
    assert (ran.code, ran.own["status"]) == (0, "finished")


# --- a signal that comes early ---------------------------------------------------------------

# SIGINT at the instant at which orjson's initialisation, in machine code, imports a module.
WITHIN_AN_EXTENSION = """
import builtins, os, signal, sys
plain = builtins.__import__

def traced(name, *args, **kwargs):
    caller = sys._getframe(1).f_code.co_filename
    if name == "dataclasses" and caller.startswith("<frozen importlib"):
        builtins.__import__ = plain
        os.kill(os.getpid(), signal.SIGINT)
    return plain(name, *args, **kwargs)

builtins.__import__ = traced
"""

# SIGINT within a finalizer, where Python prints exceptions and goes on.
WITHIN_A_FINALIZER = """
import os, signal, sys

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def finalize(event, args):
    if event == "open" and str(args[0]).endswith("R.json"):
        Finalized()

sys.addaudithook(finalize)
"""


@pytest.mark.parametrize(
    ("where", "argv"),
    [
        (WITHIN_AN_EXTENSION, ("sim", "--list")),
        (WITHIN_A_FINALIZER, ("verify", "R.json")),
    ],
)
def test_a_sigint_ends_a_command_wherever_it_meets_it(
    where: str, argv: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(where)
    (tmp_path / "R.json").write_text("{}")
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"}
    done = subprocess.run(
        command(*argv), cwd=tmp_path, env=environment() | path, capture_output=True, text=True,
        timeout=PATIENCE_S, preexec_fn=not_ignored,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def not_ignored() -> None:
    """As a terminal starts a program, also where these tests run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_sigint_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As of what a script starts in the background, which Ctrl+C is not for."""
    (tmp_path / "sitecustomize.py").write_text(WITHIN_AN_EXTENSION)
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"}
    done = subprocess.run(
        command("sim", "--list"), cwd=tmp_path, env=environment() | path, capture_output=True,
        timeout=PATIENCE_S, preexec_fn=ignored,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_command_without_a_result_of_its_own_leaves_no_half_written_file(
    number: int, code: int, tmp_path: Path
) -> None:
    row = '{"timestamp":%d,"input_length":512,"output_length":9,"hash_ids":[%d]}\n'
    (tmp_path / "long.jsonl").write_text("".join(row % (n, n) for n in range(150_000)))
    (tmp_path / "ours").mkdir()
    process = subprocess.Popen(
        command("trace", "convert", "long.jsonl", "-o", "ours/long.jsonl"), cwd=tmp_path,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=not_ignored,
    )  # fmt: skip
    while not anything(tmp_path, "ours/.*"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert not out
    assert re.fullmatch(r"(reading trace: .*\n)*", err)  # each 10 s it tells how far it is
    assert process.returncode == code
    assert not anything(tmp_path, "ours/*")
