"""One engine: a waiting queue, continuous batching, and memory that runs short.

As in Orca (Yu et al., OSDI 2022) and vLLM (Kwon et al., SOSP 2023): the batch changes between
steps. A step with prompt chunks is one event; steps in which all sequences only decode are one
event together, up to the first that ends, that finds no memory for its next block, or that has to
admit another. Everything about memory and membership changes between steps.

It must never hold memory while it waits for memory of another instance: who is admitted to decode
has been admitted to prefill before, and the oldest is never preempted for a younger one.
"""

from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import takewhile

from kv_cache.sim.cluster.bound import note_asked
from kv_cache.sim.cluster.compute import ComputeModel, pairs_of
from kv_cache.sim.cluster.counts import MOST_GAPS, ClusterCounts
from kv_cache.sim.cluster.event_loop import STEPS
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.flight import DECODE, PREFILL, QUEUED, Flight, Hold
from kv_cache.sim.cluster.instance_events import InstanceEvents
from kv_cache.sim.cluster.preemption import VICTIMS, lowest_below
from kv_cache.sim.cluster.prefix_match import PrefixPart, is_ready, match, unpin
from kv_cache.sim.cluster.scheduler_rules import Rules
from kv_cache.sim.cluster.segments import BlockPool, blocks_of
from kv_cache.sim.cluster.waiting_queue import make_queue

_FIRST = -(1 << 62)  # before any order


class Instance:
    __slots__ = (
        "_ahead", "_choose", "_chunks", "_counts", "_epoch", "_events", "_fabric", "_fresh",
        "_kicking", "_last_out_ns", "_orders", "_preempted", "_run_began",
        "_run_steps", "_slacks", "_storage", "busy", "busy_ns", "compute", "context",
        "decode_tokens", "decoding", "finished", "finishing", "grown", "joining", "max_seqs",
        "measured_decoding", "members", "number", "pool", "preemptions", "prefill_tokens",
        "prefilling", "requests", "role", "rules", "step_ns", "steps", "tiers", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        role: str,
        compute: ComputeModel,
        tiers: tuple[BlockPool, ...],
        rules: Rules,
        max_seqs: int,
        *,
        fabric: Fabric,
        counts: ClusterCounts,
        events: "InstanceEvents[Instance]",
    ) -> None:
        self.number = number
        self.role = role
        self._fabric = fabric
        self._storage = fabric.storage
        self._counts = counts
        self._events = events
        self.compute = compute
        self.tiers = tiers
        self.pool = tiers[0]
        self.rules = rules
        self.max_seqs = max_seqs
        self.waiting = make_queue(rules)
        self.members: dict[Flight, None] = {}  # admitted and not ended, the first first
        self.prefilling: list[Flight] = []
        self.finishing: list[tuple[int, int, int, Flight]] = []
        self.decoding = self.measured_decoding = 0
        self.context = 0  # tokens that all who decode attend to
        self.steps = 0
        self.busy = False
        self.busy_ns = self.prefill_tokens = self.decode_tokens = 0
        self.requests = self.finished = self.preemptions = 0
        self._orders = 0
        by_class = rules.victim == "lowest-priority"
        self._ahead = [(each << 40) * by_class for each in rules.priorities]
        self._slacks: dict[int, int] = {}
        self._chunks: list[tuple[Flight, int]] = []
        self._epoch = 0
        self._run_steps = 0
        self._run_began = 0
        self.step_ns = 0
        self._last_out_ns = 0
        self._fresh: list[Flight] = []
        self.joining: list[Flight] = []  # from the next step on
        self._choose = VICTIMS[rules.victim]
        self._preempted = False  # any flight, since the last admission
        self._kicking = False
        self.grown = 0  # blocks taken for the decode part of a step with chunks

    # --- the queue -------------------------------------------------------------------------

    def enqueue(self, flight: Flight, *, first: bool = False) -> None:
        """Let a flight wait; `first` if it has been admitted before."""
        self.waiting.add(flight, first=first)

    def offer(self, flight: Flight) -> bool:
        """Decode a flight that is prefilled elsewhere, if there is memory at the next step: it
        never waits for any. False: there is no place for it in the batch."""
        if len(self.members) >= self.max_seqs:
            return False
        self.waiting.offers.append(flight)
        self.nudge()
        return True

    def nudge(self) -> None:
        """End a run of decode steps at the next step, as a flight may be admitted."""
        if not self.busy:
            self.kick()
        elif self._run_steps and (
            self.joining or len(self.members) < self.max_seqs or self.rules.pause_lower
        ):
            self._shorten()

    def kick(self) -> None:
        """Between two steps: admit, and begin the next step or run of steps."""
        if self._kicking:
            return
        self._kicking = True
        if self.joining:
            joining, self.joining = self.joining, []
            for flight in joining:
                self._join(flight)
        if self.waiting.offers:
            self._answer_offers()
        self._begin()
        if self.waiting.offers and not self.busy:
            self._answer_offers()  # what came meanwhile: the next step may be far
        self._kicking = False

    def _answer_offers(self) -> None:
        offers = self.waiting.offers
        while offers:
            flight = offers.popleft()
            if len(self.members) < self.max_seqs and self._take_transfer(flight):
                self.members[flight] = None
                self._events.admitted(self, flight)
            else:
                self._events.declined(flight)

    def _begin(self) -> None:
        for _ in range(2):  # again where all who decoded had to give their memory back
            self._preempted = False
            if self.waiting or self.rules.central:
                self._admit()
            if self.prefilling and self._begin_step():
                return
            if self.decoding:
                self._begin_run()
            if self.busy or not self._preempted:
                return

    def _admit(self) -> None:
        waiting = self.waiting
        while True:
            if self.rules.central:
                self._events.admitting(self)
            flight = waiting.head()
            if flight is None:
                return
            if flight.loads and flight.phase == QUEUED:
                return  # what was swapped out is still on its way
            if len(self.members) >= self.max_seqs or not self._take(flight):
                if self.rules.pause_lower and self._pause_for(flight):
                    continue
                return
            waiting.pop()
            self.members[flight] = None
            self._events.admitted(self, flight)

    def _take(self, flight: Flight) -> bool:
        """Take memory for the next flight; False: there is none."""
        if flight.swapped:
            return self._take_swapped(flight)
        if flight.decoder == self.number != flight.home:
            return self._take_transfer(flight)
        return self._take_prompt(flight)

    def _has_room(self, blocks: int, more: int = 0) -> bool:
        """Whether a flight can be admitted and each that decodes still gets its next block, and
        `more`: else they would be preempted for the one admitted, and come again, for ever."""
        spare = 0 if self.rules.reserve_all else self.decoding + more
        return blocks + spare <= self.pool.available

    def _next_order(self, flight: Flight) -> int:
        self._orders += 1
        return self._orders - self._ahead[flight.kind]

    def _take_prompt(self, flight: Flight) -> bool:
        """Take memory for a prompt: the prefix that is here, and what the reservation says; begin
        its loads."""
        rules, pool = self.rules, self.pool
        parts: list[PrefixPart] = []
        below = shared = 0
        most = (flight.target - 1) // rules.block_tokens
        if flight.path:
            parts = match(self.tiers, flight.path, self._fabric.chain, most)
            for part in parts:
                part.pool.pin(part.segment)
                shared += part.end - part.start
                if part.tier:
                    below += part.end - part.start
        private = self._taken_at_once(flight, shared) - shared
        room = below + max(0, private)
        evicted = pool.make_room(room) if self._has_room(room) else None
        if evicted is None:
            unpin(parts)
            return False
        flight.order = flight.begun = self._next_order(flight)
        hold = flight.hold = Hold(pool)
        hold.shared = shared
        if private > 0:
            pool.take(private)
            hold.private = private
        flight.computed = shared * rules.block_tokens
        if pool.events is not None and flight.path:
            counted = flight.measured and flight.hit_tokens < 0
            note_asked(self.tiers, flight.path, self._fabric.chain, most, parts, counted=counted)
        self._counts.turn(flight, PREFILL, self._fabric.loop.now_ns)
        if parts or flight.hit_tokens >= 0:
            self._events.prefix_matched(self, flight, parts)
        else:
            flight.hit_tokens = 0
        if evicted:
            self._storage.evicted(pool, evicted)
        if rules.overlap_load or not flight.loads:
            self.prefill(flight)
        return True

    def prefill(self, flight: Flight) -> None:
        """Let a flight have its turns, the first that was admitted first: who comes later waits
        for memory, and may not be waited for."""
        if self.prefilling:
            insort(self.prefilling, flight, key=_order)
        else:
            self.prefilling.append(flight)

    def _taken_at_once(self, flight: Flight, shared: int) -> int:
        """Return the blocks that a prompt must have to be admitted: without a reservation, those of
        the first chunk."""
        rules = self.rules
        if rules.reserve_prompt or not rules.chunked:
            return self.reserved(flight)
        tokens = shared * rules.block_tokens + rules.batched_tokens
        return -(-min(flight.target, tokens) // rules.block_tokens)

    def reserved(self, flight: Flight) -> int:
        """Return the blocks that a reservation takes, with those that are here: of the answer too,
        if it is reserved."""
        answers = self.rules.reserve_all and self.role != "prefill"
        tokens = flight.stored_tokens if answers else flight.target
        return -(-tokens // self.rules.block_tokens)

    def _take_transfer(self, flight: Flight) -> bool:
        """Take memory at the decode side; blocks that are here already need not be sent."""
        rules, pool = self.rules, self.pool
        parts: list[PrefixPart] = []
        if flight.path:
            most = flight.target // rules.block_tokens
            parts = match((pool,), flight.path, self._fabric.chain, most)
            parts = list(takewhile(is_ready, parts))
        for part in parts:
            pool.pin(part.segment)
        shared = sum(part.end - part.start for part in parts)
        private = self.reserved(flight) - shared
        if not (self._has_room(private) and self._storage.take(pool, private)):
            unpin(parts)
            return False
        for part in reversed(parts):
            pool.hit(part.segment)
        flight.landing_order = self._next_order(flight)
        hold = flight.landing = Hold(pool)
        hold.pins = [part.segment for part in parts]
        hold.shared = shared
        hold.private = private
        flight.sent = shared * rules.block_tokens
        return True

    def _take_swapped(self, flight: Flight) -> bool:
        blocks = flight.swapped
        if not (self._has_room(blocks, 1) and self._storage.take(self.pool, blocks)):
            return False
        flight.order = self._next_order(flight)
        flight.hold = Hold(self.pool)
        flight.hold.private = blocks
        flight.loads += 1
        self._events.swap_in(self, flight)
        return True

    # --- steps with prompt chunks ----------------------------------------------------------

    def _begin_step(self) -> bool:
        """Begin a step with as many prompt tokens as fit; False if none do."""
        rules = self.rules
        mixed = rules.chunked and self.decoding > 0
        if mixed:
            self._grow_by_one()
        budget = rules.batched_tokens - (self.decoding if mixed else 0)
        chunks, separated = self._chunks, rules.separated
        pairs = read = tokens = 0
        for flight in tuple(self.prefilling):
            if budget <= 0:
                break
            take = flight.target - flight.computed
            if take > budget:
                if not rules.chunked and chunks:
                    break
                take = budget if rules.chunked else take
            if flight.phase != PREFILL or not take:
                continue
            if not rules.reserve_prompt and not self._secure(flight, flight.computed + take):
                break
            if separated and take == flight.target - flight.computed:
                self._events.prompt_secured(flight)
            chunks.append((flight, take))
            pairs += pairs_of(flight.computed, take)
            read += flight.computed
            tokens += take
            budget -= take
        if not chunks:
            if self.grown:
                self.pool.give(self.grown)
                self.grown = 0
            return False
        if rules.chunked and self.decoding:
            duration = self.compute.step_ns(tokens, pairs, read, self.decoding, self.context)
            self._run_steps = 1
        else:
            duration = self.compute.step_ns(tokens, pairs, read, 0, 0)
            self._run_steps = 0
        self.prefill_tokens += tokens
        self.busy = True
        self.step_ns = duration
        loop = self._fabric.loop
        loop.at(loop.now_ns + duration, STEPS, self._step_done)
        return True

    def _step_done(self, _: None) -> None:
        self.busy_ns += self.step_ns
        ended = self._advance(self.step_ns) if self._run_steps else ()
        self._run_steps = 0
        chunks, self._chunks = self._chunks, []
        counts, events = self._counts, self._events
        for flight, take in chunks:
            flight.computed += take
            counts.prefill_tokens += take
            if flight.computed == flight.target:
                self.prefilling.remove(flight)
                if flight.loads:
                    flight.loads_since_ns = self._fabric.loop.now_ns
                else:
                    events.prompt_computed(self, flight)
            elif flight.decoder >= 0:
                events.chunk_computed(flight)
        for flight in ended:
            events.answered(self, flight)
        self.busy = False
        self.kick()

    def _secure(self, flight: Flight, tokens: int) -> bool:
        """Take memory for the first `tokens` of a flight, from younger ones if need be."""
        hold = flight.hold
        assert hold is not None
        need = -(-tokens // self.rules.block_tokens) - hold.shared - hold.private
        if need <= 0:
            return True
        while not self._storage.take(self.pool, need):
            victim = self._choose(self._able(flight.order))
            if victim is None:
                return False
            self._preempt(victim)
        hold.private += need
        return True

    def store_prompt(self, flight: Flight, *, computed: bool = True) -> None:
        """Make content of what is computed, or was sent: the whole blocks of the sequence so
        far."""
        hold = flight.hold
        if not flight.path or hold is None:
            return
        depth = min(
            flight.target // self.rules.block_tokens, self._fabric.chain.end(flight.path[-1])
        )
        self._share(hold, flight.path, depth, computed=computed)

    def store_answer(self, flight: Flight) -> None:
        """Make content of the whole blocks of prompt and answer."""
        leaf = flight.request.answer_leaf
        hold = flight.hold
        if leaf < 0 or hold is None:
            return
        path = self._fabric.chain.path(leaf)
        self._share(hold, path, self._fabric.chain.end(leaf), computed=True)

    def _share(self, hold: Hold, path: tuple[int, ...], depth: int, *, computed: bool) -> None:
        """Turn private blocks into segments, as far as the same content is not here already."""
        pool = self.pool
        extents = hold.share(path, self._fabric.chain, depth)
        self._counts.new_blocks += blocks_of(extents)
        if extents:
            if computed:
                self._storage.used(pool, extents)
            self._storage.stored(pool, extents)

    # --- runs of decode steps --------------------------------------------------------------

    def join(self, flight: Flight) -> None:
        """A flight whose state is here, and one more token out, decodes from the next step on; the
        step that is under way is none of its own."""
        self._counts.turn(flight, DECODE, self._fabric.loop.now_ns)
        if self.busy:
            self.joining.append(flight)
        else:
            self._join(flight)

    def _join(self, flight: Flight) -> None:
        left = flight.request.output_tokens - flight.generated
        kept = flight.request.prompt_tokens + flight.generated - 1
        flight.begun = self._next_order(flight)
        flight.joined_step = self.steps
        flight.finish_step = self.steps + left
        self._counts.tickets += 1
        flight.ticket = self._counts.tickets
        heappush(self.finishing, (flight.finish_step, flight.order, flight.ticket, flight))
        self.decoding += 1
        self.context += kept
        if flight.measured:
            self.measured_decoding += 1
            self._fresh.append(flight)
        if not self.rules.reserve_all:
            block = self.rules.block_tokens
            key = (-kept + self.steps) % block
            self._slacks[key] = self._slacks.get(key, 0) + 1

    def _leave_decoding(self, flight: Flight) -> None:
        kept = self.kept(flight)
        flight.generated = kept + 1 - flight.request.prompt_tokens
        flight.ticket = 0
        self.decoding -= 1
        self.context -= kept
        if flight.measured:
            self.measured_decoding -= 1
        hold = flight.hold
        assert hold is not None
        if not self.rules.reserve_all:
            block = self.rules.block_tokens
            key = (-kept + self.steps) % block
            count = self._slacks[key] - 1
            if count:
                self._slacks[key] = count
            else:
                del self._slacks[key]
            hold.private = -(-kept // block) - hold.shared
            if self.grown and kept % block == 0:
                hold.private += 1  # taken for the step that begins without it
                self.grown -= 1

    def kept(self, flight: Flight) -> int:
        """Return the tokens whose state one that decodes has here."""
        return flight.stored_tokens - (flight.finish_step - self.steps)

    def _growth(self, steps: int) -> int:
        """Return the blocks that all who decode need for `steps` more steps."""
        block, now = self.rules.block_tokens, self.steps
        total = 0
        for key, count in self._slacks.items():
            over = steps - (key - now) % block
            if over > 0:
                total += count * -(-over // block)
        return total

    def _begin_run(self) -> None:
        while self.decoding:
            self._forget_stale()
            steps = self._fitting(self.finishing[0][0] - self.steps)
            if steps:
                break
            self._preempt_for_growth()
        else:
            return  # all have lost their memory, and wait for it at the head of the queue
        if self._preempted:
            steps = 1  # there may be room for one that waits
        loop = self._fabric.loop
        self.busy = True
        self._run_steps = steps
        self._run_began = loop.now_ns
        self._epoch += 1
        self.step_ns = self.compute.run_ns(self.decoding, self.context, steps)
        loop.at(loop.now_ns + self.step_ns, STEPS, self._run_done, self._epoch)

    def _forget_stale(self) -> None:
        """Drop the entries of preempted flights."""
        finishing = self.finishing
        while finishing[0][3].ticket != finishing[0][2]:
            heappop(finishing)

    def _fitting(self, steps: int) -> int:
        """Return the most steps, up to `steps`, for which there is memory."""
        if self.rules.reserve_all:
            return steps
        pool = self.pool
        room = pool.capacity - pool.private - pool.pinned
        at_most = self.decoding * (steps // self.rules.block_tokens + 1)
        if at_most <= room or self._growth(steps) <= room:
            return steps
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            if self._growth(middle) <= room:
                low = middle
            else:
                high = middle
        return low

    def _run_done(self, epoch: int) -> None:
        if epoch != self._epoch or not self.busy:
            return
        self.busy_ns += self.step_ns
        self.compute.require_run(self.decoding, self.context, self._run_steps)
        ended = self._advance(self.step_ns)
        self._run_steps = 0
        for flight in ended:
            self._events.answered(self, flight)
        self.busy = False
        self.kick()

    def _shorten(self) -> None:
        """End the run of steps that is under way with the step that is under way."""
        if self._chunks:
            return
        passed = self._fabric.loop.now_ns - self._run_began
        compute, sequences, context = self.compute, self.decoding, self.context
        low = compute.steps_in(sequences, context, passed)
        if low >= self._run_steps:
            return
        self._run_steps = low
        self._epoch += 1
        self.step_ns = compute.run_ns(sequences, context, low)
        loop = self._fabric.loop
        loop.at(self._run_began + self.step_ns, STEPS, self._run_done, self._epoch)

    def _advance(self, duration: int) -> list[Flight]:
        """`_run_steps` decode steps are over: tokens are out; who has its last one is returned."""
        steps, sequences = self._run_steps, self.decoding
        if not steps or not sequences:
            return []
        if self._chunks:
            self.grown = 0  # taken when the step began
        else:
            self._grow(steps)
        self._count_gaps(steps, sequences, duration)
        self.steps += steps
        self.context += sequences * steps
        self.decode_tokens += sequences * steps
        self._counts.output_tokens += sequences * steps
        finishing, ended = self.finishing, []
        while finishing and finishing[0][0] <= self.steps:
            _, _, ticket, flight = heappop(finishing)
            if flight.ticket == ticket:
                self._leave_decoding(flight)
                ended.append(flight)
        return ended

    def _count_gaps(self, steps: int, sequences: int, duration: int) -> None:
        """Times between two tokens of a sequence, of the measured ones."""
        now = self._fabric.loop.now_ns
        measured = self.measured_decoding
        if measured:
            began = now - duration
            first = duration
            if steps > 1:
                first = self.compute.run_ns(sequences, self.context, 1)
            gaps = self._counts.gaps
            old, fresh = measured, self._fresh
            if fresh:
                old -= len(fresh)
                for flight in fresh:
                    out_ns = max(flight.out_ns, began + first)
                    gaps[out_ns - flight.out_ns] += 1
                    if flight.second_ns < 0:
                        flight.second_ns = out_ns
                fresh.clear()
            if old:
                gaps[began + first - self._last_out_ns] += old
            if steps > 1:
                gaps[(duration - first) // (steps - 1)] += (steps - 1) * measured
            if len(gaps) > MOST_GAPS:
                self._counts.fold_gaps()
        self._last_out_ns = now

    def next_end_ns(self) -> int:
        """Return the time until the next answer ends, if none joins; if none has begun, the time
        that the oldest will take."""
        if not self.decoding:
            oldest = next(iter(self.members), None)
            if oldest is None:
                return 0
            left = oldest.request.output_tokens - oldest.generated
            return self.compute.run_ns(1, oldest.target, left)
        self._forget_stale()
        steps = self.finishing[0][0] - self.steps
        passed = self._fabric.loop.now_ns - self._run_began if self._run_steps > 1 else 0
        return max(0, self.compute.run_ns(self.decoding, self.context, steps) - passed)

    def growing(self) -> int:
        """Return the blocks that those who decode will take by the end of the steps under way, and
        one more for each of them."""
        if self.rules.reserve_all:
            return 0
        taken = self._run_steps == 0 or self._chunks
        return (0 if taken else self._growth(self._run_steps)) + self.decoding

    # --- preemption ------------------------------------------------------------------------

    def _grow_by_one(self) -> None:
        """Memory for one step of all who decode, before prompt chunks take what there is."""
        while self.decoding and not self._fitting(1):
            self._preempt_for_growth()
        self.grown = self._grow(1)

    def _grow(self, steps: int) -> int:
        """Take the blocks that all who decode need for `steps` steps."""
        if self.rules.reserve_all:
            return 0
        need = self._growth(steps)
        if need:
            taken = self._storage.take(self.pool, need)
            assert taken, "a run of steps began without memory for it"
        return need

    def _preempt_for_growth(self) -> None:
        victim = self._choose(self._able(_FIRST))
        assert victim is not None, "who decodes can be preempted"
        self._preempt(victim)

    def _able(self, after: int) -> Iterator[Flight]:
        """Yield the flights that can be preempted now, the last admitted first, of those behind
        `after` in the order."""
        chunks = {flight for flight, _ in self._chunks}
        for flight in reversed(self.members):
            if flight.order > after and (
                flight.ticket
                or (
                    flight.phase == PREFILL
                    and flight.home == self.number
                    and flight not in chunks
                    and not flight.loads
                    and flight.computed < flight.target
                )
            ):
                yield flight

    def _pause_for(self, flight: Flight) -> bool:
        """Preempt one of a lower class; False if there is none."""
        victim = lowest_below(self._able(_FIRST), flight.kind, self.rules.priorities)
        if victim is not None:
            self._preempt(victim)
        return victim is not None

    def _preempt(self, flight: Flight) -> None:
        self.preemptions += 1
        self._preempted = True
        decoded = flight.ticket != 0
        if decoded:
            self._leave_decoding(flight)
            if flight.measured and flight.joined_step == self.steps:
                self._fresh.remove(flight)
        else:
            self.prefilling.remove(flight)
        del self.members[flight]
        self._events.preempted(self, flight, decoded=decoded)

    # --- laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything."""
        assert len(self.members) <= self.max_seqs, "more sequences than allowed"
        decoding = [f for f in self.members if f.ticket]
        assert len(decoding) == self.decoding, "the decoding sequences do not add up"
        assert sum(self._slacks.values()) == (0 if self.rules.reserve_all else self.decoding)


def _order(flight: Flight) -> int:
    return flight.order
