"""How much RAM there is, and what a run that wants too much is told."""

import pytest

from kv_cache.bench.memory import (
    available_ram_bytes,
    check_ram,
    left_under_limit,
    reclaimable_bytes,
    usable_bytes,
)
from kv_cache.bench.procfs import cgroup_directories
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, MIB

V1_CGROUPS = "5:cpu,cpuacct:/x\n4:memory:/box/one\n1:name=systemd:/\n0::/\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
V2_MOUNTS = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_what_is_available_is_more_than_nothing() -> None:
    assert available_ram_bytes() > 0


def test_cgroup_v1_has_a_hierarchy_for_each_controller() -> None:
    top = "/sys/fs/cgroup/memory"
    expected = (1, (f"{top}/box/one", f"{top}/box", top))
    assert cgroup_directories("memory", V1_CGROUPS, V1_MOUNTS) == expected


def test_cgroup_v2_has_one_hierarchy() -> None:
    expected = (2, ("/sys/fs/cgroup/a.slice/b", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"))
    assert cgroup_directories("memory", "0::/a.slice/b\n", V2_MOUNTS) == expected


def test_in_a_container_the_mount_shows_only_its_own_part() -> None:
    mounts = "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    found = cgroup_directories("memory", "4:memory:/docker/1/sub\n", mounts)
    assert found == (1, ("/sys/fs/cgroup/memory/sub", "/sys/fs/cgroup/memory"))
    outside = cgroup_directories("memory", "4:memory:/elsewhere\n", mounts)
    assert outside == (1, ("/sys/fs/cgroup/memory",))


def test_without_cgroups_there_is_no_directory() -> None:
    assert cgroup_directories("memory", "", "") == (2, ())
    assert cgroup_directories("memory", "4:memory:/a\n", "") == (2, ())


def test_a_limit_leaves_what_is_unused_or_reclaimable() -> None:
    statistics = "anon 5\ninactive_file 200\nactive_file 7\n"
    assert left_under_limit("1000\n", "900\n", statistics) == 300
    assert left_under_limit("max\n", "900\n", statistics) is None
    assert left_under_limit(None, "900\n", statistics) is None
    assert left_under_limit("1000\n", "900\n", None) == 100


def test_cgroup_v1_counts_the_page_cache_of_the_groups_below_too() -> None:
    assert reclaimable_bytes("inactive_file 1\ntotal_inactive_file 7\n") == 7
    assert reclaimable_bytes("") == 0


def test_a_tenth_and_at_least_256_mib_are_left_to_others() -> None:
    assert usable_bytes(10 * GIB) == 9 * GIB
    assert usable_bytes(GIB) == GIB - 256 * MIB
    assert usable_bytes(MIB) == 0


def test_what_fits_is_accepted() -> None:
    check_ram({"cpu tier": 9 * GIB}, available=10 * GIB)
    check_ram({}, available=0)


def test_too_much_is_refused_with_each_part_and_what_would_fit() -> None:
    parts = {
        "gpu tier emulated in RAM": 16 * GIB,
        "cpu tier": 32 * GIB,
        "buffers": GIB // 2,
        "none": 0,
    }
    with pytest.raises(PlaceError) as refused:
        check_ram(parts, available=20 * GIB)
    assert str(refused.value) == (
        "the run needs 48.50 GiB of RAM (gpu tier emulated in RAM 16.00 GiB, "
        "cpu tier 32.00 GiB, buffers 512.0 MiB) but 20.00 GiB are available, of which "
        "18.00 GiB may be used; --cpu-mem-gb 17 --gpu-mem-gb 0 would fit"
    )
    check_ram({"cpu tier": 17 * GIB, "buffers": GIB // 2}, available=20 * GIB)


def test_a_small_machine_is_offered_a_part_of_a_gib() -> None:
    with pytest.raises(PlaceError, match=r"--cpu-mem-gb 0\.75 would fit"):
        check_ram({"cpu tier": 4 * GIB}, available=GIB)


def test_when_the_fixed_parts_are_too_large_no_option_is_offered() -> None:
    with pytest.raises(PlaceError, match=r"3.00 GiB of it no option .* use a larger machine"):
        check_ram({"cpu tier": GIB, "buffers": 3 * GIB}, available=2 * GIB)
