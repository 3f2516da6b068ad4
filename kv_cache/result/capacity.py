"""The result of a capacity search: the answer, its interval, the curve, and what limited it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, convert
from msgspec.structs import asdict, replace

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.bounded import Count, Number
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Phase, Qos, Tier
from kv_cache.core.model import ModelShape
from kv_cache.core.units import NS_PER_MS
from kv_cache.metrics.curve import (
    DEVICE_BUSY,
    Bottleneck,
    CurvePoint,
    Limited,
    Pressure,
    knee,
    limit_of,
)
from kv_cache.metrics.evidence import Thresholds
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.passport import VALID, Status
from kv_cache.metrics.slo import Slo, SloMeasure, parse_slos
from kv_cache.metrics.summary import Flows, per_second, total_bytes
from kv_cache.metrics.window import Window
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.difference import differences
from kv_cache.result.model import model_section
from kv_cache.result.published import ModelFacts, Percentiles, WindowMachine
from kv_cache.result.run import SECTION
from kv_cache.result.sections import KINDS
from kv_cache.result.verdicts import FINISHED, status_of
from kv_cache.schedule.capacity import (
    UNCONFIRMED,
    CapacityAnswer,
    CapacitySearch,
    Ended,
    SearchRules,
)
from kv_cache.schedule.probe import Judged, ProbeStatus, ProbeVerdict, SloEstimate, decided

SCHEMA = kinds.CAPACITY


class JudgedSlo(Struct, frozen=True, kw_only=True):
    """How many requests of one probe were over one limit; the interval holds the share with
    95 %."""

    slo: str
    ended: Count | None = None
    share: Number | None = None
    low: Number | None = None
    high: Number | None = None
    allowed: Number | None = None


class CacheState(Struct, frozen=True, kw_only=True):
    """What the cache held when a probe began: what so many rows of a trace before had left.
    `passes` ended in the probe: after each the trace is asked anew, as content of its own."""

    rows_before: Count = 0
    bytes: Count = 0
    passes: Count = 0


class ProbeFacts(Struct, frozen=True, kw_only=True):
    """One probe: its load, what came out, and whether that kept the SLOs."""

    load: Annotated[float, Meta(gt=0, le=1e18)]
    inside: bool
    overloaded: bool = False
    client_bound: bool = False
    probe: Count | None = None
    why: str = ""
    slos: list[JudgedSlo] = []
    seconds: Number | None = None
    offered_per_s: Number | None = None
    completed_per_s: Number | None = None
    storage_read_bytes_per_s: Number | None = None
    storage_write_bytes_per_s: Number | None = None
    response_ms: Percentiles = Percentiles()
    machine: WindowMachine = WindowMachine()
    verdict: str = ""
    reasons: list[str] = []
    reuse_hit_ratio: Number | None = None
    cache_state: CacheState = CacheState()

    @property
    def state(self) -> str:
        """Whether it kept the SLOs, and why not if it did not."""
        if self.inside:
            return "inside"
        if self.client_bound:
            return "client-bound"
        return "overloaded" if self.overloaded else "outside"


class FoundCapacity(Struct, frozen=True, kw_only=True):
    """The answer of a search: the largest load that kept the SLOs, 0 if none did."""

    load: Number
    confirmed: bool = False
    confidence: Number | None = None
    low: Number | None = None
    high: Number | None = None
    reason: str = ""
    requests_per_s: Number | None = None
    output_tokens_per_s: Number | None = None
    storage_read_bytes_per_s: Number | None = None
    storage_write_bytes_per_s: Number | None = None
    goodput_per_s: dict[str, Number | None] = {}


class LimitedBy(Struct, frozen=True, kw_only=True):
    what: str
    why: str


class Knee(Struct, frozen=True, kw_only=True):
    load: Number


class CapacityFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a search."""

    answer: FoundCapacity
    verdict: str
    reasons: list[str] = []
    slo: list[str] = []
    unit: str = "load"
    seed: int | None = None
    driver: str | None = None
    semantics_preset: str | None = None
    model: ModelFacts = ModelFacts()
    limited_by: LimitedBy | None = None
    knee: Knee | None = None
    probes: list[ProbeFacts] = []


class Probe(NamedTuple):
    """What is kept of one probe: what came out, and its row in the result."""

    verdict: ProbeVerdict
    row: Mapping[str, Any]
    pressure: Pressure  # with the probe's own rate as its peak

    @property
    def load(self) -> float:
        return float(self.row["load"])


class Judgement(NamedTuple):
    """What the answer's verdict has of one probe: its load, the SLOs of those who were there, what
    rules found that is not valid, and how often its trace ended."""

    load: float
    estimates: Sequence[SloEstimate]
    findings: Sequence[Mapping[str, Any]]
    passes: int


def probe_of(
    number: int,
    load: float,
    why: str,
    slos: Sequence[Slo],
    verdict: ProbeVerdict,
    outcome: RunOutcome,
    document: Mapping[str, Any],
    cache_state: CacheState,
) -> Probe:
    """Return what is kept of one probe. `document` is the result of its run; neither it nor the
    outcome is kept."""
    section: Mapping[str, Any] = document[SECTION]
    measured, storage = section["measured"], section["tiers"]["storage"]
    seconds, windows = outcome.window_s, outcome.series.of(Phase.MEASURE)
    row = {
        "probe": number,
        "load": load,
        "why": why,
        **_decision(verdict),
        "seconds": seconds,
        "offered_per_s": per_second(sum(w.submitted for w in windows), seconds),
        "completed_per_s": measured["all"]["completed_per_second"],
        "output_tokens_per_s": measured["all"]["output_tokens_per_second"],
        "storage_read_bytes_per_s": storage["read"]["bytes_per_second"],
        "storage_write_bytes_per_s": storage["write"]["bytes_per_second"],
        "response_ms": measured["all"]["response_ms"],
        "classes": {
            qos.value: _class(qos, measured[qos.value], windows, slos, seconds) for qos in Qos
        },
        "users_by_class": {
            qos.value: users
            for qos in Qos
            if (users := outcome.workload.get(f"{qos}_users")) is not None
        },
        "lateness_p99_ms": measured["all"]["lateness_ms"]["p99"],
        "queued_at_end": windows[-1].gauges.queued if windows else 0,
        "machine": _means(windows),
        "seed": section["seed"],
        "schedule_sha256": section["schedule"]["sha256"],
        "verdict": section["passport"]["verdict"],
        "reasons": section["passport"]["reasons"],
        "findings": [
            row
            for row in findings_on_the_answer(section)
            if row["status"] in (Status.INVALID, Status.SUSPECT)
        ],
        "reuse_hit_ratio": section["reuse"]["reuse_hit_ratio"],
        "cache_state": asdict(cache_state),
    }
    return Probe(verdict=verdict, row=row, pressure=_pressure(outcome, slos))


def findings_on_the_answer(section: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what a probe's rules say of the answer. How many requests it takes to judge a load is
    the interval's matter, so that few reads beside many writes, or the reverse, are none of V30's:
    next to no storage at all is."""
    storage = section["tiers"]["storage"]
    ended = sum(storage[kind]["operations"] for kind in KINDS)
    for row in section["passport"]["rules"]:
        if row["rule"] != "V30" or ended < Thresholds().enough_operations:
            yield row


def client_bound(outcome: RunOutcome, judged: Judged, overloaded: bool) -> bool:
    """Whether the client's doing is why a load was not carried: requests came late, and would have
    been within the SLO otherwise; or its cores were full while the device was not."""
    missed = [estimate.slo for estimate in judged.estimates if not estimate.kept]
    if outcome.driver != "real-io" or not (missed or overloaded):
        return False
    pressure = _pressure(outcome, missed or [estimate.slo for estimate in judged.estimates])
    if limit_of(pressure).by is not Bottleneck.CLIENT:
        return False
    late_ns = pressure.lateness_p99_ns or 0.0
    kept = [_latency_ns(outcome, slo) - late_ns <= slo.limit_ns for slo in missed]
    cores_share = (pressure.cores_used or 0.0) / pressure.cores
    full = (pressure.utilisation or 0.0) < DEVICE_BUSY <= cores_share
    return full or (bool(missed) and all(kept))


def _latency_ns(outcome: RunOutcome, slo: Slo) -> float:
    stats = outcome.recorder.classes[slo.qos]
    histogram = stats.ttft if slo.measure is SloMeasure.TTFT else stats.response
    return histogram.at_rank(slo.percent) or 0.0


def capacity_document(
    config: Config,
    model: ModelShape,
    *,
    search: CapacitySearch,
    rules: SearchRules,
    slos: Sequence[Slo],
    unit: str,
    probes: Sequence[Probe],
    seed: int,
    environment: Mapping[str, Any],
    interrupted: str | None,
    death: str | None,
    workload: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the sealed document. Instants are seconds since each probe's own origin; `workload` is
    what the source of each says of itself."""
    answer = search.answer
    rows = [probe.row for probe in probes]
    limited = _limited(answer, probes)
    real = not config.run.virtual_time
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "driver": "real-io" if real else "virtual-time",
        "contains_performance": real,
        "status": status_of(interrupted, death),
        "semantics_preset": config.semantics.preset,
        "seed": seed,
        "slo": [str(slo) for slo in slos],
        "unit": unit,
        "rules": asdict(rules),
        "answer": _answer(answer, rules, unit, rows),
        "limited_by": None if limited is None else {"what": limited.by.value, "why": limited.why},
        "knee": _knee(rows),
        **_verdict(
            answer, slos, [_judgement(p.verdict, p.row) for p in probes], interrupted, death
        ),
        "probes": rows,
        "model": model_section(model, workload or {}),
        "config": to_mapping(config),
        "environment": dict(environment),
    }
    return seal({SECTION: section}, {})


def _verdict(
    answer: CapacityAnswer,
    slos: Sequence[Slo],
    probes: Sequence[Judgement],
    interrupted: str | None,
    death: str | None,
) -> dict[str, Any]:
    """Return verdict and reasons. `client-bound` is a word of its own: the number is true, but only
    a lower bound."""
    deciding = [probes[number] for number in answer.steps] or list(probes[-1:])
    untested = _untested(answer, slos, deciding)
    silent = {
        str(estimate.slo)
        for probe in deciding
        for estimate in probe.estimates
        if not estimate.ended
    }
    reasons = [
        *_ending(answer, interrupted, death),
        *_of_probes(deciding),
        *_of_passes(deciding),
        *_untrusted(answer, untested, silent),
    ]
    words = {row["status"] for probe in deciding for row in probe.findings}
    unsure = answer.load and not (answer.confirmed and answer.low)
    if death is not None or interrupted is not None or Status.INVALID in words or not probes:
        verdict = Status.INVALID.value
    elif answer.ended is Ended.CLIENT:
        verdict = "client-bound"
    elif Status.SUSPECT in words or untested or silent or unsure or any(_of_passes(deciding)):
        verdict = Status.SUSPECT.value
    else:
        verdict = VALID
    return {"verdict": verdict, "reasons": reasons}


def _ending(answer: CapacityAnswer, interrupted: str | None, death: str | None) -> Iterator[str]:
    if interrupted is not None:
        yield f"{interrupted} ended the search before its end"
    if death is not None:
        yield f"the program broke: {death}"
    if not answer.confirmed and answer.load:
        yield next(part for part in answer.reason.split("; ") if part.startswith(UNCONFIRMED))
    if answer.ended is Ended.CLIENT:
        yield "the client makes no more load: the capacity is a lower bound"


def _of_probes(deciding: Sequence[Judgement]) -> Iterator[str]:
    """Yield what rules say of the probes at the answer, the gravest first."""
    for word in (Status.INVALID, Status.SUSPECT):
        sentences: dict[str, list[str]] = {}
        for probe in deciding:
            for row in probe.findings:
                if row["status"] == word:
                    sentences.setdefault(f"{row['rule']} {row['name']}", []).append(row["message"])
        for rule, several in sentences.items():
            count = f"in {len(several)} of the {len(deciding)} probes at the answer"
            yield f"{rule} is {word} {count}: {several[0]}"


def _of_passes(deciding: Sequence[Judgement]) -> Iterator[str]:
    """Yield that a trace was too short for its load: a pass is content of its own, which finds
    nothing stored, so that higher loads would find less again than lower ones."""
    ended = sum(probe.passes > 0 for probe in deciding)
    if ended:
        yield (
            f"in {ended} of the {len(deciding)} probes at the answer the trace ended and began "
            "anew, as content of which nothing was stored, unlike what each probe begins with; "
            "give a longer trace, or a shorter --probe"
        )


def _untrusted(
    answer: CapacityAnswer, untested: Sequence[Qos], silent: Iterable[str]
) -> Iterator[str]:
    if answer.load and not answer.low:
        yield "no load passed with confidence: too few requests ended in the probes; raise --probe"
    for qos in untested:
        yield f"none of the {answer.load:g} users is in class {qos}, so its SLO was not tested"
    for slo in silent:
        yield f"no request of the class of {slo} ended, so it was not judged"


def _untested(
    answer: CapacityAnswer, slos: Sequence[Slo], deciding: Sequence[Judgement]
) -> list[Qos]:
    """Return the classes with an SLO that no user at the answer is in."""
    nearest = min(
        (probe.load for probe in deciding), key=lambda at: abs(at - answer.load), default=0
    )
    at_answer = [probe for probe in deciding if answer.load and probe.load == nearest]
    classes = dict.fromkeys(slo.qos for slo in slos)
    tested = {estimate.slo.qos for probe in at_answer for estimate in probe.estimates}
    return [qos for qos in classes if at_answer and qos not in tested]


def _limited(answer: CapacityAnswer, probes: Sequence[Probe]) -> Limited | None:
    """Return what limited the lowest load above the answer that missed; None if none did."""
    above = [p for p in probes if p.load > answer.load and not p.verdict.inside]
    if not above:
        return None
    nearest = min(above, key=lambda probe: probe.load)
    peak = max(probe.pressure.bytes_per_s for probe in probes)
    pressure = replace(nearest.pressure, peak_bytes_per_s=peak)
    return limit_of(pressure, by_client=nearest.verdict.client_bound)


def _pressure(outcome: RunOutcome, slos: Sequence[Slo]) -> Pressure:
    windows = outcome.series.of(Phase.MEASURE)
    evidence, flows = _means(windows), Flows(outcome.recorder.flows)
    moved = sum(total_bytes(flows.measured(Tier.NVME, kind)) for kind in KINDS)
    rate = per_second(moved, outcome.window_s)
    ended = sum(c.ended for w in windows for c in w.classes.values())
    rejected = sum(c.rejected for w in windows for c in w.classes.values())
    return Pressure(
        bytes_per_s=rate,
        peak_bytes_per_s=rate,
        utilisation=evidence.get("device_utilisation"),
        cores_used=evidence.get("process_cores"),
        cores=evidence.get("cores") or 1.0,
        lateness_p99_ns=outcome.recorder.all.lateness.at_rank(99),
        limit_ns=min((p.limit_ns for p in slos), default=1),
        rejected_share=rejected / ended if ended else 0.0,
        memory_stall_share=evidence.get("memory_pressure_some"),
        busy_cores=evidence.get("host_cores_busy"),
    )


def _means(windows: Sequence[Window]) -> dict[str, float]:
    """Return the means of the machine's numbers over windows, weighted by their length."""
    names = (
        *("device_utilisation", "process_cores", "host_cores_busy", "cores"),
        "memory_pressure_some",
    )
    means = {}
    for name in names:
        some = [(w.machine[name], w.seconds) for w in windows if w.machine.get(name) is not None]
        if some:
            means[name] = sum(v * s for v, s in some) / (sum(s for _, s in some) or 1.0)
    return means


def _estimate(estimate: SloEstimate) -> dict[str, Any]:
    interval = estimate.interval() if estimate.ended else None
    return {
        "slo": str(estimate.slo),
        "ended": estimate.ended,
        "over": estimate.over,
        "share": estimate.share,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "allowed": estimate.slo.allowed_share,
        "inflation": estimate.inflation,
        "dof": estimate.dof,
        "correlation": estimate.correlation,
        "effect": estimate.effect,
    }


def _class(
    qos: Qos,
    measured: Mapping[str, Any],
    windows: Sequence[Window],
    slos: Sequence[Slo],
    seconds: float,
) -> dict[str, Any]:
    """Return the numbers of one class. Goodput is of requests within every limit of their class,
    None if it has no limit. Which of several limits a request missed is not kept, so the limit that
    most requests missed counts: with one limit it is exact."""
    mine = [window.classes[qos] for window in windows]
    ended = sum(c.ended for c in mine)
    over = [sum(c.over[i] for c in mine) for i, p in enumerate(slos) if p.qos is qos]
    return {
        "ended": ended,
        "completed_per_s": measured["completed_per_second"],
        "goodput_per_s": per_second(ended - max(over), seconds) if over else None,
        "response_ms": measured["response_ms"],
        "ttft_ms": measured["ttft_ms"],
    }


def _answer(
    answer: CapacityAnswer, rules: SearchRules, unit: str, probes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    rows = [probes[number] for number in answer.steps]
    return {
        "load": answer.load,
        "unit": unit,
        "confirmed": answer.confirmed,
        "confidence": rules.confidence,
        "low": answer.low,
        "high": answer.high,
        "ended": answer.ended.value,
        "broken_above": None if answer.limited is None else str(answer.limited),
        "reason": answer.reason,
        "probes": [row["probe"] for row in rows],
        "seconds_to_narrow": answer.seconds_to_narrow,
        "requests_per_s": _mean(rows, "offered_per_s"),
        "output_tokens_per_s": _mean(rows, "output_tokens_per_s"),
        "storage_read_bytes_per_s": _mean(rows, "storage_read_bytes_per_s"),
        "storage_write_bytes_per_s": _mean(rows, "storage_write_bytes_per_s"),
        "goodput_per_s": {
            qos.value: _mean([row["classes"][qos.value] for row in rows], "goodput_per_s")
            for qos in Qos
            if rows and rows[0]["classes"][qos.value]["goodput_per_s"] is not None
        },
        "users_by_class": _users_at(answer.load, rows),
    }


def _knee(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None] | None:
    bend = knee(
        CurvePoint(
            load=row["load"],
            throughput_per_s=row["completed_per_s"],
            response_ns=(row["response_ms"]["mean"] or 0) * NS_PER_MS,
        )
        for row in rows
    )
    return None if bend is None else {"load": bend.load, "power": bend.power}


def recheck_capacity(document: Mapping[str, Any]) -> list[str]:
    """Return what in a search does not follow from what its probes saw, one sentence each: it is
    made again, from load to load."""
    try:
        return list(_unlike_its_probes(document[SECTION]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError):
        return ["kv_cache.answer or kv_cache.probes lacks what every search has"]
    except ConfigError as error:
        return [f"kv_cache.rules: {error}"]


def _unlike_its_probes(section: Mapping[str, Any]) -> Iterator[str]:
    rules, rows = convert(section["rules"], SearchRules), section["probes"]
    search = CapacitySearch(rules)
    again: list[dict[str, Any]] = []
    judged: list[Judgement] = []
    for row in rows:
        if row["load"] != search.next_load():
            yield (
                f"kv_cache.probes[{len(again)}].load says {row['load']:g}, but after the probes "
                f"before it the search asks for {search.next_load()}"
            )
            return
        verdict = _verdict_of(row)
        search.report(row["load"], verdict, row["seconds"])
        again.append({**row, **_decision(verdict), "probe": len(again) + 1})
        judged.append(_judgement(verdict, row))
    made_again = {
        "answer": _answer(search.answer, rules, section["unit"], rows),
        "knee": _knee(rows),
        "probes": again,
        "verdict": Status.INVALID.value,
    }
    if section["status"] == FINISHED:
        slos = [slo for text in section["slo"] for slo in parse_slos(text)]
        made_again |= _verdict(search.answer, slos, judged, None, None)
        if (load := search.next_load()) is not None:
            yield f"kv_cache.probes ends where the search asks for a load of {load:g}"
    stored = {name: section[name] for name in made_again}
    for difference in differences({SECTION: stored}, {SECTION: made_again}):
        yield difference.message("what the probes saw")


def _verdict_of(row: Mapping[str, Any]) -> ProbeVerdict:
    names = ("over", "ended", "inflation", "dof", "correlation", "effect")
    estimates = tuple(
        SloEstimate(slo=parse_slos(each["slo"])[0], **{name: each[name] for name in names})
        for each in row["slos"]
    )
    judged = Judged(estimates=estimates, status=ProbeStatus(row["status"]), batches=row["batches"])
    return ProbeVerdict(
        judged=judged,
        overloaded=row["overloaded"],
        client_bound=row["client_bound"],
        served_share=row["served_share"],
        offered=row["load_that_came"],
    )


def _judgement(verdict: ProbeVerdict, row: Mapping[str, Any]) -> Judgement:
    passes = row["cache_state"]["passes"]
    return Judgement(row["load"], verdict.judged.estimates, row["findings"], passes)


def _decision(verdict: ProbeVerdict) -> dict[str, Any]:
    return {
        "inside": verdict.inside,
        "status": verdict.judged.status.value,
        "decided": decided(verdict.judged).value,
        "overloaded": verdict.overloaded,
        "client_bound": verdict.client_bound,
        "slos": [_estimate(estimate) for estimate in verdict.judged.estimates],
        "batches": verdict.judged.batches,
        "served_share": verdict.served_share,
        "load_that_came": verdict.offered,
    }


def _users_at(load: float, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return how many users of each class were there, of the probe nearest to the answer."""
    nearest = min(rows, key=lambda row: abs(row["load"] - load), default=None)
    return None if nearest is None else nearest["users_by_class"]


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return sum(row[name] for row in rows) / len(rows) if rows else None
