"""Runs of several hosts and containers in one cache directory: none loses what is in use."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench import owner
from kv_cache.bench.cache_dir import CacheDir, obtainable_bytes
from kv_cache.bench.owner import OWNER_NAME, Host, Life, life_of, run_identity, this_host
from kv_cache.core.errors import PlaceError
from tests.cli import ROOT, SMALL, anything, run, wait_for
from tests.s3server import S3Server, missing, weed

FIRST = 0xEFFFFFFC  # the pid namespace that is no container's
HERE = Host(name="node1", machine_id="a" * 32, boot_id="boot-now", pid_namespace=FIRST)
ELSEWHERE = {"host": "node7", "machine_id": "b" * 32, "boot_id": "boot-there"}
NOBODY = 2**22 - 1  # no process has this number

_HOLDER = """
import sys; from pathlib import Path
from kv_cache.bench.cache_dir import CacheDir
with CacheDir(Path(sys.argv[1]), run="first") as place:
    (place.objects / "ab").mkdir()
    (place.objects / "ab" / "1.kv").write_bytes(bytes(4096))
    print("holds", flush=True)
    sys.stdin.read()
"""


def leave(cache: Path, **changed: object) -> Path:
    """The objects of a run as it left them, with this in its record; a value of None goes."""
    directory = cache / "kv-cache-run-7-0123abcd"
    (directory / "ab").mkdir(parents=True)
    (directory / "ab" / "1.kv").write_bytes(bytes(4096))
    record = {**run_identity("left"), "pid": NOBODY, "kept": False, **changed}
    record = {name: value for name, value in record.items() if value is not None}
    (directory / OWNER_NAME).write_text(json.dumps(record))
    return directory / "ab" / "1.kv"


@contextmanager
def in_another_container(
    cache: Path, *, host: str = "other-host"
) -> Iterator["subprocess.Popen[str]"]:
    """A run in a pid namespace of its own, and of a host of another name."""
    spaces = ["unshare", "--pid", "--fork", "--kill-child", "--uts", "--mount", "--mount-proc"]
    script = 'hostname "$0" && exec "$@"'
    process = subprocess.Popen(
        [*spaces, "sh", "-c", script, host, sys.executable, "-c", _HOLDER, str(cache)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "holds\n":
            process.kill()
            pytest.skip(f"no namespaces here: {process.communicate()[1].strip()}")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_dead_run_whose_number_another_process_has_by_now_is_a_leftover(tmp_path: Path) -> None:
    record = run_identity("left")
    left = leave(tmp_path, pid=os.getpid(), pid_start_ticks=record["pid_start_ticks"] - 1)
    with CacheDir(tmp_path, run="next") as place:
        assert not left.exists()
        assert place.leftovers.files == 1


def test_another_hosts_run_is_refused_by_name_and_loses_nothing(tmp_path: Path) -> None:
    left = leave(tmp_path, **ELSEWHERE)
    with pytest.raises(PlaceError, match=r"on host node7, .* with --reclaim node7$"):
        CacheDir(tmp_path, run="second")
    with pytest.raises(PlaceError, match="on host node7"):
        CacheDir(tmp_path, run="second", reclaim="node8")
    assert left.exists()
    assert [path.name for path in tmp_path.iterdir()] == [left.parents[1].name]


def test_a_host_that_is_known_to_be_dead_is_reclaimed(tmp_path: Path) -> None:
    left = leave(tmp_path, **ELSEWHERE)
    blocks = left.stat().st_blocks * 512
    assert obtainable_bytes(tmp_path, "node7") >= blocks
    with CacheDir(tmp_path, run="second", reclaim="node7") as place:
        assert place.leftovers.files == 1
        assert not left.exists()


def test_reclaiming_never_takes_what_a_process_here_uses_nor_what_is_kept(tmp_path: Path) -> None:
    name = this_host().name
    used = leave(tmp_path / "used", pid=os.getpid())
    with pytest.raises(PlaceError, match=r"process \d+, started .* is using it"):
        CacheDir(tmp_path / "used", run="second", reclaim=name)
    kept = leave(tmp_path / "kept", **ELSEWHERE, kept=True)
    CacheDir(tmp_path / "kept", run="second", reclaim="node7").close()
    assert used.exists()
    assert kept.exists()


def test_a_run_says_which_host_is_in_the_way_and_begins_where_it_is_reclaimed(
    tmp_path: Path,
) -> None:
    left = leave(tmp_path / "cache", **ELSEWHERE)
    args = [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=0.5"]
    refused = run(tmp_path, *args)
    assert (refused.code, refused.result) == (2, None)
    assert "on host node7" in refused.err
    assert refused.err.strip().count("\n") == 0
    assert left.exists()
    ran = run(tmp_path, *args, "--reclaim=node7")
    assert ran.code == 0, ran.err
    assert not left.exists()


# --- what a record proves ------------------------------------------------------------------------

SECONDS_BEFORE = "2001-01-01T00:00:00+00:00"
RECORD: dict[str, Any] = {
    "pid": NOBODY, "started": SECONDS_BEFORE, **HERE._asdict(), "host": HERE.name, "device": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "life"),
    [
        ({}, Life.DEAD),
        ({"boot_id": "boot-before"}, Life.DEAD),  # this machine, before it was booted
        ({"boot_id": "boot-before", "started": "2999-01-01T00:00:00+00:00"}, Life.ELSEWHERE),
        ({"boot_id": "boot-before", "started": "once"}, Life.ELSEWHERE),
        ({"boot_id": "boot-before", "machine_id": "b" * 32}, Life.ELSEWHERE),
        ({"boot_id": "boot-before", "machine_id": None}, Life.ELSEWHERE),
        ({"boot_id": "boot-before", "host": "node7"}, Life.ELSEWHERE),
        ({"boot_id": "boot-before", "pid_namespace": 4026532000}, Life.ELSEWHERE),
        ({"boot_id": None}, Life.ELSEWHERE),
        ({"boot_id": ["?"], "pid_namespace": {}, "started": 7}, Life.ELSEWHERE),
        ({"pid_namespace": 4026532000}, Life.DEAD),  # another container here: the lock reaches it
        ({"pid_namespace": 4026532000, "device": 6}, Life.ELSEWHERE),  # another mount: it does not
        ({"pid_namespace": None}, Life.DEAD),
    ],
)
def test_a_run_is_dead_only_where_that_is_certain(
    changed: dict[str, object], life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "this_host", lambda: HERE)
    assert life_of({**RECORD, **changed}, device=5) is life


def test_a_container_never_takes_itself_for_another_before_a_reboot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "this_host", lambda: HERE._replace(pid_namespace=4026532000))
    before = {**RECORD, "boot_id": "boot-before"}
    assert life_of(before, device=5) is Life.ELSEWHERE
    assert life_of({**before, "pid_namespace": 4026532000}, device=5) is Life.ELSEWHERE


def test_a_record_of_0_7_0_is_a_leftover_where_nobody_holds_the_lock(tmp_path: Path) -> None:
    names = ("host", "machine_id", "boot_id", "pid_namespace")
    old = dict.fromkeys(names)
    left = leave(tmp_path / "dead", **old)
    CacheDir(tmp_path / "dead", run="next").close()
    assert not left.exists()
    alive = leave(tmp_path / "alive", **old, pid=os.getpid())
    with pytest.raises(PlaceError, match="is using it"):
        CacheDir(tmp_path / "alive", run="next")
    assert alive.exists()


# --- real containers, and real storage of several hosts ------------------------------------------


def test_of_another_container_on_this_machine_the_lock_says_whether_it_lives(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "c"
    with in_another_container(cache) as process:
        with pytest.raises(PlaceError, match=r"on host other-host, .* is using it"):
            CacheDir(cache, run="second")
        assert anything(cache, "*/ab/1.kv")
        process.kill()
        assert process.stdout is not None
        process.stdout.read()  # until all that it began is gone; its input stays open
        left = CacheDir(cache, run="third")
        assert left.leftovers.files == 1
        left.close()


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """One SeaweedFS, mounted twice: no lock of one mount is known to the other."""
    if (why := missing()) is not None or os.geteuid() != 0 or not shutil.which("fusermount3"):
        pytest.skip(why or "needs root and fusermount3 (apt-get install fuse3)")
    server = S3Server(tmp_path / "weed")
    server.start()
    mounted: list[tuple[Path, subprocess.Popen[bytes]]] = []
    try:
        for name in ("a", "b"):
            mounted.append(_mount(server.filer, tmp_path / name))
        yield mounted[0][0], mounted[1][0]
    finally:
        for point, process in mounted:
            subprocess.run(["umount", "-l", point], check=False)
            process.kill()
            process.wait()
        server.kill()


def _mount(filer: str, point: Path) -> tuple[Path, "subprocess.Popen[bytes]"]:
    point.mkdir()
    cached = point.with_name(f"{point.name}-cached")
    process = subprocess.Popen(
        [str(weed()), "mount", f"-filer={filer}", f"-dir={point}", f"-cacheDir={cached}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: point.is_mount() or process.poll() is not None)
    if process.poll() is not None:
        pytest.skip("weed mount does not work here")
    return point, process


@pytest.mark.root
def test_a_live_run_on_another_mount_of_the_same_storage_loses_nothing(
    mounts: tuple[Path, Path],
) -> None:
    """As of two nodes with one file system whose locks stay on each."""
    one, other = mounts
    with in_another_container(one / "c"):
        wait_for(lambda: anything(other, f"c/*/{OWNER_NAME}") and anything(other, "c/*/ab/1.kv"))
        with pytest.raises(PlaceError, match="on host other-host"):
            CacheDir(other / "c", run="second")
        assert anything(one, "c/*/ab/1.kv")
        assert anything(other, "c/*/ab/1.kv")
