"""Storage that stands still: V29 tells place and length, and takes nothing else for it."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.devices import RAM_RULES, THROTTLED_RULES, Faults, faulty_directory, ram_directory
from kv_cache.app.verify import VerifyOptions, verify
from kv_cache.core.units import MIB, NS_PER_MS
from kv_cache.result.histograms import read_histogram
from tests.integration import test_faults
from tests.integration.test_faults import NO_LOOPS, Told, needs_devices, watched_run
from tests.passports import names, says, status
from tests.wrappers import Throttled

Meanwhile = Callable[[Path, threading.Event], None]


def gaps(told: Told) -> list[tuple[float, float]]:
    rows = told.own["passport"]["evidence"]["gaps"]["found"]
    return [(row["at_s"], row["seconds"]) for row in rows]


def hang(faults: Faults, seconds: float) -> Meanwhile:
    def act(cache: Path, ended: threading.Event) -> None:
        faults.pause()
        time.sleep(seconds)  # also if the run wants to end: it waits for the device
        faults.resume()

    return act


@needs_devices
@pytest.mark.root
def test_a_device_that_hangs_to_the_end_of_the_window_is_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_directory(0.2) as faults:
        told = watched_run(
            tmp_path, monkeypatch, "--duration=6", "--cpu-mem-gb=0", "--storage-capacity-gb=0.1",
            meanwhile=hang(faults, 7.0), cache=faults.path,
        )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    names(told.own, V29="suspect", **THROTTLED_RULES)
    ((at_s, seconds),) = gaps(told)
    assert seconds >= 1
    assert at_s + seconds == pytest.approx(told.own["window_s"])
    assert worst(told, "device") > 0.9e3 * seconds
    assert worst(told, "total") > 0.9e3 * seconds
    assert not verify(VerifyOptions(result="R.json")).deviations


def worst(told: Told, part: str) -> float:
    """The largest known time of storage, of those in flight too, in ms."""
    rows = [row for row in told.own["operations"] if row["phase"] == "measure"]
    found = [read_histogram(row[f"histogram_{part}"]) for row in rows]
    return max(h.at_rank(100) or 0 for h in found if h.count) / NS_PER_MS


@needs_devices
@pytest.mark.root
def test_two_seconds_without_an_answer_in_the_middle_of_a_window_are_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_directory(0.2) as faults:
        told = watched_run(
            tmp_path, monkeypatch, "--duration=12", "--cpu-mem-gb=0", "--storage-capacity-gb=0.1",
            meanwhile=hang(faults, 2.0), cache=faults.path,
        )  # fmt: skip
    told.assert_nothing_wrong_was_served()
    names(told.own, V29="suspect", **THROTTLED_RULES)
    at_s, seconds = max(gaps(told), key=lambda gap: gap[1])
    assert at_s + seconds < told.own["window_s"]
    assert f"{seconds:.1f} s from {at_s:.1f} s on" in says(told.own, "V29")


@pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there")
@pytest.mark.root
def test_storage_whose_every_call_takes_long_does_not_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = partial(Throttled, bytes_per_second=MIB / 1.3)
    monkeypatch.setattr(test_faults, "Faulty", lambda store, fault: slow(store))
    with ram_directory(0.2) as directory:
        told = watched_run(
            tmp_path, monkeypatch, "--duration=12", "--cpu-mem-gb=0", "--num-users=1", "--drain=0",
            "--storage-capacity-gb=0.1", cache=directory,
        )  # fmt: skip
    assert told.code == 0
    assert gaps(told), "calls did not take so long"
    names(told.own, **RAM_RULES)
    assert status(told.own, "V29") == "pass", told.own["passport"]["evidence"]["gaps"]


def test_time_in_which_nobody_asks_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = watched_run(
        tmp_path, monkeypatch, "--duration=8", "--cpu-mem-gb=0", "--arrival=fixed",
        "--request-rate=0.5",
    )  # fmt: skip
    assert told.own["requests"]["completed"] >= 2
    assert gaps(told) == []
