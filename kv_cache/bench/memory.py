"""How much RAM a run may take, so that it is refused at the start and not killed in the middle."""

import math
from collections.abc import Mapping
from pathlib import Path

import psutil

from kv_cache.bench.address_space import memory_limits
from kv_cache.bench.procfs import cgroup_directories, text_of
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, MIB, human_bytes

RESERVE_SHARE = 0.1
RESERVE_BYTES = 256 * MIB
"""Left to others: this share of what is available, at least `RESERVE_BYTES`."""

GPU_TIER = "gpu tier"
CPU_TIER = "cpu tier"
"""Beginnings of the names of the parts whose size an option sets; see `check_ram`."""


def check_ram(
    parts: Mapping[str, int], *, available: int | None = None, way_out: str | None = None
) -> None:
    """Refuse a run whose parts (name to bytes) need more RAM than `available` less a reserve.

    A part named `cpu tier…` or `gpu tier…` can be made smaller by its option; the others are
    taken as fixed, and `way_out` says what would be less. `available` None asks the system. Raises
    PlaceError.
    """
    have = available_ram_bytes() if available is None else available
    need = sum(parts.values())
    usable = usable_bytes(have)
    if need <= usable:
        return
    listed = ", ".join(f"{name} {human_bytes(size)}" for name, size in parts.items() if size)
    bound = "".join(f" ({at.flag} is {human_bytes(at.nbytes)})" for at in memory_limits())
    raise PlaceError(
        f"the run needs {human_bytes(need)} of RAM ({listed}) but {human_bytes(have)} are "
        f"available{bound}, of which {human_bytes(usable)} may be used; "
        + (way_out or _what_fits(parts, usable))
    )


def check_ram_of_ranks(parts: Mapping[str, int], ranks: int, *, total: int | None = None) -> None:
    """Refuse `ranks` runs of these parts that a machine of `total` RAM cannot hold together.

    All the machine's RAM is the measure, not what is left of it: another rank may have taken its
    own already. Raises PlaceError.
    """
    have = int(psutil.virtual_memory().total) if total is None else total
    each, usable = sum(parts.values()), usable_bytes(have)
    if ranks <= 1 or each * ranks <= usable:
        return
    raise PlaceError(
        f"{ranks} ranks on this machine need {human_bytes(each * ranks)} of RAM together, "
        f"{human_bytes(each)} each, but the machine has {human_bytes(have)}, of which "
        f"{human_bytes(usable)} may be used; {_what_fits(parts, usable // ranks)} for each, or "
        "start fewer"
    )


def usable_bytes(available: int) -> int:
    return max(0, available - max(RESERVE_BYTES, math.ceil(available * RESERVE_SHARE)))


def _what_fits(parts: Mapping[str, int], usable: int) -> str:
    """Name the options that would fit. The GPU tier is given up first: one emulated in RAM measures
    nothing that the CPU tier does not."""
    cpu = sum(size for name, size in parts.items() if name.startswith(CPU_TIER))
    gpu = sum(size for name, size in parts.items() if name.startswith(GPU_TIER))
    fixed = sum(parts.values()) - cpu - gpu
    if fixed > usable or not (cpu or gpu):
        raised = " and ".join(limit.flag for limit in memory_limits())
        larger = f"raise {raised}" if raised else "use a larger machine"
        return f"{human_bytes(fixed)} of it no option of a tier can save: {larger}"
    options = []
    if cpu:
        options.append(f"--cpu-mem-gb {_floor_gib(min(cpu, usable - fixed)):g}")
    if gpu:
        options.append("--gpu-mem-gb 0")
    return f"{' '.join(options)} would fit"


def _floor_gib(nbytes: int) -> float:
    """Round down to whole GiB, or to hundredths below one."""
    gib = nbytes / GIB
    return float(math.floor(gib)) if gib >= 1 else math.floor(gib * 100) / 100


def available_ram_bytes() -> int:
    """Count the bytes that can be allocated without swapping, as the machine, cgroups and the
    limits of this process allow."""
    available = int(psutil.virtual_memory().available)
    return max(0, min([available, *_left_in_cgroups(), *_left_of_limits()]))


def _left_of_limits() -> list[int]:
    taken = psutil.Process().memory_info()
    return [limit.nbytes - int(getattr(taken, limit.used)) for limit in memory_limits()]


def _left_in_cgroups() -> list[int]:
    """List what each cgroup with a limit leaves, from this process's up to the topmost visible."""
    cgroups, mounts = text_of(Path("/proc/self/cgroup")), text_of(Path("/proc/self/mountinfo"))
    version, directories = cgroup_directories("memory", cgroups or "", mounts or "")
    usage = "memory.usage_in_bytes" if version == 1 else "memory.current"
    # Above `high` the kernel slows the process down: for a benchmark as good as a limit.
    limits = ("memory.limit_in_bytes",) if version == 1 else ("memory.max", "memory.high")
    left = (
        left_under_limit(
            *(text_of(Path(directory) / name) for name in (limit, usage, "memory.stat"))
        )
        for directory in directories
        for limit in limits
    )
    return [nbytes for nbytes in left if nbytes is not None]


def left_under_limit(limit: str | None, usage: str | None, statistics: str | None) -> int | None:
    """Return limit less usage plus the page cache that can be reclaimed at once; None = no limit.

    Takes the text of the files `memory.max` (`max` is no limit), `memory.current` and
    `memory.stat`, or what cgroup v1 has instead; None where a file is not there.
    """
    if limit is None or usage is None or limit.strip() == "max":
        return None
    return int(limit) - int(usage) + reclaimable_bytes(statistics or "")


def reclaimable_bytes(statistics: str) -> int:
    """Return `inactive_file` of a memory.stat; v1 has it with the children's as
    `total_inactive_file`."""
    values = dict(line.split(maxsplit=1) for line in statistics.splitlines() if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
