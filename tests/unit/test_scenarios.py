"""Scenario files: what they say, at which scale, what varies, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_rules import kv_bytes_per_token
from kv_cache.config.scenario_trace import open_work
from kv_cache.config.scenarios import (
    PRESETS,
    SCHEMA,
    Scenarios,
    check,
    overlaid,
    read_scenarios,
    scenario_names,
    seed_of,
)
from kv_cache.config.schema import from_mapping, print_config
from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.errors import ConfigError, TraceError

LEAST: dict[str, Any] = {"name": "least", "instances": {"gpu": {"count": 2}}}


def read(tmp_path: Path, tree: Any, preset: str | None = None, *sets: str) -> Scenarios:
    path = tmp_path / "made.yaml"
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree, sort_keys=False))
    return read_scenarios(path, preset, sets)


def of(values: dict[str, Any]) -> Scenario:
    return overlaid(from_mapping(Scenario, LEAST), values, "")


def test_a_scenario_alone_is_one_simulation_with_its_own_seed(tmp_path: Path) -> None:
    found = read(tmp_path, {**LEAST, "seed": 7})
    found.check()
    (only,) = found.variants()
    assert (only.name, only.values, only.repeat, only.scenario.seed) == ("", {}, 0, 7)
    assert only.scenario.instances["gpu"].count == 2


def test_all_axes_are_combined_and_every_point_is_repeated_with_seeds_of_its_own(
    tmp_path: Path,
) -> None:
    found = read(
        tmp_path,
        {
            **LEAST,
            "variants": {"near": {}, "far": {"network.nic.latency_us": 50}},
            "vary": {"tiers.dram.capacity_gib": [0, 4]},
            "zip": {"workload.rate_per_s": [1, 2], "workload.requests": [10, 20]},
            "seeds": 2,
        },
    )
    found.check()
    made = list(found.variants())
    assert len(made) == found.size == 2 * 2 * 2 * 2
    assert [v.repeat for v in made[:4]] == [0, 1, 0, 1]
    names = list(dict.fromkeys(v.name for v in made))
    assert names[:2] == [
        "near, dram.capacity_gib=0, rate_per_s=1, requests=10",
        "near, dram.capacity_gib=0, rate_per_s=2, requests=20",
    ]
    assert len(set(names)) == 8
    assert {v.scenario.network.nic.latency_us for v in made if v.name.startswith("far")} == {50.0}
    assert {v.scenario.network.nic.latency_us for v in made if v.name.startswith("near")} == {5.0}
    assert {v.scenario.seed for v in made} == {42, seed_of(42, 1)}
    assert made[-1].values == {
        "network.nic.latency_us": 50, "tiers.dram.capacity_gib": 4, "workload.rate_per_s": 2,
        "workload.requests": 20,
    }  # fmt: skip


def test_names_hold_the_section_where_only_that_tells_options_apart(tmp_path: Path) -> None:
    varied: dict[str, list[Any]] = {
        "scheduler.max_num_seqs": [8],
        "instances.gpu.max_num_seqs": [4],
    }
    (only,) = read(tmp_path, {**LEAST, "vary": varied}).variants()
    assert only.name == "max_num_seqs=8, gpu.max_num_seqs=4"
    varied = {"tiers.dram.scope": ["node"], "router.kind": ["round-robin"], "router.decode": [
        "round-robin"]}  # fmt: skip
    (only,) = read(tmp_path, {**LEAST, "vary": varied}).variants()
    assert only.name == "dram.scope=node, kind=round-robin, decode=round-robin"


def test_a_preset_changes_the_scale_and_takes_values_of_what_varies_away(tmp_path: Path) -> None:
    tree = {
        **LEAST,
        "vary": {"tiers.rack_pool.capacity_gib": [0, 1, 2]},
        "seeds": 3,
        "presets": {
            "smoke": {
                "workload.requests": 5, "instances.gpu.count": 1, "seeds": 1,
                "tiers.rack_pool.capacity_gib": [0, 2],
            },
            "full": {},
        },
    }  # fmt: skip
    small, full = read(tmp_path, tree, "smoke"), read(tmp_path, tree, "full")
    assert (small.size, full.size) == (2, 9)
    assert small.base.workload.requests == 5
    assert small.base.instances["gpu"].count == 1
    assert full.base == read(tmp_path, tree).base
    assert read(tmp_path, tree, "prod-eval").base == full.base  # as a public simulator calls it
    assert [v.scenario.tiers.rack_pool.capacity_gib for v in small.variants()] == [0, 2]


def test_settings_lie_over_the_file_and_its_preset(tmp_path: Path) -> None:
    tree = {
        **LEAST,
        "vary": {"workload.rate_per_s": [1, 2], "tiers.dram.capacity_gib": [0, 4]},
        "presets": {"smoke": {"workload.requests": 5}},
    }
    found = read(
        tmp_path, tree, "smoke", "workload.requests=9", "workload.turns=[1, 3]", "seeds=2",
        "workload.rate_per_s=[3, 4, 5]", "tiers.dram.capacity_gib=7", "name=other",
        "instances.gpu.max_num_seqs=null",
    )  # fmt: skip
    assert (found.base.workload.requests, found.base.workload.turns) == (9, (1, 3))
    assert found.base.tiers.dram.capacity_gib == 7
    assert found.base.name == "other"
    assert found.paths == ("workload.rate_per_s",)
    assert found.size == 6


def test_the_effective_scenario_reads_back_equal(tmp_path: Path) -> None:
    for name in scenario_names():
        for variant in read_scenarios(Path(name)).variants():
            text = print_config(variant.scenario)
            path = tmp_path / "printed.yaml"
            path.write_text(text)
            assert read_scenarios(path).base == variant.scenario
            break


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_asks_a_question_at_three_scales(name: str) -> None:
    sizes = []
    for preset in PRESETS:
        found = read_scenarios(Path(name), preset)
        found.check()
        assert found.base.name == name
        assert found.base.question.endswith("?")
        sizes.append(sum(v.scenario.workload.drawn_requests for v in found.variants()))
    assert sizes == sorted(sizes)
    assert sizes[0] <= 2000
    assert read_scenarios(Path("configs/scenarios") / name).base == read_scenarios(Path(name)).base


def test_shipped_scenarios_answer_the_questions_of_the_three_simulators() -> None:
    assert set(scenario_names()) == {
        "single-node", "admission", "rack-pool", "eviction", "context-length",
        "unified-vs-separated",
        "pd-ratio", "transfer", "network-variance", "unequal-gpus", "b13", "cluster-10k", "pd-10k",
        "h100-70b", "node-policies", "interconnect", "classes",
    }  # fmt: skip


def test_a_unified_cluster_is_compared_with_the_same_batching() -> None:
    found = list(read_scenarios(Path("unified-vs-separated")).variants())
    schedulers = {v.scenario.scheduler for v in found}
    roles = {tuple(g.role for g in v.scenario.instances.values()) for v in found}
    assert (len(schedulers), roles) == (1, {("mixed", "mixed"), ("prefill", "decode")})


def test_the_largest_shipped_clusters_have_10240_instances() -> None:
    for name in ("cluster-10k", "pd-10k"):
        (only,) = read_scenarios(Path(name)).variants()
        assert sum(group.count for group in only.scenario.instances.values()) == 10_240
        assert kv_bytes_per_token(only.scenario.model) == 327_680


VARIED = {**LEAST, "vary": {"workload.rate_per_s": [1, 2]}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("- 1", "a scenario is a mapping of sections"),
        ("a: [", "line 1"),
        ("name: a\nname: b", "duplicate key 'name'"),
        ({**LEAST, "instnces": {}}, "Did you mean 'instances'?"),
        ({**LEAST, "tiers": {"dram": {"capacity_gb": 1}}}, "Did you mean 'capacity_gib'?"),
        ({"instances": {"gpu": {"count": 0}}}, "it must be a whole number, 1 to 1000000"),
        ({"workload": {"turns": [4, 2]}}, "the first number must not be above the second"),
        ({**LEAST, "vary": {"workload.rate_per_s": []}}, "has no values; give a list"),
        ({**LEAST, "vary": {"workload.rate_per_s": 3}}, "has 3; give a list of values"),
        ({**LEAST, "vary": {"workload.rate_per_s": [3, 3]}}, "has 3 twice; give each value once"),
        ({**LEAST, "vary": {"workload.rate_per_s": [-3]}}, "vary: workload.rate_per_s is -3"),
        ({**LEAST, "vary": {"workload.rate_per": [3]}}, "Did you mean 'rate_per_s'?"),
        ({**LEAST, "vary": {"workload": [{}]}}, "workload is a section; give an option of it"),
        ({**LEAST, "vary": {"instances.gpus.count": [1]}}, "Did you mean 'gpu'?"),
        ({**LEAST, "vary": {"instances.gpu": [1]}}, "give instances.NAME.OPTION"),
        ({**LEAST, "vary": {"instances": [1]}}, "give instances.NAME.OPTION"),
        ({**LEAST, "vary": {"network.wires.a.latency_us": [1]}}, "network.wires has no 'a'"),
        ({**LEAST, "vary": {"seed": [1, 2]}}, "seeds: N repeats with other seeds"),
        ({**LEAST, "vary": {3: [1, 2]}}, "3 is no option"),
        ({**LEAST, "vary": [1]}, "it must be {option: [values]}"),
        ({**LEAST, "seeds": 0}, "seeds is 0; it must be a whole number, 1 to 1000"),
        ({**LEAST, "seeds": True}, "seeds is true"),
        (
            {**LEAST, "zip": {"workload.requests": [1, 2], "workload.rate_per_s": [1]}},
            "lists of different lengths",
        ),
        ({**VARIED, "zip": {"workload.rate_per_s": [1]}}, "workload.rate_per_s varies twice"),
        ({**LEAST, "variants": {"a": {"workload.x": 1}}}, "variants.a: workload.x is not a known"),
        ({**LEAST, "variants": {"a": 1}}, "variants.a is 1; it must be {option: value}"),
        ({**LEAST, "presets": {"tiny": {}}}, "a preset is one of smoke, dev, full"),
        (
            {**LEAST, "presets": {"smoke": {"tiers.dram.eviction": "lfu"}}},
            "a preset sets the scale alone",
        ),
        ({**LEAST, "presets": {"dev": {"seeds": 0}}}, "presets.dev: seeds is 0; it must be"),
        (
            {**VARIED, "presets": {"dev": {"workload.rate_per_s": [0.5, -1]}}},
            "presets.dev: workload.rate_per_s is -1",
        ),
        (
            {**LEAST, "presets": {"smoke": {"workload.requests": 0}}},
            "presets.smoke: workload.requests is 0",
        ),
        (
            {**LEAST, "vary": {"workload.requests": list(range(1, 1003))}, "seeds": 10},
            "10020 simulations, more than 10000",
        ),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused_in_one_sentence(
    tmp_path: Path, tree: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, tree).check()
    assert message in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("workload.requests", "it must be option=value"),
        ("=3", "it must be option=value"),
        ("workload.turns=", "--set workload.turns: workload.turns is empty (null)"),
        ("workload.requests=many", "workload.requests is 'many'"),
        ("workload.turns=[", "--set workload.turns, line 1"),
        ("instances.cpu.count=3", "instances has no 'cpu'"),
        ("name=3", "put it in quotes"),
        ("workload.rate_per_s=0.5", "workload.rate_per_s changes together with"),
        ("network.nic.latency_us=3", "the file's variants are told apart by it"),
        ("seeds=none", "seeds is 'none'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_sentence(
    tmp_path: Path, setting: str, message: str
) -> None:
    tree = {
        **LEAST,
        "zip": {"workload.rate_per_s": [1, 2]},
        "variants": {"near": {"network.nic.latency_us": 1}},
    }
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, tree, None, setting)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_preset_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--preset tiny: a preset is one of smoke, dev, full"):
        read(tmp_path, LEAST, "tiny")
    with pytest.raises(ConfigError, match="has no preset of that name; leave --preset out"):
        read(tmp_path, LEAST, "smoke")


def test_a_scenario_that_is_not_there_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rack-pool'"):
        read_scenarios(Path("rack-pol"))
    with pytest.raises(ConfigError, match=r"there is no scenario file '/nowhere/eviction\.yaml'"):
        read_scenarios(Path("/nowhere/eviction.yaml"))


WIRE = {"a": "instance:0", "b": "node:0"}
ONE_TURN = {"workload.turns": [1, 1]}
TWO_TIERS = {"tiers.dram.capacity_gib": 4, "tiers.nvme.capacity_gib": 4}
TRACE = {"workload.source": "trace", "workload.trace": "datasets/mooncake_sample.jsonl"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model.name": "llama9"}, "model.name is 'llama9'; it must be a built-in model"),
        ({"model.kv_dtype": "fp8", "model.kv_bytes_per_token": 5}, "give one of them"),
        ({"tiers.dram.residency": "int3"}, "tiers.dram.residency: 'int3' is not a type"),
        ({"tiers.dram.residency": "fp16+int4"}, "give them as 4fp16+28int4"),
        ({"tiers.dram.residency": "int4", "tiers.dram.dequant": {"fp8": 1}}, "holds nothing"),
        ({"model.name": "tiny-1b"}, "nothing says how many weights tiny-1b has; give those that"),
        ({"instances.gpu.role": "prefill"}, "no decode instance"),
        ({"instances.gpu.role": "decode"}, "no prefill instance"),
        ({"instances.gpu.count": 9}, "9 instances, but the topology has places for 8 (1 racks"),
        ({"instances.gpu.hbm_gib": 0}, "hbm_gib is 0.0 GiB (0 bytes), less than one block of 16"),
        ({"instances.gpu.hbm_gib": 0.0019}, "tokens (2097152 bytes); give at least 0.001954 GiB"),
        ({"tiers.dram.capacity_gib": 1e-6}, "tiers.dram.capacity_gib is 1e-06 GiB (1073 bytes)"),
        ({"tiers.remote.scope": "node"}, "tiers.remote.scope is node; it must be cluster"),
        ({"tiers.dram.scope": "rack"}, "it must be one of device, node, or use another tier"),
        ({"tiers.rack_pool.scope": "cluster"}, "tiers.rack_pool.scope is cluster"),
        ({"scheduler.max_num_batched_tokens": 63}, "too few for scheduler.max_num_seqs 64"),
        ({"instances.gpu.max_num_seqs": 9000}, "too few for instances.gpu.max_num_seqs 9000"),
        ({"workload.warmup_requests": 1000}, "1000 of 1000 requests, so that nothing is measured"),
        ({"workload.source": "trace"}, "workload.trace is empty; give the path of a trace"),
        ({"workload.documents": 9, "workload.context_tokens": 2}, "leaves nothing for 3 documents"),
        ({"network.wires": {"w": {**WIRE, "b": "nodes:0"}}}, "network.wires.w.b is 'nodes:0'"),
        ({"network.wires": {"w": {**WIRE, "a": "instance:01"}}}, "counted from 0"),
        ({"network.wires": {"w": {**WIRE, "a": "instance:2"}}}, "but there are 2 of them"),
        ({"network.wires": {"w": {**WIRE, "b": "rack:1"}}}, "but there are 1 of them"),
        ({"network.wires": {"w": {**WIRE, "a": "node:0"}}}, "leads from node:0 to itself"),
        (
            {"network.wires": {"v": WIRE, "w": {"a": "node:0", "b": "instance:0"}}},
            "network.wires.w has the same ends as network.wires.v",
        ),
        ({"tiers.write_policy": "through"}, "there is no tier below HBM to write to"),
        ({"tiers.write_policy": "through-selective"}, "there is no tier below HBM to write to"),
        ({"tiers.prefetch": "on-arrival"}, "there are no two below it"),
        ({"network.tail_probability": 0.1}, "the tail is no slower"),
        ({"judged_by": "goodput.share"}, "no SLO says which requests are good"),
        # What is given and not read.
        (
            {"workload.source": "poisson", "workload.turns": [1, 2]},
            "no effect with workload.source",
        ),
        (
            {"workload.reasoning_tokens": 5},
            "reasoning_tokens is 5, which has no effect with workload",
        ),
        ({"workload.trace": "a.csv"}, "workload.trace is 'a.csv', which has no effect with"),
        ({**TRACE, "workload.think_s": [1, 2]}, "workload.think_s is [1.0, 2.0], which has no"),
        (
            {"workload.concurrency": 3, "workload.rate_per_s": 3},
            "no effect with workload.concurrency 3",
        ),
        (
            {"workload.source": "poisson", "workload.think_s": [1, 2]},
            "no effect with workload.source poisson",
        ),
        (
            {"instances.gpu.prefill_tokens_per_s": 5},
            "no effect with instances.gpu.compute roofline",
        ),
        ({"instances.gpu.tensor_parallel": 2}, "no effect with no instances.gpu.profile; leave"),
        (
            {"instances.gpu.compute": "rate", "model.params_billion": 70},
            "model.params_billion is 70.0, which has no effect with instances without compute",
        ),
        (
            {"instances.gpu.compute": "none", "instances.gpu.tflops": 5},
            "no effect with instances.gpu.compute none",
        ),
        ({"tiers.selective_depth_blocks": 5}, "no effect with tiers.write_policy back"),
        (
            {**TWO_TIERS, "tiers.nvme.admission_memory": 500},
            "admission_memory is 500, which has no effect with tiers.nvme.admission always",
        ),
        (
            {**TWO_TIERS, "tiers.dram.admission": "depth", "tiers.dram.admission_floor": 2},
            "tiers.dram.admission_floor is 2, which has no effect with tiers.dram.admission depth",
        ),
        (
            {
                "tiers.dram.capacity_gib": 4,
                "tiers.dram.admission": "depth",
                "tiers.write_policy": "through-selective",
            },
            "is 'depth', which has no effect with tiers.write_policy through-selective",
        ),
        (
            {**TWO_TIERS, "tiers.prefetch": "on-arrival", "tiers.prefetch_at": 0.9},
            "tiers.prefetch_at is 0.9, which has no effect with tiers.prefetch on-arrival",
        ),
        ({"separation.transfer": "pull"}, "no effect with instances that all have role mixed"),
        ({"router.decode": "round-robin"}, "no effect with instances that all have role mixed"),
        (
            {"router.kind": "round-robin", "router.w_load": 2},
            "no effect with router.kind round-robin",
        ),
        ({**ONE_TURN, "workload.think_s": [1, 2]}, "no effect with sessions of one turn each"),
        (
            {**ONE_TURN, "workload.source": "agents", "workload.reasoning_tokens": 5},
            "no effect with sessions of one turn each",
        ),
        (
            {**ONE_TURN, **TWO_TIERS, "tiers.prefetch": "next-in-session"},
            "tiers.prefetch is 'next-in-session', which has no effect with sessions of one turn",
        ),
        (
            {
                "model.name": "qwen3-32b",
                "model.kv_bytes_per_token": 5,
                "instances.gpu.compute": "rate",
            },
            "model.name is 'qwen3-32b', which has no effect with model.kv_bytes_per_token 5",
        ),
        (
            {"instances.gpu.max_num_seqs": 8, "scheduler.max_num_seqs": 9},
            "scheduler.max_num_seqs is 9, which has no effect with instances that each have",
        ),
        (
            {"scheduler.reservation": "reserve-full", "scheduler.preemption": "abort"},
            "no effect with scheduler.reservation reserve-full",
        ),
        ({"scheduler.preemption": "swap"}, "no effect with a cluster without a tier below HBM"),
        (
            {"tiers.dram.capacity_gib": 4, "tiers.write_policy": "none"},
            "tiers.dram.capacity_gib is 4.0, which has no effect with tiers.write_policy none",
        ),
        (
            {"tiers.dram.capacity_gib": 4, "workload.source": "poisson"},
            "no effect with single requests, which share nothing",
        ),
        (
            {**TWO_TIERS, "workload.source": "poisson", "scheduler.preemption": "swap"},
            "tiers.nvme.capacity_gib is 4.0, which has no effect with single requests",
        ),
        (
            {
                "tiers.nvme.capacity_gib": 4,
                "tiers.nvme.profile": "p.json",
                "tiers.nvme.read_latency_us": 90,
            },
            "read_latency_us is 90.0, which has no effect with tiers.nvme.profile p.json",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused_in_one_sentence(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check(of(values), "made.yaml")
    assert message in str(refused.value)
    assert str(refused.value).startswith("made.yaml: ")
    assert "\n" not in str(refused.value)


def test_no_instances_are_refused() -> None:
    with pytest.raises(ConfigError, match="instances is empty: nobody can serve"):
        check(Scenario())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"transfer": "pull", "pipelined": False}, "no effect with separation.transfer pull"),
        ({"transfer": "push", "chunk_blocks": 3}, "no effect with separation.transfer push"),
    ],
)
def test_settings_of_another_transfer_are_refused(values: dict[str, Any], message: str) -> None:
    apart = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
    made = from_mapping(Scenario, {"instances": apart, "separation": values})
    with pytest.raises(ConfigError, match=message):
        check(made)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"tiers.rack_pool.scope": "device"},
        {"tiers.write_policy": "none"},
        {"tiers.write_policy": "through", "tiers.nvme.capacity_gib": 4},
        {**TWO_TIERS, "tiers.write_policy": "through"},
        {
            "tiers.write_policy": "none",
            "tiers.dram.capacity_gib": 4,
            "scheduler.preemption": "swap",
        },
        {
            "workload.source": "poisson",
            "tiers.dram.capacity_gib": 4,
            "scheduler.preemption": "swap",
        },
        {"tiers.nvme.capacity_gib": 4, "tiers.nvme.profile": "p.json"},
        {**ONE_TURN, "workload.concurrency": 3, "workload.think_s": [1, 2]},
        {"scheduler.max_num_batched_tokens": 64},
        {"instances.gpu.hbm_gib": 0.001954},
        {"instances.gpu.compute": "rate", "instances.gpu.prefill_tokens_per_s": 5},
        {"model.name": "qwen3-32b", "model.params_billion": 32.8},
        {"model.name": "qwen3-32b", "instances.gpu.compute": "none"},
        {"workload.source": "agents", "workload.reasoning_tokens": 5},
        {"workload.source": "poisson", "workload.concurrency": 3, "workload.think_s": [1, 2]},
        {"workload.documents": 0, "workload.zipf_alpha": 3},  # a size of 0 turns it off
        {"network.wires": {"w": {"a": "instance:1", "b": "core"}}},
        TRACE,
    ],
)
def test_what_fits_together_is_accepted(values: dict[str, Any]) -> None:
    check(of(values))


def test_in_a_sweep_an_option_has_to_be_read_by_one_variant_at_least(tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        "instances": {"p": {}, "d": {}},
        "separation": {"transfer": "pull"},
        "variants": {
            "unified": {"instances.p.role": "mixed"},
            "separated": {"instances.p.role": "prefill", "instances.d.role": "decode"},
        },
    }
    read(tmp_path, tree).check()
    del tree["variants"]["separated"]
    with pytest.raises(ConfigError, match=r"separation\.transfer is 'pull', which has no"):
        read(tmp_path, tree).check()


def test_a_pool_of_0_turns_off_what_is_asked_of_it_in_a_sweep(tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        **LEAST,
        "tiers": {"write_policy": "through", "dram": {"capacity_gib": 0}},
        "vary": {"tiers.dram.capacity_gib": [0, 4]},
    }
    read(tmp_path, tree).check()
    del tree["vary"]
    with pytest.raises(ConfigError, match="there is no tier below HBM to write to"):
        read(tmp_path, tree).check()


def test_a_rule_that_one_variant_breaks_is_told_with_its_name(tmp_path: Path) -> None:
    tree = {**LEAST, "vary": {"instances.gpu.count": [8, 9]}}
    with pytest.raises(ConfigError, match=r"made\.yaml, gpu\.count=9: instances: 9 instances"):
        read(tmp_path, tree).check()


@given(seed=st.integers(0, 2**32 - 1), repeat=st.integers(0, 1000))
def test_repeats_have_seeds_of_their_own_that_a_scenario_takes(seed: int, repeat: int) -> None:
    found = seed_of(seed, repeat)
    assert 0 <= found < 2**32
    assert found == seed_of(seed, repeat)
    assert found == seed if repeat == 0 else found != seed_of(seed, repeat - 1)


def test_a_scenario_is_yaml_of_plain_values() -> None:
    for name in scenario_names():
        tree = read_yaml(Path(__file__).parents[2] / "configs" / "scenarios" / f"{name}.yaml")
        assert isinstance(tree, dict)
        assert tree["name"] == name


def test_what_varies_and_is_read_by_no_variant_is_refused_also_where_one_has_the_default(
    tmp_path: Path,
) -> None:
    tiers = {"dram": {"capacity_gib": 4}, "nvme": {"capacity_gib": 4}, "prefetch": "on-arrival"}
    tree = {**LEAST, "tiers": tiers, "vary": {"tiers.prefetch_at": [0.5, 0.9]}}
    with pytest.raises(ConfigError, match=r"prefetch_at is 0\.9, which has no effect"):
        read(tmp_path, tree).check()
    tree["vary"] |= {"tiers.prefetch": ["on-arrival", "next-in-session"]}
    read(tmp_path, tree).check()


SAMPLE = "workload.trace=datasets/mooncake_sample.jsonl"


@pytest.mark.parametrize("preset", [None, *PRESETS])
@pytest.mark.parametrize("name", sorted({*scenario_names()} - {"node-policies"}))
def test_a_shipped_scenario_takes_a_trace_by_its_path_alone(name: str, preset: str | None) -> None:
    found = read_scenarios(Path(name), preset, [SAMPLE])
    found.check()
    assert "workload.rate_per_s" not in found.paths
    for variant in found.variants():
        work = open_work(variant.scenario)
        assert work is not None
        asked = variant.scenario.workload.requests
        assert work.row_count(variant.scenario.workload) == min(asked or 400, 400)
        assert asked is None or preset in ("smoke", "dev")


def test_a_scenario_that_looks_ahead_in_sessions_takes_traces_that_have_some() -> None:
    of_sessions = ["workload.trace=datasets/burstgpt3_sample.csv"]
    for variant in read_scenarios(Path("node-policies"), None, of_sessions).variants():
        assert open_work(variant.scenario) is not None
    scenarios = read_scenarios(Path("node-policies"), None, [SAMPLE])
    (ahead,) = (
        v.scenario for v in scenarios.variants() if v.name == "session-prefetch" and not v.repeat
    )
    with pytest.raises(TraceError, match="so that nobody knows of a next turn"):
        open_work(ahead)


@pytest.mark.parametrize("name", ["pd-ratio", "b13", "context-length"])
def test_options_that_a_trace_contradicts_are_refused_together_whatever_their_values(
    name: str,
) -> None:
    options = {"system_prompts": 8, "turns": [2, 2], "rate_per_s": 10, "concurrency": 5}
    sets = [SAMPLE, *(f"workload.{option}={value}" for option, value in options.items())]
    found = read_scenarios(Path(name), None, sets)
    assert not set(found.left_out) & {f"workload.{option}" for option in options}
    with pytest.raises(ConfigError) as refused:
        found.check()
    text = str(refused.value)
    assert "workload.system_prompts is 8, which has no effect with workload.source trace" in text
    assert "workload.turns is" in text
    assert "workload.rate_per_s is 10.0, but the rows of" in text
    assert "workload.concurrency is 5, but the rows of" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"lengths": {"prompt": {"law": "lognormal", "median": 900}}},
         "workload.lengths.prompt.sigma is missing: law lognormal needs median and sigma"),
        ({"lengths": {"output": {"law": "fixed", "value": 9}}, "output_tokens": [1, 2]},
         "workload.output_tokens is [1, 2], which has no effect with workload.lengths.output.law"),
        ({"lengths": {"turns": {"law": "fixed", "value": 9}}, "source": "poisson"},
         "workload.lengths.turns is given, which has no effect with workload.source poisson"),
        ({"arrival_cv": 3.0}, "workload.arrival_cv is 3.0, which has no effect with"),
        ({"day_s": 60.0}, "workload.day_s is 60.0, which has no effect with workload.day_swing"),
        ({"arrival_process": "fixed", "rate_per_s": 0}, "no effect with workload.rate_per_s 0"),
        ({"day_swing": 0.5, "concurrency": 4}, "no effect with workload.concurrency 4"),
        ({"lengths": {"turns": {"law": "fixed", "value": 1_000_000},
                      "think_s": {"law": "fixed", "value": 86_400}}}, "longer than the 292 years"),
    ],
)  # fmt: skip
def test_laws_and_arrivals_that_hold_nothing_are_refused(
    tmp_path: Path, workload: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(tmp_path, {**LEAST, "workload": workload}).check()


def test_the_laws_and_the_pace_of_a_scenario_yield_to_a_trace_too(tmp_path: Path) -> None:
    workload = {"lengths": {"prompt": {"law": "fixed", "value": 9}}, "arrival_process": "fixed"}
    file = tmp_path / "laws.yaml"
    file.write_text(yaml.safe_dump({**LEAST, "workload": workload}))
    found = read_scenarios(file, None, [SAMPLE])
    found.check()
    assert {"workload.lengths.prompt.law", "workload.arrival_process"} <= set(found.left_out)
    with pytest.raises(ConfigError, match=r"day_swing is 0\.5, but the rows of"):
        read_scenarios(file, None, [SAMPLE, "workload.day_swing=0.5"]).check()


def test_a_source_that_is_set_beside_a_trace_is_not_changed() -> None:
    found = read_scenarios(Path("pd-ratio"), None, [SAMPLE, "workload.source=sessions"])
    with pytest.raises(ConfigError, match=r"workload\.trace is .* no effect with .* sessions"):
        found.check()


@pytest.mark.parametrize(
    ("name", "work", "message"),
    [
        ("azure_sample.csv", {"concurrency": 4}, "workload.concurrency is 4, but the rows of"),
        ("azure_sample.csv", {"rate_per_s": 4.0}, "use workload.arrival_scale"),
        ("sharegpt_sample.json", {"arrival_scale": 2.0}, "workload.concurrency"),
        ("sharegpt_sample.json", {"concurrency": 4, "rate_per_s": 2.0}, "one of the two"),
    ],
)
def test_a_pace_that_the_rows_of_a_trace_do_not_read_is_refused(
    tmp_path: Path, name: str, work: dict[str, Any], message: str
) -> None:
    tree = {**LEAST, "workload": {"source": "trace", "trace": f"datasets/{name}", **work}}
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(tmp_path, tree).check()


def test_a_path_in_a_scenario_leads_from_its_file_and_one_that_is_set_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "traces" / "own.csv").write_text("")
    tree = {
        **LEAST,
        "workload": {"source": "trace", "trace": "../traces/own.csv"},
        "vary": {"tiers.nvme.profile": ["one.json", "/two.json"]},
        "variants": {"shipped": {"workload.trace": "datasets/azure_sample.csv"}},
    }
    monkeypatch.chdir(tmp_path)
    file = Path("scenarios", "of.yaml")
    file.write_text(yaml.safe_dump(tree))
    found = read_scenarios(file)
    assert found.base.workload.trace == "scenarios/../traces/own.csv"
    assert [axis.values for axis in found.axes] == [
        (("datasets/azure_sample.csv",),), (("scenarios/one.json",), ("/two.json",)),
    ]  # fmt: skip
    del tree["variants"]
    file.write_text(yaml.safe_dump(tree))
    here = read_scenarios(file, None, ["workload.trace=traces/own.csv"])
    assert here.base.workload.trace == "traces/own.csv"


def test_what_varies_and_belongs_to_another_source_is_left_out_and_said() -> None:
    found = read_scenarios(Path("context-length"), None, [SAMPLE])
    assert "workload.context_tokens" in found.left_out
    assert [variant.name for variant in found.variants() if not variant.repeat] == ["alone", "pool"]
    own = read_scenarios(Path("context-length"))
    assert own.left_out == ()
    assert own.size == 5 * found.size


def test_a_scenario_of_another_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    assert read(tmp_path, {**LEAST, "schema": SCHEMA}).base == read(tmp_path, LEAST).base
    for other in ("kv-cache-scenario/2", "kv-cache-hardware/1", 1):
        with pytest.raises(ConfigError, match="and this version reads kv-cache-scenario/1") as told:
            read(tmp_path, {**LEAST, "schema": other})
        assert "\n" not in str(told.value)
