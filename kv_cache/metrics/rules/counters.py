"""V5, V6 and V19: whether the counters of the kernel and of the device agree with our ledger."""

from collections.abc import Iterator

from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, nothing, suspect, unknown, well
from kv_cache.metrics.rules.object_storage import against_network, uploads_sent
from kv_cache.metrics.rules.readings import DIRECTIONS, ever, on_objects, percent, too_few

_IN_FLIGHT = 3  # times what is in flight on average, by rate and time of a call


def accounted_device(e: Evidence, t: Thresholds) -> Iterator[Look]:
    accounted = e.flag("ledger.accounted")
    if accounted is None:
        yield unknown("whether a block device counts these bytes is not known")
    elif accounted and (others := ever(e, "counters_by")):
        yield suspect(
            f"the counters of this machine are not the kernel's ({', '.join(others)}), as in a "
            "container: what others did on its disks and cores may not be in them; run on the host"
        )
    elif accounted:
        device = e.text("ledger.device") or "its name is not known"
        yield well(f"a block device counts these bytes ({device})")
    else:
        kind = e.text("ledger.filesystem") or "unknown"
        yield suspect(
            f"no block device of this machine counts the bytes (file system {kind}): tmpfs, FUSE, "
            "network and GPU-direct I/O leave no trace in its counters; measure on a local device, "
            "or keep the counters of the server beside the result"
        )


def ledger(e: Evidence, t: Thresholds) -> Iterator[Look]:
    claimed = [e.number(f"ledger.{kind}.claimed_bytes") for kind, _ in DIRECTIONS]
    if None in claimed:
        yield suspect("how many bytes our ledger has is not known; run again")
        return
    for (kind, past), nbytes in zip(DIRECTIONS, claimed, strict=True):
        yield from _ledger_of(e, t, nbytes or 0, kind, past)
    if on_objects(e):
        yield from uploads_sent(e, t)


def _ledger_of(e: Evidence, t: Thresholds, claimed: float, kind: str, past: str) -> Iterator[Look]:
    process, calls = e.numbers(f"ledger.{kind}", "process_bytes", "calls_bytes")
    if not claimed:
        yield nothing(f"nothing was {past}")
        return
    if claimed < t.enough_bytes:
        yield too_few(claimed, past)
        return
    if on_objects(e):
        yield from against_network(e, t, claimed, kind, past)
        return
    if _calls_are_counted(e, kind) and calls is not None:
        if calls < claimed * (1 - t.counter_tolerance):
            yield invalid(
                f"system calls moved {human_bytes(calls)}, less than the {human_bytes(claimed)} "
                f"that we say were {past}: our count is wrong; please report it"
            )
            return
        yield well(f"system calls moved all of the {human_bytes(claimed)} {past}")
    yield _against_process(e, t, claimed, process, kind, past)
    yield from _window_against_process(e, t, kind, past)


def _window_against_process(e: Evidence, t: Thresholds, kind: str, past: str) -> Iterator[Look]:
    """A window may be small beside its warm-up and rounds. What was in flight as it opened the
    kernel had counted before."""
    claimed, process = e.numbers(f"ledger.{kind}", "window_claimed_bytes", "window_process_bytes")
    if claimed is None or process is None or e.flag("ledger.accounted") is not True:
        return
    rate, call_ms = e.number(f"link.{kind}_bytes_per_second"), e.number(f"gaps.{kind}_call_ms")
    in_flight = _IN_FLIGHT * (rate or 0) * (call_ms or 0) / 1000
    if claimed - process > t.counter_tolerance * claimed + t.enough_bytes + in_flight:
        yield invalid(
            f"of the {human_bytes(claimed)} {past} in the measured window the kernel counted only "
            f"{percent(process / claimed)} as I/O of this process: memory answered the rest while "
            "it was measured; use --io-engine direct, and mount nothing over the cache directory"
        )


def _calls_are_counted(e: Evidence, kind: str) -> bool:
    """A memory map and a ring move bytes without a read or write call."""
    rows = e.rows("engines.rows") or []
    engines = {row.text("engine") for row in rows if row.text("operation") == kind}
    return bool(engines) and engines <= {"direct", "buffered"}


def _against_process(
    e: Evidence, t: Thresholds, claimed: float, process: float | None, kind: str, past: str
) -> Look:
    if process is None:
        return suspect(
            f"the kernel's count of what this process has {past} cannot be read, so nothing stands "
            "beside our own; run where /proc/self/io can be read"
        )
    share = process / claimed
    fact = f"the kernel counted {percent(share)} of the {human_bytes(claimed)} {past}"
    if share < 1 - t.counter_tolerance:
        if e.flag("ledger.accounted") is not True:
            return unknown(f"no block device counts what was {past}, see V5")
        way = "see V1" if kind == "read" else "use --io-engine direct"
        return invalid(f"{fact}: the rest never was I/O of this process; {way}")
    known = e.number(f"ledger.other_process_{kind}_bytes") or 0
    surplus = process - claimed - known
    if surplus > max(t.counter_tolerance * claimed, t.enough_bytes):
        if failed := e.number("completeness.storage_failed_operations"):
            return unknown(
                f"the kernel counted {human_bytes(surplus)} more {past} than our ledger has: "
                f"{failed:.0f} operations failed on storage, and what they moved until then is in "
                "no ledger; see V12"
            )
        such = "read-ahead" if kind == "read" else "pages that were written back twice (mmap)"
        return suspect(
            f"the kernel counted {human_bytes(surplus)} more {past} than our ledger has "
            f"({human_bytes(claimed)}): I/O that no result shows, such as {such}; use "
            "--io-engine direct, or report it"
        )
    return well(fact)


def device_counters(e: Evidence, t: Thresholds) -> Iterator[Look]:
    if e.flag("ledger.accounted") is False:
        yield nothing("no block device counts these bytes, see V5")
        return
    silent = set((e.text("ledger.device") or "").split("+")) & {*(e.words("stack.uncounted") or ())}
    for kind, past in DIRECTIONS:
        claimed, device = e.numbers(f"ledger.{kind}", "claimed_bytes", "device_bytes")
        if not claimed:
            yield nothing(f"nothing was {past}")
        elif claimed < t.enough_bytes:
            yield too_few(claimed, past)
        elif silent:
            yield _against_feet(e, t, claimed, kind, past, ", ".join(sorted(silent)))
        elif device is None:
            yield unknown(f"the device's count of bytes {past} cannot be read")
        else:
            yield _against_device(e, t, device / claimed, kind, past)


def _against_feet(
    e: Evidence, t: Thresholds, claimed: float, kind: str, past: str, silent: str
) -> Look:
    """In place of a device that keeps no statistics; its bytes are compared where they are ours."""
    feet = None if e.words("stack.not_compared") else e.number(f"ledger.{kind}.foot_bytes")
    if feet is None:
        return unknown(f"{silent} keeps no statistics (queue/iostats 0) of what was {past}")
    return _against_device(e, t, feet / claimed, kind, past)


def _against_device(e: Evidence, t: Thresholds, share: float, kind: str, past: str) -> Look:
    """Only what is missing is judged here. What is more is the file system's journal and others'
    I/O: V23."""
    settled = e.number("ledger.settle_s")
    after = "" if settled is None else f" after settling for {settled:.1f} s"
    fact = f"the device counted {percent(share)} of the bytes {past}{after}"
    if share >= 1 - t.counter_tolerance:
        return well(fact)
    if kind == "read":
        why = "memory answered the rest; use --io-engine direct"
    else:
        why = "the rest is in the page cache or was deleted there; use --io-engine direct or fsync"
    grave = share < t.least_device_share
    return (invalid if grave else suspect)(f"{fact}: {why}")
