"""The document of a run: what was counted, and everything that follows from it.

`derive` is the only way to a result's numbers. A run's document is `derive` of what it collected,
and `verify` derives again from what a document says was counted and compares.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from kv_cache.metrics.histogram import RELATIVE_ERROR
from kv_cache.metrics.passport import Status
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.result.counted import Json
from kv_cache.result.evidence import passport
from kv_cache.result.histograms import encode
from kv_cache.result.precision import precision
from kv_cache.result.prediction import compared, quantities
from kv_cache.result.reference import reference_keys, unsupported
from kv_cache.result.run import SECTION, CountedRun, shape_of
from kv_cache.result.sections import body, reconciliation
from kv_cache.result.without_figures import without_figures

SCHEMA = "kv-cache-result/9"


def derive(run: CountedRun) -> dict[str, Any]:
    """Return the whole document of one run, without its chain, as plain values."""
    stored = msgspec.to_builtins(run.counted, enc_hook=encode)
    document = overlaid(stored, {**reference_keys([run]), SECTION: _section(run)})
    document["overall_passed"] &= document[SECTION]["passport"]["verdict"] != Status.INVALID
    if run.config.output.io_trace_log is not None:
        without_figures(document)
    plain: dict[str, Any] = document
    return plain


def _section(run: CountedRun) -> dict[str, Any]:
    facts = run.facts
    numbers = body([run])
    return {
        "schema": SCHEMA,
        "program_version": facts.program_version,
        **numbers,
        "precision": precision(run),
        "semantics_preset": run.config.semantics.preset,
        "contains_performance": run.measured,
        "passport": passport(run),
        "reconciliation": reconciliation(run),
        "model": {**facts.model, **_bytes_per_token(facts.model)},
        "histogram_relative_error": RELATIVE_ERROR,
        "latency_lists_limit": SAMPLE_LIMIT,
        "reference_keys_unsupported": unsupported(facts),
        **({} if facts.twin is msgspec.UNSET else {"twin": _twin(facts.twin, numbers)}),
    }


def _bytes_per_token(model: Mapping[str, Any]) -> Json:
    """Return a token's bytes follow from the geometry, in a mix of each model."""
    mixed = model.get("models")
    if not isinstance(mixed, Mapping):
        return {"bytes_per_token": shape_of(model).bytes_per_token}
    places = {name: f"kv_cache.model.models.{name}" for name in mixed}
    return {
        "bytes_per_token": None,
        "models": {
            name: {**row, "bytes_per_token": shape_of(row, places[name]).bytes_per_token}
            for name, row in mixed.items()
        },
    }


def _twin(twin: Mapping[str, Any], numbers: Mapping[str, Any]) -> Json:
    """Return what was predicted, beside what this run measured; the result of `predict` is the
    prediction itself, so nothing is beside it."""
    measured = quantities(numbers)
    if "measurement" not in twin:
        return {**twin, "prediction": {name: measured.get(name) for name in twin["prediction"]}}
    return {**twin, **compared(twin["prediction"], measured)}


def overlaid(below: Any, above: Any) -> Any:
    """Return `below` with the values of `above` over it: mappings at any depth, everything else
    whole; the names of `above` come first (a result is recognized by the first of the reference's
    keys)."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        both = {name: overlaid(below[name], above[name]) for name in above if name in below}
        return {**above, **both, **{name: below[name] for name in below if name not in above}}
    return above
