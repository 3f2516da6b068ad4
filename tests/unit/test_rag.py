"""Documents, what is retrieved of them, and whole runs with them in virtual time."""

from collections import Counter
from collections.abc import Mapping
from itertools import islice, pairwise
from math import sqrt
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from kv_cache.config.build import Load, build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.shared import check_chunks, ingestion_notes
from kv_cache.core.block import Block
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Cause, Lookup, OpKind, Phase, Qos, Tier
from kv_cache.core.model import MODELS
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import GIB, MIB, NS_PER_S
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.sim.run import simulate
from kv_cache.workload.digest import schedule_digest
from kv_cache.workload.formats.surveying import survey
from kv_cache.workload.formats.trace_files import open_trace
from kv_cache.workload.rag import (
    ChunkReuse,
    Ingested,
    Library,
    LibraryConfig,
    RetrievalConfig,
    Retriever,
    distinct,
    is_large,
)
from kv_cache.workload.sizing import Geometry
from tests.results import numbers

MODEL = MODELS["tiny-1b"]
MOONCAKE = "datasets/mooncake_sample.jsonl"
SMALL: Mapping[str, Any] = {
    "run.model": "tiny-1b",
    "run.seed": 1,
    "run.generation_mode": "none",
    "tiers.gpu_mem_gib": 0,
    "tiers.cpu_mem_gib": 0,
    "rag.enabled": True,
    "rag.request_probability": 0.4,
    "rag.chunk_size_tokens": 128,
    "rag.small_model_doc_tokens_min": 300,
    "rag.small_model_doc_tokens_max": 900,
}


def geometry(block_tokens: int) -> Geometry:
    return Geometry(model=MODEL, tensor_parallel=1, block_tokens=block_tokens)


def library(block_tokens: int = 0, **changes: Any) -> Library:
    made = LibraryConfig(
        geometry=geometry(block_tokens), documents=6, document_tokens=(100, 900), chunk_tokens=120
    )
    return Library(replace(made, **changes), Seed(4))


def retriever(of: Library, reuse: ChunkReuse = ChunkReuse.INDEPENDENT, **changes: Any) -> Retriever:
    config = RetrievalConfig(
        top_k=3, probability=0.3, zipf=True, reuse=reuse, question_tokens=9, answer_tokens=(50, 200)
    )
    return Retriever(of, replace(config, **changes), Seed(4).child("r"), Ingested(of, len(of)))


def question(number: int) -> Request:
    return Request(
        request_id=number,
        intended_ns=7 * number,
        user=f"u{number % 50}",
        conversation=f"c{number % 1000}",
        turn=number // 1000,
        qos=Qos.RESPONSIVE,
        priority=2,
        prompt_tokens=10,
        output_tokens=3,
        blocks=(),
        tail_tokens=10,
        once=True,
    )


def retrieved(what: Retriever, count: int) -> list[Request]:
    found = (what.beside(question(number)) for number in range(count))
    return [request for request in found if request is not None]


def within(seen: int, chance: float, draws: int) -> bool:
    """Five standard deviations of the binomial distribution."""
    return abs(seen - draws * chance) <= 5 * sqrt(draws * chance * (1 - chance)) + 1


# --- documents -----------------------------------------------------------------------------


def test_documents_are_as_long_as_the_range_says_and_the_seed_draws() -> None:
    of = library(documents=400)
    lengths = [sum(chunk.tokens for chunk in of.chunks(place)) for place in range(len(of))]
    assert min(lengths) >= 100
    assert max(lengths) <= 900
    assert sum(lengths) == of.tokens
    assert 450 < of.tokens / 400 < 550
    again, other = library(documents=400), Library(replace_documents(of), Seed(5))
    assert again.tokens == of.tokens != other.tokens


def replace_documents(of: Library) -> LibraryConfig:
    return LibraryConfig(
        geometry=geometry(0), documents=len(of), document_tokens=(100, 900), chunk_tokens=120
    )


@pytest.mark.parametrize("block_tokens", [0, 16, 50, 256])
def test_a_document_is_cut_into_chunks_and_a_chunk_into_blocks(block_tokens: int) -> None:
    of = library(block_tokens)
    keys: set[bytes] = set()
    nbytes = count = 0
    for place, blocks in enumerate(Ingested(of, len(of))):
        chunks = list(of.chunks(place))
        assert len(chunks) == of.chunks_of(place)
        assert all(chunk.tokens == 120 for chunk in chunks[:-1])
        assert 1 <= chunks[-1].tokens <= 120
        assert blocks == tuple(b for chunk in chunks for b in of.blocks(chunk))
        for chunk in chunks:
            tokens = [b.tokens for b in of.blocks(chunk)]
            assert sum(tokens) == chunk.tokens
            size = block_tokens or 120
            assert all(each == min(size, chunk.tokens) for each in tokens[:-1])
        keys |= {b.key for b in blocks}
        count += len(blocks)
        nbytes += sum(b.nbytes for b in blocks)
        assert all(b.nbytes == b.tokens * MODEL.bytes_per_token for b in blocks)
    assert len(keys) == count, "no two blocks are the same"
    assert of.nbytes(len(of)) == Ingested(of, len(of)).nbytes == nbytes
    assert of.largest_block.nbytes == max(
        b.nbytes for blocks in Ingested(of, len(of)) for b in blocks
    )


def test_of_too_many_documents_the_last_are_kept() -> None:
    every, last = library(), library(max_documents=2)
    assert len(last) == 2
    assert list(Ingested(last, 2)) == list(Ingested(every, 6))[4:]
    assert len(library(max_documents=9)) == 6


def test_documents_fit_from_the_most_popular_on() -> None:
    of = library()
    documents = [Ingested(of, count) for count in range(7)]
    sizes = [sum(b.stored_bytes for blocks in each for b in blocks) for each in documents]
    for count in range(7):
        assert of.fitting(round(sizes[count] / 0.9) + 1) == count
    assert of.fitting(None) == 6


@pytest.mark.parametrize(
    ("model", "large"),
    [
        ("llama3.1-8b", False),
        ("qwen3-32b", True),
        ("llama3.1-70b-instruct", True),
        ("deepseek-v3", False),
    ],
)
def test_which_documents_a_model_reads_is_the_references_rule(model: str, large: bool) -> None:
    assert is_large(MODELS[model]) == large


# --- what is retrieved ---------------------------------------------------------------------


def test_a_request_retrieves_with_the_given_chance_whatever_else_is_asked() -> None:
    what, asked = retriever(library()), [question(number) for number in range(4000)]
    found = [what.beside(request) is not None for request in asked]
    assert within(sum(found), 0.3, 4000)
    assert [what.beside(r) is not None for r in reversed(asked)] == found[::-1]
    assert [what.counts(r) - 1 for r in asked] == [int(each) for each in found]
    assert not any(r for r in retrieved(retriever(library(), probability=0.0), 500))
    operation = replace(question(1), lookup=Lookup.OPERATION)
    assert retriever(library(), probability=1.0).beside(operation) is None


def test_what_is_asked_beside_a_request_is_told_as_such() -> None:
    what = retriever(library(), probability=1.0)
    one = question(5)
    also = what.beside(one)
    assert also is not None
    assert also == what.beside(one)
    assert (also.user, also.conversation, also.turn) == ("u5/rag", "c5/rag_0", 1)
    assert (also.intended_ns, also.qos, also.priority) == (one.intended_ns, one.qos, one.priority)
    assert also.retrieved
    assert not also.once
    assert (also.shared, also.new_from, also.tail_tokens) == (0, 0, 9)
    assert also.prompt_tokens == also.context_tokens
    outputs = [r.output_tokens for r in retrieved(what, 1000)]
    assert (min(outputs), max(outputs)) == (50, 200)


@pytest.mark.parametrize("zipf", [True, False])
def test_documents_are_as_popular_as_the_distribution_says(zipf: bool) -> None:
    of = library()
    where = {b.key: n for n, blocks in enumerate(Ingested(of, 6)) for b in blocks}
    requests = retrieved(retriever(of, probability=1.0, zipf=zipf), 6000)
    seen: Counter[int] = Counter()
    for request in requests:
        documents = {where[b.key] for b in request.blocks}
        assert len(documents) == 1, "one document for each"
        seen.update(documents)
    weights = [1 / rank if zipf else 1.0 for rank in range(1, 7)]
    for place, weight in enumerate(weights):
        assert within(seen[place], weight / sum(weights), 6000)


@pytest.mark.parametrize("zipf", [True, False])
def test_chunks_are_drawn_one_after_the_other_and_none_twice(zipf: bool) -> None:
    """P(i, then j) = p_i * p_j / (1 - p_i)."""
    rng, draws, count = Random(2), 20_000, 4
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        found = distinct(rng, count, 3, zipf)
        assert len(set(found)) == 3
        seen[tuple(found[:2])] += 1
    weights = [1 / rank if zipf else 1.0 for rank in range(1, count + 1)]
    chances = [weight / sum(weights) for weight in weights]
    for i, p in enumerate(chances):
        for j, q in enumerate(chances):
            assert within(seen[i, j], p * q / (1 - p) if i != j else 0.0, draws)
    assert sorted(distinct(rng, 2, 5, zipf)) == [0, 1], "of fewer, all"


@pytest.mark.parametrize("block_tokens", [0, 16])
def test_a_chunk_is_of_use_wherever_it_stands_or_only_behind_the_same(block_tokens: int) -> None:
    of = library(block_tokens)
    stored = {b.key for blocks in Ingested(of, 6) for b in blocks}
    anywhere = retrieved(retriever(of, probability=1.0), 300)
    behind = retrieved(retriever(of, ChunkReuse.PREFIX, probability=1.0), 300)
    assert all(b.key in stored for r in anywhere for b in r.blocks)
    assert {r.lookup for r in anywhere} == {Lookup.INDEPENDENT}
    assert {r.lookup for r in behind} == {Lookup.CONTENT}
    sequences: dict[bytes, tuple[Block, ...]] = {}
    for plain, chained in zip(anywhere, behind, strict=True):
        assert [b.tokens for b in plain.blocks] == [b.tokens for b in chained.blocks]
        known = [b.key in stored for b in chained.blocks]
        first = known.index(False) if False in known else len(known)
        assert known == [True] * first + [False] * (len(known) - first)
        assert sum(b.tokens for b in chained.blocks[:first]) <= 120, "the first chunk alone"
        for end, block in enumerate(plain.blocks, 1):
            key = chained.blocks[end - 1].key
            assert sequences.setdefault(key, plain.blocks[:end]) == plain.blocks[:end]
            assert sequences[key][-1] == block


# --- from the options ----------------------------------------------------------------------


def made(more: Mapping[str, Any], trace: str | None = None, salt: str = "") -> tuple[Config, Load]:
    given = {**SMALL, **more} | ({"workload.trace": trace} if trace else {})
    config = load_config(None, given)
    opened = open_trace(trace) if trace else None
    found = survey(opened) if opened else None
    specs = tier_specs(config, config_storage(config))
    room = fillable_bytes(config, specs)
    return config, build_load(config, config.model_shape(), Seed(1), opened, found, room, salt)


def config_storage(config: Config) -> int:
    return round(config.tiers.storage_capacity_gib * GIB) or GIB


def test_the_references_keys_make_the_documents() -> None:
    _, load = made(
        {
            "rag.num_docs": 7,
            "rag.max_documents": 5,
            "rag.chunk_size_tokens": 512,
            "rag.max_chunk_bytes": 200 * MODEL.bytes_per_token + 1,
            "rag.top_k_chunks": 2,
            "rag.retrieval_distribution": "uniform",
        }
    )
    facts = load.source.describe()
    assert load.retriever is not None
    assert (facts["rag_documents"], facts["rag_ingested_documents"]) == (5, 5)
    assert 5 * 300 <= facts["rag_tokens"] <= 5 * 900
    assert facts["rag_bytes"] == facts["rag_tokens"] * MODEL.bytes_per_token
    assert facts["rag_ingested_bytes"] == facts["rag_bytes"]
    assert load.retriever.library.largest_block.tokens == 200, "max_chunk_bytes"
    assert facts["rag_distribution"] == "uniform"
    assert facts["rag_reuse"] == "independent"
    also = [r for r in islice(load.source.plan(), 500) if r.retrieved]
    assert {len(r.blocks) for r in also} == {2}
    _, large = made({"run.model": "llama3.1-70b-instruct", "rag.num_docs": 50})
    assert large.retriever is not None
    assert 50 * 1024 <= large.retriever.library.tokens <= 50 * 4096


def test_a_rate_paces_what_users_ask_and_what_is_retrieved_comes_along() -> None:
    _, load = made({"arrival.request_rate": 10, "arrival.mode": "open"})
    requests = list(islice(load.source.plan(), 300))
    own = [r.intended_ns for r in requests if not r.retrieved]
    assert own == [NS_PER_S // 10 * slot for slot in range(1, len(own) + 1)]
    for before, also in pairwise(requests):
        if also.retrieved:
            assert also.intended_ns == before.intended_ns
            assert also.user == f"{before.user}/rag"


def test_under_other_names_the_documents_are_the_same() -> None:
    _, plain = made({})
    _, other = made({}, salt="precondition")
    assert list(plain.populate) == list(other.populate)
    stored = {b.key for blocks in plain.populate for b in blocks}
    for request in islice(other.source.plan(), 300):
        assert request.user.startswith("precondition/")
        assert all((b.key in stored) == request.retrieved for b in request.blocks)


def test_what_does_not_fit_is_told_and_is_not_ingested() -> None:
    _, load = made({"tiers.storage_capacity_gib": 50 / 1024, "rag.num_docs": 10})
    assert load.retriever is not None
    assert 0 < len(load.populate) < 10
    assert load.retriever.ingested.nbytes <= 45 * MIB
    (said,) = ingestion_notes(load.retriever)
    assert f"{len(load.populate)} of 10 documents" in said
    assert ingestion_notes(made({})[1].retriever) == []
    assert ingestion_notes(None) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rag.num_docs": 0}, ["--rag-num-docs", "--enable-rag", "at least 1"]),
        ({"run.mode": "decode-only"}, ["--enable-rag", "decode-only", "leave"]),
        ({"rag.request_probability": 1.1}, ["rag.request_probability", "0 to 1"]),
        ({"rag.small_model_doc_tokens_min": 901}, ["doc_tokens_min", "901", "doc_tokens_max"]),
        ({"rag.large_model_doc_tokens_max": 9}, ["doc_tokens_min", "1024", "doc_tokens_max"]),
        ({"rag.generation_range": (9, 8)}, ["rag.generation_range", "above the second"]),
        ({"rag.max_chunk_bytes": 1000}, ["rag.max_chunk_bytes", "one token", "raise"]),
        ({"rag.reuse": "none"}, ["rag.reuse", "independent"]),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    more: Mapping[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(more)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_a_chunk_that_no_tier_takes_is_refused() -> None:
    def check(config: Config, load: Load, room: int | None) -> None:
        check_chunks(config, load.retriever, load.populate, tier_specs(config, room))

    config, load = made({"tiers.storage_capacity_gib": 2 / 1024})
    assert not load.populate
    with pytest.raises(ConfigError, match=r"chunk_size_tokens is 128.*3\.0 MiB.*2\.0 MiB"):
        check(config, load, 2 * MIB)
    check(config, load, 3 * MIB)
    check(config, load, None)
    check(config, made({"rag.enabled": False})[1], MIB)
    roomy, load = made({"tiers.cpu_mem_gib": 4 / 1024})
    check(roomy, load, MIB)
    narrow, load = made({"tiers.cpu_mem_gib": 3 / 1024})
    with pytest.raises(ConfigError):  # no object may take more than 95 % of a tier above storage
        check(narrow, load, MIB)


def test_options_of_retrieval_that_is_off_are_told() -> None:
    warnings = config_warnings(load_config(None, {"rag.num_docs": 3}))
    assert any("rag.num_docs" in w and "--enable-rag" in w for w in warnings)


# --- whole runs in virtual time ------------------------------------------------------------


def run(
    more: Mapping[str, Any], trace: str | None = None
) -> tuple[RunOutcome, list[RequestRecord]]:
    config, load = made({"run.num_users": 5, "run.max_requests": 400, **more}, trace)
    records: list[RequestRecord] = []
    outcome = simulate(
        config,
        load,
        tier_specs(config, config_storage(config)),
        1,
        progress=lambda _: None,
        on_record=records.append,
        on_op=lambda _: None,
    )
    return outcome, records


def moved(outcome: RunOutcome, phase: Phase, kind: OpKind, cause: Cause) -> int:
    return sum(
        stats.bytes
        for flow, stats in outcome.recorder.flows.items()
        if (flow.phase, flow.kind, flow.cause, flow.tier) == (phase, kind, cause, Tier.NVME)
    )


@pytest.mark.parametrize("semantics", ["mlperf", "serving"])
@pytest.mark.parametrize("trace", [None, MOONCAKE])
def test_chunks_are_stored_before_the_window_and_loaded_in_it(
    semantics: str, trace: str | None
) -> None:
    more = {
        "semantics.preset": semantics,
        "semantics.prefill_ms_per_token": 0.01,
        "tiers.storage_capacity_gib": 200,
        "workload.trace_speedup": 0 if trace else 1.0,
    }
    outcome, records = run(more, trace)
    reuse = numbers(outcome)["reuse"]
    assert outcome.submitted == len(records) == 400
    populated = moved(outcome, Phase.POPULATE, OpKind.WRITE, Cause.POPULATE)
    assert populated == outcome.workload["rag_ingested_bytes"] > 0
    assert reuse["retrieved_requests"] == sum(r.retrieved for r in records) > 60
    assert reuse["retrieved_hit_ratio"] == 1.0
    assert reuse["offered_block_ratio"] >= reuse["achieved_block_ratio"] > 0
    loaded = sum(r.loaded_bytes for r in records if r.retrieved)
    assert reuse["retrieved_loaded_bytes"] == loaded
    read = moved(outcome, Phase.MEASURE, OpKind.READ, Cause.REUSE)
    assert read + moved(outcome, Phase.MEASURE, OpKind.READ, Cause.DECODE) >= loaded > 0
    assert not any(r.stored_bytes for r in records if r.retrieved), "nothing was missing"
    assert all(r.decoded for r in records if r.retrieved)


@pytest.mark.parametrize("semantics", ["mlperf", "serving"])
def test_reuse_behind_the_same_chunks_finds_less(semantics: str) -> None:
    roomy = {"semantics.preset": semantics, "tiers.storage_capacity_gib": 200}
    found = {
        reuse: numbers(run({**roomy, "rag.reuse": reuse})[0])["reuse"]
        for reuse in ("independent", "prefix")
    }
    asked = [each["retrieved_requests"] for each in found.values()]
    assert asked[0] == asked[1], "the same requests"
    assert found["prefix"]["retrieved_hit_ratio"] < 0.8
    assert found["independent"]["retrieved_hit_ratio"] == 1.0
    for each in found.values():
        assert each["offered_token_ratio"] >= each["achieved_token_ratio"]


def test_what_was_not_ingested_is_computed_once_and_found_then() -> None:
    more = {"tiers.storage_capacity_gib": 40 / 1024, "rag.num_docs": 4, "run.num_users": 1}
    tiny = {
        f"user_templates.{name}.context_range": (16, 32)
        for name in ("chatbot", "coding", "document")
    }
    outcome, records = run({**more, **tiny, "rag.small_model_doc_tokens_min": 700})
    assert outcome.workload["rag_ingested_documents"] < 4
    computed = [r for r in records if r.retrieved and r.stored_bytes]
    assert computed
    assert len(computed) < sum(r.retrieved for r in records)


def test_long_retrievals_are_answered_too() -> None:
    """The reference ends a request of 10000 tokens at prefill; what it retrieves, it generates."""
    more = {
        "rag.chunk_size_tokens": 3000,
        "rag.small_model_doc_tokens_min": 15_000,
        "rag.small_model_doc_tokens_max": 15_000,
        "rag.num_docs": 2,
        "tiers.storage_capacity_gib": 4,
        "run.max_requests": 60,
    }
    _, records = run(more)
    long = [r for r in records if r.retrieved and r.prompt_tokens >= 10_000]
    assert long
    assert all(r.decoded for r in long)


@pytest.mark.parametrize("trace", [None, MOONCAKE])
def test_the_same_seed_is_the_same_schedule(trace: str | None) -> None:
    digests = [
        schedule_digest(made(more, trace)[1].source.plan(), 300).sha256
        for more in ({}, {}, {"rag.reuse": "prefix"}, {"rag.enabled": False})
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
