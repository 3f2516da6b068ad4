"""Transfers over links that others use too: queues in order, or fair shares.

FIFO: a link serves one transfer at a time (each of its `servers` does), in the order in which they
become ready for it. A transfer is ready for a link as soon as the link can send it in one go: when
its head is there, but so late that the link never waits for bytes that a slower link before it has
not sent yet. So a lone transfer takes the latencies and the bytes over the slowest link (cut
through), no link is ever over its rate, and no link waits for another's queue.

It must never look at a real clock, nor know what the bytes mean.
"""

from typing import Any

from kv_cache.config.scenario import NetworkSection
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.loop import ENDS, Action, Loop
from kv_cache.sim.cluster.topology import Way


class _Transfer:
    """On its way: `hop` is the link that it is ready for next."""

    __slots__ = (
        "action",
        "argument",
        "cause",
        "factor",
        "hop",
        "last_ns",
        "nbytes",
        "number",
        "path",
    )

    def __init__(
        self, number: int, path: Way, nbytes: int, cause: str, action: Action, argument: Any,
        factor: float,
    ) -> None:  # fmt: skip
        self.number = number
        self.path = path
        self.nbytes = nbytes
        self.cause = cause
        self.action = action
        self.argument = argument
        self.factor = factor
        self.hop = 0
        self.last_ns = 0  # when its last byte is there


class Network:
    """All transfers of a cluster."""

    def __init__(self, loop: Loop, section: NetworkSection, seed: Seed) -> None:
        self._loop = loop
        self._section = section
        self._sent = 0
        self._under_way: dict[int, _Transfer] = {}

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def send(
        self, path: Way, nbytes: int, cause: str, action: Action, argument: Any = None
    ) -> None:
        """Call `action(argument)` when the last of `nbytes` has come over `path`."""
        if not path or nbytes <= 0:
            self._loop.at(self._loop.now_ns, ENDS, action, argument)
            return
        self._sent += 1
        transfer = _Transfer(self._sent, path, nbytes, cause, action, argument, 1.0)
        self._under_way[self._sent] = transfer
        self._pass(transfer)

    def estimate_ns(self, path: Way, nbytes: int) -> int:
        """How long a transfer would take that is sent now, if nothing were sent after it."""
        if not path or nbytes <= 0:
            return 0
        now_ns = head_ns = last_ns = self._loop.now_ns
        for link in path:
            ready_ns = max(head_ns, last_ns - link.span_ns(head_ns, nbytes))
            start_ns, end_ns = link.queue(ready_ns, nbytes)
            head_ns, last_ns = start_ns + link.latency_ns, max(end_ns, last_ns) + link.latency_ns
        return last_ns - now_ns

    def _pass(self, transfer: _Transfer) -> None:
        """It is ready for its next link: go as far as it is ready now."""
        now_ns = self._loop.now_ns
        path, nbytes, factor = transfer.path, transfer.nbytes, transfer.factor
        hop = transfer.hop
        while True:
            link = path[hop]
            start_ns, end_ns = link.take(now_ns, nbytes, factor)
            link.transfers += 1
            link.begun[transfer.cause] += nbytes
            if end_ns < transfer.last_ns:
                end_ns = transfer.last_ns
            latency_ns = link.latency_ns if factor == 1.0 else round(link.latency_ns * factor)
            last_ns = transfer.last_ns = end_ns + latency_ns
            hop = transfer.hop = hop + 1
            if hop == len(path):
                self._loop.at(last_ns, ENDS, self._arrive, transfer)
                return
            ready_ns = max(
                start_ns + latency_ns, last_ns - path[hop].span_ns(now_ns, nbytes, factor)
            )
            if ready_ns > now_ns:
                self._loop.at(ready_ns, ENDS, self._pass, transfer)
                return

    def _arrive(self, transfer: _Transfer) -> None:
        del self._under_way[transfer.number]
        cause, nbytes = transfer.cause, transfer.nbytes
        for link in transfer.path:
            link.ended[cause] += nbytes
        transfer.action(transfer.argument)
