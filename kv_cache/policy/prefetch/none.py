"""Bring nothing up before a request asks for it."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.prefetch.base import Prefetch, PrefetchRules


class Nothing(Prefetch):
    def __init__(self, rules: PrefetchRules) -> None:
        """There is nothing to go by."""

    def wanted_after(self, conversation: str, keys: Sequence[Key]) -> Sequence[Key]:
        return ()
