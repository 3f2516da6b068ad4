"""`kv-cache.py mlperf run`: the official MLPerf Storage KV-cache sequence."""

import sys
from collections.abc import Sequence

from kv_cache.app.mlperf import OVERHEAD_S, run_sequence
from kv_cache.app.mlperf_plan import RankProgram, SequenceJob, SequenceOptions, checked
from kv_cache.app.mlperf_rank import CHECKOUT, PROGRAM
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli import wrapper
from kv_cache.cli.command import Command
from kv_cache.cli.flags import begin_logging, parse, variables_of
from kv_cache.cli.printing import print_plain, print_planned
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.root import options as run_options
from kv_cache.core.exits import Exit
from kv_cache.core.format import duration_text
from kv_cache.mlperf.manifest import FINISHED
from kv_cache.view.submission import submission_view
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="mlperf run",
    options=SequenceOptions,
    about="""\
    Run the sequence: options one after the other, each --trials times, with --clients at once. Each
    client is a process with directories, a result, a log and a seed of its own.
    """,
    epilog="""\
    --division closed (the default) refuses what the rules forbid, and names the rule. open allows
    it and lists every deviation in the tree. Flags of run for all clients follow a -- (open only);
    environment variables that set options of run are deviations as well.

    A client that fails makes its trial incomplete: the other clients of that trial are ended, the
    option is given up, and the sequence continues with the next one. It stops at once if the client
    was given bad input (exit code 2). What was measured is kept, and a sequence is never resumed.

    examples:
      kv-cache.py mlperf run --results-dir /results/kv --cache-dir /mnt/nvme/kv --system-name N9000
      kv-cache.py mlperf run --results-dir r --cache-dir /mnt/nvme/kv --shorten 10   # try it out
      kv-cache.py mlperf run --results-dir /nfs/kv --cache-dir /mnt/nvme/kv \\
          --launch "mpirun -n 4 --host node1,node2,node3,node4"
      kv-cache.py mlperf run --results-dir r --cache-dir c --division open -- --num-users 50

    exit code: 0 every trial is complete; 1 something is missing; 2 bad input; 130, 143 interrupted
    """,
)

_INSTALLED = "from kv_cache.cli import console, rank_of_launcher; console(rank_of_launcher)"


def main(argv: Sequence[str]) -> int:
    """Run the sequence; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    job = checked(
        options,
        command=("kv-cache.py", *COMMAND.name.split(), *argv),
        overrides=parse(options.flags).overrides,
        variables=variables_of(run_options(), ""),
        program=RankProgram(command=_rank_command(), read=wrapper.read),
    )
    if options.dry_run:
        print_planned(_planned_rows(job))
        return Exit.DONE
    begin_logging()
    with interrupts() as caught:
        result = run_sequence(job, stop=caught, progress=TerminalProgress())
    if result.summary is not None:
        print_plain(terminal(submission_view(result.summary)))
    if result.status != FINISHED:
        place = result.place.run
        text = f"the sequence is {result.status}; what was measured is kept in {place}"
        print(text, file=sys.stderr)
    return result.end


def _rank_command() -> tuple[str, ...]:
    """Return what starts a rank: the checkout's wrapper, or the installed package."""
    script = CHECKOUT / PROGRAM
    return (sys.executable, *([str(script)] if script.is_file() else ["-c", _INSTALLED]))


def _planned_rows(job: SequenceJob) -> dict[str, str]:
    plan = job.plan
    by = f" by {' '.join(plan.launch)}" if plan.launch else " on this machine"
    rows = {
        "options": f"{', '.join(map(str, plan.options))}, each {plan.trials} times",
        "clients": f"{plan.ranks}{by}",
        "time": f"about {duration_text(plan.whole_s(OVERHEAD_S))}",
        "cache": f"{job.cache}/rank_<r>",
        "results": str(job.place.run),
    }
    if job.deviations:
        rows["deviations"] = "; ".join(map(str, job.deviations))
    return rows
