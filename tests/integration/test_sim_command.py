"""`kv-cache.py sim` as a user starts it: shipped and own scenarios, every file that it writes,
signals, bad input."""

import csv
import json
import os
import re
import signal
from collections import Counter
from hashlib import sha256
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.sim_runs import ScenarioInputs
from kv_cache.cli import main
from kv_cache.config.scenario import ROUTERS
from kv_cache.config.scenarios import read_scenarios, scenario_names
from kv_cache.metrics.order import LEAST_SEEDS
from kv_cache.sim.cluster.facts import facts
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.simulate import simulate
from kv_cache.sim.cluster.sources import build_source
from tests.cli import ONE_SIGNAL, PATIENCE_S, command, environment, run, start, wait_for
from tests.screen import Terminal
from tests.traces import real_trace

OWN = """\
name: pool
question: How large should the DRAM be?
workload: {requests: 60, warmup_requests: 5, rate_per_s: 4, think_s: [1, 5], context_tokens: 1024}
topology: {instances_per_node: 2}
instances: {gpu: {count: 2, hbm_gib: 4}}
tiers: {dram: {capacity_gib: 16}}
slo: {ttft_ms: 400}
vary: {tiers.dram.capacity_gib: [4, 64]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.yaml").write_text(OWN)
    return tmp_path


def sim(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """The document's own section."""
    capsys.readouterr()
    assert main(["sim", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=_refuse)["kv_cache"]


def _refuse(text: str) -> None:
    raise AssertionError(text)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The sentence."""
    capsys.readouterr()
    assert main(["sim", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- what it does ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_runs_as_smoke(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sim(capsys, name, "--preset", "smoke")
    assert (own["name"], own["preset"], own["status"]) == (name, "smoke", "finished")
    for variant in own["variants"]:
        for each in variant["runs"]:
            found = each["facts"]
            every = found["requests"]
            assert every["arrived"] == sum(
                every[how] for how in ("finished", "rejected", "aborted")
            )
            assert found["blocks"]["hit"] <= found["blocks"]["looked_up"]
            assert found["checks"]["end"] >= 1
            if variant["values"].get("tiers.write_policy", "").startswith("through"):
                moved = [link["bytes_by_cause"] for link in found["links"].values()]
                assert any(causes.get("write-through") for causes in moved)
    served = [each["runs"][0]["facts"] | {"tiers": None} for each in own["variants"]]
    alike = ONE_CONTEXT if name == "context-length" else set()
    for one, other in combinations(range(len(served)), 2):
        assert served[one] != served[other] or (one, other) in alike


ONE_CONTEXT = {(0, 2)}
"""Variants that are served alike: contexts of 4K fit into HBM, whatever is below it."""


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario_that_compares_has_the_seeds_for_a_verdict(name: str) -> None:
    study = read_scenarios(Path(name), "full")
    assert study.size == 1 or study.seeds >= LEAST_SEEDS


def test_runs_that_would_be_the_same_run_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds of a trace of which nothing is drawn, and policies of a tier without room."""
    path = real_trace("mooncake_conversation_6000.jsonl")
    (here / "same.yaml").write_text(
        f"workload: {{source: trace, trace: '{path}', requests: 40}}\n"
        "instances: {gpu: {count: 2}}\ntiers: {write_policy: back}\nseeds: 3\n"
        "vary: {tiers.nvme.capacity_gib: [0, 50], tiers.nvme.eviction: [lru, s3-fifo]}\n"
    )
    own = sim(capsys, "same.yaml")
    assert [len(variant["runs"]) for variant in own["variants"]] == [1, 1, 1]
    assert [len(variant["same"]) for variant in own["variants"]] == [1, 0, 0]
    assert own["variants"][0]["same"][0]["values"]["tiers.nvme.eviction"] == "s3-fifo"
    assert own["runs"] == own["finished"] == 3
    assert main(["sim", "same.yaml", "--dry-run"]) == 0
    assert "3: 4 variants with 3 seeds each, of which others" in capsys.readouterr().out
    drawn = sim(capsys, "same.yaml", "--set", "router.kind=power-of-two")
    assert [len(variant["runs"]) for variant in drawn["variants"]] == [3, 3, 3]


@pytest.mark.parametrize(
    "drawn",
    [
        "classes: {chat: {priority: 1}, batch: {}}\nscheduler: {order: priority}\n",
        "scheduler: {order: sjf, length_error_cv: 1}\n",
    ],
)
def test_a_seed_that_draws_classes_or_expected_answers_is_another_run_of_a_trace(
    drawn: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = real_trace("mooncake_conversation_6000.jsonl")
    (here / "drawn.yaml").write_text(
        f"workload: {{source: trace, trace: '{path}', requests: 60, arrival_scale: 9}}\n"
        f"instances: {{gpu: {{count: 1, hbm_gib: 8}}}}\nseeds: 2\n{drawn}"
    )
    (variant,) = sim(capsys, "drawn.yaml")["variants"]
    one, other = (run["facts"]["queue_ms"] for run in variant["runs"])
    assert one != other


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("network", [{}, {"jitter_cv": 0.5}])
def test_a_seed_changes_a_run_of_a_trace_only_where_something_is_drawn(
    router: str, network: dict[str, float], tmp_path: Path
) -> None:
    path = real_trace("mooncake_conversation_6000.jsonl")
    (tmp_path / "s.yaml").write_text(
        f"workload: {{source: trace, requests: 60, trace: '{path}'}}\n"
        "instances: {gpu: {count: 3}}\ntiers: {dram: {capacity_gib: 20}}\n"
        f"router: {{kind: {router}}}\n"
        f"network: {json.dumps(network)}\nseeds: 2\n"
    )
    study = read_scenarios(tmp_path / "s.yaml")
    inputs = ScenarioInputs(study)
    chance = len(inputs.plan[0].runs) > 1
    runs = []
    for variant in study.variants():
        chain = PrefixChain()
        work = inputs.work(variant.scenario)
        source = build_source(variant.scenario, chain, work)
        runs.append(facts(simulate(variant.scenario, source, chain)))
    assert (runs[0] != runs[1]) is chance


def test_the_list_names_every_scenario_with_its_question(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "--list"]) == 0
    out = capsys.readouterr().out
    for name in scenario_names():
        assert f"\n{name} " in f"\n{out}"
    assert "smoke 7" in out


def test_what_is_printed_is_a_scenario_that_loads(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--print"]) == 0
    assert "\nmodel:\n" in capsys.readouterr().out
    for words in (("pool.yaml", "--set", "workload.requests=30"), ("b13", "--preset", "smoke")):
        assert main(["sim", *words, "--print"]) == 0
        (here / "again.yaml").write_text(capsys.readouterr().out)
        own = sim(capsys, *words)["config"]
        assert sim(capsys, "again.yaml")["config"] == own


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sim", "--help"])
    out = capsys.readouterr().out
    assert "kv-cache.py sim single-node --preset smoke" in out
    assert all(name in out for name in scenario_names())


def test_the_same_command_gives_the_same_bytes_in_any_process(here: Path) -> None:
    words = ("sim", "pool.yaml", "--output=R.json", "--events=e.jsonl", "--csv=r.csv")
    found = []
    for seed in ("1", "2"):
        os.environ["PYTHONHASHSEED"] = seed
        try:
            assert run(here, *words).code == 0
        finally:
            del os.environ["PYTHONHASHSEED"]
        found.append([(here / name).read_bytes() for name in ("R.json", "e.jsonl", "r.csv")])
    assert found[0] == found[1]


def test_every_file_is_written_and_they_agree(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--output", "R.json", "--csv", "r.csv", "--events", "e.jsonl", "--series", "s.csv",
             "--per-instance", "i.csv", "--html", "p.html")  # fmt: skip
    assert main(["sim", "pool.yaml", "--seeds", "3", *words]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}\n" in out for name in words[1::2])
    own = json.loads((here / "R.json").read_bytes())["kv_cache"]
    runs = {run["run"]: run for variant in own["variants"] for run in variant["runs"]}
    assert sorted(runs) == list(range(1, 7))
    rows = table(here / "r.csv")
    assert {int(row["run"]): float(row["ttft_ms.p50"]) for row in rows} == {
        number: run["facts"]["ttft_ms"]["p50"] for number, run in runs.items()
    }
    events = log(here / "e.jsonl")
    for number, of_run in runs.items():
        kinds = Counter(event["event"] for event in events if event["run"] == number)
        assert dict(kinds) == of_run["event_log"]
        requests = of_run["facts"]["requests"]
        assert (kinds["arrival"], kinds["finish"]) == (requests["arrived"], requests["finished"])
    instances = table(here / "i.csv")
    assert len(instances) == 12
    assert {row["run"] for row in table(here / "s.csv")} == set("123456")
    assert "best by" in out or "nobody can be called best" in out
    assert (here / "p.html").read_text().startswith("<!doctype html>")
    assert not list(here.glob(".kv-cache-*"))


def test_runs_of_fewer_instances_leave_the_columns_of_the_others_empty(here: Path) -> None:
    (here / "more.yaml").write_text(
        OWN.replace("{tiers.dram.capacity_gib: [4, 64]}", "{instances.gpu.count: [1, 2]}")
    )
    each = ("--set", "watch.series_per_instance=true", "--series", "s.csv")
    assert main(["sim", "more.yaml", *each]) == 0
    rows = table(here / "s.csv")
    assert all(None not in row and None not in row.values() for row in rows)
    last = {row["variant"]: row["hbm_blocks.1"] for row in rows}
    assert last["1"] == ""
    assert last["2"] != ""


def test_one_run_has_a_log_without_run_numbers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sim(capsys, "pool.yaml", "--set", "tiers.dram.capacity_gib=8", "--events", "e.jsonl")
    assert (own["runs"], own["varied"]) == (1, [])
    first = log(here / "e.jsonl")[0]
    assert list(first) == ["at_ms", "event", "request", "instance"]
    assert first["event"] == "arrival"


def test_a_scenario_that_watches_events_counts_them_without_a_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sim(capsys, "pool.yaml", "--set", "watch.events=true")
    kinds = own["variants"][0]["runs"][0]["event_log"]
    assert kinds["arrival"] == kinds["finish"] == 60


def test_runs_go_through_all_variants_before_the_second_seed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sim(capsys, "pool.yaml", "--seeds", "2")
    assert [[run["run"] for run in v["runs"]] for v in own["variants"]] == [[1, 3], [2, 4]]
    assert own["seeds"] == [run["seed"] for run in own["variants"][0]["runs"]]
    assert [v["values"] for v in own["variants"]] == [
        {"tiers.dram.capacity_gib": 4.0}, {"tiers.dram.capacity_gib": 64.0},
    ]  # fmt: skip


def test_a_real_trace_is_simulated(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = real_trace("mooncake_conversation_6000.jsonl")
    (here / "traced.yaml").write_text(
        f"name: traced\nmodel: {{block_tokens: 512}}\nworkload: {{source: trace, trace: '{path}', "
        "requests: 200}\ninstances: {gpu: {count: 4, hbm_gib: 80}}\n"
    )
    own = sim(capsys, "traced.yaml")
    assert own["variants"][0]["runs"][0]["facts"]["requests"]["arrived"] == 200


def test_a_dry_run_says_how_much_would_be_simulated_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "pool.yaml", "--seeds", "3", "--dry-run", "-o", "R.json"]) == 0
    out = capsys.readouterr().out
    assert "6: 2 variants with 3 seeds each" in out
    assert "360 in all" in out
    assert "R.json" in out
    assert "name another" in refused(capsys, "pool.yaml", "--dry-run", "-o", "pool.yaml")
    assert [path.name for path in here.iterdir()] == ["pool.yaml"]


def test_a_variable_of_an_option_of_run_is_none_of_sim(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KV_CACHE_SIM__PROFILE", "drive.yaml")
    monkeypatch.setenv("KV_CACHE_SIM__SEEDS", "2")
    assert len(sim(capsys, "pool.yaml")["seeds"]) == 2
    monkeypatch.setenv("KV_CACHE_SIM__SEED", "2")
    assert "KV_CACHE_SIM__SEED is not an option's" in refused(capsys, "pool.yaml")


# --- what others do with it ------------------------------------------------------------------


def test_report_plot_and_verify_know_the_result(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "pool.yaml", "--output", "R.json", "--html", "a.html"]) == 0
    assert main(["report", "R.json", "-o", "b.html"]) == 0
    assert (here / "b.html").read_text().count("<h2>Simulation ") == 1
    assert main(["verify", "R.json"]) == 0
    if find_spec("matplotlib") is not None:
        assert main(["plot", "R.json", "-o", "b.svg"]) == 0
        assert main(["sim", "pool.yaml", "--plot", "a.svg"]) == 0
        assert (here / "a.svg").read_bytes() == (here / "b.svg").read_bytes()
    capsys.readouterr()
    text = (here / "R.json").read_text()
    (here / "R.json").write_text(text.replace('"good": ', '"good": 1', 1))
    assert main(["verify", "R.json"]) == 2


def test_what_it_wrote_it_may_write_again_and_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pool.yaml", "--output", "R.json", "--csv", "r.csv", "--events", "e.jsonl",
             "--series", "s.csv", "--per-instance", "i.csv", "--html", "p.html")  # fmt: skip
    assert main(["sim", *words]) == main(["sim", *words]) == 0
    (here / "notes").write_text("mine")
    for flag in ("--output", "--csv", "--events", "--series", "--per-instance", "--html"):
        assert "name another" in refused(capsys, "pool.yaml", flag, "notes")
    assert (here / "notes").read_text() == "mine"


# --- signals ---------------------------------------------------------------------------------


def log_bytes(here: Path) -> int:
    """Of the unfinished event log."""
    return max((path.stat().st_size for path in here.glob(".kv-cache-*.tmp")), default=0)


@pytest.mark.parametrize(("number", "code"), ONE_SIGNAL)
def test_a_signal_keeps_the_runs_that_ended(here: Path, number: int, code: int) -> None:
    process = start(here, ["sim", "pool.yaml", "--seeds", "500", "--output", "R.json", "--csv",
                           "r.csv", "--events", "e.jsonl"])  # fmt: skip
    wait_for(lambda: log_bytes(here) > 300_000, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    assert f"ended by {signal.Signals(number).name}" in out
    own = json.loads((here / "R.json").read_bytes())["kv_cache"]
    assert (own["status"], own["runs"]) == ("interrupted", 1000)
    ended = {run["run"] for variant in own["variants"] for run in variant["runs"]}
    assert own["finished"] == len(ended) >= 1
    assert {int(row["run"]) for row in table(here / "r.csv")} == ended
    finished = Counter(
        event["run"] for event in log(here / "e.jsonl")
        if event["event"] == "finish"
    )  # fmt: skip
    assert finished == dict.fromkeys(ended, 60)
    assert not list(here.glob(".kv-cache-*"))


def test_a_signal_before_any_run_has_ended_leaves_nothing(here: Path) -> None:
    (here / "long.yaml").write_text(OWN.replace("requests: 60", "requests: 50000"))
    process = start(here, ["sim", "long.yaml", "--output", "R.json", "--events", "e.jsonl"])
    wait_for(lambda: log_bytes(here) > 100_000, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    *_, last = err.splitlines()  # before it, each ten seconds, how far it is
    assert last == "kv-cache: interrupted before any run had ended; nothing is written"
    assert err.count("kv-cache:") == 1
    assert sorted(path.name for path in here.iterdir()) == ["long.yaml", "pool.yaml", "small.yaml"]


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no scenario is given"),
        (("pol.yaml",), "no scenario file 'pol.yaml'"),
        (("single-nod",), "Did you mean 'single-node'?"),
        (("pool.yaml", "--preset", "huge"), "--preset is 'huge'; it must be one of"),
        (("pool.yaml", "--seeds", "0"), "--seeds is 0; it must be"),
        (("pool.yaml", "--seeds", "2", "--set", "seeds=3"), "keep one of them"),
        (("pool.yaml", "--set", "tiers.drum.capacity_gib=1"), "Did you mean 'dram'?"),
        (("pool.yaml", "--set", "workload.requests=many"), "a whole number"),
        (("pool.yaml", "--set", "topology.instances_per_node=1"), "place"),
        (("pool.yaml", "--output", "R.json", "--csv", "R.json"), "also --output's file"),
        (("pool.yaml", "--html", "pool.yaml"), "the scenario's file"),
        (("pool.yaml", "--plot", "p.gif"), "does not end in .svg"),
        (("pool.yaml", "--csv", "none/r.csv"), "there is no directory none"),
        (("pool.yaml", "--report-json", "x"), "--report-json is not a flag. Did you mean -o FILE?"),
        (("pool.yaml", "--outptu", "x"), "--outptu is not a flag. Did you mean '--output'?"),
        (("pool.yaml", "--set", "instances={}"), "instances is a table of sections; give"),
        (
            ("pool.yaml", "--set", "workload.turns=[1,10000]", "--set", "workload.think_s=[1,1e6]"),
            "longer than the 292 years",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    words: tuple[str, ...], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *words)
    assert [path.name for path in here.iterdir()] == ["pool.yaml"]


def test_a_result_of_another_command_is_not_replaced(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "--pattern", "rag_burst", "--seeds", "2", "-o", "R.json"]) == 0
    held = (here / "R.json").read_bytes()
    assert "which is no result of kv-cache-sim" in refused(capsys, "pool.yaml", "-o", "R.json")
    assert (here / "R.json").read_bytes() == held
    assert main(["sim", "pool.yaml", "-o", "S.json"]) == 0
    assert main(["sim", "pool.yaml", "-o", "S.json"]) == 0
    assert main(["lab", "--pattern", "rag_burst", "--seeds", "2", "-o", "S.json"]) == 2
    assert main(["lab", "--pattern", "rag_burst", "--seeds", "2", "-o", "R.json"]) == 0


def test_a_tier_may_take_what_a_hardware_profile_says(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "m.yaml").write_text(
        "schema: kv-cache-hardware/1\ndram: {copy_bytes_per_s: 3e9, latency_us: 20}\n"
    )
    given = [
        "tiers.dram.read_gbytes_per_s=3", "tiers.dram.write_gbytes_per_s=3",
        "tiers.dram.read_latency_us=20", "tiers.dram.write_latency_us=20",
    ]  # fmt: skip
    by_hand = sim(capsys, "pool.yaml", *(word for each in given for word in ("--set", each)))
    by_file = sim(capsys, "pool.yaml", "--set", "tiers.dram.profile=m.yaml")
    for one, other in zip(by_hand["variants"], by_file["variants"], strict=True):
        assert one["runs"] == other["runs"]
    assert by_file["variants"] != sim(capsys, "pool.yaml")["variants"]
    (used,) = by_file["hardware"]
    assert (used["part"], used["file"], used["state"]) == ("tiers.dram", "m.yaml", "unsourced")
    assert main(["sim", "pool.yaml", "--set", "tiers.dram.profile=m.yaml"]) == 0
    assert "hardware  tiers.dram unsourced (m.yaml); the rest is assumed" in capsys.readouterr().out
    assert "a tier nvme is one kind of drive" in refused(
        capsys, "pool.yaml", "--set", "tiers.nvme.capacity_gib=9",
        "--set", "tiers.nvme.profile=m.yaml",
    )  # fmt: skip


def test_gpus_by_name_divide_their_memory_and_their_sources_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "h100-70b", "--preset", "smoke"]) == 0
    text = capsys.readouterr().out
    assert "memory of an instance, GB" in text
    assert "instances.gpu.hbm, instances.gpu.compute, instances.gpu.nvlink overlay (h200)" in text
    only = ["--preset", "smoke", "--set", "instances.gpu.tensor_parallel=[1, 2, 2, 2]"]
    assert "leave no block of 1 x 85.5 GB" in refused(capsys, "h100-70b", *only)
    (here / "plain.yaml").write_text("instances: {gpu: {count: 1}}\nworkload: {requests: 5}\n")
    for option in ("instances.gpu", "network", "topology"):
        text = refused(capsys, "plain.yaml", "--set", f"{option}.profile=h1000")
        assert "no hardware profile file 'h1000', nor a shipped one of that name" in text
        assert "Did you mean 'h100'?" in text


def test_a_trace_that_is_not_there_is_refused_before_anything_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "t.yaml").write_text(
        "workload: {source: trace, trace: none.jsonl}\ninstances: {gpu: {count: 1}}\n"
    )
    assert "none.jsonl" in refused(capsys, "t.yaml", "--output", "R.json")
    assert not (here / "R.json").exists()


# --- progress --------------------------------------------------------------------------------


def test_there_is_a_bar_on_a_terminal_and_none_elsewhere(here: Path) -> None:
    assert run(here, "sim", "pool.yaml").err == ""
    terminal = Terminal(command("sim", "pool.yaml", "--seeds", "8"), here, environment())
    code, out = terminal.finish()
    assert code == 0
    assert "runs      16 of 16 ended" in out
    assert "requests" in terminal.told
    assert "dram.capacity_gib=64" in terminal.told
    assert terminal.screen.text == []


def in_seconds(path: Path, rows: int) -> Path:
    """A file of Mooncake's rows whose times are seconds, two a second."""
    lines = (
        json.dumps({"timestamp": number // 2, "input_length": 12_000, "output_length": 20,
                    "hash_ids": [*range(23), 100 + number]})
        for number in range(rows)
    )  # fmt: skip
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def of_trace(path: Path) -> list[str]:
    return ["pool.yaml", "--set", f"workload.trace={path}"]


@pytest.mark.parametrize("name", sorted({*scenario_names()} - {"node-policies"}))
def test_each_shipped_scenario_answers_its_question_by_a_real_trace(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = real_trace("mooncake_conversation_6000.jsonl").read_text().splitlines()[:60]
    (here / "real.jsonl").write_text("\n".join(rows))
    found = sim(capsys, name, "--preset", "smoke", "--set", "workload.trace=real.jsonl")
    (trace,) = found["traces"]
    asked = found["config"]["workload"]["requests"] or 60
    assert (trace["format"], trace["asked_rows"]) == ("mooncake", min(60, asked))
    assert "workload.requests" not in found["left_out"], "the preset says how many are asked"
    for variant in found["variants"]:
        numbers = variant["numbers"]
        assert numbers["requests.arrived"]["mean"] == trace["asked_rows"]


def test_a_trace_without_sessions_leaves_out_the_prefetch_of_next_turns(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variant of a file that brings what no row tells of is another one; who types it is told."""
    tier = "{capacity_gib: 1}"
    Path("mine.yaml").write_text(
        f"instances: {{gpu: {{hbm_gib: 1}}}}\ntiers: {{dram: {tier}, nvme: {tier}}}\n"
        "variants: {plain: {}, next: {tiers.prefetch: next-in-session}, "
        "arc: {tiers.hbm_eviction: arc}}\n"
    )
    trace = "workload.trace=datasets/mooncake_sample.jsonl"
    words = ["mine.yaml", "--set", trace, "--set", "workload.requests=30"]
    found = sim(capsys, *words)
    assert "tiers.prefetch" in found["left_out"]
    assert [each["name"] for each in found["variants"]] == ["plain", "arc"]
    assert [each["name"] for each in found["variants"][0]["same"]] == ["next"]
    assert main(["sim", *words]) == 0
    assert "not run   next: nothing reads how it differs from variant 1" in capsys.readouterr().out
    assert main(["sim", "pd-ratio", "--set", trace, "--set", "tiers.prefetch=next-in-session",
                 "--set", "tiers.prefetch_into=hbm"]) == 2  # fmt: skip
    assert "so that nobody knows of a next turn" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["b13", "single-node", "unified-vs-separated"])
def test_users_that_are_set_take_the_place_of_the_rate_of_a_scenario(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a rate that varies; who types both is told."""
    users = [name, "--preset", "smoke", "--set", "workload.concurrency=3"]
    found = sim(capsys, *users)
    assert found["left_out"] == ["workload.rate_per_s"]
    assert "workload.rate_per_s" not in found["varied"]
    assert all(v["numbers"]["levels.waiting.max"]["mean"] <= 3 for v in found["variants"])
    assert main(["sim", *users]) == 0
    wanted = "as source (sessions|poisson) with concurrency 3 does not read it: workload.rate_per_s"
    assert re.search(wanted, capsys.readouterr().out)
    assert main(["sim", *users, "--set", "workload.rate_per_s=1"]) == 2
    assert "workload.rate_per_s is 1.0, which has no effect" in capsys.readouterr().err


def test_a_trace_is_asked_whole_unless_a_limit_is_set_and_the_limit_is_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = in_seconds(here / "long.jsonl", 1100)
    found = sim(capsys, *of_trace(path))
    assert {v["numbers"]["requests.arrived"]["mean"] for v in found["variants"]} == {1100}
    (trace,) = found["traces"]
    assert (trace["rows"], trace["asked_rows"], trace["time_unit"]) == (1100, 1100, "s")
    assert set(found["left_out"]) >= {"workload.requests", "workload.context_tokens"}
    words = [*of_trace(path), "--set", "workload.requests=40"]
    assert sim(capsys, *words)["traces"][0]["asked_rows"] == 40
    assert main(["sim", *words]) == 0
    out = capsys.readouterr().out
    assert "long.jsonl (mooncake): 40 of 1,100 rows, times in s (detected)" in out
    assert "left out  of the scenario, as long.jsonl stands in its place: workload." in out


@pytest.mark.parametrize(
    ("sample", "has_ids"),
    [("five_columns_sample.txt", True), ("splitwise_sample.csv", True),
     ("requests_sample.csv", True), ("azure_sample.csv", False)],
)  # fmt: skip
def test_the_event_log_calls_requests_as_their_trace_does(
    sample: str, has_ids: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sim(capsys, *of_trace(Path("datasets", sample)), "--events", "log.jsonl")
    lines = list(map(json.loads, (here / "log.jsonl").read_text().splitlines()))
    assert len(lines) > 1000
    # The samples count their rows from 0.
    named = {line["request"]: line.get("id") for line in lines}
    no_request = {-1: None} if -1 in named else {}
    assert named == {n: str(n) if has_ids else None for n in named if n >= 0} | no_request


def test_failed_rows_of_a_trace_are_counted_in_what_a_simulation_says(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = of_trace(Path("datasets/burstgpt_sample.csv"))
    assert sim(capsys, *words)["traces"][0]["notes"] == {"failed": 33}
    assert main(["sim", *words]) == 0
    out = capsys.readouterr().out
    assert "367 rows, times in s (as its format says), 33 failed requests left out" in out
    whole = sim(capsys, *words, "--set", "workload.include_failed_rows=true")["traces"][0]
    assert (whole["asked_rows"], whole["notes"], whole["includes_failed_rows"]) == (400, {}, True)


def test_a_simulation_names_its_trace_by_digest_and_says_what_it_cannot_answer(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = here / "plain.csv"
    rows = [f"2023-11-16 18:15:{second}.5,200,10" for second in (46, 47, 48)]
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, "no row"]))
    assert "workload.skip_bad_rows" in refused(capsys, *of_trace(file))
    words = [*of_trace(file), "--set", "workload.skip_bad_rows=true", "--html", "page.html"]
    found = sim(capsys, *words)
    (trace,) = found["traces"]
    assert trace["sha256"] == sha256(file.read_bytes()).hexdigest()
    assert (trace["skipped_bad_rows"], trace["unidentified_rows"]) == (1, 3)
    assert [text for text in found["warnings"] if "nothing can be found again" in text]
    shown = "1 bad rows left out, 3 of a content that no other row can share, sha256 "
    assert main(["sim", *words]) == 0
    for text in (capsys.readouterr().out, (here / "page.html").read_text()):
        assert "nothing can be found again" in text
        assert f"{shown}{trace['sha256'][:12]}" in text
