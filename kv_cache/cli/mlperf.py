"""`kv-cache.py mlperf run|check|summarize`: the official MLPerf Storage KV-cache sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_cache.cli.command import Command, dispatch
from kv_cache.cli.printing import print_json, print_plain
from kv_cache.config.schema import opt
from kv_cache.core.errors import ConfigError
from kv_cache.core.exits import Exit
from kv_cache.metrics.judging import Status
from kv_cache.mlperf.aggregate import summarize
from kv_cache.mlperf.document import check_document, tree_document
from kv_cache.mlperf.rules import check_tree
from kv_cache.mlperf.tree import read_tree
from kv_cache.result.run import SECTION, plain
from kv_cache.view.markdown import markdown
from kv_cache.view.submission import check_view, submission_view
from kv_cache.view.terminal import terminal

_ABOUT = """\
usage: kv-cache.py mlperf run|check|summarize ...

The three options of MLPerf Storage v3.0's KV-cache benchmark, each several times, by one or more
clients (ranks), as the rules want it; and what the results are worth.

commands:
  mlperf run        runs the sequence into a new tree of results
  mlperf check      holds a tree against every rule, published and ours, by name
  mlperf summarize  what the rules report of a tree, and beside it what they do not give

kv-cache.py mlperf COMMAND --help shows more. How to: docs/how-to/submit-to-mlperf-storage.md
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The tree that is checked."""

    tree: str = opt(
        "-", "Results directory, or one sequence in it", flag="TREE", metavar="DIR", required=True
    )
    json: bool = opt(False, "Print the findings as JSON", flag="--json")


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(CheckOptions):
    """The tree that is summarized, and the form."""

    json: bool = opt(False, "Print all numbers as JSON", flag="--json")
    markdown: bool = opt(False, "Print a table for pasting", flag="--markdown")


CHECK = Command(
    name="mlperf check",
    options=CheckOptions,
    about="Hold a tree of results against every rule.",
    epilog="""\
    TREE is what mlperf run or mlpstorage wrote to: the results directory, or one sequence below it.

      pass             the files say that the rule is kept
      falls short      the files say that it is not; the file and the value follow
      cannot be judged the files do not say
      not applicable   the rule is of the other division

    The table of rules, and what is looked at for each: docs/reference/mlperf-rules.md
    exit code: 0 nothing falls short; 1 something does; 2 bad input
    """,
)

SUMMARIZE = Command(
    name="mlperf summarize",
    options=SummarizeOptions,
    about="One number of many clients and trials, by the rules and beside them.",
    epilog="""\
    By the rules: bandwidths and tokens/s are added over the clients of a trial, and the mean over
    the trials is taken; a latency is the worst P95 of any client. Beside it: medians, intervals and
    CV of the trials, and percentiles of all samples of all clients, from their histograms.

    Nothing is claimed of an option with a result that is missing, duplicate, cut short, of another
    program, changed, unfinished, or of another configuration or schema than the others.

    exit code: 0 every option is complete; 1 one is invalid; 2 bad input
    """,
)


def main(argv: Sequence[str]) -> int:
    """Run one of the commands; the exit code. UsageError is the caller's to print."""
    return dispatch("mlperf", SUBCOMMANDS, argv, _ABOUT)


def _run(argv: Sequence[str]) -> int:
    from kv_cache.cli.mlperf_run import main as run

    return run(argv)


def _check(argv: Sequence[str]) -> int:
    options = CHECK.parse(argv)
    tree = read_tree(Path(options.tree))
    findings = check_tree(tree)
    if options.json:
        print_json(check_document(tree, findings))
    else:
        print_plain(terminal(check_view(tree_document(tree, findings)[SECTION])))
    return Exit.EARLY if any(f.status is Status.INVALID for f in findings) else Exit.DONE


def _summarize(argv: Sequence[str]) -> int:
    options = SUMMARIZE.parse(argv)
    if options.json and options.markdown:
        raise ConfigError("mlperf summarize: --json and --markdown are two forms; give one of them")
    summary = summarize(read_tree(Path(options.tree)))
    if options.json:
        print_json(summary)
    else:
        view = submission_view(plain(summary))
        print_plain(markdown(view) if options.markdown else terminal(view))
    return Exit.DONE if summary["complete"] else Exit.EARLY


SUBCOMMANDS = {"run": _run, "check": _check, "summarize": _summarize}
