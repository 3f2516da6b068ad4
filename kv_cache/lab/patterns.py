"""Eight synthetic patterns of access over numbered pages, each drawn from a seed.

They are those of the public policy harness kv-hierarchy-lab, by its description and with its
numbers of pages and accesses (its slip in chat_continuation is mended): patterns that please or
hurt one kind of policy each. They say
nothing about how often a pattern happens; for that there are traces.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np

from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses, Ints, accesses_of

Pages = Iterator[int]
"""Pages without end."""
Chance = Callable[[], float]
"""A number from 0 to 1 (excluded), another one each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """`pages` and `length` are what is taken by default; fewer than `least` pages
    are not this pattern."""

    about: str
    pages: int
    length: int
    least: int
    draw: Callable[[Chance, int], Pages]


def drawn(
    pattern: Pattern, seed: Seed, *, pages: int, length: int, nbytes: int, spread: float = 0.0
) -> Accesses:
    """`length` accesses over so many pages of `nbytes` bytes, more or less by up to the share
    `spread` (below 1), which is drawn for each page."""
    chance = seed.child("sizes").rng().random
    sizes = [max(1, round(nbytes * (1 + spread * (2 * chance() - 1)))) for _ in range(pages)]
    blocks = pattern.draw(seed.child("accesses").rng().random, pages)
    block_sizes: Ints = np.array(sizes, np.int64)
    return accesses_of(islice(blocks, length), block_sizes)


def _below(chance: Chance, count: int) -> int:
    return int(chance() * count)


def _some(chance: Chance, first: int, end: int, count: int) -> list[int]:
    """Different pages from `first` to `end`, in the order in which they are drawn."""
    moved: dict[int, int] = {}  # Fisher and Yates, on places that only seem to be swapped
    some = []
    for left in range(end, max(first, end - count), -1):
        at = first + _below(chance, left - first)
        some.append(moved.get(at, at))
        moved[at] = moved.get(left - 1, left - 1)
    return some


def _chat_continuation(chance: Chance, pages: int) -> Pages:
    """Return the pages of a conversation, of which the last eight of twelve are in use; every 17
    accesses a page that is none of them takes the place of one in use. (There any of the twelve was
    replaced: one time in three by nothing that was ever asked for.)"""
    near = list(range(12))
    while True:
        yield from (near[4 + _below(chance, 8)] for _ in range(17))
        page = near[0]
        while page in near:
            page = _below(chance, pages)
        near[4 + _below(chance, 8)] = page


def _rag_burst(chance: Chance, pages: int) -> Pages:
    """14 accesses to 16 hot pages, then 6 different retrieved ones."""
    while True:
        yield from (_below(chance, 16) for _ in range(14))
        yield from _some(chance, 16, pages, 6)


def _periodic_reuse(_: Chance, pages: int) -> Pages:
    """Return the same 9 pages again and again, 3 apart."""
    while True:
        yield from (3 * step % pages for step in range(9))


def _long_tail_mix(chance: Chance, pages: int) -> Pages:
    """Seven of ten accesses go to 10 hot pages, the others to a tail with chances of 1/rank."""
    heights = list(accumulate(1 / (rank + 1) for rank in range(pages - 10)))
    while True:
        if chance() < 0.7:
            yield _below(chance, 10)
        else:
            at = int(np.searchsorted(heights, chance() * heights[-1], side="right"))
            yield 10 + min(at, pages - 11)


def _prefetch_friendly(_: Chance, pages: int) -> Pages:
    """Return all pages in a circle."""
    while True:
        yield from range(pages)


def _adversarial_prefetch(chance: Chance, pages: int) -> Pages:
    """Any page of the lower half and any of the upper half by turns."""
    half = pages // 2
    while True:
        yield _below(chance, half)
        yield half + _below(chance, pages - half)


def _adversarial_burst(chance: Chance, pages: int) -> Pages:
    """12 pages of the first third, 12 of the second, the first 6 again, 12 of the last."""
    one, two = pages // 3, 2 * pages // 3
    while True:
        early = _some(chance, 0, one, 12)
        yield from early
        yield from _some(chance, one, two, 12)
        yield from early[: max(1, min(6, len(early)))]
        yield from _some(chance, two, pages, 12)


def _mixed_locality(chance: Chance, pages: int) -> Pages:
    """60 accesses to 12 hot pages, 60 to 20 others, 60 in steps of 5 over all; and again."""
    step = 0
    while True:
        phase = step // 60 % 3
        if phase == 2:
            yield 5 * step % pages
        else:
            yield _below(chance, 12) if phase == 0 else 12 + _below(chance, min(20, pages - 12))
        step += 1


PATTERNS: Mapping[str, Pattern] = {
    "chat_continuation": Pattern(
        about="a conversation that moves on slowly",
        pages=64, length=256, least=13, draw=_chat_continuation,
    ),
    "rag_burst": Pattern(
        about="a hot set, and bursts of retrieved pages",
        pages=96, length=320, least=22, draw=_rag_burst,
    ),
    "periodic_reuse": Pattern(
        about="nine pages in a circle", pages=80, length=320, least=1, draw=_periodic_reuse
    ),
    "long_tail_mix": Pattern(
        about="a hot set, and a long tail",
        pages=128, length=400, least=11, draw=_long_tail_mix,
    ),
    "prefetch_friendly": Pattern(
        about="all pages in a circle", pages=48, length=240, least=1, draw=_prefetch_friendly
    ),
    "adversarial_prefetch": Pattern(
        about="two halves by turns, at random",
        pages=64, length=256, least=2, draw=_adversarial_prefetch,
    ),
    "adversarial_burst": Pattern(
        about="bursts that come back just after they were pushed out",
        pages=96, length=320, least=3, draw=_adversarial_burst,
    ),
    "mixed_locality": Pattern(
        about="phases of a hot set, a tail and a stride",
        pages=112, length=360, least=13, draw=_mixed_locality,
    ),
}  # fmt: skip
