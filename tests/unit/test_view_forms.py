"""One golden number of each kind is the same text in all five forms: terminal, Markdown, page,
picture and workbook."""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from html import unescape
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest

from kv_cache.app.sweep_document import sweep_csv
from kv_cache.cli.lab import main as lab
from kv_cache.cli.trace import main as trace
from kv_cache.config.profile import Cell, Profile, Service, profile_values
from kv_cache.core.format import figures
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB, MIB
from kv_cache.result.run import SECTION
from kv_cache.view.drawing import COLOURS
from kv_cache.view.markdown import markdown
from kv_cache.view.page import page
from kv_cache.view.parts import Figure, ShownColumn, View
from kv_cache.view.picture.base import plain
from kv_cache.view.picture.shown import view_picture
from kv_cache.view.sheets import workbook
from kv_cache.view.sweep import sweep_view
from kv_cache.view.terminal import terminal
from kv_cache.view.views import VIEWS, view_of
from tests import outcomes, reports, trials

Document = dict[str, Any]


def _written(command: Callable[[list[str]], int], *words: str) -> Document:
    """The document that a command writes."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "R.json")
        assert command([*words, "--users", "--requests=200", "-o", str(file)]) == 0
        document: Document = orjson.loads(file.read_bytes())
    return document


def profile() -> Document:
    """Two sizes, alone and with four in flight; only the faster rate is a golden number."""
    service = Service(operations=2000, mean_us=2000, p50_us=1234.567, p99_us=7654.321)
    cells = [
        Cell(
            object_bytes=size * MIB, concurrency=depth, read_share=share,
            bytes_per_second=1.23456 * GIB * size * depth / 32, in_flight=depth,
            reads=service if share else None, writes=None if share else service,
        )
        for size in (1, 8)
        for depth in (1, 4)
        for share in (0.0, 1.0)
    ]  # fmt: skip
    facts = {
        "program_version": "0.8.0", "measured_utc": "2026-11-21T00:00:00+00:00",
        "device": {"name": "nvme0n1", "model": "D7"},
        "refused": [{"object_bytes": MIB, "concurrency": 16, "step": "write", "reason": "why"}],
    }  # fmt: skip
    return {SECTION: profile_values(Profile(name="p", cells=tuple(cells), facts=facts))}


def tree() -> Document:
    """A summary with a valid and an invalid option."""
    names = ("read_bandwidth_gbps", "write_bandwidth_gbps",
             "storage_throughput_tokens_per_sec", "avg_throughput_tokens_per_sec")  # fmt: skip
    spread = {
        "values": [1.2, 1.3], "median": 1.25, "mean": 1.23456,
        "interval": {"low": 1.1, "high": 1.4}, "coefficient_of_variation": 0.05,
    }  # fmt: skip
    sums = {f"aggregated_{name}": 1.23456 for name in names}
    times = {"count": 3000, "max": 9.0, "p50": 1.0, "p95": 2.0, "p99": None, "p999": None}
    flaw = {"kind": "missing", "where": "option_2/trial_1", "message": "is not there"}
    valid = {
        "option": 1, "name": "Max Storage Stress", "valid": True, "invalid_because": [],
        "by_the_rules": {**sums, "aggregated_device_read_p95_ms": 2.5,
                         "aggregated_device_write_p95_ms": None},
        "spread": dict.fromkeys(names, spread), "pooled_ms": {"device_read": times},
    }  # fmt: skip
    invalid = {"option": 2, "name": None, "valid": False, "invalid_because": [flaw]}
    section = {
        "schema": "kv-cache-mlperf-summary/2", "tree": "/t", "division": "closed",
        "system": "D7", "total_ranks": 2, "trials_per_option": 2, "hosts": ["node"],
        "drives": ["D7"], "program_versions": ["0.8.0"],
        "started_utc": "2026-11-21T00:00:00+00:00", "complete": False, "not_submittable": [],
        "deviations": [], "options": {"1": valid, "2": invalid},
        "rules": [{"rule": "kvcacheX", "section": "6.1", "status": "falls short",
                   "looks": [{"where": "option_2", "message": "no"}]}],
    }  # fmt: skip
    return {SECTION: section}


def _with_headline(make: Callable[..., Document]) -> Document:
    """A run or ranks with a headline: what storage read in a second."""
    read = make()[SECTION]["tiers"]["storage"]["read"]["bytes_per_second"]
    name = "storage.read.bytes_per_second"
    return make(headline={"metric": name, "bytes_per_second": read, "why_none": "one window"})


def precondition() -> Document:
    """The last round differs from the others."""
    document = reports.precondition()
    rounds = document[SECTION]["preconditioning"]["rounds"]
    rounds[-1]["bytes_per_second"] = 1.23456 * GIB
    return document


TIERS = "--tiers=dram=10%:1us:80GB/s,ssd=30%:100us:5GB/s"

KINDS: dict[str, tuple[Callable[[], Document], str]] = {
    "run": (lambda: _with_headline(reports.run), "0.9313"),
    "ranks": (lambda: _with_headline(reports.ranks), "0.9313"),
    "trials": (lambda: trials.of([trials.result(n, 1e9 + n) for n in range(1, 4)]), "0.9313"),
    "preconditioning": (precondition, "1.235"),
    "capacity": (reports.capacity, "40"),
    "simulation": (outcomes.document, "40"),
    "lab": (lambda: _written(lab, "--policies=lru,fifo", "--capacities=10%", "--pure"), "11.06"),
    "lab tiers": (lambda: _written(lab, "--policies=lru,fifo", TIERS, "--pure"), "8,587"),
    "trace": (lambda: _written(lambda words: trace(["stats", *words])), "50.12"),
    "sweep": (reports.sweep, "1.863"),
    "probe": (profile, "1.235"),
    "submission": (tree, "1.235"),
}
"""Each kind's document, and a number that its answer has."""


@cache
def document_of(kind: str) -> Document:
    document: Document = orjson.loads(as_json(KINDS[kind][0]()))
    return document


def shown(kind: str) -> View:
    section = document_of(kind)[SECTION]
    make = view_of(section["schema"])
    assert make is not None
    return make(section)


def text_of_page(document: Document) -> str:
    """What a reader sees of it, without the charts' data and the script."""
    body = page([document], ["R.json"]).partition("<main")[2].partition("</main>")[0]
    return unescape(re.sub(r"<[^>]*>", "", body))


def numbers_of_workbook(view: View) -> Iterator[float]:
    with zipfile.ZipFile(io.BytesIO(workbook([], view))) as book:
        for name in book.namelist():
            if name.startswith("xl/worksheets/"):
                yield from map(float, re.findall(r"<v>([-+.0-9eE]+)</v>", book.read(name).decode()))


def test_every_kind_has_its_golden_number() -> None:
    assert len(KINDS) == len(VIEWS) + 1  # runs are known by how their schema begins


@pytest.mark.parametrize("kind", KINDS)
def test_a_golden_number_is_the_same_text_in_all_five_forms(kind: str) -> None:
    golden = re.compile(rf"(?<![\d.]){re.escape(KINDS[kind][1])}(?![\d.]*\d)")
    view = shown(kind)
    picture = view_picture(view)
    forms = {
        "terminal": terminal(view),
        "markdown": markdown(view),
        "page": text_of_page(document_of(kind)),
        "picture": "\n".join([picture.title, *picture.lines]),
        "workbook": "\n".join(map(figures, numbers_of_workbook(view))),
    }
    assert [form for form, text in forms.items() if not golden.search(text)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_read_from_the_top(kind: str) -> None:
    """The answer, then a picture or the numbers beside it, then the rest; the date and version."""
    view = shown(kind)
    assert view.sentence.endswith(".")
    assert any(text.startswith("kv-cache ") for text in view.about)
    drawn = [number for number, section in enumerate(view.sections)
             if any(part in view.pictures() for part in section.parts)]  # fmt: skip
    assert drawn
    assert drawn[0] <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_has_the_same_unit_on_a_page_and_in_a_picture(kind: str) -> None:
    view = shown(kind)
    drawn = [part for part in view.pictures() if isinstance(part, Figure)]
    data = page([document_of(kind)], ["R.json"]).partition('id="data">')[2].partition("<")[0]
    units = {chart["title"]: chart["unit"] for chart in orjson.loads(data)["charts"]}
    panels = [panel.title for panel in view_picture(view).panels]
    for figure in drawn:
        unit = figure.y.unit.name if figure.y.unit else ""
        assert units[figure.title] == unit
        assert plain(ShownColumn(figure.title, figure.y.unit).heading) in panels


def test_lines_have_the_same_colours_on_a_page_and_in_a_picture() -> None:
    style = files("kv_cache.view.page").joinpath("assets", "report.css").read_text()
    light = style.partition("}")[0]
    assert re.findall(r"--c\d: (#\w{6});", light) == list(COLOURS)


WITHOUT_CHARTS = ("trials", "lab tiers")


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_a_chart_has_the_charts_title_once(kind: str) -> None:
    """As its caption, where a table of percentiles adds the unit; what is said above it is how its
    rows were made."""
    drawn = page([document_of(kind)], ["R.json"])
    charts = re.findall(r'<figure class="chart".*?</figure>', drawn, re.DOTALL)
    assert charts or kind in WITHOUT_CHARTS
    for chart in charts:
        (title,) = re.findall(r"<h4[^>]*>(.*?)</h4>", chart)
        above, _, table = chart.partition("<details")[2].partition("<table")
        (caption,) = re.findall(r"<caption><span>(.*?)</span>", table)
        assert caption.startswith(title)
        assert title not in above.replace(f'aria-label="{caption}"', "")


@pytest.mark.parametrize("kind", ["run", "ranks", "trials", "capacity", "preconditioning"])
def test_a_threshold_that_was_moved_is_named_beside_the_verdict_in_every_form(kind: str) -> None:
    document = deepcopy(document_of(kind))
    config = document[SECTION].setdefault("config", {})
    config.setdefault("passport", {}).update(most_unfinished_share=1.0, measurement=False)
    make = view_of(document[SECTION]["schema"])
    assert make is not None
    view = make(document[SECTION])
    told = "thresholds of the verdict were moved: most_unfinished_share is 1 (0.1 by default)"
    assert told in view.reasons
    forms = {
        "terminal": terminal(view),
        "markdown": markdown(view).replace("\\", ""),
        "page": text_of_page(document),
        "picture": "\n".join(view_picture(view).lines),
        "workbook": words_of_workbook(view),
    }
    assert [form for form, text in forms.items() if "most_unfinished_share is 1" not in text] == []


def test_thresholds_that_were_moved_are_named_beside_the_verdicts_of_a_sweep() -> None:
    document = reports.sweep(changed_thresholds={"idle_cores": [1.0, 0.5]})
    view = sweep_view(document[SECTION])
    assert view.reasons == [
        "thresholds of the verdict were moved: idle_cores is 1 (0.5 by default)"
    ]
    head, *rows = csv.DictReader(io.StringIO(sweep_csv(document).decode()))
    assert [row["changed thresholds"] for row in (head, *rows)] == ["idle_cores"] * 2


def words_of_workbook(view: View) -> str:
    with zipfile.ZipFile(io.BytesIO(workbook([], view))) as book:
        return " ".join(book.read(name).decode() for name in book.namelist())
