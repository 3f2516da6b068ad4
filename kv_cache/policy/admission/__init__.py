"""The table of admission policies. A new one is one file and one line here."""

from collections.abc import Callable

from kv_cache.extensions import Catalogue, makes
from kv_cache.policy.admission.always import Always
from kv_cache.policy.admission.base import Admission, AdmissionRules, Candidate
from kv_cache.policy.admission.depth import Depth
from kv_cache.policy.admission.frequency import Frequency
from kv_cache.policy.admission.second_hit import SecondHit
from kv_cache.policy.admission.size import Size

MakeAdmission = Callable[[AdmissionRules], Admission]

ADMISSION: Catalogue[MakeAdmission] = Catalogue(
    "kv_cache.admission",
    {
        "always": Always,
        "size": Size,
        "second-hit": SecondHit,
        "frequency": Frequency,
        "depth": Depth,
    },
    makes("refusal"),
)

__all__ = ["ADMISSION", "Admission", "AdmissionRules", "Candidate", "MakeAdmission"]
