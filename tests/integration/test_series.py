"""The windows of a run, from the program's own result: what they add up to, and when they are. And
what a trace of the block layer adds to a result."""

import itertools
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kv_cache.bench.windows as real_run
from kv_cache.bench.tracing import why_not
from kv_cache.cli import main
from tests.cli import SMALL, Ran, one_configuration, prepare, small
from tests.integration.test_runs import sound

ORDER = ("populate", "precondition", "warmup", "measure", "drain")
TICKS = "monitor: {tick_s: 0.2}\n"
DRIVERS = ("real", "virtual")


def ticking(cwd: Path, driver: str, *args: str, extra: str = TICKS) -> Ran:
    """A small run whose windows are short."""
    prepare(cwd)
    (cwd / "ticks.yaml").write_text((cwd / "small.yaml").read_text() + extra)
    more = ["--virtual-time"] if driver == "virtual" else []
    return small(cwd, "--config=ticks.yaml", *args, *more)


def windows_of(own: Any) -> Any:
    """The windows, of which none stands for several."""
    series = own["series"]
    assert series["together"] == 1
    return series["windows"]


def assert_in_order(windows: Any) -> None:
    assert windows[0]["start_s"] == 0
    for earlier, later in itertools.pairwise(windows):
        assert later["start_s"] == earlier["end_s"] > earlier["start_s"]
        assert ORDER.index(later["phase"]) >= ORDER.index(earlier["phase"])


def assert_sums(own: Any) -> None:
    """The windows hold each request and each operation once, as the result counts them."""
    windows, books = windows_of(own), own["requests"]
    mine = [w for w in windows if w["phase"] in ("warmup", "measure", "drain")]
    assert sum(w["submitted"] for w in mine) == books["submitted"]
    ended = sum(w["completed"] for w in mine)
    assert ended == books["completed"] + books["unfinished_completed_in_drain"]
    counted: Counter[Any] = Counter()
    for window in windows:
        for tier, kinds in window["tiers"].items():
            for kind, ops in kinds.items():
                counted["operations", tier, kind] += ops["operations"]
                counted["bytes", tier, kind] += ops["bytes"]
                counted["system_calls", tier, kind] += ops["system_calls"]
    told: Counter[Any] = Counter()
    for row in own["operations"]:
        for name in ("operations", "bytes", "system_calls"):
            told[name, row["tier"], row["operation"]] += row[name]
    assert +counted == +told
    classes = [c for w in mine for c in w["classes"].values()]
    assert sum(c["completed"] for c in classes) == ended


@pytest.mark.parametrize("driver", DRIVERS)
def test_windows_follow_each_other_and_add_up_to_the_totals(driver: str, tmp_path: Path) -> None:
    own = sound(ticking(tmp_path, driver, "--duration=2", "--warmup=0.7"))
    windows = windows_of(own)
    assert_in_order(windows)
    assert_sums(own)
    measured = [w for w in windows if w["phase"] == "measure"]
    start_s, end_s = (own["phases_ns"][f"measure_{name}"] / 1e9 for name in ("start", "end"))
    first, last = (windows.index(measured[place]) for place in (0, -1))  # on time, or cut late
    assert windows[first - 1]["start_s"] < start_s < windows[first]["end_s"]
    assert (
        windows[last]["start_s"] < end_s < [*windows[last + 1 :], windows[last]][0]["end_s"] + 0.1
    )
    assert {w["users"] for w in windows} == {4}
    assert {w["workers"] for w in windows} == {4}
    assert all(("rss_bytes" in w["machine"]) == (driver == "real") for w in windows)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_of_so_many_requests_adds_up_too(driver: str, tmp_path: Path) -> None:
    own = sound(ticking(tmp_path, driver, "--max-requests=60"))
    assert_in_order(windows_of(own))
    assert_sums(own)
    assert own["requests"]["submitted"] == 60


def test_populating_has_windows_of_its_own(tmp_path: Path) -> None:
    own = sound(ticking(tmp_path, "real", "--decode-only", "--max-requests=40"))
    windows = windows_of(own)
    assert_in_order(windows)
    assert_sums(own)
    populated = [w for w in windows if w["phase"] == "populate"]
    assert sum(w["tiers"].get("storage", {}).get("write", {}).get("bytes", 0) for w in populated)
    assert not any(w["submitted"] for w in populated)


def test_windows_of_virtual_time_are_a_tick_long_however_little_happens(tmp_path: Path) -> None:
    ran = ticking(
        tmp_path, "virtual", "--duration=30", "--request-rate=0.1", "--arrival=poisson", extra=""
    )
    windows = windows_of(sound(ran))
    measured = [w for w in windows if w["phase"] == "measure"]
    lengths = [w["end_s"] - w["start_s"] for w in measured]
    assert lengths == pytest.approx([1.0] * 30)


def test_virtual_time_gives_the_same_series_twice(tmp_path: Path) -> None:
    seen = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        seen.append(sound(ticking(tmp_path / name, "virtual", "--duration=5"))["series"])
    assert seen[0] == seen[1]


def test_what_is_measured_is_in_windows_of_that_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine is so quick that the phases before took less than a window's least time,
    the first window is measured, and not of a warm-up that there was not."""
    monkeypatch.setattr(real_run, "_SHORTEST_NS", 150_000_000, raising=False)
    own = in_process(tmp_path, monkeypatch, "--duration=1")
    windows = windows_of(own)
    assert not [w for w in windows if w["phase"] == "warmup" and w["completed"]]


def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> Any:
    prepare(tmp_path)
    (tmp_path / "ticks.yaml").write_text((tmp_path / "small.yaml").read_text() + TICKS)
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "--config=ticks.yaml", "--cache-dir=cache", "--output=R.json", *args]
    assert main(one_configuration(words)) == 0
    return json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]


# --- latency tracing ---------------------------------------------------------------------------

MISSING = why_not(["any"])


@pytest.mark.root
@pytest.mark.skipif(MISSING is not None, reason=MISSING or "everything is there")
def test_a_traced_run_has_the_reference_s_keys(tmp_path: Path) -> None:
    ran = small(tmp_path, "--enable-latency-tracing", "--duration=1.5")
    own = sound(ran)
    told = own["latency_tracing"]
    if told["reason"] is not None:
        pytest.skip(told["reason"])
    keys = ran.result["device_latency_tracing"]
    assert {"d2c_read_us", "d2c_write_us"} <= keys.keys(), sorted(keys)
    assert_sums(own)


def test_without_bpftrace_the_reason_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("setpriv", "unshare", "sh", "mount"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    ran = small(tmp_path, "--enable-latency-tracing", "--max-requests=20")
    own = sound(ran)
    assert "device_latency_tracing" not in ran.result
    reason = own["latency_tracing"]["reason"]
    wanted = "bpftrace" if os.geteuid() == 0 else "root"
    assert wanted in reason
    assert reason in ran.err


def test_in_virtual_time_nothing_is_traced_and_that_is_said(tmp_path: Path) -> None:
    ran = small(tmp_path, "--enable-latency-tracing", "--max-requests=20", "--virtual-time")
    assert sound(ran)["latency_tracing"] is None
    assert "latency_tracing" in ran.err
