"""What a run takes of the machine's RAM, and how large its tiers are if no option says.

A size that was given is never changed: what does not fit is refused by `check_ram`.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

import psutil

from kv_cache.bench.memory import CPU_TIER, available_ram_bytes, usable_bytes
from kv_cache.config.root import Config
from kv_cache.config.sections import REFERENCE_CPU_GIB, REFERENCE_GPU_GIB, TiersConfig
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, MIB, gib_to_bytes, human_bytes
from kv_cache.tiers.gpu import find_devices

SHARE = 0.5
"""Of the RAM that may be used, what a CPU tier takes at most if no option sets its size."""

_STEPS_GIB = (32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
"""Sizes that it may have: few, so that two runs on one machine have the same."""


def real_gpu(config: Config) -> bool:
    """Whether the GPU tier is on CUDA devices. Raises PlaceError where it must be and cannot."""
    if config.tiers.gpu == "emulated":
        return False
    devices, why = find_devices(config.tiers.num_gpus)
    if not devices and config.tiers.gpu == "cuda":
        raise PlaceError(
            f"--gpu cuda: {why}; use --gpu emulated, or --gpu-mem-gb 0 for no GPU tier"
        )
    return bool(devices)


def ram_parts(config: Config) -> Mapping[str, int]:
    """Return the bytes of RAM that a run takes, by what takes them."""
    gpu = gib_to_bytes(config.tiers.gpu_gib) * config.tiers.num_gpus
    pool = (config.io.load_buffers + config.io.store_buffers) * config.io.buffer_mib * MIB
    return {
        CPU_TIER: gib_to_bytes(config.tiers.cpu_gib),
        "gpu tier (emulated in RAM)": gpu if gpu and not real_gpu(config) else 0,
        "buffers": max(pool, _fill_buffers(config)),
    }


def size_tiers(
    config: Config, ranks_here: int = 1, *, available: int | None = None
) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with the sizes of its tiers, and warnings about them. Sizes that are
    not set are the reference's (16 GiB of GPU memory a card, 32 GiB of CPU memory) in virtual time
    and if there is RAM for them. Else the GPU tier is left out, if it would be emulated in RAM, and
    the CPU tier takes up to `SHARE` of what may be used. `available` None asks the system; of
    several ranks on a machine each counts on its part of all the RAM."""
    tiers = config.tiers
    sized = replace(config, tiers=_as_the_reference(config))
    if config.run.virtual_time or sized.tiers == tiers:
        return sized, ()
    if available is None:
        available = available_ram_bytes() if ranks_here == 1 else _part_of_all(ranks_here)
    usable = usable_bytes(available)
    if sum(ram_parts(sized).values()) <= usable:
        return sized, ()
    fitting = _smaller(config, sized, usable)
    changes = [
        f"tiers.{name} ({flag}) is {getattr(fitting.tiers, name):g}"
        for name, flag in (("gpu_mem_gib", "--gpu-mem-gb"), ("cpu_mem_gib", "--cpu-mem-gb"))
        if getattr(fitting.tiers, name) != getattr(sized.tiers, name)
    ]
    if not changes:
        return sized, ()
    changed = " and ".join(changes)
    return fitting, (
        (
            f"{changed} GiB, as none was given and the reference's 16 and 32 GiB do not "
            f"fit into the {human_bytes(available)} of RAM that are available; give both to have "
            "the same on any machine"
        ),
    )


def _as_the_reference(config: Config) -> TiersConfig:
    """Set the reference's sizes if none are set, within the limits of the site."""
    tiers, limits = config.tiers, config.validation_limits
    gpu, cpu = tiers.gpu_mem_gib, tiers.cpu_mem_gib
    return replace(
        tiers,
        gpu_mem_gib=min(REFERENCE_GPU_GIB, limits.max_gpu_memory_gb) if gpu is None else gpu,
        cpu_mem_gib=min(REFERENCE_CPU_GIB, limits.max_cpu_memory_gb) if cpu is None else cpu,
    )


def _smaller(config: Config, sized: Config, usable: int) -> Config:
    """Shrink the tiers that no option has set until they fit."""
    tiers = sized.tiers
    if config.tiers.gpu_mem_gib is None and not real_gpu(config):
        tiers = replace(tiers, gpu_mem_gib=0.0)
    if config.tiers.cpu_mem_gib is None:
        parts = ram_parts(replace(sized, tiers=replace(tiers, cpu_mem_gib=0.0)))
        most_gib = (usable - sum(parts.values())) * SHARE / GIB
        fitting = (step for step in _STEPS_GIB if step <= most_gib)
        cpu = min(tiers.cpu_gib, next(fitting, _STEPS_GIB[-1]))
        tiers = replace(tiers, cpu_mem_gib=cpu)
    return replace(sized, tiers=tiers)


def _part_of_all(ranks: int) -> int:
    """Return one rank's part of all RAM, not of what is left: another rank may have taken its own
    already."""
    return int(psutil.virtual_memory().total) // ranks


def _fill_buffers(config: Config) -> int:
    """Return bytes that a fill takes: it ends before the run's own are taken."""
    if not config.precondition.enabled:
        return 0
    return (config.precondition.threads or os.cpu_count() or 1) * 4 * MIB
