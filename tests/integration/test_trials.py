"""`run --trials N` and `compare`, end to end: whole runs with files of their own, one document of
all, and what two of these say of each other."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.result.chain import seal
from kv_cache.result.trials import aggregate, trial_seed
from tests.cli import (
    LIGHT,
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
from tests.passports import names

VIRTUAL = ["--virtual-time", "--duration=3"]
MASTER = 3  # of `SMALL`


def trials(cwd: Path, *args: str) -> Ran:
    return small(cwd, *args)


def documents(cwd: Path, stem: str = "R") -> list[Any]:
    """The single results, in the order of the trials."""
    found = sorted(cwd.glob(f"{stem}.trial*.json"))
    return [json.loads(path.read_bytes()) for path in found]


def assert_whole(cwd: Path, own: Any, count: int) -> None:
    assert own["schema"] == "kv-cache-trials/2"
    assert (own["planned"], own["finished"], own["seed"]) == (count, count, MASTER)
    singles = documents(cwd)
    assert len(own["trials"]) == len(singles) == count
    for row, single in zip(own["trials"], singles, strict=True):
        data = (cwd / row["file"]).read_bytes()
        assert row["sha256"] == hashlib.sha256(data).hexdigest()
        assert row["seed"] == single["kv_cache"]["seed"] == trial_seed(MASTER, row["trial"])
        assert row["schedule_sha256"] == single["kv_cache"]["schedule"]["sha256"]
        assert row["counted"]
    assert len({row["schedule_sha256"] for row in own["trials"]}) == count
    requests = own["metrics"]["requests_per_second"]
    assert requests["values"] == [
        s["kv_cache"]["measured"]["all"]["completed"] / s["kv_cache"]["window_s"] for s in singles
    ]
    assert requests["min"] <= requests["median"] <= requests["max"]


def test_trials_in_virtual_time_are_runs_of_their_own(tmp_path: Path) -> None:
    ran = trials(tmp_path, *VIRTUAL, "--trials=3")
    assert ran.code == 0, ran.err
    assert_whole(tmp_path, ran.own, 3)
    assert "3 of 3 trials finished." in ran.out
    assert {path.name for path in tmp_path.iterdir()} == {
        "small.yaml", "R.json", "R.trial1.json", "R.trial2.json", "R.trial3.json"
    }  # fmt: skip


def test_trials_on_a_real_directory_verify_and_leave_no_file(tmp_path: Path) -> None:
    ran = trials(tmp_path, *LIGHT, "--trials=2", "--max-requests=25", "--results-dir=runs",
                 "--records", "--latency-dump=dump.jsonl")  # fmt: skip
    assert ran.code == 0, ran.err
    assert_whole(tmp_path, ran.own, 2)
    assert not (tmp_path / "cache").exists()
    whole = run(tmp_path, "verify", "R.json")
    assert (whole.code, "are derived again from those files" in whole.out) == (0, True), whole.out
    for number in (1, 2):
        checked = run(tmp_path, "verify", f"R.trial{number}.json")
        assert checked.code == 0, checked.err
        assert "INTACT" in checked.out
        assert len((tmp_path / f"dump.trial{number}.jsonl").read_text().splitlines()) == 25
    directories = sorted((tmp_path / "runs").iterdir())
    assert len(directories) == 2
    for directory in directories:
        assert len((directory / "requests.jsonl").read_text().splitlines()) == 25
        assert run(tmp_path, "verify", str(directory)).code == 0


def test_a_series_whose_worst_trial_was_left_out_is_named_whatever_was_made_of_it(
    tmp_path: Path,
) -> None:
    own = trials(tmp_path, *VIRTUAL, "--trials=3").own
    rows = [own["trials"][0], own["trials"][2]]
    files = {row["file"]: row["sha256"] for row in rows}
    left = [json.loads((tmp_path / name).read_bytes()) for name in files]
    document = aggregate(left, files, master_seed=own["seed"], planned=2)
    names(document["kv_cache"], T1="invalid", T2="invalid")
    (tmp_path / "R.json").write_bytes(as_json(document))
    assert run(tmp_path, "verify", "R.json").code == 0  # it says itself what it is
    section = document["kv_cache"]
    section["passport"] = {**section["passport"], "verdict": "valid", "reasons": []}
    del section["chain"]
    (tmp_path / "R.json").write_bytes(as_json(seal(document, files)))
    told = run(tmp_path, "verify", "R.json")
    assert told.code == 2
    assert "kv_cache.passport.verdict does not follow from the trials' results" in told.out


def test_one_trial_is_a_run(tmp_path: Path) -> None:
    ran = trials(tmp_path, *VIRTUAL, "--trials=1")
    assert ran.code == 0, ran.err
    assert ran.own["schema"].startswith("kv-cache-result/")
    assert not documents(tmp_path)


def test_a_trial_can_be_repeated_by_its_seed(tmp_path: Path) -> None:
    assert trials(tmp_path, *VIRTUAL, "--trials=2").code == 0
    seed = trial_seed(MASTER, 2)
    alone = small(tmp_path, *VIRTUAL, f"--seed={seed}", "--output=alone.json")
    assert alone.code == 0, alone.err
    again = json.loads((tmp_path / "alone.json").read_bytes())["kv_cache"]
    second = documents(tmp_path)[1]["kv_cache"]
    for name in ("schedule", "requests", "measured", "series"):
        assert again[name] == second[name]


def test_a_signal_ends_the_series_and_is_told(tmp_path: Path) -> None:
    process = start_trials(tmp_path, "--duration=4")
    gone_and_back(tmp_path / "cache", process)
    process.send_signal(signal.SIGINT)
    ran = finish(process, tmp_path)
    assert ran.code == 130, ran.err
    own = ran.own
    assert own["planned"] == 3
    assert [row["status"] for row in own["trials"]] == ["finished", "interrupted"]
    assert [row["counted"] for row in own["trials"]] == [True, False]
    said = " ".join(own["passport"]["reasons"])
    assert "trial 2 was interrupted" in said
    assert "trial 3 has no result" in said
    assert_ended_early(tmp_path, own)


def test_a_signal_between_two_trials_ends_the_series_and_is_told(tmp_path: Path) -> None:
    process = start_trials(tmp_path, "--max-requests=12", "--trial-cooldown=60")
    cache = tmp_path / "cache"
    while not (tmp_path / "R.trial1.json").exists() or cache.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert [row["status"] for row in ran.own["trials"]] == ["finished"]
    assert "trials 2 to 3 have no result" in " ".join(ran.own["passport"]["reasons"])
    assert_ended_early(tmp_path, ran.own)
    assert ran.code == 143, ran.err


def start_trials(cwd: Path, *args: str) -> "subprocess.Popen[str]":
    return start(cwd, [*SMALL, "--cache-dir=cache", "--output=R.json", "--trials=3", *args])


def gone_and_back(cache: Path, process: "subprocess.Popen[str]") -> None:
    """Until the second trial has stored something: it has a directory of another name."""
    result, first = cache.parent / "R.trial1.json", set[str]()
    while not result.exists():
        assert process.poll() is None, process.communicate()
        first |= names_in(cache)
        time.sleep(0.02)
    while not any(anything(cache / name, "*/*.kv") for name in names_in(cache) - first):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def names_in(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:
        return set()


def assert_ended_early(cwd: Path, own: Any) -> None:
    names(own, T1="invalid")
    assert not (cwd / "R.trial3.json").exists()
    assert not (cwd / "cache").exists()


BROKEN = """
import sys, functools
import kv_cache.cli, kv_cache.app.run as command
from kv_cache.core.errors import PlaceError
from tests.wrappers import Faulty
real, count = command.open_run, [0]
def bug(kind, ref):
    if ref.copy_id == 20: raise RuntimeError('a bug in the program')
def made(*args, **more):
    count[0] += 1
    if count[0] == 2 and sys.argv[1] == 'place': raise PlaceError('the disk is gone; mount it')
    broken = count[0] == 2
    return real(*args, **more, wrap=lambda store: Faulty(store, bug) if broken else store)
command.open_run = made
sys.exit(kv_cache.cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("how", "code"), [("bug", 1), ("place", None)])
def test_a_trial_that_breaks_does_not_take_those_before_with_it(
    how: str, code: int | None, tmp_path: Path
) -> None:
    prepare(tmp_path)
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    done = subprocess.run(
        [sys.executable, str(script), how, *SMALL, "--cache-dir=cache", "--output=R.json",
         "--trials=3", "--max-requests=25"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == code or (code is None and done.returncode), done.stderr
    assert "Traceback" not in done.stderr
    own = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
    assert own["trials"][0]["counted"]
    names(own, T1="invalid")
    said = " ".join(own["passport"]["reasons"])
    assert "trial 2" in said or "trials 2" in said
    assert not (tmp_path / "R.trial3.json").exists()
    assert not (tmp_path / "cache").exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_first_trial(
    tmp_path: Path,
) -> None:
    (tmp_path / "R.trial2.json").mkdir()
    ran = trials(tmp_path, *VIRTUAL, "--trials=2")
    assert ran.code == 2
    assert "R.trial2.json" in ran.err
    assert not (tmp_path / "R.json").exists()
    assert not (tmp_path / "R.trial1.json").exists()


@pytest.mark.parametrize("flag", ["--trials=0", "--trials=-1", "--trials=x", "--trials=100000"])
def test_numbers_of_trials_that_cannot_be_are_refused(flag: str, tmp_path: Path) -> None:
    ran = trials(tmp_path, *VIRTUAL, flag)
    assert ran.code == 2
    assert "--trials" in ran.err


# --- compare -----------------------------------------------------------------------------------

FULL = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 5}
user_templates:
  chatbot: &same {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0, 0.01]}
  coding: *same
  document: *same
"""
"""Users who hardly think, so that the drive is what they wait for."""
SLOWER = f"{FULL}sim: {{nvme: {{read_gbytes_per_s: 3.0, write_gbytes_per_s: 2.0}}}}\n"


def compared(cwd: Path, *names: str) -> Any:
    ran = run(cwd, "compare", *names, "--json=C.json")
    assert ran.code == 0, ran.err
    return json.loads((cwd / "C.json").read_bytes()), ran.out


def test_two_series_of_trials_of_the_same_are_not_different(tmp_path: Path) -> None:
    for name in ("A", "B"):
        ran = trials(tmp_path, *VIRTUAL, "--trials=3", f"--output={name}.json")
        assert ran.code == 0, ran.err
    told, text = compared(tmp_path, "A.json", "B.json")
    assert "0 better, 0 worse" in text
    assert told


def test_a_drive_of_half_the_speed_is_found_to_be_worse(tmp_path: Path) -> None:
    for name, text in (("A", FULL), ("B", SLOWER)):
        (tmp_path / f"{name}.yaml").write_text(text)
        flags = [*VIRTUAL, "--cpu-mem-gb=0", f"--config={name}.yaml", "--trials=4"]
        assert trials(tmp_path, *flags, f"--output={name}.json").code == 0
    _, text = compared(tmp_path, "A.json", "B.json")
    (line,) = [x for x in text.splitlines() if x.startswith("storage read + write")]
    assert "worse" in line
    ratio = float(line.split()[-3])
    assert 0.4 < ratio < 0.75
    assert run(tmp_path, "compare", "A.json", "B.json", "--fail-on=worse").code == Exit.GATE
    assert run(tmp_path, "compare", "B.json", "A.json", "--fail-on=worse").code == Exit.DONE


def test_a_run_and_itself_are_not_different(tmp_path: Path) -> None:
    ran = small(tmp_path, "--virtual-time", "--duration=20")
    assert ran.code == 0, ran.err
    _, text = compared(tmp_path, "R.json", "R.json")
    assert "very result" in text
    assert "other numbers 0 differ" in text
    assert "0 better, 0 worse" in text


def test_what_is_not_comparable_is_refused_by_what_differs(tmp_path: Path) -> None:
    for name, flags in (
        ("A", []), ("seed", ["--seed=4"]), ("model", ["--model=mistral-7b"]),
        ("semantics", ["--semantics=serving"]), ("trials", ["--trials=2"]),
    ):  # fmt: skip
        assert trials(tmp_path, *VIRTUAL, *flags, f"--output={name}.json").code == 0
    for name in ("seed", "model", "semantics", "trials"):
        ran = run(tmp_path, "compare", "A.json", f"{name}.json")
        assert ran.code == 2, name
        assert f"{name}.json" in ran.err
        assert len(ran.err.strip().splitlines()) == 1
    (tmp_path / "A.json").write_text("{}")
    ran = run(tmp_path, "compare", "A.json", "seed.json")
    assert ran.code == 2
    assert "A.json" in ran.err
