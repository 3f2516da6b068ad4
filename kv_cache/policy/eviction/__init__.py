"""The table of eviction policies. A new one is one file and one line here (and in `MODULES` of
`kv_cache/app/compiled.py`, since one that is compiled cannot be inherited from in Python)."""

from collections.abc import Callable

from kv_cache.extensions import Catalogue, makes
from kv_cache.policy.eviction.arc import Arc
from kv_cache.policy.eviction.base import Eviction, Item
from kv_cache.policy.eviction.clock import Clock
from kv_cache.policy.eviction.cost_aware import CostAware
from kv_cache.policy.eviction.fifo import Fifo
from kv_cache.policy.eviction.gdsf import Gdsf
from kv_cache.policy.eviction.heavy_hitter import HeavyHitter
from kv_cache.policy.eviction.importance import Importance
from kv_cache.policy.eviction.leaf_first import LeafFirst
from kv_cache.policy.eviction.learned import Learned
from kv_cache.policy.eviction.lfu import Lfu
from kv_cache.policy.eviction.lru import Lru
from kv_cache.policy.eviction.mq import Mq
from kv_cache.policy.eviction.regret_aware import RegretAware
from kv_cache.policy.eviction.s3fifo import S3Fifo
from kv_cache.policy.eviction.sieve import Sieve
from kv_cache.policy.eviction.sliding_window import SlidingWindow
from kv_cache.policy.eviction.windowed import Windowed

MakeEviction = Callable[[int | None], Eviction]
"""Takes the bytes that the tier is filled to at most; None: without limit."""

EVICTION: Catalogue[MakeEviction] = Catalogue(
    "kv_cache.eviction",
    {
        "lru": Lru,
        "fifo": Fifo,
        "lfu": Lfu,
        "heavy-hitter": HeavyHitter,
        "clock": Clock,
        "windowed": Windowed,
        "arc": Arc,
        "s3-fifo": S3Fifo,
        "sieve": Sieve,
        "mq": Mq,
        "gdsf": Gdsf,
        "cost-aware": CostAware,
        "regret-aware": RegretAware,
        "importance": Importance,
        "sliding-window": SlidingWindow,
        "leaf-first": LeafFirst,
        "learned": Learned,
    },
    makes("insert", "hit", "remove", "victims"),
)

__all__ = ["EVICTION", "Eviction", "Item", "MakeEviction"]
