"""What a result says about the model, or the models of a mix."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from kv_cache.config.root import Config
from kv_cache.core.errors import ConfigError
from kv_cache.core.model import ModelShape
from kv_cache.report.node import MisshapenError, Node


def model_section(model: ModelShape, workload: Mapping[str, Any]) -> dict[str, Any]:
    """`workload`: what the source says of itself. In a mix nothing is the same for all models: its
    name tells the shares, and each model stands under its own."""
    mixed = workload.get("models")
    if mixed is None:
        return {**asdict(model), "bytes_per_token": model.bytes_per_token}
    left_out = ("model", "requests")  # what was asked is the run's, not the model's
    return {
        "name": ", ".join(f"{row['share']:.3g} {row['model']}" for row in mixed),
        "source": "run.model_mix",
        "bytes_per_token": None,
        "models": {
            row["model"]: {key: value for key, value in row.items() if key not in left_out}
            for row in mixed
        },
    }


def shape_of(row: Node) -> ModelShape:
    """The geometry that a section of a model has. Raises MisshapenError."""
    values: dict[str, Any] = {
        field.name: row[field.name].text() if field.type is str else row[field.name].whole()
        for field in fields(ModelShape)
    }
    try:
        return ModelShape(**values)
    except ConfigError as error:
        raise MisshapenError(f"{row.path} cannot be: {error}") from None


def stored_bytes_per_token(
    config: Config, model: ModelShape, workload: Mapping[str, Any]
) -> int | None:
    """What is stored for one token; None where that is not one number: in a mix, and where an
    object is a turn of which some layers keep the end only."""
    turns = not config.resolved_block_tokens(workload.get("trace_block_tokens", 0))
    if "models" in workload or (turns and model.sliding_layers):
        return None
    ranks = config.tiers.tensor_parallel
    if config.tiers.ranks == "one":
        return model.object_bytes(1, ranks)
    return model.rank_objects(ranks) * model.rank_bytes(model.bytes_per_token, ranks)
