"""What several results say together: histograms merged, counts added up.

A percentile of several results comes from their merged histograms, as if one recorder had seen all
of it. Percentiles are never averaged: where a result stores no histogram the pooled percentile is
null. Means are exact, being sums over counts.

All answers are the same in whatever order the documents are given. A document that lacks something,
or has it in another shape, raises MisshapenError, which says where.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kv_cache.core.kinds import Phase, Qos
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.summary import LATENCIES, latency_ms
from kv_cache.report.node import Node

SECTION = "kv_cache"
FLOW = ("phase", "tier", "operation", "cause", "engine")
"""What a row of operations is counted apart by."""
STEP = ("phase", "tier", "operation", "step")
"""And one of operations on metadata."""
CLASSES = ("all", *(qos.value for qos in Qos))
TOTAL, DEVICE, SIZES = "total", "device", "bytes"

Json = Mapping[str, Any]


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
    return {name: _requests([own["measured"][name] for own in several]) for name in CLASSES}


def _requests(rows: Sequence[Node]) -> dict[str, Any]:
    counts = ("completed", "prompt_tokens", "output_tokens")
    found = {name: _merged(rows, f"histogram_{name}") for name in LATENCIES}
    return {
        **{name: sum(row[name].whole() for row in rows) for name in counts},
        **{f"{name}_ms": latency_ms(histogram) for name, histogram in found.items()},
        **{f"histogram_{name}": histogram.to_json() for name, histogram in found.items()},
    }


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
