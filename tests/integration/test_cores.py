"""Independent runs in processes of their own: the same bytes, and nothing is left of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import psutil
import pytest

from kv_cache.app import cores as cores_module
from kv_cache.app import lab_replays, sim_runs
from kv_cache.app.cores import StoppedError, cores
from kv_cache.app.sim import SimOptions, sim
from kv_cache.bench.interrupts import Interrupts
from kv_cache.cli import main
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import UsageError
from kv_cache.core.seed import Seed
from kv_cache.files.cluster_tables import ColumnsFile
from kv_cache.files.result import Result
from kv_cache.workload.samples.hashed_traces import mooncake_lines
from tests.cli import PATIENCE_S
from tests.traces import ROOT

FILES: dict[str, Any] = {
    "output": "o.json",
    "csv": "o.csv",
    "series": "s.csv",
    "per_instance": "i.csv",
}


def in_processes(
    count: int, name: str, place: Path, monkeypatch: pytest.MonkeyPatch, *settings: str
) -> Result:
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sim_runs, "processes_for", lambda _: count)
    monkeypatch.setattr(sim_runs, "_WORTH_S", 0.0)
    result = sim(SimOptions(scenario=name, preset="smoke", seeds=3, settings=settings, **FILES))
    assert result is not None
    return result


@pytest.mark.parametrize("scenario", ["rack-pool", "node-policies"])
def test_two_processes_write_the_same_bytes_as_one(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (1, 2):
        in_processes(count, scenario, tmp_path / str(count), monkeypatch)
    for name in FILES.values():
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert (tmp_path / "1" / "o.csv").stat().st_size


def test_a_run_in_another_process_shows_its_series_as_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, real = list[int](), ColumnsFile.show

    def show(self: ColumnsFile, variant: Any, run: Any, columns: Any) -> None:
        shown.extend([run["run"]] * ("at_ns" in columns))
        real(self, variant, run, columns)

    monkeypatch.setattr(ColumnsFile, "show", show)
    monkeypatch.setattr(sim_runs, "_SHOWN_S", 0.0)
    for count in (1, 2):
        shown.clear()
        often = "watch.check_every=20"
        in_processes(count, "classes", tmp_path / str(count), monkeypatch, often)
        assert any(shown.count(run) > 1 for run in set(shown) - {1})
    series = [(tmp_path / each / "s.csv").read_bytes() for each in "12"]
    assert series[0] == series[1]


def test_runs_in_other_processes_whose_series_nobody_writes_need_no_place_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that who is killed leaves nothing."""
    monkeypatch.setattr(sim_runs, "TemporaryDirectory", None)
    with monkeypatch.context() as without:
        without.setitem(FILES, "series", None)
        in_processes(2, "rack-pool", tmp_path / "w", monkeypatch)
    with pytest.raises(TypeError):
        in_processes(2, "rack-pool", tmp_path / "s", monkeypatch)


@pytest.fixture
def spread_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a trace, in which two processes make all replays but the first."""
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{line}\n" for line in mooncake_lines(Seed(3), 200))
    (tmp_path / "mooncake.jsonl").write_text(lines)
    monkeypatch.setattr(lab_replays, "processes_for", lambda _: 2)
    monkeypatch.setattr(lab_replays, "_WORTH_S", 0.0)
    return tmp_path


LAB = {
    "a trace": ["mooncake.jsonl", "--residency", "fp16,int4", "--refusing"],
    "blocks of several sizes": [
        "--pattern", "rag_burst", "--seeds", "2", "--size-spread", "0.3", "--policies",
        "lru,random,gdsf", "--admission", "always,second-hit",
    ],
    "patterns": ["--pattern", "rag_burst,periodic_reuse", "--seeds", "5", "--policies", "lru,arc"],
    "tiers of a trace": [
        "mooncake.jsonl", "--tiers", "a=5%:1us:80GB/s,b=50%:20us:3GB/s:int8", "--policies",
        "lru,random", "--tier-scales", "1,0.5", "--prefetch", "none,successor",
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", LAB.values(), ids=LAB)
def test_lab_finds_the_same_bytes_in_two_processes_as_in_one(
    spread_lab: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def noted(processes: int, *rest: Any) -> Any:
        used.append(processes)
        return cores(processes, *rest)

    def found() -> list[bytes]:
        assert main(["lab", *words, "-o", "L.json", "--csv", "l.csv"]) == 0
        return [(spread_lab / name).read_bytes() for name in ("L.json", "l.csv")]

    monkeypatch.setattr(lab_replays, "cores", noted)
    of_two = found()
    assert used == [2]
    monkeypatch.setattr(lab_replays, "processes_for", lambda _: 1)
    assert found() == of_two
    assert used == [2]


def test_what_is_wrong_with_a_pattern_is_one_sentence_from_a_process_too(
    spread_lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--pattern", "prefetch_friendly,rag_burst", "--seeds", "2", "--pages", "5"]
    assert main(["lab", *words, "--policies", "lru", "-o", "L.json"]) == 2
    assert "--pages is 5; rag_burst has 22 or more" in capsys.readouterr().err
    assert not (spread_lab / "L.json").exists()


def test_a_signal_while_the_processes_of_lab_are_put_away_leaves_none_of_them(
    spread_lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the handler of a study raises otherwise would come out of the pool's shutdown."""
    real = ProcessPoolExecutor.shutdown

    def interrupted(pool: ProcessPoolExecutor, *args: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        real(pool, *args, **options)

    monkeypatch.setattr(ProcessPoolExecutor, "shutdown", interrupted)
    before = set(active_children())
    assert main(["lab", "mooncake.jsonl", "--policies", "lru,arc", "-o", "L.json"]) == 130
    assert "SIGINT: nothing is written" in capsys.readouterr().err
    assert not (spread_lab / "L.json").exists()
    assert set(active_children()) <= before


def squared(base: int, number: int, progress: Callable[[int], None]) -> int:
    progress(number)
    return base + number**2


def prepared(base: int) -> int:
    return base


def died(base: int, progress: Callable[[int], None]) -> None:
    os._exit(9)


def waiting(base: int, progress: Callable[[int], None]) -> None:
    while True:
        progress(0)
        time.sleep(0.01)


def test_parts_come_back_in_order_and_are_counted_together() -> None:
    seen: list[int] = []
    with cores(2, prepared, 100) as both:
        numbers = [(number,) for number in range(20)]
        answers = both.in_order(squared, numbers, Interrupts(), seen.append)
        assert list(answers) == [100 + number**2 for number in range(20)]
    assert seen == sorted(seen)
    assert seen[-1] <= sum(range(20))


def test_a_process_that_dies_is_one_sentence() -> None:
    with cores(2, prepared, 0) as both, pytest.raises(UsageError, match="where memory runs out"):
        list(both.in_order(died, [()], Interrupts(), ignore))


def test_a_signal_ends_parts_that_go_on() -> None:
    caught = Interrupts()
    caught.number = signal.SIGINT
    with cores(2, prepared, 0) as both, pytest.raises(StoppedError):
        list(both.in_order(waiting, [(), ()], caught, ignore))


def blind(base: int, number: int, progress: Callable[[int], None]) -> int:
    return number


def test_a_signal_ends_parts_that_are_too_short_to_see_it() -> None:
    caught = Interrupts()
    with cores(2, prepared, 0) as both:
        answers = both.in_order(blind, ((n,) for n in range(200)), caught, ignore)
        assert next(answers) == 0
        caught.number = signal.SIGTERM
        with pytest.raises(StoppedError):
            next(answers)


def deaf(base: int, progress: Callable[[int], None]) -> None:
    time.sleep(3600)


def test_a_process_that_does_not_look_whether_to_end_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores_module, "_PATIENCE_S", 0.2)
    caught = Interrupts()
    before = set(active_children())

    def stop(_: int) -> None:
        caught.number = signal.SIGINT

    with pytest.raises(StoppedError), cores(2, prepared, 0) as both:
        list(both.in_order(deaf, [(), ()], caught, stop))
    assert set(active_children()) <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """A terminal sends SIGINT to all of them; SIGKILL leaves the command no time for anything."""
    code = (
        "import sys; from kv_cache.app import sim_runs; sim_runs._WORTH_S = 0\n"
        "sim_runs.processes_for = lambda _: 2\n"
        "from kv_cache.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    output = tmp_path / "o.json"
    process = subprocess.Popen(
        [
            sys.executable, "-c", code, "sim", "single-node", "--seeds", "20",
            "--set", "workload.requests=3000", "--output", str(output),
        ],
        cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    children: list[psutil.Process] = []
    while sum("spawn_main" in " ".join(each.cmdline()) for each in children) < 2:
        assert process.poll() is None
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    code_of = process.wait(PATIENCE_S)
    assert code_of == (130 if number is signal.SIGINT else -number)
    psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not [each for each in children if each.is_running()]
    assert output.exists() == (number is signal.SIGINT)
