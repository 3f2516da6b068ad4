"""Look at a trace, or at what synthetic users would ask: numbers, pictures, our own format, and
users who ask as the trace does. Nothing is measured and nothing is served."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kv_cache.app.lab import draw_pattern
from kv_cache.app.trace_source import SEED, RequestStream, SourceOptions, TraceSource, same_file
from kv_cache.bench.path_checks import check_output_file
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.config.root import Config
from kv_cache.config.schema import opt
from kv_cache.core.errors import ConfigError, PlaceError, did_you_mean
from kv_cache.core.text import as_json
from kv_cache.core.units import NS_PER_S
from kv_cache.files.fitted_users import CHOICES, Samples, fit_text
from kv_cache.files.records import packing, require_own_name
from kv_cache.files.result import Result
from kv_cache.files.writing import cannot_write, open_atomically, write_output
from kv_cache.lab.patterns import PATTERNS
from kv_cache.result.metrics import Json
from kv_cache.result.trace import stats_document
from kv_cache.view.picture.plot import (
    draw,
    picture_form,
    require_matplotlib,
    require_ours,
    write_picture,
)
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import RowError
from kv_cache.workload.formats.canonical import Header, header_line, read_header, row_line
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import Survey
from kv_cache.workload.formats.trace_files import Trace
from kv_cache.workload.stats import Sessions, Stream

_STEP = 1024  # requests between two updates of the bar
_WRITE_BYTES = 1 << 20
_PAGE_TOKENS = 16
"""A page at a usual model's 128 KiB a token is the 2 MiB of lab. Prompts have a token more: who
computes the answer of a prompt whose blocks are all there computes its last token."""


@dataclass(frozen=True, kw_only=True)
class TraceStatsOptions(SourceOptions):
    """What is looked at, and where its numbers go."""

    json: bool = opt(False, "Print the whole document", flag="--json")
    output: str | None = opt(
        None, "File for the document", flag="--output", short="-o", metavar="PATH"
    )


@dataclass(frozen=True, kw_only=True)
class TracePlotOptions(SourceOptions):
    """What is drawn, and where the picture goes."""

    output: str | None = opt(
        None, "FILE.svg, FILE.png or FILE.pdf; if not given, NAME.trace.svg, named after PATH",
        flag="--output", short="-o", metavar="PATH",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TraceConvertOptions:
    """What is converted, and where the trace goes."""

    path: str | None = opt(None, "Trace to convert", flag="PATH", metavar="PATH")
    output: str = opt(
        "-", "File for the trace", flag="--output", short="-o", metavar="PATH", required=True
    )
    to: str = opt("kv-cache", "Format to write", choices=("kv-cache",), flag="--to")


@dataclass(frozen=True, kw_only=True)
class TracePatternOptions:
    """Which pattern is drawn, with how many pages and accesses, and where the trace goes."""

    pattern: str | None = opt(None, f"One of {', '.join(PATTERNS)}", flag="NAME", metavar="NAME")
    output: str = opt(
        "-", "File for the trace", flag="--output", short="-o", metavar="PATH", required=True
    )
    pages: int | None = opt(
        None, "Pages; if not given, the pattern's own", low=1, high=10_000_000, flag="--pages",
        metavar="N",
    )  # fmt: skip
    length: int | None = opt(
        None, "Accesses; if not given, the pattern's own", low=1, high=10_000_000,
        flag="--length", metavar="N",
    )  # fmt: skip
    seed: int = opt(SEED, "Seed of what is drawn", low=0, flag="--seed", metavar="N")


@dataclass(frozen=True, kw_only=True)
class TraceFitOptions:
    """What users are fitted to, how, and where their configuration goes."""

    path: str | None = opt(None, "Trace to fit to", flag="PATH", metavar="PATH")
    requests: int | None = opt(
        None, "The first N requests; if not given, all", low=1, flag="--requests", metavar="N"
    )
    output: str | None = opt(
        None, "File for the configuration; if not given, it is printed", flag="--output",
        short="-o", metavar="PATH",
    )  # fmt: skip
    law: str = opt(
        CHOICES[0], "Law of lengths and turns; best = lognormal where that is near enough, else "
                    "the nearest",
        choices=tuple(CHOICES), flag="--law",
    )  # fmt: skip


def trace_stats(
    options: TraceStatsOptions, source: TraceSource, *, progress: Progress = SILENT
) -> Result:
    """Count what is asked, and write the numbers to `output`, if there is one. Raises
    UsageError."""
    target = _target(options.output, source)
    document = _stats_document(source, progress)
    if target is not None:
        write_output(target, as_json(document), "--output")
    return Result(document=document)


def plot_trace(
    options: TracePlotOptions, source: TraceSource, *, progress: Progress = SILENT
) -> Path:
    """Draw what is asked; return the file of the picture. Raises UsageError."""
    require_matplotlib("trace plot")
    target = _picture(source.config) if options.output is None else Path(options.output)
    form = picture_form(target)
    require_ours(target)
    write_picture(target, draw(_stats_document(source, progress), target, form))
    return target


def convert_trace(
    options: TraceConvertOptions, source: TraceSource, *, progress: Progress = SILENT
) -> int:
    """Write a trace in our own format; return the number of its rows. Raises UsageError."""
    target = Path(options.output)
    require_own_name(target, "--output", _is_own_trace)
    trace, survey = source.read_trace(progress)
    if any(same_file(target, path) for path in trace.files):
        raise PlaceError(f"--output {target} is the trace itself; name another file")
    return _write_converted(target, trace, survey, progress)


def write_pattern(options: TracePatternOptions) -> int:
    """Write the accesses that `lab --pattern NAME --seeds 1` replays as a trace: a request of one
    block each second. Return their number. Raises UsageError."""
    name, target = options.pattern, Path(options.output)
    if name is None:
        raise ConfigError(f"NAME of a pattern is missing; give one of {', '.join(PATTERNS)}")
    if name not in PATTERNS:
        raise ConfigError(f"{name!r} is not a pattern.{did_you_mean(name, PATTERNS)}")
    require_own_name(target, "--output", _is_own_trace)
    drawn = draw_pattern(
        name, options.seed, 0, pages=options.pages, length=options.length, nbytes=1
    )
    header = Header(
        grouped=False, timed=True, block_tokens=_PAGE_TOKENS,
        source=f"pattern {name}, seed {options.seed}",
    )  # fmt: skip
    with _packed_file(target) as write:
        write(header_line(header))
        for place, page in enumerate(drawn.accesses.blocks.tolist()):
            row = TraceRow(
                line=0, at_ns=place * NS_PER_S, prompt_tokens=_PAGE_TOKENS + 1, output_tokens=1,
                hash_ids=(page,), block_tokens=_PAGE_TOKENS,
            )  # fmt: skip
            write(row_line(row, header))
    return drawn.accesses.lookups


def fit_users(options: TraceFitOptions, source: TraceSource, *, progress: Progress = SILENT) -> str:
    """Fit synthetic users to a trace; return their configuration, which is written to `output`, if
    there is one. Raises UsageError."""
    target = _target(options.output, source)
    samples = Samples()
    stream = source.open(progress)
    assert stream.trace is not None
    assert stream.survey is not None
    counts, sessions = _counted(stream, progress, samples)
    text = fit_text(
        samples, counts.figures(), sessions.figures(), stream.watch.thinks, law=options.law,
        trace=stream.trace, survey=stream.survey, config=stream.config,
        block_tokens=stream.load.geometry.block_tokens,
    )  # fmt: skip
    if target is not None:
        write_output(target, text.encode(), "--output")
    return text


def _target(output: str | None, source: TraceSource) -> Path | None:
    """Return the file of --output. Raises PlaceError if it holds something else."""
    if output is None:
        return None
    check_output_file(Path(output))
    source.refuse_as_target(Path(output), "--output")
    return Path(output)


def _picture(config: Config) -> Path:
    path = config.trace_path()
    stem = "users" if path is None else path.name.split(".")[0].replace("*", "_") or "trace"
    return Path(f"{stem}.trace.svg")


# --- looking ---------------------------------------------------------------------------------


def _stats_document(source: TraceSource, progress: Progress) -> Json:
    stream = source.open(progress)
    counts, sessions = _counted(stream, progress)
    return stats_document(
        stream.config, stream.model, stream.load.geometry.block_tokens,
        stream.load.source.describe(), stream.survey, counts.figures(),
        sessions.figures(stream.watch.thinks),
    )  # fmt: skip


def _counted(
    stream: RequestStream, progress: Progress, samples: Samples | None = None
) -> tuple[Stream, Sessions]:
    """Count every request once, and add it to `samples`."""
    counts, sessions = Stream(by_conversation=stream.grouped), Sessions()
    for blocks in stream.load.populate:
        counts.store(blocks)
    total = stream.requests or (stream.survey.rows if stream.survey else None)
    with progress.bar("looking", unit="requests", total=total) as bar:
        for request in stream.plan():
            counts.add(request)
            in_session = stream.in_session(request)
            if in_session:
                sessions.add(request)
            if samples is not None:
                samples.add(request, in_session=in_session)
            if counts.requests % _STEP == 0:
                bar.to(counts.requests)
    return counts, sessions


# --- our own format --------------------------------------------------------------------------


def _write_converted(path: Path, trace: Trace, survey: Survey, progress: Progress) -> int:
    """Write all rows; return how many. Raises UsageError."""
    trace_format = TRACE_FORMATS[trace.format_name]
    header = Header(
        grouped=trace_format.grouped,
        timed=trace_format.timed,
        block_tokens=survey.block_tokens,
        source=f"{trace_format.name}: {', '.join(file.name for file in trace.files[:5])}",
    )
    rows = 0
    with (
        _packed_file(path) as write,
        progress.bar("converting", unit="rows", total=survey.rows) as bar,
    ):
        write(header_line(header))
        for rows, row in enumerate(trace.rows(), 1):
            write(row_line(row, header))
            if rows % _STEP == 0:
                bar.to(rows)
    return rows


@contextmanager
def _packed_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Open a file that exists only once all is written; the value writes a line. Raises
    PlaceError."""
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
        raise cannot_write(path, error, "--output") from None


def _is_own_trace(first: str) -> bool:
    """Return whether a file that begins with this line is from `trace convert` or
    `run --record`."""
    try:
        read_header(first)
    except RowError:
        return False
    return True
