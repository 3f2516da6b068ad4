"""What the machine says during a run: the evidence that the program cannot make up itself.

Begun before the first byte and ended after the last, with a look at the edges of the measured
window. It judges nothing: `metrics/passport` does, from what is in the result.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import to_builtins
from msgspec.structs import asdict

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.counters import Counters, device_of, read_counters
from kv_cache.bench.path_checks import is_block_device
from kv_cache.bench.probes import cpu_users, foreign, interposed, throttles
from kv_cache.bench.probes.counter_watch import CounterWatch
from kv_cache.bench.probes.cpu_users import CpuUsers
from kv_cache.bench.probes.diskstats import largest_request_bytes
from kv_cache.bench.probes.journal import read_journals
from kv_cache.bench.probes.lag import LagCanary, in_ms
from kv_cache.bench.probes.link import link_of, namespaces_beside
from kv_cache.bench.probes.network import is_here
from kv_cache.bench.probes.pagecache import PageCacheSampler
from kv_cache.bench.probes.payload_pages import examine
from kv_cache.bench.probes.settings_watch import SettingsWatch
from kv_cache.bench.probes.stack import stack_of
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.config.passport import PassportConfig
from kv_cache.config.storage_targets import temporary_place
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import StoreError
from kv_cache.core.seed import Seed
from kv_cache.core.units import PAGE_BYTES, ns_to_s
from kv_cache.metrics.gaps import find_gaps, gap_rows
from kv_cache.tiers.base import Store
from kv_cache.tiers.buffers import aligned_bytes
from kv_cache.tiers.native import library
from kv_cache.tiers.payload import Payload

_SETTLE_STEP_S = 0.05


class Witness:
    """Takes notes from `begin` to `end`; `evidence` is what it has to say."""

    def __init__(
        self,
        config: PassportConfig,
        directories: Sequence[Path],
        clock: MonotonicClock,
        *,
        siblings: Sequence[int] = (),
        servers: Sequence[str] = (),
        pulse: StoreCalls | None = None,
        native: bool = False,
    ) -> None:
        """`siblings` are processes that belong to us, as other ranks of one run do: what they move
        counts as ours. `servers`: the URLs of object stores, if storage is not a directory.
        `pulse` knows the calls of the stores. `native`: their instants are taken in native
        code."""
        self._config = config
        self._siblings = tuple(siblings)
        self._server_here = any(is_here(s) is not False for s in servers) if servers else None
        self._directories = directories
        self._clock = clock
        devices = [device_of(directory) for directory in directories]
        self._accounted = bool(devices) and all(device is not None for device in devices)
        self._filesystems = {d: place for d, place in zip(devices, directories, strict=True) if d}
        self._devices = tuple(dict.fromkeys(device for device in devices if device is not None))
        self._stack = stack_of(directories)
        self._drives = (*self._stack.disks, *namespaces_beside(self._stack.disks))
        self.page_cache = PageCacheSampler(config.sample_every)
        loaded = library() if native else ""
        self._canary = LagCanary(native=None if isinstance(loaded, str) else loaded)
        self._pulse = pulse or StoreCalls()
        accounted = self._devices if self._accounted else ()
        self._still = CounterWatch(clock, self._stack.disks or accounted)
        self._settings = SettingsWatch(directories, self._stack)
        self._settled_s = 0.0
        self._looks = self._measures = False  # between the first byte and the last; in the window
        self._payload: Mapping[str, Any] = {}

    # --- while the run goes on ---------------------------------------------------------------

    def begin(self) -> None:
        place = next(iter(self._directories), None)
        if place is not None and is_block_device(place):
            place = temporary_place()  # the calls are tried in a file
        disks = () if place is None else stack_of([place]).disks
        self._interposed = {} if place is None else interposed.look(place, disks)
        self._cores = os.sysconf("SC_NPROCESSORS_ONLN")
        self._began = self._instants()
        self._canary.start()
        self._still.start()
        self._settings.start()
        self._before = self._counters()
        self._opened = self._closed = self._before
        self._ended = self._began
        self._lags = self._canary.mark()
        self._neighbours: list[Any] = []
        self._around = self._others()
        self._kin = self._kin_then = foreign.snapshot_of(self._siblings)
        self._opened_ns = self._closed_ns = self._clock.now_ns()
        self._own_begun = self._pulse.bytes_moved()
        self._own = self._own_before = (0, 0)
        self._own_within = self._within_before = (0, 0)
        self._journal_before, self._journal_bytes = read_journals(self._filesystems), 0
        self._cpu_users: CpuUsers | None = None
        self._looks = True

    def _instants(self) -> "_Instants":
        kernel_ns = interposed.kernel_ns
        return _Instants(
            time.time(), self._clock.now_ns(), kernel_ns(), kernel_ns(time.CLOCK_MONOTONIC_RAW)
        )

    def _counters(self) -> Counters:
        return read_counters(self._devices, self._drives, sockets=self._server_here is not None)

    def _others(self) -> foreign.Snapshot:
        return foreign.snapshot(excluded={*foreign.our_pids(), *self._siblings})

    def open_window(self) -> None:
        self._own_before = self._pulse.bytes_moved()
        self._opened, self._opened_ns = self._counters(), self._clock.now_ns()
        self._within_before = self._pulse.bytes_moved()
        self._journal_before = read_journals(self._filesystems)
        self._around = self._others()
        self._cpu_before = cpu_users.snapshot()
        self._kin = foreign.snapshot_of(self._siblings)
        self._canary.mark()
        self._measures = True

    def close_window(self) -> None:
        self._measures = False
        self._own_within = _less(self._pulse.bytes_moved(), self._within_before)
        self._closed, self._closed_ns = self._counters(), self._clock.now_ns()
        self._journal_bytes = self._in_journals()
        self._own = _less(self._pulse.bytes_moved(), self._own_before)
        self._lags = self._canary.mark()
        self._kin_then = foreign.snapshot_of(self._siblings)
        self._cpu_users = cpu_users.between(
            self._cpu_before,
            cpu_users.snapshot(),
            ours=foreign.our_pids(),
            siblings=self._siblings,
            cpus=os.sched_getaffinity(0),
            seconds=ns_to_s(self._closed_ns - self._opened_ns),
        )
        moved = foreign.culprits(self._around, self._others())
        self._neighbours = [process for process in moved if self._can_be(process)]

    def _in_journals(self) -> int:
        return read_journals(self._filesystems).since(self._journal_before)

    def _can_be(self, process: foreign.ProcessIo) -> bool:
        """Whether it can have moved so much on our devices in the window: the kernel gives a
        process the bytes of its children's whole lives when they end."""
        window = self._closed - self._opened
        most = (
            _larger(window.device_read_bytes, window.foot_read_bytes),
            _larger(window.device_write_bytes, window.foot_write_bytes),
        )
        moved = (process.read_bytes, process.write_bytes)
        return all(n is None or m is None or n <= m for n, m in zip(moved, most, strict=True))

    def settle(
        self, read_bytes: int, write_bytes: int, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """The run is over and storage claims these bytes; the device's counters may lag behind,
        so they are given a while to get there."""
        deadline = time.monotonic() + self._config.settle_s
        began = time.monotonic()
        self._after = self._counters()
        while not self._caught_up(read_bytes, write_bytes):
            if stopped() or time.monotonic() >= deadline:
                break
            time.sleep(_SETTLE_STEP_S)
            self._after = self._counters()
        self._settled_s = time.monotonic() - began
        self._ended = self._instants()
        self._settings.stop()
        self._limits = self._limits_until_now()

    def _calls(self) -> dict[str, object]:
        return {**self._interposed, "tracers": self._settings.tracers} if self._interposed else {}

    def _limits_until_now(self) -> dict[str, object]:
        limits = throttles.over(self._settings.stays())
        return {**limits, "io_limits": list(filter(self._is_of_ours, self._settings.io_limits))}

    def _is_of_ours(self, limit: str) -> bool:
        """A limit's text begins with the device's name; a partition has its disk's, and a volume
        those of its parts. Where no device is known, any may be."""
        if self._server_here is not None:
            return False
        return not self._accounted or limit.split()[0] in self._stack.devices

    def _caught_up(self, read_bytes: int, write_bytes: int) -> bool:
        moved = self._after - self._before
        if moved.device_read_bytes is None or moved.device_write_bytes is None:
            return True
        return moved.device_read_bytes >= read_bytes and moved.device_write_bytes >= write_bytes

    def stop(self) -> None:
        self._looks = self._measures = False
        self._canary.stop()
        self._still.stop()
        self._settings.stop()

    def examine_payload(
        self,
        store: Store,
        refs: Sequence[CopyRef],
        payload: Payload,
        seed: Seed,
        stopped: Callable[[], bool],
    ) -> None:
        """Read pages of these copies back, from all over them, and look at their bytes: are they
        those that were stored?"""
        if not refs:
            return
        dice = np.random.Generator(np.random.PCG64(seed.integer()))
        each = -(-self._config.payload_pages // len(refs))
        pages: list[bytes] = []
        wrong = 0
        for ref in refs:
            if stopped():
                return  # a signal does not wait for long
            for offset, page in _pages(store, ref, each, dice):
                pages.append(page)
                wrong += not payload.matches_page(page, ref, offset)
        if pages:
            self._payload = {**examine(pages), "wrong_pages": wrong}

    def so_far(self) -> dict[str, object] | None:
        """Return the sections of the evidence that are there while the run goes on, from any
        thread, those of the window only within it; None before the first byte and after the
        last."""
        if not self._looks:
            return None
        now = self._counters()
        sections: dict[str, object] = {
            "page_cache": self.page_cache.section(),
            "interposed": self._calls(),
            "throttles": self._limits_until_now(),
            "clock": self._times(self._instants()),
            "stack": self._settings.stack,
            "ledger": {
                **_ledger_so_far(now - self._before, self._own_begun, self._pulse.bytes_moved()),
                "accounted": self._accounted,
            },
        }
        if not self._measures:
            return sections
        now_ns = self._clock.now_ns()
        ours = _less(self._pulse.bytes_moved(), self._own_before)
        return {
            **sections,
            "completeness": {"window_s": ns_to_s(now_ns - self._opened_ns)},
            "foreign": None if self._siblings else self._foreign_so_far(now - self._opened, ours),
            "gaps": self.gaps(self._opened_ns, now_ns),
        }

    def _foreign_so_far(self, moved: Counters, mine: tuple[int, int]) -> dict[str, object]:
        """What the disks counted less what is ours: what is in flight the kernel has counted."""
        compared = not self._stack.not_compared and moved.foot_read_bytes is not None
        reads = (moved.foot_read_bytes if compared else moved.device_read_bytes, mine[0],
                 moved.process_read_bytes)  # fmt: skip
        beside = self._in_journals()
        process = moved.process_write_bytes
        writes = (moved.foot_write_bytes if compared else moved.device_write_bytes,
                  mine[1] + beside, None if process is None else process + beside)  # fmt: skip
        names = self._drives if compared else self._devices
        return {
            "read_bytes": _theirs(*reads),
            "write_bytes": _theirs(*writes),
            "counted": "+".join(names),
        }

    # --- afterwards --------------------------------------------------------------------------

    @property
    def kernel(self) -> dict[str, Mapping[str, Any]]:
        """Differences of the kernel's counters over the run and over the window."""
        run, window = self._after - self._before, self._closed - self._opened
        return {"run": asdict(run), "window": asdict(window)}

    def gaps(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return times in a window in which storage stood still. The counters are those of the
        disks at the feet, else of the devices above, if all of storage lies on such."""
        silences = self._pulse.silences(self._clock.now_ns())
        gaps = find_gaps(silences, self._still.stretches(), start_ns, end_ns)
        return {"counted": self._still.counted, "found": gap_rows(gaps, start_ns)}

    def evidence(self) -> dict[str, Any]:
        """Return the sections that only the machine can fill."""
        link = _link(self._devices if self._accounted else ())
        return {
            "page_cache": self.page_cache.section(),
            "interposed": self._calls(),
            "throttles": self._limits,
            "foreign": self._foreign(),
            "clock": {
                **self._times(self._ended),
                "cores": max(self._cores, os.sysconf("SC_NPROCESSORS_ONLN")),  # one may be gone
                "counted_s": ns_to_s(self._closed_ns - self._opened_ns),
            },
            "payload": dict(self._payload),
            "link": {"bytes_per_second": link[0], "source": link[1]},
            "lag": {**in_ms(self._lags), "harness_lag_of": self._canary.of},
            "cpu_users": to_builtins(self._cpu_users),
            "settle_s": self._settled_s,
            "server_here": self._server_here,
            "accounted": self._accounted,
            "stack": self._settings.stack,
            "cores": throttles.usable_cores(),
        }

    def _times(self, ended: "_Instants") -> dict[str, float | None]:
        """Return how long the run was by each clock."""
        began = self._began
        return {
            "wall_s": ended.wall_s - began.wall_s,
            "monotonic_s": ns_to_s(ended.monotonic_ns - began.monotonic_ns),
            "kernel_s": _seconds(began.kernel_ns, ended.kernel_ns),
            "raw_s": _seconds(began.raw_ns, ended.raw_ns),
        }

    def _foreign(self) -> dict[str, Any]:
        counted = self._stack.disks or self._devices
        section = {
            **foreign.section(self._own, self._own_within, self._neighbours),
            "largest_request_bytes": largest_request_bytes(counted),
            "journal_bytes": self._journal_bytes,
            "namespaces": list(self._drives[len(self._stack.disks) :]),
        }
        if not self._siblings:
            return section
        moved = foreign.moved(self._kin, self._kin_then)
        return {**section, "siblings": foreign.siblings_row(self._siblings, moved)}


class _Instants(NamedTuple):
    """One moment by several clocks; `kernel_ns` is the monotonic clock's, past the C library, and
    `raw_ns` that of the clock below it, which nobody can slew."""

    wall_s: float
    monotonic_ns: int
    kernel_ns: int | None
    raw_ns: int | None


def _seconds(began_ns: int | None, ended_ns: int | None) -> float | None:
    return None if began_ns is None or ended_ns is None else ns_to_s(ended_ns - began_ns)


def _less(later: tuple[int, int], sooner: tuple[int, int]) -> tuple[int, int]:
    return later[0] - sooner[0], later[1] - sooner[1]


def _theirs(counted: int | None, own: int, process: int | None) -> int | None:
    return None if counted is None else max(0, counted - max(own, process or 0))


def _ledger_so_far(
    moved: Counters, begun: tuple[int, int], ended: tuple[int, int]
) -> dict[str, object]:
    read, written = _less(ended, begun)
    return {
        "read": {"claimed_bytes": read, "process_bytes": moved.process_read_bytes},
        "write": {"claimed_bytes": written, "process_bytes": moved.process_write_bytes},
    }


def _larger(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _link(devices: Sequence[str]) -> tuple[float | None, str | None]:
    """Return what all devices together can carry, if all of them say. Partitions and namespaces of
    one drive, and drives behind one narrow link, share it."""
    links = [link_of(device) for device in devices]
    known = [link for link in links if link is not None]
    if not known or len(known) < len(links):
        return None, None
    rates = {source: rate for rate, source in known}
    return sum(rates.values()), ", ".join(rates)


def _pages(
    store: Store, ref: CopyRef, count: int, dice: np.random.Generator
) -> list[tuple[int, bytes]]:
    """`count` pages of one copy, with their offsets; none of one that cannot be read."""
    page, pages = aligned_bytes(PAGE_BYTES), []
    numbers = dice.permutation(ref.nbytes // PAGE_BYTES)[:count]
    try:
        tap = store.open(ref)
        try:
            for number in numbers:
                offset = int(number) * PAGE_BYTES
                tap.read(offset, page.data)
                pages.append((offset, page.tobytes()))
        finally:
            tap.close()
    except StoreError:
        return pages  # what fails here has failed in the run too, or is gone since
    return pages
