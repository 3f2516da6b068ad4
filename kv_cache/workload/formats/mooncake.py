"""Mooncake's traces (FAST'25): JSON lines with content hashes.

A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
Each id stands for 512 tokens of the prompt and for all before them; the last may be partly filled.
The number of ids is taken as it stands and not compared with the prompt's length.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kv_cache.workload.formats.base import (
    Bad,
    Noted,
    RowClock,
    RowError,
    TimeUnit,
    ignore,
    parsed,
    stated_in,
    tokens,
)
from kv_cache.workload.formats.jsonlines import hash_ids, looks_like, number, read_object
from kv_cache.workload.formats.row import TraceRow

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# Qwen-Bailian's lines hold the same keys, but count in seconds and blocks of 16 tokens.
FOREIGN_KEYS = ("chat_id", "parent_chat_id")

_Row = tuple[int, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Mooncake:
    time_unit: TimeUnit = TimeUnit.MS
    name = "mooncake"
    document = False
    timed = True
    grouped = False
    description = (
        "Mooncake JSON lines: timestamp (ms), input_length, output_length (tokens), "
        "hash_ids (blocks of 512 tokens)"
    )

    def in_unit(self, unit: TimeUnit) -> "Mooncake":
        return Mooncake(unit)

    def matches(self, head: str) -> bool:
        return any(looks_like(text, KEYS, FOREIGN_KEYS) for text in head.splitlines())

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        clock, parse = RowClock(note), partial(_row, self.time_unit)
        for line, (time_ns, prompt, output, ids) in parsed(lines, parse, bad):
            yield TraceRow(line, clock.at(line, time_ns), prompt, output, ids, BLOCK_TOKENS)


def _row(unit: TimeUnit, text: str) -> _Row:
    fields = read_object(text, KEYS)
    foreign = [key for key in FOREIGN_KEYS if key in fields]
    if foreign:
        raise RowError(
            f"expected a row of Mooncake, found {foreign[0]}, which Qwen-Bailian's have: they "
            "count in other units"
        )
    return (
        stated_in("timestamp", number(fields, "timestamp"), unit),
        tokens("input_length", number(fields, "input_length"), 1),
        tokens("output_length", number(fields, "output_length"), 0),
        hash_ids(fields["hash_ids"]),
    )
