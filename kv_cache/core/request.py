"""What is asked: an arrival as the source means it."""

from dataclasses import dataclass

from kv_cache.core.block import Block
from kv_cache.core.kinds import Qos


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request with its intended instant.

    `blocks` is the whole sequence that the request attends over, in order. The first `shared`
    are a prompt that others begin with too; those from there to `new_from` were produced by
    earlier turns of the same conversation. 0 means that the source does not know. `tail_tokens`
    are prompt tokens behind the last block: an unfilled block is not stored.
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

    @property
    def total_bytes(self) -> int:
        return sum(b.nbytes for b in self.blocks)
