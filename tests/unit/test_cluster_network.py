"""Places, links and ways of the cluster simulator, and what transfers on them take."""

import hashlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from kv_cache.config.profile import Cell, Profile, Service
from kv_cache.config.scenario import NetworkSection, Scenario
from kv_cache.config.schema import from_mapping
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind
from kv_cache.core.seed import Seed
from kv_cache.sim.cluster.event_loop import ARRIVES, Loop
from kv_cache.sim.cluster.fair_share import FairShare
from kv_cache.sim.cluster.links import LinkPath, MeasuredDevice, NetworkLink
from kv_cache.sim.cluster.network import Network
from kv_cache.sim.cluster.topology import ClusterTopology
from kv_cache.sim.cluster.transfer import NetworkTransfer
from kv_cache.sim.profile_model import OutsideProfileError, ProfileModel

MB = 10**6
Done = list[Any]
Sends = Sequence[tuple[int, LinkPath, int]]


def scenario(**sections: Any) -> Scenario:
    """Two racks of two nodes with four instances each, if nothing else is said."""
    default = {
        "topology": {"racks": 2, "nodes_per_rack": 2, "instances_per_node": 4},
        "instances": {"all": {"count": 16}},
    }
    return from_mapping(Scenario, default | sections)


def topology(**sections: Any) -> ClusterTopology:
    return ClusterTopology(scenario(**sections))


def wired(**wires: Any) -> ClusterTopology:
    """Each wire as (a, b, GB/s, us)."""
    keys = ("a", "b", "gbytes_per_s", "latency_us")
    return topology(
        network={"wires": {name: dict(zip(keys, w, strict=True)) for name, w in wires.items()}}
    )


def kinds(link_path: LinkPath) -> list[str]:
    return [link.kind for link in link_path]


def ends(link_path: LinkPath) -> list[str]:
    return [link.name.split()[1] for link in link_path]


def network(loop: Loop, **section: Any) -> Network:
    return Network(loop, from_mapping(NetworkSection, section), Seed(7))


def finishes(sends: Sends, check: bool = True, **section: Any) -> dict[int, int]:
    """When each (at, way, bytes) has arrived, by its place in the list."""
    loop = Loop()
    net = network(loop, **section)
    done: dict[int, int] = {}

    def arrived(number: int) -> None:
        done[number] = loop.now_ns

    def send(number: int) -> None:
        _, link_path, nbytes = sends[number]
        net.send(link_path, nbytes, "load", arrived, number)

    for number, (at_ns, _, _) in enumerate(sends):
        loop.at(at_ns, ARRIVES, send, number)
    while loop.run(1):
        if check:
            net.check()
    net.check()
    assert net.in_flight == 0
    return done


def gb(gbytes_per_s: float, latency_ns: int = 0, name: str = "a") -> NetworkLink:
    return NetworkLink(name, "wire", gbytes_per_s * 1e9, latency_ns)


# --- places --------------------------------------------------------------------------------


def test_groups_are_spread_over_the_nodes_in_proportion() -> None:
    places = topology(
        instances={"p": {"count": 4, "role": "prefill"}, "d": {"count": 12, "role": "decode"}}
    )
    assert places.instances == 16
    for node in range(4):
        here = [places.group_of(i) for i in range(16) if places.place_of(i)[0] == node]
        assert (here.count("p"), here.count("d")) == (1, 3)
    assert [places.place_of(i)[1] for i in range(4)] == [0, 0, 1, 1]


def test_half_empty_nodes_are_equally_full() -> None:
    places = topology(instances={"a": {"count": 3}, "b": {"count": 3}})
    counts = [[places.place_of(i)[0] for i in range(6)].count(node) for node in range(4)]
    assert sorted(counts) == [1, 1, 2, 2]


def test_vertices_have_the_names_that_wires_use() -> None:
    places = topology()
    named = [places.name(v) for v in (0, 15, places.node(3), places.rack(1), places.core)]
    assert named == ["instance:0", "instance:15", "node:3", "rack:1", "core"]


def test_ten_thousand_instances_cost_nothing_until_they_talk() -> None:
    plan = scenario(
        topology={"racks": 160, "nodes_per_rack": 8, "instances_per_node": 8},
        instances={"p": {"count": 2560}, "d": {"count": 7680}},
        tiers={"rack_pool": {"capacity_gib": 100.0}, "remote": {"capacity_gib": 100.0}},
    )
    tracemalloc.start()
    try:
        places = ClusterTopology(plan)
        assert tracemalloc.get_traced_memory()[1] < 5 * MB
    finally:
        tracemalloc.stop()
    assert places.instances == 10_240
    assert len(places._links) < 10
    assert list(places.links()) == []


# --- ways without wires --------------------------------------------------------------------


def test_a_way_goes_up_to_what_both_have_above_them_and_down_again() -> None:
    places = topology()
    assert kinds(places.path(0, 15)) == ["pcie", "nic", "uplink", "uplink", "nic", "pcie"]
    assert kinds(places.path(0, 5)) == ["pcie", "nic", "nic", "pcie"]
    assert kinds(places.path(0, 1)) == ["nvlink"]
    assert kinds(places.path(places.rack(0), 5)) == ["nic", "pcie"]
    assert ends(places.path(15, places.core)) == [
        "instance:15>node:3", "node:3>rack:1", "rack:1>core",
    ]  # fmt: skip
    assert places.path(3, 3) == ()


def test_nvlink_is_inside_a_node_alone() -> None:
    places = topology()
    for a in range(16):
        for b in range(16):
            near = a != b and places.place_of(a)[0] == places.place_of(b)[0]
            assert ("nvlink" in kinds(places.path(a, b))) == near


def test_pcie_is_taken_where_it_is_cheaper_than_nvlink() -> None:
    slow = topology(network={"nvlink": {"gbytes_per_s": 1.0}})
    assert kinds(slow.path(0, 1)) == ["pcie", "pcie"]


def test_each_direction_is_a_link_of_its_own() -> None:
    places = topology()
    assert set(places.path(0, 15)).isdisjoint(places.path(15, 0))


def test_links_are_those_that_had_a_transfer() -> None:
    places, loop = topology(), Loop()
    link_path = places.path(0, 1)
    places.path(0, 15)
    network(loop).send(link_path, 10, "load", lambda _: None)
    assert list(places.links()) == list(link_path)


# --- gaps ----------------------------------------------------------------------------------

NO = {"gbytes_per_s": 0.0}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"network": {"nic": NO}, "tiers": {"rack_pool": {"capacity_gib": 1.0}}},
            r"rack:0 and instance:0 are disconnected, but tiers\.rack_pool .* give network\.nic a",
        ),
        (
            {"network": {"pcie": NO}, "tiers": {"dram": {"capacity_gib": 1.0}}},
            r"node:0 and instance:0 are disconnected, but tiers\.dram",
        ),
        (
            {
                "network": {"uplink": NO},
                "instances": {
                    "p": {"count": 8, "role": "prefill"},
                    "d": {"count": 8, "role": "decode"},
                },
            },
            r"instance:\d+ and instance:\d+ are disconnected, but handing over .*network\.uplink",
        ),
        (
            {
                "network": {"pcie": NO, "wires": {"w": {"a": "instance:0", "b": "node:0"}}},
                "tiers": {"dram": {"capacity_gib": 1.0}},
            },
            r"node:0 and instance:1 are disconnected, but tiers\.dram",
        ),
    ],
)
def test_ends_that_must_reach_each_other_and_cannot_are_named(sections: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        topology(**sections)


def test_a_way_that_nobody_knew_to_be_needed_is_refused_when_it_is_asked_for() -> None:
    places = topology(network={"uplink": NO})
    assert kinds(places.path(0, 5)) == ["pcie", "nic", "nic", "pcie"]
    with pytest.raises(ConfigError, match="instance:0 and instance:15 are disconnected"):
        places.path(0, 15)


def test_a_link_that_nobody_needs_may_be_missing() -> None:
    one_node = topology(
        topology={"racks": 1, "nodes_per_rack": 1, "instances_per_node": 4},
        instances={"p": {"count": 1, "role": "prefill"}, "d": {"count": 3, "role": "decode"}},
        network={"pcie": NO, "nic": NO, "uplink": NO},
    )
    assert kinds(one_node.path(0, 3)) == ["nvlink"]


# --- wires ---------------------------------------------------------------------------------


def test_a_wire_between_nodes_shortens_the_way() -> None:
    places = wired(fast=("node:0", "node:3", 400.0, 1.0))
    assert kinds(places.path(0, 15)) == ["pcie", "wire", "pcie"]
    assert ends(places.path(15, 0)) == ["instance:15>node:3", "node:3>node:0", "node:0>instance:0"]


def test_a_slower_wire_takes_the_place_of_the_default_link() -> None:
    places = wired(slow=("instance:0", "node:0", 1.0, 50_000.0))
    link = places.path(0, places.rack(0))[0]
    assert (link.kind, link.bytes_per_ns, link.latency_ns) == ("wire", 1.0, 50 * 10**6)
    assert kinds(places.path(1, places.rack(0))) == ["pcie", "nic"]
    assert finishes([(0, (link,), MB)]) == {0: 51 * MB}


def test_nobody_goes_around_a_slow_wire_over_a_neighbours_nvlink() -> None:
    places = wired(slow=("instance:0", "instance:1", 1.0, 50_000.0))
    assert kinds(places.path(0, 1)) == ["pcie", "pcie"]
    assert kinds(places.path(0, 2)) == ["nvlink"]


def test_a_faster_wire_takes_the_place_of_the_default_link() -> None:
    places = wired(fast=("rack:1", "core", 800.0, 1.0))
    link_path = places.path(0, 15)
    assert kinds(link_path) == ["pcie", "nic", "uplink", "wire", "nic", "pcie"]


def test_instances_relay_from_wire_to_wire() -> None:
    places = topology(
        network={
            "nvlink": NO,
            "pcie": NO,
            "wires": {
                "x": {"a": "instance:0", "b": "instance:1"},
                "y": {"a": "instance:2", "b": "instance:1"},
            },
        }
    )
    assert ends(places.path(0, 2)) == ["instance:0>instance:1", "instance:1>instance:2"]


def test_a_wire_like_the_default_changes_no_way() -> None:
    plain, same = topology(), wired(same=("core", "rack:0", 400.0, 10.0))
    for a in range(plain.vertices):
        for b in range(plain.vertices):
            assert ends(plain.path(a, b)) == ends(same.path(a, b))


def test_wires_are_for_topologies_in_which_ways_can_be_searched() -> None:
    with pytest.raises(ConfigError, match=r"at most 2048 .* but there are 2069"):
        topology(
            topology={"racks": 4, "nodes_per_rack": 4, "instances_per_node": 128},
            instances={"all": {"count": 2048}},
            network={"wires": {"w": {"a": "node:0", "b": "node:1"}}},
        )


# --- devices -------------------------------------------------------------------------------


def test_a_device_reads_and_writes_as_its_tier_says() -> None:
    tier = {
        "capacity_gib": 1.0, "read_gbytes_per_s": 7.0, "write_gbytes_per_s": 4.0,
        "read_latency_us": 80.0, "write_latency_us": 30.0,
    }  # fmt: skip
    places = topology(tiers={"nvme": tier})
    read, write = (places.device("nvme", 3, kind) for kind in ("read", "write"))
    assert (read.bytes_per_ns, read.latency_ns) == (7.0, 80_000)
    assert (write.bytes_per_ns, write.latency_ns) == (4.0, 30_000)
    assert (read.kind, read.family, read.name) == (
        "device",
        "device:nvme:read",
        "device:nvme:read:3",
    )
    assert places.device("nvme", 3, "read") is read
    assert places.device("nvme", 2, "read") is not read


def measured_profile(
    sizes: tuple[int, ...] = (MB, 4 * MB), depths: tuple[int, ...] = (1, 4)
) -> Any:
    """Reads of 1 ms a MB alone, twice as long at depth 4; writes take twice as long as reads."""

    def cell(nbytes: int, depth: int, share: float) -> Cell:
        mean = nbytes * (1 if depth == 1 else 2)

        def service(times: int) -> Service:
            return Service(
                operations=9, mean_us=mean * times / 1e3, p50_us=mean / 1e3, p99_us=mean / 1e3
            )

        return Cell(
            object_bytes=nbytes, concurrency=depth, read_share=share,
            bytes_per_second=1e9, in_flight=depth, reads=service(1) if share else None,
            writes=service(2) if share < 1 else None,
        )  # fmt: skip

    cells = tuple(cell(n, d, s) for n in sizes for d in depths for s in (0.0, 0.5, 1.0))
    return ProfileModel(Profile(name="p", cells=cells))


def test_a_measured_device_takes_what_was_measured_with_so_many_in_flight() -> None:
    model = measured_profile()
    device = NetworkLink("d", "device", 1e9, 99, measured=MeasuredDevice(model))
    done = finishes([(0, (device,), MB)] * 5)
    first, second, third, fourth = (
        model.service_ns(OpKind.READ, MB, depth, 1.0) for depth in (1, 2, 3, 4)
    )
    assert [done[i] for i in range(4)] == [first, second, third, fourth]
    assert (first, fourth) == (MB, 2 * MB)
    assert done[4] == first + fourth  # no more than four were measured at once: it waited


def test_reads_and_writes_share_a_measured_device() -> None:
    model = measured_profile()
    device = MeasuredDevice(model)
    read = NetworkLink("r", "device", 1e9, 0, measured=device)
    write = NetworkLink("w", "device", 1e9, 0, measured=device, read=False)
    done = finishes([(0, (write,), MB), (0, (read,), MB)])
    assert done == {
        0: model.service_ns(OpKind.WRITE, MB, 1, 0.0),
        1: model.service_ns(OpKind.READ, MB, 2, 0.5),
    }


def test_a_transfer_from_a_measured_device_is_so_many_operations_of_its_objects() -> None:
    device = NetworkLink("d", "device", 1e9, 0, measured=MeasuredDevice(measured_profile(), MB))
    assert finishes([(0, (device,), 100 * MB)]) == {0: 100 * MB}


@pytest.mark.parametrize("discipline", ["fifo", "fair-share"])
def test_nothing_is_guessed_outside_the_measured_sizes(discipline: str) -> None:
    device = NetworkLink("d", "device", 1e9, 0, measured=MeasuredDevice(measured_profile()))
    with pytest.raises(OutsideProfileError, match="nothing is extrapolated"):
        finishes([(0, (device,), 5 * MB)], discipline=discipline)


def test_a_tier_with_a_profile_asks_the_profile() -> None:
    tier = {"capacity_gib": 1.0, "profile": "p.yaml", "read_gbytes_per_s": 1000.0}
    places = ClusterTopology(scenario(tiers={"nvme": tier}), {"nvme": measured_profile()})
    read, write = (places.device("nvme", 0, kind) for kind in ("read", "write"))
    assert read.measured is write.measured is not None
    assert finishes([(0, (read, *places.path(places.node(0), 0)), MB)]) == {0: MB + 5000}


def test_blocks_whose_size_was_not_measured_are_refused_before_anything_is_sent() -> None:
    nvme = {"capacity_gib": 1.0, "profile": "p.yaml"}
    plan = scenario(tiers={"nvme": nvme})
    ClusterTopology(plan, {"nvme": measured_profile()}, {"nvme": 2 * MB})
    with pytest.raises(OutsideProfileError, match="nothing is extrapolated"):
        ClusterTopology(plan, {"nvme": measured_profile()}, {"nvme": 5 * MB})


@pytest.mark.parametrize("discipline", ["fifo", "fair-share"])
def test_a_write_is_not_done_before_its_bytes_are_there(discipline: str) -> None:
    device = NetworkLink(
        "d", "device", 1e9, 0, measured=MeasuredDevice(measured_profile()), read=False
    )
    done = finishes([(0, (gb(0.1), device), MB), (10, (device,), MB)], discipline=discipline)
    assert done[0] >= 10 * MB


# --- queues --------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["fifo", "fair-share"])
def test_a_lone_transfer_takes_the_latencies_and_the_bytes_over_the_slowest(
    discipline: str,
) -> None:
    link_path = (gb(50, 5000), gb(12.5, 7), gb(400, 10_000), gb(12.5, 3))
    assert finishes([(100, link_path, 25 * MB)], discipline=discipline) == {
        0: 100 + 15_010 + 2 * MB
    }


@pytest.mark.parametrize("discipline", ["fifo", "fair-share"])
def test_nothing_to_send_and_nowhere_to_go_take_no_time_but_an_event(discipline: str) -> None:
    loop, done = Loop(), Done()
    net = network(loop, discipline=discipline)
    net.send((), 5, "load", done.append)
    net.send((gb(1),), 0, "load", done.append)
    assert (done, net.in_flight) == ([], 0)
    loop.run(9)
    assert (len(done), loop.now_ns) == (2, 0)


def test_a_queue_serves_one_after_the_other() -> None:
    link = gb(1, 100)
    assert finishes([(0, (link,), MB), (0, (link,), MB)]) == {0: MB + 100, 1: 2 * MB + 100}


def test_who_waits_for_a_busy_device_keeps_no_later_link() -> None:
    device, shared = gb(1, name="device"), gb(10, name="shared")
    sends = [(0, (device, shared), 100 * MB)] * 3 + [(1, (shared,), 10 * MB)]
    assert finishes(sends)[3] == 11 * MB  # the first has its turn of 10, the others wait elsewhere


def test_a_slow_link_before_it_does_not_keep_a_fast_one() -> None:
    shared = gb(8, name="shared")
    sends = [(0, (gb(1, name=str(n)), shared), 8 * MB) for n in range(8)]
    assert set(finishes(sends).values()) == {8 * MB}


def test_an_estimate_is_what_it_takes_if_nothing_is_sent_after_it() -> None:
    shared = gb(10, 20)
    link_path = (gb(2, 30), shared, gb(5, 40))
    loop, done = Loop(), Done()
    net = network(loop)
    net.send((shared,), 50 * MB, "load", done.append)
    expected = net.estimate_ns(link_path, MB)
    net.send(link_path, MB, "load", lambda _: done.append(loop.now_ns))
    loop.run(99)
    assert done[-1] == expected
    assert net.estimate_ns((), 7) == net.estimate_ns(link_path, 0) == 0


def test_bytes_are_counted_by_cause() -> None:
    link, loop = gb(1), Loop()
    net = network(loop)
    for cause, nbytes in (("load", 5), ("offload", 7), ("load", 1)):
        net.send((link,), nbytes, cause, lambda _: None)
    assert link.bytes == {"load": 6, "offload": 7}
    assert (link.transfers, link.ended_bytes, link.busy_ns) == (3, 0, 13)
    assert link.rest_ns(loop.now_ns) == 13
    loop.run(9)
    assert (link.ended_bytes, link.rest_ns(loop.now_ns)) == (13, 0)


def test_a_broken_law_is_told() -> None:
    link, loop = gb(1), Loop()
    net = network(loop)
    net.send((link,), 5, "load", lambda _: None)
    link.bytes["load"] += 1
    with pytest.raises(AssertionError, match="a: 6 bytes began, but 0 ended and 5 are in flight"):
        net.check()
    link.bytes["load"] -= 1
    link.busy_ns += 1
    with pytest.raises(AssertionError, match="a: worked 1 ns, but there were 0"):
        net.check()


# --- fair shares ---------------------------------------------------------------------------


def fair(*sends: tuple[int, LinkPath, int], **section: Any) -> dict[int, int]:
    return finishes(list(sends), discipline="fair-share", **section)


def test_two_equal_transfers_get_half_each() -> None:
    link = gb(1, 100)
    assert fair((0, (link,), MB), (0, (link,), MB)) == {0: 2 * MB + 100, 1: 2 * MB + 100}


def test_who_comes_later_takes_half_from_then_on() -> None:
    link = gb(1)
    assert fair((0, (link,), 2 * MB), (MB, (link,), 2 * MB)) == {0: 3 * MB, 1: 4 * MB}


def test_a_link_is_never_idle_while_somebody_waits_for_it() -> None:
    link = gb(1)
    sends = [(n * 1000, (link,), MB + n) for n in range(20)]
    assert max(fair(*sends).values()) == pytest.approx(sum(n for _, _, n in sends), abs=20)


def test_max_min_on_three_links_as_by_hand() -> None:
    """L1 = 10 is the first to be full: a and b get 5. Then L3 = 6: c gets 6. d gets what is left
    of L2 = 20: 9."""
    one, two, three = gb(10), gb(20), gb(6)
    ways = {1: (one, two), 2: (one,), 3: (two, three), 4: (two,)}
    loop = Loop()
    shares = FairShare(loop, lambda _: None, lambda _: None)
    for number, link_path in ways.items():
        shares.begin(NetworkTransfer(number, link_path, MB, "load", print, None, 1.0))
    loop.run(1)
    assert shares.rates() == {1: 5.0, 2: 5.0, 3: 6.0, 4: 9.0}


def test_a_measured_device_bounds_the_rate_and_queues() -> None:
    model = measured_profile()
    device = NetworkLink("d", "device", 1e9, 0, measured=MeasuredDevice(model))
    alone = fair((0, (device,), MB), (0, (device,), MB))
    assert alone == {0: MB, 1: model.service_ns(OpKind.READ, MB, 2, 1.0)}
    device = NetworkLink("d", "device", 1e9, 0, measured=MeasuredDevice(model))
    link = gb(1.5)
    done = fair((0, (device, link), MB), (0, (link,), MB))
    assert done[0] == pytest.approx(MB * 4 / 3, abs=2)  # 0.75 each is below the device's 1


def test_a_fair_estimate_counts_who_is_there() -> None:
    loop, link = Loop(), gb(1, 10)
    net = network(loop, discipline="fair-share")
    assert net.estimate_ns((link,), MB) == MB + 10
    net.send((link,), MB, "load", lambda _: None)
    loop.run(1)
    assert net.estimate_ns((link,), MB) == 2 * MB + 10


# --- jitter --------------------------------------------------------------------------------


def spaced(count: int, discipline: str = "fifo", **section: Any) -> list[float]:
    """Times of lone transfers, as multiples of what they take without jitter."""
    link = gb(1)
    at = [n * 10**9 for n in range(count)]
    done = finishes([(a, (link,), MB) for a in at], check=False, discipline=discipline, **section)
    return [(done[n] - at[n]) / MB for n in range(count)]


def test_no_jitter_is_exactly_deterministic() -> None:
    assert spaced(100, tail_probability=1.0, tail_multiplier=1.0) == [1.0] * 100
    assert spaced(100, tail_multiplier=9.0) == [1.0] * 100


def test_jitter_has_the_mean_one_and_the_spread_that_is_asked_for() -> None:
    times = spaced(40_000, jitter_cv=0.3)
    mean = sum(times) / len(times)
    cv = sqrt(sum((t - mean) ** 2 for t in times) / len(times)) / mean
    assert mean == pytest.approx(1, rel=4 * 0.3 / sqrt(len(times)))
    assert cv == pytest.approx(0.3, rel=0.03)


def test_the_tail_is_as_thick_and_as_long_as_it_says() -> None:
    times = spaced(20_000, tail_probability=0.1, tail_multiplier=20.0)
    assert set(times) == {1.0, 20.0}
    assert times.count(20.0) / len(times) == pytest.approx(0.1, abs=4 * sqrt(0.09 / 20_000))


def test_the_tail_does_not_change_the_jitter() -> None:
    body = spaced(500, jitter_cv=0.3)
    both = spaced(500, jitter_cv=0.3, tail_probability=0.1, tail_multiplier=20.0)
    assert {round(b / a) for a, b in zip(body, both, strict=True)} == {1, 20}


def test_jitter_stretches_lone_transfers_alike_in_both_disciplines() -> None:
    assert spaced(200, "fifo", jitter_cv=0.5) == spaced(200, "fair-share", jitter_cv=0.5)


_DIGEST = """
from tests.unit.test_cluster_network import digest
print(digest())
"""


def digest() -> str:
    """Of all arrivals of a small, busy network, in both disciplines."""
    found = hashlib.sha256()
    for discipline in ("fifo", "fair-share"):
        places = wired(fast=("node:0", "node:3", 400.0, 1.0))
        rng = Seed(3).rng()
        sends = [
            (rng.randrange(MB), places.path(rng.randrange(16), rng.randrange(16)), MB)
            for _ in range(300)
        ]
        done = finishes(sends, check=False, discipline=discipline, jitter_cv=0.4)
        found.update(repr(list(done.items())).encode())
    return found.hexdigest()


def test_hash_seeds_and_processes_change_nothing() -> None:
    root = Path(__file__).resolve().parents[2]
    digests = {digest()}
    for seed in ("0", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        ran = subprocess.run(
            [sys.executable, "-c", _DIGEST], env=environment, cwd=root, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        digests.add(ran.stdout.strip())
    assert len(digests) == 1


# --- theory --------------------------------------------------------------------------------


class Waits:
    """Waiting times of Poisson arrivals at one link, by regenerative cycles: each begins when an
    arrival finds the link empty. Work and gaps of each cycle are known in the mean, so that what
    chance gave of them too much or too little is taken off the mean (a control variate)."""

    def __init__(self, link: NetworkLink, load: float, size: Callable[[], int], seed: int) -> None:
        """`load`: arrivals per 1 MB, the mean size, of one server's time."""
        self.loop = Loop()
        self.net = network(self.loop)
        self.link = link
        self._rate = load / MB
        self._size = size
        self._gaps = Seed(seed).child("arrivals").rng()
        self._left = 0
        self.cycles: list[list[float]] = []  # arrivals, waiting time, work less gaps in their means

    def run(self, arrivals: int) -> "Waits":
        self._left = arrivals
        self._arrive(None)
        while self.loop.run(1_000_000):
            pass
        self.net.check()
        return self

    def _arrive(self, _: None) -> None:
        if not self.net.in_flight:
            self.cycles.append([0, 0, 0])
        cycle, nbytes, now_ns = self.cycles[-1], self._size(), self.loop.now_ns
        gap_ns = round(self._gaps.expovariate(self._rate))
        cycle[0] += 1
        cycle[1] -= now_ns + nbytes
        cycle[2] += nbytes / MB - gap_ns * self._rate
        self.net.send((self.link,), nbytes, "load", self._arrived, cycle)
        self._left -= 1
        if self._left:
            self.loop.at(now_ns + gap_ns, ARRIVES, self._arrive)

    def _arrived(self, cycle: list[float]) -> None:
        cycle[1] += self.loop.now_ns

    def mean(self) -> tuple[float, float]:
        """Mean waiting time in units of 1 MB of time, and its standard error."""
        arrivals = sum(count for count, _, _ in self.cycles)
        mean = sum(waited for _, waited, _ in self.cycles) / arrivals
        pairs = [(waited - mean * count, luck) for count, waited, luck in self.cycles]
        slope = sum(y * z for y, z in pairs) / sum(z * z for _, z in pairs)
        mean -= slope * sum(z for _, z in pairs) / arrivals
        spread = sum((y - slope * z) ** 2 for y, z in pairs)
        return mean / MB, sqrt(spread) / arrivals / MB


def exponential(seed: int) -> Callable[[], int]:
    rng = Seed(seed).child("sizes").rng()
    return lambda: max(1, round(rng.expovariate(1 / MB)))


def near(waits: Waits, theory: float) -> None:
    """Within 1 %, and no more than the sample's own error away."""
    mean, error = waits.mean()
    assert mean == pytest.approx(theory, rel=0.01)
    assert abs(mean - theory) < 3 * error


def test_poisson_arrivals_of_exponential_sizes_wait_as_in_m_m_1() -> None:
    near(Waits(gb(1), 0.5, exponential(1), 1).run(400_000), theory=0.5 / (1 - 0.5))


@pytest.mark.nightly  # and with several servers by day
def test_poisson_arrivals_of_one_size_wait_as_in_m_d_1() -> None:
    near(Waits(gb(1), 0.6, lambda: MB, 1).run(400_000), theory=0.6 / (2 * (1 - 0.6)))


def test_a_closed_network_of_two_stations_has_the_throughput_of_theory() -> None:
    """Four customers go round: with the mean times s and r x s the throughput is
    (1 - r^4) / (1 - r^5) / s."""
    loop = Loop()
    net = network(loop)
    sizes, stations = exponential(5), (gb(1), gb(1 / 0.7))
    rounds = 0

    def next_station(station: int) -> None:
        nonlocal rounds
        rounds += station
        if rounds < 150_000:
            net.send((stations[1 - station],), sizes(), "load", next_station, 1 - station)

    for _ in range(4):
        next_station(0)
    while loop.run(100_000):
        pass
    theory = (1 - 0.7**4) / (1 - 0.7**5)
    assert rounds * MB / loop.now_ns == pytest.approx(theory, rel=0.01)


def test_what_waits_where_links_share_fairly_is_processor_sharing() -> None:
    """M/M/1-PS: the mean time in the system is 1 / (1 - load), as in M/M/1, and a transfer twice
    as long stays twice as long."""
    loop = Loop()
    net = network(loop, discipline="fair-share")
    sizes, gaps, link = exponential(6), Seed(6).rng(), gb(1)
    stays: list[tuple[int, int]] = []
    left = 40_000

    def arrive(_: None) -> None:
        nonlocal left
        nbytes, began_ns = sizes(), loop.now_ns
        net.send((link,), nbytes, "load", lambda _: stays.append((nbytes, loop.now_ns - began_ns)))
        left -= 1
        if left:
            loop.at(began_ns + round(gaps.expovariate(0.5 / MB)), ARRIVES, arrive)

    arrive(None)
    while loop.run(100_000):
        pass
    small = [stay / nbytes for nbytes, stay in stays if MB / 10 < nbytes < MB]
    large = [stay / nbytes for nbytes, stay in stays if nbytes >= MB]
    assert sum(stay for _, stay in stays) / len(stays) / MB == pytest.approx(2.0, rel=0.05)
    assert sum(small) / len(small) == pytest.approx(2.0, rel=0.05)
    assert sum(large) / len(large) == pytest.approx(2.0, rel=0.05)
