"""`kv-cache.py run`, which is also `kv-cache.py` with bare flags: one run, from flags to result.

Everything that can be wrong with the input is found before the first byte is written. The result
is written before the cache files are removed: a launcher may kill us 5 s after its signal.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from tqdm import tqdm

from kv_cache.bench.certify import ceiling
from kv_cache.bench.place import check_output_file, check_results_dir
from kv_cache.bench.run import RealRun, check_places, storage_directories
from kv_cache.cache.manager import TierSpec
from kv_cache.cli.flags import Invocation, parse
from kv_cache.cli.interrupts import Interrupts, interrupts
from kv_cache.cli.twin import export_job
from kv_cache.config.build import Load, build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.profile import read_profile
from kv_cache.config.root import Config
from kv_cache.config.schema import print_config
from kv_cache.core.effect import OpDone
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import OpKind
from kv_cache.core.model import ModelShape
from kv_cache.core.record import RequestRecord
from kv_cache.core.seed import Seed, fresh_seed
from kv_cache.core.units import GIB, gib_to_bytes
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.summary import Flows, total_bytes
from kv_cache.report.environment import capture
from kv_cache.report.fio import HEADER, derive
from kv_cache.report.reading import require_replaceable
from kv_cache.report.records import LineWriter, dump_row
from kv_cache.report.result import build_result, write_result
from kv_cache.report.rundir import RunDirectory
from kv_cache.report.table import summary_text
from kv_cache.sim.run import measured_tier, simulate
from kv_cache.workload.formats.opening import (
    Survey,
    Trace,
    open_trace,
    require_usable,
    survey,
)

QUICK = Path("quick")
EXIT_BROKEN = 1

log = logging.getLogger("kv_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked run: everything is known, nothing is written yet."""

    config: Config
    model: ModelShape
    seed: int
    load: Load
    build: Callable[[Config], Load]  # the same load again, for a configuration that differs
    specs: tuple[TierSpec, ...]
    output: Path
    directories: tuple[Path, ...]  # of the storage tier, or the temporary directory's parent
    warnings: tuple[str, ...]


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
        return _run(job, caught)


def prepare(invocation: Invocation, *, quick: bool) -> Job:
    """Check everything that was asked for, and build what is pure. Raises UsageError."""
    path = QUICK if quick and invocation.config_path is None else invocation.config_path
    config = load_config(path, invocation.overrides)
    model = config.model_shape()
    seed = fresh_seed() if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))
    trace, found = _survey(config)
    output = _output(config)
    check_output_file(output)
    if config.output.results_dir is not None:
        check_results_dir(Path(config.output.results_dir))
    for asked in (config.output.latency_dump, config.output.fio_export):
        if asked is not None:
            check_output_file(Path(asked))
    if config.output.fio_export is not None:
        require_replaceable(Path(config.output.fio_export), HEADER, "--fio-export")
    specs = tier_specs(config, _storage_bytes(config))

    def build(changed: Config) -> Load:
        room = fillable_bytes(changed, specs)
        return build_load(changed, model, Seed(seed), trace, found, room)

    load = build(config)
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
        warnings=(*invocation.warnings, *config.warnings()),
    )


def _storage_bytes(config: Config) -> int | None:
    if not config.run.virtual_time:
        return check_places(config)
    return gib_to_bytes(config.tiers.storage_capacity_gib) or None


def _survey(config: Config) -> tuple[Trace | None, Survey | None]:
    """Read the whole trace once, so that a bad row is found now and not in an hour."""
    path = config.trace_path()
    if path is None:
        return None, None
    wanted = "burstgpt" if config.workload.use_burst_trace else config.workload.trace_format
    trace = open_trace(str(path), wanted, skip_bad_rows=config.workload.skip_bad_rows)
    with _bar(config, desc="reading trace", unit=" rows") as bar:
        found = survey(trace, progress=lambda rows: _to(bar, rows))
    require_usable(trace, found)
    return trace, found


def _output(config: Config) -> Path:
    if config.output.output is not None:
        return Path(config.output.output)
    return Path(f"benchmark_results_{datetime.now():%Y%m%d_%H%M%S}.json")


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

    def on_record(self, record: RequestRecord) -> None:
        if self._requests is not None:
            self._requests.add(record)
        if self._dump is not None and (row := dump_row(record)) is not None:
            self._dump.add(row)

    def on_op(self, done: OpDone) -> None:
        if self._transfers is not None:
            self._transfers.add(done)

    def complete(self, outcome: RunOutcome, interrupted: str | None) -> RunOutcome:
        """Complete the files, and let the outcome say what became of them and of the run."""
        warnings = (*self._job.warnings, *self._close())
        return replace(
            outcome, interrupted=interrupted, warnings=warnings, record_bytes=self.written_bytes
        )

    def _close(self) -> tuple[str, ...]:
        """What could not be written."""
        writers = (self._requests, self._transfers, self._dump)
        closed = [writer.close() for writer in writers if writer is not None]
        self.files = {
            w.path.name: w.sha256 for w in writers[:2] if w is not None and w.path.exists()
        }
        self.written_bytes = sum(
            w.path.stat().st_size for w in writers if w is not None and w.path.exists()
        )
        return tuple(f"records are incomplete: {error}" for error in closed if error is not None)


def _run(job: Job, caught: Interrupts) -> int:
    watchers = _Watchers(job)
    if job.config.run.virtual_time:
        watchers.open()
        outcome = watchers.complete(_simulated(job, caught, watchers), caught.name)
        return _conclude(job, caught, watchers, outcome)
    with RealRun(
        job.config,
        job.load,
        job.specs,
        job.seed,
        stop=caught.stop,
        on_record=watchers.on_record,
        on_op=watchers.on_op,
    ) as run:
        watchers.open()
        with _Progress(job.config) as progress:
            outcome = run.execute(progress.tick)
        # A signal that comes from now on interrupts what follows, and not what was measured.
        outcome = watchers.complete(outcome, caught.name)
        certify = job.config.output.certify
        if not certify or outcome.interrupted is not None or outcome.death is not None:
            return _conclude(job, caught, watchers, outcome)
        _keep(job, watchers, outcome)  # whatever becomes of the certification
    return _conclude(job, caught, watchers, _certified(job, caught, outcome))


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
    with _bar(job.config, desc="virtual time", unit=" requests") as bar:
        return simulate(
            job.config,
            job.load,
            job.specs,
            job.seed,
            progress=lambda requests: _to(bar, requests),
            on_record=watchers.on_record,
            on_op=watchers.on_op,
            stopped=caught.stop.is_set,
        )


def _conclude(job: Job, caught: Interrupts, watchers: _Watchers, outcome: RunOutcome) -> int:
    """Write what there is, tell it, and choose the exit code."""
    document, lost = _keep(job, watchers, outcome)
    print(summary_text(document, str(job.output)))
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
    document = build_result(job.config, job.model, outcome, watchers.environment, watchers.files)
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


def _bar(config: Config, **options: Any) -> "tqdm[Any]":
    quiet = not (config.output.progress and sys.stderr.isatty())
    width = get_terminal_size((100, 24)).columns  # some terminals say 0, which tqdm would believe
    return tqdm(disable=quiet, leave=False, ncols=width, **options)


def _to(bar: "tqdm[Any]", done: int) -> None:
    bar.update(done - bar.n)


class _Progress:
    """One line on stderr: the phase, how far it is, and what storage does right now."""

    def __init__(self, config: Config) -> None:
        self._window_s = config.window_s()
        self._requests = config.run.max_requests or None
        self._bar = _bar(config, bar_format="{bar:24} {desc}", total=1.0)
        self._last = (0, 0, 0.0)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def tick(self, run: RealRun) -> None:
        if self._bar.disable:
            return
        flows = Flows(run.recorder.flows.copy())
        read = total_bytes(flows.measured(None, OpKind.READ))
        written = total_bytes(flows.measured(None, OpKind.WRITE))
        at_s = run.elapsed_s
        before_read, before_written, before_s = self._last
        if at_s - before_s >= 1:
            self._last = (read, written, at_s)
        span_s = max(at_s - before_s, 1e-9)
        self._bar.n = self._share(run)
        behind = run.world.behind.holders
        self._bar.set_description_str(
            f"{run.phase:<8} {at_s:5.1f} s  {run.recorder.all.completed} done  "
            f"{run.intake.in_flight} running  {run.intake.queued} queued  "
            f"{f'{behind} behind  ' if behind else ''}"
            f"read {(read - before_read) / span_s / GIB:.2f} "
            f"write {(written - before_written) / span_s / GIB:.2f} GiB/s",
            refresh=True,
        )

    def _share(self, run: RealRun) -> float:
        shares = [0.0]
        if self._window_s is not None:
            shares.append(run.elapsed_s / self._window_s)
        if self._requests is not None:
            shares.append((run.intake.submitted - run.intake.in_flight) / self._requests)
        return min(1.0, max(shares))
