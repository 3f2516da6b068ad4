"""The contracts of what a user may bring along, as checks that a test calls.

    from kv_cache.testing import check_eviction
    def test_my_policy_keeps_the_laws() -> None:
        check_eviction(MyPolicy)

Each check raises an AssertionError that names the law; the laws are numbered in the module of the
seam (`policy/eviction/base.py`, `policy/admission/base.py`, `workload/formats/base.py`,
`tiers/nvme/engines.py`).
"""

from kv_cache.testing.admission import check_admission
from kv_cache.testing.engine import check_engine
from kv_cache.testing.eviction import check_eviction
from kv_cache.testing.trace_format import check_trace_format

__all__ = ["check_admission", "check_engine", "check_eviction", "check_trace_format"]
