"""What already speaks against a run while it goes on, by the rules whose evidence is there."""

from collections.abc import Iterable

from kv_cache.bench.witness import Witness
from kv_cache.config.root import Config
from kv_cache.core.kinds import OpKind, Phase, Tier
from kv_cache.metrics.evidence import Evidence
from kv_cache.metrics.histogram import merged
from kv_cache.metrics.passport import Finding, reasons_so_far
from kv_cache.metrics.recorder import OpStats, Recorder
from kv_cache.metrics.summary import call_ms

_KINDS = (OpKind.READ, OpKind.WRITE)


def reasons(witness: Witness, recorder: Recorder, config: Config) -> tuple[Finding, ...]:
    """Return what is suspect or invalid until now, from any thread; nothing before the first byte
    and after the last."""
    evidence = witness.so_far()
    if evidence is None:
        return ()
    flows = [(f, stats) for f, stats in dict(recorder.flows).items() if f.tier is Tier.NVME]
    rows = [
        {"operation": flow.kind.value, "engine": flow.engine, "bytes": stats.bytes}
        for flow, stats in flows
        if flow.kind in _KINDS
    ]
    evidence["engines"] = {"fsync": config.fsync(), "rows": rows}
    if isinstance(gaps := evidence.get("gaps"), dict):
        gaps |= {
            f"{kind.value}_call_ms": _call_ms(
                stats for f, stats in flows if (f.phase, f.kind) == (Phase.MEASURE, kind)
            )
            for kind in _KINDS
        }
    return reasons_so_far(Evidence(evidence), config.passport.thresholds())


def _call_ms(measured: Iterable[OpStats]) -> float | None:
    stats = list(measured)
    return call_ms(merged([s.device for s in stats]), sum(s.calls for s in stats), [])
