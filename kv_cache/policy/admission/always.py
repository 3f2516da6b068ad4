"""Everything is admitted: a cache without an admission policy."""

from collections.abc import Sequence

from kv_cache.core.block import Key
from kv_cache.policy.admission.base import Admission, AdmissionRules, Candidate


class Always(Admission):
    def __init__(self, rules: AdmissionRules) -> None:
        """There is nothing to go by."""

    def refusal(self, candidate: Candidate, rivals: Sequence[Key] = ()) -> str | None:
        return None
