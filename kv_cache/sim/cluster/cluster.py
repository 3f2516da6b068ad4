"""The whole cluster: it coordinates instances, routers and storage over one clock.

Decisions are in the parts; here they meet: an arrival is routed, admitted, its prefix is loaded,
the rest computed, handed to the instance that decodes, and ended. Who knows whom goes one way:
cluster > fleet (what routers see) > roster > instance > fabric; an instance reports through
`InstanceEvents`, which the cluster implements. One clock, one thread, one order of events: the
same scenario gives the same outcome in every process.
"""

from collections.abc import Callable, Iterator, Sequence

from kv_cache.config.scenario import Scenario
from kv_cache.core.callbacks import ignore
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.event_loop import ARRIVES, ENDS
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.fleet import DecodeSide, PrefillSide
from kv_cache.sim.cluster.flight import ENDED, QUEUED, TRANSFER, Flight, Hold
from kv_cache.sim.cluster.hardware_models import PLAIN, HardwareModels
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.instance_events import InstanceEvents
from kv_cache.sim.cluster.outcome import EventBytes, OnEvent
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.prefix_match import PrefixPart
from kv_cache.sim.cluster.requests import ClusterRequest, RequestSource
from kv_cache.sim.cluster.retries import Retries
from kv_cache.sim.cluster.roster import Roster
from kv_cache.sim.cluster.router import Router
from kv_cache.sim.cluster.segments import BlockExtent, BlockPool, Segment, become_ready
from kv_cache.sim.cluster.sources.marks import FlightMarks
from kv_cache.sim.cluster.storage import TIERS
from kv_cache.sim.cluster.unlimited import UnlimitedCache
from kv_cache.sim.cluster.waiting_queue import make_queue


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
        self._emit = on_event
        fabric = self._fabric = Fabric(scenario, chain, hardware)
        self.loop, self.network, self.storage = fabric.loop, fabric.network, fabric.storage
        self.topology = fabric.topology
        self.block_tokens, self.block_bytes = fabric.block_tokens, fabric.block_bytes
        self.counts = ClusterCounts()
        self._requests, self._blocks = self.counts.requests, self.counts.blocks
        self.storage.on_fetched = self._fetched
        if on_event is not None:
            self.storage.on_moved = self._say_moved
        self.roster = Roster(fabric, self.counts, self)
        self._rules = self.roster.rules
        self.central = make_queue(self._rules)
        self._marks = FlightMarks(scenario)
        self._warmup = scenario.workload.warmup_requests
        self._prefetch_kind = scenario.tiers.prefetch
        self._prefetch_ppm = round(scenario.tiers.prefetch_at * 1_000_000)  # of a pause
        self._build_routers(Seed(scenario.seed))
        self._unlimited = UnlimitedCache(chain)
        self._arrivals: Iterator[ClusterRequest] = iter(())
        self.alive: dict[int, Flight] = {}
        self.on_finish: Callable[[Flight], None] = ignore
        self.on_measuring: Callable[[], None] = ignore

    def _build_routers(self, seed: Seed) -> None:
        section, roster = self.scenario.router, self.roster
        prefill = [i for i, role in enumerate(roster.roles) if role != "decode"]
        decode = [i for i, role in enumerate(roster.roles) if role != "prefill"]
        self.prefill_side = PrefillSide(self._fabric, roster, prefill)
        self._prefill_router = Router(
            section.kind, section, self.prefill_side, seed.child("router")
        )
        loads = self.prefill_side.loads if decode == prefill else None
        self._retries = Retries(self.prefill_side, roster, self._requests)
        self.decode_side = DecodeSide(self._fabric, roster, decode, loads)
        self._anywhere = section.decode == "cheapest"
        self._decode_router = Router(
            section.decode, section, self.decode_side, seed.child("decode-router")
        )

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
        self.counts.phases[QUEUED] += 1
        self._route(flight)

    def _route(self, flight: Flight) -> None:
        if self.roster.is_too_large(flight):
            self._reject(flight, "larger-than-hbm")
            return
        rules = self._rules
        number = -1 if rules.central else self._prefill_router.choose(flight)
        queue = self.central if rules.central else self.instance(number).waiting
        if rules.max_queue and len(queue) >= rules.max_queue:
            number = -1 if rules.central else self._retries.another(flight, number)
            if number < 0:
                self._reject(flight, "queue-full")
                return
        if rules.central and not queue:
            number = self.prefill_side.place_for(flight, self._prefill_router.choose(flight))
        if number >= 0:
            self._give(flight, number)
            return
        queue.add(flight, first=False)
        if len(queue) > 1 and queue.head() is flight:
            self._dispatch()

    def _dispatch(self, freed: int = -1) -> None:
        """Route from the central queue as long as its head finds a place: where something was
        `freed`, as there was none elsewhere; the next heads wherever there is one."""
        side, router = self.prefill_side, self._prefill_router
        while (flight := self.central.head()) is not None:
            number = freed if freed >= 0 else side.place_for(flight, router.choose(flight))
            if not side.has_place(number, flight, pausing=self._rules.pause_lower):
                return
            freed = -1
            self.central.pop()
            self._give(flight, number)

    def _freed(self, instance: Instance) -> None:
        """Let in who waits for the place or the memory that something has given back."""
        instance.nudge()
        if self.central:
            self._dispatch(instance.number)

    def _give(self, flight: Flight, number: int) -> None:
        """Let a flight wait at an instance."""
        instance = self.instance(number)
        flight.home = number
        self._expect_work(flight, instance)
        self._say("route", flight, number)
        instance.enqueue(flight)
        instance.nudge()
        if self._prefetch_kind == "on-arrival" and flight.phase == QUEUED:
            self._prefetch(instance, flight.path)

    def _expect_work(self, flight: Flight, instance: Instance) -> None:
        """Add the estimated cost of a flight to the load of its instance."""
        compute, request = instance.compute, flight.request
        flight.work_at = instance.number
        flight.prefill_work = compute.prefill_ns(request.prompt_tokens, 0)
        if not self._rules.separated:
            flight.answer_work = int(flight.expected * compute.token_ns)
        self.prefill_side.loads.add(instance.number, flight.prefill_work, flight.answer_work)
        self._prefill_router.count(instance.number, 1)

    def _prefill_left(self, flight: Flight, left: int) -> None:
        """Update the estimated prefill that a flight still needs."""
        change = left - flight.prefill_work
        if change:
            flight.prefill_work = left
            self.prefill_side.loads.add(flight.work_at, change, 0)

    # --- prefixes --------------------------------------------------------------------------

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
            flight.answered_offer(now)
            if flight.prepared:
                self._leave_home(flight)
            self._landing_ready(flight)
        elif self._rules.reserve_prompt:
            self.prompt_secured(flight)

    def prompt_secured(self, flight: Flight) -> None:
        """All of a prompt has memory where it prefills, and will be computed: only now may it hold
        memory elsewhere."""
        if self._rules.separated and flight.decoder < 0 and self._early(flight):
            self._choose_decoder(flight)

    def prefix_matched(
        self, instance: Instance, flight: Flight, parts: Sequence[PrefixPart]
    ) -> None:
        """A prefix has been found and pinned: count it, and bring up what is below HBM."""
        hold = flight.hold
        assert hold is not None
        if flight.hit_tokens < 0:
            flight.hit_tokens = matched = hold.shared * self.block_tokens
            self.storage.used(instance.pool, (BlockExtent(p.node, p.start, p.end) for p in parts))
            if matched:
                left = instance.compute.prefill_ns(flight.target - matched, matched)
                self._prefill_left(flight, left)
            if flight.measured:
                for part in parts:
                    self._blocks.hits[TIERS[part.pool.tier]] += part.end - part.start
                    if part.tier and self.storage.sent_by.get(part.node) != instance.number:
                        self._blocks.from_others += part.end - part.start
        else:
            self._blocks.recomputed += flight.target // self.block_tokens - hold.shared
        if parts:
            for part in reversed(parts):
                part.pool.hit(part.segment)
                self._note_use(part)
                if part.tier > 1 and self._prefetch_kind != "none" and not self.storage.into_hbm:
                    self._note_late(instance, part)
            self._load(instance, flight, parts)

    def _note_use(self, part: PrefixPart) -> None:
        segment, counts = part.segment, self.counts
        if segment.fetched:
            segment.fetched = False
            count = counts.prefetch_useful if segment.ready else counts.prefetch_late
            count[TIERS[part.pool.tier]] += segment.end - segment.start

    def _note_late(self, instance: Instance, part: PrefixPart) -> None:
        """A prefetch of it that has begun is not there yet, so it is loaded from afar."""
        target = instance.tiers[1]
        for coming in target.segments_of(part.node):
            if coming.fetched and coming.start < part.end and part.start < coming.end:
                coming.fetched = False  # it has been asked for: late, and nothing else besides
                self.counts.prefetch_late[TIERS[target.tier]] += coming.end - coming.start

    def _load(self, instance: Instance, flight: Flight, parts: Sequence[PrefixPart]) -> None:
        hold, hbm = flight.hold, instance.pool
        assert hold is not None
        flight.loads_since_ns = self.loop.now_ns
        below: dict[BlockPool, list[tuple[Segment, Segment]]] = {}
        for part in parts:
            if not part.tier:
                hold.pins.append(part.segment)
                if not part.segment.ready:
                    self._await(flight, part.segment)
                continue
            run = BlockExtent(part.node, part.start, part.end)
            segment = hbm.add(run, ready=False, pinned=True)
            hold.pins.append(segment)
            below.setdefault(part.pool, []).append((part.segment, segment))
        for pool, pairs in below.items():
            flight.loads += 1
            blocks = sum(new.end - new.start for _, new in pairs)
            self._say("load", flight, instance.number, _moved(pool, blocks * pool.block_bytes))
            what = (instance, flight, pool, pairs)
            self.storage.read(pool, instance.number, blocks, "load", self._loaded, what)

    def _await(self, flight: Flight, segment: Segment) -> None:
        """Wait for a segment that another flight is loading here."""
        flight.loads += 1
        if segment.waiters is None:
            segment.waiters = []
        segment.waiters.append(lambda: self._load_ended(flight))

    def _loaded(
        self, what: tuple[Instance, Flight, BlockPool, list[tuple[Segment, Segment]]]
    ) -> None:
        _, flight, pool, pairs = what
        for old, new in pairs:
            pool.unpin(old)
            become_ready(new)
        self._load_ended(flight)

    def _load_ended(self, flight: Flight) -> None:
        flight.loads -= 1
        if flight.loads:
            return
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
        self._prefill_left(flight, 0)
        flight.out_ns = now
        flight.generated += 1
        instance.decode_tokens += 1
        self.counts.output_tokens += 1
        if flight.generated == flight.request.output_tokens:
            self.answered(instance, flight)
        elif self._rules.separated:
            self._hand_over(instance, flight)
        else:
            self._say("decode", flight, instance.number)
            instance.join(flight)

    # --- prefill and decode apart ------------------------------------------------------------

    def _early(self, flight: Flight) -> bool:
        """Whether the decode side is asked for memory before prefill ends."""
        return self.scenario.separation.transfer == "push" and flight.request.output_tokens > 1

    def _choose_decoder(self, flight: Flight) -> None:
        """Of two mixed instances none waits for memory of the other: each could be full of what
        waits. So one decodes for the other only by an offer, which has its answer at once."""
        number = self._decode_router.choose(flight)
        both_mixed = self.roster.roles[number] == self.roster.roles[flight.home]
        if both_mixed and not self._anywhere:
            number = flight.home
        self._decode_at(flight, number)
        if number == flight.home:
            return
        instance = self.instance(number)
        if not both_mixed:
            instance.enqueue(flight)
            instance.nudge()
        elif not instance.offer(flight):
            self.declined(flight)

    def _decode_at(self, flight: Flight, number: int) -> None:
        flight.decoder = number
        flight.decode_work = self.decode_side.answer_ns(number, flight)
        self.decode_side.loads.add(number, 0, flight.decode_work)
        self._decode_router.count(number, 1)

    def declined(self, flight: Flight) -> None:
        """There is no room for it at another mixed instance: it is decoded at home."""
        self._requests.handoffs_declined += 1
        self._leave_decoder(flight)
        self._decode_at(flight, flight.home)
        if flight.prepared:
            flight.answered_offer(self.loop.now_ns)
            home = self.instance(flight.home)
            self._say("decode", flight, home.number)
            home.join(flight)
            home.nudge()

    def _hand_over(self, instance: Instance, flight: Flight) -> None:
        """Prefill is over: the sequence leaves the batch, its memory stays until it is sent."""
        if flight.decoder < 0:
            self._choose_decoder(flight)
        if flight.decoder == flight.home:
            self._say("decode", flight, instance.number)
            instance.join(flight)
            return
        self.counts.turn(flight, TRANSFER)
        flight.prepared = True
        if flight not in self.instance(flight.decoder).waiting.offers:
            self._leave_home(flight)
        self.chunk_computed(flight)

    def _leave_home(self, flight: Flight) -> None:
        """Give its place in the batch to another; one that was offered keeps it until the answer,
        as it may have to decode there."""
        home = self.instance(flight.home)
        if home.members.pop(flight, flight) is None:
            self._freed(home)

    def _landing_ready(self, flight: Flight) -> None:
        """The decode side has memory."""
        if self.scenario.separation.transfer != "push":
            link_path = self.topology.path(flight.home, flight.decoder)
            delay = sum(link.latency_ns for link in link_path)
            flight.sending += 1
            self.loop.at(self.loop.now_ns + delay, ENDS, self._request_arrived, flight)
        else:
            self.chunk_computed(flight)

    def _request_arrived(self, flight: Flight) -> None:
        """The decode side's request has reached the prefill side."""
        flight.sending -= 1
        self.chunk_computed(flight)

    def chunk_computed(self, flight: Flight) -> None:
        """Send what is computed and not yet there."""
        if flight.landing is None or (
            flight.sending and self.scenario.separation.transfer != "push"
        ):
            return
        section = self.scenario.separation
        if not flight.prepared and not (section.transfer == "push" and section.pipelined):
            return
        ready = flight.target if flight.prepared else flight.computed
        tokens = ready - flight.sent
        if section.transfer == "on-demand":
            tokens = min(tokens, section.chunk_blocks * self.block_tokens)
        if tokens > 0:
            nbytes = tokens * self._fabric.token_bytes
            self._say("transfer", flight, flight.decoder, EventBytes("hbm", flight.home, nbytes))
            flight.sent += tokens
            flight.sending += 1
            if flight.send_ns < 0:
                flight.send_ns = self.loop.now_ns
            link_path = self.topology.path(flight.home, flight.decoder)
            self.network.send(
                link_path, nbytes, "pd-transfer", self._sent, (flight, flight.landing)
            )
        elif flight.prepared and not flight.sending:
            self._transferred(flight)

    def _sent(self, what: tuple[Flight, Hold]) -> None:
        flight, landing = what
        if flight.landing is not landing:
            return  # it has given that memory up
        flight.sending -= 1
        if flight.chunk_ns < 0:
            flight.chunk_ns = self.loop.now_ns
        if flight.sending == 0 and flight.prepared and flight.sent == flight.target:
            self._transferred(flight)
        elif self.scenario.separation.transfer == "on-demand" and flight.sent < flight.target:
            self._landing_ready(flight)

    def _transferred(self, flight: Flight) -> None:
        source, home = flight.hold, self.instance(flight.home)
        assert source is not None
        assert flight.landing is not None
        source.release()
        self._leave_prefill(flight)
        if flight.second_ns < 0:
            flight.landed_ns = self.loop.now_ns
        self._requests.handoffs += 1
        flight.hold, flight.landing = flight.landing, None
        flight.order = flight.landing_order
        decoder = self.instance(flight.decoder)
        decoder.store_prompt(flight, computed=False)
        self._say("decode", flight, decoder.number)
        decoder.join(flight)
        decoder.nudge()
        self._freed(home)

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
        self.counts.turn(flight, ENDED)
        self.counts.change_presence(now, -1)
        self.counts.spent_ns += now - flight.arrival_ns
        del self.alive[flight.request.number]
        self._let_go(flight)
        self._say(event, flight, instance)
        if self.central:
            for number in (flight.home, flight.decoder):
                if number >= 0:
                    self._dispatch(number)
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
        self._freed(self.instance(number))

    def _let_go(self, flight: Flight) -> None:
        if flight.hold is not None:
            flight.hold.release()
            flight.hold = None
        if flight.home >= 0:
            self.roster.used[flight.home].members.pop(flight, None)
        self._leave_prefill(flight)
        if flight.decoder >= 0:
            self._leave_decoder(flight)

    def _leave_prefill(self, flight: Flight) -> None:
        """Take a flight out of what the routers expect where it prefilled."""
        if flight.work_at >= 0:
            loads = self.prefill_side.loads
            loads.add(flight.work_at, -flight.prefill_work, -flight.answer_work)
            self._prefill_router.count(flight.work_at, -1)
            flight.prefill_work = flight.answer_work = 0
            flight.work_at = -1

    def _leave_decoder(self, flight: Flight) -> None:
        """Of a flight that was to decode elsewhere; if it ends before its state was sent, it waits
        there, or has memory there."""
        self.roster.used[flight.decoder].members.pop(flight, None)
        self.decode_side.loads.add(flight.decoder, 0, -flight.decode_work)
        self._decode_router.count(flight.decoder, -1)
        flight.decode_work = 0
        if flight.landing is not None:
            flight.landing.release()
            flight.landing = None
        elif not flight.landing_order and flight.decoder != flight.home:
            self.roster.used[flight.decoder].waiting.withdraw(flight)

    def estimated_work(self) -> Iterator[int]:
        """Yield the work that the routers expect at each instance, for prefill and for decode."""
        for side in (self.prefill_side, self.decode_side):
            yield from side.loads.work
            yield from side.loads.prefill
        for router in (self._prefill_router, self._decode_router):
            if router.in_hand is not None:
                yield from router.in_hand.work

    def _say(
        self, event: str, flight: Flight, instance: int, moved: EventBytes | None = None
    ) -> None:
        if self._emit is not None:
            self._emit(self.loop.now_ns, event, flight.request.number, instance, moved)

    def _say_moved(self, event: str, pool: BlockPool, nbytes: int) -> None:
        """Tell what happens in a place for no request alone."""
        assert self._emit is not None
        self._emit(self.loop.now_ns, event, -1, -1, _moved(pool, nbytes))

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
            number = self._retries.another(flight, instance.number)
            if number < 0:
                self._abort(flight, "preempted", instance.number)
            else:
                self._begin_again(flight, number)
            return
        if not decoded and flight.decoder not in (-1, flight.home):
            self._forget_decoder(flight)
        kept = flight.request.prompt_tokens + flight.generated - 1 if decoded else 0
        swapped = (
            decoded and self._rules.preemption == "swap" and self._swap_out(instance, flight, kept)
        )
        hold.release()
        flight.hold = None
        if not swapped:
            flight.target = flight.request.prompt_tokens + flight.generated
            flight.computed = 0
            flight.home = instance.number  # who decodes computes it again itself
        self.counts.turn(flight, QUEUED)
        instance.enqueue(flight, first=True)

    def _begin_again(self, flight: Flight, number: int) -> None:
        """Compute a flight again at another instance: behind the step that is being put together
        where it was."""
        assert flight.hold is not None
        flight.hold.release()
        flight.hold = None
        self._leave_prefill(flight)
        if flight.decoder >= 0:
            self._forget_decoder(flight)
        flight.prepared, flight.moved = False, True
        flight.target = flight.request.prompt_tokens + flight.generated
        flight.computed = 0
        self.counts.turn(flight, QUEUED)
        self.loop.at(self.loop.now_ns, ENDS, lambda _: self._give(flight, number))

    def _forget_decoder(self, flight: Flight) -> None:
        """Who waits for memory must hold none elsewhere: others may wait for it there."""
        decoder = self.instance(flight.decoder)
        self._leave_decoder(flight)
        flight.decoder = -1
        flight.sent = flight.sending = flight.landing_order = 0
        if flight.landed_ns < 0:
            flight.send_ns = flight.chunk_ns = -1
        self._freed(decoder)

    def _swap_out(self, instance: Instance, flight: Flight, tokens: int) -> bool:
        """Move state to host memory, if there is room; the HBM is free at once (staging)."""
        if len(instance.tiers) < 2:
            return False
        host = instance.tiers[1]
        blocks = -(-tokens // self.block_tokens)
        if not self.storage.take(host, blocks):
            return False
        flight.swapped = blocks
        flight.loads += 1
        link_path, nbytes = self.storage.path_into(host, instance.number), blocks * host.block_bytes
        self._say("swap-out", flight, instance.number, _moved(host, nbytes))
        self.network.send(link_path, nbytes, "swap-out", self._swapped_out, (instance, flight))
        return True

    def _swapped_out(self, what: tuple[Instance, Flight]) -> None:
        instance, flight = what
        flight.loads -= 1
        instance.nudge()

    def swap_in(self, instance: Instance, flight: Flight) -> None:
        """Memory is there again: bring the state back."""
        host = instance.tiers[1]
        self.counts.turn(flight, TRANSFER)
        nbytes, what = flight.swapped * host.block_bytes, (instance, flight)
        self._say("swap-in", flight, instance.number, _moved(host, nbytes))
        self.storage.read(host, instance.number, flight.swapped, "swap-in", self._swapped_in, what)

    def _swapped_in(self, what: tuple[Instance, Flight]) -> None:
        instance, flight = what
        flight.loads -= 1
        instance.tiers[1].give(flight.swapped)
        flight.swapped = 0
        instance.join(flight)
        instance.nudge()


def _moved(pool: BlockPool, nbytes: int) -> EventBytes:
    return EventBytes(TIERS[pool.tier], pool.index, nbytes)
