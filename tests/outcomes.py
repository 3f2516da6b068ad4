"""Outcomes of simulations filled by hand, for the tests of what is told of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kv_cache.config.scenario import InstanceSection, Scenario, SloSection
from kv_cache.config.schema import to_mapping
from kv_cache.core.seed import Seed
from kv_cache.metrics.histogram import bucket_of
from kv_cache.result.simulation.document import run_row, sim_document, variant_row
from kv_cache.sim.cluster.facts import facts, instance_columns, series_columns
from kv_cache.sim.cluster.outcome import (
    Blocks,
    ClusterOutcome,
    ClusterSeries,
    ClusterTierFacts,
    Instances,
    LinkFacts,
    Requests,
)

MS = 1_000_000


def outcome(
    seed: int = 1, *, slower: float = 1.0, requests: int = 40, instances: int = 4,
    hits: int = 500, only: int | None = None, promised: bool = True,
    lost: int = 2,
) -> ClusterOutcome:  # fmt: skip
    """Requests whose times are drawn around 100 ms x `slower`; `only` so many instances work."""
    rng = Seed(seed).child("outcome").rng()
    scenario = Scenario(name="by hand", question="Does it tell?", instances={
        "big": InstanceSection(count=instances)})  # fmt: skip
    if promised:
        scenario = replace(scenario, slo=SloSection(ttft_ms=120.0))
    some, series = Requests(arrived=requests + 3, finished=requests + 1), ClusterSeries()
    each = Instances()
    some.rejected, some.aborted = Counter({"queue full": 1}), Counter({"preempted": 1})
    some.measured_arrived, some.measured_finished = requests + lost, requests
    gaps: Counter[int] = Counter()
    for number in range(requests):
        ttft = round(rng.uniform(80, 120) * slower * MS)
        row = {
            "number": number, "arrival_ns": number * MS, "queue_ns": ttft // 4,
            "load_ns": ttft // 8, "decode_queue_ns": 0, "ttft_ns": ttft,
            "transfer_ns": 5 * MS * (number % 2),
            "ttft_with_transfer_ns": ttft + 10 * MS + 5 * MS * (number % 2),
            "first_chunk_ns": 2 * MS if number % 2 else -1,
            "movement_ns": 7 * MS if number % 2 else -1,
            "tpot_ns": 10 * MS if number % 10 else -1, "e2e_ns": ttft + 90 * MS,
            "prompt_tokens": 320, "output_tokens": 10, "hit_tokens": 160, "instance": number % 4,
            "decoder": number % 4,
        }  # fmt: skip
        for name, value in row.items():
            getattr(some, name).append(value)
        some.good += ttft <= 120 * MS
        gaps[bucket_of(10 * MS)] += 9
    for number in range(instances):
        busy = only is None or number < only
        each.group.append("big")
        each.role.append("mixed")
        row = {
            "node": 0, "rack": 0, "requests": 10 * busy, "finished": 10 * busy,
            "prefill_tokens": 3200 * busy, "decode_tokens": 100 * busy, "busy_ns": 500 * MS * busy,
            "peak_blocks": 90, "capacity_blocks": 100, "preemptions": 0, "longest_queue": 3,
        }  # fmt: skip
        for name, value in row.items():
            getattr(each, name).append(value)
    for at in range(5):
        for place, column in enumerate(series.columns.values()):
            column.append(at * 100 * MS if place == 0 else at)
    series.interval_ns = 100 * MS
    return ClusterOutcome(
        scenario=replace(scenario, seed=seed), requests=some, series=series, instances=each,
        blocks=Blocks(looked_up=1000, hits=Counter({"hbm": hits, "nvme": 100}), ceiling=700),
        tiers=[
            ClusterTierFacts(name="hbm", scope="device", places=4, possible=4, capacity_blocks=100),
            ClusterTierFacts(name="nvme", scope="node", places=1, possible=1, capacity_blocks=1000),
        ],
        links=[
            LinkFacts(
                kind="device:nvme:read", links=1, transfers=12,
                bytes_by_cause=Counter({"load": 3 * 10**9}), busy_ns=250 * MS, busiest_ns=250 * MS,
                busiest="nvme of node 0",
            ),
            LinkFacts(
                kind="pcie", links=8, transfers=30,
                bytes_by_cause=Counter({"load": 3 * 10**9, "offload": 10**9}), busy_ns=800 * MS,
                busiest_ns=300 * MS, busiest="pcie of instance 1",
            ),
        ],
        itl_parts=[Counter(gaps)], began_ns=0, ended_ns=1000 * MS, events=444,
        concurrency_ns=7 * MS,
        checks=Counter({"requests": 3}), warnings=["the window is short"],
    )  # fmt: skip


def document(
    slower: Sequence[float] = (1.0, 2.0), *, seeds: int = 3, varied: str = "network.jitter_cv",
    interrupted: str | None = None, name: str = "", **given: Any,
) -> dict[str, Any]:  # fmt: skip
    """The document of a variant for each of `slower`; `given` goes to `outcome`."""
    variants, run = [], 0
    for number, times in enumerate(slower, 1):
        runs = []
        for seed in range(seeds):
            run += 1
            made = outcome(seed, slower=times, **given)
            series = {
                "interval_ns": made.series.interval_ns, "columns": series_columns(made.series),
            }  # fmt: skip
            columns = {"series": series, "instances": instance_columns(made)}
            runs.append(run_row(run, seed, facts(made), columns=None if seed else columns))
        scenario = to_mapping(made.scenario)
        values = {varied: times}
        variants.append(variant_row(number, name or f"slower={times}", values, scenario, runs))
    return sim_document(traces=[], doubts=[], hardware=[], left_out=[],
        source="hand.yaml", argv=["sim", "hand.yaml"], scenario=scenario, varied=[varied],
        seeds=list(range(seeds)), planned=run + (interrupted is not None), variants=variants,
        interrupted=interrupted, preset=None, engine="python",
    )  # fmt: skip
