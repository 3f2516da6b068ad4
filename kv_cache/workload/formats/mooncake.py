"""Mooncake's traces (FAST'25): rows with content hashes, as JSON lines, a JSON list or a CSV.

A row is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
Each id means 512 tokens of the prompt and for all before them; the last may be partly filled.
Writers of the same keys use other lengths: `--trace-block-tokens`. In a CSV, as
converters write it, the ids of a cell stand with commas, semicolons or spaces between them, in
brackets or not.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kv_cache.workload.formats.base import Bad, Noted, RowError, TimeUnit, ignore
from kv_cache.workload.formats.json_items import Cursor, items, key_paths
from kv_cache.workload.formats.jsonlines import hashed_row, looks_like, read_object
from kv_cache.workload.formats.line_formats import (
    AROUND,
    CsvFormat,
    HashedRows,
    Line,
    LineFormat,
    LineReader,
    RowClock,
    head_has_columns,
)
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import MAX_INTEGER, digits, misfit, time_of_unit_ns, tokens

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
# Qwen-Bailian's lines hold the same keys, but count in seconds and blocks of 16 tokens.
FOREIGN_KEYS = ("chat_id", "parent_chat_id")
_HOLDS = "timestamp (ms), input_length, output_length (tokens), hash_ids (blocks of 512 tokens)"


class Mooncake(HashedRows, LineFormat):
    WRITTEN_IN = TimeUnit.MS
    BLOCK_TOKENS = BLOCK_TOKENS
    name = "mooncake"
    description = f"Mooncake JSON lines: {_HOLDS}"

    def matches(self, head: str) -> bool:
        return not _is_list(head) and any(
            looks_like(text, KEYS, FOREIGN_KEYS) for text in head.splitlines()
        )

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader:
        unit, block_tokens = self.time_unit, self.block_tokens
        return lambda text: (_row(unit, block_tokens, text),)


class MooncakeList(HashedRows):
    """The same rows as the items of one JSON list."""

    WRITTEN_IN = TimeUnit.MS
    BLOCK_TOKENS = BLOCK_TOKENS
    name = "mooncake-list"
    description = f"Mooncake rows as one JSON list: {_HOLDS}"
    document = True
    timed = True
    grouped = False

    def matches(self, head: str) -> bool:
        keys = key_paths(head)
        return (
            _is_list(head)
            and all((key,) in keys for key in KEYS)
            and not any((key,) in keys for key in FOREIGN_KEYS)
        )

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        clock = RowClock(note)
        for item, text in items(Cursor(lines)):
            try:
                row = _row(self.time_unit, self.block_tokens, text)
            except RowError as problem:
                bad(item, str(problem))
                continue
            yield row.placed(item, clock.at(item, row.at_ns))


class MooncakeCsv(HashedRows, CsvFormat):
    """The same rows as a CSV."""

    WRITTEN_IN = TimeUnit.MS
    BLOCK_TOKENS = BLOCK_TOKENS
    name = "mooncake-csv"
    columns = KEYS
    description = f"Mooncake rows as a CSV: {_HOLDS}"

    def matches(self, head: str) -> bool:
        return super().matches(head) and not any(
            head_has_columns(head, (key,)) for key in FOREIGN_KEYS
        )

    def cell_reader(self) -> Callable[..., Line]:
        return partial(_cells, self.time_unit, self.block_tokens)


def _is_list(head: str) -> bool:
    return head.lstrip(AROUND).startswith("[")


def _row(unit: TimeUnit, block_tokens: int, text: str) -> TraceRow:
    fields = read_object(text, KEYS)
    foreign = [key for key in FOREIGN_KEYS if key in fields]
    if foreign:
        raise RowError(
            f"expected a row of Mooncake, found {foreign[0]}, which Qwen-Bailian's have: they "
            "count in other units"
        )
    return hashed_row(fields, unit, block_tokens)


def _cells(
    unit: TimeUnit, block_tokens: int, time: str, prompt: str, output: str, ids: str
) -> Line:
    names = [name for name in _BETWEEN_IDS.split(ids.strip("[] ")) if name]
    if not names:
        raise misfit("at least one id", ids, "hash_ids")
    return (
        TraceRow(
            0,
            time_of_unit_ns("timestamp", time, unit),
            tokens("input_length", prompt, 1),
            tokens("output_length", output, 0),
            tuple(digits("hash_ids", name, MAX_INTEGER) for name in names),
            block_tokens,
        ),
    )


_BETWEEN_IDS = re.compile(r"[,; ]+")
