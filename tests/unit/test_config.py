"""The configuration: strict reading, printing that loads back, and what follows from presets."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kv_cache.cache.limits import CacheRules
from kv_cache.config import yaml_files
from kv_cache.config.load import load_config
from kv_cache.config.reference import NOT_YET
from kv_cache.config.root import Config, options
from kv_cache.config.rules import check
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.schema import describe, from_mapping, print_config, to_mapping
from kv_cache.config.unread import value_at
from kv_cache.config.yaml_files import find_shipped, read_yaml
from kv_cache.core.errors import ConfigError
from kv_cache.core.model import MODELS

REFERENCE_YAML = Path(__file__).parents[2] / "configs" / "reference.yaml"

REFERENCE_KEYS: Mapping[str, Any] = {
    "user_templates": {
        "chatbot": {
            "context_range": [512, 4096],
            "generation_range": [50, 200],
            "think_time_range": [0.1, 0.5],
        },
        "coding": {
            "context_range": [4096, 25000],
            "generation_range": [100, 500],
            "think_time_range": [0.2, 1.0],
        },
        "document": {
            "context_range": [4096, 16384],
            "generation_range": [200, 800],
            "think_time_range": [0.3, 1.5],
        },
    },
    "generation_timing": {"none": 0.0, "fast": 0.002, "realistic": 0.03},
    "qos_profiles": {
        "interactive": {
            "target_latency_p95_ms": 50,
            "target_latency_p99_ms": 100,
            "target_latency_p999_ms": 150,
            "target_latency_p9999_ms": 200,
            "priority": 3,
        },
        "responsive": {
            "target_latency_p95_ms": 100,
            "target_latency_p99_ms": 200,
            "target_latency_p999_ms": 350,
            "target_latency_p9999_ms": 500,
            "priority": 2,
        },
        "batch": {
            "target_latency_p95_ms": 1000,
            "target_latency_p99_ms": 5000,
            "target_latency_p999_ms": 7500,
            "target_latency_p9999_ms": 10000,
            "priority": 1,
        },
    },
    "qos_distribution": {"interactive_probability": 0.15, "responsive_threshold": 0.5},
    "eviction": {
        "max_recursion_depth": 10,
        "target_usage_ratio": 0.8,
        "large_entry_limit_ratio": 0.95,
        "max_evictions_hard_cap": 5000,
        "max_evictions_min": 1000,
    },
    "gpu_backend": {
        "memory_fraction": 0.8,
        "max_eviction_attempts": 100,
        "free_memory_threshold": 0.1,
    },
    "prefix_cache": {
        "min_prefix_length": 50,
        "max_prefix_entries": 1000,
        "system_prompt_hit_probability": 0.2,
    },
    "rag": {
        "chunk_size_tokens": 512,
        "top_k_chunks": 5,
        "max_chunk_bytes": 268435456,
        "request_probability": 0.1,
        "retrieval_distribution": "zipfian",
        "max_documents": 0,
        "large_model_doc_tokens_min": 1024,
        "large_model_doc_tokens_max": 4096,
        "small_model_doc_tokens_min": 4000,
        "small_model_doc_tokens_max": 12000,
    },
    "conversation": {
        "max_conversations": 1000,
        "max_turns_per_conv": 50,
        "end_conversation_probability": 0.2,
    },
    "autoscaler": {
        "min_users": 1,
        "max_users": 10000,
        "scale_up_factor": 1.2,
        "scale_down_factor": 0.8,
        "consecutive_samples_required": 2,
    },
    "decode": {"batch_size": 32},
    "sharegpt": {
        "max_context_tokens": 8192,
        "max_generation_tokens": 2048,
        "chars_per_token_estimate": 4,
    },
    "saturation_detection": {
        "read_latency_p95_threshold_ms": 100,
        "write_latency_p95_threshold_ms": 50,
        "queue_depth_threshold": 100,
        "history_window_size": 10,
    },
    "validation_limits": {
        "max_users": 100000,
        "max_duration_seconds": 86400,
        "max_gpu_memory_gb": 65536,
        "max_cpu_memory_gb": 131072,
    },
}


def build(mapping: object) -> Config:
    config = from_mapping(Config, mapping)
    check(config)
    return config


def refusal(mapping: object) -> str:
    with pytest.raises(ConfigError) as caught:
        build(mapping)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def nest(path: str, value: object) -> dict[str, Any]:
    *parents, last = path.split(".")
    tree: dict[str, Any] = {last: value}
    for name in reversed(parents):
        tree = {name: tree}
    return tree


class TestDefaults:
    def test_are_valid_and_without_warnings(self) -> None:
        config = load_config(None)
        check(config)
        assert config == Config()
        assert config_warnings(config) == []

    def test_each_default_keeps_its_own_rule(self) -> None:
        for option in describe(Config):
            assert value_at(
                from_mapping(Config, nest(option.path, option.default)), option.path
            ) == (option.default)

    def test_each_option_explains_itself(self) -> None:
        for option in describe(Config):
            assert option.rule.help
            assert "\n" not in option.rule.help
            assert option.rule.help.isprintable()

    def test_flags_are_unique(self) -> None:
        flags = [option.flag for option in describe(Config) if option.flag]
        assert len(flags) == len(set(flags))

    def test_reference_yaml_is_current(self) -> None:
        assert REFERENCE_YAML.read_text(encoding="utf-8") == print_config(Config()), (
            "write it anew: python kv-cache.py config > configs/reference.yaml"
        )


class TestStrictReading:
    @pytest.mark.parametrize(
        ("mapping", "words"),
        [
            ({"rum": {}}, ["rum is not a known key", "Did you mean 'run'?"]),
            ({"run": {"num_user": 1}}, ["run.num_user is not", "Did you mean 'num_users'?"]),
            ({"sim": {"nvme": {"server": 1}}}, ["sim.nvme.server", "'servers'"]),
            ({1: 2}, ["1 is not a known key"]),
            ([1], ["the top level is [1]", "mapping"]),
            ({"run": 5}, ["run is 5", "mapping"]),
            ({"run": {"num_users": True}}, ["run.num_users is true", "whole number, 1 to 100000"]),
            ({"run": {"num_users": 5.0}}, ["is 5.0", "whole number"]),
            ({"run": {"num_users": "5"}}, ["is '5'", "whole number"]),
            ({"run": {"num_users": 0}}, ["is 0", "1 to 100000"]),
            ({"run": {"num_users": None}}, ["is empty (null)", "whole number"]),
            ({"run": {"slo_ms": float("nan")}}, ["run.slo_ms is nan", "a number"]),
            ({"run": {"slo_ms": float("inf")}}, ["is inf"]),
            ({"run": {"slo_ms": 10**400}}, ["run.slo_ms is 1"]),
            ({"run": {"slo_ms": True}}, ["is true"]),
            ({"run": {"duration_s": 0}}, ["above 0, at most 86400"]),
            ({"run": {"virtual_time": 1}}, ["is 1", "true or false"]),
            ({"run": {"model": 7}}, ["is 7", "quotes"]),
            ({"run": {"model": ""}}, ["not empty"]),
            ({"tiers": {"eviction": "lur"}}, ["one of", "Did you mean 'lru'?"]),
            ({"io": {"buffer_mib": 3}}, ["one of 1, 2, 4"]),
            (
                {"user_templates": {"chatbot": {"context_range": [9, 1]}}},
                ["[9, 1]", "first number"],
            ),
            ({"user_templates": {"chatbot": {"context_range": [9]}}}, ["pair [low, high]"]),
            ({"user_templates": {"chatbot": {"context_range": [1, 2.0]}}}, ["has 2.0 in it"]),
            ({"user_templates": {"chatbot": {"context_range": [0, 2]}}}, ["has 0 in it"]),
            ({"user_templates": {"chatbot": {"think_time_range": [0, float("nan")]}}}, ["has nan"]),
            ({"prefix_cache": {"prompt_tokens": []}}, ["list, not empty"]),
            ({"model_configs": {"x": {"kv_head": 3}}}, ["model_configs.x.kv_head", "'kv_heads'"]),
            ({"model_configs": {3: {}}}, ["has the key 3"]),
            ({"cpcs": {"x": {"y": 1}}}, ["cpcs.x is a mapping", "plain value"]),
            ({"cpcs": {"x": [[1]]}}, ["cpcs.x is a list of 1", "plain value"]),
        ],
    )
    def test_one_sentence_names_place_rule_and_way_out(
        self, mapping: object, words: list[str]
    ) -> None:
        text = refusal(mapping)
        for word in words:
            assert word in text

    def test_where_stands_in_front(self) -> None:
        with pytest.raises(ConfigError, match=r"^a\.yaml: run\.seed is -1; it must be"):
            from_mapping(Config, {"run": {"seed": -1}}, "a.yaml")

    def test_whole_numbers_are_fine_floats(self) -> None:
        config = build({"run": {"duration_s": 5}, "tiers": {"gpu_mem_gib": 0}})
        assert isinstance(config.run.duration_s, float)
        assert config.tiers.gpu_mem_gib == 0.0

    def test_a_section_keeps_its_own_defaults(self) -> None:
        config = build({"user_templates": {"coding": {"think_time_range": [1, 2]}}})
        assert config.user_templates.coding.context_range == (4096, 25_000)
        assert config.user_templates.coding.think_time_range == (1.0, 2.0)

    def test_an_empty_section_is_the_default(self) -> None:
        assert build({"run": None, "sim": {"gpu": None}}) == Config()

    def test_yaml_off_is_a_word_where_off_is_a_choice(self) -> None:
        assert build({"io": {"verify": False}}).io.verify == "off"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
names = sorted({name for path in options() for name in path.split(".")})


def shaped(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Garbage that stands at the paths of options."""
    return st.dictionaries(st.sampled_from(sorted(options())), leaves, max_size=4).map(
        lambda flat: _merge([nest(path, value) for path, value in flat.items()])
    )


def _merge(trees: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            old = merged.get(key)
            if isinstance(old, dict) and isinstance(value, dict):
                value = _merge([old, value])
            merged[key] = value
    return merged


class TestGarbage:
    @settings(deadline=None)
    @given(
        json_like
        | shaped(json_like)
        | st.dictionaries(st.sampled_from(names) | st.integers(), json_like, max_size=4)
    )
    @example({"run": {"seed": int("9" * 4000) ** 2}})
    @example({"run": {"slo_ms": int("9" * 4000) ** 2}})
    @example({10**5000: 1})
    @example({"a\nb": 1})
    @example({"cpcs": {"mode": []}})
    def test_never_anything_but_config_error(self, garbage: object) -> None:
        message = ""
        try:
            config = from_mapping(Config, garbage)
            check(config)
            config_warnings(config)
            config.model_shape()
        except ConfigError as error:
            message = str(error)
        assert "\n" not in message

    @settings(deadline=None)
    @given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    @example(b"run: {model: [")
    @example(b"&a [*a]")
    @example(b"a: &a {b: *a}")
    @example(b"? [1]: 2")
    @example(b"x: " + b"9" * 5000)
    @example(b"x: 2001-99-99")
    @example(b"[" * 3000)
    @example(b"\xff\xfe\x00")
    @example(b"!!python/object:os.system {}")
    def test_no_file_breaks_the_reader(
        self, tmp_path_factory: pytest.TempPathFactory, data: bytes
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "garbage.yaml"
        path.write_bytes(data)
        message = str(path)
        try:
            load_config(path)
        except ConfigError as error:
            message = str(error)
        assert str(path) in message


class TestPrinting:
    def test_prints_what_loads_back(self, tmp_path: Path) -> None:
        config = build(
            {
                "run": {"seed": 0, "slo_ms": 1e-7, "model": "yes: # no", "duration_s": 1e5 / 3},
                "io": {"verify": "off", "fsync": "never"},
                "semantics": {"write_behind": True},
                "prefix_cache": {"prompt_tokens": [7]},
                "tiers": {"cache_dir": "/tmp/é\t" + "long " * 60},
                "model_configs": {"a: b": {"num_layers": 3}},
                "cpcs": {"mode": "off", "puid": 3958376449},
            }
        )
        assert load_config(written(tmp_path, print_config(config))) == config

    @settings(deadline=None)
    @given(shaped(json_like))
    def test_any_config_loads_back(
        self, tmp_path_factory: pytest.TempPathFactory, tree: object
    ) -> None:
        try:
            config = build(tree)
        except ConfigError:
            config = Config()
        if "nan" in repr(config.cpcs):  # the section that nobody looks into
            return
        path = tmp_path_factory.getbasetemp() / "printed.yaml"
        path.write_text(print_config(config), encoding="utf-8")
        assert load_config(path) == config

    def test_each_option_has_a_comment_above_it(self) -> None:
        lines = print_config(Config()).splitlines()
        assert max(map(len, lines)) <= 100
        for option in describe(Config):
            name = option.path.split(".")[-1]
            indent = "  " * option.path.count(".")
            spots = [i for i, line in enumerate(lines) if line.startswith(f"{indent}{name}: ")]
            assert spots, option.path
            assert all(lines[i - 1].startswith(f"{indent}# ") for i in spots)

    def test_plain_values_build_it_again(self) -> None:
        plain = to_mapping(Config())
        assert json.loads(json.dumps(plain)) == plain
        assert build(plain) == Config()


class TestReferenceKeys:
    def test_all_at_once(self) -> None:
        assert build(REFERENCE_KEYS) == Config()

    def test_as_in_the_reference_file(self) -> None:
        """Its file differs from its code in these, and lists models by other names."""
        mapping = copy.deepcopy(dict(REFERENCE_KEYS))
        mapping["gpu_backend"]["memory_fraction"] = 0.9
        mapping["validation_limits"].update(max_gpu_memory_gb=1024, max_cpu_memory_gb=16384)
        mapping["model_configs"] = {"deepseek-v3": {"name": "Deepseek v3", "num_layers": 61}}
        mapping["cpcs"] = {"mode": False, "load_program_puid": 3958376449}
        config = build(mapping)
        assert config.gpu_backend.memory_fraction == 0.9

    @pytest.mark.parametrize(
        ("path", "why"),
        [
            (path, why)
            for key, why in NOT_YET.items()
            for path in sorted(options())
            if path == key or path.startswith(f"{key}.")
        ],
    )
    def test_what_is_not_yet_there_is_refused_when_changed(self, path: str, why: str) -> None:
        option = options()[path]
        other = "uniform" if option.kind is str else option.default / 2
        if option.kind is int:
            other = option.default + 1
        text = refusal(nest(path, other))
        assert path in text
        assert why in text
        assert f"leave it at {option.default!r}" in text

    def test_each_entry_of_the_table_names_something(self) -> None:
        for key in NOT_YET:
            assert any(path == key or path.startswith(f"{key}.") for path in options())

    @pytest.mark.parametrize(
        "cpcs", [{"mode": "noop"}, {"nvme_backend": "cpcs"}, {"enabled": True}]
    )
    def test_computational_storage_is_refused_when_asked_for(self, cpcs: dict[str, Any]) -> None:
        assert "computational storage is not in this version" in refusal({"cpcs": cpcs})

    @pytest.mark.parametrize(
        "mapping",
        [
            {"validation_limits": {"max_users": 99}},
            {"validation_limits": {"max_gpu_memory_gb": 8}, "tiers": {"gpu_mem_gib": 9}},
            {"validation_limits": {"max_cpu_memory_gb": 8}, "tiers": {"cpu_mem_gib": 9}},
            {"validation_limits": {"max_duration_seconds": 8}, "run": {"duration_s": 9}},
        ],
    )
    def test_validation_limits_bind(self, mapping: dict[str, Any]) -> None:
        assert "validation_limits.max_" in refusal(mapping)


class TestRulesBetweenOptions:
    @pytest.mark.parametrize(
        ("mapping", "word"),
        [
            ({"tiers": {"tensor_parallel": 2}}, "--num-gpus"),
            ({"arrival": {"process": "gamma", "mode": "open"}}, "--request-rate"),
            (
                {
                    "arrival": {"mode": "open"},
                    "user_templates": {"coding": {"think_time_range": [0, 0]}},
                },
                "user_templates.coding.think_time_range is 0 s at most",
            ),
            (
                {
                    "arrival": {"mode": "open"},
                    "lengths": {"think_s": {"law": "uniform", "low": 0, "high": 0}},
                },
                "ask for everything at one instant",
            ),
            ({"workload": {"replay_cycles": 1}}, "only a trace has cycles"),
            ({"workload": {"trace": "x", "use_burst_trace": True}}, "replays one trace"),
            ({"qos_distribution": {"interactive_probability": 0.6}}, "cumulative"),
            ({"qos_profiles": {"batch": {"target_latency_p95_ms": 1e6}}}, "shorter target"),
        ],
    )
    def test_refused(self, mapping: dict[str, Any], word: str) -> None:
        assert word in refusal(mapping)

    @pytest.mark.parametrize(
        ("mapping", "word"),
        [
            ({"tiers": {"tensor_parallel": 3, "num_gpus": 3}}, "power of two"),
            ({"workload": {"trace_speedup": 2}}, "no trace is replayed"),
            ({"arrival": {"cv": 3}}, "no effect, as arrival.process is 'fixed'"),
            ({"autoscaler": {"mode": "predictive"}}, "no effect without --enable-autoscaling"),
            ({"rag": {"num_docs": 7}}, "no effect without --enable-rag"),
        ],
    )
    def test_warned(self, mapping: dict[str, Any], word: str) -> None:
        (warning,) = config_warnings(build(mapping))
        assert word in warning


class TestWhatFollows:
    def test_window(self) -> None:
        assert Config().window_s() == 60.0
        assert build({"run": {"max_requests": 5}}).window_s() is None
        assert build({"workload": {"trace": "x", "replay_cycles": 1}}).window_s() is None
        assert build({"run": {"max_requests": 5, "duration_s": 7}}).window_s() == 7.0

    def test_mlperf_preset(self) -> None:
        semantics = Config().lifecycle_semantics(synthetic=True)
        assert not semantics.reuse_prefix
        assert semantics.decode_rereads
        assert not semantics.promote
        assert not semantics.write_behind
        assert not semantics.gpu_in_place
        assert semantics.prefill_only_from_tokens == 10_000
        assert semantics.decode_batch_tokens == 32
        assert semantics.decode_ns_per_token == 30_000_000
        assert Config().fsync() == "object"
        assert Config().resolved_block_tokens(0) == 0
        assert Config().lifecycle_semantics(synthetic=False).prefill_only_from_tokens == 0

    def test_serving_preset(self) -> None:
        config = build({"semantics": {"preset": "serving"}, "run": {"generation_mode": "none"}})
        semantics = config.lifecycle_semantics(synthetic=True)
        assert semantics.reuse_prefix
        assert not semantics.decode_rereads
        assert semantics.promote
        assert semantics.write_behind
        assert semantics.gpu_in_place
        assert semantics.prefill_only_from_tokens == 0
        assert semantics.decode_ns_per_token == 0
        assert config.fsync() == "never"
        assert config.resolved_block_tokens(0) == 256
        assert config.resolved_block_tokens(512) == 512

    def test_what_is_given_wins_over_the_preset(self) -> None:
        config = build(
            {
                "semantics": {
                    "preset": "serving",
                    "reuse": "each",
                    "promote": False,
                    "block_tokens": 0,
                    "prefill_only_from_tokens": 7,
                    "prefill_ms_per_token": 0.5,
                    "write_behind_full": "drop",
                },
                "io": {"fsync": "batch"},
                "decode": {"batch_size": 8},
            }
        )
        semantics = config.lifecycle_semantics(synthetic=False)
        assert not semantics.reuse_prefix
        assert not semantics.promote
        assert semantics.write_behind_drop
        assert semantics.prefill_only_from_tokens == 7
        assert semantics.prefill_ns_per_token == 500_000
        assert semantics.decode_batch_tokens == 8
        assert config.resolved_block_tokens(512) == 0
        assert config.fsync() == "batch"

    def test_cache_rules_have_the_same_defaults(self) -> None:
        assert Config().cache_rules() == CacheRules()
        assert build({"eviction": {"max_evictions_min": 3}}).cache_rules().max_evictions_min == 3


class TestModels:
    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_built_in(self, name: str) -> None:
        assert build({"run": {"model": name}}).model_shape() == MODELS[name]

    def test_fields_are_put_over_the_built_in(self) -> None:
        mapping = {"model_configs": {"llama3.1-8b": {"num_layers": 16, "kv_heads": 8}}}
        shape = build(mapping).model_shape()
        assert shape.bytes_per_token == MODELS["llama3.1-8b"].bytes_per_token // 2
        assert "changed by model_configs" in shape.source

    def test_an_equal_override_changes_nothing(self) -> None:
        mapping = {"model_configs": {"llama3.1-8b": {"num_layers": 32, "attention_type": "gqa"}}}
        assert build(mapping).model_shape() == MODELS["llama3.1-8b"]

    def test_a_new_model(self) -> None:
        mapping = {"run": {"model": "mine"}, "model_configs": {"mine": {"num_layers": 1}}}
        shape = build(mapping).model_shape()
        assert shape.name == "mine"
        assert shape.bytes_per_token == 2 * 8 * 128 * 2

    def test_unknown_names_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"Did you mean 'llama3\.1-8b'\?"):
            build({"run": {"model": "llama3-8b"}}).model_shape()

    def test_a_model_of_no_bytes_is_refused(self) -> None:
        mapping = {"run": {"model": "m"}, "model_configs": {"m": {"hidden_dim": 1}}}
        with pytest.raises(ConfigError, match="0 bytes of KV state"):
            build(mapping).model_shape()

    def test_hugging_face_file_and_directory(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        shape = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
        shape |= {"hidden_size": 64}
        file.write_text(json.dumps(shape), encoding="utf-8")
        for place in (file, tmp_path):
            model = build({"run": {"model": str(place)}}).model_shape()
            assert model.bytes_per_token == 2 * 2 * 4 * 16 * 2

    @pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"hidden_size": 1}'])
    def test_a_bad_model_file_is_one_sentence(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "config.json"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"config\.json"):
            build({"run": {"model": str(file)}}).model_shape()


class TestFiles:
    def test_overrides_win(self, tmp_path: Path) -> None:
        path = written(tmp_path, "run:\n  num_users: 3\n  seed: 4\n")
        config = load_config(path, {"run.num_users": 5, "tiers.cache_dir": "x"})
        assert (config.run.num_users, config.run.seed) == (5, 4)
        assert config.tiers.cache_dir == ("x",)

    def test_an_empty_file_is_the_defaults(self, tmp_path: Path) -> None:
        assert load_config(written(tmp_path, "# nothing\n")) == Config()

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (
                "run:\n  seed: 1\n  model: x\n  seed: 2\n",
                ["line 4", "duplicate key 'seed'", "line 2"],
            ),
            ("run: {seed: 1, seed: 1}\n", ["line 1", "duplicate key 'seed'"]),
            ("run:\n\tseed: 1\n", ["line 2", "tab"]),
            ("run: [1\nx: 2\n", ["line 2"]),
            ("- 1\n", ["the top level is [1]", "mapping"]),
            ("7\n", ["the top level is 7"]),
            ("a: 1\n---\nb: 2\n", ["line 2"]),
            ("run:\n  seed: !!python/name:os.system\n", ["line 2"]),
            ("run:\n  seed: \x01\n", ["line 2", "text never has"]),
        ],
    )
    def test_bad_yaml_names_the_line(self, tmp_path: Path, text: str, words: list[str]) -> None:
        path = written(tmp_path, text)
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        for word in [str(path), *words]:
            assert word in str(caught.value)

    def test_merge_keys_are_not_duplicates(self, tmp_path: Path) -> None:
        text = "a: {mid: &m {<<: &b {x: 1}, x: 2}}\ntop: {<<: *m, y: 3}\n"
        assert read_yaml(written(tmp_path, text)) == {
            "a": {"mid": {"x": 2}},
            "top": {"x": 2, "y": 3},
        }

    def test_numbers_with_an_exponent_are_numbers(self, tmp_path: Path) -> None:
        assert read_yaml(written(tmp_path, "[1e3, -2E-3, 1.5e+2]")) == [1000.0, -0.002, 150.0]

    def test_missing_names_the_shipped_ones(self) -> None:
        with pytest.raises(ConfigError, match="Did you mean 'reference'"):
            load_config(Path("referense"))

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a directory"):
            load_config(tmp_path)

    def test_binary_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        path.write_bytes(b"a\xff\x00")
        with pytest.raises(ConfigError, match="not UTF-8"):
            load_config(path)

    @pytest.mark.parametrize("name", ["reference", "reference.yaml", "configs/reference.yaml"])
    def test_shipped_names(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert load_config(Path(name)) == Config()

    def test_a_shipped_file_is_found_and_nothing_outside_of_its_folder(self) -> None:
        assert find_shipped("configs", "reference.yaml") == REFERENCE_YAML
        for name in ("none.yaml", "../pyproject.toml", "a\0b", "x" * 5000):
            assert find_shipped("configs", name) is None

    def test_data_inside_an_installed_package_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inside = tmp_path / "kv_cache" / "_data" / "datasets"
        inside.mkdir(parents=True)
        (inside / "t.csv").touch()
        monkeypatch.setattr(yaml_files, "_PACKAGE", tmp_path / "kv_cache")
        assert find_shipped("datasets", "t.csv") == inside / "t.csv"
        config = build({"workload": {"trace": "datasets/t.csv"}})
        assert config.trace_path() == inside / "t.csv"

    def test_a_trace_of_ones_own_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "datasets").mkdir()
        (tmp_path / "datasets" / "t.csv").touch()
        config = build({"workload": {"trace": "datasets/t.csv"}})
        assert config.trace_path() == Path("datasets/t.csv")
        assert Config().trace_path() is None
        burst = build({"workload": {"use_burst_trace": True}})
        assert burst.trace_path() == Path("BurstGPT/data/BurstGPT_1.csv")
