"""What a twin in virtual time says of a run before it, beside what the run then measured.

    predicted = quantities(outcome)            of the simulation
    section = twin_section(predicted, quantities(measured), …)

Each quantity is defined in `docs/metrics.md`; both sides are computed by the same lines from the
same kind of outcome. An error is prediction - measurement, also as a share of the measurement.
What virtual time cannot have predicted (nothing was measured, or nothing was moved) is None, and
has no error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.core.kinds import OpKind
from kv_cache.core.units import MISSING
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.summary import request_numbers, reuse_numbers, tier_rows

PERCENTILES = ("p50", "p95", "p99")
NAMES = {OpKind.READ: "load", OpKind.WRITE: "store"}

Numbers = Mapping[str, float | None]


def quantities(outcome: RunOutcome) -> dict[str, float | None]:
    """Every quantity that is predicted, by name; the unit is the name's end."""
    seconds = outcome.window_s
    every, reuse = request_numbers(outcome.recorder.all), reuse_numbers(outcome)
    completed = every["completed"]
    found: dict[str, float | None] = {
        "requests_per_s": completed / seconds if seconds else None,
        "block_hit_ratio": _where(reuse["looked_up"], reuse["reuse_hit_ratio"]),
        "token_hit_ratio": reuse["achieved_token_ratio"],
    }
    for label, row in tier_rows(outcome).items():
        for kind, name in NAMES.items():
            side = row[kind.value]
            if label == "storage":
                found[f"storage_{kind.value}_bytes_per_s"] = side["bytes_per_second"]
                found |= _times(f"storage_{name}_device", side["device_ms"])
            found |= _times(f"{label}_{name}", side["total_ms"])
    for name in ("ttft", "response"):
        found |= _times(name, every[f"{name}_ms"])
    return found


def _times(name: str, row: Numbers) -> dict[str, float | None]:
    return {f"{name}_{p}_ms": row[p] for p in PERCENTILES}


def _where(samples: int, value: float) -> float | None:
    return value if samples else None


def twin_section(
    predicted: Numbers,
    measured: Numbers | None,
    *,
    profile: Mapping[str, Any],
    assumed: Sequence[str],
    extrapolated: int,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The result's part. `assumed`: tiers whose times nobody measured; `extrapolated`: answers of
    the profile for sizes outside it, which touch every number but the hit ratios."""
    marked = [name for name in predicted if extrapolated and not name.endswith("_ratio")]
    section: dict[str, Any] = {
        "profile": dict(profile),
        "assumed_tiers": list(assumed),
        "extrapolated_answers": extrapolated,
        "extrapolated": marked,
        "notes": list(notes),
        "prediction": dict(predicted),
    }
    if measured is None:
        return section
    return section | {
        "measurement": {name: measured.get(name) for name in predicted},
        "error": {name: error(predicted[name], measured.get(name)) for name in predicted},
    }


def error(predicted: float | None, measured: float | None) -> dict[str, float | None] | None:
    """Absolute, in the quantity's unit, and relative to the measurement (None where that is 0)."""
    if predicted is None or measured is None:
        return None
    absolute = predicted - measured
    return {"absolute": absolute, "relative": absolute / measured if measured else None}


# --- text ------------------------------------------------------------------------------------

HEADLINE = (
    *("storage_read_bytes_per_s", "storage_write_bytes_per_s", "requests_per_s"),
    *("block_hit_ratio", "token_hit_ratio"),
    *("storage_load_device_p50_ms", "storage_load_device_p95_ms"),
    *("storage_store_device_p50_ms", "storage_store_device_p95_ms"),
    *("cpu_load_p50_ms", "gpu_load_p50_ms", "ttft_p50_ms", "ttft_p95_ms", "response_p50_ms"),
)


def prediction_rows(section: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """For reports: what matters most, with predicted, measured and error, `-` where there is none.
    A file may have been changed by hand: what is not of the right shape is left out."""
    parts = [section.get(name) for name in ("prediction", "measurement", "error")]
    predicted, measured, errors = (part if isinstance(part, Mapping) else {} for part in parts)
    rows = []
    for name in HEADLINE:
        value, found = predicted.get(name), measured.get(name)
        if not isinstance(value, int | float):
            continue
        shown = _shown(name, found) if isinstance(found, int | float) else MISSING
        wrong = errors.get(name)
        far = _error_shown(name, wrong) if _is_error(wrong) else MISSING
        rows.append((_label(name), _shown(name, value), shown, far))
    return rows


def _is_error(found: Any) -> bool:
    return isinstance(found, Mapping) and all(
        found.get(name) is None or isinstance(found.get(name), int | float)
        for name in ("absolute", "relative")
    )


def prediction_lines(section: Mapping[str, Any], *, every: bool = False) -> list[str]:
    """The section for a person: what matters most, or `every` quantity."""
    predicted = section["prediction"]
    names = [n for n in (predicted if every else HEADLINE) if predicted.get(n) is not None]
    compared = "measurement" in section
    heads = ("predicted", "measured", "error") if compared else ("predicted",)
    width = max((len(_label(name)) for name in names), default=0) + 4
    first = "twin" if compared else "prediction"
    lines = [f"{first:<{width}}" + "".join(f"{head:>12}" for head in heads)]
    for name in names:
        mark = " *" if name in section["extrapolated"] else ""
        line = f"  {_label(name):<{width - 2}}{_shown(name, predicted[name]):>12}"
        if compared:
            line += f"{_shown(name, section['measurement'][name]):>12}"
            line += f"{_error_shown(name, section['error'][name]):>12}"
        lines.append(line + mark)
    if section["extrapolated"]:
        lines.append("  * extrapolated: the profile has not measured objects of such sizes")
    if section["assumed_tiers"]:
        told = ", ".join(section["assumed_tiers"])
        lines.append(f"  ! times of {told} are assumed (section sim), not measured")
    lines += [f"  ! {note}" for note in section["notes"]]
    return lines


def _label(name: str) -> str:
    for end, unit in (("_bytes_per_s", "MB/s"), ("_per_s", "1/s"), ("_ratio", "%"), ("_ms", "ms")):
        if name.endswith(end):
            return f"{name.removesuffix(end).replace('_', ' ')} {unit}"
    return name


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    if name.endswith("_bytes_per_s"):
        return f"{value / 1e6:.1f}"
    if name.endswith("_ratio"):
        return f"{100 * value:.2f}"
    return f"{value:.2f}"


def _error_shown(name: str, found: Mapping[str, float | None] | None) -> str:
    """Of a ratio in points, of all else in percent of the measurement."""
    if found is None:
        return MISSING
    if name.endswith("_ratio"):
        return f"{100 * (found.get('absolute') or 0):+.2f} pt"
    relative = found.get("relative")
    return MISSING if relative is None else f"{100 * relative:+.1f} %"
