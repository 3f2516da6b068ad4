"""The prefetch seam: one policy object says, as requests come, which content will be wanted next.

It knows only what was asked. Whether that content is there, in which tier, and whether there is
room for it further up, is others' to find out.

The caller guarantees:
 1. `wanted_after` is called once for each request, in the order in which requests begin, with the
    keys of its sequence in their order.
The policy guarantees:
 2. Each key of the answer was asked for before, or is asked for now: it never sees the future.
 3. A key comes once in an answer, the most wanted first; no more than `PrefetchRules.most` of them
    are not asked for now.
 4. The answer depends on the calls so far alone: no clock, no chance, no order of a hash table.
 5. What is remembered is bounded by `memory` and `most`, whatever is called.
 6. A call costs O(keys + most) on average over the calls so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_cache.core.block import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchRules:
    """The settings of prefetch policies; each reads its own."""

    most: int = 16  # keys in an answer, those that are asked for now apart
    confidence: int = 2  # successor: how often one must have followed the other
    memory: int = 16_384  # successor: conversations, and sequences, that are remembered


class Prefetch(Protocol):
    def wanted_after(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
        """Return what will be wanted after a request of this conversation that asks for `keys`."""
        ...
