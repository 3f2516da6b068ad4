"""Which class a request is of: drawn for its session, whatever is asked and whenever."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from kv_cache.config.scenario import Scenario
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.sources.draws import DrawStream

_BULK = 1024


class ClassDraws:
    """The class of each session by its number, as the place of its share."""

    def __init__(self, shares: Sequence[float], seed: Seed) -> None:
        self._edges = np.array(tuple(accumulate(shares)))
        self._draws = DrawStream(seed)
        self._kinds: list[int] = []

    def of(self, session: int) -> int:
        """Return the place of the class of a session."""
        while session >= len(self._kinds):
            points = self._draws.take(_BULK) * self._edges[-1]
            self._kinds += np.searchsorted(self._edges, points, side="right").tolist()
        return self._kinds[session]


def class_draws(scenario: Scenario) -> ClassDraws | None:
    """Build the draws of a scenario; None if it has no classes."""
    shares = [each.share for each in scenario.classes.values()]
    return ClassDraws(shares, Seed(scenario.seed).child("classes")) if shares else None
