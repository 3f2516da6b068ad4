"""How far a run has come, for those that watch it; its phases alone write it."""

from collections.abc import Sequence

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.config.build import build_control, build_intake, build_world, endless
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.signals import Signals
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.recorder import Edges, Recorder
from kv_cache.metrics.steady import Round
from kv_cache.metrics.summary import Flows
from kv_cache.metrics.window import Totals, Window


class RunState:
    def __init__(self, plan: RunPlan, hooks: RunHooks) -> None:
        config = plan.config
        self.clock = MonotonicClock()
        self.phase = "starting"
        self.signals = Signals()
        self.meter, self.control = build_control(config, plan.slos, hooks.watch)
        self.meter.on_latencies = hooks.on_latencies
        self.recorder = Recorder(Edges(), self.meter)
        self.intake = self.serving = build_intake(config, plan.load, hooks.on_arrival)
        """That of the measured load, and the one that is served now."""
        self.rounds_intake = (
            None if plan.rounds is None else build_intake(endless(config), plan.rounds)
        )
        self.latest: Window | None = None
        self.rounds: Sequence[Round] = ()
        self.world = build_world(config, plan.specs, self.signals)

    @property
    def totals(self) -> Totals:
        """Requests up to the latest window."""
        return self.meter.totals

    def storage_bytes(self, kind: OpKind) -> int:
        """Sum the bytes moved so far, in all phases; read without the driver's lock."""
        return Flows(dict(self.recorder.flows)).all_bytes(Tier.NVME, kind)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the measured window so far."""
        edges = self.recorder.edges
        return max(0, self.clock.now_ns() - edges.measure_start_ns) / NS_PER_S
