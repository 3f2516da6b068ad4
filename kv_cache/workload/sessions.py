"""Replay of sessions: conversations and agents, some at a time, each at the pace of its answers.

A user takes a session, sends its first row at once, each other row when the answers that it waits
for have come and the user (or the agent's tools) has thought, and takes the next session when the
last one is answered. What a session asks for does not depend on how fast it is served. A cycle
ends when its last session has ended.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.quota import Counts, Quota, one
from kv_cache.workload.row_requests import RowRequests, RowRequestsConfig, shorter
from kv_cache.workload.source import answered_at_once


class SessionsConfig(Struct, frozen=True, kw_only=True):
    """`users` sessions go on at the same time; times in them are divided by `speedup` (0 = no
    times). `cycles` 0 = until something else ends the run."""

    requests: RowRequestsConfig
    users: int
    speedup: float = 1.0
    cycles: int = 0


class PlannedRow(Struct, eq=False):
    """One row of an open session; its request is made when it is sent. `at_ns` counts from the
    session's start, and only if `think_ns` is not known."""

    row: TraceRow
    goes_on: bool
    ordinal: int
    at_ns: int
    think_ns: int | None
    after: set[int]


class RowSession(Struct, eq=False):
    """One open session and the order of its rows."""

    begin_ns: int
    planned: list[PlannedRow]
    waiting: dict[int, list[int]] = field(default_factory=dict)  # row -> rows that wait for it
    left: int = 0

    def __post_init__(self) -> None:
        self.left = len(self.planned)
        for index, planned in enumerate(self.planned):
            for before in planned.after:
                self.waiting.setdefault(before, []).append(index)

    def first(self) -> list[tuple[int, int]]:
        """Return (instant, row) of those that wait for no answer."""
        return [
            (self.begin_ns + planned.at_ns, index)
            for index, planned in enumerate(self.planned)
            if not planned.after
        ]

    def answered(self, index: int, at_ns: int) -> list[tuple[int, int]]:
        """Return (instant, row) of those for which this was the last answer."""
        self.left -= 1
        free = []
        for other in self.waiting.pop(index, ()):
            planned = self.planned[other]
            planned.after.discard(index)
            if not planned.after:
                free.append((self._when(planned, at_ns), other))
        return free

    def _when(self, planned: PlannedRow, answered_ns: int) -> int:
        if planned.think_ns is not None:
            return answered_ns + planned.think_ns
        return max(answered_ns, self.begin_ns + planned.at_ns)


class SessionReplay:
    """`rows` opens the trace anew for each cycle and each plan. `most` is how many rows are sent
    in all (0 = no limit): the first of the plan."""

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
        self._requests = RowRequests(config.requests, 0, seed, self._counted)
        self._cycle = -1
        self._ended = False
        self._whole = True  # every row of this cycle was sent
        self._going = 0
        self._ready: list[tuple[int, int, int, RowSession]] = []
        self._unanswered: dict[int, tuple[RowSession, int]] = {}

    @property
    def exhausted(self) -> bool:
        self._start()
        return self._ended and not self._ready and not self._unanswered

    def next_ns(self) -> int | None:
        self._start()
        return self._ready[0][0] if self._ready else None

    def _start(self) -> None:
        """Read the first sessions, not before they are needed: a plan does without them."""
        if self._cycle < 0 and not self._ended:
            self._advance(0)

    def pop(self, now_ns: int) -> Request:
        self._start()
        intended_ns, _, index, session = heapq.heappop(self._ready)
        request = self._request(session.planned[index], index, intended_ns)
        self._unanswered[self._popped] = (session, index)
        self._popped += 1
        return request

    def _request(self, planned: PlannedRow, index: int, intended_ns: int) -> Request:
        """Make a request; those of a session are made in order, so that its history grows."""
        request = self._requests.request(
            planned.row, planned.ordinal, intended_ns, goes_on=planned.goes_on
        )
        turn = index + 1 if planned.row.request is None else request.turn
        return replace(request, request_id=self._popped, turn=turn)

    def after(self, request: Request, finished_ns: int) -> None:
        session, index = self._unanswered.pop(request.request_id)
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
        raise AssertionError("the users of a trace are fixed")

    def plan(self) -> Iterator[Request]:
        """Walk the sessions, each answered at once: the order that `most` and the digest go by."""
        yield from answered_at_once(SessionReplay(self._open, self._config, self._seed, {}))

    def describe(self) -> Mapping[str, Any]:
        return {
            "source": "sessions",
            **self._facts,
            "users": self._config.users,
            "speedup": self._config.speedup,
            "cycles": self._config.cycles,
            "cycles_ended": self._cycles_ended,
            "sessions_begun": self._begun,
            "prefix_information": bool(self._config.requests.trace_block_tokens),
            **self._requests.facts(),
        }

    def _advance(self, origin_ns: int) -> None:
        """Begin the next cycle that has any request."""
        while not self._going and not self._ended:
            if self._config.cycles and self._cycle + 1 >= self._config.cycles:
                self._ended = True
                return
            self._cycle += 1
            draws = self._seed.child("qos", self._cycle)
            self._requests = RowRequests(self._config.requests, self._cycle, draws, self._counted)
            self._sessions = groupby(self._open(), key=lambda row: row.session)
            self._whole = True
            for _ in range(self._config.users):
                self._begin(origin_ns)
            self._ended = not self._going

    def _begin(self, now_ns: int) -> None:
        """Let a user take the next session that has any request."""
        if self._quota is not None and self._quota.spent:
            self._whole &= next(self._sessions, None) is None
            return
        for _, rows in self._sessions:
            planned = self._planned_rows(list(rows))
            if not planned:
                continue
            session = RowSession(now_ns, planned)
            self._going += 1
            self._begun += 1
            for at_ns, index in session.first():
                self._push(at_ns, index, session)
            return

    def _push(self, at_ns: int, index: int, session: RowSession) -> None:
        heapq.heappush(self._ready, (at_ns, self._ordinal, index, session))
        self._ordinal += 1

    def _planned_rows(self, rows: list[TraceRow]) -> list[PlannedRow]:
        speedup = self._config.speedup
        named: dict[str, int] = {}
        planned: list[PlannedRow] = []
        for index, row in enumerate(rows):
            if self._quota is not None and not self._quota.take(_user(row)):
                self._whole = False
                break
            planned.append(
                PlannedRow(
                    row=row,
                    goes_on=self._requests.goes_on(row),
                    ordinal=self._read,
                    at_ns=shorter(row.at_ns, speedup),
                    think_ns=None if row.think_ns is None else shorter(row.think_ns, speedup),
                    after=rows_before(row, index, named),
                )
            )
            self._read += 1
            if row.name is not None:
                named[row.name] = index
        return planned


def _user(row: TraceRow) -> str:
    """Return the session, or the user of a recorded run's request."""
    return row.session or "" if row.request is None else row.request.user


def rows_before(row: TraceRow, index: int, named: Mapping[str, int]) -> set[int]:
    """Return the rows of its session that a row waits for: those it names, or else the one before
    it. A row that has a name and names no other begins with the session."""
    if row.after:
        return {named[name] for name in row.after if name in named}
    return {index - 1} if index and row.name is None else set()
