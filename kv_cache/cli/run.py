"""`kv-cache.py run`, which is also `kv-cache.py` with bare flags: one run, from flags to result."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_cache.app.crew_part import take_part
from kv_cache.app.planned import planned_view
from kv_cache.app.prepare import Start, output_of, prepare
from kv_cache.app.run import run
from kv_cache.bench.interrupts import interrupts
from kv_cache.bench.probes.foreign import count_as_ours
from kv_cache.cli.flags import begin_logging, log_environment, parse
from kv_cache.cli.printing import print_json, print_result, summary
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.supervisor import supervisor, tell
from kv_cache.config.load import Invocation, is_the_references
from kv_cache.config.root import Config
from kv_cache.core.errors import UsageError
from kv_cache.core.exits import Exit
from kv_cache.crew.coordinator import Coordinator
from kv_cache.crew.launched import COORDINATOR, rank_of
from kv_cache.crew.per_rank import alone_note, config_of_rank, own_file, together_note
from kv_cache.crew.seat import Refused, Seat
from kv_cache.files.result import Result
from kv_cache.result.trials import SCHEMA as TRIALS
from kv_cache.view.terminal import terminal

QUICK = Path("quick")

log = logging.getLogger("kv_cache")


def main(argv: Sequence[str]) -> int:
    """Run; the exit code. UsageError is the caller's to print."""
    invocation = parse(argv)
    if not argv:
        invocation = replace(invocation, config_path=QUICK)
    config, notes = loaded(invocation)
    if invocation.dry_run:
        return dry_run(config, notes)
    rank = rank_of(os.environ)
    try:
        part = take_part(config, rank, os.environ)
    except Refused:
        return Exit.REFUSED
    if isinstance(part, Coordinator):
        return _coordinate(part)
    if isinstance(part, Seat):
        return _run_seated(config, notes, part)
    if rank.alone:
        return measure(config, Start(rank=rank), notes)
    rank_config = config_of_rank(config, rank, own_file(output_of(config), rank))
    if rank.rank:  # one of several shows progress
        rank_config = _without_progress(rank_config)
    rank_notes = (*alone_note(rank), *([part] if part else []))
    return measure(rank_config, Start(rank=rank, notes=rank_notes), notes)


def loaded(invocation: Invocation) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration that is asked for, and what to warn of; see `begin`."""
    notes = begin(invocation)
    return invocation.config(), notes


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


def measure(config: Config, start: Start, notes: Sequence[str] = ()) -> int:
    """Run, print each result as soon as it is written, and choose the exit code. Raises
    UsageError."""
    trials: list[Mapping[str, Any]] = []

    def show(result: Result) -> None:
        if start.seat is not None:  # all ranks print one summary
            assert result.kept is not None
            where = ", ".join([result.kept.shown, *result.files.values()])
            log.debug("%s wrote %s", start.rank, where)
        elif not config.output.json:
            print_result(result)
        elif config.run.trials > 1 and result.schema != TRIALS:
            trials.append(summary(result))
        else:
            print_json(summary(result, trials))

    with interrupts() as caught:
        progress = TerminalProgress(config.output.progress)
        result = run(
            config, start=start, notes=notes, stop=caught, progress=progress, on_result=show
        )
    return result.end


# --- several ranks ---------------------------------------------------------------------------


def _coordinate(coordinator: Coordinator) -> int:
    config = coordinator.plan.config

    def refuse(sentence: str) -> None:
        print(f"kv-cache: {sentence}", file=sys.stderr)

    def show(result: Result) -> None:
        print_json(summary(result)) if config.output.json else print_result(result)

    with interrupts() as caught:
        progress = TerminalProgress(config.output.progress)
        return coordinator.run(caught, progress, show, refuse).end


def _run_seated(config: Config, notes: Sequence[str], seat: Seat) -> int:
    """One of the ranks that run together. Its result is written, then handed over; the coordinator
    says why none can begin."""
    output = own_file(seat.output, seat.rank, together=True)
    rank_notes = together_note(seat.rank, seat.output)
    try:
        rank_config = config_of_rank(config, seat.rank, output, together=True)
        start = Start(rank=seat.rank, notes=rank_notes, seat=seat)
        return measure(_without_progress(rank_config), start, notes)  # the coordinator shows it
    except UsageError as error:
        if isinstance(error, Refused) or seat.refuse(str(error)):
            return Exit.REFUSED
        raise


def _without_progress(config: Config) -> Config:
    return replace(config, output=replace(config.output, progress=False))
