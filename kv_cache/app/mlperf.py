"""The sequence of MLPerf's KV-cache benchmark, driven: options x trials x clients.

This process measures nothing: it starts ranks, waits, ends what has to be ended, and keeps a record
of what it did.
"""

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from kv_cache.app.mlperf_plan import SequenceJob
from kv_cache.app.mlperf_trial import POLL_S, SignalCounter, Trial
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT, Bar, Progress
from kv_cache.config.mlperf import MLPERF_OPTIONS
from kv_cache.core.errors import PlaceError, os_reason
from kv_cache.core.exits import Exit
from kv_cache.core.format import duration_text
from kv_cache.core.text import as_json
from kv_cache.files.writing import write_atomically
from kv_cache.mlperf.aggregate import run_summary, summarize
from kv_cache.mlperf.layout import CONFIG, SUMMARY, Place, trial_directory
from kv_cache.mlperf.manifest import (
    FINISHED,
    INCOMPLETE,
    INTERRUPTED,
    RunningRecord,
    TrialRecord,
    utc_now,
    write_manifest,
)
from kv_cache.mlperf.systems import describe, write_description
from kv_cache.mlperf.tree import Tree, read_tree
from kv_cache.result.counted import Json
from kv_cache.result.run import plain

OVERHEAD_S = 15.0  # of a trial beside its window, until one is known

log = logging.getLogger("kv_cache")


class SequenceResult(Struct, frozen=True, kw_only=True):
    """How a sequence ended: where its tree is, and the summary of it, if any rank was started."""

    place: Place
    status: str
    summary: Json | None
    end: Exit


def run_sequence(
    job: SequenceJob, *, stop: Interrupts | None = None, progress: Progress = SILENT
) -> SequenceResult:
    """Run the whole sequence, and write its tree. What is measured is kept, however it ends. Raises
    PlaceError if a directory cannot be made, or a rank not started."""
    config = _create(job.place, job.config)
    for departure in job.deviations:
        log.warning("not as in CLOSED: %s", departure)
    with progress.bar(total=1.0) as bar:
        return _Sequence(job, config, SignalCounter(stop or Interrupts()), bar).run()


def _create(place: Place, config: Path | None) -> Path | None:
    """Make the directory of the sequence; return its copy of the configuration, if there is one."""
    try:
        place.run.mkdir(parents=True)
        if config is None:
            return None
        copy = place.run / CONFIG
        write_atomically(copy, config.read_bytes())
        return Path(os.path.abspath(copy))
    except OSError as error:
        raise PlaceError(
            f"--results-dir: {error.filename} cannot be made ({os_reason(error)}); name another"
        ) from None


@dataclass(slots=True)
class _Sequence:
    """A sequence that is running."""

    job: SequenceJob
    config: Path | None  # that ranks read
    signals: SignalCounter
    bar: Bar
    overheads_s: list[float] = field(default_factory=list)  # of trials, beside their window
    record: RunningRecord = field(init=False)

    def run(self) -> SequenceResult:
        job = self.job
        self.record = RunningRecord(
            plan=job.plan, place=job.place, environment=job.environment, deviations=job.deviations
        )
        self._keep()
        self._run_options()
        return self._conclude()

    def _keep(self) -> None:
        """Write the record. If it cannot be written nothing ends: the results are what counts."""
        try:
            write_manifest(self.job.place, self.record.to_json())
        except OSError as error:
            log.error("the record of the sequence could not be written: %s", error)

    def _run_options(self) -> None:
        plan, caught = self.job.plan, self.signals.caught
        for number, option in enumerate(plan.options):
            if number and not self._rest():
                return
            for trial in range(plan.trials):
                row = self._run_trial(option, trial)
                self.record.trials.append(row)
                self._keep()
                if caught.came or Exit.REFUSED in row.exit_codes:
                    return
                if not row.complete:
                    log.error("option %d is given up: %s", option, row.message)
                    break

    def _rest(self) -> bool:
        """Rest between options; return whether no signal came."""
        caught = self.signals.caught
        ends_s = time.monotonic() + self.job.plan.option_delay_s
        while (left_s := ends_s - time.monotonic()) > 0 and not caught.came:
            self._show(f"resting {left_s:.0f} s")
            caught.stop.wait(min(POLL_S, left_s))
        return not caught.came

    def _run_trial(self, option: int, number: int) -> TrialRecord:
        job, plan = self.job, self.job.plan
        window_s = plan.window_s(option)
        name = MLPERF_OPTIONS[option].name
        title = f"option {option} {name}, trial {number + 1} of {plan.trials}"
        clients = f"{plan.ranks} client{'s' * (plan.ranks > 1)}"
        log.info("%s, %s, about %g s", title, clients, window_s)
        directory = trial_directory(job.place.run, option, number)
        output = Path(os.path.abspath(directory))
        words = plan.rank_words(option, output, job.cache, self.config)
        trial = Trial(
            directory=directory,
            ranks=plan.ranks,
            launch=plan.launch,
            command=(*job.program.command, *words),
            ignored=frozenset(plan.variables),
        )

        def show(elapsed_s: float) -> None:
            self._show(f"{title}: {elapsed_s:.0f} s of about {window_s:g} s", elapsed_s)

        began_s, started_utc = time.monotonic(), utc_now()
        codes, problem = trial.run(self.signals, show)
        if not any(codes):
            self.overheads_s.append(max(0.0, time.monotonic() - began_s - window_s))
        if problem is not None:
            log.error("%s: incomplete: %s", title, problem)
            log.error("%s", trial.last_words())
        return TrialRecord(
            option=option, trial=number, started_utc=started_utc, ended_utc=utc_now(),
            arguments=words, exit_codes=list(codes), complete=problem is None, message=problem,
            left_in_cache=_left(job.cache),
        )  # fmt: skip

    def _show(self, text: str, elapsed_s: float = 0.0) -> None:
        """Show what is running, and how long the sequence will still take."""
        plan, rows = self.job.plan, self.record.trials
        overhead_s = fmean(self.overheads_s or [OVERHEAD_S])
        whole_s = plan.whole_s(overhead_s)
        left_s = plan.left_s(len(rows), len({row.option for row in rows}), overhead_s)
        left_s = max(0.0, left_s - elapsed_s)
        self.bar.to(max(0.0, min(1.0, 1 - left_s / whole_s)))
        self.bar.note(f"{text}; about {duration_text(left_s)} left")

    # --- the end -----------------------------------------------------------------------------

    def _conclude(self) -> SequenceResult:
        """Seal and summarize what there is."""
        record, place, caught = self.record, self.job.place, self.signals.caught
        record.status = FINISHED if record.whole else INCOMPLETE
        if caught.came:
            record.status = INTERRUPTED
        record.ended_utc = utc_now()
        self._keep()
        summary, end = None, Exit.EARLY
        if any(place.run.glob("option_*")):
            tree = read_tree(place.run)
            self._write_beside(tree)
            self._keep()
            summary = plain(summarize(tree))
            end = Exit.EARLY if tree.flaws or not record.whole else Exit.DONE
        if any(Exit.REFUSED in row.exit_codes for row in record.trials):
            end = Exit.REFUSED
        return SequenceResult(
            place=place, status=record.status, summary=summary, end=Exit(caught.exit_code) or end
        )

    def _write_beside(self, tree: Tree) -> None:
        """Write the launcher's summary, and a description of the system if there is none."""
        place, stamp = self.job.place, self.job.stamp
        hosts = {result.hostname: result.environment for result in tree.ranks}
        try:
            write_atomically(
                place.run / f"{SUMMARY}{stamp}.json", as_json(run_summary(tree, stamp))
            )
            if place.description is not None:
                system = describe(place.system or "-", list(hosts.values()))
                write_description(place.description, system)
        except OSError as error:
            log.error("%s could not be written: %s", error.filename, os_reason(error))


def _left(cache: str) -> int:
    """Count the files that the ranks of this machine left below the cache directory."""
    if "://" in cache:
        return 0
    ranks = Path(cache).glob("rank_*")
    return sum(len(names) for rank in ranks for _, _, names in os.walk(rank))
