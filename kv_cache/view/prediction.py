"""A prediction of the twin, beside what was measured if there is a run."""

from kv_cache.core.format import figures
from kv_cache.core.units import GIB, MISSING
from kv_cache.result.metrics import Json
from kv_cache.result.published import Prediction, PredictionError
from kv_cache.result.run import converted
from kv_cache.view.parts import ShownColumn, Table

HEADLINE = (
    *("storage_read_bytes_per_s", "storage_write_bytes_per_s", "requests_per_s"),
    *("block_hit_ratio", "token_hit_ratio"),
    *("storage_load_device_p50_ms", "storage_load_device_p95_ms"),
    *("storage_store_device_p50_ms", "storage_store_device_p95_ms"),
    *("cpu_load_p50_ms", "gpu_load_p50_ms", "ttft_p50_ms", "ttft_p95_ms", "response_p50_ms"),
)
_UNITS = {"_bytes_per_s": ("GiB/s", GIB), "_per_s": ("1/s", 1.0), "_ratio": ("%", 0.01),
          "_ms": ("ms", 1.0)}  # fmt: skip


def prediction_table(section: Json, *, every: bool = False) -> Table:
    """The same, from the section of a document. Raises MisshapenError."""
    return prediction_part(converted(section, Prediction, "twin"), every=every)


def prediction_part(twin: Prediction, *, every: bool = False) -> Table:
    """What matters most, or `every` quantity, each in its unit; the error is in percent of the
    measurement, that of a ratio in points."""
    names = twin.prediction if every else HEADLINE
    known = [name for name in names if twin.prediction.get(name) is not None]
    compared = bool(twin.measurement)
    heads = ("twin", "predicted", *(("measured", "error") if compared else ()))
    rows = []
    for name in known:
        mark = "*" if name in twin.extrapolated else ""
        row = [_label(name), f"{_shown(name, twin.prediction[name])}{mark}"]
        if compared:
            row += [_shown(name, twin.measurement.get(name)), _error(name, twin.error.get(name))]
        rows.append(row)
    return Table(
        title="Predicted before the run" if compared else "Predicted",
        columns=[ShownColumn(head) for head in heads],
        rows=rows,
        caption=" ".join(_notes(twin)),
    )


def _notes(twin: Prediction) -> list[str]:
    notes = list(twin.notes)
    if twin.assumed_tiers:
        tiers = ", ".join(twin.assumed_tiers)
        notes.insert(0, f"Times of {tiers} are assumed (section sim), not measured.")
    if twin.extrapolated:
        notes.insert(0, "* extrapolated: the profile has not measured objects of such sizes.")
    return notes


def _unit(name: str) -> tuple[str, str, float]:
    """The quantity's words, its unit, and how much of the stored unit is one of it."""
    for end, (unit, scale) in _UNITS.items():
        if name.endswith(end):
            return name.removesuffix(end).replace("_", " "), unit, scale
    return name, "", 1.0


def _label(name: str) -> str:
    words, unit, _ = _unit(name)
    return f"{words}, {unit}" if unit else words


def _shown(name: str, value: float | None) -> str:
    return figures(None if value is None else value / _unit(name)[2])


def _error(name: str, error: PredictionError | None) -> str:
    if error is None:
        return MISSING
    if name.endswith("_ratio"):
        return f"{100 * (error.absolute or 0):+.2f} pt"
    return MISSING if error.relative is None else f"{100 * error.relative:+.1f} %"
