"""Who gets a request: seven rules, one cost.

Round robin, the fewest requests in hand (least connections), least loaded by work, the less loaded
of two drawn by chance (Mitzenmacher, IEEE TPDS 12(10), 2001), the session's last instance, and
prefix aware: the least of w_load x what waits there + w_overlap x prefill of what it lacks +
w_transfer x loading of what it has below HBM, in ns (the cost forms of Dynamo's KV router and of
Mooncake's Conductor). See `fleet.py` for the estimates. Who decodes can also be chosen by that cost
among all who are little loaded, `cheapest`: there it is w_load x answers there, its own too, +
w_transfer x sending of what is not there.

It must stay cheap with ten thousand instances: who holds a prefix is looked up, not searched.
Ties go to who was chosen longest ago, so that an idle cluster is used evenly.
"""

from kv_cache.config.scenario import RouterSection
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.fleet import Fleet, Loads
from kv_cache.sim.cluster.flight import Flight


class Router:
    """One rule over one set of instances."""

    def __init__(self, kind: str, section: RouterSection, fleet: Fleet, seed: Seed) -> None:
        self._members = fleet.members
        self._unequal = not fleet.equal
        self._loads = fleet.loads
        self._fleet = fleet
        self._section = section
        self._rng = seed.rng()
        self._next = 0
        self._last: dict[int, int] = {}  # of each session
        self.in_hand: Loads | None = None  # requests of each instance, where they are counted
        if kind == "least-connections":
            self.in_hand = Loads(fleet.members, len(fleet.loads.work))
        self._rule = {
            "round-robin": self._round_robin,
            "least-connections": self._least_connections,
            "least-loaded": self._least_loaded,
            "power-of-two": self._power_of_two,
            "session-affinity": self._session_affinity,
            "prefix-aware": self._prefix_aware,
            "cheapest": self._cheapest,
        }[kind]
        self._remembers = kind in ("session-affinity", "prefix-aware")

    def choose(self, flight: Flight) -> int:
        """Return an instance whose memory can hold the flight; the caller has seen that there is
        one."""
        instance = self._rule(flight)
        if self._unequal and not self._fleet.fits(instance, flight):
            fitting = [i for i in self._members if self._fleet.fits(i, flight)]
            instance = min(fitting, key=self._loads.key)
        self._loads.choose(instance)
        if self.in_hand is not None:
            self.in_hand.choose(instance)
        if self._remembers:
            self._last[flight.request.session] = instance
        return instance

    def count(self, instance: int, change: int) -> None:
        """A request has come to an instance (1), or has left it (-1)."""
        if self.in_hand is not None:
            self.in_hand.add(instance, 0, change)

    def _least_connections(self, flight: Flight) -> int:
        assert self.in_hand is not None
        return self.in_hand.least(1)[0]

    def _round_robin(self, flight: Flight) -> int:
        instance = self._members[self._next]
        self._next = (self._next + 1) % len(self._members)
        return instance

    def _least_loaded(self, flight: Flight) -> int:
        return self._loads.least(1)[0]

    def _power_of_two(self, flight: Flight) -> int:
        members = self._members
        if len(members) == 1:
            return members[0]
        others = len(members) - 1
        first, second = divmod(int(self._rng.random() * len(members) * others), others)
        second += second >= first
        one, other = members[first], members[second]
        loads = self._loads
        less = loads.work[one] - loads.work[other]
        if not less:
            less = -1 if loads.key(one) <= loads.key(other) else 1
        return one if less < 0 else other

    def _session_affinity(self, flight: Flight) -> int:
        last = self._last.get(flight.request.session)
        return self._least_loaded(flight) if last is None else last

    def _prefix_aware(self, flight: Flight) -> int:
        least = 2 if self._fleet.as_fast else max(2, self._section.candidates)
        candidates = dict.fromkeys(self._loads.least(least))
        last = self._last.get(flight.request.session)
        if last is not None:
            candidates[last] = None
        return self._least_cost(flight, candidates)

    def _cheapest(self, flight: Flight) -> int:
        home = flight.home
        first = [home] if self._fleet.has(home) else []
        least = self._loads.least(self._section.candidates)
        return self._least_cost(flight, dict.fromkeys((*first, *least)))

    def _least_cost(self, flight: Flight, candidates: dict[int, None]) -> int:
        """Return the one of least cost among some, and those that hold its prefix."""
        section, fleet = self._section, self._fleet
        if flight.path:
            candidates |= dict.fromkeys(fleet.holders(flight, section.candidates))
        best, best_key = -1, (0.0, 0, 0, 0)
        for instance in candidates:
            if not fleet.fits(instance, flight):
                continue
            missing, loading, lacking = fleet.overlap_cost_ns(instance, flight)
            cost = section.w_load * fleet.wait_ns(instance, flight) + section.w_overlap * missing
            cost += section.w_transfer * loading
            key = (cost, lacking, *self._loads.key(instance)[1:])  # where nothing takes time
            if best < 0 or key < best_key:
                best, best_key = instance, key
        return self._least_loaded(flight) if best < 0 else best
