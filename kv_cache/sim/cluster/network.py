"""Transfers over links that others use too: links are queues, or share fairly.

FIFO: links cut through, and serve in the order in which the heads of transfers reach them. A
transfer occupies a link for its bytes over the link's rate, from when its head is there and the
link is free; its last byte leaves no sooner than that time is over, nor than it has come from the
link before. So a lone transfer takes the latencies and the bytes over the
slowest link, and a link is kept neither by who still waits elsewhere nor by a slower link before
it: others go between. From the beginning of any busy time no link has sent more than its rate
allows; what a slower link held back may follow beside what comes next.

Fair share: see `fair_share.py`. Jitter stretches all that a transfer takes, by one factor.

It must never look at a real clock, nor know what the bytes mean.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from math import exp, log1p, sqrt
from typing import Any

from kv_cache.config.scenario import NetworkSection
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.event_loop import ENDS, Action, Loop
from kv_cache.sim.cluster.fair_share import FairShare
from kv_cache.sim.cluster.links import LinkPath, MeasuredDevice, NetworkLink
from kv_cache.sim.cluster.transfer import NetworkTransfer


class Network:
    """All transfers of a cluster."""

    def __init__(self, loop: Loop, section: NetworkSection, seed: Seed) -> None:
        self._loop = loop
        self._factor = _factors(section, seed)
        self._fair = (
            FairShare(loop, self._enter, self._arrive)
            if section.discipline == "fair-share"
            else None
        )
        self._begin = self._pass if self._fair is None else self._fair.begin
        self._sent = 0
        self.ended_ns = 0  # when the last byte so far was there
        self._under_way: dict[int, NetworkTransfer] = {}
        self._ended: dict[str, int] = defaultdict(int)
        """Bytes times links, by cause."""
        self._links: list[NetworkLink] = []

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def send(
        self, path: LinkPath, nbytes: int, cause: str, action: Action, argument: Any = None
    ) -> None:
        """Call `action(argument)` when the last of `nbytes` has come over `path`: an event of its
        own even where that takes no time. Raises OutsideProfileError."""
        if not path or nbytes <= 0:
            self._loop.at(self._loop.now_ns, ENDS, action, argument)
            return
        self._sent = number = self._sent + 1
        factor = 1.0 if self._factor is None else self._factor()
        transfer = NetworkTransfer(number, path, nbytes, cause, action, argument, factor)
        self._under_way[number] = transfer
        self._begin(transfer)

    def estimate_ns(self, path: LinkPath, nbytes: int) -> int:
        """Return how long a transfer would take that is sent now, if nothing were sent after it and
        without jitter. Raises OutsideProfileError."""
        if not path or nbytes <= 0:
            return 0
        if self._fair is not None:
            return self._fair.estimate_ns(path, nbytes)
        now_ns = head_ns = last_ns = self._loop.now_ns
        for link in path:
            start_ns, end_ns = link.queue(head_ns, nbytes)
            head_ns, last_ns = start_ns + link.latency_ns, max(end_ns, last_ns) + link.latency_ns
        return last_ns - now_ns

    def _pass(self, transfer: NetworkTransfer) -> None:
        """Let a transfer, whose head is at its next link, go as far as it comes now."""
        now_ns = self._loop.now_ns
        path, nbytes, factor, hop = transfer.path, transfer.nbytes, transfer.factor, transfer.hop
        while True:
            link = path[hop]
            if not link.transfers:
                self._links.append(link)
            start_ns, end_ns = link.take(now_ns, nbytes, factor, transfer.cause)
            if end_ns < transfer.last_ns:
                end_ns = transfer.last_ns
            latency_ns = link.latency_ns if factor == 1.0 else round(link.latency_ns * factor)
            transfer.last_ns = end_ns + latency_ns
            hop = transfer.hop = hop + 1
            if hop == len(path):
                self._loop.at(transfer.last_ns, ENDS, self._arrive, transfer)
                return
            if start_ns + latency_ns > now_ns:
                self._loop.at(start_ns + latency_ns, ENDS, self._pass, transfer)
                return

    def _enter(self, transfer: NetworkTransfer) -> None:
        """Let it begin on all of its links at once."""
        self._links += (link for link in transfer.path if not link.transfers)
        transfer.hop = len(transfer.path)

    def _arrive(self, transfer: NetworkTransfer) -> None:
        self.ended_ns = self._loop.now_ns
        del self._under_way[transfer.number]
        nbytes = transfer.nbytes
        for link in transfer.path:
            link.ended_bytes += nbytes
        self._ended[transfer.cause] += nbytes * len(transfer.path)
        transfer.action(transfer.argument)

    # --- laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """Of each link and of each cause, what began has ended or is in flight; no link worked
        longer than there was time. Raises AssertionError."""
        by_link: Counter[NetworkLink] = Counter()
        by_cause = Counter(self._ended)
        for transfer in self._under_way.values():
            by_link.update(dict.fromkeys(transfer.path[: transfer.hop], transfer.nbytes))
            by_cause[transfer.cause] += transfer.nbytes * transfer.hop
        begun: Counter[str] = Counter()
        for link in self._links:
            begun.update(link.bytes)
            total = sum(link.bytes.values())
            if total != link.ended_bytes + by_link[link]:
                raise AssertionError(
                    f"{link.name}: {total} bytes began, but {link.ended_bytes} ended and "
                    f"{by_link[link]} are in flight"
                )
        if begun != by_cause:
            raise AssertionError(
                f"bytes by cause, over all links: {dict(begun)} began, but {dict(by_cause)} ended "
                "or are in flight"
            )
        self._check_time()

    def _check_time(self) -> None:
        now_ns = self._loop.now_ns
        devices: dict[MeasuredDevice, str] = {}
        for link in self._links:
            if link.measured is not None:
                devices[link.measured] = link.name
            else:
                _not_longer(link.name, link.busy_ns - link.rest_ns(now_ns), now_ns)
        for device, name in devices.items():
            _not_longer(name, device.busy_ns - device.rest_ns(now_ns), now_ns * device.depth)


def _not_longer(name: str, busy_ns: int, most_ns: int) -> None:
    if busy_ns > most_ns:
        raise AssertionError(f"{name}: worked {busy_ns} ns, but there were {most_ns} ns to do so")


def _factors(section: NetworkSection, seed: Seed) -> Callable[[], float] | None:
    """Return what each transfer's time is multiplied with: lognormal of mean 1, and more in the
    tail; None for always 1. Each of the two draws from its own stream."""
    body = seed.child("network", "jitter").rng()
    tail = seed.child("network", "tail").rng()
    variance = log1p(section.jitter_cv**2)
    sigma, share, times = sqrt(variance), section.tail_probability, section.tail_multiplier

    def factor() -> float:
        drawn = exp(body.gauss(-variance / 2, sigma)) if sigma else 1.0
        return drawn * times if share and tail.random() < share else drawn

    return factor if sigma or (share and times != 1.0) else None
