"""Replay of a trace whose rows have instants: at its own pace, a multiple of it, or as fast as
they are served.

It is causal: a row that follows another (its session's, or those that it names) is never sent
before that one is answered, however fast the trace is replayed. A cycle ends when its last request
has ended, not when its last row was queued.

Only rows that wait are held in memory: for their instant behind others, or for an answer. Beyond
`MOST_HELD` of them nothing more is read until one goes.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.formats.ids import Recent
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.quota import Counts, one
from kv_cache.workload.row_requests import RowRequests, RowRequestsConfig, shorter
from kv_cache.workload.source import answered_at_once

MOST_HELD = 10_000
MOST_ANSWERS = 100_000  # whose instants are remembered for rows that think after them


class TimeScale(Struct, frozen=True, kw_only=True):
    """Gaps are divided by `speedup` (0 = as fast as served), those between the beginnings of
    sessions by `arrival_scale` too: that many times as many begin in a second, and each is as it
    was."""

    speedup: float = 1.0
    arrival_scale: float = 1.0


class ReplayConfig(TimeScale, frozen=True, kw_only=True):
    """`cycles` 0 = until something else ends the run."""

    requests: RowRequestsConfig
    cycles: int = 0


class Due(NamedTuple):
    """A row of the cycle, and when it is due in it if nothing holds it back."""

    due_ns: int
    row: TraceRow


@dataclass(slots=True, eq=False)
class Waiting:
    """A row that was read, and when it is due; `after` are the ordinals whose answers it waits
    for."""

    ordinal: int
    due_ns: int
    think_ns: int
    names: tuple[str, ...]
    after: set[int] = field(default_factory=set, init=False)

    def delay(self, until_ns: int) -> None:
        self.due_ns = max(self.due_ns, until_ns)


@dataclass(slots=True, eq=False)
class _WaitingRequest(Waiting):
    request: Request


W = TypeVar("W", bound=Waiting)


class AwaitedAnswers(Generic[W]):
    """Which requests wait for which answers."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}  # name -> ordinal of the last with it, until answered
        self._answers: Recent[int] = Recent(MOST_ANSWERS)  # name -> when
        self._waiters: dict[int, list[W]] = {}
        self.held = 0

    def add(self, entry: W, after: tuple[str, ...]) -> bool:
        """Return whether it waits for an answer that has not come; one that has come delays it."""
        for name in after:
            if name in self._open:
                entry.after.add(self._open[name])
            elif (answered_ns := self._answers.get(name)) is not None:
                entry.delay(answered_ns + entry.think_ns)
        for ordinal in entry.after:
            self._waiters.setdefault(ordinal, []).append(entry)
        for name in entry.names:
            self._open[name] = entry.ordinal
        self.held += bool(entry.after)
        return bool(entry.after)

    def answered(self, ordinal: int, names: tuple[str, ...], at_ns: int) -> list[W]:
        """Return the requests for which this was the last answer."""
        for name in names:
            self._answers.put(name, at_ns)
            if self._open.get(name) == ordinal:
                del self._open[name]
        free = []
        for entry in self._waiters.pop(ordinal, ()):
            entry.after.discard(ordinal)
            entry.delay(at_ns + entry.think_ns)
            if not entry.after:
                free.append(entry)
        self.held -= len(free)
        return free


class TraceReplay:
    """`rows` opens the trace anew for each cycle and each plan. `most` is how many rows are sent
    in all (0 = no limit). The first `begun` rows have been answered before it begins."""

    users = None

    def __init__(
        self,
        rows: Callable[[], Iterator[TraceRow]],
        config: ReplayConfig,
        seed: Seed,
        facts: Mapping[str, Any],
        most: int = 0,
        counts: Counts = one,
        begun: int = 0,
    ) -> None:
        self._open = rows
        self._config = config
        self._seed = seed
        self._facts = facts
        self._most = most
        self._counts = counts
        self._counted = 0  # of `most`: each request with what is sent beside it
        self._read = 0  # rows, in all cycles
        self._popped = 0
        self._cycle = -1
        self._ended = False
        self._cycles_ended = self._held_back = 0
        self._noted: Counter[str] = Counter()
        self._ready: list[tuple[int, int, _WaitingRequest]] = []
        self._awaited: AwaitedAnswers[_WaitingRequest] = AwaitedAnswers()
        self._unanswered: dict[int, _WaitingRequest] = {}  # by request id
        self._begun = begun
        self._advance(0)
        for _ in range(begun):
            request = self.pop(0)
            self.after(request, 0)
            self._counted -= counts(request) if most else 0
        self._popped = 0

    @property
    def on_demand(self) -> bool:
        return self._config.speedup == 0

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._unanswered

    def next_ns(self) -> int | None:
        return self._ready[0][0] if self._ready else None

    def pop(self, now_ns: int) -> Request:
        assert self._ready, "pop without an arrival"
        _, _, entry = heapq.heappop(self._ready)
        request = entry.request
        intended_ns = now_ns if self.on_demand else entry.due_ns
        if (request.request_id, request.intended_ns) != (self._popped, intended_ns):
            request = replace(request, request_id=self._popped, intended_ns=intended_ns)
        self._unanswered[self._popped] = entry
        self._popped += 1
        self._fill()
        return request

    def after(self, request: Request, finished_ns: int) -> None:
        entry = self._unanswered.pop(request.request_id)
        for free in self._awaited.answered(entry.ordinal, entry.names, finished_ns):
            self._push(free)
        self._fill()
        if not self._ready and not self._unanswered and not self._ended:
            assert not self._awaited.held, "rows wait for answers that will not come"
            self._cycles_ended += self._head is None
            self._advance(finished_ns)

    def resize(self, users: int, now_ns: int) -> None:
        raise AssertionError("the users of a trace are fixed")

    def plan(self) -> Iterator[Request]:
        """Walk the cycles in planned time: each begins where the one before had its last
        arrival."""
        yield from answered_at_once(
            TraceReplay(
                self._open, self._config, self._seed, {}, self._most, self._counts, self._begun
            )
        )

    def describe(self) -> Mapping[str, Any]:
        return {
            "source": "trace",
            **self._facts,
            "speedup": self._config.speedup,
            "arrival_scale": self._config.arrival_scale,
            "cycles": self._config.cycles,
            "cycles_ended": self._cycles_ended,
            "prefix_information": bool(self._config.requests.trace_block_tokens),
            **self._requests.facts(),
            "arrivals_read_late": self._held_back,
        }

    def _advance(self, origin_ns: int) -> None:
        if self._full or (self._config.cycles and self._cycle + 1 >= self._config.cycles):
            self._ended = True
            return
        self._cycle += 1
        self._origin_ns = origin_ns
        draws = self._seed.child("qos", self._cycle)
        self._requests = RowRequests(self._config.requests, self._cycle, draws, self._noted)
        self._awaited = AwaitedAnswers()
        self._rows = paced(self._open(), self._config)
        self._head = next(self._rows, None)
        self._fill()

    @property
    def _full(self) -> bool:
        return bool(self._most) and self._counted >= self._most

    def _fill(self) -> None:
        """Read as far as a row may be due before what is ready."""
        while self._head is not None and not self._full and self._wants(self._head):
            due = self._head
            self._head = next(self._rows, None)
            entry, after = self._entry(due)
            self._read += 1
            self._counted += self._counts(entry.request) if self._most else 0
            if not self._awaited.add(entry, after):
                self._push(entry)

    def _wants(self, head: Due) -> bool:
        if not self._ready:
            return self._awaited.held < MOST_HELD
        if self._origin_ns + earliest_ns(head.row, self._config) >= self._ready[0][0]:
            return False
        full = self._awaited.held + len(self._ready) >= MOST_HELD
        self._held_back += full and head.due_ns + self._origin_ns < self._ready[0][0]
        return not full

    def _push(self, entry: _WaitingRequest) -> None:
        heapq.heappush(self._ready, (entry.due_ns, entry.ordinal, entry))

    def _entry(self, due: Due) -> tuple[_WaitingRequest, tuple[str, ...]]:
        row = due.row
        goes_on = self._requests.goes_on(row)
        due_ns = self._origin_ns + due.due_ns
        request = self._requests.request(row, self._read, due_ns, goes_on=goes_on)
        think_ns = shorter(row.think_ns or 0, self._config.speedup)
        names, after = linked(row)
        return _WaitingRequest(self._read, due_ns, think_ns, names, request), after


def linked(row: TraceRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a row, and of the rows whose answers it waits for."""
    if row.name is None and row.session is not None and not row.after:
        # The rows of a session follow each other; its name is apart from those of rows.
        names: tuple[str, ...] = (f"session {row.session}",)
        return names, names
    names = (f"row {row.name}",) if row.name is not None else ()
    return names, tuple(f"row {name}" for name in row.after)


def paced(rows: Iterator[TraceRow], config: TimeScale) -> Iterator[Due]:
    """Yield when each row is due. If sessions begin denser than in the trace, the beginnings of the
    last `MOST_ANSWERS` sessions with a row are remembered."""
    begun: Recent[int] = Recent(MOST_ANSWERS)
    for row in rows:
        if config.arrival_scale == 1 or row.session is None:
            yield Due(_scaled(row.at_ns, row.at_ns, config), row)
            continue
        known_ns = begun.get(row.session)
        begin_ns = row.at_ns if known_ns is None else known_ns
        begun.put(row.session, begin_ns)
        yield Due(_scaled(begin_ns, row.at_ns, config), row)


def _scaled(begin_ns: int, at_ns: int, config: TimeScale) -> int:
    """Return when a row at `at_ns` of the trace is due whose session begins there at `begin_ns`."""
    return shorter(begin_ns, config.speedup * config.arrival_scale) + shorter(
        at_ns - begin_ns, config.speedup
    )


def earliest_ns(row: TraceRow, config: TimeScale) -> int:
    """Return an instant before which no row behind `row` in the trace is due."""
    return shorter(row.at_ns, config.speedup * max(1.0, config.arrival_scale))
