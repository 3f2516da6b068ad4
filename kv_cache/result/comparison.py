"""Compares two or more results: do they differ, by how much, and how sure is that?

Only results with the same load are compared: same model, semantics, driver, mode and schedule. The
first result is the baseline.

If there are trials, a ratio's interval comes from how much they disagree. Trial k of both sides has
the same load, so the ratios of such pairs are taken: what one schedule asks beyond another moves
both sides of a pair and drops out. Trials of a trace all have one schedule, and no pairs. For
single runs the interval comes from batches of their windows, which show nothing of how runs differ
from each other.

Many metrics are compared at once. Each interval shown holds by itself with 95 %. What is claimed is
decided in two families of hypotheses, which are named before anything is measured. The headline of
the mode (bandwidth of storage) comes first and alone, at 5 %. The others are one family, in which a
quantity that several metrics say counts once; a difference is claimed only if it remains after
Holm's correction (Scandinavian Journal of Statistics 6, 1979), which keeps the chance of even one
false claim at 5 %. Of several results compared with the first, each family has those of all.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import exp, log, log1p, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct

from kv_cache import __version__
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import Phase, RunMode
from kv_cache.core.text import as_json
from kv_cache.metrics.intervals import (
    CONFIDENCE,
    LEAST_BATCHES,
    Interval,
    autocorrelation,
    mean_interval,
    ratio_interval,
    series_inflation,
)
from kv_cache.metrics.order import holm
from kv_cache.metrics.pace import MEASURED, METRIC
from kv_cache.result import trials
from kv_cache.result.chain import fingerprint
from kv_cache.result.metrics import (
    HEADLINES,
    HIGHER,
    METRICS,
    Json,
    Metric,
    length_s,
)
from kv_cache.result.paths import flat, number_at, value_at
from kv_cache.result.published import Passport, PublishedRun, published
from kv_cache.result.run import SECTION, MisshapenError, converted, not_as_written
from kv_cache.result.trials import identity

SCHEMA = "kv-cache-comparison/1"
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

BATCHES = 10
"""Number for a single run. Longer batches depend less on each other; ten still give a usable t."""
FEWEST_BATCHES = 5
WINDOWS_EACH = 2


class Finding(StrEnum):
    """What one metric shows of one result against the baseline."""

    DIFFERS = "differs"  # the headline by itself, another after the correction
    UNCERTAIN = "uncertain"  # by itself, but not among that many
    NONE_FOUND = "none-found"
    NOT_JUDGED = "not-judged"  # there is no interval


# --- reading ---------------------------------------------------------------------------------


class Input(Struct, frozen=True, kw_only=True):
    """One of the results. `section` is its section `kv_cache`; `schedules` has a digest for each
    run, in the order in which they ran."""

    label: str
    path: Path
    section: Json
    fingerprint: str | None
    trials: int | None  # None is a single run
    ranks: int | None = None  # that it added up; None is a single process
    schedules: tuple[str, ...]
    passport: Passport
    run: PublishedRun | None  # None of trials

    @property
    def identity(self) -> dict[str, Any]:
        schema = self.section.get("result_schema", self.section.get("schema"))
        return identity({**self.section, "schema": schema})

    @property
    def in_pairs(self) -> bool:
        """Whether each trial has a schedule of its own, by which the other side's is found."""
        return self.trials is not None and len(set(self.schedules)) == self.trials

    @property
    def verdict(self) -> str:
        return self.passport.verdict

    @property
    def reasons(self) -> list[str]:
        return self.passport.reasons


def input_of(label: str, path: Path, document: Json) -> Input:
    """Read a document of a run, of ranks or of trials. Raises UsageError if it lacks what every one
    has."""
    section = document[SECTION]
    several = section["schema"] == trials.SCHEMA
    try:
        run = None if several else published(section)
        passport = converted(section.get("passport"), Passport, "passport")
        _ = converted(passport.verdict or None, str, "passport.verdict")
        ranks = _ranks(section, path) if "ranks" in section else []
        rows = _counted(section, "trials", path) if several else ranks
        digest = value_at(section, "schedule.sha256")
        one = () if rows else (converted(digest, str, "schedule.sha256"),)
    except MisshapenError as error:
        raise not_as_written(path, f"{SECTION}.{error}") from None
    return Input(
        label=label,
        path=path,
        section=section,
        fingerprint=fingerprint(document),
        trials=len(rows) if several else None,
        ranks=len(ranks) or None,
        schedules=tuple(str(row.get("schedule_sha256")) for row in rows) or one,
        passport=passport,
        run=run,
    )


def _counted(section: Json, name: str, path: Path) -> list[Json]:
    rows = converted(section.get(name), list[dict[str, Any]], name)
    counted: list[Json] = [row for row in rows if row.get("counted") is True]
    if not counted:
        done = "finished" if name == "trials" else "counts"
        raise UsageError(f"{path}: none of its {name} {done}, so it has no numbers; run it again")
    return counted


def _ranks(section: Json, path: Path) -> list[Json]:
    """Return the ranks that count; what all of them have in common is compared."""
    for name in ("model", "semantics", "config"):
        converted(section.get(name), dict[str, Any], name)
    return _counted(section, "ranks", path)


# --- may they be compared? -------------------------------------------------------------------


def require_all_comparable(inputs: Sequence[Input]) -> None:
    """Refuse results that may not be compared with the first. Raises UsageError."""
    for other in inputs[1:]:
        require_comparable(inputs[0], other)


def require_comparable(base: Input, other: Input) -> None:
    """Refuse results of different loads, naming what differs. Raises UsageError."""
    reasons = list(_unlike(base, other))
    if reasons:
        raise UsageError(
            f"{other.path} cannot be compared with {base.path}: {'; '.join(reasons[:_MOST_NAMED])}"
            f"{f'; and {len(reasons) - _MOST_NAMED} more' if len(reasons) > _MOST_NAMED else ''}; "
            "run both with the same model, semantics, mode, load and seed"
        )


_MOST_NAMED = 5


def _unlike(base: Input, other: Input) -> Iterator[str]:
    mine, theirs = base.identity, other.identity
    for name in dict.fromkeys([*mine, *theirs]):
        if mine.get(name) != theirs.get(name):
            yield f"{name} is {short_text(theirs.get(name))}, not {short_text(mine.get(name))}"
    if (base.trials, base.ranks) != (other.trials, other.ranks):
        yield f"it is of {count_text(other)}, not of {count_text(base)}"
    elif sorted(base.schedules) != sorted(other.schedules):
        pairs = zip(sorted(other.schedules), sorted(base.schedules), strict=True)
        its, ours = next(pair for pair in pairs if pair[0] != pair[1])
        yield f"its schedule is {digest_text(other, its)}, not {digest_text(base, ours)}"


def count_text(result: Input) -> str:
    """Return how many runs a result is of, as text."""
    if result.ranks is not None:
        return f"one run of {result.ranks} rank{'s' if result.ranks > 1 else ''}"
    if result.trials is None:
        return "a single run"
    return f"{result.trials} finished trial{'s' if result.trials > 1 else ''}"


def digest_text(result: Input, digest: str) -> str:
    """Return the beginning of a schedule's digest, and the seed that it came from."""
    return f"{digest[:12]} (seed {short_text(result.section.get('seed'))})"


def short_text(value: object) -> str:
    """Return a value of a document as text, cut if it is long."""
    text = "missing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- what else differs -----------------------------------------------------------------------

_PLACES = ("tiers.cache_dir", "tiers.erase_device", "tiers.keep_cache", "tiers.reclaim")
_NOT_COMPARED = ("output.", "run.seed")
_MACHINE = (
    *("hostname", "os.kernel", "os.release", "cpu.model", "cpu.logical_cores"),
    *("memory.total_bytes", "cgroup.memory_limit_bytes", "cgroup.cpu_limit", "python.version"),
)
_DRIVE = (
    *("device.name", "device.model", "device.firmware", "device.size_bytes", "device.rotational"),
    *("device.scheduler", "device.nr_requests", "device.write_cache"),
    *("filesystem.type", "filesystem.mount_options"),
)


class Difference(Struct, frozen=True, kw_only=True):
    """Something that may differ between inputs, and does. `kind`: place, machine, drive,
    program or configuration; the last moves numbers as a drive does."""

    kind: str
    name: str
    values: tuple[Any, ...]


def differences(inputs: Sequence[Input]) -> list[Difference]:
    """Return what may differ and does, in the order program, machine, drive, places,
    configuration."""
    tables = [dict(_facts(result.section)) for result in inputs]
    differing = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = tuple(table.get(key) for table in tables)
        if any(value != values[0] for value in values):
            differing.append(Difference(kind=key[0], name=key[1], values=values))
    return differing


def _facts(section: Json) -> Iterator[tuple[tuple[str, str], Any]]:
    yield ("program", "program_version"), section.get("program_version")
    environment = section.get("environment")
    for name in _MACHINE:
        yield ("machine", name), value_at(environment, name)
    drives = value_at(environment, "drives")
    for number, drive in enumerate(drives if isinstance(drives, list) else [], start=1):
        for name in _DRIVE:
            yield ("drive", f"drive {number} {name}"), value_at(drive, name)
    settings = dict(flat(section.get("config")))
    for name in sorted(settings, key=lambda name: name not in _PLACES):
        if not name.startswith(_NOT_COMPARED):
            yield ("place" if name in _PLACES else "configuration", name), settings[name]


# --- samples ---------------------------------------------------------------------------------


class Sampled(Struct, frozen=True, kw_only=True):
    """One metric of one input. `samples` are what its spread is known from: the trials' values, or
    the batches'; `why_none` is the reason if there are none."""

    value: float
    samples: tuple[float, ...] = ()
    why_none: str | None = None


def sampled(result: Input, metric: Metric, base: Input) -> Sampled | None:
    """Return the metric's samples, None if the result does not have it."""
    return _of_run(result, metric) if result.trials is None else _of_trials(result, metric, base)


def is_lower_bound(result: Input, metric: Metric) -> bool:
    """Return whether its value is a lower bound."""
    if result.trials is None:
        return metric.at_least(result.section)
    rows = result.section.get("metrics")
    return isinstance(rows, Mapping) and bool(value_at(rows.get(metric.name), "at_least"))


def _of_trials(result: Input, metric: Metric, base: Input) -> Sampled | None:
    """Return the geometric mean, as ratios are of it, and samples in the order in which the
    baseline's trials with their schedules ran, so that those of two inputs pair."""
    rows = result.section.get("metrics")
    row = rows.get(metric.name) if isinstance(rows, Mapping) else None
    values = row.get("values") if isinstance(row, Mapping) else None
    several = [number_at({"v": v}, "v") for v in values] if isinstance(values, list) else []
    pairs = zip(result.schedules, several, strict=False)
    by_order = sorted(pairs, key=lambda pair: base.schedules.index(pair[0]))
    known = [value for _, value in by_order if value is not None]
    if not known:
        return None
    value = exp(fmean(map(log, known))) if min(known) > 0 else fmean(known)
    if len(known) != result.trials:
        return Sampled(value=value, why_none="not every trial has it")
    if min(known) <= 0:
        return Sampled(value=value, why_none="a trial has 0, to which there is no ratio")
    if len(known) < 2:
        return Sampled(value=value, why_none="one trial shows no spread")
    return Sampled(value=value, samples=tuple(known))


def _of_run(result: Input, metric: Metric) -> Sampled | None:
    value = metric.value(result.section)
    if value is None:
        return None
    if result.ranks is not None:
        return Sampled(value=value, why_none=_NO_REPLICATES)
    if metric.batch is None:
        return Sampled(value=value, why_none="windows do not have it")
    parts = batches(result.section)
    if isinstance(parts, str):
        return Sampled(value=value, why_none=parts)
    known = [number for windows in parts if (number := metric.batch(windows)) is not None]
    if why := _why_not(metric, value, known):
        return Sampled(value=value, why_none=why)
    try:
        return Sampled(value=value, samples=widened(known))
    except OverflowError:
        return Sampled(value=value, why_none=_TOO_WIDE)


_NO_REPLICATES = (
    "ranks are parts of one run and no repetitions of it, and windows of several are not merged"
)
_LOWER_BOUND = "it is a lower bound of one or both, as what had not ended would add to it"
_TOO_WIDE = "its spread is too large for any"


def widened(known: Sequence[float]) -> tuple[float, ...]:
    """Return batches with a spread that makes up for how much they depend on each other."""
    logs, factor = [log(value) for value in known], series_inflation(known)
    middle = fmean(logs)
    return tuple(exp(middle + factor * (value - middle)) for value in logs)


def _why_not(metric: Metric, value: float, known: Sequence[float]) -> str | None:
    """Return why these batches do not represent the run's value, None if they do."""
    if value <= 0:
        return "it is 0, to which there is no ratio"
    if len(known) < FEWEST_BATCHES:
        return "too many batches have none of it"
    if min(known) <= 0:
        return "a batch has none of it, to which there is no ratio: run longer"
    if metric.resolution and not _within(value, known, metric.resolution):
        return "rare moments make it: no batch is like the whole run"
    if autocorrelation(known) > 2 / sqrt(len(known)):
        return "its batches depend on each other: it drifts, or the run is too short"
    return None


def _within(value: float, known: Sequence[float], resolution: float) -> bool:
    return min(known) / (1 + resolution) <= value <= max(known) * (1 + resolution)


def batches(section: Json) -> list[list[Json]] | str:
    """Return the measured windows of a result in parts of equal time, or why there are none."""
    windows = value_at(section, "series.windows")
    if not isinstance(windows, list):
        return "the result has no series"
    phase = Phase.MEASURE.value
    measured = [w for w in windows if value_at(w, "phase") == phase and length_s(w) > 0]
    count = min(BATCHES, len(measured) // WINDOWS_EACH)
    if count < FEWEST_BATCHES:
        return f"fewer than {FEWEST_BATCHES * WINDOWS_EACH} windows were measured: run longer"
    begin = min(w["start_s"] for w in measured)
    span = max(w["end_s"] for w in measured) - begin
    parts: list[list[Json]] = [[] for _ in range(count)]
    for window in measured:
        middle = (window["start_s"] + window["end_s"]) / 2
        parts[min(count - 1, int((middle - begin) / span * count))].append(window)
    return parts if all(parts) else "its windows are of very different lengths"


# --- comparing -------------------------------------------------------------------------------


class Row(Struct, frozen=True, kw_only=True):
    """One metric of one result against the baseline's. `ratio` is result / baseline. Of values
    that are lower bounds (`at_least`: the baseline's, and the result's) it is the least or the most
    that it can be, without an interval, and None where that leaves open which is larger."""

    metric: Metric
    label: str
    baseline: float | None
    value: float | None
    at_least: tuple[bool, bool]
    ratio: float | None
    interval: Interval | None
    why_none: str | None
    finding: Finding

    @property
    def better(self) -> bool | None:
        """Whether the difference is an improvement; None if there is none."""
        if self.ratio is None or self.finding not in (Finding.DIFFERS, Finding.UNCERTAIN):
            return None
        return (self.ratio > 1) == (self.metric.better == HIGHER)


class Comparison(Struct, frozen=True, kw_only=True):
    """`rows` begin with those of the headline. `family` is how many distinct quantities the others
    with an interval are."""

    inputs: tuple[Input, ...]
    differs: tuple[Difference, ...]
    headline: Metric
    rows: tuple[Row, ...]
    family: int

    @property
    def spread(self) -> str:
        """Where intervals come from."""
        base = self.inputs[0]
        if base.trials is None:
            return "between batches of a run"
        return "between pairs of trials" if base.in_pairs else "between trials"

    def against(self, label: str) -> list[Row]:
        return [row for row in self.rows if row.label == label]


class _Pair:
    """One metric of two inputs, before the other metrics are known."""

    def __init__(self, metric: Metric, base: Input, other: Input) -> None:
        self.metric, self.label = metric, other.label
        self._a, self._b = sampled(base, metric, base), sampled(other, metric, base)
        self._in_pairs = base.in_pairs
        self.at_least = is_lower_bound(base, metric), is_lower_bound(other, metric)

    @property
    def known(self) -> bool:
        return self._a is not None or self._b is not None

    @property
    def why_none(self) -> str | None:
        for side in (self._a, self._b):
            if side is None:
                return "only one of the two has it"
            if side.why_none is not None:
                return side.why_none
        return None

    @property
    def ratio(self) -> float | None:
        a, b = self._a, self._b
        if a is None or b is None or a.value <= 0:
            return None
        ratio, (of_a, of_b) = b.value / a.value, self.at_least
        open_which = (of_a and ratio >= 1) or (of_b and ratio <= 1) or (of_a and of_b)
        return None if open_which else ratio

    def interval(self, confidence: float) -> Interval | None:
        a, b = self._a, self._b
        if a is None or b is None or self.why_none is not None:
            return None
        try:
            estimate = (ratio_of_pairs if self._in_pairs else ratio_interval)(
                a.samples, b.samples, confidence
            )
        except OverflowError:  # few samples that differ by orders of magnitude
            estimate = None
        if estimate is None or self.ratio is None:
            return None
        # Around the ratio of the whole runs: batches only give the width.
        centre, (low, high) = estimate
        return Interval(low * self.ratio / centre, high * self.ratio / centre)

    def differs(self, alpha: float) -> bool:
        """Return whether the interval of confidence 1 - alpha excludes a ratio of 1."""
        interval = self.interval(1 - alpha)
        if interval is None or self.ratio is None or 1.0 in interval:
            return False
        return abs(log(self.ratio)) > log1p(self.metric.resolution)

    def row(self, sure: bool) -> Row:
        interval, bound = self.interval(CONFIDENCE), any(self.at_least)
        return Row(
            metric=self.metric,
            label=self.label,
            baseline=None if self._a is None else self._a.value,
            value=None if self._b is None else self._b.value,
            at_least=self.at_least,
            ratio=self.ratio,
            interval=None if bound else interval,
            why_none=_LOWER_BOUND
            if bound
            else self.why_none or (_TOO_WIDE if interval is None else None),
            finding=self._finding(interval, sure),
        )

    def _finding(self, interval: Interval | None, sure: bool) -> Finding:
        if interval is None:
            return Finding.NOT_JUDGED
        if sure:
            return Finding.DIFFERS
        return Finding.UNCERTAIN if self.differs(1 - CONFIDENCE) else Finding.NONE_FOUND


def ratio_of_pairs(
    a: Sequence[float], b: Sequence[float], confidence: float
) -> tuple[float, Interval] | None:
    """Return the geometric mean of b/a and its interval: Student's t on the logarithms of the
    ratios. From eight pairs on, which are in the order in which they ran, it is wider by how much
    neighbours correlate: what disturbs a machine seldom ends with one pair."""
    logs = [log(theirs / mine) for mine, theirs in zip(a, b, strict=True)]
    interval = mean_interval(logs, confidence)
    if interval is None:
        return None
    if len(logs) >= LEAST_BATCHES:
        reach = series_inflation(logs) * (interval.high - interval.low) / 2
        interval = Interval(fmean(logs) - reach, fmean(logs) + reach)
    return exp(fmean(logs)), Interval(exp(interval.low), exp(interval.high))


def compare(inputs: Sequence[Input]) -> Comparison:
    """Compare each result with the first, in every metric that one of the two has."""
    base, first = inputs[0], _headline(inputs)
    metrics = [first, *(metric for metric in METRICS.values() if metric is not first)]
    every = [_Pair(metric, base, other) for metric in metrics for other in inputs[1:]]
    pairs = [pair for pair in every if pair.known]
    quantities = _distinct(pairs)  # those of the headline begin with it
    families: dict[bool, list[list[_Pair]]] = {True: [], False: []}
    for same in quantities:
        families[same[0].metric is first].append(same)
    sure = _certain(families[True]) | _certain(families[False])
    return Comparison(
        inputs=tuple(inputs),
        differs=tuple(differences(inputs)),
        headline=first,
        rows=tuple(pair.row(pair in sure) for pair in pairs),
        family=len(families[False]),
    )


def _headline(inputs: Sequence[Input]) -> Metric:
    """What the mode is there for; requests/s where storage moves nothing at all."""
    mode = inputs[0].identity["mode"]
    metric = METRICS[METRIC[MEASURED[mode if mode in MEASURED else RunMode.STANDARD]]]
    moved = any((side := sampled(each, metric, each)) and side.value > 0 for each in inputs)
    return metric if moved else METRICS[HEADLINES[-1]]


_DIGITS = 9


def _distinct(pairs: Sequence[_Pair]) -> list[list[_Pair]]:
    """Return the pairs that have an interval by quantity, in their order: those of which all is
    equal say one thing, as requests and tokens a second do where all answers are of one length."""
    groups: dict[tuple[str, ...], list[_Pair]] = {}
    for pair in pairs:
        interval = pair.interval(CONFIDENCE)
        if interval is not None and pair.ratio is not None:
            numbers = (f"{value:.{_DIGITS}g}" for value in (pair.ratio, *interval))
            groups.setdefault((pair.label, *numbers), []).append(pair)
    return list(groups.values())


def _certain(family: Sequence[Sequence[_Pair]]) -> set[_Pair]:
    """Return the pairs of all quantities in a family that differ, with Holm's correction."""
    tests = [same[0].differs for same in family]
    return {pair for index in holm(tests, 1 - CONFIDENCE).rejected for pair in family[index]}


# --- as JSON ---------------------------------------------------------------------------------


def comparison_json(comparison: Comparison) -> bytes:
    """Return the file of `--json`."""
    inputs = comparison.inputs
    labels = [result.label for result in inputs]
    return as_json(
        {
            "schema": SCHEMA,
            "program_version": __version__,
            "baseline": labels[0],
            "spread": comparison.spread,
            "confidence": CONFIDENCE,
            "headline": comparison.headline.name,
            "correction": "holm",
            "family": comparison.family,
            "inputs": [_input_json(result) for result in inputs],
            "differs": [
                {
                    "kind": d.kind,
                    "name": d.name,
                    "values": dict(zip(labels, d.values, strict=True)),
                }
                for d in comparison.differs
            ],
            "metrics": [_row_json(row) for row in comparison.rows],
        }
    )


def _input_json(result: Input) -> dict[str, Any]:
    return {
        "label": result.label,
        "file": str(result.path),
        "fingerprint": result.fingerprint,
        "trials": result.trials,
        "seed": result.section.get("seed"),
        "schedule_sha256": list(result.schedules),
        "verdict": result.verdict,
        "reasons": result.reasons,
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "metric": row.metric.name,
        "result": row.label,
        "unit": row.metric.unit,
        "better": row.metric.better,
        "baseline_value": row.baseline,
        "value": row.value,
        "at_least": dict(zip(("baseline_value", "value"), row.at_least, strict=True)),
        "ratio": row.ratio,
        "interval": None if row.interval is None else row.interval._asdict(),
        "why_no_interval": row.why_none,
        "finding": row.finding.value,
        "to_the_better": row.better,
    }
