"""The canary that measures how late the program is."""

import ctypes
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from kv_cache.bench.probes.lag import LagCanary, in_ms, wake_up
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.histogram import Histogram
from kv_cache.tiers import native
from tests.cli import PATIENCE_S


def wait_until_measured(canary: LagCanary) -> Histogram:
    """A window that is not empty."""
    while not (lags := canary.mark()).count:
        time.sleep(0.001)
    return lags


def test_a_canary_measures_between_start_and_stop() -> None:
    with LagCanary(NS_PER_MS) as canary:
        lags = wait_until_measured(canary)
    assert lags.lowest is not None
    assert lags.lowest >= 0
    canary.mark()
    assert canary.mark().count == 0


def test_a_mark_begins_a_new_window() -> None:
    with LagCanary(NS_PER_MS) as canary:
        first = wait_until_measured(canary)
        counted = first.count
        wait_until_measured(canary)
    assert first.count == counted


def test_a_canary_that_never_started_stops() -> None:
    canary = LagCanary()
    canary.stop()
    assert canary.mark().count == 0


def test_it_can_be_stopped_twice() -> None:
    canary = LagCanary(NS_PER_MS)
    canary.start()
    canary.stop()
    canary.stop()


def test_a_held_interpreter_lock_is_seen() -> None:
    """While one call holds the lock nobody can wake up: the canary is late by no less."""
    before = sys.getswitchinterval()
    with LagCanary(NS_PER_MS) as canary:
        wait_until_measured(canary)
        sys.setswitchinterval(60)  # nobody takes the lock away between the two instants
        try:
            time.sleep(0)  # whoever asked for the lock before has it now
            start_ns = time.monotonic_ns()
            pow(7, 300_000)
            held_ns = time.monotonic_ns() - start_ns
        finally:
            sys.setswitchinterval(before)
    lags = canary.mark()
    assert lags.highest is not None
    assert lags.highest >= held_ns - NS_PER_MS


def test_every_instant_that_a_stall_passed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall of 10 intervals is 10 lags, from the longest to the shortest, and not one."""
    lags: list[int] = []
    once = iter([True, False])
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds + 0.010))
    wake_up(NS_PER_MS, lags.append, lambda: next(once))
    assert len(lags) >= 10
    steps = {earlier - later for earlier, later in pairwise(lags)}
    assert steps == {NS_PER_MS}


def test_the_evidence_is_in_milliseconds_and_null_without_values() -> None:
    lags = Histogram()
    assert set(in_ms(lags).values()) == {None}
    lags.add(2 * NS_PER_MS)
    assert in_ms(lags) == {
        "harness_lag_p50_ms": 2.0,
        "harness_lag_p99_ms": 2.0,
        "harness_lag_max_ms": 2.0,
    }


def test_native_instants_do_not_wait_for_the_interpreter() -> None:
    """While one call holds the lock, native code wakes up as ever."""
    loaded = native.library()
    if isinstance(loaded, str):
        pytest.skip(loaded)
    with LagCanary(NS_PER_MS, loaded) as canary:
        wait_until_measured(canary)
        for _ in range(3):
            ctypes.PyDLL(None).usleep(500_000)  # which keeps the lock, and leaves others the CPU
    lags = canary.mark()
    assert lags.count >= 40
    assert (lags.at_rank(50) or 0) < 125 * NS_PER_MS  # half of them were later if they waited
    assert canary.of == "native"


def test_native_instants_that_a_stall_passed_count_each() -> None:
    loaded = native.library()
    if isinstance(loaded, str):
        pytest.skip(loaded)
    lags = native.wake_up(loaded, 100, 500)  # shorter than any sleep
    assert len(lags) >= 500
    assert min(lags) >= 0
    assert sum(earlier - later == 100 for earlier, later in pairwise(lags)) > 250


STOPPED = """
import signal
import subprocess
import sys
import time
from kv_cache.bench.probes.lag import LagCanary
from kv_cache.tiers.native import library
with LagCanary(1_000_000, library() if sys.argv[1] == "native" else None) as canary:
    while not canary.mark().count:  # on a busy machine its first instant is a while away
        time.sleep(0.01)
    print(flush=True)
    sys.stdin.readline()
    late, until = 0, time.monotonic() + 120  # a busy machine is late to tell of the call
    while late <= 400 and time.monotonic() < until:
        time.sleep(0.05)
        lags = canary.mark()
        late += lags.count - lags.counts_at_most([10_000_000])[0]
print(late)
"""


@pytest.mark.parametrize("of", ["native", "interpreter"])
def test_every_instant_at_which_a_process_was_stopped_counts(of: str) -> None:
    """SIGSTOP for half a second, of instants 1 ms apart: native calls of 20 forgot all but 20."""
    if of == "native" and isinstance(reason := native.library(), str):
        pytest.skip(reason)
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, of], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        child.send_signal(signal.SIGCONT)
        late = int(child.communicate(b"\n", timeout=PATIENCE_S)[0])
    assert late > 400
