"""What the page on three simulators says of S1's stress test: its two scenarios and S1's own twenty
requests give the page's figures of ours. S1's columns are what its program printed."""

import re
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.sim import SimOptions, sim
from tests.traces import ROOT

PAGE = ROOT / "docs" / "explanation" / "three-simulators.md"
WAVES = {
    0: [(500, 200), (400, 150), (600, 250), (300, 100)],
    5: [(450, 180), (350, 120)],
    10: [(500, 200), (400, 160)],
    100: [(300, 100), (550, 220)],
    150: [(400, 150), (350, 130)],
    200: [(450, 170), (500, 200)],
    400: [(600, 300), (700, 350)],
    500: [(550, 250), (500, 200)],
    600: [(400, 150), (450, 180)],
}
"""Prompt and answer of each request of jackwang1216/kv_cache_sim's data/phase8_trace.txt (commit
9830b7d), by the ms at which it arrives."""


@pytest.fixture
def section() -> str:
    _, _, behind = PAGE.read_text().partition("\n## phase8 (S1)\n")
    return behind.partition("\n## ")[0]


def numbers(section: str, head: str) -> list[float]:
    """The numbers of a row behind its name, of both tables one after the other."""
    lines = re.findall(rf"^\| {re.escape(head)} \|(.*)\|$", section, re.MULTILINE)
    cells = (cell.strip().replace(",", "") for line in lines for cell in line.split("|"))
    return [float(cell) for cell in cells if cell]


def simulated(place: Path, scenario: str, longer: int = 0) -> Any:
    """The facts of one run; each answer has so many tokens more."""
    requests = [(at, *tokens) for at, wave in WAVES.items() for tokens in wave]
    lines = [
        f"r{number:02} {at} {prompt} {answer + longer} 0\n"
        for number, (at, prompt, answer) in enumerate(requests, 1)
    ]
    (place / "phase8_trace.txt").write_text("".join(lines))
    (place / "phase8.yaml").write_text(scenario)
    result = sim(SimOptions(scenario=str(place / "phase8.yaml")))
    assert result is not None
    return result.document["kv_cache"]["variants"][0]["runs"][0]["facts"]


def test_its_twenty_requests_end_on_one_and_on_two_gpus_as_the_page_says(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    alone, longer = simulated(tmp_path, one), simulated(tmp_path, one, longer=1)
    both = simulated(tmp_path, two)
    runs = (alone, longer, both)
    ended = [facts["ended_ns"] / 1e6 for facts in runs]
    assert numbers(section, "the last ends, ms") == pytest.approx(
        [13_975.00, ended[0], ended[1], 6_520.93, ended[2], 9_325.00], abs=0.0051
    )
    assert ended[1] == pytest.approx(13_975.00, abs=0.001), "S1's to the microsecond"
    p50 = [facts["e2e_ms"]["p50"] for facts in runs]
    shown = numbers(section, "latency p50, ms")
    assert shown[:3] == pytest.approx([6_325.00, p50[0], p50[1]], abs=0.0051)
    assert shown[3:] == pytest.approx([3_104, p50[2]], abs=0.51)
    rate = both["rates"]["output_tokens_per_s"]
    tokens = numbers(section, "output tokens a second")
    assert tokens == pytest.approx([576.6, rate, 403.2], abs=0.051)
    queue, moved = both["requests"]["longest_central_queue"], both["requests"]["handoffs"]
    assert numbers(section, "longest queue of the cluster") == [11, queue]
    assert numbers(section, "hand-overs") == [6, moved]


def test_two_gpus_take_at_least_what_the_page_says(section: str) -> None:
    """Its tokens at the rates of both."""
    pairs = [tokens for wave in WAVES.values() for tokens in wave]
    prompts, answers = (sum(each) for each in zip(*pairs, strict=True))
    assert f"{prompts:,} prompt tokens" in section
    assert f"{answers:,} answer tokens" in section
    least_s = prompts / (1200 + 800) + answers / (480 + 320)
    assert f"{least_s * 1e3:,.2f}" == "9,325.00"
