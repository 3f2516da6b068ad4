"""What the rows of a trace ask for, as nodes of the chain.

Rows with hash ids share exactly what the trace says: an id is a run of its whole blocks, and what
is behind the last whole block is not shared. The turns of a session have its history, and the
answer of a turn belongs to it where it was given and fits into the next prompt. Rows with neither
share nothing. Nothing is known of an answer in a trace with hash ids, so it has no node there.
"""

from dataclasses import dataclass

from kv_cache.core.request import Request
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.workload.formats.ids import Recent
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.row_requests import MOST_CONVERSATIONS

_NO_ANSWER = -1


@dataclass(slots=True, eq=False)
class _History:
    """The last prompt and answer of a session."""

    id: int
    turns: int = 0
    prompt: int = 0
    output: int = 0
    leaf: int = ROOT
    answer_leaf: int = _NO_ANSWER
    answered: bool = False


class Content:
    """`trace_block_tokens` is the length of the trace's blocks, a multiple of `block_tokens`; 0 if
    it has none.

    A session is called by the number of its first request. One that is silent while
    `MOST_CONVERSATIONS` others speak begins anew.
    """

    def __init__(self, chain: PrefixChain, block_tokens: int, trace_block_tokens: int) -> None:
        self._chain = chain
        self._size = block_tokens
        self._blocks_of_id = trace_block_tokens // block_tokens
        self._known: Recent[_History] = Recent(MOST_CONVERSATIONS)

    def of(self, row: TraceRow, number: int, at_ns: int, *, goes_on: bool) -> ClusterRequest:
        """Return the row as request `number`, when it is asked. An answer has at least one token:
        prefill gives it."""
        if row.request is not None:
            return self._recorded(row.request, number, at_ns)
        session, turn = number, 0
        prompt, output = row.prompt_tokens, max(1, row.output_tokens)
        leaf, answer_leaf = ROOT, _NO_ANSWER
        if row.hash_ids is not None:
            leaf = self._hashed(row, row.hash_ids)
        if row.session is not None:
            history, turn = self._next_turn(row.session, number)
            session = history.id
            if goes_on and row.hash_ids is None:
                self._say(history, row, output)
                prompt, leaf, answer_leaf = history.prompt, history.leaf, history.answer_leaf
        return ClusterRequest(number, session, turn, at_ns, prompt, output, leaf, answer_leaf)

    def answered(self, session: str | None) -> None:
        """Note that the last prompt of a session got its answer."""
        history = None if session is None else self._known.get(session)
        if history is not None:
            history.answered = True

    def _next_turn(self, session: str, number: int) -> tuple[_History, int]:
        """Return the history of a session, and the turn that request `number` is of it."""
        history = self._known.get(session) or _History(number)
        self._known.put(session, history)
        history.turns += 1
        return history, history.turns - 1

    def _say(self, history: _History, row: TraceRow, output: int) -> None:
        """Add the next turn of a session. A prompt that is shorter than the one before cannot
        contain it: the context was cut, and what follows is content of its own."""
        spoken = history.prompt + history.output
        prompt = spoken + row.prompt_tokens if row.adds else row.prompt_tokens
        before = history.leaf
        if prompt < history.prompt:
            before = ROOT
        elif history.answered and prompt >= spoken and history.answer_leaf != _NO_ANSWER:
            before = history.answer_leaf
        chain, size = self._chain, self._size
        history.leaf = chain.grown(before, prompt // size)
        history.answer_leaf = chain.grown(history.leaf, (prompt + output - 1) // size)
        history.prompt, history.output, history.answered = prompt, row.output_tokens, False

    def _hashed(self, row: TraceRow, hash_ids: tuple[int | str, ...]) -> int:
        """Return the node of the prompt's whole blocks: those of the ids, and behind them those
        without."""
        chain, per, left = self._chain, self._blocks_of_id, row.prompt_tokens // self._size
        node = ROOT
        for name in hash_ids:
            blocks = min(per, left)
            if not blocks:
                break
            key: object = (row.scope, name) if row.scope else name
            node = chain.named(node, key if blocks == per else (key, blocks), blocks)
            left -= blocks
        return chain.fresh(node, left) if left else node

    def _recorded(self, request: Request, number: int, at_ns: int) -> ClusterRequest:
        """Build the path of a request of a recorded run, block by block."""
        chain, tokens, node = self._chain, 0, ROOT
        for block, filled in zip(request.blocks, request.tokens_in_blocks, strict=True):
            tokens += filled
            node = chain.grown_by(node, block.key, tokens // self._size)
        tokens += request.tail_tokens
        node = chain.grown(node, tokens // self._size)
        history, turn = self._next_turn(request.conversation, number)
        output = max(1, request.output_tokens)
        return ClusterRequest(number, history.id, turn, at_ns, tokens, output, node)
