"""The next turn of a conversation begins with all that this one has: its blocks are wanted again,
from the first on, as soon as the user has thought. Nothing is remembered.

cklxx/kvcache-sim's SessionAwarePrefetch takes what followed a block in the last three requests of
its session. A prompt that grows has nothing behind its last block, and what is behind the others is
asked for with them, so that in its default runs it fetches nothing."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.prefetch.base import Prefetch, PrefetchRules


class NextInSession(Prefetch):
    def __init__(self, rules: PrefetchRules) -> None:
        """How much of the answer is fetched is the caller's to bound."""

    def wanted_after(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
        return tuple(dict.fromkeys(keys))
