"""Who slows us down by order: the CPU and I/O limits of cgroups, memory limits, clock rates.

A limit on any cgroup above this process holds for it as well, so all levels are looked at.
Counters are differences over each stay in a cgroup, as one that a process is moved to has others.
Limits are named where they held at a look (`settings_watch`).
Sources: admin-guide/cgroup-v2.rst, cgroup-v1/, scheduler/sched-bwc.rst, pm/cpufreq.rst.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.bench.linux import usable_cpus
from kv_cache.bench.probes.pressure import totals_us
from kv_cache.bench.procfs import block_device, cgroup_directories, text_of
from kv_cache.core.units import NS_PER_US, ns_to_s

_V1_KINDS = ("read_bps", "write_bps", "read_iops", "write_iops")
_V2_KINDS = {"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"}
_CPU = "sys/devices/system/cpu"

Reads = Callable[[str], str | None]
"""Returns the text of a file of one cgroup; None if it is not there."""


class Throttles(Struct, frozen=True, kw_only=True):
    """At one instant; None = unknown. The counters add up this process's cgroup and all above
    it, `cpu_throttled_ns` the CPUs as well. `memory_stalled_ns` is how long any task
    of this cgroup waited for memory; in version 1, of the machine."""

    cpu_throttled_periods: int | None
    cpu_throttled_ns: int | None
    memory_limit_events: int | None
    memory_stalled_ns: int | None
    io_limits: tuple[str, ...]
    governor: str | None
    turbo: str | None
    cgroups: tuple[str, ...] = ()  # whose counters these are


class _Cgroups:
    """The cgroups that this process is in at one look."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cgroups = text_of(root / "proc/self/cgroup") or ""
        self._mounts = text_of(root / "proc/self/mountinfo") or ""

    def directories(self, controller: str) -> tuple[int, tuple[str, ...]]:
        return cgroup_directories(controller, self._cgroups, self._mounts)

    def reads(self, directory: str) -> Reads:
        return lambda name: text_of(self.root / directory.lstrip("/") / name)

    def texts(self, controller: str, names: Callable[[int], tuple[str, ...]]) -> list[str]:
        """Read the first of the files that exists, at each level."""
        version, directories = self.directories(controller)
        contents = []
        for directory in directories:
            texts = map(self.reads(directory), names(version))
            contents.append(next((text for text in texts if text is not None), None))
        return [text for text in contents if text is not None]


Stay = tuple[Throttles, Throttles]
"""The first and the last look at the same cgroups."""


def read_throttles(root: Path = Path("/")) -> Throttles:
    """Read all limits and their counters; `root` is where /proc and /sys are."""
    cgroups = _Cgroups(root)
    cpu = [cpu_stat(text) for text in cgroups.texts("cpu", lambda version: ("cpu.stat",))]
    events = [memory_events(text) for text in cgroups.texts("memory", _memory_files)]
    return Throttles(
        cpu_throttled_periods=_sum(periods for periods, _ in cpu),
        cpu_throttled_ns=_sum(ns for _, ns in cpu),
        memory_limit_events=_sum(events),
        memory_stalled_ns=_memory_stalled_ns(cgroups),
        io_limits=_io_limits_now(cgroups),
        governor=_governor(root),
        turbo=turbo(
            text_of(root / _CPU / "intel_pstate/no_turbo"), text_of(root / _CPU / "cpufreq/boost")
        ),
        cgroups=tuple(d for c in ("cpu", "memory") for d in cgroups.directories(c)[1]),
    )


def seen(stays: Sequence[Stay], now: Throttles) -> list[Stay]:
    """Add a look: it ends the last stay, or begins another where the process was moved."""
    first, last = stays[-1] if stays else (now, now)
    if now.cgroups == last.cgroups:
        return [*stays[:-1], (first, now)]
    return [*stays, (now, now)]


def over(stays: Sequence[Stay]) -> dict[str, Any]:
    """Return the section `throttles` of a passport's evidence."""

    def spent(name: str) -> int | None:
        return _sum(_difference(getattr(a, name), getattr(b, name)) for a, b in stays)

    ends = [look for stay in stays for look in stay]
    return {
        "cpu_throttled_s": _seconds(spent("cpu_throttled_ns")),
        "cpu_throttled_periods": spent("cpu_throttled_periods"),
        "io_limits": sorted({limit for look in ends for limit in look.io_limits}),
        "memory_limit_events": spent("memory_limit_events"),
        "memory_stalled_s": _seconds(spent("memory_stalled_ns")),
        "governor": _either(ends[0].governor, ends[-1].governor),
        "turbo": _either(ends[0].turbo, ends[-1].turbo),
    }


def usable_cores(root: Path = Path("/")) -> float:
    """Return the cores that this process may use: those it may run on, or fewer if a cgroup has a
    quota."""
    cgroups = _Cgroups(root)
    version, directories = cgroups.directories("cpu")
    limits = (cpu_limit(version, cgroups.reads(directory)) for directory in directories)
    return min([float(usable_cpus()), *(limit for limit in limits if limit is not None)])


def cpu_stat(text: str) -> tuple[int | None, int | None]:
    """Parse a cpu.stat: periods in which its cgroup was throttled, and for how many ns, of all
    CPUs."""
    values = _pairs(text)
    if "throttled_usec" in values:  # version 2
        return values.get("nr_throttled"), values["throttled_usec"] * NS_PER_US
    return values.get("nr_throttled"), values.get("throttled_time")


def memory_events(text: str) -> int | None:
    """Count how often a limit was met: `high`, `max`, `oom` of a memory.events, or a
    failcnt."""
    if text.strip().isdigit():
        return int(text)
    values = _pairs(text)
    return _sum(values.get(name) for name in ("high", "max", "oom"))


def cpu_limit(version: int, read: Reads) -> float | None:
    """Return the limit of one cgroup in CPUs: the time that may be used in each period, over the
    period. None = no limit, which v2 writes as `max` and v1 as -1."""
    names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = " ".join(read(name) or "" for name in names).split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit():
        return None
    return int(words[0]) / int(words[1])


def io_limits(version: int, read: Reads) -> list[tuple[str, dict[str, int | None]]]:
    """Return devices with their limits in one cgroup, in the words of version 1; None = no
    limit."""
    if version == 2:
        return [
            *(_io_max(line) for line in (read("io.max") or "").splitlines()),
            *_io_costs(read("io.stat") or ""),
        ]
    return [
        (device, {kind: as_limit(value)})
        for kind in _V1_KINDS
        for line in (read(f"blkio.throttle.{kind}_device") or "").splitlines()
        for device, _, value in (line.partition(" "),)
    ]


def _io_max(line: str) -> tuple[str, dict[str, int | None]]:
    """Parse `254:0 rbps=1000 wbps=max riops=max wiops=max`."""
    device, *pairs = line.split()
    limits = (pair.partition("=") for pair in pairs)
    return device, {_V2_KINDS[k]: as_limit(value) for k, _, value in limits if k in _V2_KINDS}


def _io_costs(text: str) -> Iterator[tuple[str, dict[str, int | None]]]:
    """Yield devices of an io.stat whose I/O waits for what it costs by a model (io.cost.qos). The
    cgroup at the root, whose line has the rate, never waits."""
    for line in text.splitlines():
        if "cost.usage=" in line and "cost.vrate=" not in line:
            yield line.split()[0], {"io.cost": 1}


def as_limit(text: str | None) -> int | None:
    """Return a limit as a number; `max` and, in version 1, -1 are no limit."""
    return int(text) if text and text.isdigit() else None


def turbo(no_turbo: str | None, boost: str | None) -> str | None:
    """Return `on` or `off` from intel_pstate/no_turbo or cpufreq/boost; None in most virtual
    machines."""
    for text, on in ((no_turbo, "0"), (boost, "1")):
        if text is not None:
            return "on" if text.strip() == on else "off"
    return None


def _governor(root: Path) -> str | None:
    """Return the governor of all CPUs, or each of them if they differ."""
    texts = (text_of(path) for path in (root / _CPU).glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return ", ".join(sorted({text.strip() for text in texts if text})) or None


def _io_limits_now(cgroups: _Cgroups) -> tuple[str, ...]:
    """List the limits of every device: `vda read_bps=1000 (/sys/fs/cgroup/a)`."""
    version, directories = cgroups.directories("blkio")
    return tuple(
        f"{block_device(device, cgroups.root) or device} {kind}={limit} ({directory})"
        for directory in directories
        for device, limits in io_limits(version, cgroups.reads(directory))
        for kind, limit in limits.items()
        if limit is not None
    )


def _memory_files(version: int) -> tuple[str, ...]:
    """Name the files that count each level alone: plain memory.events includes what is below, our
    neighbours."""
    return ("memory.failcnt",) if version == 1 else ("memory.events.local", "memory.events")


def _memory_stalled_ns(cgroups: _Cgroups) -> int | None:
    version, directories = cgroups.directories("memory")
    per_cgroup = version == 2 and directories
    text = cgroups.reads(directories[0])("memory.pressure") if per_cgroup else None
    stalled = totals_us(text or text_of(cgroups.root / "proc/pressure/memory") or "").get("some")
    return None if stalled is None else stalled * NS_PER_US


def _pairs(text: str) -> dict[str, int]:
    """Parse lines of `name value`."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _sum(values: Iterable[int | None]) -> int | None:
    """Sum the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _seconds(took_ns: int | None) -> float | None:
    return None if took_ns is None else ns_to_s(took_ns)


def _either(before: str | None, after: str | None) -> str | None:
    if before is None or after is None or before == after:
        return before if after is None else after
    return f"{before}, then {after}"
