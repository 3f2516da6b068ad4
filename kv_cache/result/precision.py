"""How sure the figure of `--until` is at the end of a run, from what was counted."""

from typing import Any

from kv_cache.core.kinds import OpKind
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.intervals import CONFIDENCE, Interval
from kv_cache.metrics.until import Until, grown_shares, parse_until, percentile_interval
from kv_cache.result.run import CountedRun, times
from kv_cache.result.sections import paced


def precision(run: CountedRun) -> dict[str, Any] | None:
    """Return the figure with its interval and half of its width as a share; None where nobody asked
    for any."""
    text, counts = run.config.run.until, run.facts.precision
    if text is None or counts is None:
        return None
    until = parse_until(text)
    value, interval = _of_headline(run) if until.tag is None else _of_percentile(run, until)
    half = None if interval is None or not value else (interval.high - interval.low) / 2 / value
    return {
        "figure": until.name,
        "unit": "bytes/s" if until.tag is None else "ms",
        "share": until.share,
        "value": value,
        "interval": interval and {"confidence": CONFIDENCE, **interval._asdict()},
        "half_width": half,
        "reached": half is not None and half <= until.share,
        "bound_s": run.config.window_s(),
    }


def _of_headline(run: CountedRun) -> tuple[float | None, Interval | None]:
    moved, seconds = paced(run, run.config.mode), run.window_s
    return (moved.nbytes / seconds if seconds > 0 else None), moved.interval(seconds)


def _of_percentile(run: CountedRun, until: Until) -> tuple[float | None, Interval | None]:
    assert run.facts.precision is not None
    whole = _histogram(run, until.tag or "")
    batches = grown_shares(run.facts.precision.batches)
    value = whole.percentile(until.percent)
    interval = percentile_interval(whole, until.percent, batches)
    return (
        None if value is None else value / NS_PER_MS,
        interval and Interval(interval.low / NS_PER_MS, interval.high / NS_PER_MS),
    )


def _histogram(run: CountedRun, tag: str) -> Histogram:
    """Return the published values that a tag's percentiles are of."""
    first, kind, *_ = tag.split(".")
    if first == "storage":
        return times(run.ledger.window("storage", OpKind(kind)), "device")
    histogram: Histogram = getattr(getattr(run.facts.measured, kind), f"histogram_{first}")
    return histogram
