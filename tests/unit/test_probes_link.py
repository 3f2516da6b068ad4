"""What a drive's link can carry, from trees like those of sysfs."""

from pathlib import Path

import pytest

from kv_cache.bench.probes.link import bytes_per_second, link_of, namespaces_beside

ROOT_PORT = "devices/pci0000:00/0000:00:01.0"
DRIVE = f"{ROOT_PORT}/0000:01:00.0"
DISK = f"{DRIVE}/nvme/nvme0/nvme0n1"


def pci(sysfs: Path, directory: str, speed: str, width: str) -> None:
    (sysfs / directory).mkdir(parents=True, exist_ok=True)
    (sysfs / directory / "current_link_speed").write_text(f"{speed}\n")
    (sysfs / directory / "current_link_width").write_text(f"{width}\n")


def disk(sysfs: Path, directory: str) -> None:
    """A block device and its entry in class/block."""
    (sysfs / directory).mkdir(parents=True)
    (sysfs / "class/block").mkdir(parents=True, exist_ok=True)
    (sysfs / "class/block" / Path(directory).name).symlink_to(sysfs / directory)


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        ("2.5 GT/s PCIe", "1", 0.25),
        ("5.0 GT/s PCIe", "4", 2.0),
        ("8.0 GT/s PCIe", "4", 3.938),
        ("16.0 GT/s PCIe", "4", 7.877),
        ("32.0 GT/s PCIe", "4", 15.754),
        ("8 GT/s", "2\n", 1.969),  # as kernels before 5.7 write it
    ],
)
def test_a_link_carries_its_lanes_less_the_coding(speed: str, width: str, gigabytes: float) -> None:
    rate = bytes_per_second(speed, width)
    assert rate is not None
    assert round(rate / 1e9, 3) == gigabytes


@pytest.mark.parametrize(
    ("speed", "width"),
    [("Unknown", "4"), ("16.0 GT/s PCIe", "0"), ("16.0 GT/s PCIe", "255"), (None, "4"), ("", None)],
)
def test_a_link_that_is_not_told_has_no_rate(speed: str | None, width: str | None) -> None:
    assert bytes_per_second(speed, width) is None


def test_a_disk_and_its_partition_have_the_drives_link(tmp_path: Path) -> None:
    pci(tmp_path, DRIVE, "16.0 GT/s PCIe", "4")
    disk(tmp_path, DISK)
    disk(tmp_path, f"{DISK}/nvme0n1p2")
    found = link_of("nvme0n1", tmp_path)
    assert found == (bytes_per_second("16.0 GT/s PCIe", "4"), "0000:01:00.0: 16.0 GT/s PCIe x4")
    assert link_of("nvme0n1p2", tmp_path) == found


def test_the_narrowest_link_on_the_way_counts(tmp_path: Path) -> None:
    pci(tmp_path, DRIVE, "32.0 GT/s PCIe", "4")
    pci(tmp_path, ROOT_PORT, "8.0 GT/s PCIe", "4")
    disk(tmp_path, DISK)
    found = link_of("nvme0n1", tmp_path)
    assert found is not None
    assert found[1] == "0000:00:01.0: 8.0 GT/s PCIe x4"


def test_a_bridge_that_tells_nothing_does_not_count(tmp_path: Path) -> None:
    pci(tmp_path, DRIVE, "32.0 GT/s PCIe", "4")
    pci(tmp_path, ROOT_PORT, "Unknown", "255")
    disk(tmp_path, DISK)
    found = link_of("nvme0n1", tmp_path)
    assert found is not None
    assert found[1] == "0000:01:00.0: 32.0 GT/s PCIe x4"


def test_a_drive_that_does_not_tell_its_link_has_none(tmp_path: Path) -> None:
    pci(tmp_path, DRIVE, "Unknown", "0")
    pci(tmp_path, ROOT_PORT, "8.0 GT/s PCIe", "16")
    disk(tmp_path, DISK)
    assert link_of("nvme0n1", tmp_path) is None


def test_with_multipath_the_links_of_all_controllers_add_up(tmp_path: Path) -> None:
    subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0"
    disk(tmp_path, f"{subsystem}/nvme0n1")
    for number in (0, 1):
        controller = f"devices/pci0000:00/0000:0{number}:00.0"
        pci(tmp_path, controller, "16.0 GT/s PCIe", "2")
        (tmp_path / f"{controller}/nvme/nvme{number}").mkdir(parents=True)
        link = tmp_path / subsystem / f"nvme{number}"
        link.symlink_to(tmp_path / f"{controller}/nvme/nvme{number}")
    found = link_of("nvme0n1", tmp_path)
    assert found == (
        bytes_per_second("16.0 GT/s PCIe", "4"),
        "0000:00:00.0: 16.0 GT/s PCIe x2 + 0000:01:00.0: 16.0 GT/s PCIe x2",
    )


def test_over_a_network_there_is_no_link(tmp_path: Path) -> None:
    disk(tmp_path, "devices/virtual/nvme-fabrics/ctl/nvme0/nvme0n1")
    assert link_of("nvme0n1", tmp_path) is None


def test_other_disks_have_none_though_their_adapter_is_on_pcie(tmp_path: Path) -> None:
    pci(tmp_path, DRIVE, "8.0 GT/s PCIe", "1")
    for name in ("sda", "vda"):
        disk(tmp_path, f"{DRIVE}/host0/block/{name}")
        assert link_of(name, tmp_path) is None
    assert link_of("nvme9n1", tmp_path) is None
    assert link_of(None, tmp_path) is None


# --- namespaces ------------------------------------------------------------------------------


def test_other_namespaces_of_a_drive_are_beside_it(tmp_path: Path) -> None:
    for name in ("nvme0n1", "nvme0n1/nvme0n1p1", "nvme0n2", "ng0n2", "hwmon0"):
        disk(tmp_path, f"{DRIVE}/nvme/nvme0/{name}")
    disk(tmp_path, f"{ROOT_PORT}/0000:02:00.0/nvme/nvme1/nvme1n1")
    assert namespaces_beside(["nvme0n1"], tmp_path) == ("nvme0n2",)
    assert namespaces_beside(["nvme0n1", "nvme0n2"], tmp_path) == ()
    assert namespaces_beside(["nvme1n1", "sda"], tmp_path) == ()
    for name in ("nvme4n1", "nvme4c4n1", "nvme4n7"):  # over several paths
        disk(tmp_path, f"devices/virtual/nvme-subsystem/nvme-subsys4/{name}")
    assert namespaces_beside(["nvme4n1"], tmp_path) == ("nvme4n7",)
