"""The history of a conversation, as the blocks of its next turn.

Turn n's prompt is the whole history, answers included, and then what is new. The state
is a few numbers: blocks are named by conversation and place, so that nothing else is remembered.
What generation computes is not stored (as LMCache and vLLM's offloading do by default): an answer
becomes blocks with the next turn's prompt.
"""

from typing import NamedTuple

from kv_cache.core.block import Block, content_key
from kv_cache.workload.sizing import Geometry


class Turn(NamedTuple):
    """One prompt of a conversation; `prompt_tokens` are all of it, history included."""

    number: int
    prompt_tokens: int
    blocks: tuple[Block, ...]
    new_from: int
    tail_tokens: int


class Conversation:
    """`name` is unique: conversations share nothing."""

    __slots__ = ("_answered", "_name", "_prompts", "restarts", "turns")

    def __init__(self, name: str) -> None:
        self._name = name
        self._prompts: list[int] = []  # tokens of each prompt since the last restart, growing
        self._answered = 0  # tokens of the last answer
        self.turns = 0
        self.restarts = 0

    @property
    def context_tokens(self) -> int:
        """The whole history, the last answer included."""
        return (self._prompts[-1] if self._prompts else 0) + self._answered

    def ask(self, geometry: Geometry, tokens: int, answer_tokens: int, *, adds: bool) -> Turn:
        """Return the next turn. `tokens` are what it adds to the history, or (`adds` false) the
        whole prompt; one that is shorter than the prompt before it cannot contain it: the context
        was cut, and what follows is content of its own."""
        prompt = self.context_tokens + tokens if adds else tokens
        if self._prompts and prompt < self._prompts[-1]:
            self._prompts.clear()
            self.restarts += 1
        before = self._prompts[-1] if self._prompts else 0
        self._prompts.append(prompt)
        self._answered = answer_tokens
        self.turns += 1
        if not geometry.block_tokens:
            return Turn(self.turns, prompt, self._objects(geometry), len(self._prompts) - 1, 0)
        size = geometry.block_tokens
        blocks = geometry.stream(("stream", self._name, self.restarts), 0, prompt // size)
        return Turn(self.turns, prompt, blocks, before // size, prompt % size)

    def _objects(self, geometry: Geometry) -> tuple[Block, ...]:
        """Return one object for each turn: the tokens by which its prompt is longer than the one
        before it, at least 1."""
        blocks, before = [], 0
        for number, prompt in enumerate(self._prompts):
            key = content_key("turn", self._name, self.restarts, number)
            blocks.append(geometry.block(key, max(1, prompt - before)))
            before = prompt
        return tuple(blocks)
