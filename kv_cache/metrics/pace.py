"""How evenly storage moved its bytes during the measured window, and the interval that follows.

The bytes of a system call are spread evenly over its time. Booked where calls end, they come in
bursts: sixteen calls of 16 MiB in flight at 200 MB/s end together once in 1.3 s, though the device
never stood still. Apart from that the sums are the ledger's: what a call moved before the window,
and what one that ended after it moved within, are kept beside the batches.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, fsum
from typing import Any, NamedTuple

from msgspec import Struct

from kv_cache.core.effect import EndedLegs, IoChunk
from kv_cache.core.kinds import OpKind, RunMode
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.change import LevelChange, change
from kv_cache.metrics.intervals import CONFIDENCE, LEAST_BATCHES, Batches, Interval, grown

SLOT_NS = NS_PER_S // 4
MOST_SLOTS = 1024
"""Of a longer window, neighbours are put together two by two, as often as it takes."""

MOST_BATCHES = 128
_LEAST_S = 8.0
_SHORTEST_S = 1e-9
_LEAST_CALLS = 2  # mean times of a call that a batch lasts: a shorter one is smoothed by the spread

KINDS = (OpKind.READ, OpKind.WRITE)
MEASURED: Mapping[str, tuple[OpKind, ...]] = {
    RunMode.STANDARD: KINDS,
    RunMode.PREFILL_ONLY: (OpKind.WRITE,),
    RunMode.DECODE_ONLY: (OpKind.READ,),
}
"""The sides of storage that a mode is there to measure."""


class _Direction:
    __slots__ = ("after", "before", "call_byte_ns", "nbytes", "slots")

    def __init__(self) -> None:
        self.slots = array("q", bytes(8 * MOST_SLOTS))
        self.nbytes = 0  # of calls that ended in the window
        self.before = 0  # what they moved before it
        self.after = 0  # what calls that ended after it moved within
        self.call_byte_ns = 0  # bytes times the time of their call

    def join(self) -> None:
        """Slots of twice the length."""
        slots = self.slots
        for i in range(MOST_SLOTS // 2):
            slots[i] = slots[2 * i] + slots[2 * i + 1]
        slots[MOST_SLOTS // 2 :] = array("q", bytes(4 * MOST_SLOTS))


class BytesOverTime:
    """Bytes of storage by time since the window opened."""

    def __init__(self) -> None:
        self._slot_ns = SLOT_NS
        self._sides = {kind: _Direction() for kind in KINDS}

    def call(self, kind: OpKind, call: IoChunk, began: int, start: int, end: int | None) -> None:
        """Spread one call over the slots that it lasted in, to the last byte. It ended in the
        window that opened at `start` or in the drain; `end` is None while that is not known."""
        ended, nbytes = call
        began = min(began, ended - 1)
        if end is not None and began >= end:
            return
        side, length = self._sides[kind], ended - began
        at, last = max(began, start), ended if end is None else min(ended, end)
        booked = before = nbytes * (at - began) // length
        while at < last:
            slot = self._slot(at - start)
            at = min(last, start + (slot + 1) * self._slot_ns)
            now = nbytes * (at - began) // length
            side.slots[slot] += now - booked
            booked = now
        if ended > last:
            side.after += booked - before
            return
        side.nbytes += nbytes
        side.before += before
        side.call_byte_ns += nbytes * length

    def calls(self, kind: OpKind, legs: EndedLegs, start: int, end: int | None) -> None:
        """As `call` of each: at once where one lies in a slot of the window."""
        last = max(legs.ended_ns)
        within = last > start and (end is None or last <= end)
        if within:
            self._slot(last - start - 1)  # from here on slots stay as long as they are
        within = within and min(legs.began_ns) >= start
        side, slot_ns, nbytes, byte_ns = self._sides[kind], self._slot_ns, 0, 0
        slots, sizes = side.slots, [ref.nbytes for ref in legs.refs]
        for ended, began, size in zip(legs.ended_ns, legs.began_ns, sizes, strict=True):
            slot = (ended - 1 - start) // slot_ns
            if within and (began - start) // slot_ns == slot:
                slots[slot] += size
                nbytes += size
                byte_ns += (ended - began or 1) * size
            else:
                self.call(kind, IoChunk(ended, size), began, start, end)
        side.nbytes += nbytes
        side.call_byte_ns += byte_ns

    def _slot(self, since_ns: int) -> int:
        while since_ns // self._slot_ns >= MOST_SLOTS:
            self._slot_ns *= 2
            for side in self._sides.values():
                side.join()
        return since_ns // self._slot_ns

    def read(self, window_ns: int, kinds: Sequence[OpKind]) -> "MovedBytes":
        """Return what these sides of storage moved in a window that is over."""
        sides = [self._sides[kind] for kind in kinds]
        nbytes = sum(side.nbytes for side in sides)
        byte_ns = sum(side.call_byte_ns for side in sides)
        call_s = byte_ns / nbytes / NS_PER_S if nbytes else 0.0
        count = batch_count(window_ns / NS_PER_S, call_s)
        slots = ceil(window_ns / self._slot_ns)
        cuts = [round(i * slots / count) for i in range(count + 1)] if count else []
        return MovedBytes(
            nbytes=nbytes,
            before_bytes=sum(side.before for side in sides),
            after_bytes=sum(side.after for side in sides),
            call_s=call_s,
            batches=tuple(
                Batch(
                    (min(b * self._slot_ns, window_ns) - a * self._slot_ns) / NS_PER_S,
                    sum(sum(side.slots[a:b]) for side in sides),
                )
                for a, b in pairwise(cuts)
            ),
        )


class Batch(NamedTuple):
    """A part of the window and what was moved in it."""

    seconds: float
    nbytes: int


class MovedBytes(Struct, frozen=True, kw_only=True):
    """`nbytes` is the ledger's, by the ends of calls: the batches' sum + `before_bytes` -
    `after_bytes`. There are no batches where they would be too few or too short."""

    nbytes: int
    before_bytes: int
    after_bytes: int
    call_s: float
    batches: tuple[Batch, ...]

    def interval(self, seconds: float) -> Interval | None:
        """Of the window's bytes a second, around the ledger's: Student's t over the batches, and
        what the two edges of the window leave open. Never below 0."""
        if seconds < _SHORTEST_S or not self.nbytes:
            return None
        batches = self.grown()
        if batches is None:
            return None
        reach = batches.reach() + abs(self.after_bytes - self.before_bytes) / seconds
        rate = self.nbytes / seconds
        return Interval(max(0.0, rate - reach), rate + reach)

    def grown(self) -> Batches | None:
        """The rates of batches that are long enough to hardly depend on each other."""
        return grown(self._rates())

    def change(self) -> LevelChange | None:
        """Return where the level of the rate changed, if it did."""
        return change(self._rates())

    def _rates(self) -> list[float]:
        if any(batch.seconds < _SHORTEST_S for batch in self.batches):
            return []
        return [batch.nbytes / batch.seconds for batch in self.batches]

    def why_none(self) -> str:
        """Return why there is no interval."""
        if not self.nbytes:
            return "nothing was moved"
        if not self.batches:
            return f"an interval needs a window of {ceil(_least_s(self.call_s))} s"
        return "the rate drifts: its batches depend on each other"


def _least_s(call_s: float) -> float:
    return max(_LEAST_S, LEAST_BATCHES * _LEAST_CALLS * call_s)


def batch_count(window_s: float, call_s: float) -> int:
    """As many parts as hold a slot and two calls each, at most 128; 0 of a window of less than 8 s,
    or where they would be fewer than 8."""
    if window_s < _least_s(call_s):
        return 0
    return min(MOST_BATCHES, int(window_s / max(SLOT_NS / NS_PER_S, _LEAST_CALLS * call_s)))


METRIC: Mapping[tuple[OpKind, ...], str] = {
    KINDS: "storage.bytes_per_second",
    (OpKind.READ,): "storage.read.bytes_per_second",
    (OpKind.WRITE,): "storage.write.bytes_per_second",
}


def headline(mode: RunMode, seconds: float, paced: MovedBytes) -> dict[str, Any]:
    """Return the number that a run of this mode is there for, and its interval, as a result tells
    it."""
    interval, batches, step = paced.interval(seconds), paced.grown(), paced.change()
    return {
        "metric": METRIC[MEASURED[mode]],
        "bytes_per_second": paced.nbytes / seconds if seconds > 0 else 0.0,
        "within_run": None
        if interval is None
        else {"confidence": CONFIDENCE, **interval._asdict()},
        "why_none": paced.why_none() if interval is None else None,
        "standard_error": None if batches is None else batches.error,
        "change": step
        and {
            "at_s": step.at * sum(batch.seconds for batch in paced.batches),
            "bytes_per_second_before": step.before,
            "bytes_per_second_after": step.after,
            "t": step.t,
        },
        "seconds": seconds,
        "bytes": paced.nbytes,
        "before_bytes": paced.before_bytes,
        "after_bytes": paced.after_bytes,
        "call_s": paced.call_s,
        "batches": [[batch.seconds, batch.nbytes] for batch in paced.batches],
    }


def together(several: Sequence[tuple[float, MovedBytes]]) -> tuple[float, MovedBytes]:
    """Return the windows (seconds) of ranks that ran at the same time as one: rates add up, of the
    whole and of each batch. No batches where the ranks have not equally many."""
    if len(several) == 1:
        return several[0]
    seconds, nbytes = _added([(seconds, paced.nbytes) for seconds, paced in several])
    counts = {len(paced.batches) for _, paced in several}
    rows = zip(*(paced.batches for _, paced in several), strict=True) if len(counts) == 1 else ()
    return seconds, MovedBytes(
        nbytes=nbytes,
        before_bytes=sum(paced.before_bytes for _, paced in several),
        after_bytes=sum(paced.after_bytes for _, paced in several),
        call_s=max((paced.call_s for _, paced in several), default=0.0),
        batches=tuple(Batch(*_added(row)) for row in rows),
    )


def _added(parts: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """Return the bytes added up, and the seconds in which they have the sum of the parts' rates."""
    nbytes = sum(part for _, part in parts)
    rate = fsum(part / seconds for seconds, part in parts if seconds > 0)
    return (nbytes / rate if rate else max((s for s, _ in parts), default=0.0)), nbytes
