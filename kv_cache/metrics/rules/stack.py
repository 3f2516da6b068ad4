"""V27, V28 and V31: what is below the storage's file system: memory, what cannot be seen, barriers.

They are about what is below a block device. Storage that is itself a file system in RAM, FUSE,
network or overlay has no block device, and V1 and V5 say so.
"""

from collections.abc import Iterator, Sequence

from kv_cache.core.mounts import RAW_DEVICE
from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, nothing, suspect, unknown, well
from kv_cache.metrics.rules.readings import DIRECTIONS, ever, percent

_RAM, _UNSEEN, _DISK = "ram", "unseen", "disk"
_SYNCING = ("object", "batch")


def memory_foot(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """V27: memory that answers in place of a drive."""
    feet = e.rows("stack.feet")
    if not feet:
        yield unknown("what lies below the storage's file system is not known")
        return
    every = [*feet, *_later(e)]
    in_memory = dict.fromkeys(_memory(every))  # a stripe has several feet below one loop
    yield from in_memory
    if in_memory:
        return
    disks = [foot for foot in feet if foot.text("kind") == _DISK]
    if len(disks) < len(feet):
        yield nothing("not all of the storage ends on a disk of this machine, see V5 and V28")
        return
    lost = list(_lost_on_the_way(e, t, disks))
    yield from lost or [well(f"the bytes end on {_names(disks)}{_compared(e)}")]


def _memory(feet: Sequence[Evidence]) -> Iterator[Look]:
    for foot in feet:
        for cache in foot.words("cached_by") or []:
            yield invalid(
                f"{cache} answers from the page cache and not from what lies below it; attach the "
                "loop device with losetup --direct-io=on, or set buffered_io of the NVMe target "
                "to 0"
            )
        if foot.text("kind") == _RAM and _below_a_device(foot):
            yield invalid(
                f"{foot.text('name')} is memory and no drive: {foot.text('reason')} "
                f"({_path(foot)}); use a directory on a drive"
            )


def _lost_on_the_way(e: Evidence, t: Thresholds, disks: Sequence[Evidence]) -> Iterator[Look]:
    """What the upper device counted and the disks did not. What the upper one lacks is V19's."""
    if e.words("stack.not_compared"):
        return
    for kind, past in DIRECTIONS:
        claimed, device, foot = e.numbers(
            f"ledger.{kind}", "claimed_bytes", "device_bytes", "foot_bytes"
        )
        if not claimed or device is None or foot is None or claimed < t.enough_bytes:
            continue
        if device < (1 - t.counter_tolerance) * claimed:
            continue
        share = foot / claimed
        if share < 1 - t.counter_tolerance:
            grave = share < t.least_device_share
            yield (invalid if grave else suspect)(
                f"of {human_bytes(claimed)} {past} {_names(disks)} counted only "
                f"{percent(share)}, though the device above counted all ({_path(disks[0])}): "
                "something between them answered the rest; use a directory on the drive itself"
            )


def _compared(e: Evidence) -> str:
    why = e.words("stack.not_compared")
    return f"; its bytes are not compared: {', '.join(why)}" if why else ""


def unseen_foot(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """V28: an end of the stack that this machine cannot look into."""
    feet = e.rows("stack.feet")
    if not feet:
        yield unknown("what lies below the storage's file system is not known")
        return
    unseen = [foot for foot in feet if foot.text("kind") == _UNSEEN and _below_a_device(foot)]
    for foot in unseen:
        yield suspect(
            f"what lies below {foot.text('name')} cannot be seen: {foot.text('reason')} "
            f"({_path(foot)}); keep the counters of that side beside the result, or use a "
            "directory on a local drive"
        )
    names = {foot.text("name") for foot in feet}
    changed = [foot for foot in _later(e) if foot.text("name") not in names]
    gone = _gone(feet, changed)
    if gone:
        yield suspect(
            f"{_names(gone)} went away while the run went on: from then on operations fail, as "
            "io-error and read-only on a file system, as no-space and truncated on a raw device; "
            "look at the kernel's log and the drive's connection"
        )
    for foot in () if gone else changed:
        yield suspect(
            f"what lies below the storage changed while the run went on: {_path(foot)} was not "
            "there as it began, and where its bytes went since is not known; mount nothing over "
            "the cache directory"
        )
    if not unseen and not changed:
        yield well("each block device was followed down to where its bytes end")


def durability(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """V31: an fsync that need not reach the medium."""
    fsync, mounts = e.text("engines.fsync"), ever(e, "no_barrier")
    if fsync is None or mounts is None:
        yield unknown("how writes are synced, or how file systems are mounted, is not known")
    elif fsync not in _SYNCING:
        yield nothing("no fsync was asked for")
    elif hidden := ever(e, "hidden_caches"):
        yield suspect(
            f"--fsync {fsync} was asked for, but {', '.join(hidden)} has a write cache that the "
            "kernel was told to take for none (queue/write_cache), so an fsync does not flush it; "
            "set it back to write back, or use --fsync never"
        )
    elif mounts:
        yield suspect(
            f"--fsync {fsync} was asked for, but {', '.join(mounts)} is mounted without barriers: "
            "an fsync returns before the drive's write cache is flushed, so it is not known "
            "whether anything was durable; mount it with barriers, or use --fsync never"
        )
    elif e.flag("interposed.unflushed"):
        yield suspect(
            f"--fsync {fsync} was asked for, but an fsync of what was just written let no disk "
            "flush its write cache: something answers in the kernel's place, and nothing need be "
            "durable; run without it, or use --fsync never"
        )
    elif all((foot.words("path") or [""])[0] == RAW_DEVICE for foot in e.rows("stack.feet") or ()):
        yield well(
            "an fsync of a raw device waits for its write cache, and no file system is above"
        )
    else:
        yield well("every file system of the stack waits for the drive's write cache at an fsync")


def _later(e: Evidence) -> Sequence[Evidence]:
    """Return feet that were not there as the run began."""
    return e.rows("stack.later.feet") or []


def _gone(feet: Sequence[Evidence], changed: Sequence[Evidence]) -> Sequence[Evidence]:
    """Return the feet below which there was nothing more to see later. Where the node of a raw
    device was, /dev itself is seen then."""
    blind = [foot.words("path") or [""] for foot in changed if foot.text("kind") == _UNSEEN]
    tops = {path[0] for path in blind}
    if any("devtmpfs /dev" in (foot.words("path") or ()) for foot in changed):
        tops.add(RAW_DEVICE)
    return [foot for foot in feet if (foot.words("path") or [""])[0] in tops]


def _below_a_device(foot: Evidence) -> bool:
    return len(foot.words("path") or []) > 1


def _path(foot: Evidence) -> str:
    return " > ".join(foot.words("path") or [])


def _names(feet: Sequence[Evidence]) -> str:
    return " and ".join(dict.fromkeys(foot.text("name") or "unnamed" for foot in feet))
