"""What the machine did between two ticks."""

import mmap
import os
from pathlib import Path

import pytest

from kv_cache.bench.counters import device_of
from kv_cache.bench.monitor import MachineMonitor, gpu_used_bytes
from kv_cache.bench.probes.diskstats import parse, read_diskstats
from kv_cache.bench.probes.pressure import read_pressure, totals_us

STAT = "cpu  {user} 0 50 1000 70 0 0 0 9 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n"
PRESSURE = "some avg10=3.14 avg60=0.82 avg300=1.20 total={us}\nfull avg10=0.00 total=0\n"
DISK = " 254 {minor} {name} {reads} 2 {sectors} {read_ms} {writes} 3 800 {write_ms} 5 {busy} {all}"


def machine(root: Path, *, reads: int, busy_ms: int, user: int = 100, us: int = 1000) -> None:
    """A /proc as the kernel writes it, with two devices alike."""
    rows = [
        DISK.format(
            minor=minor, name=name, reads=reads, sectors=8 * reads, read_ms=3 * reads, writes=7,
            write_ms=9, busy=busy_ms // (1 + minor), all=3 * reads,
        )
        for minor, name in enumerate(("vda", "vdb"))
    ]  # fmt: skip
    (root / "proc/pressure").mkdir(parents=True, exist_ok=True)
    (root / "proc/self").mkdir(exist_ok=True)
    (root / "proc/diskstats").write_text("\n".join(rows) + "\n")
    (root / "proc/stat").write_text(STAT.format(user=user))
    (root / "proc/pressure/io").write_text(PRESSURE.format(us=us))
    (root / "proc/self/statm").write_text("1000 20 3 4 5 6 7\n")
    (root / "proc/meminfo").write_text("MemTotal: 10 kB\nMemAvailable:    8 kB\n")


def test_a_sample_is_what_all_devices_together_did_since_the_last(tmp_path: Path) -> None:
    machine(tmp_path, reads=100, busy_ms=0)
    monitor = MachineMonitor(["vda", "vdb", "vda"], root=tmp_path)
    machine(tmp_path, reads=110, busy_ms=3_600_000)
    sample = monitor.sample()
    assert sample["device_read_ms"] == 3.0
    assert sample["device_write_ms"] is None
    assert sample["device_write_iops"] == 0
    assert sample["device_in_flight"] == 10
    assert sample["device_read_bytes_per_s"] == pytest.approx(4096 * sample["device_read_iops"])
    assert sample["device_queue_depth"] == pytest.approx(0.003 * sample["device_read_iops"])
    assert sample["device_merged"] == 0
    assert sample["rss_bytes"] == 20 * os.sysconf("SC_PAGE_SIZE")
    assert sample["available_memory_bytes"] == 8192
    assert sample["gpu_used_bytes"] is None


def test_utilisation_is_that_of_the_busiest_device_and_never_above_one(tmp_path: Path) -> None:
    machine(tmp_path, reads=0, busy_ms=0)
    monitor = MachineMonitor(["vda", "vdb"], root=tmp_path)
    machine(tmp_path, reads=0, busy_ms=10**9)
    assert monitor.sample()["device_utilisation"] == 1.0
    assert monitor.sample()["device_utilisation"] == 0.0


def test_cpu_and_pressure_are_shares_of_the_time_since_the_last_sample(tmp_path: Path) -> None:
    machine(tmp_path, reads=0, busy_ms=0, user=100, us=0)
    monitor = MachineMonitor(["vda"], root=tmp_path)
    machine(tmp_path, reads=0, busy_ms=0, user=100 + os.sysconf("SC_CLK_TCK"), us=500_000)
    sample = monitor.sample()  # one CPU second and half a second of waiting in the same time
    assert sample["io_pressure_some"] == pytest.approx(0.5 * sample["host_cores_busy"])
    assert sample["io_pressure_full"] == 0
    assert sample["memory_pressure_some"] is None
    assert sample["process_cores"] > 0


def test_what_the_machine_does_not_tell_is_none(tmp_path: Path) -> None:
    sample = MachineMonitor(["vda"], root=tmp_path).sample()
    told = {name for name, value in sample.items() if value is not None}
    assert told == {"process_cores", "cores"}


def test_a_device_that_is_gone_or_was_replaced_has_no_figures(tmp_path: Path) -> None:
    machine(tmp_path, reads=100, busy_ms=0)
    monitor = MachineMonitor(["vda"], root=tmp_path)
    machine(tmp_path, reads=1, busy_ms=0)
    assert monitor.sample()["device_read_iops"] is None
    (tmp_path / "proc/diskstats").write_text("")
    assert monitor.sample()["device_in_flight"] is None
    machine(tmp_path, reads=1, busy_ms=0)
    assert monitor.sample()["device_read_iops"] is None
    assert monitor.sample()["device_read_iops"] == 0


def test_without_devices_the_fields_are_there_and_empty() -> None:
    sample = MachineMonitor([]).sample()
    assert sample["device_utilisation"] is None
    assert sample["rss_bytes"] > 0
    assert set(sample) == set(MachineMonitor(["no-such-device"]).sample())


def test_gpu_memory_is_asked_for_at_each_tick(tmp_path: Path) -> None:
    answers = iter([5, None])
    monitor = MachineMonitor([], gpu=lambda: next(answers), root=tmp_path)
    assert monitor.sample()["gpu_used_bytes"] == 5
    assert monitor.sample()["gpu_used_bytes"] is None
    assert gpu_used_bytes([]) is None


def test_writes_to_this_disk_show_in_its_sample(tmp_path: Path) -> None:
    device = device_of(tmp_path)
    if device is None:
        pytest.skip("the temporary directory lies on no block device")
    monitor = MachineMonitor([device])
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    os.write(fd, mmap.mmap(-1, 1 << 20))  # not fsync, which waits for everybody's bytes
    os.close(fd)
    sample = monitor.sample()
    assert sample["device_write_bytes_per_s"] > 0
    assert sample["device_write_ms"] is not None


def test_diskstats_are_taken_for_all_devices_or_none(tmp_path: Path) -> None:
    machine(tmp_path, reads=100, busy_ms=8)
    both = read_diskstats(["vda", "vdb"], tmp_path)
    assert both is not None
    assert both["vda"].read_bytes == 8 * 100 * 512
    assert both["vda"].waiting_ms == 300
    assert read_diskstats(["vda", "vdc"], tmp_path) is None
    assert parse("", ["vda"]) == {}


def test_a_difference_of_counters_carries_the_later_level(tmp_path: Path) -> None:
    machine(tmp_path, reads=100, busy_ms=8)
    stats = read_diskstats(["vda"], tmp_path)
    assert stats is not None
    moved = stats["vda"] - stats["vda"]
    assert (moved.in_flight, moved.reads, moved.busy_ms) == (5, 0, 0)


def test_pressure_is_empty_where_the_kernel_has_none(tmp_path: Path) -> None:
    assert read_pressure(tmp_path) == {}
    assert totals_us("") == {}
    assert totals_us(PRESSURE.format(us=7)) == {"some": 7, "full": 0}
