"""Several models in one run, and all ranks of one: whose blocks are whose, and how large."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kv_cache.config.build import Load, build_load
from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.config.rules import check
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.schema import from_mapping
from kv_cache.core.block import Block, content_key, salted_key
from kv_cache.core.errors import ConfigError, TraceError
from kv_cache.core.kinds import Lookup, Qos
from kv_cache.core.model import MODELS
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.formats.surveying import survey
from kv_cache.workload.formats.trace_files import open_trace
from kv_cache.workload.mix import Mix, Mixed, Share
from kv_cache.workload.ranks import Ranked, Ranks
from kv_cache.workload.sizing import Geometry

WEIGHTS = {"tiny-1b": 3.0, "qwen3-8b": 1.0, "deepseek-v3": 1.0}
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def _mix(block_tokens: int = 16, opening: int = 0) -> Mix:
    shares = [
        Share(
            name=name,
            weight=weight,
            geometry=Geometry(model=MODELS[name], tensor_parallel=1, block_tokens=block_tokens),
        )
        for name, weight in WEIGHTS.items()
    ]
    return Mix(shares, Seed(3), opening)


def _request(blocks: Sequence[Block] = (), **changed: object) -> Request:
    plain = Request(
        request_id=0, intended_ns=0, user="u", conversation="c", turn=1, qos=Qos.BATCH,
        priority=1, prompt_tokens=64, output_tokens=1, blocks=tuple(blocks),
    )  # fmt: skip
    return replace(plain, **changed)


def _blocks(*names: str, tokens: int = 16) -> tuple[Block, ...]:
    return tuple(Block(content_key(name), tokens, 1) for name in names)


class _Listed:
    """A source of requests that are given, all at once."""

    on_demand = False
    users = None

    def __init__(self, requests: Sequence[Request]) -> None:
        self._left = [replace(r, request_id=n) for n, r in enumerate(requests)]

    @property
    def exhausted(self) -> bool:
        return not self._left

    def next_ns(self) -> int | None:
        return 0 if self._left else None

    def pop(self, now_ns: int) -> Request:
        return self._left.pop(0)

    def after(self, request: Request, finished_ns: int) -> None: ...

    def resize(self, users: int, now_ns: int) -> None: ...

    def plan(self) -> Iterator[Request]:
        return iter(self._left)

    def describe(self) -> dict[str, object]:
        return {"source": "listed"}


def _through(mixed: Mixed | Ranked) -> list[Request]:
    return list(iter(lambda: mixed.pop(0) if not mixed.exhausted else None, None))


# --- mixes -----------------------------------------------------------------------------------


def test_conversations_belong_to_models_by_weight() -> None:
    mix = _mix()
    found = Counter(mix.drawn(f"conversation {n}") for n in range(5000))
    shares = mix.weights()
    assert shares == {"tiny-1b": 0.6, "qwen3-8b": 0.2, "deepseek-v3": 0.2}
    for name, share in shares.items():
        sigma = (share * (1 - share) / 5000) ** 0.5
        assert abs(found[name] / 5000 - share) < 4 * sigma


def test_all_turns_of_a_conversation_ask_one_model_and_find_its_blocks() -> None:
    turns = [
        _request(_blocks(*"abcd"[: n + 1]), conversation=f"c{c}", turn=n + 1, new_from=n)
        for c in range(40)
        for n in range(4)
    ]
    asked = _through(Mixed(_Listed(turns), _mix()))
    for start in range(0, len(asked), 4):
        talk = asked[start : start + 4]
        assert len({r.model for r in talk}) == 1
        for before, after in pairwise(talk):
            assert after.blocks[: len(before.blocks)] == before.blocks
    assert {r.model for r in asked} == WEIGHTS.keys()


def test_two_models_share_no_block_and_each_has_its_own_sizes() -> None:
    blocks = _blocks(*"abcdef")
    mix = _mix()
    kept = {name: mix.blocks(blocks, name) for name in WEIGHTS}
    keys = [b.key for each in kept.values() for b in each]
    assert len(set(keys)) == len(keys) == 18
    for name, each in kept.items():
        assert {b.nbytes for b in each} == {16 * MODELS[name].bytes_per_token}
        assert [b.tokens for b in each] == [16] * 6


def test_whoever_shares_blocks_by_content_asks_the_same_model() -> None:
    rows = [
        _request(
            _blocks(f"root {n % 7}", f"row {n}"), conversation=f"row_{n}", lookup=Lookup.CONTENT
        )
        for n in range(70)
    ]
    asked = _through(Mixed(_Listed(rows), _mix()))
    models = {n % 7: r.model for n, r in enumerate(asked)}
    assert all(r.model == models[n % 7] for n, r in enumerate(asked))
    assert len({r.blocks[0].key for r in asked}) == 7  # as many as without a mix


def test_a_prompt_that_all_begin_with_does_not_make_one_model_of_a_mix() -> None:
    """Mooncake's conversation trace: 99 % of the rows have the same first block."""
    rows = [
        _request(
            _blocks("system", f"talk {n % 50}", f"row {n}", tokens=512),
            conversation=f"row_{n}", lookup=Lookup.CONTENT,
        )
        for n in range(200)
    ]  # fmt: skip
    first = _through(Mixed(_Listed(rows), _mix(512)))
    assert len({r.model for r in first}) == 1
    behind = _through(Mixed(_Listed(rows), _mix(512, opening=512)))
    assert {r.model for r in behind} == WEIGHTS.keys()
    models = {n % 50: r.model for n, r in enumerate(behind)}
    assert all(r.model == models[n % 50] for n, r in enumerate(behind))


def test_a_row_without_blocks_is_drawn_by_its_conversation() -> None:
    rows = [_request(conversation=f"r{n}", lookup=Lookup.CONTENT) for n in range(50)]
    assert {r.model for r in _through(Mixed(_Listed(rows), _mix()))} == WEIGHTS.keys()


def test_a_trace_may_say_which_model_is_which() -> None:
    names = ["GPT-4", "ChatGPT", "other", ""]
    rows = [_request(_blocks("a"), conversation=f"r{n}", model=names[n % 4]) for n in range(200)]
    mixed = Mixed(_Listed(rows), _mix(), {"GPT-4": "deepseek-v3", "ChatGPT": "tiny-1b"})
    asked = _through(mixed)
    assert {r.model for r in asked[0::4]} == {"deepseek-v3"}
    assert {r.model for r in asked[1::4]} == {"tiny-1b"}
    assert {r.model for r in asked[2::4]} == WEIGHTS.keys()
    told = mixed.describe()
    assert told["requests_of_models_named_by_the_trace"] == 100
    assert [row["model"] for row in told["models"]] == list(WEIGHTS)
    assert sum(row["requests"] for row in told["models"]) == 200
    assert told["models"][0]["bytes_per_token"] == 24_576


def _load(mapping: dict[str, object], capacity: int | None = 2**36) -> tuple[Config, Load]:
    config = from_mapping(Config, mapping)
    check(config)
    return config, build_load(config, config.model_shape(), Seed(1), None, None, capacity)


MIXED = {"model_mix": {"tiny-1b": 1, "qwen3-8b": 1}, "num_users": 5}


def test_a_mix_asks_what_its_plan_says() -> None:
    _, load = _load({"run": MIXED})
    planned = list(islice(load.source.plan(), 50))
    assert {r.model for r in planned} == {"tiny-1b", "qwen3-8b"}
    assert [r.model for r in islice(load.source.plan(), 50)] == [r.model for r in planned]
    for request in planned:
        per_token = MODELS[request.model].bytes_per_token
        assert all(b.nbytes == b.tokens * per_token for b in request.blocks)


def test_decode_only_reads_objects_of_the_models_that_they_were_stored_for() -> None:
    _, load = _load({"run": {**MIXED, "mode": "decode-only"}})
    stored = {b for blocks in load.populate for b in blocks}
    assert len(load.populate) == 50
    asked = list(islice(load.source.plan(), 200))
    assert {b for r in asked for b in r.blocks} <= stored
    assert {r.model for r in asked} == {"tiny-1b", "qwen3-8b"}


def test_documents_are_stored_by_every_model_of_a_mix() -> None:
    rag = {"num_docs": 3, "enabled": True, "request_probability": 0.5}
    _, load = _load({"run": MIXED, "rag": rag})
    _, alone = _load({"run": {"model": "tiny-1b", "num_users": 5}, "rag": rag})
    stored = {b for blocks in load.populate for b in blocks}
    assert len(load.populate) == 2 * len(alone.populate) == 6
    retrieved = [r for r in islice(load.source.plan(), 100) if r.retrieved]
    assert {r.model for r in retrieved} == {"tiny-1b", "qwen3-8b"}
    assert {b for r in retrieved for b in r.blocks} <= stored
    assert load.source.describe()["rag_ingested_bytes"] == sum(b.nbytes for b in stored)


def test_a_burstgpt_trace_asks_the_models_that_it_is_told_to(tmp_path: Path) -> None:
    file = tmp_path / "burst.csv"
    rows = "".join(f"{n},{'GPT-4' if n % 3 else 'ChatGPT'},100,5,105,API log\n" for n in range(30))
    file.write_text(BURST + rows)
    config = load_config(
        None,
        {
            "run.model_mix": {"tiny-1b": 1, "qwen3-8b": 1},
            "workload.trace": str(file),
            "workload.trace_models": {"GPT-4": "qwen3-8b", "ChatGPT": "tiny-1b"},
            "workload.replay_cycles": 1,
        },
    )
    trace = open_trace(str(file), "burstgpt")
    load = build_load(config, config.model_shape(), Seed(1), trace, survey(trace), None)
    asked = list(load.source.plan())
    assert Counter(r.model for r in asked) == {"qwen3-8b": 20, "tiny-1b": 10}
    assert all(r.blocks[0].nbytes == 100 * MODELS[r.model].bytes_per_token for r in asked)


@pytest.mark.parametrize("option", [{"run.model_mix": {"tiny-1b": 1}}, {"tiers.ranks": "all"}])
def test_operations_of_a_trace_belong_to_no_model(
    tmp_path: Path, option: dict[str, object]
) -> None:
    file = tmp_path / "io.csv"
    file.write_text(
        "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase\n0.0,Write,4096,Tier-2,k,Prefill\n"
    )
    given = {"workload.trace": str(file), "tiers.tensor_parallel": 2, "tiers.num_gpus": 2}
    config = load_config(None, {**given, **option})
    trace = open_trace(str(file), "iotrace")
    with pytest.raises(TraceError, match="name the objects that are moved"):
        build_load(config, config.model_shape(), Seed(1), trace, survey(trace), None)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run.model": "qwen3-8b", "run.model_mix": {"tiny-1b": 1}}, "leave one of them out"),
        ({"workload.trace_models": {"a": "b"}}, "without a mix"),
        (
            {"run.model_mix": {"tiny-1b": 1}, "workload.trace_models": {"a": "tiny"}},
            "Did you mean 'tiny-1b'",
        ),
        ({"run.model_mix": {"tiny-1b": 0}}, "above 0"),
        ({"run.model_mix": {"tiny-1b": "much"}}, "a number"),
    ],
)
def test_a_mix_that_contradicts_itself_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, changed)


def test_an_unknown_model_of_a_mix_is_named() -> None:
    config = load_config(None, {"run.model_mix": {"tiny-2b": 1}})
    with pytest.raises(ConfigError, match=r"--model-mix\) has 'tiny-2b'.*tiny-1b"):
        config.model_shape()


def test_a_type_of_the_kv_cache_is_put_over_every_model() -> None:
    given = {"run.kv_dtype": "int4", "run.model_mix": {"tiny-1b": 1, "qwen3-8b": 2}}
    shapes = load_config(None, given).mixed_shapes()
    assert {n: s.bytes_per_token for n, s in shapes.items()} == {
        "tiny-1b": 24_576 // 4,
        "qwen3-8b": 147_456 // 4,
    }
    assert load_config(None, given).model_shape().name == "Qwen3 8B"  # the largest


# --- ranks -----------------------------------------------------------------------------------


def test_each_block_becomes_an_object_of_every_rank() -> None:
    ranks = Ranks(4, {"": MODELS["llama3.1-8b"]})
    blocks = tuple(Block(content_key(n), 16, 16 * 131_072) for n in range(5))
    stored = ranks.blocks(blocks, "")
    assert len({b.key for b in stored}) == 20
    assert sum(b.nbytes for b in stored) == sum(b.nbytes for b in blocks)
    assert {b.nbytes for b in stored} == {4 * 131_072}


def test_the_tokens_of_a_block_are_counted_with_its_last_ranks_object() -> None:
    ranks = Ranks(2, {"": MODELS["llama3.1-8b"]})
    stored = ranks.blocks(_blocks("a", "b"), "")
    assert [b.tokens for b in stored] == [0, 16, 0, 16]


def test_a_latent_is_stored_once_by_all_ranks() -> None:
    ranks = Ranks(8, {"": MODELS["deepseek-v3"]})
    blocks = _blocks("a", "b")
    assert ranks.blocks(blocks, "") == blocks


def test_more_ranks_than_heads_store_each_head_several_times() -> None:
    ranks = Ranks(16, {"": MODELS["llama3.1-8b"]})  # 8 heads
    whole = Block(content_key("a"), 16, 16 * 131_072)
    stored = ranks.blocks((whole,), "")
    assert {b.nbytes for b in stored} == {whole.nbytes // 8}
    assert sum(b.nbytes for b in stored) == 2 * whole.nbytes


def test_what_is_shared_and_old_is_so_for_all_ranks() -> None:
    asked = _request(_blocks(*"abcde"), shared=1, new_from=3)
    ranked = Ranked(
        _Listed([asked, replace(asked, lookup=Lookup.OPERATION)]),
        Ranks(4, {"": MODELS["llama3.1-8b"]}),
    )
    first, operation = _through(ranked)
    assert (len(first.blocks), first.shared, first.new_from) == (20, 4, 12)
    assert first.context_tokens == asked.context_tokens
    assert operation.blocks == asked.blocks
    assert ranked.describe()["ranks"] == 4


def test_ranks_of_a_mix_are_those_of_each_model() -> None:
    mapping = {
        "run": {"model_mix": {"tiny-1b": 1, "deepseek-v3": 1}, "num_users": 4},
        "tiers": {"tensor_parallel": 4, "num_gpus": 4, "ranks": "all"},
        "semantics": {"preset": "serving"},
    }
    _, load = _load(mapping)
    for request in islice(load.source.plan(), 60):
        split = 4 if request.model == "tiny-1b" else 1
        per_token = MODELS[request.model].bytes_per_token
        assert len(request.blocks) % split == 0
        assert sum(b.nbytes for b in request.blocks) == per_token * sum(
            b.tokens for b in request.blocks
        )


def test_ranks_that_are_not_all_stored_are_a_share_of_each_object() -> None:
    tiers = {"tensor_parallel": 4, "num_gpus": 4}
    run = {"model": "tiny-1b", "num_users": 4}
    _, one = _load({"run": run, "tiers": tiers})
    _, every = _load({"run": run, "tiers": {**tiers, "ranks": "all"}})
    pairs = zip(islice(one.source.plan(), 50), islice(every.source.plan(), 50), strict=True)
    for share, whole in pairs:
        assert 4 * sum(b.nbytes for b in share.blocks) == sum(b.nbytes for b in whole.blocks)
        assert share.context_tokens == whole.context_tokens


def test_warnings_name_what_has_no_effect_or_surprises() -> None:
    tiers = {"tiers.tensor_parallel": 8, "tiers.num_gpus": 8}
    few = config_warnings(load_config(None, {**tiers, "run.model": "tiny-1b"}))
    assert any("more than the 4 KV heads" in each for each in few)
    assert not config_warnings(load_config(None, {**tiers, "run.model": "deepseek-v3"}))
    alone = config_warnings(load_config(None, {"tiers.ranks": "all"}))
    assert any("as tiers.tensor_parallel (--tensor-parallel) is 1" in each for each in alone)


# --- keys ------------------------------------------------------------------------------------

_keys = st.binary(min_size=16, max_size=16)


@given(_keys, _keys, _keys)
def test_salted_keys_differ_where_the_keys_do(one: bytes, other: bytes, salt: bytes) -> None:
    assert (salted_key(one, salt) == salted_key(other, salt)) == (one == other)
    assert salted_key(salted_key(one, salt), salt) == one
    assert len(salted_key(one, salt)) == 16
