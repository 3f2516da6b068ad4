"""What a result says about the model, or the models of a mix."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from kv_cache.config.root import Config
from kv_cache.core.model import ModelShape


def model_section(model: ModelShape, workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `model`. `workload`: the source's description of itself. In a mix nothing
    is the same for all models: the name has the shares, and each model has an entry of its own."""
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


def stored_bytes_per_token(config: Config, model: ModelShape, *, turns: bool) -> int | None:
    """Return what is stored for one token; None if that is not one number: if an object is a turn
    (`turns`) of which some layers keep the end only."""
    if turns and model.sliding_layers:
        return None
    ranks = config.tiers.tensor_parallel
    if config.tiers.ranks == "one":
        return model.object_bytes(1, ranks)
    return model.rank_objects(ranks) * model.rank_bytes(model.bytes_per_token, ranks)
