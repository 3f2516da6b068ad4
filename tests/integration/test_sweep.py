"""Sweeps as a user starts them: cells in virtual time, each a process of its own."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.text import as_json
from kv_cache.installing import install_hint
from kv_cache.result.chain import seal, sealed_files
from tests.cli import (
    PATIENCE_S,
    PROGRAM,
    anything,
    called,
    environment,
    prepare,
    run,
    start,
    wait_for,
)

VIRTUAL = """
config: small.yaml
base:
  run.virtual_time: true
  run.kv_bytes_per_token: 3072
  run.duration_s: 1
  tiers.gpu_mem_gib: 0
  tiers.cpu_mem_gib: 0.0078125
  tiers.storage_capacity_gib: 0.0625
vary:
  run.num_users: [2, 4]
repeat: {repeat}
seed: 42
"""


def sweep(cwd: Path, *args: str, grid: str = VIRTUAL, repeat: int = 1) -> tuple[int, str, str]:
    (cwd / "grid.yaml").write_text(grid.replace("{repeat}", str(repeat)))
    done = run(cwd, "sweep", "grid.yaml", "--results-dir=D", *args)
    return done.code, done.out, done.err


def own(cwd: Path) -> Any:
    return json.loads((cwd / "D/sweep.json").read_bytes())["kv_cache"]


def results(cwd: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted((cwd / "D").glob("*/*/result.json"))}


def test_each_cell_is_a_run_with_a_directory_of_its_own(tmp_path: Path) -> None:
    code, out, err = sweep(tmp_path, repeat=2)
    assert code == 0, err
    assert out.startswith("Sweep: FINISHED. 2 cells, 4 of 4 runs finished.")
    found = own(tmp_path)
    directories = [run["directory"] for cell in found["cells"] for run in cell["runs"]]
    assert directories == [
        *(f"cell-001_run.num_users-2/trial{k}" for k in (1, 2)),
        *(f"cell-002_run.num_users-4/trial{k}" for k in (1, 2)),
    ]
    for directory in directories:
        names = {path.name for path in (tmp_path / "D" / directory).iterdir()}
        assert names == {"cell.yaml", "log.txt", "result.json", "exit_code"}
    seeds = [[run["seed"] for run in cell["runs"]] for cell in found["cells"]]
    assert seeds[0] == seeds[1]  # in pairs
    assert len(set(seeds[0])) == 2
    assert (tmp_path / "D/sweep.csv").read_text().count("\n") == 3
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "D/sweep.svg").exists()

    # again: nothing is run, and nothing changes
    before = results(tmp_path)
    code, again, err = sweep(tmp_path, repeat=2)
    assert (code, results(tmp_path)) == (0, before)
    assert "4 of 4 runs are there" in err
    assert again == out

    # what is missing or was changed is run again
    changed, gone = list(before)[:2]
    changed.write_text(changed.read_text().replace('"finished"', '"Finished"'))
    (gone.parent / "exit_code").unlink()
    code, _, err = sweep(tmp_path, repeat=2)
    assert code == 0
    assert "2 of 4 runs are there" in err
    assert {path for path, at in results(tmp_path).items() if at != before[path]} == {changed, gone}

    # another grid, or another configuration below it, is refused by name
    code, _, err = sweep(tmp_path, repeat=3)
    assert code == 2
    assert "repeat was 2 when the sweep in D was begun, and is 3" in err
    small = tmp_path / "small.yaml"
    kept = small.read_text()
    small.write_text(kept.replace("threads: 4", "threads: 5"))
    (tmp_path / "grid.yaml").write_text(VIRTUAL.replace("{repeat}", "2"))
    code, _, err = called(tmp_path, "sweep", "grid.yaml", "--results-dir=D")
    assert code == 2
    assert "io.threads was 4 when the sweep was begun, and is 5" in err


def test_a_cell_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    """A cell whose cache directory goes away between the check and its turn."""
    place = tmp_path / "cache"
    grid = VIRTUAL.replace("run.virtual_time: true", f"tiers.cache_dir: [{place}/inner]")
    place.mkdir()
    (tmp_path / "grid.yaml").write_text(grid.replace("{repeat}", "1"))
    process = start(tmp_path, ["sweep", "grid.yaml", "--results-dir=D"])
    wait_for(lambda: any((tmp_path / "D").glob("cell-001*/trial1/exit_code")))
    shutil.rmtree(place, ignore_errors=True)
    place.write_text("in the way")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    rows = [run for cell in own(tmp_path)["cells"] for run in cell["runs"]]
    assert [row["status"] for row in rows] == ["finished", "failed"]
    assert rows[1]["exit_code"] == 2
    assert "cache" in rows[1]["message"]
    assert "! cell 2, run 1: failed, exit code 2" in out


def test_an_interrupted_sweep_keeps_what_it_has_and_goes_on_later(tmp_path: Path) -> None:
    grid = VIRTUAL.replace("run.virtual_time: true", "tiers.cache_dir: [cache]")
    grid = grid.replace("run.duration_s: 1", "run.duration_s: 4").replace("{repeat}", "1")
    prepare(tmp_path)
    (tmp_path / "grid.yaml").write_text(grid)
    process = start(tmp_path, ["sweep", "grid.yaml", "--results-dir=D"])
    wait_for(lambda: any((tmp_path / "D").glob("cell-001*/trial1/exit_code")))
    wait_for(lambda: anything(tmp_path / "cache", "kv-cache-run-*/*"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    found = own(tmp_path)
    assert (found["status"], found["interrupted"]) == ("interrupted", "SIGINT")
    assert [cell["verdict"] for cell in found["cells"]][1] == "unfinished"
    assert "ended by SIGINT" in out
    assert not list((tmp_path / "cache").glob("kv-cache-run-*"))
    kept = results(tmp_path)

    code, out, err = sweep(tmp_path, grid=grid)
    assert code == 0, err
    assert "1 of 2 runs are there" in err
    assert own(tmp_path)["status"] == "finished"
    first = next(iter(kept))
    assert results(tmp_path)[first] == kept[first]


def test_a_sweep_that_is_killed_takes_its_run_along(tmp_path: Path) -> None:
    grid = VIRTUAL.replace("run.virtual_time: true", "tiers.cache_dir: [cache]")
    prepare(tmp_path)
    (tmp_path / "grid.yaml").write_text(
        grid.replace("run.duration_s: 1", "run.duration_s: 60").replace("{repeat}", "1")
    )
    process = start(tmp_path, ["sweep", "grid.yaml", "--results-dir=D"])
    wait_for(lambda: anything(tmp_path / "cache", "kv-cache-run-*/*"))
    process.kill()
    process.communicate()
    wait_for(lambda: not anything(tmp_path / "cache", "kv-cache-run-*"))
    assert own(tmp_path)["status"] == "interrupted"


@pytest.fixture(scope="module")
def two_cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a sweep of two cells that is finished."""
    place = tmp_path_factory.mktemp("two")
    assert sweep(place)[0] == 0
    return place


@pytest.fixture
def finished(two_cells: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(two_cells, tmp_path / "copy"))


def test_a_sweep_that_was_killed_before_its_cells_were_made_goes_on(finished: Path) -> None:
    tmp_path = finished
    shutil.rmtree(tmp_path / "D/cell-002_run.num_users-4")
    code, _, err = sweep(tmp_path)
    assert code == 0, err
    assert own(tmp_path)["finished"] == 2


def test_verify_knows_a_sweep_and_the_results_that_it_names(finished: Path) -> None:
    tmp_path = finished
    found = run(tmp_path, "verify", "D/sweep.json")
    assert found.code == 0, found.err
    assert "files        2 of 2 that it names are there" in found.out
    assert "of cells are derived again from the runs" in found.out
    shutil.rmtree(tmp_path / "D/cell-002_run.num_users-4")
    assert "files        1 of 2" in run(tmp_path, "verify", "D/sweep.json").out
    result = tmp_path / "D/cell-001_run.num_users-2/trial1/result.json"
    result.write_bytes(result.read_bytes() + b" ")
    found = run(tmp_path, "verify", "D/sweep.json")
    assert found.code == 2
    assert "result.json was changed after the run" in found.out


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("metrics", "storage.read.bytes_per_second", "mean"), 1e12, "mean does not follow"),
        (("verdict",), "valid", "cells[1].verdict does not follow from the runs"),
        (("runs", 0, "metrics", "storage.read.bytes_per_second"), 1e12, "does not follow"),
        (("runs", 0, "seed"), 7, "runs[0].seed does not follow"),
        (("runs", 0, "exit_code"), "x", "does not follow"),
        (("runs", 0, "trial"), None, "no cells of one sweep"),
    ],
)
def test_numbers_of_a_sweep_that_do_not_follow_from_its_runs_are_told_though_the_hashes_fit(
    place: tuple[str | int, ...], value: Any, words: str, finished: Path
) -> None:
    path = finished / "D/sweep.json"
    document = json.loads(path.read_bytes())
    at = document["kv_cache"]["cells"][1]
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    files = sealed_files(document)
    del document["kv_cache"]["chain"]
    path.write_bytes(as_json(seal(document, files)))
    found = run(finished, "verify", "D/sweep.json")
    assert (found.code, words in found.out) == (2, True), found.out + found.err


def test_a_gate_of_single_runs_makes_no_failed_runs_of_a_sweep(tmp_path: Path) -> None:
    """Each run was told as failed, by the code with which it would have ended by itself."""
    prepare(tmp_path)
    text = (tmp_path / "small.yaml").read_text() + "\noutput: {fail_on: invalid}\n"
    (tmp_path / "gated.yaml").write_text(text)
    code, out, err = sweep(tmp_path, grid=VIRTUAL.replace("small.yaml", "gated.yaml"))
    assert code == 0, err
    assert out.startswith("Sweep: FINISHED. 2 cells, 2 of 2 runs finished.")
    code, _, err = sweep(tmp_path, grid=f"{VIRTUAL}zip: {{output.fail_on: [slo, slo]}}\n")
    assert (code, "output.fail_on" in err, err.count("\n")) == (2, True, 1)


def test_real_runs_at_the_same_time_are_noted(tmp_path: Path) -> None:
    grid = VIRTUAL.replace("run.virtual_time: true", "run.virtual_time: false")
    code, out, err = sweep(tmp_path, "--jobs=2", grid=grid)
    assert code == 0, err
    assert "2 runs of real I/O go on at the same time" in own(tmp_path)["notes"][0]
    assert "  ! 2 runs of real I/O" in out
    assert "WARNING 2 runs of real I/O" in err


@pytest.mark.parametrize(
    ("files", "args", "says"),
    [
        ({}, ["--jobs=0"], "--jobs is 0; it must be a whole number, 1 to 256"),
        ({"D/notes.txt": "mine"}, [], "it holds 'notes.txt' and no sweep.json"),
        ({"D/sweep.json": "{"}, [], "is not JSON"),
        ({"D/sweep.json": '{"kv_cache": {"schema": "else/1"}}'}, [], "no document of a sweep"),
        ({"D": "a file"}, [], "it is no directory"),
        ({}, ["--results-dir=no/where"], "there is no directory no"),
    ],
)
def test_a_place_of_something_else_is_refused_and_left(
    tmp_path: Path, files: dict[str, str], args: list[str], says: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code, out, err = sweep(tmp_path, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert all((tmp_path / name).read_text() == text for name, text in files.items())


def test_all_cells_are_checked_before_the_first_is_run(tmp_path: Path) -> None:
    grid = VIRTUAL.replace("run.num_users: [2, 4]", "run.model: [tiny-1b, tiny-2b]")
    grid = grid.replace("  run.kv_bytes_per_token: 3072\n", "")
    code, _, err = sweep(tmp_path, grid=grid)
    assert code == 2
    assert "cell 2 (run.model 'tiny-2b')" in err
    assert not (tmp_path / "D").exists()


def test_cells_are_spread_over_the_ranks_of_mpi(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.prefix) / "bin"))
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpirun, or no mpi4py")
    prepare(tmp_path)
    (tmp_path / "grid.yaml").write_text(VIRTUAL.replace("{repeat}", "1"))
    ranks = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n"]
    done = subprocess.run(
        [*ranks, "3", sys.executable, str(PROGRAM), "sweep", "grid.yaml", "--results-dir=D"],
        cwd=tmp_path, env={**environment(), "PYTHONWARNINGS": "default"}, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Sweep: FINISHED. 2 cells, 2 of 2 runs finished.")
    assert own(tmp_path)["workers"] == 2
    refused = subprocess.run(
        [*ranks, "2", sys.executable, str(PROGRAM), "sweep", "none.yaml", "--results-dir=D"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.count("kv-cache: none.yaml cannot be read") == 1


def test_ranks_without_mpi4py_are_told_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('none here')")
    prepare(tmp_path)
    (tmp_path / "grid.yaml").write_text(VIRTUAL.replace("{repeat}", "1"))
    said = []
    for rank in (0, 1):
        env = environment()
        env |= {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"}
        env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "sweep", "grid.yaml", "--results-dir=D"],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        said.append(done.stderr)
    assert install_hint("mpi") in said[0]
    assert said[1] == ""
