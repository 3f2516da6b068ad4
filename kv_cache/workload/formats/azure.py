"""Azure's LLM inference traces (2023 and 2024): a CSV of instants and token counts.

The header is `TIMESTAMP,ContextTokens,GeneratedTokens`. An instant is a date and a time of day
with up to nine digits of fraction. An offset from UTC may follow (`Z`, `+00:00`, `-0700`) and is
taken into account; without one the instant is UTC. The files of 2023 have seven digits and no
offset, CRLF and no last line end; those of 2024 have up to six digits and `+00:00`. There is no
session and no prefix information.
"""

import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.line_formats import CsvFormat, Line
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import misfit, tokens

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_YEAR = 2200  # later instants do not fit MAX_TIME_NS
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])"
    r"(?:\.([0-9]{1,9}))?(?:Z|([+-])([01][0-9]|2[0-3]):?([0-5][0-9]))?"
)


class Azure(CsvFormat):
    name = "azure"
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    description = (
        "Azure LLM inference CSV: TIMESTAMP (ISO date and time, UTC unless it has an offset), "
        "ContextTokens, GeneratedTokens"
    )

    def cell_reader(self) -> Callable[..., Line]:
        return _row


def _row(time: str, prompt: str, output: str) -> Line:
    return (
        TraceRow(
            0,
            instant_ns(time),
            tokens("ContextTokens", prompt, 1),
            tokens("GeneratedTokens", output, 0),
        ),
    )


def instant_ns(text: str, name: str = "TIMESTAMP") -> int:
    """Return the instant of column `name` as ns since 1970, exactly: the digits are read, never a
    float."""
    match = _INSTANT.fullmatch(text.strip())
    day_s = _day_s(match[1]) if match else None
    if match is None or day_s is None:
        raise misfit("an instant like '2023-11-16 18:17:03.9799600'", text, name)
    _, hour, minute, second, fraction, sign, ahead_h, ahead_min = match.groups()
    seconds = day_s + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign:
        ahead_s = int(ahead_h) * 3600 + int(ahead_min) * 60
        seconds -= ahead_s if sign == "+" else -ahead_s
    return seconds * NS_PER_S + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=64)  # a trace spans few days, and finding one costs as much as all the rest
def _day_s(text: str) -> int | None:
    """Return the day's beginning in s since 1970; None if the calendar has no such day."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return (day.toordinal() - _EPOCH_DAY) * 86_400 if 1970 <= day.year <= _LAST_YEAR else None
