"""How long an operation takes, as a model: a latency, a bandwidth, and a number of servers.

Each tier is a queue served first come, first served by `servers` equal servers that share its
bandwidth. The numbers are assumptions until a device was measured; results say so. A measured
device (`SharedDevice`) answers from its profile instead, by how many operations are in flight.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kv_cache.core.effect import CopyRef, Leg
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import NS_PER_S
from kv_cache.sim.ends import known_leg
from kv_cache.sim.shared_device import ENGINE, SharedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class TierModel:
    """Bandwidths are bytes/s of the whole tier; 0 means infinitely fast."""

    read_latency_ns: int = 0
    write_latency_ns: int = 0
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    servers: int = 1

    def service_ns(self, kind: OpKind, nbytes: int) -> int:
        """Return time on one server: latency plus bytes over that server's share of the
        bandwidth."""
        if kind is OpKind.READ:
            latency, rate = self.read_latency_ns, self.read_bytes_per_s
        else:
            latency, rate = self.write_latency_ns, self.write_bytes_per_s
        share = rate / self.servers
        return latency + (round(nbytes / share * NS_PER_S) if share else 0)


class Devices:
    """The tiers' servers and when each will be free. `shared` are measured devices, which
    report the end of an operation only when it has ended."""

    def __init__(
        self, models: Mapping[Tier, TierModel], shared: Mapping[Tier, SharedDevice] | None = None
    ) -> None:
        self._models = models
        self.shared = shared or {}
        # When each server will be free.
        self._free = {tier: [0] * model.servers for tier, model in models.items()}
        self._takes_ns: dict[tuple[Tier, OpKind, int], int] = {}

    def leg(self, ref: CopyRef, kind: OpKind, now_ns: int) -> Leg:
        """As `ends_ns` of one, with all that is known of the leg."""
        (end_ns,) = self.ends_ns((ref,), kind, (now_ns,))
        return known_leg(ref, kind, now_ns, end_ns)

    def ends_ns(
        self, refs: Sequence[CopyRef], kind: OpKind, asked_ns: Sequence[int]
    ) -> Sequence[int]:
        """Queue one side of each operation, in the order in which they are asked for, and return
        when they will have ended. None must be asked for ahead of its time: it would keep a server
        waiting idle."""
        if kind is OpKind.DELETE:
            return asked_ns
        ends_ns: list[int] = []
        place, size = None, -1
        takes_ns, free, replace = 0, [0], heapq.heapreplace
        for (_, _, tier, nbytes, _, _), now_ns in zip(refs, asked_ns, strict=True):
            if nbytes != size or tier is not place:
                place, size = tier, nbytes
                takes_ns, free = self._service_ns(tier, kind, nbytes), self._free[tier]
            free_ns = free[0]
            end_ns = (now_ns if now_ns > free_ns else free_ns) + takes_ns
            replace(free, end_ns)
            ends_ns.append(end_ns)
        return ends_ns

    def _service_ns(self, tier: Tier, kind: OpKind, nbytes: int) -> int:
        takes_ns = self._takes_ns.get((tier, kind, nbytes))
        if takes_ns is None:
            takes_ns = self._models[tier].service_ns(kind, nbytes)
            self._takes_ns[tier, kind, nbytes] = takes_ns
        return takes_ns


def asked(ref: CopyRef, kind: OpKind, now_ns: int) -> Leg:
    """Return one side of an operation whose duration is not known yet."""
    return Leg(ref.tier, kind, ENGINE, ref.nbytes, now_ns, now_ns, 0, ())
