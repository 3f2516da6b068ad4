"""System prompts: how long they are, which are popular, and which requests begin with one.

A prompt is stored once and loaded by each request that begins with it. Two limits, the reference's
keys, say which prompts are kept so: one that is shorter than `min_tokens` is not, and of the others
only the `max_entries` most popular are. A prompt that is not kept is computed each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from kv_cache.core.block import Block, content_key
from kv_cache.core.kinds import Lookup
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.popularity import Popularity
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import Mapped

PUBLISHED_TOKENS = (4523, 24_134, 9847, 6201, 3475)
"""Disclosed system prompts of ChatGPT, Claude.ai, Cursor, v0 and Bolt.new in cl100k_base tokens,
April 2026, as listed at tokenpricing.dev/system-prompts-cost."""

_LISTED = 32  # lengths in a result


class Prompt(NamedTuple):
    """`number` is its rank, from 0; `kept` says whether it is stored for others."""

    number: int
    tokens: int
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts by rank, the most popular first. `popularity` is uniform, or zipf: the chance of the
    i-th (from 1) is proportional to 1 / i^zipf_s."""

    lengths: tuple[int, ...]
    popularity: str = "uniform"
    zipf_s: float = 1.0
    min_tokens: int = 0
    max_entries: int | None = None
    _kept: frozenset[int] = field(init=False, repr=False, compare=False)
    _ranks: Popularity = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.lengths, "no prompts are None, not an empty catalogue"
        worth = (n for n, tokens in enumerate(self.lengths) if tokens >= self.min_tokens)
        object.__setattr__(self, "_kept", frozenset(islice(worth, self.max_entries)))
        zipf_s = self.zipf_s if self.popularity == "zipf" else None
        object.__setattr__(self, "_ranks", Popularity(len(self.lengths), zipf_s))

    def draw(self, rng: Random) -> Prompt:
        number = self._ranks.draw(rng)
        return Prompt(number, self.lengths[number], number in self._kept)

    def blocks(self, geometry: Geometry, prompt: Prompt) -> tuple[Block, ...]:
        """Return what of it is stored for others: one object, or its whole blocks; nothing of one
        that is not kept."""
        if not prompt.kept:
            return ()
        if not geometry.block_tokens:
            return (geometry.block(content_key("prompt", prompt.number), prompt.tokens),)
        whole = prompt.tokens // geometry.block_tokens
        return geometry.stream(("prompt", prompt.number), 0, whole)

    def describe(self) -> Mapping[str, Any]:
        kept = [self.lengths[number] for number in sorted(self._kept)]
        zipf = f"zipf {self.zipf_s:g}"
        return {
            "prompts": len(self.lengths),
            "shared_prompts": len(kept),
            "shared_prompt_tokens": kept[:_LISTED],
            "prompt_popularity": zipf if self.popularity == "zipf" else self.popularity,
        }


class Prompted(Mapped):
    """A trace's requests, a share of which begins with a shared prompt: sharing that the trace does
    not have.

    What the trace shares stays shared: which prompt is in front is drawn for a conversation, or
    for the first block where blocks are found by content (so that where all rows begin alike, all
    have the same prompt or none has one). What is behind a prompt attends over it,
    so its blocks are others than without, and others behind each prompt. Only a prompt's whole
    blocks are put in front, and nothing of one that is not kept.
    """

    def __init__(
        self, source: Source, prompts: Prompts, geometry: Geometry, probability: float, seed: Seed
    ) -> None:
        super().__init__(source)
        self._prompts = prompts
        self._geometry = geometry
        self._probability = probability
        self._seed = seed
        self._prompted = 0

    def pop(self, now_ns: int) -> Request:
        original = self._source.pop(now_ns)
        request = self._change(original)
        self._prompted += request is not original
        return request

    def describe(self) -> Mapping[str, Any]:
        return {
            **super().describe(),
            "trace_prompts": True,
            "prompted_requests": self._prompted,
            "prompt_probability": self._probability,
            **self._prompts.describe(),
        }

    def _change(self, request: Request) -> Request:
        if request.lookup not in (Lookup.TURNS, Lookup.CONTENT):
            return request
        seed = self._seed.child(*_what_it_begins_with(request))
        if seed.share() >= self._probability:
            return request
        prompt = self._prompts.draw(seed.child("which").rng())
        front = self._prompts.blocks(self._geometry, prompt)
        if not front:
            return request
        behind = tuple(_behind(prompt, block) for block in request.blocks)
        return replace(
            request,
            blocks=front + behind,
            prompt_tokens=request.prompt_tokens + sum(block.tokens for block in front),
            shared=request.shared + len(front),
            new_from=request.new_from + len(front),
            once=False,
        )


def _what_it_begins_with(request: Request) -> tuple[str, str]:
    if request.lookup is Lookup.CONTENT and request.blocks:
        return "block", request.blocks[0].key.hex()
    return "conversation", request.conversation


def _behind(prompt: Prompt, block: Block) -> Block:
    return block._replace(key=content_key("behind", prompt.number, block.key.hex()))
