"""Limits of cgroups and clock rates, read from trees like those of /proc and /sys."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kv_cache.bench.probes.throttles import (
    Stay,
    Throttles,
    cpu_stat,
    io_limits,
    memory_events,
    over,
    read_throttles,
    seen,
    turbo,
    usable_cores,
)
from kv_cache.core.units import NS_PER_S

V1 = {
    "proc/self/cgroup": "3:memory:/box\n2:cpu,cpuacct:/box/one\n1:blkio:/\n0::/\n",
    "proc/self/mountinfo": (
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "38 31 0:35 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    ),
    "sys/fs/cgroup/cpu/box/one/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 500\n",
    "sys/fs/cgroup/cpu/box/cpu.stat": "nr_periods 9\nnr_throttled 1\nthrottled_time 20\n",
    "sys/fs/cgroup/memory/box/memory.failcnt": "7\n",
    "proc/pressure/memory": "some avg10=0.00 total=5000\nfull avg10=0.00 total=1\n",
    "sys/fs/cgroup/blkio/blkio.throttle.read_bps_device": "254:0 1000\n8:0 5\n",
    "sys/fs/cgroup/blkio/blkio.throttle.write_iops_device": "",
    "sys/devices/virtual/block/vda/size": "1\n",
}
V2 = {
    "proc/self/cgroup": "0::/a/b\n",
    "proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
    "sys/fs/cgroup/a/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 3\n",
    "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 5\nnr_throttled 0\nthrottled_usec 0\n",
    "sys/fs/cgroup/a/b/io.max": "254:0 rbps=2000 wbps=max riops=max wiops=10\n",
    "sys/fs/cgroup/a/b/memory.events": "low 1\nhigh 100\nmax 100\noom 100\noom_kill 100\n",
    "sys/fs/cgroup/a/b/memory.events.local": "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n",
    "sys/fs/cgroup/a/b/memory.pressure": "some avg10=0.00 total=7000\nfull avg10=0.00 total=1\n",
    "sys/fs/cgroup/a/memory.pressure": "some avg10=0.00 total=9000\nfull avg10=0.00 total=1\n",
    "sys/fs/cgroup/a/memory.events": "low 1\nhigh 0\nmax 1\noom 0\noom_kill 0\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_version_1_of_cgroups_is_read_at_every_level(tmp_path: Path) -> None:
    tree(tmp_path, V1)
    number = tmp_path / "sys/dev/block/254:0"
    number.parent.mkdir(parents=True)
    number.symlink_to(tmp_path / "sys/devices/virtual/block/vda")
    assert read_throttles(tmp_path) == Throttles(
        cpu_throttled_periods=5,
        cpu_throttled_ns=520,
        memory_limit_events=7,
        memory_stalled_ns=5_000_000,
        io_limits=(
            "vda read_bps=1000 (/sys/fs/cgroup/blkio)",
            "8:0 read_bps=5 (/sys/fs/cgroup/blkio)",
        ),
        governor=None,
        turbo=None,
        cgroups=tuple(
            f"/sys/fs/cgroup/{name}" for name in ("cpu/box/one", "cpu/box", "cpu",
                                                  "memory/box", "memory")
        ),
    )  # fmt: skip


def test_version_2_of_cgroups_is_read_at_every_level(tmp_path: Path) -> None:
    assert read_throttles(tree(tmp_path, V2)) == Throttles(
        cpu_throttled_periods=2,
        cpu_throttled_ns=3000,
        memory_limit_events=2 + 3 + 4 + 1,
        memory_stalled_ns=7_000_000,
        io_limits=(
            "254:0 read_bps=2000 (/sys/fs/cgroup/a/b)",
            "254:0 write_iops=10 (/sys/fs/cgroup/a/b)",
        ),
        governor="performance, powersave",
        turbo="off",
        cgroups=2 * ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"),
    )


def test_a_machine_that_says_nothing_gives_nulls(tmp_path: Path) -> None:
    silent = read_throttles(tmp_path)
    assert over([(silent, silent)]) == {
        "cpu_throttled_s": None,
        "cpu_throttled_periods": None,
        "io_limits": [],
        "memory_limit_events": None,
        "memory_stalled_s": None,
        "governor": None,
        "turbo": None,
    }


def test_a_window_has_the_difference_and_what_held_at_either_end() -> None:
    before = Throttles(
        cpu_throttled_periods=5,
        cpu_throttled_ns=1_000_000_000,
        memory_limit_events=10,
        memory_stalled_ns=500_000_000,
        io_limits=("vda read_bps=1 (/a)",),
        governor="powersave",
        turbo="on",
    )
    after = Throttles(
        cpu_throttled_periods=7,
        cpu_throttled_ns=3_500_000_000,
        memory_stalled_ns=2_000_000_000,
        memory_limit_events=3,  # a counter that was set back
        io_limits=("vda read_bps=2 (/a)",),
        governor="performance",
        turbo="on",
    )
    assert over([(before, after)]) == {
        "cpu_throttled_s": 2.5,
        "cpu_throttled_periods": 2,
        "io_limits": ["vda read_bps=1 (/a)", "vda read_bps=2 (/a)"],
        "memory_limit_events": 0,
        "memory_stalled_s": 1.5,
        "governor": "powersave, then performance",
        "turbo": "on",
    }


def test_both_versions_of_a_cpu_stat_are_in_nanoseconds() -> None:
    assert cpu_stat("nr_periods 3\nnr_throttled 1\nthrottled_usec 5\n") == (1, 5000)
    assert cpu_stat("nr_periods 3\nnr_throttled 1\nthrottled_time 5\n") == (1, 5)
    assert cpu_stat("usage_usec 3\n") == (None, None)


def test_events_of_a_memory_limit_are_those_that_slow_down() -> None:
    assert memory_events("12\n") == 12
    assert memory_events("low 9\nhigh 1\nmax 2\noom 3\noom_kill 9\n") == 6
    assert memory_events("") is None


def test_only_limits_in_force_are_named() -> None:
    files = {"io.max": "8:0 rbps=max wbps=5 riops=max wiops=max new=1\n"}
    none = dict.fromkeys(("read_bps", "read_iops", "write_iops"))
    assert io_limits(2, files.get) == [("8:0", {"write_bps": 5, **none})]
    waiting = (
        "259:0 rbytes=4096 wbytes=151011328 rios=1 wios=299 dbytes=0 dios=0 cost.usage=39127164\n"
    )
    assert io_limits(2, {"io.stat": waiting}.get) == [("259:0", {"io.cost": 1})]
    for other in (waiting.replace("cost.usage", "cost.vrate=10.00 cost.usage"), "8:0 rios=1\n"):
        assert io_limits(2, {"io.stat": other}.get) == []
    files = {"blkio.throttle.read_iops_device": "8:0 7\n"}
    assert io_limits(1, files.get) == [("8:0", {"read_iops": 7})]
    assert io_limits(1, lambda name: None) == []


@pytest.mark.parametrize(
    ("no_turbo", "boost", "expected"),
    [
        ("0\n", None, "on"),
        ("1\n", "1\n", "off"),
        (None, "1\n", "on"),
        (None, "0\n", "off"),
        (None, None, None),
    ],
)
def test_turbo_has_two_names(no_turbo: str | None, boost: str | None, expected: str | None) -> None:
    assert turbo(no_turbo, boost) == expected


def test_this_machine_can_be_read() -> None:
    now = read_throttles()
    assert over([(now, now)])["cpu_throttled_s"] in (None, 0.0)


def test_a_process_that_is_moved_is_told_what_each_of_its_cgroups_stopped() -> None:
    """Taken at both ends, what another cgroup stopped in between was in neither."""

    def look(cgroup: str, throttled_ns: int) -> Throttles:
        return Throttles(
            cpu_throttled_periods=None, cpu_throttled_ns=throttled_ns, memory_limit_events=None,
            memory_stalled_ns=None, io_limits=(), governor=None, turbo=None, cgroups=(cgroup,),
        )  # fmt: skip

    stays: list[Stay] = []
    for cgroup, s in [("/a", 1), ("/a", 2), ("/b", 7), ("/b", 9), ("/b", 12), ("/a", 2), ("/a", 3)]:
        stays = seen(stays, look(cgroup, s * NS_PER_S))
    assert len(stays) == 3
    assert over(stays)["cpu_throttled_s"] == 1 + 5 + 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({}, None),
    ],
)
def test_a_quota_takes_cores_away(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    (tmp_path / "sys/fs/cgroup/a").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "sys/fs/cgroup/a" / name).write_text(text)
    assert usable_cores(tmp_path) == (cores or len(os.sched_getaffinity(0)))
