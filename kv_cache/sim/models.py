"""How long an operation takes, as a model: a latency, a bandwidth, and a number of servers.

Each tier is a queue served first come, first served by `servers` equal servers that share its
bandwidth. The numbers are assumptions until a device was measured; results say so.
"""

import heapq
from dataclasses import dataclass

from kv_cache.core.effect import Chunk, CopyRef, Delete, Leg, Move, Op, OpDone, Read, Write
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import NS_PER_S

ENGINE = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierModel:
    """Bandwidths are bytes/s of the whole tier; 0 means infinitely fast."""

    read_latency_ns: int = 0
    write_latency_ns: int = 0
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    servers: int = 1

    def service_ns(self, kind: OpKind, nbytes: int) -> int:
        """Time on one server: latency plus bytes over that server's share of the bandwidth."""
        if kind is OpKind.READ:
            latency, rate = self.read_latency_ns, self.read_bytes_per_s
        else:
            latency, rate = self.write_latency_ns, self.write_bytes_per_s
        share = rate / self.servers
        return latency + (round(nbytes / share * NS_PER_S) if share else 0)


class Devices:
    """The tiers' servers and when each will be free."""

    def __init__(self, models: dict[Tier, TierModel]) -> None:
        self._models = models
        self._free = {tier: [0] * model.servers for tier, model in models.items()}

    def perform(self, op: Op, now_ns: int) -> OpDone:
        """Queue an operation that is asked for now; the answer says when it will have ended."""
        legs: tuple[Leg, ...]
        match op:
            case Read(copy=ref):
                legs = (self._leg(ref, OpKind.READ, now_ns),)
            case Write(copy=ref):
                legs = (self._leg(ref, OpKind.WRITE, now_ns),)
            case Move(source=source, target=target):
                first = self._leg(source, OpKind.READ, now_ns)
                legs = (first, self._leg(target, OpKind.WRITE, first.finished_ns))
            case Delete(copy=ref):
                leg = Leg(ref.tier, OpKind.DELETE, ENGINE, ref.nbytes, now_ns, now_ns, 0, ())
                return OpDone(op, now_ns, now_ns, (leg,))
        return OpDone(op, now_ns, legs[-1].finished_ns, legs)

    def _leg(self, ref: CopyRef, kind: OpKind, now_ns: int) -> Leg:
        free = self._free[ref.tier]
        start = max(now_ns, heapq.heappop(free))
        end = start + self._models[ref.tier].service_ns(kind, ref.nbytes)
        heapq.heappush(free, end)
        chunk = Chunk(end, ref.nbytes)
        return Leg(ref.tier, kind, ENGINE, ref.nbytes, now_ns, end, end - now_ns, (chunk,))
