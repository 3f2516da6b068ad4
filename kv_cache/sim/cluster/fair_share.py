"""Max-min fair sharing: no transfer can be faster but at the cost of one that is no faster than it
(Bertsekas and Gallager, Data Networks, 6.5.2: progressive filling).

A transfer occupies all of its links at once, at one rate; its latencies come on top. Rates change
when a transfer begins or ends, for those alone that share a link with it, directly or through
others; what begins and ends at one instant is settled together. A measured device is not a link to
share: its profile knows what its operations take from each other, so it queues as in FIFO and its
time bounds the rate.

The cost of a settlement is that of all transfers that hang together.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import ceil, inf

from kv_cache.sim.cluster.event_loop import ENDS, Loop
from kv_cache.sim.cluster.links import LinkPath, NetworkLink
from kv_cache.sim.cluster.transfer import NetworkTransfer

Handler = Callable[[NetworkTransfer], None]


class _Flow:
    """A transfer that has a rate. `most`: bytes per ns that it can have at most; `bounded`: its
    links' shares may be more."""

    __slots__ = (
        "at_ns", "bounded", "ends_ns", "left", "links", "most", "piece", "rate", "transfer",
    )  # fmt: skip

    def __init__(self, transfer: NetworkTransfer, most: float, now_ns: int) -> None:
        self.transfer = transfer
        self.links = tuple(link for link in transfer.path if link.measured is None)
        self.most = most
        self.bounded = any(link.measured for link in transfer.path)
        self.left = transfer.nbytes * transfer.factor
        self.rate = 0.0
        self.at_ns = now_ns
        self.ends_ns = 0
        self.piece = 0  # which settlement its rate is from


class FairShare:
    def __init__(self, loop: Loop, entered: Handler, arrived: Handler) -> None:
        """`entered` is called when a transfer's links begin with it, `arrived` when its last
        byte is there."""
        self._loop = loop
        self._entered = entered
        self._arrived = arrived
        self._on: dict[NetworkLink, dict[int, _Flow]] = {}
        self._touched: dict[NetworkLink, None] = {}  # links whose transfers have changed
        self._alone: list[_Flow] = []  # over measured devices only
        self._settling = False
        self._pieces = 0

    def begin(self, transfer: NetworkTransfer) -> None:
        now_ns = start_ns = self._loop.now_ns
        self._entered(transfer)
        most = inf
        for link in transfer.path:
            if link.measured is None:
                link.share(transfer.nbytes, transfer.cause)
                most = min(most, link.bytes_per_ns)
            else:
                begins_ns, ends_ns = link.take(
                    now_ns, transfer.nbytes, transfer.factor, transfer.cause
                )
                start_ns = max(start_ns, begins_ns)
                most = min(most, transfer.nbytes * transfer.factor / (ends_ns - begins_ns))
        flow = _Flow(transfer, most, start_ns)
        if start_ns > now_ns:
            self._loop.at(start_ns, ENDS, self._join, flow)
        else:
            self._join(flow)

    def estimate_ns(self, path: LinkPath, nbytes: int) -> int:
        """With an equal share of each link as it is now, and what waits for measured devices."""
        now_ns = self._loop.now_ns
        found_ns = 0
        for link in path:
            if link.measured is None:
                share = 1 / (len(self._on.get(link, ())) + 1)
                found_ns = max(found_ns, ceil(nbytes / (link.bytes_per_ns * share)))
            else:
                found_ns = max(found_ns, link.queue(now_ns, nbytes)[1] - now_ns)
        return found_ns + sum(link.latency_ns for link in path)

    def rates(self) -> dict[int, float]:
        """Return bytes per ns of each transfer under way, by its number."""
        return {n: flow.rate for flows in self._on.values() for n, flow in flows.items()}

    def _join(self, flow: _Flow) -> None:
        for link in flow.links:
            self._on.setdefault(link, {})[flow.transfer.number] = flow
            self._touched[link] = None
        if not flow.links:
            self._alone.append(flow)
        self._soon()

    def _leave(self, flow: _Flow) -> None:
        transfer = flow.transfer
        latency_ns = 0
        for link in flow.links:
            flows = self._on[link]
            del flows[transfer.number]
            if not flows:
                del self._on[link]
            self._touched[link] = None
            link.busy_ns += int(transfer.nbytes * transfer.factor / link.bytes_per_ns)
            latency_ns += round(link.latency_ns * transfer.factor)
        self._loop.at(self._loop.now_ns + latency_ns, ENDS, self._arrived, transfer)

    def _soon(self) -> None:
        """Settle once for all that happens at this instant."""
        if not self._settling:
            self._settling = True
            self._loop.at(self._loop.now_ns, ENDS, self._settle)

    def _settle(self, _: None) -> None:
        self._settling = False
        touched, self._touched = self._touched, {}
        seen: set[int] = set()
        for link in touched:
            for flow in tuple(self._on.get(link, {}).values()):
                if flow.transfer.number not in seen:
                    flows, links = self._together(flow, seen)
                    self._share(flows, links)
        alone, self._alone = self._alone, []
        for flow in alone:
            self._share([flow], [])

    def _together(self, flow: _Flow, seen: set[int]) -> tuple[list[_Flow], list[NetworkLink]]:
        """Return all that share links with it, directly or through others, in a fixed order."""
        flows, links = [flow], dict.fromkeys(flow.links)
        seen.add(flow.transfer.number)
        waiting = list(flow.links)
        while waiting:
            for other in self._on[waiting.pop()].values():
                if other.transfer.number not in seen:
                    seen.add(other.transfer.number)
                    flows.append(other)
                    fresh = [link for link in other.links if link not in links]
                    links.update(dict.fromkeys(fresh))
                    waiting += fresh
        return flows, list(links)

    def _share(self, flows: list[_Flow], links: list[NetworkLink]) -> None:
        """Bring all up to now, give them new rates, and come back when the first has ended."""
        now_ns = self._loop.now_ns
        self._pieces = piece = self._pieces + 1
        for flow in flows:
            flow.left = max(0.0, flow.left - flow.rate * (now_ns - flow.at_ns))
            flow.at_ns = now_ns
            flow.piece = piece
        self._fill(flows, links)
        for flow in flows:
            flow.ends_ns = now_ns + ceil(flow.left / flow.rate)
        first_ns = min(flow.ends_ns for flow in flows)
        self._loop.at(first_ns, ENDS, self._end, (piece, flows))

    def _fill(self, flows: list[_Flow], links: list[NetworkLink]) -> None:
        """Progressive filling: the link with the smallest share fixes the rates of its transfers,
        and what they leave is for the others. A share only grows meanwhile."""
        left = {link: link.bytes_per_ns for link in links}
        count = {link: len(self._on[link]) for link in links}
        heap: list[tuple[float, int, NetworkLink | _Flow]] = [
            (left[link] / count[link], n, link) for n, link in enumerate(links)
        ]
        heap += [(flow.most, ~n, flow) for n, flow in enumerate(flows) if flow.bounded]
        heapify(heap)
        fixed: set[_Flow] = set()
        while len(fixed) < len(flows):
            rate, order, limit = heappop(heap)
            if isinstance(limit, NetworkLink):
                if not count[limit]:
                    continue
                share = left[limit] / count[limit]
                if share > rate:
                    heappush(heap, (share, order, limit))
                    continue
                concerned = [flow for flow in self._on[limit].values() if flow not in fixed]
            else:
                share, concerned = rate, [] if limit in fixed else [limit]
            for flow in concerned:
                flow.rate = share
                fixed.add(flow)
                for link in flow.links:
                    left[link] -= share
                    count[link] -= 1

    def _end(self, argument: tuple[int, list[_Flow]]) -> None:
        """Let those flows of a settlement go that end now, if it has not been replaced."""
        piece, flows = argument
        if flows[0].piece != piece:
            return
        now_ns = self._loop.now_ns
        for flow in flows:
            if flow.ends_ns <= now_ns:
                flow.piece = 0
                self._leave(flow)
        self._soon()
