"""The HTML report: everything is there or said to be absent, nothing comes from outside, and no
text of a document is markup."""

import copy
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.app.run_directory import RunDirectory
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.errors import UsageError
from kv_cache.core.format import figures
from kv_cache.core.units import MISSING
from kv_cache.metrics.intervals import IntervalEnds
from kv_cache.result.chain import seal
from kv_cache.result.published import published
from kv_cache.view import page as html
from kv_cache.view import units
from kv_cache.view.moves import moves_parts
from kv_cache.view.page import page
from kv_cache.view.page.charts import Book
from kv_cache.view.page.safe_text import embedded, plain, tag
from kv_cache.view.parts import Figure, FlowArrow, FlowDiagram, Line, PlotPoint, ShownColumn
from tests import reports, trials
from tests.examples import examples

ASSETS = Path(html.__file__).parent / "assets"
ATTACK = """<script>alert("1")</script><img src=x onerror='alert(2)'>&lt;"""

RUN = reports.run()
EACH = {
    "run": RUN,
    "capacity": reports.capacity(),
    "precondition": reports.precondition(),
    "ranks": reports.ranks(),
    "trials": trials.of([trials.result(seed, 1e9 + seed) for seed in range(1, 4)]),
}


class _Page(HTMLParser):
    """What a browser would find: elements with their attributes, ids, and texts by heading."""

    VOID = ("meta", "link", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)
        self.text.append(data)

    @property
    def ids(self) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get("id"))]

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def read(*documents: Mapping[str, Any]) -> _Page:
    names = [f"R{n}.json" for n in range(len(documents))]
    found = _Page(page(documents, names))
    assert not found.open, "every element is closed"
    return found


def changed(**values: Any) -> dict[str, Any]:
    return seal({"kv_cache": {**RUN["kv_cache"], **values}}, {})


# --- what is there ---------------------------------------------------------------------------


def test_a_run_has_every_section_with_the_verdict_first() -> None:
    assert read(RUN).headings == [
        "Run",
        "Answer",
        "Headline",
        "Over time",
        "What ran",
        "Tiers",
        "At a glance",
        "Percentiles of each tier",
        "Percentiles of each QoS class",
        "Tier flow",
        "Reuse",
        "Passport",
        "Environment",
        "Configuration",
        "Origin",
    ]


def test_policies_that_did_something_have_a_table_and_those_of_the_default_none() -> None:
    def tally(blocks: int | None) -> Any:
        return None if blocks is None else {"blocks": blocks, "bytes": blocks << 30}

    def policies(blocks: int | None, **cpu: Any) -> dict[str, Any]:
        ends = ("started", "useful", "late", "wasted", "failed", "no_room")
        return {
            "eviction": "lru",
            "admission": {"name": "depth", "tiers": {"cpu": cpu}, "not_stored": tally(4)},
            "write": {"name": "back", "written": None, "failed": None, "no_room": None},
            "prefetch": {"name": "successor", **{end: tally(blocks) for end in ends}},
        }

    asked = {"consulted": True, "admitted": tally(7), "not_admitted": {"too-deep": tally(5)}}
    found = read(changed(policies=policies(9, **asked)))
    assert "Policies" in found.headings
    text = " ".join(found.text)
    for words in ("cpu took", "cpu did not: too-deep", "no tier took", "no room"):
        assert words in text
    assert "written" not in text[text.index("cpu did not: too-deep") : text.index("no room")]
    plain = read(changed(policies=policies(None, consulted=False)))
    assert "Policies" not in plain.headings


def test_what_a_document_does_not_have_is_said_to_be_absent() -> None:
    bare = changed(series={}, operations=[], measured={}, reuse={}, passport={}, environment={},
                   config={})  # fmt: skip
    found = read(bare)
    absent = sum(attrs.get("class") == "absent" for _, attrs in found.elements)
    assert absent == 8  # over time, percentiles (2), flow, reuse, passport, environment, options
    assert (found.data["axes"], found.data["charts"]) == ({}, [])


@pytest.mark.parametrize("name", EACH)
def test_every_kind_of_document_has_a_report_whose_links_lead_somewhere(name: str) -> None:
    found = read(EACH[name])
    links = [attrs["href"] for tag, attrs in found.elements if tag == "a"]
    assert len(found.ids) == len(set(found.ids))
    assert links
    assert {str(link).removeprefix("#") for link in links} <= set(found.ids)


def test_every_chart_has_a_name_and_a_table_behind_it() -> None:
    found = read(RUN)
    charts = [attrs for tag, attrs in found.elements if attrs.get("class") == "plot"]
    assert len(charts) == len(found.data["charts"]) >= 14
    for number, attrs in enumerate(charts):
        assert attrs["data-chart"] == str(number)
        assert attrs["aria-labelledby"] in found.ids
        assert attrs["tabindex"] == "0"
    figures_ = [tag for tag, _ in found.elements if tag == "figure"]
    tables = page([RUN], ["R"]).count("<figure"), page([RUN], ["R"]).count("<summary>Table<")
    assert len(figures_) == tables[0] == tables[1]


def test_the_percentile_axis_ends_at_four_nines() -> None:
    curve = next(c for c in read(RUN).data["charts"] if c["title"].startswith("Response of each"))
    assert curve["log"]
    known = [value for value in curve["lines"][0]["values"] if value is not None]
    assert known == sorted(known)
    assert max(read(RUN).data["axes"][curve["axis"]]["places"]) <= 4.0


def test_a_percentile_that_too_few_values_know_is_not_drawn() -> None:
    """Of 1800 values p99 is known, and p99.9 is not."""
    chart = next(c for c in read(RUN).data["charts"] if c["title"].startswith("Response of each"))
    places = read(RUN).data["axes"][chart["axis"]]["places"]
    ends = [at for at, v in zip(places, chart["lines"][0]["values"], strict=True) if v is not None]
    assert 2.0 <= max(ends) < 3.0


def test_a_capacity_search_has_its_curve_of_latency_over_throughput() -> None:
    charts = read(EACH["capacity"]).data["charts"]
    curve = next(c for c in charts if c["title"] == "Response over requests completed")
    assert curve["names"] == ["10", "20", "40", "40", "80"]  # by throughput
    p95 = curve["lines"][0]
    assert p95["name"] == "p95"
    assert p95["through"] == [[20, 20], [40, 40], [80, 80], [150, 160]]  # by load, its mean
    assert p95["hollow"] == [4]


def test_a_page_of_a_virtual_run_says_that_nothing_was_measured() -> None:
    assert "nothing was measured" in page([changed(driver="virtual-time")], ["R"])


def test_a_run_that_only_wrote_a_trace_shows_no_times() -> None:
    config = {**RUN["kv_cache"]["config"], "output": {"io_trace_log": "ops.csv"}}
    found = read(changed(config=config))
    assert found.data["charts"] == []
    assert "nothing was timed" in " ".join(found.text)


def test_a_run_of_which_nothing_was_measured_has_no_numbers_in_its_headline() -> None:
    ended = changed(window_s=0.0, status="interrupted", reuse={"blocks": 0, "looked_up": 0})
    text = " ".join(read(ended).text)
    assert "The run was interrupted before its window began: nothing was measured." in text
    assert not [a for _, a in read(ended).elements if a.get("class") == "cards"]
    assert "Nothing is known of reuse" in text


def test_windows_of_which_none_counts_are_said_not_to() -> None:
    warm = changed(series=trials.series([reports.window(s, "warmup") for s in range(4)]))
    assert "All of it was before or after the measured window" in " ".join(read(warm).text)


def test_the_headline_names_the_machine_the_drive_and_promises_that_somebody_made() -> None:
    where = {"hostname": "vm7", "cpu": {"model": "EPYC", "usable_cores": 2},
             "memory": {"total_bytes": 2**34},
             "drives": [{"device": {"name": "nvme0n1", "model": "PM9"},
                         "filesystem": {"type": "xfs", "mount_point": "/kv"}}]}  # fmt: skip
    text = " ".join(read(changed(environment=where)).text)
    assert f"xfs at /kv, on nvme0n1 (model PM9, {MISSING}, firmware {MISSING})" in text
    assert "vm7, EPYC, 2 cores, 16 GiB of memory" in text
    assert "17179869184 (16 GiB)" in text
    assert "SLOs kept" not in text  # the user has set none
    theirs: Any = to_mapping(Config())["qos_profiles"]
    theirs["batch"]["target_latency_p95_ms"] = 77.0
    config = {**RUN["kv_cache"]["config"], "qos_profiles": theirs}
    text = " ".join(read(changed(config=config)).text)
    assert "SLOs kept" in text
    assert "of 3, by class, below" in text  # one of each class


def test_files_that_the_run_wrote_beside_its_result_are_named() -> None:
    config = {**RUN["kv_cache"]["config"], "output": {"fio_export": "io.fio", "hdr_log": None}}
    text = read(changed(config=config)).text
    assert text[text.index("fio job of the same I/O on storage") + 1] == "io.fio"
    assert "latencies as a log of HdrHistogram" not in text


# --- ranks -----------------------------------------------------------------------------------


def test_ranks_are_shown_as_one_and_each_in_a_line() -> None:
    found = read(EACH["ranks"])
    text = " ".join(found.text)
    assert found.headings[:3] == ["Run of several ranks", "Answer", "Headline"]
    assert {"Each rank", "Together"} <= set(found.headings)
    assert "3 of 3 ranks count. The run finished after" in text
    where = found.text.index("Start skew")
    assert found.text[where : where + 5] == ["Start skew", "2", " ", "ms", "± 0.06 ms"]
    assert "node2" in text
    over = next(c for c in found.data["charts"] if c["title"] == "Storage read")
    every, *each = (line["values"] for line in over["lines"])
    assert [line["name"] for line in over["lines"]][:2] == ["all ranks", "rank 0"]
    assert every[3] == pytest.approx(sum(line[3] for line in each), rel=1e-3)
    assert "give that file to report" in text


def test_a_rank_that_is_lost_is_named_and_in_no_line() -> None:
    found = read(reports.ranks(lost="it died with exit code 137"))
    assert "2 of 3 ranks count. The run broke off" in " ".join(found.text)
    assert "Rank 2: it died with exit code 137" in found.text
    over = next(c for c in found.data["charts"] if c["title"] == "Storage read")
    assert [line["name"] for line in over["lines"]] == ["all ranks", "rank 0", "rank 1"]
    assert "Start skew" not in found.text


def test_of_many_ranks_only_the_sum_is_drawn() -> None:
    found = read(reports.ranks(9))
    over = next(c for c in found.data["charts"] if c["title"] == "Storage read")
    assert [line["name"] for line in over["lines"]] == ["all ranks"]
    assert "9 ranks are too many lines" in " ".join(found.text)


def test_ranks_of_other_numbers_stand_side_by_side_without_a_ratio() -> None:
    text = " ".join(read(EACH["ranks"], reports.ranks(2)).text)
    assert "No ratio is given" in text
    assert "Numbers side by side" in text


# --- tier flow -------------------------------------------------------------------------------


def between_tiers(document: Mapping[str, Any]) -> list[FlowArrow]:
    diagram = moves_parts(published(document["kv_cache"]))[0]
    assert isinstance(diagram, FlowDiagram)
    return [arrow for arrow in diagram.arrows if arrow.start and arrow.end]


def test_moves_past_a_tier_follow_from_what_each_tier_gave_and_got() -> None:
    gib = {(e.start, e.end, e.name): e.bytes / 2**30 for e in between_tiers(RUN)}
    assert gib == {
        ("gpu", "cpu", "demotion"): 4.0,
        ("gpu", "storage", "demotion"): 2.0,
        ("cpu", "storage", "demotion"): 3.0,
        ("storage", "cpu", "promotion"): 1.5,
    }


def test_what_the_windows_edge_cut_is_no_move_past_a_tier() -> None:
    rows = [
        reports.operation("gpu", "read", "demotion", 4.01),
        reports.operation("cpu", "write", "demotion", 4.0),
        reports.operation("cpu", "read", "demotion", 3.0),
        reports.operation("storage", "write", "demotion", 3.0),
    ]
    found = between_tiers(changed(operations=rows))
    assert {(e.start, e.end) for e in found} == {("gpu", "cpu"), ("cpu", "storage")}


# --- several ---------------------------------------------------------------------------------


def test_several_runs_stand_side_by_side_with_ratios_and_intervals() -> None:
    slower = changed(window_s=12.0, series=trials.series(
        [reports.window(s + 9) for s in range(60)]))  # fmt: skip
    text = page([RUN, slower], ["old.json", "new.json"])
    found = _Page(text)
    assert found.headings[:4] == ["Side by side", "Answer", "What is side by side", "B against A"]
    assert "Over each other" in found.headings
    assert "95% interval of the ratio" in " ".join(found.text)
    assert len(found.ids) == len(set(found.ids))
    over = next(c for c in found.data["charts"] if c["title"] == "Storage read")
    assert [line["name"] for line in over["lines"]] == ["A old", "B new"]


def test_runs_that_may_not_be_compared_are_shown_with_the_reason_and_no_ratio() -> None:
    other = changed(model={"name": "Other 70B"})
    text = " ".join(read(RUN, other).text)
    assert "No ratio is given" in text
    assert "model.name is Other 70B, not Tiny 1B" in text
    assert "Numbers side by side" in text


def test_documents_of_different_kinds_stand_side_by_side() -> None:
    found = read(*EACH.values())
    assert "documents of different kinds" in " ".join(found.text)
    assert [h for h in found.headings if h[:2] in ("A:", "B:", "C:", "D:", "E:")] == [
        "A: Run",
        "B: Capacity search",
        "C: Preconditioning",
        "D: Run of several ranks",
        "E: Trials",
    ]


def test_searches_are_drawn_over_each_other() -> None:
    found = read(EACH["capacity"], reports.capacity((10, 30, 60)))
    over = found.data["charts"][-1]
    assert [line["name"] for line in over["lines"]] == ["A", "B"]
    assert len(found.data["axes"][over["axis"]]["places"]) == 6  # 80 in both, 80 twice in A


@pytest.mark.parametrize("log_y", [False, True])
def test_charts_draw_the_intervals_of_their_points_and_tell_bounds_apart(log_y: bool) -> None:
    def points(*ends: tuple[float, float]) -> list[PlotPoint]:
        intervals = [IntervalEnds(low=low, high=high) for low, high in ends]
        return [PlotPoint(x=1 + n, y=1, interval=each) for n, each in enumerate(intervals)]

    book = Book()
    book.figure(
        Figure(
            title="hits",
            x=ShownColumn("users", units.COUNT),
            y=ShownColumn("requests", units.COUNT),
            lines=[
                Line(name="lru", points=[*points((0.5, 2.0), (0.0, 3.0)), PlotPoint(x=3, y=1)]),
                Line(name="unlimited", points=[PlotPoint(x=1, y=2)], muted=True),
                Line(name="min", points=[PlotPoint(x=1, y=1)], muted=True),
            ],
            log_y=log_y,
        )
    )
    lru, *bounds = book.charts[0]["lines"]
    assert lru["spans"] == [[0.5, 2], None if log_y else [0, 3], None]
    assert [bound["spans"] for bound in bounds] == [None, None]
    assert bounds[0]["dash"] != bounds[1]["dash"]


# --- text that others wrote ------------------------------------------------------------------


def _poisoned(value: Any) -> Any:
    """Each text that is not a word of ours replaced by markup, and each key beside it."""
    if isinstance(value, dict):
        return {key: _poisoned(each) for key, each in value.items()} | {ATTACK: ATTACK}
    if isinstance(value, list):
        return [_poisoned(each) for each in value] + [ATTACK] * (not value)
    return ATTACK if isinstance(value, str) else value


_TEXTS = ("passport", "environment", "config", "model", "workload", "program_version", "status",
          "started_utc", "notes", "schedule", "semantics_preset", "driver", "reuse",
          "recordings")  # fmt: skip


def test_no_text_of_a_document_or_of_a_files_name_becomes_markup() -> None:
    own = RUN["kv_cache"]
    own = {**own, "recordings": [{"what": "x", "path": "x"}], "notes": ["x"],
           "workload": {"files": ["t.jsonl"], "format": "f", "rows": 1, "users": 1}}  # fmt: skip
    bad = {name: _poisoned(own[name]) for name in _TEXTS}
    bad["passport"] = {**_poisoned(own["passport"]), "reasons": [ATTACK]}
    for name in ("notes",):
        bad[name] = [ATTACK]
    bad["passport"]["rules"] = [dict.fromkeys(("rule", "name", "status", "message"), ATTACK)]
    bad["recordings"] = [dict.fromkeys(("what", "path", "sha256"), ATTACK) | {"rows": 1}]
    for op in (operations := [dict(row) for row in own["operations"]]):
        op["cause"] = ATTACK
    document = seal({"kv_cache": {**own, **bad, "operations": operations}}, {})
    text = page([document, RUN], [ATTACK, ATTACK])
    found = _Page(text)
    assert [tag for tag, _ in found.elements].count("script") == 2
    assert not [tag for tag, _ in found.elements if tag in ("img", "iframe", "object")]
    assert not [a for _, attrs in found.elements for a in attrs if a.startswith("on")]
    assert ATTACK in " ".join(found.text)


def test_a_texts_direction_and_lines_cannot_be_turned() -> None:
    assert plain("a\u202eb\nc\x00") == "a?b c?"
    assert len(plain("x" * 10_000)) == 600


@given(st.text())
def test_whatever_a_text_is_an_element_shows_it_and_has_one_child(text: str) -> None:
    found = _Page(tag("p", text, title=text))
    assert [name for name, _ in found.elements] == ["p"]
    assert "".join(found.text) == plain(text) == (found.elements[0][1]["title"] or "")


@given(st.recursive(st.text() | st.integers(-9, 9), lambda each: st.lists(each, max_size=3)))
def test_embedded_json_is_what_it_was_and_has_no_markup(value: Any) -> None:
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


# --- nothing from outside --------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
def test_a_page_names_no_address_that_would_be_fetched(name: str) -> None:
    found = read(EACH[name])
    for tag_, attrs in found.elements:
        for key, value in attrs.items():
            if key in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
                assert value is not None
                assert value.startswith("#") or (tag_, value) == ("link", "data:,")
            assert key != "style", "the policy forbids it"
    ours = "".join((ASSETS / name).read_text() for name in ("report.css", "uPlot.min.css"))
    assert not re.search(r"@import|url\(", ours)


def test_the_policy_names_the_script_and_the_style_by_their_hash_and_forbids_the_rest() -> None:
    text = page([RUN], ["R"])
    policy = next(str(attrs["content"]) for _, attrs in _Page(text).elements
                  if attrs.get("http-equiv") == "Content-Security-Policy")  # fmt: skip
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2


def test_the_vendored_library_is_the_published_one() -> None:
    from hashlib import sha256

    found = {p.name: sha256(p.read_bytes()).hexdigest() for p in sorted(ASSETS.glob("uPlot*"))}
    assert found == {
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }


# --- how large, how legible ------------------------------------------------------------------


def test_a_run_of_an_hour_with_a_tick_of_a_second_is_under_3_mb() -> None:
    hour = changed(series=trials.series([reports.window(s) for s in range(3600)]))
    text = page([hour], ["hour.json"])
    assert len(text.encode()) < 3_000_000
    chart = _Page(text).data["charts"][0]
    assert len(chart["lines"][0]["values"]) == 3600


def test_many_runs_have_fewer_points_each() -> None:
    windows = trials.series([reports.window(s) for s in range(1000)])
    first, others = changed(series=windows), changed(series=windows, model={"name": "other"})
    text = page([first, *[others] * 7], [f"R{n}" for n in range(8)])
    assert len(text.encode()) < 3_000_000
    data = _Page(text).data
    (chart,) = [c for c in data["charts"] if c["title"] == "Users"][:1]
    assert 200 < len(data["axes"][chart["axis"]]["places"]) <= 500


def test_the_same_documents_give_the_same_bytes() -> None:
    assert page([RUN, EACH["trials"]], ["a", "b"]) == page([RUN, EACH["trials"]], ["a", "b"])


def _colours(style: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w[\w-]*): (#[0-9a-f]{6})", style))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_stand_out_as_wcag_aa_asks(dark: bool) -> None:
    style = (ASSETS / "report.css").read_text()
    begin = style.index("@media screen and (prefers-color-scheme: dark)")
    end = style.index("* { box-sizing")
    found = _colours(style[begin:end] if dark else style[:begin])
    for ink in ("ink", "soft", "link"):
        for ground in ("page", "panel"):
            assert _contrast(found[ink], found[ground]) >= 4.5, (ink, ground)
    for kind in ("good", "poor", "bad"):
        assert _contrast(found[kind], found[f"{kind}-page"]) >= 4.5, kind
    for number in range(9):
        assert _contrast(found[f"c{number}"], found["page"]) >= 3, number


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"kv_cache": {"schema": "kv-cache-comparison/1"}}, "R0.json: there is no report of it"),
        ({"kv_cache": []}, "R0.json: there is no report of it"),
        (
            changed(series={"windows": [{"start_s": 0}]}),
            "R0.json: kv_cache: series.windows[0]: object missing required field end_s",
        ),
        (changed(operations={}), "R0.json: kv_cache: operations: expected array, got object"),
        (changed(notes=[1]), "R0.json: kv_cache: notes[0]: expected str, got int"),
        (
            changed(operations=[{**reports.operation("cpu", "read", "reuse", 1),
                                 "histogram_total": {"count": 1}}]),
            "R0.json: kv_cache: operations[0].histogram_total: is not a histogram",
        ),
    ],
)  # fmt: skip
def test_a_document_that_is_not_as_it_should_be_is_one_sentence_with_its_name(
    bad: Any, says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        read(bad)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a document; of long lists, only of their beginning."""
    inner = list(value.items()) if isinstance(value, dict) else []
    inner += list(enumerate(value[:3])) if isinstance(value, list) else []
    return [path, *(leaf for key, each in inner for leaf in _leaves(each, (*path, key)))]


_SMALL = {
    name: json.loads(json.dumps(document))
    for name, document in {**EACH, "run": reports.run(4)}.items()
}
_PLACES = [
    (name, path) for name, document in _SMALL.items() for path in _leaves(document["kv_cache"])
]
_WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([[], {}, [1], ["x"], [[]], [{}], {"x": 1}, [None]]),
)  # fmt: skip


@examples(20)
@given(st.sampled_from(_PLACES), _WRONG, st.booleans())
def test_whatever_stands_in_a_document_there_is_a_page_or_one_sentence(
    place: tuple[str, tuple[Any, ...]], wrong: Any, beside: bool
) -> None:
    name, path = place
    document = copy.deepcopy(_SMALL[name])
    holder: Any = document
    for key in ("kv_cache", *path)[:-1]:
        holder = holder[key]
    holder[("kv_cache", *path)[-1]] = wrong
    said = ""
    try:
        documents = [_SMALL[name], document] if beside else [document]
        assert not _Page(page(documents, ["R.json"] * len(documents))).open
    except UsageError as error:
        said = str(error)
    assert said == "" or said.startswith("R.json: ")


def test_more_results_than_there_are_letters_are_refused() -> None:
    with pytest.raises(UsageError, match="1 to 26 results, and 27 were given"):
        read(*[RUN] * 27)
    with pytest.raises(UsageError, match="and 0 were given"):
        read()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_number_that_is_not_there_is_a_dash(value: float | None) -> None:
    assert figures(value) == "\u2013"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.012345, "0.01235"), (12.0, "12"), (1234567.8, "1,234,568")]
)
def test_a_number_has_four_figures_that_count(value: float, text: str) -> None:
    assert figures(value) == text


# --- in a run's directory --------------------------------------------------------------------


def test_a_runs_directory_gets_the_page_of_its_result(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.end(RUN)
    written = directory.report(RUN)
    assert written == directory.path / "report.html"
    assert written.read_text() == page([RUN], [f"{directory.path.name}/result.json"])


def test_a_page_that_cannot_be_written_harms_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.end(RUN)
    (directory.path / "report.html").mkdir()
    assert directory.report(RUN) is None
    assert directory.report(changed(notes=[1])) is None
    assert "no report" in caplog.text
    assert (directory.path / "result.json").stat().st_size
