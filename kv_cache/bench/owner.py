"""Who works in a cache directory or below a prefix of a bucket: what their lock or owner file says
of them, and whether they may still be at work.

Nothing here removes anything. A run is dead only where that is certain: numbers of processes mean
something within one pid namespace of one running kernel, which its boot id identifies. A record
with another boot id is of this machine before a reboot only if nothing speaks against it (see
`_was_rebooted`); every other one may be of another host's run, which cannot be looked at from here.
"""

import functools
import json
import os
import re
import socket
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from kv_cache.bench.procfs import parse_stat, text_of
from kv_cache.core.text import in_utf8

PROGRAM = "kv-cache"
OWNER_NAME = "OWNER.json"
RECORD_BYTES = 4096  # more than a lock or owner file of ours can have

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel: that of no container
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


class Life(Enum):
    """Whether the run that wrote a record is at work."""

    ALIVE = "alive"
    DEAD = "dead"
    ELSEWHERE = "elsewhere"  # on a host, or in a container, that cannot be looked at from here


class Host(NamedTuple):
    """Identity of a PID namespace: processes in it see each other's numbers; see namespaces(7)."""

    name: str
    machine_id: str | None
    boot_id: str | None
    pid_namespace: int | None

    @property
    def key(self) -> str | None:
        """The same text in two processes that see each other's numbers; None if unknown."""
        if self.boot_id is None or self.pid_namespace is None:
            return None
        return f"{self.boot_id}/{self.pid_namespace}"


@functools.cache
def this_host() -> Host:
    machine_id = (text_of(Path("/etc/machine-id")) or "").strip()
    boot_id = (text_of(Path("/proc/sys/kernel/random/boot_id")) or "").strip()
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = None
    return Host(
        name=in_utf8(socket.gethostname()),
        machine_id=machine_id if _MACHINE_ID.fullmatch(machine_id) else None,
        boot_id=boot_id or None,
        pid_namespace=namespace,
    )


def run_identity(run: str) -> dict[str, Any]:
    """Describe this process for a lock or owner file."""
    here = this_host()
    return {
        "program": PROGRAM,
        "run": run,
        "pid": os.getpid(),
        "pid_start_ticks": start_ticks(os.getpid()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": here.name,
        "machine_id": here.machine_id,
        "boot_id": here.boot_id,
        "pid_namespace": here.pid_namespace,
    }


def parse_record(content: bytes) -> dict[str, Any] | None:
    """Parse a lock or owner file of ours; return None if it is not one."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("program") != PROGRAM:
        return None
    return record if type(record.get("pid")) is int else None


def may_be_removed(
    owner: dict[str, Any] | None, *, device: int | None, reclaim: str | None = None
) -> bool:
    """Whether a run's objects are leftovers: ours, not kept, and its process dead, or on the host
    `reclaim`, which the user knows to be dead. `device` as in `life_of`."""
    if owner is None or owner.get("kept"):
        return False
    life = life_of(owner, device=device)
    return life is Life.DEAD or (life is Life.ELSEWHERE and host_of(owner) == reclaim)


def host_of(owner: dict[str, Any]) -> str:
    name = owner.get("host")
    return name if isinstance(name, str) and name.isprintable() else "unknown"


def process_of(record: dict[str, Any]) -> str:
    """Name the process that wrote the record; with its host, if it is not of this one."""
    here = this_host()
    ours = (record.get("boot_id"), record.get("pid_namespace")) == (
        here.boot_id,
        here.pid_namespace,
    )
    where = "" if ours or "host" not in record else f" on host {host_of(record)}"
    return f"process {record['pid']}{where}, started {record.get('started', 'at an unknown time')},"


def life_of(record: dict[str, Any], *, device: int | None) -> Life:
    """Whether who wrote the record is at work.

    `device` is the number of the file system (st_dev) on which no other run holds the lock; None
    where there are no locks. Within one kernel a lock reaches every process on the same file
    system, and no process that has mounted the same storage once more.
    """
    here = this_host()
    boot_id, namespace = _where(record)
    if boot_id is None and device is not None and "host" not in record:
        return Life.ALIVE if is_alive(record) else Life.DEAD  # 0.7.0, whose lock would be held
    if boot_id is None or here.boot_id is None:
        return Life.ELSEWHERE
    if boot_id != here.boot_id:
        return Life.DEAD if _was_rebooted(record, here) else Life.ELSEWHERE
    if namespace is not None and namespace == here.pid_namespace:
        return Life.ALIVE if is_alive(record) else Life.DEAD
    return Life.DEAD if device is not None and record.get("device") == device else Life.ELSEWHERE


def is_alive(record: dict[str, Any]) -> bool:
    """Whether the very process that wrote the record still runs: numbers are used again."""
    ticks = start_ticks(record["pid"])
    return ticks is not None and ticks == record.get("pid_start_ticks")


def _where(record: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return the boot id and PID namespace; version 0.7.0 wrote them as one text, into buckets
    only."""
    boot_id, namespace = record.get("boot_id"), record.get("pid_namespace")
    if "host" not in record and isinstance(record.get("machine"), str):
        boot_id, _, number = record["machine"].partition("/")
        namespace = int(number) if number.isdecimal() else None
    return boot_id or None, namespace


def _was_rebooted(record: dict[str, Any], here: Host) -> bool:
    """Whether a record with another boot id is of this machine before it was booted. Images of
    machines and of containers are copied, names and machine ids with them: containers never say
    yes, and a record that was begun since this machine was booted is another's."""
    containers = (record.get("pid_namespace"), here.pid_namespace) != (_FIRST_PID_NAMESPACE,) * 2
    if containers or here.machine_id is None:
        return False
    same = (record.get("host"), record.get("machine_id")) == (here.name, here.machine_id)
    booted, started = _booted(), _started(record)
    return same and booted is not None and started is not None and started < booted


def _started(record: dict[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(record["started"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None


def _booted() -> float | None:
    """Return when this kernel began, in seconds since 1970."""
    lines = (text_of(Path("/proc/stat")) or "").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it is dead or a
    zombie."""
    text = text_of(Path(f"/proc/{pid}/stat"))
    if text is None:
        return None
    stat = parse_stat(text)
    return None if stat.state in "ZX" else stat.started
