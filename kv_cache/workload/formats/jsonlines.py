"""What the formats with one JSON object a line share."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from kv_cache.workload.formats.base import RowError, exact_number, shown


def looks_like(text: str, keys: Sequence[str], foreign: Sequence[str] = ()) -> bool:
    """Whether a line is an object with all of `keys` and none of `foreign`.

    By the keys' names, since the last line of a file's head is cut anywhere.
    """
    return (
        text.lstrip(" \t\ufeff").startswith("{")
        and all(f'"{key}"' in text for key in keys)
        and not any(f'"{key}"' in text for key in foreign)
    )


def read_object(text: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """The object of one line, which has all of `keys`; fractions stay exact (`Decimal`)."""
    value = read_value(text, "one JSON object")
    if not isinstance(value, dict):
        raise RowError(f"expected one JSON object, found {shown(text)}")
    missing = [key for key in keys if key not in value]
    if missing:
        raise RowError(f"expected {', '.join(keys)}, found no {', '.join(missing)}")
    return value


def read_value(text: str, wanted: str = "JSON") -> object:
    """Any JSON value; fractions stay exact (`Decimal`)."""
    try:
        value: object = _JSON.decode(text)
    # Deep nesting, and integers of thousands of digits (a ValueError), are no values either.
    except (ValueError, RecursionError):
        raise RowError(f"expected {wanted}, found {shown(text)}") from None
    return value


def number(fields: dict[str, Any], name: str) -> object:
    """A number in quotes is another type, which the shared converters would read as a CSV cell."""
    value = fields[name]
    if isinstance(value, str):
        raise RowError(f"{name}: expected a number, found the text {shown(value)}")
    return value


def hash_ids(value: object) -> tuple[int, ...]:
    if type(value) is not list or not value:
        raise RowError(f"hash_ids: expected a list of at least one id, found {shown(value)}")
    for one in value:
        if type(one) is not int or one < 0:
            raise RowError(f"hash_ids: expected whole numbers from 0, found {shown(one)}")
    return tuple(value)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


# NaN and Infinity, which Python's reader would take, are refused.
_JSON = json.JSONDecoder(parse_float=exact_number, parse_constant=_refuse)
