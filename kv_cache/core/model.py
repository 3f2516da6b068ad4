"""Model geometry: how many bytes of KV state one token costs.

MHA and GQA: 2 (K and V) x layers x kv_heads x head_dim elements.
MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1): layers x (kv_lora_rank + qk_rope_head_dim)
elements: one compressed latent and one shared rotary key per layer, no heads.

An element is as wide as its type; an object is whole bytes, rounded up. Formats of 8 bits and
fewer have scales. Those that belong to the model (one a tensor or a head: vLLM's and
TensorRT-LLM's fp8) are not stored with the cache. Those of a group of elements are: KIVI (arXiv
2402.02750) has a scale and a zero point, 16 bits each, for 32 to 128 elements.

A layer with a sliding window needs the state of the last `sliding_window` tokens only. That holds
for the state of a whole turn; a block of a sequence may be the last one of somebody else's, so
engines that store blocks store all layers of each.
"""

from collections.abc import Mapping

from msgspec import Struct

from kv_cache.core.errors import ConfigError

DTYPE_BITS: Mapping[str, int] = {
    "float32": 32,
    "fp32": 32,
    "float16": 16,
    "fp16": 16,
    "bfloat16": 16,
    "bf16": 16,
    "float8": 8,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "int4": 4,
}

ATTENTION_TYPES = ("mha", "gqa", "mla")


class ModelShape(Struct, frozen=True, kw_only=True):
    """One model's KV geometry; `source` says where the numbers come from.

    `kv_quant_group` elements share `kv_scale_bytes` of scales, where the type has at most 8 bits;
    0 = no scales are stored. `sliding_layers` of the layers attend over the last `sliding_window`
    tokens; 0 = none. `kv_bytes_per_token` above 0 is what a token costs, whatever the geometry.
    """

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
    kv_quant_group: int = 0
    kv_scale_bytes: int = 2
    sliding_window: int = 0
    sliding_layers: int = 0
    kv_bytes_per_token: int = 0
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_dim", "num_heads", "kv_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"model {self.name!r}: {name} is {getattr(self, name)}, it must be at least 1"
                )
        if self.dtype not in DTYPE_BITS:
            raise ConfigError(
                f"model {self.name!r}: dtype {self.dtype!r} is unknown; use one of "
                f"{', '.join(DTYPE_BITS)}"
            )
        if self.attention_type not in ATTENTION_TYPES:
            raise ConfigError(
                f"model {self.name!r}: attention_type {self.attention_type!r} is unknown; use one "
                f"of {', '.join(ATTENTION_TYPES)}"
            )
        if self.attention_type == "mla" and self.kv_lora_rank < 1:
            raise ConfigError(f"model {self.name!r}: attention_type mla needs kv_lora_rank")
        self._check_sliding()

    def _check_sliding(self) -> None:
        if not self.sliding_layers:
            return
        if self.sliding_layers > self.num_layers:
            raise ConfigError(
                f"model {self.name!r}: sliding_layers is {self.sliding_layers}, more than its "
                f"{self.num_layers} layers; it counts those with a sliding window"
            )
        if self.sliding_window < 1 or self.attention_type == "mla":
            raise ConfigError(
                f"model {self.name!r}: sliding_layers is {self.sliding_layers}, which needs a "
                "sliding_window above 0 and an attention_type other than mla; give both, or set "
                "sliding_layers to 0"
            )

    @property
    def head_dim(self) -> int:
        return self.kv_dim_per_head or self.hidden_dim // self.num_heads

    @property
    def bytes_per_token(self) -> int:
        """Bytes of KV state for one token of the whole model, before tensor parallelism; with
        sliding windows, for a token inside them."""
        return self.object_bytes(1)

    def object_bytes(self, tokens: int, tensor_parallel: int = 1, *, turn: bool = False) -> int:
        """Return the bytes of `tokens` tokens, 1/N of them for one of N ranks (not of MLA's latent,
        which is not split). `turn`: these are the tokens of a whole turn, so that layers with a
        sliding window keep only its end."""
        sliding = self.sliding_layers if turn else 0
        spans = (self.num_layers - sliding) * tokens + sliding * min(tokens, self.sliding_window)
        whole = self.kv_bytes_per_token * tokens or self._bytes(spans * self._elements)
        return whole if self.attention_type == "mla" else -(-whole // tensor_parallel)

    def rank_bytes(self, nbytes: int, ranks: int) -> int:
        """Return what each of several ranks stores of an object of `nbytes`. Heads are split over
        the ranks; where there are more ranks than heads, each has one, and heads are there several
        times (as vLLM and SGLang do). A latent is not split."""
        if self.attention_type == "mla":
            return nbytes
        return -(-nbytes // min(ranks, self.kv_heads))

    def rank_objects(self, ranks: int) -> int:
        """Return how many objects several ranks store: one each, and one of a latent, which all
        have alike (SGLang's HiCache lets one rank write it)."""
        return 1 if self.attention_type == "mla" else ranks

    @property
    def _elements(self) -> int:
        """Return the elements of one token in one layer."""
        if self.attention_type == "mla":
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.kv_heads * self.head_dim

    def _bytes(self, elements: int) -> int:
        bits = DTYPE_BITS[self.dtype]
        groups = -(-elements // self.kv_quant_group) if self.kv_quant_group and bits <= 8 else 0
        return -(-elements * bits // 8) + groups * self.kv_scale_bytes


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
    "qwen3-235b-a22b": ModelShape(
        name="Qwen3 235B A22B", num_layers=94, hidden_dim=4096, num_heads=64, kv_heads=4,
        kv_dim_per_head=128, attention_type="gqa", source=_hf("Qwen/Qwen3-235B-A22B"),
    ),
    "gpt-oss-120b": ModelShape(
        name="GPT OSS 120B", num_layers=36, hidden_dim=2880, num_heads=64, kv_dim_per_head=64,
        attention_type="gqa", source=_hf("openai/gpt-oss-120b") + "; sliding layers counted full",
    ),
    "gpt-oss-20b": ModelShape(
        name="GPT OSS 20B", num_layers=24, hidden_dim=2880, num_heads=64, kv_dim_per_head=64,
        attention_type="gqa", source=_hf("openai/gpt-oss-20b") + "; sliding layers counted full",
    ),
    "gpt-oss-120b-hybrid": ModelShape(
        name="GPT OSS 120B, sliding windows", num_layers=36, hidden_dim=2880, num_heads=64,
        kv_dim_per_head=64, attention_type="gqa", sliding_window=128, sliding_layers=18,
        source=_hf("openai/gpt-oss-120b"),
    ),
    "gpt-oss-20b-hybrid": ModelShape(
        name="GPT OSS 20B, sliding windows", num_layers=24, hidden_dim=2880, num_heads=64,
        kv_dim_per_head=64, attention_type="gqa", sliding_window=128, sliding_layers=12,
        source=_hf("openai/gpt-oss-20b"),
    ),
}  # fmt: skip


class Parameters(Struct, frozen=True):
    """Weights of a model, in 10^9: those that a token passes through, and all that memory holds
    (the same, but for mixtures of experts). `chosen`: the share of its experts that a token passes
    through."""

    active_billion: float
    total_billion: float
    chosen: float = 1.0

    @property
    def experts_billion(self) -> float:
        """Those of all experts together; the others are passed through by every token."""
        idle = self.total_billion - self.active_billion
        return idle / (1 - self.chosen) if idle else 0.0


def _dense(billion: float) -> Parameters:
    return Parameters(billion, billion)


PARAMETERS: Mapping[str, Parameters] = {
    "mistral-7b": _dense(7.24),
    "llama2-7b": _dense(6.74),
    "llama3.1-8b": _dense(8.03),
    "llama3.1-70b-instruct": _dense(70.55),
    "llama3.1-405b": _dense(405.85),
    "deepseek-v3": Parameters(37.0, 671.0, 8 / 256),
    "qwen3-8b": _dense(8.19),
    "qwen3-32b": _dense(32.76),
    "qwen3-30b-a3b": Parameters(3.3, 30.5, 8 / 128),
    "qwen3-235b-a22b": Parameters(22.0, 235.0, 8 / 128),
    "gpt-oss-120b": Parameters(5.1, 117.0, 4 / 128),
    "gpt-oss-20b": Parameters(3.6, 21.0, 4 / 32),
    "gpt-oss-120b-hybrid": Parameters(5.1, 117.0, 4 / 128),
    "gpt-oss-20b-hybrid": Parameters(3.6, 21.0, 4 / 32),
}
"""Of models of `MODELS`. Dense ones: the elements of all tensors in the repository that `source`
names; mixtures of experts: as their model cards say. The toy model has none."""
