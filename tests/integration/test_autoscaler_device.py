"""The autoscaler on a real device whose rate changes while users ask and do not wait."""

import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.devices import NBD_TOOLS, changing_directory
from benchmarks.devices import why_not as why_no_device
from tests.cli import SMALL, finish, one_configuration, start
from tests.integration.test_runs import wait_for_objects
from tests.integration.test_series import windows_of

OPEN = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 8}
run: {drain_s: 2, warmup_s: 0}
monitor: {tick_s: 0.5}
qos_distribution: {interactive_probability: 1.0, responsive_threshold: 1.0}
qos_profiles:
  interactive: {target_latency_p95_ms: 1000, target_latency_p99_ms: 20000,
                target_latency_p999_ms: 20000, target_latency_p9999_ms: 20000}
autoscaler: {windows_per_sample: 1, cooldown_samples: 2, max_users: 400}
workload: {multi_turn: false, prefix_caching: false}
user_templates:
  chatbot: &same {context_range: [64, 64], generation_range: [1, 1], think_time_range: [0.8, 1.2]}
  coding: *same
  document: *same
"""
"""Objects of 1 MiB; the device has 100 MB/s at first, enough for 95 users who ask once a second."""

SLOWER_S, FASTER_S, END_S = 18.0, 40.0, 54.0
WINDOW_S = 0.5


def first(rows: list[Any], action: str, after_s: float) -> float:
    """How long after an instant the first such decision was."""
    instants = [float(row["at_s"]) for row in rows if row["action"] == action]
    return min(at_s - after_s for at_s in instants if at_s > after_s)


@pytest.mark.nightly
@pytest.mark.skipif(why_no_device(NBD_TOOLS) is not None, reason=why_no_device(NBD_TOOLS) or "")
def test_users_follow_a_device_that_becomes_slower_and_faster(tmp_path: Path) -> None:
    (tmp_path / "open.yaml").write_text(OPEN)
    with changing_directory(100_000_000, 0.5) as device:
        process = start(
            tmp_path,
            one_configuration([
                *SMALL, "--config=open.yaml", f"--cache-dir={device.path / 'cache'}",
                "--set=run.kv_bytes_per_token=16384", "--cpu-mem-gb=0", "--prefill-only",
                "--storage-capacity-gb=0.2", "--arrival=open", "--num-users=64",
                "--enable-autoscaling", "--target-saturation=1", f"--duration={END_S:g}",
                "--warmup=0", "--output=R.json",
            ]),
        )  # fmt: skip
        wait_for_objects(device.path / "cache", process)
        begun_s, changed_at = time.time(), []
        for after_s, bytes_per_s in ((SLOWER_S, 33_000_000), (FASTER_S, 264_000_000)):
            time.sleep(max(0.0, begun_s + after_s - time.time()))
            device.set_rate(bytes_per_s)
            changed_at.append(time.time())
        ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    rows, origin = ran.own["autoscaling"], datetime.fromisoformat(ran.own["started_utc"])
    slower_s, faster_s = (at - origin.timestamp() for at in changed_at)
    path = [(round(r["at_s"], 1), r["users"]) for r in rows]

    def between(begin_s: float, end_s: float) -> list[Any]:
        return [w for w in windows_of(ran.own) if begin_s < w["end_s"] <= end_s]

    def longest_ms(windows: list[Any]) -> list[float]:
        classes = (w["classes"].get("interactive") for w in windows)
        return [each["response_ms"]["max_ms"] for each in classes if each is not None]

    at_first, slow = between(slower_s - 4, slower_s), between(faster_s - 8, faster_s)
    fast = between(faster_s, faster_s + END_S - FASTER_S)
    answer_s = (3 + 5) * WINDOW_S  # five windows of a cooldown may have just begun
    assert first(rows, "scale_down", slower_s) <= answer_s, path
    assert median(w["users"] for w in slow) < 0.6 * median(w["users"] for w in at_first), path
    assert max(w["users"] for w in fast) > median(w["users"] for w in slow), path
    if median(longest_ms(fast[1:5])) < 0.3 * min(longest_ms(slow)):  # of a machine that is not busy
        assert first(rows, "scale_up", faster_s) <= answer_s, path
        assert max(w["users"] for w in fast) > 2 * median(w["users"] for w in slow), path
