"""A capacity search: the most users, or requests/s, for which storage keeps the SLOs.

Each probe is a whole run of its own at one load: an open loop, whose requests come at their
instants whether the ones before are answered or not, with latencies from those instants. It ends
early when it is sure. `schedule/capacity` chooses the loads.
"""

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import sqrt
from typing import Any

from msgspec import Struct, structs

from kv_cache.app.planned import planned_view
from kv_cache.app.prepare import Job, prepare
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.config.build import fillable_bytes
from kv_cache.config.load import Invocation
from kv_cache.config.root import Config
from kv_cache.config.schema import opt
from kv_cache.config.sections import FILES_BESIDE
from kv_cache.core.block import Block
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import ConfigError, NoAnswerError, UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.kinds import Phase, Qos, RunMode
from kv_cache.core.seed import Seed
from kv_cache.core.text import as_json
from kv_cache.core.units import NS_PER_S
from kv_cache.files.environment import captured
from kv_cache.files.keep import Kept, keep
from kv_cache.files.result import Result
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.slo import Slo, parse_slos
from kv_cache.metrics.steady import LEAST_WINDOWS, backlog_grows, stationarity
from kv_cache.metrics.window import Window
from kv_cache.result.capacity import (
    CacheState,
    Probe,
    capacity_document,
    client_bound,
    probe_of,
)
from kv_cache.result.document import build_result
from kv_cache.schedule.capacity import CapacitySearch, SearchRules
from kv_cache.schedule.probe import Batch, Judged, ProbeStatus, ProbeVerdict, counts_of, judge
from kv_cache.sim.run import simulate
from kv_cache.view.parts import View
from kv_cache.view.picture.plot import plot_beside
from kv_cache.workload.left_behind import left_behind

log = logging.getLogger("kv_cache")

_LEFT_OVER = 0.1  # of what was asked
_SURE_ERRORS = 4.0  # standard errors of asked - answered at a load of exactly 1, as of two counts
_PROBE_S, _WARMUP_S = 60.0, 10.0
_SLOS_LONG = 5  # a probe lasts this many times the longest SLO, at least


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """What is searched for, and how far the search goes."""

    slo: str = opt(
        "-", 'SLOs that must hold: "CLASS:[ttft:]pNN<LIMIT", separated by commas; classes '
             "interactive, responsive, batch; units us, ms, s",
        flag="--slo", metavar="SLOS", required=True,
    )  # fmt: skip
    by: str = opt(
        "users", "What is searched for: users of an open loop, or requests/s",
        choices=("users", "rate"), flag="--by",
    )  # fmt: skip
    first: float | None = opt(
        None, "Load to begin with; if not given, 10", above=0, flag="--first", metavar="N"
    )
    lowest: float | None = opt(
        None, "Lowest load that is tried; if not given, 1 user or 0.1 requests/s", above=0,
        flag="--lowest", metavar="N",
    )  # fmt: skip
    highest: float = opt(
        10_000.0, "Highest load that is tried", above=0, flag="--highest", metavar="N"
    )
    probe: float | None = opt(
        None, "Measured window of a probe; less once it is sure, and what that leaves is spent on "
              "others; if not given, 60 or 5 times the longest SLO", unit="s", low=1, high=86_400,
        flag="--probe", metavar="S",
    )  # fmt: skip
    probe_warmup: float | None = opt(
        None, "Load before the window of each probe, not counted; if not given, 10 or the longest "
              "SLO", unit="s", low=0, high=86_400, flag="--probe-warmup", metavar="S",
    )  # fmt: skip
    resolution: float = opt(
        0.03, "Width of the interval, as a share of the load, at which the search ends",
        low=0.001, high=0.5, flag="--resolution", metavar="X",
    )  # fmt: skip
    most_probes: int = opt(12, "Probes at most", low=1, flag="--most-probes", metavar="N")
    confirmations: int = opt(
        3, "Probes that must be near the answer", low=1, flag="--confirmations",
        metavar="N",
    )  # fmt: skip
    concurrency: int = opt(
        256, "Requests that are served at the same time, at most; the default is that of an "
             "engine's max_num_seqs (vLLM)", low=1, high=10_000, flag="--concurrency", metavar="N",
    )  # fmt: skip

    @property
    def by_users(self) -> bool:
        return self.by == "users"

    @property
    def probe_s(self) -> float:
        """Return the measured window of a probe. Raises ConfigError for SLOs that are none."""
        return max(_PROBE_S, _SLOS_LONG * self._longest_slo_s) if self.probe is None else self.probe

    @property
    def warmup_s(self) -> float:
        """Return the time before it. Raises ConfigError for SLOs that are none."""
        return (
            max(_WARMUP_S, self._longest_slo_s) if self.probe_warmup is None else self.probe_warmup
        )

    @property
    def _longest_slo_s(self) -> float:
        return max(slo.limit_ns for slo in parse_slos(self.slo)) / NS_PER_S


_IN_THE_RESULT = "each probe is in the result of the search"
OURS: Mapping[str, str] = {
    "run.duration_s": "--probe sets the length of a probe",
    "run.until": "a probe ends when it is sure",
    "run.warmup_s": "--probe-warmup sets it for each probe",
    "run.max_requests": "a probe ends when it is sure",
    "run.trials": "the answer is confirmed by --confirmations",
    "run.clients": "the search is one process's",
    "arrival.mode": "the loop is open",
    "arrival.request_rate": "--by rate searches for it",
    "arrival.process": "arrivals of --by rate are Poisson's, users have their own pace",
    "workload.replay_cycles": "a probe ends when it is sure",
    "autoscaler.enabled": "the search changes the load itself",
    "precondition.enabled": "use kv-cache.py precondition before the search",
    "schedule.workers": "--concurrency sets it",
    "output.results_dir": _IN_THE_RESULT,
    "output.validation_trace": _IN_THE_RESULT,
    **{f"output.{name}": _IN_THE_RESULT for name in FILES_BESIDE},
    "output.metrics_port": "each probe is a run of its own",
    "output.json": "the result of the search is JSON, see --output",
    "output.certify": "a probe that the client limits is reported",
    "sim.predict": "each probe is a run of its own",
}
"""Options of a run that the search sets itself, and why."""
NOT_EVEN_IN_A_FILE = ("arrival.request_rate", "autoscaler.enabled", "precondition.enabled")


def configured(options: CapacityOptions, invocation: Invocation) -> Config:
    """Return the configuration of the probes. Raises ConfigError for what the search sets."""
    invocation.refuse("capacity", OURS, NOT_EVEN_IN_A_FILE)
    if options.by_users and "run.num_users" in invocation.overrides:
        raise ConfigError("--num-users is what capacity --by users searches for; use --first")
    fixed: dict[str, Any] = {
        "run.duration_s": options.probe_s,
        "run.until": None,
        "run.warmup_s": options.warmup_s,
        "run.max_requests": 0,
        "run.trials": 1,
        "workload.replay_cycles": 0,
        "arrival.mode": "open",
        "arrival.process": "fixed",
        "output.results_dir": None,
        "output.validation_trace": None,
        **{f"output.{name}": None for name in FILES_BESIDE},
        "output.metrics_port": None,
        "output.certify": False,
        "schedule.workers": options.concurrency,
    }
    if not options.by_users:
        fixed |= {"arrival.request_rate": 1.0, "arrival.process": "poisson"}
    return replace(invocation, overrides={**invocation.overrides, **fixed}).config()


def capacity(
    options: CapacityOptions,
    config: Config,
    *,
    notes: Sequence[str] = (),
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
) -> Result:
    """Search for the highest load that keeps the SLOs, with a `configured` configuration.

    The document is written after each probe, so that nothing is lost with the next. Raises
    UsageError before anything is measured.
    """
    search = _plan(options, config, notes, progress)
    return _Searching(search, stop or Interrupts(), progress).run()


def planned_capacity(options: CapacityOptions, config: Config, notes: Sequence[str] = ()) -> View:
    """Check a search and show what it would do. Raises UsageError."""
    search = _plan(options, config, notes, SILENT)
    rules = search.rules
    then = (
        f", as each of at most {rules.most_probes} probes from {rules.first:g} {search.unit} on, "
        f"between {rules.lowest:g} and {rules.highest:g}"
    )
    return planned_view(search.job, then=then)


# --- checking --------------------------------------------------------------------------------


class _Past(Struct, frozen=True, kw_only=True):
    """What the rows before a probe of a trace have left in the cache; nothing but of a trace."""

    rows: int = 0
    blocks: tuple[tuple[Block, ...], ...] = ()

    @property
    def state(self) -> CacheState:
        stored = sum(block.nbytes for blocks in self.blocks for block in blocks)
        return CacheState(rows_before=self.rows, bytes=stored)


class _Search(Struct, frozen=True, kw_only=True):
    """A checked search."""

    job: Job
    slos: tuple[Slo, ...]
    by_users: bool
    rules: SearchRules
    past: _Past

    @property
    def unit(self) -> str:
        return "users" if self.by_users else "requests/s"


def _plan(
    options: CapacityOptions, config: Config, notes: Sequence[str], progress: Progress
) -> _Search:
    """Raises UsageError for everything that can be known to be wrong."""
    slos = parse_slos(options.slo)
    job = prepare(config, notes=notes, progress=progress)
    if options.by_users and job.config.replays:
        raise ConfigError(
            "a trace has no users to search for; give --by rate, or leave --trace out"
        )
    if job.load.sessions:
        raise ConfigError(
            "a trace of sessions cannot be asked at a rate: its rows wait for the answers that "
            "they follow; give a trace whose rows have instants, or leave --trace out"
        )
    least_s = _least_probe(options, job.config, slos)
    if not options.by_users:
        _require_users(job, slos)
    fewest = _fewest(job, slos, round(options.highest)) if options.by_users else 0
    for warning in job.warnings:
        log.warning(warning)
    return _Search(
        job=job,
        slos=slos,
        by_users=options.by_users,
        rules=_rules(options, fewest, least_s),
        past=_past(job, _at(job.config, job.seed, 1.0, 0, False)),
    )


def _least_probe(options: CapacityOptions, config: Config, slos: Sequence[Slo]) -> float:
    """Return the least seconds of a probe that can be overloaded. Until an SLO's limit has passed
    no request can be over it, and a backlog that grows is only seen in some windows."""
    longest_s = max(slo.limit_ns for slo in slos) / NS_PER_S
    if options.warmup_s < longest_s:
        raise ConfigError(
            f"--probe-warmup {options.warmup_s:g} is shorter than the longest SLO, "
            f"{longest_s:g} s: nothing could be over it when a probe begins; raise it to that"
        )
    least_s = max(_SLOS_LONG * longest_s, LEAST_WINDOWS * config.monitor.tick_s)
    if options.probe_s < least_s:
        raise ConfigError(
            f"--probe {options.probe_s:g} is too short: it must last {_SLOS_LONG} times the "
            f"longest SLO and {LEAST_WINDOWS} windows (monitor.tick_s); raise it to {least_s:g}"
        )
    return least_s


def _rules(options: CapacityOptions, fewest: int, least_s: float) -> SearchRules:
    by_users, highest = options.by_users, options.highest
    lowest = (1 if by_users else 0.1) if options.lowest is None else options.lowest
    first = min(max(10.0, lowest), highest) if options.first is None else options.first
    if by_users:
        lowest = max(lowest, fewest)
        first = max(first, lowest)
    return SearchRules(
        first=first,
        lowest=lowest,
        highest=highest,
        resolution=options.resolution,
        most_probes=options.most_probes,
        confirmations=options.confirmations,
        whole=by_users,
        probe_s=options.probe_s,
        least_s=least_s,
    )


def _fewest(job: Job, slos: Sequence[Slo], highest: int) -> int:
    """Return the fewest users of whom at least one is in a class that has an SLO."""

    def any_has_slo(users: int) -> bool:
        return bool(_tested(_at(job.config, job.seed, users, 0, True), job, slos))

    most = 1
    while not any_has_slo(most):
        if most >= highest:
            raise ConfigError(
                f"none of {highest} users is in a class that has an SLO; change --slo, "
                "qos_distribution or --highest"
            )
        most = min(2 * most, highest)
    return bisect_left(range(1, most + 1), True, key=any_has_slo) + 1


def _require_users(job: Job, slos: Sequence[Slo]) -> None:
    """With a rate, the users are given: each SLO must be of a class that has some."""
    tested = _tested(_at(job.config, job.seed, 1.0, 0, False), job, slos)
    for slo in slos:
        if slo not in tested:
            raise ConfigError(
                f"--slo has {slo}, but none of {job.config.run.num_users} users is in that class; "
                "raise --num-users or its share in qos_distribution"
            )


# --- one probe -------------------------------------------------------------------------------


def _at(config: Config, seed: int, load: float, number: int, by_users: bool) -> Config:
    """Return the configuration of a probe: the same users at each load, with other requests."""
    probe_seed = Seed(seed).child("probe", number).integer() % 2**32
    run = replace(config.run, seed=probe_seed)
    population = config.workload.population_seed
    population = seed if population is None else population
    workload = replace(config.workload, population_seed=population)
    if by_users:
        return replace(config, run=replace(run, num_users=round(load)), workload=workload)
    arrival = replace(config.arrival, request_rate=load)
    return replace(config, run=run, workload=workload, arrival=arrival)


def _tested(config: Config, job: Job, slos: Sequence[Slo]) -> tuple[Slo, ...]:
    """Return the SLOs of classes that have users: of a few users none may be interactive."""
    facts = job.build(config).source.describe()
    some = {qos for qos in Qos if facts.get(f"{qos}_users", 1)}
    return tuple(slo for slo in slos if slo.qos in some)


def _past(job: Job, config: Config) -> _Past:
    """A trace in which blocks are asked for again is asked from its middle on, with what its first
    half left in the cache: from an empty one it would be another workload."""
    rows = 0 if job.found is None else job.found.rows // 2
    if not rows or config.mode is not RunMode.STANDARD:
        return _Past()
    before = islice(job.build(config).source.plan(), rows)
    blocks = left_behind(before, fillable_bytes(config, job.specs))
    return _Past(rows=rows, blocks=blocks) if blocks else _Past()


class _Probing:
    """Runs one probe: collects its batches, and ends it when it is sure."""

    def __init__(
        self, search: _Search, config: Config, caught: Interrupts, progress: Progress
    ) -> None:
        self._search, self._config = search, config
        self._caught, self._progress = caught, progress
        self._batches: list[Batch] = []
        self.slos = _tested(config, search.job, search.slos)
        # Which model of a mix a row asks is drawn by the probe's seed.
        self.past = _past(search.job, config) if config.run.model_mix else search.past

    def run(self, what: str) -> RunOutcome:
        job, config = self._search.job, self._config
        assert config.run.seed is not None
        load = job.build(config, begun=self.past.rows)
        load = replace(load, populate=(*load.populate, *self.past.blocks))
        if config.run.virtual_time:
            return simulate(
                config, load, job.specs, config.run.seed,
                progress=ignore, on_record=ignore, on_op=ignore,
                stopped=self._caught.stop.is_set, slos=self.slos, watch=self._watch,
            )  # fmt: skip
        plan = RunPlan(config, load, job.specs, config.run.seed, slos=self.slos)
        with (
            open_run(plan, self._caught.stop, RunHooks(watch=self._watch)) as run,
            self._progress.run(config, what, self.slos) as tick,
        ):
            return run.execute(tick)

    def verdict(self, outcome: RunOutcome) -> ProbeVerdict:
        measured = outcome.series.of(Phase.MEASURE)
        judged, overloaded = self._judged(), _overloaded(measured, self._config)
        submitted = sum(window.submitted for window in measured)
        completed = sum(window.completed for window in measured)
        return ProbeVerdict(
            judged=judged,
            overloaded=overloaded,
            client_bound=client_bound(outcome, judged, overloaded),
            served_share=min(1.0, completed / submitted) if submitted else None,
            offered=self._offered(submitted, outcome.window_s),
        )

    def _offered(self, submitted: int, seconds: float) -> float | None:
        """Return the rate that came: of Poisson's arrivals another one than was meant."""
        return None if self._search.by_users or not seconds else submitted / seconds

    def _watch(self, window: Window) -> bool:
        self._batches.append(counts_of(window, self.slos))
        status = self._judged().status
        long_enough = len(self._batches) >= LEAST_WINDOWS  # for a growing backlog to be seen
        return status is ProbeStatus.OUTSIDE or (status is ProbeStatus.INSIDE and long_enough)

    def _judged(self) -> Judged:
        assert self._config.run.duration_s is not None
        longest = max(1, round(self._config.run.duration_s / self._config.monitor.tick_s))
        return judge(self.slos, self._batches, longest=longest)


def _overloaded(windows: Sequence[Window], config: Config) -> bool:
    """Return whether the backlog grows throughout, or so much less was answered than asked that
    ten windows need not be waited for."""
    trend = stationarity(windows)
    most = config.passport.thresholds().most_backlog_growth
    if backlog_grows(trend["backlog_growth_share"], trend["backlog_t"], most):
        return True
    submitted = sum(window.submitted for window in windows)
    left = submitted - sum(c.ended for window in windows for c in window.classes.values())
    return left > _LEFT_OVER * submitted and left > _SURE_ERRORS * sqrt(2 * submitted)


# --- the search ------------------------------------------------------------------------------


class _Searching:
    """A search that goes on."""

    def __init__(self, search: _Search, caught: Interrupts, progress: Progress) -> None:
        self._search, self._caught, self._progress = search, caught, progress
        self._loads = CapacitySearch(search.rules)
        self._environment = captured(*search.job.directories)
        self._probes: list[Probe] = []
        self._death: str | None = None
        self._silent = False

    def run(self) -> Result:
        kept: Kept | None = None
        while True:
            document = self._document()
            if self._probes or self._death or self._caught.number:
                kept = keep(self._search.job.output, as_json(document))
            lost = kept is not None and not kept.in_place
            load = self._loads.next_load()
            if load is None or self._death or lost or self._caught.stop.is_set():
                break
            self._try(load)
        picture = plot_beside(document, self._search.job.output) if self._probes else None
        files = {} if picture is None else {"plot": str(picture)}
        return Result(document=document, kept=kept, end=self._end(kept), files=files)

    def _end(self, kept: Kept | None) -> Exit:
        if self._silent or (kept is not None and kept.no_answer):
            return Exit.NO_ANSWER
        lost = kept is not None and not kept.in_place
        return Exit.EARLY if self._death or lost else Exit(self._caught.exit_code)

    def _try(self, load: float) -> None:
        """Run one probe, and note why the program broke, if it did."""
        try:
            self._death = self._probe(load)
        except UsageError as error:
            if not self._probes:
                raise
            self._death = str(error)  # the probes before it count all the same
        except NoAnswerError as error:
            self._death, self._silent = str(error), True
            log.error("%s", error)

    def _probe(self, load: float) -> str | None:
        search, number = self._search, len(self._probes) + 1
        config = _at(search.job.config, search.job.seed, load, number, search.by_users)
        run = replace(config.run, duration_s=self._loads.next_seconds)
        config = replace(config, run=run)
        probing = _Probing(search, config, self._caught, self._progress)
        what = f"probe {number}/{search.rules.most_probes}: {load:g} {search.unit}"
        outcome = probing.run(what)
        if self._caught.stop.is_set():
            return None
        verdict = probing.verdict(outcome)
        document = build_result(config, search.job.model, outcome, self._environment)
        why = self._loads.why or ""
        state = probing.past.state
        if state.rows_before:
            state = structs.replace(state, passes=outcome.workload["cycles_ended"])
        self._probes.append(
            probe_of(number, load, why, probing.slos, verdict, outcome, document, state)
        )
        self._loads.report(load, verdict, outcome.window_s)
        log.info("%s: %s", what, "inside" if verdict.inside else "outside")
        return outcome.death

    def _document(self) -> dict[str, Any]:
        search = self._search
        return capacity_document(
            search.job.config,
            search.job.model,
            search=self._loads,
            rules=search.rules,
            slos=search.slos,
            unit=search.unit,
            probes=self._probes,
            seed=search.job.seed,
            environment=self._environment,
            interrupted=self._caught.name,
            death=self._death,
            workload=search.job.load.source.describe(),
        )
