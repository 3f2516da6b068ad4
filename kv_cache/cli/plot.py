"""`kv-cache.py plot RESULT…`: pictures of results."""

from collections.abc import Sequence

from kv_cache.app.report import PlotOptions, plot
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_plain
from kv_cache.core.exits import Exit
from kv_cache.installing import install_hint

COMMAND = Command(
    name="plot",
    options=PlotOptions,
    about="""\
    Draw a result: a run over time, the curve of a capacity search, preconditioning, how far trials
    agree, the cells of a sweep, the variants of a simulated cluster, what a trace asks, what
    policies find in it, a measured device, or a sequence of MLPerf's. The picture goes beside the
    result, as RESULT.svg, if --output does not say otherwise.

    The same result gives the same bytes. A file that plot did not write is never replaced.
    """,
    epilog=f"""\
    examples:
      kv-cache.py plot result.json
      kv-cache.py plot capacity.json --output capacity.png
      kv-cache.py plot runs/*

    needs matplotlib: {install_hint("plot")}

    exit code: 0 done, 2 bad input or no matplotlib
    """,
)


def main(argv: Sequence[str]) -> int:
    """Draw all, or write nothing; the exit code. UsageError is the caller's to print."""
    for picture in plot(COMMAND.parse(argv)):
        print_plain(f"plot  {picture.path}")
    return Exit.DONE
