"""The eviction seam: one policy object orders the copies of one tier.

A policy is made with the bytes that its tier is filled to at most (None: without limit), and is
told what becomes of the copies. It decides nothing but their order: the manager takes victims from
the front, passing over those that are pinned.

The caller guarantees:
 1. `insert` is called once for a copy before anything else names it, and never again after
    `remove` (copy ids are not reused). Present copies have different keys.
 2. `hit` and `remove` name copies that are present.
 3. `expect` comes before the victims that make room for new content are looked for. It may be
    repeated, and no `insert` need follow.
 4. `remove(evicted=True)` takes a copy that was offered by `victims` since the last `insert` or
    `hit`, in the order in which they were offered; some may be left out. With `evicted=False` the
    copy was lost or is invalid: its content is not remembered.
The policy guarantees:
 5. `victims` yields each present copy exactly once, the best victim first, and changes nothing.
 6. Evicting the first victims in their order leaves the order of the others as it was.
 7. `len` is the number of present copies.
 8. The order depends on the calls alone: no clock, no chance, no order of a hash table.
 9. Whatever the caller does against 4, 5 and 7 hold; only the cost and the choice may suffer.
10. What is remembered of content that is gone is bounded by the capacity, or by the most copies
    that were ever present.
11. Cost per call, and per first victim, is O(1) or O(log n) on average over the calls so far.
12. `shrink` changes what a copy of several places is known by and how large it is; it changes
    turns only where they depend on sizes, or on who follows whom.
The caller stops iterating `victims` before it changes the policy.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, NamedTuple, Protocol

from kv_cache.core.block import Key


class Item(NamedTuple):
    """A new copy. `cost` is what it takes to compute its content again, in tokens. `depth` is its
    place in its sequence (0: the first) and `parent` the content before it; content that is no
    part of a sequence has depth 0 and no parent. A copy of `span` consecutive places, from `depth`
    on, has the key of the last."""

    copy_id: int
    key: Key
    nbytes: int
    cost: int = 0
    depth: int = 0
    parent: Key | None = None
    span: int = 1


class Eviction(Protocol):
    NUMBERS: ClassVar[tuple[tuple[str, int | float], ...]] = ()
    """What may be changed of a policy, by the names of its arguments, and what it is if nobody
    does. (Arguments themselves cannot be asked for where a policy is compiled.)"""

    def expect(self, key: Key) -> None:
        """Room for content that is not here is looked for now. Most policies need not know."""
        return

    def insert(self, item: Item) -> None: ...

    def hit(self, copy_id: int) -> None: ...

    def remove(self, copy_id: int, *, evicted: bool) -> None: ...

    def shrink(self, item: Item) -> None:
        """A present copy of several places has lost its last ones: this is what is left of it.
        Most policies need not know."""
        return

    def victims(self) -> Iterator[int]: ...

    def notes(self) -> Mapping[str, int]:
        """Return what the policy has to say of itself in a result, in counts. Most have nothing."""
        return {}

    def __len__(self) -> int: ...

    def __contains__(self, copy_id: object) -> bool: ...


class HoldsCopies(Eviction):
    """A policy that has each present copy as a key of `present`."""

    def __init__(self, present: Collection[int]) -> None:
        self._present = present

    def __len__(self) -> int:
        return len(self._present)

    def __contains__(self, copy_id: object) -> bool:
        return copy_id in self._present
