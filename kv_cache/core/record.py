"""What became of a request: raw instants. Every latency is one property with its formula.

Instants are nanoseconds since the run's origin on one monotonic clock.
"""

from msgspec import Struct

from kv_cache.core.kinds import Outcome, Qos
from kv_cache.core.request import Request


class RequestRecord(Struct, frozen=True, kw_only=True):
    """One request's end. Instants that it never reached are None."""

    request_id: int
    user: str
    conversation: str
    turn: int
    qos: Qos
    prompt_tokens: int
    output_tokens: int
    outcome: Outcome
    error: str | None = None
    intended_ns: int
    enqueued_ns: int
    started_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    blocks: int = 0
    context_tokens: int = 0
    looked_up: int = 0
    hits: int = 0
    hit_tokens: int = 0
    offered_blocks: int = 0
    offered_tokens: int = 0
    retrieved: bool = False
    history_looked_up: int = 0
    history_hits: int = 0
    shared_looked_up: int = 0
    shared_hits: int = 0
    shared_hit_bytes: int = 0
    decode_looked_up: int = 0
    decode_hits: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    store_ns: int = 0
    load_ns: int = 0
    wait_ns: int = 0
    compute_ns: int = 0
    prefilled: bool = False
    decoded: bool = False

    @property
    def lateness_ns(self) -> int:
        """enqueued - intended: how far the benchmark itself ran behind its schedule."""
        return self.enqueued_ns - self.intended_ns

    @property
    def queue_ns(self) -> int | None:
        """started - enqueued."""
        return None if self.started_ns is None else self.started_ns - self.enqueued_ns

    @property
    def service_ns(self) -> int | None:
        """finished - started."""
        if self.finished_ns is None or self.started_ns is None:
            return None
        return self.finished_ns - self.started_ns

    @property
    def response_ns(self) -> int | None:
        """finished - intended: what the user waited, from when the user meant to ask."""
        return None if self.finished_ns is None else self.finished_ns - self.intended_ns

    @property
    def storage_ns(self) -> int:
        """load + store + wait: how long this request waited for tiers: for its own transfers,
        making room included, for stores of others, and for the write-behind queue."""
        return self.load_ns + self.store_ns + self.wait_ns

    @property
    def end_to_end_ns(self) -> int | None:
        """finished - enqueued: the reference's end-to-end latency (submit to complete)."""
        return None if self.finished_ns is None else self.finished_ns - self.enqueued_ns

    @property
    def ttft_ns(self) -> int | None:
        """first_token - intended."""
        return None if self.first_token_ns is None else self.first_token_ns - self.intended_ns

    @property
    def tpot_ns(self) -> float | None:
        """(finished - first_token) / (output_tokens - 1); None where fewer than two tokens were
        generated."""
        if self.finished_ns is None or self.first_token_ns is None:
            return None
        if self.output_tokens < 2 or not self.decoded:
            return None
        return (self.finished_ns - self.first_token_ns) / (self.output_tokens - 1)


def unstarted(
    request: Request,
    enqueued_ns: int,
    outcome: Outcome,
    reason: str,
    first_token_ns: int | None = None,
) -> RequestRecord:
    """Return the record of a request that was submitted but never begun, or not ended."""
    return RequestRecord(
        request_id=request.request_id,
        user=request.user,
        conversation=request.conversation,
        turn=request.turn,
        qos=request.qos,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        outcome=outcome,
        error=reason,
        intended_ns=request.intended_ns,
        enqueued_ns=enqueued_ns,
        first_token_ns=first_token_ns,
        blocks=len(request.blocks),
        context_tokens=request.context_tokens,
        offered_blocks=request.offered_blocks,
        offered_tokens=request.offered_tokens,
        retrieved=request.retrieved,
    )
