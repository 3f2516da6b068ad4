"""Runs that meet on one device, by the command line and by the page, and a device that hangs under
a run of the page. Each test has a device of its own."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from benchmarks.devices import (
    LOOP_TOOLS,
    NBD_TOOLS,
    Faults,
    faulty_directory,
    ram_directory,
    why_not,
)
from kv_cache.bench.device_mark import devices_of
from tests.cli import LIGHT, PATIENCE_S, SMALL, called, command, environment, prepare, wait_for
from tests.serving import TINY, Served, end, serving

NO_LOOPS, NO_NBD = why_not(LOOP_TOOLS), why_not(NBD_TOOLS)
pytestmark = pytest.mark.root
needs_loops = pytest.mark.skipif(NO_LOOPS is not None, reason=NO_LOOPS or "")
needs_nbd = pytest.mark.skipif(NO_NBD is not None, reason=NO_NBD or "")

OTHER = {"KV_CACHE_JOB": ""}
"""What makes a run a stranger to all others."""
LONG = {**TINY, "run.duration_s": "600"}


@contextmanager
def a_run(cwd: Path, cache: Path, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of the command line that has its cache directory."""
    prepare(cwd)
    process = subprocess.Popen(
        command(*SMALL, *LIGHT, f"--cache-dir={cache}", "--duration=600", "--output=long.json"),
        cwd=cwd, env={**environment(), **variables}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(
            lambda: process.poll() is not None or list(cache.glob("kv-cache-run-*/OWNER.json"))
        )
        assert process.poll() is None
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)


@needs_loops
def test_a_second_run_on_a_device_is_refused_and_may_be_of_the_same_job(tmp_path: Path) -> None:
    with ram_directory(0.6) as device:
        short = [*SMALL, *LIGHT, "--duration=1", f"--cache-dir={device}/b", "--output=R.json"]
        with a_run(tmp_path, device / "a", KV_CACHE_JOB="both"):
            for words in (short, ["probe", f"--cache-dir={device}/b", "--profile=R.json"]):
                code, _, err = called(tmp_path, *words, **OTHER)
                assert code == 2, err
                assert f"cache directory {device}/b: another run is using its device loop" in err
                assert not (device / "b").exists()
                assert not (tmp_path / "R.json").exists()
            code, _, err = called(tmp_path, *short, "--virtual-time", **OTHER)
            assert code == 0, err
            code, _, err = called(tmp_path, *short, KV_CACHE_JOB="both")
            assert code == 0, err


@needs_loops
def test_after_a_kill_the_next_run_has_the_device(tmp_path: Path) -> None:
    with ram_directory(0.4) as device:
        with a_run(tmp_path, device / "a", **OTHER):
            pass  # the context ends it by SIGKILL
        short = [*SMALL, *LIGHT, "--duration=1", f"--cache-dir={device}/b", "--output=R.json"]
        code, _, err = called(tmp_path, *short, **OTHER)
        assert code == 0, err


@needs_loops
def test_ranks_clients_and_cells_share_their_device(tmp_path: Path) -> None:
    prepare(tmp_path)
    with ram_directory(0.6) as device:
        words = [*SMALL, *LIGHT, "--duration=1", f"--cache-dir={device}/c", "--output=R.json"]
        (tmp_path / "grid.yaml").write_text(
            "config: small.yaml\nvary: {run.num_users: [2, 3]}\nbase: {run.duration_s: 1, "
            "tiers.gpu_mem_gib: 0, tiers.cpu_mem_gib: 0.0078125, tiers.storage_capacity_gib: 0.06, "
            "run.kv_bytes_per_token: 3072, run.model: tiny-1b, run.generation_mode: none}\n"
        )
        grid = ["sweep", "grid.yaml", "--jobs=2", "--results-dir=swept"]
        for command_words in ([*words, "--clients=2"], grid):
            done = subprocess.run(command(*command_words), cwd=tmp_path, check=False, text=True,
                                  env={**environment(), **OTHER, "TMPDIR": str(device)},
                                  capture_output=True)  # fmt: skip
            assert done.returncode == 0, done.stderr


@needs_loops
def test_partitions_of_a_disk_are_one_device() -> None:
    with ram_directory(0.1) as directory:
        (loop,) = devices_of(directory)
        assert loop.startswith("loop")
        subprocess.run(["addpart", f"/dev/{loop}", "1", "0", "40960"], check=True)
        try:
            assert devices_of(Path(f"/dev/{loop}p1")) == (loop,)
        finally:
            subprocess.run(["delpart", f"/dev/{loop}", "1"], check=True)


# --- by the page -----------------------------------------------------------------------------


@needs_loops
def test_of_two_starts_on_one_device_one_is_refused_whoever_runs(tmp_path: Path) -> None:
    with ram_directory(0.6) as device, serving(tmp_path, f"--folder={device}",
                                               variables=OTHER) as server:  # fmt: skip
        name = server.start(**LONG, **{"tiers.cache_dir": str(device / "a")})
        other = {**LONG, "tiers.cache_dir": str(device / "b")}
        status, answer = server.ask("/runs", {"command": "run", "values": other})
        assert (status, answer["error"]["kind"]) == (409, "busy")
        assert "another run is using its device loop" in answer["error"]["sentence"]
        wait_for(lambda: list(device.glob("a/kv-cache-run-*")))
        code, _, err = called(tmp_path, "probe", f"--cache-dir={device}/b", **OTHER)
        assert code == 2
        assert "another run is using its device loop" in err
        server.ask(f"/runs/{name}", method="DELETE")
        server.ended(name)
        with a_run(tmp_path, device / "a", **OTHER):
            status, answer = server.ask("/runs", {"command": "run", "values": other})
            assert (status, answer["error"]["kind"]) == (409, "busy")


@needs_loops
def test_of_many_starts_in_one_instant_one_is_made(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ram_directory(0.4) as device, serving(tmp_path, f"--folder={device}",
                                               variables=OTHER) as server:  # fmt: skip
        values = {**LONG, "tiers.cache_dir": str(device / "a")}
        with ThreadPoolExecutor(6) as threads:
            wanted = {"command": "run", "values": values}
            answers = list(threads.map(lambda _: server.ask("/runs", wanted), range(6)))
        assert sorted(status for status, _ in answers) == [201, 409, 409, 409, 409, 409]
        _, runs = server.ask("/runs")
        (run,) = runs["runs"]
        server.ask(f"/runs/{run['id']}", method="DELETE")
        server.ended(run["id"])


@needs_loops
def test_killed_the_server_leaves_runs_to_end_and_the_next_one_knows_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        device = stack.enter_context(ram_directory(0.4))
        words = f"--folder={device}"
        first = stack.enter_context(serving(tmp_path, words, variables=OTHER))
        going = first.start(**LONG, **{"tiers.cache_dir": str(device / "drive")})
        done = first.start(**TINY, **{"run.duration_s": "2", "run.virtual_time": "true"})
        first.ended(done)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(timeout=PATIENCE_S)
        second = stack.enter_context(serving(tmp_path, words, variables=OTHER))
        _, runs = second.ask("/runs")
        assert {run["id"]: run["state"] for run in runs["runs"]} == {
            going: "running", done: "done",
        }  # fmt: skip
        other = {**LONG, "tiers.cache_dir": str(device / "other")}
        status, _ = second.ask("/runs", {"command": "run", "values": other})
        assert status == 409  # it has its device, though its server is gone
        _, run = second.ask(f"/runs/{going}")
        end(run["pid"])
        assert second.ended(going)["state"] == "interrupted"


# --- what speaks against a run while it goes on ------------------------------------------------


def until_found(server: Served, name: str, *rules: str) -> list[str]:
    """Watch a run until all these rules have found something; the sentences of then."""
    with urllib.request.urlopen(f"{server.url}/runs/{name}/events", timeout=PATIENCE_S) as events:
        for line in events:
            if line.startswith(b"data: {") and "now" in (event := json.loads(line[6:])):
                found: list[str] = event["now"]["so_far"]
                if all(any(f": {rule} " in text for text in found) for rule in rules):
                    assert "V13 client" in event["now"]["waiting"]
                    return found
    raise AssertionError(f"it ended without {rules}: {server.ask(f'/runs/{name}')[1]['log']}")


@contextmanager
def read_by_others(device: Path) -> Iterator[None]:
    """What others read for so long is a share of all bytes, however slow the machine is."""
    dd = f"dd if={device} of=/dev/null bs=1M count=100 iflag=direct"
    process = subprocess.Popen(["sh", "-c", f"while {dd}; do :; done"], start_new_session=True,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)


@needs_loops
def test_what_the_passport_finds_is_said_while_the_run_goes_on(tmp_path: Path) -> None:
    with ram_directory(0.4) as device, serving(tmp_path, f"--folder={device}",
                                               variables=OTHER) as server:  # fmt: skip
        name = server.start(**{
            **LONG, "tiers.cache_dir": str(device / "a"), "tiers.cpu_mem_gib": "0",
            "run.num_users": "2",
        })  # fmt: skip
        found = until_found(server, name, "V27")
        assert [text.partition(" ")[0] for text in found if ": V" in text] == ["invalid:"]
        assert "is memory and no drive" in found[0]
        (loop,) = devices_of(device)
        with read_by_others(Path("/dev", loop)):
            found = until_found(server, name, "V23", "V27")
            assert any("suspect: V23 foreign I/O: others moved" in text for text in found)
            _, run = server.ask(f"/runs/{name}")
            with urllib.request.urlopen(run["metrics"], timeout=PATIENCE_S) as scrape:
                text = scrape.read().decode()
            assert 'kv_cache_passport_finding{rule="V27",status="invalid"} 1' in text
            server.ask(f"/runs/{name}/stop", {})
            server.ended(name)
        _, document = server.ask(f"/runs/{name}/result")
        reasons = document["kv_cache"]["passport"]["reasons"]
        assert {"V23", "V27"} <= {reason.partition(" ")[0] for reason in reasons}


# --- a device that hangs ---------------------------------------------------------------------


@contextmanager
def hanging(tmp_path: Path, **values: str) -> Iterator[tuple[Served, str, Faults]]:
    """A run of the page whose device no longer answers, and its server."""
    config = tmp_path / "hasty.yaml"
    config.write_text("run: {answer_s: 2, drain_s: 1}\n")
    with faulty_directory(0.4) as faults, serving(tmp_path, f"--folder={faults.path}",
                                                  variables=OTHER) as server:  # fmt: skip
        try:
            cache = faults.path / "c"
            name = server.start(**{
                **TINY, "config": str(config), "tiers.cache_dir": str(cache),
                "run.duration_s": "600", "tiers.cpu_mem_gib": "0", "run.num_users": "16",
                **values,
            })  # fmt: skip
            wait_for(lambda: len(list(cache.glob("*/*/*.kv"))) >= 5)
            faults.pause()
            yield server, name, faults
        finally:
            faults.resume()


def answers(server: Served, name: str) -> None:
    """While a device hangs the server answers everything else, soon."""
    for path in ("/runs", f"/runs/{name}", "/results?fresh=1", "/commands/run", "/"):
        assert server.ask(path)[0] == 200


@needs_nbd
def test_a_device_that_never_answers_ends_the_run_with_its_result(tmp_path: Path) -> None:
    with hanging(tmp_path, **{"run.duration_s": "8"}) as (server, name, faults):
        answers(server, name)
        run = server.ended(name)
        assert (run["state"], run["exit_code"]) == ("failed", 3), run["log"]
        assert "the device did not answer" in run["refusal"]
        assert f"operations on {faults.path}/c" in "".join(run["log"])
        status, document = server.ask(f"/runs/{name}/result")
        assert status == 200
        assert document["kv_cache"]["status"] == "broken"
        other = {**TINY, "tiers.cache_dir": str(faults.path / "d")}
        status, answer = server.ask("/check", {"command": "run", "values": other})
        assert status == 200, answer  # though what it looks at may not answer
        status, answer = server.ask("/runs", {"command": "run", "values": other})
        assert (status, answer["error"]["kind"]) in ((409, "busy"), (422, "place"))
        answers(server, name)


@needs_nbd
@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_a_run_on_a_device_that_hangs_is_stopped_and_cancelled(tmp_path: Path, how: str) -> None:
    with hanging(tmp_path) as (server, name, _):
        if how == "stop":
            found = until_found(server, name, "V29")  # it is named meanwhile
            assert any("suspect: V29 gaps: storage stood still for" in text for text in found)
            status, _ = server.ask(f"/runs/{name}/stop", {})
        else:
            status, _ = server.ask(f"/runs/{name}", method="DELETE")
        assert status == 200
        answers(server, name)
        run = server.ended(name)
        if how == "stop":
            assert (run["state"], run["exit_code"]) == ("failed", 3)
            assert server.ask(f"/runs/{name}/result")[1]["kv_cache"]["status"] == "broken"
        else:
            assert run["state"] == "cancelled"
            assert not run["results"]
            assert not (server.results / name / "out").exists()


@needs_nbd
def test_killed_beside_a_hanging_device_the_server_and_the_run_lose_nothing(tmp_path: Path) -> None:
    with hanging(tmp_path, **{"run.duration_s": "8"}) as (server, name, _):
        server.process.kill()
        server.process.wait(timeout=PATIENCE_S)
        with serving(tmp_path, variables=OTHER) as second:
            answers(second, name)
            run = second.ended(name)
            assert run["state"] == "done", run  # nobody saw its code; its result says the rest
            _, document = second.ask(f"/runs/{name}/result")
            assert document["kv_cache"]["status"] == "broken"
            assert json.loads((second.results / name / "web.json").read_text())["ended_unix_s"]
