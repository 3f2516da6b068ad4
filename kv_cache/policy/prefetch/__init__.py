"""The table of prefetch policies. A new one is one file and one line here."""

from collections.abc import Callable

from kv_cache.extensions import Catalogue, makes
from kv_cache.policy.prefetch.base import Prefetch, PrefetchRules
from kv_cache.policy.prefetch.next_in_session import NextInSession
from kv_cache.policy.prefetch.none import Nothing
from kv_cache.policy.prefetch.successor import Successor

MakePrefetch = Callable[[PrefetchRules], Prefetch]

PREFETCH: Catalogue[MakePrefetch] = Catalogue(
    "kv_cache.prefetch",
    {
        "none": Nothing,
        "next-in-session": NextInSession,
        "successor": Successor,
    },
    makes("wanted_after"),
)

__all__ = ["PREFETCH", "MakePrefetch", "Prefetch", "PrefetchRules"]
