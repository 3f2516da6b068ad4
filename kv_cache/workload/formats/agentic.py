"""Sessions of coding agents as kv-cache-tester has them (github.com/callanjfox/kv-cache-tester).

A file is one session (a directory of files is a trace); several, as JSON lines or a list, are read
too. A session is {"id", "block_size" (64 if missing), "hash_id_scope", "requests": [...], ...}, a
request {"t": s from the session's start, "type": "s" or "n" (streamed or not), "model", "in",
"out": tokens, "hash_ids": blocks of the prompt, "api_time", "think_time": s, ...}. Only whole
blocks have an id, so that up to a block of the prompt's end has none. An id is chained: it stands
for its block and for all before it.

As the format's documentation (TRACE_FORMAT.md of callanjfox/agentic-coding-analysis), its builder
and its replayer have it:
 - `hash_id_scope` "global": an id means the same in every session of the trace. "local" (and where
   it is missing): in this session alone, its sub-agents included, whose ids come from the same
   counter. The blocks of a sub-agent are mostly others than its parent's all the same.
 - A node of type "subagent" holds the `requests` of a sub-agent, which may hold nodes again. The
   sub-agents between two requests of an agent go on at the same time: each begins when the request
   before it is answered, and the request behind them waits for the last answer of each.
 - `think_time` is from the answer before it (in the same agent) to the request: tools and people.
   That of a request behind sub-agents includes the wait for them, so there it is what was left of
   it: from the last instant that the file has for them (an end, or the node's own `t`).
 - The documentation calls a node's `t` the spawn; the builder writes when the result came back.
   Nothing here depends on which it is but `at_ns`.
 - The `t` of a sub-agent's requests count from its node's `t` in this trace, and from the session's
   start in the published AgentX copies of it; taken for the first where one of them is more than a
   second earlier than the node.

Rows: `name` is the place in the tree ("3", "3.0"), `after` says what a row waits for. Where there
is no `think_time`, it is the gap to the recorded end of the request before, if that has an
`api_time`. The rules for what is odd:
 - A request without `hash_ids` (missing, null, empty) has no prefix information: `Note.NO_BLOCKS`,
   left out. One with `in` 0 asked nothing: `Note.FAILED`, left out. What follows it waits for the
   one before it.
 - A `t` before that of the agent's request before it is taken as that (`Note.BACKWARD`).
 - A session of which no row is left is a `Note.EMPTY`.
 - A second session of the same id is called `<id>#<item>` (`Note.DUPLICATE`), and one without an
   id `#<item>`.
 - Whatever has another type or a negative number makes its request bad, or the session where it is
   in the session itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal

from msgspec import Struct, field

from kv_cache.core.units import NS_PER_S
from kv_cache.workload.formats.base import Bad, Note, Noted, RowError, TimeUnit, ignore
from kv_cache.workload.formats.ids import SeenIds
from kv_cache.workload.formats.json_items import Cursor, further_items, items, key_paths
from kv_cache.workload.formats.jsonlines import hash_ids, read_object, read_value
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import array, identifier, misfit, number, time_ns, tokens

DEFAULT_BLOCK_TOKENS = 64
SCOPES = ("local", "per_context", "global")
MAX_DEPTH = 16
_SUBAGENT = "subagent"
_MARKED_NS = NS_PER_S  # `t` are rounded to 0.1 s or 1 s: a child so little before its node is not


class Agentic:
    name = "agentic"
    document = True
    timed = True
    grouped = True
    description = (
        "kv-cache-tester JSON, one agent session a file: id, block_size, hash_id_scope, requests: "
        "[{t (s), in, out (tokens), hash_ids, think_time, api_time (s)}], sub-agents nested"
    )

    def matches(self, head: str) -> bool:
        paths = key_paths(head)
        inside = {("block_size",), ("requests", "hash_ids"), ("requests", "requests")}
        return ("requests",) in paths and bool(paths & inside)

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        cursor = Cursor(lines)
        reader = _Reader(bad, note)
        further = items(cursor)
        if cursor.peek() == "{":  # one session, which may be long: it is not held as a whole
            cursor.item = 1
            begun = cursor.line
            yield from reader.streamed(cursor)
            further = further_items(cursor, one_line=cursor.line == begun)
        for item, text in further:
            yield from reader.whole(item, text)


class _Header(Struct, frozen=True, kw_only=True):
    """What a session states beside its requests."""

    item: int
    session: str
    scope: str
    block_tokens: int


class _Agent(Struct):
    """One agent as far as it was read: what its next request waits for, and since when.

    `waits` are names; `straight` is false where they are not the agent's own request just before.
    `instants` are those that the file has for what is waited for, `last_ns` is the latest `t`.
    """

    name: str  # of its node, with a dot; "" for the session's own agent
    base_ns: int = 0  # what its `t` count from
    waits: tuple[str, ...] = ()
    straight: bool = True
    ended_ns: int | None = None
    last_ns: int = 0
    joined: list[str] = field(default_factory=list)
    instants: list[int] = field(default_factory=list)
    held: list[TraceRow] = field(default_factory=list)  # of sub-agents, until the next request
    depth: int = 0

    def ends(self) -> tuple[str, ...]:
        return tuple(self.joined) or self.waits

    def released(self, until_ns: int | None) -> Iterator[TraceRow]:
        """Yield the rows of the sub-agents in the order of their times, none later than the request
        that waits for them."""
        for row in sorted(self.held, key=lambda row: row.at_ns):
            yield row if until_ns is None else row._replace(at_ns=min(row.at_ns, until_ns))
        self.held.clear()


class _Reader:
    """Rows from the sessions of one file."""

    __slots__ = ("_bad", "_note", "_seen")

    def __init__(self, bad: Bad, note: Noted) -> None:
        self._bad = bad
        self._note = note
        self._seen = SeenIds()

    def whole(self, item: int, text: str) -> Iterator[TraceRow]:
        """Yield the rows of a session from its whole text."""
        yield from self._session(item, lambda: read_object(text))

    def streamed(self, cursor: Cursor) -> Iterator[TraceRow]:
        """Yield the rows of the session at the cursor, request by request where its id and block
        size stand before them, as the tools write it; else it is held until it is whole."""
        texts: dict[str, str] = {}
        streamed = False
        for key in cursor.members():
            known = "id" in texts and "block_size" in texts
            if key == "requests" and known and not streamed and cursor.peek() == "[":
                streamed = True
                yield from self._stream(cursor.item, texts, cursor.elements())
            else:
                text = cursor.value()
                texts.update({} if streamed else {key: text})
        if not streamed:
            yield from self._session(cursor.item, lambda: _values(texts))

    def _stream(
        self, item: int, texts: Mapping[str, str], requests: Iterator[str]
    ) -> Iterator[TraceRow]:
        try:
            header = self._header(item, _values(texts))
        except RowError as problem:
            self._bad(item, str(problem))
            for _ in requests:  # the cursor has to come to their end
                pass
            return
        yield from self._rows(header, map(_node, requests))

    def _session(self, item: int, read: Callable[[], Mapping[str, object]]) -> Iterator[TraceRow]:
        try:
            session = read()
            nodes = array("requests", session.get("requests"))
            header = self._header(item, session)
        except RowError as problem:
            self._bad(item, str(problem))
            return
        yield from self._rows(header, nodes)

    def _header(self, item: int, session: Mapping[str, object]) -> _Header:
        scope = session.get("hash_id_scope")
        if scope is not None and scope not in SCOPES:
            raise misfit(f"one of {', '.join(SCOPES)}", scope, "hash_id_scope")
        size = session.get("block_size", DEFAULT_BLOCK_TOKENS)
        block_tokens = tokens("block_size", number("block_size", size), 1)
        name = self._name(item, session.get("id"))
        return _Header(
            item=item,
            session=name,
            scope="" if scope == "global" else name,
            block_tokens=block_tokens,
        )

    def _name(self, item: int, stated: object) -> str:
        name = f"#{item}" if stated is None else identifier("id", stated)
        if not self._seen.before(name):
            return name
        self._note(item, Note.DUPLICATE)
        return self._seen.unused(name, f"#{item}")

    def _rows(self, header: _Header, nodes: Iterable[object]) -> Iterator[TraceRow]:
        agent = _Agent(name="")
        first_ns: int | None = None
        for row in self._agent_rows(header, agent, nodes):
            first_ns = row.at_ns if first_ns is None else first_ns
            yield row._replace(at_ns=row.at_ns - first_ns)
        if first_ns is None:
            self._note(header.item, Note.EMPTY)

    def _agent_rows(
        self, header: _Header, agent: _Agent, nodes: Iterable[object]
    ) -> Iterator[TraceRow]:
        """Yield the rows of an agent and of its sub-agents; `at_ns` counts from the session's start
        and never decreases."""
        for place, node in enumerate(nodes):
            name = f"{agent.name}{place}"
            row = None
            try:
                fields = _fields(node)
                if _is_agent(fields):
                    self._subagent(header, agent, name, fields)
                else:
                    row = self._request(header, agent, name, fields)
            except RowError as problem:
                self._bad(header.item, f"request {name}: {problem}")
                agent.straight = False
            if row is not None:
                yield from agent.released(row.at_ns)
                yield row
        yield from agent.released(None)

    def _request(
        self, header: _Header, agent: _Agent, name: str, fields: Mapping[str, object]
    ) -> TraceRow | None:
        """Return the row of a request, which the agent then has behind it; None if left out."""
        at_ns = agent.base_ns + _seconds_ns("t", fields.get("t"))
        prompt = tokens("in", number("in", fields.get("in")), 0)
        output = tokens("out", number("out", fields.get("out")), 0)
        ids = hash_ids([] if fields.get("hash_ids") is None else fields["hash_ids"], least=0)
        api_ns = _optional_ns(fields, "api_time")
        stated_think_ns = _optional_ns(fields, "think_time")
        model = fields.get("model")
        model = None if model is None else identifier("model", model)
        if not prompt or not ids:
            self._note(header.item, Note.NO_BLOCKS if prompt else Note.FAILED)
            agent.straight = False
            return None
        if at_ns < agent.last_ns:
            self._note(header.item, Note.BACKWARD)
            at_ns = agent.last_ns
        row = TraceRow(
            header.item,
            at_ns,
            prompt,
            output,
            ids,
            header.block_tokens,
            session=header.session,
            name=name,
            after=agent.ends(),
            think_ns=_think_ns(agent, at_ns, stated_think_ns),
            scope=header.scope,
            model=model,
        )
        agent.joined.clear()
        agent.waits, agent.straight, agent.last_ns = (name,), True, at_ns
        agent.ended_ns = None if api_ns is None else at_ns + api_ns
        agent.instants = [at_ns + (api_ns or 0)]
        return row

    def _subagent(
        self, header: _Header, parent: _Agent, name: str, fields: Mapping[str, object]
    ) -> None:
        """Read the rows of a sub-agent, which its parent holds until its own next request."""
        if parent.depth >= MAX_DEPTH:
            raise RowError(f"expected sub-agents nested at most {MAX_DEPTH} deep, found more")
        nodes = array("requests", fields.get("requests"))
        # The builder puts the sub-agents of a whole conversation into each piece that it was cut
        # into, with times before the piece's start.
        stated = fields.get("t")
        node_ns = 0
        if not _is_negative(stated):
            node_ns = parent.base_ns + (_optional_ns(fields, "t") or 0)
        child = _Agent(
            name=f"{name}.",
            base_ns=node_ns if _counts_from(node_ns - parent.base_ns, nodes) else parent.base_ns,
            waits=parent.waits,
            straight=parent.straight,
            ended_ns=parent.ended_ns,
            last_ns=parent.last_ns,
            instants=list(parent.instants),
            depth=parent.depth + 1,
        )
        rows = list(self._agent_rows(header, child, nodes))
        if not rows:
            return
        parent.held += rows
        parent.joined += child.ends()
        parent.instants += [node_ns, *child.instants]


def _think_ns(agent: _Agent, at_ns: int, stated_ns: int | None) -> int | None:
    """Return what was left of the think time behind sub-agents, or is stated behind a request."""
    if agent.joined:
        # The instant of the request before the sub-agents is never later.
        left = at_ns - max(instant for instant in [0, *agent.instants] if instant <= at_ns)
        return left if stated_ns is None else min(left, stated_ns)
    if stated_ns is not None and agent.straight:
        return stated_ns
    return None if agent.ended_ns is None else max(0, at_ns - agent.ended_ns)


# --- nodes ---


def _node(text: str) -> object:
    """Return a request as JSON, or the error that says why it cannot be read."""
    try:
        return read_value(text)
    except RowError as problem:
        return problem


def _fields(node: object) -> Mapping[str, object]:
    if isinstance(node, RowError):
        raise node
    if not isinstance(node, dict):
        raise misfit("an object", node)
    return node


def _is_agent(fields: Mapping[str, object]) -> bool:
    return fields.get("type") == _SUBAGENT or "requests" in fields


def _counts_from(node_ns: int, nodes: list[object]) -> bool:
    """Return whether the times of a sub-agent's requests count from its node's."""
    return any(
        stated < Decimal(node_ns - _MARKED_NS) / NS_PER_S
        for node in nodes
        if isinstance(node, dict) and isinstance(stated := node.get("t"), int | Decimal)
    )


def _is_negative(value: object) -> bool:
    return isinstance(value, int | Decimal) and value < 0


def _seconds_ns(name: str, value: object) -> int:
    return time_ns(name, number(name, value), TimeUnit.S)


def _optional_ns(fields: Mapping[str, object], name: str) -> int | None:
    return None if fields.get(name) is None else _seconds_ns(name, fields[name])


def _values(texts: Mapping[str, str]) -> dict[str, object]:
    return {key: read_value(text) for key, text in texts.items()}
