"""What the formats with one JSON object a line share."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import exact_number, misfit, number, time_of_unit_ns, tokens


def looks_like(text: str, keys: Sequence[str], foreign: Sequence[str] = ()) -> bool:
    """Return whether a line is an object with all of `keys` and none of `foreign`.

    By the keys' names, since the last line of a file's head is cut anywhere.
    """
    return (
        text.lstrip(" \t\ufeff").startswith("{")
        and all(f'"{key}"' in text for key in keys)
        and not any(f'"{key}"' in text for key in foreign)
    )


def read_object(text: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return the object of one line, which has all of `keys`; fractions stay exact (`Decimal`)."""
    value = read_value(text, "one JSON object")
    if not isinstance(value, dict):
        raise misfit("one JSON object", text)
    require_keys(value, keys)
    return value


def require_keys(value: dict[str, Any], keys: Iterable[str], prefix: str = "") -> None:
    missing = [key for key in keys if key not in value]
    if missing:
        raise RowError(f"{prefix}expected {', '.join(keys)}, found no {', '.join(missing)}")


def read_value(text: str, wanted: str = "JSON") -> object:
    """Return any JSON value; fractions stay exact (`Decimal`)."""
    try:
        value: object = _JSON.decode(text)
    # Deep nesting, and integers of thousands of digits (a ValueError), are no values either.
    except (ValueError, RecursionError):
        raise misfit(wanted, text) from None
    return value


def hash_ids(value: object, least: int = 1) -> tuple[int, ...]:
    """Return the ids of a prompt's blocks, `least` (0 or 1) or more."""
    if type(value) is not list or len(value) < least:
        one = " of at least one id" if least else " of ids"
        raise misfit(f"a list{one}", value, "hash_ids")
    if value and (set(map(type, value)) != {int} or min(value) < 0):
        odd = next(one for one in value if type(one) is not int or one < 0)
        raise misfit("whole numbers from 0", odd, "hash_ids")
    return tuple(value)


def hashed_row(
    fields: dict[str, Any],
    unit: TimeUnit,
    block_tokens: int,
    *,
    name: str | None = None,
    after: tuple[str, ...] = (),
) -> TraceRow:
    """Return the row of `timestamp`, `input_length`, `output_length` and `hash_ids`."""
    return TraceRow(
        0,
        time_of_unit_ns("timestamp", number("timestamp", fields["timestamp"]), unit),
        tokens("input_length", number("input_length", fields["input_length"]), 1),
        tokens("output_length", number("output_length", fields["output_length"]), 0),
        hash_ids(fields["hash_ids"]),
        block_tokens,
        name=name,
        after=after,
    )


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# NaN and Infinity, which Python's reader would take, are refused.
_JSON = json.JSONDecoder(parse_float=exact_number, parse_constant=_refuse)
