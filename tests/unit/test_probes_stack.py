"""Where the bytes of a directory end, on recorded machines and on this one."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench.counters import device_of
from kv_cache.bench.probes.stack import Foot, FootKind, Stack, stack_of
from kv_cache.metrics.passport import Thresholds, judge

GUEST = Path(__file__).parents[1] / "data/stack_guest.json"
"""A guest with five emulated NVMe drives: /sys, nvmet's configfs and mountinfo, as text by path."""


def recorded(
    root: Path, changed: Mapping[str, str] | None = None, *, without: str | None = None
) -> Path:
    """The recorded machine below `root`; `changed`: other text of files, by the end of their
    path; `without` what has this in its path."""
    for name, content in json.loads(GUEST.read_text()).items():
        if without is not None and without in name:
            continue
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            path.symlink_to(content["link"])
        else:
            texts = (text for end, text in (changed or {}).items() if name.endswith(end))
            path.write_text(next(texts, content))
    return root


def below(root: Path, directory: str, *, here: bool = True) -> Stack:
    return stack_of([Path(directory)], root, here=lambda _: here)


def disk(*path: str, cached_by: tuple[str, ...] = ()) -> Foot:
    return Foot(name=path[-1], kind=FootKind.DISK, path=path, cached_by=cached_by)


@pytest.mark.parametrize(
    ("place", "files", "kind"),
    [
        ("virtual/mtd/mtd0/mtdblock0", {"device/type": "ram\n"}, FootKind.RAM),
        ("tcm_loop_0/tcm_loop_adapter_0/host1/target1:0:1/1:0:1:0/block/sdb",
         {"device/model": "RAMDISK-MCP     \n"}, FootKind.RAM),
        ("tcm_loop_0/tcm_loop_adapter_0/host1/target1:0:1/1:0:1:0/block/sdb",
         {"device/model": "FILEIO\n"}, FootKind.UNSEEN),
        ("platform/dummy_hcd.0/usb1/1-1/1-1:1.0/host2/target2:0:0/2:0:0:0/block/sdc",
         {"device/model": "File-Stor Gadget\n"}, FootKind.UNSEEN),
        ("pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda",
         {"device/model": "SSD\n"}, FootKind.DISK),
    ],
)  # fmt: skip
def test_a_disk_that_this_machine_plays_is_none(
    place: str, files: Mapping[str, str], kind: FootKind, tmp_path: Path
) -> None:
    """As /sys of a guest showed them: mtdram, a target's RAM disk, a USB gadget."""
    name = Path(place).name
    found = made(tmp_path, place, files, name)
    assert [foot.kind for foot in found.feet] == [kind]
    rules = {FootKind.RAM: {"V27"}, FootKind.UNSEEN: {"V28"}, FootKind.DISK: set()}
    assert broken(found) & {"V27", "V28"} == rules[kind]


def broken(stack: Stack) -> set[str]:
    """The rules that find something where writes to this stack are synced."""
    evidence = {"stack": stack.to_json(), "engines": {"fsync": "object"}}
    return {finding.rule for finding in judge(evidence, Thresholds()).reasons}


def made(root: Path, place: str, files: Mapping[str, str], name: str) -> Stack:
    """The stack of a raw device in a tree that has it at this place below /sys/devices."""
    directory = root / "sys/devices" / place
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    link = root / "sys/class/block" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(directory, link.parent))
    return stack_of([Path("/dev", name)], root)


@pytest.mark.parametrize(
    ("files", "hidden"),
    [
        ({"queue/write_cache": "write through\n", "queue/fua": "1\n"}, True),  # NVMe
        ({"queue/write_cache": "write through\n", "cache_type": "write back\n"}, True),  # virtio
        ({"queue/write_cache": "write through\n",
          "device/scsi_disk/0:0:0:0/cache_type": "write back\n"}, True),
        ({"queue/write_cache": "write through\n", "queue/fua": "0\n"}, False),
        ({"queue/write_cache": "write back\n", "queue/fua": "1\n"}, False),
    ],
)  # fmt: skip
def test_a_write_cache_that_the_kernel_was_told_to_take_for_none_is_seen(
    files: Mapping[str, str], hidden: bool, tmp_path: Path
) -> None:
    found = made(tmp_path, "pci0000:00/0000:00:02.0/block/sda", files, "sda")
    assert found.hidden_caches == (("sda",) if hidden else ())
    assert ("V31" in broken(found)) is hidden


# --- followed ----------------------------------------------------------------------------------


def test_a_raw_device_ends_where_it_does_below_a_file_system(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/dev/md0")
    assert found.feet == tuple(disk("raw device", "md0", name) for name in ("nvme0n1", "nvme1n1"))


def test_a_stripe_ends_on_each_of_its_drives(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/md/kv")
    assert found.feet == tuple(disk("ext4 /m/md", "md0", name) for name in ("nvme0n1", "nvme1n1"))
    assert found.devices == {"md0", "nvme0n1", "nvme1n1"}
    assert found.disks == ("nvme0n1", "nvme1n1")
    assert found.not_compared == ()


def test_a_linear_volume_ends_on_its_drive_and_its_mount_has_no_barriers(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/lvm")
    assert found.feet == (disk("ext4 /m/lvm", "dm-0", "nvme2n1"),)
    assert (found.not_compared, found.no_barrier) == ((), ("ext4 /m/lvm",))


def test_a_mirrored_volume_is_followed_and_its_bytes_are_not_compared(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/mir")
    assert set(found.disks) == {"nvme2n1", "nvme4n1"}
    (why,) = found.not_compared
    assert why.endswith("is a logical volume with parts (mirror, RAID, thin, cache or snapshot)")


def test_an_md_mirror_is_not_compared(tmp_path: Path) -> None:
    found = below(recorded(tmp_path, {"md/level": "raid1\n"}), "/m/md")
    assert found.not_compared == ("md0 is md raid1",)


def test_an_encrypted_partition_ends_on_the_whole_drive(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/crypt")
    (foot,) = found.feet
    assert (foot.kind, foot.path[0]) == (FootKind.DISK, "ext4 /m/crypt")
    assert foot.path[2:] == ("nvme3n1p1", "nvme3n1")
    assert found.not_compared == ()


def test_a_loop_device_with_direct_io_is_followed_to_its_file(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/loop")
    assert found.feet == (disk("ext4 /m/loop", "loop0", "ext4 /m/lvm", "dm-0", "nvme2n1"),)
    assert found.no_barrier == ("ext4 /m/lvm",)  # the file system of the file, not the upper one


def test_a_loop_device_without_direct_io_answers_from_the_page_cache(tmp_path: Path) -> None:
    (foot,) = below(recorded(tmp_path, {"loop/dio": "0\n"}), "/m/loop").feet
    assert foot.cached_by == ("loop0 (loop without direct I/O: dio 0)",)


def test_a_target_on_this_machine_is_followed_to_its_partition(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/tcp")
    assert found.feet == (disk("ext4 /m/tcp", "nvme5n1", "nvme3n1p2", "nvme3n1"),)
    assert (found.uncounted, found.disks) == (("nvme5n1",), ("nvme3n1",))  # of Linux 6.1


def test_a_target_on_this_machine_is_followed_to_its_file_and_named_if_it_buffers(
    tmp_path: Path,
) -> None:
    direct = below(recorded(tmp_path / "direct"), "/m/tcpf")
    ways = [("ext4 /m/tcpf", "nvme5n2", "ext4 /m/md", "md0", f"nvme{n}n1") for n in (0, 1)]
    assert direct.feet == tuple(disk(*way) for way in ways)
    buffered = below(
        recorded(tmp_path / "buffered", {"namespaces/2/buffered_io": "1\n"}), "/m/tcpf"
    )
    cache = ("nvme5n2 (nvmet with buffered_io 1)",)
    assert buffered.feet == tuple(disk(*way, cached_by=cache) for way in ways)


def test_directories_on_one_drive_have_one_foot(tmp_path: Path) -> None:
    found = stack_of([Path("/m/md/a"), Path("/m/md/b")], recorded(tmp_path))
    assert len(found.feet) == 2  # the stripe's


# --- memory, and what cannot be seen -----------------------------------------------------------


@pytest.mark.parametrize(("mount", "name"), [("zram", "zram0"), ("brd", "ram0")])
def test_a_device_of_memory_is_named(mount: str, name: str, tmp_path: Path) -> None:
    (foot,) = below(recorded(tmp_path), f"/m/{mount}").feet
    assert (foot.name, foot.kind) == (name, FootKind.RAM)


def test_a_loop_device_on_a_file_in_memory_ends_there(tmp_path: Path) -> None:
    (foot,) = below(recorded(tmp_path, {"loop/backing_file": "/dev/shm/img\n"}), "/m/loop").feet
    assert (foot.name, foot.kind) == ("tmpfs /dev/shm", FootKind.RAM)


def test_a_target_on_another_host_is_an_unseen_foot(tmp_path: Path) -> None:
    found = below(recorded(tmp_path), "/m/tcp", here=False)
    (foot,) = found.feet
    assert (foot.name, foot.kind) == ("nvme5n1", FootKind.UNSEEN)
    assert foot.reason == "NVMe/TCP to 127.0.0.1"
    assert found.disks == ()


def test_a_target_here_that_the_kernel_does_not_serve_is_unseen(tmp_path: Path) -> None:
    (foot,) = below(recorded(tmp_path, without="nvmet"), "/m/tcp").feet
    assert foot.reason == "its target is on this machine, but not in the kernel's nvmet"


@pytest.mark.parametrize("kind", ["fuse.sshfs", "nfs4", "overlay", "zfs"])
def test_a_file_on_a_file_system_without_a_device_is_unseen(kind: str, tmp_path: Path) -> None:
    mounts = json.loads(GUEST.read_text())["proc/self/mountinfo"]
    root = recorded(
        tmp_path,
        {
            "loop/backing_file": "/far/img\n",
            "mountinfo": f"{mounts}99 29 0:99 / /far rw - {kind} far rw\n",
        },
    )
    (foot,) = below(root, "/m/loop").feet
    assert (foot.name, foot.kind) == (f"{kind} /far", FootKind.UNSEEN)


def test_a_device_that_sys_does_not_show_is_unseen(tmp_path: Path) -> None:
    feet = below(recorded(tmp_path, without="block/nvme0n1"), "/m/md").feet
    assert [foot.kind for foot in feet] == [FootKind.UNSEEN, FootKind.DISK]


def test_a_stack_that_leads_in_circles_ends(tmp_path: Path) -> None:
    (foot,) = below(recorded(tmp_path, {"loop/backing_file": "/m/loop/img\n"}), "/m/loop").feet
    assert (foot.kind, foot.name) == (FootKind.UNSEEN, "loop0")


# --- this machine ------------------------------------------------------------------------------


def test_this_machine_ends_somewhere_and_says_so_in_json(tmp_path: Path) -> None:
    found = stack_of([tmp_path / "not" / "there"])
    assert found.feet
    device = device_of(tmp_path)
    assert device is None or device in found.devices
    made: Any = json.loads(json.dumps(found.to_json()))
    assert made == found.to_json()


def test_memory_has_no_device_below_it() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    (foot,) = stack_of([Path("/dev/shm/kv")]).feet
    assert (foot.kind, len(foot.path)) == (FootKind.RAM, 1)


def test_a_path_that_cannot_be_is_looked_at_all_the_same(tmp_path: Path) -> None:
    assert stack_of([tmp_path / "a\0b"]).feet
