"""`kv-cache.py trace stats|plot|convert|fit`: look at a trace, or at what synthetic users ask.

Nothing is measured and nothing is served: the requests are those that a run would plan.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kv_cache.app.trace_source import (
    USERS_REQUESTS,
    RequestStream,
    SourceOptions,
    TraceSource,
    same_file,
    source_of,
)
from kv_cache.bench.cache_dir import check_output_file
from kv_cache.cli.flags import build_parser, parse
from kv_cache.cli.parsing import CommandParser, own_and_rest
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.run import begin_logging
from kv_cache.config.root import Config
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, did_you_mean
from kv_cache.core.text import as_json
from kv_cache.files.fitted_users import CHOICES, Samples, fit_text
from kv_cache.files.records import packing, require_own_name
from kv_cache.files.writing import open_atomically, write_atomically
from kv_cache.installing import install_hint
from kv_cache.result.trace import stats_document
from kv_cache.view.picture.plot import (
    FORMATS,
    draw,
    installed,
    require_ours,
    write_picture,
)
from kv_cache.view.terminal import terminal
from kv_cache.view.views import made_view
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import RowError
from kv_cache.workload.formats.canonical import Header, header_line, read_header, row_line
from kv_cache.workload.formats.opening import Trace
from kv_cache.workload.formats.surveying import Survey
from kv_cache.workload.stats import Sessions, Stream

log = logging.getLogger("kv_cache")

_STEP = 1024  # requests between two looks at the bar
_WRITE_BYTES = 1 << 20

_ABOUT = """\
Look at a trace before it is replayed, or at what synthetic users would ask.

usage: kv-cache.py trace stats PATH [--json] [-o FILE] [option of run ...]
       kv-cache.py trace stats --users [--requests N] [option of run ...]
       kv-cache.py trace plot PATH | --users [-o FILE.svg]
       kv-cache.py trace convert PATH -o FILE
       kv-cache.py trace fit PATH [-o FILE.yaml]

commands:
  stats    how much is asked, when, by whom, and what caches of any size would find of it
  plot     the same as a page of pictures
  convert  a trace of any format as our own JSON lines
  fit      a configuration of synthetic users who ask as the trace does
"""

_STATS = """\
Rows, tokens, arrivals, sessions, blocks and their reuse: with a cache without limits, and exactly
with an LRU cache of any size.

The requests are those that a run with the same options would plan. Percentiles are the value at
rank ceil(percent / 100 * count); those of times are within 0.2 %, all else is exact.
"""

_PLOT = """\
Draw what stats tells: arrivals, lengths, the hits of an LRU cache over its size, how long ago
blocks were asked for, the growth of what was asked for, and the turns of sessions.
"""

_CONVERT = """\
Write a trace of any format as our own JSON lines (kv-cache-trace/1), with all that its rows say.
FILE is packed when its name ends in .gz or .zst.
"""

_FIT = """\
Write a configuration for synthetic users whose requests are as long, as many and as bursty as those
of the trace, and whose sessions have as many turns. Comments say how well each law fits
(Kolmogorov-Smirnov distance) and what no law carries over.
"""

_EPILOG = """\
Options of run that change what is asked may follow (--block-tokens, --model, --trace-format,
--trace-users, --skip-bad-rows, --config, ...); see run --help-all.

exit code: 0 done, 2 bad input
"""


def main(argv: Sequence[str]) -> int:
    """One of the commands; the exit code. UsageError is the caller's to print."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{_ABOUT}\n{_EPILOG}", end="")
        return 0
    command = _COMMANDS.get(argv[0])
    if command is None:
        near = did_you_mean(argv[0], _COMMANDS)
        raise ConfigError(f"trace {argv[0]!r}: there is no such command.{near}")
    return command(argv[1:])


# --- the commands ----------------------------------------------------------------------------


def _stats(argv: Sequence[str]) -> int:
    parser = _parser("stats", _STATS, users=True)
    parser.add_argument("--json", action="store_true", help="print the whole document")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the document there"
    )
    options, rest = own_and_rest(parser, argv)
    if options.output is not None:
        check_output_file(options.output)
    source = trace_source(options, rest)
    source.refuse_as_target(options.output, "--output")
    document = _document(source)
    if options.output is not None:
        _write(options.output, as_json(document))
    if options.json and options.output is None:
        sys.stdout.write(as_json(document).decode())
    else:
        print(terminal(made_view(document)))
    if options.output is not None:
        print(f"\nstats     {options.output}")
    return 0


def _plot(argv: Sequence[str]) -> int:
    parser = _parser("plot", _PLOT, users=True)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="FILE.svg, FILE.png or FILE.pdf [default: trace.svg, named after PATH]",
    )  # fmt: skip
    options, rest = own_and_rest(parser, argv)
    if not installed():
        raise UsageError(
            f"trace plot needs matplotlib, which is missing; get it: {install_hint('plot')}"
        )
    source = trace_source(options, rest)
    target = options.output or _picture(source.config)
    form = target.suffix[1:].lower()
    if form not in FORMATS:
        raise ConfigError(
            f"--output {target} does not end in .svg, .png or .pdf.{did_you_mean(form, FORMATS)}"
        )
    require_ours(target)
    write_picture(target, draw(_document(source), target, form))
    print(f"plot  {target}")
    return 0


def _convert(argv: Sequence[str]) -> int:
    parser = _parser("convert", _CONVERT, users=False)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="where the trace goes"
    )
    parser.add_argument(
        "--to", choices=("kv-cache",), default="kv-cache", help="the format [default kv-cache]"
    )
    options, rest = own_and_rest(parser, argv)
    require_own_name(options.output, "--output", _is_own_trace)
    source = trace_source(options, rest)
    trace, found = source.read_trace(TerminalProgress(source.config.output.progress))
    if any(same_file(options.output, path) for path in trace.files):
        raise PlaceError(f"--output {options.output} is the trace itself; name another file")
    rows = _convert_to(options.output, source.config, trace, found)
    print(f"trace  {options.output} ({rows:,} rows)")
    return 0


def _fit(argv: Sequence[str]) -> int:
    parser = _parser("fit", _FIT, users=False)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where it goes [default: printed]"
    )
    parser.add_argument(
        "--law", choices=CHOICES, default=CHOICES[0],
        help="law of lengths and turns; best = lognormal where that is near enough, else what is "
        "nearest [default best]",
    )  # fmt: skip
    options, rest = own_and_rest(parser, argv)
    if options.output is not None:
        check_output_file(options.output)
    source = trace_source(options, rest)
    source.refuse_as_target(options.output, "--output")
    samples = Samples()
    look = source.open(TerminalProgress(source.config.output.progress))
    assert look.trace is not None
    assert look.survey is not None
    stream, sessions = _walk(look, samples)
    text = fit_text(
        samples, stream.figures(), sessions.figures(), look.watch.thinks, law=options.law,
        trace=look.trace, found=look.survey, config=look.config,
        block_tokens=look.load.geometry.block_tokens,
    )  # fmt: skip
    if options.output is None:
        print(text, end="")
        return 0
    _write(options.output, text.encode())
    print(f"config  {options.output}")
    return 0


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "stats": _stats,
    "plot": _plot,
    "convert": _convert,
    "fit": _fit,
}


def _parser(name: str, about: str, *, users: bool) -> argparse.ArgumentParser:
    who = "PATH | --users" if users else "PATH"
    parser = CommandParser(
        prog=f"kv-cache.py trace {name}",
        usage=f"%(prog)s {who} [option ...]",
        description=about,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(users=False, requests=None)
    if users:
        parser.add_argument("--users", action="store_true", help="synthetic users, not a trace")
    if name != "convert":
        parser.add_argument(
            "--requests", type=int, metavar="N",
            help=f"the first N requests [default: all; of synthetic users {USERS_REQUESTS}]",
        )  # fmt: skip
    return parser


# --- what is looked at -----------------------------------------------------------------------


def trace_source(options: argparse.Namespace, rest: Sequence[str]) -> TraceSource:
    """Raises UsageError for everything that is wrong before a file is read."""
    path, flags = path_in(rest)
    invocation = parse(flags)
    begin_logging(invocation.log_level)
    if options.requests is not None and options.requests < 1:
        raise ConfigError(f"--requests is {options.requests}; it must be at least 1")
    chosen = SourceOptions(path=path, users=options.users, requests=options.requests)
    return source_of(chosen, invocation)


def _picture(config: Config) -> Path:
    path = config.trace_path()
    stem = "users" if path is None else path.name.split(".")[0].replace("*", "_") or "trace"
    return Path(f"{stem}.trace.svg")


def path_in(rest: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The word that is no option, at the beginning or at the end, and the others."""
    if rest and not rest[0].startswith("-"):
        return rest[0], rest[1:]
    if rest and not rest[-1].startswith("-"):
        _, extras = build_parser().parse_known_args(list(rest))
        if extras == [rest[-1]]:
            return rest[-1], rest[:-1]
    return None, rest


# --- looking ---------------------------------------------------------------------------------


def _document(source: TraceSource) -> dict[str, Any]:
    look = source.open(TerminalProgress(source.config.output.progress))
    stream, sessions = _walk(look)
    return stats_document(
        look.config, look.model, look.load.geometry.block_tokens, look.load.source.describe(),
        look.survey, stream.figures(), sessions.figures(look.watch.thinks),
    )  # fmt: skip


def _walk(look: RequestStream, samples: Samples | None = None) -> tuple[Stream, Sessions]:
    """Every request once."""
    stream, sessions = Stream(by_conversation=look.grouped), Sessions()
    for blocks in look.load.populate:
        stream.store(blocks)
    total = look.requests or (look.survey.rows if look.survey else None)
    progress = TerminalProgress(look.config.output.progress)
    with progress.bar("looking", unit="requests", total=total) as bar:
        for request in look.plan():
            stream.add(request)
            in_session = look.in_session(request)
            if in_session:
                sessions.add(request)
            if samples is not None:
                samples.add(request, in_session=in_session)
            if stream.requests % _STEP == 0:
                bar.to(stream.requests)
    return stream, sessions


def _convert_to(path: Path, config: Config, trace: Trace, found: Survey) -> int:
    """How many rows were written. Raises UsageError."""
    of = TRACE_FORMATS[trace.format_name]
    header = Header(
        grouped=of.grouped,
        timed=of.timed,
        block_tokens=found.block_tokens,
        source=f"{of.name}: {', '.join(file.name for file in trace.files[:5])}",
    )
    rows, progress = 0, TerminalProgress(config.output.progress)
    with (
        _packed_file(path) as write,
        progress.bar("converting", unit="rows", total=found.rows) as bar,
    ):
        write(header_line(header))
        for rows, row in enumerate(trace.rows(), 1):
            write(row_line(row, header))
            if rows % _STEP == 0:
                bar.to(rows)
    return rows


@contextmanager
def _packed_file(path: Path) -> Iterator[Callable[[str], None]]:
    """A file that is there when all is written; the answer writes a line. Raises PlaceError."""
    packed = packing(path, "--output")
    pending = bytearray()
    try:
        with open_atomically(path) as file:

            def flush() -> None:
                file.write(bytes(pending) if packed is None else packed.compress(bytes(pending)))
                pending.clear()

            def write(line: str) -> None:
                pending.extend(line.encode())
                pending.extend(b"\n")
                if len(pending) >= _WRITE_BYTES:
                    flush()

            yield write
            flush()
            if packed is not None:
                file.write(packed.flush())
    except OSError as error:
        raise _cannot_write(path, error) from None


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> PlaceError:
    reason = (error.strerror or str(error)).lower()
    return PlaceError(f"--output {path}: it cannot be written ({reason}); name another file")


def _is_own_trace(first: str) -> bool:
    """Whether a file that begins with this line is one of `trace convert` or `run --record`."""
    try:
        read_header(first)
    except RowError:
        return False
    return True
