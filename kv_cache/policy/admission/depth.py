"""Selective write by depth: only the first blocks of a sequence, which more requests begin with
than go on to what follows (as `selective_write` in cklxx/kvcache-sim, which keeps depths 0 to 3).
O(1), and nothing is remembered.

Content that is no part of a sequence has depth 0 and is admitted."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.admission.base import Admission, AdmissionRules, Candidate

TOO_DEEP = "too-deep"


class Depth(Admission):
    REASONS = (TOO_DEEP,)
    NUMBERS = ("max_depth",)

    def __init__(self, rules: AdmissionRules) -> None:
        self._most = rules.max_depth

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        return TOO_DEEP if candidate.depth >= self._most else None
