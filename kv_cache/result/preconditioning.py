"""What preconditioning did to a device: the fill, the rounds, and whether their speed is steady."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.bounded import Number
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.steady import fill_discarded
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.run import SECTION
from kv_cache.result.verdicts import status_of

SCHEMA = kinds.PRECONDITIONING

STEADY, NOT_STEADY = "steady", "not-steady"
NOT_PROVEN, NOT_LOOKED_FOR = "not-proven", "not-looked-for"
"""Rounds without a full fill prove nothing: a fresh drive is steady as long as it is fresh."""


class FillRow(Struct, frozen=True, kw_only=True):
    """One stretch of the fill."""

    start_s: Number
    end_s: Number
    bytes: Number
    bytes_per_second: Number


class FillFacts(Struct, frozen=True, kw_only=True):
    """The fill: what was written over which area."""

    bytes: Number = 0.0
    wanted_bytes: Number | None = None
    area_bytes: Number | None = None
    seconds: Number | None = None
    passes: Number | None = None
    engine: str = ""
    rows: list[FillRow] = []


class RoundRow(Struct, frozen=True, kw_only=True):
    """One round after the fill."""

    round: int
    bytes_per_second: Number
    read_p95_ms: Number | None = None
    write_p95_ms: Number | None = None
    completed: int | None = None


class SteadyProof(Struct, frozen=True, kw_only=True):
    """Whether the last five rounds are steady, and by which rule."""

    rule: str = ""
    average: Number | None = None
    range_share: Number | None = None
    slope_share: Number | None = None
    steady: bool = False
    lacks: list[str] = []
    since_round: int | None = None
    unjudged: list[str] = []

    @property
    def unproven(self) -> list[str]:
        """Why rounds that keep the rule prove nothing, beside the fill."""
        return [*self.lacks, *self.unjudged]


class Preconditioned(Struct, frozen=True, kw_only=True):
    """The section `preconditioning` of a run or of `precondition`."""

    fill: FillFacts | None = None
    rounds: list[RoundRow] | None = None
    proof: SteadyProof | None = None
    open_loop: bool = False


class PreconditionFacts(Struct, frozen=True, kw_only=True):
    """What is shown of the command's document."""

    status: str
    verdict: str
    reasons: list[str]
    preconditioning: Preconditioned
    seed: int | None = None
    driver: str | None = None


def precondition_document(
    config: Config, outcome: RunOutcome, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the sealed document."""
    done = dict(outcome.preconditioning or {})
    verdict, reasons = _verdict(config, outcome, done)
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "driver": outcome.driver,
        "status": status_of(outcome.interrupted, outcome.death),
        "seed": outcome.seed,
        "verdict": verdict,
        "reasons": reasons,
        "preconditioning": done,
        "workload": dict(outcome.workload),
        "config": to_mapping(config),
        "environment": dict(environment),
    }
    return seal({SECTION: section}, {})


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
    discarded = outcome.kernel.get("run", {}).get("device_discard_bytes")
    tolerated = config.passport.thresholds().counter_tolerance
    reasons += fill_discarded(discarded, fill.get("area_bytes"), tolerated)
    if fill.get("discard"):
        reasons.append(
            "the file system is mounted with discard: the blocks of the fill were given back to "
            "the drive when its files were removed, so it may be fresh again; mount with nodiscard"
        )
    if not config.precondition.max_rounds:
        return NOT_LOOKED_FOR, [*reasons, "no rounds were wanted (--max-rounds 0)"]
    if proof is None or not proof["steady"]:
        rounds_run = "fewer than five" if proof is None else f"after {len(rounds)}"
        lacks = (proof or {}).get("lacks") or ["raise --max-rounds or --round"]
        reasons.append(f"not steady: {rounds_run} rounds; {'; '.join(lacks)}")
        return NOT_STEADY, reasons
    reasons += proof["unjudged"]
    return (NOT_PROVEN if reasons else STEADY), reasons
