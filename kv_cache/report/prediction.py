"""A prediction beside what was measured, as text."""

from collections.abc import Mapping
from typing import Any

from kv_cache.core.units import MISSING

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
