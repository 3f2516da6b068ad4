"""The whole cluster: it coordinates instances, routers and storage over one clock.

Decisions are in the parts; here they meet: an arrival is routed, admitted, its prefix is loaded,
the rest computed, handed to the instance that decodes, and ended. Who knows whom goes one way:
cluster > handover, state moves > routing > fleet (what routers see) > roster > instance > fabric;
an instance reports through `InstanceEvents`, which the cluster implements. One clock, one thread,
one order of events: the same scenario gives the same outcome in every process.
"""

from collections.abc import Callable, Iterator, Sequence

from kv_cache.config.scenario import Scenario
from kv_cache.core.callbacks import ignore
from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.event_loop import ARRIVES, ENDS
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.flight import ENDED, QUEUED, Flight
from kv_cache.sim.cluster.handover import Handover
from kv_cache.sim.cluster.hardware_models import PLAIN, HardwareModels
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.instance_events import InstanceEvents
from kv_cache.sim.cluster.outcome import EventBytes, OnEvent
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.prefix_match import PrefixPart
from kv_cache.sim.cluster.requests import ClusterRequest, RequestSource
from kv_cache.sim.cluster.roster import Roster
from kv_cache.sim.cluster.routing import Routing
from kv_cache.sim.cluster.sources.marks import FlightMarks
from kv_cache.sim.cluster.state_moves import StateMoves
from kv_cache.sim.cluster.unlimited import UnlimitedCache
from kv_cache.sim.cluster.waiting_queue import is_full, make_queue


class Cluster(InstanceEvents[Instance]):
    """One run. Sizes are blocks wherever a name does not say bytes or tokens."""

    def __init__(
        self,
        scenario: Scenario,
        source: RequestSource,
        chain: PrefixChain,
        *,
        on_event: OnEvent | None = None,
        hardware: HardwareModels = PLAIN,
    ) -> None:
        self.scenario = scenario
        self.chain = chain
        self._source = source
        fabric = Fabric(scenario, chain, hardware, on_event)
        self._say = fabric.say
        self.loop, self.network, self.storage = fabric.loop, fabric.network, fabric.storage
        self.topology = fabric.topology
        self.block_tokens, self.block_bytes = fabric.block_tokens, fabric.block_bytes
        self.counts = ClusterCounts()
        self._requests, self._blocks = self.counts.requests, self.counts.blocks
        self.storage.on_fetched = self._fetched
        self.roster = Roster(fabric, self.counts, self)
        self._rules = self.roster.rules
        self.central = make_queue(self._rules)
        self._marks = FlightMarks(scenario)
        self._warmup = scenario.workload.warmup_requests
        self._prefetch_kind = scenario.tiers.prefetch
        self._prefetch_ppm = round(scenario.tiers.prefetch_at * 1_000_000)  # of a pause
        self.routing = routing = Routing(fabric, self.roster, self._requests)
        self._handover = Handover(fabric, self.counts, self.roster, routing)
        self._moves = StateMoves(fabric, self.counts, routing, self._loaded)
        self._unlimited = UnlimitedCache(chain)
        self._arrivals: Iterator[ClusterRequest] = iter(())
        self.alive: dict[int, Flight] = {}
        self.on_finish: Callable[[Flight], None] = ignore
        self.on_measuring: Callable[[], None] = ignore

    def instance(self, number: int) -> Instance:
        return self.roster.instance(number)

    @property
    def instances(self) -> dict[int, Instance]:
        """Those that were ever used, by number."""
        return self.roster.used

    # --- arrivals --------------------------------------------------------------------------

    def begin(self) -> None:
        self._arrivals = self._source.first()
        self._pull()

    def _pull(self) -> None:
        request = next(self._arrivals, None)
        if request is not None:
            self.loop.at(request.arrival_ns, ARRIVES, self._arrive_and_pull, request)

    def _arrive_and_pull(self, request: ClusterRequest) -> None:
        self._pull()
        self._arrive(request)

    def _arrive(self, request: ClusterRequest) -> None:
        now = self.loop.now_ns
        measured = request.number >= self._warmup
        flight = Flight(
            request, self.chain.path(request.leaf) if request.leaf else (), now, measured
        )
        self._requests.arrived += 1
        if self._marks.any:
            self._marks.mark(flight)
            self._requests.class_arrived[flight.kind] += measured
        self.counts.change_presence(now, 1)
        self.alive[request.number] = flight
        if measured:
            if self.counts.began_ns < 0:
                self.counts.began_ns = now
                self.on_measuring()
            self._requests.measured_arrived += 1
            self.counts.begin_part()
            self._blocks.looked_up += request.prompt_tokens // self.block_tokens
        self._say("arrival", flight, -1)
        if flight.path:
            had = self._unlimited.asked(flight.path)
            if measured:
                self._blocks.ceiling += min(had, (request.prompt_tokens - 1) // self.block_tokens)
        self.counts.queued(now)
        self._route(flight)

    def _route(self, flight: Flight) -> None:
        if self.roster.is_too_large(flight):
            self._reject(flight, "larger-than-hbm")
            return
        rules = self._rules
        number = -1 if rules.central else self.routing.choose(flight)
        queue = self.central if rules.central else self.instance(number).waiting
        if is_full(queue, flight, rules):
            number = -1 if rules.central else self.routing.another(flight, number)
            if number < 0:
                self._reject(flight, "queue-full")
                return
        if rules.central and not queue:
            number = self.routing.place_for(flight)
        if number >= 0:
            self._give(flight, number)
            return
        queue.add(flight, first=False)
        self.counts.central.change(1, self.loop.now_ns)
        if len(queue) > 1 and queue.head() is flight:
            self._dispatch()

    def _dispatch(self, freed: int = -1) -> None:
        """Route from the central queue as long as its head finds a place: where something was
        `freed`, as there was none elsewhere; the next heads wherever there is one."""
        while (flight := self.central.head()) is not None:
            number = freed if freed >= 0 else self.routing.place_for(flight)
            if not self.routing.has_place(number, flight):
                return
            freed = -1
            self.central.pop()
            self.counts.central.change(-1, self.loop.now_ns)
            self._give(flight, number)

    def _give(self, flight: Flight, number: int) -> None:
        """Let a flight wait at an instance."""
        instance = self.instance(number)
        flight.home = number
        self.routing.expect(flight)
        self._say("route", flight, number)
        instance.enqueue(flight)
        instance.nudge()
        if self._prefetch_kind == "on-arrival" and flight.phase == QUEUED:
            self._prefetch(instance, flight.path)

    # --- admitted --------------------------------------------------------------------------

    def admitting(self, instance: Instance) -> None:
        if self.central:
            self._dispatch(instance.number)

    def admitted(self, instance: Instance, flight: Flight) -> None:
        """An instance has memory for a flight, and it is out of the queue."""
        now = self.loop.now_ns
        if flight.admitted_ns < 0:
            flight.admitted_ns = now
            instance.requests += 1
        elif flight.landing is not None or flight.moved:
            instance.requests += 1
            flight.moved = False
        self._say("admit", flight, instance.number)
        if not self._rules.separated:
            return
        if flight.landing is not None and flight.decoder == instance.number:
            self._handover.accepted(flight)
        elif self._rules.reserve_prompt:
            self._handover.secure_early(flight)

    def prompt_secured(self, flight: Flight) -> None:
        if self._rules.separated:
            self._handover.secure_early(flight)

    def declined(self, flight: Flight) -> None:
        self._handover.declined(flight)

    def chunk_computed(self, flight: Flight) -> None:
        self._handover.send(flight)

    def prefix_matched(
        self, instance: Instance, flight: Flight, parts: Sequence[PrefixPart]
    ) -> None:
        self._moves.found(instance, flight, parts)

    def swap_in(self, instance: Instance, flight: Flight) -> None:
        self._moves.swap_in(instance, flight)

    def _loaded(self, flight: Flight) -> None:
        """All that a flight found is in HBM."""
        instance = self.instance(flight.home)
        computed = flight.computed == flight.target
        if flight.first_ns < 0 and (computed or not self._rules.overlap_load):
            flight.load_ns += self.loop.now_ns - flight.loads_since_ns
        if computed:
            self.prompt_computed(instance, flight)
        elif not self._rules.overlap_load:
            instance.prefill(flight)
        instance.nudge()

    # --- computed --------------------------------------------------------------------------

    def prompt_computed(self, instance: Instance, flight: Flight) -> None:
        """All of a prompt is there, computed or loaded."""
        now = self.loop.now_ns
        if flight.path:
            instance.store_prompt(flight)
        if flight.first_ns < 0:
            flight.first_ns = now
            self._say("first-token", flight, instance.number)
        elif flight.measured:
            self.counts.gaps[now - flight.out_ns] += 1  # that no run of steps has counted
            flight.second_ns = now if flight.second_ns < 0 else flight.second_ns
        self.routing.prefill_left(flight, 0)
        flight.out_ns = now
        flight.generated += 1
        instance.decode_tokens += 1
        self.counts.output_tokens += 1
        if flight.generated == flight.request.output_tokens:
            self.answered(instance, flight)
        elif self._rules.separated:
            self._handover.begin(flight)
        else:
            self._say("decode", flight, instance.number)
            instance.join(flight)

    # --- ends --------------------------------------------------------------------------------

    def answered(self, instance: Instance, flight: Flight) -> None:
        flight.out_ns = self.loop.now_ns
        if flight.request.answer_leaf >= 0:
            instance.store_answer(flight)
            self._unlimited.answered(flight.request.answer_leaf)
        instance.finished += 1
        self._requests.finished += 1
        if flight.measured:
            self.on_finish(flight)
        self._end(flight, "finish", instance.number, True)

    def _reject(self, flight: Flight, reason: str) -> None:
        self._requests.rejected[reason] += 1
        self._end(flight, "reject", -1, False)

    def _abort(self, flight: Flight, reason: str, instance: int) -> None:
        self._requests.aborted[reason] += 1
        self._end(flight, "abort", instance, False)

    def _end(self, flight: Flight, event: str, instance: int, answered: bool) -> None:
        now = self.counts.ended_ns = self.loop.now_ns
        self.counts.turn(flight, ENDED, now)
        self.counts.hbm = self.storage.watches["hbm"].until(now)
        self.counts.change_presence(now, -1)
        self.counts.spent_ns += now - flight.arrival_ns
        del self.alive[flight.request.number]
        self._let_go(flight)
        self._say(event, flight, instance)
        for request in self._source.after(flight.request, now, answered=answered):
            self.loop.at(request.arrival_ns, ARRIVES, self._arrive, request)
            if self._prefetch_kind == "next-in-session" and request.turn and flight.home >= 0:
                begin_ns = now + (request.arrival_ns - now) * self._prefetch_ppm // 1_000_000
                self.loop.at(begin_ns, ENDS, self._prefetch_next, (flight.home, request.leaf))

    def _prefetch_next(self, what: tuple[int, int]) -> None:
        """A part of the time to think is over: what the turn before left in HBM may be gone."""
        home, leaf = what
        self._prefetch(self.instance(home), self.chain.path(leaf))

    def _prefetch(self, instance: Instance, path: Sequence[int]) -> None:
        spare = instance.growing() if self.storage.into_hbm else 0
        self.storage.prefetch(instance.tiers, path, spare)

    def _fetched(self, number: int) -> None:
        """Let in who waits for memory: a prefetch lets go of what it has brought."""
        self.instance(number).nudge()

    def _let_go(self, flight: Flight) -> None:
        if flight.hold is not None:
            flight.hold.release()
            flight.hold = None
        if flight.home >= 0:
            self.roster.used[flight.home].members.pop(flight, None)
        self.routing.leave_prefill(flight)
        if flight.decoder >= 0:
            self._handover.leave(flight)

    # --- preemption --------------------------------------------------------------------------

    def preempted(self, instance: Instance, flight: Flight, *, decoded: bool) -> None:
        """A flight has left the batch for want of memory; give the memory back."""
        self._requests.preemptions += 1
        flight.out_ns = self.loop.now_ns if decoded else flight.out_ns
        hold = flight.hold
        assert hold is not None
        lost = (hold.private + hold.shared) * self.block_bytes
        self._say("preempt", flight, instance.number, EventBytes("hbm", instance.number, lost))
        if self._rules.preemption == "abort":
            number = self.routing.another(flight, instance.number)
            if number < 0:
                self._abort(flight, "preempted", instance.number)
            else:
                self._begin_again(flight, number)
            return
        if not decoded and flight.decoder not in (-1, flight.home):
            self._handover.forget(flight)
        kept = flight.request.prompt_tokens + flight.generated - 1 if decoded else 0
        swapped = (
            decoded
            and self._rules.preemption == "swap"
            and self._moves.swap_out(instance, flight, kept)
        )
        hold.release()
        flight.hold = None
        if not swapped:
            flight.target = flight.request.prompt_tokens + flight.generated
            flight.computed = 0
            flight.home = instance.number  # who decodes computes it again itself
        self.counts.turn(flight, QUEUED, self.loop.now_ns)
        instance.enqueue(flight, first=True)

    def _begin_again(self, flight: Flight, number: int) -> None:
        """Compute a flight again at another instance: behind the step that is being put together
        where it was."""
        assert flight.hold is not None
        flight.hold.release()
        flight.hold = None
        self.routing.leave_prefill(flight)
        if flight.decoder >= 0:
            self._handover.forget(flight)
        flight.prepared, flight.moved = False, True
        flight.target = flight.request.prompt_tokens + flight.generated
        flight.computed = 0
        self.counts.turn(flight, QUEUED, self.loop.now_ns)
        self.loop.at(self.loop.now_ns, ENDS, lambda _: self._give(flight, number))
