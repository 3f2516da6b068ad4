"""What files say of a scenario's hardware that its own constants cannot."""

from collections.abc import Mapping

from msgspec import Struct

from kv_cache.config.scenario_hardware import GpuGroup
from kv_cache.config.step_table import StepTable
from kv_cache.sim.profile_model import ProfileModel


class HardwareModels(Struct, frozen=True, kw_only=True):
    """Measured devices by the names of their tiers, GPUs and tables of steps by the names of their
    groups."""

    devices: Mapping[str, ProfileModel] = {}
    gpus: Mapping[str, GpuGroup] = {}
    steps: Mapping[str, StepTable] = {}


PLAIN = HardwareModels()
"""Of a scenario that names no file."""
