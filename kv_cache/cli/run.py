"""`kv-cache.py run`, which is also `kv-cache.py` with bare flags: one run, from flags to result.

Everything that can be wrong with the input is found before the first byte is written. The result
is written before the cache files are removed: a launcher may kill us 5 s after its signal.
"""

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Protocol

import orjson
from tqdm import tqdm

from kv_cache.bench.certify import ceiling
from kv_cache.bench.fill import Filled
from kv_cache.bench.place import check_output_file, check_results_dir
from kv_cache.bench.run import RealRun, check_places, fill_drives, storage_directories
from kv_cache.cache.manager import TierSpec
from kv_cache.cli.flags import Invocation, parse
from kv_cache.cli.interrupts import Interrupts, interrupts
from kv_cache.cli.twin import export_job
from kv_cache.config.build import Load, build_load, endless, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.profile import read_profile
from kv_cache.config.root import Config, options, value_at
from kv_cache.config.schema import print_config
from kv_cache.config.shared import beyond_all_tiers, check_chunks, ingestion_notes
from kv_cache.core.effect import Leg, Op, OpDone
from kv_cache.core.errors import ConfigError, PlaceError, UsageError
from kv_cache.core.kinds import OpKind
from kv_cache.core.model import ModelShape
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed, fresh_seed
from kv_cache.core.units import GIB, gib_to_bytes, ns_to_ms
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.window import Window
from kv_cache.report.environment import capture
from kv_cache.report.fio import HEADER, derive
from kv_cache.report.iotrace import IoTrace, check_io_trace
from kv_cache.report.plot import plot_beside
from kv_cache.report.reading import require_replaceable
from kv_cache.report.recording import (
    Recording,
    as_recorded,
    check_recording,
    recording_notes,
)
from kv_cache.report.records import LineWriter, dump_row
from kv_cache.report.result import build_result, write_result
from kv_cache.report.rundir import RunDirectory
from kv_cache.report.table import summary_text
from kv_cache.report.trials import aggregate, trial_seed, trials_text
from kv_cache.report.validation import ValidationTrace, read_validation
from kv_cache.schedule.saturation import storage_p95_ns
from kv_cache.sim.run import measured_tier, simulate
from kv_cache.workload.formats.opening import (
    Survey,
    Trace,
    open_trace,
    require_usable,
    survey,
)
from kv_cache.workload.formats.row import TraceRow

QUICK = Path("quick")
EXIT_BROKEN = 1
EXIT_USAGE = 2

log = logging.getLogger("kv_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked run: everything is known, nothing is written yet."""

    config: Config
    model: ModelShape
    seed: int
    load: Load
    build: "Build"  # the same load again, for a configuration that differs
    specs: tuple[TierSpec, ...]
    output: Path
    directories: tuple[Path, ...]  # of the storage tier, or the temporary directory's parent
    warnings: tuple[str, ...]
    trace: Trace | None = None
    validation: ValidationTrace | None = None


class Build(Protocol):
    """The load of a configuration with the same trace; with a salt, the same under other names."""

    def __call__(self, config: Config, salt: str = "") -> Load: ...


def main(argv: Sequence[str]) -> int:
    """Run; the exit code. UsageError is the caller's to print."""
    invocation = parse(argv)
    logging.basicConfig(
        level=invocation.log_level, format="%(levelname)s %(message)s", stream=sys.stderr
    )
    job = prepare(invocation, quick=not argv)
    for warning in job.warnings:
        log.warning(warning)
    with interrupts() as caught:
        return _run(job, caught) if job.config.run.trials == 1 else _run_trials(job, caught)


def prepare(invocation: Invocation, *, quick: bool) -> Job:
    """Check everything that was asked for, and build what is pure. Raises UsageError."""
    path = QUICK if quick and invocation.config_path is None else invocation.config_path
    config = load_config(path, invocation.overrides)
    model = config.model_shape()
    seed = fresh_seed() if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))
    specs = tier_specs(config, _storage_bytes(config))
    trace, found = open_workload(config, beyond_all_tiers(config, model, specs))
    config = as_recorded(config, trace)
    output = _output(config)
    check_output_file(output)
    if config.output.results_dir is not None:
        check_results_dir(Path(config.output.results_dir))
    for number in range(1, config.run.trials + 1) if config.run.trials > 1 else ():
        check_output_file(_numbered(output, number))
    for asked in (config.output.latency_dump, config.output.fio_export):
        if asked is not None:
            check_output_file(Path(asked))
    if config.output.fio_export is not None:
        require_replaceable(Path(config.output.fio_export), HEADER, "--fio-export")
    _check_recordings(config, output, trace)
    validation = config.output.validation_trace
    compared = None if validation is None else read_validation(Path(validation))

    def build(config: Config, salt: str = "") -> Load:
        own = seed if config.run.seed is None else config.run.seed
        room = fillable_bytes(config, specs)
        return build_load(config, model, Seed(own), trace, found, room, salt)

    load = build(config)
    check_chunks(config, load.retriever, load.populate, specs)
    if config.run.virtual_time and config.sim.profile is not None:
        measured_tier(config, load, read_profile(config.sim.profile))  # refuses what it lacks
    return Job(
        config=config,
        model=model,
        seed=seed,
        load=load,
        build=build,
        specs=specs,
        output=output,
        directories=storage_directories(config),
        validation=compared,
        trace=trace,
        warnings=_warnings(config, load, trace),
    )


def _warnings(config: Config, load: Load, trace: Trace | None) -> tuple[str, ...]:
    return (
        *config.warnings(),
        *_joined(trace),
        *ingestion_notes(load.retriever),
        *recording_notes(config, trace),
    )


def _joined(trace: Trace | None) -> list[str]:
    """Whether the hash ids of several files mean the same is not to be told from the files."""
    if trace is None or len(trace.files) < 2 or trace.format.grouped:
        return []
    count = len(trace.files)
    said = f"workload.trace (--trace) has {count} files, which are replayed one after the other"
    return [f"{said} as one trace: an id means the same in all of them"]


def refuse_given(
    invocation: Invocation, command: str, useless: Mapping[str, str], always: Sequence[str]
) -> None:
    """Options that a command sets itself or has no use for (path -> why) may not be given as flags,
    and those of `always` not in the file either. Raises ConfigError."""
    config = load_config(invocation.config_path, invocation.overrides)
    for path, why in useless.items():
        option = options()[path]
        in_file = path in always and value_at(config, path) != option.default
        if in_file or path in invocation.overrides:
            flag = f" ({option.flag})" if option.flag else ""
            raise ConfigError(f"{path}{flag} cannot be given to {command}: {why}; leave it out")


def _storage_bytes(config: Config) -> int | None:
    if not config.run.virtual_time:
        return check_places(config)
    return gib_to_bytes(config.tiers.storage_capacity_gib) or None


def open_workload(
    config: Config, unfit: Callable[[TraceRow], str | None] | None = None
) -> tuple[Trace | None, Survey | None]:
    """Read the whole trace once, so that a bad row is found now and not in an hour. `unfit` says
    why a row that is good in itself is none for this run."""
    path = config.trace_path()
    if path is None:
        return None, None
    trace = open_trace(
        str(path),
        config.trace_format(),
        skip_bad_rows=config.workload.skip_bad_rows,
        reading=config.trace_reading(),
    )
    trace = replace(trace, unfit=unfit)
    with bar_for(config, desc="reading trace", unit=" rows") as bar:
        found = survey(trace, progress=lambda rows: to(bar, rows))
    require_usable(trace, found)
    return trace, found


def _output(config: Config) -> Path:
    if config.output.output is not None:
        return Path(config.output.output)
    return Path(f"benchmark_results_{datetime.now():%Y%m%d_%H%M%S}.json")


def _check_recordings(config: Config, output: Path, trace: Trace | None) -> None:
    """What is written as the run goes on replaces nobody else's file, nor one of the run's own."""
    told = config.output
    checks = {"record": check_recording, "io_trace_log": check_io_trace}
    others: dict[str, Sequence[str | Path | None]] = {
        "--output": [output],
        "--latency-dump": [told.latency_dump],
        "--fio-export": [told.fio_export],
        "--validation-trace": [told.validation_trace],
        "the trace": () if trace is None else trace.files,
    }
    for name, check in checks.items():
        if (given := getattr(told, name)) is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        for path in _each_trial(Path(given), config.run.trials):
            check(path)
            for other, files in others.items():
                if any(os.path.realpath(path) == os.path.realpath(f) for f in files if f):
                    raise PlaceError(f"{flag} {path}: {other} has the same file; name another")
        others[flag] = [given]


def _each_trial(path: Path, trials: int) -> list[Path]:
    return [path] if trials == 1 else [_numbered(path, n) for n in range(1, trials + 1)]


# --- trials ----------------------------------------------------------------------------------


def _run_trials(job: Job, caught: Interrupts) -> int:
    """Whole runs one after the other; what each was stands in its own result, and what they have
    in common in the result of all."""
    planned, cooldown_s = job.config.run.trials, job.config.run.trial_cooldown_s
    documents: list[Mapping[str, Any]] = []
    files: dict[str, str] = {}
    code = 0
    for number in range(1, planned + 1):
        if number > 1 and (caught.stop.wait(cooldown_s) or code):
            break
        trial = _trial(job, number)
        log.info("trial %d of %d, seed %d", number, planned, trial.seed)
        before = _changed_ns(trial.output)
        try:
            code = _run(trial, caught)
        except UsageError as error:  # what other trials measured stands all the same
            log.error("trial %d: %s", number, error)
            code = EXIT_USAGE
        if _changed_ns(trial.output) != before:  # else it was not written
            data = trial.output.read_bytes()
            documents.append(orjson.loads(data))
            files[trial.output.name] = hashlib.sha256(data).hexdigest()
    if not documents:
        return code or caught.exit_code
    document = aggregate(
        documents, files, master_seed=job.seed, planned=planned, cooldown_s=cooldown_s
    )
    try:
        write_result(job.output, document)
    except OSError as error:
        log.error("the result of all trials could not be written: %s", error)
        code = EXIT_BROKEN
    print(trials_text(document, str(job.output)))
    return code or caught.exit_code


def _changed_ns(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _trial(job: Job, number: int) -> Job:
    """The job of one trial: another seed, and files of its own."""
    seed = trial_seed(job.seed, number)
    output = _numbered(job.output, number)
    told = job.config.output
    own: dict[str, Any] = {
        name: str(_numbered(Path(path), number))
        for name in ("latency_dump", "fio_export", "record", "io_trace_log")
        if (path := getattr(told, name)) is not None
    }
    config = replace(
        job.config,
        run=replace(job.config.run, seed=seed),
        output=replace(told, output=str(output), **own),
    )
    load = job.build(config)
    warnings = _warnings(config, load, job.trace)
    return replace(job, config=config, seed=seed, output=output, load=load, warnings=warnings)


def _numbered(path: Path, number: int) -> Path:
    """`R.json` of the second trial is `R.trial2.json`."""
    return path.with_name(f"{path.stem}.trial{number}{path.suffix}")


# --- running ---------------------------------------------------------------------------------


class _Watchers:
    """Who is told of each request and operation: the files that were asked for.

    Nothing is written before `open`, which comes when the cache directory has been had.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._requests: LineWriter | None = None
        self._transfers: LineWriter | None = None
        self._dump: LineWriter | None = None
        self._recording: Recording | None = None
        self._io_trace: IoTrace | None = None
        self.run_directory: RunDirectory | None = None
        self.environment = capture(*job.directories)
        self.written_bytes = 0
        self.files: dict[str, str] = {}  # SHA-256 of the records, by name, once they are closed

    def open(self) -> None:
        output = self._job.config.output
        if output.results_dir is not None:
            self.run_directory = RunDirectory(Path(output.results_dir), self._job.seed)
            self.run_directory.begin(print_config(self._job.config), self.environment)
        if self.run_directory is not None and output.records:
            self._requests = LineWriter(self.run_directory.path / "requests.jsonl")
            self._transfers = LineWriter(self.run_directory.path / "transfers.jsonl")
        if output.latency_dump is not None:
            self._dump = LineWriter(Path(output.latency_dump))
        if output.record is not None:
            job = self._job
            self._recording = Recording(Path(output.record), job.config, job.load)
        if output.io_trace_log is not None:
            self._io_trace = IoTrace(Path(output.io_trace_log))

    def on_arrival(self, request: Request) -> None:
        if self._recording is not None:
            self._recording.on_arrival(request)

    def on_leg(self, op: Op, leg: Leg) -> None:
        if self._io_trace is not None:
            self._io_trace.on_leg(op, leg)

    def on_record(self, record: RequestRecord) -> None:
        if self._requests is not None:
            self._requests.add(record)
        if self._dump is not None and (row := dump_row(record)) is not None:
            self._dump.add(row)

    def on_op(self, done: OpDone) -> None:
        if self._transfers is not None:
            self._transfers.add(done)
        if self._io_trace is not None:
            self._io_trace.on_op(done)

    def recordings(self) -> list[dict[str, Any]]:
        """For the result: the traces that were written, once they are closed."""
        output = self._job.config.output
        made = (
            ("requests", output.record, self._recording),
            ("operations", output.io_trace_log, self._io_trace),
        )
        return [
            {
                "what": what,
                "path": path,
                "rows": writer.lines.written,
                "sha256": writer.lines.sha256,
            }
            for what, path, writer in made
            if writer is not None and writer.lines.path.exists()
        ]

    def complete(self, outcome: RunOutcome, interrupted: str | None) -> RunOutcome:
        """Complete the files, and let the outcome say what became of them and of the run."""
        warnings = [*self._job.warnings, *self._close()]
        if interrupted is not None:
            ends = "ends where the run was interrupted, with a whole line"
            warnings += [f"the trace {made['path']} {ends}" for made in self.recordings()]
        return replace(
            outcome, interrupted=interrupted, warnings=warnings, record_bytes=self.written_bytes
        )

    def _close(self) -> tuple[str, ...]:
        """What could not be written."""
        traces = (self._recording, self._io_trace)
        closed = [trace.close() for trace in traces if trace is not None]
        writers = (self._requests, self._transfers, self._dump)
        closed += [writer.close() for writer in writers if writer is not None]
        self.files = {
            w.path.name: w.sha256 for w in writers[:2] if w is not None and w.path.exists()
        }
        every = (*writers, *(trace.lines for trace in traces if trace is not None))
        self.written_bytes = sum(
            w.path.stat().st_size for w in every if w is not None and w.path.exists()
        )
        return tuple(f"records are incomplete: {error}" for error in closed if error is not None)


def _run(job: Job, caught: Interrupts) -> int:
    watchers = _Watchers(job)
    if job.config.run.virtual_time:
        watchers.open()
        outcome = watchers.complete(_simulated(job, caught, watchers), caught.name)
        return _conclude(job, caught, watchers, outcome)
    filled = fill_first(job, caught) if job.config.precondition.enabled else None
    with RealRun(
        job.config,
        job.load,
        job.specs,
        job.seed,
        stop=caught.stop,
        on_record=watchers.on_record,
        on_op=watchers.on_op,
        on_arrival=watchers.on_arrival,
        filled=filled,
        rounds=load_of_rounds(job),
    ) as run:
        watchers.open()
        with Progress(job.config) as progress:
            outcome = run.execute(progress.tick)
        # A signal that comes from now on interrupts what follows, and not what was measured.
        outcome = watchers.complete(outcome, caught.name)
        certify = job.config.output.certify
        if not certify or outcome.interrupted is not None or outcome.death is not None:
            return _conclude(job, caught, watchers, outcome)
        _keep(job, watchers, outcome)  # whatever becomes of the certification
    return _conclude(job, caught, watchers, _certified(job, caught, outcome))


def fill_first(job: Job, caught: Interrupts) -> Filled:
    with bar_for(job.config, desc="filling", unit="B", unit_scale=True) as bar:
        return fill_drives(job.config, job.seed, caught.stop, lambda done: to(bar, done))


def load_of_rounds(job: Job) -> Load | None:
    """The load of the preconditioning's rounds: the very workload, of other users."""
    wanted = job.config.precondition
    if not wanted.enabled or not wanted.max_rounds:
        return None
    return job.build(endless(job.config), "precondition")


def _certified(job: Job, caught: Interrupts, outcome: RunOutcome) -> RunOutcome:
    """With the client's own ceiling; the memory of the run itself has been given back."""
    log.info("certifying: the same load without storage, %g s", job.config.passport.certify_s)
    try:
        found = ceiling(job.config, job.build, job.specs, job.seed, outcome, caught.stop)
    except (UsageError, MemoryError) as error:  # the measurement stands all the same
        log.error("the client's ceiling was not measured: %s", error)
        return outcome
    return replace(outcome, ceiling=found)


def _simulated(job: Job, caught: Interrupts, watchers: _Watchers) -> RunOutcome:
    with bar_for(job.config, desc="virtual time", unit=" requests") as bar:
        return simulate(
            job.config,
            job.load,
            job.specs,
            job.seed,
            progress=lambda requests: to(bar, requests),
            on_record=watchers.on_record,
            on_op=watchers.on_op,
            on_leg=watchers.on_leg,
            on_arrival=watchers.on_arrival,
            stopped=caught.stop.is_set,
        )


def _conclude(job: Job, caught: Interrupts, watchers: _Watchers, outcome: RunOutcome) -> int:
    """Write what there is, tell it, and choose the exit code."""
    document, lost = _keep(job, watchers, outcome)
    print(summary_text(document, str(job.output)))
    for made in watchers.recordings():
        print(f"trace   {made['path']} ({made['rows']} {made['what']})")
    if lost is None and watchers.run_directory is not None:
        written = watchers.run_directory.report(document)
        if written is not None:
            print(f"report  {written}")
    if job.config.autoscaler.enabled or outcome.preconditioning is not None:
        picture = plot_beside(document, job.output)
        if picture is not None:
            print(f"plot    {picture}")
    if outcome.driver == "real-io" and job.config.output.fio_export is not None:
        _export_job(document, job.output, Path(job.config.output.fio_export))
    if lost is not None:
        log.error("the result could not be written: %s", lost)
    if lost is not None or outcome.death is not None:
        return EXIT_BROKEN
    return caught.exit_code


def _keep(
    job: Job, watchers: _Watchers, outcome: RunOutcome
) -> tuple[dict[str, Any], OSError | None]:
    """The result, written; and why not, if it could not be: the summary is told all the same."""
    document = build_result(
        job.config,
        job.model,
        outcome,
        watchers.environment,
        watchers.files,
        recordings=watchers.recordings(),
        validation=job.validation,
    )
    try:
        write_result(job.output, document)
        if watchers.run_directory is not None:
            watchers.run_directory.end(document)
    except OSError as error:
        return document, error
    return document, None


def _export_job(document: Mapping[str, Any], result: Path, path: Path) -> None:
    try:
        export_job(derive(document, result), path)
    except UsageError as error:  # nothing moved in the window: the result stands all the same
        log.error("no fio job was written: %s", error)
    else:
        print(f"fio job {path}")


# --- for whoever watches ---------------------------------------------------------------------


def bar_for(config: Config, **options: Any) -> "tqdm[Any]":
    """A progress bar, off where nobody looks."""
    quiet = not (config.output.progress and sys.stderr.isatty())
    width = get_terminal_size((100, 24)).columns  # some terminals say 0, which tqdm would believe
    return tqdm(disable=quiet, leave=False, ncols=width, **options)


def to(bar: "tqdm[Any]", done: int) -> None:
    """The bar at so much."""
    bar.update(done - bar.n)


class Progress:
    """One line on stderr: the phase, how far it is, and what storage does right now."""

    def __init__(self, config: Config, prefix: str = "") -> None:
        self._prefix = prefix
        self._window_s = config.window_s()
        self._requests = config.run.max_requests or None
        self._bar = bar_for(config, bar_format="{bar:24} {desc}", total=1.0)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def tick(self, run: RealRun) -> None:
        if self._bar.disable:
            return
        self._bar.n = self._share(run)
        behind = run.world.behind.holders
        parts = [
            *([self._prefix] if self._prefix else []),
            f"{run.phase:<8} {run.elapsed_s:5.1f} s",
            f"{run.recorder.all.completed} done",
            f"{run.serving.in_flight} running",
            f"{run.serving.queued} queued",
            *([f"{behind} behind"] if behind else []),
            *([] if run.latest is None else _now(run.latest)),
            *([f"round {len(run.rounds) + 1}"] if run.phase == "precondition" else []),
        ]
        self._bar.set_description_str("  ".join(parts), refresh=True)

    def _share(self, run: RealRun) -> float:
        shares = [0.0]
        if self._window_s is not None:
            shares.append(run.elapsed_s / self._window_s)
        if self._requests is not None:
            shares.append((run.intake.submitted - run.intake.in_flight) / self._requests)
        return min(1.0, max(shares))


def _now(window: Window) -> list[str]:
    """The last window, as far as a line has room."""
    seconds = max(window.seconds, 1e-9)
    told = []
    for kind in (OpKind.READ, OpKind.WRITE):
        p95_ns = storage_p95_ns(window, kind)
        late = "" if p95_ns is None else f" (p95 {ns_to_ms(p95_ns):.0f} ms)"
        told.append(f"{kind} {window.storage_bytes(kind) / seconds / GIB:.2f} GiB/s{late}")
    if window.gauges.users is not None:
        told.append(f"{window.gauges.users} users")
    if window.saturation is not None:
        told.append(f"saturation {window.saturation.level:.2f}")
    return told
