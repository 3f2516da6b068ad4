"""Preconditioning from the command line: what it writes, proves and leaves behind, and that the run
after it is the one that would have been without."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.text import as_json
from kv_cache.result.chain import seal
from tests.cli import (
    PATIENCE_S,
    SMALL,
    Ran,
    anything,
    environment,
    finish,
    prepare,
    run,
    small,
    start,
)
from tests.covering import by_day
from tests.integration.test_runs import sound
from tests.integration.test_series import assert_in_order, assert_sums, windows_of
from tests.passports import names, says, status

FILL = ["--storage-capacity-gb=0.1"]
ROUNDS = [*FILL, "--precondition", "--max-rounds=2", "--round=0.4"]
WANTED = 2 * int(0.1 * 2**30)
CAPACITY = WANTED // 2
PAGE = 4096


def preconditioning(ran: Ran) -> Any:
    done = ran.own["preconditioning"]
    assert abs(done["fill"]["wanted_bytes"] - WANTED) < 8 * PAGE
    return done


def test_the_run_after_it_is_the_run_without_it(tmp_path: Path) -> None:
    """The same is asked, and nothing of the rounds is found, recorded or counted."""
    seen = {}
    for name, more in (("with", ROUNDS), ("without", FILL)):
        (tmp_path / name).mkdir()
        ran = small(tmp_path / name, *more, "--max-requests=30", "--results-dir=runs", "--records")
        sound(ran)
        seen[name] = ran
    own, plain = (seen[name].own for name in ("with", "without"))
    assert own["schedule"] == plain["schedule"]
    assert own["reuse"] == plain["reuse"]
    done = preconditioning(seen["with"])
    assert done["fill"]["bytes"] == done["fill"]["wanted_bytes"]
    assert [row["round"] for row in done["rounds"]] == [1, 2]
    assert all(row["completed"] for row in done["rounds"])
    assert own["requests"]["submitted"] == own["requests"]["completed"] == 30
    (directory,) = (tmp_path / "with" / "runs").iterdir()
    records = [json.loads(x) for x in (directory / "requests.jsonl").read_text().splitlines()]
    assert len(records) == 30
    assert {record["user"].split("_")[0] for record in records} == {"user"}
    windows = windows_of(own)
    assert_in_order(windows)
    assert_sums(own)
    asked = sum(w["completed"] for w in windows if w["phase"] == "precondition")
    assert asked >= sum(row["completed"] for row in done["rounds"])
    assert not (tmp_path / "with" / "cache").exists()
    for told in (directory, Path("R.json")):
        checked = run(tmp_path / "with", "verify", str(told))
        assert checked.code == 0, checked.err
        assert "INTACT" in checked.out


def test_too_few_rounds_make_the_verdict_suspect(tmp_path: Path) -> None:
    own = sound(small(tmp_path, *ROUNDS, "--max-requests=12"))
    names(own, V14="suspect")
    assert "too few" in says(own, "V14")
    assert own["preconditioning"]["proof"] is None


def test_five_rounds_are_judged_by_the_rule(tmp_path: Path) -> None:
    ran = small(tmp_path, *FILL, "--precondition", "--max-rounds=5", "--round=0.3",
                "--max-requests=12")  # fmt: skip
    own = sound(ran)
    done = preconditioning(ran)
    assert len(done["rounds"]) == 5
    proof = done["proof"]
    assert proof["values"] == [row["bytes_per_second"] for row in done["rounds"]]
    assert "a round of 0.3" in " ".join(proof["lacks"])
    assert proof["steady"] is False
    names(own, V14="suspect")
    eased = ["--set=passport.least_round_s=0.2", "--set=passport.least_round_turnover=0"]
    again = sound(small(tmp_path, *FILL, "--precondition", "--max-rounds=5", "--round=0.3",
                        "--max-requests=12", *eased))["preconditioning"]["proof"]  # fmt: skip
    keeps = again["range_share"] <= 0.2 and again["slope_share"] <= 0.1
    assert again["lacks"] == []
    assert again["steady"] is keeps


def test_without_rounds_the_device_is_only_filled(tmp_path: Path) -> None:
    ran = small(tmp_path, *FILL, "--precondition", "--max-rounds=0", "--max-requests=12")
    own = sound(ran)
    done = preconditioning(ran)
    assert not done.get("rounds")
    assert done["fill"]["bytes"] == done["fill"]["wanted_bytes"]
    names(own)
    assert status(own, "V14") == "not-judged"
    assert not [w for w in windows_of(own) if w["phase"] == "precondition"]


MOONCAKE = ["--trace=datasets/mooncake_sample.jsonl", "--storage-capacity-gb=0.3"]


@pytest.mark.parametrize(
    "flags",
    by_day(
        {
            "decode-only": (["--decode-only"],),
            "arena": (["--layout=arena"],),
            "bucket": (["--layout=bucket", "--semantics=serving"],),
            "trace at once": ([*MOONCAKE, "--semantics=serving", "--trace-speedup=0"],),
            "trace in time": ([*MOONCAKE, "--semantics=serving", "--trace-speedup=50"],),
            "rate": (["--request-rate=100", "--arrival=poisson"],),
        },
        ["decode-only", "bucket", "trace in time", "rate"],
    ),
)
def test_every_load_can_be_preconditioned_with(flags: list[str], tmp_path: Path) -> None:
    ran = small(tmp_path, *ROUNDS, "--max-rounds=1", *flags, "--max-requests=10")
    own = sound(ran)
    assert own["requests"]["completed"] == 10
    assert own["preconditioning"]["rounds"][0]["completed"]
    assert_in_order(windows_of(own))
    assert_sums(own)
    assert not (tmp_path / "cache").exists()


def test_errors_are_those_of_the_run_s_own_requests(tmp_path: Path) -> None:
    """Who waited when the rounds ended was not asked for by the run."""
    prepare(tmp_path)
    text = (tmp_path / "small.yaml").read_text() + "schedule: {workers: 1}\n"
    (tmp_path / "one.yaml").write_text(text)
    own = sound(small(tmp_path, "--config=one.yaml", *ROUNDS, "--max-requests=12"))
    assert own["requests"]["unfinished"] == own["requests"]["rejected"] == 0
    assert own["requests"]["errors"] == {}


# --- interrupted, broken -----------------------------------------------------------------------


def wait_for(pattern: str, cache: Path, process: "subprocess.Popen[str]") -> None:
    while not anything(cache, pattern):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


BOTH: dict[str, tuple[list[str]]] = {"run": ([],), "precondition": (["precondition"],)}
"""A load that preconditions, and the command that does nothing else."""


@pytest.mark.parametrize("words", by_day(BOTH, ["precondition"]))
def test_a_signal_during_the_fill_leaves_a_result_and_no_file(
    words: list[str], tmp_path: Path
) -> None:
    more = [] if words else ["--precondition"]
    process = start(
        tmp_path,
        [*words, *SMALL, "--cache-dir=cache", "--output=R.json", "--storage-capacity-gb=0.1",
         "--precondition-size-gb=60", *more],
    )  # fmt: skip
    wait_for("*/*/fill-*.kv", tmp_path / "cache", process)
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert ran.code == 143, ran.err
    assert ran.own["status"] == "interrupted"
    fill = ran.own["preconditioning"]["fill"]
    assert fill["bytes"] < fill["wanted_bytes"]
    assert not (tmp_path / "cache").exists()
    if words:
        assert ran.own["verdict"] != "steady"
    else:
        assert ran.result["overall_passed"] is False
        assert ran.own["requests"]["submitted"] == 0


@pytest.mark.parametrize("words", by_day(BOTH, ["run"]))
def test_a_signal_during_a_round_leaves_a_result_and_no_file(
    words: list[str], tmp_path: Path
) -> None:
    more = [] if words else ["--precondition"]
    process = start(
        tmp_path,
        [*words, *SMALL, "--cache-dir=cache", "--output=R.json", *FILL, "--round=60", *more],
    )
    wait_for("*/*/[0-9a-f][0-9a-f]*.kv", tmp_path / "cache", process)  # objects: no fill or probe
    process.send_signal(signal.SIGINT)
    ran = finish(process, tmp_path)
    assert ran.code == 130, ran.err
    own = ran.own
    assert own["status"] == "interrupted"
    assert own["preconditioning"]["fill"]["bytes"] > 0
    assert not (tmp_path / "cache").exists()
    assert run(tmp_path, "verify", "R.json").code == 0
    if words:
        assert own["verdict"] == "not-steady"
    else:
        names(own, V12="invalid")
        books = own["requests"]
        ends = ("completed", "failed", "rejected", "unfinished")
        assert books["submitted"] == sum(books[name] for name in ends) == 0


BROKEN = """
import sys, functools
import kv_cache.cli, kv_cache.app.run as run, kv_cache.app.precondition as precondition
from tests.wrappers import Faulty
def bug(kind, ref):
    if ref.copy_id == 20: raise RuntimeError('a bug in the program')
run.open_run = precondition.open_run = functools.partial(
    run.open_run, wrap=lambda store: Faulty(store, bug))
sys.exit(kv_cache.cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", by_day(BOTH, ["precondition"]))
def test_a_worker_that_dies_in_a_round_ends_it_with_exit_code_1_and_a_result(
    words: list[str], tmp_path: Path
) -> None:
    prepare(tmp_path)
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    more = [] if words else ["--precondition"]
    done = subprocess.run(
        [sys.executable, str(script), *words, *SMALL, "--cache-dir=cache", "--output=R.json",
         *FILL, "--max-rounds=2", "--round=5", *more],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    assert own["status"] == "broken"
    assert not (tmp_path / "cache").exists()


# --- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--precondition-size-gb=900000"], "--precondition-size-gb"),
        (["--precondition-size-gb=0.000003"], "(--precondition-size-gb) is 3e-06 GiB, which is"),
        (["--storage-capacity-gb=3000B"], "less than a page; give at least 4 KiB, or 0 for what"),
        (["--set=schedule.max_inflight_gib=0.000003"], "max_inflight_gib is 3e-06 GiB, which is"),
        (["--storage-capacity-gb=900000"], "free"),
    ],
)
@pytest.mark.parametrize("words", [[], ["precondition"]], ids=["run", "precondition"])
def test_what_the_disk_cannot_hold_is_refused_before_anything_is_written(
    words: list[str], flags: list[str], said: str, tmp_path: Path
) -> None:
    more = [] if words else ["--precondition"]
    ran = run(tmp_path, *words, *SMALL, "--cache-dir=cache", "--output=R.json", *more, *flags)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


def test_the_command_tells_the_rounds_and_its_verdict(tmp_path: Path) -> None:
    ran = run(tmp_path, "precondition", *SMALL, *FILL, "--cache-dir=cache", "--output=R.json",
              "--max-rounds=2", "--round=0.4")  # fmt: skip
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["status"] == "finished"
    assert own["verdict"] == "not-steady"
    assert run(tmp_path, "verify", "R.json").code == 0
    done = preconditioning(ran)
    assert done["fill"]["bytes"] == done["fill"]["wanted_bytes"]
    assert len(done["rounds"]) == 2
    assert "NOT-STEADY" in ran.out
    assert "fewer than five" in ran.out
    assert not (tmp_path / "cache").exists()


def test_a_slow_open_loop_is_not_called_steady_for_the_bandwidth_that_it_asks_for(
    tmp_path: Path,
) -> None:
    loose = ("most_round_range=5", "most_round_change=5", "least_round_s=0.1",
             "least_round_turnover=0")  # fmt: skip
    moved = [f"--set=passport.{threshold}" for threshold in loose]
    ran = run(tmp_path, "precondition", *SMALL, *FILL, "--cache-dir=cache", "--output=R.json",
              "--cpu-mem-gb=0", "--request-rate=20", "--arrival=fixed", "--max-rounds=5",
              "--round=0.5", *moved)  # fmt: skip
    assert ran.code == 0, ran.err
    done = preconditioning(ran)
    assert done["open_loop"]
    assert all(row["write_bytes"] and row["write_p95_ms"] is None for row in done["rounds"])
    assert ran.own["verdict"] == "not-proven"
    assert "writes for a p95" in ran.out
    assert run(tmp_path, "verify", "R.json").code == 0
    for forge, words in FORGERIES.values():
        document = json.loads((tmp_path / "R.json").read_bytes())
        forge(document["kv_cache"])
        del document["kv_cache"]["chain"]
        (tmp_path / "forged.json").write_bytes(as_json(seal(document, {})))
        checked = run(tmp_path, "verify", "forged.json")
        assert (checked.code, words in checked.out) == (2, True), checked.out


FORGERIES: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "the verdict": (
        lambda own: own.update(verdict="steady", reasons=[]), "kv_cache.verdict says 'steady'"),
    "what is not proven": (
        lambda own: own["preconditioning"]["proof"].update(unjudged=[]), "proof.unjudged"),
    "the speed of a round": (
        lambda own: own["preconditioning"]["rounds"][0].update(bytes_per_second=1e9),
        "rounds[0].bytes_per_second says 1000000000.0"),
    "a shape that none has": (
        lambda own: own["preconditioning"]["rounds"][0].pop("seconds"), "lacks what every"),
}  # fmt: skip


def test_the_command_without_rounds_only_fills(tmp_path: Path) -> None:
    ran = run(tmp_path, "precondition", *SMALL, *FILL, "--cache-dir=cache", "--output=R.json",
              "--max-rounds=0")  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.own["verdict"] == "not-looked-for"
    assert run(tmp_path, "verify", "R.json").code == 0
    assert not (tmp_path / "cache").exists()


def test_the_command_leaves_kept_objects_and_no_fill(tmp_path: Path) -> None:
    """Without a tier above, which would take all that a slow machine stores in a round; what has
    begun when the round ends is waited for."""
    ran = run(tmp_path, "precondition", *SMALL, *FILL, "--cache-dir=cache", "--output=R.json",
              "--cpu-mem-gb=0", "--max-rounds=1", "--round=0.3", "--keep-cache")  # fmt: skip
    assert ran.code == 0, ran.err
    assert list((tmp_path / "cache").glob("*/*/*.kv"))
    assert not list((tmp_path / "cache").glob("**/fill-*"))


USELESS = (
    *("--duration=1", "--warmup=1", "--virtual-time", "--trials=2", "--max-requests=2"),
    *("--enable-autoscaling", "--results-dir=x", "--latency-dump=x", "--fio-export=x"),
    "--certify",
)


@pytest.mark.parametrize("flag", USELESS)
def test_what_the_command_cannot_use_is_refused_by_name(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kv_cache.cli import main

    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["precondition", *SMALL, "--cache-dir=cache", "--output=R.json", flag]) == 2
    said = capsys.readouterr().err
    name = flag.removeprefix("--").split("=")[0].replace("-", "_").removeprefix("enable_")
    assert name.split("_")[0].rstrip("ing")[:6] in said, said
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "R.json").exists()


@pytest.mark.parametrize(
    "section",
    [
        "run: {virtual_time: true}",
        "run: {trials: 3, max_requests: 5}",
        "autoscaler: {enabled: true}",
    ],
)
def test_a_configuration_made_for_runs_is_refused_or_does_no_harm(
    section: str, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text(section + "\n")
    ran = run(tmp_path, "precondition", "--config=site.yaml", "--model=tiny-1b", "--gpu-mem-gb=0",
              "--cpu-mem-gb=0.0625", "--generation-mode=none", "--seed=3", "--num-users=4", *FILL,
              "--cache-dir=cache", "--output=R.json", "--max-rounds=1", "--round=0.5")  # fmt: skip
    assert "Traceback" not in ran.err, ran.err
    if ran.code == 2:
        assert len(ran.err.strip().splitlines()) == 1
        return
    assert ran.code == 0, ran.err
    assert preconditioning(ran)["fill"]["bytes"] > 0
    assert len(ran.own["preconditioning"]["rounds"]) == 1
