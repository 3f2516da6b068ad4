"""The sealed document of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kv_cache.config.root import Config
from kv_cache.core.model import ModelShape
from kv_cache.core.text import as_json
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.chain import seal, sealed_files
from kv_cache.result.collect import collect
from kv_cache.result.derive import derive
from kv_cache.result.model import model_section
from kv_cache.result.run import SECTION


def build_result(
    config: Config,
    model: ModelShape,
    outcome: RunOutcome,
    environment: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
    *,
    recordings: Sequence[Mapping[str, Any]] = (),
    validation: Mapping[str, Any] | None = None,
    twin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the document that `--output` gets. `files`: SHA-256 of each file of records, by name;
    the rest as `collect` has it."""
    run = collect(
        config,
        outcome,
        model=model_section(model, outcome.workload),
        environment=environment,
        recordings=recordings,
        validation=validation,
        twin=twin,
    )
    return seal(derive(run), files or {})


def with_left_behind(result: bytes, left: Sequence[str]) -> bytes:
    """Return a result that was written before the run's files were removed, with those that could
    not be, each with its reason."""
    document = orjson.loads(result)
    document[SECTION]["left_behind"] = list(left)
    return as_json(seal(document, sealed_files(document)))
