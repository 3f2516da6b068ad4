"""System prompts: which are popular, which are stored for others, and a trace behind them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations, islice
from math import sqrt
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.build import Load, build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.shared import build_prompts
from kv_cache.core.block import Block, content_key
from kv_cache.core.kinds import Lookup, Qos
from kv_cache.core.model import MODELS
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB
from kv_cache.workload.formats.surveying import survey
from kv_cache.workload.formats.trace_files import open_trace
from kv_cache.workload.prompts import PUBLISHED_TOKENS, Prompted, Prompts
from kv_cache.workload.qos import QosMix
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig

MODEL = MODELS["tiny-1b"]
MOONCAKE = "datasets/mooncake_sample.jsonl"
DRAWS = 20_000


def geometry(block_tokens: int) -> Geometry:
    return Geometry(model=MODEL, tensor_parallel=1, block_tokens=block_tokens)


def within(seen: int, chance: float, draws: int = DRAWS) -> bool:
    """Five standard deviations of the binomial distribution."""
    return abs(seen - draws * chance) <= 5 * sqrt(draws * chance * (1 - chance)) + 1


@pytest.mark.parametrize("s", [None, 0.5, 1.0, 2.0])
def test_prompts_are_as_popular_as_their_law_says(s: float | None) -> None:
    lengths = tuple(range(100, 120))
    law = {} if s is None else {"popularity": "zipf", "zipf_s": s}
    prompts, rng = Prompts(lengths=lengths, **law), Random(7)  # type: ignore[arg-type]
    seen = Counter(prompts.draw(rng).number for _ in range(DRAWS))
    weights = [1.0 if s is None else rank**-s for rank in range(1, len(lengths) + 1)]
    for number, weight in enumerate(weights):
        assert within(seen[number], weight / sum(weights))
    assert all(prompts.draw(rng).tokens in lengths for _ in range(50))


def test_the_short_and_the_unpopular_are_not_stored_for_others() -> None:
    prompts = Prompts(lengths=(40, 300, 49, 50, 900), min_tokens=50, max_entries=2)
    rng = Random(1)
    drawn = {prompts.draw(rng) for _ in range(200)}
    assert {prompt.tokens for prompt in drawn if prompt.kept} == {300, 50}
    assert {prompt.tokens for prompt in drawn if not prompt.kept} == {40, 49, 900}
    for prompt in drawn:
        assert bool(prompts.blocks(geometry(0), prompt)) == prompt.kept
    assert prompts.describe()["shared_prompts"] == 2


@pytest.mark.parametrize("block_tokens", [0, 16, 256])
def test_a_prompt_is_one_object_or_its_whole_blocks(block_tokens: int) -> None:
    prompts = Prompts(lengths=(300,))
    blocks = prompts.blocks(geometry(block_tokens), prompts.draw(Random(1)))
    assert [b.tokens for b in blocks] == {0: [300], 16: [16] * 18, 256: [256]}[block_tokens]
    assert len({b.key for b in blocks}) == len(blocks)


# --- synthetic users -----------------------------------------------------------------------


def asked(prompts: Prompts, block_tokens: int, chance: float = 1.0) -> list[Request]:
    persona = Persona(
        name="one", context_range=(100, 100), generation_range=(9, 9), think_time_range=(1, 1)
    )
    config = UsersConfig(
        num_users=20,
        personas=(persona,),
        qos=QosMix(interactive=0.1, responsive_below=0.5, priorities=(3, 2, 1)),
        geometry=geometry(block_tokens),
        multi_turn=False,
        prompt_probability=chance,
        prompts=prompts,
    )
    return list(islice(SyntheticUsers(config, Seed(3)).plan(), 200))


@pytest.mark.parametrize("block_tokens", [0, 16])
def test_who_begins_with_a_prompt_that_is_not_stored_computes_it(block_tokens: int) -> None:
    stored = asked(Prompts(lengths=(1600,)), block_tokens)
    alone = asked(Prompts(lengths=(1600,), max_entries=0), block_tokens)
    keys = Counter(b.key for r in alone for b in r.blocks)
    assert set(keys.values()) == {1}, "nobody shares anything"
    for with_it, without in zip(stored, alone, strict=True):
        assert with_it.shared == (100 if block_tokens else 1)
        assert without.shared == without.new_from == 0
        assert with_it.context_tokens == without.context_tokens >= 1600


def test_the_chance_is_that_of_a_conversation() -> None:
    begun = [r.shared > 0 for r in asked(Prompts(lengths=(256,)), 0, 0.2)]
    assert within(sum(begun), 0.2, len(begun))


def test_the_default_prompts_are_few_and_alike() -> None:
    prompts = build_prompts(load_config(None, {}))
    assert prompts is not None
    assert prompts.lengths == (128, 256, 512)
    assert prompts.describe() == {
        "prompts": 3,
        "shared_prompts": 3,
        "shared_prompt_tokens": [128, 256, 512],
        "prompt_popularity": "uniform",
    }


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"prompts": 5}, (128, 256, 512, 128, 256)),
        ({"prompts": 2}, (128, 256)),
        ({"lengths": "published"}, PUBLISHED_TOKENS),
        ({"prompt_tokens": [7, 9], "prompts": 3}, (7, 9, 7)),
    ],
)
def test_lengths_are_taken_over_and_over(options: dict[str, Any], lengths: Sequence[int]) -> None:
    config = load_config(None, {f"prefix_cache.{key}": value for key, value in options.items()})
    prompts = build_prompts(config)
    assert prompts is not None
    assert prompts.lengths == lengths


def test_the_references_limits_work() -> None:
    given_ = {"min_prefix_length": 200, "max_prefix_entries": 1, "popularity": "zipf"}
    config = load_config(None, {f"prefix_cache.{key}": value for key, value in given_.items()})
    prompts = build_prompts(config)
    assert prompts is not None
    assert prompts.describe()["shared_prompt_tokens"] == [256]
    assert prompts.describe()["prompt_popularity"] == "zipf 1"
    off = load_config(None, {"workload.prefix_caching": False})
    assert build_prompts(off) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefix_cache.prompt_tokens": [7, 9]}, "no prompt is stored"),
        ({"prefix_cache.zipf_s": 2.0}, "popularity is 'uniform'"),
        (
            {"prefix_cache.lengths": "published", "prefix_cache.prompt_tokens": [99]},
            "lengths is 'published'",
        ),
        ({"workload.trace_prompts": True}, "no trace is replayed"),
    ],
)
def test_options_without_effect_are_told(options: dict[str, Any], said: str) -> None:
    warnings = config_warnings(load_config(None, options))
    assert any(said in warning for warning in warnings), warnings


# --- in front of a trace -------------------------------------------------------------------


def row(
    number: int,
    blocks: Sequence[int | str],
    lookup: Lookup = Lookup.CONTENT,
    conversation: str = "c",
    **more: Any,
) -> Request:
    where = geometry(16)
    return Request(
        request_id=number,
        intended_ns=number,
        user="u",
        conversation=conversation,
        turn=1,
        qos=Qos.BATCH,
        priority=1,
        prompt_tokens=16 * len(blocks),
        output_tokens=3,
        blocks=tuple(where.block(content_key("row", block), 16) for block in blocks),
        lookup=lookup,
        **more,
    )


class Rows:
    """A source of given requests, as far as `Prompted` looks at one."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def plan(self) -> Any:
        return iter(self._requests)

    def describe(self) -> dict[str, Any]:
        return {"source": "rows"}


def prompted(requests: Sequence[Request], chance: float = 0.7, **law: Any) -> list[Request]:
    prompts = Prompts(lengths=(40, 600, 300), **law)
    source: Any = Rows(requests)
    return list(Prompted(source, prompts, geometry(16), chance, Seed(5)).plan())


def common(one: Request, other: Request) -> int:
    """How many blocks two sequences have in common, from the beginning."""
    pairs = zip(one.blocks, other.blocks, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, (one.blocks, other.blocks)))
    )


chains = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda path: tuple("/".join(map(str, path[: n + 1])) for n in range(len(path)))
)


@given(st.lists(chains, min_size=2, max_size=12))
def test_what_a_trace_shares_it_shares_behind_a_prompt_too(paths: list[tuple[str, ...]]) -> None:
    before = [row(number, path) for number, path in enumerate(paths)]
    after = prompted(before)
    for old, new in zip(before, after, strict=True):
        assert new.shared == new.new_from == len(new.blocks) - len(old.blocks)
        assert new.context_tokens == old.context_tokens + 16 * new.shared
        assert new.prompt_tokens == old.prompt_tokens + 16 * new.shared
    for (old, new), (old2, new2) in combinations(list(zip(before, after, strict=True)), 2):
        front, front2 = new.blocks[: new.shared], new2.blocks[: new2.shared]
        if common(old, old2):
            assert front == front2, "what begins alike begins with the same prompt"
            assert common(new, new2) == new.shared + common(old, old2)
        if front != front2:
            behind = {b.key for b in new.blocks[new.shared :]}
            assert not behind & {b.key for b in new2.blocks[new2.shared :]}


def test_the_turns_of_a_conversation_have_the_prompt_of_their_conversation() -> None:
    names = [f"c{n}" for n in range(60)]
    turns = [
        row(turn, [f"{name}.{n}" for n in range(turn + 1)], Lookup.TURNS, name, new_from=turn)
        for name in names
        for turn in range(3)
    ]
    fronts: dict[str, set[tuple[Block, ...]]] = defaultdict(set)
    for old, new in zip(turns, prompted(turns), strict=True):
        fronts[new.conversation].add(new.blocks[: new.shared])
        assert new.new_from == old.new_from + new.shared
    assert all(len(found) == 1 for found in fronts.values())
    assert {len(next(iter(found))) for found in fronts.values()} == {0, 2, 37, 18}


def test_a_prompt_without_a_whole_block_that_is_kept_changes_nothing() -> None:
    requests = [row(n, [n]) for n in range(50)]
    assert prompted(requests, 1.0, max_entries=0) == requests
    assert prompted(requests, 0.0) == requests
    assert all(r.shared for r in prompted(requests, 1.0))


def test_operations_and_what_is_found_anywhere_are_left_alone() -> None:
    for lookup in (Lookup.OPERATION, Lookup.INDEPENDENT):
        requests = [row(n, [n], lookup) for n in range(50)]
        assert prompted(requests, 1.0) == requests


def test_who_begins_with_a_prompt_is_not_alone_any_more() -> None:
    requests = [row(n, [n], Lookup.TURNS, f"c{n}", once=True) for n in range(50)]
    for request in prompted(requests):
        assert request.once == (request.shared == 0)


def trace_load(**options: Any) -> Load:
    config = load_config(None, {"workload.trace": MOONCAKE, "run.model": "tiny-1b", **options})
    trace = open_trace(MOONCAKE)
    specs = tier_specs(config, GIB)
    room = fillable_bytes(config, specs)
    return build_load(config, MODEL, Seed(2), trace, survey(trace), room)


def test_a_trace_is_given_prompts_only_where_they_are_asked_for() -> None:
    plain = trace_load()
    assert "trace_prompts" not in plain.source.describe()
    assert not any(r.shared for r in islice(plain.source.plan(), 200))
    asked_for = trace_load(
        **{
            "workload.trace_prompts": True,
            "prefix_cache.prompt_tokens": (1024,),
            "prefix_cache.system_prompt_hit_probability": 1.0,
        }
    )
    facts = asked_for.source.describe()
    assert (facts["trace_prompts"], facts["shared_prompt_tokens"]) == (True, [1024])
    assert facts["prompt_probability"] == 1.0
    for old, new in zip(plain.source.plan(), islice(asked_for.source.plan(), 200), strict=False):
        assert (new.shared, len(new.blocks)) == (2, len(old.blocks) + 2)
        assert new.intended_ns == old.intended_ns
