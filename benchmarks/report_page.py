"""The page of a one-hour run with a one-second tick: how large it is, and how soon it opens.

    python benchmarks/report_page.py [--quick] [--openings N] [--keep DIR]

The hour is a run in virtual time, so that it takes seconds: three tiers, three QoS classes, and a
window for each second, as a real run has them. The page is opened in a real Chromium without a
screen (Debian: chromium and chromium-driver), each time in a browser of its own, at the size of a
desktop: from asking for the page until all of it was read and the first charts were drawn. Then it
is scrolled from top to bottom, so that every chart is drawn, and what the console said and what was
asked of the network is counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, finish
from kv_cache.view.page import page
from tests.browser import DESKTOP, MISSING, Browser

ROOT = Path(__file__).resolve().parents[1]
HOUR_S, QUICK_S = 3600, 600
MOST_MB, MOST_S = 3.0, 2.0
OPENINGS = 5
_FIRST_CHART = """
  const canvas = document.querySelector('.plot canvas');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.some((value, index) => index % 4 == 3 && value > 0);
"""
_TO_THE_END = """
  for (let y = 0; y < document.body.scrollHeight; y += 500) {
    scrollTo(0, y); await new Promise(done => requestAnimationFrame(done)); }
  await new Promise(done => setTimeout(done, 300));
  return [document.querySelectorAll('.plot').length,
          document.querySelectorAll('.plot canvas').length,
          performance.getEntriesByType('resource').length];
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What one browser saw of the page."""

    seconds: float
    complaints: Sequence[str]
    charts: int
    drawn: int
    requests: int


def hour(place: Path, seconds: int) -> Path:
    """The result of a run of so many seconds, made in virtual time."""
    result = place / "hour.json"
    command = [
        sys.executable, str(ROOT / "kv-cache.py"), "run", "--virtual-time", "--model=tiny-1b",
        "--gpu-mem-gb=0.125", "--cpu-mem-gb=0.25", "--storage-capacity-gb=4", "--seed=7",
        "--generation-mode=none", "--arrival=poisson", "--request-rate=3", "--num-users=24",
        f"--duration={seconds}", "--warmup=20", "--no-progress", f"--output={result}",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return result


def opened(file: Path, home: Path) -> Opened:
    """In a browser that has seen nothing before. Raises AssertionError if nothing was drawn."""
    with Browser(home) as window:
        window.look(DESKTOP)
        seconds = window.open(file)
        assert window.run(_FIRST_CHART) is True, "the first chart is empty"
        charts, drawn, requests = window.run(_TO_THE_END)
        return Opened(
            seconds=seconds, complaints=window.complaints(), charts=charts, drawn=drawn,
            requests=requests,
        )  # fmt: skip


def figures(*, quick: bool, openings: int = OPENINGS, keep: Path | None = None) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="kv-page-") as scratch:
        place = keep or Path(scratch)
        result = hour(place, QUICK_S if quick else HOUR_S)
        document = json.loads(result.read_bytes())
        file = place / "hour.html"
        file.write_text(page([document], [result.name]), encoding="utf-8")
        windows = len(document["kv_cache"]["series"]["windows"])
        megabytes = file.stat().st_size / 1e6
        size = Figure(
            number="13", what=f"the page of {windows:,} windows, size", wanted=f"< {MOST_MB:g} MB",
            seen=f"{megabytes:.2f} MB (of a result of {result.stat().st_size / 1e6:.1f} MB)",
            met=megabytes < MOST_MB,
        )  # fmt: skip
        return [size, *_seen(file, Path(scratch), openings)]


def _seen(file: Path, scratch: Path, openings: int) -> Iterator[Figure]:
    if MISSING is not None:
        yield Figure(number="13", what="opening it", wanted=f"< {MOST_S:g} s", seen=MISSING,
                     met=False)  # fmt: skip
        return
    found = []
    for number in range(openings):
        (home := scratch / f"browser{number}").mkdir()
        found.append(opened(file, home))
        print(f"open in {found[-1].seconds:.2f} s", flush=True)
    seconds = [each.seconds for each in found]
    middle = statistics.median(seconds)
    yield Figure(
        number="13", what="opening it, to the first charts (median)", wanted=f"< {MOST_S:g} s",
        seen=f"{middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})", met=middle < MOST_S,
    )  # fmt: skip
    said = sum(len(each.complaints) for each in found)
    asked = max(each.requests for each in found)
    yield Figure(
        number="13", what="complaints on the console; requests", wanted="0; 0",
        seen=f"{said}; {asked}", met=said == asked == 0,
    )  # fmt: skip
    first = found[0]
    yield Figure(
        number="13", what="charts drawn when scrolled through", wanted=f"all {first.charts}",
        seen=str(min(each.drawn for each in found)),
        met=all(each.drawn == each.charts > 0 for each in found),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="ten minutes in place of an hour")
    parser.add_argument("--openings", type=int, default=OPENINGS, help="browsers that open it")
    parser.add_argument("--keep", type=Path, help="leave the result and the page here")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    finish(figures(quick=options.quick, openings=options.openings, keep=options.keep))


if __name__ == "__main__":
    main()
