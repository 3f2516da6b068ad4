"""Scenarios whose arrivals and lengths are those that `trace fit` found in a trace."""

from itertools import islice, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from kv_cache.cli import main
from kv_cache.config.lengths import build_lengths
from kv_cache.config.scenarios import Scenarios, read_scenarios
from kv_cache.core.errors import ConfigError
from kv_cache.core.units import NS_PER_S
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.sources import build_source
from kv_cache.workload.lengths import ks_distance

NINE = "{law: fixed, value: 9}"
SINGLE, TALKS, AGENTS = "azure_sample.csv", "burstgpt3_sample.csv", "agentic_sample.jsonl"


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of three traces: single requests, talks with instants, sessions without."""
    folder = tmp_path_factory.mktemp("fits")
    for name in (SINGLE, TALKS, AGENTS):
        words = ["trace", "fit", f"datasets/{name}", "-o", str(folder / f"{name}.yaml")]
        assert main(words) == 0
    return folder


def fitted(fits: Path, trace: str, name: str = "pd-ratio", *sets: str) -> Scenarios:
    found = read_scenarios(Path(name), None, [f"workload.fitted={fits / trace}.yaml", *sets])
    found.check()
    return found


def written(fits: Path, trace: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((fits / f"{trace}.yaml").read_text())
    return values


def begun(of: Scenarios, count: int) -> list[ClusterRequest]:
    return list(islice(build_source(of.base, PrefixChain()).first(), count))


@pytest.mark.parametrize("name", ["pd-ratio", "b13", "context-length", "single-node"])
def test_a_scenario_asks_as_a_trace_of_single_requests_does(fits: Path, name: str) -> None:
    found = fitted(fits, SINGLE, name, "workload.requests=4000", "workload.warmup_requests=0")
    rate_per_s = written(fits, SINGLE)["arrival"]["request_rate"]
    requests = begun(found, 4000)
    assert {request.turn for request in requests} == {0}
    assert len(requests) * NS_PER_S / requests[-1].arrival_ns == pytest.approx(rate_per_s, rel=0.1)
    laws = build_lengths(found.base.workload.lengths)
    assert laws.prompt is not None
    assert ks_distance(laws.prompt, sorted(request.prompt_tokens for request in requests)) < 0.03
    assert "workload.context_tokens" not in found.paths


def test_sessions_begin_so_often_that_there_are_as_many_requests(fits: Path) -> None:
    work = fitted(fits, TALKS).base.workload
    laws = build_lengths(work.lengths)
    assert laws.turns is not None
    per_s = written(fits, TALKS)["arrival"]["request_rate"]
    assert work.rate_per_s * laws.turns.mean() == pytest.approx(per_s)
    assert (work.source, work.arrival_process, work.concurrency) == ("sessions", "gamma", 0)
    sessions = begun(fitted(fits, TALKS, "pd-ratio", "workload.requests=20000"), 2000)
    assert mean(b.number - a.number for a, b in pairwise(sessions)) == (
        pytest.approx(laws.turns.mean(), rel=0.1)
    )


def test_sessions_without_a_common_clock_are_those_of_users_who_think(fits: Path) -> None:
    work = fitted(fits, AGENTS, "b13").base.workload
    assert work.source == "sessions"
    assert work.concurrency == written(fits, AGENTS)["run"]["num_users"]
    assert build_lengths(work.lengths).think_s is not None


def test_a_source_that_is_set_stays_and_takes_what_it_can_of_the_fit(fits: Path) -> None:
    work = fitted(fits, TALKS, "b13", "workload.source=poisson").base.workload
    assert (work.source, work.lengths.turns.law, work.arrival_process) == (
        "poisson", "personas", "gamma",
    )  # fmt: skip
    assert fitted(fits, SINGLE, "b13", "workload.source=sessions").base.workload.turns == (1, 1)


def test_what_the_scenario_says_of_its_own_load_yields_and_is_named(fits: Path) -> None:
    found = fitted(fits, TALKS, "context-length", "workload.system_prompts=3")
    assert set(found.left_out) >= {"workload.context_tokens", "workload.rate_per_s"}
    assert "workload.context_tokens" not in found.paths
    assert found.base.workload.system_prompts == 3
    assert found.base.workload.context_tokens == 0


def test_a_file_that_names_a_fit_may_say_the_rest_itself(fits: Path, tmp_path: Path) -> None:
    work = {"fitted": str(fits / f"{TALKS}.yaml"), "rate_per_s": 7, "requests": 50}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"workload": work, "instances": {"gpu": {"count": 2}}}))
    found = read_scenarios(file)
    found.check()
    assert (found.base.workload.rate_per_s, found.base.workload.arrival_process) == (7, "gamma")
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival: {mode: closed}", "has no laws of prompt and output; give a file that"),
        (f"lengths: {{prompt: {NINE}, output: {NINE}}}\narrival: {{mode: open}}",
         "give a rate to an open loop"),
        ("lengths: {prompt: {law: lognormal}}", "lengths.prompt.median is missing"),
        ("workload: {turns: 3}", "is not a known key"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_scenarios(Path("pd-ratio"), None, [f"workload.fitted={file}"])


def test_a_fit_and_what_it_stands_in_place_of_are_refused_beside_each_other(fits: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload\.prompt_tokens is .* no effect with"):
        fitted(fits, SINGLE, "pd-ratio", "workload.prompt_tokens=[1, 2]")
    with pytest.raises(ConfigError, match=r"workload\.fitted is .* no effect with .* trace"):
        fitted(fits, SINGLE, "pd-ratio", f"workload.trace=datasets/{SINGLE}")
