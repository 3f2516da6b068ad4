"""`kv-cache.py datasets make|list`: samples of every trace format, and the real traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_cache.app.datasets import SampleOptions, write_samples
from kv_cache.cli.command import Command, dispatch
from kv_cache.config.schema import opt
from kv_cache.core.exits import Exit
from kv_cache.workload.public_traces import markdown, text

_ABOUT = """\
    Traces to try things with.

    commands, each with a --help of its own:
      datasets make [FORMAT ...]  small generated samples of the trace formats
      datasets list               the real traces, their licences and how to fetch them
    """


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """How the real traces are shown."""

    markdown: bool = opt(False, "As a table in Markdown", flag="--markdown")


MAKE = Command(
    name="datasets make",
    options=SampleOptions,
    about="""\
    Write small samples of the trace formats (of all of them, or of those that are named). They are
    made from a seed: the same command writes the same bytes. They have the columns, units and the
    rough shape of the real traces, and none of their data.
    """,
    epilog="""\
    examples:
      kv-cache.py datasets make                             all samples, in datasets/
      kv-cache.py datasets make mooncake qwen --dir /tmp/traces --rows 10000 --pack zst

    A file that is there and differs is never written over. exit code: 0 done, 2 bad input
    """,
)
LIST = Command(
    name="datasets list",
    options=ListOptions,
    about="List the real traces, their licences and how to fetch them.",
)


def main(argv: Sequence[str]) -> int:
    """Run one of the commands; the exit code. UsageError is the caller's to print."""
    return dispatch("datasets", SUBCOMMANDS, argv, _ABOUT)


def _make(argv: Sequence[str]) -> int:
    for sample in write_samples(MAKE.parse(argv)):
        print(f"{sample.path}: {sample.nbytes} bytes{' (was there)' if sample.existed else ''}")
    return Exit.DONE


def _list(argv: Sequence[str]) -> int:
    print(markdown() if LIST.parse(argv).markdown else text(), end="")
    return Exit.DONE


SUBCOMMANDS = {"make": _make, "list": _list}
