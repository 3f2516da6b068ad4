"""`kv-cache.py precondition`: bring a device into a steady state, and prove it.

The fill and the rounds of `run --precondition`, with nothing measured after them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kv_cache.app.prepare import Job, prepare
from kv_cache.app.run import fill_first, load_of_rounds
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunPlan
from kv_cache.cli.flags import parse
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.run import loaded
from kv_cache.core.errors import NoAnswerError
from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.files.keep import keep
from kv_cache.files.machine import captured
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.preconditioning import precondition_document
from kv_cache.view.picture.plot import plot_beside
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

log = logging.getLogger("kv_cache")

_HELP = """\
usage: kv-cache.py precondition [option of run ...]

Fill the device: --precondition-size-gb GiB in all (0 = twice --storage-capacity-gb), written
sequentially into files that are removed again. Then run the workload that the other options
describe, in rounds of --round seconds, until the bandwidth of five rounds is steady by the rule of
the SNIA Performance Test Specification (range at most 20 % of the average, best-fit line at most
10 %), or --max-rounds are over. What was done and found is printed and written to --output.

examples:
  kv-cache.py precondition --cache-dir /mnt/nvme/kv --storage-capacity-gb 400 --model llama3.1-8b
  kv-cache.py precondition --cache-dir /mnt/nvme/kv --storage-capacity-gb 400 --max-rounds 0

The same before a measurement, in one go: kv-cache.py run --precondition. All: run --help-all.

exit code: 0 done (the verdict says whether it is steady), 1 broken, 2 bad input, 130, 143
"""

_USELESS = {
    "run.duration_s": "nothing is measured; --round sets the length of a round",
    "run.warmup_s": "nothing is measured",
    "output.io_trace_log": "there is no device in virtual time",
    "run.virtual_time": "there is no device in virtual time",
    "run.trials": "one is enough",
    "run.clients": "one is enough",
    "run.max_requests": "rounds end by time",
    "autoscaler.enabled": "a steady state needs a steady load",
    "output.results_dir": "everything stands in --output",
    "output.latency_dump": "requests of the rounds are not recorded",
    "output.record": "requests of the rounds are not recorded",
    "output.validation_trace": "nothing is measured",
    "output.fio_export": "nothing is measured",
    "output.xlsx_output": "nothing is measured",
    "output.hdr_log": "nothing is measured",
    "output.metrics_port": "nothing is measured",
    "output.json": "what was done is written to --output as JSON",
    "output.certify": "nothing is measured",
    "sim.predict": "nothing is measured",
}


_ALWAYS = ("output.io_trace_log", "run.virtual_time", "autoscaler.enabled")
"""Not even in a file."""


def main(argv: Sequence[str]) -> int:
    """Precondition; the exit code. UsageError is the caller's to print."""
    if any(word in ("-h", "--help") for word in argv):
        print(_HELP, end="")
        return 0
    invocation = parse(argv)
    invocation.refuse("precondition", _USELESS, _ALWAYS)
    given: Mapping[str, Any] = invocation.overrides
    asked = {**given, "precondition.enabled": True}
    config, notes = loaded(replace(invocation, overrides=asked))
    progress = TerminalProgress(config.output.progress)
    job = prepare(config, notes=notes, name="precondition", progress=progress)
    for warning in job.warnings:
        log.warning(warning)
    with interrupts() as caught:
        return _precondition(job, caught)


def _precondition(job: Job, caught: Interrupts) -> int:
    environment = captured(*job.directories)
    found, silence = _done(job, caught)
    outcome = replace(found, interrupted=caught.name)
    document = precondition_document(job.config, outcome, environment)
    kept = keep(job.output, as_json(document))
    print(f"{terminal(made_view(document))}\n\nresult    {kept.shown}")
    picture = plot_beside(document, job.output)
    if picture is not None:
        print(f"plot      {picture}")
    print_unwritten(kept)
    if silence is not None:
        raise silence
    if outcome.death is not None:
        return kept.code or Exit.EARLY
    return kept.code or caught.exit_code


def _done(job: Job, caught: Interrupts) -> tuple[RunOutcome, NoAnswerError | None]:
    """What was done, and what did not answer at its end."""
    progress = TerminalProgress(job.config.output.progress)
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
