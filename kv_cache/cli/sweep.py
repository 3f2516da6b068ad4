"""`kv-cache.py sweep GRID.yaml --results-dir D`: a whole run for each cell of a grid."""

import logging
import os
import sys
from collections.abc import Sequence

from kv_cache.app.sweep import SweepOptions, planned, sweep
from kv_cache.app.sweep_document import sweep_text
from kv_cache.app.sweep_runs import Pooling, local_pool, mpi_ranks
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli import print_error
from kv_cache.cli.command import Command
from kv_cache.cli.flags import begin_logging, from_environment
from kv_cache.cli.printing import print_plain, print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.root import options as run_options
from kv_cache.core.errors import UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.launched import rank_of

log = logging.getLogger("kv_cache")

COMMAND = Command(
    name="sweep",
    options=SweepOptions,
    about="""\
    Run every cell of a grid: options that vary, each value with each other, several times each.

      config: site.yaml             # a configuration file or a shipped one; may be left out
      base: {run.duration_s: 60}    # options over it
      vary:
        run.num_users: [10, 50]
        io.threads: [4, 8, 16]
      zip: {}                       # lists of the same length, which change together
      exclude: [{run.num_users: 10, io.threads: 16}]
      repeat: 3                     # run k of every cell has the same seed
      seed: 42

    All cells are checked before the first one runs. Started again with the same grid and D, the
    sweep continues where it stopped. Under mpirun the runs are spread over the other ranks.
    """,
    epilog="""\
    examples:
      kv-cache.py sweep grid.yaml --results-dir threads
      mpirun -n 5 python kv-cache.py sweep grid.yaml --results-dir threads

    exit code: 0 all runs finished, 1 some failed, 2 bad input, 130 and 143 interrupted
    """,
)


def main(argv: Sequence[str]) -> int:
    """Sweep; the exit code. UsageError is the caller's to print."""
    rank = rank_of(os.environ)
    if rank.ranks == 1 or any(word in ("-h", "--help", "--help-all") for word in argv):
        return _sweep(argv, local_pool) if not rank.rank else 0
    join = mpi_ranks(rank.rank)

    def plan(pool: Pooling) -> int:
        try:
            return _sweep(argv, pool)
        except UsageError as error:  # printed here, as the ranks that serve must be let go
            print_error(error)
            return Exit.REFUSED

    return Exit.REFUSED if join is None else join(plan)


def _sweep(argv: Sequence[str], pool: Pooling) -> int:
    options = COMMAND.parse(argv)
    begin_logging()
    for name in from_environment(run_options()).variables.values():
        log.warning("%s is not read by a sweep: write its option into the grid's base", name)
    progress = TerminalProgress()
    if options.dry_run:
        plan = planned(options, progress=progress)
        print_plain("\n".join(f"{run}  {run.directory}" for run in plan.runs))
        print(f"{len(plan.runs)} runs of {len(plan.cells)} cells; nothing was run")
        return Exit.DONE
    with interrupts() as caught:
        result = sweep(options, pool=pool, stop=caught, progress=progress)
    if result.document:
        assert result.kept is not None
        instead = None if result.kept.in_place else result.kept.shown
        print_plain(sweep_text(result.document, result.place, instead))
        if "plot" in result.files:
            print_plain(f"plot    {result.files['plot']}")
        print_unwritten(result.kept)
    if result.ranks_gone:
        sys.stdout.flush()
        os._exit(result.end)  # mpirun has ended the others: none would answer a farewell
    return result.end
