"""Who asks a simulated cluster: the laws of the sources, and what each of them is for."""

import hashlib
import math
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate, islice, pairwise
from pathlib import Path
from random import Random
from statistics import mean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.lengths import build_lengths
from kv_cache.config.scenario import LengthsSection, ModelSection, Scenario, WorkloadSection
from kv_cache.config.scenario_trace import Surveys, open_work
from kv_cache.config.workload_sections import LawConfig
from kv_cache.core.errors import TraceError
from kv_cache.core.seed import Seed
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest, RequestSource
from kv_cache.sim.cluster.sources import build_source
from kv_cache.sim.cluster.sources.draws import arrival_gaps
from kv_cache.workload.lengths import ks_distance
from kv_cache.workload.paced import over_the_day
from tests.examples import examples
from tests.traces import real_trace

SIZE = 16
SAMPLES = Path(__file__).parents[2] / "datasets"


def scenario(size: int = SIZE, seed: int = 42, **work: Any) -> Scenario:
    return Scenario(
        seed=seed, model=ModelSection(block_tokens=size), workload=WorkloadSection(**work)
    )


class Walk:
    """A cluster that answers each ask after `served` of it, and holds its source to the laws."""

    def __init__(
        self, of: Scenario, *, serve_ms: float = 100, unanswered: float = 0, dice: int = 1
    ) -> None:
        self.chain = PrefixChain()
        self.size = of.model.block_tokens
        self.source: RequestSource = build_source(of, self.chain, open_work(of))
        self.requests: list[ClusterRequest] = []  # in order of arrival
        self.ends: dict[int, int] = {}
        self.followed: dict[int, tuple[ClusterRequest, bool]] = {}  # by number: what it came after
        self.most = 0  # that were under way at the same time
        self._serve_ms, self._unanswered, self._dice = serve_ms, unanswered, Random(dice)
        self._run()

    def _run(self) -> None:
        events: list[tuple[int, int, int, ClusterRequest]] = []
        first = self._known()
        ahead = next(first, None)
        under_way = 0
        while events or ahead is not None:
            if ahead is not None and (not events or ahead.arrival_ns < events[0][0]):
                heappush(events, (ahead.arrival_ns, 1, ahead.number, ahead))
                ahead = next(first, None)
            at_ns, arrives, _, request = heappop(events)
            if arrives:
                self._arrived(request)
                under_way += 1
                self.most = max(self.most, under_way)
                took_ns = round(self._dice.random() * 2 * self._serve_ms * NS_PER_MS)
                heappush(events, (at_ns + took_ns, 0, request.number, request))
                continue
            under_way -= 1
            self.ends[request.number] = at_ns
            answered = self._dice.random() >= self._unanswered
            for follower in self.source.after(request, at_ns, answered=answered):
                assert follower.arrival_ns >= at_ns  # law 2
                self.followed[follower.number] = (request, answered)
                heappush(events, (follower.arrival_ns, 1, follower.number, follower))

    def _known(self) -> Iterator[ClusterRequest]:
        before_ns = 0
        for request in self.source.first():
            assert request.arrival_ns >= before_ns  # law 1
            before_ns = request.arrival_ns
            yield request

    def _arrived(self, request: ClusterRequest) -> None:
        self.requests.append(request)
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        if request.leaf != ROOT:  # law 4
            assert self.chain.end(request.leaf) == request.prompt_tokens // self.size
        if request.answer_leaf != -1:  # law 5
            whole = (request.prompt_tokens + request.output_tokens - 1) // self.size
            assert self.chain.end(request.answer_leaf) == whole
            assert self.chain.parent[request.answer_leaf] == request.leaf

    @property
    def numbers(self) -> list[int]:
        return sorted(request.number for request in self.requests)

    def sessions(self) -> dict[int, list[ClusterRequest]]:
        found: dict[int, list[ClusterRequest]] = {}
        for request in sorted(self.requests, key=lambda request: request.number):
            found.setdefault(request.session, []).append(request)
        return found

    def new_tokens(self, request: ClusterRequest) -> int:
        """That no earlier turn of its session had."""
        if request.turn == 0:
            return request.prompt_tokens
        before, answered = self.followed[request.number]
        return request.prompt_tokens - before.prompt_tokens - answered * before.output_tokens

    def hits(self) -> tuple[int, int]:
        """Blocks of all prompts, and how many of them an unlimited cache would have had."""
        seen: set[int] = set()
        blocks = hits = 0
        for request in self.requests:
            for node in self.chain.path(request.leaf):
                blocks += self.chain.blocks[node]
                hits += self.chain.blocks[node] * (node in seen)
                seen.add(node)
        return blocks, hits


def walk(size: int = SIZE, **work: Any) -> Walk:
    return Walk(scenario(size, **work))


PAIRS = st.tuples(st.integers(1, 200), st.integers(1, 200)).map(lambda pair: tuple(sorted(pair)))
LAWS = LengthsSection(
    prompt=LawConfig(law="lognormal", median=40.0, sigma=1.0, high=400.0),
    output=LawConfig(law="zipf", exponent=1.2, low=1, high=60),
    think_s=LawConfig(law="uniform", low=0.0, high=1.5),
    turns=LawConfig(law="empirical", quantiles=(0.0, 0.9, 1.0), values=(1.0, 3.0, 9.0)),
)
WORK = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["sessions", "agents", "poisson"]),
        "requests": st.integers(1, 60),
        "rate_per_s": st.sampled_from([0.0, 1.0, 50.0]),
        "concurrency": st.sampled_from([0, 0, 1, 3, 100]),
        "turns": st.tuples(st.integers(1, 3), st.integers(3, 6)),
        "think_s": st.sampled_from([(0.0, 0.0), (0.1, 2.0)]),
        "system_prompts": st.integers(0, 3),
        "system_tokens": st.integers(1, 60),
        "tool_sets": st.integers(0, 2),
        "tool_tokens": st.integers(1, 60),
        "context_tokens": st.integers(8, 100),
        "documents": st.integers(0, 5),
        "prompt_tokens": PAIRS,
        "output_tokens": PAIRS,
        "prompt_law": st.sampled_from(["fixed", "uniform", "exponential"]),
        "output_law": st.sampled_from(["fixed", "uniform", "exponential"]),
        "reasoning_tokens": st.integers(0, 30),
        "arrival_process": st.sampled_from(["poisson", "gamma", "fixed"]),
        "day_swing": st.sampled_from([0.0, 0.7]),
        "day_s": st.sampled_from([1.0, 60.0]),
        "lengths": st.sampled_from([LengthsSection(), LAWS]),
    }
)


@given(
    work=WORK, size=st.sampled_from([1, 7, 16, 64]), seed=st.integers(0, 99),
    unanswered=st.sampled_from([0.0, 0.3, 1.0]), serve_ms=st.sampled_from([0.0, 50.0, 5000.0]),
)  # fmt: skip
@examples(40)
def test_drawn_sources_keep_the_laws_whatever_becomes_of_their_asks(
    work: dict[str, Any], size: int, seed: int, unanswered: float, serve_ms: float
) -> None:
    of = scenario(size, seed, **work)
    walked = Walk(of, serve_ms=serve_ms, unanswered=unanswered)
    assert walked.numbers == list(range(of.workload.drawn_requests))
    again = Walk(of, serve_ms=serve_ms, unanswered=unanswered)
    assert again.requests == walked.requests  # law 3
    if of.workload.concurrency:
        assert walked.most <= of.workload.concurrency
    for turns in walked.sessions().values():
        assert [request.turn for request in turns] == list(range(len(turns)))
        assert turns[-1].answer_leaf == -1
        for before, request in pairwise(turns):
            assert request.arrival_ns >= walked.ends[before.number]  # causality
            assert walked.new_tokens(request) >= 1
            whole = before.prompt_tokens // size
            assert common_blocks(walked.chain, before.leaf, request.leaf) == whole


def common_blocks(chain: PrefixChain, one: int, other: int) -> int:
    """Of two sequences, from their beginnings."""
    total = 0
    for a, b in zip(chain.path(one), chain.path(other), strict=False):
        if a != b:
            break
        total += chain.blocks[a]
    return total


def test_what_is_asked_is_the_same_on_every_machine_and_in_every_version() -> None:
    """The sum is of what this version asks: if it changes, every published figure does."""
    walked = walk(source="agents", requests=200, documents=50, think_s=(1.0, 9.0), tool_sets=2)
    text = repr([tuple(request) for request in walked.requests]).encode()
    assert hashlib.sha256(text).hexdigest()[:16] == "0f1ead88467b0998"


def test_a_turn_has_all_that_was_said_and_new_tokens_a_think_time_after_its_answer() -> None:
    walked = walk(
        source="sessions", requests=400, turns=(2, 5), think_s=(1.0, 3.0), prompt_tokens=(10, 30)
    )
    turns = [request for request in walked.requests if request.turn]
    assert turns
    for request in turns:
        before, _ = walked.followed[request.number]
        assert before.session == request.session
        assert 10 <= walked.new_tokens(request) <= 30
        think_s = (request.arrival_ns - walked.ends[before.number]) / NS_PER_S
        assert 1 <= think_s <= 3


def test_an_agent_adds_its_reasoning_to_each_later_turn() -> None:
    more: dict[str, Any] = {"requests": 100, "turns": (5, 5), "prompt_tokens": (10, 10)}
    walked = walk(source="agents", reasoning_tokens=256, **more)
    assert {walked.new_tokens(request) for request in walked.requests if request.turn} == {266}


def test_a_question_without_an_answer_stays_in_the_history_alone() -> None:
    of = scenario(source="sessions", requests=40, turns=(4, 4), prompt_tokens=(32, 32))
    walked = Walk(of, unanswered=1)
    for turns in walked.sessions().values():
        for before, request in pairwise(turns):
            assert request.prompt_tokens == before.prompt_tokens + 32
            assert before.answer_leaf not in walked.chain.path(request.leaf)


def test_a_feature_that_is_added_changes_no_other_draw() -> None:
    plain: dict[str, Any] = {"source": "sessions", "requests": 200, "turns": (2, 5)}

    def new_tokens(**more: Any) -> list[int]:
        walked = walk(**plain, **more)
        return [
            walked.new_tokens(request)
            for _, request in sorted((a.number, a) for a in walked.requests)
        ]

    def later(tokens: list[int], requests: list[ClusterRequest]) -> list[int]:
        return [t for t, request in zip(tokens, requests, strict=True) if request.turn]

    requests = sorted(walk(**plain).requests)
    base = later(new_tokens(), requests)
    for more in ({"think_s": (1.0, 5.0)}, {"documents": 30}, {"output_law": "fixed"},
                 {"rate_per_s": 1.0}, {"concurrency": 3}, {"tool_sets": 4}):  # fmt: skip
        assert later(new_tokens(**more), requests) == base, more


def test_fewer_requests_are_the_first_of_more() -> None:
    def asked(requests: int) -> list[tuple[int, ...]]:
        made = walk(source="sessions", requests=requests, turns=(1, 6), rate_per_s=0)
        return [tuple(request[:3]) + request[4:6] for request in sorted(made.requests)]

    assert asked(1000)[:57] == asked(57)


def test_system_prompts_and_tools_are_dealt_out_in_turn_and_shared() -> None:
    walked = walk(
        source="agents", requests=30, turns=(1, 1), system_prompts=3, system_tokens=40,
        tool_sets=2, tool_tokens=50, context_tokens=0,
    )  # fmt: skip
    by_session = {request.session: request.leaf for request in walked.requests}
    assert common_blocks(walked.chain, by_session[0], by_session[6]) == (40 + 50) // SIZE
    assert common_blocks(walked.chain, by_session[0], by_session[3]) == 40 // SIZE
    assert common_blocks(walked.chain, by_session[0], by_session[1]) == 0


def test_documents_are_shared_by_rank_and_drawn_without_repeats() -> None:
    walked = walk(
        source="sessions", requests=3000, turns=(1, 1), documents=50, documents_per_session=3,
        context_tokens=480, system_prompts=0, prompt_tokens=(1, 1), zipf_alpha=1.0,
    )  # fmt: skip
    picked: Counter[int] = Counter()
    for request in walked.requests:
        path = walked.chain.path(request.leaf)
        assert 1 <= len(path) <= 3
        assert request.prompt_tokens == 160 * len(path) + 1
        picked[path[0]] += 1
    first, second = (count for _, count in picked.most_common(2))
    assert first / second == pytest.approx(2, rel=0.2)
    assert first / len(walked.requests) == pytest.approx(
        1 / sum(1 / k for k in range(1, 51)), rel=0.1
    )


def test_nothing_is_drawn_before_it_is_asked_for() -> None:
    for source in ("sessions", "agents", "poisson"):
        made = build_source(scenario(source=source, requests=10**8), PrefixChain())
        assert len(list(islice(made.first(), 10))) == 10


@pytest.mark.parametrize(
    "work",
    [
        {"source": "poisson"}, {"source": "poisson", "concurrency": 5}, {"source": "sessions"},
        {"source": "agents", "concurrency": 5, "turns": (10, 30)},
    ],
)  # fmt: skip
def test_what_has_ended_is_not_kept(work: dict[str, Any]) -> None:
    """Beside the chain (24 bytes a node), memory is that of the sessions that go on."""

    def peak(requests: int) -> int:
        made = build_source(scenario(requests=requests, **work), PrefixChain())
        tracemalloc.start()
        for begun in made.first():
            waiting = [begun]
            while waiting:
                request = waiting.pop()
                waiting += made.after(request, request.arrival_ns, answered=True)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(20_000) - peak(10_000) < 10_000 * 2 * 24 * 1.5


@pytest.mark.parametrize("source", ["sessions", "poisson"])
def test_lengths_are_drawn_by_the_laws_that_a_run_has(source: str) -> None:
    turns = LawConfig(law="fixed", value=3)
    laws = replace(LAWS, turns=turns) if source == "sessions" else replace(LAWS, turns=LawConfig())
    walked = walk(
        source=source, requests=6_000, lengths=laws, rate_per_s=0, system_prompts=0,
        context_tokens=0,
    )  # fmt: skip
    drawn = build_lengths(laws)
    assert drawn.prompt is not None
    assert drawn.output is not None
    asked = sorted(walked.requests, key=lambda request: request.number)
    prompts = sorted(walked.new_tokens(request) for request in asked)
    outputs = sorted(request.output_tokens for request in asked)
    assert ks_distance(drawn.prompt, prompts) < 0.03
    assert ks_distance(drawn.output, outputs) < 0.03
    if source == "sessions":
        assert {len(turns) for turns in walked.sessions().values()} == {3}
        thinks = [
            (asked[n].arrival_ns - walked.ends[before.number]) / NS_PER_S
            for n, (before, _) in walked.followed.items()
        ]
        assert drawn.think_s is not None
        assert ks_distance(drawn.think_s, sorted(thinks)) < 0.03


@pytest.mark.parametrize(
    ("source", "trace"),
    [("poisson", None), ("sessions", None), ("trace", "kv_cache_sessions_untimed_sample.jsonl")],
)
@pytest.mark.parametrize(("process", "cv"), [("fixed", 0.0), ("poisson", 1.0), ("gamma", 3.0)])
def test_what_begins_is_as_bursty_as_asked(
    source: str, trace: str | None, process: str, cv: float
) -> None:
    of = scenario(
        source=source, requests=20_000, turns=(1, 1), rate_per_s=20, arrival_process=process,
        arrival_cv=3.0, trace=None if trace is None else str(SAMPLES / trace),
    )  # fmt: skip
    gaps = list(islice(arrival_gaps(of.workload, Seed(3)), 20_000))
    begun = build_source(of, PrefixChain(), open_work(of)).first()
    at_ns = [request.arrival_ns for request in begun if not request.turn]
    assert len(at_ns) > 30
    source_gaps = arrival_gaps(of.workload, Seed(of.seed).child("cluster", "asks"))
    assert at_ns == list(accumulate(islice(source_gaps, len(at_ns))))
    assert mean(gaps) == pytest.approx(NS_PER_S / 20, rel=0.06)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, abs=0.15)


@given(
    swing=st.floats(0, 1), rate_per_s=st.sampled_from([0.5, 20.0]), day_s=st.floats(1, 1e5),
)  # fmt: skip
@examples(40)
def test_of_each_stretch_of_a_day_as_many_come_as_its_rate_says(
    swing: float, rate_per_s: float, day_s: float
) -> None:
    gap_ns = round(NS_PER_S / rate_per_s)
    at_ns = list(accumulate(over_the_day([gap_ns] * 2_000, swing, day_s)))
    assert all(a <= b for a, b in pairwise([0, *at_ns]))
    for count, at in enumerate(at_ns, 1):
        t_s = at / NS_PER_S
        integral = t_s + swing * day_s / (2 * math.pi) * (1 - math.cos(2 * math.pi * t_s / day_s))
        assert integral * NS_PER_S == pytest.approx(count * gap_ns, rel=1e-9, abs=1e3 + day_s * 100)


def test_more_begins_by_day_than_by_night() -> None:
    walked = walk(
        source="poisson", requests=20_000, rate_per_s=100, day_swing=0.8, day_s=50, lengths=LAWS
    )
    halves = Counter(request.arrival_ns // (25 * NS_PER_S) % 2 for request in walked.requests)
    by_day = 0.5 + 0.8 / math.pi
    assert halves[0] / 20_000 == pytest.approx(by_day, abs=0.02)


def test_single_requests_come_at_their_rate_and_share_nothing() -> None:
    walked = walk(
        source="poisson", requests=20_000, rate_per_s=200, prompt_tokens=(200, 1000),
        output_tokens=(50, 400),
    )  # fmt: skip
    assert {(request.leaf, request.answer_leaf, request.turn) for request in walked.requests} == {
        (ROOT, -1, 0)
    }
    gaps = [b.arrival_ns - a.arrival_ns for a, b in pairwise(walked.requests)]
    assert mean(gaps) == pytest.approx(NS_PER_S / 200, rel=0.03)
    assert mean(gap * gap for gap in gaps) == pytest.approx(2 * mean(gaps) ** 2, rel=0.1)
    prompts = [request.prompt_tokens for request in walked.requests]
    assert (min(prompts), max(prompts)) == (200, 1000)
    assert mean(prompts) == pytest.approx(600, rel=0.02)


@pytest.mark.parametrize(
    ("law", "between", "expected"),
    [
        ("exponential", (1, 199), 100), ("exponential", (1, 2), 1.5), ("exponential", (1, 1), 1),
        ("fixed", (10, 31), 20), ("uniform", (3, 4), 3.5),
    ],
)  # fmt: skip
def test_lengths_have_the_mean_of_their_law(
    law: str, between: tuple[int, int], expected: float
) -> None:
    walked = walk(source="poisson", requests=20_000, output_law=law, output_tokens=between)
    outputs = [request.output_tokens for request in walked.requests]
    assert min(outputs) >= 1
    assert mean(outputs) == pytest.approx(expected, rel=0.03)


def test_users_of_a_closed_loop_think_between_their_requests() -> None:
    walked = walk(source="poisson", requests=500, concurrency=7, think_s=(1.0, 2.0))
    assert walked.most <= 7
    assert sum(request.arrival_ns == 0 for request in walked.requests) == 7
    for request in walked.requests[7:]:
        before, _ = walked.followed[request.number]
        assert 1 <= (request.arrival_ns - walked.ends[before.number]) / NS_PER_S <= 2


# --- traces ----------------------------------------------------------------------------------


def traced(name: str | Path, size: int = SIZE, **work: Any) -> Walk:
    return Walk(scenario(size, source="trace", trace=str(name), requests=100_000, **work))


def sample(name: str, size: int = SIZE, **work: Any) -> Walk:
    return traced(SAMPLES / name, size, **work)


@pytest.mark.parametrize(
    ("name", "size", "rows"),
    [
        ("azure_sample.csv", 16, 400), ("azure2024_sample.csv", 16, 400),
        ("burstgpt_sample.csv", 16, 367), ("burstgpt3_sample.csv", 16, 369),
        ("mooncake_sample.jsonl", 512, 400), ("mooncake_sample.jsonl", 16, 400),
        ("qwen_sample.jsonl", 16, 250), ("splitwise_sample.csv", 16, 400),
        ("sharegpt_sample.json", 16, 130), ("messages_sample.jsonl", 16, 79),
        ("agentic_sample.jsonl", 64, 144), ("kv_cache_sample.jsonl", 16, 100),
        ("kv_cache_sessions_sample.jsonl", 16, 36),
        ("kv_cache_sessions_untimed_sample.jsonl", 16, 143),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unanswered", [0.0, 0.5])
def test_every_format_of_prompts_is_asked_whole_and_by_the_laws(
    name: str, size: int, rows: int, unanswered: float
) -> None:
    of = scenario(size, source="trace", trace=str(SAMPLES / name), requests=100_000)
    walked = Walk(of, unanswered=unanswered)
    assert walked.numbers == list(range(rows))


def test_all_blocks_of_a_hash_id_trace_are_reused_where_it_says_so() -> None:
    """611,886 blocks and 561,082 prefix hits are counted in the file itself."""
    walked = traced(real_trace("agentic"), 64, concurrency=5)
    assert walked.hits() == (611_886, 561_082)


def test_a_hash_id_is_the_same_content_at_any_divisor_of_its_length() -> None:
    whole, cut = sample("mooncake_sample.jsonl", 512), sample("mooncake_sample.jsonl", 128)
    assert whole.hits()[1] * 4 <= cut.hits()[1]
    for request, same in zip(whole.requests, cut.requests, strict=True):
        assert request.arrival_ns == same.arrival_ns
        assert cut.chain.end(same.leaf) // 4 == whole.chain.end(request.leaf)


def rows_of(tmp_path: Path, *rows: str, head: str = "") -> Path:
    said = '{"schema": "kv-cache-trace/1", "grouped": false, "timed": true, "block_tokens": 0%s}'
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join((said % head, *rows)) + "\n")
    return path


def test_a_row_of_a_session_waits_for_the_answer_before_it_and_has_it_in_its_prompt(
    tmp_path: Path,
) -> None:
    path = rows_of(
        tmp_path,
        '{"at_ns": 0, "prompt": 64, "output": 33, "session": "a", "adds": true}',
        '{"at_ns": 5, "prompt": 64, "output": 32, "session": "a", "adds": true, "think_ns": 1000}',
        '{"at_ns": 6, "prompt": 64, "output": 32}',
    )
    walked = traced(path)
    one, two, alone = sorted(walked.requests)
    assert two.arrival_ns == walked.ends[0] + 1000
    assert two.prompt_tokens == 64 + 33 + 64
    assert one.answer_leaf in walked.chain.path(two.leaf)
    assert (alone.arrival_ns, alone.leaf) == (6, ROOT)
    assert (one.session, two.session, one.turn, two.turn) == (0, 0, 0, 1)


def test_a_context_that_was_cut_is_content_of_its_own(tmp_path: Path) -> None:
    path = rows_of(
        tmp_path,
        '{"at_ns": 0, "prompt": 640, "output": 32, "session": "a"}',
        '{"at_ns": 1, "prompt": 700, "output": 32, "session": "a"}',
        '{"at_ns": 2, "prompt": 320, "output": 32, "session": "a"}',
    )
    walked = traced(path)
    first, second, third = (request.leaf for request in sorted(walked.requests))
    assert common_blocks(walked.chain, first, second) == 40
    assert common_blocks(walked.chain, second, third) == 0


def test_one_answer_may_free_several_rows(tmp_path: Path) -> None:
    path = rows_of(
        tmp_path,
        '{"at_ns": 0, "prompt": 64, "output": 32, "name": "0"}',
        '{"at_ns": 1, "prompt": 64, "output": 32, "name": "0.0", "after": ["0"]}',
        '{"at_ns": 1, "prompt": 64, "output": 32, "name": "0.1", "after": ["0"]}',
        '{"at_ns": 2, "prompt": 64, "output": 32, "name": "1", "after": ["0.0", "0.1"]}',
    )
    walked = traced(path)
    assert [walked.followed[n][0].number for n in (1, 2)] == [0, 0]
    assert walked.requests[-1].arrival_ns == max(walked.ends[n] for n in (1, 2))


def test_arrival_scale_brings_the_sessions_of_a_trace_denser() -> None:
    plain, dense = sample("azure_sample.csv"), sample("azure_sample.csv", arrival_scale=4)
    assert dense.requests[-1].arrival_ns == pytest.approx(
        plain.requests[-1].arrival_ns / 4, rel=1e-6
    )


def test_rows_without_instants_come_at_the_rate_that_is_given() -> None:
    walked = sample("kv_cache_sessions_untimed_sample.jsonl", rate_per_s=100)
    begun = [request for request in walked.requests if request.number not in walked.followed]
    assert begun[-1].arrival_ns / NS_PER_S == pytest.approx(len(begun) / 100, rel=0.5)


@pytest.mark.parametrize(
    ("name", "size", "work", "message"),
    [
        ("mooncake_sample.jsonl", 96, {}, "have 512 tokens, which model.block_tokens 96"),
        ("lmcache_sample.lct", 16, {}, "reads and writes of objects and no prompts"),
        ("msr_sample.csv", 16, {}, "reads and writes of objects and no prompts"),
        ("kv_cache_untimed_sample.jsonl", 16, {}, "reads and writes of objects and no prompts"),
        ("azure_sample.csv", 16, {"warmup_requests": 400}, "so that nothing is measured"),
        ("mooncake_sample.jsonl", 96, {"warmup_requests": 400}, "of it; workload.warmup_requests"),
        ("azure_sample.csv", 16, {"trace_format": "mooncake"}, "azure_sample.csv"),
        ("no_such.csv", 16, {}, "there is no such trace"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_carried_is_refused_in_one_sentence(
    name: str, size: int, work: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError) as refused:
        sample(name, size, **work)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "size", "known"),
    [
        ("mooncake_sample.jsonl", 512, False), ("azure_sample.csv", 16, False),
        ("qwen_sample.jsonl", 16, True), ("sharegpt_sample.json", 16, True),
    ],
)  # fmt: skip
def test_next_turns_cannot_be_brought_up_where_a_trace_has_none(
    name: str, size: int, known: bool
) -> None:
    of = scenario(size, source="trace", trace=str(SAMPLES / name))
    of = replace(of, tiers=replace(of.tiers, prefetch="next-in-session"))
    if known:
        assert open_work(of) is not None
        return
    with pytest.raises(TraceError, match=r"no row of .* waits for the answer to another one"):
        open_work(of)


def test_a_row_that_cannot_be_read_is_refused_with_a_way_out_that_there_is(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,0,10\n")
    with pytest.raises(TraceError, match=r"or leave such rows out with workload\.skip_bad_rows"):
        traced(file)
    file.write_text(f"{file.read_text()}2023-11-16 18:15:47,20,10\n")
    assert traced(file, skip_bad_rows=True).numbers == [0]


def test_a_shipped_trace_is_found_by_its_name() -> None:
    of = scenario(512, source="trace", trace="datasets/mooncake_sample.jsonl", requests=5)
    assert Walk(of).numbers == [0, 1, 2, 3, 4]
    assert open_work(replace(of, workload=WorkloadSection())) is None


def test_a_trace_is_read_once_whatever_else_scenarios_say(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes((SAMPLES / "mooncake_sample.jsonl").read_bytes())
    surveys: Surveys = {}
    one = scenario(512, source="trace", trace=str(file), requests=5)
    first = open_work(one, surveys)
    other = replace(one, tiers=replace(one.tiers, prefetch="on-arrival"))
    second = open_work(replace(other, workload=replace(one.workload, requests=9)), surveys)
    assert first is not None
    assert second is not None
    assert first.survey is second.survey
    skipping = replace(one, workload=replace(one.workload, skip_bad_rows=True))
    assert open_work(skipping, surveys) is not None
    assert len(surveys) == 2
