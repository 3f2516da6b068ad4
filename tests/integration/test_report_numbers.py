"""Each number on the page of a real run is the result's: tables are read back out of the page, and
set beside what the document says."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.units import AT_LEAST, GIB, MISSING
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.view.run import NOT_SET
from tests import cli

TIERS, KINDS = ("gpu", "cpu", "storage"), ("read", "write")
CLASSES = ("interactive", "responsive", "batch")
NAMED = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)


class _Tables(HTMLParser):
    """Tables by their captions, cards by their names, and the data of the charts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.cards: dict[str, str] = {}
        self.script = ""
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = self._name = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "link", "wbr"):
            return
        self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag == "dt":
            self._name = ""
        elif tag == "dd" and self._name not in self.cards:
            self.cards[self._name] = ""

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()
        if tag == "table":
            self.tables[self._caption] = self._rows
        elif tag == "dl":
            self._name = ""

    def handle_data(self, data: str) -> None:
        if "caption" in self._open:
            self._caption += data
        elif "td" in self._open or "th" in self._open:
            self._rows[-1][-1] += data
        elif "dt" in self._open:
            self._name += data
        elif "dd" in self._open and self._name:
            self.cards[self._name] += data
        elif self._open[-1:] == ["script"] and not self.script:
            self.script = data

    def rows(self, caption: str) -> list[list[str]]:
        """Without the heads."""
        return self.tables[caption][1:]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[_Tables, Any]:
    """Three tiers, three classes, real I/O."""
    home = tmp_path_factory.mktemp("numbers")
    made = cli.small(
        home, "--gpu-mem-gb=0.03125", "--semantics=serving", "--duration=3", "--num-users=12",
        "--results-dir=runs", "--fio-export=job.fio",
    )  # fmt: skip
    (directory,) = (home / "runs").iterdir()
    return _Tables((directory / "report.html").read_text()), made.own


def number(text: str) -> float:
    return float(text.split()[0].replace(",", "").removeprefix(AT_LEAST))


def same(shown: str, value: float | None) -> bool:
    """Four figures are shown; nothing is shown as an en dash."""
    if value is None:
        return shown.split()[0] == MISSING  # a card has its unit behind
    return number(shown) == pytest.approx(value, rel=6e-4, abs=1e-6)


def all_same(shown: Iterable[str], values: Iterable[float | None]) -> None:
    for text, value in zip(shown, values, strict=True):
        assert same(text, value), (text, value)


def histograms(own: Any, name: str, **where: str) -> Histogram:
    return merged(
        Histogram.from_json(row[name])
        for row in own["operations"]
        if row["phase"] == "measure" and all(row[key] == value for key, value in where.items())
    )


def named(found: Histogram) -> list[float | None]:
    """Percentiles in ms, as far as the values reach; and the largest."""
    told = [
        (found.at_rank(p) or 0) / 1e6 if found.count * (100 - p) >= 1000 - 1e-6 else None
        for p in NAMED
    ]
    return [*told, (found.highest or 0) / 1e6]


def test_the_headline_is_the_results(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    storage, every = own["tiers"]["storage"], own["measured"]["all"]
    for name, value in {
        "Storage read": storage["read"]["bytes_per_second"] / GIB,
        "Storage write": storage["write"]["bytes_per_second"] / GIB,
        "Requests": every["completed"] / own["window_s"],
        "Output tokens": every["output_tokens"] / own["window_s"],
        "Storage read device p95": storage["read"]["device_ms"]["p95"],
        "Storage write device p95": storage["write"]["device_ms"]["p95"],
        "TTFT p95": every["ttft_ms"]["p95"],
        "Response p95": every["response_ms"]["p95"],
        "Hit ratio": 100 * own["reuse"]["reuse_hit_ratio"],
    }.items():
        assert same(shown.cards[name], value), (name, shown.cards[name], value)
    assert shown.cards["Requests"].endswith("12 users at the end")
    assert "SLOs kept" not in shown.cards  # the user has set none


@pytest.mark.parametrize("tier", TIERS)
def test_a_tiers_percentiles_are_those_of_its_histograms(
    ran: tuple[_Tables, Any], tier: str
) -> None:
    shown, own = ran
    rows = {row[0]: row[1:] for row in shown.rows(f"One operation on the {tier} tier, ms")}
    for kind in KINDS:
        side = own["tiers"][tier][kind]
        for name, said in (("total", "whole"), ("device", "device")):
            found = histograms(own, f"histogram_{name}", tier=tier, operation=kind)
            assert found.count == side["operations"]
            all_same(rows[f"{kind} {said}"], [found.count, *named(found)])
            assert same(rows[f"{kind} {said}"][3], side[f"{name}_ms"]["p95"])


@pytest.mark.parametrize(
    ("title", "measure"), [("Response", "response"), ("Time to first token", "ttft")]
)
def test_a_classes_percentiles_are_those_of_its_histogram(
    ran: tuple[_Tables, Any], title: str, measure: str
) -> None:
    shown, own = ran
    rows = {row[0]: row[1:] for row in shown.rows(f"{title} of each class, ms")}
    assert list(rows) == [qos for qos in CLASSES if own["measured"][qos]["completed"]]
    for qos, row in rows.items():
        found = Histogram.from_json(own["measured"][qos][f"histogram_{measure}"])
        all_same(row, [found.count, *named(found)])
        assert same(row[1], own["measured"][qos][f"{measure}_ms"]["p50"])


def test_slos_are_those_of_the_result(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    rows = shown.rows(NOT_SET)
    assert len(rows) == 4 * sum(bool(own["measured"][qos]["completed"]) for qos in CLASSES)
    for qos, percent, said, actual, target, within, requests, low, high in rows:
        row = own["measured"][qos]["slos"][percent.replace(".", "")]
        words = {True: "kept", False: "missed", None: "too few to say"}
        assert said.split(" ", 1)[1] == words[row["met"]]
        all_same((actual, target), (row["actual_ms"], row["target_ms"]))
        all_same((within, requests), (row["within"], row["requests"]))
        all_same((low, high), (100 * row["share_low"], 100 * row["share_high"]))


def test_every_operation_is_in_the_tier_flow_and_nothing_else(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    rows = shown.rows("Operations of the measured window, by tier, kind and cause")
    there = {
        (row["tier"], row["operation"], row["cause"])
        for row in own["operations"]
        if row["phase"] == "measure"
    }
    assert {tuple(row[:3]) for row in rows} == there
    assert len(rows) == len(there)
    for tier, kind, cause, operations, gib, *times in rows:
        where = {"tier": tier, "operation": kind, "cause": cause}
        found = histograms(own, "histogram_total", **where)
        moved = sum(
            row["bytes"]
            for row in own["operations"]
            if row["phase"] == "measure" and all(row[k] == v for k, v in where.items())
        )
        assert same(operations, found.count)
        assert same(gib, None if kind == "delete" else moved / GIB)
        known = dict(zip(NAMED, named(found)[:-1], strict=True))
        all_same(times, [known[p] for p in (50, 95, 99, 99.99)])
    for kind in KINDS:  # and all of a tier's bytes are there
        told = sum(number(r[4]) for r in rows if (r[0], r[1]) == ("storage", kind))
        assert told == pytest.approx(own["tiers"]["storage"][kind]["bytes"] / GIB, rel=3e-3)


def test_what_is_drawn_over_time_is_each_window(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    windows = own["series"]["windows"]
    charts = {chart["title"]: chart for chart in json.loads(shown.script)["charts"]}

    def lines(title: str) -> Mapping[str, list[float | None]]:
        return {line["name"]: line["values"] for line in charts[title]["lines"]}

    lengths = [w["end_s"] - w["start_s"] for w in windows]

    def rates(values: Sequence[float | None], amounts: Sequence[float]) -> None:
        """A window that is far shorter than the others has none, and none is dropped else."""
        for value, amount, length in zip(values, amounts, lengths, strict=True):
            if value is None:
                assert length < 0.3 * max(lengths)
            else:
                assert value == pytest.approx(amount / length, rel=6e-4)

    for tier in TIERS:
        drawn = lines(f"Throughput of the {tier} tier")
        for kind in KINDS:
            moved = [w["tiers"].get(tier, {}).get(kind, {}).get("bytes", 0) for w in windows]
            rates(drawn[kind], [each / GIB for each in moved])
    assert lines("Users")["users"] == [w["users"] for w in windows]
    rates(lines("Requests completed")["completed"], [w["completed"] for w in windows])
    for kind in KINDS:
        drawn = lines(f"Time of one storage {kind}")
        for name, values in drawn.items():
            wanted = [w["tiers"].get("storage", {}).get(kind, {}).get(f"{name}_ms")
                      for w in windows]  # fmt: skip
            assert [v or 0 for v in values] == pytest.approx([w or 0 for w in wanted], rel=6e-4)
    title = "Response p95 of each class"
    known = any(c["response_ms"]["p95_ms"] for w in windows for c in w["classes"].values())
    assert (title in charts) is known  # 200 requests in a window
    for qos, p95s in lines(title).items() if known else ():
        wanted = [w["classes"].get(qos, {}).get("response_ms", {}).get("p95_ms") for w in windows]
        assert [v or 0 for v in p95s] == pytest.approx([w or 0 for w in wanted], rel=6e-4)


def test_reuse_is_the_results(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    reuse = own["reuse"]
    ratios = {row[0]: row[1] for row in shown.rows("Offered and achieved, of everything asked for")}
    assert same(ratios["tokens on offer"], 100 * reuse["offered_token_ratio"])
    assert same(ratios["blocks found"], 100 * reuse["achieved_block_ratio"])
    hits = {row[0]: row[1:] for row in shown.rows("Hits, of what was looked up")}
    ratio, found, looked = hits["all that was looked up"]
    all_same((ratio, found, looked),
             (100 * reuse["reuse_hit_ratio"], reuse["hits"], reuse["looked_up"]))  # fmt: skip
    counted = {row[0]: row[1] for row in shown.rows("Counted in the measured window")}
    assert same(counted["tokens of all contexts"], reuse["context_tokens"])
    assert same(counted["loaded"], reuse["loaded_bytes"] / GIB)


def test_the_passport_and_the_configuration_are_whole(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    rules = [
        [f"{row['rule']} {row['name']}", row["status"], row["message"]]
        for row in own["passport"]["rules"]
    ]
    told = [
        [name, status.split()[1], says] for name, status, says in shown.rows("What each rule found")
    ]
    assert told == rules
    options = dict(
        next(rows[1:] for caption, rows in shown.tables.items() if caption.startswith("All "))
    )
    assert options["run.num_users"] == "12"
    assert options["tiers.gpu_mem_gib"] == "0.03125"
    leaves = sum(len(part) if isinstance(part, dict) and part else 1
                 for part in own["config"].values())  # fmt: skip
    assert len(options) >= leaves
    assert ["fio job of the same I/O on storage", "job.fio"] in shown.rows(
        "Files that the run was asked to write"
    )


def test_the_environment_is_the_results(ran: tuple[_Tables, Any]) -> None:
    shown, own = ran
    told = dict(shown.rows("The machine and its drives"))
    assert told["hostname"] == own["environment"]["hostname"]
    memory = own["environment"]["memory"]["total_bytes"]
    assert told["memory.total_bytes"].startswith(f"{memory} (")
    origin = dict(shown.rows("Where this is from"))
    assert origin["seed"] == str(own["seed"])
    assert origin["schedule (SHA-256)"] == own["schedule"]["sha256"]
    assert Path(origin["file"]).name == "result.json"
