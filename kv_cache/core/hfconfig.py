"""The geometry of a model from its Hugging Face `config.json`.

What decides the bytes of a token is in keys that each family names anew: layers without a cache,
states that do not grow, latents, indexers, layers with other heads. A file whose family is not in
the tables here, or that has a key which concerns such layers and is not read, is refused: bytes
that are silently wrong are worse than none.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.errors import ConfigError
from kv_cache.core.model import ModelShape

MOST_LAYERS = 1000
MOST_HEADS = 4096
MOST_HIDDEN = 1_000_000

_FULL_OR_SLIDING = frozenset(
    (
        *("llama", "mistral", "mixtral", "phi", "phi3", "phimoe", "stablelm", "starcoder2"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl"),
        *("qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"),
        *("gemma", "gemma2", "gemma3_text", "gemma3n_text", "cohere", "cohere2", "gpt_oss"),
        *("glm", "glm4", "glm4_moe", "granite", "granitemoe", "olmo", "olmo2", "olmo3", "olmoe"),
        *("internlm2", "nemotron", "minimax_m2", "seed_oss", "smollm3", "ernie4_5"),
        *("ernie4_5_moe", "llama4_text", "gpt2", "gpt_neox", "gptj", "opt", "bloom"),
    )
)
"""Values of `model_type` of which every layer caches keys and values of each token, of all of them
or of a window that `_sliding` reads."""

_LATENT = frozenset(("deepseek_v2", "deepseek_v3", "kimi_k2"))
"""Those of which every layer caches one latent and one rotary key (MLA)."""

_OF_LATENTS = ("kv_lora_rank", "qk_rope_head_dim")
_NOT_READ = (
    # layers that keep a state of fixed size (Mamba, linear attention), and which those are
    *("layers_block_type", "attn_layer_period", "attn_layer_indices", "attn_type_list"),
    *("linear_attn_config", "full_attention_interval", "linear_num_value_heads"),
    *("hybrid_override_pattern", "mamba_num_heads", "mamba_d_state", "ssm_cfg", "state_size"),
    # layers that keep less than a token's keys and values, or more
    *("compress_ratios", "index_head_dim", "index_topk", "attention_k_eq_v", "cla_share_factor"),
    # layers that differ in their heads, or have their own description each
    *("global_head_dim", "num_global_key_value_heads", "hybrid_layer_pattern"),
    *("swa_num_key_value_heads", "swa_head_dim", "block_configs", "attn_config", "multi_query"),
    "cross_attention_layers",
)
"""Keys that change what is cached, and are not read."""

_PATTERNS: Mapping[str, int] = {
    "cohere2": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2
}  # fmt: skip
"""Where a config.json names no pattern: every so manyth layer is full, the others slide (the
defaults of the configuration classes of Hugging Face transformers, by model_type)."""

_FULL = ("full_attention", "attention")
_SLIDING = ("sliding_attention", "chunked_attention")


def model_from_hf(
    config: Mapping[str, Any], source: str, kv_bytes_per_token: int = 0
) -> ModelShape:
    """Return the geometry in a Hugging Face `config.json`, or in its `text_config` where it has
    one. `kv_bytes_per_token` above 0: what a token costs is known, and need not be in the file."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ConfigError(f"{source}: text_config is not a mapping; give a model's config.json")
    hf = _Hf(text, source)
    name = str(config.get("_name_or_path") or config.get("model_type") or source)
    if kv_bytes_per_token:
        return _stated(hf, name, kv_bytes_per_token)
    mla = _is_latent(hf)
    heads = hf.number("num_attention_heads", "n_head", most=MOST_HEADS)
    kv_heads = hf.number("num_key_value_heads", default=heads)
    if kv_heads > heads:
        raise ConfigError(
            f"{source}: num_key_value_heads is {kv_heads}, more than the {heads} of "
            "num_attention_heads that share them; give a model's own config.json"
        )
    stated = (each.get(name) for each in (text, config) for name in ("torch_dtype", "dtype"))
    layers = _layers_with_a_cache(hf)
    window, sliding = (0, 0) if mla else _sliding(hf, layers)
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_dim=hf.number("hidden_size", "n_embd", most=MOST_HIDDEN),
        num_heads=heads,
        kv_heads=kv_heads,
        kv_dim_per_head=hf.number("head_dim", default=0, most=MOST_HIDDEN),
        dtype=str(next((value for value in stated if value), "bfloat16")),
        attention_type="mla" if mla else ("mha" if kv_heads == heads else "gqa"),
        kv_lora_rank=hf.number("kv_lora_rank", most=MOST_HIDDEN) if mla else 0,
        qk_rope_head_dim=hf.number("qk_rope_head_dim", most=MOST_HIDDEN) if mla else 0,
        sliding_window=window,
        sliding_layers=sliding,
        source=source,
    )


def _stated(hf: "_Hf", name: str, kv_bytes_per_token: int) -> ModelShape:
    """Return a model of which the bytes are known; what its file says of the rest is for the
    record."""
    rest = ModelShape(name=name)

    def first_of(default: int, *keys: str) -> int:
        values = [hf.text.get(key) for key in keys]
        return next((v for v in values if type(v) is int and 0 < v <= MOST_HIDDEN), default)

    heads = first_of(rest.num_heads, "num_attention_heads", "n_head")
    return replace(
        rest,
        num_layers=first_of(rest.num_layers, "num_hidden_layers", "n_layer"),
        hidden_dim=first_of(rest.hidden_dim, "hidden_size", "n_embd"),
        num_heads=heads,
        kv_heads=first_of(heads, "num_key_value_heads"),
        kv_bytes_per_token=kv_bytes_per_token,
        source=hf.source,
    )


# --- which files are read --------------------------------------------------------------------


def _is_latent(hf: "_Hf") -> bool:
    """Return whether one latent is cached for each layer. Raises ConfigError where not every key
    that tells of the cache is read."""
    kind = str(hf.text.get("model_type"))
    telling = [key for key in _NOT_READ if _is_set(hf, key) and not _all_alike(hf, key)]
    latent = kind in _LATENT
    if not latent:
        telling += [key for key in _OF_LATENTS if _is_set(hf, key)]
        if _is_set(hf, "v_head_dim") and hf.text["v_head_dim"] != hf.text.get("head_dim"):
            telling.append("v_head_dim")
    if _is_set(hf, "attention_chunk_size") and not _is_set(hf, "layer_types"):
        telling.append("attention_chunk_size")
    if telling or not (latent or kind in _FULL_OR_SLIDING):
        details = f" with {', '.join(telling)}" if telling else ""
        what = f"model_type {kind[:60]!r}" if "model_type" in hf.text else "no model_type"
        raise ConfigError(
            f"{hf.source}: {what}{details}: what its cache holds is not read from this file, and a "
            "token's bytes would be wrong; give them with --kv-bytes-per-token N "
            "(run.kv_bytes_per_token, in a scenario model.kv_bytes_per_token)"
        )
    return latent


def _all_alike(hf: "_Hf", key: str) -> bool:
    """Return whether a list says of all layers that their attention is full (MiniMax-M2)."""
    kinds = hf.text[key]
    return key == "attn_type_list" and isinstance(kinds, list) and set(map(str, kinds)) == {"1"}


class _Hf(Struct, frozen=True):
    """The keys of a `config.json`, to be read as numbers."""

    text: Mapping[str, Any]
    source: str

    def number(self, *names: str, default: int | None = None, most: int = 2**62) -> int:
        """Return the first of `names` that is there."""
        for name in names:
            value = self.text.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                if value > most:
                    raise ConfigError(
                        f"{self.source}: {name} is {value}, and no model has more than {most}; "
                        "give a model's own config.json"
                    )
                return value
            if value is not None:
                raise ConfigError(
                    f"{self.source}: {name} is {value!r}, it must be a whole number above 0"
                )
        if default is None:
            raise ConfigError(
                f"{self.source}: {names[0]} is missing; give a Hugging Face config.json of a "
                "decoder"
            )
        return default


def _layers_with_a_cache(hf: _Hf) -> int:
    """Gemma 3n's last layers use the state of earlier ones."""
    layers = hf.number("num_hidden_layers", "n_layer", most=MOST_LAYERS)
    shared = _count(hf, "num_kv_shared_layers")
    if shared >= layers:
        raise ConfigError(
            f"{hf.source}: num_kv_shared_layers is {shared} of {layers} layers; some layer must "
            "have a cache of its own"
        )
    return layers - shared


def _is_set(hf: _Hf, name: str) -> bool:
    """Return whether a key says something: absent, null, false, 0 and empty are all "no" in these
    files."""
    return bool(hf.text.get(name))


def _count(hf: _Hf, name: str) -> int:
    return hf.number(name) if _is_set(hf, name) else 0


def _sliding(hf: _Hf, layers: int) -> tuple[int, int]:
    """Return the window and the number of layers that have it.

    `layer_types` names each layer. Without it, `sliding_window_pattern` (or the pattern of the
    model_type) says which layers are full; with `use_sliding_window`, those before
    `max_window_layers` are (Qwen2 and its kin); else all layers slide (Mistral).
    """
    kinds = _layer_types(hf)[:layers]
    slide = sum(kind in _SLIDING for kind in kinds)
    if kinds and not slide:
        return 0, 0
    chunk = "attention_chunk_size" if "chunked_attention" in kinds else "sliding_window"
    if kinds:
        return hf.number(chunk), slide
    qwen = "max_window_layers" in hf.text
    if not _is_set(hf, "sliding_window") or not hf.text.get("use_sliding_window", not qwen):
        return 0, 0
    window = hf.number("sliding_window")
    if qwen:
        full = _count(hf, "max_window_layers")
        return (window, layers - full) if full < layers else (0, 0)
    every = hf.number(
        "sliding_window_pattern", default=_PATTERNS.get(str(hf.text.get("model_type")), layers + 1)
    )
    slide = layers - layers // every
    return (window, slide) if slide else (0, 0)


def _layer_types(hf: _Hf) -> list[str]:
    kinds = hf.text.get("layer_types")
    if kinds is None:
        return []
    count = hf.number("num_hidden_layers", "n_layer")
    if not isinstance(kinds, list) or len(kinds) != count:
        raise ConfigError(
            f"{hf.source}: layer_types must be a list with the kind of each of the {count} layers"
        )
    for kind in kinds:
        if kind not in (*_FULL, *_SLIDING):
            raise ConfigError(
                f"{hf.source}: layer_types has {kind!r}, a layer whose state does not grow by the "
                "token; describe the layers with attention alone in model_configs (num_layers)"
            )
    return kinds
