"""Views: what a kind shows is said once, and a number is the same text in every form."""

import io
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from kv_cache.app.sweep_document import sweep_text
from kv_cache.cli.plot import main as plot
from kv_cache.cli.report import main as report
from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB, MIB, MISSING
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.result.chain import seal
from kv_cache.result.run import MisshapenError
from kv_cache.view import units
from kv_cache.view.markdown import markdown
from kv_cache.view.page import page
from kv_cache.view.parts import Figure, Line, PlotPoint, ShownColumn, Table, View, ViewSection
from kv_cache.view.picture.base import NothingToDrawError
from kv_cache.view.picture.shown import view_picture
from kv_cache.view.sheets import rows, tables, workbook
from kv_cache.view.terminal import terminal
from kv_cache.view.views import view_of as made_by
from tests.merged import results
from tests.reports import sweep

READ = "storage.read.bytes_per_second"


def view_of(document: dict[str, Any]) -> View:
    make = made_by(document["kv_cache"]["schema"])
    assert make is not None
    return make(document["kv_cache"])


def shown(value: float) -> str:
    return ShownColumn("read", units.GIB_PER_S).text(value)


def test_a_number_is_the_same_text_in_every_form() -> None:
    document = sweep()
    value = document["kv_cache"]["cells"][1]["metrics"][READ]["mean"]
    view, golden = view_of(document), shown(value)
    assert golden == "1.863"
    assert golden in terminal(view)
    assert golden in markdown(view)
    assert golden in page([document], ["sweep.json"])
    drawn = [p.y for part in view.pictures() if isinstance(part, Figure) for p in part.points()]
    assert value in drawn
    book = zipfile.ZipFile(io.BytesIO(workbook([], view)))
    sheets = [book.read(name).decode() for name in book.namelist() if "worksheets/" in name]
    assert any(f"{value / GIB:.15g}"[:12] in sheet for sheet in sheets)


def test_the_answer_is_a_sentence_that_names_the_best_cell() -> None:
    sentence = view_of(sweep()).sentence
    assert sentence.startswith("2 cells, 6 of 6 runs finished. ")
    assert "Better than every other cell: cell 2 (threads 2) by read 1.863 GiB/s" in sentence
    assert sentence in sweep_text(sweep(), Path("D"))


def test_a_missing_number_is_a_dash_in_every_form() -> None:
    table = Table(
        title="T",
        columns=[ShownColumn("a"), ShownColumn("b", units.MS)],
        rows=[["x", None], ["", 0.0]],
    )
    section = ViewSection(title="S", parts=[table])
    view = View(title="V", status="finished", sentence="S.", about=[], sections=[section])
    assert table.cells() == [["x", MISSING], [MISSING, "0"]]
    assert MISSING in terminal(view)
    assert f"| x | {MISSING} |" in markdown(view)
    assert rows(tables(view)[0]) == [["x", None], ["", 0.0]]


def test_the_table_of_a_figure_has_its_points_and_the_ends_of_intervals() -> None:
    points = [
        PlotPoint(x=1, y=2 * GIB, interval=IntervalEnds(low=GIB, high=3 * GIB)),
        PlotPoint(x=2, y=GIB),
    ]
    figure = Figure(
        title="Read", x=ShownColumn("threads", units.MS), y=ShownColumn("read", units.GIB_PER_S),
        lines=[Line(name="", points=points)],
    )  # fmt: skip
    made = figure.table()
    assert made.headings == ["threads, ms", "read, GiB/s", "from, GiB/s", "to, GiB/s"]
    assert made.cells() == [["1", "2", "1", "3"], ["2", "1", MISSING, MISSING]]


def test_text_out_of_a_file_is_no_markup() -> None:
    document = sweep(source="<b>|*x*`\n")
    assert "<b>" not in page([document], ["s.json"]).split("<main")[1]
    assert "\\<b\\>\\|\\*x\\*\\`" in markdown(view_of(document))


def test_a_sweep_over_words_has_a_table_and_no_picture() -> None:
    document = sweep(values=["lru", "fifo"])
    assert view_of(document).pictures() == []
    assert "lru" in terminal(view_of(document))
    with pytest.raises(NothingToDrawError):
        view_picture(view_of(document))


def test_report_writes_each_form_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.json"
    file.write_bytes(as_json(sweep()))
    for suffix in ("html", "md", "xlsx"):
        for _ in range(2):  # its own may be replaced
            assert report([str(file), "-o", str(tmp_path / f"s.{suffix}")]) == 0
    pytest.importorskip("matplotlib")
    assert plot([str(file), "-o", str(tmp_path / "s.svg")]) == 0
    capsys.readouterr()
    assert report([str(file), "--format", "markdown"]) == 0
    assert "| 2 | 2 | 1.863\\* |" in capsys.readouterr().out


def test_a_form_that_does_not_show_a_kind_says_which_do(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(as_json(sweep()))
    with pytest.raises(UsageError, match="csv and hdr show runs and ranks"):
        report([str(file), str(file), "-o", str(tmp_path / "s.xlsx")])
    with pytest.raises(UsageError, match="csv and hdr show runs and ranks"):
        report([str(file), "--format", "csv"])


def test_a_value_that_is_not_of_its_type_is_named_with_its_place(tmp_path: Path) -> None:
    document = orjson.loads(as_json(sweep()))
    document["kv_cache"]["cells"][1]["metrics"][READ]["mean"] = "fast"
    document["kv_cache"].pop("chain")
    with pytest.raises(MisshapenError, match=r"^cells\[1\].metrics\[...\].mean: expected float"):
        view_of(document)
    file = tmp_path / "sweep.json"
    file.write_bytes(as_json(seal(document, {})))
    for words in (["-o", str(tmp_path / "s.html")], ["--format", "markdown"]):
        with pytest.raises(UsageError, match="expected float, got str; the file was cut"):
            report([str(file), *words])
    assert not (tmp_path / "s.html").exists()


@pytest.mark.parametrize("wrote", [0, 3 * MIB])
def test_records_that_the_kernel_counted_beside_the_cache_are_named(wrote: int) -> None:
    section = results(1)[0]["kv_cache"]
    claimed = section["reconciliation"]["write"]["claimed_bytes"]
    section["passport"]["evidence"]["ledger"]["other_process_write_bytes"] = wrote
    (line,) = (line for line in terminal(view_of({"kv_cache": section})).splitlines()
               if line.startswith("kernel "))  # fmt: skip
    share = units.PERCENT.measured(wrote / claimed)
    named = f"; beside them this program wrote 3.0 MiB of records ({share})"
    assert line.endswith(named) is bool(wrote)
    assert ("records" in line) is bool(wrote)


@pytest.mark.parametrize(
    ("tiers", "shape", "says"),
    [
        ({}, None, ""),
        ({"tensor_parallel": 8}, "block", ", of which one of 8 ranks keeps its share"),
        ({"tensor_parallel": 8, "ranks": "all"}, None, ", in objects of 8 ranks"),
        ({}, "layer", ", an object for each layer"),
    ],
)
def test_what_of_a_token_an_object_has_is_told(
    tiers: dict[str, Any], shape: str | None, says: str
) -> None:
    """A vendor would take an object for all of a token's bytes times its tokens."""
    section = results(1)[0]["kv_cache"]
    section["config"]["tiers"].update(tiers)
    section["config"]["semantics"]["object"] = shape
    lines = terminal(view_of({"kv_cache": section})).splitlines()
    (line,) = (line for line in lines if line.startswith("objects  "))
    assert f"bytes a token{says}, " in line
    assert line.count(",") - says.count(",") == line.split(" bytes")[0].count(",") + 1
