"""Bytes of KV state per token, against numbers that were worked out elsewhere."""

from typing import Any

import pytest
from msgspec.structs import replace

from kv_cache.core.errors import ConfigError
from kv_cache.core.hfconfig import model_from_hf
from kv_cache.core.model import DTYPE_BITS, MODELS, ModelShape

BYTES_PER_TOKEN = {
    "tiny-1b": 24_576,
    "mistral-7b": 131_072,
    "llama2-7b": 524_288,
    "llama3.1-8b": 131_072,
    "llama3.1-70b-instruct": 327_680,
    "llama3.1-405b": 516_096,
    "deepseek-v3": 70_272,
    "qwen3-8b": 147_456,
    "qwen3-32b": 262_144,
    "qwen3-30b-a3b": 98_304,
    "qwen3-235b-a22b": 192_512,
    "gpt-oss-120b": 73_728,
    "gpt-oss-20b": 49_152,
    "gpt-oss-120b-hybrid": 73_728,
    "gpt-oss-20b-hybrid": 49_152,
}
"""16-bit, the whole model: the reference's table, and the published geometries for the rest."""

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = {
    # MiB of 16, 64, 256 and 512 tokens, KiB of K or V of one layer of 256, GiB of 8K and 128K
    "llama3.1-8b": (2, 8, 32, 64, 512, 1.0, 16),
    "mistral-7b": (2, 8, 32, 64, 512, 1.0, 16),
    "llama2-7b": (8, 32, 128, 256, 2048, 4.0, 64),
    "llama3.1-70b-instruct": (5, 20, 80, 160, 512, 2.5, 40),
    "llama3.1-405b": (7.9, 31.5, 126, 252, 512, 3.9, 63),
    "qwen3-8b": (2.25, 9, 36, 72, 512, 1.1, 18),
    "qwen3-32b": (4, 16, 64, 128, 512, 2.0, 32),
    "qwen3-30b-a3b": (1.5, 6, 24, 48, 256, 0.75, 12),
    "qwen3-235b-a22b": (2.9, 11.8, 47, 94, 256, 1.5, 23.5),
    "gpt-oss-120b": (1.1, 4.5, 18, 36, 256, 0.56, 9),
    "deepseek-v3": (1.07, 4.3, 17.2, 34.3, 288, 0.54, 8.6),
}
"""The published sizes in bf16 (facts, section 2.3), each as exact as it is written."""

HF_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
HF_DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def test_the_table_covers_every_model() -> None:
    assert MODELS.keys() == BYTES_PER_TOKEN.keys()


@pytest.mark.parametrize("name", sorted(BYTES_PER_TOKEN))
def test_a_token_costs_what_the_published_geometry_says(name: str) -> None:
    assert MODELS[name].bytes_per_token == BYTES_PER_TOKEN[name]
    assert MODELS[name].dtype == "float16"


@pytest.mark.parametrize(("dtype", "bits"), sorted(DTYPE_BITS.items()))
def test_bytes_scale_with_the_width_of_a_number(dtype: str, bits: int) -> None:
    for name, per_token in BYTES_PER_TOKEN.items():
        assert replace(MODELS[name], dtype=dtype).bytes_per_token == per_token * bits // 16


@pytest.mark.parametrize("name", sorted(SIZES))
def test_objects_are_as_large_as_published(name: str) -> None:
    *blocks, one_layer, short, long = SIZES[name]
    model = MODELS[name]
    parts = 1 if model.attention_type == "mla" else 2
    for tokens, mib in zip((16, 64, 256, 512), blocks, strict=True):
        assert model.object_bytes(tokens) / MIB == pytest.approx(mib, abs=0.055)
    assert model.object_bytes(256) / model.num_layers / parts == one_layer * KIB
    assert model.object_bytes(8192) / GIB == pytest.approx(short, abs=0.055)
    assert model.object_bytes(131_072) / GIB == pytest.approx(long, abs=0.055)


def test_half_bytes_are_rounded_up_for_each_object() -> None:
    odd = ModelShape(
        name="odd", num_layers=3, attention_type="mla", kv_lora_rank=5, qk_rope_head_dim=2,
        dtype="int4",
    )  # fmt: skip
    assert odd.object_bytes(1) == 11  # 21 elements
    assert odd.object_bytes(2) == 21
    assert odd.object_bytes(3) == 32


def test_scales_of_a_group_are_stored_with_a_quantised_cache() -> None:
    llama = MODELS["llama3.1-8b"]  # 65,536 elements a token
    kivi = replace(llama, dtype="int4", kv_quant_group=32, kv_scale_bytes=4)
    assert kivi.bytes_per_token == 65_536 // 2 + 65_536 // 32 * 4
    assert replace(kivi, kv_scale_bytes=2).bytes_per_token == 65_536 // 2 + 65_536 // 32 * 2
    assert replace(kivi, dtype="fp8").bytes_per_token == 65_536 + 65_536 // 32 * 4
    assert replace(kivi, kv_quant_group=0).bytes_per_token == 65_536 // 2
    assert replace(kivi, dtype="bf16").bytes_per_token == 131_072


def test_the_last_group_of_an_object_has_a_scale_although_it_is_not_full() -> None:
    tiny = ModelShape(name="t", num_layers=1, hidden_dim=3, num_heads=1, kv_heads=1, dtype="int8",
                      kv_quant_group=4)  # fmt: skip
    assert tiny.object_bytes(1) == 6 + 2 * 2
    assert tiny.object_bytes(2) == 12 + 3 * 2


def test_an_object_is_its_tokens_times_the_bytes_of_one() -> None:
    assert MODELS["llama3.1-8b"].object_bytes(8192) == 2**30
    assert MODELS["llama3.1-70b-instruct"].object_bytes(131_072) == 40 * 2**30
    assert MODELS["deepseek-v3"].object_bytes(256) == 256 * 70_272
    assert MODELS["llama3.1-8b"].object_bytes(0) == 0


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_heads_are_split_over_the_ranks_but_a_latent_is_not(ranks: int) -> None:
    for name, per_token in BYTES_PER_TOKEN.items():
        share = 1 if name == "deepseek-v3" else ranks
        assert MODELS[name].object_bytes(512, ranks) == 512 * per_token // share


def test_a_share_that_does_not_come_out_even_is_rounded_up() -> None:
    assert MODELS["tiny-1b"].object_bytes(1, 5) == 4916  # of 24,576


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32])
def test_all_ranks_together_store_the_whole_and_more_only_where_they_outnumber_the_heads(
    ranks: int,
) -> None:
    for name in BYTES_PER_TOKEN:
        model = MODELS[name]
        whole = model.object_bytes(256)
        stored = model.rank_objects(ranks) * model.rank_bytes(whole, ranks)
        copies = 1 if model.attention_type == "mla" else max(1, ranks // model.kv_heads)
        assert stored == whole * copies, name


def test_layers_with_a_sliding_window_keep_the_end_of_a_turn() -> None:
    full, hybrid = MODELS["gpt-oss-120b"], MODELS["gpt-oss-120b-hybrid"]
    layer = full.bytes_per_token // 36
    assert hybrid.object_bytes(100, turn=True) == full.object_bytes(100, turn=True)
    assert hybrid.object_bytes(8192, turn=True) == 18 * layer * (8192 + 128)
    assert hybrid.object_bytes(8192) == full.object_bytes(8192)  # a block: all of all layers
    assert hybrid.object_bytes(8192, 4, turn=True) == 18 * layer * (8192 + 128) // 4
    small = MODELS["gpt-oss-20b-hybrid"]
    assert small.object_bytes(1000, turn=True) == 12 * layer * (1000 + 128)
    mistral = replace(MODELS["mistral-7b"], sliding_window=4096, sliding_layers=32)
    assert mistral.object_bytes(32_768, turn=True) == mistral.object_bytes(4096)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sliding_layers": 33, "sliding_window": 9}, "more than its 32 layers"),
        ({"sliding_layers": 1}, "needs a sliding_window"),
        (
            {"sliding_layers": 1, "sliding_window": 9, "attention_type": "mla", "kv_lora_rank": 1},
            "other than mla",
        ),
    ],
)
def test_windows_that_cannot_be_are_refused(changed: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelShape(name="mine", **changed)


def test_a_hugging_face_config_gives_the_same_geometry() -> None:
    llama = model_from_hf(HF_LLAMA, "config.json")
    assert llama.bytes_per_token == 131_072
    assert (llama.attention_type, llama.kv_heads, llama.head_dim) == ("gqa", 8, 128)
    assert (llama.name, llama.source, llama.dtype) == ("llama", "config.json", "bfloat16")


def test_all_heads_are_kv_heads_where_the_config_names_none() -> None:
    for changed in ({"num_key_value_heads": None}, {"num_key_value_heads": 32}):
        model = model_from_hf(HF_LLAMA | changed, "x")
        assert (model.attention_type, model.bytes_per_token) == ("mha", 524_288)


def test_a_head_dim_of_its_own_wins_over_hidden_size_by_heads() -> None:
    qwen = {
        "model_type": "qwen3",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    assert model_from_hf(qwen, "x").bytes_per_token == 262_144
    assert model_from_hf(qwen | {"head_dim": None}, "x").bytes_per_token == 163_840


def test_a_latent_is_read_from_its_rank_and_its_rotary_part() -> None:
    model = model_from_hf(HF_DEEPSEEK, "x")
    assert model.attention_type == "mla"
    assert model.bytes_per_token == 70_272
    assert model.object_bytes(10, tensor_parallel=8) == 702_720


def test_a_multimodal_config_is_read_from_its_text_part() -> None:
    wrapped = {"model_type": "llava", "hidden_size": 1, "text_config": HF_LLAMA}
    model = model_from_hf(wrapped, "x")
    assert model.bytes_per_token == 131_072
    assert model.name == "llava"


def test_gpt2s_own_words_are_understood() -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}
    assert model_from_hf(gpt2, "x").bytes_per_token == 2 * 12 * 768 * 2


@pytest.mark.parametrize(
    ("base", "key"),
    [
        (HF_LLAMA, "num_hidden_layers"),
        (HF_LLAMA, "hidden_size"),
        (HF_LLAMA, "num_attention_heads"),
        (HF_DEEPSEEK, "qk_rope_head_dim"),
    ],
)
def test_a_missing_key_is_named(base: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"here.json: {key} is missing"):
        model_from_hf({k: v for k, v in base.items() if k != key}, "here.json")


@pytest.mark.parametrize("wrong", ["32", 32.0, True, 0, -1, [32], {"n": 32}])
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"]
)
def test_a_value_that_is_no_whole_number_above_0_is_refused_by_name(key: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"here.json: {key} is .*whole number above 0"):
        model_from_hf(HF_LLAMA | {key: wrong}, "here.json")


@pytest.mark.parametrize("wrong", ["128", 128.5, -128, True, [1]])
def test_a_head_dim_of_a_wrong_type_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="head_dim"):
        model_from_hf(HF_LLAMA | {"head_dim": wrong}, "x")


@pytest.mark.parametrize("wrong", ["512", -512, 512.0, True])
def test_a_rank_of_a_wrong_type_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        model_from_hf(HF_DEEPSEEK | {"kv_lora_rank": wrong}, "x")


@pytest.mark.parametrize("wrong", ["llama", 7, [HF_LLAMA]])
def test_a_text_config_that_is_no_mapping_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="text_config"):
        model_from_hf({"text_config": wrong}, "x")


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"float4.*float16"):
        model_from_hf(HF_LLAMA | {"torch_dtype": "float4"}, "x")


def test_the_newer_name_of_the_dtype_is_read_too() -> None:
    config = {k: v for k, v in HF_LLAMA.items() if k != "torch_dtype"}
    assert model_from_hf(config | {"dtype": "float32"}, "x").bytes_per_token == 262_144
    assert model_from_hf(config, "x").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("num_layers", 0),
        ("hidden_dim", -1),
        ("num_heads", 0),
        ("kv_heads", 0),
        ("dtype", "float12"),
        ("attention_type", "linear"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(field: str, wrong: Any) -> None:
    given: dict[str, Any] = {field: wrong}
    with pytest.raises(ConfigError, match=field):
        ModelShape(name="mine", **given)


def test_a_latent_needs_its_rank() -> None:
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        ModelShape(name="mine", attention_type="mla")


HF_SLIDING: dict[str, Any] = HF_LLAMA | {"sliding_window": 4096}
HF_GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
HF_GEMMA_3_1B: dict[str, Any] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 26,
    "hidden_size": 1152,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
ALTERNATE = ["sliding_attention", "full_attention"] * 18


@pytest.mark.parametrize(
    ("config", "window", "layers"),
    [
        (HF_LLAMA, 0, 0),
        (HF_LLAMA | {"sliding_window": None}, 0, 0),
        (HF_SLIDING | {"model_type": "mistral"}, 4096, 32),  # Mistral-7B-v0.1
        (HF_GPT_OSS | {"layer_types": ALTERNATE}, 128, 18),
        (HF_GPT_OSS, 128, 18),
        (HF_GPT_OSS | {"layer_types": ["full_attention"] * 36}, 0, 0),
        (HF_GEMMA_3_1B, 512, 22),  # full are layers 6, 12, 18 and 24
        (HF_GEMMA_3_1B | {"sliding_window_pattern": None}, 512, 22),
        (HF_SLIDING | {"model_type": "gemma2"}, 4096, 16),
        (HF_SLIDING | {"model_type": "cohere2", "num_hidden_layers": 40}, 4096, 30),
        (HF_SLIDING | {"use_sliding_window": False, "max_window_layers": 28}, 0, 0),  # Qwen2
        (HF_SLIDING | {"max_window_layers": 28}, 0, 0),
        (HF_SLIDING | {"use_sliding_window": True, "max_window_layers": 28}, 4096, 4),
        (HF_SLIDING | {"use_sliding_window": True, "max_window_layers": 32}, 0, 0),
        (
            HF_LLAMA
            | {
                "layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8,
                "attention_chunk_size": 8192,
            },
            8192,
            24,
        ),  # Llama 4
        (HF_DEEPSEEK | {"sliding_window": 4096}, 0, 0),
    ],
)
def test_windows_are_read_from_what_each_family_calls_them(
    config: dict[str, Any], window: int, layers: int
) -> None:
    model = model_from_hf(config, "config.json")
    assert (model.sliding_window, model.sliding_layers) == (window, layers)


def test_layers_that_use_the_cache_of_others_are_not_counted() -> None:
    gemma_3n = HF_GPT_OSS | {"layer_types": ALTERNATE, "num_kv_shared_layers": 16}
    model = model_from_hf(gemma_3n, "config.json")
    assert (model.num_layers, model.sliding_layers) == (20, 10)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layer_types": ["linear_attention"] * 36}, "does not grow by the token"),
        ({"layer_types": ["full_attention"]}, "each of the 36 layers"),
        ({"layer_types": "sliding_attention"}, "each of the 36 layers"),
        ({"layer_types": ALTERNATE, "sliding_window": None}, "sliding_window is missing"),
        ({"sliding_window": "128"}, "sliding_window is '128'"),
        ({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern is 'LLLG'"),
        ({"global_head_dim": 512}, "global_head_dim"),
        ({"num_kv_shared_layers": 36}, "num_kv_shared_layers"),
    ],
)
def test_layers_that_cannot_be_counted_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"here.json: .*{said}"):
        model_from_hf(HF_GPT_OSS | changed, "here.json")


# --- families that are not read ---

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DeepSeek-V4-Flash": (
        {
            "model_type": "deepseek_v4", "num_hidden_layers": 43, "hidden_size": 4096,
            "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
            "sliding_window": 128, "compress_ratios": [0, 0, 4, 128, 4, 128], "index_head_dim": 128,
        },
        "compress_ratios",
    ),
    "Kimi-Linear-48B": (
        {
            "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304,
            "num_attention_heads": 32, "num_key_value_heads": 32, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "linear_attn_config": {"full_attn_layers": [4, 8, 12]},
        },
        "linear_attn_config",
    ),
    "Nemotron-3-Nano": (
        {
            "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 2688,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*",
        },
        "hybrid_override_pattern",
    ),
    "Jamba": (
        {
            "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096,
            "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8,
        },
        "attn_layer_period",
    ),
    "MiniMax-M1": (
        {
            "model_type": "minimax_m1", "num_hidden_layers": 80, "hidden_size": 6144,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
        },
        "attn_type_list",
    ),
    "Qwen3-Next": (
        {
            "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "full_attention_interval": 4,
        },
        "full_attention_interval",
    ),
    "DeepSeek-V3.2": (
        HF_DEEPSEEK | {"model_type": "deepseek_v32", "index_head_dim": 128},
        "index_head_dim",
    ),
    "GLM-5": (
        HF_DEEPSEEK | {"model_type": "glm_moe_dsa", "index_head_dim": 128},
        "index_head_dim",
    ),
    "MiMo-V2": (
        {
            "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096,
            "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
            "v_head_dim": 128, "swa_num_key_value_heads": 8,
        },
        "swa_num_key_value_heads, v_head_dim",
    ),
    "a family that is newer than this program": (HF_LLAMA | {"model_type": "llama9"}, "'llama9'"),
    "a file that names no family": ({"num_hidden_layers": 3}, "no model_type"),
}  # fmt: skip
"""Published keys of each, and the one that tells that a token does not cost what heads and layers
say."""

RIGHT = {
    "DeepSeek-V4-Flash": 6_880,
    "Kimi-Linear-48B": 8_064,
    "Nemotron-3-Nano": 6_144,
    "Jamba": 16_384,
    "MiniMax-M1": 40_960,
    "Qwen3-Next": 24_576,
    "DeepSeek-V3.2": 85_888,
}
"""Bytes of a token in bf16 (facts of the field, section 3)."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_is_not_read_is_refused_with_what_tells_and_a_way_out(name: str) -> None:
    config, telling = REFUSED[name]
    with pytest.raises(ConfigError, match=f"here.json: .*{telling}.*--kv-bytes-per-token N"):
        model_from_hf(config, "here.json")


@pytest.mark.parametrize("key", ["compress_ratios", "linear_attn_config", "index_head_dim"])
def test_a_known_family_with_a_key_that_is_not_read_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"model_type 'llama' with {key}"):
        model_from_hf(HF_LLAMA | {key: [4, 128]}, "x")
    nothing: Any
    for nothing in (None, 0, [], {}, False):
        assert model_from_hf(HF_LLAMA | {key: nothing}, "x").bytes_per_token == 131_072


def test_a_list_that_says_of_all_layers_that_they_are_full_is_read() -> None:
    minimax_m2 = {
        "model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "attn_type_list": [1] * 62,
    }  # fmt: skip
    assert model_from_hf(minimax_m2, "x").bytes_per_token == 253_952


@pytest.mark.parametrize("name", RIGHT)
def test_stated_bytes_make_a_family_that_is_not_read_usable(name: str) -> None:
    model = model_from_hf(REFUSED[name][0], "here.json", RIGHT[name])
    assert model.bytes_per_token == RIGHT[name]
    assert model.object_bytes(256) == 256 * RIGHT[name]
    assert model.object_bytes(100_000, turn=True) == 100_000 * RIGHT[name]
    assert model.object_bytes(3, tensor_parallel=2) == -(-3 * RIGHT[name] // 2)
    assert model.num_layers == REFUSED[name][0]["num_hidden_layers"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"head_dim": 0}, "head_dim is 0, it must be a whole number above 0"),
        ({"num_key_value_heads": 64}, "num_key_value_heads is 64, more than the 32"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, and no model"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000, and no model"),
        ({"num_attention_heads": 10**5}, "num_attention_heads is 100000, and no model"),
        ({"head_dim": 10**7}, "head_dim is 10000000, and no model"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"kv_lora_rank": 512}, "model_type 'llama' with kv_lora_rank"),
    ],
)
def test_numbers_that_no_model_has_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"here.json: {said}"):
        model_from_hf(HF_LLAMA | changed, "here.json")
