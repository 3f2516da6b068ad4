"""When a raw block device is refused: by its options, and by what is on it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench.raw_device import DeviceState, check_raw_device, kernel_state, why_not
from kv_cache.config.root import Config
from kv_cache.config.rules import check
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.schema import from_mapping
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.mpirank import MpiRank
from kv_cache.crew.per_rank import config_of_rank

DISK = Path("/dev/sdz")
OVERWRITES = "and a run would overwrite it; "
ANOTHER = ", or name an empty device"


def configured(device: str | None = "/dev/sdz", place: Any = "/dev/sdz", **more: Any) -> Config:
    tiers = {"cache_dir": place, "erase_device": device, **more.pop("tiers", {})}
    mapping = {"tiers": tiers, "io": {"layout": "arena"}, **more}
    config = from_mapping(Config, mapping)
    check(config)
    return config


# --- options -----------------------------------------------------------------------------------


def test_a_device_that_is_named_twice_is_taken_and_said_to_be_overwritten() -> None:
    (warning,) = config_warnings(configured())
    assert "(--erase-device) is '/dev/sdz': what was on it is overwritten" in warning
    assert config_warnings(configured(run={"virtual_time": True})) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"place": "/dev/sdy"}, ["'/dev/sdy'", "named twice", "the same device"]),
        ({"place": None}, ["(--cache-dir) is empty (null)", "named twice"]),
        ({"place": ["/dev/sdz", "/mnt/kv"]}, ["'/mnt/kv'", "named twice"]),
        ({"io": {"layout": "file"}}, ["(--layout) is 'file'", "use --layout arena"]),
        ({"tiers": {"keep_cache": True}}, ["--keep-cache", "no files to keep; leave it out"]),
        ({"run": {"clients": 2}}, ["--clients", "one process alone can claim a device"]),
    ],
)
def test_what_a_device_cannot_do_is_one_sentence(given: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(**given)
    for word in ("tiers.erase_device (--erase-device) is '/dev/sdz'", *words):
        assert word in str(caught.value)


def test_a_rank_of_a_job_is_refused() -> None:
    rank = MpiRank(rank=1, ranks=2, on_machine=2, source="PMI_RANK")
    with pytest.raises(ConfigError, match="one process alone can claim a device"):
        config_of_rank(configured(), rank, Path("R.json"))
    plain = configured()
    plain = replace(plain, tiers=replace(plain.tiers, erase_device=None))
    assert config_of_rank(plain, rank, Path("R.json")).tiers.cache_dir == ("/dev/sdz/rank_1",)


# --- what is on it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (DeviceState(), None),
        (DeviceState(block_bytes=4096), None),
        (
            DeviceState(mounted_at=("/", "/home")),
            f"it is mounted at /, /home, {OVERWRITES}unmount that{ANOTHER}",
        ),
        (
            DeviceState(swaps=("/dev/sdz2",)),
            f"/dev/sdz2 is used as swap space, {OVERWRITES}end that with swapoff{ANOTHER}",
        ),
        (
            DeviceState(held_by=("dm-0",), partitions=("sdz1",)),
            f"dm-0 uses it, {OVERWRITES}take that down{ANOTHER}",
        ),
        (
            DeviceState(partitions=("sdz1", "sdz2")),
            f"it has the partitions sdz1, sdz2, {OVERWRITES}name one of them{ANOTHER}",
        ),
        (
            DeviceState(signatures=("gpt", "PMBR")),
            f"it has the signature of gpt, PMBR, {OVERWRITES}erase that with wipefs --all {DISK}"
            + ANOTHER,
        ),
        (DeviceState(read_only=True), "it is read-only; name another device"),
        (
            DeviceState(block_bytes=16_384),
            "its blocks have 16384 bytes, more than the 4096 of a page; name another device",
        ),
    ],
)
def test_only_an_empty_device_is_taken(state: DeviceState, sentence: str | None) -> None:
    assert why_not(DISK, state) == sentence


def machine(root: Path, **files: str) -> Path:
    """A disk sdz with two partitions, as /sys and /proc show it."""
    texts = {
        "sys/devices/sdz/dev": "8:400\n",
        "sys/devices/sdz/ro": "0\n",
        "sys/devices/sdz/queue/logical_block_size": "4096\n",
        "sys/devices/sdz/sdz1/dev": "8:401\n",
        "sys/devices/sdz/sdz1/partition": "1\n",
        "sys/devices/sdz/sdz2/dev": "8:402\n",
        "sys/devices/sdz/sdz2/partition": "2\n",
        "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
        "proc/self/mountinfo": "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n",
        **files,
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    block = root / "sys/class/block"
    block.mkdir(parents=True)
    for name in ("sdz", "sdz/sdz1", "sdz/sdz2"):
        (block / Path(name).name).symlink_to(root / "sys/devices" / name)
    return root


def test_the_kernel_says_what_is_on_a_disk_and_on_its_partitions(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        **{
            "proc/swaps": "Filename\tType\n/dev/sdz2\tpartition\n/dev/sda1\tpartition\n",
            "proc/self/mountinfo": "23 1 8:401 / /data rw - ext4 /dev/other rw\n"
            "24 1 0:40 / /btrfs rw - btrfs /dev/sdz2 rw\n25 1 8:4 / /not rw - ext4 /dev/sda rw\n",
            "sys/devices/sdz/sdz2/holders/dm-3/dev": "253:3\n",
        },
    )
    assert kernel_state("sdz", root) == DeviceState(
        mounted_at=("/data", "/btrfs"),
        swaps=("/dev/sdz2",),
        held_by=("dm-3",),
        partitions=("sdz1", "sdz2"),
        block_bytes=4096,
    )


def test_of_a_partition_only_what_is_on_it_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, **{"proc/self/mountinfo": "23 1 8:402 / /d rw - ext4 /dev/sdz2 rw\n"})
    assert kernel_state("sdz1", root) == DeviceState(block_bytes=4096)
    assert kernel_state("sdz2", root).mounted_at == ("/d",)


def test_a_directory_is_no_device(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="is not a block device of this machine; leave the option"):
        check_raw_device(tmp_path)
    with pytest.raises(PlaceError, match=r"cannot be looked at \(no such file"):
        check_raw_device(tmp_path / "none")
    with pytest.raises(PlaceError, match="is not a block device"):
        check_raw_device(Path("/dev/null"))
