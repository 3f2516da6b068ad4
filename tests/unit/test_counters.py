"""Snapshots of what the kernel counted."""

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import structs

from kv_cache.bench.counters import (
    device_of,
    read_counters,
)
from kv_cache.bench.probes.diskstats import added_up, parse, read_diskstats
from kv_cache.bench.procfs import parse_pairs
from kv_cache.core.units import MIB

DISKSTATS = (
    "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    " 254       0 vda 30294 7889 2256938 7674 4375 13633 849656 2022 0 4128 9906 3482 33 1 2 3 4\n"
    " 254       1 vda1 1 2 3 4 5 6 7 8 9 10 11\n"
)


def test_diskstats_are_in_sectors_of_512_bytes() -> None:
    stats = parse(DISKSTATS, ["vda", "vda1"])
    disk = stats["vda"]
    assert (disk.reads, disk.read_bytes) == (30294, 2256938 * 512)
    assert (disk.writes, disk.write_bytes, disk.busy_ms) == (4375, 849656 * 512, 4128)
    assert stats["vda1"].busy_ms == 10


def test_a_device_that_is_not_there_has_no_counters() -> None:
    assert parse(DISKSTATS, ["vdb"]) == {}
    found = read_counters(["no-such-device"])
    assert found.device_read_bytes is None
    assert (found - found).device_io_ms is None


def test_several_devices_add_up_and_one_unknown_makes_all_unknown(tmp_path: Path) -> None:
    assert added_up(parse(DISKSTATS, ["vda", "vda1"]).values()).reads == 30294 + 1
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "diskstats").write_text(DISKSTATS)
    assert read_diskstats(["vda", "vda1"], tmp_path)
    assert read_diskstats(["vda", "vdb"], tmp_path) is None
    assert read_diskstats([], tmp_path) is None


def test_pairs_are_split_at_the_first_colon() -> None:
    assert parse_pairs("rchar: 5\nVmRSS:\t  12 kB\nName:\ta:b\n") == {
        "rchar": "5",
        "VmRSS": "12 kB",
        "Name": "a:b",
    }


def test_a_difference_is_later_less_earlier_and_keeps_the_levels() -> None:
    earlier = structs.replace(
        read_counters([]),
        rchar=100,
        wchar=None,
        process_cpu_ns=5,
        rss_bytes=1000,
        peak_rss_bytes=2000,
    )
    later = structs.replace(
        earlier, rchar=150, wchar=7, process_cpu_ns=9, rss_bytes=900, peak_rss_bytes=3000
    )
    delta = later - earlier
    assert (delta.rchar, delta.wchar, delta.process_cpu_ns) == (50, None, 4)
    assert (delta.rss_bytes, delta.peak_rss_bytes) == (900, 3000)
    assert delta.device is None


def test_counters_of_two_devices_are_not_subtracted() -> None:
    counters = read_counters([])
    with pytest.raises(AssertionError, match="two devices"):
        counters - structs.replace(counters, device="vda")


def test_bytes_written_by_this_process_are_counted(tmp_path: Path) -> None:
    device = device_of(tmp_path)
    devices = [] if device is None else [device]
    before = read_counters(devices)
    if before.wchar is None:
        pytest.skip("the kernel hides /proc/self/io")
    (tmp_path / "f").write_bytes(bytes(MIB))
    delta = read_counters(devices) - before
    assert delta.wchar is not None
    assert delta.wchar >= MIB
    assert delta.process_cpu_ns > 0
    assert delta.peak_rss_bytes > 0


def test_the_device_of_a_path_is_one_that_has_counters(tmp_path: Path) -> None:
    device = device_of(tmp_path / "not" / "there")
    if device is None:
        pytest.skip("the temporary directory has no block device")
    assert read_counters([device]).device_reads is not None


def test_a_memory_file_system_has_no_device() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    assert device_of(Path("/dev/shm/kv")) is None
    assert device_of(Path("/proc/self")) is None


def test_bytes_that_the_other_end_of_a_socket_has_not_taken_are_queued() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        before = read_counters([], sockets=True)
        client.setblocking(False)
        sent = taken = 0
        with suppress(BlockingIOError):
            while True:
                sent += client.send(bytes(2**16))
        queued = (read_counters([], sockets=True) - before).queued_bytes
        assert queued is not None
        assert 0 < queued < sent  # the rest is in the other end's buffer
        while taken < sent:
            taken += len(other.recv(2**20))
        assert (read_counters([], sockets=True) - before).queued_bytes == 0
