"""`kv-cache.py capacity --slo …`: the most users, or requests/s, that keep their promises.

Each probe is a whole run of its own at one load: an open loop, whose requests come at their
instants whether the ones before are answered or not, with latencies from those instants. It ends
early when it is sure. `schedule/capacity` chooses the loads.
"""

import argparse
import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

from kv_cache.app.prepare import Job, prepare
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.cli.flags import own_and_rest, parse
from kv_cache.cli.parsing import CommandParser
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.run import loaded
from kv_cache.config.root import Config
from kv_cache.core.errors import ConfigError, NoAnswerError, UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.seed import Seed
from kv_cache.core.text import as_json
from kv_cache.core.units import NS_PER_S
from kv_cache.files.keep import keep
from kv_cache.files.machine import captured
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.slo import Promise, parse_promises
from kv_cache.metrics.steady import LEAST_WINDOWS, backlog_grows, stationarity
from kv_cache.metrics.window import Window
from kv_cache.result.capacity import (
    Probe,
    capacity_document,
    client_bound,
    probe_of,
)
from kv_cache.result.document import build_result
from kv_cache.schedule.capacity import (
    Batch,
    CapacitySearch,
    Judged,
    ProbeVerdict,
    SearchRules,
    Status,
    counts_of,
    judge,
)
from kv_cache.sim.run import simulate
from kv_cache.view.picture.plot import plot_beside
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

log = logging.getLogger("kv_cache")

CONCURRENCY = 256
"""Requests that are served at the same time: the default of an engine's `max_num_seqs` (vLLM)."""

_ABOUT = """\
Find the most load that this storage carries at the latency that was promised.

The load is users of an open loop (they ask at their own pace and do not wait for answers), or with
--by rate requests/s of Poisson arrivals. Latencies count from the instant at which a request was
meant to be asked, so a queue that the storage causes is part of them. Loads are widened until one
misses a promise, then the interval is closed; the answer is confirmed by more probes.
"""

_EXAMPLES = """\
examples:
  kv-cache.py capacity --slo "interactive:p95<50ms,responsive:p95<200ms" --cache-dir /mnt/nvme/kv
  kv-cache.py capacity --slo "batch:ttft:p99<2s" --by rate --first 5 --probe 60 --config site.yaml
  kv-cache.py capacity --slo "interactive:p95<50ms" --virtual-time --profile drive.yaml

All flags of run may follow; those that end or scale a run (--duration, --max-requests,
--request-rate, --num-users with --by users, --enable-autoscaling, --trials) are the search's own.

exit code: 0 done (whatever the answer), 1 broken, 2 bad input, 130 and 143 interrupted
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked search."""

    job: Job
    promises: tuple[Promise, ...]
    by_users: bool
    rules: SearchRules
    probe_s: float
    output: Path


def main(argv: Sequence[str]) -> int:
    """Search; the exit code. UsageError is the caller's to print."""
    options, rest = own_and_rest(_parser(), argv)
    plan = _plan(options, rest)
    for warning in plan.job.warnings:
        log.warning(warning)
    with interrupts() as caught:
        return _search(plan, caught)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py capacity",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--slo", required=True, metavar="PROMISES",
        help='what is promised: "CLASS:[ttft:]pNN<LIMIT", separated by commas; classes '
        "interactive, responsive, batch; units us, ms, s",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=("users", "rate"), default="users",
        help="what is searched for: users of an open loop, or requests/s [default users]",
    )  # fmt: skip
    parser.add_argument("--first", type=float, metavar="N", help="load to begin with [default 10]")
    parser.add_argument(
        "--lowest", type=float, metavar="N", help="least load that is tried [default 1; rate 0.1]"
    )
    parser.add_argument(
        "--highest", type=float, metavar="N", help="most load that is tried [default 10000]"
    )
    parser.add_argument(
        "--probe", type=float, default=60.0, metavar="S",
        help="longest measured window of a probe, in seconds; less when it is sure [default 60]",
    )  # fmt: skip
    parser.add_argument(
        "--probe-warmup", type=float, default=10.0, metavar="S",
        help="load before each probe's window, not counted [default 10]",
    )  # fmt: skip
    parser.add_argument(
        "--resolution", type=float, default=0.03, metavar="X",
        help="width of the last interval, as a share of the load [default 0.03]",
    )  # fmt: skip
    parser.add_argument("--most-probes", type=int, default=12, metavar="N", help="[default 12]")
    parser.add_argument(
        "--confirmations", type=int, default=3, metavar="N",
        help="probes at the answer, which are judged together [default 3]",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=int, default=CONCURRENCY, metavar="N",
        help=f"requests that are served at the same time, at most [default {CONCURRENCY}]",
    )  # fmt: skip
    return parser


# --- checking --------------------------------------------------------------------------------

_LEFT_OVER = 0.1  # of what was asked
_SURE_ERRORS = 4.0  # standard errors of asked - answered at a load of exactly 1, as of two counts
_PROMISES_LONG = 5  # a probe lasts so many times the longest promise, at least

_OURS = {
    "run.duration_s": "--probe sets the length of a probe",
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
    "output.results_dir": "each probe stands in the result of the search",
    "output.latency_dump": "each probe stands in the result of the search",
    "output.record": "each probe stands in the result of the search",
    "output.io_trace_log": "each probe stands in the result of the search",
    "output.validation_trace": "each probe stands in the result of the search",
    "output.fio_export": "each probe stands in the result of the search",
    "output.xlsx_output": "each probe stands in the result of the search",
    "output.hdr_log": "each probe stands in the result of the search",
    "output.metrics_port": "each probe is a run of its own",
    "output.json": "the result of the search is JSON, see --output",
    "output.certify": "a probe that the client limits is told",
    "sim.predict": "each probe is a run of its own",
}
"""Options of a run that the search sets itself, and why."""
_NOT_EVEN_IN_A_FILE = ("arrival.request_rate", "autoscaler.enabled", "precondition.enabled")


def _plan(options: argparse.Namespace, rest: Sequence[str]) -> Plan:
    """Raises UsageError for everything that can be known to be wrong."""
    promises = parse_promises(options.slo)
    by_users = options.by == "users"
    invocation = parse(rest)
    given = {**invocation.overrides}
    invocation.refuse("capacity", _OURS, _NOT_EVEN_IN_A_FILE)
    if by_users and "run.num_users" in given:
        raise ConfigError("--num-users is what capacity --by users searches for; use --first")
    for name in ("probe", "probe_warmup"):
        seconds = getattr(options, name)
        if not (0 if name == "probe_warmup" else 1) <= seconds <= 86_400:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {seconds:g} is not in 1 to 86400 s; give seconds")
    if not 1 <= options.concurrency <= 10_000:
        raise ConfigError(f"--concurrency {options.concurrency} is not in 1 to 10000")
    fixed: dict[str, Any] = {
        "run.duration_s": options.probe,
        "run.warmup_s": options.probe_warmup,
        "run.max_requests": 0,
        "run.trials": 1,
        "workload.replay_cycles": 0,
        "arrival.mode": "open",
        "arrival.process": "fixed",
        "output.results_dir": None,
        "output.latency_dump": None,
        "output.record": None,
        "output.io_trace_log": None,
        "output.validation_trace": None,
        "output.fio_export": None,
        "output.xlsx_output": None,
        "output.hdr_log": None,
        "output.metrics_port": None,
        "output.certify": False,
        "schedule.workers": options.concurrency,
    }
    if not by_users:
        fixed |= {"arrival.request_rate": 1.0, "arrival.process": "poisson"}
    config, notes = loaded(replace(invocation, overrides={**given, **fixed}))
    job = prepare(config, notes=notes, progress=TerminalProgress(config.output.progress))
    if by_users and job.config.replays:
        raise ConfigError(
            "a trace has no users to search for; give --by rate, or leave --trace out"
        )
    if job.load.sessions:
        raise ConfigError(
            "a trace of sessions cannot be asked at a rate: its rows wait for the answers that "
            "they follow; give a trace whose rows have instants, or leave --trace out"
        )
    _check_lengths(options, job.config, promises)
    highest = 10_000 if options.highest is None else options.highest
    if not by_users:
        _require_somebody(job, promises)
    fewest = _fewest(job, promises, round(highest)) if by_users else 0
    rules = _rules(options, by_users, fewest, highest)
    return Plan(
        job=job,
        promises=promises,
        by_users=by_users,
        rules=rules,
        probe_s=options.probe,
        output=job.output,
    )


def _check_lengths(
    options: argparse.Namespace, config: Config, promises: Sequence[Promise]
) -> None:
    """Until a promise's limit has passed no request can be over it, and a backlog that grows is
    only seen in some windows."""
    longest_s = max(promise.limit_ns for promise in promises) / NS_PER_S
    if options.probe_warmup < longest_s:
        raise ConfigError(
            f"--probe-warmup {options.probe_warmup:g} is shorter than the longest promise, "
            f"{longest_s:g} s: nothing could be over it when a probe begins; raise it to that"
        )
    least_s = max(_PROMISES_LONG * longest_s, LEAST_WINDOWS * config.monitor.tick_s)
    if options.probe < least_s:
        raise ConfigError(
            f"--probe {options.probe:g} is too short: it must last {_PROMISES_LONG} times the "
            f"longest promise and {LEAST_WINDOWS} windows (monitor.tick_s); raise it to "
            f"{least_s:g}"
        )


def _rules(options: argparse.Namespace, by_users: bool, fewest: int, highest: float) -> SearchRules:
    lowest = (1 if by_users else 0.1) if options.lowest is None else options.lowest
    first = min(max(10.0, lowest), highest) if options.first is None else options.first
    if first <= 0:
        raise ConfigError(f"--first {first:g} is no load; give one above 0")
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
    )


def _fewest(job: Job, promises: Sequence[Promise], highest: int) -> int:
    """Users, of whom one at least is of a class that is promised something."""

    def anybody(users: int) -> bool:
        return bool(_kept_by(_at(job.config, job.seed, users, 0, True), job, promises))

    most = 1
    while not anybody(most):
        if most >= highest:
            raise ConfigError(
                f"none of {highest} users is of a class that is promised something; change --slo, "
                "qos_distribution or --highest"
            )
        most = min(2 * most, highest)
    return bisect_left(range(1, most + 1), True, key=anybody) + 1


def _require_somebody(job: Job, promises: Sequence[Promise]) -> None:
    """With a rate, who the users are is given: each promise must be somebody's."""
    kept = _kept_by(_at(job.config, job.seed, 1.0, 0, False), job, promises)
    for promise in promises:
        if promise not in kept:
            raise ConfigError(
                f"--slo promises {promise}, but none of {job.config.run.num_users} users is of "
                "that class; raise --num-users or its share in qos_distribution"
            )


# --- one probe -------------------------------------------------------------------------------


def _at(config: Config, seed: int, load: float, number: int, by_users: bool) -> Config:
    """The configuration of a probe: the same people at each load, who ask for other things."""
    own = Seed(seed).child("probe", number).integer() % 2**32
    run = replace(config.run, seed=own)
    people = config.workload.population_seed
    people = seed if people is None else people
    workload = replace(config.workload, population_seed=people)
    if by_users:
        return replace(config, run=replace(run, num_users=round(load)), workload=workload)
    arrival = replace(config.arrival, request_rate=load)
    return replace(config, run=run, workload=workload, arrival=arrival)


def _kept_by(config: Config, job: Job, promises: Sequence[Promise]) -> tuple[Promise, ...]:
    """The promises of classes that somebody is of: a few users may have no interactive one."""
    facts = job.build(config).source.describe()
    some = {qos for qos in Qos if facts.get(f"{qos}_users", 1)}
    return tuple(promise for promise in promises if promise.qos in some)


class _Probing:
    """Runs one probe: collects its batches, and ends it when it is sure."""

    def __init__(self, plan: Plan, config: Config, caught: Interrupts) -> None:
        self._plan = plan
        self._config = config
        self._caught = caught
        self._batches: list[Batch] = []
        self.promises = _kept_by(config, plan.job, plan.promises)

    def run(self, what: str) -> RunOutcome:
        job, config = self._plan.job, self._config
        assert config.run.seed is not None
        load = job.build(config)
        if config.run.virtual_time:
            return simulate(
                config, load, job.specs, config.run.seed,
                progress=_ignore, on_record=_ignore, on_op=_ignore,
                stopped=self._caught.stop.is_set, promises=self.promises, watch=self._watch,
            )  # fmt: skip
        plan = RunPlan(config, load, job.specs, config.run.seed, promises=self.promises)
        with (
            open_run(plan, self._caught.stop, RunHooks(watch=self._watch)) as run,
            TerminalProgress(config.output.progress).run(config, what, self.promises) as tick,
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
        )

    def _watch(self, window: Window) -> bool:
        self._batches.append(counts_of(window, self.promises))
        status = self._judged().status
        long_enough = len(self._batches) >= LEAST_WINDOWS  # for a growing backlog to be seen
        return status is Status.OUTSIDE or (status is Status.INSIDE and long_enough)

    def _judged(self) -> Judged:
        longest = max(1, round(self._plan.probe_s / self._config.monitor.tick_s))
        return judge(self.promises, self._batches, longest=longest)


def _overloaded(windows: Sequence[Window], config: Config) -> bool:
    """The backlog grows throughout; or so much less was answered than asked that ten windows need
    not be waited for."""
    found = stationarity(windows)
    most = config.passport.thresholds().most_backlog_growth
    if backlog_grows(found["backlog_growth_share"], found["backlog_t"], most):
        return True
    asked = sum(window.submitted for window in windows)
    left = asked - sum(c.ended for window in windows for c in window.classes.values())
    return left > _LEFT_OVER * asked and left > _SURE_ERRORS * sqrt(2 * asked)


def _ignore(_: object) -> None:
    """Nobody watches."""


# --- the search ------------------------------------------------------------------------------


def _search(plan: Plan, caught: Interrupts) -> int:
    """The document is written after each probe, so that nothing is lost with the next."""
    search = CapacitySearch(plan.rules)
    environment = captured(*plan.job.directories)
    probes: list[Probe] = []
    died: str | None = None
    silent = False
    while True:
        document = _document(plan, search, probes, environment, caught, died)
        kept = None
        if probes or died or caught.number:
            kept = keep(plan.output, as_json(document))
        lost = kept is not None and not kept.in_place
        load = search.next_load()
        if load is None or died or lost or caught.stop.is_set():
            break
        try:
            died = _probe(plan, search, load, probes, environment, caught)
        except UsageError as error:  # the probes before it stand all the same
            died = str(error)
        except NoAnswerError as error:
            died, silent = str(error), True
            log.error("%s", error)
    picture = plot_beside(document, plan.output)
    print(terminal(made_view(document)))
    print(f"\nresult    {plan.output if kept is None else kept.shown}")
    if picture is not None:
        print(f"plot      {picture}")
    if kept is not None:
        print_unwritten(kept)
    if silent or (kept is not None and kept.no_answer):
        return Exit.NO_ANSWER
    return Exit.EARLY if died or lost else caught.exit_code


def _probe(
    plan: Plan,
    search: CapacitySearch,
    load: float,
    probes: list[Probe],
    environment: Mapping[str, Any],
    caught: Interrupts,
) -> str | None:
    """Run one probe and report it; why the program broke, if it did."""
    number = len(probes) + 1
    config = _at(plan.job.config, plan.job.seed, load, number, plan.by_users)
    probing = _Probing(plan, config, caught)
    what = f"probe {number}/{plan.rules.most_probes}: {load:g} {_unit(plan)}"
    outcome = probing.run(what)
    if caught.stop.is_set():
        return None
    verdict = probing.verdict(outcome)
    document = build_result(config, plan.job.model, outcome, environment)
    probes.append(
        probe_of(number, load, search.why or "", probing.promises, verdict, outcome, document)
    )
    search.report(load, verdict)
    log.info("%s: %s", what, "inside" if verdict.inside else "outside")
    return outcome.death


def _document(
    plan: Plan,
    search: CapacitySearch,
    probes: Sequence[Probe],
    environment: Mapping[str, Any],
    caught: Interrupts,
    died: str | None,
) -> dict[str, Any]:
    return capacity_document(
        plan.job.config,
        plan.job.model,
        search=search,
        rules=plan.rules,
        promises=plan.promises,
        unit=_unit(plan),
        probes=probes,
        seed=plan.job.seed,
        environment=environment,
        interrupted=caught.name,
        death=died,
        workload=plan.job.load.source.describe(),
    )


def _unit(plan: Plan) -> str:
    return "users" if plan.by_users else "requests/s"
