"""`kv-cache.py twin`: fio really runs, and nothing of it stays."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from kv_cache.core.units import MIB, NS_PER_MS
from kv_cache.files.fio import HEADER
from tests.cli import (
    ONE_SIGNAL,
    PATIENCE_S,
    called,
    command,
    environment,
    small,
    wait_for,
    worker_of,
)
from tests.results import document, row, write

needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


def start(cwd: Path, *args: str, path: str | None = None) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    env = environment() if path is None else {**environment(), "PATH": path}
    return subprocess.Popen(
        command("twin", *args), cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True
    )


def run(cwd: Path, *args: str, path: str | None = None) -> tuple[int, str, str]:
    return called(cwd, "twin", *args, **({} if path is None else {"PATH": path}))


def made(cwd: Path, cache_dir: str | None = "cache/runs", **store: Any) -> str:
    """A result whose cache directory is gone, and of what it was in only a bystander is left."""
    rows = [
        row("read", [MIB] * 500, [4 * NS_PER_MS] * 500),
        row("write", [MIB] * 50, [5 * NS_PER_MS] * 50),
    ]
    (cwd / "cache").mkdir(exist_ok=True)
    (cwd / "cache" / "mine.txt").touch()
    where = None if cache_dir is None else str(cwd / cache_dir)
    return str(write(cwd / "R.json", document(rows, cache_dir=where, **store)))


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@needs_fio
@pytest.mark.fio
@pytest.mark.parametrize("layout", ["file", "arena"])
def test_both_programs_stand_side_by_side_and_nothing_stays(tmp_path: Path, layout: str) -> None:
    code, out, err = run(tmp_path, made(tmp_path, layout=layout), "--seconds=1")
    assert (code, err) == (0, ""), out
    assert f"fio: 1 s in {tmp_path}/cache/runs\n" in out
    told = {
        " ".join(words): numbers
        for line in out.splitlines()
        for *words, a, b, c in [["", "", "", *line.replace(",", "").split()]]
        for numbers in [(a, b, c)]
    }
    for name in ("read GiB/s", "read p50 ms", "write GiB/s", "CPU s/GiB"):
        mine, theirs, ratio = map(float, told[f"   {name}"])
        assert theirs > 0, name
        assert ratio == pytest.approx(mine / theirs, rel=0.1), name
    assert "  ! ours stamps what it writes" in out
    assert tree(tmp_path) == ["R.json", "cache", "cache/mine.txt"]


@needs_fio
@pytest.mark.fio
@pytest.mark.parametrize(("number", "code"), ONE_SIGNAL)
def test_a_signal_ends_fio_and_removes_what_it_made(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = interrupted(tmp_path, number, code)
    assert "interrupted" in out
    assert tree(tmp_path) == ["R.json", "cache", "cache/mine.txt"]


@pytest.mark.parametrize(("number", "code"), ONE_SIGNAL)
def test_a_signal_ends_also_a_fio_that_has_hung(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """fio's handler of SIGTERM allocates memory: where it comes within malloc, fio hangs."""
    deaf = f"""#!/bin/sh
trap '' TERM INT
cd {tmp_path}/cache/runs/kv-cache-run-*/00 && touch reads.0.0.kv && exec sleep 60
"""
    out = interrupted(tmp_path, number, code, path=with_fio(tmp_path, deaf))
    assert "interrupted" in out
    assert tree(tmp_path / "cache") == ["mine.txt"]


@needs_fio
@pytest.mark.fio
def test_fio_does_not_outlive_a_comparison_that_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, made(tmp_path), "--seconds=60") as process:
        try:
            wait_for(lambda: any((tmp_path / "cache").rglob("reads.*.kv")), process)
            [fio] = psutil.Process(worker_of(process)).children()
            assert fio.name() == "fio"
        finally:
            process.kill()
    wait_for(lambda: not fio.is_running() or fio.status() == psutil.STATUS_ZOMBIE)


def interrupted(cwd: Path, number: signal.Signals, code: int, path: str | None = None) -> str:
    with start(cwd, made(cwd), "--seconds=60", path=path) as process:
        try:
            wait_for(lambda: any((cwd / "cache").rglob("reads.*.kv")), process)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        assert (process.returncode, err) == (code, "")
    return out


def with_fio(cwd: Path, script: str) -> str:
    """A PATH on which this is fio."""
    place = cwd / "bin"
    place.mkdir()
    (place / "fio").write_text(script)
    (place / "fio").chmod(0o755)
    return f"{place}:{environment()['PATH']}"


def test_a_fio_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    result = made(tmp_path)
    path = with_fio(tmp_path, "#!/bin/sh\necho 'fio: disk is full'\nexit 1\n")
    code, out, _ = run(tmp_path, result, path=path)
    assert code == 1
    assert "fio failed: fio: disk is full" in out
    assert not any((tmp_path / "cache").rglob("*.kv"))


@needs_fio
@pytest.mark.fio
def test_the_exported_job_is_all_that_is_written_and_fio_takes_it(tmp_path: Path) -> None:
    result = made(tmp_path)
    before = tree(tmp_path)
    code, out, _ = run(tmp_path, result, "--fio-export=run.fio", "--seconds=5")
    assert code == 0
    assert out.endswith("job  run.fio\n")
    assert tree(tmp_path) == sorted([*before, "run.fio"])
    text = (tmp_path / "run.fio").read_text()
    assert text.startswith(HEADER)
    assert "runtime=5\n" in text
    assert "directory=" not in text
    parsed = subprocess.run(
        ["fio", "--parse-only", "run.fio"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_a_job_of_ours_is_replaced_and_a_foreign_file_is_not(tmp_path: Path) -> None:
    result = made(tmp_path)
    for _ in range(2):
        assert run(tmp_path, result, "--fio-export=run.fio")[0] == 0
    (tmp_path / "run.fio").write_text("[mine]\n")
    code, _, err = run(tmp_path, result, "--fio-export=run.fio")
    assert (code, err.count("\n")) == (2, 1)
    assert "--fio-export run.fio" in err
    assert (tmp_path / "run.fio").read_text() == "[mine]\n"


def test_a_dry_run_names_the_place_and_neither_runs_fio_nor_writes(tmp_path: Path) -> None:
    path = with_fio(tmp_path, "#!/bin/sh\ntouch begun\n")
    result = made(tmp_path)
    before = tree(tmp_path)
    code, out, err = run(tmp_path, result, "--dry-run", "--seconds=5", path=path)
    assert (code, err) == (0, "")
    assert f"directories  {tmp_path}/cache/runs\n" in out
    assert "time         about 5 s\n" in out
    code, out, _ = run(tmp_path, result, "--dry-run", "--fio-export=run.fio")
    assert (code, out.splitlines()[-2]) == (0, "job  run.fio")
    assert tree(tmp_path) == before


def test_without_fio_the_way_out_is_named(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, made(tmp_path), path=str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "fio is not installed" in err
    assert "--fio-export" in err


@pytest.mark.parametrize(
    ("cache_dir", "args", "sentence"),
    [
        (None, (), "temporary cache directory; say with --dir"),
        ("gone/for/good", (), "is not here, nor what it was in; say with --dir"),
        ("cache", ("--dir=none",), "--dir none: there is no such directory"),
        ("cache", ("--dir=/proc",), "system directory"),
        ("cache", ("--seconds=0",), "--seconds is 0.0; it must be a number, 1 to 86400"),
        ("cache", ("--fast",), "--fast is not a flag"),
        ("cache", ("--seconds=x",), "--seconds is 'x'; it must be a number of s"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, cache_dir: str | None, args: tuple[str, ...], sentence: str
) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    code, out, err = run(tmp_path, made(tmp_path, cache_dir), *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_a_result_that_was_cut_short_is_one_sentence(tmp_path: Path) -> None:
    result = Path(made(tmp_path))
    result.write_bytes(result.read_bytes()[:-300])
    code, _, err = run(tmp_path, str(result))
    assert (code, err.count("\n")) == (2, 1)
    assert "cut short" in err


@needs_fio
@pytest.mark.fio
def test_two_drives_with_a_mix_of_sizes_have_a_twin_in_their_own_directories(
    tmp_path: Path,
) -> None:
    """The run made its directories and removed them."""
    rows = [row("read", [MIB, 2 * MIB] * 200, [16 * NS_PER_MS] * 400)]
    places = [str(tmp_path / name) for name in ("a", "b")]
    write(tmp_path / "R.json", document(rows, cache_dir=places))
    with start(tmp_path, "R.json", "--seconds=2") as process:
        wait_for(
            lambda: (
                len(list(tmp_path.glob("[ab]/*/00/reads.kv"))) == 2 or process.poll() is not None
            )
        )
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, ""), out
    assert f"fio: 2 s in {places[0]}, {places[1]}\n" in out
    assert tree(tmp_path) == ["R.json"]


def test_help_teaches() -> None:
    code, out, _ = run(Path.cwd(), "--help")
    assert code == 0
    for word in ("--dir", "--seconds", "--fio-export", "examples:", "exit code"):
        assert word in out


@needs_fio
@pytest.mark.fio
def test_the_result_of_a_run_has_a_twin(tmp_path: Path) -> None:
    ran = small(tmp_path, "--max-requests=40", "--cpu-mem-gb=0", "--cache-dir=a/b/c")
    assert ran.code == 0, ran.err
    assert all("system_calls" in row for row in ran.own["operations"])
    for where in ((f"--dir={tmp_path}",), ()):  # the run made its directory, and its parents
        code, out, err = run(tmp_path, "R.json", "--seconds=1", *where)
        assert code == 0, (out, err)
        assert "CPU, s/GiB" in out
        assert sorted(tree(tmp_path)) == ["R.json", "small.yaml"]
