"""What files say of a scenario's hardware that its own constants cannot."""

from collections.abc import Mapping

from msgspec import Struct

from kv_cache.config.scenario_hardware import GpuGroup
from kv_cache.sim.profile_model import ProfileModel


class HardwareModels(Struct, frozen=True, kw_only=True):
    """Measured devices by the names of their tiers, GPUs by the names of their groups."""

    devices: Mapping[str, ProfileModel] = {}
    gpus: Mapping[str, GpuGroup] = {}


PLAIN = HardwareModels()
"""Of a scenario that names no file."""
