"""Scenarios of the cluster drawn at random over all its settings, and a small way to run one.

They are small and mean: places of a few blocks, budgets of a few tokens, prompts that do not fit.
"""

import random
from collections.abc import Mapping
from typing import Any

from kv_cache.config.scenario import (
    DISCIPLINES,
    PREEMPTIONS,
    PREFETCHES,
    RESERVATIONS,
    TRANSFERS,
    VICTIMS,
    WRITE_POLICIES,
    Scenario,
)
from kv_cache.config.scenario_rules import check
from kv_cache.config.schema import from_mapping
from kv_cache.policy.admission import ADMISSION
from kv_cache.policy.eviction import EVICTION
from kv_cache.sim.cluster.outcome import ClusterOutcome, OnEvent
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.simulate import simulate
from kv_cache.sim.cluster.sources import build_source

GIB = 1 << 30
TOKEN_BYTES = 1000
SCOPES = {
    "dram": ("device", "node"),
    "rack_pool": ("device", "node", "rack"),
    "nvme": ("device", "node", "rack", "cluster"),
    "remote": ("cluster",),
}

_FIVE_ROUTERS = (
    "round-robin", "least-loaded", "power-of-two", "session-affinity", "prefix-aware",
)  # fmt: skip

Plain = dict[str, Any]


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    """Refuses what the program would refuse."""
    scenario = from_mapping(Scenario, values)
    check(scenario, whole=False)
    return scenario


def serve(scenario: Scenario, on_event: OnEvent | None = None) -> ClusterOutcome:
    chain = PrefixChain()
    return simulate(scenario, build_source(scenario, chain), chain, on_event=on_event)


def gib(blocks: int, block_tokens: int, token_bytes: int = TOKEN_BYTES) -> float:
    """So many blocks, and half a byte against rounding."""
    return (blocks * block_tokens * token_bytes + 0.5) / GIB


def random_values(seed: int) -> Plain:
    """All settings of a scenario that is accepted, drawn from `seed`."""
    rng = random.Random(seed)
    block = rng.choice((1, 2, 4, 8, 16, 16, 64))
    work = _work(rng, block)
    size = _longest(work) // block + 2
    values: Plain = {
        "seed": seed,
        "model": {"kv_bytes_per_token": TOKEN_BYTES, "block_tokens": block},
        "workload": work,
        "tiers": _tiers(rng, block, size),
        "router": {
            "kind": rng.choice(_FIVE_ROUTERS),
            "decode": rng.choice(_FIVE_ROUTERS),
            "candidates": rng.choice((1, 4, 16)),
            "w_load": rng.choice((0.0, 1.0)),
        },
        "scheduler": _scheduler(rng),
        "separation": {
            "transfer": rng.choice(TRANSFERS),
            "pipelined": rng.random() < 0.5,
            "chunk_blocks": rng.choice((1, 3, 16)),
        },
        "network": _network(rng),
        "watch": {"check_every": rng.choice((1, 2, 5, 20)), "series_points": rng.choice((2, 50))},
    }
    values["topology"], values["instances"] = _instances(rng, block, size)
    return values


def with_admission(values: Plain, seed: int) -> Plain:
    """The same with admission policies where they are asked, from draws of their own: what a seed
    has shown once it shows again."""
    rng = random.Random(f"admission of {seed}")
    tiers = dict(values["tiers"])
    if tiers.get("write_policy") == "back":
        for name in SCOPES:
            if name in tiers:
                tiers[name] = tiers[name] | {
                    "admission": rng.choice(("always", *ADMISSION)),
                    "admission_max_mib": rng.choice((1e-6, 16.0, 16.0)),
                    "admission_max_depth": rng.choice((1, 4, 64)),
                    "admission_memory": rng.choice((16, 1000)),
                    "admission_floor": rng.choice((1, 2)),
                }
    return {**values, "tiers": tiers}


def with_newer_rules(values: Plain, seed: int) -> Plain:
    """Rules that came later than `random_values`, whose seeds keep their scenarios."""
    rng = random.Random(f"newer {seed}")
    router = values["router"]
    if rng.random() < 0.2:
        router["kind"] = "least-connections"
    if rng.random() < 0.3:
        values["scheduler"]["queue"] = "central"
    values["scheduler"]["length_error_cv"] = rng.choice((0.0, 0.0, 1.0))
    values["watch"]["min_bound"] = rng.random() < 0.5
    lower = SCOPES.keys() & values["tiers"].keys()
    if lower and rng.random() < 0.4:
        values["tiers"] |= {"prefetch": rng.choice(PREFETCHES[1:]), "prefetch_into": "hbm"}
    if rng.random() < 0.5:
        values["scheduler"]["max_retries"] = rng.choice((1, 2, 5))
    scheduler = values["scheduler"]
    scheduler["victim"] = rng.choice(VICTIMS)
    if rng.random() < 0.5 or scheduler["victim"] == "lowest-priority":
        scheduler["order"] = rng.choice((scheduler["order"], "fair", "priority", "priority"))
        scheduler["pause_lower"] = rng.random() < 0.6 and scheduler["order"] == "priority"
        values["classes"] = {
            name: {"share": share, "weight": rng.choice((1.0, 7.0)), "priority": rng.randint(0, 2)}
            for name, share in (("a", 1.0), ("b", 3.0), ("c", 0.5))
        }
    if rng.random() < 0.4:
        router["decode"] = rng.choice(("cheapest", "least-connections"))
    for name in sorted(lower):
        if rng.random() < 0.3:
            values["tiers"][name] |= {
                "residency": rng.choice(("fp16", "int8", "1fp16+3int8")),
                "quant_group": rng.choice((0, 64)),
                "dequant": {"int8": 0.5} if rng.random() < 0.5 else {},
            }
            if values["tiers"][name]["residency"] == "fp16":
                values["tiers"][name]["dequant"] = {}
    return values


def mixed_for_each_other(seed: int) -> Plain:
    """`random_values` with mixed instances alone, which decode for each other."""
    values, rng = random_values(seed), random.Random(seed + 1)
    values["router"] |= {"decode": "cheapest", "w_transfer": rng.choice((0.0, 1.0))}
    for group in values["instances"].values():
        group["role"] = "mixed"
    return values


def _work(rng: random.Random, block: int) -> Plain:
    source = rng.choice(("sessions", "sessions", "agents", "poisson"))
    low = rng.choice((1, block, 3 * block, 5 * block + 1))
    out = rng.choice((1, 2, block, 3 * block + 1, 40))
    closed = rng.random() < 0.4
    requests = rng.randint(30, 80)
    work: Plain = {
        "source": source,
        "requests": requests,
        "warmup_requests": rng.choice((0, 0, 5)),
        "prompt_tokens": (low, low + rng.choice((0, 1, 4 * block))),
        "prompt_law": rng.choice(("fixed", "uniform", "exponential")),
        "output_tokens": (rng.choice((1, out)), out),
        "output_law": rng.choice(("fixed", "uniform", "exponential")),
        "rate_per_s": 0.0 if rng.random() < 0.2 else 10 ** rng.uniform(0, 4),
        "concurrency": rng.choice((1, 3, 12)) if closed else 0,
        "think_s": (0.0, rng.choice((0.0, 0.001, 0.1))),
    }
    if source != "poisson":
        work |= {
            "turns": (1, rng.choice((1, 3, 5))),
            "system_prompts": rng.choice((0, 1, 3)),
            "system_tokens": rng.choice((1, block, 2 * block + 3)),
            "tool_sets": rng.choice((0, 2)),
            "tool_tokens": rng.choice((1, 2 * block)),
            "context_tokens": 3 + rng.choice((0, 2 * block, 5 * block + 1)),
            "documents": rng.choice((0, 0, 5)),
            "documents_per_session": rng.choice((1, 3)),
        }
    if source == "agents":
        work["reasoning_tokens"] = rng.choice((0, 3))
    return work


def _longest(work: Plain) -> int:
    """Tokens of a long session: where lengths are exponential, some are longer."""
    turn = sum(work["prompt_tokens"]) // 2 + sum(work["output_tokens"]) // 2
    turn += work.get("reasoning_tokens", 0)
    before = sum(work.get(f"{n}_tokens", 0) for n in ("system", "tool", "context"))
    turns: int = work.get("turns", (1, 1))[1]
    return int(before + turns * (turn + 1))


def _tiers(rng: random.Random, block: int, size: int) -> Plain:
    tiers: Plain = {
        "hbm_eviction": rng.choice(tuple(EVICTION)),
        "overlap_load": rng.random() < 0.6,
    }
    lower = False
    for name, scopes in SCOPES.items():
        if rng.random() < 0.5:
            smallest = rng.choice((1, size, 4 * size)) * (30 if lower else 1)
            lower = True
            tiers[name] = {
                "capacity_gib": gib(smallest, block),
                "scope": rng.choice(scopes),
                "eviction": rng.choice(tuple(EVICTION)),
                "read_gbytes_per_s": 10 ** rng.uniform(-3, 1),
                "write_gbytes_per_s": 10 ** rng.uniform(-3, 1),
                "read_latency_us": rng.choice((0.0, 10.0, 5000.0)),
                "write_latency_us": rng.choice((0.0, 10.0, 5000.0)),
            }
    if lower:
        tiers |= {
            "write_policy": rng.choice((*WRITE_POLICIES, "back", "back", "through")),
            "selective_depth_blocks": rng.choice((1, 4)),
        }
    if len(SCOPES.keys() & tiers.keys()) > 1:
        tiers["prefetch"] = rng.choice(PREFETCHES)
        if tiers["prefetch"] == "next-in-session":
            tiers["prefetch_at"] = rng.choice((0.0, 0.5, 0.9, 1.0))
    return tiers


def _scheduler(rng: random.Random) -> Plain:
    seqs = rng.choice((1, 2, 4, 16, 16))
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(seqs, rng.choice((1, 5, 64, 8192))),
        "chunked_prefill": rng.random() < 0.6,
        "order": rng.choice(("fcfs", "sjf")),
        "reservation": rng.choice((*RESERVATIONS, "on-demand")),
        "preemption": rng.choice(PREEMPTIONS),
        "max_queue": rng.choice((0, 0, 0, 2)),
    }


def _network(rng: random.Random) -> Plain:
    rate = 10 ** rng.uniform(-3, 2)
    jitter = rng.random() < 0.3
    return {
        "discipline": rng.choice(DISCIPLINES),
        "nvlink": {"gbytes_per_s": rng.choice((0.0, 900.0)), "latency_us": rng.choice((0.0, 1.0))},
        "pcie": {"gbytes_per_s": rate},
        "nic": {"gbytes_per_s": rate, "latency_us": rng.choice((0.0, 500.0))},
        "jitter_cv": rng.choice((0.1, 2.0)) if jitter else 0.0,
        "tail_probability": 0.2 if jitter else 0.0,
        "tail_multiplier": 10.0 if jitter else 1.0,
    }


def _instances(rng: random.Random, block: int, size: int) -> tuple[Plain, Plain]:
    roles = rng.choice((
        ("mixed",), ("mixed",), ("mixed", "mixed"), ("prefill", "decode"), ("prefill", "decode"),
        ("prefill", "mixed"), ("mixed", "decode"), ("prefill", "mixed", "decode"),
    ))  # fmt: skip
    groups: Plain = {}
    for number, role in enumerate(roles):
        group: Plain = {
            "count": rng.randint(1, 12 // len(roles) if rng.random() < 0.5 else 2),
            "role": role,
            "hbm_gib": gib(1 + rng.choice((size // 2, size, size, size, 4 * size)), block),
            "compute": rng.choice(("rate", "rate", "rate", "roofline", "none")),
            "prefill_tokens_per_s": 10 ** rng.uniform(3, 6),
            "decode_tokens_per_s": 10 ** rng.uniform(2, 6),
            "step_overhead_us": rng.choice((0.0, 30.0)),
        }
        if rng.random() < 0.1:
            group["max_num_seqs"] = 1
        groups[f"g{number}"] = group
    total = sum(g["count"] for g in groups.values())
    racks, nodes = rng.choice(((1, 1), (1, 2), (2, 2)))
    places = -(-total // (racks * nodes))
    top = {"racks": racks, "nodes_per_rack": nodes, "instances_per_node": places}
    return top, groups
