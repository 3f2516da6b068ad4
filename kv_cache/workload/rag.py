"""Retrieval-augmented generation: documents that are stored before the run, and requests that read
some of their chunks.

A document is cut into chunks, and a chunk into blocks of the run's geometry, the last of which may
be shorter. After a request, by chance, one more is sent beside it: it reads the chunks that were
retrieved, and answers a question behind them. What of them is of use is `ChunkReuse`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from heapq import nsmallest
from itertools import accumulate, islice
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.block import Block, Key, content_key
from kv_cache.core.kinds import Lookup
from kv_cache.core.model import ModelShape
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.popularity import Popularity
from kv_cache.workload.prepopulated import FILL_SHARE
from kv_cache.workload.quota import Quota
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import SourceWrapper, StoredBlocks

LARGE_HIDDEN_DIM = 8192
LARGE_LAYERS = 64
_LOGICAL, _STORED = attrgetter("nbytes"), attrgetter("stored_bytes")


class ChunkReuse(StrEnum):
    """When the stored state of a chunk is of use."""

    INDEPENDENT = "independent"  # at any place (CacheBlend, arXiv 2405.16444; EPIC)
    PREFIX = "prefix"  # only behind the same chunks in the same order, as any prefix


def is_large(model: ModelShape) -> bool:
    """Return whether a model reads large documents, by the reference's rule."""
    return model.hidden_dim >= LARGE_HIDDEN_DIM or model.num_layers >= LARGE_LAYERS


class Chunk(NamedTuple):
    """A document's `part`-th, from 0."""

    document: int
    part: int
    tokens: int


class LibraryConfig(Struct, frozen=True, kw_only=True):
    """`document_tokens` is an inclusive range. Of more than `max_documents` (0 = no limit) the
    first are gone again when the last are ingested."""

    geometry: Geometry
    documents: int
    document_tokens: tuple[int, int]
    chunk_tokens: int
    max_documents: int = 0


class Library:
    """The documents, the most popular first; each has a length of its own, drawn from the seed."""

    def __init__(self, config: LibraryConfig, seed: Seed) -> None:
        self._config = config
        gone = max(0, config.documents - config.max_documents) if config.max_documents else 0
        self._numbers = range(gone, config.documents)
        low, high = config.document_tokens
        self._tokens = [
            seed.child("document", number).rng().randint(low, high) for number in self._numbers
        ]

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def tokens(self) -> int:
        return sum(self._tokens)

    @property
    def chunk_count(self) -> int:
        return sum(self.chunks_of(place) for place in range(len(self)))

    def chunks_of(self, place: int) -> int:
        """Return how many chunks the document at a place has."""
        return -(-self._tokens[place] // self._config.chunk_tokens)

    def chunk(self, place: int, part: int) -> Chunk:
        size = self._config.chunk_tokens
        return Chunk(self._numbers[place], part, min(size, self._tokens[place] - part * size))

    def chunks(self, place: int) -> Iterator[Chunk]:
        return (self.chunk(place, part) for part in range(self.chunks_of(place)))

    def blocks(self, chunk: Chunk, behind: Key | None = None) -> tuple[Block, ...]:
        """Return a chunk's blocks; with the key of the last block before it, they are others than
        those of the same chunk in front."""
        name: tuple[str | int, ...] = ("document", chunk.document, chunk.part)
        if behind is not None:
            name = ("behind", behind.hex(), *name)
        geometry = self._config.geometry
        return tuple(
            geometry.block(content_key(*name, index), tokens)
            for index, tokens in enumerate(self._cuts(chunk.tokens))
        )

    def nbytes(self, documents: int) -> int:
        """Return the logical bytes of the first documents."""
        return sum(self._bytes(place, _LOGICAL) for place in range(documents))

    def fitting(self, capacity_bytes: int | None) -> int:
        """Return how many documents, from the first, fit into tiers of `capacity_bytes`."""
        if capacity_bytes is None:
            return len(self)
        sizes = accumulate(self._bytes(place, _STORED) for place in range(len(self)))
        return sum(size <= capacity_bytes * FILL_SHARE for size in sizes)

    @property
    def largest_block(self) -> Block:
        """A block of the largest size."""
        tokens = min(self._config.chunk_tokens, max(self._tokens))
        return self._config.geometry.block(b"", self._cuts(tokens)[0])

    def _bytes(self, place: int, size_of: Callable[[Block], int]) -> int:
        size = self._config.chunk_tokens
        whole, rest = divmod(self._tokens[place], size)
        return whole * self._chunk_bytes(size, size_of) + self._chunk_bytes(rest, size_of)

    def _chunk_bytes(self, tokens: int, size_of: Callable[[Block], int]) -> int:
        block = self._config.geometry.block
        return sum(size_of(block(b"", cut)) for cut in self._cuts(tokens))

    def _cuts(self, tokens: int) -> list[int]:
        whole, rest = divmod(tokens, self._config.geometry.block_tokens or max(1, tokens))
        size = self._config.geometry.block_tokens or tokens
        return [size] * whole + ([rest] if rest else [])


class Ingested(StoredBlocks):
    """What is stored of a library before the run: its first `count` documents, each chunk as if it
    were in front."""

    def __init__(self, library: Library, count: int) -> None:
        self._library = library
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Block, ...]]:
        library = self._library
        for place in range(self._count):
            yield tuple(b for chunk in library.chunks(place) for b in library.blocks(chunk))

    @cached_property
    def nbytes(self) -> int:
        """Logical bytes, as they are counted when they are written."""
        return self._library.nbytes(self._count)


class RetrievalConfig(Struct, frozen=True, kw_only=True):
    """After a request, with `probability`, the `top_k` chunks of one document are read. `zipf`: the
    chance of the i-th document and chunk (from 1) is proportional to 1 / i; else all are alike.
    `answer_tokens` is an inclusive range."""

    top_k: int
    probability: float
    zipf: bool
    reuse: ChunkReuse
    question_tokens: int
    answer_tokens: tuple[int, int]


class Retriever:
    """Draws what is retrieved after a request from the seed and that request's name, so that it
    does not matter when."""

    def __init__(
        self, library: Library, config: RetrievalConfig, seed: Seed, ingested: Ingested
    ) -> None:
        self.library = library
        self._config = config
        self._seed = seed
        self.ingested = ingested
        self._popularity = Popularity(len(library), 1.0 if config.zipf else None)

    def counts(self, request: Request) -> int:
        """Return how many requests this one is: itself, and the retrieval beside it."""
        return 1 + self._has_retrieval(request)

    def beside(self, request: Request) -> Request | None:
        """Return the retrieval beside a request, under that one's number; None if none goes."""
        if not self._has_retrieval(request):
            return None
        rng = self._named(request).child("what").rng()
        chunks = self._retrieve(rng)
        config = self._config
        return replace(
            request,
            user=f"{request.user}/rag",
            conversation=f"{request.conversation}/rag_{request.turn}",
            turn=1,
            prompt_tokens=sum(chunk.tokens for chunk in chunks) + config.question_tokens,
            output_tokens=rng.randint(*config.answer_tokens),
            blocks=self._sequence(chunks),
            shared=0,
            new_from=0,
            tail_tokens=config.question_tokens,
            lookup=(
                Lookup.INDEPENDENT if config.reuse is ChunkReuse.INDEPENDENT else Lookup.CONTENT
            ),
            retrieved=True,
            once=False,
        )

    def describe(self) -> Mapping[str, Any]:
        library, config = self.library, self._config
        return {
            "rag_documents": len(library),
            "rag_chunks": library.chunk_count,
            "rag_tokens": library.tokens,
            "rag_bytes": library.nbytes(len(library)),
            "rag_ingested_documents": len(self.ingested),
            "rag_ingested_bytes": self.ingested.nbytes,
            "rag_distribution": "zipfian" if config.zipf else "uniform",
            "rag_reuse": config.reuse.value,
            "rag_top_k": config.top_k,
            "rag_probability": config.probability,
            "rag_question_tokens": config.question_tokens,
        }

    def _named(self, request: Request) -> Seed:
        return self._seed.child(request.user, request.conversation, request.turn)

    def _has_retrieval(self, request: Request) -> bool:
        """Return whether a retrieval goes beside it: never beside an operation of an I/O trace."""
        if request.lookup is Lookup.OPERATION:
            return False
        return self._named(request).share() < self._config.probability

    def _retrieve(self, rng: Random) -> Sequence[Chunk]:
        place = self._popularity.draw(rng)
        parts = distinct(rng, self.library.chunks_of(place), self._config.top_k, self._config.zipf)
        return [self.library.chunk(place, part) for part in parts]

    def _sequence(self, chunks: Sequence[Chunk]) -> tuple[Block, ...]:
        if self._config.reuse is ChunkReuse.INDEPENDENT:
            return tuple(b for chunk in chunks for b in self.library.blocks(chunk))
        blocks: list[Block] = []
        for chunk in chunks:
            blocks += self.library.blocks(chunk, blocks[-1].key if blocks else None)
        return tuple(blocks)


def distinct(rng: Random, count: int, most: int, zipf: bool) -> list[int]:
    """Return at most `most` of `count` places, drawn one after the other, none twice, in that
    order.

    A place that is drawn with weight w is the first of all at the smallest of exponentially
    distributed instants of rate w (Efraimidis and Spirakis, 2006): one draw for each is enough.
    """
    instants = [
        (rng.expovariate(1.0) * (place + 1 if zipf else 1), place) for place in range(count)
    ]
    return [place for _, place in nsmallest(most, instants)]


class WithRetrievals(SourceWrapper):
    """`source`, and beside some of its requests one that retrieves, at the same intended instant.

    Nothing waits for a retrieval: the source learns of its own requests only. `most`: how many
    requests are sent in all (0 = no limit), of which the source counts its own by
    `Retriever.counts`.
    """

    def __init__(self, source: Source, retriever: Retriever, most: int = 0) -> None:
        super().__init__(source)
        self._retriever = retriever
        self._quota = Quota(self._retrievals(most), most) if most else None
        self._popped = 0
        self._beside: Request | None = None
        self._beside_ns: int | None = None  # when it is due
        self._inner: dict[int, int] = {}  # number here -> number there, of those not answered
        self._unanswered = 0  # of those that retrieve

    @property
    def exhausted(self) -> bool:
        return self._source.exhausted and self._beside is None and not self._unanswered

    def next_ns(self) -> int | None:
        return self._source.next_ns() if self._beside is None else self._beside_ns

    def pop(self, now_ns: int) -> Request:
        number, self._popped = self._popped, self._popped + 1
        beside, self._beside = self._beside, None
        if beside is not None:
            self._unanswered += 1
            intended_ns = now_ns if self.on_demand else beside.intended_ns
            return replace(beside, request_id=number, intended_ns=intended_ns)
        self._beside_ns = self._source.next_ns()
        request = self._source.pop(now_ns)
        self._inner[number] = request.request_id
        also = self._retriever.beside(request)
        if also is not None and (self._quota is None or self._quota.take(also.conversation)):
            self._beside = also
        return _numbered(request, number)

    def after(self, request: Request, finished_ns: int) -> None:
        number = self._inner.pop(request.request_id, None)
        if number is None:
            self._unanswered -= 1
            return
        self._source.after(_numbered(request, number), finished_ns)

    def plan(self) -> Iterator[Request]:
        number = 0
        for request in self._source.plan():
            yield _numbered(request, number)
            number += 1
            if (also := self._retriever.beside(request)) is not None:
                yield _numbered(also, number)
                number += 1

    def describe(self) -> Mapping[str, Any]:
        return {**self._source.describe(), **self._retriever.describe()}

    def _retrievals(self, most: int) -> Iterator[Request]:
        """Yield the retrievals among the first requests of the plan, each under a unique name."""
        for request in islice(self.plan(), most):
            if request.retrieved:
                yield replace(request, user=request.conversation)


def _numbered(request: Request, number: int) -> Request:
    return request if request.request_id == number else replace(request, request_id=number)
