"""TinyLFU (Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
Transactions on Storage 13(4), 2017): content is admitted when it was used more often than what
would have to leave for it. Uses are counted of what is here and of what is not, in a sketch of
bounded memory whose counts sink.

Where several would leave, the candidate must beat the sum of their counts (Einziger et al.,
"Lightweight Robust Size Aware Cache Management", ACM Transactions on Storage 18(3), 2022, as AV).
Where none would, `floor` uses are enough: a tier on a device that wears need not take everything
because it is empty. A use is a hit, or being computed. O(1) a call, and O(rivals)."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.admission.base import Admission, AdmissionRules, Candidate
from kv_cache.policy.admission.sketch import Sketch

INFREQUENT = "infrequent"


class Frequency(Admission):
    REASONS = (INFREQUENT,)
    NUMBERS = ("memory", "floor")
    compares = True
    counts = True

    def __init__(self, rules: AdmissionRules) -> None:
        self.sketch = Sketch(rules.memory)
        self._floor = rules.floor

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        uses = self.sketch.count(candidate.key) + candidate.fresh  # this one too
        if not rivals:
            return None if uses >= self._floor else INFREQUENT
        return None if uses > sum(map(self.sketch.count, rivals)) else INFREQUENT

    def used(self, key: Key) -> None:
        self.sketch.add(key)
