"""Where things stand and what lies between them: vertices, links, the cheapest way.

Vertices are numbers: the instances, then the nodes, the racks and the core. A link has one
direction; its way back is a link of its own. Links come to be when somebody asks for a way over
them, so ten thousand instances cost nothing until they talk.

An instance relays nothing, but from wire to wire: nobody's traffic goes over a neighbour's NVLink.
A wire between two ends stands in for the default link between exactly these, be it faster or
slower. Must never know who sends or why.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from math import ceil
from typing import NamedTuple

from kv_cache.config.scenario import LinkSection, Scenario, TierSection
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import MIB, NS_PER_S, NS_PER_US
from kv_cache.sim.profile import ProfileModel

BYTES_PER_GB = 1e9
MOST_VERTICES = 2048
"""Of a topology with wires, where ways are searched and not just walked up and down."""

_MOST_WAYS = 1 << 16  # that are remembered
_INSTANCE, _NODE, _RACK, _CORE = range(4)

Way = tuple["Link", ...]


class Measured:
    """A measured device: how long an operation takes is asked of its profile, by how many are in
    flight when it begins. More than were measured at once wait their turn."""

    __slots__ = ("_depths", "_free", "_object_bytes", "_profile", "busy_ns")

    def __init__(self, profile: ProfileModel, object_bytes: int = 0) -> None:
        """A transfer is so many operations of `object_bytes`, one after the other; 0: it is one."""
        self._profile = profile
        self._object_bytes = object_bytes
        self._depths: dict[int, int] = {}
        self._free: list[tuple[int, bool]] = []  # when each operation ends, and if it is a read
        self.busy_ns = 0

    @property
    def depth(self) -> int:
        """The most operations at a time, of all sizes that were asked for."""
        return max(self._depths.values(), default=1)

    def rest_ns(self, now_ns: int) -> int:
        """Work that was accepted and is still to be done."""
        return sum(end - now_ns for end, _ in self._free if end > now_ns)

    def estimate(self, now_ns: int, nbytes: int, *, read: bool) -> tuple[int, int]:
        """When an operation that is asked for now would begin and end."""
        depth = self._depth(self._unit(nbytes))
        ends = sorted((end, kind) for end, kind in self._free if end > now_ns)
        start_ns = now_ns
        if len(ends) >= depth:
            start_ns = ends[len(ends) - depth][0]
        return start_ns, start_ns + self.span_ns(start_ns, nbytes, read=read)

    def take(self, now_ns: int, nbytes: int, factor: float, *, read: bool) -> tuple[int, int]:
        """When it begins and ends, now that it is asked for. Raises OutsideProfileError."""
        free = self._free
        while free and free[0][0] <= now_ns:
            heappop(free)
        depth = self._depth(self._unit(nbytes))
        start_ns = now_ns
        while len(free) >= depth:
            start_ns = heappop(free)[0]
        span_ns = ceil(self.span_ns(start_ns, nbytes, read=read) * factor)
        heappush(free, (start_ns + span_ns, read))
        self.busy_ns += span_ns
        return start_ns, start_ns + span_ns

    def span_ns(self, start_ns: int, nbytes: int, *, read: bool) -> int:
        others = [kind for end, kind in self._free if end > start_ns]
        unit = self._unit(nbytes)
        depth = min(1 + len(others), self._depth(unit))
        share = (others.count(True) + read) / (1 + len(others))
        kind = OpKind.READ if read else OpKind.WRITE
        one_ns = max(1, self._profile.service_ns(kind, unit, depth, share))
        return one_ns if unit == nbytes else ceil(one_ns * (nbytes / unit))

    def _unit(self, nbytes: int) -> int:
        return self._object_bytes or nbytes

    def _depth(self, unit: int) -> int:
        depth = self._depths.get(unit)
        if depth is None:
            depth = self._depths[unit] = self._profile.depth(unit, unit)
        return depth


class Link:
    """One direction of a link, or one kind of access to a device: a queue before `servers` equal
    servers of `bytes_per_s` each. A transfer's bytes are counted as `begun` when the link accepts
    it and as `ended` when it has reached its end."""

    __slots__ = (
        "begun",
        "busy_ns",
        "bytes_per_s",
        "ended",
        "flows",
        "free_ns",
        "kind",
        "latency_ns",
        "measured",
        "name",
        "ns_per_byte",
        "read",
        "servers",
        "servers_free",
        "transfers",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        bytes_per_s: float,
        latency_ns: int,
        servers: int = 1,
        measured: Measured | None = None,
        *,
        read: bool = True,
    ) -> None:
        self.name = name
        self.kind = kind
        self.bytes_per_s = bytes_per_s
        self.ns_per_byte = NS_PER_S / bytes_per_s
        self.latency_ns = latency_ns
        self.servers = servers
        self.measured = measured
        self.read = read
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.busy_ns = 0
        self.transfers = 0
        self.free_ns = 0
        self.servers_free = [0] * servers if servers > 1 else []
        self.flows: dict[int, float] = {}

    @property
    def family(self) -> str:
        """What it is counted with: its kind, or `device:nvme:read`."""
        return self.name.rpartition(":")[0] if self.kind == "device" else self.kind

    @property
    def bytes(self) -> Counter[str]:
        """By cause."""
        return self.begun

    @property
    def cost_ns(self) -> float:
        """What a way over it costs: the time of 1 MiB."""
        return self.latency_ns + MIB * self.ns_per_byte

    def span_ns(self, now_ns: int, nbytes: int, factor: float = 1.0) -> int:
        """How long it is occupied with `nbytes`."""
        if self.measured is None:
            return ceil(nbytes * self.ns_per_byte * factor)
        return ceil(self.measured.span_ns(now_ns, nbytes, read=self.read) * factor)

    def queue(self, now_ns: int, nbytes: int) -> tuple[int, int]:
        """When a transfer that is ready now would begin and end on it."""
        if self.measured is not None:
            return self.measured.estimate(now_ns, nbytes, read=self.read)
        free_ns = self.servers_free[0] if self.servers > 1 else self.free_ns
        start_ns = free_ns if free_ns > now_ns else now_ns
        return start_ns, start_ns + ceil(nbytes * self.ns_per_byte)

    def take(self, now_ns: int, nbytes: int, factor: float) -> tuple[int, int]:
        """Accept a transfer that is ready now, behind all that were before; when it begins and
        ends."""
        if self.measured is not None:
            start_ns, end_ns = self.measured.take(now_ns, nbytes, factor, read=self.read)
            self.busy_ns += end_ns - start_ns
            return start_ns, end_ns
        span_ns = ceil(nbytes * self.ns_per_byte * factor)
        self.busy_ns += span_ns
        free_ns = self.servers_free[0] if self.servers > 1 else self.free_ns
        start_ns = free_ns if free_ns > now_ns else now_ns
        if self.servers > 1:
            heapreplace(self.servers_free, start_ns + span_ns)
        else:
            self.free_ns = start_ns + span_ns
        return start_ns, start_ns + span_ns

    def rest_ns(self, now_ns: int) -> int:
        """Work that was accepted and is still to be done."""
        return sum(free - now_ns for free in self.servers_free or (self.free_ns,) if free > now_ns)


class _Wire(NamedTuple):
    name: str
    bytes_per_s: float
    latency_ns: int


class Topology:
    """The places of a scenario. `instances` is their number, `core` the vertex above all racks."""

    def __init__(
        self,
        scenario: Scenario,
        profiles: Mapping[str, ProfileModel] | None = None,
        object_bytes: int = 0,
    ) -> None:
        """`profiles`: those of the tiers that have one, by the tier's name; `object_bytes` as in
        `Measured`. Raises ConfigError."""
        section = scenario.topology
        self._scenario = scenario
        self._profiles = profiles or {}
        self._object_bytes = object_bytes
        self.nodes = section.racks * section.nodes_per_rack
        self.racks = section.racks
        self._nodes_per_rack = section.nodes_per_rack
        self._groups = list(scenario.instances)
        self._firsts: list[int] = []
        self.instances = 0
        for group in scenario.instances.values():
            self._firsts.append(self.instances)
            self.instances += group.count
        self._node_of = _spread(scenario, self.instances, self.nodes)
        self.core = self.instances + self.nodes + self.racks
        self.vertices = self.core + 1
        self._mates: dict[int, list[int]] = {}
        self._links: dict[int, Link | None] = {}
        self._devices: dict[tuple[str, int, str], Link] = {}
        self._measured: dict[tuple[str, int], Measured] = {}
        self._ways: dict[int, Way] = {}
        self._wires: dict[tuple[int, int], _Wire] = {}

    # --- places ----------------------------------------------------------------------------

    def node(self, index: int) -> int:
        return self.instances + index

    def rack(self, index: int) -> int:
        return self.instances + self.nodes + index

    def place_of(self, instance: int) -> tuple[int, int]:
        """The node and the rack of an instance, as indexes."""
        node = self._node_of[instance]
        return node, node // self._nodes_per_rack

    def group_of(self, instance: int) -> str:
        return self._groups[bisect_right(self._firsts, instance) - 1]

    def name(self, vertex: int) -> str:
        """As in wires: `instance:0`, `node:3`, `rack:1`, `core`."""
        level = self._level(vertex)
        if level == _CORE:
            return "core"
        word, first = (("instance", 0), ("node", self.node(0)), ("rack", self.rack(0)))[level]
        return f"{word}:{vertex - first}"

    def _level(self, vertex: int) -> int:
        if vertex < self.instances:
            return _INSTANCE
        if vertex < self.instances + self.nodes:
            return _NODE
        return _RACK if vertex < self.core else _CORE

    def _parent(self, vertex: int) -> int:
        level = self._level(vertex)
        if level == _INSTANCE:
            return self.instances + self._node_of[vertex]
        if level == _NODE:
            return self.rack((vertex - self.instances) // self._nodes_per_rack)
        return self.core

    # --- links -----------------------------------------------------------------------------

    def links(self) -> Iterator[Link]:
        """All that ever had a transfer, in the order in which they came to be."""
        for link in (*self._links.values(), *self._devices.values()):
            if link is not None and link.transfers:
                yield link

    def device(self, tier: str, place: int, kind: str) -> Link:
        """The `read` or `write` access to a place of a tier."""
        link = self._devices.get((tier, place, kind))
        if link is None:
            link = self._devices[tier, place, kind] = self._new_device(tier, place, kind)
        return link

    def _new_device(self, tier: str, place: int, kind: str) -> Link:
        section: TierSection = getattr(self._scenario.tiers, tier)
        read = kind == "read"
        rate = section.read_gbytes_per_s if read else section.write_gbytes_per_s
        latency = section.read_latency_us if read else section.write_latency_us
        measured = None
        if section.profile is not None:
            measured, latency = self._measured_place(tier, place), 0.0
        return Link(
            f"device:{tier}:{kind}:{place}", "device", rate * BYTES_PER_GB,
            round(latency * NS_PER_US), measured=measured, read=read,
        )  # fmt: skip

    def _measured_place(self, tier: str, place: int) -> Measured:
        """One for both kinds of access: they share the device."""
        found = self._measured.get((tier, place))
        if found is None:
            profile = self._profiles[tier]
            found = self._measured[tier, place] = Measured(profile, self._object_bytes)
        return found

    def _link(self, a: int, b: int) -> Link | None:
        """The direct link from `a` to `b`, if there is one."""
        key = a * self.vertices + b
        if key not in self._links:
            self._links[key] = self._new_link(a, b)
        return self._links[key]

    def _new_link(self, a: int, b: int) -> Link | None:
        ends = f"{self.name(a)}>{self.name(b)}"
        wire = self._wires.get((a, b))
        if wire is not None:
            return Link(f"{wire.name} {ends}", "wire", wire.bytes_per_s, wire.latency_ns)
        kind = self._kind(a, b)
        section: LinkSection = getattr(self._scenario.network, kind)
        if not section.gbytes_per_s:
            return None
        rate, latency = section.gbytes_per_s * BYTES_PER_GB, section.latency_us * NS_PER_US
        return Link(f"{kind} {ends}", kind, rate, round(latency))

    def _kind(self, a: int, b: int) -> str:
        """Of the default link between two ends that have one."""
        level = min(self._level(a), self._level(b))
        if level == self._level(a) == self._level(b):
            return "nvlink"
        return ("pcie", "nic", "uplink")[level]

    # --- ways ------------------------------------------------------------------------------

    def path(self, src: int, dst: int) -> Way:
        """The links of the cheapest way for 1 MiB. Raises ConfigError where there is none."""
        key = src * self.vertices + dst
        way = self._ways.get(key)
        if way is None:
            if len(self._ways) >= _MOST_WAYS:
                self._ways.clear()
            way = self._ways[key] = self._walk(src, dst)
        return way

    def _walk(self, src: int, dst: int) -> Way:
        """Up to what both have above them and down again, or across a node."""
        ups: list[Link] = []
        downs: list[Link] = []
        a, b = src, dst
        while a != b:
            climbs = self._level(a) <= self._level(b)
            low = a if climbs else b
            high = self._parent(low)
            link = self._link(low, high) if climbs else self._link(high, low)
            if link is None:
                across = self._across(src, dst)
                if across is None:
                    raise self._disconnected(src, dst, self._kind(low, high))
                return (across,)
            (ups if climbs else downs).append(link)
            a, b = (high, b) if climbs else (a, high)
        way = (*ups, *reversed(downs))
        across = self._across(src, dst)
        if across is not None and across.cost_ns <= sum(link.cost_ns for link in way):
            return (across,)
        return way

    def _across(self, src: int, dst: int) -> Link | None:
        if src == dst or max(src, dst) >= self.instances:
            return None
        return self._link(src, dst) if self._node_of[src] == self._node_of[dst] else None

    def _disconnected(self, src: int, dst: int, missing: str) -> ConfigError:
        return ConfigError(
            f"network: {self.name(src)} and {self.name(dst)} are disconnected, as "
            f"network.{missing} has no bandwidth; give it one, or a wire between them"
        )


def _spread(scenario: Scenario, instances: int, nodes: int) -> "array[int]":
    """The node of each instance: groups are dealt out in proportion, so that every node gets its
    share of each, and no two nodes differ by more than one instance."""
    places = nodes * scenario.topology.instances_per_node
    if not instances:
        raise ConfigError("instances: there are none; give at least one group")
    if instances > places:
        raise ConfigError(
            f"instances: {instances} of them, but topology has {places} places (racks x "
            "nodes_per_rack x instances_per_node); give more nodes, or fewer instances"
        )
    counts = [group.count for group in scenario.instances.values()]
    if len(counts) == 1:
        return array("i", (i * nodes // instances for i in range(instances)))
    order = sorted(((2 * k + 1) / (2 * c), g, k) for g, c in enumerate(counts) for k in range(c))
    firsts = [sum(counts[:g]) for g in range(len(counts))]
    found = array("i", bytes(4 * instances))
    for rank, (_, group, k) in enumerate(order):
        found[firsts[group] + k] = rank * nodes // instances
    return found
