"""Mooncake's traces (FAST'25): JSON lines with content hashes.

A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
Each id means 512 tokens of the prompt and for all before them; the last may be partly filled.
The number of ids is taken as it is and not compared with the prompt's length.
"""

from collections.abc import Iterator
from functools import partial

from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.jsonlines import hashed_row, looks_like, read_object
from kv_cache.workload.formats.line_formats import BareTimes, Line, LineFormat, LineReader

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# Qwen-Bailian's lines hold the same keys, but count in seconds and blocks of 16 tokens.
FOREIGN_KEYS = ("chat_id", "parent_chat_id")


class Mooncake(BareTimes, LineFormat):
    WRITTEN_IN = TimeUnit.MS
    name = "mooncake"
    description = (
        "Mooncake JSON lines: timestamp (ms), input_length, output_length (tokens), "
        "hash_ids (blocks of 512 tokens)"
    )

    def matches(self, head: str) -> bool:
        return any(looks_like(text, KEYS, FOREIGN_KEYS) for text in head.splitlines())

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader:
        return partial(_row, self.time_unit)


def _row(unit: TimeUnit, text: str) -> Line:
    fields = read_object(text, KEYS)
    foreign = [key for key in FOREIGN_KEYS if key in fields]
    if foreign:
        raise RowError(
            f"expected a row of Mooncake, found {foreign[0]}, which Qwen-Bailian's have: they "
            "count in other units"
        )
    return (hashed_row(fields, unit, BLOCK_TOKENS),)
