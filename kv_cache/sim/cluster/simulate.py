"""One simulation from beginning to end, and its outcome."""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from kv_cache.config.scenario import Scenario
from kv_cache.core.errors import ConfigError
from kv_cache.sim.cluster.cluster import Cluster, OnEvent
from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.laws import Log, broken_law, check, check_end
from kv_cache.sim.cluster.outcome import (
    INSTANCE_COUNTS,
    POOL_COUNTS,
    REQUEST_COLUMNS,
    Blocks,
    ClusterOutcome,
    ClusterTierFacts,
    Instances,
    LinkFacts,
    Requests,
)
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.requests import RequestSource
from kv_cache.sim.cluster.segments import BlockPool
from kv_cache.sim.cluster.series import Sampler
from kv_cache.sim.cluster.storage import TIERS
from kv_cache.sim.profile_model import ProfileModel

_BATCH = 10_000
MOST_LATEST = 10_000  # values of requests that ended

OnProgress = Callable[[int], None]


def simulate(
    scenario: Scenario,
    source: RequestSource,
    chain: PrefixChain,
    *,
    on_event: OnEvent | None = None,
    progress: OnProgress | None = None,
    profiles: Mapping[str, ProfileModel] | None = None,
) -> ClusterOutcome:
    """Serve all requests of `source`. `progress` gets the number of requests that have ended.
    Raises ConfigError if the scenario's parts do not go together, BrokenLawError if a law of the
    simulation is broken."""
    try:
        return _simulate(scenario, source, chain, on_event, progress, profiles or {})
    except OverflowError as error:
        raise ConfigError(
            f"scenario {scenario.name}: it takes longer than the 292 years (2^63 ns) that virtual "
            "time has; raise the rate, bandwidth or peak that is too small, or shorten what takes "
            "so long"
        ) from error


def _simulate(
    scenario: Scenario,
    source: RequestSource,
    chain: PrefixChain,
    on_event: OnEvent | None,
    progress: OnProgress | None,
    profiles: Mapping[str, ProfileModel],
) -> ClusterOutcome:
    log = None if on_event is None else Log(on_event)
    listener = None if log is None else log.hear
    cluster = Cluster(scenario, source, chain, on_event=listener, profiles=profiles)
    requests = Requests()
    collector = _Collector(scenario, requests, cluster)
    cluster.on_finish = collector.finished
    cluster.on_measuring = collector.measuring
    watch = scenario.watch
    sampler = Sampler(cluster, watch.series_interval_ms, watch.series_points)
    checks: Counter[str] = Counter()
    try:
        cluster.begin()
        sampler.begin()
        _run(cluster, checks, progress)
        if log is not None:
            log.over()
    except AssertionError as broken:
        raise broken_law(cluster, "its own parts", broken) from broken
    check(cluster, checks)
    check_end(cluster, checks)
    return collector.outcome(sampler, checks)


def _run(cluster: Cluster, checks: Counter[str], progress: OnProgress | None) -> None:
    """Run until nothing is left to do, with a check every now and then."""
    every = cluster.scenario.watch.check_every
    batch = min(every or _BATCH, _BATCH)
    unchecked = 0
    while cluster.loop.run(batch):
        unchecked += batch
        if every and unchecked >= every:
            check(cluster, checks)
            unchecked = 0
        if progress is not None:
            progress(cluster.counts.arrived - len(cluster.alive))


class _Collector:
    """Collects a row of each request that ends, and the totals at the end."""

    def __init__(self, scenario: Scenario, requests: Requests, cluster: Cluster) -> None:
        self._scenario = scenario
        self._requests = requests
        self._cluster = cluster
        self._rows = array("q")
        self._latest: list[int] = []
        slo = scenario.slo
        self._ttft_ns = slo.ttft_ms * 1e6
        self._tpot_ns = slo.tpot_ms * 1e6
        self._e2e_ns = slo.e2e_ms * 1e6
        self._has_slo = bool(slo.ttft_ms or slo.tpot_ms or slo.e2e_ms)
        # What had been counted when the first measured request arrived:
        self._base_links: dict[int, tuple[int, int, Counter[str]]] = {}
        self._base_instances: dict[int, list[int]] = {}
        self._base_pools: dict[tuple[str, int], list[int]] = {}
        self._base_refused: dict[tuple[str, int], Counter[str]] = {}

    def measuring(self) -> None:
        """Begin to measure, as the first measured request arrives: what was counted so far is
        warm-up."""
        cluster = self._cluster
        if not cluster.scenario.workload.warmup_requests:
            return
        for link in cluster.topology.links():
            self._base_links[id(link)] = (link.transfers, link.busy_ns, Counter(link.bytes))
        for number, instance in cluster.instances.items():
            self._base_instances[number] = _counts(instance, INSTANCE_COUNTS)
        for key, pool in cluster.storage.pools.items():
            self._base_pools[key] = _counts(pool, POOL_COUNTS)
            self._base_refused[key] = Counter(pool.refused)
        cluster.counts.preemptions = cluster.counts.recomputed = 0
        cluster.storage.prefetched.clear()
        cluster.counts.prefetch_useful.clear()
        cluster.counts.prefetch_late.clear()

    def finished(self, flight: Flight) -> None:
        requests, request = self._requests, flight.request
        ttft = flight.first_ns - flight.arrival_ns
        e2e = flight.out_ns - flight.arrival_ns
        tpot = -1
        if request.output_tokens > 1:
            tpot = (flight.out_ns - flight.first_ns) // (request.output_tokens - 1)
        requests.measured_finished += 1
        latest = self._latest
        latest += (  # in the order of REQUEST_COLUMNS
            request.number, flight.arrival_ns, flight.admitted_ns - flight.arrival_ns, ttft, tpot,
            e2e, request.prompt_tokens, request.output_tokens, flight.hit_tokens, flight.home,
            flight.home if flight.decoder < 0 else flight.decoder,
        )  # fmt: skip
        if len(latest) > MOST_LATEST:
            self._pack()
        if not self._has_slo or self._kept(ttft, tpot, e2e):
            requests.good += 1

    def _pack(self) -> None:
        """Move the latest rows into an array: a list takes values quickly, and an array keeps them
        in little."""
        self._rows.extend(array("q", self._latest))
        self._latest.clear()

    def _gaps(self) -> dict[int, int]:
        self._cluster.counts.fold_gaps()
        return dict(self._cluster.counts.itl)

    def _unpack(self) -> None:
        """Put the rows that were collected into the columns of `Requests`."""
        self._pack()
        rows = self._rows
        for position, name in enumerate(REQUEST_COLUMNS):
            getattr(self._requests, name).extend(rows[position :: len(REQUEST_COLUMNS)])
        del rows[:]

    def _kept(self, ttft: int, tpot: int, e2e: int) -> bool:
        return (
            (not self._ttft_ns or ttft <= self._ttft_ns)
            and (not self._tpot_ns or tpot <= self._tpot_ns)
            and (not self._e2e_ns or e2e <= self._e2e_ns)
        )

    def outcome(self, sampler: Sampler, checks: Counter[str]) -> ClusterOutcome:
        cluster, requests = self._cluster, self._requests
        self._unpack()
        requests.arrived = cluster.counts.arrived
        requests.finished = cluster.counts.finished
        requests.rejected = cluster.counts.rejected
        requests.aborted = cluster.counts.aborted
        requests.measured_arrived = cluster.counts.measured_arrived
        requests.preemptions = cluster.counts.preemptions
        return ClusterOutcome(
            scenario=self._scenario,
            requests=requests,
            blocks=Blocks(
                looked_up=cluster.counts.looked_up,
                hits=cluster.counts.hits,
                ceiling=cluster.counts.ceiling,
                recomputed=cluster.counts.recomputed,
            ),
            tiers=self._tiers(),
            links=self._links(),
            instances=self._instances(),
            series=sampler.series,
            itl_buckets=self._gaps(),
            began_ns=max(0, cluster.counts.began_ns),
            ended_ns=cluster.counts.ended_ns,
            moved_ns=cluster.network.ended_ns,
            events=cluster.loop.events,
            concurrency_ns=cluster.counts.concurrency_ns,
            checks=checks,
        )

    def _tiers(self) -> list[ClusterTierFacts]:
        cluster, scenario = self._cluster, self._scenario
        facts = []
        for name in TIERS:
            pools = {key: p for key, p in cluster.storage.pools.items() if key[0] == name}
            scope = "device" if name == "hbm" else getattr(scenario.tiers, name).scope
            if name != "hbm" and not getattr(scenario.tiers, name).capacity_gib:
                continue
            fact = ClusterTierFacts(
                name=name,
                scope=scope,
                places=len(pools),
                possible=_possible(cluster, scope),
                capacity_blocks=max((p.capacity for p in pools.values()), default=0),
                used_blocks=sum(p.used for p in pools.values()),
                peak_blocks=max((p.peak for p in pools.values()), default=0),
                prefetched=cluster.storage.prefetched[name],
                prefetch_useful=cluster.counts.prefetch_useful[name],
                prefetch_late=cluster.counts.prefetch_late[name],
            )
            for key, pool in pools.items():
                counted = _since(pool, POOL_COUNTS, self._base_pools.get(key))
                for count, number in zip(POOL_COUNTS, counted, strict=True):
                    setattr(fact, count, getattr(fact, count) + number)
                fact.not_admitted += pool.refused - self._base_refused.get(key, Counter())
            facts.append(fact)
        return facts

    def _links(self) -> list[LinkFacts]:
        families: dict[str, LinkFacts] = {}
        for link in self._cluster.topology.links():
            base = self._base_links.get(id(link), (0, 0, Counter()))
            fact = families.get(link.family)
            if fact is None:
                fact = families[link.family] = LinkFacts(
                    kind=link.family, links=0, transfers=0, bytes_by_cause=Counter(), busy_ns=0,
                    busiest_ns=-1, busiest="",
                    servers=link.measured.depth if link.measured else link.servers,
                )  # fmt: skip
            busy = link.busy_ns - base[1]
            fact.links += 1
            fact.transfers += link.transfers - base[0]
            fact.bytes_by_cause += link.bytes
            fact.bytes_by_cause -= base[2]
            fact.busy_ns += busy
            if busy > fact.busiest_ns:
                fact.busiest_ns, fact.busiest = busy, link.name
        return [families[kind] for kind in sorted(families)]

    def _instances(self) -> Instances:
        cluster, facts = self._cluster, Instances()
        topology = cluster.topology
        for number in range(topology.instances):
            node, rack = topology.place_of(number)
            facts.group.append(topology.group_of(number))
            facts.role.append(cluster.roster.roles[number])
            facts.node.append(node)
            facts.rack.append(rack)
            facts.capacity_blocks.append(cluster.roster.capacity_of(number))
            instance = cluster.instances.get(number)
            counted = _since(instance, INSTANCE_COUNTS, self._base_instances.get(number))
            for name, count in zip(INSTANCE_COUNTS, counted, strict=True):
                getattr(facts, name).append(count)
            facts.peak_blocks.append(0 if instance is None else instance.pool.peak)
            facts.longest_queue.append(0 if instance is None else instance.waiting.longest)
        return facts


def _possible(cluster: Cluster, scope: str) -> int:
    """Count the places that a tier of this scope can have."""
    topology = cluster.topology
    return {
        "device": topology.instances,
        "node": topology.nodes,
        "rack": topology.racks,
        "cluster": 1,
    }[scope]


def _counts(counted: Instance | BlockPool, names: Sequence[str]) -> list[int]:
    return [getattr(counted, name) for name in names]


def _since(
    counted: Instance | BlockPool | None, names: Sequence[str], base: Sequence[int] | None
) -> list[int]:
    """Return the counts since `base`; an instance that was never used has none."""
    if counted is None:
        return [0] * len(names)
    now = _counts(counted, names)
    return now if base is None else [n - before for n, before in zip(now, base, strict=True)]
