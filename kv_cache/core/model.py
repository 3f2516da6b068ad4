"""Model geometry: how many bytes of KV state one token costs.

MHA and GQA: 2 (K and V) x layers x kv_heads x head_dim x dtype bytes.
MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1): layers x (kv_lora_rank + qk_rope_head_dim) x
dtype bytes: one compressed latent and one shared rotary key per layer, no heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kv_cache.core.errors import ConfigError

DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "fp8": 1,
    "int8": 1,
}

ATTENTION_TYPES = ("mha", "gqa", "mla")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model's KV geometry; `source` says where the numbers come from."""

    name: str
    num_layers: int = 32
    hidden_dim: int = 4096
    num_heads: int = 32
    kv_heads: int = 8
    kv_dim_per_head: int = 0  # 0 = hidden_dim // num_heads
    dtype: str = "float16"
    attention_type: str = "mha"
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_dim", "num_heads", "kv_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"model {self.name!r}: {name} is {getattr(self, name)}, it must be at least 1"
                )
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(
                f"model {self.name!r}: dtype {self.dtype!r} is unknown; use one of "
                f"{', '.join(DTYPE_BYTES)}"
            )
        if self.attention_type not in ATTENTION_TYPES:
            raise ConfigError(
                f"model {self.name!r}: attention_type {self.attention_type!r} is unknown; use one "
                f"of {', '.join(ATTENTION_TYPES)}"
            )
        if self.attention_type == "mla" and self.kv_lora_rank < 1:
            raise ConfigError(f"model {self.name!r}: attention_type mla needs kv_lora_rank")

    @property
    def head_dim(self) -> int:
        return self.kv_dim_per_head or self.hidden_dim // self.num_heads

    @property
    def bytes_per_token(self) -> int:
        """Bytes of KV state for one token of the whole model, before tensor parallelism."""
        size = DTYPE_BYTES[self.dtype]
        if self.attention_type == "mla":
            return self.num_layers * (self.kv_lora_rank + self.qk_rope_head_dim) * size
        return 2 * self.num_layers * self.kv_heads * self.head_dim * size

    def object_bytes(self, tokens: int, tensor_parallel: int = 1) -> int:
        """Bytes of `tokens` tokens on one rank. Heads are split over ranks; MLA's latent is not."""
        whole = tokens * self.bytes_per_token
        return whole if self.attention_type == "mla" else whole // tensor_parallel


_MLPERF = "MLPerf Storage KV-cache model table"


def _hf(repo: str) -> str:
    return f"huggingface.co/{repo} config.json"


MODELS: Mapping[str, ModelShape] = {
    "tiny-1b": ModelShape(
        name="Tiny 1B", num_layers=12, hidden_dim=1024, num_heads=8, kv_heads=4,
        attention_type="gqa", source=_MLPERF,
    ),
    "mistral-7b": ModelShape(
        name="Mistral 7B", attention_type="gqa", source=_hf("mistralai/Mistral-7B-v0.1")
    ),
    "llama2-7b": ModelShape(
        name="Llama 2 7B", kv_heads=32, attention_type="mha", source=_hf("meta-llama/Llama-2-7b-hf")
    ),
    "llama3.1-8b": ModelShape(
        name="Llama 3.1 8B", attention_type="gqa", source=_hf("meta-llama/Llama-3.1-8B")
    ),
    "llama3.1-70b-instruct": ModelShape(
        name="Llama 3.1 70B Instruct", num_layers=80, hidden_dim=8192, num_heads=64,
        attention_type="gqa", source=_hf("meta-llama/Llama-3.1-70B-Instruct"),
    ),
    "llama3.1-405b": ModelShape(
        name="Llama 3.1 405B", num_layers=126, hidden_dim=16384, num_heads=128,
        attention_type="gqa", source=_hf("meta-llama/Llama-3.1-405B"),
    ),
    "deepseek-v3": ModelShape(
        name="DeepSeek V3", num_layers=61, hidden_dim=7168, num_heads=128, kv_heads=128,
        attention_type="mla", kv_lora_rank=512, qk_rope_head_dim=64,
        source=_hf("deepseek-ai/DeepSeek-V3"),
    ),
    "qwen3-8b": ModelShape(
        name="Qwen3 8B", num_layers=36, kv_dim_per_head=128, attention_type="gqa",
        source=_hf("Qwen/Qwen3-8B"),
    ),
    "qwen3-32b": ModelShape(
        name="Qwen3 32B", num_layers=64, hidden_dim=5120, num_heads=64, kv_dim_per_head=128,
        attention_type="gqa", source=_hf("Qwen/Qwen3-32B"),
    ),
    "qwen3-30b-a3b": ModelShape(
        name="Qwen3 30B A3B", num_layers=48, hidden_dim=2048, num_heads=32, kv_heads=4,
        kv_dim_per_head=128, attention_type="gqa", source=_hf("Qwen/Qwen3-30B-A3B"),
    ),
    "gpt-oss-120b": ModelShape(
        name="GPT OSS 120B", num_layers=36, hidden_dim=2880, num_heads=64, kv_dim_per_head=64,
        attention_type="gqa", source=_hf("openai/gpt-oss-120b") + "; sliding layers counted full",
    ),
    "gpt-oss-20b": ModelShape(
        name="GPT OSS 20B", num_layers=24, hidden_dim=2880, num_heads=64, kv_dim_per_head=64,
        attention_type="gqa", source=_hf("openai/gpt-oss-20b") + "; sliding layers counted full",
    ),
}  # fmt: skip


def model_from_hf(config: Mapping[str, Any], source: str) -> ModelShape:
    """The geometry in a Hugging Face `config.json`, or in its `text_config` where it has one."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ConfigError(f"{source}: text_config is not a mapping; give a model's config.json")

    def number(*names: str, default: int | None = None) -> int:
        for name in names:
            value = text.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
            if value is not None:
                raise ConfigError(
                    f"{source}: {name} is {value!r}, it must be a whole number above 0"
                )
        if default is None:
            raise ConfigError(
                f"{source}: {names[0]} is missing; give a Hugging Face config.json of a decoder"
            )
        return default

    rank = text.get("kv_lora_rank")
    heads = number("num_attention_heads", "n_head")
    kv_heads = number("num_key_value_heads", default=heads)
    stated = (each.get(name) for each in (text, config) for name in ("torch_dtype", "dtype"))
    dtype = str(next((value for value in stated if value), "bfloat16"))
    return ModelShape(
        name=str(config.get("_name_or_path") or config.get("model_type") or source),
        num_layers=number("num_hidden_layers", "n_layer"),
        hidden_dim=number("hidden_size", "n_embd"),
        num_heads=heads,
        kv_heads=kv_heads,
        kv_dim_per_head=number("head_dim", default=0) if text.get("head_dim") else 0,
        dtype=dtype,
        attention_type="mla" if rank else ("mha" if kv_heads == heads else "gqa"),
        kv_lora_rank=number("kv_lora_rank") if rank else 0,
        qk_rope_head_dim=number("qk_rope_head_dim") if rank else 0,
        source=source,
    )
