"""`kv-cache.py trace stats|plot|convert|fit`: look at a trace, or at what synthetic users ask."""

from collections.abc import Sequence

from kv_cache.app.trace import (
    TraceConvertOptions,
    TraceFitOptions,
    TracePatternOptions,
    TracePlotOptions,
    TraceStatsOptions,
    convert_trace,
    fit_users,
    plot_trace,
    trace_stats,
    write_pattern,
)
from kv_cache.app.trace_source import SourceOptions, TraceSource, source_of
from kv_cache.cli.command import Command, dispatch
from kv_cache.cli.flags import begin_logging, log_environment
from kv_cache.cli.printing import print_json, print_plain
from kv_cache.cli.progress import TerminalProgress
from kv_cache.config.load import Invocation
from kv_cache.core.errors import ConfigError
from kv_cache.core.exits import Exit
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view

_ABOUT = """\
    Look at a trace before it is replayed, or at what synthetic users would ask.

    commands, each with a --help of its own:
      trace stats PATH | --users  how much is asked, when, by whom, and how much a cache would hit
      trace plot PATH | --users   the same as a page of pictures
      trace convert PATH -o FILE  a trace of any format as our own JSON lines
      trace fit PATH              a configuration of synthetic users who ask as the trace does
      trace pattern NAME -o FILE  a synthetic pattern of lab as a trace, for run, sim and lab

"""
_EPILOG = """\
    Flags of run that change what is asked: --block-tokens, --model, --trace-format, --trace-users,
    --skip-bad-rows, --config, ...

    exit code: 0 done, 2 bad input
"""

STATS = Command(
    name="trace stats", options=TraceStatsOptions, of_run=True, epilog=_EPILOG,
    about="""\
    Rows, tokens, arrivals, sessions, blocks and their reuse: with a cache without limits, and
    exactly with an LRU cache of any size.

    The requests are those that a run with the same options would plan. Percentiles are the value at
    rank ceil(percent / 100 * count); those of times are within 0.2 %, all else is exact.
    """,
)  # fmt: skip
PLOT = Command(
    name="trace plot", options=TracePlotOptions, of_run=True, epilog=_EPILOG,
    about="""\
    Draw what stats shows: arrivals, lengths, the hits of an LRU cache over its size, how long ago
    blocks were asked for, the growth of what was asked for, and the turns of sessions.
    """,
)  # fmt: skip
CONVERT = Command(
    name="trace convert", options=TraceConvertOptions, of_run=True, epilog=_EPILOG,
    about="""\
    Write a trace of any format as our own JSON lines (kv-cache-trace/1), with all that its rows
    say. FILE is packed when its name ends in .gz or .zst.
    """,
)  # fmt: skip
FIT = Command(
    name="trace fit", options=TraceFitOptions, of_run=True, epilog=_EPILOG,
    about="""\
    Write a configuration for synthetic users whose requests are as long, as many and as bursty as
    those of the trace, and whose sessions have as many turns. Comments say how well each law fits
    (Kolmogorov-Smirnov distance) and what no law carries over.
    """,
)  # fmt: skip


PATTERN = Command(
    name="trace pattern", options=TracePatternOptions, epilog="exit code: 0 done, 2 bad input\n",
    about="""\
    Write a synthetic pattern of lab as our own JSON lines (kv-cache-trace/1): one page an access,
    as a request for one block of 16 tokens, one access a second. They are those of
    lab --pattern NAME --seeds 1.
    """,
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run one of the commands; the exit code. UsageError is the caller's to print."""
    return dispatch("trace", SUBCOMMANDS, argv, f"{_ABOUT}{_EPILOG}")


def _stats(argv: Sequence[str]) -> int:
    options, invocation = STATS.parse_with_run(argv)
    source, progress = _source(options, invocation)
    result = trace_stats(options, source, progress=progress)
    if options.json and options.output is None:
        print_json(result.document)
    else:
        print(terminal(made_view(result.document)))
    if options.output is not None:
        print_plain(f"\nstats     {options.output}")
    return Exit.DONE


def _plot(argv: Sequence[str]) -> int:
    options, invocation = PLOT.parse_with_run(argv)
    source, progress = _source(options, invocation)
    print_plain(f"plot  {plot_trace(options, source, progress=progress)}")
    return Exit.DONE


def _convert(argv: Sequence[str]) -> int:
    options, invocation = CONVERT.parse_with_run(argv)
    source, progress = _source(SourceOptions(path=options.path), invocation)
    rows = convert_trace(options, source, progress=progress)
    print_plain(f"trace  {options.output} ({rows:,} rows)")
    return Exit.DONE


def _fit(argv: Sequence[str]) -> int:
    options, invocation = FIT.parse_with_run(argv)
    chosen = SourceOptions(path=options.path, requests=options.requests)
    source, progress = _source(chosen, invocation)
    text = fit_users(options, source, progress=progress)
    print(text if options.output is None else f"config  {options.output}\n", end="")
    return Exit.DONE


def _pattern(argv: Sequence[str]) -> int:
    options = PATTERN.parse(argv)
    rows = write_pattern(options)
    print_plain(f"trace  {options.output} ({rows:,} rows)")
    return Exit.DONE


def _source(options: SourceOptions, invocation: Invocation) -> tuple[TraceSource, TerminalProgress]:
    begin_logging(invocation.log_level)
    log_environment(invocation.environment.values())
    if invocation.dry_run:
        raise ConfigError("--dry-run is for commands that measure or simulate; leave it out")
    source = source_of(options, invocation)
    return source, TerminalProgress(source.config.output.progress)


SUBCOMMANDS = {
    "stats": _stats, "plot": _plot, "convert": _convert, "fit": _fit,
    "pattern": _pattern,
}  # fmt: skip
