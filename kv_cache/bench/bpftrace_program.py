"""The bpftrace program of `--enable-latency-tracing`, written for one machine and one run.

Only tracepoints, as kernels without kprobes have them too. A request is known by its device and
first sector, for the pointer that would be better is not in a tracepoint's arguments. Times:

    block_io_start     the request is made        (kernels before 6.5: block_rq_insert, which
    |                                              only requests that wait in a scheduler pass)
    | Q2D
    block_rq_issue     given to the driver; once more after each block_rq_requeue, the last counts
    | D2C
    block_rq_complete  the device is done

Everything of a request is booked when it completes, so that all its histograms hold the same
requests. The kernel does not run a tracepoint's program within another on the same processor, so a
completion that interrupts us is missed: about one in a thousand of 4 KiB requests at full speed.
Counted beside: `requeued`; `overtaken`, requests to a place where one is under way already, or so
it seems as its completion was missed; `unmatched`, completions of requests not known to be issued.

Attaching and detaching take seconds, one tracepoint after the other. What is booked lies between
two signals to bpftrace that change nothing for it but are traced themselves: OPEN and CLOSE. On a
kernel that does not trace kill(2), everything from the first to the last tracepoint is booked.

How many requests are at the device is looked up if the kernel has it, every 50 ms: a counter of
our own would drift with each event that is missed.

The reference traces the kernel functions vfs_read and vfs_write of all processes of one name. Here
it is the system calls of one process that read and write at a position: those of the data path.
"""

import signal
from collections.abc import Collection, Sequence

from msgspec import Struct

from kv_cache.metrics.tracing import READ, SECOND_COUNT, WRITE

ATTACHED = "kv-cache: attached"
"""Printed once everything is."""

LOOK_MS = 50
_READS = ("pread64", "preadv", "preadv2")
_WRITES = ("pwrite64", "pwritev", "pwritev2")
_SYNCS = ("fsync", "fdatasync")
_FADVISE = ("fadvise64",)
_KILL = "syscalls:sys_enter_kill"

OPEN, CLOSE = 0, int(signal.SIGCONT)
"""The signals to bpftrace between which the window lies."""

_NEEDED = ("block_rq_issue", "block_rq_complete")


class TraceProgram(Struct, frozen=True, kw_only=True):
    text: str
    tracepoints: tuple[str, ...]


def missing(tracepoints: Collection[str]) -> list[str]:
    """List what is needed and is not in `tracepoints`, as `block:…`."""
    return [f"block:{name}" for name in _NEEDED if f"block:{name}" not in tracepoints]


def program(
    tracepoints: Collection[str],
    device_numbers: Sequence[int],
    in_flight_files: Sequence[str],
    pid: int | None,
) -> TraceProgram:
    """With those of the `tracepoints` that the kernel has (`block:block_rq_issue`), for devices by
    their `kernel_number` and the process `pid` as the first pid namespace numbers it; None = the
    system calls are left out. Its argument `$1` is bpftrace's own process, as its parent numbers
    it."""
    on_ours = " || ".join(f"args->dev == {number}" for number in device_numbers)
    insertion = "block_io_start" if "block:block_io_start" in tracepoints else "block_rq_insert"
    probes = [
        (["block:" + insertion], f"({on_ours}) && args->bytes > 0", _MADE),
        (["block:block_rq_merge"], on_ours, _MERGED),
        (["block:block_rq_issue"], f"({on_ours}) && args->bytes > 0", _ISSUED),
        (["block:block_rq_requeue"], on_ours, _REQUEUED),
        (["block:block_rq_complete"], f"({on_ours}) && args->nr_sector > 0", _completed()),
        *(_system_calls(pid) if pid is not None else []),
    ]
    used: list[str] = []
    parts = [_window(tracepoints), _looks(in_flight_files)]
    for names, condition, body in probes:
        present = [name for name in names if name in tracepoints]
        if present:
            heads = ",\n".join(f"tracepoint:{name}" for name in present)
            parts.append(f"{heads}\n/{condition}/\n{{{body}}}\n")
            used += present
    scratch = _OF_REQUESTS + (_OF_CALLS if pid is not None else ())
    return TraceProgram(text="\n".join([*parts, _end(scratch)]), tracepoints=tuple(used))


def kernel_number(major: int, minor: int) -> int:
    """Return the number of a device in block tracepoints: the kernel's own dev_t, not that of
    `stat`."""
    return major << 20 | minor


def _window(tracepoints: Collection[str]) -> str:
    if _KILL not in tracepoints:
        return "BEGIN\n{\n    @open = 1;\n}\n"
    return f"""BEGIN
{{
    @open = 0;
}}

tracepoint:{_KILL}
/args->pid == $1 && (args->sig == {OPEN} || args->sig == {CLOSE})/
{{
    @open = args->sig == {OPEN} ? 1 : 0;
}}
"""


# --- the block layer -----------------------------------------------------------------------------

_MADE = """
    @made[args->dev, args->sector] = nsecs;
"""

_MERGED = """
    delete(@made[args->dev, args->sector]);
"""

_ISSUED = """
    if (@issued[args->dev, args->sector] != 0 && @open == 1) { @overtaken = count(); }
    @issued[args->dev, args->sector] = nsecs;
    @bytes[args->dev, args->sector] = args->bytes;
"""

_REQUEUED = """
    delete(@issued[args->dev, args->sector]);
    if (@open == 1) { @requeued = count(); }
"""

_COMPLETED = """
    $now = nsecs;
    $issued = @issued[args->dev, args->sector];
    $made = @made[args->dev, args->sector];
    $bytes = @bytes[args->dev, args->sector];
    if (@open == 0) {
    } else if ($issued == 0) {
        @unmatched = count();
    } else if (strncmp(args->rwbs, "R", 1) == 0) {READ
    } else if (strncmp(args->rwbs, "W", 1) == 0 || strncmp(args->rwbs, "FW", 2) == 0) {WRITE
    }
    delete(@issued[args->dev, args->sector]);
    delete(@made[args->dev, args->sector]);
    delete(@bytes[args->dev, args->sector]);
"""


def _completed() -> str:
    return _COMPLETED.replace("READ", _booked(READ)).replace("WRITE", _booked(WRITE))


def _booked(kind: str) -> str:
    """10 GiB a bucket up to 8000 GiB, as the reference's. A sector is 512 bytes."""
    return f"""
        {_timed(f"d2c_{kind}_us", "$now - $issued")}
        if ($made != 0 && $made <= $issued) {{
            {_timed(f"q2d_{kind}_us", "$issued - $made")}
        }}
        @bssplit_{kind}_kb = hist($bytes / 1024);
        @{SECOND_COUNT}bssplit_{kind}_kb = stats($bytes);
        @lba_{kind}_gb = lhist(args->sector >> 21, 0, 8000, 10);
        @{SECOND_COUNT}lba_{kind}_gb = stats(args->sector >> 21);"""


def _timed(name: str, ns: str) -> str:
    return f"@{name} = hist(({ns}) / 1000); @{SECOND_COUNT}{name} = stats({ns});"


def _looks(in_flight_files: Sequence[str]) -> str:
    looks = "".join(f'    cat("{file}");\n' for file in in_flight_files)
    attached = f'interval:ms:20 /@attached == 0/ {{ @attached = 1; printf("{ATTACHED}\\n"); }}\n'
    look = f"interval:ms:{LOOK_MS}\n/@open == 1/\n{{\n{looks}}}\n"
    return attached + (look if looks else "")


# --- system calls of this process ----------------------------------------------------------------

_Probe = tuple[list[str], str, str]


def _system_calls(pid: int) -> list[_Probe]:
    return [
        _enter(_READS, pid, "@reading[tid] = nsecs;" + _gap("fadvise_to_read_us", "@advised")),
        _exit(_READS, "@reading", "vfs_read_us"),
        _enter(_WRITES, pid, "@writing[tid] = nsecs;"),
        _exit(_WRITES, "@writing", "vfs_write_us", "\n    @written[tid] = nsecs;"),
        _enter(_SYNCS, pid, "@syncing[tid] = nsecs;" + _gap("write_to_fsync_us", "@written")),
        _exit(_SYNCS, "@syncing", "fsync_us"),
        ([f"syscalls:sys_exit_{name}" for name in _FADVISE], f"@open == 1 && pid == {pid}",
         "\n    @advised[tid] = nsecs;\n"),
    ]  # fmt: skip


def _enter(calls: Sequence[str], pid: int, body: str) -> _Probe:
    return (
        [f"syscalls:sys_enter_{name}" for name in calls],
        f"@open == 1 && pid == {pid}",
        f"\n    {body}\n",
    )


def _exit(calls: Sequence[str], began: str, name: str, more: str = "") -> _Probe:
    body = f"\n    {_timed(name, f'nsecs - {began}[tid]')}{more}\n    delete({began}[tid]);\n"
    return [f"syscalls:sys_exit_{call}" for call in calls], f"@open == 1 && {began}[tid] != 0", body


def _gap(name: str, since: str) -> str:
    gap = _timed(name, f"nsecs - {since}[tid]")
    return f"\n    if ({since}[tid] != 0) {{ {gap} delete({since}[tid]); }}"


_OF_REQUESTS = ("made", "issued", "bytes", "attached", "open")
_OF_CALLS = ("reading", "writing", "syncing", "written", "advised")


def _end(scratch: Sequence[str]) -> str:
    """Clear the maps that are not results: bpftrace prints every other one at its end."""
    return "END\n{\n" + "".join(f"    clear(@{name});\n" for name in scratch) + "}\n"
