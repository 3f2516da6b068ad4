"""`kv-cache.py run`, which is also `kv-cache.py` with bare flags: one run, from flags to result."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_cache.app.crew_part import take_part
from kv_cache.app.prepare import Start, output_of
from kv_cache.app.run import run
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.beginning import dry_run, loaded
from kv_cache.cli.flags import parse
from kv_cache.cli.printing import gated, print_json, print_result, reason_to_fail, summary
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.root import Config
from kv_cache.core.errors import UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.launched import rank_of
from kv_cache.crew.coordinator import Coordinator
from kv_cache.crew.per_rank import alone_note, config_of_rank, own_file, together_note
from kv_cache.crew.seat import Refused, Seat
from kv_cache.files.result import Result
from kv_cache.result.trials import SCHEMA as TRIALS

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


def measure(config: Config, start: Start, notes: Sequence[str] = ()) -> int:
    """Run, print each result as soon as it is written, and choose the exit code. Raises
    UsageError."""
    trials: list[Mapping[str, Any]] = []
    reasons: list[str] = []

    def show(result: Result) -> None:
        if start.seat is not None:  # all ranks print one summary
            assert result.kept is not None
            where = ", ".join([result.kept.shown, *result.files.values()])
            log.debug("%s wrote %s", start.rank, where)
            return
        reasons.extend(reason_to_fail(result, config.output.fail_on))
        if not config.output.json:
            print_result(result)
        elif config.run.trials > 1 and result.schema != TRIALS:
            trials.append(summary(result))
        else:
            print_json(summary(result, trials))

    progress = TerminalProgress(config.output.progress)
    with interrupts() as stop:
        result = run(config, start=start, notes=notes, stop=stop, progress=progress, on_result=show)
    return gated(result.end, reasons)


# --- several ranks ---------------------------------------------------------------------------


def _coordinate(coordinator: Coordinator) -> int:
    config = coordinator.plan.config

    def refuse(sentence: str) -> None:
        print(f"kv-cache: {sentence}", file=sys.stderr)

    def show(result: Result) -> None:
        print_json(summary(result)) if config.output.json else print_result(result)

    with interrupts() as caught:
        progress = TerminalProgress(config.output.progress)
        result = coordinator.run(caught, progress, show, refuse)
    return gated(result.end, reason_to_fail(result, config.output.fail_on))


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
