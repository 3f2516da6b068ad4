"""A world in which the next thing to happen is picked by a seed.

Many lives run at once; operations begin when they are yielded and end one by one in any order,
some of them badly. The world keeps its own book of what physically exists and asserts what no
real device would forgive: reading what is not there, deleting under a reader, writing beyond the
capacity. Where a copy is several objects, it performs an operation on each, as the drivers do.
`cache.check()` runs after every step.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kv_cache.cache.limits import CacheRules, TierSpec
from kv_cache.cache.manager import CacheManager
from kv_cache.core.block import Block, content_key
from kv_cache.core.effect import (
    Await,
    Compute,
    CopyRef,
    Delete,
    Done,
    Effect,
    Move,
    Op,
    OpDone,
    Read,
    Spawn,
    Transfer,
    Write,
)
from kv_cache.core.kinds import OpKind, Outcome, Qos, RunMode, Tier
from kv_cache.core.object_ops import leftovers, of_blocks, of_objects
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.signals import Signals
from kv_cache.lifecycle import Semantics, Through, World, lifecycle
from kv_cache.policy.admission import ADMISSION, Admission, AdmissionRules
from kv_cache.policy.eviction import EVICTION
from kv_cache.policy.prefetch import PREFETCH, PrefetchRules
from kv_cache.schedule.admission import Gate
from kv_cache.schedule.ahead import Ahead

PAGE = 4096


class Physical:
    """What exists, per tier; the world's own opinion, independent of the cache's."""

    def __init__(self, capacities: dict[Tier, int]) -> None:
        self.capacities = capacities
        self.bytes = dict.fromkeys(capacities, 0)
        self.complete: set[int] = set()
        self.readers: dict[int, int] = {}

    def begin(self, op: Op) -> None:
        match op:
            case Read(copy=ref):
                self._open(ref)
            case Write(copy=ref):
                self._grow(ref)
            case Move(source=source, target=target):
                self._open(source)
                self._grow(target)
            case Delete(copy=ref):
                assert ref.copy_id in self.complete, f"delete of what is not there: {ref}"
                assert not self.readers.get(ref.copy_id), f"delete under a reader: {ref}"
                self.complete.discard(ref.copy_id)

    def end(self, op: Op, *, ok: bool, failed: OpKind | None) -> None:
        match op:
            case Read(copy=ref):
                self._close(ref)
            case Write(copy=ref):
                self._settle(ref, ok=ok)
            case Move(source=source, target=target):
                self._close(source)
                self._settle(target, ok=ok)
            case Delete(copy=ref):
                if ok:
                    self.bytes[ref.tier] -= ref.nbytes

    def _open(self, ref: CopyRef) -> None:
        assert ref.copy_id in self.complete, f"read of what is not there: {ref}"
        self.readers[ref.copy_id] = self.readers.get(ref.copy_id, 0) + 1

    def _close(self, ref: CopyRef) -> None:
        self.readers[ref.copy_id] -= 1

    def _grow(self, ref: CopyRef) -> None:
        self.bytes[ref.tier] += ref.nbytes
        assert self.bytes[ref.tier] <= self.capacities[ref.tier], f"{ref.tier} is over capacity"

    def _settle(self, ref: CopyRef, *, ok: bool) -> None:
        if ok:
            self.complete.add(ref.copy_id)
        else:
            self.bytes[ref.tier] -= ref.nbytes


@dataclass(slots=True, eq=False)
class Process:
    life: Generator[Effect, Done, Any]
    request: Request | None
    pending: list[Op] = field(default_factory=list)
    results: dict[int, OpDone] = field(default_factory=dict)
    effect: tuple[Op, ...] = ()
    ops: tuple[Op, ...] = ()
    awaiting: tuple[str, int] | None = None
    ready: Done | None = None
    started: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One seed's drawn configuration; printed when it fails."""

    seed: int
    mode: RunMode
    semantics: Semantics
    tiers: tuple[TierSpec, ...]
    eviction: str
    admission: str
    guarded: int  # the first tier that asks it
    write: str
    through_slots: int
    prefetch: str
    prefetch_slots: int
    prefetch_blocks: int
    nearest: bool
    store_slots: int
    behind_slots: int
    lives: int
    fault_share: float
    layers: int


def draw_setting(seed: int) -> Setting:
    rng = Seed(seed).child("setting").rng()
    pages = [(Tier.GPU, rng.randrange(4, 30)), (Tier.CPU, rng.randrange(4, 40))]
    upper = [t for t in pages if rng.random() < 0.7]
    tiers = [*upper, (Tier.NVME, rng.randrange(6, 80))]
    prefix = rng.random() < 0.5
    semantics = Semantics(
        reuse_prefix=prefix,
        decode_rereads=rng.random() < 0.5,
        decode_batch_tokens=rng.choice((8, 32)),
        promote=rng.random() < 0.5,
        write_behind=rng.random() < 0.4,
        write_behind_drop=rng.random() < 0.3,
        gpu_in_place=rng.random() < 0.5,
        prefill_only_from_tokens=rng.choice((0, 40)),
        prefill_ns_per_token=rng.choice((0, 10)),
        decode_ns_per_token=rng.choice((0, 10)),
        batch_blocks=rng.choice((1, 3, 8)),
    )
    return Setting(
        seed=seed,
        mode=rng.choice(tuple(RunMode)),
        semantics=semantics,
        tiers=tuple(TierSpec(tier=t, capacity_bytes=n * PAGE) for t, n in tiers),
        eviction=rng.choice(sorted(EVICTION)),
        store_slots=rng.choice((0, 1, 3)),
        behind_slots=rng.choice((1, 2, 5)),
        lives=rng.choice((2, 5, 12)),
        fault_share=rng.choice((0.0, 0.0, 0.02, 0.2)),
        admission=rng.choice(("always", *ADMISSION)),
        guarded=rng.choice((0, 1, len(tiers) - 1)),
        write=rng.choice(("back", "through", "through-selective")),
        through_slots=rng.choice((1, 2, 5)),
        prefetch=rng.choice(sorted(PREFETCH)),
        prefetch_slots=rng.choice((1, 2, 4)),
        prefetch_blocks=rng.choice((1, 4, 16)),
        nearest=rng.random() < 0.3,
        layers=rng.choice((1, 1, 3)),
    )


class Interleaving:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rng = Seed(setting.seed).child("world").rng()
        self.signals = Signals()
        self.cache = CacheManager(
            setting.tiers,
            EVICTION[setting.eviction],
            CacheRules(max_evictions_min=1000),
            self.signals,
            [self._door(index) for index in range(len(setting.tiers))],
        )
        self.world = World(
            cache=self.cache,
            semantics=setting.semantics,
            mode=setting.mode,
            stores=Gate(0, self.signals, slots=setting.store_slots),
            behind=Gate(1, self.signals, most=setting.behind_slots),
            through=None if setting.write == "back" else self._through(),
            ahead=None if setting.prefetch == "none" else self._ahead(),
        )
        self.physical = Physical({s.tier: s.capacity_bytes or 0 for s in setting.tiers})
        self.processes: list[Process] = []
        self.records: list[RequestRecord] = []
        self.asked = 0
        self.now_ns = 0

    def _through(self) -> Through:
        gate = Gate(2, self.signals, most=self.setting.through_slots)
        return Through(gate=gate, selective=self.setting.write == "through-selective")

    def _ahead(self) -> Ahead:
        most = self.setting.prefetch_blocks
        policy = PREFETCH[self.setting.prefetch](PrefetchRules(most=most, memory=16))
        slots, nearest = self.setting.prefetch_slots, self.setting.nearest
        return Ahead(policy, slots=slots, most=most, nearest=nearest)

    def _door(self, index: int) -> Admission | None:
        rules = AdmissionRules(max_bytes=3 * PAGE, max_depth=4, memory=32, floor=1)
        make = ADMISSION[self.setting.admission]
        return make(rules) if index >= self.setting.guarded else None

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(may_start=True)
        while self.processes:
            self.step(may_start=False)
        self.cache.check()
        assert self.cache.idle
        assert len(self.records) == self.asked
        assert not self.world.announced
        assert self.world.stores.holders == self.world.behind.taken == 0
        assert self.world.through is None or self.world.through.gate.holders == 0
        assert self.world.ahead is None or self.world.ahead.holders == 0

    def step(self, *, may_start: bool) -> None:
        """One thing happens: a request starts, a life goes on, or an operation ends."""
        self.now_ns += 1
        choices: list[tuple[str, Process | None, int]] = []
        if may_start and len(self.processes) < self.setting.lives:
            choices.append(("start", None, 0))
        for each in self.processes:
            if each.ready is not None or not each.started:
                choices.append(("go", each, 0))
            choices += [("end", each, i) for i in range(len(each.pending))]
        assert choices, "deadlock: everybody waits and nothing is in flight"
        what, process, index = choices[self.rng.randrange(len(choices))]
        if what == "start":
            self._start()
        elif what == "go":
            assert process is not None
            self._go(process)
        else:
            assert process is not None
            self._end(process, index)
        self.cache.check()

    def _start(self) -> None:
        request = draw_request(self.rng, self.asked, self.setting.layers)
        self.asked += 1
        life = lifecycle(request, self.world, enqueued_ns=self.now_ns, started_ns=self.now_ns)
        self.processes.append(Process(life, request))

    def _go(self, process: Process) -> None:
        try:
            if process.started:
                done, process.ready = process.ready, None
                assert done is not None
                effect = process.life.send(done)
            else:
                process.started = True
                effect = next(process.life)
        except StopIteration as stop:
            self.processes.remove(process)
            if process.request is not None:
                self._judge(stop.value)
        else:
            self._begin(process, effect)
        for token in self.signals.drain():
            for other in self.processes:
                if other.awaiting == token:
                    other.awaiting = None
                    other.ready = Done(self.now_ns)

    def _judge(self, record: RequestRecord) -> None:
        assert isinstance(record, RequestRecord)
        self.records.append(record)
        assert record.outcome in (Outcome.COMPLETED, Outcome.FAILED)
        assert 0 <= record.hits <= record.looked_up
        assert 0 <= record.decode_hits <= record.decode_looked_up
        if self.setting.fault_share == 0 and record.outcome is Outcome.FAILED:
            assert record.error == "fits-nowhere", record

    def _begin(self, process: Process, effect: Effect) -> None:
        match effect:
            case Transfer(ops=ops):
                assert ops, "an empty transfer"
                process.effect, process.ops, process.results = ops, (), {}
                self._perform(process, of_objects(ops))
            case Compute(duration_ns=duration_ns):
                self.now_ns += duration_ns
                process.ready = Done(self.now_ns)
            case Await(token=token):
                process.awaiting = token
            case Spawn(life=life):
                self.processes.append(Process(life, None))
                process.ready = Done(self.now_ns)

    def _perform(self, process: Process, ops: Sequence[Op]) -> None:
        for op in ops:
            self.physical.begin(op)
        process.ops += tuple(ops)
        process.pending = list(ops)

    def _end(self, process: Process, index: int) -> None:
        op = process.pending.pop(index)
        again = isinstance(op, Delete) and not any(isinstance(o, Delete) for o in process.effect)
        failed = None if again else self._fault(op)
        self.physical.end(op, ok=failed is None, failed=failed)
        error = None if failed is None else "injected"
        process.results[id(op)] = OpDone(op, self.now_ns, self.now_ns, (), error, failed)
        if not process.pending:
            results = [process.results[id(o)] for o in process.ops]
            left = () if again else leftovers(process.effect, results)
            if left:
                self._perform(process, left)
            else:
                process.ready = Done(self.now_ns, of_blocks(process.effect, results))

    def _fault(self, op: Op) -> OpKind | None:
        if self.rng.random() >= self.setting.fault_share:
            return None
        match op:
            case Read():
                return OpKind.READ
            case Write():
                return OpKind.WRITE
            case Delete():
                return OpKind.DELETE if self.rng.random() < 0.02 else None
            case Move():
                return self.rng.choice((OpKind.READ, OpKind.WRITE))


def draw_request(rng: Random, number: int, layers: int) -> Request:
    """Few conversations and few shared prompts, so that requests meet on the same blocks."""
    conversation = rng.randrange(6)
    length = rng.randrange(1, 9)
    blocks = tuple(_block(conversation, i, layers) for i in range(length))
    if rng.random() < 0.05:
        blocks += (Block(content_key("huge", number), 400, 100 * PAGE),)
    return Request(
        request_id=number,
        intended_ns=0,
        user=f"u{conversation}",
        conversation=f"c{conversation}",
        turn=1,
        qos=rng.choice(tuple(Qos)),
        priority=1,
        prompt_tokens=sum(b.tokens for b in blocks),
        output_tokens=rng.randrange(0, 60),
        blocks=blocks,
        new_from=rng.randrange(0, len(blocks)) if rng.random() < 0.7 else 0,
        tail_tokens=rng.randrange(0, 3),
    )


def _block(conversation: int, index: int, layers: int) -> Block:
    shared = index < 2
    key = content_key("shared" if shared else conversation, index)
    pages = 1 + (key[0] % 5)
    return Block(key, 4 * pages, pages * PAGE - (key[1] % 2) * 100, layers)


def reproduction(setting: Setting, steps: int) -> str:
    return (
        'python -c \'import sys; sys.path[:0] = [".", "tests/simulation"]; '
        "from interleaving import *; "
        f"Interleaving(draw_setting({setting.seed})).run({steps})'"
    )


def outcome_line(records: Sequence[RequestRecord]) -> str:
    return "\n".join(repr(r) for r in records)
