"""What virtual time is given for a machine: a probe file, or a hardware profile that names one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_cache.config.hardware import HardwareProfile, Storage, read_hardware
from kv_cache.config.profile import Profile, read_profile
from kv_cache.config.yaml_files import read_yaml, shipped
from kv_cache.core.errors import ConfigError

_HARDWARE = "kv-cache-hardware/"  # of any version: which one it must be is said by who reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A measured drive and, where a hardware profile was given, what is around it."""

    drive: Profile
    storage: Storage | None = None
    hardware: HardwareProfile | None = None

    def describe(self) -> Mapping[str, Any]:
        """For a result."""
        found = dict(self.drive.describe())
        if self.hardware is not None:
            found["hardware"] = dict(self.hardware.describe())
        return found


def read_described(path: str | Path) -> Profile | HardwareProfile:
    """A checked file of either kind. Raises ConfigError."""
    file = shipped("configs", str(path))
    return read_hardware(file) if _is_hardware(file) else read_profile(path)


def read_machine(path: str | Path) -> Machine:
    """Of a file of either kind, with a measured drive. Raises ConfigError."""
    hardware = read_described(path)
    if isinstance(hardware, Profile):
        return Machine(drive=hardware)
    if not hardware.curves:
        raise ConfigError(
            f"hardware {path}: no storage in it was measured, and virtual time of one node needs "
            "one that was; run kv-cache.py calibrate --cache-dir on the drive"
        )
    if len(hardware.curves) > 1:
        raise ConfigError(
            f"hardware {path}: it has several measured drives ({', '.join(hardware.curves)}), and "
            "virtual time of one node carries one; calibrate a file with the one that is meant"
        )
    ((name, drive),) = hardware.curves.items()
    return Machine(drive=drive, storage=hardware.storage[name], hardware=hardware)


def _is_hardware(file: Path) -> bool:
    if file.suffix == ".json":
        return True
    found = read_yaml(file)
    return isinstance(found, Mapping) and str(found.get("schema")).startswith(_HARDWARE)
