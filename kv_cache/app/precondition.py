"""Bring a device into a steady state, and prove it: the fill and the rounds of a run with
`--precondition`, with nothing measured after them."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from kv_cache.app.prepare import Job, prepare
from kv_cache.app.run import fill_first, load_of_rounds
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunPlan
from kv_cache.config.load import Invocation
from kv_cache.config.root import Config
from kv_cache.config.sections import FILES_BESIDE
from kv_cache.core.errors import NoAnswerError
from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.files.environment import captured
from kv_cache.files.keep import keep
from kv_cache.files.result import Result
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.preconditioning import precondition_document
from kv_cache.view.picture.plot import plot_beside

log = logging.getLogger("kv_cache")

_NOTHING = "nothing is measured"
USELESS = {
    "run.duration_s": f"{_NOTHING}; --round sets the length of a round",
    "run.until": _NOTHING,
    "run.warmup_s": _NOTHING,
    "run.virtual_time": "there is no device in virtual time",
    "run.trials": "one is enough",
    "run.clients": "one is enough",
    "run.max_requests": "rounds end by time",
    "autoscaler.enabled": "a steady state needs a steady load",
    "output.results_dir": "everything is in --output",
    "output.validation_trace": _NOTHING,
    **{f"output.{name}": _NOTHING for name in FILES_BESIDE},
    "output.io_trace_log": "there is no device in virtual time",
    "output.metrics_port": _NOTHING,
    "output.json": "what was done is written to --output as JSON",
    "output.certify": _NOTHING,
    "sim.predict": _NOTHING,
}
"""Options of a run that have no use here, and why."""
NOT_EVEN_IN_A_FILE = ("output.io_trace_log", "run.virtual_time", "autoscaler.enabled")


def configured(invocation: Invocation) -> Config:
    """Return the configuration of the preconditioning. Raises ConfigError."""
    invocation.refuse("precondition", USELESS, NOT_EVEN_IN_A_FILE)
    overrides = {**invocation.overrides, "precondition.enabled": True}
    return replace(invocation, overrides=overrides).config()


def precondition(
    config: Config,
    *,
    notes: Sequence[str] = (),
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
) -> Result:
    """Fill the device and run rounds of the workload of a `configured` configuration, until they
    are steady. Raises UsageError before anything is written, NoAnswerError."""
    caught = stop or Interrupts()
    job = prepare(config, notes=notes, name="precondition", progress=progress)
    for warning in job.warnings:
        log.warning(warning)
    environment = captured(*job.directories)
    outcome, silence = _performed(job, caught, progress)
    outcome = structs.replace(outcome, interrupted=caught.name)
    document = precondition_document(job.config, outcome, environment)
    kept = keep(job.output, as_json(document))
    picture = plot_beside(document, job.output)
    end = kept.code
    if silence is not None:
        log.error("%s", silence)
        end = Exit.NO_ANSWER
    elif outcome.death is not None:
        end = end or Exit.EARLY
    files = {} if picture is None else {"plot": str(picture)}
    return Result(document=document, kept=kept, end=end or Exit(caught.exit_code), files=files)


def _performed(
    job: Job, caught: Interrupts, progress: Progress
) -> tuple[RunOutcome, NoAnswerError | None]:
    """Return the outcome, and what did not answer at the end."""
    filled = fill_first(job, caught, progress)
    outcome: RunOutcome | None = None
    try:
        plan = RunPlan(job.config, job.load, job.specs, job.seed, filled, load_of_rounds(job))
        with open_run(plan, caught.stop) as run, progress.run(job.config) as tick:
            outcome = run.execute(tick, measure=False)
    except NoAnswerError as error:
        if outcome is None:
            raise
        return outcome, error
    return outcome, None
