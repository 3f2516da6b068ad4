"""Ids of a file's rows: what is taken as one, and which are remembered.

A reader's memory must not grow with the trace (law 1), so that ids which later rows may refer to
are remembered for the last `KEPT` rows that had one, and no longer.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from kv_cache.workload.formats.base import (
    MAX_ID_CHARS,
    Note,
    Noted,
    RowError,
    identifier,
    shown,
)

T = TypeVar("T")

KEPT = 1 << 16


def ident(name: str, value: object) -> str:
    """An id that has to be text. Raises `RowError` for anything else, and as `identifier`."""
    if not isinstance(value, str):
        raise RowError(f"{name}: expected text, found {shown(value)}")
    return value if len(value) <= MAX_ID_CHARS and value.isascii() else identifier(name, value)


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

    def put(self, name: str, value: T) -> None:
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._kept:
            self._values.popitem(last=False)


class Links:
    """The rows' names and what follows whom, for a format that states both.

    A name that was used before is counted (`Note.DUPLICATE`), the later row is called `NAME@LINE`,
    and from there on the name means that row. What follows a name that is not known is counted
    (`Note.ORPHAN`) and does not wait for it.
    """

    def __init__(self, note: Noted) -> None:
        self._note = note
        self._called: Recent[str] = Recent()  # as the file calls a row -> as we do

    def after(self, line: int, names: Iterable[str]) -> tuple[str, ...]:
        """What rows of these names are called."""
        names = tuple(names)
        known = tuple(own for own in map(self._called.get, names) if own is not None)
        if len(known) < len(names):
            self._note(line, Note.ORPHAN)
        return known

    def name(self, line: int, name: str) -> str:
        """What the row of `line` is called."""
        own = name
        if name in self._called:
            self._note(line, Note.DUPLICATE)
            own = f"{name}@{line}"
        self._called.put(name, own)
        return own
