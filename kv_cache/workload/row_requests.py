"""A trace's rows as requests.

Rows with hash ids share blocks exactly as the trace says. Rows of a session have its history
built for them, and the result says so. Rows with neither are never given sharing that the trace
does not have: each is content of its own, in every cycle anew.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.block import Block, content_key, numbered_keys
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import Lookup, Qos
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.conversation import Conversation
from kv_cache.workload.formats.ids import Recent
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.qos import QosMix
from kv_cache.workload.sizing import Geometry

TRACE_USERS = 1000  # rows without a session are spread over this many users, as in the reference
MOST_CONVERSATIONS = 100_000
"""Conversations that are remembered; one that is silent while as many others speak begins anew, and
is counted."""


_COUNTED = (
    "history_turns",
    "history_restarts",
    "history_branches",
    "forgotten_conversations",
)


class History(StrEnum):
    """What the prompt tokens of a session's later rows mean."""

    FORMAT = "format"  # as the format says
    INCLUDED = "included"  # the whole prompt, history included
    ADDED = "added"  # only what is new
    NONE = "none"  # sessions are in order, but have no history


class RowRequestsConfig(Struct, frozen=True, kw_only=True):
    """`trace_block_tokens`: 0 where the trace has no hash ids."""

    geometry: Geometry
    qos: QosMix
    trace_block_tokens: int = 0
    history: History = History.FORMAT

    def __post_init__(self) -> None:
        traced, wanted = self.trace_block_tokens, self.geometry.block_tokens
        if traced and wanted and traced % wanted:
            raise TraceError(
                f"--block-tokens {wanted}: the trace's blocks of {traced} tokens cannot be cut "
                f"into blocks of {wanted}; use a divisor of {traced}, or 0 for one object each "
                "request"
            )


class Continuations:
    """Which rows of a session go on where the one before them ended; asked in the file's order."""

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}

    def goes_on(self, row: TraceRow) -> bool:
        """Return False for a branch: a row that follows another one than the last of its session.
        How much of the history it has is not known, nor for the rows behind it."""
        if row.session is None or row.hash_ids is not None:
            return True
        known, last = row.session in self._last, self._last.get(row.session)
        if known and last is None:
            return False
        linear = not row.after or row.after == (last,)
        self._last[row.session] = (row.name or "") if linear else None
        return linear

    def forget(self, session: str) -> None:
        self._last.pop(session, None)


class RowRequests:
    """Makes one cycle's requests, row by row in the file's order. `draws`: a seed of this cycle;
    `counted`: the counts of all cycles.

    Each pass has its own content, so that a trace that is repeated offers no more reuse than
    once.
    """

    def __init__(
        self,
        config: RowRequestsConfig,
        cycle: int,
        draws: Seed,
        counted: Counter[str] | None = None,
    ) -> None:
        self._config = config
        self._cycle = cycle
        self._draws = draws
        self._rng = draws.rng()
        self._conversations: Recent[Conversation] = Recent(MOST_CONVERSATIONS)
        self._continuations = Continuations()
        self._counted = Counter() if counted is None else counted

    def goes_on(self, row: TraceRow) -> bool:
        """Return `Continuations.goes_on`."""
        return self._continuations.goes_on(row)

    def request(
        self, row: TraceRow, ordinal: int, intended_ns: int, *, goes_on: bool = True
    ) -> Request:
        """Return the request of the `ordinal`-th row (from 0) that was read."""
        if row.request is not None:
            return replace(row.request, request_id=ordinal, intended_ns=intended_ns)
        qos = self._qos(row.session)
        plain = Request(
            request_id=ordinal,
            intended_ns=intended_ns,
            user=row.session or f"trace_user_{ordinal % TRACE_USERS}",
            conversation=row.session or row.name or f"row_{ordinal}",
            turn=1,
            qos=qos,
            priority=self._config.qos.priority(qos),
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            blocks=(),
            model=row.model or "",
            cycle=self._cycle,
        )
        if row.nbytes:
            return self._operation(plain, row)
        if row.hash_ids is not None:
            return self._hashed(plain, row, row.hash_ids)
        if row.session is not None and self._config.history is not History.NONE:
            if goes_on:
                return self._turn(plain, row, row.session)
            self._counted["history_branches"] += 1
        return self._alone(plain, row, ordinal)

    def facts(self) -> Mapping[str, int]:
        """Return for how many turns of all cycles so far a history was built, and was not."""
        return {name: self._counted[name] for name in _COUNTED}

    def _qos(self, session: str | None) -> Qos:
        """Draw a class, one for all of a session; rows without one draw in the file's order."""
        rng = self._rng if session is None else self._draws.child("session", session).rng()
        return self._config.qos.draw(rng)

    def _operation(self, plain: Request, row: TraceRow) -> Request:
        assert row.hash_ids is not None, "an operation names its object"
        key = content_key("object", *self._pass(), *row.hash_ids)
        return replace(
            plain,
            blocks=(Block(key, row.prompt_tokens, row.nbytes),),
            new_from=1 if row.reads else 0,
            lookup=Lookup.OPERATION,
        )

    def _hashed(self, plain: Request, row: TraceRow, hash_ids: tuple[int | str, ...]) -> Request:
        """Return the trace's blocks, whole (a paged cache allocates its last block whole too). What
        the ids do not cover is behind them."""
        covered = min(row.prompt_tokens, self._config.trace_block_tokens * len(hash_ids))
        blocks = self._blocks(self._scope(row), hash_ids, covered)
        size = self._config.geometry.block_tokens
        return replace(
            plain,
            blocks=blocks,
            unfilled=-covered % size if size else 0,
            tail_tokens=row.prompt_tokens - covered,
            lookup=Lookup.CONTENT,
        )

    def _scope(self, row: TraceRow) -> tuple[str | int, ...]:
        return ("hash", *self._pass(), row.scope) if row.scope else ("hash", *self._pass())

    def _pass(self) -> tuple[str | int, ...]:
        return ("pass", self._cycle) if self._cycle else ()

    def _blocks(
        self, scope: tuple[str | int, ...], hash_ids: tuple[int | str, ...], covered: int
    ) -> tuple[Block, ...]:
        """Return the blocks that hold the first `covered` tokens."""
        geometry, traced = self._config.geometry, self._config.trace_block_tokens
        size = geometry.block_tokens
        if not size:
            key = content_key("sequence", covered, *scope[1:], *hash_ids)
            return (geometry.block(key, covered),)
        count = -(-covered // size)
        if size == traced:
            return geometry.blocks(numbered_keys(scope, hash_ids[:count]), traced)
        parts = ((h, part) for h in hash_ids for part in range(traced // size))
        return geometry.blocks(
            (content_key(*scope, h, part) for h, part in islice(parts, count)), size
        )

    def _turn(self, plain: Request, row: TraceRow, session: str) -> Request:
        talk = self._conversation(session)
        before = talk.restarts
        turn = talk.ask(
            self._config.geometry, row.prompt_tokens, row.output_tokens, adds=self._adds(row)
        )
        self._counted["history_restarts"] += talk.restarts - before
        self._counted["history_turns"] += turn.new_from > 0
        return replace(
            plain,
            turn=turn.number,
            prompt_tokens=turn.prompt_tokens,
            blocks=turn.blocks,
            new_from=turn.new_from,
            tail_tokens=turn.tail_tokens,
        )

    def _adds(self, row: TraceRow) -> bool:
        history = self._config.history
        return row.adds if history is History.FORMAT else history is History.ADDED

    def _conversation(self, session: str) -> Conversation:
        talk = self._conversations.get(session) or Conversation(f"{self._cycle}/{session}")
        silent = self._conversations.put(session, talk)
        if silent is not None:
            self._continuations.forget(silent)
            self._counted["forgotten_conversations"] += 1
        return talk

    def _alone(self, plain: Request, row: TraceRow, ordinal: int) -> Request:
        geometry = self._config.geometry
        size = geometry.block_tokens
        name = ("row", self._cycle, ordinal)
        if not size:
            block = geometry.block(content_key(*name), row.prompt_tokens)
            return replace(plain, blocks=(block,), once=True)
        blocks = geometry.stream(name, 0, row.prompt_tokens // size)
        return replace(plain, blocks=blocks, tail_tokens=row.prompt_tokens % size, once=True)


def shorter(gap_ns: int, by: float) -> int:
    """Return a gap of the trace at a multiple of its pace; 0 = no gaps at all."""
    return round(gap_ns / by) if by else 0
