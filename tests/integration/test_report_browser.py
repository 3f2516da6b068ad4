"""The HTML report in a real Chromium: it opens without a complaint, is drawn, and can be used.

`KV_CACHE_SCREENSHOTS=DIR` keeps screenshots for people to look at, of all four looks.
"""

import os
import sys
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from kv_cache.view.page import page
from tests import browser, reports, trials
from tests.browser import DESKTOP, PHONE, Browser

pytestmark = pytest.mark.skipif(browser.MISSING is not None, reason=browser.MISSING or "")

KEPT = os.environ.get("KV_CACHE_SCREENSHOTS")
EACH = {
    "run": [reports.run(120)],
    "capacity": [reports.capacity()],
    "trials": [trials.of([trials.result(seed, 1e9 + 1e7 * seed) for seed in range(1, 4)])],
    "precondition": [reports.precondition()],
    "ranks": [reports.ranks()],
    "sweep": [reports.sweep()],
    "several": [reports.run(20), reports.run(30, seed=3, window_s=12.0)],
}
_SHOWS_INK = """
  const seen = [...document.querySelectorAll('.plot canvas')].map(c => {
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    const colours = new Set();
    for (let i = 0; i < d.length && colours.size < 9; i += 4)
      if (d[i + 3] > 200) colours.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
    return colours.size; });
  return seen;
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    kept = Path(KEPT or tmp_path / "shots")
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def saved(tmp_path: Path, documents: list[Any], name: str = "R") -> Path:
    target = tmp_path / "page.html"
    target.write_text(page(documents, [f"{name}{n}.json" for n in range(len(documents))]))
    return target


def charts(window: Browser) -> Any:
    return window.run("return document.querySelectorAll('.plot').length")


@pytest.mark.parametrize("name", EACH)
def test_a_page_is_drawn_at_both_sizes_in_light_and_dark_without_a_complaint(
    window: Browser, tmp_path: Path, shots: Path, name: str
) -> None:
    file = saved(tmp_path, EACH[name])
    looks = product((DESKTOP, PHONE), (False, True))
    for size, dark in looks if KEPT else ((DESKTOP, False), (PHONE, True)):
        window.look(size, dark=dark)
        window.open(file)
        kind = f"{'desktop' if size == DESKTOP else 'phone'}-{'dark' if dark else 'light'}"
        window.through()
        if KEPT:
            window.screenshot(shots / f"{name}-{kind}.png", whole=True)
        inks = window.run(_SHOWS_INK)
        assert len(inks) == charts(window)
        assert all(colours > 3 for colours in inks), "each chart has axes and lines"
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
        assert window.run("return performance.getEntriesByType('resource').length") == 0
        assert window.complaints() == []


_MOVES = (
    *(("gpu", op, cause, 4.321) for op, cause in (("write", "prefill"), ("read", "reuse"))),
    *(("gpu", op, cause, 3.211) for op, cause in (("read", "demotion"), ("write", "promotion"))),
    *(("cpu", op, "demotion", 1.111) for op in ("write", "read")),
    *(("cpu", op, "promotion", 1.234) for op in ("write", "read")),
    *(("cpu", op, cause, 0.1234) for op, cause in (("write", "prefill"), ("read", "reuse"))),
    *(
        ("storage", op, cause, 3.211)
        for op, cause in (("write", "demotion"), ("read", "promotion"))
    ),
    *(("storage", "read", cause, 9.876) for cause in ("reuse", "decode")),
    ("storage", "write", "prefill", 12.34),
    ("storage", "delete", "eviction", 0.0),
)
"""Every way between three tiers, past the middle one too."""


def test_nothing_in_the_picture_of_the_tiers_covers_another_or_is_cut_off(
    window: Browser, tmp_path: Path, shots: Path
) -> None:
    rows = [reports.operation(*move) for move in _MOVES]
    file = saved(tmp_path, [reports.run(5, operations=rows)])
    for size in (DESKTOP, PHONE):
        window.look(size)
        window.open(file)
        window.run("document.querySelector('.flow').scrollIntoView()")
        window.screenshot(shots / f"flow-{size[0]}.png")
        boxes = window.run(
            "return [...document.querySelectorAll('.flow text')].map(t => {"
            " const b = t.getBoundingClientRect();"
            " return [t.textContent, b.left, b.top, b.right, b.bottom]; })"
        )
        frame = window.run(
            "const b = document.querySelector('.flow svg').getBoundingClientRect();"
            "return [b.left, b.top, b.right, b.bottom]"
        )
        assert len([text for text, *_ in boxes if "promotion" in text or "demotion" in text]) == 6
        for text, left, top, right, bottom in boxes:
            assert frame[0] <= left < right <= frame[2], text
            assert frame[1] <= top < bottom <= frame[3], text
        for (one, *a), (other, *b) in combinations(boxes, 2):
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 3 or b[3] <= a[1] + 3
            assert apart, (one, other)


def test_tab_reaches_links_charts_their_lines_and_tables_in_the_order_of_the_page(
    window: Browser, tmp_path: Path
) -> None:
    window.look(DESKTOP)
    window.open(saved(tmp_path, [reports.run(5)]))
    seen: list[tuple[str, float]] = []
    for _ in range(24):
        window.press("\ue004")
        seen.append(
            tuple(
                window.run(
                    "const e = document.activeElement, b = e.getBoundingClientRect();"
                    "return [e.className || e.tagName, b.top + scrollY]"
                )
            )
        )
    kinds = [kind for kind, _ in seen]
    assert kinds[0] == "skip"
    assert {"A", "BUTTON", "plot", "SUMMARY"} <= set(kinds)
    assert window.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    first = kinds.index("plot")
    assert kinds[first - 1] == "BUTTON"  # the lines of the chart stand before it
    assert kinds[first + 1] == "SUMMARY"  # and its table behind it


def test_the_page_of_an_hour_opens_without_a_complaint(
    window: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, [reports.run(3600, operations=EACH["run"][0]["kv_cache"]["operations"])])
    window.look(DESKTOP)
    seconds = window.open(file)
    with capsys.disabled():  # told, and not asserted: it is the machine's as much as the page's
        sys.stdout.write(f"[{file.stat().st_size / 1e6:.2f} MB open in {seconds:.2f} s] ")
    drawn = window.run("return document.querySelectorAll('.plot canvas').length")
    assert 0 < drawn < charts(window), "what is far below is drawn when it comes into sight"
    assert window.complaints() == []


def test_links_tables_and_lines_can_be_clicked(window: Browser, tmp_path: Path) -> None:
    window.look(DESKTOP)
    window.open(saved(tmp_path, EACH["run"]))
    for number in range(window.run("return document.querySelectorAll('nav a').length")):
        window.run("scrollTo(0, 0)")
        window.click("nav a", number)
        assert window.run(
            "return document.querySelector(location.hash).getBoundingClientRect().top < innerHeight"
        )
    window.click("figure summary")
    assert window.run("return document.querySelector('figure table').offsetHeight") > 100
    window.click(".keys button")
    assert (
        window.run("return document.querySelector('.keys button').getAttribute('aria-pressed')")
        == "false"
    )
    assert window.complaints() == []


def test_a_chart_can_be_read_and_zoomed_by_keys(window: Browser, tmp_path: Path) -> None:
    window.look(DESKTOP)
    window.open(saved(tmp_path, EACH["run"]))
    window.run("document.querySelector('.plot').focus()")
    window.press("\ue012")  # left arrow: the last point
    said = window.run("return document.querySelector('.readout').textContent")
    assert said.startswith("2:00: read ")
    assert said.endswith(" GiB/s")
    window.press("\ue011")  # home
    assert window.run("return document.querySelector('.keys').dataset.at") == "0:01"
    everything = "return [...document.querySelectorAll('.whole')].filter(b => !b.hidden).length"
    window.press("+")
    assert window.run(everything) > 5, "all charts over the same time zoom together"
    window.press("0")
    assert window.run(everything) == 0
    assert window.complaints() == []


def test_dragging_zooms_and_a_button_shows_everything_again(
    window: Browser, tmp_path: Path
) -> None:
    window.look(DESKTOP)
    window.open(saved(tmp_path, EACH["run"]))
    window.drag(".plot .u-over", 0.3, 0.6)
    assert not window.run("return document.querySelector('.whole').hidden")
    window.click(".whole")
    assert window.run("return document.querySelector('.whole').hidden")
    assert window.complaints() == []


def test_markup_in_names_does_nothing(window: Browser, tmp_path: Path) -> None:
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    own = reports.run(20)["kv_cache"]
    own = {**own, "model": {"name": attack}, "notes": [attack], "environment": {attack: attack},
           "workload": {"files": [attack], "format": attack, "rows": 1}}  # fmt: skip
    window.look(DESKTOP)
    window.open(saved(tmp_path, [{"kv_cache": own}] * 2, attack))
    assert window.run("return document.title").startswith("KV-cache report: <script>")
    assert window.run("return document.images.length") == 0
    assert window.complaints() == []


def test_the_policy_stops_what_would_have_got_past_the_escaping(
    window: Browser, tmp_path: Path
) -> None:
    file = saved(tmp_path, EACH["run"])
    got_past = (
        "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x.png'>"
        "<p id=styled style='color: red' onclick='1'>"
    )
    file.write_text(file.read_text().replace('<main id="report">', f'<main id="report">{got_past}'))
    window.open(file)
    assert "owned" not in window.run("return document.title")
    assert window.run("return getComputedStyle(styled).color") != "rgb(255, 0, 0)"
    told = window.complaints()
    assert sum("Content Security Policy" in each for each in told) >= 3, told
    assert window.run("return document.querySelectorAll('.plot canvas').length") > 0


def test_the_page_is_readable_without_its_script(window: Browser, tmp_path: Path) -> None:
    window.look(PHONE)
    window.cdp("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        window.load(saved(tmp_path, EACH["run"]))
    finally:
        window.cdp("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "Charts need a script" in window.run("return document.body.innerText")
    assert window.run("return document.querySelectorAll('figure table').length") > 10


def test_it_prints_with_all_its_charts(window: Browser, tmp_path: Path) -> None:
    window.look(DESKTOP, dark=True)
    window.open(saved(tmp_path, EACH["run"]))
    made = window.pdf(tmp_path / "page.pdf").read_bytes()
    assert made.startswith(b"%PDF")
    drawn = window.run("return document.querySelectorAll('.plot canvas').length")
    assert drawn == charts(window), "what had not come into sight was drawn for the paper"
    assert window.complaints() == []
