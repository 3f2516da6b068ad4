"""How many examples a law is tried with: those of `make check`, or ten times as many where other
examples are explored (`make nightly`)."""

from hypothesis import settings

_FACTOR = 10 if settings.get_current_profile_name() == "explore" else 1


def examples(count: int) -> settings:
    return settings(max_examples=count * _FACTOR, deadline=None)
