"""Conditions that a user sets on a result, for programs that read the exit code (`--fail-on`)."""

from collections.abc import Iterator

from kv_cache.config.sections import FAIL_ON
from kv_cache.metrics.judging import Status
from kv_cache.metrics.passport import VALID
from kv_cache.result.metrics import Json
from kv_cache.result.paths import value_at


def verdict_of(section: Json) -> str | None:
    """Return the verdict of a result of any kind; None if it has none."""
    verdict = value_at(section, "passport.verdict") or section.get("verdict")
    return verdict if isinstance(verdict, str) else None  # a simulation's is on its variants


def broken(section: Json, level: str | None) -> str | None:
    """Say why a result, by the section `kv_cache` of its document, does not hold at this level;
    None if it does."""
    if level is None:
        return None
    verdict = verdict_of(section)
    if verdict == Status.INVALID or (level != Status.INVALID and verdict not in (VALID, None)):
        return f"the verdict is {verdict}"
    return next(_missed(section), None) if level == FAIL_ON[-1] else None


def _missed(section: Json) -> Iterator[str]:
    if value_at(section, "answer.load") == 0:
        yield "no load kept the SLOs"
    for qos, row in (value_at(section, "measured") or {}).items():
        for percentile, slo in (value_at(row, "slos") or {}).items():
            if value_at(slo, "met") is False:
                yield f"{qos} missed its SLO at {percentile} ({value_at(slo, 'target_ms')} ms)"
