"""What is drawn for a request beside what it asks: its class, and how long its answer is expected
to be. It is the same whatever is asked, and whenever."""

from collections.abc import Sequence
from itertools import accumulate
from math import exp, log1p, sqrt
from statistics import NormalDist

import numpy as np

from kv_cache.config.scenario import Scenario
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.sources.draws import DrawStream

_BULK = 1024
_LEAST = 2.0**-54  # half of the smallest draw, in place of 0


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


class LengthErrors:
    """A lognormal factor for each request by its number, with mean 1 and this coefficient of
    variation."""

    def __init__(self, cv: float, seed: Seed) -> None:
        self._sigma = sqrt(log1p(cv * cv))
        self._draws = DrawStream(seed)
        self._factors: list[float] = []

    def of(self, number: int) -> float:
        """Return the factor of a request."""
        normal, sigma = NormalDist(), self._sigma
        while number >= len(self._factors):
            self._factors += [
                exp(sigma * normal.inv_cdf(max(point, _LEAST)) - sigma * sigma / 2)
                for point in self._draws.take(_BULK).tolist()
            ]
        return self._factors[number]


class FlightMarks:
    """The draws of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        seed, shares = Seed(scenario.seed), [each.share for each in scenario.classes.values()]
        cv = scenario.scheduler.length_error_cv
        self._classes = ClassDraws(shares, seed.child("classes")) if shares else None
        self._errors = LengthErrors(cv, seed.child("length-errors")) if cv else None
        self.any = bool(shares or cv)

    def mark(self, flight: Flight) -> None:
        """Give a flight its class and its expected answer."""
        request = flight.request
        if self._classes is not None:
            flight.kind = self._classes.of(request.session)
        if self._errors is not None:
            expected = request.output_tokens * self._errors.of(request.number)
            flight.expected = max(1, round(expected))
