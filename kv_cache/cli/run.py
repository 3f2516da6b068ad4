"""`kv-cache.py run`, which is also `kv-cache.py` with bare flags: one run, from flags to result.

Everything that can be wrong with the input is found before the first byte is written. The result
is written before the cache files are removed: a launcher may kill us 5 s after its signal.
"""

import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from kv_cache.bench.certify import ceiling
from kv_cache.bench.endpoint import Endpoint
from kv_cache.bench.fill import Filled
from kv_cache.bench.plan import RunHooks, RunPlan
from kv_cache.bench.run import RealRun, open_run
from kv_cache.bench.stores import fill_drives
from kv_cache.cli.crew.begin import take_part
from kv_cache.cli.crew.coordinator import Coordinator
from kv_cache.cli.crew.seat import Refused, Seat
from kv_cache.cli.exits import Exit
from kv_cache.cli.exports import endpoint, watch, write_exports
from kv_cache.cli.flags import Invocation, parse
from kv_cache.cli.interrupts import Interrupts, interrupts
from kv_cache.cli.keep import Kept, keep, with_result
from kv_cache.cli.per_rank import alone_note, apart, own_file, together_note
from kv_cache.cli.prepare import (
    QUICK,
    Job,
    Start,
    numbered,
    output_of,
    own_files,
    places_of_run,
    prepare,
    warnings_of,
)
from kv_cache.cli.progress import Progress, bar_for, to
from kv_cache.cli.ranks import rank_of
from kv_cache.cli.twin import export_job
from kv_cache.cli.twin_prediction import Foresight, foresee
from kv_cache.cli.watchers import Watchers
from kv_cache.config.build import Load, endless
from kv_cache.config.root import Config
from kv_cache.core.errors import ConfigError, NoAnswerError, UsageError
from kv_cache.core.text import as_json
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.report.brief import brief, brief_of_trials
from kv_cache.report.fio import derive
from kv_cache.report.plot import plot_beside
from kv_cache.report.validation import compare, validated_line
from kv_cache.report.writing import write_atomically
from kv_cache.result.document import build_result, with_left_behind
from kv_cache.result.trials import aggregate, trial_seed
from kv_cache.sim.run import simulate
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

log = logging.getLogger("kv_cache")


def main(argv: Sequence[str]) -> int:
    """Run; the exit code. UsageError is the caller's to print."""
    invocation = parse(argv)
    if not argv:
        invocation = replace(invocation, config_path=QUICK)
    _log_as_asked(invocation)
    rank = rank_of(os.environ)
    try:
        part = take_part(invocation, rank, os.environ)
    except Refused:
        return Exit.REFUSED
    if isinstance(part, Coordinator):
        return part.run()
    if isinstance(part, Seat):
        return _run_seated(invocation, part)

    def own(config: Config) -> Config:
        mine = apart(config, rank, own_file(output_of(config), rank))
        shown = mine.output.progress and rank.rank == 0  # one of several says how it goes
        return replace(mine, output=replace(mine.output, progress=shown))

    notes = (*alone_note(rank), *([part] if part else []))
    start = Start(rank=rank) if rank.alone else Start(rank=rank, own=own, notes=notes)
    return launch(invocation, start, quick=not argv)


def _run_seated(invocation: Invocation, seat: Seat) -> int:
    """One of the ranks that run together. Its result is written, then handed over; the coordinator
    says why none can begin."""
    output = own_file(seat.output, seat.rank, together=True)

    def own(config: Config) -> Config:
        mine = apart(config, seat.rank, output, together=True)
        return replace(
            mine, output=replace(mine.output, progress=False)
        )  # the coordinator shows it

    notes = together_note(seat.rank, seat.output)
    try:
        return launch(invocation, Start(rank=seat.rank, own=own, notes=notes, seat=seat))
    except UsageError as error:
        if isinstance(error, Refused) or seat.refuse(str(error)):
            return Exit.REFUSED
        raise


def launch(invocation: Invocation, start: Start, *, quick: bool = False) -> int:
    """Check and run; the exit code. Raises UsageError."""
    _log_as_asked(invocation)
    job = prepare(invocation, quick=quick, start=start)
    for warning in (*start.notes, *start.not_submittable, *job.warnings):
        log.log(_level_of(start, warning), warning)
    if job.config.sim.predict is not None and not job.config.run.virtual_time:
        foresight_of(job)
    with interrupts() as caught:
        if start.seat is not None:
            return _with_others(job, start.seat, caught)
        return _run(job, caught) if job.config.run.trials == 1 else _run_trials(job, caught)


def _log_as_asked(invocation: Invocation) -> None:
    logging.basicConfig(
        level=invocation.log_level, format="%(levelname)s %(message)s", stream=sys.stderr
    )


def _with_others(job: Job, seat: Seat, caught: Interrupts) -> int:
    """What is handed over is the result, wherever it could be written."""
    seat.introduce(job.config, caught)
    try:
        code = _run(job, caught)
    except NoAnswerError as error:
        log.error("%s", error)
        code = Exit.NO_ANSWER
    seat.conclude(code, job.kept[-1].data if job.kept else None)
    return code


def _level_of(start: Start, warning: str) -> int:
    """Of what is said before the run. Of ranks that run together one says it, for all of them."""
    if start.seat is None or (start.rank.rank == 0 and warning not in start.notes):
        return logging.WARNING
    return logging.DEBUG


# --- trials ----------------------------------------------------------------------------------


def _run_trials(job: Job, caught: Interrupts) -> int:
    """Whole runs one after the other; what each was stands in its own result, and what they have
    in common in the result of all."""
    planned, cooldown_s = job.config.run.trials, job.config.run.trial_cooldown_s
    documents: list[Mapping[str, Any]] = []
    told: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    code = 0
    for number in range(1, planned + 1):
        if number > 1 and (caught.stop.wait(cooldown_s) or code):
            break
        trial = replace(_trial(job, number), told=told, kept=[])
        log.info("trial %d of %d, seed %d", number, planned, trial.seed)
        try:
            code = _run(trial, caught)
        except UsageError as error:  # what other trials measured stands all the same
            log.error("trial %d: %s", number, error)
            code = Exit.REFUSED
        except NoAnswerError as error:
            log.error("trial %d: %s", number, error)
            code = Exit.NO_ANSWER
        if trial.kept:
            data = trial.kept[-1].data
            documents.append(orjson.loads(data))
            where = trial.kept[-1].path or trial.output
            name = os.path.relpath(where, job.output.parent)
            files[name] = hashlib.sha256(data).hexdigest()
    if not documents:
        return code or caught.exit_code
    document = aggregate(
        documents, files, master_seed=job.seed, planned=planned, cooldown_s=cooldown_s
    )
    kept = keep(job.output, as_json(document), "result of all trials")
    if job.config.output.json:
        _print_json(with_result(brief_of_trials(document, told, {}), kept, document))
    else:
        print(f"{terminal(made_view(document))}\n\ntrials  {kept.shown}")
        kept.print_unwritten()
    return code or caught.exit_code or kept.code


def _print_json(document: Mapping[str, Any]) -> None:
    print(as_json(document).decode(), end="")


def _trial(job: Job, number: int) -> Job:
    """The job of one trial: another seed, and files of its own."""
    seed = trial_seed(job.seed, number)
    place, output = places_of_run(job.config, seed, numbered(job.output, number))
    files = replace(own_files(job.config, number), output=str(output))
    config = replace(job.config, run=replace(job.config.run, seed=seed), output=files)
    load = job.build(config)
    warnings = (*job.noted, *warnings_of(config, load, job.trace, job.found))
    return replace(
        job, config=config, seed=seed, output=output, run_directory=place, load=load,
        warnings=warnings,
    )  # fmt: skip


# --- running ---------------------------------------------------------------------------------


def _run(job: Job, caught: Interrupts) -> int:
    watchers = Watchers(job)
    if job.config.run.virtual_time:
        watchers.open()
        outcome = watchers.complete(_simulated(job, caught, watchers), caught.name)
        return _conclude(job, caught, watchers, outcome)
    with endpoint(job.config) as served:
        return _measure(job, caught, watchers, served)


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


def _foreseen(job: Job, caught: Interrupts) -> Job:
    """With the twin's outcome, unless a signal cut it short."""
    if job.config.sim.predict is None:
        return job
    foresight = foresight_of(job)
    with bar_for(job.config, desc="predicting", unit=" requests") as bar:
        outcome = foresight.run(caught.stop.is_set, lambda requests: to(bar, requests))
    return job if caught.came else replace(job, foreseen=(foresight, outcome))


def _measure(job: Job, caught: Interrupts, watchers: Watchers, served: Endpoint | None) -> int:
    job = _foreseen(job, caught)
    filled = fill_first(job, caught) if job.config.precondition.enabled else None
    plan = RunPlan(job.config, job.load, job.specs, job.seed, filled, load_of_rounds(job))
    hooks = RunHooks(
        on_record=watchers.on_record,
        on_op=watchers.on_op,
        on_arrival=watchers.on_arrival,
        on_latencies=watchers.on_latencies,
        together=job.start.seat,
    )
    with open_run(plan, caught.stop, hooks) as run:
        code, outcome = _carry_out(job, caught, watchers, served, run)
    if code is None:
        code = _conclude(job, caught, watchers, _certified(job, caught, outcome))
    if run.left_behind:
        _amend(job, watchers, run.left_behind)
    return code


def _carry_out(
    job: Job, caught: Interrupts, watchers: Watchers, served: Endpoint | None, run: RealRun
) -> tuple[int | None, RunOutcome]:
    """Execute and conclude a run; the exit code is None if it is to be certified once closed."""
    watchers.open(run.clock.started_unix_s)
    if job.start.seat is not None:
        job.start.seat.watch(run)
    watch(job.config, served, run)
    with Progress(job.config) as progress:
        outcome = run.execute(progress.tick)
    # A signal that comes from now on interrupts what follows, and not what was measured.
    outcome = watchers.complete(outcome, caught.name)
    certify = job.config.output.certify
    if not certify or outcome.interrupted is not None or outcome.death is not None:
        return _conclude(job, caught, watchers, outcome), outcome
    _keep(job, watchers, outcome)  # whatever becomes of the certification
    return None, outcome


def _amend(job: Job, watchers: Watchers, left: Sequence[str]) -> None:
    """Put what could not be removed into the results, which were written before."""
    written = [kept.path for kept in job.kept[-1:] if kept.path is not None]
    if watchers.run_directory is not None:
        written.append(watchers.run_directory.result)
    for path in dict.fromkeys(written):
        try:
            write_atomically(path, with_left_behind(path.read_bytes(), left))
        except (OSError, ValueError) as error:
            log.error("%s does not say what was not removed: %s", path, error)


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


def _simulated(job: Job, caught: Interrupts, watchers: Watchers) -> RunOutcome:
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
            on_latencies=watchers.on_latencies,
            stopped=caught.stop.is_set,
        )


def _conclude(job: Job, caught: Interrupts, watchers: Watchers, outcome: RunOutcome) -> int:
    """Write what there is, tell it, and choose the exit code."""
    document, kept, copied = _keep(job, watchers, outcome)
    files, complete = dict[str, str](), True
    if not kept.no_answer:
        files, complete = _write_beside(job, watchers, outcome, document)
    told = job.config.output
    if job.start.seat is not None:
        where = [kept.shown, *files.values()]
        log.debug("%s wrote %s", job.start.rank, ", ".join(where))  # all print one summary
    elif told.json:
        summary = with_result(brief(document, files), kept, document)
        _print_json(summary) if job.told is None else job.told.append(summary)
    else:
        print(terminal(made_view(document)))
        if (validation := document.get("validation")) is not None:
            print(validated_line(validation))
        print(f"\nresult  {kept.shown}")
        for made in watchers.recordings():
            print(f"trace   {made['path']} ({made['rows']} {made['what']})")
        for what in ("report", "plot", "fio_job", "hdr_log", "sheets"):
            if what in files:
                print(f"{what.replace('_', ' '):<7} {files[what]}")
        kept.print_unwritten()
    if not (copied and complete) or outcome.death is not None:
        return kept.code or Exit.EARLY
    return kept.code or caught.exit_code


def _write_beside(
    job: Job, watchers: Watchers, outcome: RunOutcome, document: Mapping[str, Any]
) -> tuple[dict[str, str], bool]:
    """The files that are not the result, by what they are; and whether all could be written."""
    told = job.config.output
    files = {f"trace_of_{made['what']}": str(made["path"]) for made in watchers.recordings()}
    for name in ("latency_dump", "hdr_log"):
        if (path := getattr(told, name)) is not None and Path(path).exists():
            files[name] = path
    if watchers.run_directory is not None:
        files["run_directory"] = str(watchers.run_directory.path)
        if (written := watchers.run_directory.report(document)) is not None:
            files["report"] = str(written)
    if job.config.autoscaler.enabled or outcome.preconditioning is not None:
        picture = plot_beside(document, job.output)
        if picture is not None:
            files["plot"] = str(picture)
    if outcome.driver == "real-io" and told.fio_export is not None:
        files |= _export_job(document, job.output, Path(told.fio_export))
    made, complete = write_exports(job.config, document)
    return files | made, complete


def _keep(job: Job, watchers: Watchers, outcome: RunOutcome) -> tuple[dict[str, Any], Kept, bool]:
    """The result, where it was written, and whether the run's directory has its copy."""
    document = build_result(
        job.config,
        job.model,
        outcome,
        watchers.environment,
        watchers.files,
        recordings=watchers.recordings(),
        validation=None if job.validation is None else compare(job.validation, outcome),
        twin=None if job.foreseen is None else job.foreseen[0].section(job.foreseen[1], outcome),
    )
    directory = watchers.run_directory
    earlier = [before.path for before in job.kept if before.path is not None]
    others = [*earlier, *([] if directory is None else [directory.result])]
    kept = keep(job.output, as_json(document), others=others, answer_s=job.config.run.answer_s)
    job.kept.append(kept)
    if directory is None or kept.path == directory.result or kept.no_answer:
        return document, kept, True
    try:
        directory.end(document)
    except OSError as error:
        log.error(
            "%s has no result.json: it could not be written (%s); it is in %s",
            directory.path, (error.strerror or str(error)).lower(), kept.shown,
        )  # fmt: skip
        return document, kept, False
    return document, kept, True


def _export_job(document: Mapping[str, Any], result: Path, path: Path) -> dict[str, str]:
    try:
        export_job(derive(document, result), path)
    except UsageError as error:  # nothing moved in the window: the result stands all the same
        log.error("no fio job was written: %s", error)
        return {}
    return {"fio_job": str(path)}
