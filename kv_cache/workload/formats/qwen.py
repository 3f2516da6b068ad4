"""Qwen-Bailian's traces (ATC'25): JSON lines with content hashes and links to the parent.

A line is {"chat_id": 159, "parent_chat_id": 55, "timestamp": s, "input_length": tokens,
"output_length": tokens, "type": "text", "turn": 2, "hash_ids": [...]}. Each id stands for 16
tokens of the prompt (its last block may be partly filled) and means the same content throughout
the file. `chat_id` names one request and not a conversation: a follow-up has an id of its own and
names the request that it continues, -1 where it continues none. Source: the dataset's README
(alibaba-edu/qwen-bailian-usagetraces-anon).

Rules: a follow-up waits for its parent. All that descend from one root are one session, named by
the root's id. Parents are known among the last `names.KEPT` rows; one that is farther back, or not
in the file at all (a part of a trace), is not waited for, and its id names the session. Such rows
are counted (`Note.ORPHAN`). An id that was used before means the later row from there on; that row
is counted (`Note.DUPLICATE`) and called `ID@LINE`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kv_cache.workload.formats.base import (
    Bad,
    Noted,
    RowClock,
    RowError,
    TimeUnit,
    ignore,
    parsed,
    shown,
    stated_in,
    tokens,
)
from kv_cache.workload.formats.jsonlines import hash_ids, looks_like, number, read_object
from kv_cache.workload.formats.names import Links, Recent
from kv_cache.workload.formats.row import TraceRow

BLOCK_TOKENS = 16
KEYS = (
    "chat_id",
    "parent_chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
)

_ROOT = -1
_MAX_ID = 2**63 - 1


class _Row(NamedTuple):
    time_ns: int
    prompt: int
    output: int
    ids: tuple[int, ...]
    chat: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Qwen:
    time_unit: TimeUnit = TimeUnit.S
    name = "qwen"
    document = False
    timed = True
    grouped = False
    description = (
        "Qwen-Bailian JSON lines: chat_id, parent_chat_id (-1 = root), timestamp (s), "
        "input_length, output_length (tokens), hash_ids (blocks of 16 tokens)"
    )

    def in_unit(self, unit: TimeUnit) -> "Qwen":
        return Qwen(unit)

    def matches(self, head: str) -> bool:
        return any(looks_like(text, KEYS) for text in head.splitlines())

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        clock = RowClock(note)
        links = Links(note)
        sessions: Recent[str] = Recent()
        for line, row in parsed(lines, partial(_row, self.time_unit), bad):
            at_ns = clock.at(line, row.time_ns)
            after = links.after(line, row.parents)
            name = links.name(line, row.chat)
            session = sessions.get(row.parents[0]) if after else None
            if session is None:
                session = row.parents[0] if row.parents else name
            sessions.put(row.chat, session)
            yield TraceRow(
                line, at_ns, row.prompt, row.output, row.ids, BLOCK_TOKENS, session, name, after
            )


def _row(unit: TimeUnit, text: str) -> _Row:
    fields = read_object(text, KEYS)
    parent = _chat("parent_chat_id", fields["parent_chat_id"], _ROOT)
    return _Row(
        stated_in("timestamp", number(fields, "timestamp"), unit),
        tokens("input_length", number(fields, "input_length"), 1),
        tokens("output_length", number(fields, "output_length"), 0),
        hash_ids(fields["hash_ids"]),
        str(_chat("chat_id", fields["chat_id"], 0)),
        () if parent == _ROOT else (str(parent),),
    )


def _chat(name: str, value: object, at_least: int) -> int:
    if type(value) is not int or not at_least <= value <= _MAX_ID:
        raise RowError(
            f"{name}: expected a whole number from {at_least} to {_MAX_ID}, found {shown(value)}"
        )
    return value
