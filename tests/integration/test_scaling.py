"""Users who come and go in a run, by the autoscaler's decisions: from the command line to what the
result says of them."""

import itertools
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kv_cache.cli.progress as command
from kv_cache.cli import main
from tests.cli import SMALL, Ran, finish, one_configuration, prepare, run, start
from tests.covering import by_day
from tests.integration.test_runs import wait_for_objects
from tests.integration.test_series import assert_in_order, assert_sums, windows_of

SCALE = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 5}
monitor: {tick_s: 0.1}
qos_distribution: {interactive_probability: 1.0, responsive_threshold: 1.0}
qos_profiles:
  interactive: {target_latency_p95_ms: 20000, target_latency_p99_ms: 20000,
                target_latency_p999_ms: 20000, target_latency_p9999_ms: 20000}
autoscaler: {scale_up_factor: 1.5, windows_per_sample: 1, cooldown_samples: 1,
             consecutive_samples_required: 1, max_users: 40}
user_templates:
  chatbot: &same {context_range: [16, 32], generation_range: [4, 8], think_time_range: [0.02, 0.06]}
  coding: *same
  document: *same
"""
"""Promises that are easily kept, and decisions every few tenths of a second."""

FLAGS = one_configuration([*SMALL, "--config=scale.yaml", "--cache-dir=cache", "--output=R.json"])
SCALING = [*FLAGS, "--enable-autoscaling"]


def scaling(cwd: Path, *args: str) -> Ran:
    (cwd / "scale.yaml").write_text(SCALE)
    return run(cwd, *SCALING, *args)


def assert_books(own: Any) -> None:
    books = own["requests"]
    ends = ("completed", "failed", "rejected", "unfinished")
    assert books["submitted"] == sum(books[name] for name in ends)
    assert books["failed"] == 0
    assert_in_order(windows_of(own))
    assert_sums(own)


def assert_decisions(result: Any) -> None:
    """Each is told with its reason and evidence, one follows from the other, and the summary has
    them as the reference would."""
    own, summary = result["kv_cache"], result["summary"]
    rows = own["autoscaling"]
    assert rows
    users = 4
    for row in rows:
        assert row["users_before"] == users
        users = row["users"]
        assert str(row["users_before"]) in row["reason"]
        assert row["evidence"]["windows"] > 0
        assert row["evidence"]["saturation"].keys() == {"level", "by", "saturated"}
        up = row["users"] > row["users_before"]
        assert row["action"] in (("scale_up",) if up else ("scale_down", "stop"))
    assert [row["at_s"] for row in rows] == sorted(row["at_s"] for row in rows)
    told = summary["autoscaling_stats"]
    assert len(told) == len(rows)
    keys = {"timestamp", "mode", "action", "users", "saturation_level"}
    for row in told:
        more = (
            {"peak_throughput_tokens_per_sec"}
            if row["action"] == "stop"
            else {"read_latency_p95_ms", "write_latency_p95_ms", "throughput_tokens_per_sec"}
        )
        assert row.keys() == keys | more
    overall = summary["autoscaling_summary"]
    assert (overall["initial_users"], overall["final_users"]) == (4, users)
    measured = [w for w in own["series"]["windows"] if w["phase"] == "measure"]
    assert len(result["throughput_timeline"]) == len(measured)


def test_users_come_while_the_promises_are_kept(tmp_path: Path) -> None:
    ran = scaling(tmp_path, "--duration=2")
    assert ran.code == 0, ran.err
    assert ran.own["status"] == "finished"
    assert_books(ran.own)
    assert_decisions(ran.result)
    windows = windows_of(ran.own)
    assert windows[0]["users"] == 4
    assert max(w["users"] for w in windows) > 4
    assert {w["users"] for w in windows} <= {4, *(r["users"] for r in ran.own["autoscaling"])}
    assert all(w["workers"] == w["users"] for w in windows)
    assert max(w["users"] for w in windows) <= 40
    checked = run(tmp_path, "verify", "R.json")
    assert checked.code == 0, checked.err
    assert "INTACT" in checked.out


def test_there_are_as_many_workers_as_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads, not only numbers. One that leaves may take until it has answered, or looked."""
    seen: list[tuple[int, int]] = []
    tick = command.RunProgress.tick

    def counting(self: Any, real: Any) -> None:
        names = [t.name for t in threading.enumerate() if t.is_alive()]
        latest = real.latest
        if real.phase != "check" and latest is not None and latest.gauges.users is not None:
            seen.append((sum(n.startswith("worker-") for n in names), real.intake.users))
        tick(self, real)

    monkeypatch.setattr(command.RunProgress, "tick", counting)
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    (tmp_path / "scale.yaml").write_text(SCALE)
    assert main([*SCALING, "--duration=2"]) == 0
    assert max(users for _, users in seen) > 4
    most = itertools.accumulate((users for _, users in seen), max)
    assert all(
        users <= workers <= before for (workers, users), before in zip(seen, most, strict=True)
    )
    assert max(workers for workers, _ in seen) > 4
    assert not [t.name for t in threading.enumerate() if t.name.startswith("worker-")]


def test_requests_are_as_many_as_were_wanted_however_many_users_come(tmp_path: Path) -> None:
    ran = scaling(tmp_path, "--max-requests=120")
    assert ran.code == 0, ran.err
    assert_books(ran.own)
    assert ran.own["requests"]["submitted"] == ran.own["requests"]["completed"] == 120


@pytest.mark.parametrize(
    "flags",
    by_day(
        {name: ([f"--{name}"],) for name in ("decode-only", "prefill-only", "arrival=open")},
        ["decode-only", "prefill-only"],
    ),
)
def test_every_kind_of_users_can_be_scaled(flags: list[str], tmp_path: Path) -> None:
    ran = scaling(tmp_path, "--duration=2", "--virtual-time", *flags)
    assert ran.code == 0, ran.err
    assert_books(ran.own)
    assert_decisions(ran.result)


STATION = """
sim: {nvme: {read_latency_us: 40000, write_latency_us: 40000, servers: 4,
             read_gbytes_per_s: 1000000, write_gbytes_per_s: 1000000}}
user_templates:
  chatbot: &same {context_range: [100, 100], generation_range: [1, 1], think_time_range: [0.4, 0.4]}
  coding: *same
  document: *same
workload: {multi_turn: false, prefix_caching: false}
monitor: {tick_s: 0.2}
"""
"""4 servers of 40 ms: at most 100 requests/s, which about 44 users who think 0.4 s ask for."""


def test_looking_for_capacity_ends_the_run_at_the_peak(tmp_path: Path) -> None:
    (tmp_path / "station.yaml").write_text(STATION)
    ran = run(
        tmp_path, *SMALL, "--config=station.yaml", "--cpu-mem-gb=0", "--prefill-only",
        "--virtual-time", "--duration=3600", "--enable-autoscaling",
        "--autoscaler-mode=capacity", "--output=R.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert_books(ran.own)
    rows = ran.own["autoscaling"]
    assert ran.own["window_s"] < 3600
    assert [row["action"] for row in rows].count("stop") == 1
    assert rows[-1]["action"] == "stop"
    assert ran.own["status"] == "finished"
    peak = rows[-1]["evidence"]["peak"]
    assert peak["users"] == rows[-1]["users"] >= 36
    assert ran.result["summary"]["autoscaling_summary"]["peak_user_count"] == peak["users"]
    best = max(row["evidence"]["requests_per_s"] for row in rows)
    assert best == pytest.approx(100, rel=0.05)


def test_a_class_that_misses_its_promise_sends_users_away(tmp_path: Path) -> None:
    text = SCALE.replace("20000", "0.001")
    (tmp_path / "strict.yaml").write_text(text)
    ran = run(
        tmp_path, *SMALL, "--config=strict.yaml", "--virtual-time", "--duration=5",
        "--enable-autoscaling", "--num-users=20", "--output=R.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert_books(ran.own)
    rows = ran.own["autoscaling"]
    assert rows
    assert {row["action"] for row in rows} == {"scale_down"}
    assert ran.own["series"]["windows"][-1]["users"] == rows[-1]["users"] < 20


def test_a_run_without_it_has_no_decisions(tmp_path: Path) -> None:
    (tmp_path / "scale.yaml").write_text(SCALE)
    ran = run(tmp_path, *FLAGS, "--virtual-time", "--duration=2")
    assert ran.code == 0, ran.err
    assert ran.own["autoscaling"] == []
    assert ran.result["summary"]["autoscaling_stats"] == []
    assert ran.result["summary"]["autoscaling_summary"] is None
    assert {w["users"] for w in windows_of(ran.own)} == {4}


def test_a_signal_in_the_middle_gives_a_result(tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "scale.yaml").write_text(SCALE)
    process = start(tmp_path, [*SCALING, "--duration=60"])
    wait_for_objects(tmp_path / "cache", process, count=20)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    ran = finish(process, tmp_path)
    assert ran.code == 130, ran.err
    own = ran.own
    assert own["status"] == "interrupted"
    books = own["requests"]
    ends = ("completed", "failed", "rejected", "unfinished")
    assert books["submitted"] == sum(books[name] for name in ends)
    assert_in_order(windows_of(own))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--request-rate=5"],
        ["--trace=datasets/mooncake_sample.jsonl"],
        ["--num-users=41"],
        ["--autoscaler-mode=fastest"],
        ["--target-saturation=1.5"],
    ],
)
def test_what_cannot_be_scaled_is_refused(flags: list[str], tmp_path: Path) -> None:
    ran = scaling(tmp_path, *flags)
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "R.json").exists()


def test_the_same_seed_scales_the_same_way_in_virtual_time(tmp_path: Path) -> None:
    seen = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ran = scaling(
            tmp_path / name, "--virtual-time", "--duration=1", "--results-dir=runs", "--records"
        )
        assert ran.code == 0, ran.err
        (directory,) = (tmp_path / name / "runs").iterdir()
        records = (directory / "requests.jsonl").read_bytes()
        seen.append((ran.own["autoscaling"], ran.own["series"], records))
        assert json.loads(records.splitlines()[0])
    assert seen[0] == seen[1]
    assert seen[0][0]
