"""What is asked: an arrival as the source means it."""

from msgspec import Struct

from kv_cache.core.block import Block
from kv_cache.core.kinds import Lookup, Qos


class Request(Struct, frozen=True, kw_only=True):
    """One request with its intended instant.

    `blocks` is the whole sequence that the request attends over, in order. The first `shared`
    are a prompt that others begin with too; those from there to `new_from` were produced by
    earlier turns of the same conversation. `lookup` says what a source knows that does not know
    these. `tail_tokens` are prompt tokens behind the last block: an unfilled block is not stored.
    But where a trace names the prompt's last block it is, with room for `unfilled` tokens more.

    `model` is the one that is asked, as the source calls it; "" where it does not say. `retrieved`:
    asked by RAG, beside what users or a trace ask. `once`: no other request ever asks for any of
    these blocks. `cycle` is the pass over a trace that it is of: what has a name of its own in each
    pass is not asked for in a later one. `offered_blocks` of the sequence (and their tokens) had
    been asked for before this request came: what a cache without limits would have had, filled in
    by the intake.
    """

    request_id: int
    intended_ns: int
    user: str
    conversation: str
    turn: int
    qos: Qos
    priority: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[Block, ...]
    shared: int = 0
    new_from: int = 0
    tail_tokens: int = 0
    unfilled: int = 0
    lookup: Lookup = Lookup.TURNS
    model: str = ""
    retrieved: bool = False
    once: bool = False
    cycle: int = 0
    offered_blocks: int = 0
    offered_tokens: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens of the whole sequence: those in its blocks, and those behind the last of them."""
        return sum(self.tokens_in_blocks) + self.tail_tokens

    @property
    def tokens_in_blocks(self) -> list[int]:
        """How many tokens of the sequence are in each block."""
        tokens = [block.tokens for block in self.blocks]
        if self.unfilled:
            tokens[-1] -= self.unfilled
        return tokens

    @property
    def total_bytes(self) -> int:
        return sum(b.nbytes for b in self.blocks)
