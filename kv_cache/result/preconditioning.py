"""What preconditioning did to a device: the fill, the rounds, and whether their speed is steady."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import from_mapping, to_mapping
from kv_cache.core.bounded import Number
from kv_cache.core.errors import ConfigError
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.steady import Round, fill_discarded, proof
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.difference import differences
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


_BROKE, _CUT_SHORT = "the program broke: ", " ended it before its end"


def precondition_document(
    config: Config, outcome: RunOutcome, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the sealed document."""
    done = dict(outcome.preconditioning or {})
    discarded = outcome.kernel.get("run", {}).get("device_discard_bytes")
    ended = [] if outcome.death is None else [f"{_BROKE}{outcome.death}"]
    if outcome.interrupted is not None:
        ended.append(f"{outcome.interrupted}{_CUT_SHORT}")
    verdict, reasons = _verdict(config, ended, done, discarded)
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "driver": outcome.driver,
        "status": status_of(outcome.interrupted, outcome.death),
        "seed": outcome.seed,
        "verdict": verdict,
        "reasons": reasons,
        "preconditioning": done,
        "discarded_bytes": discarded,
        "workload": dict(outcome.workload),
        "config": to_mapping(config),
        "environment": dict(environment),
    }
    return seal({SECTION: section}, {})


def _verdict(
    config: Config, ended: Sequence[str], done: Mapping[str, Any], discarded: float | None
) -> tuple[str, list[str]]:
    """Return verdict and reasons. `ended`: why it ended early."""
    fill, rounds, shown = done.get("fill") or {}, done.get("rounds") or [], done.get("proof")
    reasons = [*ended]
    if fill and fill["bytes"] < fill["wanted_bytes"]:
        reasons.append("the fill is not complete")
    least = config.passport.thresholds().least_fill_times
    if fill and fill["bytes"] < least * fill["area_bytes"]:
        reasons.append(
            f"the fill wrote less than {least:g} times the capacity: the drive may be fresh; leave "
            "--precondition-size-gb out"
        )
    tolerated = config.passport.thresholds().counter_tolerance
    reasons += fill_discarded(discarded, fill.get("area_bytes"), tolerated)
    if fill.get("discard"):
        reasons.append(
            "the file system is mounted with discard: the blocks of the fill were given back to "
            "the drive when its files were removed, so it may be fresh again; mount with nodiscard"
        )
    if not config.precondition.max_rounds:
        return NOT_LOOKED_FOR, [*reasons, "no rounds were wanted (--max-rounds 0)"]
    if shown is None or not shown["steady"]:
        rounds_run = "fewer than five" if shown is None else f"after {len(rounds)}"
        lacks = (shown or {}).get("lacks") or ["raise --max-rounds or --round"]
        reasons.append(f"not steady: {rounds_run} rounds; {'; '.join(lacks)}")
        return NOT_STEADY, reasons
    reasons += shown["unjudged"]
    return (NOT_PROVEN if reasons else STEADY), reasons


def recheck_preconditioning(document: Mapping[str, Any]) -> list[str]:
    """Return what in the document of a preconditioning does not follow from its fill and rounds.
    Never fails."""
    section = document[SECTION]
    try:
        config = from_mapping(Config, section["config"])
        return list(_unlike_its_rounds(section, config))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError):
        return ["kv_cache.preconditioning lacks what every preconditioning has"]
    except ConfigError as error:
        return [f"kv_cache.config: {error}"]


def _unlike_its_rounds(section: Mapping[str, Any], config: Config) -> Iterator[str]:
    done = section["preconditioning"]
    names = Round.__struct_fields__
    rounds = [Round(**{name: row[name] for name in names}) for row in done.get("rounds") or []]
    again = dict(done)
    if "rounds" in done:
        again["rounds"] = [each.row(number) for number, each in enumerate(rounds, 1)]
        again["proof"] = proof(
            rounds,
            open_loop=done["open_loop"],
            capacity_bytes=done["capacity_bytes"],
            limits=config.passport.thresholds().rounds,
        )
    ended = [text for text in section["reasons"] if text.startswith(_BROKE)]
    ended += [text for text in section["reasons"] if text.endswith(_CUT_SHORT)]
    verdict, reasons = _verdict(config, ended, again, section["discarded_bytes"])
    expected = {"preconditioning": again, "verdict": verdict, "reasons": reasons}
    stored = {name: section[name] for name in expected}
    for difference in differences({SECTION: stored}, {SECTION: expected}):
        yield difference.message("the fill and the rounds")
