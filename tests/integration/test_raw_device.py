"""Runs on a raw block device: a loop device on a file that each test makes and takes away."""

import os
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.devices import LOOP_TOOLS, why_not
from kv_cache.bench.raw_device import RawDevice, check_raw_device
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, MIB
from kv_cache.tiers.nvme import open_storage
from tests import cli
from tests.integration.test_fill import filled
from tests.integration.test_passport import flags, measured, ran
from tests.integration.test_stack import file_system_on, once_free, tool
from tests.passports import names, says, status
from tests.stores import read_back, stored

NO_LOOPS = why_not(LOOP_TOOLS)
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "loop devices are there"),
]
SIZE = GIB // 2


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    image = tmp_path / "image"
    with image.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
    loop = tool("losetup", "--direct-io=on", "--show", "--find", str(image))
    try:
        yield Path(loop)
    finally:
        once_free(lambda: tool("losetup", "--detach", loop))
        image.unlink()  # pytest keeps directories, and this is large


def on(device: Path, *more: str) -> list[str]:
    places = (f"--cache-dir={device}", f"--erase-device={device}")
    return [*places, "--layout=arena", "--storage-capacity-gb=0", *more]


def beginning(device: Path, nbytes: int = MIB) -> bytes:
    with device.open("rb") as node:
        return node.read(nbytes)


def refused(device: Path) -> str:
    with pytest.raises(PlaceError) as caught:
        check_raw_device(device)
    return str(caught.value)


# --- runs --------------------------------------------------------------------------------------


def test_the_devices_counters_agree_with_the_ledger_and_it_is_empty_for_the_next(
    tmp_path: Path, device: Path
) -> None:
    attempts: list[str] = []

    @contextmanager
    def others_try_it() -> Iterator[None]:
        attempts.append(refused(device))
        done = subprocess.run(
            ["mkfs.ext4", "-q", "-F", str(device)], capture_output=True, text=True, check=False
        )
        attempts.append(f"{done.returncode}: {done.stderr}")
        yield

    own = measured(tmp_path, *on(device), beside=others_try_it())
    name = device.name
    assert own["passport"]["evidence"]["verification"]["errors"] == 0
    ledger = own["passport"]["evidence"]["ledger"]
    assert (ledger["device"], ledger["filesystem"]) == (name, "raw device")
    for side in ("read", "write"):
        claimed = ledger[side]["claimed_bytes"]
        assert claimed > 64 * MIB
        # mkfs looks at the device before it is refused.
        assert claimed <= ledger[side]["device_bytes"] <= claimed + 8 * MIB
    for rule in ("V5", "V6", "V19", "V28"):
        assert status(own, rule) == "pass", says(own, rule)
    names(own, also=["V27"])  # the image may lie in memory
    (foot,) = own["passport"]["evidence"]["stack"]["feet"]
    assert foot["path"][:2] == ["raw device", name]
    assert own["environment"]["filesystem"] == {
        "type": "raw device", "source": str(device), "total_bytes": SIZE,
        **dict.fromkeys(("mount_point", "mount_options", "free_bytes")),
    }  # fmt: skip
    assert own["environment"]["device"]["name"] == name
    assert own["tiers"]["storage"]["capacity_bytes"] == SIZE
    second_run, mkfs = attempts
    assert second_run == (
        f"cache directory {device}: another run or program is using it; wait for its end or give "
        "each run a --cache-dir of its own"
    )
    assert mkfs.startswith("1: ")
    assert "in use by the system" in mkfs
    assert tool("wipefs", str(device)) == ""
    check_raw_device(device)


def test_a_run_is_preconditioned_in_place(tmp_path: Path, device: Path) -> None:
    few = ("--precondition", "--round=1", "--max-rounds=1", "--max-requests=8")
    own = ran(tmp_path, *on(device, *few))
    fill = own["preconditioning"]["fill"]
    assert fill["bytes"] == 2 * SIZE == 2 * fill["filesystem_bytes"]
    assert fill["device_write_bytes"] >= fill["bytes"]
    assert fill["discard"] is False


def test_a_fill_writes_the_whole_area_of_the_device_and_no_more(device: Path) -> None:
    area = 32 * MIB
    result = filled(device, capacity=area, threads=3)
    assert (result.bytes, result.area_bytes, result.filesystem_bytes) == (2 * area, area, SIZE)
    data = beginning(device, 2 * area)
    pages = [any(data[at : at + 4096]) for at in range(0, 2 * area, 4096)]
    assert pages == [True] * (area // 4096) + [False] * (area // 4096)


@pytest.mark.parametrize("engine", ["direct", "buffered", "mmap"])
def test_each_engine_moves_objects_to_a_device_and_back(device: Path, engine: str) -> None:
    store = open_storage(
        device, capacity_bytes=SIZE, layout="arena", engine=engine, write_engine=engine,
        fsync="object", arena_files=[device],
    )  # fmt: skip
    refs = [stored(store, MIB) for _ in range(3)]
    store.delete(refs.pop(0))
    refs.append(stored(store, 2 * MIB))
    assert all(read_back(store, ref) for ref in refs)
    store.close()


def test_the_twin_of_a_run_names_the_device(tmp_path: Path, device: Path) -> None:
    ran(tmp_path, *on(device))
    code, _, err = cli.called(tmp_path, "twin", "R.json", "--dry-run")
    assert code == 2
    assert f"was on the raw device {device}, which twin does not erase" in err
    code, _, _ = cli.called(tmp_path, "twin", "R.json", "--fio-export=job.fio")
    job = (tmp_path / "job.fio").read_text()
    assert code == 0
    assert job.count(f"filename={device}\n") == 2


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "probe", "calibrate"])
def test_a_device_that_is_named_once_is_refused(tmp_path: Path, device: Path, command: str) -> None:
    code, _, err = cli.called(tmp_path, command, f"--cache-dir={device}")
    assert code == 2
    assert err.count("\n") == 1
    assert f"cache directory {device}: it is a block device" in err
    assert "--erase-device" in err
    assert list(tmp_path.iterdir()) == [tmp_path / "image"]


def with_ext4(device: Path) -> None:
    tool("mkfs.ext4", "-q", str(device))


def with_swap(device: Path) -> None:
    tool("mkswap", str(device))


def with_gpt(device: Path) -> None:
    """A partition table without partitions: a header at the device's second block."""
    last = SIZE // 512 - 1
    entries = bytes(128 * 128)
    head = struct.pack(
        "<8s4sIIIQQQQ16sQIII", b"EFI PART", b"\0\0\1\0", 92, 0, 0, 1, last, 34, last - 33,
        b"kv-cache-test-id", 2, 128, 128, zlib.crc32(entries),
    )  # fmt: skip
    head = head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]
    write(device, 512, head.ljust(512, b"\0") + entries)


def with_mbr(device: Path) -> None:
    entry = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\0\2\0", 2048, 4096)
    write(device, 446, (entry + bytes(48) + b"\x55\xaa"))


def write(device: Path, offset: int, data: bytes) -> None:
    with device.open("r+b") as node:
        node.seek(offset)
        node.write(data)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(with_ext4, "ext4"), (with_swap, "swap"), (with_gpt, "gpt"), (with_mbr, "dos")],
)
def test_a_device_with_a_signature_is_refused_and_left_as_it_is(
    tmp_path: Path, device: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(device)
    begin = beginning(device)
    done = cli.run(tmp_path, *flags(tmp_path, on(device), {}))
    assert done.code == 2
    assert f"cache directory {device}: it has the signature of {kind}" in done.err
    assert done.err.count("\n") == 1
    assert beginning(device) == begin
    tool("wipefs", "--all", str(device))  # the way out that was named
    check_raw_device(device)


def test_a_mounted_device_is_refused(tmp_path: Path, device: Path) -> None:
    with file_system_on(str(device), tmp_path / "mounted") as directory:
        assert f"it is mounted at {directory}" in refused(device)


def test_a_device_with_partitions_is_refused(device: Path) -> None:
    tool("addpart", str(device), "1", "2048", "4096")
    try:
        assert f"it has the partitions {device.name}p1" in refused(device)
        check_raw_device(Path(f"{device}p1"))
    finally:
        tool("partx", "--delete", "--nr", "1", str(device))


def test_a_device_below_another_is_refused(device: Path) -> None:
    made = subprocess.run(
        ["dmsetup", "create", "kv-raw-test", "--table", f"0 {SIZE // 512} linear {device} 0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no device mapper here: {made.stderr.strip().splitlines()[0]}")
    try:
        assert "dm-" in refused(device)
        assert "uses it" in refused(device)
    finally:
        once_free(lambda: tool("dmsetup", "remove", "kv-raw-test"))


def test_a_read_only_device_is_refused(device: Path) -> None:
    tool("blockdev", "--setro", str(device))
    try:
        assert refused(device) == f"cache directory {device}: it is read-only; name another device"
    finally:
        tool("blockdev", "--setrw", str(device))  # the next loop device of this name would be too


def test_without_wipefs_nothing_is_taken(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *args, **more: None)
    assert "not known without wipefs; install it" in refused(device)
    monkeypatch.undo()
    RawDevice(device).close()  # what was claimed has been given back


def test_a_device_without_bytes_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "image").open("wb") as file:
        file.truncate(4096)
    loop = tool("losetup", "--show", "--find", file.name)
    try:
        done = cli.run(tmp_path, *flags(tmp_path, on(Path(loop)), {}))
    finally:
        tool("losetup", "--detach", loop)
    assert done.code == 2
    assert f"cache directory {loop}: the device has only 4096 bytes; give another" in done.err


def test_more_than_the_device_holds_is_refused(tmp_path: Path, device: Path) -> None:
    done = cli.run(tmp_path, *flags(tmp_path, on(device, "--storage-capacity-gb=1"), {}))
    assert done.code == 2
    assert "wants 1.00 GiB there, but 512.0 MiB are free" in done.err
