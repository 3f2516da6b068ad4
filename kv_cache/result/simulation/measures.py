"""The numbers of a simulation that people look at, each with its path in the facts of a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from kv_cache.core.format import figures, with_half
from kv_cache.core.units import MISSING
from kv_cache.metrics.order import Lead
from kv_cache.result.metrics import HIGHER, LOWER, Json


class Measure(Struct, frozen=True, kw_only=True):
    """`better` is None if neither end is good in itself; a value shown is `scale` times larger than
    the fact."""

    path: str
    label: str
    unit: str = ""
    better: str | None = None
    scale: float = 1.0

    def shown(self, value: float | None) -> str:
        return figures(None if value is None else value * self.scale)

    def with_reach(self, row: Json | None) -> str:
        """Return a mean with half of its interval: `12.3±0.4`, but for one of less than 0.1 %. Of
        one that is wider than the mean, which says nothing of it, what the seeds had stands there:
        `2.4 (0.01 to 7)`."""
        if row is None or row["mean"] is None:
            return MISSING
        mean, ends = self.shown(row["mean"]), row["interval"]
        reach = 0.0 if ends is None else (ends["high"] - ends["low"]) / 2
        if reach <= _LEAST_REACH * abs(row["mean"]):
            return mean
        if reach > abs(row["mean"]):
            low, high = self.shown(min(row["values"])), self.shown(max(row["values"]))
            return mean if low == high else f"{mean} ({low} to {high})"
        return with_half(mean, reach * self.scale)

    def lead(self, lead: Lead) -> str:
        """Return a difference with half of its interval and its unit: `242±10 ms`."""
        unit = "points" if self.unit == "%" else self.unit
        return f"{with_half(self.shown(lead.mean), lead.half * self.scale)} {unit}".rstrip()


_LEAST_REACH = 0.001


def _times(name: str, label: str, *percents: str) -> tuple[Measure, ...]:
    return tuple(
        Measure(path=f"{name}.{percent}", label=f"{label} {percent}", unit="ms", better=LOWER)
        for percent in percents
    )


TTFT = _times("ttft_ms", "TTFT", "p50", "p95", "p99")
TTFT_WITH_TRANSFER = _times("ttft_with_transfer_ms", "TTFT with transfer", "p50", "p95", "p99")
ITL = _times("itl_ms", "ITL", "p50", "p99")
TPOT = _times("tpot_ms", "TPOT", "p50", "p99")
E2E = _times("e2e_ms", "E2E", "p50", "p99")
QUEUE = _times("queue_ms", "queue", "p50", "p99")
LATENCIES = (*TTFT, *TTFT_WITH_TRANSFER, *ITL, *TPOT, *E2E, *QUEUE)

GOODPUT = Measure(path="goodput.per_s", label="goodput", unit="requests/s", better=HIGHER)
GOOD_SHARE = Measure(
    path="goodput.share", label="kept all SLOs", unit="%", better=HIGHER, scale=100
)
FINISHED_RATE = Measure(
    path="rates.finished_per_s", label="finished", unit="requests/s", better=HIGHER
)
TOKEN_RATE = Measure(
    path="rates.output_tokens_per_s", label="output", unit="tokens/s", better=HIGHER
)
HIT_RATIO = Measure(path="blocks.hit_ratio", label="block hits", unit="%", better=HIGHER, scale=100)
CEILING = Measure(path="blocks.ceiling_ratio", label="ceiling", unit="%", scale=100)
BUSY = Measure(path="instances.utilisation", label="busy", unit="%", scale=100)
ACTIVE = Measure(path="instances.active_share", label="active", unit="%", scale=100)
SKEW = Measure(path="instances.skew", label="skew")

_MEASURES = (GOODPUT, GOOD_SHARE, *LATENCIES, FINISHED_RATE, TOKEN_RATE, HIT_RATIO)
JUDGED = {measure.path: measure for measure in _MEASURES}
"""Those by which variants may be called better, by their paths."""


# --- facts as flat numbers -------------------------------------------------------------------


def leaves(facts: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted paths of all plain values, in order. Names in facts have no dots of their own
    but for texts of reasons, which are made unable to break a path."""
    for name, value in facts.items():
        path = f"{prefix}{name.replace('.', ' ')}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
        elif not isinstance(value, list | tuple):
            yield path, value


def numbers(facts: Json) -> dict[str, float | None]:
    """Return the leaves that are numbers, or None if there might be one."""
    return {
        path: value
        for path, value in leaves(facts)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }


def number_of(variant: Json, path: str) -> float | None:
    """Return the mean over the seeds of a variant; None if it has none."""
    row = variant["numbers"].get(path)
    mean: float | None = None if row is None else row["mean"]
    return mean


_TIERS = ("hbm", "dram", "rack_pool", "nvme", "remote")


def in_order(names: Sequence[str]) -> list[str]:
    """Return each name once; tiers from the fastest on, and others as they come."""
    once = dict.fromkeys(names)
    tiers = [name for name in _TIERS if name in once]
    return [*tiers, *(name for name in once if name not in _TIERS)]
