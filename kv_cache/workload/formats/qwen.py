"""Qwen-Bailian's traces (ATC'25): JSON lines with content hashes and links to the parent.

A line is {"chat_id": 159, "parent_chat_id": 55, "timestamp": s, "input_length": tokens,
"output_length": tokens, "type": "text", "turn": 2, "hash_ids": [...]}. Each id means 16
tokens of the prompt (its last block may be partly filled) and means the same content throughout
the file. `chat_id` names one request and not a conversation: a follow-up has an id of its own and
names the request that it continues, -1 where it continues none. Source: the dataset's README
(alibaba-edu/qwen-bailian-usagetraces-anon).

Rules: a follow-up waits for its parent. All that descend from one root are one session, named by
the root's id. Parents are known among the last `ids.KEPT` rows; one that is farther back, or not
in the file at all (a part of a trace), is not waited for, and its id names the session. Such rows
are counted (`Note.ORPHAN`). An id that was used before means the later row from there on; that row
is counted (`Note.DUPLICATE`) and called `ID@LINE`.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from kv_cache.workload.formats.base import Bad, Noted, TimeUnit, ignore
from kv_cache.workload.formats.ids import Recent, RowNames
from kv_cache.workload.formats.jsonlines import hashed_row, looks_like, read_object
from kv_cache.workload.formats.line_formats import HashedRows, Line, LineFormat, LineReader
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import integer

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


class Qwen(HashedRows, LineFormat):
    WRITTEN_IN = TimeUnit.S
    BLOCK_TOKENS = BLOCK_TOKENS
    name = "qwen"
    description = (
        "Qwen-Bailian JSON lines: chat_id, parent_chat_id (-1 = root), timestamp (s), "
        "input_length, output_length (tokens), hash_ids (blocks of 16 tokens)"
    )

    def matches(self, head: str) -> bool:
        return any(looks_like(text, KEYS) for text in head.splitlines())

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader:
        return partial(_row, self.time_unit, self.block_tokens)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        names = RowNames(note)
        sessions: Recent[str] = Recent()
        for row in super().rows(lines, bad, note):
            chat, parent = row.name or "", next(iter(row.after), None)
            after = names.after(row.line, row.after)
            name = names.name(row.line, chat)
            session = sessions.get(parent) if parent and after else None
            if session is None:
                session = parent or name
            sessions.put(chat, session)
            yield row._replace(session=session, name=name, after=after)


def _row(unit: TimeUnit, block_tokens: int, text: str) -> Line:
    """Return the row under the file's own names: `name` is the chat, `after` its parent."""
    fields = read_object(text, KEYS)
    parent = integer("parent_chat_id", fields["parent_chat_id"], _ROOT)
    return (
        hashed_row(
            fields,
            unit,
            block_tokens,
            name=str(integer("chat_id", fields["chat_id"])),
            after=() if parent == _ROOT else (str(parent),),
        ),
    )
