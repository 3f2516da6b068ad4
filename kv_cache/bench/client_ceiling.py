"""The client's own ceiling: the very workload of a run, on storage that takes no time.

Everything else stays as it is: decisions, locks, threads, buffers, stamping, verification, the
memory tiers. What holds the load back is taken away: think times, arrival instants, generation.
The rate that is reached is what this client could ever have measured.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunPlan
from kv_cache.cache.limits import TierSpec
from kv_cache.config.build import Load
from kv_cache.config.root import Config
from kv_cache.config.schema import overlay
from kv_cache.core.callbacks import ignore
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.summary import Flows, per_second, total_bytes, total_operations

_KINDS = (OpKind.READ, OpKind.WRITE)


def ceiling(
    config: Config,
    build: Callable[[Config], Load],
    specs: tuple[TierSpec, ...],
    seed: int,
    measured: RunOutcome,
    stop: threading.Event,
) -> Mapping[str, Any] | None:
    """Measure the section `client.ceiling` of the evidence; None if it was stopped. Takes
    `passport.certify_s` and what populating takes without I/O."""
    unpaced = _unpaced(config)
    plan = RunPlan(unpaced, build(unpaced), specs, seed, rehearse=True)
    with open_run(plan, stop) as run:
        outcome = run.execute(ignore)
    if stop.is_set() or outcome.death is not None:
        return None
    most, ours = _rates(outcome), _rates(measured)
    reached = ours["bytes_per_second"]
    return {
        **most,
        **{f"measured_{name}": rate for name, rate in ours.items()},
        "ratio": most["bytes_per_second"] / reached if reached else None,
    }


def _rates(outcome: RunOutcome) -> dict[str, float]:
    flows = Flows(outcome.recorder.flows)
    stats = [s for kind in _KINDS for s in flows.measured(Tier.NVME, kind)]
    return {
        "bytes_per_second": per_second(total_bytes(stats), outcome.window_s),
        "operations_per_second": per_second(total_operations(stats), outcome.window_s),
    }


def _unpaced(config: Config) -> Config:
    """Return the configuration of the same work, done as fast as possible."""
    at_once = {"think_time_range": [0, 0]}
    changes = {
        "run": {
            "duration_s": config.passport.certify_s, "warmup_s": 0.0, "drain_s": 2.0,
            "until": None, "max_requests": 0, "generation_mode": "none",
        },
        "tiers": {"cache_dir": None, "erase_device": None, "keep_cache": False},
        "semantics": {"prefill_ms_per_token": 0.0},
        "arrival": {"mode": "closed", "request_rate": 0.0, "process": "fixed"},
        "workload": {"trace_speedup": 0.0, "replay_cycles": 0},
        "autoscaler": {"enabled": False},
        "precondition": {"enabled": False},
        "user_templates": dict.fromkeys(("chatbot", "coding", "document"), at_once),
        "passport": {"settle_s": 0.0},  # no device will ever have moved these bytes
    }  # fmt: skip
    return overlay(config, changes)
