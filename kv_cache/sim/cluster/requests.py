"""The seam between who asks and the cluster.

The laws of a source:
 1. `first` yields what is known without any answer, in order of `arrival_ns`; it is walked once.
 2. `after` is called once for every ask that has ended, whatever became of it, in order of the
    ends; its answer arrives no earlier than `ended_ns`.
 3. What is asked depends on the seed and on the order of the answers alone.
 4. `prompt_tokens` >= block_tokens x `chain.end(leaf)` > prompt_tokens - block_tokens, where `leaf`
    is not ROOT: the leaf holds all whole blocks of the prompt. ROOT: nothing can be shared.
 5. `answer_leaf` continues `leaf` with the whole blocks up to prompt + output tokens (the last
    token's state is never computed: prompt + output - 1); -1: it is never asked for.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class ClusterRequest(NamedTuple):
    """One request as it is meant. `leaf` and `answer_leaf` are nodes of the chain. `number` is its
    place in the plan, below the number of requests, whatever the order of arrivals becomes."""

    number: int
    session: int
    turn: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    leaf: int = 0
    answer_leaf: int = -1


class RequestSource(Protocol):
    def first(self) -> Iterator[ClusterRequest]: ...

    def after(
        self, request: ClusterRequest, ended_ns: int, *, answered: bool
    ) -> Sequence[ClusterRequest]:
        """Return the requests that follow from an answer, or from its absence."""
