"""A run works in the directory that it made, whatever its name comes to mean, and says what it had
to leave there."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_cache.bench.cache_dir import CacheDir
from kv_cache.bench.owner import OWNER_NAME, run_identity
from kv_cache.cli import main as kv_cache
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import Tier
from kv_cache.core.units import MIB
from kv_cache.tiers.nvme import NvmeStore, open_storage
from tests.cli import ROOT, SMALL, anything, finish, start, wait_until_at_work
from tests.integration.test_personalities import strace_missing
from tests.stores import read_back, store_as

BYTES = b"of somebody else"


def precious(where: Path, *names: str) -> dict[str, bytes]:
    """A stranger's directory that looks like a run's of ours, and what is in it."""
    for name in (OWNER_NAME, "aa/x.kv", *names):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(BYTES)
    return contents(where)


def contents(where: Path) -> dict[str, bytes]:
    files = (path for path in where.rglob("*") if path.is_file())
    return {str(path.relative_to(where)): path.read_bytes() for path in files}


def swap(path: Path, to: Path) -> Path:
    """Put a link to another directory where `path` was; where that is now."""
    moved = path.with_name(f"moved-{path.name}")
    path.rename(moved)
    path.symlink_to(to)
    return moved


def put(directory: Path) -> None:
    (directory / "aa").mkdir(exist_ok=True)
    (directory / "aa" / "1.kv").write_bytes(bytes(4096))


def test_a_run_directory_that_is_swapped_for_a_link_costs_nobody_a_file(tmp_path: Path) -> None:
    before = precious(tmp_path / "precious")
    cache = CacheDir(tmp_path / "c", run="r")
    put(cache.objects)
    moved = swap(cache.objects, tmp_path / "precious")
    removed = cache.close()
    assert contents(tmp_path / "precious") == before
    assert removed.files == 1
    assert removed.left == (f"{moved} (it was moved away during the run)",)
    assert list(moved.iterdir()) == []


def test_a_run_directory_that_another_one_replaces_costs_nobody_a_file(tmp_path: Path) -> None:
    cache = CacheDir(tmp_path / "c", run="r")
    put(cache.objects)
    cache.objects.rename(tmp_path / "moved")
    before = precious(cache.objects)
    cache.close()
    assert contents(cache.objects) == before
    assert contents(tmp_path / "moved") == {}


def test_a_cache_directory_that_is_swapped_costs_nobody_a_file(tmp_path: Path) -> None:
    cache = CacheDir(tmp_path / "c", run="r")
    put(cache.objects)
    before = precious(tmp_path / "precious" / cache.objects.name)
    moved = swap(tmp_path / "c", tmp_path / "precious")
    cache.close()
    assert contents(tmp_path / "precious" / cache.objects.name) == before
    assert contents(moved) == {}


def test_a_shard_that_is_swapped_for_a_link_costs_nobody_a_file(tmp_path: Path) -> None:
    before = precious(tmp_path / "precious")
    cache = CacheDir(tmp_path / "c", run="r")
    put(cache.objects)
    swap(cache.objects / "aa", tmp_path / "precious" / "aa")
    removed = cache.close()
    assert contents(tmp_path / "precious") == before
    assert {line.rpartition("/")[2] for line in removed.left} == {
        "aa (not ours)", "moved-aa (not ours)",
    }  # fmt: skip


def test_a_run_directory_that_was_removed_by_hand_is_no_complaint(tmp_path: Path) -> None:
    cache = CacheDir(tmp_path / "c", run="r")
    (cache.objects / OWNER_NAME).unlink()
    cache.objects.rmdir()
    assert cache.close().left == ()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["file", "arena", "bucket"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NvmeStore]:
    (tmp_path / "run").mkdir()
    made = open_storage(
        tmp_path / "run", capacity_bytes=8 * MIB, layout=request.param, engine="buffered"
    )
    yield made
    made.close()


def test_objects_are_where_they_were_when_the_name_of_their_directory_leads_elsewhere(
    tmp_path: Path, store: NvmeStore
) -> None:
    refs = [CopyRef(n, content_key(n), Tier.NVME, MIB, 0) for n in range(4)]
    for ref in refs[:2]:
        store_as(store, ref)
    names = [str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*.kv")]
    before = precious(tmp_path / "precious", *names)
    swap(tmp_path / "run", tmp_path / "precious")
    for ref in refs[2:]:
        store_as(store, ref)
    store.create(CopyRef(9, content_key(9), Tier.NVME, MIB, 0)).abort()
    assert all(read_back(store, ref) for ref in refs)
    for ref in refs:
        store.delete(ref)
    assert contents(tmp_path / "precious") == before


_ONE_BY_ONE = """
import os, sys
from pathlib import Path
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import Steps
from kv_cache.tiers.nvme import open_storage
root, name = Path(sys.argv[1]), sys.argv[2]
store = open_storage(root, capacity_bytes=1 << 22, layout=name, engine="buffered")
layout = store._layout
first = CopyRef(0, content_key(0), Tier.NVME, 4096, 0)
layout.commit(first, layout.create(first, 0, Steps(), allocate=False), Steps())
os.write(1, b"begin")
for number in range(1, 21):
    ref = CopyRef(number, content_key(number), Tier.NVME, 4096, 0)
    spans = layout.create(ref, 0, Steps(), allocate=False)
    os.pwrite(spans[0].fd, bytes(4096), spans[0].offset)
    layout.commit(ref, spans, Steps())
    layout.release(layout.open(ref, 0, Steps()), Steps())
    layout.delete(ref)
os.write(1, b"end")
"""


@pytest.mark.parametrize(
    ("layout", "each"),
    [
        ("file", {"openat": 2, "close": 2, "renameat": 1, "unlinkat": 1}),
        ("arena", {}),
        ("bucket", {"openat": 2, "close": 2, "fallocate": 1}),
    ],
)
def test_an_object_costs_no_system_call_more_below_a_descriptor(
    tmp_path: Path, layout: str, each: dict[str, int]
) -> None:
    """Than 0.7.0 made with whole paths: one call for each name, and one for the
    size of what is loaded."""
    if (why := strace_missing()) is not None:
        pytest.skip(why)
    (tmp_path / "run").mkdir()
    program = [sys.executable, "-c", _ONE_BY_ONE, str(tmp_path / "run"), layout]
    command = ["strace", "-o", str(tmp_path / "trace"), *program]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = (tmp_path / "trace").read_text().splitlines()
    begin, end = (
        next(number for number, line in enumerate(lines) if f'"{word}"' in line)
        for word in ("begin", "end")
    )
    calls = Counter(line.partition("(")[0] for line in lines[begin + 1 : end])
    assert calls.pop("pwrite64") == calls.pop("lseek") == 20
    memory = ("brk", "mmap", "munmap", "mremap", "madvise", "futex")
    seen = {name: count / 20 for name, count in calls.items() if name not in memory}
    assert seen == each


def test_a_layout_refuses_a_link_in_place_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="directory"):
        os.close(os.open(tmp_path / "run", os.O_DIRECTORY | os.O_NOFOLLOW))
    with pytest.raises(Exception, match="it cannot be prepared"):
        open_storage(tmp_path / "run", capacity_bytes=MIB, layout="file", engine="buffered")
    assert contents(tmp_path / "elsewhere") == {}


def test_a_run_whose_directory_is_swapped_spares_strangers_and_says_what_it_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(
        tmp_path,
        [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=8"],
    )
    while len(list(tmp_path.glob("cache/kv-cache-run-*/??/*.kv"))) < 5:  # behind its preparations
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    run = next((tmp_path / "cache").glob("kv-cache-run-*"))
    before = precious(tmp_path / "precious")
    moved = swap(run, tmp_path / "precious")
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "precious") == before
    assert contents(moved) == {}
    assert ran.own["left_behind"] == [f"{moved} (it was moved away during the run)"]
    assert f"not removed: {moved} (it was moved away" in ran.err
    assert kv_cache(["verify", str(tmp_path / "R.json")]) in (0, 1)
    assert "changed after the run" not in capsys.readouterr().out


def test_a_run_says_what_is_foreign_and_what_dead_runs_left(tmp_path: Path) -> None:
    left = tmp_path / "cache" / "kv-cache-run-7-0123abcd"
    (left / "ab").mkdir(parents=True)
    (left / "ab" / "1.kv").write_bytes(bytes(4096))
    (left / "ab" / "mine.txt").write_bytes(BYTES)
    record = {**run_identity("left"), "pid": 2**22 - 1, "kept": False}
    (left / OWNER_NAME).write_text(json.dumps(record))
    process = start(tmp_path, [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=8"])
    wait_until_at_work(process)
    while not anything(tmp_path, "cache/kv-cache-run-*/??/*.kv") and process.poll() is None:
        threading.Event().wait(0.02)
    run = next(p for p in (tmp_path / "cache").glob("kv-cache-run-*") if p != left)
    (run / "note").write_bytes(BYTES)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert ran.own["leftovers"] == {
        "files": 1, "bytes": 4096, "left": [f"{left / 'ab' / 'mine.txt'} (not ours)"],
    }  # fmt: skip
    assert ran.own["left_behind"] == [f"{run / 'note'} (not ours)"]
    assert (run / "note").read_bytes() == BYTES
