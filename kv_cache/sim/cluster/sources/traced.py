"""Traces: their rows as the benchmark replays them, with the content that they say they share.

Rows with instants come at those, but never before the answers that they wait for; the sessions of
a grouped format begin as drawn ones do, and go on as they are answered.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, groupby, islice

from kv_cache.config.scenario import WorkloadSection
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.sources.content import Content
from kv_cache.sim.cluster.sources.draws import arrival_gaps
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.replay import (
    AwaitedAnswers,
    Due,
    TimeScale,
    Waiting,
    earliest_ns,
    linked,
    paced,
)
from kv_cache.workload.row_requests import Continuations
from kv_cache.workload.sessions import PlannedRow, RowSession, rows_before

RequestIds = dict[int, str]
"""What the trace calls a request, by its number, from when it is asked on."""


@dataclass(slots=True, eq=False)
class _Entry(Waiting):
    row: TraceRow
    goes_on: bool


class TracedRows:
    """Rows in the order of their instants, or in the order in which they are asked where
    they have none (`timed` false): then they begin as single requests do."""

    def __init__(
        self,
        rows: Iterable[TraceRow],
        work: WorkloadSection,
        content: Content,
        seed: Seed,
        *,
        timed: bool,
        ids: RequestIds | None = None,
    ) -> None:
        self._rows = islice(rows, work.requests)
        self._content = content
        self._scale = TimeScale(arrival_scale=work.arrival_scale)
        self._arrivals = None if timed else arrivals(work, seed)
        self._ids = ids
        self._courses = Continuations()
        self._links: AwaitedAnswers[_Entry] = AwaitedAnswers()
        self._in_flight: dict[int, _Entry] = {}

    def first(self) -> Iterator[ClusterRequest]:
        ready: list[tuple[int, int, _Entry]] = []
        for ordinal, (from_ns, due) in enumerate(self._due()):
            while ready and ready[0][0] <= from_ns:
                yield self._ask(heappop(ready)[2])
            names, after = linked(due.row)
            goes_on = self._courses.goes_on(due.row)
            think_ns = due.row.think_ns or 0
            entry = _Entry(ordinal, due.due_ns, think_ns, names, due.row, goes_on)
            if not self._links.add(entry, after):
                heappush(ready, (entry.due_ns, ordinal, entry))
        while ready:
            yield self._ask(heappop(ready)[2])

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        entry = self._in_flight.pop(request.number)
        if answered:
            self._content.answered(entry.row.session)
        freed = self._links.answered(entry.ordinal, entry.names, ended_ns)
        return tuple(self._ask(free) for free in freed)

    def _due(self) -> Iterator[tuple[int, Due]]:
        """Yield each row, and an instant before which neither it nor any behind it is due."""
        if self._arrivals is not None:
            for at_ns, row in zip(self._arrivals, self._rows, strict=False):
                yield at_ns, Due(at_ns, row)
            return
        for due in paced(self._rows, self._scale):
            yield earliest_ns(due.row, self._scale), due

    def _ask(self, entry: _Entry) -> ClusterRequest:
        self._in_flight[entry.ordinal] = entry
        _note_id(self._ids, entry.ordinal, entry.row.request_id or entry.row.name)
        return self._content.of(entry.row, entry.ordinal, entry.due_ns, goes_on=entry.goes_on)


class TracedSessions:
    """Sessions of a grouped format: `concurrency` users with one after the other, or beginnings at
    a rate."""

    def __init__(
        self,
        rows: Iterable[TraceRow],
        work: WorkloadSection,
        content: Content,
        seed: Seed,
        *,
        ids: RequestIds | None = None,
    ) -> None:
        self._ids = ids
        self._sessions = groupby(islice(rows, work.requests), key=lambda row: row.session)
        self._users = work.concurrency
        self._arrivals = arrivals(work, seed)
        self._content = content
        self._courses = Continuations()
        self._read = 0
        self._in_flight: dict[int, tuple[RowSession, int]] = {}

    def first(self) -> Iterator[ClusterRequest]:
        """Begin sessions. Several rows of one may wait for no answer, and come later than the next
        beginning."""
        ready: list[tuple[int, int, RowSession, int]] = []
        begun = islice(self._begin(), self._users or None)
        for session in begun:
            while ready and ready[0][0] <= session.begin_ns:
                yield self._pop(ready)
            for at_ns, index in session.first():
                heappush(ready, (at_ns, session.planned[index].ordinal, session, index))
        while ready:
            yield self._pop(ready)

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        session, index = self._in_flight.pop(request.number)
        if answered:
            self._content.answered(session.planned[index].row.session)
        freed = [(session, *free) for free in session.answered(index, ended_ns)]
        if self._users and not session.left:
            for follower in islice(self._begin(ended_ns), 1):
                freed += [(follower, *free) for free in follower.first()]
        return tuple(self._ask(of, at_ns, other) for of, at_ns, other in freed)

    def _begin(self, now_ns: int = 0) -> Iterator[RowSession]:
        for _, rows in self._sessions:
            at_ns = now_ns if self._users else next(self._arrivals)
            yield RowSession(at_ns, self._asks(list(rows)))

    def _asks(self, rows: list[TraceRow]) -> list[PlannedRow]:
        named: dict[str, int] = {}
        requests = []
        for index, row in enumerate(rows):
            goes_on = self._courses.goes_on(row)
            before = rows_before(row, index, named)
            requests.append(PlannedRow(row, goes_on, self._read, row.at_ns, row.think_ns, before))
            self._read += 1
            if row.name is not None:
                named[row.name] = index
        if rows and rows[0].session is not None:
            self._courses.forget(rows[0].session)
        return requests

    def _pop(self, ready: list[tuple[int, int, RowSession, int]]) -> ClusterRequest:
        at_ns, _, session, index = heappop(ready)
        return self._ask(session, at_ns, index)

    def _ask(self, session: RowSession, at_ns: int, index: int) -> ClusterRequest:
        request = session.planned[index]
        self._in_flight[request.ordinal] = (session, index)
        _note_id(self._ids, request.ordinal, request.row.request_id)
        return self._content.of(request.row, request.ordinal, at_ns, goes_on=request.goes_on)


def _note_id(ids: RequestIds | None, number: int, name: str | None) -> None:
    if ids is not None and name is not None:
        ids[number] = name


def arrivals(work: WorkloadSection, seed: Seed) -> Iterator[int]:
    """Yield the instants at which what has none of its own begins, without end."""
    return accumulate(arrival_gaps(work, seed))
