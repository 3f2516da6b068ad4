"""An outcome as plain values: what reports, tables and documents are made of.

Everything here is a number that follows from the counters and samples of `outcome.py` by a formula
that is beside it; nothing is judged. Percentiles are exact: the value at rank
ceil(percent / 100 x count), "nearest rank", where enough values lie beyond (`supported`). Those of
gaps between tokens come from buckets, and are within 0.2 % (`metrics/histogram.py`). What there is
no value of is None, never 0 and never NaN.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from fractions import Fraction
from math import ceil
from operator import ne
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_cache.config.scenario_hardware import GpuGroup
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.metrics.histogram import Histogram, bucket_bounds, supported
from kv_cache.sim.cluster.outcome import (
    ClusterOutcome,
    ClusterSeries,
    ClusterTierFacts,
    Instances,
    LinkFacts,
    Requests,
)

Plain = dict[str, Any]

PERCENTS = {"p50": "50", "p90": "90", "p95": "95", "p99": "99", "p999": "99.9"}
"""Decimal text, because 99.9 is not a binary number and a rank is exact."""


def facts(outcome: ClusterOutcome) -> Plain:
    """Return all counters of an outcome and what follows from them, without the columns of
    instances and of the series (`instance_columns`, `series_columns`)."""
    samples, window_s = outcome.requests, _window_s(outcome)
    return {
        "window_s": window_s,
        "began_ns": outcome.began_ns,
        "ended_ns": outcome.ended_ns,
        "moved_ns": outcome.moved_ns,
        "requests": _requests(outcome),
        "ttft_ms": spread_ms(samples.ttft_ns),
        "ttft_with_transfer_ms": spread_ms(samples.ttft_with_transfer_ns),
        "ttft_parts_ms": {
            name: _spread(values) for name, values in first_token_parts(samples).items()
        },
        "transfer_ms": {
            "first_chunk": spread_ms(samples.first_chunk_ns, least=0),
            "full": spread_ms(samples.movement_ns, least=0),
        },
        "itl_ms": gaps_ms(sum(outcome.itl_parts, Counter())),
        "tpot_ms": spread_ms(samples.tpot_ns, least=0),
        "e2e_ms": spread_ms(samples.e2e_ns),
        "queue_ms": spread_ms(samples.queue_ns),
        "rates": _rates(outcome, window_s),
        "goodput": _goodput(outcome, window_s),
        "tokens": _tokens(outcome),
        "classes": _classes(outcome, window_s),
        "blocks": _blocks(outcome),
        "tiers": {tier.name: _tier(tier) for tier in outcome.tiers},
        "links": {link.kind: _link(link, _moving_s(outcome)) for link in outcome.links},
        "bytes_by_cause": dict(_causes(outcome.links)),
        "gpus": {name: _gpus(group) for name, group in outcome.gpus.items()},
        "instances": _instances(outcome.instances, window_s),
        "levels": _levels(outcome),
        "concurrency_ns": outcome.concurrency_ns,
        "events": outcome.events,
        "checks": dict(sorted(outcome.checks.items())),
        "warnings": list(outcome.warnings),
    }


def instance_columns(outcome: ClusterOutcome) -> dict[str, list[Any]]:
    """Return one value for each instance in each column."""
    every = outcome.instances
    return {column.name: list(getattr(every, column.name)) for column in fields(every)}


def series_columns(series: ClusterSeries) -> dict[str, list[int]]:
    """Return one value for each instant of the grid in each column."""
    return {name: list(values) for name, values in series.columns.items()}


def _levels(outcome: ClusterOutcome) -> Plain:
    """Return the mean over time of each level, until the last end, and the most of it."""
    return {
        name: {"mean": _share(area_ns, outcome.ended_ns), "max": most}
        for name, (area_ns, most) in outcome.levels.items()
    }


def _window_s(outcome: ClusterOutcome) -> float:
    """Return the seconds from the first measured arrival to the last end."""
    return max(0, outcome.ended_ns - outcome.began_ns) / NS_PER_S


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# --- samples ---------------------------------------------------------------------------------


def spread_ms(values: "array[int]", least: int | None = None) -> Plain:
    """Return count, mean, percentiles and largest of times, in ms; values below `least` do not
    count."""
    some = _numbers(values)
    return _spread(some if least is None else some[some >= least])


def first_token_parts(samples: Requests) -> dict[str, npt.NDArray[np.int64]]:
    """Return the parts of each request's `ttft_with_transfer_ns`, in ns: they follow one another,
    so that they add up to it. Prefill is what is left of `ttft_ns`: the computation of the prompt,
    with the steps of others in between, and a preemption before the first token."""
    queue, load = _numbers(samples.queue_ns), _numbers(samples.load_ns)
    waited, transfer = _numbers(samples.decode_queue_ns), _numbers(samples.transfer_ns)
    ttft, whole = _numbers(samples.ttft_ns), _numbers(samples.ttft_with_transfer_ns)
    return {
        "queue": queue,
        "load": load,
        "prefill": ttft - queue - load,
        "decode_queue": waited,
        "transfer": transfer,
        "first_decode_step": whole - ttft - waited - transfer,
    }


def _spread(some: npt.NDArray[np.int64]) -> Plain:
    ranked = np.sort(some)
    count = len(ranked)
    mean = float(ranked.sum(dtype=np.float64)) / count / NS_PER_MS if count else None
    named = {name: _at_rank(ranked, percent) for name, percent in PERCENTS.items()}
    largest = float(ranked[-1]) / NS_PER_MS if count else None
    return {"count": count, "mean": mean, **named, "max": largest}


def _at_rank(ranked: npt.NDArray[np.int64], percent: str) -> float | None:
    if not supported(len(ranked), float(percent)):
        return None
    rank = max(1, ceil(Fraction(percent) * len(ranked) / 100))
    return float(ranked[rank - 1]) / NS_PER_MS


def _numbers(values: "array[int]") -> npt.NDArray[np.int64]:
    return np.frombuffer(values, np.int64) if len(values) else np.empty(0, np.int64)


def gaps_ms(buckets: Mapping[int, int]) -> Plain:
    """Return the same of values that are counted by bucket: ends and sum are those of the
    buckets."""
    gaps = _histogram(buckets)
    if not gaps.count:
        return spread_ms(array("q"))
    values = [*gaps.percentiles([float(p) for p in PERCENTS.values()]), gaps.highest]
    named = {
        name: None if ns is None else ns / NS_PER_MS
        for name, ns in zip((*PERCENTS, "max"), values, strict=True)
    }
    return {"count": gaps.count, "mean": gaps.total / gaps.count / NS_PER_MS, **named}


def _histogram(buckets: Mapping[int, int]) -> Histogram:
    some = {bucket: count for bucket, count in sorted(buckets.items()) if count}
    if not some:
        return Histogram()
    total = sum(sum(bucket_bounds(bucket)) * count for bucket, count in some.items()) // 2
    return Histogram.from_json(
        {
            "buckets": some.items(), "count": sum(some.values()), "sum": total,
            "min": bucket_bounds(min(some))[0], "max": bucket_bounds(max(some))[1],
        }
    )  # fmt: skip


# --- requests --------------------------------------------------------------------------------


def _requests(outcome: ClusterOutcome) -> Plain:
    """Count the requests. The reasons count all of them, as `arrived` and `finished` do; `measured`
    those behind the warm-up."""
    every = outcome.requests
    return {
        "arrived": every.arrived,
        "finished": every.finished,
        "rejected": every.rejected.total(),
        "aborted": every.aborted.total(),
        "rejected_why": dict(sorted(every.rejected.items())),
        "aborted_why": dict(sorted(every.aborted.items())),
        "measured_arrived": every.measured_arrived,
        "measured_finished": every.measured_finished,
        "finished_share": _share(every.measured_finished, every.measured_arrived),
        "preemptions": every.preemptions,
        "retries": every.retries,
        "retries_taken": every.retries_taken,
        "longest_central_queue": every.longest_central_queue,
        "handoffs": every.handoffs,
        "handoffs_declined": every.handoffs_declined,
        "decoded_elsewhere": sum(map(ne, every.instance, every.decoder)),
    }


def _rates(outcome: ClusterOutcome, window_s: float) -> Plain:
    """Return the rates of the measured requests that finished, in a second of the window."""
    every = outcome.requests
    return {
        "finished_per_s": _share(every.measured_finished, window_s),
        "prompt_tokens_per_s": _share(sum(every.prompt_tokens), window_s),
        "output_tokens_per_s": _share(sum(every.output_tokens), window_s),
    }


def _goodput(outcome: ClusterOutcome, window_s: float) -> Plain:
    """Requests that finished within every limit: a second, and of all that arrived. Without a limit
    there is no goodput."""
    slo, every = outcome.scenario.slo, outcome.requests
    limits = {name: limit for name, limit in asdict(slo).items() if limit}
    return {
        "slo": limits,
        "good": every.good if limits else None,
        "per_s": _share(every.good, window_s) if limits else None,
        "share": _share(every.good, every.measured_arrived) if limits else None,
    }


def _tokens(outcome: ClusterOutcome) -> Plain:
    every = outcome.requests
    prompt, hit = sum(every.prompt_tokens), sum(every.hit_tokens)
    return {
        "prompt": prompt,
        "output": sum(every.output_tokens),
        "hit": hit,
        "hit_ratio": _share(hit, prompt),
    }


def _classes(outcome: ClusterOutcome, window_s: float) -> Plain:
    """Return of each class what its measured requests had; none where there are no classes."""
    every, kinds = outcome.requests, _numbers(outcome.requests.kind)
    tokens = _numbers(every.prompt_tokens) + _numbers(every.output_tokens)
    rows: Plain = {}
    for place, name in enumerate(outcome.scenario.classes):
        some = kinds == place
        had, finished = int(tokens[some].sum()), int(some.sum())
        rows[name] = {
            "arrived": every.class_arrived[place],
            "finished": finished,
            "finished_share": _share(finished, every.class_arrived[place]),
            "tokens_per_s": _share(had, window_s),
            "token_share": _share(had, int(tokens.sum())),
            **{
                f"{time}_ms": _spread(_numbers(getattr(every, f"{time}_ns"))[some])
                for time in ("queue", "ttft", "e2e")
            },
        }
    return rows


# --- places ----------------------------------------------------------------------------------


def _blocks(outcome: ClusterOutcome) -> Plain:
    """Count the blocks. `compulsory`: asked for the first time; `compulsory_of_missed`: their share
    of what was missed, at most 1 (a cache may also miss what an unlimited one has)."""
    blocks, names = outcome.blocks, [tier.name for tier in outcome.tiers]
    hits = {name: blocks.hits[name] for name in dict.fromkeys((*names, *blocks.hits))}
    missed, compulsory = blocks.looked_up - blocks.hit, blocks.looked_up - blocks.ceiling
    return {
        "looked_up": blocks.looked_up,
        "hit": blocks.hit,
        "missed": missed,
        "ceiling": blocks.ceiling,
        "compulsory": compulsory,
        "recomputed": blocks.recomputed,
        "from_others": blocks.from_others,
        "hits": hits,
        "hit_ratio": _share(blocks.hit, blocks.looked_up),
        "from_others_ratio": _share(blocks.from_others, blocks.looked_up),
        "ceiling_ratio": _share(blocks.ceiling, blocks.looked_up),
        "hit_ratios": {name: _share(count, blocks.looked_up) for name, count in hits.items()},
        "compulsory_of_missed": _share(compulsory, missed),
        "most_ratios": {
            tier.name: _share(tier.most_hits, blocks.looked_up)
            for tier in outcome.tiers
            if tier.most_hits is not None
        },
    }


def _tier(tier: ClusterTierFacts) -> Plain:
    counts = asdict(tier)
    del counts["name"], counts["not_admitted"]
    return {
        **counts,
        "not_admitted": tier.not_admitted.total(),
        "not_admitted_why": dict(sorted(tier.not_admitted.items())),
    }


def _moving_s(outcome: ClusterOutcome) -> float:
    """Return the seconds of the window, and of what was still under way at its end."""
    return (max(outcome.ended_ns, outcome.moved_ns) - outcome.began_ns) / NS_PER_S


def _link(link: LinkFacts, window_s: float) -> Plain:
    """Return utilisation: busy time over the time in which bytes moved and all servers; of the
    busiest link alone too. Links that were never used are not in the mean. The mean queue of a link
    is the waits over the time (Little's law); where links share, nothing waits."""
    each_s = link.servers * window_s
    waited = sum(link.wait_buckets.values())
    return {
        "links": link.links,
        "servers": link.servers,
        "transfers": link.transfers,
        "bytes": link.bytes_by_cause.total(),
        "bytes_by_cause": dict(sorted(link.bytes_by_cause.items())),
        "busy_s": link.busy_ns / NS_PER_S,
        "utilisation": _share(link.busy_ns / NS_PER_S, link.links * each_s),
        "busiest": link.busiest,
        "busiest_utilisation": _share(link.busiest_ns / NS_PER_S, each_s),
        "wait_ms": {
            **gaps_ms(link.wait_buckets),
            "mean": _share(link.wait_ns / NS_PER_MS, waited),
        },
        "queue": {
            "mean": _share(link.wait_ns / NS_PER_S, link.links * window_s) if waited else None,
            "longest": link.longest_queue if waited else None,
        },
    }


def _causes(links: Iterable[LinkFacts]) -> Counter[str]:
    """Return bytes on links by cause: each byte once for every link that it crossed."""
    total: Counter[str] = Counter()
    for link in links:
        total.update(link.bytes_by_cause)
    return Counter(dict(sorted(total.items())))


# --- instances -------------------------------------------------------------------------------


def _gpus(group: GpuGroup) -> Plain:
    """Return how the memory of one instance is divided."""
    return {
        "gpus": group.gpus,
        "weights_bytes": group.weights_bytes,
        "activation_bytes": group.activation_bytes,
        "kv_bytes": group.kv_bytes,
        "kv_copies": group.kv_copies,
    }


def _instances(every: Instances, window_s: float) -> Plain:
    """Of all, and of each role, for prefill and decode are not asked alike: `active_share` is the
    least of the roles' and `skew` the largest."""
    roles = {role: _of_role(every, role, window_s) for role in sorted(set(every.role))}
    return {
        "count": len(every.role),
        "active": sum(row["active"] for row in roles.values()),
        "active_share": min((row["active_share"] for row in roles.values()), default=None),
        "skew": max((row["skew"] for row in roles.values() if row["skew"] is not None),
                    default=None),
        "utilisation": _share(sum(every.busy_ns) / NS_PER_S, len(every.role) * window_s),
        "longest_queue": max(every.longest_queue, default=0),
        "roles": roles,
    }  # fmt: skip


def _of_role(every: Instances, role: str, window_s: float) -> Plain:
    """`active`: those with any request; `skew`: the most requests of one over the mean of all."""
    some = [place for place, name in enumerate(every.role) if name == role]
    requests = _picked(every.requests, some)
    busy_s = [ns / NS_PER_S for ns in _picked(every.busy_ns, some)]
    active, total = sum(map(bool, requests)), sum(requests)
    return {
        "count": len(some),
        "active": active,
        "active_share": active / len(some),
        "requests": total,
        "skew": _share(max(requests) * len(some), total),
        "utilisation": _share(sum(busy_s), len(some) * window_s),
        "busiest_utilisation": _share(max(busy_s), window_s),
        "prefill_tokens": sum(_picked(every.prefill_tokens, some)),
        "decode_tokens": sum(_picked(every.decode_tokens, some)),
        "preemptions": sum(_picked(every.preemptions, some)),
    }


def _picked(column: Sequence[int], places: Sequence[int]) -> list[int]:
    return [column[place] for place in places]
