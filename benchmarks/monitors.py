"""What watching costs: the share of a core that one tick's work takes.

    python benchmarks/monitors.py [--ticks 200] [--tick 1.0] [--dir D]

A tick is what the run's main thread does at each: the machine is looked at (`sample`), and what
was collected is cut off and worked out into a window with percentiles (`take` and `read`), for
three tiers' reads and writes and three classes. Each part is timed in the thread's CPU time, in
turn with an empty one, whose time is taken off; the histograms are filled and the caches emptied in
between, outside the clock.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, share_of_a_core, table
from kv_cache.bench.counters import device_of
from kv_cache.bench.monitor import MachineMonitor
from kv_cache.core.block import content_key
from kv_cache.core.effect import CopyRef, IoChunk, Leg, OpDone, Read, Write
from kv_cache.core.kinds import Cause, OpKind, Outcome, Phase, Qos, Tier
from kv_cache.core.record import RequestRecord
from kv_cache.core.units import MIB, NS_PER_US
from kv_cache.metrics.slo import parse_slos
from kv_cache.metrics.window import Gauges, Meter

MOST_SHARE = 0.01
EACH = 50  # operations of each tier and kind in a window, and requests of each class
_CACHES = 32 * MIB
_KINDS = ((OpKind.READ, Read), (OpKind.WRITE, Write))
GAUGES = Gauges(
    users=100, workers=100, in_flight=50, queued=10, oldest_queued_ns=5, behind=0, submitted=0
)


def fill(meter: Meter, dice: np.random.Generator) -> None:
    """A second's operations and requests, of latencies from a microsecond to a second."""
    for tier in Tier:
        ref = CopyRef(1, content_key("monitors", 1), tier, MIB, 0)
        for kind, op in _KINDS:
            for ns in map(int, 10 ** dice.uniform(3, 9, EACH)):
                leg = Leg(tier, kind, "none", MIB, 0, ns, ns, (IoChunk(ns, MIB),))
                meter.op(OpDone(op(ref, Cause.REUSE), 0, ns, (leg,)))
    record = RequestRecord(
        request_id=1, user="u", conversation="c", turn=1, qos=Qos.BATCH, prompt_tokens=100,
        output_tokens=10, outcome=Outcome.COMPLETED, intended_ns=0, enqueued_ns=0,
    )  # fmt: skip
    for qos in Qos:
        for ns in map(int, 10 ** dice.uniform(6, 10, EACH)):
            meter.request(
                replace(record, qos=qos, started_ns=0, first_token_ns=ns // 2, finished_ns=ns)
            )


def costs(ticks: int, device: str | None) -> dict[str, list[float]]:
    """CPU time of each part of each tick, in microseconds."""
    monitor = MachineMonitor([device] if device else [])
    meter = Meter(parse_slos("interactive:p95<50ms,responsive:p95<200ms"))
    dice, caches = np.random.default_rng(1), np.zeros(_CACHES, np.uint8)
    parts: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "sample": monitor.sample,
        "take and read": lambda: meter.read(meter.take(1), Phase.MEASURE, GAUGES),
    }
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(ticks):
        fill(meter, dice)
        for name, part in parts.items():
            caches += 1
            began_ns = time.thread_time_ns()
            part()
            taken[name].append((time.thread_time_ns() - began_ns) / NS_PER_US)
    empty = statistics.median(taken.pop("nothing"))
    return {name: [max(0.0, us - empty) for us in values] for name, values in taken.items()}


def tell(ticks: int, tick_s: float, directory: Path) -> Figure:
    device = device_of(directory)
    taken = costs(ticks, device)
    taken["together"] = [sum(each) for each in zip(*taken.values(), strict=True)]
    print(f"CPU time of one tick in us, {ticks} ticks, device {device or 'none'}")
    return share_of_a_core(
        taken, "together", tick_s, MOST_SHARE, number="9",
        what=f"monitors, share of a core at a tick of {tick_s:g} s",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--tick", type=float, default=1.0, help="seconds between two")
    parser.add_argument(
        "--dir", type=Path, default=Path.cwd(), help="on the device that is watched"
    )
    options = parser.parse_args()
    print(table([tell(options.ticks, options.tick, options.dir)]))


if __name__ == "__main__":
    main()
