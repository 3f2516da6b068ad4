"""Where two plain values differ, and in what words it is said."""

from collections.abc import Iterator
from math import isclose
from typing import Any, NamedTuple

from kv_cache.config.schema import show


class Absent:
    """Instead of a value that is not there."""


ABSENT = Absent()


class Mismatch(NamedTuple):
    """A place where two documents are not alike."""

    path: str
    stored: Any
    expected: Any

    def message(self, source: str) -> str:
        """Return one sentence; `source` is what the expected value comes from."""
        if self.expected is ABSENT:
            return f"{self.path} is there, but {source} does not give it"
        if self.stored is ABSENT:
            return f"{self.path} is missing, and {source} gives {show(self.expected)}"
        return f"{self.path} says {show(self.stored)}, but {source} gives {show(self.expected)}"


def differences(stored: Any, expected: Any, path: str = "") -> Iterator[Mismatch]:
    """Compare two plain values. Goes down only where both do, so the cost is the smaller's."""
    if isinstance(stored, dict) and isinstance(expected, dict):
        for key in {**expected, **stored}:
            below = f"{path}.{key}" if path else str(key)
            values = stored.get(key, ABSENT), expected.get(key, ABSENT)
            if ABSENT in values:
                yield Mismatch(below, *values)
            else:
                yield from differences(*values, below)
    elif isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        if repr(stored) == repr(expected):  # most lists are, and are long
            return
        for number, pair in enumerate(zip(stored, expected, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif not same(stored, expected):
        yield Mismatch(path or "the whole of it", stored, expected)


def same(stored: Any, expected: Any) -> bool:
    """Compare whole numbers exactly, and others but for how they were rounded."""
    if type(stored) is int and type(expected) is int:
        return stored == expected
    numbers = [v for v in (stored, expected) if isinstance(v, int | float) and type(v) is not bool]
    if len(numbers) == 2:
        return stored == expected or isclose(stored, expected, rel_tol=1e-9, abs_tol=1e-12)
    return type(stored) is type(expected) and bool(stored == expected)
