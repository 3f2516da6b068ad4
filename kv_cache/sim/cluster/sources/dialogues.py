"""Conversations and agents: sessions whose turns wait for their answers.

A session begins with what it shares (a system prompt, a set of tools, documents) and with what it
alone has; the prompt of each later turn is all that was said before, the answer included, and new
tokens. A turn comes a time to think after the end of the one before it. One that was not answered
is a question without an answer in the history: the session goes on, so that as many requests are
asked of a cluster that rejects them as of any other.

What is asked is drawn session by session, and no session is kept that has not begun or has ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from kv_cache.config.lengths import build_lengths
from kv_cache.config.scenario import WorkloadSection
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.prefix_chain import ROOT, PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.sources.draws import (
    DrawStream,
    Ints,
    ZipfDraws,
    arrival_gaps,
    span_draw,
    token_draw,
)

_BULK = 1 << 14  # draws of one feature that are made at once, about

_LAST = -1


class _SessionPlan(NamedTuple):
    """What a session will ask: new tokens, answer and time to think by turn."""

    number: int  # of its first request
    session: int
    gap_ns: int
    prompts: list[int]
    outputs: list[int]
    thinks: list[int]
    documents: list[int]


@dataclass(slots=True, eq=False)
class _Dialogue:
    """A session that goes on; `tokens` of its last prompt, whose node is `leaf`."""

    plan: _SessionPlan
    leaf: int
    tokens: int
    turn: int = 0
    answer_leaf: int = _LAST


class Dialogues:
    """`reasoning`: tokens that each later turn adds beside its own new ones."""

    def __init__(
        self,
        work: WorkloadSection,
        block_tokens: int,
        chain: PrefixChain,
        seed: Seed,
        reasoning: int,
    ) -> None:
        self._work = work
        self._size = block_tokens
        self._chain = chain
        self._reasoning = reasoning
        self._plans = _plans(work, seed)
        self._going: dict[int, _Dialogue] = {}

    def first(self) -> Iterator[ClusterRequest]:
        """Begin sessions at their own instants, or as many at once as there are users."""
        at_ns = 0
        users = self._work.concurrency
        for plan in islice(self._plans, users or None):
            at_ns += 0 if users else plan.gap_ns
            yield self._begin(plan, at_ns)

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        talk = self._going.get(request.session)
        if talk is not None:
            return (self._next(talk, ended_ns, answered),)
        plan = next(self._plans, None) if self._work.concurrency else None
        return () if plan is None else (self._begin(plan, ended_ns + plan.thinks[0]),)

    def _begin(self, plan: _SessionPlan, at_ns: int) -> ClusterRequest:
        node, tokens = self._opening(plan)
        talk = _Dialogue(plan, node, tokens)
        self._going[plan.session] = talk
        return self._ask(talk, at_ns, node, tokens + plan.prompts[0])

    def _next(self, talk: _Dialogue, ended_ns: int, answered: bool) -> ClusterRequest:
        plan = talk.plan
        answer = plan.outputs[talk.turn] if answered else 0
        before = talk.answer_leaf if answered else talk.leaf
        talk.turn += 1
        tokens = talk.tokens + answer + self._reasoning + plan.prompts[talk.turn]
        return self._ask(talk, ended_ns + plan.thinks[talk.turn], before, tokens)

    def _ask(self, talk: _Dialogue, at_ns: int, before: int, tokens: int) -> ClusterRequest:
        """Build the turn of a session whose prompt has `tokens`, those behind `before` its own."""
        plan, turn, size = talk.plan, talk.turn, self._size
        output = plan.outputs[turn]
        leaf = self._chain.grown(before, tokens // size)
        if turn + 1 < len(plan.prompts):
            answer_leaf = self._chain.grown(leaf, (tokens + output - 1) // size)
            talk.tokens, talk.leaf, talk.answer_leaf = tokens, leaf, answer_leaf
        else:
            answer_leaf = _LAST
            del self._going[plan.session]
        return ClusterRequest(
            plan.number + turn, plan.session, turn, at_ns, tokens, output, leaf, answer_leaf
        )

    def _opening(self, plan: _SessionPlan) -> tuple[int, int]:
        """Return the node of what is shared before the first turn, and the tokens with a session's
        own context, which has no node yet."""
        work, session = self._work, plan.session
        node, tokens = ROOT, 0
        if work.system_prompts:
            tokens += work.system_tokens
            node = self._shared(node, ("system", session % work.system_prompts), tokens)
        if work.tool_sets:
            tokens += work.tool_tokens
            node = self._shared(node, ("tools", session % work.tool_sets), tokens)
        for document in dict.fromkeys(plan.documents):
            tokens += work.context_tokens // work.documents_per_session
            node = self._shared(node, ("document", document), tokens)
        return node, tokens if work.documents else tokens + work.context_tokens

    def _shared(self, node: int, name: tuple[str, int], tokens: int) -> int:
        return self._chain.grown_by(node, name, tokens // self._size)


def _plans(work: WorkloadSection, seed: Seed) -> Iterator[_SessionPlan]:
    """Plan session after session, until all requests are planned: the last may be cut short."""
    number = session = 0
    for drawn in _drawn(work, seed):
        for gap, turns, prompts, outputs, thinks, documents in drawn:
            turns = min(turns, work.drawn_requests - number)
            yield _SessionPlan(
                number, session, gap, prompts[:turns], outputs[:turns], thinks[:turns], documents
            )
            number += turns
            session += 1
            if number == work.drawn_requests:
                return


_Drawn = tuple[int, int, list[int], list[int], list[int], list[int]]


def _drawn(work: WorkloadSection, seed: Seed) -> Iterator[Iterator[_Drawn]]:
    """Draw for many sessions at once. A session has its places in each stream, as many as the
    longest would need; where the turns have a law, whose longest is rare, as many as it has."""
    laws = build_lengths(work.lengths)
    places, chunks = work.turns[1], work.documents_per_session
    count = max(1, _BULK // max(places, chunks))
    gaps = arrival_gaps(work, seed)
    turns, prompts, outputs, thinks, picks = (
        DrawStream(seed.child(name))
        for name in ("turns", "prompts", "outputs", "thinks", "documents")
    )
    turn = token_draw(laws.turns, "uniform", work.turns)
    prompt = token_draw(laws.prompt, work.prompt_law, work.prompt_tokens)
    firsts = DrawStream(seed.child("first_prompts"))
    first = None if laws.first_prompt is None else token_draw(laws.first_prompt, "uniform", (1, 1))
    output = token_draw(laws.output, work.output_law, work.output_tokens)
    think = span_draw(laws.think_s, work.think_s)
    zipf = ZipfDraws(work.documents, work.zipf_alpha) if work.documents else None
    while True:
        turn_shares = turns.take(count)
        of_sessions = turn(turn_shares).tolist()
        widths = [places] * count if laws.turns is None else of_sessions
        added = prompt(prompts.take(sum(widths)))
        if first is not None:
            pairs = zip(turn_shares.tolist(), firsts.take(count).tolist(), strict=True)
            shares = np.array([laws.first_share(*pair) for pair in pairs])
            added[np.cumsum([0, *widths[:-1]])] = first(shares)
        yield zip(
            islice(gaps, count),
            of_sessions,
            _split(added, widths),
            _split(output(outputs.take(sum(widths))), widths),
            _split(think(thinks.take(sum(widths))), widths),
            [[]] * count
            if zipf is None
            else zipf.pick(picks.take(count * chunks)).reshape(count, chunks).tolist(),
            strict=True,
        )


def _split(values: Ints, widths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the values of each session."""
    begin = 0
    for width in widths:
        yield values[begin : begin + width].tolist()
        begin += width
