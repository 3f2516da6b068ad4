"""Signals in bursts: none is lost, and none stops who is told."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from kv_cache.cli.interrupts import Stop
from tests.cli import environment

# A child sends signals for a second while its parent sets, waits and looks.
BURST = """
import os, sys, time
from kv_cache.cli.interrupts import interrupts

number, parent = int(sys.argv[1]), os.getpid()
with interrupts() as caught:
    seen = []
    caught.on_signal = lambda: seen.append(caught.came)
    child = os.fork()
    if not child:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            os.kill(parent, number)
        os._exit(0)
    turns = 0
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        caught.stop.wait(0.0001)
        caught.stop.set()
        turns += 1
print(caught.exit_code, len(seen) > 10 and all(seen), turns > 10)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_in_a_burst_never_stop_the_thread_that_waits_for_them(
    number: signal.Signals, code: int
) -> None:
    """A plain event has a lock, which a second signal waits for within the handler of the first."""
    done = subprocess.run(
        [sys.executable, "-c", BURST, str(int(number))],
        env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{code} True True\n", "")


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
        thread.join(30)
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
