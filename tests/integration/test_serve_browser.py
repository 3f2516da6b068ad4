"""The page of `serve` in a real Chromium: each of its parts is used as a person uses it.

`KV_CACHE_SCREENSHOTS=DIR` keeps screenshots for people to look at.
"""

import gc
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import pytest
import yaml

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("axe_core_python")

from kv_cache.web.serve_options import ServeOptions
from tests import browser
from tests.browser import DESKTOP, PHONE, Browser
from tests.cli import PATIENCE_S, ROOT
from tests.serving import TINY, Served, end, serving, write_months

pytestmark = pytest.mark.skipif(browser.MISSING is not None, reason=browser.MISSING or "")

KEPT = os.environ.get("KV_CACHE_SCREENSHOTS")
TAB, ENTER = "\ue004", "\ue007"
READY = "document.querySelector('#line')?.textContent.startsWith('kv-cache.py')"
RESULT = ROOT / "docs/reports/result.json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page")
    results = folder / "results"
    results.mkdir()
    for name in ("a.json", "b.json"):
        shutil.copy(RESULT, results / name)
    (results / "cut.json").write_bytes(RESULT.read_bytes()[:3000])
    with serving(folder) as server:
        yield server


@pytest.fixture(scope="module")
def _window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def window(_window: Browser) -> Iterator[Browser]:
    """A window whose console says nothing in the test."""
    _window.look(DESKTOP)
    _window.complaints()
    yield _window
    assert _window.complaints() == []


def keep(window: Browser, name: str) -> None:
    if KEPT:
        Path(KEPT).mkdir(parents=True, exist_ok=True)
        window.screenshot(Path(KEPT) / f"{name}.png", whole=True)


def fill(window: Browser, path: str, value: str, form: str = "first") -> None:
    window.run(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input'));"
        .replace("arguments[0]", json.dumps(f"{form}-{path}"))
        .replace("arguments[1]", json.dumps(value))
    )  # fmt: skip


def find_option(window: Browser, words: str) -> None:
    window.run(
        "const d = document.querySelector('#all-search').closest('details');"
        "d.open = true; await new Promise(r => setTimeout(r, 50));"
        f"const s = document.getElementById('all-search'); s.value = {json.dumps(words)};"
        "s.dispatchEvent(new Event('input'));"
    )


def started(window: Browser) -> str:
    window.until("location.hash.startsWith('#/run/') && document.querySelector('#log')")
    name: str = window.run("return location.hash.split('/')[2]")
    return name


# --- start -----------------------------------------------------------------------------------


def test_the_page_is_small_soon_there_and_asks_nobody_else(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/")
    window.until(READY)
    loads = window.run(
        "return ['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind))"
        ".map(e => [e.name, e.transferSize, e.decodedBodySize])"
    )
    assert all(name.startswith(served.url) for name, _, _ in loads)
    assert len(loads) > 10  # the page, its modules and what it asks
    assert all(sent > 0 for _, sent, _ in loads)
    assert sum(sent for _, sent, _ in loads) < 150_000
    assert sum(size for _, _, size in loads) < 500_000
    keep(window, "start")


def test_three_clicks_from_the_page_to_a_quick_run(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/")
    window.until(READY)
    assert (
        window.run("return document.querySelector('input[name=preset]:checked').value") == "quick"
    )
    window.click("#go")
    name = started(window)
    assert "--config=quick" in served.ask(f"/runs/{name}")[1]["line"]
    window.click("#stop")
    served.ended(name)


def test_the_form_shows_command_yaml_help_and_the_nearest_name(
    served: Served, window: Browser
) -> None:
    window.visit(f"{served.url}/#/start/run")
    window.until(READY)
    assert "16" in window.run("return document.getElementById('first-run.num_users').placeholder")
    fill(window, "run.num_users", "7")
    window.until("document.querySelector('#line').textContent.includes('--num-users=7')")
    window.until("document.body.textContent.includes('num_users: 7')")
    fill(window, "run.model", "lama3.1-8b")
    window.until(
        "document.querySelector('#why').textContent.includes(\"Did you mean 'llama3.1-8b'\")"
    )
    assert window.run("return document.querySelector('#go').disabled")
    fill(window, "run.model", "")
    window.until("!document.querySelector('#go').disabled")
    find_option(window, "fsync")
    window.until("document.getElementById('all-io.fsync')")
    assert window.run(
        "return document.getElementById('all-io.fsync').getAttribute('aria-describedby')"
    ) == "all-io.fsync-hint"  # fmt: skip
    find_option(window, "erase-device")
    window.until("document.getElementById('all-tiers.erase_device')?.disabled")
    window.click("#plan")
    window.until("document.querySelector('#planned').textContent.includes('with real I/O')")
    keep(window, "checked")


def test_every_command_has_a_form(served: Served, window: Browser) -> None:
    _, known = served.ask("/commands")
    for command in known["commands"]:
        window.visit(f"{served.url}/#/start/{command['command'].replace(' ', '%20')}")
        window.until(
            f"document.querySelector('#command')?.value === {json.dumps(command['command'])}"
        )
        window.until("document.querySelector('#line').textContent || "
                     "document.querySelector('#why').textContent")  # fmt: skip


def test_instances_are_drawn_up_one_by_one(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/#/start/sim")
    window.until(READY)
    fill(window, "scenario", "single-node")
    window.until("document.getElementById('first-series').placeholder === 'series.csv'")
    window.run("[...document.querySelectorAll('details')].forEach(d => d.open = true);"
               "const cells = document.querySelectorAll('input[aria-label^=\"hbm_gib\"]');"
               "cells[1].value = '80'; cells[1].dispatchEvent(new Event('input'));"
               "[...document.querySelectorAll('button')].find("
               "b => b.textContent === 'Use these instances').click();")  # fmt: skip
    window.until("document.querySelector('#line').textContent.includes('scenarios/mine.yaml')")
    fill(window, "preset", "smoke")
    window.until("document.querySelector('#line').textContent.includes('--preset=smoke')")
    keep(window, "instances")
    window.click("#go")
    name = started(window)
    window.until("document.querySelector('#output')")
    assert served.ask(f"/runs/{name}")[1]["results"][0]["kind"] == "sim"
    assert "gpu-b" in (served.results / "scenarios/mine.yaml").read_text()
    window.run("document.querySelector('.look').open = true")
    window.until("document.querySelector('.look canvas')")
    assert "decoding" in window.run("return document.querySelector('.look select').innerText")
    keep(window, "simulated")


def test_the_event_log_of_a_simulation_is_looked_at(served: Served, window: Browser) -> None:
    name = served.start("sim", scenario="unequal-gpus", preset="smoke", events="events.jsonl")
    run = served.ended(name)
    assert "--series=" in run["line"]
    assert f"{name}/out/events.jsonl" in run["files"]  # a bare name is a file of the run's own
    window.visit(f"{served.url}/#/run/{name}")
    window.until("document.querySelector('.look')")
    window.run("document.querySelector('.look').open = true")
    window.until("document.querySelector('.look pre')?.textContent.includes('\"arrival\"')")


# --- watch -----------------------------------------------------------------------------------


def test_a_run_is_watched_and_stopped_with_its_result(served: Served, window: Browser) -> None:
    name = served.start(**TINY, **{"run.duration_s": "600"})
    window.visit(f"{served.url}/#/run/{name}")
    window.until("document.querySelector('#live') && !document.querySelector('#live').hidden")
    window.until("charts.rates.data[0].length > 3 && charts.rates.data[1].some(v => v > 0)")
    shown = window.run("return document.querySelector('#live').innerText")
    for words in ("time left", "storage read, GiB/s", "hit ratio", "SLOs so far", "interactive"):
        assert words in shown
    keep(window, "watch")
    lengths = window.run(
        "for (let t = 1; t <= 3600; t++) charts.load.add(1000 + t, [t, t, t]);"
        "return charts.load.data.map(d => d.length);"
    )
    assert lengths == [600] * 4
    window.click("#stop")
    window.until("document.querySelector('#output')?.textContent.includes('interrupted')")
    assert "The run's page" in window.run("return document.querySelector('#after').textContent")
    keep(window, "ended")


def test_the_list_of_runs_follows_what_begins_and_ends(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/#/runs")
    window.until("document.querySelector('#runs table, #runs p')")
    name = served.start(**TINY, **{"run.duration_s": "600"})
    row = f"document.querySelector('#runs a[href$=\"{name}\"]')?.closest('tr').textContent"
    window.until(f"{row}?.includes('running')")
    served.ask(f"/runs/{name}", method="DELETE")
    window.until(f"{row} && !{row}.includes('running')")


def test_a_page_that_was_left_before_it_was_there_asks_for_nothing_more(
    served: Served, window: Browser
) -> None:
    window.visit(f"{served.url}/#/traces")
    window.until("document.querySelector('main h2')")
    asked: list[int] = window.run(
        "let count = 0, answer; const late = new Promise(r => { answer = r; });"
        "const real = window.fetch; window.fetch = async (path, ...rest) => {"
        "  if (String(path).endsWith('/runs')) { count += 1; await late; }"
        "  return real(path, ...rest); };"
        "const wait = ms => new Promise(r => setTimeout(r, ms));"
        "location.hash = '#/runs'; while (!count) await wait(20);"
        "location.hash = '#/traces'; await wait(500); answer(); await wait(500);"
        "const first = count; await wait(7000); window.fetch = real; return [first, count];"
    )
    assert asked == [1, 1]


def test_a_simulation_shows_the_series_of_what_has_ended_while_it_goes_on(
    served: Served, window: Browser
) -> None:
    name = served.start("sim", scenario="single-node", preset="smoke", seeds="1000")
    window.visit(f"{served.url}/#/run/{name}")
    window.until("document.querySelector('.look canvas')")
    assert "running" in window.run("return document.querySelector('#state').textContent")
    end(served.ask(f"/runs/{name}")[1]["pid"])
    window.until("document.querySelector('#output')")


def test_the_one_run_of_a_simulation_shows_its_series_and_its_latest_events_as_it_goes_on(
    served: Served, window: Browser
) -> None:
    scenario = served.results.parent / "long.yaml"
    scenario.write_text(json.dumps({
        "name": "long", "question": "How long is the queue?", "watch": {"check_every": 500},
        "instances": {"gpu": {"count": 4, "hbm_gib": 16}},
        "workload": {"source": "sessions", "requests": 1_000_000, "rate_per_s": 20},
    }))  # fmt: skip
    name = served.start("sim", scenario=str(scenario), events="events.jsonl")
    window.visit(f"{served.url}/#/run/{name}")
    opened = "[...document.querySelectorAll('.look')].map(d => d.innerText).join()"
    window.until("document.querySelector('.look canvas')")
    window.until(f"{opened}.includes('Event log so far')")
    shown = window.run(f"return {opened}")
    assert "Series so far" in shown
    assert "The latest 200 lines." in shown
    last = "document.querySelector('.look pre').textContent.split('\\n').pop()"
    first = json.loads(window.run(f"return {last}"))
    window.run("const s = document.querySelector('.look select'); s.value = 'decoding';"
               "s.dispatchEvent(new Event('change')); s.focus(); window.pick = s;")  # fmt: skip
    window.until(f"JSON.parse({last}).at_ms > {first['at_ms']}")
    assert window.run("return document.activeElement === window.pick && window.pick.value")
    assert "running" in window.run("return document.querySelector('#state').textContent")
    keep(window, "simulating")
    window.click("#stop")
    window.until("document.querySelector('#output')")
    assert served.ended(name)["state"] == "stopped"


def test_a_search_for_the_capacity_shows_the_loads_that_it_has_tried(
    served: Served, window: Browser
) -> None:
    set_by_it = ("run.num_users", "run.warmup_s", "run.drain_s")
    values = {path: text for path, text in TINY.items() if path not in set_by_it}
    values |= {
        "run.virtual_time": "true",
        "slo": "interactive:p95<50ms",
        "probe": "20",
        "most_probes": "6",
    }
    name = served.start("capacity", **values)
    window.visit(f"{served.url}/#/run/{name}")
    window.until("!document.querySelector('#tried')?.hidden")
    window.until("document.querySelector('#tried canvas')")
    keep(window, "searching")
    window.until("document.querySelector('#output')")


def test_a_page_says_that_its_server_is_gone_and_goes_on_with_the_next(
    window: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as first:
        port = urlsplit(first.url).port
        name = first.start(**TINY, **{"run.duration_s": "600"})
        window.visit(f"{first.url}/#/run/{name}")
        window.until("window.charts?.load.data[0].length > 2")
        first.process.kill()
        first.process.wait(timeout=PATIENCE_S)
        window.until("document.querySelector('#lost').textContent.includes('does not answer')")
        seen = window.run("return charts.load.data[0].length")
        with serving(tmp_path, f"--port={port}") as second:
            window.until(f"charts.load.data[0].length > {seen}")
            window.until("!document.querySelector('#lost').textContent")
            second.ask(f"/runs/{name}", method="DELETE")
            window.until("document.querySelector('#output')")
    window.complaints()  # of the connection that was refused


def test_a_sweep_shows_its_cells_as_they_end(
    served: Served, window: Browser, tmp_path: Path
) -> None:
    grid_sets = ("run.num_users", "run.seed")
    values = {path: yaml.safe_load(text) for path, text in TINY.items() if path not in grid_sets}
    grid = served.results.parent / "grid.yaml"
    grid.write_text(json.dumps({
        "base": {**values, "run.virtual_time": True, "run.duration_s": 20},
        "vary": {"run.num_users": [2, 3, 4, 5]}, "repeat": 5,
    }))  # fmt: skip
    name = served.start("sweep", grid=str(grid))
    window.visit(f"{served.url}/#/run/{name}")
    window.until("document.querySelector('#after h3')?.textContent === 'Left so far'")
    window.until("document.querySelectorAll('#after a').length > 0")
    window.until("document.querySelector('#output')")
    assert "sweep" in window.run("return document.querySelector('#after').textContent")
    assert served.ended(name)["state"] == "done"


@contextmanager
def ticking(folder: Path, tick_s: float) -> Iterator[str]:
    """A server of this process whose clock runs faster; its address."""
    import uvicorn

    from kv_cache.cli.serve import forms
    from kv_cache.web.server import serve

    address: list[str] = []
    servers: list[uvicorn.Server] = []
    begin = uvicorn.Server.__init__

    def noted(self: uvicorn.Server, config: uvicorn.Config) -> None:
        begin(self, config)
        servers.append(self)

    options = ServeOptions(results=str(folder / "results"), folder=(str(folder),), port=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "__init__", noted)
        thread = threading.Thread(target=serve, args=(options, forms(), address.append, tick_s))
        thread.start()
        try:
            while not (address and servers and servers[0].started):
                time.sleep(0.02)
            yield address[0].rstrip("/")
        finally:
            servers[0].should_exit = True
            thread.join(timeout=PATIENCE_S)


@pytest.mark.nightly
def test_an_hour_of_ticks_makes_nothing_grow(tmp_path: Path, window: Browser) -> None:
    """3,600 ticks and more, as fast as they come: what is kept is bounded on both sides."""
    with ticking(tmp_path, tick_s=0.002) as address:
        server = Served(address, tmp_path / "results")
        name = server.start(**TINY, **{"run.duration_s": "600"})
        window.visit(f"{address}/#/run/{name}")
        window.until("window.charts && charts.load.data[0].length >= 600")
        window.cdp("HeapProfiler.collectGarbage")
        before = window.run("return performance.memory.usedJSHeapSize")
        gc.collect()
        server_before = psutil.Process().memory_info().rss
        ticks = window.run(
            "const first = charts.load.data[0][0]; const add = charts.load.add; let n = 0;"
            "charts.load.add = function (...each) { n += 1; return add.apply(this, each); };"
            "while (n < 3600) await new Promise(r => setTimeout(r, 50));"
            "return n;"
        )
        window.cdp("HeapProfiler.collectGarbage")
        after = window.run("return performance.memory.usedJSHeapSize")
        assert ticks >= 3600
        lengths = window.run("return Object.values(charts).flatMap(c => c.data.map(d => d.length))")
        assert set(lengths) == {600}
        assert after < before * 1.5
        gc.collect()
        assert psutil.Process().memory_info().rss - server_before < 16 << 20
        server.ask(f"/runs/{name}", method="DELETE")
        server.ended(name)


# --- look back, compare, share ---------------------------------------------------------------


def test_results_are_found_opened_compared_and_noted(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/#/results")
    window.until("document.querySelectorAll('tbody tr').length >= 3")
    text = window.run("return document.querySelector('table').innerText")
    assert "it was cut short" in text
    keep(window, "results")
    window.run("for (const p of ['a.json', 'b.json'])"
               " document.querySelector(`[aria-label=\"choose ${p}\"]`).click();")  # fmt: skip
    window.run("document.querySelector('[aria-label=\"note on a.json\"]').click()")
    window.until("document.querySelector('dialog[open]')")
    fill(window, "label", "<img src=x onerror=alert(1)>", "note")
    window.run("document.querySelector('dialog .first').click()")
    window.until("document.querySelector('table').innerText.includes('<img src=x')")
    assert window.run("return document.querySelectorAll('main img').length") == 0
    kept = json.loads((served.results / "a.notes.json").read_text())
    assert kept["label"] == "<img src=x onerror=alert(1)>"
    window.click("#compare")
    window.until("document.title.startsWith('KV-cache report')")
    assert "Side by side" in window.run("return document.body.innerText")


def test_a_trend_says_whether_the_latest_differs(served: Served, window: Browser) -> None:
    served.ask("/results?fresh=1")
    window.visit(f"{served.url}/#/trend/a.json")
    window.until("document.querySelector('#sentence')")
    assert "No difference was found" in window.run(
        "return document.querySelector('#sentence').textContent"
    )
    window.until("document.querySelector('canvas')")
    keep(window, "trend")


def test_a_trend_shows_the_run_with_which_storage_became_slower(
    window: Browser, tmp_path: Path
) -> None:
    write_months(tmp_path / "results", [3.0, 3.02, 2.99, 3.01, 2.98, 2.7, 2.71, 2.69])
    with serving(tmp_path) as server:
        server.ask("/results?fresh=1")
        window.visit(f"{server.url}/#/trend/day-01.json")
        window.until("document.querySelector('canvas')")
        text = window.run("return document.querySelector('#sentence').textContent")
        assert "slower" in text
        assert "with run 6 of 8" in text
        cells = "return [...document.querySelectorAll('tbody tr')].map(r => r.cells[5].textContent)"
        assert window.run(cells) == ["", "", "", "", "", "−10 %", "", ""]  # noqa: RUF001
        keep(window, "trend-of-months")


def test_a_shared_page_is_one_file_that_opens_from_the_disk(
    served: Served, window: Browser, tmp_path: Path
) -> None:
    served.ask("/results?fresh=1")
    _, html = served.ask("/page?result=a.json&save=1")
    file = tmp_path / "shared.html"
    file.write_bytes(html)
    window.open(file)
    assert window.run("return document.querySelectorAll('canvas').length") > 0


def test_two_drives_one_answer_without_the_terminal(
    served: Served, window: Browser, tmp_path: Path
) -> None:
    """The walk of docs/how-to/compare-in-the-browser.md; the two drives are one here."""
    values = {"config": "quick", **TINY, "run.duration_s": "10", "tiers.cpu_mem_gib": "0"}
    filled = "/".join(quote(f"{path}={text}", safe="") for path, text in values.items())
    for drive in ("drive-a", "drive-b"):
        window.visit("about:blank")
        window.visit(f"{served.url}/#/start/run/{filled}")
        window.until(READY)
        fill(window, "tiers.cache_dir", str(served.results.parent / drive))
        fill(window, "output.label", drive)
        window.until(f"document.querySelector('#line').textContent.includes('--label={drive}')")
        window.click("#plan")
        window.until("document.querySelector('#planned').textContent.includes('GiB free')")
        window.click("#go")
        served.ended(started(window))
        window.until("document.querySelector('#output')")
    window.visit(f"{served.url}/#/results")
    window.until("document.querySelectorAll('tbody tr').length >= 5")
    for drive in ("drive-a", "drive-b"):
        window.run(
            "const row = [...document.querySelectorAll('tbody tr')]"
            f".find(r => r.cells[2].innerText.trim() === '{drive}');"
            "row.querySelector('input').click();"
        )
    assert window.run("return document.querySelector('#compare').innerText").startswith("Compare 2")
    keep(window, "results-two")
    window.click("#compare")
    window.until("document.title.startsWith('KV-cache report')")
    answer = window.run("return document.querySelector('.lead').textContent")
    assert "storage read + write of B" in answer.replace("Storage", "storage")
    if KEPT:
        window.screenshot(Path(KEPT) / "compared.png")


# --- traces ----------------------------------------------------------------------------------


def test_a_trace_is_uploaded_and_looked_at(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/#/traces")
    window.until("document.querySelector('#trace')")
    text = (ROOT / "datasets/mooncake_sample.jsonl").read_text()
    window.run(
        f"const f = new File([{json.dumps(text)}], 'from-page.jsonl');"
        "const t = new DataTransfer(); t.items.add(f);"
        "document.querySelector('#trace').files = t.files;"
    )
    keep(window, "traces")
    window.click("#upload")
    name = started(window)
    window.until("document.querySelector('#output')?.textContent.includes('requests')")
    assert served.ask(f"/runs/{name}")[1]["results"][0]["kind"] == "trace-stats"


# --- for everybody ---------------------------------------------------------------------------

PAGES = ("start/run", "start/sim", "runs", "results", "trend/a.json", "traces", "token")
_UNNAMED = """
  const named = e => (e.labels && e.labels.length) || e.getAttribute('aria-label')
    || e.innerText?.trim();
  const kinds = ['button', 'input', 'select', 'textarea', 'a'].map(kind => `main ${kind}`);
  return [...document.querySelectorAll(kinds)]
    .filter(e => e.checkVisibility() && !named(e)).map(e => e.outerHTML.slice(0, 120));
"""
_DIM = """
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const page = e => { for (let at = e; at; at = at.parentElement) {
    const c = getComputedStyle(at).backgroundColor; if (rgb(c)[3] !== 0) return rgb(c); }
    return [255, 255, 255]; };
  const dim = [];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    const seen = e.checkVisibility({visibilityProperty: true});
    if (!text || !seen || e.closest('[disabled], noscript, .uplot, option')) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(page(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) dim.push([e.outerHTML.slice(0, 100), ratio]);
  }
  return dim;
"""


def open_page(window: Browser, address: str) -> None:
    """Open a page with all that it folds away."""
    window.visit(address)
    window.until("document.querySelector('main h2')")
    if "#/start" in address:
        window.until(READY)
    window.run("[...document.querySelectorAll('details')].forEach(d => d.open = true);"
               "await new Promise(r => setTimeout(r, 100));")  # fmt: skip


AXE = files("axe_core_python").joinpath("axe.min.js").read_text()
_SERIOUS = """
  const answer = await axe.run(document, {resultTypes: ["violations"]});
  return answer.violations.filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => [v.id, v.nodes.map(n => n.target.join(" ") + ": " + n.failureSummary)]);
"""


def serious(window: Browser) -> Any:
    """What axe-core has against a page that keeps somebody out."""
    return window.run(f"if (!window.axe) {{ {AXE} }} {_SERIOUS}")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_fits_a_phone_and_can_be_read_and_named(
    served: Served, window: Browser, page: str, dark: bool
) -> None:
    served.ask("/results?fresh=1")
    window.look(PHONE, dark=dark)
    open_page(window, f"{served.url}/#/{page}")
    assert window.run("return document.documentElement.scrollWidth") <= PHONE[0]
    assert window.run(_UNNAMED) == []
    assert window.run(_DIM) == []
    assert serious(window) == []
    if dark or KEPT:
        keep(window, f"phone-{re.sub('[^a-z]', '-', page)}-{'dark' if dark else 'light'}")
    window.look(DESKTOP, dark=dark)
    assert serious(window) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nobody_is_kept_out_of_a_run_nor_of_a_result(
    served: Served, window: Browser, size: tuple[int, int]
) -> None:
    going = served.start(**TINY, **{"run.duration_s": "600"})
    done = served.start("sim", scenario="single-node", preset="smoke")
    served.ended(done)
    for dark in (False, True):
        window.look(size, dark=dark)
        window.visit(f"{served.url}/#/run/{going}")
        window.until("window.charts?.rates?.data[0].length > 2")
        assert serious(window) == []
        window.visit(f"{served.url}/#/run/{done}")
        window.until("document.querySelector('.look')")
        window.run("[...document.querySelectorAll('details')].forEach(d => d.open = true)")
        window.until("document.querySelector('.look canvas')")
        assert serious(window) == []
        window.visit(f"{served.url}/page?result=a.json")
        assert serious(window) == []
    served.ask(f"/runs/{going}", method="DELETE")
    served.ended(going)


def test_a_run_is_started_with_the_keyboard_alone(served: Served, window: Browser) -> None:
    window.visit(f"{served.url}/#/start/config")
    window.until(READY)
    window.run("document.querySelector('.skip').focus()")
    for _ in range(40):
        if window.run("return document.activeElement.id") == "go":
            break
        window.press(TAB)
    focus: Any = window.run(
        "const e = document.activeElement; return [e.id, getComputedStyle(e).outlineStyle]"
    )
    assert focus == ["go", "solid"]
    window.press(ENTER)
    started(window)
    window.until("document.querySelector('#output')?.textContent.includes('num_users')")
