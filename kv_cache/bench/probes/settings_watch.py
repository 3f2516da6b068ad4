"""What is set below the storage and around this process, looked at once a second of a run.

A limit, a mount option or the mode of a loop device that somebody sets while a run goes on, and
takes back before it ends, is at neither end of it. It reads what the kernel keeps in memory.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from kv_cache.bench.probes import throttles
from kv_cache.bench.probes.stack import Stack, stack_of
from kv_cache.bench.procfs import parse_pairs, text_of

INTERVAL_S = 1.0
_PATIENCE_S = 1.0  # a device or file system that hangs holds a look for as long as it does


class SettingsWatch:
    """Looks from `start` to `stop`, in a thread of its own: a device that hangs may hold it."""

    def __init__(self, directories: Sequence[Path], first: Stack) -> None:
        """`first` is the stack below the directories as the run begins."""
        self._directories = directories
        self._lock = threading.Lock()
        self._first = self._all = first
        self._limits: set[str] = set()
        self._stays: list[throttles.Stay] = []
        self._tracers: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="settings-watch", daemon=True)

    def start(self) -> None:
        """Look at the limits a first time, and start the thread; once only."""
        self._see(throttles.read_throttles())
        self._thread.start()

    def stop(self) -> None:
        """Look a last time and end; a look that is held is not waited for. Again, do nothing."""
        if not self._ended.is_set() and self._thread.ident is not None:
            self._ended.set()
            self._thread.join(_PATIENCE_S)

    @property
    def stack(self) -> dict[str, object]:
        """Return the stack as it was first, and under `later` what was added to it since."""
        with self._lock:
            first, rows = self._first.to_json(), self._all.to_json()
        later = {name: [row for row in rows[name] if row not in first[name]] for name in first}
        return {**first, "later": later}

    def stays(self) -> list[throttles.Stay]:
        """Look at the limits, and return the looks of each stay in a cgroup."""
        self._see(throttles.read_throttles())
        with self._lock:
            return list(self._stays)

    @property
    def io_limits(self) -> list[str]:
        """Return every limit that was in force at a look, as `throttles` words it."""
        with self._lock:
            return sorted(self._limits)

    def _see(self, now: throttles.Throttles) -> None:
        with self._lock:
            self._limits.update(now.io_limits)
            self._stays = throttles.seen(self._stays, now)

    @property
    def tracers(self) -> list[str]:
        """Return who traced this process at a look, each as its name and number."""
        with self._lock:
            return sorted(self._tracers)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        self._see(throttles.read_throttles())
        stack = stack_of(self._directories)
        tracer = parse_pairs(text_of(Path("/proc/self/status")) or "").get("TracerPid", "0")
        with self._lock:
            self._all = self._all.joined(stack)
            if tracer != "0":
                name = (text_of(Path(f"/proc/{tracer}/comm")) or "a process").strip()
                self._tracers.add(f"{name} ({tracer})")
