"""Links and measured devices: queues that know when they will be free.

A link accepts a transfer when its head is there, never ahead of that time: the next one would
wait for an idle server. Must never know who sends or why.
"""

from collections import defaultdict
from heapq import heappop, heappush
from math import ceil

from kv_cache.core.kinds import OpKind
from kv_cache.core.units import MIB, NS_PER_S
from kv_cache.metrics.histogram import bucket_of
from kv_cache.sim.profile_model import ProfileModel


class MeasuredDevice:
    """A measured device: how long an operation takes is asked of its profile, by how many are in
    flight when it begins. More than were measured at once wait their turn."""

    __slots__ = ("_depths", "_free", "_object_bytes", "_profile", "busy_ns")

    def __init__(self, profile: ProfileModel, object_bytes: int = 0) -> None:
        """A transfer is N operations of `object_bytes`, one after the other; 0: it is one."""
        self._profile = profile
        self._object_bytes = object_bytes
        self._depths: dict[int, int] = {}
        self._free: list[tuple[int, bool]] = []  # when each server is free, and whether it reads
        self.busy_ns = 0

    @property
    def depth(self) -> int:
        """The most operations at a time, of all sizes that were asked for."""
        return max(self._depths.values(), default=1)

    def rest_ns(self, now_ns: int) -> int:
        """Return work that was accepted and is still to be done."""
        return sum(end - now_ns for end, _ in self._free if end > now_ns)

    def queue(self, now_ns: int, nbytes: int, *, read: bool) -> tuple[int, int]:
        """Return when an operation that is ready at `now_ns` would begin and end. Raises
        OutsideProfileError."""
        depth = self._depth(self._object_bytes or nbytes)
        ends = sorted(end for end, _ in self._free if end > now_ns)
        start_ns = now_ns if len(ends) < depth else ends[-depth]
        return start_ns, start_ns + self._span_ns(start_ns, nbytes, depth, read=read)

    def take(self, now_ns: int, nbytes: int, factor: float, *, read: bool) -> tuple[int, int]:
        """Accept it; return when it begins and ends."""
        depth = self._depth(self._object_bytes or nbytes)
        free, start_ns = self._free, now_ns
        while free and free[0][0] <= now_ns:
            heappop(free)
        while len(free) >= depth:
            start_ns = heappop(free)[0]
        span_ns = ceil(self._span_ns(start_ns, nbytes, depth, read=read) * factor)
        heappush(free, (start_ns + span_ns, read))
        self.busy_ns += span_ns
        return start_ns, start_ns + span_ns

    def _span_ns(self, start_ns: int, nbytes: int, depth: int, *, read: bool) -> int:
        kinds = [kind for end, kind in self._free if end > start_ns]
        kinds.append(read)
        unit = self._object_bytes or nbytes
        kind = OpKind.READ if read else OpKind.WRITE
        share = kinds.count(True) / len(kinds)
        one_ns = max(1, self._profile.service_ns(kind, unit, min(len(kinds), depth), share))
        return one_ns if unit == nbytes else ceil(one_ns * nbytes / unit)

    def _depth(self, unit: int) -> int:
        depth = self._depths.get(unit)
        if depth is None:
            depth = self._depths[unit] = self._profile.depth(unit, unit)
        return depth


class LinkWaits:
    """How long transfers waited in the queues of a family of links, from when their heads were
    there: by bucket and together. `longest`: the most that ever waited at one of the links."""

    __slots__ = ("buckets", "longest", "total_ns")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = defaultdict(int)
        self.total_ns = 0
        self.longest = 0

    def add(self, wait_ns: int, waiting: int) -> None:
        self.buckets[bucket_of(wait_ns)] += 1
        self.total_ns += wait_ns
        self.longest = max(self.longest, waiting)


class NetworkLink:
    """One direction of a link, or one kind of access to a device: a queue before a server of
    `bytes_per_s`. What it counts: `bytes` by cause and `transfers`, when it accepts a transfer;
    `ended_bytes` of those whose last byte has reached its goal; `busy_ns`, the work of all that it
    accepted, done or still to do (`rest_ns`)."""

    __slots__ = (
        "_starts", "busy_ns", "bytes", "bytes_per_ns", "ended_bytes", "free_ns", "kind",
        "latency_ns", "measured", "name", "read", "transfers", "waits",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        bytes_per_s: float,
        latency_ns: int,
        measured: MeasuredDevice | None = None,
        *,
        read: bool = True,
        waits: LinkWaits | None = None,
    ) -> None:
        """`measured` answers in place of bandwidth and latency; `waits` are its family's."""
        self.name = name
        self.kind = kind
        self.bytes_per_ns = bytes_per_s / NS_PER_S
        self.latency_ns = 0 if measured else latency_ns
        self.measured = measured
        self.read = read
        self.bytes: dict[str, int] = defaultdict(int)
        self.ended_bytes = 0
        self.busy_ns = 0
        self.transfers = 0
        self.free_ns = 0
        self.waits = waits or LinkWaits()
        self._starts: list[int] = []  # when those that wait will begin

    @property
    def family(self) -> str:
        """Group that its counts are added to: its kind, or `device:nvme:read`."""
        return self.name.rpartition(":")[0] if self.kind == "device" else self.kind

    @property
    def cost_ns(self) -> float:
        """Cost of a path over it: the time of 1 MiB."""
        return self.latency_ns + MIB / self.bytes_per_ns

    def queue(self, now_ns: int, nbytes: int) -> tuple[int, int]:
        """Return when a transfer whose head is there at `now_ns` would begin and end on it."""
        if self.measured is not None:
            return self.measured.queue(now_ns, nbytes, read=self.read)
        start_ns = self.free_ns if self.free_ns > now_ns else now_ns
        return start_ns, start_ns + ceil(nbytes / self.bytes_per_ns)

    def take(self, now_ns: int, nbytes: int, factor: float, cause: str) -> tuple[int, int]:
        """Accept it behind all that were before; return when it begins and ends."""
        self.transfers += 1
        self.bytes[cause] += nbytes
        if self.measured is not None:
            start_ns, end_ns = self.measured.take(now_ns, nbytes, factor, read=self.read)
        else:
            start_ns = self.free_ns
            if start_ns < now_ns:
                start_ns = now_ns
            self.free_ns = end_ns = start_ns + ceil(nbytes * factor / self.bytes_per_ns)
        self.busy_ns += end_ns - start_ns
        self.waits.add(start_ns - now_ns, self._queued(now_ns, start_ns))
        return start_ns, end_ns

    def _queued(self, now_ns: int, start_ns: int) -> int:
        """Return how many wait at `now_ns`, of which one begins at `start_ns`."""
        if start_ns == now_ns:  # nobody else waits then
            return 0
        starts = self._starts
        while starts and starts[0] <= now_ns:
            heappop(starts)
        heappush(starts, start_ns)
        return len(starts)

    def share(self, nbytes: int, cause: str) -> None:
        """Accept a transfer that has it together with others."""
        self.transfers += 1
        self.bytes[cause] += nbytes

    def rest_ns(self, now_ns: int) -> int:
        """Return work that was accepted and is still to be done, where links are queues."""
        return max(0, self.free_ns - now_ns)


LinkPath = tuple[NetworkLink, ...]
