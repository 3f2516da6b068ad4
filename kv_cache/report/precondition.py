"""What preconditioning did to a device: the fill, the rounds, and whether their speed is steady."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.units import GIB, MISSING
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.chain import seal

SCHEMA = "kv-cache-precondition/1"
SECTION = "kv_cache"

STEADY, NOT_STEADY = "steady", "not-steady"
NOT_PROVEN, NOT_LOOKED_FOR = "not-proven", "not-looked-for"
"""Rounds without a full fill prove nothing: a fresh drive is steady as long as it is fresh."""


def precondition_document(
    config: Config, outcome: RunOutcome, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The sealed document."""
    done = dict(outcome.preconditioning or {})
    verdict, reasons = _verdict(config, outcome, done)
    own = {
        "schema": SCHEMA,
        "program_version": __version__,
        "driver": outcome.driver,
        "status": "broken"
        if outcome.death
        else "interrupted"
        if outcome.interrupted
        else "finished",
        "seed": outcome.seed,
        "verdict": verdict,
        "reasons": reasons,
        "preconditioning": done,
        "workload": dict(outcome.workload),
        "config": to_mapping(config),
        "environment": dict(environment),
    }
    return seal({SECTION: own}, {})


def _verdict(config: Config, outcome: RunOutcome, done: Mapping[str, Any]) -> tuple[str, list[str]]:
    fill, rounds, proof = done.get("fill") or {}, done.get("rounds") or [], done.get("proof")
    reasons = []
    if outcome.death is not None:
        reasons.append(f"the program broke: {outcome.death}")
    if outcome.interrupted is not None:
        reasons.append(f"{outcome.interrupted} ended it before its end")
    if fill and fill["bytes"] < fill["wanted_bytes"]:
        reasons.append("the fill is not complete")
    least = config.passport.thresholds().least_fill_times
    if fill and fill["bytes"] < least * fill["area_bytes"]:
        reasons.append(
            f"the fill wrote less than {least:g} times the capacity: the drive may be fresh; leave "
            "--precondition-size-gb out"
        )
    if fill.get("discard"):
        reasons.append(
            "the file system is mounted with discard: the blocks of the fill were given back to "
            "the drive when its files were removed, so it may be fresh again; mount with nodiscard"
        )
    if not config.precondition.max_rounds:
        return NOT_LOOKED_FOR, [*reasons, "no rounds were wanted (--max-rounds 0)"]
    if proof is None or not proof["steady"]:
        said = "fewer than five" if proof is None else f"after {len(rounds)}"
        reasons.append(f"not steady: {said} rounds; raise --max-rounds or --round")
        return NOT_STEADY, reasons
    return (NOT_PROVEN if reasons else STEADY), reasons


def precondition_text(document: Mapping[str, Any], path: str) -> str:
    """The rounds and the verdict."""
    own = document[SECTION]
    done = own["preconditioning"]
    lines = [*_fill(done.get("fill")), *_rounds(done), ""]
    lines += [f"verdict   {own['verdict'].upper()}", *(f"  ! {why}" for why in own["reasons"])]
    return "\n".join([*lines, "", f"result    {path}"])


def _fill(fill: Mapping[str, Any] | None) -> Iterator[str]:
    if fill is None:
        return
    rate = fill["bytes"] / fill["seconds"] / GIB if fill["seconds"] else 0.0
    yield (
        f"fill      {fill['bytes'] / GIB:.2f} of {fill['wanted_bytes'] / GIB:.2f} GiB in "
        f"{fill['seconds']:.1f} s ({rate:.2f} GiB/s), {fill['passes']} passes over "
        f"{fill['area_bytes'] / GIB:.2f} GiB, {fill['engine']}"
    )


def _rounds(done: Mapping[str, Any]) -> Iterator[str]:
    rounds, proof = done.get("rounds") or [], done.get("proof")
    if rounds:
        yield ""
        yield f"{'round':>7}{'GiB/s':>9}{'read p95 ms':>13}{'write p95 ms':>14}{'requests':>10}"
    for row in rounds:
        yield (
            f"{row['round']:>7}{row['bytes_per_second'] / GIB:>9.3f}"
            f"{_ms(row['read_p95_ms']):>13}{_ms(row['write_p95_ms']):>14}{row['completed']:>10}"
        )
    if proof is not None and proof["average"] is not None:
        yield (
            f"steady?   last five: range {proof['range_share']:.1%} of the average (at most 20 % "
            f"by default), line changes by {proof['slope_share']:.1%} (10 %)"
        )


def _ms(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"
