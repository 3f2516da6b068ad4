"""`mlperf_wrapper.py`: what newer MLPerf Storage launchers start with mpirun, for each rank."""

import os
from collections.abc import Sequence

from kv_cache.app.mlperf_rank import (
    PROGRAM,
    RankCall,
    RankOptions,
    rank_call,
    rank_config,
    rank_directory,
    rank_start,
)
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli import print_error
from kv_cache.cli.beginning import loaded
from kv_cache.cli.command import Command
from kv_cache.cli.run import measure
from kv_cache.core.errors import NoAnswerError, UsageError
from kv_cache.core.launched import rank_of
from kv_cache.core.mpirank import MpiRank

COMMAND = Command(
    name="",
    program=PROGRAM,
    options=RankOptions,
    of_run=True,
    about="""\
    One rank of an MLPerf Storage KV-cache run, as the MLPerf launcher starts it, in one of two
    forms:

      mlperf_wrapper.py --option {1,2,3} --base-output-dir DIR --cache-dir DIR [--seed S]
      mlperf_wrapper.py --rank-output-base DIR --rank-cache-base DIR [--seed-base S] [run flags]

    Both take --config FILE, a YAML configuration below the parameters, and --reclaim HOST.
    """,
)


def main(argv: Sequence[str]) -> int:
    """Run one rank; the exit code is that of `run`."""
    try:
        return _delayed(read(argv), rank_of(os.environ))
    except (UsageError, NoAnswerError) as error:
        print_error(error, PROGRAM)
        return error.exit


def read(argv: Sequence[str]) -> RankCall:
    """Return the meaning of the arguments. Raises ConfigError; help prints and raises
    SystemExit."""
    return rank_call(*COMMAND.parse_with_run(argv))


def _delayed(call: RankCall, rank: MpiRank) -> int:
    """Run with the delays around it, in which a signal ends everything at once."""
    with interrupts() as caught:
        caught.stop.wait(call.start_delay_s)
        if caught.came:
            return caught.exit_code
        code = _run(call, rank)
        if not code:
            caught.stop.wait(call.end_delay_s)
    return code or caught.exit_code


def _run(call: RankCall, rank: MpiRank) -> int:
    with rank_directory(call, rank) as directory:
        config, notes = loaded(call.invocation)
        config = rank_config(config, rank, directory)
        return measure(config, rank_start(call, rank, directory), notes)
