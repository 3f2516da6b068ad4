"""How fast a simulated cluster is asked: requests that each source makes in a second.

    python benchmarks/asks.py [--requests N] [--traces DIR]

Each source alone, walked as a cluster walks it: every request is answered 1 s after it came, in
order of the ends, and what follows from an answer is asked. The walk's own heap is part of the
time; it is the same for all. The best of three, since only other work makes one slower. The last
figure is an answer that is known: the blocks of the agentic sessions and how many of them an
unlimited cache would have had.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.config.scenario import ModelSection, Scenario, WorkloadSection
from kv_cache.config.scenario_trace import open_work
from kv_cache.core.units import NS_PER_S
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.requests import ClusterRequest
from kv_cache.sim.cluster.sources import build_source

ROOT = Path(__file__).resolve().parents[1]
TRIES = 3
KNOWN = (611_886, 561_082)
SOURCES: Mapping[str, tuple[int, dict[str, Any]]] = {
    "poisson, open": (333_333, {"source": "poisson", "rate_per_s": 20.0}),
    "poisson, 64 users": (100_000, {"source": "poisson", "concurrency": 64}),
    "sessions, own contexts": (30_000, {"source": "sessions", "rate_per_s": 200.0}),
    "sessions, documents": (
        30_000,
        {
            "source": "sessions", "rate_per_s": 200.0, "documents": 200, "system_prompts": 20,
            "context_tokens": 8192,
        },
    ),
    "agents": (
        30_000,
        {
            "source": "agents", "rate_per_s": 20.0, "turns": (15, 50), "tool_sets": 5,
            "prompt_tokens": (128, 4096), "reasoning_tokens": 256, "context_tokens": 0,
        },
    ),
}  # fmt: skip
"""By name: how many a second are wanted, and what is asked."""


def walk(scenario: Scenario) -> tuple[PrefixChain, list[ClusterRequest], float]:
    """What is asked, and how long that took."""
    chain, opened = PrefixChain(), open_work(scenario)
    began = time.perf_counter()
    source = build_source(scenario, chain, opened)
    requests: list[ClusterRequest] = []
    under_way: list[tuple[int, int, ClusterRequest]] = []
    first = source.first()
    ahead = next(first, None)
    while under_way or ahead is not None:
        if ahead is not None and (not under_way or ahead.arrival_ns <= under_way[0][0]):
            heappush(under_way, (ahead.arrival_ns + NS_PER_S, ahead.number, ahead))
            ahead = next(first, None)
            continue
        at_ns, _, request = heappop(under_way)
        requests.append(request)
        for follower in source.after(request, at_ns, answered=True):
            heappush(under_way, (follower.arrival_ns + NS_PER_S, follower.number, follower))
    return chain, requests, time.perf_counter() - began


def speeds(requests: int) -> Iterator[Figure]:
    for name, (wanted, work) in SOURCES.items():
        scenario = Scenario(workload=WorkloadSection(requests=requests, **work))
        rates = [requests / walk(scenario)[2] for _ in range(TRIES)]
        yield Figure(
            number="18", what=f"requests/s, {name}", wanted=f">= {wanted:,}",
            seen=f"{max(rates):,.0f} ({min(rates):,.0f})", met=max(rates) >= wanted,
        )  # fmt: skip


def known(path: Path) -> Iterator[Figure]:
    if not path.exists():
        return
    work = WorkloadSection(source="trace", trace=str(path), requests=100_000, concurrency=5)
    chain, requests, _ = walk(Scenario(model=ModelSection(block_tokens=64), workload=work))
    seen: set[int] = set()
    blocks = hits = 0
    for node in (node for request in requests for node in chain.path(request.leaf)):
        blocks += chain.blocks[node]
        hits += chain.blocks[node] * (node in seen)
        seen.add(node)
    yield Figure(
        number="18", what="agentic sessions: blocks, found again",
        wanted=f"{KNOWN[0]:,}, {KNOWN[1]:,}",
        seen=f"{blocks:,}, {hits:,}", met=(blocks, hits) == KNOWN,
    )  # fmt: skip


def figures(requests: int, traces: Path) -> Iterator[Figure]:
    yield from speeds(requests)
    yield from known(traces / "agentic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    shared = Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")
    parser.add_argument("--traces", type=Path, default=shared, help="where the real traces are")
    options = parser.parse_args()
    finish(figures(options.requests, options.traces))


if __name__ == "__main__":
    main()
