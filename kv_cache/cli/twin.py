"""`kv-cache.py twin RESULT`: fio does the I/O of a run's storage tier; both side by side."""

import sys
from collections.abc import Sequence

from kv_cache.app.twin import TwinJob, TwinOptions, TwinResult, checked, export, run_twin, twin_of
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_plain, print_planned
from kv_cache.core.exits import Exit
from kv_cache.core.units import human_bytes
from kv_cache.files.fio import Twin, what_it_does
from kv_cache.view.beside_fio import beside_fio_view
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="twin",
    options=TwinOptions,
    about="""\
    Read a result, derive the fio job that does the same I/O as the run's storage tier did in its
    measured window, run it, and print what both measured side by side.

    fio works in a directory of its own below --dir, which is removed in the end, also after Ctrl-C.
    What fio cannot do as the run did is printed under the comparison.
    """,
    epilog="""\
    examples:
      kv-cache.py twin result.json                          where the run had its cache directory
      kv-cache.py twin result.json --dir /mnt/nvme --seconds 60
      kv-cache.py twin result.json --fio-export run.fio     write the job, and run nothing

    exit code: 0 done, 1 fio failed, 2 bad input or no fio, 130 and 143 interrupted
    """,
)


def main(argv: Sequence[str]) -> int:
    """Compare, or only export; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    twin = twin_of(options)
    if options.fio_export is not None:
        return _export(options, twin)
    job = checked(options, twin)
    print_plain(what_it_does(job.twin))
    if options.dry_run:
        print_planned(_planned_rows(job))
        return Exit.DONE
    print_plain(f"fio: {job.seconds:g} s in {', '.join(map(str, job.directories))}")
    sys.stdout.flush()
    with interrupts() as caught:
        result = run_twin(job, stop=caught)
    for left in result.left:
        print_plain(f"  ! not removed: {left}")
    if caught.came:
        print("interrupted; nothing is compared")
        return caught.exit_code
    return _print_comparison(job.twin, result)


def _export(options: TwinOptions, twin: Twin) -> int:
    path = export(options, twin)
    print_plain(what_it_does(twin))
    if options.dry_run:
        print_planned({"job": str(path)})
    else:
        print_plain(f"job  {path}")
    return Exit.DONE


def _planned_rows(job: TwinJob) -> dict[str, str]:
    each = human_bytes(job.twin.space_bytes(job.seconds) // job.twin.drives)
    return {
        "directories": ", ".join(map(str, job.directories)),
        "data": f"{each} in each, removed at the end",
        "time": f"about {job.seconds:g} s",
        "memory": human_bytes(job.twin.memory_bytes()),
    }


def _print_comparison(twin: Twin, result: TwinResult) -> int:
    if result.answer is None:
        print_plain(f"fio failed: {result.problem}")
        return Exit.EARLY
    print_plain(f"\n{terminal(beside_fio_view(twin, result.answer, result.notes))}")
    return Exit.DONE
