"""The forms in which `report` tells results: one table, a line for each.

A form gets the results that were named, whole, in their order. It is asked before whether it may
replace the file that it would be written to.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kv_cache.core.errors import UsageError
from kv_cache.files.hdr import MARK as HDR_MARK
from kv_cache.files.hdr import TimedRun, hdr_log
from kv_cache.files.reading import RESULT_FILE, SECTION, require_replaceable
from kv_cache.result.comparison import LABELS
from kv_cache.result.kinds import RUN
from kv_cache.result.metrics import Json
from kv_cache.result.published import RANKS
from kv_cache.result.run import MisshapenError, not_as_written
from kv_cache.result.trials import SCHEMA as TRIALS
from kv_cache.view.markdown import MARK as MARKDOWN_MARK
from kv_cache.view.markdown import markdown as view_markdown
from kv_cache.view.page import MARK as HTML_MARK
from kv_cache.view.page import page
from kv_cache.view.page.parts import Doc
from kv_cache.view.parts import View
from kv_cache.view.sheets import CSV_MARK, require_workbook, summary_csv, workbook
from kv_cache.view.together import together_view
from kv_cache.view.views import view_of


class Source(Doc, frozen=True, kw_only=True):
    """One of the results: the `document` as it stands in the file, which `name` says."""

    path: Path


class Format(Struct, frozen=True, kw_only=True):
    """`suffixes` name it by the file, the first is its own. What is not `printable` needs a file;
    `beside` goes beside a single result if no file is named."""

    help_text: str
    suffixes: tuple[str, ...]
    render: Callable[[Sequence[Source]], bytes]
    require_ours: Callable[[Path, str], None]
    printable: bool = True
    beside: bool = False


def _begins(mark: str) -> Callable[[Path, str], None]:
    return lambda path, flag: require_replaceable(path, mark, flag)


def _runs(sources: Sequence[Source], form: str) -> list[Json]:
    """The documents, of which each is of one run or of ranks. Raises UsageError."""
    for source in sources:
        if source.schema == TRIALS:
            raise UsageError(
                f"{source.path} is of trials, and {form} shows single runs; name the trials' own "
                "results"
            )
        if not (source.schema.startswith(RUN) or source.schema == RANKS):
            raise UsageError(
                f"{source.path} is of schema {source.schema}, and {form} of several results, csv "
                "and hdr show runs and ranks; take html, or name this file alone for xlsx"
            )
    return [source.document for source in sources]


def _markdown(sources: Sequence[Source]) -> bytes:
    """A result, or the comparison of several."""
    if len(sources) == 1:
        return view_markdown(_view(sources[0])).encode()
    named = [(source.label, str(source.path), source.document) for source in sources]
    return view_markdown(_placed(sources[0], lambda: together_view(named))).encode()


def _workbook(sources: Sequence[Source]) -> bytes:
    """Of one result its view's tables, after the reference's sheets of a run."""
    if len(sources) > 1:
        return workbook(_runs(sources, "xlsx"))
    source = sources[0]
    run = source.schema.startswith(RUN) or source.schema == RANKS
    return workbook([source.document] if run else [], _view(source))


def _view(source: Source) -> View:
    make = view_of(source.schema)
    if make is None:
        raise UsageError(
            f"{source.path} is of schema {source.schema}, which this form does not show; take "
            "html, or plot for a picture"
        )
    return _placed(source, lambda: make(source.section))


def _placed(source: Source, make: Callable[[], View]) -> View:
    try:
        return make()
    except MisshapenError as error:
        raise not_as_written(source.path, f"{SECTION}.{error}") from None


FORMATS: Mapping[str, Format] = {
    "html": Format(
        help_text="a page for a browser, of any result, which needs no network",
        suffixes=(".html", ".htm"),
        render=lambda sources: page(
            [s.document for s in sources], [s.name for s in sources]
        ).encode(),
        require_ours=_begins(HTML_MARK),
        printable=False,
        beside=True,
    ),
    "markdown": Format(
        help_text="the same as text for pasting; of several results their comparison",
        suffixes=(".md",),
        render=_markdown,
        require_ours=_begins(MARKDOWN_MARK),
    ),
    "csv": Format(
        help_text="a row for each run: the reference's 99 columns, and the verdict",
        suffixes=(".csv",),
        render=lambda sources: summary_csv(_runs(sources, "csv")),
        require_ours=_begins(CSV_MARK),
    ),
    "xlsx": Format(
        help_text="a workbook: all tables of one result, and the reference's sheets of runs",
        suffixes=(".xlsx",),
        render=_workbook,
        require_ours=require_workbook,
        printable=False,
    ),
    "hdr": Format(
        help_text="latencies of the measured window as a log of HdrHistogram",
        suffixes=(".hlog", ".hdr"),
        render=lambda sources: hdr_log(_timed(sources)),
        require_ours=_begins(HDR_MARK),
    ),
}
DEFAULT = "html"


def _timed(sources: Sequence[Source]) -> list[TimedRun]:
    _ = _runs(sources, "hdr")
    return [TimedRun.of(s.label, s.path, s.section) for s in sources]


def read_sources(paths: Sequence[Path], read: Callable[[Path], Json]) -> list[Source]:
    """Return the results that are to be shown, each of them `read`. Raises UsageError."""
    if len(paths) > len(LABELS):
        raise UsageError(f"report takes up to {len(LABELS)} results, and was given {len(paths)}")
    return [
        Source(label=label, path=path, name=_name(path), document=read(path))
        for label, path in zip(LABELS, paths, strict=False)
    ]


def _name(path: Path) -> str:
    """How a report calls it: a directory's result by the directory too, as the run does."""
    run = path.is_dir() and (path / RESULT_FILE).exists()
    return f"{path.resolve().name}/{RESULT_FILE}" if run else str(path)
