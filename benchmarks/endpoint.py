"""What being scraped costs: the share of a core that `--metrics-port` takes.

    python benchmarks/endpoint.py [--scrapes 200] [--every 1.0]

Nothing is done unless somebody asks. A scrape is timed whole, in the CPU time of the process: a
client's HTTP request included, which in earnest is another machine's. The recorder is that of a
run that has had every tier, operation, cause and phase, which is more than any run has. Beside it
stands the time that the text alone takes, as the median of as many looks.
"""

import argparse
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import monitors
from benchmarks.figures import Figure, share_of_a_core, table
from kv_cache.bench import endpoint
from kv_cache.core.kinds import Cause, OpKind, Phase, Tier
from kv_cache.core.units import NS_PER_US
from kv_cache.metrics.exposition import exposition, measured
from kv_cache.metrics.recorder import Edges, Flow, OpStats, Recorder
from kv_cache.metrics.window import Meter

MOST_SHARE = 0.02  # of a core, at a scrape each second
EACH = 50  # operations of each flow


def full() -> Callable[[], str]:
    """What is told of a recorder that has had everything."""
    meter, dice = Meter(), np.random.default_rng(1)
    recorder = Recorder(Edges(), meter)
    for phase in Phase:
        for tier in Tier:
            for kind in OpKind:
                for cause in Cause:
                    recorder.flows[Flow(phase, tier, kind, cause, "direct")] = _stats(dice)
    monitors.fill(meter, dice)
    window = meter.read(meter.take(1), Phase.MEASURE, monitors.GAUGES)
    return lambda: exposition(measured(recorder, meter.totals, window))


def _stats(dice: np.random.Generator) -> OpStats:
    stats = OpStats(operations=EACH)
    for ns in map(int, 10 ** dice.uniform(3, 9, EACH)):
        stats.total.add(ns)
        stats.device.add(ns)
    return stats


def costs(scrapes: int) -> tuple[dict[str, list[float]], int]:
    """CPU time of the text and of whole scrapes in us, and the text's length in bytes."""
    tells = full()
    taken: dict[str, list[float]] = {"text": [], "scrape": []}
    with endpoint.Endpoint("127.0.0.1", 0, tells) as served:
        for _ in range(scrapes):
            taken["text"].append(_timed(tells))
            time.sleep(endpoint.FRESH_S)  # else the text before is told again
            taken["scrape"].append(_timed(lambda: urllib.request.urlopen(served.url).read()))
    return taken, len(tells().encode())


def _timed(part: Callable[[], object]) -> float:
    began_ns = time.process_time_ns()
    part()
    return (time.process_time_ns() - began_ns) / NS_PER_US


def tell(scrapes: int, every_s: float) -> Figure:
    taken, size = costs(scrapes)
    print(f"CPU time of a scrape in us, {scrapes} scrapes of {size} bytes")
    return share_of_a_core(
        taken, "scrape", every_s, MOST_SHARE, number="-",
        what=f"metrics, share of a core at a scrape every {every_s:g} s",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two")
    options = parser.parse_args()
    print(table([tell(options.scrapes, options.every)]))


if __name__ == "__main__":
    main()
