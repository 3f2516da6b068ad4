"""Several runs of one configuration as one document: `run --trials N`.

Each trial is a whole run with a seed of its own, derived from the master seed, and has its own
result file. The document of all says how far the trials agree: for each metric every value, median,
mean with its interval, and coefficient of variation. A trial that did not finish gives no numbers,
and its absence makes the whole invalid.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.core.bounded import Number
from kv_cache.core.seed import Seed
from kv_cache.core.text import printable
from kv_cache.metrics.intervals import CONFIDENCE, IntervalEnds
from kv_cache.metrics.passport import VALID, Status, Verdict
from kv_cache.result import kinds
from kv_cache.result.chain import fingerprint, seal
from kv_cache.result.metrics import HEADLINES, METRICS, Json, over_runs
from kv_cache.result.paths import number_at
from kv_cache.result.published import Passport
from kv_cache.result.run import SECTION
from kv_cache.result.verdicts import FINISHED, Look, rule_of, verdict_of, worst
from kv_cache.result.verify import recheck, unlike_again

SCHEMA = kinds.TRIALS
MOST_CV = 0.05
"""Above this coefficient of variation of the headline the verdict is suspect: MLPerf Storage asks
of five runs that they replicate within 5 %."""


class RunPrecision(Struct, frozen=True, kw_only=True):
    """How sure one of several runs was of the figure of --until."""

    figure: str
    share: Number
    half_width: Number | None
    reached: bool


def precision_part(section: Json) -> dict[str, Any]:
    """Return `precision` of a run's result for its row among several; nothing without --until."""
    known = section.get("precision")
    names = RunPrecision.__struct_fields__
    return {"precision": {name: known[name] for name in names}} if known else {}


class TrialRow(Struct, frozen=True, kw_only=True):
    """One trial, and why it does not count if it does not."""

    trial: int
    file: str
    seed: int
    status: str
    counted: bool
    verdict: str
    reasons: list[str]
    window_s: Number
    precision: RunPrecision | None = None


class TrialNumbers(Struct, frozen=True, kw_only=True):
    """One metric of all trials, in its stored unit."""

    values: list[Number | None]
    median: Number
    mean: Number
    interval: IntervalEnds | None
    coefficient_of_variation: Number | None
    at_least: bool = False


class TrialVariance(Struct, frozen=True, kw_only=True):
    """Standard deviations of the headline, as shares of its mean."""

    trials: int
    all: Number
    within_run: Number
    between_runs: Number


class TrialFacts(Struct, frozen=True, kw_only=True):
    """What is shown of trials."""

    passport: Passport
    planned: int
    finished: int
    seed: int | None = None
    driver: str | None = None
    headline: str | None = None
    variance: TrialVariance | None = None
    trials: list[TrialRow]
    metrics: dict[str, TrialNumbers]


def identity(section: Json) -> dict[str, Any]:
    """Return what two results must share to be comparable, beside the schedule, by name.

    `own` is the section `kv_cache` of a result. A model's `source` only says where it was read.
    """
    model, config = dict(_mapping(section, "model")), _mapping(section, "config")
    model.pop("source", None)
    return {
        "schema": section.get("schema"),
        "driver": section.get("driver"),
        "mode": _mapping(config, "run").get("mode"),
        **_named("model", model),
        "semantics preset": section.get("semantics_preset"),
        **_named("semantics", _mapping(section, "semantics")),
    }


def place_of(section: Json) -> str:
    """Return where a run was: its machine, and what is mounted below each cache directory."""
    machine = _mapping(section, "environment")
    drives = machine.get("drives")
    sources = [
        str(_mapping(each, "filesystem").get("source") or _mapping(each, "device").get("name"))
        for each in (drives if isinstance(drives, list) else [])
        if isinstance(each, Mapping)
    ]
    return " ".join([f"host {machine.get('hostname')},", *dict.fromkeys(sources)]).rstrip(",")


def _mapping(value: Json, name: str) -> Json:
    inner = value.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _named(prefix: str, values: Json) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


# --- the document of all ---------------------------------------------------------------------


def trial_seed(master: int, trial: int) -> int:
    """Return the seed (32 bits) of a trial, counted from 1."""
    return Seed(master).child("trial", trial).integer() % 2**32


def aggregate(
    documents: Sequence[Json],
    files: Mapping[str, str],
    *,
    master_seed: int,
    planned: int,
    cooldown_s: float = 0.0,
) -> dict[str, Any]:
    """Build the sealed document of all trials, in the order in which they ran.

    `documents` are the trials' results as they were written, `files` the SHA-256 of each one's file
    by name, in the same order. `planned` may be more than there are: a signal ended the series.
    Raises ValueError if these are no trials of one configuration.
    """
    _check(documents, files, planned)
    rows = [
        _trial(number, document, name, sha)
        for number, (document, (name, sha)) in enumerate(
            zip(documents, files.items(), strict=True), start=1
        )
    ]
    sections = [document[SECTION] for document in documents]
    counted = [section for section in sections if section["status"] == FINISHED]
    metrics = {
        name: numbers
        for name, metric in METRICS.items()
        if (
            numbers := over_runs(
                metric, list(map(metric.value, counted)), any(map(metric.at_least, counted))
            )
        )
    }
    headline = _headline(metrics, len(counted))
    places = [place_of(section) for section in sections]
    verdict = _verdict(rows, planned, master_seed, places, metrics.get(headline or ""), headline)
    first = documents[0][SECTION]
    same = ("driver", "semantics_preset", "contains_performance", "model", "semantics", "workload")
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "result_schema": first["schema"],
        **{name: first[name] for name in same},
        "seed": master_seed,
        "planned": planned,
        "finished": len(counted),
        "cooldown_s": cooldown_s,
        "confidence": CONFIDENCE,
        "headline": headline,
        "variance": _variance(counted),
        "most_cv": MOST_CV,
        "passport": verdict.to_json(),
        "trials": rows,
        "metrics": metrics,
        "config": first["config"],  # of the first trial, as is the environment
        "environment": first["environment"],
    }
    return seal({SECTION: section}, files)


def recheck_trials(
    document: Json, results: Mapping[str, Json], digests: Mapping[str, str]
) -> list[str]:
    """Return what in a document of trials does not follow from the trials' results, or in one of
    these from the rest of it. `results` are by the names of their files, as are their `digests`.
    Never fails, whatever the documents are."""
    deviations = [
        f"{name}: {sentence}" for name, each in results.items() for sentence in recheck(each)
    ]
    section = document[SECTION]
    try:
        files = {str(row["file"]): digests[row["file"]] for row in section["trials"]}
        again = aggregate(
            [results[name] for name in files], files,
            master_seed=section["seed"], planned=section["planned"],
            cooldown_s=section["cooldown_s"],
        )  # fmt: skip
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return [*deviations, f"these files are no trials of one series: {printable(str(error))}"]
    return deviations + unlike_again(section, again[SECTION], "the trials' results")


def _variance(sections: Sequence[Json]) -> dict[str, Any] | None:
    """Return how far the trials' headlines spread, and how much of that the end of each window
    leaves open; the rest is how runs differ. Standard deviations, as shares of the mean. None where
    fewer than two trials have an interval of their own."""
    known = [
        (value, error)
        for section in sections
        if (value := number_at(section, "headline.bytes_per_second"))
        and (error := number_at(section, "headline.standard_error")) is not None
    ]
    if len(known) < 2:
        return None
    mean = fmean(value for value, _ in known)
    whole = variance(value for value, _ in known)
    within = fmean(error**2 for _, error in known)
    return {
        "trials": len(known),
        "all": sqrt(whole) / mean,
        "within_run": sqrt(within) / mean,
        "between_runs": sqrt(max(0.0, whole - within)) / mean,
    }


def _check(documents: Sequence[Json], files: Mapping[str, str], planned: int) -> None:
    if not documents or len(documents) != len(files) or len(documents) > planned:
        raise ValueError(f"{len(documents)} results in {len(files)} files of {planned} trials")
    same = identity(documents[0][SECTION])
    for number, document in enumerate(documents, start=1):
        if identity(document[SECTION]) != same:
            raise ValueError(f"trial {number} differs from trial 1 in more than its seed")


def _trial(number: int, document: Json, name: str, sha: str) -> dict[str, Any]:
    section = document[SECTION]
    return {
        "trial": number,
        "file": name,
        "sha256": sha,
        "fingerprint": fingerprint(document),
        "seed": section["seed"],
        "schedule_sha256": section["schedule"]["sha256"],
        "started_utc": section["started_utc"],
        "window_s": section["window_s"],
        "status": section["status"],
        "counted": section["status"] == FINISHED,
        "verdict": section["passport"]["verdict"],
        "reasons": list(section["passport"]["reasons"]),
        **precision_part(section),
    }


def _headline(metrics: Json, trials: int) -> str | None:
    def everywhere(name: str) -> bool:
        values = metrics[name]["values"] if name in metrics else []
        return trials > 0 and len(values) == trials and all(values)

    return next((name for name in HEADLINES if everywhere(name)), None)


# --- the verdict -----------------------------------------------------------------------------

NAMES: Mapping[str, str] = {"T1": "completeness", "T2": "trials", "T3": "repeatability"}


def _verdict(
    rows: Sequence[Json],
    planned: int,
    master_seed: int,
    places: Sequence[str],
    numbers: Json | None,
    headline: str | None,
) -> Verdict:
    looks = {
        "T1": _complete(rows, planned, master_seed, places),
        "T2": _each(rows),
        "T3": _repeatable(rows, numbers, headline),
    }
    return verdict_of(NAMES, looks)


def _complete(rows: Sequence[Json], planned: int, master_seed: int, places: Sequence[str]) -> Look:
    broken = [f"trial {row['trial']} was {row['status']}" for row in rows if not row["counted"]]
    broken += [
        f"trial {row['trial']} has a seed that does not follow from {master_seed}, as if another "
        "was left out"
        for row in rows
        if row["seed"] != trial_seed(master_seed, row["trial"])
    ]
    broken += [
        f"trial {row['trial']} was on {place}, and trial 1 on {places[0]}"
        for row, place in zip(rows, places, strict=True)
        if place != places[0]
    ]
    missing = planned - len(rows)
    if missing:
        several = f"trials {len(rows) + 1} to {planned} have"
        broken.append(f"{f'trial {planned} has' if missing == 1 else several} no result")
    if not broken:
        return Status.PASS, f"all {planned} trials finished"
    finished = f"{sum(row['counted'] for row in rows)} of {planned} trials finished"
    return Status.INVALID, f"{finished}: {', '.join(broken)}; run all of them again"


def _each(rows: Sequence[Json]) -> Look:
    verdict = worst([row["verdict"] for row in rows])
    if verdict == VALID:
        return Status.PASS, "every trial is valid by its own rules"
    trials_of: dict[tuple[str, str], tuple[list[str], str]] = {}
    for row in rows:
        for reason in row["reasons"]:
            trials, _ = trials_of.setdefault((row["verdict"], rule_of(reason)), ([], reason))
            trials.append(str(row["trial"]))
    return Status(verdict), "; ".join(
        f"trial{'s' if len(trials) > 1 else ''} {', '.join(trials)} "
        f"{'are' if len(trials) > 1 else 'is'} {word} ({reason})"
        for (word, _), (trials, reason) in trials_of.items()
    )


def _repeatable(rows: Sequence[Json], numbers: Json | None, headline: str | None) -> Look:
    spread = None if numbers is None else numbers["coefficient_of_variation"]
    if headline is None or numbers is None or spread is None:
        return Status.NOT_JUDGED, "fewer than two trials have a headline to compare"
    metric = METRICS[headline]
    varies = f"{metric.label} varies by {100 * spread:.1f} % between trials (CV)"
    if spread <= MOST_CV:
        return Status.PASS, f"{varies}, at most {100 * MOST_CV:g} % are allowed"
    number, value = _furthest(rows, numbers)
    return Status.SUSPECT, (
        f"{varies}, more than {100 * MOST_CV:g} %: trial {number} with {metric.shown(value)} "
        f"{metric.shown_unit} is furthest from the median of {metric.shown(numbers['median'])}; "
        "find what else the machine or the drive did then, or run more and longer trials"
    )


def _furthest(rows: Sequence[Json], numbers: Json) -> tuple[int, float]:
    counted = [row["trial"] for row in rows if row["counted"]]
    pairs = zip(counted, numbers["values"], strict=True)
    return max(pairs, key=lambda pair: abs(pair[1] - numbers["median"]))
