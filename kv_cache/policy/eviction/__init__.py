"""The table of eviction policies. A new one is one file and one line here."""

from collections.abc import Callable, Mapping

from kv_cache.policy.eviction.base import Eviction
from kv_cache.policy.eviction.fifo import Fifo
from kv_cache.policy.eviction.lru import Lru

EVICTION: Mapping[str, Callable[[], Eviction]] = {
    "lru": Lru,
    "fifo": Fifo,
}

__all__ = ["EVICTION", "Eviction"]
