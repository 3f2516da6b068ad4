"""What a run tells while it goes on (`bench/endpoint`), as the numbers of one second for a chart.

Pure: from two looks at the counters and the instant between them. The page draws what stands here
and computes nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from kv_cache.core.units import GIB
from kv_cache.metrics.exposition import FINDING, PREFIX
from kv_cache.metrics.passport import RULES, SO_FAR
from kv_cache.result.metrics import Json

Key = tuple[str, frozenset[tuple[str, str]]]
Samples = Mapping[Key, float]

_LINE = re.compile(r"([a-z_0-9]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_PROBE = re.compile(r"probe (\d+)/(\d+): ([\d.e+-]+) (\S+): (inside|outside)$")
_ENOUGH = 20  # answers before an SLO is said to be kept or missed so far


def parse(text: str) -> Samples:
    """Return the samples of a scrape by name (without our prefix) and labels; buckets are left
    out."""
    samples: dict[Key, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or "_bucket{" in line or not (match := _LINE.fullmatch(line)):
            continue
        labels = frozenset(_LABEL.findall(match[2] or ""))
        samples[match[1].removeprefix(PREFIX), labels] = float(match[3])
    return samples


def probes(lines: Iterable[str]) -> list[Json]:
    """Return the loads that a search for the capacity has tried, out of its log."""
    matches = map(_PROBE.search, lines)
    return [
        {"number": int(m[1]), "most": int(m[2]), "load": float(m[3]), "unit": m[4],
         "inside": m[5] == "inside"} for m in matches if m
    ]  # fmt: skip


def findings(text: str) -> tuple[str, ...]:
    """Return the sentences of a scrape on what already speaks against the run."""
    lines = (line for line in text.splitlines() if line.startswith(FINDING))
    return tuple(line.removeprefix(FINDING) for line in lines)


class Scrape(Struct, frozen=True):
    """The counters of a run at an instant of the monotonic clock, and what its passport finds."""

    at_s: float
    samples: Samples
    findings: tuple[str, ...] = ()

    def rows(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the samples of one metric with their labels."""
        for (metric, labels), value in self.samples.items():
            if metric == name:
                yield dict(labels), value

    def one(self, name: str, **labels: str) -> float | None:
        """Return one sample."""
        return self.samples.get((name, frozenset(labels.items())))

    def word(self, name: str, label: str) -> str | None:
        """Return the label of a metric that says something by it."""
        return next((labels[label] for labels, _ in self.rows(name)), None)

    def sums(self, name: str) -> dict[tuple[str, str], float]:
        """Add a counter up by tier and operation."""
        totals: dict[tuple[str, str], float] = {}
        for labels, value in self.rows(name):
            key = labels["tier"], labels["operation"]
            totals[key] = totals.get(key, 0.0) + value
        return totals


def numbers(now: Scrape, before: Scrape | None, phase_s: float) -> Json:
    """Return one second of a run. `phase_s`: how long its phase has been seen."""
    phase = now.word("doing", "what") or ""
    planned_s = now.one("planned_seconds", phase=phase)
    return {
        "phase": phase,
        "phase_s": round(phase_s, 1),
        "left_s": None if planned_s is None else max(0.0, round(planned_s - phase_s, 1)),
        "planned_s": planned_s,
        "tiers": _tiers(now, before),
        "latency_ms": _latencies(now),
        "users": now.one("users"),
        "queued": now.one("queued"),
        "in_flight": now.one("in_flight"),
        "saturation": next((value for _, value in now.rows("saturation")), None),
        "done": sum(v for labels, v in now.rows("requests_total")
                    if labels["outcome"] == "completed"),
        "hit_ratio": _ratio(now.one("hit_tokens_total"), now.one("context_tokens_total")),
        "cpu_cores": now.one("machine_process_cores"),
        "host_cores": now.one("machine_host_cores_busy"),
        "device": now.one("machine_device_utilisation"),
        "slos": list(_slos(now)),
        "so_far": list(_so_far(now)),
        "waiting": [f"{rule} {name}" for rule, (name, _) in RULES.items() if rule not in SO_FAR],
    }  # fmt: skip


def _tiers(now: Scrape, before: Scrape | None) -> Json:
    """GiB/s and operations/s since the last look."""
    if before is None:
        return {}
    seconds = max(now.at_s - before.at_s, 1e-9)
    rates: dict[str, dict[str, float]] = {}
    for name, scale, what in (("bytes_total", GIB, "gib_s"), ("operations_total", 1, "ops_s")):
        earlier = before.sums(name)
        for (tier, operation), total in now.sums(name).items():
            rate = max(0.0, total - earlier.get((tier, operation), 0.0)) / seconds / scale
            rates.setdefault(tier, {})[f"{operation}_{what}"] = round(rate, 4)
    return rates


def _latencies(now: Scrape) -> Json:
    """Percentiles of storage in the latest window."""
    shown: dict[str, float] = {}
    for labels, seconds in now.rows("window_operation_seconds"):
        if labels["tier"] == "storage":
            percent = f"{100 * float(labels['quantile']):g}"
            shown[f"{labels['operation']}_p{percent}"] = round(seconds * 1000, 3)
    return shown


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(part / whole, 4)


def _slos(now: Scrape) -> Iterator[Json]:
    """Of each SLO: its limit, how many have answered, and the share of them within it."""
    for labels, limit_s in now.rows("slo_seconds"):
        answers = now.one(f"{labels['measure']}_seconds_count", **{"class": labels["class"]}) or 0
        within = now.one("slo_within_total", **labels)
        share = _ratio(within, answers)
        kept = None if share is None or answers < _ENOUGH else share >= float(labels["quantile"])
        yield {
            "name": f"{labels['class']} {labels['measure']} p{100 * float(labels['quantile']):g}",
            "limit_ms": limit_s * 1000,
            "answers": int(answers),
            "share": share,
            "kept": kept,
        }


def _so_far(now: Scrape) -> Iterator[str]:
    """What will count against the run already; its verdict is made at the end."""
    yield from now.findings
    failed = sum(value for _, value in now.rows("failed_operations_total"))
    if failed:
        yield f"{failed:.0f} operations failed"
    for outcome in ("failed", "rejected"):
        count = sum(v for labels, v in now.rows("requests_total") if labels["outcome"] == outcome)
        if count:
            yield f"{count:.0f} requests {outcome}"
    for slo in _slos(now):
        if slo["kept"] is False:
            yield f"SLO {slo['name']} missed: {100 * slo['share']:.1f} % within the limit"
