"""What the machine did between two ticks: devices, pressure, CPU, memory.

It looks and judges nothing. What the machine does not say is None, and so is what cannot be (a
counter that ran backwards).
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.bench.probes.diskstats import DiskStats, added_up, read_diskstats
from kv_cache.bench.probes.pressure import RESOURCES, read_pressure
from kv_cache.bench.probes.throttles import usable_cores
from kv_cache.bench.procfs import parse_pairs, text_of
from kv_cache.core.units import KIB, NS_PER_MS, NS_PER_S, NS_PER_US

_IDLE = (3, 4)  # the columns `idle` and `iowait` of /proc/stat; both do nothing
_OWN = 8  # columns; the two behind them, of guests, are in `user` and `nice` already


class _Look(Struct, frozen=True, kw_only=True):
    """The machine at one instant."""

    at_ns: int
    process_cpu_ns: int
    host_busy_ns: int | None
    devices: Mapping[str, DiskStats] | None
    pressure_us: Mapping[tuple[str, str], int]


class MachineMonitor:
    """`sample` once a tick, always from the same thread; the first sample covers the time since the
    creation."""

    def __init__(
        self,
        devices: Sequence[str],
        gpu: Callable[[], int | None] | None = None,
        root: Path = Path("/"),
    ) -> None:
        """`devices` as `counters.device_of` names them; `gpu` as `gpu_used_bytes`, asked at each
        tick, None = there is no GPU tier; `root` is where /proc is."""
        self._devices = tuple(dict.fromkeys(devices))
        self._gpu = gpu
        self._root = root
        self._cores = usable_cores(root)
        self._before = self._look()

    def sample(self) -> Mapping[str, Any]:
        """Since the last sample, for `Window.machine`. Of all devices together:

        device_utilisation        share of the time with anything to do (0..1), of the busiest
        device_in_flight          operations begun and not ended, now
        device_queue_depth        operations in flight, on average (of those that ended)
        device_read_iops, _write_ operations ended, a second, as the device saw them
        device_read_ms, _write_   mean time of those; None if none ended
        device_read_bytes_per_s, device_write_bytes_per_s
        device_merged             requests that became part of another
        io_, memory_, cpu_pressure_some and _full: see `probes/pressure`; a share of the time
        process_cores, host_cores_busy: CPU seconds a second; `cores` may be used by this process
        rss_bytes, available_memory_bytes, gpu_used_bytes: now
        """
        before, now = self._before, self._look()
        self._before = now
        passed_ns = max(1, now.at_ns - before.at_ns)
        return {
            **_devices(before.devices, now.devices, passed_ns),
            **_pressure(before.pressure_us, now.pressure_us, passed_ns),
            "process_cores": (now.process_cpu_ns - before.process_cpu_ns) / passed_ns,
            "host_cores_busy": _share(before.host_busy_ns, now.host_busy_ns, passed_ns),
            "cores": self._cores,
            "rss_bytes": self._rss_bytes(),
            "available_memory_bytes": self._available_bytes(),
            "gpu_used_bytes": self._gpu() if self._gpu else None,
        }

    def _look(self) -> _Look:
        return _Look(
            at_ns=time.monotonic_ns(),
            process_cpu_ns=time.process_time_ns(),
            host_busy_ns=_busy_ns(text_of(self._root / "proc/stat") or ""),
            devices=read_diskstats(self._devices, self._root),
            pressure_us=read_pressure(self._root),
        )

    def _rss_bytes(self) -> int | None:
        words = (text_of(self._root / "proc/self/statm") or "").split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else None

    def _available_bytes(self) -> int | None:
        pairs = parse_pairs(text_of(self._root / "proc/meminfo") or "")
        value = pairs.get("MemAvailable")
        return None if value is None else int(value.split()[0]) * KIB


_GPU_MEMORY: Mapping[str, Callable[[Any, int], tuple[int, int]]] = {
    "torch": lambda torch, number: torch.cuda.mem_get_info(number),
    "cupy": lambda cupy, number: cupy.cuda.Device(number).mem_info,
}
"""By library: bytes of a CUDA device that are free, and all of them."""


def gpu_used_bytes(numbers: Sequence[int]) -> Callable[[], int | None] | None:
    """Return a function that returns the memory in use on these CUDA devices together, through the
    library that the GPU tier has imported already; None if it has imported none. The function
    returns None if the driver refuses, as a run does not end for that."""
    imported = next((name for name in _GPU_MEMORY if name in sys.modules), None)
    if imported is None or not numbers:
        return None
    library, memory = sys.modules[imported], _GPU_MEMORY[imported]

    def used() -> int | None:
        try:
            return sum(int(total - free) for free, total in (memory(library, n) for n in numbers))
        except RuntimeError:
            return None

    return used


# --- differences -----------------------------------------------------------------------------


def _devices(
    before: Mapping[str, DiskStats] | None, now: Mapping[str, DiskStats] | None, passed_ns: int
) -> dict[str, Any]:
    moved = [now[name] - before[name] for name in now] if now and before else []
    seconds = passed_ns / NS_PER_S
    total = added_up(moved)
    busiest_ms = max((stats.busy_ms for stats in moved), default=0)
    sample = {
        "device_utilisation": min(1.0, busiest_ms * NS_PER_MS / passed_ns),
        "device_in_flight": total.in_flight,
        "device_queue_depth": total.waiting_ms * NS_PER_MS / passed_ns,
        "device_read_iops": total.reads / seconds,
        "device_write_iops": total.writes / seconds,
        "device_read_ms": total.read_ms / total.reads if total.reads else None,
        "device_write_ms": total.write_ms / total.writes if total.writes else None,
        "device_read_bytes_per_s": total.read_bytes / seconds,
        "device_write_bytes_per_s": total.write_bytes / seconds,
        "device_merged": total.reads_merged + total.writes_merged,
    }
    known = moved and not any(_backwards(stats) for stats in moved)
    return sample if known else dict.fromkeys(sample)


def _backwards(moved: DiskStats) -> bool:
    """Whether a counter ran backwards: the device was taken away, and one of the same name came."""
    return any(
        getattr(moved, name) < 0 for name in DiskStats.__struct_fields__ if name != "in_flight"
    )


def _pressure(
    before: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int], passed_ns: int
) -> dict[str, float | None]:
    return {
        f"{resource}_pressure_{kind}": _share(
            _us_in_ns(before.get((resource, kind))), _us_in_ns(now.get((resource, kind))), passed_ns
        )
        for resource in RESOURCES
        for kind in ("some", "full")
    }


def _us_in_ns(us: int | None) -> int | None:
    return None if us is None else us * NS_PER_US


def _share(before: int | None, now: int | None, passed_ns: int) -> float | None:
    if before is None or now is None or now < before:
        return None
    return (now - before) / passed_ns


def _busy_ns(stat: str) -> int | None:
    """Sum the busy time of all CPUs, from the first line of /proc/stat (proc(5))."""
    words = stat.partition("\n")[0].split()
    if words[:1] != ["cpu"]:
        return None
    ticks = [int(word) for word in words[1:]]
    busy = sum(n for column, n in enumerate(ticks[:_OWN]) if column not in _IDLE)
    return busy * NS_PER_S // os.sysconf("SC_CLK_TCK")
