"""Bytes of KV state per token, against numbers that were worked out elsewhere."""

from dataclasses import replace
from typing import Any

import pytest

from kv_cache.core.errors import ConfigError
from kv_cache.core.model import DTYPE_BYTES, MODELS, ModelShape, model_from_hf

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
    "gpt-oss-120b": 73_728,
    "gpt-oss-20b": 49_152,
}
"""16-bit, the whole model: the reference's table, and the published geometries for the rest."""

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


@pytest.mark.parametrize(("dtype", "size"), sorted(DTYPE_BYTES.items()))
def test_bytes_scale_with_the_width_of_a_number(dtype: str, size: int) -> None:
    for name, per_token in BYTES_PER_TOKEN.items():
        assert replace(MODELS[name], dtype=dtype).bytes_per_token == per_token // 2 * size


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
    gpt2 = {"n_layer": 12, "n_embd": 768, "n_head": 12}
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
