"""The models of a mix and the ranks of a model, put around a load that knows of one model."""

from collections.abc import Collection

from msgspec.structs import replace

from kv_cache.config.root import Config
from kv_cache.config.sections import LAYER
from kv_cache.core.errors import ConfigError, TraceError
from kv_cache.core.kinds import RunMode
from kv_cache.core.model import ModelShape
from kv_cache.core.seed import Seed
from kv_cache.workload.formats.trace_files import Trace
from kv_cache.workload.mix import Mix, Share
from kv_cache.workload.ranks import Ranks
from kv_cache.workload.sizing import Geometry


def build_mix(config: Config, geometry: Geometry, seed: Seed) -> Mix | None:
    """None where there is one model. `geometry`: of the load, for another model."""
    shapes = config.mixed_shapes()
    if not shapes:
        return None
    shares = [
        Share(
            name=name,
            weight=config.run.model_mix[name],
            geometry=replace(geometry, model=shape),
        )
        for name, shape in shapes.items()
    ]
    return Mix(shares, seed.child("mix"), config.workload.mix_opening_tokens)


def build_geometry(config: Config, model: ModelShape, trace_block_tokens: int = 0) -> Geometry:
    """`trace_block_tokens`: the trace's, 0 = none. Raises ConfigError where layers of one turn have
    not one size."""
    geometry = Geometry(
        model=model,
        tensor_parallel=split_over(config),
        block_tokens=config.resolved_block_tokens(trace_block_tokens),
        layerwise=config.semantics.object == LAYER,
    )
    if geometry.layerwise and not geometry.block_tokens and model.sliding_layers:
        raise ConfigError(
            f"--object layer: of a turn, the {model.sliding_layers} layers of {model.name} with a "
            "sliding window keep less than the others; give --block-tokens, whose layers are alike"
        )
    return geometry


def build_ranks(config: Config, model: ModelShape, mix: Mix | None) -> Ranks | None:
    """None where one rank's objects are stored."""
    if split_over(config) == config.tiers.tensor_parallel:
        return None
    models = {"": model}
    if mix is not None:
        models = {name: share.geometry.model for name, share in mix.shares.items()}
    return Ranks(config.tiers.tensor_parallel, models)


def split_over(config: Config) -> int:
    """Ranks of which one is stored; 1 where all are, and the whole is cut into their objects."""
    return 1 if config.tiers.ranks == "all" else config.tiers.tensor_parallel


def copies(config: Config, shapes: Collection[ModelShape]) -> int:
    """How many times the bytes of one model and rank are stored, at most: documents by each model
    of a mix, heads by each rank that has them."""
    models = 1 if config.mode is RunMode.DECODE_ONLY else len(shapes)
    if config.tiers.ranks == "one":
        return models
    ranks = config.tiers.tensor_parallel
    heads = (-(-ranks // s.kv_heads) for s in shapes if s.attention_type != "mla")
    return models * max(heads, default=1)


def check_objects(config: Config, trace: Trace) -> None:
    """A trace of operations has objects of its own. Raises TraceError."""
    row = next(trace.rows(), None)
    if row is not None and row.nbytes:
        _check_operations(config, trace)


def _check_operations(config: Config, trace: Trace) -> None:
    """What makes objects anew, or asks prompts, has no use for operations. Raises TraceError."""
    tiers = config.tiers
    makers = {
        "run.model_mix (--model-mix)": bool(config.run.model_mix),
        "tiers.ranks (--ranks) all": tiers.ranks == "all" and tiers.tensor_parallel > 1,
        "semantics.object (--object)": config.semantics.object is not None,
    }
    for option, is_on in makers.items():
        if is_on:
            raise TraceError(
                f"{option}: the rows of {trace.files[0]} ({trace.format_name}) name the objects "
                "that are moved, which no model makes anew; leave it out"
            )
    switches = {
        "run.mode (--decode-only)": config.mode is RunMode.DECODE_ONLY,
        "rag.enabled (--enable-rag)": config.rag.enabled,
        "workload.trace_prompts (--trace-prompts)": config.workload.trace_prompts,
    }
    for option, is_on in switches.items():
        if is_on:
            raise TraceError(
                f"{option}: the rows of {trace.files[0]} ({trace.format_name}) are reads and "
                "writes of objects, and no prompts; leave it out"
            )
