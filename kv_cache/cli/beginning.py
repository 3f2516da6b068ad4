"""How each command that makes a run begins, and what it does instead with --dry-run."""

import os
from collections.abc import Sequence

from kv_cache.app.planned import planned_view
from kv_cache.app.prepare import prepare
from kv_cache.bench.probes.foreign import count_as_ours
from kv_cache.cli.flags import begin_logging, log_environment
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.supervisor import supervisor, tell
from kv_cache.config.load import Invocation, is_the_references
from kv_cache.config.root import Config
from kv_cache.core.exits import Exit
from kv_cache.core.launched import COORDINATOR, rank_of
from kv_cache.view.terminal import terminal


def loaded(invocation: Invocation) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration that is asked for, and what to warn of; see `begin`."""
    notes = begin(invocation)
    return invocation.config().in_one_pass(), notes


def begin(invocation: Invocation) -> tuple[str, ...]:
    """Begin to log, and tell the process that supervises this one how long a device may be silent.
    Return what to warn of. Raises ConfigError."""
    begin_logging(invocation.log_level)
    if COORDINATOR not in os.environ and not rank_of(os.environ).rank:  # one rank says it for all
        log_environment(invocation.environment.values())
    tell(still_s=2 * invocation.config().run.answer_s)
    if (parent := supervisor()) is not None:
        count_as_ours(parent)
    path = invocation.config_path
    if path is None or not is_the_references(path):
        return ()
    note = "--config config.yaml: there is no such file here, so the defaults are taken"
    return (f"{note}, which are the values of the reference's file of that name",)


def dry_run(
    config: Config, notes: Sequence[str], then: str = "", name: str = "benchmark_results"
) -> int:
    """Check a run and print what it would do; the exit code. Raises UsageError."""
    progress = TerminalProgress(config.output.progress)
    job = prepare(config, notes=notes, name=name, progress=progress)
    print(terminal(planned_view(job, then=then)))
    return Exit.DONE
