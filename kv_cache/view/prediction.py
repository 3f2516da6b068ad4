"""A prediction of the twin, beside what was measured if there is a run."""

from kv_cache.core.units import MISSING
from kv_cache.result.metrics import Json
from kv_cache.result.published import Prediction, PredictionError
from kv_cache.result.run import converted
from kv_cache.view import units
from kv_cache.view.parts import ShownColumn, Table

HEADLINE = (
    *("storage_read_bytes_per_s", "storage_write_bytes_per_s", "requests_per_s"),
    *("block_hit_ratio", "token_hit_ratio"),
    *("storage_load_device_p50_ms", "storage_load_device_p95_ms"),
    *("storage_store_device_p50_ms", "storage_store_device_p95_ms"),
    *("cpu_load_p50_ms", "gpu_load_p50_ms", "ttft_p50_ms", "ttft_p95_ms", "response_p50_ms"),
)
_UNITS = {
    "_bytes_per_s": units.GIB_PER_S,
    "_per_s": units.PER_S,
    "_ratio": units.PERCENT,
    "_ms": units.MS,
}


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
        quantity = _quantity(name)
        row = [quantity.heading, f"{quantity.text(twin.prediction[name])}{mark}"]
        if compared:
            row += [quantity.text(twin.measurement.get(name)), _error(name, twin.error.get(name))]
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


def _quantity(name: str) -> ShownColumn:
    """The quantity's words and its unit."""
    for end, unit in _UNITS.items():
        if name.endswith(end):
            return ShownColumn(name.removesuffix(end).replace("_", " "), unit)
    return ShownColumn(name)


def _error(name: str, error: PredictionError | None) -> str:
    if error is None:
        return MISSING
    if name.endswith("_ratio"):
        return f"{100 * (error.absolute or 0):+.2f} pt"
    return MISSING if error.relative is None else f"{100 * error.relative:+.1f} %"
