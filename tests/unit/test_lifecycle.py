"""One life at a time, driven by hand: the exact effects that it yields, and its record.

An effect is written as one line, e.g. `reuse read A@storage, reuse read B@storage`; the answers
say that a transfer took 10 ns and a computation as long as it was asked to.
"""

from collections.abc import Callable, Generator, Sequence
from math import ceil
from typing import Any

import pytest
from msgspec.structs import replace

from kv_cache.cache.limits import CacheRules, TierSpec
from kv_cache.cache.manager import CacheManager
from kv_cache.config.root import Config
from kv_cache.config.sections import SemanticsConfig
from kv_cache.core.block import Block, content_key
from kv_cache.core.effect import (
    Await,
    Compute,
    Delete,
    Done,
    Effect,
    Life,
    Move,
    Op,
    OpDone,
    Read,
    Spawn,
    Transfer,
    Write,
)
from kv_cache.core.kinds import Lookup, OpKind, Outcome, Qos, RunMode, Tier
from kv_cache.core.record import RequestRecord, unstarted
from kv_cache.core.request import Request
from kv_cache.core.signals import Signals
from kv_cache.core.units import MIB
from kv_cache.lifecycle import (
    NOWHERE,
    ROOM_LOST,
    Semantics,
    World,
    lifecycle,
    populate,
)
from kv_cache.policy.eviction import EVICTION
from kv_cache.schedule.admission import Gate

PAGE = 4096
TRANSFER_NS = 10


def preset(name: str) -> Semantics:
    """As configured, but generation takes 1 ns a token and prefill 2."""
    semantics = Config(semantics=SemanticsConfig(preset=name)).lifecycle_semantics(synthetic=True)
    return replace(semantics, prefill_ns_per_token=2, decode_ns_per_token=1)


MLPERF, SERVING = preset("mlperf"), preset("serving")
Fault = Callable[[Op], OpKind | None]


def named(name: str, *, pages: int = 1) -> Block:
    """A block of 4 tokens a page, 100 bytes short of whole pages."""
    return Block(content_key(name), 4 * pages, pages * PAGE - 100)


def blocks(names: str) -> tuple[Block, ...]:
    return tuple(named(name) for name in names)


NAMES = {named(letter).key: letter for letter in "ABCDEFGHPQXYZ"}


def ask(
    sequence: Sequence[Block],
    *,
    new_from: int = 0,
    shared: int = 0,
    prompt_tokens: int = 4,
    output_tokens: int = 40,
    tail_tokens: int = 0,
) -> Request:
    return Request(
        request_id=0,
        intended_ns=0,
        user="u",
        conversation="c",
        turn=1,
        qos=Qos.BATCH,
        priority=1,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        blocks=tuple(sequence),
        shared=shared,
        new_from=new_from,
        tail_tokens=tail_tokens,
    )


def line(effect: Effect) -> str:
    match effect:
        case Transfer(ops=ops):
            return ", ".join(map(op_words, ops))
        case Compute(duration_ns=duration_ns):
            return f"compute {duration_ns}"
        case Await(token=token):
            return f"await {token[0]}"
        case Spawn():
            return "spawn"


def op_words(op: Op) -> str:
    match op:
        case Read(copy=ref, cause=cause):
            return f"{cause} read {NAMES[ref.key]}@{ref.tier.label}"
        case Write(copy=ref, cause=cause):
            return f"{cause} write {NAMES[ref.key]}@{ref.tier.label}"
        case Delete(copy=ref, cause=cause):
            return f"{cause} delete {NAMES[ref.key]}@{ref.tier.label}"
        case Move(source=source, target=target, cause=cause):
            where = f"{source.tier.label}>{target.tier.label}"
            return f"{cause} move {NAMES[source.key]} {where}"


def all_well(_: Op) -> OpKind | None:
    return None


class Hand:
    """One life that is led by hand, effect by effect."""

    def __init__(
        self, life: Generator[Effect, Done, Any], children: list[Life], fault: Fault = all_well
    ) -> None:
        self._life = life
        self._children = children
        self._fault = fault
        self.now_ns = 0
        self.said: list[str] = []
        self.record: RequestRecord | None = None
        self._effect: Effect | None = None
        self.ended = False
        self._next(None)

    @property
    def wants(self) -> str:
        """The effect that it waits for; '' at its end."""
        return "" if self.ended else self.said[-1]

    def answer(self) -> None:
        """What it wants has happened."""
        effect = self._effect
        results: list[OpDone] = []
        match effect:
            case Transfer(ops=ops):
                began, self.now_ns = self.now_ns, self.now_ns + TRANSFER_NS
                for op in ops:
                    side = self._fault(op)
                    error = None if side is None else f"bad-{side}"
                    results.append(OpDone(op, began, self.now_ns, (), error, side))
            case Compute(duration_ns=duration_ns):
                self.now_ns += duration_ns
            case Spawn(life=life):
                self._children.append(life)
        self._next(Done(self.now_ns, tuple(results)))

    def until(self, wanted: str) -> None:
        """Answer everything before the first effect whose line has `wanted` in it."""
        while wanted not in self.wants:
            assert not self.ended, f"it never wanted {wanted!r}: {self.said}"
            assert not self.wants.startswith("await"), f"it waits before {wanted!r}: {self.said}"
            self.answer()

    def to_the_end(self) -> list[str]:
        while not self.ended:
            assert not self.wants.startswith("await"), f"it waits: {self.said}"
            self.answer()
        return self.said

    def _next(self, done: Done | None) -> None:
        try:
            self._effect = next(self._life) if done is None else self._life.send(done)
            self.said.append(line(self._effect))
        except StopIteration as stop:
            self.ended, self.record = True, stop.value


class Place:
    """A world of small tiers, given in pages."""

    def __init__(
        self,
        semantics: Semantics,
        mode: RunMode = RunMode.STANDARD,
        *,
        store_slots: int = 0,
        store_bytes: int = 0,
        behind_slots: int = 8,
        **pages: int,
    ) -> None:
        signals = Signals()
        specs = [
            TierSpec(tier=Tier[name.upper()], capacity_bytes=n * PAGE)
            for name, n in (pages or {"nvme": 100}).items()
        ]
        self.cache = CacheManager(specs, EVICTION["lru"], CacheRules(), signals)
        self.world = World(
            cache=self.cache,
            semantics=semantics,
            mode=mode,
            stores=Gate(0, signals, slots=store_slots, most=store_bytes),
            behind=Gate(1, signals, most=behind_slots),
        )
        self.children: list[Life] = []

    def begin(self, request: Request, fault: Fault = all_well) -> Hand:
        life = lifecycle(request, self.world, enqueued_ns=0, started_ns=0)
        return Hand(life, self.children, fault)

    def live(self, request: Request, fault: Fault = all_well) -> list[str]:
        """The whole life and all that it left to the background; the cache is idle after it."""
        hand = self.begin(request, fault)
        hand.to_the_end()
        assert hand.record is not None
        self.record = hand.record
        return hand.said + self.background()

    def background(self) -> list[str]:
        said: list[str] = []
        while self.children:
            said += Hand(self.children.pop(0), self.children).to_the_end()
        self.cache.check()
        assert self.cache.idle
        assert not self.world.announced
        assert self.world.stores.holders == self.world.stores.taken == 0
        assert self.world.behind.holders == self.world.behind.taken == 0
        return said

    def keep(self, names: str) -> None:
        """Store blocks beforehand."""
        for name in names:
            Hand(populate(blocks(name), self.world), self.children).to_the_end()

    def has(self, names: str) -> str:
        """Those of `names` that can be read."""
        return "".join(name for name in names if self.cache.resident(named(name).key))


def on(kind: type, side: OpKind, name: str = "") -> Fault:
    """Operations of that kind (on that block) go wrong on that side."""

    def fault(op: Op) -> OpKind | None:
        ref = op.source if isinstance(op, Move) else op.copy
        return side if isinstance(op, kind) and NAMES[ref.key].startswith(name) else None

    return fault


# --- the reference's semantics -------------------------------------------------------------------


def test_three_turns_load_each_earlier_turn_store_one_object_and_read_it_during_generation() -> (
    None
):
    place = Place(MLPERF)
    assert place.live(ask(blocks("A"), output_tokens=40)) == [
        "compute 8",
        "prefill write A@storage",
        "decode read A@storage",
        "decode read A@storage",
        "compute 32",
        "decode read A@storage",
        "compute 8",
    ]
    assert place.live(ask(blocks("AB"), new_from=1, output_tokens=32)) == [
        "reuse read A@storage",
        "compute 8",
        "prefill write B@storage",
        "decode read B@storage",
        "decode read B@storage",
        "compute 32",
    ]
    assert place.live(ask(blocks("ABC"), new_from=2, output_tokens=1)) == [
        "reuse read A@storage, reuse read B@storage",
        "compute 8",
        "prefill write C@storage",
        "decode read C@storage",
        "decode read C@storage",
        "compute 1",
    ]
    record = place.record
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None)
    assert (record.looked_up, record.hits, record.history_looked_up, record.history_hits) == (
        2,
        2,
        2,
        2,
    )
    assert (record.decode_looked_up, record.decode_hits) == (2, 2)
    assert (record.loaded_bytes, record.stored_bytes) == (4 * PAGE, PAGE)
    assert (record.prefilled, record.decoded) == (True, True)


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 64, 65, 200])
def test_an_object_is_read_once_and_then_once_for_each_batch_of_tokens(tokens: int) -> None:
    said = Place(MLPERF).live(ask(blocks("A"), output_tokens=tokens))
    assert said.count("decode read A@storage") == 1 + ceil(tokens / 32)
    generated = [int(words.split()[1]) for words in said[2:] if words.startswith("compute")]
    assert sum(generated) == tokens


def test_a_request_that_generates_nothing_reads_nothing_for_it() -> None:
    place = Place(MLPERF)
    assert place.live(ask(blocks("A"), output_tokens=0)) == ["compute 8", "prefill write A@storage"]
    assert not place.record.decoded


@pytest.mark.parametrize(("tokens", "decodes"), [(9_999, True), (10_000, False)])
def test_a_long_prompt_ends_with_its_prefill(tokens: int, decodes: bool) -> None:
    place = Place(MLPERF)
    said = place.live(ask(blocks("A"), prompt_tokens=tokens))
    assert said[:2] == ["compute 8", "prefill write A@storage"]
    assert (len(said) > 2) == decodes
    assert place.record.decoded == (place.record.tpot_ns is not None) == decodes
    assert place.record.outcome is Outcome.COMPLETED


def test_history_that_is_gone_is_a_miss_and_is_not_made_again() -> None:
    place = Place(MLPERF)
    place.keep("B")
    said = place.live(ask(blocks("ABC"), new_from=2, output_tokens=1))
    assert said[:3] == ["reuse read B@storage", "compute 8", "prefill write C@storage"]
    assert (place.record.looked_up, place.record.hits) == (2, 1)
    assert place.has("ABC") == "BC"


def test_instants_and_durations_are_those_of_the_effects() -> None:
    place = Place(MLPERF)
    place.keep("A")
    place.live(ask(blocks("AB"), new_from=1, output_tokens=32))
    record = place.record
    assert record.compute_ns == 8 + 32
    assert record.store_ns == TRANSFER_NS
    assert record.load_ns == 3 * TRANSFER_NS
    assert record.first_token_ns == 10 + 8 + 10 + 10, "load, prefill, store, first read"
    assert record.finished_ns == record.service_ns == 80
    assert record.storage_ns + record.compute_ns == record.service_ns


def test_a_miss_during_generation_is_repaired() -> None:
    place = Place(MLPERF, nvme=2)
    hand = place.begin(ask(blocks("A"), output_tokens=40))
    hand.until("compute 32")  # nothing is pinned while it computes
    place.keep("XY")
    assert place.has("A") == ""
    assert hand.to_the_end()[4:] == [
        "compute 32",
        "eviction delete X@storage",
        "decode write A@storage",
        "compute 8",
    ]
    assert hand.record is not None
    assert (hand.record.decode_looked_up, hand.record.decode_hits) == (3, 2)
    assert hand.record.outcome is Outcome.COMPLETED
    place.background()


def test_a_shared_prompt_is_computed_and_stored_once_by_whoever_comes_first() -> None:
    place = Place(MLPERF)
    first = place.live(ask(blocks("PA"), shared=1, new_from=1, output_tokens=1))
    assert first[:2] == ["compute 16", "prefill write P@storage, prefill write A@storage"]
    assert (place.record.shared_looked_up, place.record.shared_hits) == (1, 0)
    second = place.live(ask(blocks("PB"), shared=1, new_from=1, output_tokens=1))
    assert second[:3] == ["reuse read P@storage", "compute 8", "prefill write B@storage"]
    record = place.record
    assert (record.shared_looked_up, record.shared_hits) == (1, 1)
    assert record.shared_hit_bytes == PAGE - 100
    assert (record.history_looked_up, record.history_hits) == (0, 0)


def test_a_shared_prompt_is_stored_once_even_by_two_at_the_same_time() -> None:
    place = Place(MLPERF)
    first = place.begin(ask(blocks("PA"), shared=1, new_from=1, output_tokens=1))
    second = place.begin(ask(blocks("PB"), shared=1, new_from=1, output_tokens=1))
    first.until("prefill write P@storage, prefill write A@storage")
    second.until("prefill write B@storage")
    both = first.to_the_end() + second.to_the_end()
    assert sum(words.count("write P") for words in both) == 1
    place.background()


# --- run modes -----------------------------------------------------------------------------------


def test_prefill_only_loads_and_stores_and_generates_nothing() -> None:
    place = Place(MLPERF, RunMode.PREFILL_ONLY)
    place.keep("A")
    assert place.live(ask(blocks("AB"), new_from=1)) == [
        "reuse read A@storage",
        "compute 8",
        "prefill write B@storage",
    ]
    assert (place.record.decoded, place.record.decode_looked_up) == (False, 0)
    assert place.record.first_token_ns == place.record.finished_ns == 28


def test_decode_only_reads_what_was_populated_and_writes_nothing() -> None:
    place = Place(MLPERF, RunMode.DECODE_ONLY)
    said = Hand(populate(blocks("AB"), place.world), place.children).to_the_end()
    assert said == ["populate write A@storage, populate write B@storage"]
    assert place.live(ask(blocks("AB"), output_tokens=33)) == [
        "decode read A@storage, decode read B@storage",
        "decode read A@storage, decode read B@storage",
        "compute 32",
        "decode read A@storage, decode read B@storage",
        "compute 1",
    ]
    assert (place.record.prefilled, place.record.decoded) == (False, True)
    assert place.record.first_token_ns == TRANSFER_NS


def test_decode_only_does_not_end_at_prefill_and_does_not_repair() -> None:
    place = Place(MLPERF, RunMode.DECODE_ONLY)
    place.keep("A")
    said = place.live(ask(blocks("AB"), prompt_tokens=10_000, output_tokens=1))
    assert said == ["decode read A@storage", "decode read A@storage", "compute 1"]
    assert (place.record.decode_looked_up, place.record.decode_hits) == (4, 2)
    assert place.has("B") == ""


def test_decode_only_of_a_serving_engine_reads_once() -> None:
    place = Place(SERVING, RunMode.DECODE_ONLY)
    place.keep("AB")
    assert place.live(ask(blocks("AB"), output_tokens=33)) == [
        "decode read A@storage, decode read B@storage",
        "compute 33",
    ]
    assert place.record.first_token_ns == TRANSFER_NS


# --- a serving engine's semantics ----------------------------------------------------------------


def test_the_longest_prefix_is_promoted_and_only_what_is_missing_is_stored_behind() -> None:
    place = Place(SERVING, cpu=4, nvme=100)
    place.keep("ABXYZ")  # CPU takes 3 pages of its 4: A and B have gone down
    assert place.live(ask(blocks("ABC"), output_tokens=7, tail_tokens=1)) == [
        "demotion move X cpu>storage, demotion move Y cpu>storage",
        "demotion delete X@cpu, demotion delete Y@cpu",
        "promotion move A storage>cpu, promotion move B storage>cpu",
        "compute 10",
        "spawn",
        "compute 7",
        "demotion move Z cpu>storage",
        "demotion delete Z@cpu",
        "prefill write C@cpu",
    ]
    record = place.record
    assert (record.looked_up, record.hits) == (3, 2)
    assert record.first_token_ns == 3 * TRANSFER_NS + 10, "the store behind is not waited for"
    assert (record.loaded_bytes, record.stored_bytes, record.store_ns) == (2 * PAGE, 0, 0)
    assert place.has("ABCXYZ") == "ABCXYZ"


def test_a_promoted_copy_that_is_still_below_is_dropped_and_not_moved_again() -> None:
    place = Place(SERVING, cpu=2, nvme=100)
    place.keep("AB")  # one page of two: A is below
    place.live(ask(blocks("A"), output_tokens=0))
    assert place.live(ask(blocks("C"), output_tokens=0)) == [
        "compute 8",
        "spawn",
        "eviction delete A@cpu",
        "prefill write C@cpu",
    ]
    assert place.cache.dropped_last_copies == 0
    assert place.has("A") == "A"


def test_a_prefix_ends_at_the_first_block_that_nobody_has() -> None:
    place = Place(SERVING)
    place.keep("AC")
    said = place.live(ask(blocks("ABCD"), output_tokens=0))
    assert said[0] == "reuse read A@storage"
    assert said[-1] == "prefill write B@storage, prefill write D@storage"
    assert (place.record.looked_up, place.record.hits) == (4, 1)
    assert place.has("ABCD") == "ABCD"


def test_all_blocks_behind_the_prefix_are_computed_also_those_that_are_stored() -> None:
    place = Place(SERVING)
    place.keep("AC")
    said = place.live(ask(blocks("ABCD"), output_tokens=0))
    assert said[1] == "compute 24", "B, C and D: 4 tokens each, 2 ns a token"


def test_a_block_on_the_gpu_is_used_in_place_and_moves_no_bytes() -> None:
    place = Place(SERVING, gpu=10, nvme=100)
    place.keep("AB")
    assert place.live(ask(blocks("AB"), output_tokens=5)) == ["compute 5"]
    assert (place.record.hits, place.record.loaded_bytes, place.record.load_ns) == (2, 0, 0)


def test_what_is_being_stored_behind_is_waited_for_and_neither_missed_nor_stored_again() -> None:
    place = Place(SERVING)
    first = place.begin(ask(blocks("AB"), output_tokens=0))
    first.to_the_end()
    second = place.begin(ask(blocks("ABC"), output_tokens=0))
    assert second.wants == "await announced"
    writer = Hand(place.children.pop(0), place.children)
    assert writer.wants == "prefill write A@storage, prefill write B@storage"
    second.answer()  # a wake-up for nothing: it looks again, and waits for the copy itself
    assert second.wants == "await copy"
    writer.to_the_end()
    second.answer()
    assert second.wants == "reuse read A@storage, reuse read B@storage"
    second.to_the_end()
    assert place.background() == ["prefill write C@storage"]


def test_more_blocks_than_a_batch_are_promoted_and_stored_in_several_steps() -> None:
    place = Place(replace(SERVING, batch_blocks=2), cpu=10, nvme=100)
    place.keep("ABC")
    place.keep("XYZPQ")
    place.keep("DEFGH")
    assert place.has("ABC") == "ABC"
    said = place.live(ask(blocks("ABC"), output_tokens=0))
    moved = [words for words in said if "promotion" in words]
    assert moved == [
        "promotion move A storage>cpu, promotion move B storage>cpu",
        "promotion move C storage>cpu",
    ]
    assert place.record.hits == 3


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "nbytes"), [(1, 0), (0, 5000)])
def test_the_gate_lets_one_store_at_a_time_and_wakes_the_next(slots: int, nbytes: int) -> None:
    place = Place(MLPERF, store_slots=slots, store_bytes=nbytes)
    first, second = (place.begin(ask(blocks(n), output_tokens=0)) for n in "AB")
    for hand in (first, second):
        hand.until("compute")
        hand.answer()
    assert first.wants == "prefill write A@storage"
    assert second.wants == "await gate-0"
    place.cache.signals.drain()
    first.answer()
    assert ("gate-0", 1) in place.cache.signals.drain()
    second.answer()
    assert second.wants == "prefill write B@storage"
    for hand in (first, second):
        hand.to_the_end()
    place.background()


def test_an_object_larger_than_the_bytes_in_flight_goes_alone() -> None:
    place = Place(MLPERF, store_bytes=100)
    assert "prefill write A@storage" in place.live(ask(blocks("A"), output_tokens=0))


def test_the_queue_behind_is_bounded_and_a_full_one_is_waited_for() -> None:
    place = Place(replace(SERVING, batch_blocks=1), behind_slots=1)
    hand = place.begin(ask(blocks("AB"), output_tokens=0))
    hand.until("spawn")
    hand.answer()
    assert hand.wants == "await gate-1"
    Hand(place.children.pop(0), place.children).to_the_end()
    hand.answer()
    assert hand.wants == "spawn"
    hand.to_the_end()
    assert place.background() == ["prefill write B@storage"]
    assert place.world.dropped_stores == 0


def test_blocks_of_2_mib_are_stored_32_at_once_and_take_four_places_of_the_queue() -> None:
    for slots, wanted in ((4, "await gate-1"), (5, "spawn")):
        place = Place(SERVING, behind_slots=slots, nvme=40 * 2 * MIB // PAGE)
        sequence = tuple(Block(content_key(number), 16, 2 * MIB) for number in range(40))
        hand = place.begin(ask(sequence, output_tokens=0))
        hand.until("spawn")
        hand.answer()
        assert hand.wants == wanted
        stores = place.children.pop(0)
        transfer = next(stores)
        assert isinstance(transfer, Transfer)
        assert len(transfer.ops) == 32


def test_a_full_queue_behind_may_drop_stores_and_counts_them() -> None:
    place = Place(replace(SERVING, batch_blocks=1, write_behind_drop=True), behind_slots=1)
    said = place.live(ask(blocks("ABC"), output_tokens=0))
    assert said == ["compute 24", "spawn", "prefill write A@storage"]
    assert place.world.dropped_stores == 2
    assert place.has("ABC") == "A"
    assert place.record.outcome is Outcome.COMPLETED


def test_a_store_waits_for_room_that_a_reader_holds() -> None:
    place = Place(MLPERF, nvme=1)
    place.keep("A")
    reader = place.cache.begin_read(named("A").key)
    assert reader is not None
    hand = place.begin(ask(blocks("B"), output_tokens=0))
    hand.answer()
    assert hand.wants == "await room"
    assert place.world.stores.holders == 0, "who waits holds nothing"
    place.cache.end_read(reader, ok=True)
    hand.answer()
    assert hand.wants == "eviction delete A@storage"
    hand.to_the_end()
    place.background()


def test_a_victims_delete_waits_for_its_reader() -> None:
    place = Place(MLPERF, cpu=2, nvme=100)
    place.keep("A")
    hand = place.begin(ask(blocks("B"), output_tokens=0))
    hand.until("demotion move A cpu>storage")
    reader = place.cache.begin_read(named("A").key)
    assert reader is not None
    assert reader.tier is Tier.CPU, "readable until the lower copy is complete"
    hand.answer()
    assert hand.wants == "await copy"
    assert place.cache.end_read(reader, ok=True) is None, "the plan deletes it, not the reader"
    hand.answer()
    assert hand.wants == "demotion delete A@cpu"
    hand.to_the_end()
    place.background()


# --- what goes wrong -----------------------------------------------------------------------------


def test_decode_only_reads_the_whole_sequence_and_not_only_what_is_new() -> None:
    place = Place(MLPERF, RunMode.DECODE_ONLY)
    place.keep("AB")
    said = place.live(ask(blocks("AB"), new_from=1, output_tokens=1))
    assert said[0] == "decode read A@storage, decode read B@storage"


@pytest.mark.parametrize("mode", [RunMode.STANDARD, RunMode.PREFILL_ONLY])
def test_an_object_that_fits_nowhere_fails_its_request(mode: RunMode) -> None:
    place = Place(MLPERF, mode, cpu=4, nvme=5)
    huge = Block(content_key("huge"), 4, 6 * PAGE)
    assert place.live(ask([huge], output_tokens=1)) == ["compute 8"]
    assert (place.record.outcome, place.record.error) == (Outcome.FAILED, NOWHERE)
    assert (place.record.decoded, place.record.stored_bytes) == (False, 0)


def test_what_fits_is_stored_even_where_another_block_fits_nowhere() -> None:
    place = Place(MLPERF, RunMode.PREFILL_ONLY, nvme=5)
    huge = Block(content_key("huge"), 4, 6 * PAGE)
    assert place.live(ask([huge, *blocks("A")]))[1:] == ["prefill write A@storage"]
    assert place.record.error == NOWHERE


@pytest.mark.parametrize("semantics", [MLPERF, SERVING], ids=["mlperf", "serving"])
def test_a_read_that_failed_is_no_hit_and_fails_the_request(semantics: Semantics) -> None:
    place = Place(semantics)
    place.keep("AB")
    said = place.live(ask(blocks("ABC"), new_from=2), on(Read, OpKind.READ, "A"))
    assert said == [
        "reuse read A@storage, reuse read B@storage",
        "discard delete A@storage",
    ]
    record = place.record
    assert (record.outcome, record.error) == (Outcome.FAILED, "bad-read")
    assert (record.hits, record.loaded_bytes) == (1, PAGE)
    assert place.has("AB") == "B"
    assert place.cache.lost_bytes == PAGE


def test_a_read_that_failed_is_no_hit_of_history_or_of_a_shared_prompt_either() -> None:
    place = Place(MLPERF)
    place.keep("PA")
    place.live(ask(blocks("PAB"), shared=1, new_from=2), on(Read, OpKind.READ))
    record = place.record
    assert (record.hits, record.loaded_bytes) == (0, 0)
    assert (record.history_hits, record.shared_hits, record.shared_hit_bytes) == (0, 0, 0)


def test_a_failed_read_during_generation_ends_it() -> None:
    place = Place(MLPERF)
    said = place.live(ask(blocks("A"), output_tokens=200), on(Read, OpKind.READ))
    assert said[2:] == ["decode read A@storage", "discard delete A@storage"]
    assert (place.record.decode_looked_up, place.record.decode_hits) == (1, 0)
    assert place.record.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("side", "outcome", "hits"), [(OpKind.READ, "failed", 0), (OpKind.WRITE, "completed", 1)]
)
def test_a_promotion_fails_its_request_only_where_the_data_could_not_be_read(
    side: OpKind, outcome: str, hits: int
) -> None:
    place = Place(SERVING, cpu=2, nvme=100)
    place.keep("AB")
    place.live(ask(blocks("A"), output_tokens=0), on(Move, side, "A"))
    assert (place.record.outcome, place.record.hits) == (Outcome(outcome), hits)
    assert place.record.loaded_bytes == hits * PAGE
    assert place.has("A") == "A" * hits


def test_a_write_that_failed_fails_the_request_and_leaves_nothing() -> None:
    place = Place(MLPERF)
    said = place.live(ask(blocks("A")), on(Write, OpKind.WRITE))
    assert said == ["compute 8", "prefill write A@storage"]
    assert (place.record.outcome, place.record.error) == (Outcome.FAILED, "bad-write")
    assert (place.record.stored_bytes, place.has("A"), place.cache.used(Tier.NVME)) == (0, "", 0)


def test_a_write_behind_that_failed_leaves_its_request_alone() -> None:
    place = Place(SERVING)
    hand = place.begin(ask(blocks("A"), output_tokens=0))
    hand.to_the_end()
    Hand(place.children.pop(), place.children, on(Write, OpKind.WRITE)).to_the_end()
    assert hand.record is not None
    assert hand.record.outcome is Outcome.COMPLETED
    assert place.has("A") == ""
    place.background()


def test_room_that_was_not_made_fails_the_store_and_the_bytes_stay_counted() -> None:
    place = Place(MLPERF, nvme=1)
    place.keep("A")
    said = place.live(ask(blocks("B")), on(Delete, OpKind.DELETE))
    assert said == ["compute 8", "eviction delete A@storage"]
    assert (place.record.outcome, place.record.error) == (Outcome.FAILED, ROOM_LOST)
    assert place.cache.ledgers[0].stranded == place.cache.used(Tier.NVME) == PAGE
    place.live(ask(blocks("C")))
    assert place.record.error == NOWHERE


def test_a_demotion_that_failed_loses_its_block_and_lets_the_store_go_on() -> None:
    place = Place(MLPERF, cpu=2, nvme=100)
    place.keep("A")
    place.live(ask(blocks("B"), output_tokens=0), on(Move, OpKind.WRITE, "A"))
    assert place.record.outcome is Outcome.COMPLETED
    assert place.has("AB") == "B"
    assert place.cache.lost_bytes == PAGE


def test_a_request_that_never_lived_has_a_record_without_instants_of_service() -> None:
    record = unstarted(ask(blocks("AB")), 5, Outcome.REJECTED, "queue-full")
    assert (record.outcome, record.error, record.enqueued_ns) == (
        Outcome.REJECTED,
        "queue-full",
        5,
    )
    assert record.started_ns is record.first_token_ns is record.finished_ns is None
    assert record.response_ns is record.queue_ns is record.ttft_ns is None
    assert record.lateness_ns == 5


# --- how blocks are found, as far as the source knows --------------------------------------------


@pytest.mark.parametrize("lookup", [Lookup.CONTENT, Lookup.INDEPENDENT])
def test_content_that_anybody_may_have_left_is_looked_up_block_by_block(lookup: Lookup) -> None:
    place = Place(MLPERF)
    place.keep("B")
    said = place.live(replace(ask(blocks("ABC"), output_tokens=0), lookup=lookup))
    assert "reuse read B@storage" in said
    assert "prefill write A@storage, prefill write C@storage" in said
    record = place.record
    assert (record.looked_up, record.hits, record.hit_tokens) == (3, 1, blocks("B")[0].tokens)


def test_only_what_needs_nothing_before_it_is_of_use_behind_a_gap() -> None:
    for lookup, hits in ((Lookup.TURNS, 0), (Lookup.CONTENT, 0), (Lookup.INDEPENDENT, 1)):
        place = Place(SERVING)
        place.keep("B")
        place.live(replace(ask(blocks("AB"), output_tokens=0), lookup=lookup))
        assert place.record.hits == hits, lookup


def test_an_operation_looks_up_what_it_reads_and_nothing_else() -> None:
    for semantics in (MLPERF, SERVING):
        place = Place(semantics)
        place.keep("A")
        operation = replace(ask(blocks("A"), output_tokens=0), lookup=Lookup.OPERATION)
        place.live(operation)
        assert (place.record.looked_up, place.record.stored_bytes) == (0, 0), "it is there already"
        place.live(replace(operation, new_from=1))
        assert (place.record.looked_up, place.record.hits) == (1, 1)
