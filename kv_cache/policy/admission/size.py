"""No object above a bound: a large one would push out many small ones, each of which may save a
request as much (Abrams et al., "Caching Proxies: Limitations and Potentials", WWW 1995, as
LRU-Threshold). O(1), and nothing is remembered."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.admission.base import Admission, AdmissionRules, Candidate

TOO_LARGE = "too-large"


class Size(Admission):
    REASONS = (TOO_LARGE,)
    NUMBERS = ("max_bytes",)

    def __init__(self, rules: AdmissionRules) -> None:
        self._most = rules.max_bytes

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        return TOO_LARGE if candidate.nbytes > self._most else None
