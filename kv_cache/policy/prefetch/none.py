"""Nothing is brought up before somebody asks."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.prefetch.base import Prefetch, PrefetchRules


class Nothing(Prefetch):
    def __init__(self, rules: PrefetchRules) -> None:
        """There is nothing to go by."""

    def asked(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
        return ()
