"""Laws of the cluster's links that hold for any transfers on any ways."""

from itertools import pairwise
from math import ceil, inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.config.scenario import NetworkSection, Scenario
from kv_cache.config.schema import from_mapping
from kv_cache.core.errors import ConfigError
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.event_loop import ARRIVES, Loop
from kv_cache.sim.cluster.links import NetworkLink
from kv_cache.sim.cluster.network import Network
from kv_cache.sim.cluster.topology import ClusterTopology, LinkPath

CAUSES = ("load", "offload", "pd-transfer")


class Watched(NetworkLink):
    """A link that remembers when it worked."""

    def __init__(self, number: int, bytes_per_s: float, latency_ns: int) -> None:
        super().__init__(f"link {number}", "wire", bytes_per_s, latency_ns)
        self.slots: list[tuple[int, int, int]] = []
        self.heads: list[tuple[int, int]] = []

    def take(self, now_ns: int, nbytes: int, factor: float, cause: str) -> tuple[int, int]:
        self.heads.append((now_ns, nbytes))
        start_ns, end_ns = super().take(now_ns, nbytes, factor, cause)
        assert now_ns <= start_ns
        self.slots.append((start_ns, end_ns, nbytes))
        return start_ns, end_ns


links = st.tuples(st.floats(0.5, 500), st.integers(0, 1000))
sends = st.tuples(
    st.integers(0, 20_000),  # when
    st.permutations(range(4)),
    st.integers(1, 4),  # how many of these links
    st.integers(1, 100_000),  # bytes
    st.sampled_from(CAUSES),
)
plans = st.tuples(st.lists(links, min_size=4, max_size=4), st.lists(sends, min_size=1, max_size=30))
Plan = tuple[list[tuple[float, int]], list[tuple[int, list[int], int, int, str]]]


class Played:
    """All of a plan, with the laws checked after every event."""

    def __init__(self, plan: Plan, discipline: str) -> None:
        self.links = [Watched(n, gb * 1e9, latency) for n, (gb, latency) in enumerate(plan[0])]
        self.sends = plan[1]
        self.loop = Loop()
        section = from_mapping(NetworkSection, {"discipline": discipline})
        self.net = Network(self.loop, section, Seed(0))
        self.done: dict[int, int] = {}
        for number, (at_ns, *_) in enumerate(self.sends):
            self.loop.at(at_ns, ARRIVES, self._send, number)
        while self.loop.run(1):
            self.net.check()
            begun = sum(link.transfers > 0 for link in self.links)
            assert begun or not self.net.in_flight

    def link_path(self, number: int) -> LinkPath:
        _, order, count, _, _ = self.sends[number]
        return tuple(self.links[n] for n in order[:count])

    def _send(self, number: int) -> None:
        _, _, _, nbytes, cause = self.sends[number]
        self.net.send(self.link_path(number), nbytes, cause, self._arrived, number)

    def _arrived(self, number: int) -> None:
        assert number not in self.done
        self.done[number] = self.loop.now_ns

    def soonest(self, number: int) -> int:
        """With nobody else."""
        at_ns, _, _, nbytes, _ = self.sends[number]
        link_path = self.link_path(number)
        longest = max(ceil(nbytes / link.bytes_per_ns) for link in link_path)
        return at_ns + longest + sum(link.latency_ns for link in link_path)

    def nothing_is_lost(self) -> None:
        assert self.done.keys() == set(range(len(self.sends)))
        assert self.net.in_flight == 0
        for link in self.links:
            over = [n for n in self.done if link in self.link_path(n)]
            assert link.transfers == len(over)
            assert link.ended_bytes == sum(link.bytes.values())
            for cause in CAUSES:
                asked = sum(self.sends[n][3] for n in over if self.sends[n][4] == cause)
                assert link.bytes.get(cause, 0) == asked
            assert link.busy_ns <= self.loop.now_ns


@settings(max_examples=150, deadline=None)
@given(plans)
def test_queues_keep_bytes_order_rate_and_causality(plan: Plan) -> None:
    played = Played(plan, "fifo")
    played.nothing_is_lost()
    for number, at_ns in played.done.items():
        assert at_ns >= played.soonest(number)
    for link in played.links:
        for start_ns, end_ns, nbytes in link.slots:
            assert end_ns - start_ns >= nbytes / link.bytes_per_ns * (1 - 1e-9)
        assert all(before[1] <= after[0] for before, after in pairwise(link.slots))
        assert link.busy_ns == sum(end - start for start, end, _ in link.slots)


@settings(max_examples=150, deadline=None)
@given(plans)
def test_waits_are_those_of_a_queue_and_keep_littles_law(plan: Plan) -> None:
    """A recursion of its own for each link: who comes begins when the one before has ended. The
    number that wait, integrated over time, is the sum of the waits."""
    for link in Played(plan, "fifo").links:
        free_ns, waiting = 0, []
        for at_ns, nbytes in link.heads:
            start_ns = max(free_ns, at_ns)
            free_ns = start_ns + ceil(nbytes / link.bytes_per_ns)
            waiting.append((at_ns, start_ns))
        changes = sorted([(start, -1) for _, start in waiting] + [(at, 1) for at, _ in waiting])
        integral_ns = queue = 0
        for (at_ns, change), (next_ns, _) in pairwise([*changes, (free_ns, 0)]):
            queue += change
            integral_ns += queue * (next_ns - at_ns)
        levels = [
            sum(a <= at < s for a, s in waiting[: n + 1]) for n, (at, _) in enumerate(waiting)
        ]
        longest = max(levels, default=0)
        assert link.waits.total_ns == integral_ns == sum(start - at for at, start in waiting)
        assert link.waits.longest == longest
        assert sum(link.waits.buckets.values()) == len(waiting)


@settings(max_examples=100, deadline=None)
@given(plans)
def test_who_is_sent_first_over_the_same_way_arrives_first(plan: Plan) -> None:
    one_way = [(at, [0, 1, 2, 3], 4, nbytes, cause) for at, _, _, nbytes, cause in plan[1]]
    played = Played((plan[0], one_way), "fifo")
    order = sorted(played.done, key=lambda number: (one_way[number][0], number))
    assert all(played.done[a] <= played.done[b] for a, b in pairwise(order))


@settings(max_examples=100, deadline=None)
@given(plans)
def test_a_lone_transfer_takes_the_same_in_both_disciplines(plan: Plan) -> None:
    for send in plan[1]:
        alone = (plan[0], [send])
        fifo, fair = Played(alone, "fifo"), Played(alone, "fair-share")
        assert fifo.done == fair.done == {0: fifo.soonest(0)}


@settings(max_examples=150, deadline=None)
@given(plans)
def test_fair_shares_keep_bytes_and_causality_and_are_max_min(plan: Plan) -> None:
    played = Played(plan, "fair-share")
    played.nothing_is_lost()
    for number, at_ns in played.done.items():
        assert at_ns >= played.soonest(number)


@settings(max_examples=150, deadline=None)
@given(plans)
def test_every_fair_share_has_a_full_link_on_which_none_is_faster(plan: Plan) -> None:
    """What max-min means, and that no link is over its rate."""
    loop = Loop()
    net = Network(loop, from_mapping(NetworkSection, {"discipline": "fair-share"}), Seed(0))
    links = [
        NetworkLink(str(n), "wire", gb * 1e9, latency) for n, (gb, latency) in enumerate(plan[0])
    ]
    ways = {n: [links[i] for i in s[1][: s[2]]] for n, s in enumerate(plan[1], 1)}
    for number, (_, _, _, nbytes, cause) in enumerate(plan[1], 1):
        net.send(tuple(ways[number]), nbytes, cause, lambda _: None)
    assert net._fair is not None
    while loop.run(1):
        rates = net._fair.rates()
        if not rates or not min(rates.values()):
            continue  # not settled yet
        used = {link: sum(rates[n] for n in rates if link in ways[n]) for link in links}
        assert all(used[link] <= link.bytes_per_ns * (1 + 1e-9) for link in links)
        if loop._heap and loop._heap[0][0] == loop.now_ns:
            continue  # somebody has just left
        for number, rate in rates.items():
            assert any(
                used[link] >= link.bytes_per_ns * (1 - 1e-9)
                and rate >= max(rates[n] for n in rates if link in ways[n]) * (1 - 1e-9)
                for link in ways[number]
            )


# --- ways ----------------------------------------------------------------------------------

SIZES = {"instance": 8, "node": 4, "rack": 2}
end_names = st.sampled_from(
    [f"{w}:{n}" for w, count in SIZES.items() for n in range(count)] + ["core"]
)
speeds = st.sampled_from([0.0, 1.0, 20.0, 50.0, 900.0])
wires = st.lists(
    st.tuples(
        end_names, end_names, st.sampled_from([1.0, 50.0, 900.0]), st.sampled_from([0.0, 1.0, 50.0])
    ),
    max_size=6,
    unique_by=lambda w: frozenset(w[:2]),
)
settings_of_links = st.fixed_dictionaries(
    {
        kind: st.fixed_dictionaries(
            {"gbytes_per_s": speeds, "latency_us": st.sampled_from([0.0, 5.0])}
        )
        for kind in ("nvlink", "pcie", "nic", "uplink")
    }
)


def small(section: dict[str, Any], between: list[tuple[str, str, float, float]]) -> ClusterTopology:
    keys = ("a", "b", "gbytes_per_s", "latency_us")
    named = {
        f"w{n}": dict(zip(keys, w, strict=True)) for n, w in enumerate(between) if w[0] != w[1]
    }
    plan = {
        "topology": {"racks": 2, "nodes_per_rack": 2, "instances_per_node": 2},
        "instances": {"all": {"count": 8}},
        "network": section | {"wires": named},
    }
    return ClusterTopology(from_mapping(Scenario, plan))


def cost(link_path: LinkPath) -> float:
    return sum(link.cost_ns for link in link_path)


def direct_links(places: ClusterTopology) -> dict[tuple[int, int], NetworkLink]:
    """All that there are, found by asking for every pair."""
    pairs = [(a, b) for a in range(places.vertices) for b in range(places.vertices) if a != b]
    found = {}
    for a, b in pairs:
        level = places._level(a), places._level(b)
        near = places._above(min(a, b), max(level)) == max(a, b) and abs(level[0] - level[1]) == 1
        mates = level == (0, 0) and places._above(a, 1) == places._above(b, 1)
        if near or mates or (a, b) in places._wires:
            link = places._new_link(a, b)
            if link is not None:
                found[a, b] = link
    return found


def cheapest(places: ClusterTopology, src: int) -> dict[int, float]:
    """Bellman and Ford over (vertex, came by a wire): an instance relays from wire to wire."""
    links = direct_links(places)
    best = {(src, True): 0.0}
    for _ in range(2 * places.vertices):
        for (a, b), link in links.items():
            wire = link.kind == "wire"
            for came, at in [(c, best.get((a, c), inf)) for c in (False, True)]:
                relays = a == src or a >= places.instances or (came and wire)
                if relays and at + link.cost_ns < best.get((b, wire), inf) - 1e-6:
                    best[b, wire] = at + link.cost_ns
    found: dict[int, float] = {}
    for (vertex, _), price in best.items():
        found[vertex] = min(price, found.get(vertex, inf))
    return found


def connected_way(places: ClusterTopology, src: int, dst: int) -> LinkPath | None:
    try:
        return places.path(src, dst)
    except ConfigError:
        return None


@settings(max_examples=40, deadline=None)
@given(settings_of_links, wires)
def test_ways_are_the_cheapest_there_are(section: Any, between: Any) -> None:
    places = small(section, between)
    for src in range(places.vertices):
        best = cheapest(places, src)
        for dst in range(places.vertices):
            link_path = connected_way(places, src, dst)
            assert (link_path is None) == (dst not in best)
            if link_path is not None:
                assert abs(cost(link_path) - best[dst]) < 1e-3


@settings(max_examples=60, deadline=None)
@given(settings_of_links, wires)
def test_ways_hang_together_cost_the_same_back_and_cross_no_node_by_nvlink(
    section: Any, between: Any
) -> None:
    places = small(section, between)
    for src in range(places.vertices):
        for dst in range(places.vertices):
            there, back = connected_way(places, src, dst), connected_way(places, dst, src)
            assert (there is None) == (back is None)
            if there is None or back is None or src == dst:
                continue
            assert abs(cost(there) - cost(back)) < 1e-3
            ends = [link.name.split()[1].split(">") for link in there]
            assert (ends[0][0], ends[-1][1]) == (places.name(src), places.name(dst))
            assert all(a[1] == b[0] for a, b in pairwise(ends))
            for link, (a, b) in zip(there, ends, strict=True):
                if link.kind == "nvlink":
                    one, two = (int(end.removeprefix("instance:")) for end in (a, b))
                    assert places.place_of(one) == places.place_of(two)
