"""Options that are set and have no effect: what their declarations say, and the sentences."""

import re
from pathlib import Path
from typing import Any

import pytest

from kv_cache.config import run_warnings, scenario_rules
from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.config.root import options as run_options
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.scenario import InstanceSection, Scenario
from kv_cache.config.scenarios import read_scenarios
from kv_cache.config.schema import describe, from_mapping
from kv_cache.config.unread import Condition, conditions_of, holds, unread
from kv_cache.config.yaml_files import find_config
from kv_cache.core.errors import ConfigError

TRACE = {"workload.trace": "x"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workload.trace_speedup": 2}, "no effect, as no trace is replayed"),
        ({"workload.trace_models": {"a": "tiny-1b"}, "run.model_mix": {"tiny-1b": 1}},
         "workload.trace_models (--trace-models) is a mapping: no effect, as no trace is replayed"),
        ({**TRACE, "workload.trace_speedup": 2, "arrival.request_rate": 1},
         "workload.trace_speedup (--trace-speedup) is 2.0: no effect with --request-rate"),
        ({**TRACE, "workload.arrival_scale": 2, "arrival.request_rate": 1},
         "no effect with --request-rate"),
        ({**TRACE, "workload.arrival_scale": 2, "workload.trace_speedup": 0},
         "no effect, as workload.trace_speedup (--trace-speedup) is 0.0"),
        ({**TRACE, "workload.multi_turn": False},
         "is false: no effect, as a trace determines who sends what when"),
        ({**TRACE, "arrival.mode": "open"}, "as a trace determines who sends what when"),
        ({**TRACE, "lengths.prompt": {"law": "fixed", "value": 3}},
         "section lengths: no effect, as a trace determines"),
        ({"lengths.think_s": {"law": "fixed", "value": 3}, "arrival.request_rate": 1},
         "section lengths.think_s: no effect with --request-rate"),
        ({"lengths.turns": {"law": "fixed", "value": 3}, "workload.multi_turn": False},
         "section lengths.turns: no effect with --disable-multi-turn"),
        ({"workload.burst_trace_path": "x.csv"}, "no effect without --use-burst-trace"),
        ({"workload.use_burst_trace": True, "workload.trace_format": "mooncake"},
         "workload.trace_format (--trace-format) is 'mooncake': no effect with --use-burst-trace"),
        ({"workload.dataset_path": "x", "workload.use_burst_trace": True},
         "workload.use_burst_trace (--use-burst-trace) is true: no effect with --dataset-path"),
        ({"output.records": True}, "no effect without --results-dir"),
        ({"output.metrics_host": "::1"}, "no effect without --metrics-port"),
        ({"output.io_trace_log": "a.csv", "output.hdr_log": "b"},
         "output.hdr_log (--hdr-log) is 'b': no effect with --io-trace-log"),
        ({"sim.profile": "p.yaml"}, "no effect without --virtual-time"),
        *(
            ({"run.virtual_time": True, **option}, "no effect with --virtual-time")
            for option in (
                {"output.certify": True}, {"output.fio_export": "f"}, {"output.metrics_port": 0},
                {"sim.predict": "p"}, {"precondition.enabled": True},
                {"monitor.latency_tracing": True},
            )
        ),
        ({"precondition.round_s": 5}, "no effect without --precondition"),
        ({"autoscaler.target_saturation": 0.5}, "no effect without --enable-autoscaling"),
        ({"rag.reuse": "prefix"}, "no effect without --enable-rag"),
        ({"run.trial_cooldown_s": 5}, "no effect, as run.trials (--trials) is 1"),
        ({"tiers.ranks": "all"}, "no effect, as tiers.tensor_parallel (--tensor-parallel) is 1"),
        ({"s3.part_mib": 8}, "section s3: no effect, as storage is not an object store"),
        ({"io.layout": "bucket", "io.rename": False},
         "io.rename is false: no effect, as io.layout (--layout) is 'bucket'"),
        ({"policies.prefetch_to": "next"},
         "no effect, as policies.prefetch (--prefetch) is 'none'"),
        ({"policies.prefetch": "next-in-session", "policies.prefetch_memory": 5},
         "no effect, as policies.prefetch (--prefetch) is 'next-in-session'"),
        ({"policies.admission_at": "all"}, "as policies.admission (--admission) is 'always'"),
        ({"policies.admission": "size", "policies.admission_floor": 2},
         "no effect, as policies.admission (--admission) is 'size'"),
        *(
            ({"tiers.gpu_mem_gib": 0, "tiers.cpu_mem_gib": 0, **option}, "storage is the only tier")
            for option in (
                {"policies.prefetch": "successor"}, {"policies.write": "through"},
                {"policies.admission": "size"},
            )
        ),
        ({"prefix_cache.zipf_s": 2.0}, "no effect, as prefix_cache.popularity is 'uniform'"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_warned_of_in_one_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    (warning,) = config_warnings(load_config(overrides=options))
    assert sentence in warning


@pytest.mark.parametrize(
    "options",
    [
        {**TRACE, "workload.trace_speedup": 2},
        {**TRACE, "arrival.mode": "open", "arrival.request_rate": 1},
        {"output.metrics_port": 0, "output.metrics_host": "::1"},
        {"workload.dataset_path": "x", "workload.trace_format": "sharegpt"},
        {"precondition.enabled": True, "precondition.round_s": 5},
        {"policies.prefetch": "successor", "policies.prefetch_memory": 5},
    ],
)
def test_what_has_an_effect_is_not_warned_of(options: dict[str, Any]) -> None:
    assert config_warnings(load_config(overrides=options)) == []


def test_a_policy_of_the_users_own_may_read_any_option() -> None:
    config = from_mapping(
        Config, {"policies": {"admission": "pathlib:Path", "admission_max_mib": 5}}
    )
    assert not list(unread(config, run_warnings._FACTS))
    assert holds(Condition("policies.admission", "=", ("size",)), config, {})


CONDITIONS = [
    *((Config(), option.path, text, run_warnings._FACTS)
      for option in run_options().values() for text in option.rule.read_when),
    *((Scenario(instances={"gpu": InstanceSection()}), f"{prefix}{option.path}", text,
       scenario_rules._FACTS)
      for section, prefix in ((Scenario, ""), (InstanceSection, "instances.gpu."))
      for option in describe(section) for text in option.rule.read_when),
]  # fmt: skip


@pytest.mark.parametrize(("root", "path", "text", "facts"), CONDITIONS)
def test_each_condition_names_an_option_or_a_fact_and_a_value_that_it_can_have(
    root: Any, path: str, text: str, facts: Any
) -> None:
    known = {option.path: option for option in describe(type(root))}
    known |= {f"instances.gpu.{option.path}": option for option in describe(InstanceSection)}
    for condition in conditions_of(text, path.rpartition(".")[0]):
        assert holds(condition, root, facts) in (True, False)
        if condition.is_fact:
            continue
        option = known[condition.path]
        for value in condition.values:
            assert option.rule.choices is None or value in option.rule.choices
            assert option.rule.choices is not None or value.isdigit()


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("unequal-gpus", "scheduler.reservation=reserve-full"),
        ("cluster-10k", "instances.gpu.compute=none"),
        ("cluster-10k", "instances.gpu.compute=rate"),
        ("single-node", "workload.turns=[1,1]"),
        ("single-node", "workload.source=poisson"),
        ("eviction", "tiers.write_policy=none"),
    ],
)
def test_what_a_shipped_file_gives_and_a_setting_leaves_unread_can_be_left_out(
    name: str, setting: str
) -> None:
    """As the sentence says: nobody edits a file that is shipped."""
    file = find_config(Path(name), "scenario", "scenarios")
    with pytest.raises(ConfigError) as refused:
        read_scenarios(file, "smoke", [setting]).check()
    told = re.findall(r"--set ([^ )]+)", str(refused.value))
    assert told
    read_scenarios(file, "smoke", [setting, *told]).check()


@pytest.mark.parametrize(
    ("name", "settings", "back"),
    [
        (
            "transfer",
            ["instances.prefill.role=mixed", "instances.decode.role=mixed"],
            "separation.transfer=push",
        ),
        (
            "context-length",
            ["workload.source=poisson", "workload.think_s=[0,0]"],
            "tiers.rack_pool.capacity_gib=0",
        ),
    ],
)
def test_what_variants_are_told_apart_by_has_a_way_out_of_its_own(
    name: str, settings: list[str], back: str
) -> None:
    file = find_config(Path(name), "scenario", "scenarios")
    with pytest.raises(ConfigError) as refused:
        read_scenarios(file, "smoke", settings).check()
    assert back.partition("=")[0] in str(refused.value)
    assert "as variants are told apart by it, take back what it has no effect with" in str(
        refused.value
    )
    with pytest.raises(ConfigError, match="told apart by it"):
        read_scenarios(file, "smoke", [*settings, back])


def test_a_section_that_nothing_reads_is_left_out_option_by_option(tmp_path: Path) -> None:
    file = tmp_path / "single.yaml"
    file.write_text(
        "instances: {gpu: {count: 1}}\n"
        "workload: {source: poisson, lengths: {turns: {law: lognormal, median: 3, sigma: 1}}}\n"
    )
    with pytest.raises(ConfigError, match=r"is given, which .*; leave it out \(--set") as refused:
        read_scenarios(file).check()
    told = re.findall(r"--set ([^ )]+)", str(refused.value))
    assert told[0] == "workload.lengths.turns.law=personas"
    read_scenarios(file, None, told).check()
    with pytest.raises(ConfigError, match=r"is given, which .*; leave it out$"):
        read_scenarios(file, None, ["workload.lengths.turns.sigma=2"]).check()
