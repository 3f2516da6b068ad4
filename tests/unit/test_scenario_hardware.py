"""Tiers of a scenario that take what a hardware profile says of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kv_cache.config.hardware import HardwareProfile, Storage, hardware_of, read_hardware, sheet_of
from kv_cache.config.profile import Profile
from kv_cache.config.scenario import Scenario, TierSection
from kv_cache.config.scenario_hardware import described, hardware_used
from kv_cache.core.errors import ConfigError

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
    found, curves = described(of, lambda path: machine)
    assert curves == {}

    def said(reads: float, writes: float, *delays: float, scope: str = "node") -> TierSection:
        return TierSection(
            **plain, scope=scope, read_gbytes_per_s=reads, write_gbytes_per_s=writes,  # type: ignore[arg-type]
            read_latency_us=delays[0], write_latency_us=delays[1],
        )  # fmt: skip

    assert found == scenario(
        dram=said(50, 50, 0.2, 0.2), rack_pool=said(80, 60, 4, 4, scope="rack"),
        nvme=said(6, 3, 70, 0),
    )  # fmt: skip


def test_a_measured_drive_is_its_curves_and_a_probe_file_is_one_for_any_tier() -> None:
    probe = Profile(name="p.yaml", facts={}, cells=())
    machine = HardwareProfile(
        file="m.yaml", storage={"a": Storage(probe="p.yaml")}, curves={"a": probe}
    )
    files: Mapping[str, Profile | HardwareProfile] = {"p.yaml": probe, "m.yaml": machine}
    of = scenario(nvme=TierSection(profile="m.yaml"), remote=TierSection(profile="p.yaml"))
    assert described(of, files.__getitem__) == (of, {"nvme": probe, "remote": probe})
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
    of = scenario(dram=TierSection(profile="m.yaml"), remote=TierSection(profile="p.yaml"))
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
            "storage in it has a, b; calibrate a file with the one that is meant",
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
