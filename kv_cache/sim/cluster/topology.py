"""Where things are and what connects them: vertices, links, the cheapest paths.

Vertices are numbers: the instances, then the nodes, the racks and the core. A link has one
direction; its way back is a link of its own. Links come to be when somebody asks for a way over
them, so ten thousand instances cost nothing until they talk.

Without wires the links are a tree with NVLink across each node: ways are walked up and down. With
wires the cheapest are searched. A wire replaces the default link between exactly its two ends,
be it faster or slower. An instance relays nothing, but from wire to wire: no traffic goes
over a neighbour's NVLink, around a slow wire, unasked. Must never know who sends or why.
"""

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise, product
from typing import NamedTuple, cast

from kv_cache.config.scenario import LinkSection, Scenario, TierSection, WireSection
from kv_cache.config.scenario_rules import lower_tiers
from kv_cache.core.errors import ConfigError
from kv_cache.core.units import BYTES_PER_GB, MIB, NS_PER_US
from kv_cache.sim.cluster.links import LinkPath as LinkPath
from kv_cache.sim.cluster.links import LinkWaits, MeasuredDevice
from kv_cache.sim.cluster.links import NetworkLink as NetworkLink
from kv_cache.sim.cluster.paths import MOST_VERTICES, CheapestPaths, Edge
from kv_cache.sim.profile_model import ProfileModel

_MOST_PATHS = 1 << 16  # that are remembered, where they are searched
_INSTANCE, _NODE, _RACK, _CORE = range(4)
_LEVEL_OF_SCOPE = {"device": _INSTANCE, "node": _NODE, "rack": _RACK, "cluster": _CORE}
_WORDS = ("instance", "node", "rack", "core")
_UPWARD = ("pcie", "nic", "uplink")  # the link above each level


class _Wire(NamedTuple):
    name: str
    section: WireSection


class _Stem(NamedTuple):
    """From the core down to a vertex: the vertices, the links up and the links down."""

    over: tuple[int, ...]
    ups: tuple[NetworkLink | None, ...]
    downs: tuple[NetworkLink | None, ...]


class ClusterTopology:
    """The places of a scenario that keeps its rules (`config/scenario_rules`). `instances` is their
    number, `core` the vertex above all racks."""

    def __init__(
        self,
        scenario: Scenario,
        profiles: Mapping[str, ProfileModel] | None = None,
        object_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """`profiles`: of the tiers that have one, by the tier's name; `object_bytes` of each tier
        as in `MeasuredDevice`. Raises ConfigError, and OutsideProfileError where objects of that
        size were not measured."""
        section = scenario.topology
        self._scenario = scenario
        self._profiles = profiles or {}
        self._object_bytes = object_bytes or {}
        self.nodes = section.racks * section.nodes_per_rack
        self.racks = section.racks
        self._nodes_per_rack = section.nodes_per_rack
        self._groups = list(scenario.instances)
        self._firsts = _firsts(scenario)
        self.instances = self._firsts.pop()
        self._node_of = _spread(scenario, self.instances, self.nodes)
        sizes = (self.instances, self.nodes, self.racks)
        self._first_of = (0, *accumulate(sizes))
        self.core = self._first_of[_CORE]
        self.vertices = self.core + 1
        self._links: dict[int, NetworkLink | None] = {}
        self._devices: dict[tuple[str, int, str], NetworkLink] = {}
        self.waits: defaultdict[str, LinkWaits] = defaultdict(LinkWaits)
        """By family of links."""
        self._measured: dict[tuple[str, int], MeasuredDevice] = {}
        self._stems: dict[int, _Stem] = {}
        self._path_of: dict[int, LinkPath] = {}
        self._wires = dict(self._read_wires())
        self._wired: dict[int, list[int]] = {}
        for a, b in self._wires:
            self._wired.setdefault(a, []).append(b)
        self._members: list[list[int]] = []
        self._edges_of: dict[int, list[Edge]] = {}
        self._paths = self._search() if self._wires else None
        self._refuse_gaps()
        self._refuse_sizes()

    # --- places ----------------------------------------------------------------------------

    def node(self, index: int) -> int:
        return self._first_of[_NODE] + index

    def rack(self, index: int) -> int:
        return self._first_of[_RACK] + index

    def place_of(self, instance: int) -> tuple[int, int]:
        """Return the node and the rack of an instance, as indexes."""
        node = self._node_of[instance]
        return node, node // self._nodes_per_rack

    def pools(self, scope: str) -> int:
        """Count the pools that a tier of this scope can have."""
        return (self.instances, self.nodes, self.racks, 1)[_LEVEL_OF_SCOPE[scope]]

    def pool_of(self, scope: str, instance: int) -> tuple[int, int]:
        """Return index and vertex of the pool of that scope which an instance reaches."""
        level = _LEVEL_OF_SCOPE[scope]
        vertex = self._above(instance, level)
        return vertex - self._first_of[level], vertex

    def group_of(self, instance: int) -> str:
        return self._groups[bisect_right(self._firsts, instance) - 1]

    def name(self, vertex: int) -> str:
        """Name a vertex as in wires: `instance:0`, `node:3`, `rack:1`, `core`."""
        level = self._level(vertex)
        return "core" if level == _CORE else f"{_WORDS[level]}:{vertex - self._first_of[level]}"

    def _level(self, vertex: int) -> int:
        return bisect_right(self._first_of, vertex) - 1

    def _above(self, vertex: int, level: int) -> int:
        """Find the vertex above one, at a level that is not below its own."""
        if level == _CORE:
            return self.core
        vertex_level = self._level(vertex)
        if vertex_level == level:
            return vertex
        node = (
            self._node_of[vertex] if vertex_level == _INSTANCE else vertex - self._first_of[_NODE]
        )
        return self.node(node) if level == _NODE else self.rack(node // self._nodes_per_rack)

    # --- links -----------------------------------------------------------------------------

    def links(self) -> Iterator[NetworkLink]:
        """Yield all links that ever had a transfer, in the order of their creation."""
        for link in (*self._links.values(), *self._devices.values()):
            if link is not None and link.transfers:
                yield link

    def device(self, tier: str, pool: int, kind: str) -> NetworkLink:
        """Return the `read` or `write` access to a pool of a tier."""
        link = self._devices.get((tier, pool, kind))
        if link is None:
            link = self._devices[tier, pool, kind] = self._new_device(tier, pool, kind)
        return link

    def _new_device(self, tier: str, pool: int, kind: str) -> NetworkLink:
        section: TierSection = getattr(self._scenario.tiers, tier)
        read = kind == "read"
        rate = section.read_gbytes_per_s if read else section.write_gbytes_per_s
        latency = section.read_latency_us if read else section.write_latency_us
        return NetworkLink(
            f"device:{tier}:{kind}:{pool}", "device", rate * BYTES_PER_GB,
            round(latency * NS_PER_US), read=read, waits=self.waits[f"device:{tier}:{kind}"],
            measured=None if section.profile is None else self._measured_pool(tier, pool),
        )  # fmt: skip

    def _measured_pool(self, tier: str, pool: int) -> MeasuredDevice:
        """Return the device of a pool, one for both kinds of access: they share it."""
        device = self._measured.get((tier, pool))
        if device is None:
            if tier not in self._profiles:
                raise AssertionError(f"the profile is missing of tiers.{tier}")
            device = self._measured[tier, pool] = MeasuredDevice(
                self._profiles[tier], self._object_bytes.get(tier, 0)
            )
        return device

    def _link(self, a: int, b: int) -> NetworkLink | None:
        """Return the direct link from `a` to `b`, if there is one."""
        key = a * self.vertices + b
        if key not in self._links:
            self._links[key] = self._new_link(a, b)
        return self._links[key]

    def _new_link(self, a: int, b: int) -> NetworkLink | None:
        kind, section = self._between(a, b)
        if not section.gbytes_per_s:
            return None
        wire = self._wires.get((a, b))
        name = f"{wire.name if wire else kind} {self.name(a)}>{self.name(b)}"
        rate, latency = section.gbytes_per_s * BYTES_PER_GB, section.latency_us * NS_PER_US
        return NetworkLink(name, kind, rate, round(latency), waits=self.waits[kind])

    def _between(self, a: int, b: int) -> tuple[str, LinkSection | WireSection]:
        """Return what the direct link between two ends that have one is made of."""
        wire = self._wires.get((a, b))
        if wire is not None:
            return "wire", wire.section
        low, high = sorted((self._level(a), self._level(b)))
        kind = "nvlink" if low == high else _UPWARD[low]
        return kind, getattr(self._scenario.network, kind)

    # --- paths -----------------------------------------------------------------------------

    def path(self, src: int, dst: int) -> LinkPath:
        """Find the links of the cheapest path for 1 MiB. Raises ConfigError if there is none."""
        link_path = self._path_or_none(src, dst)
        if link_path is None:
            raise self._disconnected(src, dst, "a transfer")
        return link_path

    def _path_or_none(self, src: int, dst: int) -> LinkPath | None:
        return self._walk(src, dst) if self._paths is None else self._searched(src, dst)

    def _walk(self, src: int, dst: int) -> LinkPath | None:
        """Walk up to the vertex above both and down again, or across a node."""
        over, ups, _ = self._stems.get(src) or self._stem(src)
        others, _, downs = self._stems.get(dst) or self._stem(dst)
        same = 1
        for a, b in zip(over[1:], others[1:], strict=False):
            if a != b:
                break
            same += 1
        link_path = ups[: len(over) - same] + downs[same - 1 :]
        across = None
        if same == _CORE and src != dst and src < self.instances > dst:
            across = self._link(src, dst)
        if None in link_path:
            return None if across is None else (across,)
        connected = cast(LinkPath, link_path)
        if across is not None and across.cost_ns <= sum(link.cost_ns for link in connected):
            return (across,)
        return connected

    def _stem(self, vertex: int) -> _Stem:
        level = self._level(vertex)
        over = tuple(self._above(vertex, n) for n in range(_CORE, level - 1, -1))
        downs = tuple(self._link(a, b) for a, b in pairwise(over))
        ups = tuple(self._link(a, b) for a, b in pairwise(reversed(over)))
        stem = self._stems[vertex] = _Stem(over, ups, downs)
        return stem

    def _searched(self, src: int, dst: int) -> LinkPath | None:
        key = src * self.vertices + dst
        link_path = self._path_of.get(key)
        if link_path is None:
            over = cast(CheapestPaths, self._paths).between(src, dst)
            if not over:
                return None
            if len(self._path_of) >= _MOST_PATHS:
                self._path_of.clear()
            links = [self._link(a, b) for a, b in pairwise(over)]
            link_path = self._path_of[key] = cast(LinkPath, tuple(links))
        return link_path

    # --- wires -----------------------------------------------------------------------------

    def _read_wires(self) -> Iterator[tuple[tuple[int, int], _Wire]]:
        """Yield each wire twice, there and back."""
        for name, section in self._scenario.network.wires.items():
            a, b = self._vertex(section.a), self._vertex(section.b)
            wire = _Wire(name, section)
            yield (a, b), wire
            yield (b, a), wire

    def _vertex(self, text: str) -> int:
        """Parse `instance:0`, `node:3`, `rack:1` or `core`."""
        word, _, index = text.partition(":")
        return self._first_of[_WORDS.index(word)] + int(index or 0)

    def _search(self) -> CheapestPaths:
        if self.vertices > MOST_VERTICES:
            raise ConfigError(
                f"network.wires: the cheapest ways are searched among at most {MOST_VERTICES} "
                f"instances, nodes, racks and the core, but there are {self.vertices}; leave the "
                "wires out, or simulate a smaller part"
            )
        self._members = [[] for _ in range(self.nodes)]
        for instance, node in enumerate(self._node_of):
            self._members[node].append(instance)
        return CheapestPaths(self.vertices, self.instances, self._edges)

    def _edges(self, vertex: int, first: bool) -> list[Edge]:
        edges = self._edges_of.get(vertex)
        if edges is None:
            edges = self._edges_of[vertex] = list(self._new_edges(vertex, self._beside(vertex)))
        if first and vertex < self.instances:  # NVLink is never relayed
            mates = (i for i in self._members[self._node_of[vertex]] if i != vertex)
            wired = (i for i in mates if (vertex, i) not in self._wires)
            return [*edges, *self._new_edges(vertex, wired)]
        return edges

    def _beside(self, vertex: int) -> Iterator[int]:
        """Yield the vertices to which a vertex has a direct link, except NVLink."""
        level = self._level(vertex)
        default = [] if level == _CORE else [self._above(vertex, level + 1)]
        index = vertex - self._first_of[level]
        if level == _NODE:
            default += self._members[index]
        elif level == _RACK:
            default += range(
                self.node(index * self._nodes_per_rack),
                self.node((index + 1) * self._nodes_per_rack),
            )
        elif level == _CORE:
            default += range(self.rack(0), self.core)
        yield from default
        yield from (end for end in self._wired.get(vertex, ()) if end not in default)

    def _new_edges(self, vertex: int, ends: Iterator[int]) -> Iterator[Edge]:
        for end in ends:
            kind, section = self._between(vertex, end)
            if section.gbytes_per_s:
                cost_ns = section.latency_us * NS_PER_US + MIB / section.gbytes_per_s
                yield Edge(end, cost_ns, kind == "wire")

    # --- gaps ------------------------------------------------------------------------------

    def _refuse_gaps(self) -> None:
        """Refuse a scenario whose tiers or transfers are not connected. Without wires all instances
        are alike: the first speaks for all. Raises ConfigError."""
        some = range(self.instances) if self._wires else range(1)
        for tier in lower_tiers(self._scenario):
            scope = getattr(self._scenario.tiers, tier).scope
            for instance in some:
                _, pool = self.pool_of(scope, instance)
                if self._path_or_none(pool, instance) is None:
                    raise self._disconnected(pool, instance, f"tiers.{tier}")
        for prefill, decode in self._handovers():
            if self._path_or_none(prefill, decode) is None:
                raise self._disconnected(prefill, decode, "handing over from prefill to decode")

    def _refuse_sizes(self) -> None:
        """Refuse objects of a size that was not measured before anything runs."""
        for tier, profile in self._profiles.items():
            nbytes = self._object_bytes.get(tier, 0)
            if nbytes and getattr(self._scenario.tiers, tier).capacity_gib:
                profile.depth(nbytes, nbytes)

    def _handovers(self) -> Iterator[tuple[int, int]]:
        """Yield pairs that represent all that may have to hand over; none if there is surely a
        path."""
        senders = self._of_role("prefill")
        takers = self._of_role("decode") or self._of_role("mixed")
        if self._paths is not None:
            if all(self._path_or_none(self.core, i) is not None for i in (*senders, *takers)):
                return
        elif all(getattr(self._scenario.network, kind).gbytes_per_s for kind in _UPWARD):
            return
        else:  # all of a node are alike
            senders, takers = self._one_a_node(senders), self._one_a_node(takers)
        yield from product(senders, takers)

    def _of_role(self, role: str) -> list[int]:
        groups = zip(self._firsts, self._scenario.instances.values(), strict=True)
        spans = [range(first, first + g.count) for first, g in groups if g.role == role]
        return [instance for span in spans for instance in span]

    def _one_a_node(self, instances: list[int]) -> list[int]:
        return list({self._node_of[instance]: instance for instance in instances}.values())

    def _disconnected(self, a: int, b: int, why: str) -> ConfigError:
        low, high = min(self._level(a), self._level(b)), _CORE
        gaps = [
            f"network.{kind}"
            for kind in _UPWARD[low:high]
            if not getattr(self._scenario.network, kind).gbytes_per_s
        ]
        return ConfigError(
            f"network: {self.name(a)} and {self.name(b)} are disconnected, but {why} needs a way "
            f"between them; give {' and '.join(gaps)} a bandwidth, or lay a wire between them"
        )


def _firsts(scenario: Scenario) -> list[int]:
    """Return the first instance of each group, and their number."""
    counts = [group.count for group in scenario.instances.values()]
    return [0, *accumulate(counts)]


def _spread(scenario: Scenario, instances: int, nodes: int) -> "array[int]":
    """Return the node of each instance. All nodes get the same number, give or take one, and of
    each group its share: groups are interleaved in proportion, and the row is cut into equal
    parts."""
    counts = [group.count for group in scenario.instances.values()]
    row = sorted(
        ((2 * k + 1) / (2 * count), first + k)
        for first, count in zip(_firsts(scenario), counts, strict=False)
        for k in range(count)
    )
    node_of = array("i", bytes(4 * instances))
    for rank, (_, instance) in enumerate(row):
        node_of[instance] = rank * nodes // instances
    return node_of
