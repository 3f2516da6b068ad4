"""The laws of a simulated cluster, checked on its state: a broken one ends the run.

Each law is one function, and its name is that of docs/explanation/simulation-laws.md. They hold
between any two events; `check` asks all of them, a sample of the time, and `check_end` asks what
holds when nothing is left to do. `Log` checks the event log as it is written.

Nothing here changes anything, nor trusts a counter that it can recount.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kv_cache.core.errors import BrokenLawError
from kv_cache.sim.cluster.facts import first_token_parts
from kv_cache.sim.cluster.flight import DECODE, ENDED, Flight
from kv_cache.sim.cluster.outcome import EventBytes, OnEvent
from kv_cache.sim.cluster.segments import BlockPool, Segment

if TYPE_CHECKING:
    from kv_cache.sim.cluster.cluster import Cluster
    from kv_cache.sim.cluster.instance import Instance

Law = Callable[["Cluster"], None]

_ROUNDING = 1 + 1e-9  # of sums of floating point numbers


def check(cluster: "Cluster", checks: Counter[str]) -> None:
    """Check the laws that hold between any two events. Raises BrokenLawError."""
    _ask(cluster, LAWS, checks)


def check_end(cluster: "Cluster", checks: Counter[str]) -> None:
    """Check the laws that hold when nothing is left to do. Raises BrokenLawError."""
    _ask(cluster, AT_END, checks)


def _ask(cluster: "Cluster", laws: Mapping[str, Law], checks: Counter[str]) -> None:
    if not __debug__:
        return  # python -O takes the assertions out: nothing was checked, and nothing is counted
    for name, law in laws.items():
        try:
            law(cluster)
        except AssertionError as broken:
            raise broken_law(cluster, name, broken) from broken
        checks[name] += 1


def broken_law(cluster: "Cluster", name: str, broken: AssertionError) -> BrokenLawError:
    scenario = cluster.scenario
    return BrokenLawError(
        f"scenario {scenario.name}, seed {scenario.seed}: the law of {name} is broken at "
        f"{cluster.loop.now_ns} ns, after {cluster.loop.events} events: {broken}; this is an error "
        "of the simulator, so no result is written; please report it with the scenario"
    )


# --- requests ----------------------------------------------------------------------------------


def conservation(cluster: "Cluster") -> None:
    """Who has arrived is finished, rejected, aborted or alive, and one of these alone."""
    counts, requests, alive = cluster.counts, cluster.counts.requests, cluster.alive
    ended = requests.finished + requests.rejected.total() + requests.aborted.total()
    assert requests.arrived == ended + len(alive), (
        f"{requests.arrived} requests arrived, but {ended} ended and {len(alive)} are alive"
    )
    phases = Counter(flight.phase for flight in alive.values())
    assert not phases[ENDED], f"{phases[ENDED]} requests have ended and are alive"
    for phase in range(ENDED):
        counted = counts.phases[phase].count
        assert phases[phase] == counted, (
            f"{phases[phase]} requests are in phase {phase}, not {counted} as counted"
        )


# --- memory ------------------------------------------------------------------------------------


def capacity(cluster: "Cluster") -> None:
    """No pool holds more than it can, what is pinned is there, and every private block belongs to
    a request that is alive."""
    owned = _owned(cluster)
    pins = _pins(cluster)
    for (tier, index), pool in cluster.storage.pools.items():
        pool.check()
        assert pool.pinned <= pool.cached, f"{tier} {index} has more pinned than there is"
        assert pool.private == owned[pool], (
            f"{tier} {index} has {pool.private} private blocks, but its requests own {owned[pool]}"
        )
    for segment, count in pins.items():
        assert segment.pins >= count, "a request needs blocks that are not pinned for it"
    for tier, watch in cluster.storage.watches.items():
        used = sum(pool.used for key, pool in cluster.storage.pools.items() if key[0] == tier)
        assert used == watch.total, f"{tier} has {used} blocks, but {watch.total} are counted"


def _owned(cluster: "Cluster") -> Counter[BlockPool]:
    """Return private blocks by pool, as the requests know them."""
    owned: Counter[BlockPool] = Counter()
    for flight in cluster.alive.values():
        if flight.hold is not None:
            owned[flight.hold.pool] += _private(cluster, flight)
        if flight.landing is not None:
            owned[flight.landing.pool] += flight.landing.private
        if flight.swapped:
            owned[cluster.instances[_where(flight)].tiers[1]] += flight.swapped
    for instance in cluster.instances.values():
        owned[instance.pool] += instance.grown
    return owned


def _private(cluster: "Cluster", flight: Flight) -> int:
    """Return a flight's private blocks: one that decodes has grown since it came."""
    hold = flight.hold
    assert hold is not None
    if not flight.ticket:
        return hold.private
    instance = cluster.instances[_where(flight)]
    if instance.rules.reserve_all:
        return hold.private
    return -(-_kept(instance, flight) // instance.rules.block_tokens) - hold.shared


def _where(flight: Flight) -> int:
    """Return the number of the instance that decodes a flight: that of its prefill, if no other was
    chosen."""
    return flight.home if flight.decoder < 0 else flight.decoder


def _kept(instance: "Instance", flight: Flight) -> int:
    """Return the tokens whose state a decoding flight has."""
    before = flight.request.output_tokens - (flight.finish_step - flight.joined_step)
    return flight.request.prompt_tokens + before - 1 + instance.steps - flight.joined_step


def _pins(cluster: "Cluster") -> Counter[Segment]:
    pins: Counter[Segment] = Counter()
    for flight in cluster.alive.values():
        for hold in (flight.hold, flight.landing):
            if hold is not None:
                pins.update(hold.pins)
    return pins


def copies(cluster: "Cluster") -> None:
    """A pool has one copy of a block (`BlockPool.check`), and under leaf-first no block of HBM
    without the one before it."""
    if cluster.scenario.tiers.hbm_eviction != "leaf-first":
        return
    for (tier, index), pool in cluster.storage.pools.items():
        if tier == "hbm":
            _closed(pool, index)


def _closed(pool: BlockPool, index: int) -> None:
    chain = pool.chain
    for segment in pool.segments:
        node, start = segment.node, segment.start
        while start == 0 and node > 0:
            node = chain.parent[node]
            start = chain.blocks[node]
        assert node <= 0 or pool.find(node, start - 1) is not None, (
            f"hbm {index} has a block without the one before it"
        )


def instances(cluster: "Cluster") -> None:
    """Batches: no more sequences than allowed, and their context recounted."""
    for instance in cluster.instances.values():
        instance.check()
        kept = sum(_kept(instance, f) for f in instance.members if f.ticket)
        assert kept == instance.context, (
            f"instance {instance.number} counts {instance.context} tokens of context, but it has "
            f"{kept}"
        )


# --- bytes -------------------------------------------------------------------------------------


def bytes_conserved(cluster: "Cluster") -> None:
    """On each link what began has ended or is on its way (`Network.check`), and in each pool what
    came has left or is there."""
    cluster.network.check()
    for (tier, index), pool in cluster.storage.pools.items():
        assert pool.stored - pool.evicted == pool.cached, (
            f"{tier} {index} stored {pool.stored} blocks and evicted {pool.evicted}, but has "
            f"{pool.cached}"
        )
        assert pool.admission is None or pool.admitted == pool.stored, (
            f"{tier} {index} stored {pool.stored} blocks, but admitted {pool.admitted}"
        )


def bytes_explained(cluster: "Cluster") -> None:
    """When all is over: blocks that are in a pool below HBM were written to it, those that came
    into HBM were computed there, loaded or sent; what was swapped out came back."""
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for (tier, index), pool in cluster.storage.pools.items():
        if tier == "hbm":
            continue
        reads, writes = (
            _in_blocks(cluster.topology.device(tier, index, kind).bytes, pool.block_bytes)
            for kind in ("read", "write")
        )
        read.update(reads)
        written.update(writes)
        came = writes.total() - writes["swap-out"]
        assert came == pool.stored, (
            f"{tier} {index} stored {pool.stored} blocks, but {came} blocks of {pool.block_bytes} "
            "bytes were written to it"
        )
    fetched = read["prefetch"] - written["prefetch"]
    assert fetched == 0 or cluster.storage.into_hbm, "prefetches read and wrote different blocks"
    if cluster.scenario.scheduler.preemption == "swap":
        assert read["swap-in"] == written["swap-out"], "what was swapped out did not come back"
    assert read.keys() <= {"load", "prefetch", "swap-in"}, f"who read {set(read)}?"
    assert written.keys() <= {
        "offload", "prefetch-offload", "write-through", "prefetch", "swap-out",
    }  # fmt: skip
    stored = sum(pool.stored for key, pool in cluster.storage.pools.items() if key[0] == "hbm")
    loaded = read["load"] + fetched
    new = cluster.counts.new_blocks
    assert loaded == stored - new, (
        f"HBM has got {stored} blocks, {new} of them made there, but {loaded} were loaded"
    )


def _in_blocks(nbytes: Mapping[str, int], block_bytes: int) -> Counter[str]:
    """Return blocks by cause."""
    assert not any(n % block_bytes for n in nbytes.values()), "a part of a block was moved"
    return Counter({cause: n // block_bytes for cause, n in nbytes.items()})


# --- order and time ----------------------------------------------------------------------------


def causality(cluster: "Cluster") -> None:
    """No request has used a block before it was there, or a token before its state."""
    now = cluster.loop.now_ns
    for flight in cluster.alive.values():
        number = flight.request.number
        assert flight.arrival_ns <= now, f"request {number} is there before it arrived"
        assert flight.admitted_ns < 0 or flight.admitted_ns >= flight.arrival_ns
        assert flight.first_ns < 0 or flight.arrival_ns <= flight.admitted_ns <= flight.first_ns
        assert flight.computed <= flight.target, f"request {number} has computed too much"
        assert flight.sent <= flight.target, f"request {number} was sent more than there is"
        if not flight.generated:
            continue
        assert flight.first_ns >= 0, f"request {number} has tokens, but no first one"
        if flight.phase == DECODE:
            assert not flight.loads, f"request {number} decodes while it is loaded"
        if flight.phase == DECODE and flight.hold is not None:
            assert all(segment.ready for segment in flight.hold.pins), (
                f"request {number} decodes over blocks that are not there yet"
            )


def time(cluster: "Cluster") -> None:
    """No instance was busy for longer than there was time, or did more work than that takes; and
    the integral of the requests in the system is the sum of their times there (Little, exactly)."""
    now = cluster.loop.now_ns
    for instance in cluster.instances.values():
        assert instance.busy_ns <= now, (
            f"instance {instance.number} was busy for {instance.busy_ns} of {now} ns"
        )
        _not_faster(instance)
    alive = sum(now - flight.arrival_ns for flight in cluster.alive.values())
    there = cluster.counts.concurrency_at(now)
    spent = cluster.counts.spent_ns + alive
    assert there == spent, f"{there} ns of requests in the system, but they spent {spent} ns there"


def _not_faster(instance: "Instance") -> None:
    """Tokens took the time that they take at the peak, at least."""
    compute = instance.compute
    first = instance.requests + instance.preemptions  # at most: these come with the prompt
    prompts, tokens = instance.prefill_tokens, max(0, instance.decode_tokens - first)
    least = compute.least_ns(prompts, tokens)
    spent = instance.busy_ns + instance.step_ns
    assert least <= spent * _ROUNDING + 1, (
        f"instance {instance.number} needs {least:.0f} ns for what it did in {spent} ns"
    )


def bounds(cluster: "Cluster") -> None:
    """No more hits than blocks that were looked up, and none that an unlimited cache would not
    have."""
    blocks = cluster.counts.blocks
    assert blocks.hit <= blocks.looked_up, f"{blocks.hit} hits of {blocks.looked_up} blocks"
    assert blocks.ceiling <= blocks.looked_up, "the ceiling is above all that was asked for"


def end(cluster: "Cluster") -> None:
    """No request is left, nothing is held, nothing is under way."""
    assert not cluster.alive, (
        f"{len(cluster.alive)} requests never ended, the first is {min(cluster.alive)}"
    )
    for (tier, index), pool in cluster.storage.pools.items():
        assert pool.private == pool.pinned == 0, f"memory of {tier} {index} was left behind"
    assert cluster.network.in_flight == 0, "a transfer never ended"
    counts = cluster.counts
    assert counts.concurrency_ns == counts.spent_ns, "Little's law is broken"
    phases = (counts.phases[phase].area_ns(counts.ended_ns) for phase in range(ENDED))
    assert counts.concurrency_ns == sum(phases), "a request was in no phase, or in two"
    for work in cluster.routing.expected():
        assert work == 0, "the routers still count work that is done"


def first_token(cluster: "Cluster") -> None:
    """No part of a request's time to the first decoded token is negative; they add up to it."""
    for name, part in first_token_parts(cluster.counts.requests).items():
        least = part.min(initial=0)
        assert least >= 0, f"{name} is {least} ns of a request's time to the first token"


LAWS: Mapping[str, Law] = {
    "conservation": conservation,
    "capacity": capacity,
    "copies": copies,
    "instances": instances,
    "bytes": bytes_conserved,
    "causality": causality,
    "time": time,
    "bounds": bounds,
}
AT_END: Mapping[str, Law] = {
    "end": end, "bytes-explained": bytes_explained, "first-token": first_token,
}  # fmt: skip


# --- the event log -----------------------------------------------------------------------------

_STEPS = ("arrival", "route", "admit", "first-token")
_ENDED = 1 << len(_STEPS)
_LAW: Mapping[str, tuple[int, int]] = {
    kind: (
        1 << _STEPS.index(before) if before else 0,
        1 << _STEPS.index(kind) if kind in _STEPS else more,
    )
    for kind, before, more in (
        ("arrival", "", 0),
        ("route", "arrival", 0), ("admit", "route", 0), ("load", "route", 0),
        ("first-token", "admit", 0), ("transfer", "admit", 0), ("decode", "first-token", 0),
        ("preempt", "admit", 0), ("swap-out", "admit", 0), ("swap-in", "admit", 0),
        ("finish", "first-token", _ENDED), ("reject", "arrival", _ENDED),
        ("abort", "arrival", _ENDED),
    )
}  # fmt: skip
"""Of each kind what a request must have had before, and what it has then (a bit for each)."""


class Log:
    """Stands between the cluster and who listens: every request has one arrival, then what follows
    from what was before, then one end and nothing after it; and time never goes back."""

    def __init__(self, listener: OnEvent | None = None) -> None:
        self._had = had = bytearray()  # of each request, the bits
        law, broken = _LAW, self._broken
        latest_ns = 0

        def hear(
            at_ns: int, kind: str, number: int, instance: int, moved: EventBytes | None = None, /
        ) -> None:
            nonlocal latest_ns
            assert at_ns >= latest_ns, f"time goes back to {at_ns} ns"
            latest_ns = at_ns
            if number >= len(had):
                had.extend(bytes(number + 1 - len(had) + len(had) // 2))
            if number >= 0:
                before, then = law[kind]
                so_far = had[number]
                if so_far & before != before or so_far >= (1 if kind == "arrival" else _ENDED):
                    broken(kind, number, so_far)
                had[number] = so_far | then
            if listener is not None:
                listener(at_ns, kind, number, instance, moved)

        self.hear: OnEvent = hear

    def _broken(self, kind: str, number: int, had: int) -> None:
        assert had < _ENDED, f"{kind} of request {number} after its end"
        assert kind != "arrival", f"request {number} arrived twice"
        before = _STEPS[_LAW[kind][0].bit_length() - 1]
        raise AssertionError(f"{kind} of request {number} without {before}")

    def over(self) -> None:
        open_ = sum(0 < had < _ENDED for had in self._had)
        assert not open_, f"{open_} requests have no end in the log"
