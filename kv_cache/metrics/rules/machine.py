"""V4, V21, V23, V24 and V26: whether the machine let the run measure: faked calls, clocks, other
processes, limits, and virtual time."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from kv_cache.core.units import PAGE_BYTES, human_bytes
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, suspect, unknown, well
from kv_cache.metrics.rules.readings import DIRECTIONS, first_few, moved, percent

REAL_IO = "real-io"
VIRTUAL_TIME = "virtual-time"
"""The two drivers."""
_CLOCK_READING_S = 0.01  # between the readings of two clocks a thread may have to wait
_LONGER, _TICKS_S = 1.05, 0.1  # times and more; the kernel counts in ticks of 10 ms
_MORE_REQUESTS, _ENOUGH_REQUESTS = 0.5, 1000  # of others: times ours, and in a window
_OF_THE_JOURNAL = 4  # requests, at most, for each write that is synced: 1.8 on ext4
_LATE_S = 1.0  # by which a program may be late to read counters


def interposed_calls(e: Evidence, t: Thresholds) -> Iterator[Look]:
    disagreeing = e.words("interposed.disagreeing")
    foreign = e.words("interposed.foreign_symbols")
    preload = e.text("interposed.preload")
    by = f", preloaded is {preload}" if preload else ""
    hidden = e.words("interposed.unlisted")
    if disagreeing:
        yield invalid(
            f"{first_few(disagreeing)} of the C library do not do what the system call does{by}: "
            "they are faked; run without the preloaded library"
        )
    elif foreign:
        origins = [f"{name} ({_provider(e, name) or 'from where is unknown'})" for name in foreign]
        yield suspect(
            f"another library stands in for {first_few(origins)}{by}; run without it, or make sure "
            "that it passes every call on"
        )
    elif hidden or (preload and "LD_AUDIT" in preload):
        yield suspect(
            f"{first_few(hidden or [preload or ''])} is loaded beside the program's own "
            "libraries, as those of LD_AUDIT are, which can redirect any call; run without it"
        )
    elif tracers := e.words("interposed.tracers"):
        yield suspect(
            f"{first_few(tracers)} traced this process, as strace and debuggers do: its system "
            "calls wait for that, which can change what they do and return; run without it"
        )
    elif disagreeing is None:
        yield unknown("what the C library's calls do was not compared with raw system calls")
    else:
        yield well(f"I/O calls are the C library's own and do what they say{by}")


def _provider(e: Evidence, symbol: str) -> str | None:
    """The file that a call comes from."""
    symbols = e.at("interposed.symbols")
    return Evidence(symbols).text(symbol) if isinstance(symbols, Mapping) else None


def clocks(e: Evidence, t: Thresholds) -> Iterator[Look]:
    wall = e.number("clock.wall_s", least=-inf)  # it may have been set back
    monotonic = e.number("clock.monotonic_s")
    yield from _impossible(e, t)
    if wall is None or monotonic is None:
        yield unknown("the run was not timed by two clocks")
        return
    kernel = e.number("clock.kernel_s")
    reading_s = _CLOCK_READING_S + t.clock_tolerance_share * (kernel or 0)
    if kernel is not None and abs(kernel - monotonic) > reading_s:
        yield invalid(
            f"this program's clock ran for {monotonic:.3f} s and the kernel's for {kernel:.3f} s: "
            "something answers for the clock, so every rate and time is false; run without it"
        )
    raw = e.number("clock.raw_s")
    if raw is not None and abs(raw - monotonic) > reading_s:
        yield suspect(
            f"the monotonic clock ran for {monotonic:.3f} s and the oscillator's own for "
            f"{raw:.3f} s: the clock is being slewed (adjtimex, chrony), so rates and times are "
            f"off by {percent(abs(monotonic / raw - 1) if raw else 1)}; run again once the time "
            "is in step"
        )
    apart = abs(wall - monotonic)
    fact = f"wall clock and monotonic clock differ by {apart:.3f} s over {monotonic:.1f} s"
    if apart > t.clock_tolerance_s + t.clock_tolerance_share * monotonic:
        yield suspect(
            f"{fact}: the time was set, or the machine was suspended; run again with a steady clock"
        )
    else:
        yield well(fact)


def _impossible(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """What no time can hold: more of cores than they have, a disk busy for longer than it. The
    counters are read a little after each end of a window, later where the program is late."""
    counted, window = e.number("clock.counted_s"), e.number("completeness.window_s")
    if not counted or not window:
        return
    if counted > _LONGER * window + _LATE_S:
        yield suspect(
            f"the kernel's counters are of {counted:.2f} s, around a window of {window:.2f} s: the "
            "window was longer than is said, or the program stood still at its end; run again"
        )
    cores, core_s = e.numbers("clock", "cores", "core_s")
    if cores and core_s is not None and core_s > cores * (_LONGER * counted + _TICKS_S):
        yield invalid(
            f"the kernel counted {core_s:.2f} s of {cores:.0f} cores in {counted:.2f} s, which "
            f"hold {cores * counted:.2f}: the time was longer than is said, so every rate is false"
        )
    devices, busy_s = e.numbers("clock", "devices", "busy_s")
    if devices and busy_s is not None and busy_s > devices * (_LONGER * counted + _TICKS_S):
        yield invalid(
            f"the disk was busy for {busy_s:.2f} s in {counted:.2f} s: the time was longer than is "
            "said, so every rate is false"
        )


def foreign_io(e: Evidence, t: Thresholds) -> Iterator[Look]:
    # Bytes written through the page cache are ours when the page is made and the device's when it
    # is written back: their difference within a window belongs to none.
    kinds = ["read"] if moved(e, "write", cached=True) else ["read", "write"]
    counts = [e.number(f"foreign.{kind}_bytes") for kind in kinds]
    known = [nbytes for nbytes in counts if nbytes is not None]
    where = (e.text("foreign.counted") or "the device").replace("+", " and ")
    unlike = ", ".join(e.words("stack.not_compared") or ())
    if not known:
        why = f": {unlike}" if unlike else ""
        yield unknown(f"what others did on the disks is not known{why}")
        return
    theirs, ours = sum(known), _ours_in_window(e)
    fact = f"others moved {human_bytes(theirs)} on {where} during the window"
    if journal := e.number("foreign.journal_bytes"):
        fact += f", where the file system's journal took {human_bytes(journal)}"
    if unlike:
        fact += f" (the disks below are not compared: {unlike})"
    if theirs <= max(t.most_foreign_share * ours, t.enough_bytes):
        yield _by_requests(e, fact)
        return
    if failed := e.number("completeness.storage_failed_operations"):
        yield unknown(
            f"{fact}, or the {failed:.0f} operations that failed on storage did: what they moved "
            "is in no ledger; see V12"
        )
        return
    ranks = e.number("foreign.ranks_here")
    if ranks is not None and ranks > 1:
        yield unknown(
            f"{fact}; {ranks:.0f} ranks of this job ran on this machine, and what of it was theirs "
            "is not known here"
        )
        return
    yield suspect(
        f"{fact}{_who(e, kinds, theirs)}, beside {human_bytes(ours)} of ours (at most "
        f"{percent(t.most_foreign_share)} is wanted); stop them, or use larger blocks if it is "
        "the file system's journal"
    )


def _by_requests(e: Evidence, fact: str) -> Look:
    """Judge by how often others read and write."""
    most = [e.number(f"foreign.most_own_{kind}_requests") for kind, _ in DIRECTIONS]
    theirs = sum(_requests_beyond(e, kind) for kind, _ in DIRECTIONS)
    ours = sum(n or 0 for n in most)
    if None in most or theirs <= max(_MORE_REQUESTS * ours, _ENOUGH_REQUESTS):
        return well(fact)
    return suspect(
        f"{fact}, but in some {theirs:.0f} reads and writes beside at most {ours:.0f} operations "
        "of ours: a device that serves only so many a second gave them ours; stop them"
    )


def _requests_beyond(e: Evidence, kind: str) -> float:
    """Return how many requests of others a device counted at least: more than ours can be, with
    those of the journal; 0 where that is not known. Their bytes are known but for what of ours was
    in flight at an edge of the window, and a request moves a page."""
    counted, ours, nbytes = e.numbers(
        "foreign", f"{kind}_requests", f"most_own_{kind}_requests", f"{kind}_bytes"
    )
    if counted is None or ours is None or nbytes is None:
        return 0
    rate, call_ms = e.number(f"link.{kind}_bytes_per_second"), e.number(f"gaps.{kind}_call_ms")
    pages = (nbytes - (rate or 0) * (call_ms or 0) / 1000) / PAGE_BYTES
    synced = (e.number("foreign.synced_writes") or 0) if kind == "write" else 0
    return max(0, min(counted - ours, pages) - _OF_THE_JOURNAL * synced)


def _who(e: Evidence, kinds: Sequence[str], theirs: float) -> str:
    rows = [(_moved_by(row, kinds), row) for row in e.rows("foreign.processes") or []]
    seen = sorted((each for each in rows if each[0]), key=lambda each: -each[0])
    names = [f"{row.text('name') or 'unnamed'} ({human_bytes(nbytes)})" for nbytes, row in seen]
    most = "most" if sum(nbytes for nbytes, _ in seen) > theirs / 2 else "a part"
    return f", {most} of it {first_few(names, 3)}" if names else ""


def _moved_by(row: Evidence, kinds: Sequence[str]) -> float:
    return sum(row.number(f"{kind}_bytes") or 0 for kind in kinds)


def _ours_in_window(e: Evidence) -> float:
    window_s = e.number("completeness.window_s")
    rates = [e.number(f"link.{kind}_bytes_per_second") for kind in ("read", "write")]
    if window_s is not None and None not in rates:
        return window_s * sum(rate or 0 for rate in rates)
    return sum(e.number(f"ledger.{kind}.claimed_bytes") or 0 for kind in ("read", "write"))


def throttled_host(e: Evidence, t: Thresholds) -> Iterator[Look]:
    limits, stopped = e.words("throttles.io_limits"), e.number("throttles.cpu_throttled_s")
    if limits:
        yield suspect(
            f"an I/O limit is in force ({first_few(limits, 2)}), so the limit was measured and not "
            "the device; lift it"
        )
    length_s = e.number("clock.monotonic_s") or e.number("completeness.window_s")
    if stopped is not None and length_s:
        share = stopped / length_s
        if share > t.most_throttled_share:
            yield suspect(
                f"the CPU limit of this cgroup stopped the benchmark for {stopped:.2f} s "
                f"({percent(share)} of the run); raise the limit"
            )
    met, waited = e.numbers("throttles", "memory_limit_events", "memory_stalled_s")
    if met and waited and length_s and waited / length_s > t.most_throttled_share:
        yield suspect(
            f"the memory limit of this cgroup (memory.high, memory.max) was met {met:.0f} times, "
            f"and threads waited for memory for {waited:.2f} s ({percent(waited / length_s)} of "
            "the run); raise the limit"
        )
    if limits is None and stopped is None:
        yield unknown("whether the machine throttles this process is not known")
    else:
        words = {name: e.text(f"throttles.{name}") for name in ("governor", "turbo")}
        facts = ", ".join(f"{name} {word}" for name, word in words.items() if word)
        settings = f" ({facts})" if facts else ""
        yield well(f"no throttle of CPU or I/O was at work{settings}")


def real_io(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """The one rule that looks at virtual time too."""
    driver = e.text("driver")
    if driver == REAL_IO:
        yield well("real bytes were moved")
    elif driver == VIRTUAL_TIME:
        yield invalid("virtual time: nothing was measured; leave out --virtual-time")
    else:
        yield suspect("whether real bytes were moved is not known; run again")
