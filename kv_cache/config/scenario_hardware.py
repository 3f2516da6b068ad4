"""The tiers of a scenario, as files that describe hardware have them.

A tier's `profile` is a probe file or a hardware profile. Of the latter it takes the section of its
own name (`nvme`: the one drive of `storage`): curves where it was measured, else constants in place
of the scenario's bandwidths and latencies. A bandwidth that nobody gave is asked for; a latency
that nobody gave is 0, as for `predict`.

It must never change a tier without a profile, nor a capacity: that is the scenario's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kv_cache.config.hardware import HardwareProfile
from kv_cache.config.profile import Profile
from kv_cache.config.scenario import Scenario, TierSection
from kv_cache.config.scenario_rules import TIERS
from kv_cache.core.errors import ConfigError
from kv_cache.core.units import BYTES_PER_GB

Read = Callable[[str], Profile | HardwareProfile]


def described(scenario: Scenario, read: Read) -> tuple[Scenario, dict[str, Profile]]:
    """The scenario with constants where its profiles have those, and the curves by the names of
    their tiers. Raises ConfigError."""
    curves: dict[str, Profile] = {}
    constants: dict[str, Any] = {}
    for name in TIERS:
        tier = getattr(scenario.tiers, name)
        if tier.profile is None:
            continue
        profile = read(tier.profile)
        if isinstance(profile, Profile):
            curves[name] = profile
            continue
        drive = _drive(profile) if name == "nvme" else ""
        if drive in profile.curves:
            curves[name] = profile.curves[drive]
        else:
            path = f"storage.{drive}" if drive else name
            constants[name] = _constants(tier, profile, path)
    return replace(scenario, tiers=replace(scenario.tiers, **constants)), curves


def _drive(hardware: HardwareProfile) -> str:
    """Measured or not."""
    if len(hardware.storage) == 1:
        return next(iter(hardware.storage))
    has = ", ".join(hardware.storage) or "none"
    raise ConfigError(
        f"hardware {hardware.file}: a tier nvme is one kind of drive, and storage in it has "
        f"{has}; calibrate a file with the one that is meant"
    )


def _constants(tier: TierSection, hardware: HardwareProfile, path: str) -> TierSection:
    section = hardware.storage[path.split(".")[1]] if "." in path else getattr(hardware, path)
    if path == "dram":  # a copied byte is read once and written once, and counts once
        reads = writes = hardware.require("dram.copy_bytes_per_s")
    else:
        reads = hardware.require(f"{path}.read_bytes_per_s")
        writes = hardware.require(f"{path}.write_bytes_per_s")
    both = getattr(section, "latency_us", None)
    return replace(
        tier,
        profile=None,
        read_gbytes_per_s=reads / BYTES_PER_GB,
        write_gbytes_per_s=writes / BYTES_PER_GB,
        read_latency_us=both or getattr(section, "read_latency_us", None) or 0.0,
        write_latency_us=both or getattr(section, "write_latency_us", None) or 0.0,
    )
