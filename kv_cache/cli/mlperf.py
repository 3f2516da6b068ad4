"""`kv-cache.py mlperf run|check|summarize`: the official MLPerf Storage KV-cache sequence."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kv_cache.cli.parsing import RECLAIM, CommandParser, Once
from kv_cache.cli.printing import print_plain
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.exits import Exit

_ABOUT = """\
The three options of MLPerf Storage v3.0's KV-cache benchmark, each several times, by one or more
clients (ranks), as the rules want it; and what the results are worth.
"""

_COMMANDS = """\
commands:
  mlperf run        runs the sequence into a new tree of results
  mlperf check      holds a tree against every rule, published and ours, by name
  mlperf summarize  what the rules report of a tree, and beside it what they do not give

  kv-cache.py mlperf COMMAND --help tells more. How to: docs/how-to/submit-to-mlperf-storage.md
"""

_ABOUT_RUN = """\
Run the sequence: options one after the other, each --trials times, with so many clients at once.
Each client is a process with directories, a result, a log and a seed of its own.
"""

_EXAMPLES_RUN = """\
--division closed (the default) refuses what the rules forbid, and names the rule. open allows it
and lists every deviation in the tree. Flags of `run` for all clients follow a `--` (open only).

A client that fails makes its trial incomplete: the other clients of that trial are ended, the
option is given up, and the sequence goes on with the next one. It stops at once where the client
was given bad input (exit code 2). What was measured is kept, and a sequence is never resumed.

examples:
  kv-cache.py mlperf run --results-dir /results/kv --cache-dir /mnt/nvme/kv --system-name NVMe9000
  kv-cache.py mlperf run --results-dir r --cache-dir /mnt/nvme/kv --shorten 10   # try it out
  kv-cache.py mlperf run --results-dir /nfs/kv --cache-dir /mnt/nvme/kv \\
      --launch "mpirun -n 4 --host node1,node2,node3,node4"
  kv-cache.py mlperf run --results-dir r --cache-dir c --division open -- --num-users 50

exit code: 0 every trial is complete; 1 something is missing; 2 bad input; 130, 143 interrupted
"""

_EXAMPLES_CHECK = """\
TREE is what mlperf run or mlpstorage wrote to: the results directory, or one sequence below it.

  pass             the files say that the rule is kept
  falls short      the files say that it is not; the file and the value follow
  cannot be judged the files do not say
  not applicable   the rule is of the other division

The table of rules, and what is looked at for each: docs/reference/mlperf-rules.md
exit code: 0 nothing falls short; 1 something does; 2 bad input
"""

_EXAMPLES_SUMMARIZE = """\
By the rules: bandwidths and tokens/s are added over the clients of a trial, and the mean over the
trials is taken; a latency is the worst P95 of any client. Beside it: medians, intervals and CV of
the trials, and percentiles of all samples of all clients, from their histograms.

Nothing is claimed of an option with a result that is missing, there twice, cut short, of another
program, changed, unfinished, or of another configuration or schema than the others.

exit code: 0 every option is complete; 1 one is invalid; 2 bad input
"""


def main(argv: Sequence[str]) -> int:
    """The exit code. UsageError is the caller's to print."""
    if not argv or argv[0] in ("-h", "--help"):
        _overview().print_help()
        return 0
    command = _SUBCOMMANDS.get(argv[0])
    if command is None:
        raise ConfigError(
            f"mlperf: there is no command {argv[0]!r}.{did_you_mean(argv[0], _SUBCOMMANDS)}"
        )
    return command(argv[1:])


def _overview() -> CommandParser:
    return CommandParser(
        prog="kv-cache.py mlperf", usage="%(prog)s run|check|summarize ...", description=_ABOUT,
        epilog=_COMMANDS, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def _parser(name: str, about: str, epilog: str) -> CommandParser:
    return CommandParser(
        prog=f"kv-cache.py mlperf {name}", description=about, epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip


# --- run -------------------------------------------------------------------------------------


def _run(argv: Sequence[str]) -> int:
    from kv_cache.cli.mlperf_run import run

    return run(_run_parser().parse_args(list(argv)), argv)


def _run_parser() -> CommandParser:
    from kv_cache.cli.wrapper import seconds
    from kv_cache.mlperf.layout import DIVISIONS, NOBODY

    parser = _parser("run", _ABOUT_RUN, _EXAMPLES_RUN)
    add = parser.add_argument
    add("--results-dir", required=True, metavar="D", help="A new or empty directory for the tree")
    add("--cache-dir", required=True, metavar="C",
        help="On the storage under test; client r has C/rank_<r>")  # fmt: skip
    add("--reclaim", metavar="HOST", help=RECLAIM)
    add("--division", choices=DIVISIONS, help="What is allowed [closed; with --shorten open]")
    add("--option", type=int, choices=(1, 2, 3), action="append", dest="options",
        help="Only this option; may be given several times [all three]")  # fmt: skip
    add("--trials", type=counted, metavar="N", help="Repeats of each option [3]")
    text = "Clients at a time: processes on this machine [1], or those that --launch starts"
    add("--clients", type=counted, metavar="N", help=text)
    add("--launch", metavar="WORDS", help="What starts the clients: mpirun with its options")
    add("--seed", type=int, metavar="S", help="Seed of client 0; client r has S + r [42]")
    add("--option-delay", type=seconds, metavar="S",
        help="Rest between options [90 s; with --shorten in proportion]")  # fmt: skip
    text = "Measure S seconds where the rules want 300, to try it out: not to be submitted"
    add("--shorten", type=seconds, metavar="S", help=text)
    add(
        "--config",
        metavar="F",
        action=Once,
        help="YAML configuration below the rules' values (open only)",
    )
    add("--system-name", metavar="NAME", help="Of the system under test [the host's name]")
    add("--org", metavar="NAME", default=NOBODY, help=f"Who submits [{NOBODY}]")
    add("flags", nargs="*", metavar="-- FLAGS", help="Flags of run for every client (open only)")
    return parser


def counted(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100_000:
        raise ValueError
    return value


# --- check and summarize ---------------------------------------------------------------------


def _check(argv: Sequence[str]) -> int:
    parser = _parser("check", "Hold a tree of results against every rule.", _EXAMPLES_CHECK)
    parser.add_argument("tree", metavar="TREE", type=Path)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    given = parser.parse_args(list(argv))

    from kv_cache.core.text import as_json
    from kv_cache.metrics.judging import Status
    from kv_cache.mlperf.document import tree_document
    from kv_cache.mlperf.rules import check_tree
    from kv_cache.mlperf.tree import read_tree
    from kv_cache.result.run import SECTION
    from kv_cache.view.submission import check_view
    from kv_cache.view.terminal import terminal

    tree = read_tree(given.tree)
    findings = check_tree(tree)
    if given.json:
        told = {
            "schema": "kv-cache-mlperf-check/1",
            "tree": str(tree.place.run),
            "division": tree.division,
            "rules": [finding.to_json() for finding in findings],
        }
        sys.stdout.write(as_json(told).decode())
    else:
        print_plain(terminal(check_view(tree_document(tree)[SECTION])))
    return Exit.EARLY if any(f.status is Status.INVALID for f in findings) else 0


def _summarize(argv: Sequence[str]) -> int:
    about = "One number of many clients and trials, by the rules and beside them."
    parser = _parser("summarize", about, _EXAMPLES_SUMMARIZE)
    parser.add_argument("tree", metavar="TREE", type=Path)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all numbers as JSON")
    form.add_argument("--markdown", action="store_true", help="print a table for pasting")
    given = parser.parse_args(list(argv))

    from kv_cache.core.text import as_json
    from kv_cache.mlperf.aggregate import summarize
    from kv_cache.mlperf.tree import read_tree
    from kv_cache.result.run import plain
    from kv_cache.view.markdown import markdown
    from kv_cache.view.submission import submission_view
    from kv_cache.view.terminal import terminal

    summary = summarize(read_tree(given.tree))
    if given.json:
        sys.stdout.write(as_json(summary).decode())
    else:
        view = submission_view(plain(summary))
        print_plain(markdown(view) if given.markdown else terminal(view))
    return 0 if summary["complete"] else Exit.EARLY


_SUBCOMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "check": _check,
    "summarize": _summarize,
}
