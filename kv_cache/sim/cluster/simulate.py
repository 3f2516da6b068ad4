"""One simulation from beginning to end, and its outcome."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

from kv_cache.config.scenario import Scenario
from kv_cache.core.errors import ConfigError
from kv_cache.core.garbage import rarely_looked_for
from kv_cache.sim.cluster.bound import most_hits
from kv_cache.sim.cluster.cluster import Cluster
from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.flight import DECODE, DECODE_QUEUE, PREFILL, QUEUED, TRANSFER, Flight
from kv_cache.sim.cluster.hardware_models import PLAIN, HardwareModels
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.laws import Log, broken_law, check, check_end
from kv_cache.sim.cluster.links import NetworkLink
from kv_cache.sim.cluster.outcome import (
    INSTANCE_COUNTS,
    POOL_COUNTS,
    REQUEST_COLUMNS,
    ClusterOutcome,
    ClusterSeries,
    ClusterTierFacts,
    Instances,
    LinkFacts,
    OnEvent,
)
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.requests import RequestSource
from kv_cache.sim.cluster.segments import BlockPool
from kv_cache.sim.cluster.series import Sampler

_BATCH = 10_000
MOST_LATEST = 10_000  # values of requests that ended

OnProgress = Callable[[int, ClusterSeries], None]


def simulate(
    scenario: Scenario,
    source: RequestSource,
    chain: PrefixChain,
    *,
    on_event: OnEvent | None = None,
    progress: OnProgress | None = None,
    hardware: HardwareModels = PLAIN,
) -> ClusterOutcome:
    """Serve all requests of `source`. `progress` gets the number of requests that have ended, and
    the series so far, which goes on.
    Raises ConfigError if the scenario's parts do not go together, BrokenLawError if a law of the
    simulation is broken."""
    log = None if on_event is None else Log(on_event)
    listener = None if log is None else log.hear
    try:
        with rarely_looked_for():
            cluster = Cluster(scenario, source, chain, on_event=listener, hardware=hardware)
            return _serve(cluster, log, progress)
    except OverflowError as error:
        raise ConfigError(
            f"scenario {scenario.name}: it takes longer than the 292 years (2^63 ns) that virtual "
            "time has; raise the rate, bandwidth or peak that is too small, or shorten what takes "
            "so long"
        ) from error


def _serve(cluster: Cluster, log: Log | None, progress: OnProgress | None) -> ClusterOutcome:
    """Serve all requests, and check the laws on the way and at the end."""
    collector = _Collector(cluster)
    cluster.on_finish = collector.finished
    cluster.on_measuring = collector.measuring
    sampler = Sampler(cluster)
    checks: Counter[str] = Counter()
    try:
        cluster.begin()
        sampler.begin()
        _run(cluster, sampler, checks, progress)
        if log is not None:
            log.over()
    except AssertionError as broken:
        raise broken_law(cluster, "its own parts", broken) from broken
    outcome = collector.outcome(sampler, checks)
    check(cluster, checks)
    check_end(cluster, checks)
    return outcome


def _run(
    cluster: Cluster, sampler: Sampler, checks: Counter[str], progress: OnProgress | None
) -> None:
    """Run until nothing is left to do, with a check every now and then."""
    every = cluster.scenario.watch.check_every
    batch = min(every or _BATCH, _BATCH)
    unchecked, due = 0, every or _BATCH
    while cluster.loop.run(batch):
        unchecked += batch
        if every != 0 and unchecked >= due:
            check(cluster, checks)
            unchecked = 0
            if every is None:
                due = max(_BATCH, _recounted(cluster))
        if progress is not None:
            progress(cluster.counts.requests.arrived - len(cluster.alive), sampler.series)


def _recounted(cluster: Cluster) -> int:
    """Return after how many events a check, which recounts everything, costs little beside them:
    else a run would take the longer by event the more its caches hold."""
    held = sum(len(pool.segments) for pool in cluster.storage.pools.values())
    return max(10 * len(cluster.instances), held)


def _levels(counts: ClusterCounts) -> dict[str, tuple[int, int]]:
    """Return each level until the last end: integrated, and the most."""
    of = {
        "waiting": counts.phases[QUEUED],
        "central_queue": counts.central,
        "prefilling": counts.phases[PREFILL],
        "decode_queue": counts.phases[DECODE_QUEUE],
        "transferring": counts.phases[TRANSFER],
        "decoding": counts.phases[DECODE],
    }
    end = counts.ended_ns
    some = {name: (level.area_ns(end), level.most(end)) for name, level in of.items()}
    return {**some, "hbm_blocks": counts.hbm}


class _Collector:
    """Collects a row of each request that ends, and the totals at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._requests = cluster.counts.requests
        self._rows = array("q")
        self._latest: list[int] = []
        slo = cluster.scenario.slo
        self._most_ttft_ns = slo.ttft_ms * 1e6 or inf
        self._most_with_transfer_ns = slo.ttft_with_transfer_ms * 1e6 or inf
        self._most_tpot_ns = slo.tpot_ms * 1e6 or inf
        self._most_e2e_ns = slo.e2e_ms * 1e6 or inf
        # What had been counted when the first measured request arrived:
        self._base_links: dict[NetworkLink, tuple[int, int, Counter[str]]] = {}
        self._base_waits: dict[str, tuple[Counter[int], int]] = {}
        self._base: dict[Instance | BlockPool, dict[str, int]] = {}
        self._base_refused: dict[BlockPool, Counter[str]] = {}

    def measuring(self) -> None:
        """Begin to measure, as the first measured request arrives: what was counted so far is
        warm-up."""
        cluster = self._cluster
        if not cluster.scenario.workload.warmup_requests:
            return
        for link in cluster.topology.links():
            self._base_links[link] = (link.transfers, link.busy_ns, Counter(link.bytes))
        for family, waits in cluster.topology.waits.items():
            self._base_waits[family] = (Counter(waits.buckets), waits.total_ns)
        for instance in cluster.instances.values():
            self._base[instance] = self._since(instance, INSTANCE_COUNTS)
        for pool in cluster.storage.pools.values():
            self._base[pool] = self._since(pool, POOL_COUNTS)
            self._base_refused[pool] = Counter(pool.refused)
        requests, blocks = self._requests, cluster.counts.blocks
        requests.preemptions = requests.handoffs = requests.handoffs_declined = 0
        requests.retries = requests.retries_taken = 0
        blocks.recomputed = 0
        cluster.storage.prefetched.clear()
        cluster.counts.prefetch_useful.clear()
        cluster.counts.prefetch_late.clear()

    def finished(self, flight: Flight) -> None:
        request, began_ns = flight.request, flight.arrival_ns
        ttft = with_transfer = flight.first_ns - began_ns
        e2e = flight.out_ns - began_ns
        waited = max(0, flight.room_ns - flight.first_ns)
        transfer, chunk, movement, tpot = 0, -1, -1, -1
        if request.output_tokens > 1:
            tpot = (flight.out_ns - flight.first_ns) // (request.output_tokens - 1)
            with_transfer = flight.second_ns - began_ns
        if flight.landed_ns >= 0:
            transfer = flight.landed_ns - flight.first_ns - waited
            if flight.send_ns >= 0:  # else all of it was there
                chunk = flight.chunk_ns - flight.send_ns
                movement = flight.landed_ns - flight.send_ns
        row = (  # in the order of REQUEST_COLUMNS
            request.number, began_ns, flight.admitted_ns - began_ns, flight.load_ns, ttft, waited,
            transfer, with_transfer, chunk, movement, tpot, e2e, request.prompt_tokens,
            request.output_tokens, flight.hit_tokens, flight.home,
            flight.home if flight.decoder < 0 else flight.decoder,
        )  # fmt: skip
        self._latest += row
        if len(self._latest) > MOST_LATEST:
            self._pack()
        self._requests.measured_finished += 1
        if self._cluster.scenario.classes:
            self._requests.kind.append(flight.kind)
        self._requests.good += (
            ttft <= self._most_ttft_ns
            and with_transfer <= self._most_with_transfer_ns
            and tpot <= self._most_tpot_ns
            and e2e <= self._most_e2e_ns
        )

    def _pack(self) -> None:
        """Move the latest rows into an array: a list takes values quickly, and an array keeps them
        in little."""
        self._rows.extend(array("q", self._latest))
        self._latest.clear()

    def outcome(self, sampler: Sampler, checks: Counter[str]) -> ClusterOutcome:
        cluster, counts = self._cluster, self._cluster.counts
        counts.fold_gaps()
        counts.requests.longest_central_queue = cluster.central.longest
        self._pack()
        for position, name in enumerate(REQUEST_COLUMNS):
            getattr(self._requests, name).extend(self._rows[position :: len(REQUEST_COLUMNS)])
        return ClusterOutcome(
            scenario=cluster.scenario,
            gpus=cluster.roster.gpus,
            requests=counts.requests,
            blocks=counts.blocks,
            tiers=[self._tier(name) for name in ("hbm", *cluster.storage.tiers)],
            links=self._links(),
            instances=self._instances(),
            series=sampler.series,
            itl_parts=counts.itl_parts,
            began_ns=max(0, counts.began_ns),
            ended_ns=counts.ended_ns,
            moved_ns=cluster.network.ended_ns,
            events=cluster.loop.events,
            concurrency_ns=counts.concurrency_ns,
            levels=_levels(counts),
            checks=checks,
        )

    def _since(self, counted: Instance | BlockPool, names: Sequence[str]) -> dict[str, int]:
        """Return what was counted since measuring began."""
        base = self._base.get(counted, {})
        return {name: getattr(counted, name) - base.get(name, 0) for name in names}

    def _tier(self, name: str) -> ClusterTierFacts:
        cluster = self._cluster
        pools = [pool for (tier, _), pool in cluster.storage.pools.items() if tier == name]
        scope = "device" if name == "hbm" else getattr(cluster.scenario.tiers, name).scope
        fact = ClusterTierFacts(
            name=name,
            scope=scope,
            places=len(pools),
            possible=cluster.topology.pools(scope),
            capacity_blocks=max((pool.capacity for pool in pools), default=0),
            used_blocks=sum(pool.used for pool in pools),
            peak_blocks=max((pool.peak for pool in pools), default=0),
            prefetched=cluster.storage.prefetched[name],
            prefetch_useful=cluster.counts.prefetch_useful[name],
            prefetch_late=cluster.counts.prefetch_late[name],
        )
        for pool in pools:
            for count, number in self._since(pool, POOL_COUNTS).items():
                setattr(fact, count, getattr(fact, count) + number)
            if pool.events is not None:
                fact.most_hits = (fact.most_hits or 0) + most_hits(pool.events, pool.capacity)
            fact.not_admitted += pool.refused - self._base_refused.get(pool, Counter())
        return fact

    def _links(self) -> list[LinkFacts]:
        families: dict[str, LinkFacts] = {}
        for link in self._cluster.topology.links():
            base = self._base_links.get(link, (0, 0, Counter()))
            fact = families.get(link.family)
            if fact is None:
                fact = families[link.family] = LinkFacts(
                    kind=link.family, links=0, transfers=0, bytes_by_cause=Counter(), busy_ns=0,
                    busiest_ns=-1, busiest="",
                    servers=link.measured.depth if link.measured else 1,
                )  # fmt: skip
            busy = link.busy_ns - base[1]
            fact.links += 1
            fact.transfers += link.transfers - base[0]
            fact.bytes_by_cause += link.bytes
            fact.bytes_by_cause -= base[2]
            fact.busy_ns += busy
            if busy > fact.busiest_ns:
                fact.busiest_ns, fact.busiest = busy, link.name
        for family, fact in families.items():
            waits = self._cluster.topology.waits[family]
            before, before_ns = self._base_waits.get(family, (Counter(), 0))
            fact.wait_buckets = Counter(waits.buckets) - before
            fact.wait_ns, fact.longest_queue = waits.total_ns - before_ns, waits.longest
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
            counted = {} if instance is None else self._since(instance, INSTANCE_COUNTS)
            for name in INSTANCE_COUNTS:
                getattr(facts, name).append(counted.get(name, 0))
            facts.peak_blocks.append(0 if instance is None else instance.pool.peak)
            facts.longest_queue.append(0 if instance is None else instance.waiting.longest)
        return facts
