"""The command `capacity`, end to end: in virtual time on a queue whose limit can be computed, on a
real directory, and with what it cannot use."""

import json
import re
import signal
import time
from collections.abc import Callable, Mapping
from math import exp, factorial
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench import cache_dir
from kv_cache.bench.device_mark import DeviceInUseError
from kv_cache.cli import main
from kv_cache.core.format import figures
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB
from kv_cache.result.capacity import recheck_capacity
from kv_cache.result.chain import seal
from tests.cli import Ran, anything, finish, prepare, run, start
from tests.passports import answer_names

SERVICE_S = 0.01
UNIFORM = f"""
user_templates:
  chatbot: &same {{context_range: [100, 100], generation_range: [1, 1], think_time_range: [1, 1]}}
  coding: *same
  document: *same
qos_distribution: {{interactive_probability: 1.0, responsive_threshold: 1.0}}
workload: {{multi_turn: false, prefix_caching: false}}
sim:
  nvme: {{read_latency_us: {SERVICE_S * 1e6}, write_latency_us: {SERVICE_S * 1e6},
         read_gbytes_per_s: 1000000, write_gbytes_per_s: 1000000, servers: 1}}
"""
"""Each request writes one object of one size, which takes one server 10 ms."""

MODEL = ["--model=tiny-1b", "--gpu-mem-gb=0", "--generation-mode=none", "--seed=3"]
QUEUE = [*MODEL, "--config=queue.yaml", "--cpu-mem-gb=0", "--prefill-only", "--virtual-time"]
SLO = "--slo=interactive:p95<50ms"
SHORT = ["--probe=10", "--probe-warmup=1", "--most-probes=4", "--confirmations=1"]


def capacity(cwd: Path, *args: str, config: str = "") -> Ran:
    (cwd / "queue.yaml").write_text(UNIFORM + config)
    return run(cwd, "capacity", "--output=R.json", *args)


def found(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    own = ran.own
    assert recheck_capacity(ran.result) == []
    assert own["schema"] == "kv-cache-capacity/2"
    assert own["status"] == "finished"
    answer_names(own, **({"V26": "invalid"} if own["driver"] == "virtual-time" else {}))
    answer = own["answer"]
    assert answer["reason"] in ran.out
    for probe in own["probes"]:
        moved = probe["storage_read_bytes_per_s"] + probe["storage_write_bytes_per_s"]
        assert re.search(rf" {figures(moved / GIB)} .* {probe['probe']} ", ran.out), probe
    assert answer["low"] <= answer["load"] or not answer["load"]
    assert answer["high"] is None or answer["high"] > answer["load"]
    assert len(own["probes"]) <= own["rules"]["most_probes"]
    return own


def refused(ran: Ran, *words: str) -> None:
    """One sentence, and nothing written."""
    assert ran.code == 2, ran.err + ran.out
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    for word in words:
        assert word in ran.err
    assert ran.result is None


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A search of a few short probes, for the tests that hold another against it."""
    return found(capacity(tmp_path_factory.mktemp("short"), SLO, *QUEUE, *SHORT))


# --- a limit that can be computed --------------------------------------------------------------


def kept_share(load: float, times: int) -> float:
    """M/D/1: how many wait for at most so many service times (Erlang 1909; see Tijms, A First
    Course in Stochastic Models, 9.6.2), where the server is busy for this share of the time."""
    terms = (
        ((j - times) * load) ** j / factorial(j) * exp((times - j) * load) for j in range(times + 1)
    )
    return (1 - load) * sum(terms)


def limit_per_s() -> float:
    """The most requests/s of which 95 % are answered within 50 ms: 40 ms of waiting, 10 of
    service."""
    low, high = 0.1, 0.99
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if kept_share(middle, 4) >= 0.95 else (low, middle)
    return low / SERVICE_S


def test_the_rate_that_is_found_is_the_limit_of_the_queue(tmp_path: Path) -> None:
    probes = ("--probe=40", "--probe-warmup=2", "--first=50")
    own = found(capacity(tmp_path, SLO, *QUEUE, "--by=rate", *probes))
    answer = own["answer"]
    assert answer["load"] == pytest.approx(limit_per_s(), rel=0.1)
    assert answer["low"] <= limit_per_s() <= answer["high"]
    assert answer["confirmed"]
    assert answer["ended"] == "limit"
    assert answer["unit"] == own["unit"] == "requests/s"
    assert answer["requests_per_s"] == pytest.approx(answer["load"], rel=0.1)
    assert answer["goodput_per_s"].keys() == {"interactive"}
    assert own["contains_performance"] is False


def test_the_users_who_are_found_are_between_the_queue_s_two_limits(tmp_path: Path) -> None:
    """Users who ask once a second are a little more even than Poisson's arrivals, and the server
    cannot do more than one request in its time."""
    own = found(capacity(tmp_path, SLO, *QUEUE, "--probe=20", "--first=50"))
    answer = own["answer"]
    assert 0.93 * limit_per_s() <= answer["load"] < 1 / SERVICE_S
    assert answer["load"] == int(answer["load"])
    assert answer["requests_per_s"] == pytest.approx(answer["load"], rel=0.05)  # one a second each
    assert answer["users_by_class"] == {
        "interactive": answer["load"], "responsive": 0, "batch": 0
    }  # fmt: skip


def test_the_same_seed_gives_the_same_answer_and_probes(tmp_path: Path, short: Any) -> None:
    own = found(capacity(tmp_path, SLO, *QUEUE, *SHORT))
    theirs = {"environment", "passport", "chain"}
    assert own.keys() == short.keys()
    assert [n for n in own.keys() - theirs if own[n] != short[n]] == []


EDITS: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "a rate of the answer": (
        lambda own: own["answer"].update(requests_per_s=1e6), "requests_per_s says 1000000.0"),
    "a load that is a tenth higher": (
        lambda own: own["answer"].update(load=1.1 * own["answer"]["load"]), "answer.load says"),
    "an interval that is narrower": (
        lambda own: own["answer"].update(high=own["answer"]["load"]), "answer.high says"),
    "an answer that was not confirmed": (
        lambda own: own["answer"].update(confirmed=not own["answer"]["confirmed"]),
        "answer.confirmed says"),
    "probes that are not there": (
        lambda own: own["answer"].update(probes=[77]), "answer.probes"),
    "a probe that is left out": (
        lambda own: own["probes"].pop(1), "but after the probes before it the search asks for"),
    "a search that was ended where it looked best": (
        lambda own: own["probes"].pop(), "kv_cache.probes ends where the search asks for"),
    "requests that were over the limit": (
        lambda own: own["probes"][0]["slos"][0].update(over=1), "probes[0].slos[0].share says"),
    "the verdict": (lambda own: own.update(verdict="valid", reasons=[]), "kv_cache.verdict says"),
    "rules that are not there": (
        lambda own: own["rules"].update(first=-1.0), "kv_cache.rules: the loads of a capacity"),
    "a shape that no search has": (
        lambda own: own["probes"][0].pop("slos"), "lacks what every search has"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_answer_that_does_not_follow_from_its_probes_is_told_though_the_hashes_fit(
    edit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = capacity(tmp_path, SLO, *QUEUE, *SHORT)
    assert main(["verify", str(tmp_path / "R.json")]) == 0
    capsys.readouterr()
    change, words = EDITS[edit]
    change(ran.own)
    del ran.own["chain"]
    (tmp_path / "R.json").write_bytes(as_json(seal(ran.result, {})))
    assert main(["verify", str(tmp_path / "R.json")]) == 2
    assert words in capsys.readouterr().out


def test_another_seed_asks_for_other_things(tmp_path: Path, short: Any) -> None:
    other = found(capacity(tmp_path, SLO, *QUEUE, *SHORT, "--seed=4"))
    digests = [[row["schedule_sha256"] for row in own["probes"]] for own in (short, other)]
    for each in digests:  # each probe has its own requests
        assert len(set(each)) == len(each)
    assert digests[0] != digests[1]


def test_a_promise_that_nobody_can_keep_is_answered_with_0_and_the_reason(tmp_path: Path) -> None:
    own = found(capacity(tmp_path, "--slo=interactive:p95<1ms", *QUEUE, *SHORT))
    answer = own["answer"]
    assert answer["load"] == answer["low"] == 0
    assert not answer["confirmed"]
    assert "even the lowest load misses" in answer["reason"]
    assert "interactive:p95<1ms" in answer["reason"]


def test_the_highest_load_that_passes_is_a_lower_bound(tmp_path: Path) -> None:
    own = found(capacity(tmp_path, SLO, *QUEUE, *SHORT, "--probe=60", "--highest=12"))
    answer = own["answer"]
    assert (answer["load"], answer["high"], answer["ended"]) == (12, None, "highest-load")
    assert "more" in own["answer"]["reason"] or "highest" in answer["reason"]


def test_few_users_begin_where_somebody_is_promised_something(tmp_path: Path) -> None:
    """The first users may all be of classes that are promised nothing."""
    mixed = "\nqos_profiles: {interactive: {priority: 3}}\n"
    text = UNIFORM.replace("interactive_probability: 1.0", "interactive_probability: 0.15")
    (tmp_path / "mixed.yaml").write_text(text + mixed)
    own = found(capacity(tmp_path, SLO, *QUEUE, "--config=mixed.yaml", *SHORT, "--first=1"))
    assert own["probes"]
    for row in own["probes"]:
        assert row["users_by_class"]["interactive"] >= 1
        assert sum(row["users_by_class"].values()) == row["load"]
        assert [look["slo"] for look in row["slos"]] == ["interactive:p95<50ms"]


def test_users_who_only_generate_can_be_searched_for(tmp_path: Path) -> None:
    words = [word for word in QUEUE if word != "--prefill-only"]
    own = found(capacity(tmp_path, SLO, *words, "--decode-only", *SHORT))
    assert own["answer"]["load"] > 0


def test_a_trace_is_searched_by_rate(tmp_path: Path) -> None:
    trace = "--trace=datasets/mooncake_sample.jsonl"
    refused(capacity(tmp_path, SLO, *QUEUE, trace), "--by rate")
    slo = "--slo=interactive:p90<2s"
    own = found(
        capacity(tmp_path, slo, *QUEUE, "--by=rate", "--first=1", *SHORT, "--probe-warmup=2", trace)
    )
    assert own["unit"] == "requests/s"
    assert own["answer"]["users_by_class"] in (None, {})


def test_a_probe_of_a_trace_begins_with_what_the_rows_before_it_left(tmp_path: Path) -> None:
    """A hundred prompts in turn: within one probe hardly any comes a second time, in the trace all
    but the first hundred do. From an empty cache hits were 0."""
    rows = [
        {"timestamp": 1000 * i, "input_length": 1024, "output_length": 1,
         "hash_ids": [2 * (i % 100), 2 * (i % 100) + 1]}
        for i in range(400)
    ]  # fmt: skip
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["--slo=interactive:p50<2s", "--by=rate", "--first=3", "--highest=3", "--lowest=3"]
    whole = [flag for flag in QUEUE if flag != "--prefill-only"]
    trace = ["--trace=turns.jsonl", "--storage-capacity-gb=8", "--semantics=serving"]
    ran = capacity(tmp_path, *args, *whole, *trace, *SHORT, "--probe-warmup=2")
    own = found(ran)
    for row in own["probes"]:
        assert row["cache_state"]["rows_before"] == 200
        assert row["reuse_hit_ratio"] > 0.9
        assert row["cache_state"]["passes"] == 0
    assert "what 200 rows before left" in ran.out
    faster = [flag.replace("=3", "=25") for flag in args]
    own = found(capacity(tmp_path, *faster, *whole, *trace, *SHORT, "--probe-warmup=2"))
    assert own["probes"][0]["reuse_hit_ratio"] < 0.8
    assert own["probes"][0]["cache_state"]["passes"] == 1
    assert "probes at the answer the trace ended and began anew" in " ".join(own["reasons"])
    assert recheck_capacity({"kv_cache": own}) == []


# --- a class of which nobody is ----------------------------------------------------------------

NOBODY = UNIFORM.replace("interactive_probability: 1.0", "interactive_probability: 0.0")


@pytest.mark.parametrize("by", ["users", "rate"])
def test_a_promise_to_a_class_of_which_nobody_is_is_refused(by: str, tmp_path: Path) -> None:
    (tmp_path / "nobody.yaml").write_text(NOBODY)
    ran = capacity(tmp_path, SLO, *QUEUE, "--config=nobody.yaml", f"--by={by}", *SHORT)
    refused(ran, "--slo")


def test_a_rate_of_users_of_whom_none_is_promised_anything_is_refused(tmp_path: Path) -> None:
    """Seed 3's first user is not interactive."""
    text = UNIFORM.replace("interactive_probability: 1.0", "interactive_probability: 0.15")
    (tmp_path / "mixed.yaml").write_text(text)
    ran = capacity(
        tmp_path, SLO, *QUEUE, "--config=mixed.yaml", "--by=rate", "--num-users=1", *SHORT
    )
    refused(ran, "--slo")


# --- a configuration that was made for runs ------------------------------------------------------


@pytest.mark.parametrize(
    "section",
    [
        "arrival: {request_rate: 5}",
        "arrival: {request_rate: 5, process: poisson}",
        "autoscaler: {enabled: true}",
        "precondition: {enabled: true}",
    ],
)
def test_a_configuration_that_scales_a_run_is_refused(section: str, tmp_path: Path) -> None:
    """What scales a run is the search's own, wherever it stands."""
    ran = capacity(tmp_path, SLO, *QUEUE, *SHORT, config=f"{section}\n")
    assert ran.code == 2
    refused(ran)


@pytest.mark.parametrize(
    "section",
    [
        "run: {max_requests: 20}",
        "run: {duration_s: 2, warmup_s: 1, trials: 3, num_users: 7}",
        "schedule: {workers: 1}",
    ],
)
def test_a_configuration_that_ends_a_run_changes_nothing(
    section: str, tmp_path: Path, short: Any
) -> None:
    """What ends a run is the search's own, too."""
    own = found(capacity(tmp_path, SLO, *QUEUE, *SHORT, config=f"{section}\n"))
    rows = ("load", "offered_per_s", "completed_per_s", "schedule_sha256")
    assert [[row[n] for n in rows] for row in own["probes"]] == [
        [row[n] for n in rows] for row in short["probes"]
    ]
    assert own["answer"] == short["answer"]


# --- bad input -----------------------------------------------------------------------------------

BAD = {
    "": "--slo",
    "interactive": "no limit",
    "nobody:p95<50ms": "nobody",
    "interactive:p95<50": "unit",
    "interactive:p95<50h": "'h'",
    "interactive:95<50ms": "'95'",
    "interactive:p100<50ms": "p100",
    "interactive:p95<0ms": "limit",
    "interactive:first:p95<1s": "'first'",
    "interactive:p95<50ms,": "comma",
    "interactive:p95<50ms,interactive:p95<60ms": "same",
}


class Here:
    """The command in this process, in an empty directory."""

    def __init__(self, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._cwd, self._capsys = cwd, capsys
        (cwd / "queue.yaml").write_text(UNIFORM)

    def refuses(self, *args: str) -> str:
        assert main(["capacity", "--output=R.json", *args]) == 2
        said = self._capsys.readouterr().err.strip()
        assert len(said.splitlines()) == 1, said
        assert {path.name for path in self._cwd.iterdir()} == {"queue.yaml"}
        return said


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, capsys)


@pytest.mark.parametrize("slo", BAD)
def test_a_promise_that_is_none_is_refused_in_one_sentence(slo: str, here: Here) -> None:
    assert BAD[slo] in here.refuses(f"--slo={slo}", *QUEUE)


def test_without_a_promise_there_is_nothing_to_search_for(here: Here) -> None:
    assert "--slo" in here.refuses(*QUEUE)


OWN = {
    "--duration=5": "duration",
    "--warmup=1": "warmup",
    "--max-requests=5": "max_requests",
    "--num-users=5": "--num-users",
    "--trials=2": "trials",
    "--request-rate=2": "request_rate",
    "--arrival=closed": "arrival",
    "--enable-autoscaling": "autoscaler",
    "--precondition": "precondition",
    "--results-dir=x": "results_dir",
    "--latency-dump=x": "latency_dump",
    "--fio-export=x": "fio_export",
    "--certify": "certify",
    "--replay-cycles=2": "replay_cycles",
}


@pytest.mark.parametrize("flag", OWN)
def test_what_is_the_search_s_own_is_refused_by_name(flag: str, here: Here) -> None:
    assert OWN[flag] in here.refuses(SLO, *QUEUE, flag)


@pytest.mark.parametrize(
    "flag",
    [
        *("--first=0", "--first=-3", "--first=nan", "--first=1.5", "--first=1e9"),
        *("--lowest=0", "--lowest=-1", "--highest=0", "--highest=inf", "--highest=5"),
        *("--resolution=0", "--most-probes=0", "--most-probes=2", "--confirmations=0"),
        *("--probe=0", "--probe=nan", "--probe-warmup=-1", "--concurrency=0", "--by=both"),
        *("--output=nowhere/R.json", "--output=.", "--such=1"),
    ],
)
def test_numbers_and_places_that_cannot_be_are_refused(flag: str, here: Here) -> None:
    first = ["--first=10"] if flag.startswith("--highest=5") else []
    if flag.startswith("--probe"):
        assert flag.split("=")[0] in here.refuses(SLO, *QUEUE, flag)
    else:
        here.refuses(SLO, *QUEUE, "--probe=1", "--probe-warmup=1", *first, flag)


# --- a real directory ----------------------------------------------------------------------------

REAL = [
    *(*MODEL, "--config=site.yaml", "--cpu-mem-gb=0.0625", "--storage-capacity-gb=0.1"),
    *("--cache-dir=cache", "--output=R.json", "--probe-warmup=1"),
]
SITE = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 2}
monitor: {tick_s: 0.2}
user_templates:
  chatbot: &same {context_range: [64, 128], generation_range: [4, 8], think_time_range: [0.2, 0.4]}
  coding: *same
  document: *same
"""


def site(cwd: Path) -> None:
    prepare(cwd)
    (cwd / "site.yaml").write_text(SITE)


def test_a_small_search_on_a_real_directory_is_whole_and_leaves_no_file(tmp_path: Path) -> None:
    site(tmp_path)
    ran = run(
        tmp_path, "capacity", "--slo=responsive:p90<400ms,batch:ttft:p90<400ms", *REAL,
        "--probe=2.5", "--first=2", "--highest=4", "--most-probes=3", "--confirmations=1",
    )  # fmt: skip
    own = found(ran)
    assert own["driver"] == "real-io"
    assert own["contains_performance"] is True
    assert own["slo"] == ["responsive:p90<400ms", "batch:ttft:p90<400ms"]
    limited = own["limited_by"]
    assert limited["what"] if limited else own["answer"]["ended"] == "highest-load"
    for row in own["probes"]:
        assert row["completed_per_s"] > 0
        assert row["storage_write_bytes_per_s"] >= 0
        assert row["machine"]["process_cores"] > 0
        assert len(row["schedule_sha256"]) == 64
    for word in ("Capacity search: ", "\nCapacity ", " users keep ", "R.json"):
        assert word in ran.out
    assert not (tmp_path / "cache").exists()


def test_a_signal_in_a_probe_ends_the_search_with_what_there_is(tmp_path: Path) -> None:
    site(tmp_path)
    process = start(
        tmp_path, ["capacity", "--slo=responsive:p90<400ms", *REAL, "--first=2", "--probe=60"]
    )
    while not anything(tmp_path / "cache", "*/*/*.kv"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    ran = finish(process, tmp_path)
    assert ran.code == 130, ran.err
    assert "Traceback" not in ran.err
    own = ran.own
    assert own["status"] == "interrupted"
    answer_names(own)
    assert any("SIGINT" in reason for reason in own["reasons"])
    assert not (tmp_path / "cache").exists()
    assert "is not known: no probe came to its end." in ran.out
    assert "WARNING" not in ran.err


def test_a_device_that_another_run_has_is_bad_input_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was an answer, "No load keeps ...", in a result that overwrote the one before."""

    def claimed(*_: object) -> None:
        raise DeviceInUseError("another run is using its device")

    site(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache_dir, "claim", claimed)
    assert main(["capacity", "--slo=responsive:p90<400ms", *REAL, "--first=2"]) == 2
    assert "another run is using its device" in capsys.readouterr().err
    assert not Path("R.json").exists()
    assert not Path("cache").exists()


def test_the_document_is_sealed(tmp_path: Path) -> None:
    from kv_cache.result.chain import fingerprint

    ran = capacity(tmp_path, SLO, *QUEUE, *SHORT)
    found(ran)
    assert fingerprint(json.loads((tmp_path / "R.json").read_bytes())) is not None


def test_users_without_thinking_are_refused_with_the_way_that_a_search_has(tmp_path: Path) -> None:
    words = [SLO, *QUEUE, "--set=lengths.think_s.law=fixed", "--set=lengths.think_s.value=0"]
    refused(capacity(tmp_path, *words, *SHORT), "ask for everything at one instant", "--by rate")
    found(capacity(tmp_path, *words, *SHORT, "--by=rate"))
