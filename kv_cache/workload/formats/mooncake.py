"""Mooncake's traces (FAST'25): JSON lines with content hashes.

A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
Each id stands for 512 tokens of the prompt and for all before them; the last may be partly filled.
The number of ids is taken as it stands and not compared with the prompt's length.
"""

from collections.abc import Iterable, Iterator

from kv_cache.core.units import NS_PER_MS
from kv_cache.workload.formats.base import (
    Bad,
    Noted,
    RowClock,
    RowError,
    ignore,
    parsed,
    stated_ns,
    tokens,
)
from kv_cache.workload.formats.jsonlines import hash_ids, looks_like, number, read_object
from kv_cache.workload.formats.row import TraceRow

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# Qwen-Bailian's lines hold the same keys, but count in seconds and blocks of 16 tokens.
FOREIGN_KEYS = ("chat_id", "parent_chat_id")

_Row = tuple[int, int, int, tuple[int, ...]]


class Mooncake:
    name = "mooncake"
    document = False
    timed = True
    grouped = False
    description = (
        "Mooncake JSON lines: timestamp (ms), input_length, output_length (tokens), "
        "hash_ids (blocks of 512 tokens)"
    )

    def matches(self, head: str) -> bool:
        return any(looks_like(text, KEYS, FOREIGN_KEYS) for text in head.splitlines())

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        clock = RowClock(note)
        for line, (time_ns, prompt, output, ids) in parsed(lines, _row, bad):
            yield TraceRow(line, clock.at(line, time_ns), prompt, output, ids, BLOCK_TOKENS)


def _row(text: str) -> _Row:
    fields = read_object(text, KEYS)
    foreign = [key for key in FOREIGN_KEYS if key in fields]
    if foreign:
        raise RowError(
            f"expected a row of Mooncake, found {foreign[0]}, which Qwen-Bailian's have: they "
            "count in other units"
        )
    return (
        stated_ns("timestamp", number(fields, "timestamp"), NS_PER_MS, "ms"),
        tokens("input_length", number(fields, "input_length"), 1),
        tokens("output_length", number(fields, "output_length"), 0),
        hash_ids(fields["hash_ids"]),
    )
