"""What a trace, or the requests of synthetic users, look like: the document of `trace stats`."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins

from kv_cache import __version__
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.bounded import Count, Number
from kv_cache.core.model import ModelShape
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.result.published import TraceNotes
from kv_cache.result.run import SECTION
from kv_cache.workload.distribution import QUANTILES
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.surveying import Survey
from kv_cache.workload.reuse import ReuseFigures
from kv_cache.workload.stats import ArrivalFigures, SessionFigures, StreamFigures, TokenFigures

SCHEMA = kinds.TRACE


class TraceRows(Struct, frozen=True, kw_only=True):
    """Rows that were read, by what they are good for."""

    timed: bool
    good: Count
    bad: Count
    notes: dict[str, Count]


class TracedModel(Struct, frozen=True, kw_only=True):
    """The model whose blocks the requests ask for."""

    name: str
    bytes_per_token: Number
    block_tokens: Count


class ModelRequests(Struct, frozen=True, kw_only=True):
    name: str
    requests: Count


class TraceFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a trace; `rows` None are synthetic users. Shares are at `quantiles`."""

    workload: TraceNotes
    rows: TraceRows | None
    model: TracedModel
    quantiles: list[Number]
    requests: Count
    retrieving: Count
    operations: Count
    reads: Count
    models: list[ModelRequests]
    tokens: TokenFigures
    arrivals: ArrivalFigures
    reuse: ReuseFigures
    sessions: SessionFigures | None
    seed: int | None = None


def stats_document(
    config: Config,
    model: ModelShape,
    block_tokens: int,
    workload: Mapping[str, Any],
    survey: Survey | None,
    stream: StreamFigures,
    sessions: SessionFigures | None,
) -> dict[str, Any]:
    """Build the sealed document. `workload` is the source's description of itself, `survey` that of
    a trace (None: synthetic users)."""
    section = {
        "schema": SCHEMA,
        "program_version": __version__,
        "seed": config.run.seed,
        "workload": dict(workload),
        "rows": None if survey is None else _rows(survey, str(workload["format"])),
        "model": {
            "name": model.name,
            "bytes_per_token": model.object_bytes(1, config.tiers.tensor_parallel),
            "block_tokens": block_tokens,
        },
        "quantiles": list(QUANTILES),
        **to_builtins(stream),
        "sessions": None if sessions is None else to_builtins(sessions),
        "config": to_mapping(config),
    }
    section["models"] = [{"name": name, "requests": count} for name, count in stream.models]
    return seal({SECTION: section}, {})


def _rows(survey: Survey, format_name: str) -> dict[str, Any]:
    return {
        "timed": TRACE_FORMATS[format_name].timed,
        "grouped": TRACE_FORMATS[format_name].grouped,
        "good": survey.rows,
        "bad": survey.bad_rows,
        "notes": dict(survey.notes),
        "first_bad": [row._asdict() for row in survey.first_bad],
    }
