"""From the options to what many requests share: system prompts, and documents for retrieval."""

from collections.abc import Callable, Collection
from itertools import cycle, islice

from msgspec.structs import replace

from kv_cache.cache.limits import TierSpec
from kv_cache.config.models import build_geometry
from kv_cache.config.root import Config
from kv_cache.core.block import Block
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import RunMode
from kv_cache.core.model import ModelShape
from kv_cache.core.seed import Seed
from kv_cache.core.units import MIB, PAGE_BYTES, round_up
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.prompts import PUBLISHED_TOKENS, Prompts
from kv_cache.workload.rag import (
    ChunkReuse,
    Ingested,
    Library,
    LibraryConfig,
    RetrievalConfig,
    Retriever,
    is_large,
)
from kv_cache.workload.sizing import Geometry


def build_prompts(config: Config) -> Prompts | None:
    """The system prompts that conversations may begin with, if any may."""
    section = config.prefix_cache
    if not config.workload.prefix_caching:
        return None
    lengths = section.prompt_tokens if section.lengths == "listed" else PUBLISHED_TOKENS
    return Prompts(
        lengths=tuple(islice(cycle(lengths), section.prompts or len(lengths))),
        popularity=section.popularity,
        zipf_s=section.zipf_s,
        min_tokens=section.min_prefix_length,
        max_entries=section.max_prefix_entries,
    )


def build_retriever(
    config: Config, geometry: Geometry, seed: Seed, capacity_bytes: int | None
) -> Retriever | None:
    """Documents, and what is retrieved of them; None without RAG. As many are ingested as fit into
    `capacity_bytes`."""
    rag = config.rag
    if not rag.enabled:
        return None
    large = is_large(geometry.model)
    library = Library(
        LibraryConfig(
            geometry=geometry,
            documents=rag.num_docs,
            document_tokens=(
                (rag.large_model_doc_tokens_min, rag.large_model_doc_tokens_max)
                if large
                else (rag.small_model_doc_tokens_min, rag.small_model_doc_tokens_max)
            ),
            chunk_tokens=_chunk_tokens(config, geometry),
            max_documents=rag.max_documents,
        ),
        seed.child("documents"),
    )
    retrieval = RetrievalConfig(
        top_k=rag.top_k_chunks,
        probability=rag.request_probability,
        zipf=rag.retrieval_distribution == "zipfian",
        reuse=ChunkReuse(rag.reuse),
        question_tokens=rag.question_tokens,
        answer_tokens=rag.generation_range,
    )
    ingested = Ingested(library, library.fitting(capacity_bytes))
    return Retriever(library, retrieval, seed.child("retrieval"), ingested)


def _chunk_tokens(config: Config, geometry: Geometry) -> int:
    """Of the whole model, so that chunks are the same however many ranks share them."""
    rag, model = config.rag, geometry.model
    most = rag.max_chunk_bytes // model.bytes_per_token
    if not most:
        raise ConfigError(
            f"rag.max_chunk_bytes is {rag.max_chunk_bytes}, less than the {model.bytes_per_token} "
            f"bytes of one token of {model.name}; raise it"
        )
    return min(rag.chunk_size_tokens, most)


def check_chunks(
    config: Config,
    retriever: Retriever | None,
    stored: Collection[tuple[Block, ...]],
    specs: tuple[TierSpec, ...],
) -> None:
    """Raise ConfigError where a chunk's objects, such as are `stored` before the run, are larger
    than any tier can take."""
    most = largest_taken(config, specs)
    if retriever is None or most is None:
        return
    block = retriever.library.largest_block
    sizes = (b.stored_bytes for blocks in stored for b in blocks)
    largest = max(sizes, default=block.stored_bytes)
    if largest > most:
        raise ConfigError(
            f"rag.chunk_size_tokens is {config.rag.chunk_size_tokens}: an object of {block.tokens} "
            f"tokens is {largest / MIB:.1f} MiB, and no tier takes more than "
            f"{most / MIB:.1f} MiB; lower it or rag.max_chunk_bytes, set --block-tokens, or raise "
            "--storage-capacity-gb"
        )


def largest_taken(config: Config, specs: tuple[TierSpec, ...]) -> int | None:
    """Bytes of the largest object that any tier takes; None where there is no limit."""
    *upper, last = specs
    if last.capacity_bytes is None:
        return None
    share = config.cache_rules().large_entry_limit_ratio
    return max([last.capacity_bytes, *(int((s.capacity_bytes or 0) * share) for s in upper)])


def beyond_all_tiers(
    config: Config, model: ModelShape, specs: tuple[TierSpec, ...]
) -> Callable[[TraceRow], str | None] | None:
    """Why a row of a trace cannot be served: an object that it needs fits no tier. None where
    nothing is too large, or where the objects are not the trace's (decode-only)."""
    most = largest_taken(config, specs)
    if most is None or config.mode is RunMode.DECODE_ONLY:
        return None

    def too_large(row: TraceRow) -> str | None:
        nbytes = _largest_of(config, model, row)
        if nbytes <= most:
            return None
        return (
            f"expected objects of at most {most / MIB:.1f} MiB, the most that a tier takes "
            f"(--storage-capacity-gb), found one of {nbytes / MIB:.1f} MiB"
        )

    return too_large


def _largest_of(config: Config, model: ModelShape, row: TraceRow) -> int:
    if row.request is not None:
        return max((block.stored_bytes for block in row.request.blocks), default=0)
    if row.nbytes:
        return round_up(row.nbytes, PAGE_BYTES)
    size = config.resolved_block_tokens(row.block_tokens)
    if not size and row.session is not None and row.hash_ids is None and not row.adds:
        return 0  # its object is what it adds to a history, which the row alone does not say
    whole = row.prompt_tokens if row.hash_ids is None else row.block_tokens * len(row.hash_ids)
    whole_model = build_geometry(config, model, row.block_tokens)
    geometry = replace(whole_model, tensor_parallel=config.tiers.tensor_parallel)
    return geometry.block(b"", size or whole).stored_bytes


def ingestion_notes(retriever: Retriever | None) -> list[str]:
    """What does not fit before the run."""
    if retriever is None:
        return []
    count, fitting = len(retriever.library), len(retriever.ingested)
    if fitting == count:
        return []
    note = f"{fitting} of {count} documents are ingested, the most popular: the tiers take no more"
    return [f"{note}. What is retrieved of the others is computed"]
