"""What a run says about the machine that it was measured on."""

import json
import os
from pathlib import Path

import pytest

from kv_cache.core.mounts import mount_of, parse_mounts
from kv_cache.files.environment import (
    DEVICE_KEYS,
    Reader,
    block_device,
    captured,
    cgroup_limits,
    cpu_model,
    git_commit,
    results_place,
    selected,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_capture_is_json_and_says_what_it_could_not_read(tmp_path: Path) -> None:
    found = captured(tmp_path / "not" / "there")
    assert json.loads(json.dumps(found)) == found
    assert all(": " in line for line in found["unreadable"])
    assert found["packages"]["numpy"]
    assert found["memory"]["total_bytes"] > 0
    assert found["filesystem"]["total_bytes"] >= found["filesystem"]["free_bytes"] > 0
    assert set(found["device"]) == set(DEVICE_KEYS)


def test_the_capture_creates_nothing_and_breaks_on_no_path(tmp_path: Path) -> None:
    found = captured(tmp_path / "a\0b")
    assert found["filesystem"]["type"] is None
    assert any(line.startswith("filesystem: ") for line in found["unreadable"])
    assert list(tmp_path.iterdir()) == []


def test_of_the_environment_only_what_changes_the_measurement_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SECRET_TOKEN", "do not tell")
    found = captured(tmp_path)
    assert found["env"]["OMP_NUM_THREADS"] == "3"
    assert found["env"]["LD_PRELOAD"] == ""
    assert "do not tell" not in json.dumps(found)


def test_a_memory_file_system_has_no_device_but_a_reason() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    found = captured(Path("/dev/shm/kv"))
    assert found["filesystem"]["type"] == "tmpfs"
    assert found["device"]["name"] is None
    assert "no block device" in found["device"]["reason"]


def fake_disk(root: Path, *, files: dict[str, str]) -> None:
    """/sys of a machine with one NVMe disk that has one partition."""
    disk = root / "sys/devices/pci/nvme0/nvme0n1"
    for name, text in files.items():
        write(disk / name, text)
    (disk / "slaves").mkdir()
    write(disk / "nvme0n1p1/partition", "1")
    links = root / "sys/dev/block"
    links.mkdir(parents=True)
    (links / "259:0").symlink_to(disk)
    (links / "259:1").symlink_to(disk / "nvme0n1p1")


QUEUE = {
    "size": "2048",
    "device/model": "Fast Disk 9000   ",
    "device/firmware_rev": "2B4QJXD7",
    "queue/rotational": "0",
    "queue/scheduler": "[none] mq-deadline",
    "queue/nr_requests": "1023",
    "queue/max_sectors_kb": "128",
    "queue/logical_block_size": "4096",
    "queue/write_cache": "write through",
}


def test_a_partition_is_described_by_its_whole_disk(tmp_path: Path) -> None:
    fake_disk(tmp_path, files=QUEUE)
    reader = Reader(tmp_path)
    assert block_device(reader, 259, 1) == {
        "name": "nvme0n1",
        "partition": "nvme0n1p1",
        "major_minor": "259:1",
        "model": "Fast Disk 9000",
        "firmware": "2B4QJXD7",
        "rotational": False,
        "scheduler": "none",
        "nr_requests": 1023,
        "max_sectors_kb": 128,
        "logical_block_bytes": 4096,
        "write_cache": "write through",
        "size_bytes": 1 << 20,
        "backing_file": None,
        "built_on": [],
        "reason": None,
    }
    assert block_device(reader, 259, 0)["partition"] is None
    assert reader.unreadable == []


def test_what_a_disk_does_not_say_is_null_and_listed(tmp_path: Path) -> None:
    fake_disk(tmp_path, files={"size": "8", "queue/nr_requests": "many"})
    reader = Reader(tmp_path)
    found = block_device(reader, 259, 0)
    assert found["size_bytes"] == 4096
    assert found["model"] is None
    assert found["rotational"] is None
    assert any(line.startswith("device.model: ") for line in reader.unreadable)
    assert any("'many' is not a number" in line for line in reader.unreadable)


def test_a_loop_device_names_its_file(tmp_path: Path) -> None:
    fake_disk(tmp_path, files=QUEUE | {"loop/backing_file": "/srv/disk image.img"})
    assert block_device(Reader(tmp_path), 259, 0)["backing_file"] == "/srv/disk image.img"


def test_a_device_that_sysfs_does_not_know_has_a_reason(tmp_path: Path) -> None:
    assert "is not there" in block_device(Reader(tmp_path), 8, 1)["reason"]


MOUNTS = parse_mounts(
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n"
    "50 27 259:1 / /data rw,noatime - xfs /dev/nvme0n1p1 rw,attr2\n"
    "51 50 259:2 /sub /data/my\\040disk rw - ext4 /dev/nvme0n1p2 rw\n"
    "52 50 0:50 / /data/net rw - nfs4 host:/export\n"
    "53 27 0:51 / /data rw - tmpfs tmpfs rw\n"
)


def test_a_path_lies_on_the_deepest_mount_of_its_device() -> None:
    def point(path: str, number: str) -> str | None:
        mount = mount_of(path, number, MOUNTS)
        return None if mount is None else f"{mount.kind} {mount.point}"

    assert point("/database/x", "254:0") == "ext4 /"
    assert point("/data/my disk/x", "259:2") == "ext4 /data/my disk"
    assert point("/data/x", "259:1") == "xfs /data"
    assert point("/data/x", "0:51") == "tmpfs /data"
    assert point("/data/x", "0:99") == "tmpfs /data"  # unknown number: the one mounted last
    assert mount_of("/x", "0:99", []) is None


def test_cgroup_limits_of_version_1_are_the_least_on_the_way_up(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "7:blkio:/a\n4:memory:/a\n1:cpu,cpuacct:/\n0::/")
    write(
        tmp_path / "proc/self/mountinfo",
        "1 0 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n"
        "2 0 0:2 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "3 0 0:3 / /cg/blkio rw - cgroup cgroup rw,blkio",
    )
    write(tmp_path / "cg/memory/a/memory.limit_in_bytes", "1000000")
    write(tmp_path / "cg/memory/memory.limit_in_bytes", "9223372036854771712")
    write(tmp_path / "cg/cpu/cpu.cfs_quota_us", "150000")
    write(tmp_path / "cg/cpu/cpu.cfs_period_us", "100000")
    write(tmp_path / "cg/blkio/a/blkio.throttle.read_bps_device", "254:0 467000000")
    reader = Reader(tmp_path)
    assert cgroup_limits(reader) == {
        "memory_limit_bytes": 1000000,
        "cpu_limit": 1.5,
        "io_throttles": [{"cgroup": "/cg/blkio/a", "device": "254:0", "read_bps": 467000000}],
    }
    assert reader.unreadable == []


def test_cgroup_limits_of_version_2_have_the_same_words(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a/b")
    write(tmp_path / "proc/self/mountinfo", "1 0 0:1 / /cg rw - cgroup2 cgroup2 rw")
    write(tmp_path / "cg/a/memory.max", "5000")
    write(tmp_path / "cg/a/b/memory.max", "max")
    write(tmp_path / "cg/a/cpu.max", "max 100000")
    write(tmp_path / "cg/a/b/io.max", "259:0 rbps=1000 wbps=max riops=max wiops=7")
    throttle = {"read_bps": 1000, "write_bps": None, "read_iops": None, "write_iops": 7}
    assert cgroup_limits(Reader(tmp_path)) == {
        "memory_limit_bytes": 5000,
        "cpu_limit": None,
        "io_throttles": [{"cgroup": "/cg/a/b", "device": "259:0"} | throttle],
    }


def test_a_controller_that_no_hierarchy_carries_has_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/a\n")
    write(tmp_path / "proc/self/mountinfo", "")
    assert cgroup_limits(Reader(tmp_path)) == {
        "memory_limit_bytes": None,
        "cpu_limit": None,
        "io_throttles": [],
    }


def test_the_commit_is_read_from_a_loose_ref_a_packed_ref_or_the_head(tmp_path: Path) -> None:
    reader = Reader()
    assert git_commit(reader, tmp_path) is None
    write(tmp_path / ".git/HEAD", "ref: refs/heads/main")
    write(tmp_path / ".git/packed-refs", f"# pack-refs\n{COMMIT} refs/heads/main")
    assert git_commit(reader, tmp_path) == COMMIT
    write(tmp_path / ".git/refs/heads/main", "f" * 40)
    assert git_commit(reader, tmp_path) == "f" * 40
    write(tmp_path / ".git/HEAD", COMMIT)
    assert git_commit(reader, tmp_path) == COMMIT
    assert reader.unreadable == []


def test_a_linked_work_tree_finds_its_branch_in_the_common_directory(tmp_path: Path) -> None:
    write(tmp_path / "main/.git/worktrees/w/HEAD", "ref: refs/heads/topic")
    write(tmp_path / "main/.git/worktrees/w/commondir", "../..")
    write(tmp_path / "main/.git/refs/heads/topic", COMMIT)
    write(tmp_path / "w/.git", f"gitdir: {tmp_path}/main/.git/worktrees/w")
    assert git_commit(Reader(), tmp_path / "w") == COMMIT


def test_a_branch_without_a_commit_is_listed_as_unreadable(tmp_path: Path) -> None:
    write(tmp_path / ".git/HEAD", "ref: refs/heads/main")
    reader = Reader()
    assert git_commit(reader, tmp_path) is None
    assert reader.unreadable == ["program.git_commit: no commit for refs/heads/main"]


def test_the_chosen_word_is_the_one_in_brackets() -> None:
    assert selected("always [madvise] never") == "madvise"
    assert selected("none") == "none"
    assert selected(None) is None


def test_the_cpu_is_named_as_its_architecture_does() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: Fast 1\n\nmodel name\t: Fast 1\n") == "Fast 1"
    assert cpu_model("processor : 0\n\nModel : Board 4\n") == "Board 4"
    assert cpu_model("processor : 0\n") is None


def test_where_results_go_is_held_against_where_the_cache_is(tmp_path: Path) -> None:
    """`/dev/shm` is a file system of its own on every Linux."""
    same = results_place([tmp_path / "cache" / "rank_0"], tmp_path / "results")
    assert same["same_filesystem"] is True
    assert same["results"]["type"] is not None
    apart = results_place([Path("/dev/shm"), Path("/proc")], tmp_path)
    assert apart["same_filesystem"] is False
    assert results_place([tmp_path / "a\0b"], tmp_path)["same_filesystem"] is None
