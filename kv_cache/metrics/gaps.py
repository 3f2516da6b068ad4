"""Gaps: times in which storage was asked and nothing came back.

A gap is a time in which no system call of the engine ended while some were in flight, and the byte
counters of the device stood still. Its length is taken from the instants at which calls ended; the
looks at the counters only say where bytes moved after all, and where none was taken: what a late
look leaves unseen is no gap, but the harness's own lag (V25).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kv_cache.core.units import NS_PER_MS, NS_PER_S, ns_to_s

LEAST_NS = NS_PER_S
"""What is shorter is no gap."""
LATE_NS = 500 * NS_PER_MS
"""Between two looks at the counters, at most."""
KEPT = 1000
"""Gaps that a result lists, the longest ones."""


class Silence(NamedTuple):
    """No call ended between the two instants, and all that time some were in flight."""

    start_ns: int
    end_ns: int


class Stretch(NamedTuple):
    """Looks from `start_ns` to `end_ns` saw the counters stand still. They last moved after
    `before_ns`, and next before `after_ns`."""

    before_ns: int
    start_ns: int
    end_ns: int
    after_ns: int


class Gap(NamedTuple):
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


class Stillness:
    """Stretches in which a counter stood still, out of looks at it."""

    def __init__(self) -> None:
        self._closed: list[Stretch] = []
        self._before_ns = self._start_ns = self._last_ns = 0
        self._counted: int | None = None
        self._begun = False

    def look(self, at_ns: int, counted: int | None) -> None:
        """`counted` is None where there is no counter: then all of the time may be a gap."""
        late = not self._begun or at_ns - self._last_ns > LATE_NS
        if late or counted != self._counted:
            if self._begun:
                self._close(self._last_ns if late else at_ns)
            self._before_ns = at_ns if late else self._last_ns
            self._start_ns, self._begun = at_ns, True
        self._last_ns, self._counted = at_ns, counted

    def stretches(self) -> list[Stretch]:
        """Return those that are long enough for a gap, in order; the last one may go on."""
        last = Stretch(self._before_ns, self._start_ns, self._last_ns, self._last_ns)
        return [*self._closed, last] if self._begun else []

    def _close(self, after_ns: int) -> None:
        if after_ns - self._before_ns >= LEAST_NS:
            self._closed.append(Stretch(self._before_ns, self._start_ns, self._last_ns, after_ns))


def find_gaps(
    silences: Sequence[Silence], stretches: Sequence[Stretch], start_ns: int, end_ns: int
) -> list[Gap]:
    """Return the gaps between two instants. `stretches` are in order."""
    ends = [stretch.after_ns for stretch in stretches]
    gaps: list[Gap] = []
    for silence in _apart(silences):
        for stretch in stretches[bisect_right(ends, silence.start_ns) :]:
            if stretch.before_ns >= silence.end_ns:
                break
            begin, end = _common(silence, stretch)
            gap = Gap(max(begin, start_ns), min(end, end_ns))
            if gap.length_ns >= LEAST_NS:
                gaps.append(gap)
    return gaps


def _apart(silences: Sequence[Silence]) -> Iterator[Silence]:
    """Drop silences that overlap: two threads whose calls end at the same instant may both report
    the silence before."""
    latest: Silence | None = None
    for silence in sorted(silences):
        if latest is None or silence.start_ns >= latest.end_ns:
            latest = silence
            yield silence


def _common(silence: Silence, stretch: Stretch) -> tuple[int, int]:
    """Return the time that a silence and a stretch have in common. A movement between the same two
    looks as an edge of the silence is that of the call that ended there."""
    begin, end = silence
    return (
        begin if begin >= stretch.before_ns else stretch.start_ns,
        end if end <= stretch.after_ns else stretch.end_ns,
    )


def gap_rows(gaps: Sequence[Gap], start_ns: int) -> list[dict[str, Any]]:
    """Return the gaps as a result lists them, in order: seconds since `start_ns`, and their
    length."""
    longest = sorted(gaps, key=lambda gap: gap.length_ns, reverse=True)[:KEPT]
    return [
        {"at_s": ns_to_s(gap.start_ns - start_ns), "seconds": ns_to_s(gap.length_ns)}
        for gap in sorted(longest)
    ]
