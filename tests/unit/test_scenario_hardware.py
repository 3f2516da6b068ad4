"""Tiers of a scenario that take what a hardware profile says of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kv_cache.config.hardware import HardwareProfile, Storage, hardware_of, read_hardware, sheet_of
from kv_cache.config.machine import read_described
from kv_cache.config.profile import Profile
from kv_cache.config.scenario import (
    InstanceSection,
    LinkSection,
    ModelSection,
    NetworkSection,
    Scenario,
    TierSection,
    TopologySection,
)
from kv_cache.config.scenario_hardware import described, hardware_used
from kv_cache.config.scenarios import Scenarios, read_scenarios
from kv_cache.config.yaml_files import find_config, shipped_names
from kv_cache.core.errors import ConfigError
from kv_cache.core.units import GIB
from kv_cache.sim.cluster.compute import make_compute

MACHINE: dict[str, Any] = {
    "schema": "kv-cache-hardware/1",
    "topology": {"racks": 2, "nodes_per_rack": 4},
    "dram": {"copy_bytes_per_s": 50e9, "latency_us": 0.2},
    "rack_pool": {"read_bytes_per_s": 80e9, "write_bytes_per_s": 60e9, "latency_us": 4},
    "remote": {"read_bytes_per_s": 9e9},
    "storage": {
        "drive": {"read_bytes_per_s": 6e9, "write_bytes_per_s": 3e9, "read_latency_us": 70},
    },
}  # fmt: skip


def hardware(tmp_path: Path, **more: Any) -> HardwareProfile:
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump({**MACHINE, **more}))
    return read_hardware(file)


def scenario(**tiers: TierSection) -> Scenario:
    return Scenario(tiers=replace(Scenario().tiers, **tiers))  # type: ignore[arg-type]


def test_a_tier_takes_the_constants_of_its_section_and_keeps_the_rest(tmp_path: Path) -> None:
    machine = hardware(tmp_path)
    plain = {"capacity_gib": 7.0, "eviction": "arc"}
    of = scenario(
        dram=TierSection(**plain, profile="m.yaml"),  # type: ignore[arg-type]
        rack_pool=TierSection(**plain, scope="rack", profile="m.yaml"),  # type: ignore[arg-type]
        nvme=TierSection(**plain, profile="m.yaml"),  # type: ignore[arg-type]
    )
    found = described(of, lambda path: machine)
    assert found.curves == {}

    def said(reads: float, writes: float, *delays: float, scope: str = "node") -> TierSection:
        return TierSection(
            **plain, scope=scope, read_gbytes_per_s=reads, write_gbytes_per_s=writes,  # type: ignore[arg-type]
            read_latency_us=delays[0], write_latency_us=delays[1],
        )  # fmt: skip

    assert found.scenario == scenario(
        dram=said(50, 50, 0.2, 0.2), rack_pool=said(80, 60, 4, 4, scope="rack"),
        nvme=said(6, 3, 70, 0),
    )  # fmt: skip


def test_a_measured_drive_is_its_curves_and_a_probe_file_is_one_for_any_tier() -> None:
    probe = Profile(name="p.yaml", facts={}, cells=())
    machine = HardwareProfile(
        file="m.yaml", storage={"a": Storage(probe="p.yaml")}, curves={"a": probe}
    )
    files: Mapping[str, Profile | HardwareProfile] = {"p.yaml": probe, "m.yaml": machine}
    of = scenario(
        nvme=TierSection(profile="m.yaml", capacity_gib=1),
        remote=TierSection(profile="p.yaml", capacity_gib=1),
    )
    found = described(of, files.__getitem__)
    assert (found.scenario, found.curves) == (of, {"nvme": probe, "remote": probe})
    used = hardware_used(of, files.__getitem__)
    assert [(one.part, one.file) for one in used] == [
        ("tiers.nvme", "m.yaml"), ("tiers.remote", "p.yaml"),
    ]  # fmt: skip


def test_a_part_is_measured_or_an_overlay_with_its_source_and_date() -> None:
    probe = Profile(
        name="p.yaml", cells=(),
        facts={"sha256": "ab", "measured_utc": "2026-11-01", "device": {"model": "M"}},
    )  # fmt: skip
    by = {"how": "overlay", "source": "data sheet", "date": "2026-10-01"}
    machine = hardware_of(
        sheet_of(
            {"schema": "kv-cache-hardware/1", "dram": {"copy_bytes_per_s": 9e9, "provenance": by}},
            "m.yaml",
        ),
        "m.yaml", {}, "cd",
    )  # fmt: skip
    files: Mapping[str, Profile | HardwareProfile] = {"p.yaml": probe, "m.yaml": machine}
    of = scenario(
        dram=TierSection(profile="m.yaml", capacity_gib=1),
        remote=TierSection(profile="p.yaml", capacity_gib=1),
    )
    overlay, measured = hardware_used(of, files.__getitem__)
    assert (overlay.state, overlay.source, overlay.date, overlay.sha256) == (
        "overlay", "data sheet", "2026-10-01", "cd",
    )  # fmt: skip
    assert (measured.state, measured.source, measured.date, measured.sha256) == (
        "measured", "M", "2026-11-01", "ab",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tier", "more", "message"),
    [
        ("remote", {}, "remote.write_bytes_per_s is missing, and is needed here; give it in an"),
        ("dram", {"dram": {"latency_us": 1}}, "dram.copy_bytes_per_s is missing"),
        ("nvme", {"storage": {}}, "a tier nvme is one kind of drive, and storage in it has none"),
        (
            "nvme",
            {"storage": {name: {"read_bytes_per_s": 1e9} for name in "ab"}},
            "storage in it has a, b; give a file with the one that is meant",
        ),
    ],
)
def test_what_a_tier_needs_and_nobody_gave_is_asked_for(
    tier: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    machine = hardware(tmp_path, **more)
    with pytest.raises(ConfigError) as refused:
        described(scenario(**{tier: TierSection(profile="m.yaml")}), lambda path: machine)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# --- GPUs, links and counts ----------------------------------------------------------------------

NODE: dict[str, Any] = {
    "topology": {"gpus_per_node": 8, "nodes_per_rack": 4, "racks": 2},
    "gpus": {
        "big": {
            "hbm": {"capacity_bytes": 100 * GIB, "bytes_per_s": 4e12},
            "compute": {"flop_per_s": 1e15, "dtype": "bf16", "fp8_flop_per_s": 2e15},
        }
    },
    "nvlink": {"bytes_per_s": 400e9, "latency_us": 2},
    "pcie": {"bytes_per_s": 60e9},
    "nic": {"bytes_per_s": 50e9, "latency_us": 6, "cross_rack_latency_us": 26},
}
LLAMA = ModelSection(name="llama3.1-70b-instruct", params_billion=70)


def served(model: ModelSection = LLAMA, **group: Any) -> Scenario:
    return Scenario(
        model=model, instances={"g": InstanceSection(profile="n.yaml", **group)},
        network=NetworkSection(profile="n.yaml"), topology=TopologySection(profile="n.yaml"),
    )  # fmt: skip


def test_the_memory_of_gpus_is_divided_and_their_peaks_are_added_up(tmp_path: Path) -> None:
    node = hardware(tmp_path, **NODE)
    found = described(served(tensor_parallel=4, activation_share=0.2), lambda path: node)
    gpus, group = found.gpus["g"], found.scenario.instances["g"]
    weights = 70 * 10**9 * 2
    assert gpus.weights_bytes == weights
    assert gpus.activation_bytes == 80 * GIB
    assert gpus.kv_bytes == 320 * GIB - weights
    assert group.hbm_gib == pytest.approx((320 * GIB - weights) / GIB)
    assert (group.tflops, group.hbm_gbytes_per_s) == (4000, 16000)


def test_weights_of_8_bits_are_computed_at_the_rate_of_fp8(tmp_path: Path) -> None:
    node = hardware(tmp_path, **NODE)
    found = described(served(replace(LLAMA, weight_bits=8)), lambda path: node)
    assert found.scenario.instances["g"].tflops == 2000


@pytest.mark.parametrize(("name", "copies"), [("llama3.1-70b-instruct", 2), ("deepseek-v3", 16)])
def test_more_gpus_than_heads_hold_the_state_several_times(
    name: str, copies: float, tmp_path: Path
) -> None:
    node = hardware(tmp_path, **{**NODE, "topology": NODE["topology"] | {"gpus_per_node": 16}})
    model = ModelSection(name=name, params_billion=37, total_params_billion=70)
    found = described(served(model, tensor_parallel=16), lambda path: node)
    gpus = found.gpus["g"]
    assert gpus.kv_copies == copies
    assert found.scenario.instances["g"].hbm_gib == pytest.approx(gpus.kv_bytes / copies / GIB)


def test_links_and_counts_are_those_of_the_profile(tmp_path: Path) -> None:
    node = hardware(tmp_path, **NODE)
    found = described(served(tensor_parallel=4), lambda path: node).scenario
    assert found.network == NetworkSection(
        nvlink=LinkSection(gbytes_per_s=1600, latency_us=2),
        pcie=LinkSection(gbytes_per_s=240, latency_us=0),
        nic=LinkSection(gbytes_per_s=50, latency_us=3),
        uplink=LinkSection(gbytes_per_s=400, latency_us=10),
    )
    assert found.topology == TopologySection(racks=2, nodes_per_rack=4, instances_per_node=2)


def test_a_step_adds_up_over_the_ring_of_its_gpus(tmp_path: Path) -> None:
    """Two sums a layer, each of 2 (N - 1)/N of a hidden state of 16 bits, in 2 (N - 1) steps."""
    node = hardware(tmp_path, **NODE)
    found = described(served(tensor_parallel=4), lambda path: node)
    group, gpus = found.scenario.instances["g"], found.gpus["g"]
    alone = make_compute(group, LLAMA, 64, replace(gpus, gpus=1))
    shared = make_compute(group, LLAMA, 64, gpus)
    token_ns = 2 * 80 * 2 * 3 / 4 * 8192 * 2 / 400
    for tokens in (1, 1000):
        more_ns = shared.step_ns(tokens, 0, 0, 0, 0) - alone.step_ns(tokens, 0, 0, 0, 0)
        assert more_ns == pytest.approx(tokens * token_ns + 2 * 80 * 2 * 3 * 2000, abs=2)


@pytest.mark.parametrize(
    ("group", "more", "message"),
    [
        ({}, {}, "weights of llama3.1-70b-instruct are 140.0 GB, and leave no block of 1 x 107.4"),
        ({}, {}, "GB less activation_share 0.1; tensor_parallel 2 would do"),
        ({"tensor_parallel": 3}, {}, "tensor_parallel is 3, but the 64 heads of"),
        ({"tensor_parallel": 16}, {}, "has 8 GPUs, and layers are shared inside of one"),
        ({"tensor_parallel": 2}, {"nvlink": {}}, "nvlink.bytes_per_s is missing, and is needed"),
        ({"tensor_parallel": 2}, {"gpus": {}}, "one kind of GPU, and gpus in it has none"),
        (
            {"tensor_parallel": 2}, {"gpus": dict.fromkeys("ab", NODE["gpus"]["big"])},
            "gpus in it has a, b; give a file with the one that is meant",
        ),
    ],
)  # fmt: skip
def test_gpus_that_cannot_hold_or_share_a_model_are_refused(
    group: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    node = hardware(tmp_path, **{**NODE, **more})
    with pytest.raises(ConfigError) as refused:
        described(served(**group), lambda path: node)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_profile_has_is_not_also_given_by_hand(tmp_path: Path) -> None:
    node = hardware(tmp_path, **NODE)
    of = served(tensor_parallel=2)
    link = LinkSection(gbytes_per_s=1, latency_us=1)
    for twice, message in (
        (replace(of, network=replace(of.network, nic=link)), "network.nic is given, and"),
        (
            replace(of, network=replace(of.network, uplink=link)),
            "network.uplink.latency_us is given, and network.profile n.yaml has it too",
        ),
        (replace(of, topology=replace(of.topology, racks=3)), "topology.racks is given, and"),
    ):
        with pytest.raises(ConfigError, match=message):
            described(twice, lambda path: node)


def test_parts_that_a_profile_describes_are_named_with_their_sources(tmp_path: Path) -> None:
    """Of instances whose times are not computed from peaks the memory alone is described."""
    node = hardware(tmp_path, **NODE)
    links = [("network.nvlink", "unsourced"), ("network.pcie", "unsourced")]
    links += [("network.nic", "unsourced"), ("topology", "overlay")]
    for compute, computed in (("roofline", ["compute", "nvlink"]), ("rate", []), ("none", [])):
        of = served(tensor_parallel=2, compute=compute)
        used = hardware_used(of, lambda path: node)
        parts = [(f"instances.g.{part}", "unsourced") for part in ("hbm", *computed)]
        assert [(each.part, each.state) for each in used] == [*parts, *links]


def test_a_link_that_no_step_goes_over_need_not_be_known(tmp_path: Path) -> None:
    node = hardware(tmp_path, **{**NODE, "nvlink": {}})
    assert described(served(tensor_parallel=2, compute="rate"), lambda path: node).gpus["g"]


def test_a_tier_that_is_off_is_not_among_the_described_parts(tmp_path: Path) -> None:
    machine = hardware(tmp_path)
    for gib, parts in ((1.0, ["tiers.dram"]), (0.0, [])):
        of = scenario(dram=TierSection(profile="m.yaml", capacity_gib=gib))
        assert [each.part for each in hardware_used(of, lambda path: machine)] == parts


# --- the catalogue -------------------------------------------------------------------------------

GPUS = [name for name in shipped_names("configs", "hardware") if name != "hgx-h100"]


@pytest.mark.parametrize("name", shipped_names("configs", "hardware"))
def test_a_shipped_profile_has_a_source_for_all_that_it_says(name: str) -> None:
    shipped = read_hardware(find_config(Path(name), "hardware profile", "hardware"))
    known = {path: section for path, section in shipped.sections() if section.has_values}
    assert all(section.provenance.sourced for section in known.values())
    (kind,) = shipped.gpus
    assert {f"gpus.{kind}.hbm", f"gpus.{kind}.compute", "nvlink", "pcie"} <= set(known)


def test_the_node_of_the_catalogue_has_the_gpu_of_the_catalogue() -> None:
    node, gpu = (
        read_hardware(find_config(Path(name), "hardware profile", "hardware"))
        for name in ("hgx-h100", "h100")
    )
    assert node.gpus["h100"].hbm.bytes_per_s == gpu.gpus["h100"].hbm.bytes_per_s
    assert node.gpus["h100"].hbm.capacity_bytes == gpu.gpus["h100"].hbm.capacity_bytes
    assert node.gpus["h100"].compute.flop_per_s == gpu.gpus["h100"].compute.flop_per_s
    assert (node.nvlink.bytes_per_s, node.pcie.bytes_per_s) == (
        gpu.nvlink.bytes_per_s, gpu.pcie.bytes_per_s
    )  # fmt: skip


@pytest.mark.parametrize("name", GPUS)
def test_each_gpu_of_the_catalogue_serves_a_model_that_fits(name: str) -> None:
    read = read_hardware(find_config(Path(name), "hardware profile", "hardware"))
    of = Scenario(instances={"g": InstanceSection(profile=name)})
    assert described(of, lambda path: read).gpus["g"].kv_bytes > 50e9


@pytest.mark.parametrize(
    ("name", "sets", "left"),
    [
        ("network-variance", ["network.profile=hgx-h100"], {"network.nic.gbytes_per_s"}),
        ("rack-pool", ["instances.gpu.profile=h100"], {"instances.gpu.hbm_gib"}),
        (
            "single-node",
            ["tiers.dram.profile=hgx-h100", "tiers.nvme.profile=hgx-h100"],
            {"tiers.dram.read_gbytes_per_s", "tiers.dram.write_gbytes_per_s"},
        ),
        ("unequal-gpus", ["topology.profile=hgx-h100"], {"topology.instances_per_node"}),
    ],
)
def test_a_profile_that_is_set_takes_the_place_of_what_a_file_and_its_preset_give(
    name: str, sets: list[str], left: set[str]
) -> None:
    """Who types both is told."""
    assert set(held(name, sets).left_out) == left
    for path in left:
        either = rf"{path} is 7|(network.nic|{path}) is given, and"
        with pytest.raises(ConfigError, match=either):
            held(name, [*sets, f"{path}=7"])


def held(name: str, sets: list[str]) -> Scenarios:
    """A shipped scenario at its smallest scale, with its rules and its hardware checked."""
    found = read_scenarios(Path(name), "smoke", sets)
    found.check()
    for variant in found.variants():
        described(variant.scenario, read_shipped)
    return found


def read_shipped(path: str) -> Profile | HardwareProfile:
    return read_described(find_config(Path(path), "hardware profile", "hardware"))
