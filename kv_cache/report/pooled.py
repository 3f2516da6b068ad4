"""What several results say together: histograms merged, counts added up.

A percentile of several results comes from their merged histograms, as if one recorder had seen all
of it. Percentiles are never averaged: where a result stores no histogram, and no whole list either,
the pooled percentile is null. Means are exact, being sums over counts.

All answers are the same in whatever order the documents are given. A document that lacks something,
or has it in another shape, raises MisshapenError, which says where.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.summary import PERCENTILES, latency_ms
from kv_cache.report.node import MisshapenError, Node

SECTION = "kv_cache"
FLOW = ("phase", "tier", "operation", "cause", "engine")
"""What a row of operations is counted apart by."""
STEP = ("phase", "tier", "operation", "step")
"""And one of operations on metadata."""
CLASSES = ("all", *(qos.value for qos in Qos))
TOTAL, DEVICE, SIZES = "total", "device", "bytes"

Json = Mapping[str, Any]

_LATENCIES = (
    *("response_ms", "end_to_end_ms", "ttft_ms", "tpot_ms", "lateness_ms", "queue_ms"),
    *("service_ms", "storage_ms", "compute_ms"),
)
_LISTS: Mapping[str, str] = {
    "end_to_end_ms": "end_to_end_latencies",
    "storage_ms": "storage_latencies",
    "compute_ms": "generation_latencies",
}
"""Latencies of single requests that a result lists, in seconds."""
_OF_SOME = "tpot_ms"
"""Not every request has it, and a result does not say how many have."""


def sections(documents: Iterable[Json]) -> list[Node]:
    """The section `kv_cache` of each."""
    return [Node(document, "the result")[SECTION] for document in documents]


# --- operations ------------------------------------------------------------------------------


def pooled_operations(documents: Iterable[Json]) -> list[dict[str, Any]]:
    """The rows of `operations` of all, one for each phase, tier, operation, cause and engine, with
    merged histograms. `host_ms` is null: results store no histogram of it."""
    return [
        {
            **dict(zip(FLOW, flow, strict=True)),
            **{name: sum(row[name].whole() for row in rows) for name in _COUNTS},
            **_latencies(rows),
        }
        for flow, rows in _grouped(documents, "operations", FLOW)
    ]


_COUNTS = ("operations", "bytes", "system_calls")


def _latencies(rows: Sequence[Node]) -> dict[str, Any]:
    found = {name: _merged(rows, f"histogram_{name}") for name in (TOTAL, DEVICE, SIZES)}
    return {
        "total_ms": latency_ms(found[TOTAL]),
        "device_ms": latency_ms(found[DEVICE]),
        "host_ms": None,
        "histogram_total": found[TOTAL].to_json(),
        "histogram_device": found[DEVICE].to_json(),
        "histogram_bytes": found[SIZES].to_json("bytes"),
    }


def pooled_metadata(documents: Iterable[Json]) -> list[dict[str, Any]]:
    """The rows of `metadata` of all, likewise."""
    found = []
    for step, rows in _grouped(documents, "metadata", STEP):
        histogram = _merged(rows, "histogram")
        found.append(
            {
                **dict(zip(STEP, step, strict=True)),
                "count": histogram.count,
                "ms": latency_ms(histogram),
                "histogram": histogram.to_json(),
            }
        )
    return found


def pooled_histogram(
    documents: Iterable[Json],
    tier: str,
    operation: str,
    latency: str = DEVICE,
    *,
    phase: str = Phase.MEASURE.value,
) -> Histogram:
    """Of all operations on a tier (`gpu`, `cpu`, `storage`) in a phase, over all causes and
    engines: `total` or `device` in nanoseconds, or `bytes`. Empty where there was none."""
    wanted = (phase, tier, operation)
    groups = _grouped(documents, "operations", FLOW)
    return _merged([row for flow, rows in groups if flow[:3] == wanted for row in rows],
                   f"histogram_{latency}")  # fmt: skip


def _grouped(
    documents: Iterable[Json], table: str, names: Sequence[str]
) -> list[tuple[tuple[str, ...], list[Node]]]:
    """Rows of all documents that are counted apart by the same, in the order of a result's rows."""
    groups: dict[tuple[str, ...], list[Node]] = {}
    for own in sections(documents):
        for row in own[table].rows():
            groups.setdefault(tuple(row[name].text() for name in names), []).append(row)
    return [(key, groups[key]) for key in sorted(groups, key=_place)]


_TIERS = {"gpu": "0", "cpu": "1", "storage": "2"}


def _place(key: tuple[str, ...]) -> tuple[str, ...]:
    """As `metrics.summary` orders them: tiers from the fastest."""
    return tuple(_TIERS.get(part, part) if n == 1 else part for n, part in enumerate(key))


def _merged(rows: Sequence[Node], name: str) -> Histogram:
    return merged(row[name].histogram() for row in rows)


# --- requests --------------------------------------------------------------------------------


def pooled_measured(documents: Sequence[Json]) -> dict[str, dict[str, Any]]:
    """The section `measured` of all: counts, tokens, and latencies with their histograms."""
    several = sections(documents)
    lists = {name: pooled_list(documents, key) for name, key in _LISTS.items()}
    return {
        name: _requests([own["measured"][name] for own in several], lists if name == "all" else {})
        for name in CLASSES
    }


def _requests(rows: Sequence[Node], lists: Mapping[str, Histogram | None]) -> dict[str, Any]:
    counts = ("completed", "prompt_tokens", "output_tokens")
    made: dict[str, Any] = {name: sum(row[name].whole() for row in rows) for name in counts}
    histograms = {}
    for name in _LATENCIES:
        key = f"histogram_{name.removesuffix('_ms')}"
        whole = lists.get(name)
        if rows and all(row.find(key) is not None for row in rows):
            whole = _merged(rows, key)
            histograms[key] = whole.to_json()
        made[name] = _without_histogram(rows, name) if whole is None else latency_ms(whole)
    return {**made, **histograms}


def _without_histogram(rows: Sequence[Node], name: str) -> dict[str, Any]:
    """The mean, and no percentile; of one result what it says itself, and of nothing 0 throughout,
    as a result has it."""
    with_any = [row for row in rows if row["completed"].whole()]
    if len(with_any) == 1:
        return {key: value.number() for key, value in with_any[0][name].items()}
    if not with_any:
        return latency_ms(Histogram())
    mean = None if name == _OF_SOME else pooled_mean(with_any, name)
    return {"mean": mean, **dict.fromkeys(PERCENTILES)}


def pooled_mean(rows: Sequence[Node], name: str) -> float:
    """The mean over all requests of these rows, each weighted by how many it stands for."""
    count = sum(row["completed"].whole() for row in rows)
    total = sum(Fraction(row[name]["mean"].number()) * row["completed"].whole() for row in rows)
    return float(total / count)


def pooled_list(documents: Iterable[Json], key: str) -> Histogram | None:
    """The histogram of a latency that the results list for each completed request; None where a
    list is not whole."""
    made = Histogram()
    for document in documents:
        root = Node(document, "the result")
        listed = root[key].rows()
        if len(listed) != root[SECTION]["measured"]["all"]["completed"].whole():
            return None
        for value in listed:
            made.add(_nanoseconds(value))
    return made


def _nanoseconds(value: Node) -> int:
    seconds = value.number()
    if not 0 <= seconds < 2**63 / NS_PER_S - 1:
        raise MisshapenError(f"{value.path} is {value.value}, which is no duration in seconds")
    return round(seconds * NS_PER_S)


# --- counts ----------------------------------------------------------------------------------


def added(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by name, added up; the names of the first come first."""
    total: dict[str, int] = {}
    for counts in several:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def pooled_failures(documents: Iterable[Json]) -> list[dict[str, Any]]:
    """The rows of `failed_operations` of all, the most frequent first."""
    names = ("tier", "operation", "cause", "reason")
    counts: Counter[tuple[str, ...]] = Counter()
    for own in sections(documents):
        for row in own["failed_operations"].rows():
            counts[tuple(row[name].text() for name in names)] += row["count"].whole()
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0][3], item[0]))
    return [{**dict(zip(names, key, strict=True)), "count": count} for key, count in ordered]


def numbers_of(row: Node) -> Iterator[tuple[str, int]]:
    """The whole numbers of a mapping by name."""
    return ((name, value.whole()) for name, value in row.items() if type(value.value) is int)
