"""Mooncake's traces (FAST'25): JSON lines with content hashes.

A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
Each id stands for 512 tokens of the prompt and for all before them; the last may be partly filled.
The number of ids is taken as it stands and not compared with the prompt's length.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from kv_cache.core.units import NS_PER_MS
from kv_cache.workload.formats.base import (
    Bad,
    Noted,
    RowClock,
    RowError,
    exact_number,
    ignore,
    parsed,
    shown,
    stated_ns,
    tokens,
)
from kv_cache.workload.formats.row import TraceRow

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# Qwen-Bailian's lines hold the same keys, but count in seconds and blocks of 16 tokens.
FOREIGN_KEYS = ("chat_id", "parent_chat_id")

_Row = tuple[int, int, int, tuple[int, ...]]


class Mooncake:
    name = "mooncake"
    description = (
        "Mooncake JSON lines: timestamp (ms), input_length, output_length (tokens), "
        "hash_ids (blocks of 512 tokens)"
    )

    def matches(self, head: str) -> bool:
        return any(_looks_right(text) for text in head.splitlines())

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        clock = RowClock(note)
        for line, (time_ns, prompt, output, ids) in parsed(lines, _row, bad):
            yield TraceRow(line, clock.at(line, time_ns), prompt, output, ids, BLOCK_TOKENS)


def _looks_right(text: str) -> bool:
    """By the keys' names, since the last line of a file's head is cut anywhere."""
    return (
        text.lstrip(" \t\ufeff").startswith("{")
        and all(f'"{key}"' in text for key in KEYS)
        and not any(f'"{key}"' in text for key in FOREIGN_KEYS)
    )


def _row(text: str) -> _Row:
    fields = _object(text)
    missing = [key for key in KEYS if key not in fields]
    if missing:
        raise RowError(f"expected {', '.join(KEYS)}, found no {', '.join(missing)}")
    return (
        stated_ns("timestamp", _not_text(fields, "timestamp"), NS_PER_MS, "ms"),
        tokens("input_length", _not_text(fields, "input_length"), 1),
        tokens("output_length", _not_text(fields, "output_length"), 0),
        _hash_ids(fields["hash_ids"]),
    )


def _object(text: str) -> dict[str, Any]:
    try:
        value = _JSON.decode(text)
    # Deep nesting, and integers of thousands of digits (a ValueError), are no rows either.
    except (ValueError, RecursionError):
        raise RowError(f"expected one JSON object, found {shown(text)}") from None
    if not isinstance(value, dict):
        raise RowError(f"expected one JSON object, found {shown(text)}")
    return value


def _not_text(fields: dict[str, Any], name: str) -> object:
    """A number in quotes is another type, which the shared converters would read as a CSV cell."""
    value = fields[name]
    if isinstance(value, str):
        raise RowError(f"{name}: expected a number, found the text {shown(value)}")
    return value


def _hash_ids(value: object) -> tuple[int, ...]:
    if type(value) is not list or not value:
        raise RowError(f"hash_ids: expected a list of at least one id, found {shown(value)}")
    for one in value:
        if type(one) is not int or one < 0:
            raise RowError(f"hash_ids: expected whole numbers from 0, found {shown(one)}")
    return tuple(value)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


# Fractions stay exact; NaN and Infinity, which Python's reader would take, are refused.
_JSON = json.JSONDecoder(parse_float=exact_number, parse_constant=_refuse)
