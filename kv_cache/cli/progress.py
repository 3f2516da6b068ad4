"""What a person sees of a run that goes on: one line on stderr, off where nobody looks."""

import sys
from shutil import get_terminal_size
from typing import Any

from tqdm import tqdm

from kv_cache.bench.run import RealRun
from kv_cache.config.root import Config
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import GIB, ns_to_ms
from kv_cache.metrics.window import Window
from kv_cache.schedule.saturation import storage_p95_ns


def bar_for(config: Config, **options: Any) -> "tqdm[Any]":
    """A progress bar, off where nobody looks."""
    quiet = not (config.output.progress and sys.stderr.isatty())
    width = get_terminal_size((100, 24)).columns  # some terminals say 0, which tqdm would believe
    return tqdm(disable=quiet, leave=False, ncols=width, **options)


def to(bar: "tqdm[Any]", done: int) -> None:
    """The bar at so much."""
    bar.update(done - bar.n)


class Progress:
    """One line on stderr: the phase, how far it is, and what storage does right now."""

    def __init__(self, config: Config, prefix: str = "") -> None:
        self._prefix = prefix
        self._window_s = config.window_s()
        self._requests = config.run.max_requests or None
        self._bar = bar_for(config, bar_format="{bar:24} {desc}", total=1.0)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def tick(self, run: RealRun) -> None:
        if self._bar.disable:
            return
        self._bar.n = self._share(run)
        behind = run.world.behind.holders
        parts = [
            *([self._prefix] if self._prefix else []),
            f"{run.phase:<8} {run.elapsed_s:5.1f} s",
            f"{run.recorder.all.completed} done",
            f"{run.serving.in_flight} running",
            f"{run.serving.queued} queued",
            *([f"{behind} behind"] if behind else []),
            *([] if run.latest is None else _now(run.latest)),
            *([f"round {len(run.rounds) + 1}"] if run.phase == "precondition" else []),
        ]
        self._bar.set_description_str("  ".join(parts), refresh=True)

    def _share(self, run: RealRun) -> float:
        shares = [0.0]
        if self._window_s is not None:
            shares.append(run.elapsed_s / self._window_s)
        if self._requests is not None:
            shares.append((run.intake.submitted - run.intake.in_flight) / self._requests)
        return min(1.0, max(shares))


def _now(window: Window) -> list[str]:
    """The last window, as far as a line has room."""
    seconds = max(window.seconds, 1e-9)
    told = []
    for kind in (OpKind.READ, OpKind.WRITE):
        p95_ns = storage_p95_ns(window, kind)
        late = "" if p95_ns is None else f" (p95 {ns_to_ms(p95_ns):.0f} ms)"
        told.append(f"{kind} {window.storage_bytes(kind) / seconds / GIB:.2f} GiB/s{late}")
    if window.gauges.users is not None:
        told.append(f"{window.gauges.users} users")
    if window.saturation is not None:
        told.append(f"saturation {window.saturation.level:.2f}")
    return told
