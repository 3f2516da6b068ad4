"""Replay of sessions: conversations and agents, so many at a time, each asked as it was answered.

A user takes a session, asks its first row at once, each other row when the answers that it waits
for have come and the user (or the agent's tools) has thought, and takes the next session when the
last one is answered. What a session asks does not depend on how fast anybody is served. A cycle
ends when its last session has ended.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.quota import Counts, Quota, one
from kv_cache.workload.row_requests import Asking, AskingConfig, shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsConfig:
    """`users` sessions go on at the same time; times in them are divided by `speedup` (0 = nobody
    thinks). `cycles` 0 = until something else ends the run."""

    asking: AskingConfig
    users: int
    speedup: float = 1.0
    cycles: int = 0


@dataclass(slots=True, eq=False)
class RowAsk:
    """One row of a session that goes on; its request is made when it is asked. Its own time counts
    only where it does not say how long was thought before it."""

    row: TraceRow
    goes_on: bool
    ordinal: int
    own_ns: int
    think_ns: int | None
    after: set[int]


@dataclass(slots=True, eq=False)
class RowSession:
    """One session: what it has not asked yet, and what is not answered."""

    begin_ns: int
    asks: list[RowAsk]
    waiting: dict[int, list[int]] = field(default_factory=dict)  # ask -> asks that wait for it
    left: int = 0

    def __post_init__(self) -> None:
        self.left = len(self.asks)
        for index, ask in enumerate(self.asks):
            for before in ask.after:
                self.waiting.setdefault(before, []).append(index)

    def first(self) -> list[tuple[int, int]]:
        """(instant, ask) of those that wait for nobody."""
        return [
            (self.begin_ns + ask.own_ns, index)
            for index, ask in enumerate(self.asks)
            if not ask.after
        ]

    def answered(self, index: int, at_ns: int) -> list[tuple[int, int]]:
        """(instant, ask) of those that waited for this answer last."""
        self.left -= 1
        free = []
        for other in self.waiting.pop(index, ()):
            ask = self.asks[other]
            ask.after.discard(index)
            if not ask.after:
                free.append((self._when(ask, at_ns), other))
        return free

    def _when(self, ask: RowAsk, answered_ns: int) -> int:
        if ask.think_ns is not None:
            return answered_ns + ask.think_ns
        return max(answered_ns, self.begin_ns + ask.own_ns)


class SessionReplay:
    """`rows` opens the trace anew for each cycle and each plan. `most` is how many rows are asked
    in all (0 = no limit): the first so many of the plan."""

    on_demand = False
    users = None

    def __init__(
        self,
        rows: Callable[[], Iterator[TraceRow]],
        config: SessionsConfig,
        seed: Seed,
        facts: Mapping[str, Any],
        most: int = 0,
        counts: Counts = one,
    ) -> None:
        self._open = rows
        self._config = config
        self._seed = seed
        self._facts = facts
        self._quota = Quota(self.plan(), most, counts) if most else None
        self._popped = self._read = self._begun = self._ordinal = self._cycles_ended = 0
        self._counted: Counter[str] = Counter()
        self._asking = Asking(config.asking, 0, seed, self._counted)
        self._cycle = -1
        self._ended = False
        self._whole = True  # every row of this cycle was asked
        self._going = 0
        self._ready: list[tuple[int, int, int, RowSession]] = []
        self._asked: dict[int, tuple[RowSession, int]] = {}

    @property
    def exhausted(self) -> bool:
        self._start()
        return self._ended and not self._ready and not self._asked

    def next_ns(self) -> int | None:
        self._start()
        return self._ready[0][0] if self._ready else None

    def _start(self) -> None:
        """The first sessions are read when somebody looks: a plan is had without them."""
        if self._cycle < 0 and not self._ended:
            self._advance(0)

    def pop(self, now_ns: int) -> Request:
        self._start()
        intended_ns, _, index, session = heapq.heappop(self._ready)
        request = self._request(session.asks[index], index, intended_ns)
        self._asked[self._popped] = (session, index)
        self._popped += 1
        return request

    def _request(self, ask: RowAsk, index: int, intended_ns: int) -> Request:
        """A session's turns are asked in order, so that its history grows as it goes on."""
        request = self._asking.request(ask.row, ask.ordinal, intended_ns, goes_on=ask.goes_on)
        turn = index + 1 if ask.row.request is None else request.turn
        return replace(request, request_id=self._popped, turn=turn)

    def after(self, request: Request, finished_ns: int) -> None:
        session, index = self._asked.pop(request.request_id)
        for at_ns, other in session.answered(index, finished_ns):
            self._push(at_ns, other, session)
        if session.left:
            return
        self._going -= 1
        self._begin(finished_ns)
        if not self._going:
            self._cycles_ended += self._whole
            self._advance(finished_ns)

    def resize(self, users: int, now_ns: int) -> None:
        raise AssertionError("a trace says itself who asks")

    def plan(self) -> Iterator[Request]:
        """Every session answered at once: the order that `most` and the digest go by."""
        planned = SessionReplay(self._open, self._config, self._seed, {})
        while planned.next_ns() is not None:
            request = planned.pop(0)
            planned.after(request, request.intended_ns)
            yield request

    def describe(self) -> Mapping[str, Any]:
        return {
            "source": "sessions",
            **self._facts,
            "users": self._config.users,
            "speedup": self._config.speedup,
            "cycles": self._config.cycles,
            "cycles_ended": self._cycles_ended,
            "sessions_begun": self._begun,
            "prefix_information": bool(self._config.asking.trace_block_tokens),
            **self._asking.facts(),
        }

    def _advance(self, origin_ns: int) -> None:
        """The next cycle that has anything to ask."""
        while not self._going and not self._ended:
            if self._config.cycles and self._cycle + 1 >= self._config.cycles:
                self._ended = True
                return
            self._cycle += 1
            draws = self._seed.child("qos", self._cycle)
            self._asking = Asking(self._config.asking, self._cycle, draws, self._counted)
            self._sessions = groupby(self._open(), key=lambda row: row.session)
            self._whole = True
            for _ in range(self._config.users):
                self._begin(origin_ns)
            self._ended = not self._going

    def _begin(self, now_ns: int) -> None:
        """A user takes the next session that has anything to ask."""
        if self._quota is not None and self._quota.spent:
            self._whole &= next(self._sessions, None) is None
            return
        for _, rows in self._sessions:
            asks = self._asks(list(rows))
            if not asks:
                continue
            session = RowSession(now_ns, asks)
            self._going += 1
            self._begun += 1
            for at_ns, index in session.first():
                self._push(at_ns, index, session)
            return

    def _push(self, at_ns: int, index: int, session: RowSession) -> None:
        heapq.heappush(self._ready, (at_ns, self._ordinal, index, session))
        self._ordinal += 1

    def _asks(self, rows: list[TraceRow]) -> list[RowAsk]:
        speedup = self._config.speedup
        named: dict[str, int] = {}
        asks: list[RowAsk] = []
        for index, row in enumerate(rows):
            if self._quota is not None and not self._quota.take(_user(row)):
                self._whole = False
                break
            asks.append(
                RowAsk(
                    row=row,
                    goes_on=self._asking.goes_on(row),
                    ordinal=self._read,
                    own_ns=shorter(row.at_ns, speedup),
                    think_ns=None if row.think_ns is None else shorter(row.think_ns, speedup),
                    after=rows_before(row, index, named),
                )
            )
            self._read += 1
            if row.name is not None:
                named[row.name] = index
        return asks


def _user(row: TraceRow) -> str:
    """Who asks it: the session, where it is not what a recorded run asked."""
    return row.session or "" if row.request is None else row.request.user


def rows_before(row: TraceRow, index: int, named: Mapping[str, int]) -> set[int]:
    """The rows of its session that a row waits for: those it names, or else the one before it. A
    row that has a name and names nobody begins with the session."""
    if row.after:
        return {named[name] for name in row.after if name in named}
    return {index - 1} if index and row.name is None else set()
