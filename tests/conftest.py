"""What all tests have in common: no test fails because a machine was slow (timings are figures, and
stand in `benchmarks/`), and simulations in this process run as Python, whatever was compiled."""

from hypothesis import settings

import kv_cache.sim.cluster.cluster  # noqa: F401

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
