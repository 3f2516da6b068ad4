"""The client's own ceiling: the very workload of a run, on storage that takes no time.

Everything else stays as it is: decisions, locks, threads, buffers, stamping, verification, the
memory tiers. What holds the load back is taken away: think times, arrival instants, generation.
The rate that is reached is what this client could ever have measured.

As time passes less of each object is moved, by the same operations: what an operation costs and
what its bytes cost come apart.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan, Together
from kv_cache.cache.limits import TierSpec
from kv_cache.config.build import Load
from kv_cache.config.root import Config
from kv_cache.config.schema import overlay
from kv_cache.core.callbacks import ignore
from kv_cache.core.kinds import OpKind, Phase, Tier
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.ceiling import CeilingPoint, smaller_sizes
from kv_cache.metrics.evidence import OBJECT_ENGINES
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.window import Window
from kv_cache.tiers.nvme import ENGINES

_WARM = 0.2  # of the time, while memory fills
_STEPS = (0.5, 0.75)  # of the rest: the run's own size is what the ratio comes from
_MOVES = ((Tier.NVME, OpKind.READ), (Tier.NVME, OpKind.WRITE))
_WINDOWS = 20  # so many in all; the first of each size is left out


def ceiling(
    config: Config,
    build: Callable[[Config], Load],
    specs: tuple[TierSpec, ...],
    seed: int,
    measured: RunOutcome,
    stop: threading.Event,
    together: Together | None = None,
) -> Sequence[CeilingPoint] | None:
    """Measure the ceiling, at the size of the run's objects and below it; None if it was stopped,
    or moved nothing. Takes `passport.certify_s` and what populating takes
    without I/O. Ranks that run `together` do so here too: what one can do alone, on cores that it
    shares, none could have measured."""
    unpaced = _unpaced(config, measured)
    plan = RunPlan(unpaced, build(unpaced), specs, seed, rehearse=True)
    curve = Curve((1 - _WARM) * config.passport.certify_s)
    with open_run(plan, stop, RunHooks(watch=curve.watch, together=together)) as run:
        curve.move_less = run.move_less
        outcome = run.execute(ignore)
    if stop.is_set() or outcome.death is not None:
        return None
    return curve.points() or _whole(outcome)


def _whole(outcome: RunOutcome) -> Sequence[CeilingPoint] | None:
    """Return the one point of a rehearsal that was over before its first window: where threads
    keep the interpreter for milliseconds, who looks at the machine comes too late."""
    rows = outcome.recorder.flows.items()
    flows = [f for at, f in rows if at.phase is Phase.MEASURE and (at.tier, at.kind) in _MOVES]
    cpu_ns = outcome.kernel.get("window", {}).get("process_cpu_ns")
    if outcome.window_s <= 0 or cpu_ns is None or not flows:
        return None
    point = CeilingPoint(
        seconds=outcome.window_s,
        operations=sum(flow.operations for flow in flows),
        bytes=sum(flow.bytes for flow in flows),
        cpu_s=cpu_ns / NS_PER_S,
    )
    return [point]


class Curve:
    """Takes the windows of a rehearsal of `length_s`, and makes its objects smaller."""

    def __init__(self, length_s: float) -> None:
        self._due_s = [share * length_s for share in _STEPS]
        self._passed_s = 0.0
        self._parts: list[list[Window]] = [[]]
        self.move_less: Callable[[float], None] = ignore

    def watch(self, window: Window) -> bool:
        part, number = self._parts[-1], len(self._parts)
        part.append(window)
        self._passed_s += window.seconds
        nbytes = _point(self._parts[0]).object_bytes
        sizes = [] if nbytes is None else smaller_sizes(nbytes)
        late = self._passed_s + window.seconds / 2 > self._due_s[min(number, len(_STEPS)) - 1]
        if nbytes and number <= len(sizes) and late:
            self._parts.append([])
            self.move_less(sizes[number - 1] / nbytes)
        return False

    def points(self) -> list[CeilingPoint] | None:
        """Return a point for each size that had a window; None if none had."""
        return [_point(part) for part in self._parts if part] or None


def _point(windows: Sequence[Window]) -> CeilingPoint:
    """Add windows up; operations of the first may have begun before it."""
    windows = windows[1:] or windows
    ops = [window.ops[key] for window in windows for key in _MOVES if key in window.ops]
    return CeilingPoint(
        seconds=sum(window.seconds for window in windows),
        operations=sum(each.operations for each in ops),
        bytes=sum(each.bytes for each in ops),
        cpu_s=sum(window.machine["process_cores"] * window.seconds for window in windows),
    )


def _unpaced(config: Config, measured: RunOutcome) -> Config:
    """Return the configuration of the same work, done as fast as possible."""
    at_once = {"think_time_range": [0, 0]}
    certify_s = config.passport.certify_s
    changes = {
        "run": {
            "duration_s": (1 - _WARM) * certify_s, "warmup_s": _WARM * certify_s, "drain_s": 2.0,
            "until": None, "max_requests": 0, "generation_mode": "none",
        },
        "tiers": {"cache_dir": None, "erase_device": None, "keep_cache": False},
        "io": _engines(measured),
        "semantics": {"prefill_ms_per_token": 0.0},
        "arrival": {"mode": "closed", "request_rate": 0.0, "process": "fixed"},
        "workload": {"trace_speedup": 0.0, "replay_cycles": 0},
        "autoscaler": {"enabled": False},
        "monitor": {"tick_s": max(0.05, certify_s / _WINDOWS)},
        "precondition": {"enabled": False},
        "user_templates": dict.fromkeys(("chatbot", "coding", "document"), at_once),
        "passport": {"settle_s": 0.0},  # no device will ever have moved these bytes
    }  # fmt: skip
    return overlay(config, changes)


def _engines(measured: RunOutcome) -> Mapping[str, str]:
    """Return the engines that really moved the bytes; an object store's are moved in Python."""
    stores = [facts.store for facts in measured.tiers if facts.tier is Tier.NVME]
    names = {name: stores[0].get(name) for name in ("engine", "write_engine")} if stores else {}
    names = {k: "buffered" if name in OBJECT_ENGINES else name for k, name in names.items()}
    return {name: engine for name, engine in names.items() if engine in ENGINES.ours}
