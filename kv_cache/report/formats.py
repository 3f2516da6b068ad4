"""The forms in which `report` tells results: one table, a line for each.

A form gets the results that were named, whole, in their order. It is asked before whether it may
replace the file that it would be written to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_cache.core.errors import UsageError
from kv_cache.report import plot
from kv_cache.report.compare import LABELS, Input, Json, input_of
from kv_cache.report.hdr import MARK as HDR_MARK
from kv_cache.report.hdr import hdr_log
from kv_cache.report.html import MARK as HTML_MARK
from kv_cache.report.html import page
from kv_cache.report.html.ranks import SCHEMA as RANKS
from kv_cache.report.markdown import MARK as MARKDOWN_MARK
from kv_cache.report.markdown import markdown
from kv_cache.report.reading import RESULT_FILE, SECTION, require_replaceable
from kv_cache.report.sheets import CSV_MARK, require_workbook, summary_csv, view_workbook, workbook
from kv_cache.result.run import MisshapenError
from kv_cache.result.trials import SCHEMA as TRIALS
from kv_cache.view.markdown import markdown as view_markdown
from kv_cache.view.parts import View
from kv_cache.view.views import VIEWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One of the results: the `document` as it stands in the file, which `name` says, and what
    `compare` takes of it, None for a form of `any_kind`. `given.trials` is None of a single run. A
    kind that a view shows has that."""

    document: Json
    name: str
    given: Input | None = None
    view: View | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """`suffixes` name it by the file, the first is its own. `runs_only` forms have nothing to say
    of trials as a whole, those of `any_kind` tell documents of other commands too. What is not
    `printable` needs a file; `beside` goes beside a single result where none is named."""

    says: str
    suffixes: tuple[str, ...]
    render: Callable[[Sequence[Source]], bytes]
    require_ours: Callable[[Path, str], None]
    of_view: Callable[[View], bytes] | None = None
    runs_only: bool = False
    any_kind: bool = False
    printable: bool = True
    beside: bool = False


def _begins(mark: str) -> Callable[[Path, str], None]:
    return lambda path, flag: require_replaceable(path, mark, flag)


def _documents(sources: Sequence[Source]) -> list[Json]:
    return [source.document for source in sources]


def _inputs(sources: Sequence[Source]) -> list[Input]:
    return [source.given for source in sources if source.given is not None]


FORMATS: Mapping[str, Format] = {
    "html": Format(
        says="a page for a browser, of any result, which needs no network",
        suffixes=(".html", ".htm"),
        render=lambda sources: page(_documents(sources), [s.name for s in sources]).encode(),
        require_ours=_begins(HTML_MARK),
        any_kind=True,
        printable=False,
        beside=True,
    ),
    "markdown": Format(
        says="verdicts, numbers side by side, and what was run, for pasting",
        suffixes=(".md",),
        render=lambda sources: markdown(_inputs(sources)),
        require_ours=_begins(MARKDOWN_MARK),
        of_view=lambda view: view_markdown(view).encode(),
    ),
    "csv": Format(
        says="a row for each run, in the reference's 99 columns",
        suffixes=(".csv",),
        render=lambda sources: summary_csv(_documents(sources)),
        require_ours=_begins(CSV_MARK),
        runs_only=True,
    ),
    "xlsx": Format(
        says="the same as a workbook; of one run all the reference's sheets, of a sweep its cells",
        suffixes=(".xlsx",),
        render=lambda sources: workbook(_documents(sources)),
        require_ours=require_workbook,
        of_view=view_workbook,
        runs_only=True,
        printable=False,
    ),
    "hdr": Format(
        says="latencies of the measured window as a log of HdrHistogram",
        suffixes=(".hlog", ".hdr"),
        render=lambda sources: hdr_log(_inputs(sources)),
        require_ours=_begins(HDR_MARK),
        runs_only=True,
    ),
}
DEFAULT = "html"


def read_sources(paths: Sequence[Path], name: str) -> list[Source]:
    """The results that are to be told in the form `name`. Raises UsageError."""
    if len(paths) > len(LABELS):
        raise UsageError(f"report takes up to {len(LABELS)} results, and was given {len(paths)}")
    form = FORMATS[name]
    read = _read_any if form.any_kind else _read_given
    if form.of_view is not None and len(paths) == 1 and (viewed := _viewed(paths[0])) is not None:
        return [viewed]
    sources = [read(label, path) for label, path in zip(LABELS, paths, strict=False)]
    for path, source in zip(paths, sources, strict=True):
        if form.runs_only and source.given is not None and source.given.trials is not None:
            raise UsageError(
                f"{path} is of trials, and {name} tells single runs; name the trials' own results"
            )
    return sources


def _read_any(_: str, path: Path) -> Source:
    return Source(document=plot.read_document(path, RANKS), name=_name(path))


def _viewed(path: Path) -> Source | None:
    """A document of a kind that a view shows; None of another kind. Raises UsageError."""
    document = plot.read_document(path, RANKS, TRIALS)
    make = VIEWS.get(document[SECTION]["schema"])
    if make is None:
        return None
    try:
        return Source(document=document, name=_name(path), view=make(document[SECTION]))
    except MisshapenError as error:
        raise UsageError(
            f"{path}: {error}; the file was cut or changed, so give an untouched result"
        ) from None


def rendered(sources: Sequence[Source], form: Format) -> bytes:
    """The sources in a form. Raises UsageError if a library is missing."""
    view = sources[0].view
    if view is not None and form.of_view is not None:
        return form.of_view(view)
    return form.render(sources)


def _read_given(label: str, path: Path) -> Source:
    document = plot.read_document(path, RANKS)
    schema = document[SECTION]["schema"]
    if schema in plot.PICTURES and schema != TRIALS:
        raise UsageError(
            f"{path} is of schema {schema}, and this form shows runs, ranks and trials; take html, "
            "or plot for a picture" + (", or name this file alone" if schema in VIEWS else "")
        )
    return Source(document=document, name=_name(path), given=input_of(label, path, document))


def _name(path: Path) -> str:
    """How a report calls it: a directory's result by the directory too, as the run does."""
    return f"{path.resolve().name}/{RESULT_FILE}" if path.is_dir() else str(path)
