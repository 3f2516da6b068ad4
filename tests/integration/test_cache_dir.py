"""Processes that meet on one cache directory, and one that dies there."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kv_cache.bench.cache_dir import LOCK_NAME, CacheDir
from kv_cache.bench.owner import OWNER_NAME
from kv_cache.core.errors import PlaceError
from tests.cli import PATIENCE_S

ROOT = Path(__file__).parents[2]

HOLD = """
import signal
import sys
from pathlib import Path
from kv_cache.bench.cache_dir import CacheDir
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
with CacheDir(Path(sys.argv[1]), run="first") as cache_dir:
    for name in ("00/a.kv", "ff/b.kv", "ff/c.kv"):
        path = cache_dir.objects / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1000))
    print(cache_dir.objects, flush=True)
    sys.stdin.read()
"""

TAKE_TURNS = """
import sys
from pathlib import Path
from kv_cache.bench.cache_dir import CacheDir
from kv_cache.core.errors import PlaceError
inside = Path(sys.argv[2])
won = 0
for _ in range(150):
    try:
        cache_dir = CacheDir(Path(sys.argv[1]), run="turn")
    except PlaceError as err:
        assert "is using it" in str(err), err
        continue
    with cache_dir:
        inside.touch(exist_ok=False)  # two at once would fail here
        inside.unlink()
        won += 1
print(won)
"""


def start(code: str, *arguments: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )


@contextmanager
def holder(path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has `path` until its standard input ends, and its objects' directory."""
    with start(HOLD, path) as process:
        assert process.stdout is not None
        objects = process.stdout.readline().strip()
        try:
            assert objects, process.communicate()[1]
            yield process, Path(objects)
        finally:
            process.kill()


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_second_run_is_refused_with_the_process_and_start_of_the_first(tmp_path: Path) -> None:
    with holder(tmp_path / "c") as (process, objects):
        before = tree(tmp_path)
        with pytest.raises(PlaceError) as refused:
            CacheDir(tmp_path / "c", run="second")
        expected = (
            f"cache directory {tmp_path}/c: process {process.pid}, started "
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00, is using it; wait for its end or .*--cache-dir"
        )
        assert re.match(expected, str(refused.value))
        assert tree(tmp_path) == before
        assert (objects / "00" / "a.kv").exists()


def test_a_normal_end_leaves_nothing(tmp_path: Path) -> None:
    with holder(tmp_path / "c" / "d") as (process, _):
        _, errors = process.communicate("")
        assert process.returncode == 0, errors
    assert tree(tmp_path) == []


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    with holder(tmp_path / "c") as (process, _):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)
    assert tree(tmp_path) == []


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, without reaping: a run that is a zombie is dead as well."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("end", [kill, lambda process: (process.kill(), process.wait())])
def test_what_a_killed_run_left_is_removed_by_the_next_and_nothing_else(
    tmp_path: Path, end: Callable[[subprocess.Popen[str]], object]
) -> None:
    (tmp_path / "thesis.kv").touch()
    (tmp_path / "kv-cache-run-notes").mkdir()
    (tmp_path / "kv-cache-run-notes" / "a.kv").touch()
    before = tree(tmp_path)
    with holder(tmp_path) as (process, objects):
        end(process)
        assert (tmp_path / LOCK_NAME).exists()
        assert (objects / OWNER_NAME).exists()
        with CacheDir(tmp_path, run="second") as second:
            assert (second.leftovers.files, second.leftovers.bytes) == (3, 3000)
            assert (second.leftovers.foreign, second.leftovers.failed) == ((), ())
            assert not objects.exists()
    assert tree(tmp_path) == before


def test_a_foreign_file_among_the_objects_of_a_killed_run_survives(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, objects):
        (objects / "ff" / "mine.txt").touch()
        process.kill()
        process.wait()
        with CacheDir(tmp_path, run="second") as second:
            assert second.leftovers.files == 3
            assert second.leftovers.foreign == (str(objects / "ff" / "mine.txt"),)
    assert tree(objects) == ["ff", "ff/mine.txt"]
    with CacheDir(tmp_path, run="third") as third:
        assert third.leftovers.foreign == ()
    assert tree(objects) == ["ff", "ff/mine.txt"]


def test_runs_that_come_and_go_never_meet_inside(tmp_path: Path) -> None:
    processes = [start(TAKE_TURNS, tmp_path / "c" / "d", tmp_path / "inside") for _ in range(3)]
    ends = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert [errors for _, errors in ends] == ["", "", ""]
    assert sum(int(won) for won, _ in ends) > 0
    # A directory that one created and another uses stays; nothing else does.
    assert set(tree(tmp_path)) <= {"c", "c/d"}
