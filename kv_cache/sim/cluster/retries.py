"""Other instances for a request that the one it was routed to cannot serve.

It asks the least loaded, each once, and counts who was asked and who took it. It moves nothing.
"""

from kv_cache.sim.cluster.fleet import PrefillSide
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.outcome import Requests
from kv_cache.sim.cluster.roster import Roster


class Retries:
    """`scheduler.max_retries` for each request, whatever it is that fails."""

    def __init__(self, side: PrefillSide, roster: Roster, requests: Requests) -> None:
        self._side = side
        self._roster = roster
        self._requests = requests

    def another(self, flight: Flight, instance: int) -> int:
        """Return an instance for a flight that `instance` cannot serve; -1 if none has room, or all
        its retries are spent."""
        rules = self._roster.rules
        if flight.retries >= rules.max_retries:
            return -1
        for number in self._side.loads.least(rules.max_retries + 1):
            if number == instance or not self._fits(number, flight):
                continue
            flight.retries += 1
            self._requests.retries += 1
            if not rules.max_queue or self._waiting(number) < rules.max_queue:
                self._requests.retries_taken += 1
                return number
            if flight.retries == rules.max_retries:
                break
        return -1

    def _fits(self, number: int, flight: Flight) -> bool:
        """Whether its memory holds the flight, and what has to be computed again of it."""
        tokens = flight.request.prompt_tokens + flight.generated
        blocks = -(-tokens // self._roster.rules.block_tokens)
        return self._side.fits(number, flight) and blocks <= self._roster.capacity_of(number)

    def _waiting(self, number: int) -> int:
        there = self._roster.used.get(number)
        return 0 if there is None else len(there.waiting)
