"""Which calls of stores are in flight, when storage last ended one, and how many bytes its calls
have moved.

Threads report to it by a few plain assignments, as it is on the data path; nothing here looks at a
device, or takes a lock but once for all that native code moves in a call.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Protocol

from kv_cache.core.effect import Leg
from kv_cache.core.kinds import Cause, OpKind
from kv_cache.core.ops_done import OpsDone
from kv_cache.metrics.gaps import LEAST_NS, Silence


class Call(Protocol):
    """One side of an operation, while a thread performs it."""

    @property
    def cause(self) -> Cause: ...

    @property
    def on_storage(self) -> bool: ...

    @property
    def calling(self) -> bool: ...

    @property
    def began_ns(self) -> int:
        """When the call of the store began that goes on; 0 if it has not."""

    def so_far(self, now_ns: int) -> Leg: ...


class CallsOfMany(Protocol):
    """Sides of operations that are performed by one call outside the interpreter."""

    def calls(self) -> Iterable[Call]:
        """Return those that have begun and not ended."""


class MovingTable(Protocol):
    """What native code works off."""

    def moved_bytes(self) -> int:
        """Return how many bytes it has moved so far."""


class StoreCalls:
    """Written by the threads that perform operations, read by those that watch."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._many: set[CallsOfMany] = set()
        self._ended_ns = 0
        self._silences: list[Silence] = []
        self._moved: dict[int, Counter[OpKind]] = {}  # by thread: no two add to one
        self._tables: dict[MovingTable, OpKind] = {}  # that are worked off now
        self._moved_by_tables = Counter[OpKind]()
        self._lock = Lock()  # of these two: what a table has moved is in one of them

    def enter(self, call: Call) -> None:
        self._calls.add(call)

    def leave(self, call: Call) -> None:
        self._calls.discard(call)

    def enter_many(self, calls: CallsOfMany) -> None:
        self._many.add(calls)

    def leave_many(self, calls: CallsOfMany) -> None:
        self._many.discard(calls)

    def ended_many(self, done: OpsDone) -> None:
        """As `ended` of all calls of storage of many operations."""
        ended_ns = done.moved_ns or done.finished_ns
        if max(ended_ns) - self._ended_ns < LEAST_NS:
            self._ended_ns = max(self._ended_ns, *ended_ns)
        else:
            for now_ns, began_ns in sorted(zip(ended_ns, done.started_ns, strict=True)):
                self.ended(began_ns, now_ns)

    def ended(self, began_ns: int, now_ns: int) -> None:
        """A call of storage ended, which had begun at `began_ns`. Of two threads here at once both
        may note the same silence; `find_gaps` knows."""
        before_ns, self._ended_ns = self._ended_ns, max(self._ended_ns, now_ns)
        if now_ns - before_ns >= LEAST_NS:
            oldest_ns = min([began_ns, *self._begun()])
            self._silences.append(Silence(max(before_ns, oldest_ns), now_ns))

    @contextmanager
    def moving(self, kind: OpKind, table: MovingTable) -> Iterator[None]:
        """Native code works off a table of storage: what it has moved counts from then on, as the
        kernel counts it. A batch may be of hundreds of MB."""
        with self._lock:
            self._tables[table] = kind
        try:
            yield
        finally:
            with self._lock:
                del self._tables[table]
                self._moved_by_tables[kind] += table.moved_bytes()

    def moved(self, kind: OpKind, nbytes: int) -> None:
        """A call of storage has moved bytes, in no table."""
        thread = get_ident()
        mine = self._moved.get(thread)
        if mine is None:
            mine = self._moved[thread] = Counter()
        mine[kind] += nbytes

    def bytes_moved(self) -> tuple[int, int]:
        """Return the bytes (read, written) of all calls of storage that have ended, each object of
        a table by itself."""
        with self._lock:
            by_tables = self._moved_by_tables.copy()
            for table, kind in self._tables.items():
                by_tables[kind] += table.moved_bytes()
        rows = [by_tables, *list(self._moved.values())]
        return sum(row[OpKind.READ] for row in rows), sum(row[OpKind.WRITE] for row in rows)

    def silences(self, now_ns: int) -> list[Silence]:
        """Return all silences of at least `LEAST_NS`, also the current one."""
        begun = self._begun()
        silences = list(self._silences)
        if begun:
            silences.append(Silence(max(self._ended_ns, min(begun)), now_ns))
        return silences

    def in_flight(self, now_ns: int, ended: Set[Call] = frozenset()) -> list[tuple[Cause, Leg]]:
        """Return the sides of operations that have begun and not ended, as far as they have come;
        of those that are still noted, `ended` have."""
        begun = [call for call in self._all() if call.began_ns and call not in ended]
        return [(call.cause, call.so_far(now_ns)) for call in begun]

    @property
    def many(self) -> list[CallsOfMany]:
        """The calls outside the interpreter that go on."""
        return list(self._many)

    def waiting(self, now_ns: int) -> list[tuple[OpKind, int]]:
        """Return the sides of operations that storage has not ended: what each does, and for how
        long no call of it has ended."""
        held = [call for call in self._all() if call.on_storage and call.began_ns]
        return [(call.so_far(now_ns).kind, now_ns - call.began_ns) for call in held]

    def _begun(self) -> list[int]:
        calls = [call for call in self._all() if call.on_storage and call.calling]
        return [began_ns for call in calls if (began_ns := call.began_ns)]

    def _all(self) -> list[Call]:
        return [*list(self._calls), *(call for many in list(self._many) for call in many.calls())]
