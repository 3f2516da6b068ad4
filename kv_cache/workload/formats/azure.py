"""Azure's LLM inference traces (2023 and 2024): a CSV of instants and token counts.

The header is `TIMESTAMP,ContextTokens,GeneratedTokens`. An instant is a date and a time of day
with up to nine digits of fraction. An offset from UTC may follow (`Z`, `+00:00`, `-0700`) and is
taken into account; without one the instant is UTC. The files of 2023 have seven digits and no
offset, CRLF and no last line end; those of 2024 have up to six digits and `+00:00`. There is no
session and no prefix information.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import date
from functools import lru_cache, partial

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.base import (
    Bad,
    Columns,
    Noted,
    RowClock,
    RowError,
    head_has_columns,
    ignore,
    parsed,
    read_columns,
    shown,
    tokens,
)
from kv_cache.workload.formats.row import TraceRow

REQUIRED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_YEAR = 2200  # later instants do not fit MAX_TIME_NS
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])"
    r"(?:\.([0-9]{1,9}))?(?:Z|([+-])([01][0-9]|2[0-3]):?([0-5][0-9]))?"
)


class Azure:
    name = "azure"
    document = False
    timed = True
    grouped = False
    description = (
        "Azure LLM inference CSV: TIMESTAMP (ISO date and time, UTC unless it has an offset), "
        "ContextTokens, GeneratedTokens"
    )

    def matches(self, head: str) -> bool:
        return head_has_columns(head, REQUIRED)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        lines = iter(lines)
        columns = read_columns(lines, REQUIRED)
        if columns is None:
            return
        clock = RowClock(note)
        for line, (time_ns, prompt, output) in parsed(lines, partial(_row, columns), bad):
            yield TraceRow(line, clock.at(line, time_ns), prompt, output)


def _row(columns: Columns, text: str) -> tuple[int, int, int]:
    time, prompt, output = columns.cells(text)
    return (
        instant_ns(time),
        tokens("ContextTokens", prompt, 1),
        tokens("GeneratedTokens", output, 0),
    )


def instant_ns(text: str) -> int:
    """An instant as ns since 1970, exactly: the digits are read, never a float."""
    found = _INSTANT.fullmatch(text.strip())
    day_s = _day_s(found[1]) if found else None
    if found is None or day_s is None:
        raise RowError(
            "TIMESTAMP: expected an instant like '2023-11-16 18:17:03.9799600', "
            f"found {shown(text)}"
        )
    _, hour, minute, second, fraction, sign, ahead_h, ahead_min = found.groups()
    seconds = day_s + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign:
        ahead_s = int(ahead_h) * 3600 + int(ahead_min) * 60
        seconds -= ahead_s if sign == "+" else -ahead_s
    return seconds * NS_PER_S + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=64)  # a trace spans few days, and finding one costs as much as all the rest
def _day_s(text: str) -> int | None:
    """The day's beginning in s since 1970; None where the calendar has no such day."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return (day.toordinal() - _EPOCH_DAY) * 86_400 if 1970 <= day.year <= _LAST_YEAR else None
