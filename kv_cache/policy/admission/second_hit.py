"""Cache on second hit (Maggs and Sitaraman, "Algorithmic Nuggets in Content Delivery", ACM CCR
45(3), 2015): most content is stored once and never asked for again, so it is admitted when it is
offered for the second time.

That paper remembers what was offered in a Bloom filter, which errs; here keys are remembered
exactly, the `memory` last ones that were turned away. Admitted content is forgotten: once it has
left it is new again. O(1) a call."""

from collections import OrderedDict
from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.admission.base import Admission, AdmissionRules, Candidate

FIRST_TIME = "first-time"


class SecondHit(Admission):
    REASONS = (FIRST_TIME,)
    NUMBERS = ("memory",)

    def __init__(self, rules: AdmissionRules) -> None:
        self._most = rules.memory
        self._seen: OrderedDict[Key, None] = OrderedDict()

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        return None if candidate.key in self._seen else FIRST_TIME

    def offered(self, candidate: Candidate, *, admitted: bool) -> None:
        self._seen.pop(candidate.key, None)
        if admitted:
            return
        self._seen[candidate.key] = None
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def __len__(self) -> int:
        """Contents that are remembered."""
        return len(self._seen)
