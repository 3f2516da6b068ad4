"""Checks of one value of a row, from JSON or from a CSV cell.

Each takes the field's name and its value and returns what the row holds. A value of another kind
is a `RowError` that says what was expected and what is there.
"""

import re
from decimal import Decimal
from typing import Any

from kv_cache.workload.formats.base import MAX_ID_CHARS, MAX_TIME_NS, MAX_TOKENS, RowError, TimeUnit

MAX_OBJECT_BYTES = 1 << 50
MAX_INTEGER = 2**63 - 1

# Digits are limited, so that no text can make a conversion slow or overflow.
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?")
_SHOWN_CHARS = 60


def shown(value: object) -> str:
    """Return `value` for a message, cut to a readable length."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]!r}..."
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def misfit(expected: str, value: object, name: str = "") -> RowError:
    """Return the error of a value, perhaps that of the field `name`, that is not as expected."""
    where = f"{name}: " if name else ""
    return RowError(f"{where}expected {expected}, found {shown(value)}")


# --- ids and shapes of JSON ---


def text(name: str, value: object) -> str:
    """Return an id that has to be text (law 11)."""
    if not isinstance(value, str):
        raise misfit("text", value, name)
    return value if len(value) <= MAX_ID_CHARS and value.isascii() else identifier(name, value)


def identifier(name: str, value: object) -> str:
    """Return an id from JSON: text, or a whole number as the text that it is written with."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise misfit("text or a whole number", value, name)
    chars = str(value)
    if len(chars) > MAX_ID_CHARS:
        raise RowError(
            f"{name}: expected at most {MAX_ID_CHARS} characters, found {len(chars)}: "
            f"{shown(chars)}"
        )
    if any("\ud800" <= char <= "\udfff" for char in chars):
        raise RowError(f"{name}: expected text, found half a surrogate pair in {shown(chars)}")
    return chars


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise misfit("true or false", value, name)
    return value


def array(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise misfit("a list", value, name)
    return value


def mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise misfit("an object", value, name)
    return value


# --- numbers ---


def integer(name: str, value: object, least: int = 0, most: int = MAX_INTEGER) -> int:
    """Return a whole number of JSON."""
    if type(value) is not int or not least <= value <= most:
        raise misfit(f"a whole number from {least} to {most}", value, name)
    return value


def digits(name: str, cell: str, most: int) -> int:
    """Return a whole number that is written in digits alone."""
    cell = cell.strip()
    if cell.isascii() and cell.isdigit() and len(cell) <= 20 and int(cell) <= most:
        return int(cell)
    raise misfit(f"a whole number from 0 to {most}", cell, name)


def number(name: str, value: object) -> object:
    """Return a number of JSON for `tokens` or a time, which would take one in quotes as a cell."""
    if isinstance(value, str):
        raise RowError(f"{name}: expected a number, found the text {shown(value)}")
    return value


def exact_number(chars: str) -> Decimal:
    """Return the number that a decimal text states, without a binary rounding.

    Raises `ValueError` for anything else: words, NaN, infinities, thousands separators.
    """
    if _NUMBER.fullmatch(chars) is None:
        raise ValueError(f"expected a number, found {shown(chars)}")
    return Decimal(chars)


def tokens(name: str, value: object, least: int) -> int:
    """Return a token count from a number of JSON or a CSV cell. `472.0` is a whole number."""
    if type(value) is str and len(value) <= 8 and value.isdigit() and value.isascii():
        count = int(value)
        if least <= count <= MAX_TOKENS:
            return count
    return _whole(name, value, least, MAX_TOKENS)


def object_bytes(name: str, cell: str, unit: int = 1) -> int:
    """Return a size in bytes from a cell that counts units of `unit` bytes."""
    return _whole(name, cell, 0, MAX_OBJECT_BYTES // unit) * unit


def _whole(name: str, value: object, least: int, most: int) -> int:
    exact = _exact(value)
    if exact is not None and least <= exact <= most and exact == int(exact):
        return int(exact)
    raise misfit(f"a whole number from {least} to {most}", value, name)


def time_ns(name: str, value: object, unit: TimeUnit) -> int:
    """Return a time in ns from a number of JSON or a CSV cell that counts `unit`."""
    if type(value) is str and len(value) <= 9 and value.isdigit() and value.isascii():
        return int(value) * unit.ns
    exact = _exact(value)
    # The bound comes first: 28 digits then hold every ns, and no exponent is written out.
    if exact is not None and 0 <= exact <= MAX_TIME_NS // unit.ns:
        return int(exact * unit.ns)
    word = "seconds" if unit is TimeUnit.S else unit.value
    raise misfit(f"a time in {word} from 0 to {MAX_TIME_NS // unit.ns}", value, name)


def time_of_unit_ns(name: str, value: object, unit: TimeUnit) -> int:
    """Return `time_ns` of a `UnitFormat`, whose files may count in another unit."""
    try:
        return time_ns(name, value, unit)
    except RowError as problem:
        if (_exact(value) or 0) <= 0:
            raise
        raise RowError(f"{problem}; --trace-time-unit reads another unit") from None


def _exact(value: object) -> int | Decimal | None:
    if isinstance(value, str):
        try:
            return exact_number(value.strip())
        except ValueError:
            return None
    # A JSON true is a Python int: not a number here.
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    return None
