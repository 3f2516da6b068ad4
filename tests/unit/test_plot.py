"""Pictures: what is drawn of which document, what is refused, and that nothing else is touched."""

import json
import logging
import os
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.files.reading import read_document
from kv_cache.installing import install_hint
from kv_cache.result.chain import seal
from kv_cache.result.preconditioning import Preconditioned
from kv_cache.result.published import published
from kv_cache.result.run import converted
from kv_cache.view.capacity import capacity_view
from kv_cache.view.drawing import round_numbers
from kv_cache.view.page.charts import Book
from kv_cache.view.parts import FactList, Figure, Line, ShownColumn, View, ViewSection
from kv_cache.view.picture.base import Picture, spread
from kv_cache.view.picture.plot import (
    MARK,
    draw,
    picture_of,
    plot_beside,
    require_ours,
)
from kv_cache.view.picture.shown import view_picture
from kv_cache.view.preconditioning import precondition_view, preconditioning_parts
from kv_cache.view.run import run_view
from kv_cache.view.series import windows_note
from kv_cache.view.trials import trials_view
from kv_cache.view.units import COUNT
from tests import trials

pytest.importorskip("matplotlib")


def run_picture(own: Any) -> Picture:
    return view_picture(run_view(own))


def precondition_picture(own: Any) -> Picture:
    return view_picture(precondition_view(own))


def trials_picture(own: Any) -> Picture:
    return view_picture(trials_view(own))


# --- documents -------------------------------------------------------------------------------


def window(start_s: float, phase: str = "measure", **more: Any) -> dict[str, Any]:
    latency = {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 4.0, "max_ms": 4.0}
    storage = {"read": {"operations": 4, "bytes": 2_000_000_000, **latency}}
    return {
        "start_s": start_s,
        "end_s": start_s + 1,
        "phase": phase,
        "users": 4,
        "in_flight": 2,
        "queued": 0,
        "completed": 3,
        "output_tokens": 300,
        "tiers": {"storage": storage},
        "classes": {"interactive": {"completed": 3, "response_ms": latency}},
        "saturation": {"level": 0.5, "by": "queue", "saturated": False},
        "machine": {"device_utilisation": 0.5},
        **more,
    }


def run(windows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "schema": "kv-cache-result/2",
        "driver": "real-io",
        "status": "finished",
        "semantics_preset": "serving",
        "seed": 3,
        "model": {"name": "Tiny 1B"},
        "passport": {"verdict": "valid", "reasons": []},
        "series": {"tick_s": 1.0, "together": 1, "slos": [], "windows": windows},
        "autoscaling": [],
        "preconditioning": None,
        "config": {"qos_profiles": {"interactive": {"target_latency_p95_ms": 50.0}}},
        **more,
    }


def rounds(rates: list[float], proof: dict[str, Any] | None = None) -> dict[str, Any]:
    rows = [
        {"round": k, "bytes_per_second": rate, "read_p95_ms": 5.0, "write_p95_ms": None}
        for k, rate in enumerate(rates, start=1)
    ]
    fill = [
        {"start_s": 0.0, "end_s": 1.0, "bytes": 10**9, "bytes_per_second": 1e9},
        {"start_s": 1.0, "end_s": 3.0, "bytes": 10**9, "bytes_per_second": 5e8},
    ]
    return {
        "fill": {"bytes": 2 * 10**9, "area_bytes": 10**9, "rows": fill},
        "rounds": rows,
        "proof": proof,
        "open_loop": False,
    }


STEADY = {"average": 1e9, "range_share": 0.04, "slope_share": 0.01, "steady": True}


def precondition(**more: Any) -> dict[str, Any]:
    return {
        "schema": "kv-cache-precondition/1",
        "driver": "real-io",
        "status": "finished",
        "seed": 3,
        "verdict": "steady",
        "reasons": [],
        "preconditioning": rounds([0.5e9, 1e9, 1.02e9, 0.98e9, 1e9, 1e9], STEADY),
        "config": {"passport": {"most_round_range": 0.2, "most_round_change": 0.1}},
        **more,
    }


def probe(load: float, **more: Any) -> dict[str, Any]:
    look = {"slo": "interactive:p95<50ms", "share": 0.01, "low": 0.0, "high": 0.03}
    return {
        "load": load,
        "inside": True,
        "overloaded": False,
        "client_bound": False,
        "slos": [look],
        "offered_per_s": load,
        "completed_per_s": load,
        "storage_read_bytes_per_s": 1e8 * load,
        "storage_write_bytes_per_s": 0.0,
        "response_ms": {"p50": 1.0 * load, "p95": 2.0 * load, "p99": 3.0 * load},
        **more,
    }


def capacity(*probes: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = {"load": 10.0, "confirmed": True, "confidence": 0.95, "low": 9.0, "high": None}
    return {
        "schema": "kv-cache-capacity/2",
        "driver": "real-io",
        "seed": 3,
        "slo": ["interactive:p95<50ms"],
        "unit": "users",
        "verdict": "valid",
        "model": {"name": "Tiny 1B"},
        "answer": answer,
        "knee": {"load": 5.0},
        "limited_by": {"what": "latency", "why": "requests took too long"},
        "probes": list(probes),
        **more,
    }


EACH = {
    "run": run([window(0, "warmup"), *(window(k) for k in range(1, 9)), window(9, "drain")]),
    "capacity": capacity(
        probe(5.0),
        probe(10.0),
        probe(10.0),
        probe(20.0, inside=False),
        probe(80.0, inside=False, overloaded=True),
        probe(90.0, inside=False, client_bound=True),
    ),
    "precondition": precondition(),
    "trials": trials.of([trials.result(1), trials.result(2), trials.result(3)])["kv_cache"],
}


def titles(picture: Picture) -> list[str]:
    return [panel.title for panel in picture.panels if not panel.bare]


def drawn(own: Any, form: str = "svg") -> bytes:
    return draw({"kv_cache": own}, Path("R.json"), form)


# --- what is drawn ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
def test_the_same_document_gives_the_same_bytes_and_well_formed_xml(name: str) -> None:
    first = drawn(EACH[name])
    assert first == drawn(json.loads(json.dumps(EACH[name])))
    ET.fromstring(first)
    assert MARK.encode() in first
    assert b"<dc:date>" not in first


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_formats_are_the_same_bytes_each_time_too(form: str, begins: bytes) -> None:
    data = drawn(EACH["trials"], form)
    assert data.startswith(begins)
    assert MARK.encode() in data
    assert data == drawn(EACH["trials"], form)


def test_a_users_own_settings_of_matplotlib_change_nothing() -> None:
    import matplotlib

    usual = drawn(EACH["trials"])
    with matplotlib.rc_context():
        matplotlib.rc("lines", linewidth=9)
        matplotlib.rc("font", size=20)
        matplotlib.rc("svg", hashsalt="other")
        assert drawn(EACH["trials"]) == usual


def test_a_run_has_a_panel_for_what_it_has_data_of_and_no_other() -> None:
    assert titles(run_picture(EACH["run"])) == [
        "Throughput of the storage tier, GiB/s",
        "Time of one storage read, ms",
        "Response p95 of each class, ms",
        "Requests in service and waiting in the queue",
        "Output tokens, tokens/s",
        "Time in which the device had work, %",
        "Saturation: above 1 a signal is over its limit",
    ]
    bare = run([window(k, tiers={}, machine={}, saturation=None, classes={}) for k in range(3)])
    assert titles(run_picture(bare)) == [
        "Requests in service and waiting in the queue",
        "Output tokens, tokens/s",
    ]


def test_throughput_is_drawn_in_gib_per_second() -> None:
    panels = run_picture(EACH["run"]).panels
    [panel] = [panel for panel in panels if panel.title == "Throughput of the storage tier, GiB/s"]
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    panel.draw(axes)
    [read, *_] = axes.get_lines()
    assert set(read.get_ydata()) == {2_000_000_000 / 2**30}


def test_no_two_of_many_lines_look_alike() -> None:
    """Of many points none is marked, so that strokes tell lines of one colour apart."""
    lines = [Line.through(f"{n}", [(x, float(n)) for x in range(500)]) for n in range(24)]
    column = ShownColumn("level", COUNT)
    view = View(title="t", status="s", sentence="s", about=[], sections=[ViewSection(
        title="Lines", parts=[Figure(title="f", x=column, y=column, lines=lines)])])  # fmt: skip
    [panel] = view_picture(view).panels
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    panel.draw(axes)
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in axes.get_lines()}
    assert len(looks) == 24
    book = Book()
    assert book.figure(Figure(title="f", x=column, y=column, lines=lines))
    assert len({(line["look"], line["dash"]) for line in book.charts[0]["lines"]}) == 24


def test_users_are_drawn_where_they_change_and_a_trace_has_none() -> None:
    moving = run([window(0), window(1, users=6)])
    assert "Users" in titles(run_picture(moving))
    decision = {"at_s": 1.0, "action": "scale_up", "users_before": 4, "users": 6}
    scaled = run([window(0), window(1, users=6)], autoscaling=[decision])
    [users] = [f for f in run_view(scaled).pictures() if f.title == "Users"]
    assert isinstance(users, Figure)
    assert [point.mark for point in users.points() if point.mark] == ["up"]
    assert "Users" not in titles(run_picture(run([window(0, users=None)])))
    drawn(scaled)


def test_the_phases_are_named_with_their_lengths() -> None:
    note = windows_note(published(EACH["run"]))
    assert "10 windows of 1 s (warmup 1 s, measure 8 s, drain 1 s)" in note
    assert [panel.bare for panel in run_picture(EACH["run"]).panels[:2]] == [True, False]


def test_many_windows_become_few_points_and_the_picture_says_so() -> None:
    long = run([window(k) for k in range(1000)])
    (rate, *_) = [f for f in run_view(long).pictures() if isinstance(f, Figure)]
    few = rate.thinned(300)
    assert len(few.lines[0].points) == 250
    assert few.caption.endswith("Each point is the mean of up to 4.")
    drawn(long)


def test_a_runs_preconditioning_follows_its_series() -> None:
    own = run([window(0)], preconditioning=rounds([1e9] * 5, STEADY))
    assert titles(run_picture(own))[-2:] == [
        "The fill, GiB/s",
        "Storage throughput of each round, GiB/s",
    ]


def test_preconditioning_says_its_verdict_in_words() -> None:
    steady = precondition_picture(EACH["precondition"])
    assert steady.lines[0].startswith("The device is steady: 1.863 GiB written, 6 rounds")
    few = precondition(verdict="not-steady", preconditioning=rounds([1e9] * 3))
    parts = preconditioning_parts(converted(few["preconditioning"], Preconditioned, ""))
    assert isinstance(parts[0], FactList)
    assert dict(parts[0].rows)["steady"] == "3 rounds, too few to judge (5 are needed)"
    drawn(few)


def test_latencies_of_rounds_are_drawn_where_they_are_judged() -> None:
    done = {**rounds([1e9] * 5, STEADY), "open_loop": True}
    own = precondition(preconditioning=done)
    assert titles(precondition_picture(own))[-1].startswith("p95 of storage reads and writes")
    drawn(own)


def test_a_capacity_shows_what_each_slo_was_judged_by() -> None:
    view = capacity_view(EACH["capacity"])
    assert view.sentence == (
        "10 users keep interactive:p95<50ms (9 to more than was tried with 95 %)."
    )
    assert titles(view_picture(view)) == [
        "Response over load, ms",
        "Response over requests completed, ms",
        "Requests over interactive:p95<50ms, %",
        "Requests asked and completed, 1/s",
        "Storage throughput, GiB/s",
    ]
    drawn(EACH["capacity"])


def test_a_capacity_of_no_load_says_from_which_load_on_it_was_looked_for() -> None:
    answer = {"load": 0.0, "confirmed": False, "confidence": 0.95, "low": 0.0, "high": 5.0}
    own = capacity(probe(5.0, inside=False), answer=answer, knee=None, limited_by=None)
    assert capacity_view(own).sentence == (
        "No load that was tried, from 5 users on, keeps interactive:p95<50ms."
    )
    drawn(own)


def test_trials_have_a_row_for_each_number_that_is_above_zero() -> None:
    (panel,) = trials_picture(EACH["trials"]).panels
    assert panel.height == pytest.approx(0.32 * 7)  # nothing was written to storage


def test_a_name_that_looks_like_a_formula_or_has_other_letters_is_drawn_as_text() -> None:
    drawn({**EACH["run"], "model": {"name": "$\\frac{ \u4e2d\u6587 \n"}})


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (run([]), "there is nothing to draw, as it has no numbers over an axis"),
        (run([window(0, phase="lunch")]), "windows[0].phase: invalid enum value 'lunch'"),
        (run([window(1), window(0)]), "series.windows do not follow each other in time"),
        (run([window(0, end_s=None)]), "windows[0].end_s: expected float, got null"),
        (run([window(0, queued="many")]), "windows[0].queued: expected float | null, got str"),
        (run([window(0, queued=1e300)]), "windows[0].queued: expected float <= 1e+18"),
        (run([window(0)], autoscaling={"a": 1}), "autoscaling: expected array, got object"),
        (capacity(), "there is nothing to draw, as it has no numbers over an axis"),
        (capacity(probe(0.0)), "probes[0].load: expected float > 0"),
        (capacity(probe(1.0), slo=["fast"]), "slo: "),
        (precondition(preconditioning={}), "there is nothing to draw, as it has no numbers"),
        ({"schema": "kv-cache-trials/2", "metrics": {}}, "missing required field passport"),
        ({"schema": "kv-cache-profile/1"}, "grid is empty (null); it must be a list of measured"),
        ({"schema": "kv-cache-other/1"}, "there is no picture of schema 'kv-cache-other/1'"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence_with_the_files_name(own: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        drawn(own)
    text = str(caught.value)
    assert says in text
    assert text.startswith("R.json: ")
    assert "\n" not in text


def test_a_result_that_was_changed_is_refused(tmp_path: Path) -> None:
    document = seal({"kv_cache": dict(EACH["run"])}, {})
    file = tmp_path / "R.json"
    file.write_text(json.dumps(document))
    assert read_document(file)["kv_cache"]["seed"] == 3
    document["kv_cache"]["seed"] = 4
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="was changed after its run"):
        read_document(file)


# --- beside a result -------------------------------------------------------------------------


def test_the_picture_beside_a_result_is_that_of_the_result_read_back(tmp_path: Path) -> None:
    result = tmp_path / "R.json"
    document = seal({"kv_cache": dict(EACH["capacity"])}, {})
    result.write_text(json.dumps(document))
    assert plot_beside(document, result) == tmp_path / "R.svg"
    again = draw(read_document(result), result, "svg")
    assert (tmp_path / "R.svg").read_bytes() == again
    assert plot_beside(document, result) == tmp_path / "R.svg"  # our own may be replaced


def test_a_file_of_others_is_left_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tmp_path / "R.svg"
    theirs.write_text("<svg/>")
    assert plot_beside({"kv_cache": EACH["capacity"]}, tmp_path / "R.json") is None
    assert theirs.read_text() == "<svg/>"
    assert "which plot did not write" in caplog.text


def test_a_document_without_data_has_no_picture_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert plot_beside({"kv_cache": capacity()}, tmp_path / "R.json") is None
    assert "no picture: " in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_one_line_names_the_extra(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.INFO, "kv_cache"):
        assert plot_beside({"kv_cache": EACH["capacity"]}, tmp_path / "R.json") is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert install_hint("plot") in record.getMessage()
    with pytest.raises(UsageError, match=re.escape(install_hint("plot"))):
        drawn(EACH["capacity"])


def test_a_place_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.svg")
    for name, why in (("pipe.svg", "no regular file"), ("no/R.svg", "there is no directory")):
        with pytest.raises(PlaceError, match=why):
            require_ours(tmp_path / name)
    (tmp_path / "R.svg").mkdir()
    with pytest.raises(PlaceError, match="it is a directory"):
        require_ours(tmp_path / "R.svg")


def test_the_picture_of_a_runs_directory_stands_in_it(tmp_path: Path) -> None:
    assert picture_of(tmp_path) == tmp_path / "result.svg"
    assert picture_of(Path("a/b.c.json")) == Path("a/b.c.svg")


# --- parts -----------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 0.1))
def test_labels_keep_their_order_and_distance(places: list[float], gap: float) -> None:
    moved = spread(sorted(places), gap)
    assert all(b - a >= gap * (1 - 1e-9) for a, b in pairwise(moved))
    assert all(place <= 1 for place in moved)
    assert spread([0.1, 0.5], 0.1) == [0.1, 0.5]


@given(st.floats(1e-9, 1e9), st.floats(1.6, 1e9))
@settings(max_examples=200)
def test_ticks_are_few_and_inside(low: float, times: float) -> None:
    found = round_numbers(low, low * times, most=5)
    assert len(found) <= 5
    assert all(low <= tick <= low * times for tick in found)


def test_an_axis_of_zeros_alone_warns_of_nothing() -> None:
    """Tests turn warnings into errors; a search whose responses all took 0 had one on stderr."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure as Canvas

    from kv_cache.view.picture.base import logarithmic

    axes = Canvas().subplots()
    axes.plot([1, 2], [0.0, 0.0])
    logarithmic(axes, [0.0, 0.0])
    assert (axes.get_yscale(), axes.get_ylim()) == ("log", (0.1, 10.0))
