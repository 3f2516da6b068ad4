"""What a twin in virtual time says of a run before it, beside what the run then measured.

Each quantity is defined in `docs/metrics.md`; both sides are taken from the derived numbers of
their run. An error is prediction - measurement, also as a share of the measurement.
What virtual time cannot have predicted (nothing was measured, or nothing was moved) is None, and
has no error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.core.kinds import OpKind

PERCENTILES = ("p50", "p95", "p99")
NAMES = {OpKind.READ: "load", OpKind.WRITE: "store"}

Numbers = Mapping[str, float | None]


def quantities(numbers: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every quantity that is predicted, by name; the unit is the name's end. `numbers`: what
    `sections.body` derives."""
    seconds = numbers["window_s"]
    every, reuse = numbers["measured"]["all"], numbers["reuse"]
    values: dict[str, float | None] = {
        "requests_per_s": every["completed"] / seconds if seconds else None,
        "block_hit_ratio": reuse["reuse_hit_ratio"] if reuse["looked_up"] else None,
        "token_hit_ratio": reuse["achieved_token_ratio"],
    }
    for label, tier in numbers["tiers"].items():
        for kind, name in NAMES.items():
            side = tier[kind.value]
            if label == "storage":
                values[f"storage_{kind.value}_bytes_per_s"] = side["bytes_per_second"]
                values |= _times(f"storage_{name}_device", side["device_ms"])
            values |= _times(f"{label}_{name}", side["total_ms"])
    for name in ("ttft", "response"):
        values |= _times(name, every[f"{name}_ms"])
    return values


def _times(name: str, row: Numbers) -> dict[str, float | None]:
    return {f"{name}_{p}_ms": row[p] for p in PERCENTILES}


def twin_section(
    predicted: Numbers,
    *,
    compare: bool,
    profile: Mapping[str, Any],
    assumed: Sequence[str],
    extrapolated: int,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the result's part; with `compare`, what was measured is beside it once that is
    derived. `assumed`: tiers whose times are not measured; `extrapolated`: answers of the profile
    for sizes outside it, which touch every number but the hit ratios."""
    marked = [name for name in predicted if extrapolated and not name.endswith("_ratio")]
    return {
        "profile": dict(profile),
        "assumed_tiers": list(assumed),
        "extrapolated_answers": extrapolated,
        "extrapolated": marked,
        "notes": list(notes),
        "prediction": dict(predicted),
        **({"measurement": {}, "error": {}} if compare else {}),
    }


def compared(predicted: Numbers, measured: Numbers) -> dict[str, Any]:
    """Return what was measured of each predicted quantity, and the errors."""
    return {
        "measurement": {name: measured.get(name) for name in predicted},
        "error": {name: error(predicted[name], measured.get(name)) for name in predicted},
    }


def error(predicted: float | None, measured: float | None) -> dict[str, float | None] | None:
    """Return the error in the quantity's unit, and relative to the measurement (None if that is
    0)."""
    if predicted is None or measured is None:
        return None
    absolute = predicted - measured
    return {"absolute": absolute, "relative": absolute / measured if measured else None}
