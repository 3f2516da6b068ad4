"""What may be used as a place of the run, and what a cache directory's possession leaves."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kv_cache.bench.cache_dir import LOCK_NAME, CacheDir
from kv_cache.bench.owner import OWNER_NAME
from kv_cache.bench.path_checks import (
    RUN_MARK,
    check_cache_dir,
    check_output_file,
    check_results_dir,
    free_bytes,
    nearest_existing,
)
from kv_cache.bench.storage_room import check_space
from kv_cache.config.sections import TiersConfig
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB
from kv_cache.files.writing import write_atomically

ROOT = Path(__file__).parents[2]


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def put_object(cache_dir: CacheDir, name: str = "ab/1.kv", nbytes: int = 4096) -> Path:
    path = cache_dir.objects / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(nbytes))
    return path


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/etc", "/etc/kv", "/usr", "/usr/lib/kv", "/usr/local/kv", "/bin/kv", "/lib/kv"),
        *("/boot/kv", "/sys/kv", "/proc/kv", "/dev", "/dev/kv", "/root", "/dev/shm/../kv"),
    ],
)
def test_a_system_directory_is_refused(path: str) -> None:
    with pytest.raises(PlaceError, match="system directory"):
        check_cache_dir(Path(path))


@pytest.mark.parametrize("path", ["/developer/kv", "/devfoo", "/etcetera", "/rooted/kv"])
def test_a_name_that_only_begins_like_a_system_directory_is_fine(path: str) -> None:
    if not os.access("/", os.W_OK):
        pytest.skip("needs a user that may write to /")
    check_cache_dir(Path(path))


def test_a_link_into_a_system_directory_is_refused_by_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(PlaceError, match="system directory /etc"):
        check_cache_dir(tmp_path / "link" / "kv")


def test_shared_memory_is_no_system_directory() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no writable /dev/shm")
    check_cache_dir(Path("/dev/shm/kv"))


def test_below_roots_home_only_root_itself_may_work() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    check_cache_dir(Path("/root/kv"))


def test_a_check_creates_nothing(tmp_path: Path) -> None:
    check_cache_dir(tmp_path / "a" / "b")
    check_results_dir(tmp_path / "c")
    check_output_file(tmp_path / "d.json")
    check_space(tmp_path / "e", 1, TiersConfig())
    assert tree(tmp_path) == []


def test_a_file_or_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PlaceError, match="it is not a directory"):
        check_cache_dir(file)
    with pytest.raises(PlaceError, match=r"its parent .*file is not a directory"):
        check_cache_dir(file / "a" / "b")


@pytest.mark.parametrize("path", ["/tmp/\0", "/tmp/" + "x" * 300])
def test_an_impossible_path_is_refused_in_a_sentence(path: str) -> None:
    with pytest.raises(PlaceError, match="name another"):
        check_cache_dir(Path(path))


def test_a_circle_of_links_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(PlaceError, match="symbolic links"):
        check_cache_dir(tmp_path / "a")


def check_in_child(
    prelude: str, path: Path, *, shell: str = ""
) -> subprocess.CompletedProcess[str]:
    """What check_cache_dir says of `path` in a process of its own that ran `prelude` before."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from kv_cache.bench.path_checks import check_cache_dir\n"
        "from kv_cache.core.errors import PlaceError\n"
        f"{prelude}\n"
        "try: check_cache_dir(Path(sys.argv[1]))\n"
        "except PlaceError as err: print(err)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    if shell:
        command = ["unshare", "-m", "sh", "-c", f'{shell} && exec "$@"', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_read_only_mount_is_refused_even_for_root(tmp_path: Path) -> None:
    remount = f"mount --bind '{tmp_path}' '{tmp_path}' && mount -o remount,ro,bind '{tmp_path}'"
    done = check_in_child("", tmp_path / "kv", shell=remount)
    if done.returncode:
        pytest.skip(f"no private read-only mount here: {done.stderr.strip()}")
    assert "mounted read-only" in done.stdout


def test_a_directory_that_the_user_may_not_write_is_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        done = check_in_child("os.seteuid(65534)", Path(name) / "kv")
        assert "is not writable for user 65534" in done.stdout, done.stderr
        os.chmod(name, 0o700)
        done = check_in_child("os.seteuid(65534)", Path(name) / "a" / "b")
        assert "cannot be looked at (permission denied)" in done.stdout, done.stderr


def test_free_space_is_that_of_the_nearest_existing_directory(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == Path(os.path.realpath(tmp_path))
    assert free_bytes(tmp_path / "a" / "b") > 0


def test_wanting_more_space_than_there_is_names_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_cache.bench.cache_dir.free_bytes", lambda path: 20 * GIB)
    check_space(tmp_path, 20 * GIB, TiersConfig())
    with pytest.raises(PlaceError, match=r"wants 30.00 GiB .* 20.00 GiB are free; .*-gb 19 would"):
        check_space(tmp_path, 30 * GIB, TiersConfig())
    monkeypatch.setattr("kv_cache.bench.cache_dir.free_bytes", lambda path: 1000)
    with pytest.raises(PlaceError, match="nothing would fit"):
        check_space(tmp_path, 30 * GIB, TiersConfig())


def test_an_output_file_needs_a_directory_and_may_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"requests_completed": 7}')
    check_output_file(tmp_path / "old.json")
    (tmp_path / "empty.json").write_text("")
    check_output_file(tmp_path / "empty.json")
    (tmp_path / "theirs.json").write_text('{"mine": 1}')
    with pytest.raises(PlaceError, match="none of our results"):
        check_output_file(tmp_path / "theirs.json")
    with pytest.raises(PlaceError, match="there is no directory"):
        check_output_file(tmp_path / "none" / "new.json")
    with pytest.raises(PlaceError, match="not a regular file"):
        check_output_file(tmp_path)


def test_an_output_file_never_replaces_a_device_or_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="not a regular file"):
        check_output_file(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlaceError, match="not a regular file"):
        check_output_file(tmp_path / "pipe")


def test_a_results_directory_is_new_or_empty_or_holds_runs_of_ours(tmp_path: Path) -> None:
    check_results_dir(tmp_path / "new")
    check_results_dir(tmp_path)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / RUN_MARK).touch()
    check_results_dir(tmp_path)
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(PlaceError, match=r"holds 'thesis.doc', which is not a run of ours"):
        check_results_dir(tmp_path)


def test_a_cache_dir_is_created_with_parents_and_all_of_it_goes_at_the_end(tmp_path: Path) -> None:
    with CacheDir(tmp_path / "a" / "b", run="r") as cache_dir:
        put_object(cache_dir)
        put_object(cache_dir, "ff/2.kv", 100)
        assert cache_dir.objects.parent == cache_dir.path
        removed = cache_dir.close()
    assert (removed.files, removed.bytes) == (2, 4196)
    assert (removed.foreign, removed.failed) == ((), ())
    assert tree(tmp_path) == []


def test_a_directory_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "note.txt").touch()
    with CacheDir(tmp_path / "there", run="r"):
        pass
    assert tree(tmp_path) == ["there", "there/note.txt"]


def test_a_created_directory_that_others_use_by_now_stays(tmp_path: Path) -> None:
    with CacheDir(tmp_path / "a" / "b", run="r"):
        (tmp_path / "a" / "note.txt").touch()
    assert tree(tmp_path) == ["a", "a/note.txt"]


def test_foreign_things_among_the_objects_are_named_and_stay(tmp_path: Path) -> None:
    (tmp_path / "precious.kv").touch()
    with CacheDir(tmp_path / "c", run="r") as cache_dir:
        put_object(cache_dir)
        put_object(cache_dir, "cd/1.kv")
        (cache_dir.objects / "notes.txt").touch()
        (cache_dir.objects / "2.kv").touch()  # not in a shard directory
        (cache_dir.objects / "ab" / "mine.txt").touch()
        (cache_dir.objects / "ab" / "link.kv").symlink_to(tmp_path / "precious.kv")
        (cache_dir.objects / "ef").symlink_to(tmp_path)
        (cache_dir.objects / "xyz").mkdir()
        objects = cache_dir.objects
        removed = cache_dir.close()
    assert removed.files == 2
    left = ["2.kv", "ab", "ab/link.kv", "ab/mine.txt", "ef", "notes.txt", "xyz"]
    assert tree(objects) == left
    assert sorted(removed.foreign) == [str(objects / name) for name in left if name != "ab"]
    assert (tmp_path / "precious.kv").exists()
    assert not (tmp_path / "c" / LOCK_NAME).exists()


def test_kept_objects_stay_also_when_a_later_run_comes(tmp_path: Path) -> None:
    first = CacheDir(tmp_path / "c", run="first")
    kept = put_object(first)
    assert first.close(keep=True).files == 0
    with CacheDir(tmp_path / "c", run="second") as second:
        assert second.leftovers.files == 0
    assert kept.exists()
    assert json.loads((first.objects / OWNER_NAME).read_text())["kept"] is True
    assert not (tmp_path / "c" / LOCK_NAME).exists()


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    cache_dir = CacheDir(tmp_path / "c", run="r")
    put_object(cache_dir)
    assert cache_dir.close().files == 1
    assert cache_dir.close().files == 0


def test_a_temporary_cache_dir_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with CacheDir.temporary(run="r") as cache_dir:
        put_object(cache_dir)
        assert cache_dir.path.name.startswith("kv_cache_")
    assert tree(tmp_path) == []


def test_an_opening_that_fails_half_way_undoes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: CacheDir, *, kept: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CacheDir, "_write_owner", full)
    with pytest.raises(PlaceError, match="no space left on device"):
        CacheDir(tmp_path / "a" / "b", run="r")
    assert tree(tmp_path) == []


def test_a_lock_file_that_is_not_ours_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("somebody's notes")
    with pytest.raises(PlaceError, match="not a lock file of ours"):
        CacheDir(tmp_path, run="r")
    assert (tmp_path / LOCK_NAME).read_text() == "somebody's notes"


@pytest.mark.parametrize(
    "owner",
    [
        None,
        "",
        "not json",
        "[" * 4000,
        '{"program": "other", "pid": 1}',
        '{"program": "kv-cache", "pid": "1"}',
        '{"program": "kv-cache", "pid": 999999999, "kept": true}',
    ],
)
def test_a_directory_without_our_owner_file_is_never_touched(
    tmp_path: Path, owner: str | None
) -> None:
    lookalike = tmp_path / "kv-cache-run-1-abcdef01"
    (lookalike / "ab").mkdir(parents=True)
    (lookalike / "ab" / "1.kv").touch()
    if owner is not None:
        (lookalike / OWNER_NAME).write_text(owner)
    before = tree(tmp_path)
    with CacheDir(tmp_path, run="r") as cache_dir:
        assert cache_dir.leftovers.files == 0
    assert tree(tmp_path) == before


def test_the_objects_of_a_dead_run_go_and_are_counted(tmp_path: Path) -> None:
    dead = tmp_path / "kv-cache-run-1-abcdef01"
    (dead / "ab").mkdir(parents=True)
    (dead / "ab" / "1.kv").write_bytes(bytes(50))
    (dead / OWNER_NAME).write_text('{"program": "kv-cache", "pid": 999999999}')
    with CacheDir(tmp_path, run="r") as cache_dir:
        assert (cache_dir.leftovers.files, cache_dir.leftovers.bytes) == (1, 50)
    assert tree(tmp_path) == []


def test_objects_of_a_living_run_are_safe_though_its_lock_file_was_deleted(tmp_path: Path) -> None:
    with CacheDir(tmp_path, run="first") as first:
        kept = put_object(first)
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(PlaceError, match=f"process {os.getpid()}, started .* is using it"):
            CacheDir(tmp_path, run="second")
        assert kept.exists()


def test_a_lock_on_a_file_that_its_last_holder_removed_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    calls = 0

    def flock_as_the_holder_ends(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tmp_path / LOCK_NAME).unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock_as_the_holder_ends)
    with CacheDir(tmp_path, run="first"):
        assert calls == 2
        with pytest.raises(PlaceError, match="is using it"):
            CacheDir(tmp_path, run="second")


def test_writing_replaces_the_old_file_whole_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    path.write_text("old")
    os.chmod(path, 0o600)
    before = os.umask(0o027)
    try:
        write_atomically(path, b"new")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert tree(tmp_path) == [path.name]


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    (tmp_path / "f").write_text("old")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_text() == "old"
    assert tree(tmp_path) == ["f"]
