"""Replay of a trace: its rows as requests, at its own pace, a multiple of it, or as fast as they
are served.

Rows with hash ids share blocks exactly where the trace says so. Rows without are never given
sharing that the trace does not have: each is content of its own, in every cycle anew. A cycle
ends when its last request has ended, not when its last row was queued.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kv_cache.core.block import Block, content_key
from kv_cache.core.errors import TraceError
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.qos import QosMix
from kv_cache.workload.sizing import Geometry

TRACE_USERS = 1000  # rows without a session are spread over so many users, as in the reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """`speedup` 0 = as fast as served. `cycles` 0 = until something else ends the run."""

    geometry: Geometry
    qos: QosMix
    trace_block_tokens: int  # 0 where the trace has no hash ids
    speedup: float = 1.0
    cycles: int = 0

    def __post_init__(self) -> None:
        own, asked = self.trace_block_tokens, self.geometry.block_tokens
        if own and asked and own % asked:
            raise TraceError(
                f"--block-tokens {asked}: the trace's blocks of {own} tokens cannot be cut into "
                f"blocks of {asked}; use a divisor of {own}, or 0 for one object each request"
            )


class TraceReplay:
    """`rows` opens the trace anew for each cycle and each plan."""

    def __init__(
        self,
        rows: Callable[[], Iterator[TraceRow]],
        config: ReplayConfig,
        seed: Seed,
        facts: Mapping[str, Any],
    ) -> None:
        self._open = rows
        self._config = config
        self._seed = seed
        self._facts = facts
        self._popped = 0
        self._outstanding = 0
        self._cycle = -1
        self._origin_ns = 0
        self._requests: Iterator[Request] = iter(())
        self._next: Request | None = None
        self._ended = False
        self._advance(0)

    @property
    def on_demand(self) -> bool:
        return self._config.speedup == 0

    users = None

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._outstanding

    def next_ns(self) -> int | None:
        return None if self._next is None else self._next.intended_ns

    def pop(self, now_ns: int) -> Request:
        request = self._next
        assert request is not None, "pop without an arrival"
        if self.on_demand:
            request = replace(request, intended_ns=now_ns)
        self._popped += 1
        self._outstanding += 1
        self._next = next(self._requests, None)
        return request

    def after(self, request: Request, finished_ns: int) -> None:
        self._outstanding -= 1
        if self._next is None and not self._outstanding:
            self._advance(finished_ns)

    def resize(self, users: int, now_ns: int) -> None:
        raise AssertionError("a trace says itself who asks")

    def plan(self) -> Iterator[Request]:
        """Cycles in planned time: each begins where the one before had its last arrival."""
        cycle, number, origin_ns = 0, 0, 0
        while not self._config.cycles or cycle < self._config.cycles:
            last_ns = origin_ns
            for request in self._walk(cycle, number, origin_ns):
                number, last_ns = request.request_id + 1, request.intended_ns
                yield request
            cycle, origin_ns = cycle + 1, last_ns

    def describe(self) -> Mapping[str, Any]:
        return {
            "source": "trace",
            **self._facts,
            "speedup": self._config.speedup,
            "cycles": self._config.cycles,
            "cycles_ended": self._cycle + self._ended,
            "prefix_information": bool(self._config.trace_block_tokens),
        }

    def _advance(self, origin_ns: int) -> None:
        self._cycle += 1
        if self._config.cycles and self._cycle >= self._config.cycles:
            self._cycle, self._ended = self._cycle - 1, True
            return
        self._origin_ns = origin_ns
        self._requests = self._walk(self._cycle, self._popped, origin_ns)
        self._next = next(self._requests, None)

    def _walk(self, cycle: int, number: int, origin_ns: int) -> Iterator[Request]:
        rng = self._seed.child("qos", cycle).rng()
        speedup = self._config.speedup
        for row in self._open():
            qos = self._config.qos.draw(rng)
            blocks, tail = self._blocks(row, cycle)
            yield Request(
                request_id=number,
                intended_ns=origin_ns + (round(row.at_ns / speedup) if speedup else 0),
                user=row.session or f"trace_user_{number % TRACE_USERS}",
                conversation=row.session or f"row_{row.line}",
                turn=1,
                qos=qos,
                priority=self._config.qos.priority(qos),
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                blocks=blocks,
                tail_tokens=tail,
            )
            number += 1

    def _blocks(self, row: TraceRow, cycle: int) -> tuple[tuple[Block, ...], int]:
        geometry = self._config.geometry
        size = geometry.block_tokens
        if row.hash_ids is not None:
            return self._hashed(row.hash_ids), 0
        name = ("row", cycle, row.line)
        if not size:
            return (geometry.block(content_key(*name), row.prompt_tokens),), 0
        return geometry.stream(name, 0, row.prompt_tokens // size), row.prompt_tokens % size

    def _hashed(self, hash_ids: tuple[int, ...]) -> tuple[Block, ...]:
        """The trace's blocks, whole (a paged cache allocates its last block whole too)."""
        geometry, own = self._config.geometry, self._config.trace_block_tokens
        size = geometry.block_tokens
        if not size:
            key = content_key("sequence", *hash_ids)
            return (geometry.block(key, own * len(hash_ids)),)
        if size == own:
            return tuple(geometry.block(content_key("hash", h), own) for h in hash_ids)
        return tuple(
            geometry.block(content_key("hash", h, part), size)
            for h in hash_ids
            for part in range(own // size)
        )
