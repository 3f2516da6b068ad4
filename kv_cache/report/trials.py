"""Several runs of one configuration as one document: `run --trials N`.

Each trial is a whole run with a seed of its own, derived from the master seed, and has its own
result file. The document of all says how far the trials agree: for each metric every value, median,
mean with its interval, and coefficient of variation. A trial that did not finish gives no numbers,
and its absence makes the whole invalid.

`METRICS` is the one list of what trials, and `compare`, look at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import Any

from kv_cache import __version__
from kv_cache.core.format import figures
from kv_cache.core.kinds import Qos
from kv_cache.core.seed import Seed
from kv_cache.core.units import AT_LEAST, GIB, MISSING
from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.intervals import bounded_interval, coefficient_of_variation, geometric_mean
from kv_cache.metrics.passport import VALID, Finding, Status, Verdict
from kv_cache.result.chain import fingerprint, seal

SCHEMA = "kv-cache-trials/1"
SECTION = "kv_cache"

CONFIDENCE = 0.95
MOST_CV = 0.05
"""Above this coefficient of variation of the headline the verdict is suspect: MLPerf Storage asks
of five runs that they replicate within 5 %."""

FINISHED = "finished"
HIGHER, LOWER = "higher", "lower"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a result.

    `value` takes it from the section `kv_cache` of a result, `batch` from some windows of its
    series; both give None where there is nothing to tell it from. Values of which one is less than
    `resolution` (a share) above the other cannot be told apart, however often they are measured.
    """

    name: str
    unit: str
    better: str
    value: Callable[[Json], float | None]
    batch: Callable[[Sequence[Json]], float | None] | None = None
    label: str
    shown_unit: str
    scale: float = 1.0  # of the unit in one of the unit shown
    most: float = inf  # 1 of a share; nothing here is below 0
    resolution: float = 0.0
    path: str | None = None  # of a percentile, beside which a section lists its lower bounds

    def shown_in(self, own: Json) -> str:
        """As `shown`, of a section, marked where it is a lower bound."""
        where, _, percentile = (self.path or "").rpartition(".")
        bounds = words_at(own, f"{where}.at_least")
        return f"{AT_LEAST if percentile in bounds else ''}{self.shown(self.value(own))}"

    def mean(self, values: Sequence[float]) -> float:
        """Of several runs: the geometric mean, as `compare` takes it; of shares the mean."""
        return geometric_mean(values) if self.most == inf else fmean(values)

    def shown(self, value: float | None) -> str:
        """In the unit for people."""
        return figures(None if value is None else value / self.scale)


# --- what is looked at -----------------------------------------------------------------------


def _at(section: Json, path: str) -> Any:
    value: Any = section
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def words_at(section: Json, path: str) -> list[Any]:
    """The list at a dotted path; empty where there is none."""
    value = _at(section, path)
    return value if isinstance(value, list) else []


def number_at(section: Json, path: str) -> float | None:
    """The number at a dotted path; None where there is none."""
    value = _at(section, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _if_any(path: str, count: str) -> Callable[[Json], float | None]:
    """The number at `path`, if the one at `count` says that there was something: a result has 0
    for the percentiles of nothing."""
    return lambda own: number_at(own, path) if number_at(own, count) else None


def _each_second(path: str) -> Callable[[Json], float | None]:
    def value(own: Json) -> float | None:
        summed = number_at(own, f"{path}_per_second")  # of ranks, whose rates add up
        if summed is not None:
            return summed
        amount, seconds = number_at(own, path), number_at(own, "window_s")
        return None if amount is None or not seconds else amount / seconds

    return value


def _storage_rate(*kinds: str) -> Callable[[Json], float | None]:
    def value(own: Json) -> float | None:
        rates = [number_at(own, f"tiers.storage.{kind}.bytes_per_second") for kind in kinds]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    return value


def _batch_rate(*paths: str) -> Callable[[Sequence[Json]], float | None]:
    """Of what windows counted, in each second of theirs. A window does not name what it had none
    of."""

    def value(windows: Sequence[Json]) -> float | None:
        seconds = sum(length_s(window) for window in windows)
        amount = sum(number_at(window, path) or 0.0 for window in windows for path in paths)
        return amount / seconds if seconds > 0 else None

    return value


def _batch_median(path: str) -> Callable[[Sequence[Json]], float | None]:
    """The median of the windows' own percentiles: those of a batch as a whole are not known."""

    def value(windows: Sequence[Json]) -> float | None:
        found = [number_at(window, path) for window in windows]
        known = [number for number in found if number is not None]
        return median(known) if known else None

    return value


def length_s(window: Json) -> float:
    """Seconds of one row of a result's series."""
    start, end = number_at(window, "start_s"), number_at(window, "end_s")
    return 0.0 if start is None or end is None else max(0.0, end - start)


def _bandwidth(name: str, label: str, *kinds: str) -> Metric:
    return Metric(
        name=name,
        unit="bytes/s",
        better=HIGHER,
        value=_storage_rate(*kinds),
        batch=_batch_rate(*(f"tiers.storage.{kind}.bytes" for kind in kinds)),
        label=label,
        shown_unit="GiB/s",
        scale=GIB,
    )


def _rate(name: str, label: str, counted: str, in_window: str, unit: str) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        better=HIGHER,
        value=_each_second(counted),
        batch=_batch_rate(in_window),
        label=label,
        shown_unit=unit,
    )


def _latency(name: str, label: str, path: str, count: str, in_window: str | None) -> Metric:
    return Metric(
        name=name,
        unit="ms",
        better=LOWER,
        value=_if_any(path, count),
        batch=None if in_window is None else _batch_median(in_window),
        label=label,
        shown_unit="ms",
        resolution=2 * RELATIVE_ERROR,  # one of each side
        path=path,
    )


def _device(kind: str, percentile: str) -> Metric:
    where = f"tiers.storage.{kind}"
    return _latency(
        f"storage.{kind}.device_ms.{percentile}",
        f"storage {kind} device {percentile}",
        f"{where}.device_ms.{percentile}",
        f"{where}.operations",
        f"{where}.{percentile}_ms",
    )


def _request(latency: str, label: str, percentile: str, qos: str | None = None) -> Metric:
    """Windows tell the latencies of classes apart, and none of all of them."""
    who = "" if qos is None else f"{qos}."
    where = f"measured.{qos or 'all'}"
    return _latency(
        f"{who}{latency}_ms.{percentile}",
        f"{label} {percentile}{'' if qos is None else f' {qos}'}",
        f"{where}.{latency}_ms.{percentile}",
        f"{where}.histogram_{latency}.count",
        None if qos is None else f"classes.{qos}.{latency}_ms.{percentile}_ms",
    )


_PERCENTILES = ("p50", "p95", "p99")
_DONE, _TOKENS = "measured.all.completed", "measured.all.output_tokens"

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _bandwidth("storage.bytes_per_second", "storage read + write", "read", "write"),
        _bandwidth("storage.read.bytes_per_second", "storage read", "read"),
        _bandwidth("storage.write.bytes_per_second", "storage write", "write"),
        *(_device("read", p) for p in _PERCENTILES),
        *(_device("write", p) for p in _PERCENTILES),
        _rate("requests_per_second", "requests", _DONE, "completed", "1/s"),
        _rate("output_tokens_per_second", "output tokens", _TOKENS, "output_tokens", "1/s"),
        *(_request("ttft", "TTFT", p) for p in ("p50", "p95")),
        *(_request("response", "response", p) for p in _PERCENTILES),
        *(_request("response", "response", p, q.value) for q in Qos for p in _PERCENTILES),
        Metric(
            name="hit_ratio",
            unit="share",
            better=HIGHER,
            value=_if_any("reuse.reuse_hit_ratio", "reuse.looked_up"),
            label="hit ratio",
            shown_unit="%",
            scale=0.01,
            most=1.0,
        ),
    )
}

HEADLINES = ("storage.bytes_per_second", "requests_per_second")
"""The first that every trial has above 0 is what trials are held against each other by."""


def identity(own: Json) -> dict[str, Any]:
    """What two results must share to be comparable, beside the schedule, by name.

    `own` is the section `kv_cache` of a result. A model's `source` only says where it was read.
    """
    model, config = dict(_mapping(own, "model")), _mapping(own, "config")
    model.pop("source", None)
    return {
        "schema": own.get("schema"),
        "driver": own.get("driver"),
        "mode": _mapping(config, "run").get("mode"),
        **_named("model", model),
        "semantics preset": own.get("semantics_preset"),
        **_named("semantics", _mapping(own, "semantics")),
    }


def _mapping(value: Json, name: str) -> Json:
    inner = value.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _named(prefix: str, values: Json) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


# --- the document of all ---------------------------------------------------------------------


def trial_seed(master: int, trial: int) -> int:
    """The seed (32 bits) of a trial, counted from 1."""
    return Seed(master).child("trial", trial).integer() % 2**32


def aggregate(
    documents: Sequence[Json],
    files: Mapping[str, str],
    *,
    master_seed: int,
    planned: int,
    cooldown_s: float = 0.0,
    most_cv: float = MOST_CV,
) -> dict[str, Any]:
    """The sealed document of all trials, in the order in which they ran.

    `documents` are the trials' results as they were written, `files` the SHA-256 of each one's file
    by name, in the same order. `planned` may be more than there are: a signal ended the series.
    Raises ValueError if these are no trials of one configuration.
    """
    _check(documents, files, planned)
    rows = [
        _trial(number, own, name, sha, fingerprint(document))
        for number, (document, own, (name, sha)) in enumerate(
            zip(documents, _sections(documents), files.items(), strict=True), start=1
        )
    ]
    counted = [own for own in _sections(documents) if own["status"] == FINISHED]
    metrics = {name: numbers for name in METRICS if (numbers := _numbers(METRICS[name], counted))}
    headline = _headline(metrics, len(counted))
    verdict = _verdict(rows, planned, metrics.get(headline or ""), headline, most_cv)
    first = documents[0][SECTION]
    same = ("driver", "semantics_preset", "contains_performance", "model", "semantics", "workload")
    own = {
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
        "most_cv": most_cv,
        "passport": verdict.to_json(),
        "trials": rows,
        "metrics": metrics,
        "config": first["config"],  # of the first trial, as is the environment
        "environment": first["environment"],
    }
    return seal({SECTION: own}, files)


def _check(documents: Sequence[Json], files: Mapping[str, str], planned: int) -> None:
    if not documents or len(documents) != len(files) or len(documents) > planned:
        raise ValueError(f"{len(documents)} results in {len(files)} files of {planned} trials")
    same = identity(documents[0][SECTION])
    for number, own in enumerate(_sections(documents), start=1):
        if identity(own) != same:
            raise ValueError(f"trial {number} differs from trial 1 in more than its seed")


def _sections(documents: Sequence[Json]) -> list[Json]:
    return [document[SECTION] for document in documents]


def _trial(number: int, own: Json, name: str, sha: str, print_: str | None) -> dict[str, Any]:
    return {
        "trial": number,
        "file": name,
        "sha256": sha,
        "fingerprint": print_,
        "seed": own["seed"],
        "schedule_sha256": own["schedule"]["sha256"],
        "started_utc": own["started_utc"],
        "window_s": own["window_s"],
        "status": own["status"],
        "counted": own["status"] == FINISHED,
        "verdict": own["passport"]["verdict"],
        "reasons": list(own["passport"]["reasons"]),
    }


def _numbers(metric: Metric, counted: Sequence[Json]) -> dict[str, Any] | None:
    """None where no trial has the metric. A trial that lacks it has null among the values."""
    values = [metric.value(own) for own in counted]
    known = [value for value in values if value is not None]
    if not known:
        return None
    interval = bounded_interval(known, CONFIDENCE, metric.most)
    return {
        "unit": metric.unit,
        "better": metric.better,
        "values": values,
        "median": median(known),
        "mean": metric.mean(known),
        "interval": None if interval is None else interval._asdict(),
        "coefficient_of_variation": coefficient_of_variation(known),
        "min": min(known),
        "max": max(known),
    }


def _headline(metrics: Json, trials: int) -> str | None:
    def everywhere(name: str) -> bool:
        values = metrics[name]["values"] if name in metrics else []
        return trials > 0 and len(values) == trials and all(values)

    return next((name for name in HEADLINES if everywhere(name)), None)


# --- the verdict -----------------------------------------------------------------------------


def _verdict(
    rows: Sequence[Json], planned: int, numbers: Json | None, headline: str | None, most_cv: float
) -> Verdict:
    findings = (
        _complete(rows, planned),
        _each(rows),
        _repeatable(rows, numbers, headline, most_cv),
    )
    worst = _worst([finding.status.value for finding in findings])
    changed = {} if most_cv == MOST_CV else {"most_cv": [most_cv, MOST_CV]}
    return Verdict(verdict=worst, findings=findings, changed_thresholds=changed)


def _worst(words: Sequence[str]) -> str:
    return next((s.value for s in (Status.INVALID, Status.SUSPECT) if s.value in words), VALID)


def _complete(rows: Sequence[Json], planned: int) -> Finding:
    broken = [f"trial {row['trial']} was {row['status']}" for row in rows if not row["counted"]]
    never = planned - len(rows)
    if never:
        several = f"trials {len(rows) + 1} to {planned} have"
        broken.append(f"{f'trial {planned} has' if never == 1 else several} no result")
    finished = sum(row["counted"] for row in rows)
    if not broken:
        says = f"all {planned} trials finished"
        return Finding(rule="T1", name="completeness", status=Status.PASS, says=says)
    says = f"{finished} of {planned} trials finished: {', '.join(broken)}; run all of them again"
    return Finding(rule="T1", name="completeness", status=Status.INVALID, says=says)


def _each(rows: Sequence[Json]) -> Finding:
    worst = _worst([row["verdict"] for row in rows])
    if worst == VALID:
        says = "every trial is valid by its own rules"
        return Finding(rule="T2", name="trials", status=Status.PASS, says=says)
    told = [
        f"trial {row['trial']} is {row['verdict']} ({'; '.join(row['reasons'])})"
        for row in rows
        if row["verdict"] != VALID
    ]
    return Finding(rule="T2", name="trials", status=Status(worst), says="; ".join(told))


def _repeatable(
    rows: Sequence[Json], numbers: Json | None, headline: str | None, most_cv: float
) -> Finding:
    spread = None if numbers is None else numbers["coefficient_of_variation"]
    if headline is None or numbers is None or spread is None:
        says = "fewer than two trials have a headline to be held against each other"
        return Finding(rule="T3", name="repeatability", status=Status.NOT_JUDGED, says=says)
    metric = METRICS[headline]
    said = f"{metric.label} varies by {100 * spread:.1f} % between trials (CV)"
    if spread <= most_cv:
        says = f"{said}, at most {100 * most_cv:g} % are allowed"
        return Finding(rule="T3", name="repeatability", status=Status.PASS, says=says)
    number, value = _furthest(rows, numbers)
    says = (
        f"{said}, more than {100 * most_cv:g} %: trial {number} with {metric.shown(value)} "
        f"{metric.shown_unit} is furthest from the median of {metric.shown(numbers['median'])}; "
        "find what else the machine or the drive did then, or run more and longer trials"
    )
    return Finding(rule="T3", name="repeatability", status=Status.SUSPECT, says=says)


def _furthest(rows: Sequence[Json], numbers: Json) -> tuple[int, float]:
    counted = [row["trial"] for row in rows if row["counted"]]
    pairs = zip(counted, numbers["values"], strict=True)
    return max(pairs, key=lambda pair: abs(pair[1] - numbers["median"]))


# --- told ------------------------------------------------------------------------------------

_TOLD = (
    *("storage.read.bytes_per_second", "storage.write.bytes_per_second"),
    *("storage.read.device_ms.p95", "storage.write.device_ms.p95"),
    *("requests_per_second", "output_tokens_per_second"),
    *("ttft_ms.p95", "response_ms.p95", "hit_ratio"),
)


def trials_text(document: Json, path: str) -> str:
    """What a person reads in ten seconds; all numbers are in the document."""
    own = document[SECTION]
    verdict = own["passport"]
    lines = [f"verdict   {verdict['verdict'].upper()}"]
    lines += [f"  ! {reason}" for reason in verdict["reasons"]]
    unjudged = [r for r in verdict["rules"] if r["status"] == Status.NOT_JUDGED]
    lines += [f"  ? {rule['rule']} {rule['name']}: {rule['says']}" for rule in unjudged]
    lines += ["", *_head(own), "", *_table(own["metrics"]), "", *_trial_lines(own["trials"])]
    return "\n".join([*lines, "", f"trials  {path}"])


def _head(own: Json) -> list[str]:
    time = "" if own["contains_performance"] else ", virtual time"
    done = f"{own['finished']} of {own['planned']} finished{time}"
    what = f"{own['model']['name']}, {own['semantics_preset']} semantics, seed {own['seed']}"
    return [f"trials    {done}: {what}"]


def _table(metrics: Json) -> list[str]:
    if not metrics:
        return ["no trial finished: there are no numbers"]
    heading = f"{'':<34}{'median':>10}{'mean':>10}{'95 % interval of mean':>25}{'CV':>8}"
    return [heading, *(_row(METRICS[name], metrics[name]) for name in _TOLD if name in metrics)]


def _row(metric: Metric, numbers: Json) -> str:
    interval, spread = numbers["interval"], numbers["coefficient_of_variation"]
    between = MISSING
    if interval is not None:
        between = f"{metric.shown(interval['low'])} to {metric.shown(interval['high'])}"
    return (
        f"{metric.label:<28}{metric.shown_unit:<6}{metric.shown(numbers['median']):>10}"
        f"{metric.shown(numbers['mean']):>10}{between:>25}"
        f"{MISSING if spread is None else f'{100 * spread:.1f} %':>8}"
    )


def _trial_lines(rows: Sequence[Json]) -> Iterator[str]:
    for row in rows:
        said = row["verdict"] if row["counted"] else f"{row['status']}, not counted"
        yield f"trial {row['trial']:<3} seed {row['seed']:<11} {said:<8} {row['file']}"
