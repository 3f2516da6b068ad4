"""What all tests have in common: no test fails because a machine was slow (timings are figures, and
stand in `benchmarks/`)."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
