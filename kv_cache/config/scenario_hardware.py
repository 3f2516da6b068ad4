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

from msgspec import Struct

from kv_cache.config.hardware import MEASURED, HardwareProfile, state_of
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


class HardwareUsed(Struct, frozen=True, kw_only=True):
    """A part of a scenario's hardware that a file describes. Its `state` is as `calibrate` says
    it: measured, overlay or unsourced; every part without a file is assumed by the scenario."""

    part: str
    file: str
    sha256: str | None
    state: str
    source: str | None
    date: str | None


def hardware_used(scenario: Scenario, read: Read) -> list[HardwareUsed]:
    """Return the parts that have a profile, and where that is from. Raises ConfigError."""
    tiers = ((name, getattr(scenario.tiers, name).profile) for name in TIERS)
    return [_used(f"tiers.{name}", path, read(path)) for name, path in tiers if path is not None]


def _used(part: str, file: str, profile: Profile | HardwareProfile) -> HardwareUsed:
    if isinstance(profile, Profile):
        facts = profile.describe()
        source, date = facts["model"] or facts["device"], facts["measured_utc"]
        return HardwareUsed(
            part=part, file=file, sha256=facts["sha256"], state=MEASURED, source=source, date=date
        )
    name = part.rpartition(".")[2]
    section = profile.storage[_drive(profile)] if name == "nvme" else getattr(profile, name)
    origin = section.provenance
    return HardwareUsed(
        part=part, file=file, sha256=profile.sha256, state=state_of(section),
        source=origin.source, date=origin.date,
    )  # fmt: skip


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
