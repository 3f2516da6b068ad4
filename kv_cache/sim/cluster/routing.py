"""Who prefills a request and who decodes it, and what routers expect of each until it is over.

It chooses and keeps the estimates that choices go by; it moves nothing, and nobody waits here.
"""

from collections.abc import Iterator

from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.fleet import DecodeSide, PrefillSide
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.outcome import Requests
from kv_cache.sim.cluster.roster import Roster
from kv_cache.sim.cluster.router import Router
from kv_cache.sim.cluster.waiting_queue import is_full


class Routing:
    """The two choices of a cluster, each with a router and what that may know."""

    def __init__(self, fabric: Fabric, roster: Roster, requests: Requests) -> None:
        section, seed = fabric.scenario.router, Seed(fabric.scenario.seed)
        prefill = [i for i, role in enumerate(roster.roles) if role != "decode"]
        decode = [i for i, role in enumerate(roster.roles) if role != "prefill"]
        self._roster, self._requests = roster, requests
        self._prefill_side = PrefillSide(fabric, roster, prefill)
        self._prefill_router = Router(
            section.kind, section, self._prefill_side, seed.child("router")
        )
        loads = self._prefill_side.loads if decode == prefill else None
        self._decode_side = DecodeSide(fabric, roster, decode, loads)
        self._decode_router = Router(
            section.decode, section, self._decode_side, seed.child("decode-router")
        )
        self._anywhere = section.decode == "cheapest"

    # --- who prefills ----------------------------------------------------------------------

    def choose(self, flight: Flight) -> int:
        """Return the instance that computes a prompt."""
        return self._prefill_router.choose(flight)

    def place_for(self, flight: Flight) -> int:
        """Return an instance that has a place for a flight; -1 if none has."""
        return self._prefill_side.place_for(flight, self._prefill_router.choose(flight))

    def has_place(self, instance: int, flight: Flight) -> bool:
        pausing = self._roster.rules.pause_lower
        return self._prefill_side.has_place(instance, flight, pausing=pausing)

    def another(self, flight: Flight, instance: int) -> int:
        """Return another instance for a flight that this one cannot serve, of the least loaded,
        each asked once and counted; -1 if none has room, or all its retries are spent."""
        rules, requests = self._roster.rules, self._requests
        if flight.retries >= rules.max_retries:
            return -1
        for number in self._prefill_side.loads.least(rules.max_retries + 1):
            if number == instance or not self._fits_again(number, flight):
                continue
            flight.retries += 1
            requests.retries += 1
            there = self._roster.used.get(number)
            if there is None or not is_full(there.waiting, flight, rules):
                requests.retries_taken += 1
                return number
            if flight.retries == rules.max_retries:
                break
        return -1

    def _fits_again(self, instance: int, flight: Flight) -> bool:
        """Whether its memory holds a flight, and what has to be computed again of it."""
        tokens = flight.request.prompt_tokens + flight.generated
        blocks = -(-tokens // self._roster.rules.block_tokens)
        fits = self._prefill_side.fits(instance, flight)
        return fits and blocks <= self._roster.capacity_of(instance)

    def expect(self, flight: Flight) -> None:
        """Add the estimated cost of a flight to the load of its home."""
        number, request = flight.home, flight.request
        compute = self._roster.compute_of(number)
        flight.work_at = number
        flight.prefill_work = compute.prefill_ns(request.prompt_tokens, 0)
        if not self._roster.rules.separated:
            flight.answer_work = int(flight.expected * compute.token_ns)
        self._prefill_side.loads.add(number, flight.prefill_work, flight.answer_work)
        self._prefill_router.count(number, 1)

    def prefill_left(self, flight: Flight, left: int) -> None:
        """Update the estimated prefill that a flight still needs."""
        change = left - flight.prefill_work
        if change:
            flight.prefill_work = left
            self._prefill_side.loads.add(flight.work_at, change, 0)

    def leave_prefill(self, flight: Flight) -> None:
        """Take a flight out of what is expected where it prefilled."""
        if flight.work_at >= 0:
            loads = self._prefill_side.loads
            loads.add(flight.work_at, -flight.prefill_work, -flight.answer_work)
            self._prefill_router.count(flight.work_at, -1)
            flight.prefill_work = flight.answer_work = 0
            flight.work_at = -1

    # --- who decodes -----------------------------------------------------------------------

    def choose_decoder(self, flight: Flight) -> bool:
        """Choose who decodes. Returns whether it waits for memory there; a mixed instance that is
        to decode for another one is asked instead, and where mixed ones do not, each decodes its
        own."""
        number, roles = self._decode_router.choose(flight), self._roster.roles
        both_mixed = roles[number] == roles[flight.home]
        self.decode_at(flight, flight.home if both_mixed and not self._anywhere else number)
        return not both_mixed

    def decode_at(self, flight: Flight, number: int) -> None:
        flight.decoder = number
        flight.decode_work = self._decode_side.answer_ns(number, flight)
        self._decode_side.loads.add(number, 0, flight.decode_work)
        self._decode_router.count(number, 1)

    def leave_decoder(self, flight: Flight) -> None:
        """Take a flight out of what is expected where it was to decode."""
        self._decode_side.loads.add(flight.decoder, 0, -flight.decode_work)
        self._decode_router.count(flight.decoder, -1)
        flight.decode_work = 0

    # --- laws ------------------------------------------------------------------------------

    def expected(self) -> Iterator[int]:
        """Yield the work that is expected of each instance, for prefill and for decode."""
        for side in (self._prefill_side, self._decode_side):
            yield from side.loads.work
            yield from side.loads.prefill
        for router in (self._prefill_router, self._decode_router):
            if router.in_hand is not None:
                yield from router.in_hand.work
