"""The ids of a file's rows: which were there before, and which are remembered.

A reader's memory must not grow with the trace (law 1), so that ids which later rows may refer to
are remembered for the last `KEPT` rows that had one, and no longer.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from kv_cache.workload.formats.base import Note, Noted
from kv_cache.workload.formats.row import TraceRow

T = TypeVar("T")

KEPT = 1 << 16


class SeenIds:
    """All ids so far, in 8 bytes each: of a million, two are taken for one with a chance of
    3 in 10^8."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: set[int] = set()

    def before(self, name: str) -> bool:
        """Return whether the id was there before, and add it."""
        digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        known = digest in self._digests
        self._digests.add(digest)
        return known

    def unused(self, name: str, suffix: str) -> str:
        """Return `name` with so many suffixes that it is a new id, and add that."""
        while self.before(name := f"{name}{suffix}"):
            pass
        return name


class Recent(Generic[T]):
    """What is known of the ids that were put last: `kept` of them, and the oldest goes first."""

    __slots__ = ("_kept", "_values")

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._values: OrderedDict[str, T] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> T | None:
        return self._values.get(name)

    def put(self, name: str, value: T) -> str | None:
        """Return the name that is forgotten for it, if one is."""
        self._values[name] = value
        self._values.move_to_end(name)
        return self._values.popitem(last=False)[0] if len(self._values) > self._kept else None


class RowNames:
    """The rows' names and which rows follow which, for a format that states both.

    A name that was used before is counted (`Note.DUPLICATE`), the later row is called `NAME@LINE`,
    and from there on the name means that row. What follows a name that is not known is counted
    (`Note.ORPHAN`) and does not wait for it.
    """

    def __init__(self, note: Noted) -> None:
        self._note = note
        self._unique: Recent[str] = Recent()  # by the name that the file uses

    def after(self, line: int, names: Iterable[str]) -> tuple[str, ...]:
        """Return the unique names of the rows that the file calls `names`."""
        names = tuple(names)
        known = tuple(name for name in map(self._unique.get, names) if name is not None)
        if len(known) < len(names):
            self._note(line, Note.ORPHAN)
        return known

    def name(self, line: int, name: str) -> str:
        """Return the unique name of the row of `line`, which the file calls `name`."""
        unique = name
        if name in self._unique:
            self._note(line, Note.DUPLICATE)
            unique = f"{name}@{line}"
        self._unique.put(name, unique)
        return unique

    def resolved(self, row: TraceRow) -> TraceRow:
        """Return the row with unique names for itself and for what it follows."""
        if row.name is None and not row.after:
            return row
        after = self.after(row.line, row.after)
        name = None if row.name is None else self.name(row.line, row.name)
        return row._replace(after=after, name=name)
