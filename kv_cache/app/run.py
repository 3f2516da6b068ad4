"""One run, from a configuration to a result that is written; or several, one after the other.

Everything that can be wrong with the input is found before the first byte is written. The result
is written, and handed to `on_result`, before the cache files are removed: a launcher may kill the
process 5 s after its signal.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import structs

from kv_cache.app.exports import endpoint, watch, write_exports
from kv_cache.app.prepare import (
    Job,
    Start,
    numbered,
    own_files,
    places_of_run,
    prepare,
    warnings_of,
)
from kv_cache.app.twin_prediction import Foresight, foresee
from kv_cache.app.watchers import Watchers
from kv_cache.bench.client_ceiling import ceiling
from kv_cache.bench.fill import Filled
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.bench.run import RealRun, open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.bench.stores import fill_drives
from kv_cache.config.build import Load, endless
from kv_cache.config.root import Config
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import ConfigError, NoAnswerError, UsageError, os_reason
from kv_cache.core.exits import Exit
from kv_cache.core.garbage import rarely_looked_for
from kv_cache.core.text import as_json
from kv_cache.files.fio import derive, export_job
from kv_cache.files.keep import Kept, keep
from kv_cache.files.result import Result
from kv_cache.files.validation import compare
from kv_cache.files.writing import write_atomically
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.document import build_result, with_left_behind
from kv_cache.result.trials import aggregate, trial_seed
from kv_cache.sim.run import simulate

log = logging.getLogger("kv_cache")

if TYPE_CHECKING:
    from kv_cache.bench.endpoint import Endpoint

OnResult = Callable[[Result], None]


def run(
    config: Config,
    *,
    start: Start | None = None,
    notes: Sequence[str] = (),
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
    on_result: OnResult = ignore,
) -> Result:
    """Measure what a configuration describes, and write the result and the files that it asks for.

    `stop` ends it early, with the result of what was measured until then. `on_result` gets each
    result as soon as it is written; of a run that is repeated each trial's, then that of all.
    Raises UsageError before anything is written, NoAnswerError where a device does not answer.
    """
    start = start or Start()
    job = prepare(config, start=start, notes=notes, progress=progress)
    for warning in (*start.notes, *start.not_submittable, *job.warnings):
        log.log(_level_of(start, warning), warning)
    if job.config.sim.predict is not None and not job.config.run.virtual_time:
        foresight_of(job)
    caught = stop or Interrupts()
    if start.seat is not None:
        return _with_others(job, start, _Running(job, caught, progress, on_result))
    if job.config.run.trials > 1:
        return _run_trials(job, caught, progress, on_result)
    return _Running(job, caught, progress, on_result).run()


def _with_others(job: Job, start: Start, running: "_Running") -> Result:
    """A rank's run; what is handed over is the result, wherever it could be written."""
    assert start.seat is not None
    if job.config.run.until is not None:
        raise ConfigError(
            "--until ends one process's window, and those of ranks that run together are one: "
            "leave it out, or set --mpi apart"
        )
    start.seat.introduce(job.config, running.caught)
    try:
        result = running.run()
    except NoAnswerError as error:
        log.error("%s", error)
        result = replace(running.last or Result(document={}), end=Exit.NO_ANSWER)
    start.seat.conclude(result.end, running.kept[-1].data if running.kept else None)
    return result


def _level_of(start: Start, warning: str) -> int:
    """Of ranks that run together one says what is said before the run, for all of them."""
    if start.seat is None or (start.rank.rank == 0 and warning not in start.notes):
        return logging.WARNING
    return logging.DEBUG


# --- trials ----------------------------------------------------------------------------------


def _run_trials(job: Job, caught: Interrupts, progress: Progress, on_result: OnResult) -> Result:
    """Whole runs one after the other; what each was stands in its own result, and what they have
    in common in the result of all."""
    planned, cooldown_s = job.config.run.trials, job.config.run.trial_cooldown_s
    results: list[Result] = []
    documents: list[Mapping[str, Any]] = []
    files: dict[str, str] = {}
    end = Exit.DONE
    for number in range(1, planned + 1):
        if number > 1 and (caught.stop.wait(cooldown_s) or end):
            break
        trial = _trial(job, number)
        log.info("trial %d of %d, seed %d", number, planned, trial.seed)
        running = _Running(trial, caught, progress, on_result)
        end = _end_of(running, number)
        if running.last is not None:
            results.append(running.last)
        for kept in running.kept[-1:]:
            documents.append(orjson.loads(kept.data))
            name = os.path.relpath(kept.path or trial.output, job.output.parent)
            files[name] = hashlib.sha256(kept.data).hexdigest()
    if not documents:
        return Result(document={}, end=end or Exit(caught.exit_code))
    document = aggregate(
        documents, files, master_seed=job.seed, planned=planned, cooldown_s=cooldown_s
    )
    kept = keep(job.output, as_json(document), "result of all trials")
    end = end or Exit(caught.exit_code) or kept.code
    result = Result(document=document, kept=kept, end=end, trials=results)
    on_result(result)
    return result


def _end_of(running: "_Running", number: int) -> Exit:
    try:
        return running.run().end
    except UsageError as error:  # what other trials measured stands all the same
        log.error("trial %d: %s", number, error)
        return Exit.REFUSED
    except NoAnswerError as error:
        log.error("trial %d: %s", number, error)
        return Exit.NO_ANSWER


def _trial(job: Job, number: int) -> Job:
    """The job of one trial: another seed, and files of its own."""
    seed = trial_seed(job.seed, number)
    place, output = places_of_run(job.config, seed, numbered(job.output, number))
    files = replace(own_files(job.config, number), output=str(output))
    config = replace(job.config, run=replace(job.config.run, seed=seed), output=files)
    load = job.build(config)
    warnings = (*job.noted, *warnings_of(config, load, job.trace, job.found))
    return structs.replace(
        job, config=config, seed=seed, output=output, run_directory=place, load=load,
        warnings=warnings,
    )  # fmt: skip


# --- one run ---------------------------------------------------------------------------------


@dataclass
class _Running:
    """One run that goes on."""

    job: Job
    caught: Interrupts
    progress: Progress
    on_result: OnResult
    kept: list[Kept] = field(default_factory=list)  # the result, each time that it was written
    last: Result | None = None

    def run(self) -> Result:
        self.watchers = Watchers(self.job)
        if self.job.config.run.virtual_time:
            self.watchers.open()
            with rarely_looked_for():  # a result is built of trees, which hold no cycles
                outcome = self.watchers.complete(self._simulated(), self.caught.name)
                return self._conclude(outcome)
        with endpoint(self.job.config) as served:
            return self._measure(served)

    def _foreseen(self) -> "tuple[Foresight, RunOutcome] | None":
        """The twin with its outcome; None where none was asked for, or a signal cut it short."""
        if self.job.config.sim.predict is None:
            return None
        foresight = foresight_of(self.job)
        with self.progress.bar("predicting", unit="requests") as bar:
            outcome = foresight.run(self.caught.stop.is_set, bar.to)
        return None if self.caught.came else (foresight, outcome)

    def _measure(self, served: "Endpoint | None") -> Result:
        job, watchers = self.job, self.watchers
        self.foreseen = self._foreseen()
        filled = None
        if job.config.precondition.enabled:
            filled = fill_first(job, self.caught, self.progress)
        plan = RunPlan(job.config, job.load, job.specs, job.seed, filled, load_of_rounds(job))
        hooks = RunHooks(
            on_record=watchers.on_record,
            on_op=watchers.op_watcher,
            on_arrival=watchers.on_arrival,
            on_latencies=watchers.latencies_watcher,
            together=job.start.seat,
        )
        with open_run(plan, self.caught.stop, hooks) as real:
            outcome = self._executed(real, served)
            certify = job.config.output.certify
            certify = certify and outcome.interrupted is None and outcome.death is None
            if certify:
                self._write(outcome)  # whatever becomes of the certification
            else:
                self._conclude(outcome)
        if certify:
            self._conclude(self._certified(outcome))
        if real.left_behind:
            self._amend(real.left_behind)
        assert self.last is not None
        return self.last

    def _executed(self, real: RealRun, served: "Endpoint | None") -> RunOutcome:
        """A signal that comes after it interrupts what follows, and not what was measured."""
        self.watchers.open(real.clock.started_unix_s)
        if self.job.start.seat is not None:
            self.job.start.seat.watch(real)
        watch(self.job.config, served, real)
        with self.progress.run(self.job.config) as tick:
            outcome = real.execute(tick)
        return self.watchers.complete(outcome, self.caught.name)

    def _amend(self, left: Sequence[str]) -> None:
        """Put what could not be removed into the results, which were written before."""
        written = [kept.path for kept in self.kept[-1:] if kept.path is not None]
        if self.watchers.run_directory is not None:
            written.append(self.watchers.run_directory.result)
        for path in dict.fromkeys(written):
            try:
                write_atomically(path, with_left_behind(path.read_bytes(), left))
            except (OSError, ValueError) as error:
                log.error("%s does not say what was not removed: %s", path, error)

    def _certified(self, outcome: RunOutcome) -> RunOutcome:
        """With the client's own ceiling; the memory of the run itself has been given back."""
        job = self.job
        log.info("certifying: the same load without storage, %g s", job.config.passport.certify_s)
        try:
            limit = ceiling(
                job.config, job.build, job.specs, job.seed, outcome, self.caught.stop,
                job.start.seat,
            )  # fmt: skip
        except (UsageError, MemoryError) as error:  # the measurement stands all the same
            log.error("the client's ceiling was not measured: %s", error)
            return outcome
        return structs.replace(outcome, ceiling=limit)

    def _simulated(self) -> RunOutcome:
        job, watchers, self.foreseen = self.job, self.watchers, None
        with self.progress.bar("virtual time", unit="requests") as bar:
            return simulate(
                job.config,
                job.load,
                job.specs,
                job.seed,
                progress=bar.to,
                on_record=watchers.on_record,
                on_op=watchers.op_watcher,
                on_leg=watchers.leg_watcher,
                on_arrival=watchers.on_arrival,
                on_latencies=watchers.latencies_watcher,
                stopped=self.caught.stop.is_set,
            )

    # --- what is written ---------------------------------------------------------------------

    def _conclude(self, outcome: RunOutcome) -> Result:
        """Write what there is, and hand it over."""
        document, kept, copied = self._write(outcome)
        files, complete = dict[str, str](), True
        if not kept.no_answer:
            files, complete = self._write_beside(outcome, document)
        end = kept.code
        if not (copied and complete) or outcome.death is not None:
            end = end or Exit.EARLY
        self.last = Result(
            document=document,
            kept=kept,
            end=end or Exit(self.caught.exit_code),
            files=files,
            recordings=self.watchers.recordings(),
        )
        self.on_result(self.last)
        return self.last

    def _write(self, outcome: RunOutcome) -> tuple[dict[str, Any], Kept, bool]:
        """The result, where it was written, and whether the run's directory has its copy."""
        job, watchers, foreseen = self.job, self.watchers, self.foreseen
        document = build_result(
            job.config,
            job.model,
            outcome,
            watchers.environment,
            watchers.files,
            recordings=watchers.recordings(),
            validation=None if job.validation is None else compare(job.validation, outcome),
            twin=None if foreseen is None else foreseen[0].section(foreseen[1], outcome),
        )
        directory = watchers.run_directory
        earlier = [before.path for before in self.kept if before.path is not None]
        others = [*earlier, *([] if directory is None else [directory.result])]
        kept = keep(job.output, as_json(document), others=others, answer_s=job.config.run.answer_s)
        self.kept.append(kept)
        if directory is None or kept.path == directory.result or kept.no_answer:
            return document, kept, True
        try:
            directory.end(document)
        except OSError as error:
            log.error(
                "%s has no result.json: it could not be written (%s); it is in %s",
                directory.path, os_reason(error), kept.shown,
            )  # fmt: skip
            return document, kept, False
        return document, kept, True

    def _write_beside(
        self, outcome: RunOutcome, document: Mapping[str, Any]
    ) -> tuple[dict[str, str], bool]:
        """The files that are not the result, by what they are; and whether all could be written."""
        job, watchers = self.job, self.watchers
        section = job.config.output
        files = {f"trace_of_{made['what']}": str(made["path"]) for made in watchers.recordings()}
        for name in ("latency_dump", "hdr_log"):
            if (path := getattr(section, name)) is not None and Path(path).exists():
                files[name] = path
        if watchers.run_directory is not None:
            files["run_directory"] = str(watchers.run_directory.path)
            if (written := watchers.run_directory.report(document)) is not None:
                files["report"] = str(written)
        if job.config.autoscaler.enabled or outcome.preconditioning is not None:
            from kv_cache.view.picture.plot import plot_beside  # a run that begins needs none

            picture = plot_beside(document, job.output)
            if picture is not None:
                files["plot"] = str(picture)
        if outcome.driver == "real-io" and section.fio_export is not None:
            files |= _export_job(document, job.output, Path(section.fio_export))
        made, complete = write_exports(job.config, document)
        return files | made, complete


def _export_job(document: Mapping[str, Any], result: Path, path: Path) -> dict[str, str]:
    try:
        export_job(derive(document, result), path)
    except UsageError as error:  # nothing moved in the window: the result stands all the same
        log.error("no fio job was written: %s", error)
        return {}
    return {"fio_job": str(path)}


# --- what other use cases share --------------------------------------------------------------


def foresight_of(job: Job) -> Foresight:
    """The twin that was asked for. Raises UsageError where it cannot carry the run."""
    path = job.config.sim.predict
    assert path is not None
    if not job.start.rank.alone:
        raise ConfigError(
            "--predict: the twin is of one process, and this run is one of several ranks, which "
            "share what they run on; leave it out"
        )
    return foresee(job.config, job.specs, job.seed, job.build, path)


def fill_first(job: Job, caught: Interrupts, progress: Progress) -> Filled:
    """Fill the drives with data, as preconditioning begins."""
    with progress.bar("filling", unit="B", scale=True) as bar:
        return fill_drives(job.config, job.seed, caught.stop, bar.to)


def load_of_rounds(job: Job) -> Load | None:
    """The load of the preconditioning's rounds: the very workload, of other users."""
    wanted = job.config.precondition
    if not wanted.enabled or not wanted.max_rounds:
        return None
    return job.build(endless(job.config), "precondition")
