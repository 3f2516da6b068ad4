"""The rules of the passport, one function each, and their table.

A rule looks at the evidence of a run and says, in one sentence with the numbers and a way out, what
it found. Numbers V1 to V21 are those of a catalogue of faults that published measurements had; from
V22 on they are ours. Evidence, thresholds and consequences: `docs/reference/passport.md`.

Two principles decide between *suspect* and *invalid*. What makes a number better than the device
is, or leaves out a part of the run, is invalid. What makes it worse, or cannot be seen, is suspect.
"""

from collections.abc import Iterator, Mapping, Sequence

from kv_cache.core.format import gib_per_s
from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import (
    OBJECT_ENGINES,
    Evidence,
    Look,
    Rule,
    Status,
    Thresholds,
    invalid,
    nothing,
    suspect,
    unknown,
    well,
)
from kv_cache.metrics.gaps import gaps, stood_still
from kv_cache.metrics.rules_sample import least_sample
from kv_cache.metrics.rules_stack import durability, memory_foot, unseen_foot
from kv_cache.metrics.steady import (
    ROUNDS,
    Steadiness,
    backlog_grows,
    bandwidth_drifts,
    steady_state,
)

REAL_IO = "real-io"
VIRTUAL_TIME = "virtual-time"
"""The two drivers."""

_KINDS = (("read", "read"), ("write", "written"))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _some(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


# --- what an object store leaves to judge ----------------------------------------------------

_ON_OBJECTS: Mapping[str, str] = {
    "V1": "object storage: no page cache of this machine lies before it; caches of the server's "
    "are a part of what is measured",
    "V3": "object storage: there are no files that could be read past a page cache",
    "V4": "object storage: bytes go through the sockets of a library, and the calls for files that "
    "could be faked are not used",
    "V5": "object storage: no device of this machine counts the bytes; V6 compares them with the "
    "network, and the server's own counters can stand beside the result",
    "V19": "object storage: there is no device of this machine to count the bytes",
    "V27": "object storage: what lies below the server is not this machine's to see",
    "V28": "object storage: the server is the end that is measured",
    "V31": "object storage: when an object is durable is the server's word",
    "V23": "object storage: what others ask of the server cannot be seen from here",
}
"""Rules about files and devices, and why they have nothing to say."""


def _on_objects(e: Evidence) -> bool:
    """Whether all that storage moved went to an object store, by the engines' own word."""
    rows = e.rows("engines.rows") or []
    return bool(rows) and all(row.text("engine") in OBJECT_ENGINES for row in rows)


def _of_files(number: str, rule: Rule) -> Rule:
    """The rule, where storage is files on a device."""

    def judged(e: Evidence, t: Thresholds) -> Iterator[Look]:
        if _on_objects(e):
            yield nothing(_ON_OBJECTS[number])
            if number == "V1":
                yield from _above_the_link(e, t)
        else:
            yield from rule(e, t)

    return judged


def _against_network(
    e: Evidence, t: Thresholds, claimed: float, kind: str, past: str
) -> Iterator[Look]:
    """What the machine's interfaces carried cannot be less than what we say; it may be more, as
    they are everybody's."""
    carried = e.number(f"ledger.{kind}.network_bytes")
    if e.flag("ledger.server_here") is not False:
        yield unknown(
            f"the server of objects is on this machine, where nothing counts what was {past} on "
            "its way; compare with the server's own counters"
        )
    elif carried is None:
        yield unknown(f"what the network carried of the {human_bytes(claimed)} {past} is not known")
    elif carried < claimed * (1 - t.counter_tolerance):
        yield invalid(
            f"the network interfaces carried {human_bytes(carried)}, less than the "
            f"{human_bytes(claimed)} that we say were {past}: something on the way answered "
            "instead of the server, or our count is wrong; look for a caching proxy"
        )
    else:
        yield well(
            f"the network interfaces carried {_percent(carried / claimed)} of the "
            f"{human_bytes(claimed)} {past} (headers, and what others moved, included)"
        )


# --- V1 to V6: was it the device? ------------------------------------------------------------

_FEW_PAGES = 256  # 1 MiB; fewer sampled pages say nothing about a share
_FEW_SAMPLES = 16
_FEW_UNFINISHED = 0.1  # of the requests, where an open load is kept up with
_SHORT_WINDOW_S = 1.0  # in which a rate is mostly what began before it
_LEAST_TREND_S = 30.0  # in less, a cache that fills and users that think look like a trend
_FILL_ROUNDING = 0.001  # files are whole pages
CACHED_ENGINES = frozenset({"buffered", "mmap"})
"""Engines whose bytes go through the page cache; those of all others are direct."""


def _page_cache(e: Evidence, t: Thresholds) -> Iterator[Look]:
    claimed = e.number("ledger.read.claimed_bytes")
    if claimed is None:
        yield suspect("how much was read from storage is unknown; run again")
        return
    if not claimed:
        yield nothing("nothing was read from storage")
        return
    looks = [_cached_by_counters(e, t, claimed), _cached_by_residency(e, t)]
    yield from looks
    yield from _above_the_link(e, t)
    if claimed >= t.enough_bytes and all(look.status is Status.NOT_JUDGED for look in looks):
        yield suspect(
            "nothing shows where reads came from, as neither the kernel's counters of this process "
            "nor the page cache could be looked at; run where /proc/self/io can be read"
        )


def _cached_by_counters(e: Evidence, t: Thresholds, claimed: float) -> Look:
    if claimed < t.enough_bytes:
        return _too_few(claimed, "read")
    process = e.number("ledger.read.process_bytes")
    if process is None:
        return unknown("the kernel's count of this process's reads is not known")
    share = process / claimed
    if share >= 1 - t.counter_tolerance:
        return well(f"the kernel counted {_percent(share)} of the bytes read as I/O")
    if e.flag("ledger.accounted") is not True:
        return unknown("no block device counts the reads of this file system")
    return invalid(
        f"the kernel counted only {_percent(share)} of the {human_bytes(claimed)} read as I/O: the "
        "rest came from the page cache; use --io-engine direct, or read far more than RAM holds"
    )


def _cached_by_residency(e: Evidence, t: Thresholds) -> Look:
    pages, resident = e.numbers("page_cache", "pages", "resident_before")
    if pages is None or resident is None:
        return unknown("the page cache was not sampled before loads")
    if pages < _FEW_PAGES:
        return unknown(f"only {pages:.0f} pages were looked up in the page cache")
    share = resident / pages
    found = f"{_percent(share)} of {pages:.0f} sampled pages were in the page cache before a load"
    if share <= t.most_resident_share:
        return well(found)
    if _proven_from_device(e, t) and _moved(e, "write", cached=True):
        return well(
            f"{found}, left there by the run's own writes; reads were direct and came from the "
            "device all the same"
        )
    if _proven_from_device(e, t):
        return suspect(
            f"{found}, though reads were direct and the device delivered them: something else "
            "reads the cache files; keep backups and indexers away from them"
        )
    return invalid(
        f"{found}: they are served from memory; use --io-engine direct on a file system that is on "
        "a device"
    )


def _proven_from_device(e: Evidence, t: Thresholds) -> bool:
    """Direct reads go to the device even for pages that are in the page cache."""
    claimed, process = e.numbers("ledger.read", "claimed_bytes", "process_bytes")
    counted = claimed and process is not None and process >= (1 - t.counter_tolerance) * claimed
    return bool(counted) and not _moved(e, "read", cached=True)


def _above_the_link(e: Evidence, t: Thresholds) -> Iterator[Look]:
    link, window_s = e.number("link.bytes_per_second"), e.number("completeness.window_s")
    if not link or (window_s is not None and window_s < _SHORT_WINDOW_S):
        return
    source = e.text("link.source") or "source unknown"
    for kind in ("read", "write"):
        rate = e.number(f"link.{kind}_bytes_per_second")
        if rate is not None and rate > link * (1 + t.link_tolerance):
            yield invalid(
                f"{kind}s ran at {gib_per_s(rate)}, above the {gib_per_s(link)} that the link can "
                f"carry ({source}): memory answered; use --io-engine direct, or set "
                "passport.link_gbytes_per_s if the link is known wrong"
            )


def _too_few(nbytes: float, past: str) -> Look:
    return unknown(
        f"only {human_bytes(nbytes)} were {past}, too few to tell from the program's own I/O"
    )


def _payload(e: Evidence, t: Thresholds) -> Iterator[Look]:
    pages = e.number("payload.pages")
    if pages is None or pages < _FEW_SAMPLES:
        yield unknown("too little of what is on storage was sampled")
        return
    judged, wrong = 0, []
    for name, limit, least, words in (
        ("entropy_bits_per_byte", t.least_entropy_bits, True, "{:.2f} bits of entropy a byte"),
        ("compressed_ratio", t.least_compressed_ratio, True, "{:.2f} of their size under zlib"),
        ("duplicate_share", t.most_duplicate_share, False, "a share of {:.2f} duplicates"),
        ("zero_share", t.most_zero_share, False, "a share of {:.2f} zeros"),
    ):
        value = e.number(f"payload.{name}")
        judged += value is not None
        if value is not None and (value < limit if least else value > limit):
            wanted = "at least" if least else "at most"
            wrong.append(f"{words.format(value)} ({wanted} {limit:g} is wanted)")
    if wrong:
        yield invalid(
            f"{pages:.0f} sampled pages have {', '.join(wrong)}, so a drive may reduce them; store "
            "data that does not compress and never repeats, as this program's own payload does"
        )
    elif not judged:
        yield unknown("what was sampled on storage was not looked at")
    else:
        yield well(f"{pages:.0f} sampled pages neither compress nor repeat")


def _moved(e: Evidence, operation: str | None, *, cached: bool) -> float:
    """Bytes that went through the page cache, or did not, by the engines' own word."""
    return sum(
        row.number("bytes") or 0
        for row in e.rows("engines.rows") or []
        if operation in (None, row.text("operation"))
        and (row.text("engine") in CACHED_ENGINES) is cached
    )


def _direct_io(e: Evidence, t: Thresholds) -> Iterator[Look]:
    if e.rows("engines.rows") is None:
        yield unknown("which engine moved the bytes is not known")
        return
    direct, cached = (_moved(e, None, cached=flag) for flag in (False, True))
    chosen = sum(_moved(e, kind, cached=True) for kind, _ in _KINDS if _cache_wanted(e, kind))
    if not direct and not cached:
        yield nothing("storage moved no bytes")
    elif cached and direct and (cached > chosen or _mixed(e)):
        yield invalid(
            f"one run mixed direct I/O ({human_bytes(direct)}) and the page cache "
            f"({human_bytes(cached)}): its numbers are of two different things; use --io-engine "
            "direct, which refuses to start where it is not possible"
        )
    elif cached > chosen:
        yield _fell_back(e, cached)
    elif cached:
        yield well(f"{human_bytes(cached)} went through the page cache, as was asked for")
    else:
        yield well(f"all {human_bytes(direct)} were moved with direct I/O")
    if not _moved(e, "read", cached=True):
        yield from _direct_in_fact(e, t)


def _cache_wanted(e: Evidence, kind: str) -> bool:
    """Writes may have an engine of their own."""
    own = e.text("engines.write_wanted") if kind == "write" else None
    return (own or e.text("engines.wanted")) in CACHED_ENGINES


def _mixed(e: Evidence) -> bool:
    """Within one direction nobody can have asked for both."""
    return any(_moved(e, kind, cached=True) and _moved(e, kind, cached=False) for kind, _ in _KINDS)


def _fell_back(e: Evidence, cached: float) -> Look:
    wanted, note = e.text("engines.wanted"), e.text("engines.note")
    why = f" ({note})" if note else ""
    if wanted == "auto":
        return suspect(
            f"auto fell back to the page cache{why}; use a file system that can do direct I/O, or "
            "--io-engine buffered to say that the page cache is meant"
        )
    return invalid(
        f"{human_bytes(cached)} went through the page cache{why} though "
        f"{wanted or 'an unknown engine'} was asked for; use a file system that can do direct I/O"
    )


def _direct_in_fact(e: Evidence, t: Thresholds) -> Iterator[Look]:
    buffered = e.number("page_cache.descriptors.buffered")
    if buffered:
        yield invalid(
            f"{buffered:.0f} sampled loads used a descriptor without O_DIRECT though the engine "
            "says direct; look at V4 for libraries that change open()"
        )
    pages, before, after = e.numbers("page_cache", "pages", "resident_before", "resident_after")
    if pages is None or before is None or after is None or pages < _FEW_PAGES:
        return
    proven, way = _proven_from_device(e, t), "use another file system, or --io-engine buffered"
    came, there = (after - before) / pages, after / pages
    if came > t.most_resident_share and not (proven and before > t.most_resident_share * pages):
        yield invalid(
            f"{_percent(came)} of {pages:.0f} sampled pages came into the page cache by loads "
            f"that were to be direct: the file system only seems to do direct I/O; {way}"
        )
    elif there > t.most_resident_share and not proven and e.number("ledger.read.process_bytes"):
        yield invalid(
            f"{_percent(there)} of {pages:.0f} sampled pages are in the page cache after loads "
            "that were to be direct, and the kernel did not count all of them as I/O: the file "
            f"system only seems to do direct I/O; {way}"
        )
    elif came > t.most_resident_share:
        yield suspect(
            f"{_percent(came)} of {pages:.0f} sampled pages came into the page cache meanwhile, "
            "though the loads came from the device: somebody else reads the files; stop it"
        )


_LIBC = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libc.musl", "linux-vdso")


def _interposed(e: Evidence, t: Thresholds) -> Iterator[Look]:
    disagreeing = e.words("interposed.disagreeing")
    foreign = e.words("interposed.foreign_symbols")
    preload = e.text("interposed.preload")
    by = f", LD_PRELOAD is {preload}" if preload else ""
    strangers = [name for name in foreign or [] if not _from_libc(e, name)]
    if disagreeing:
        yield invalid(
            f"{_some(disagreeing)} of the C library do not do what the system call does{by}: "
            "somebody fakes them; run without the preloaded library"
        )
    elif strangers:
        told = [f"{name} ({_provider(e, name) or 'from where is unknown'})" for name in strangers]
        yield suspect(
            f"another library stands in for {_some(told)}{by}; run without it, or make sure that "
            "it passes every call on"
        )
    elif disagreeing is None:
        yield unknown("what the C library's calls do was not compared with raw system calls")
    else:
        yield well(f"I/O calls are the C library's own and do what they say{by}")


def _provider(e: Evidence, symbol: str) -> str | None:
    """The file that a call comes from."""
    symbols = e.at("interposed.symbols")
    return Evidence(symbols).text(symbol) if isinstance(symbols, Mapping) else None


def _from_libc(e: Evidence, symbol: str) -> bool:
    """glibc before 2.34 has some of its I/O calls in libpthread."""
    return (_provider(e, symbol) or "").rsplit("/", 1)[-1].startswith(_LIBC)


def _accounted(e: Evidence, t: Thresholds) -> Iterator[Look]:
    accounted = e.flag("ledger.accounted")
    if accounted is None:
        yield unknown("whether a block device counts these bytes is not known")
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


def _ledger(e: Evidence, t: Thresholds) -> Iterator[Look]:
    claimed = [e.number(f"ledger.{kind}.claimed_bytes") for kind, _ in _KINDS]
    if None in claimed:
        yield suspect("how many bytes our ledger has is not known; run again")
        return
    for (kind, past), nbytes in zip(_KINDS, claimed, strict=True):
        yield from _ledger_of(e, t, nbytes or 0, kind, past)


def _ledger_of(e: Evidence, t: Thresholds, claimed: float, kind: str, past: str) -> Iterator[Look]:
    process, calls = e.numbers(f"ledger.{kind}", "process_bytes", "calls_bytes")
    if not claimed:
        yield nothing(f"nothing was {past}")
        return
    if claimed < t.enough_bytes:
        yield _too_few(claimed, past)
        return
    if _on_objects(e):
        yield from _against_network(e, t, claimed, kind, past)
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
    said = f"the kernel counted {_percent(share)} of the {human_bytes(claimed)} {past}"
    if share < 1 - t.counter_tolerance:
        if e.flag("ledger.accounted") is not True:
            return unknown(f"no block device counts what was {past}, see V5")
        way = "see V1" if kind == "read" else "use --io-engine direct"
        return invalid(f"{said}: the rest never was I/O of this process; {way}")
    known = e.number(f"ledger.other_process_{kind}_bytes") or 0
    surplus = process - claimed - known
    if surplus > max(t.counter_tolerance * claimed, t.enough_bytes):
        return suspect(
            f"the kernel counted {human_bytes(surplus)} more {past} than our ledger has "
            f"({human_bytes(claimed)}): I/O that no result shows, such as read-ahead; use "
            "--io-engine direct, or report it"
        )
    return well(said)


# --- V11 and V12: is it all there? -----------------------------------------------------------


def _amplification(e: Evidence, t: Thresholds) -> Iterator[Look]:
    read, unique = e.numbers("amplification", "storage_read_bytes", "unique_read_bytes")
    if read is None or unique is None:
        yield unknown("how many different bytes were read is not known")
        return
    if not read:
        yield nothing("nothing was read from storage")
        return
    printed = e.number("amplification.read_amplification")
    actual = read / unique if unique else None
    if actual is None or actual < 0.99:
        yield suspect(
            f"{human_bytes(read)} were read of {human_bytes(unique)} different ones, which cannot "
            "be: the evidence contradicts itself; run again and report it"
        )
        return
    said = f"each of {human_bytes(unique)} was read {actual:.2f} times"
    written = e.number("amplification.write_amplification")
    if written is not None:
        said += f", each new block written {written:.2f} times"
    if printed is not None and abs(printed - actual) > 0.01 * actual:
        yield suspect(f"{said}, but the evidence says {printed:.2f}; run again")
    elif 0 < t.most_read_amplification < actual:
        yield suspect(
            f"{said}, more than {t.most_read_amplification:g}: a cache in the drive may answer; "
            "use more users or longer contexts"
        )
    else:
        yield well(said)


def _complete(e: Evidence, t: Thresholds) -> Iterator[Look]:
    yield from _all_known(e)
    yield from _ended_early(e)
    yield from _failures(e)
    yield from _left_over(e, t)
    completed = e.number("completeness.completed") or 0
    yield well(f"the run finished, {completed:.0f} requests completed and nothing failed")


def _all_known(e: Evidence) -> Iterator[Look]:
    counts = ("window_s", "completed", "submitted", "failed_requests", "rejected", "unfinished",
              "failed_operations")  # fmt: skip
    missing = [name for name in counts if e.number(f"completeness.{name}") is None]
    if e.text("completeness.status") is None:
        missing.insert(0, "status")
    if missing:
        yield suspect(f"whether the run is complete is not known ({', '.join(missing)}); run again")


def _ended_early(e: Evidence) -> Iterator[Look]:
    status, by = e.text("completeness.status"), e.text("completeness.interrupted")
    if status is not None and status != "finished":
        yield invalid(
            f"the run was {status}{f' by {by}' if by else ''}, so a part of it is missing; let it "
            "run to its end"
        )
    if e.number("completeness.window_s") == 0:
        yield invalid("the measured window never began; raise --duration")
    elif e.number("completeness.completed") == 0:
        yield invalid("no request completed in the window; raise --duration")


def _failures(e: Evidence) -> Iterator[Look]:
    requests, operations, storage = e.numbers(
        "completeness", "failed_requests", "failed_operations", "storage_failed_operations"
    )
    if requests:
        yield invalid(
            f"{requests:.0f} requests failed; requests.errors says why: objects that fit nowhere "
            "want larger tiers, the rest a device without errors"
        )
    if operations or storage:
        on_storage = "" if storage is None else f", {storage:.0f} of them on storage"
        yield invalid(
            f"{max(operations or 0, storage or 0):.0f} operations failed{on_storage}; "
            "failed_operations says why"
        )
    records = e.text("completeness.records_error")
    if records:
        yield invalid(f"the records are incomplete ({records}); make room and run again")


def _left_over(e: Evidence, t: Thresholds) -> Iterator[Look]:
    submitted = e.number("completeness.submitted")
    longer = "the long ones are missing; raise --duration or ask with fewer users"
    slower = "lower the request rate, or raise schedule.queue_limit"
    for name, limit, way in (
        ("unfinished", t.most_unfinished_share, longer),
        ("rejected", t.most_rejected_share, slower),
    ):
        count = e.number(f"completeness.{name}")
        if count is not None and submitted and count / submitted > limit:
            yield suspect(
                f"{_percent(count / submitted)} of {submitted:.0f} requests were {name} (at "
                f"most {_percent(limit)} is wanted); {way}"
            )


# --- V13 to V15, V25: was it the client? -----------------------------------------------------


def _client(e: Evidence, t: Thresholds) -> Iterator[Look]:
    used, cores = e.number("client.cores_used"), e.number("client.cores")
    ratio = e.number("client.ceiling.ratio")
    share = used / cores if used is not None and cores else None
    load = "" if used is None or not cores else f", using {used:.2f} of {cores:g} cores"
    if (e.number("completeness.window_s") or 0) < _SHORT_WINDOW_S:
        yield unknown(f"a window of less than {_SHORT_WINDOW_S:g} s says nothing of the client")
    elif ratio is not None:
        yield _against_ceiling(e, t, ratio, load)
    elif share is None:
        yield unknown("the client's CPU time is not known; --certify measures its ceiling")
    elif share > t.most_cores_share:
        yield suspect(
            f"the client used {_percent(share)} of {cores:g} cores, so the CPU may be the limit "
            "and not the device; measure its ceiling with --certify, or use more cores"
        )
    else:
        yield well(f"the client left cores idle{load}; --certify measures its ceiling")


def _against_ceiling(e: Evidence, t: Thresholds, ratio: float, load: str) -> Look:
    used, cores = e.numbers("client", "cores_used", "cores")
    # One interpreter runs on one core at a time, however many there are.
    busy = used is not None and used > t.most_cores_share * min(1.0, cores or 1.0)
    said = f"with a null store this workload runs {ratio:.2f} times as fast{load}"
    if ratio >= t.least_ceiling_ratio:
        return well(said)
    if _keeps_its_schedule(e, t):
        return well(f"{said}, but it kept its schedule: the load asks for no more")
    if ratio < t.client_bound_ratio and busy:
        return invalid(
            f"{said}: this is the client's speed and not the device's; use more cores or fewer "
            "checks (--verify stamps)"
        )
    if used is not None and used < t.idle_cores:
        return well(f"{said}, but the client is idle: the load asks for no more")
    return suspect(
        f"{said}, below {t.least_ceiling_ratio:g}: the client is part of the number; use more "
        "cores or larger blocks"
    )


def _keeps_its_schedule(e: Evidence, t: Thresholds) -> bool:
    """Everything is asked in time, and nearly everything answered: no queue grows."""
    submitted, unfinished = e.numbers("completeness", "submitted", "unfinished")
    answered = submitted and unfinished is not None and unfinished <= _FEW_UNFINISHED * submitted
    return bool(answered) and any(look.status is Status.PASS for look in _schedule(e, t))


def _steady_state(e: Evidence, t: Thresholds) -> Iterator[Look]:
    yield from _drifts(e, t)
    if _on_objects(e):
        yield nothing("object storage: there is no drive of which a fill could take the freshness")
    elif e.flag("steady.preconditioned") or e.flag("preconditioned"):
        yield _rounds(e, t)
    else:
        yield unknown(
            "the device was not preconditioned and no steady state was looked for: a fresh drive "
            "may be faster than it stays; use --precondition before you compare drives"
        )


def _drifts(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """Trends of the measured window, where it is long enough to have any."""
    found = "steady.stationarity"
    seconds = e.number(f"{found}.seconds")
    if seconds is None or seconds < _LEAST_TREND_S:
        return
    trend, trend_t, growth, growth_t = e.numbers(
        found, "bandwidth_trend", "bandwidth_t", "backlog_growth_share", "backlog_t"
    )
    if bandwidth_drifts(trend, trend_t, t.most_bandwidth_trend):
        way = {True: "fell", False: "rose", None: "changed"}[e.flag(f"{found}.bandwidth_falls")]
        step_s = e.number(f"{found}.bandwidth_step_s")
        when = "steadily" if step_s is None else f"after about {step_s:.0f} s"
        yield suspect(
            f"the bandwidth of storage {way} by {_percent(trend or 0)} of its mean, {when}, in the "
            f"{seconds:.0f} s that were measured (at most {_percent(t.most_bandwidth_trend)} is "
            f"wanted), so its mean depends on when it was taken; {_way_to_level(e, t)}"
        )
    if backlog_grows(growth, growth_t, t.most_backlog_growth):
        yield suspect(
            f"the backlog grew by {_percent(growth or 0)} of the requests that came while measured "
            f"(at most {_percent(t.most_backlog_growth)} is wanted), so latencies depend on how "
            "long it is measured; lower the rate, or ask with fewer users"
        )


def _way_to_level(e: Evidence, t: Thresholds) -> str:
    if stood_still(e, t):
        return "storage stood still meanwhile, so see V29 first"
    return "use --precondition and a longer --warmup"


def _rounds(e: Evidence, t: Thresholds) -> Look:
    """What the rounds before the measurement show, whatever is printed beside them."""
    values = _values(e, "steady.proof.values")
    rounds = e.number("steady.rounds")
    if not rounds and not values:
        return unknown("the device was preconditioned, but nothing proves a steady state")
    count = f"{rounds or len(values):.0f} rounds"
    bandwidth = _judged_again(values, t)
    if bandwidth is None:
        return suspect(
            f"not steady: {count} are too few, as the rule looks at the last {ROUNDS}; raise "
            "--max-rounds"
        )
    unsteady = [
        f"{name} {_spread(found, t)}"
        for name, found in {"the bandwidth": bandwidth, **_latencies(e, t)}.items()
        if not found.steady
    ]
    if unsteady:
        return suspect(
            f"not steady after {count}: {'; '.join(unsteady)}; raise --max-rounds or --round, or "
            "keep others off the device"
        )
    lacking = next(_lacking(e, t), None)
    said = f"after {count} the bandwidth of the last {ROUNDS} {_spread(bandwidth, t)}"
    if lacking is not None:
        return unknown(f"{said}, but {lacking}")
    filled = human_bytes(e.number("steady.filled_bytes") or 0)
    return well(f"{said}, a fill of {filled} came before, and it stayed level while measured")


def _latencies(e: Evidence, t: Thresholds) -> Mapping[str, Steadiness]:
    """In an open loop bandwidth is what is asked for; there latencies are judged as well."""
    if e.number("client.schedule_lag_p99_ms") is None:
        return {}
    words = {"read_p95_ms": "p95 of reads", "write_p95_ms": "p95 of writes"}
    found = {
        word: _judged_again(_values(e, f"steady.proof.latencies.{name}.values"), t)
        for name, word in words.items()
    }
    return {word: each for word, each in found.items() if each is not None}


def _lacking(e: Evidence, t: Thresholds) -> Iterator[str]:
    """Why rounds that are steady prove no steady state."""
    filled, capacity = e.numbers("steady", "filled_bytes", "capacity_bytes")
    if filled is None or not capacity:
        yield (
            "how much the fill wrote is not known, and a fresh drive is steady too as long as it "
            "is fresh; run again with --precondition"
        )
    elif filled < t.least_fill_times * capacity * (1 - _FILL_ROUNDING):
        yield (
            f"the fill wrote only {filled / capacity:.2f} times the capacity under test "
            f"({t.least_fill_times:g} times is wanted), and a fresh drive is steady too as long as "
            "it is fresh; leave out --precondition-size-gb"
        )
    if e.flag("steady.discard"):
        yield (
            "the file system hands deleted blocks back to the drive, so the fill did not last "
            "(mount option discard); mount it without"
        )
    seconds = e.number("steady.stationarity.seconds") or 0
    if seconds < _LEAST_TREND_S or e.number("steady.stationarity.bandwidth_trend") is None:
        yield (
            f"what was measured is too little to tell whether it stayed so; measure for at least "
            f"{_LEAST_TREND_S:.0f} s"
        )


def _values(e: Evidence, path: str) -> list[float]:
    """Empty where one of them is no number."""
    listed = e.at(path)
    if not isinstance(listed, list | tuple):
        return []
    found = [Evidence({"value": value}).number("value") for value in listed[-ROUNDS:]]
    return [] if None in found else [value for value in found if value is not None]


def _judged_again(values: Sequence[float], t: Thresholds) -> Steadiness | None:
    return steady_state(values, most_range=t.most_round_range, most_change=t.most_round_change)


def _spread(found: Steadiness, t: Thresholds) -> str:
    if found.range_share is None or found.slope_share is None:
        return "has no average that is above 0"
    return (
        f"ranges over {100 * found.range_share:.2f} % of its average (at most "
        f"{_percent(t.most_round_range)} is wanted) and its best-fit line changes by "
        f"{100 * found.slope_share:.2f} % of it (at most {_percent(t.most_round_change)})"
    )


def _schedule(e: Evidence, t: Thresholds) -> Iterator[Look]:
    lag, target = e.number("client.schedule_lag_p99_ms"), e.number("client.shortest_target_ms")
    if lag is None:
        yield nothing("nothing is asked by a schedule (closed loop)")
    elif not target:
        yield unknown("no latency is promised that the lag could be compared with")
    else:
        said = f"p99 of the lag behind the schedule is {lag:.2f} ms"
        limit = t.most_schedule_lag_share * target
        if lag > limit:
            yield suspect(
                f"{said}, above {limit:.2f} ms ({_percent(t.most_schedule_lag_share)} of the "
                f"shortest target, {target:g} ms): the benchmark asked too late; lower the rate or "
                "use more cores"
            )
        else:
            yield well(f"{said}, at most {limit:.2f} ms is wanted")


def _harness(e: Evidence, t: Thresholds) -> Iterator[Look]:
    lag99, lag50, read50 = e.numbers(
        "client", "harness_lag_p99_ms", "harness_lag_p50_ms", "storage_read_p50_ms"
    )
    if lag99 is None:
        yield unknown("the harness's own lag was not measured")
        return
    if not read50:
        yield nothing("nothing was read from storage that the lag could distort")
        return
    said = f"the harness woke up {lag99:.2f} ms late at p99, where a read takes {read50:.2f} ms"
    way = "use more cores, fewer threads or larger blocks, or stop what else runs here"
    if lag99 > t.most_harness_lag_share * read50:
        yield suspect(
            f"{said} at p50: the tail latencies are the harness's as much as the device's; {way}"
        )
    elif lag50 is not None and lag50 > t.most_median_lag_share * read50:
        yield suspect(
            f"the harness woke up {lag50:.2f} ms late at p50, where a read takes {read50:.2f} ms: "
            f"typical latencies are the harness's too; {way}"
        )
    else:
        yield well(f"{said} at p50")


# --- V18, V19, V21: do the numbers fit together? ---------------------------------------------


def _storage_touched(e: Evidence, t: Thresholds) -> Iterator[Look]:
    read, written, share, everything = e.numbers(
        "amplification", "storage_read_bytes", "storage_written_bytes", "storage_share", "all_bytes"
    )
    if read is None or written is None:
        yield suspect("how many bytes touched storage is not known; run again")
        return
    touched = read + written
    if share is None and everything:
        share = touched / everything
    way = "lower --cpu-mem-gb and --gpu-mem-gb, or ask with more users"
    if not touched:
        yield invalid(f"no byte touched storage; {way}")
    elif share is not None and share < t.least_storage_share:
        yield invalid(
            f"only {_percent(share)} of all bytes touched storage (at least "
            f"{_percent(t.least_storage_share)} is wanted): other tiers were measured; {way}"
        )
    elif touched < t.enough_bytes:
        yield suspect(
            f"only {human_bytes(touched)} touched storage, too few for its counters to be "
            "compared; raise --duration"
        )
    else:
        part = "" if share is None else f", {_percent(share)} of all bytes"
        yield well(f"{human_bytes(touched)} touched storage{part}")


def _device(e: Evidence, t: Thresholds) -> Iterator[Look]:
    if e.flag("ledger.accounted") is False:
        yield nothing("no block device counts these bytes, see V5")
        return
    silent = set((e.text("ledger.device") or "").split("+")) & {*(e.words("stack.uncounted") or ())}
    for kind, past in _KINDS:
        claimed, device = e.numbers(f"ledger.{kind}", "claimed_bytes", "device_bytes")
        if not claimed:
            yield nothing(f"nothing was {past}")
        elif claimed < t.enough_bytes:
            yield _too_few(claimed, past)
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
    said = f"the device counted {_percent(share)} of the bytes {past}{after}"
    if share >= 1 - t.counter_tolerance:
        return well(said)
    if kind == "read":
        why = "memory answered the rest; use --io-engine direct"
    else:
        why = "the rest is in the page cache or was deleted there; use --io-engine direct or fsync"
    grave = share < t.least_device_share
    return (invalid if grave else suspect)(f"{said}: {why}")


def _clocks(e: Evidence, t: Thresholds) -> Iterator[Look]:
    wall, monotonic = e.number("clock.wall_s"), e.number("clock.monotonic_s")
    if wall is None or monotonic is None:
        yield unknown("the run was not timed by two clocks")
        return
    apart = abs(wall - monotonic)
    said = f"wall clock and monotonic clock differ by {apart:.3f} s over {monotonic:.1f} s"
    if apart > t.clock_tolerance_s + t.clock_tolerance_share * monotonic:
        yield suspect(
            f"{said}: the time was set, or the machine was suspended; run again with a steady clock"
        )
    else:
        yield well(said)


# --- from V22 on: ours ------------------------------------------------------------------------


def _verified(e: Evidence, t: Thresholds) -> Iterator[Look]:
    errors = e.number("verification.errors")
    mode = e.text("verification.mode")
    if errors:
        yield invalid(
            f"{errors:.0f} loads did not have the data that was stored: the storage, or what is on "
            "the way to it, corrupts data; do not use its numbers"
        )
        return
    read, checked = e.numbers("verification", "storage_read_bytes", "storage_bytes")
    if read == 0:
        yield nothing("nothing was read from storage")
    elif mode in ("off", "none"):
        yield suspect(
            "what was read was not verified, so nothing shows that it was the data stored; use "
            "--verify stamps"
        )
    elif mode is None or errors is None or read is None or checked is None:
        yield suspect("whether what was read was verified is not known; run again")
    elif read - checked > t.most_unverified_share * read:
        yield suspect(
            f"only {human_bytes(checked)} of {human_bytes(read)} read were verified; run again, "
            "and report it if it stays so"
        )
    else:
        objects = e.number("verification.objects")
        count = "" if objects is None else f", {objects:.0f} objects"
        yield well(f"{human_bytes(checked)}{count} verified by {mode}, none wrong")


def _foreign(e: Evidence, t: Thresholds) -> Iterator[Look]:
    # Bytes written through the page cache are ours when the page is made and the device's when it
    # is written back: their difference within a window is nobody's.
    kinds = ["read"] if _moved(e, "write", cached=True) else ["read", "write"]
    found = [e.number(f"foreign.{kind}_bytes") for kind in kinds]
    known = [nbytes for nbytes in found if nbytes is not None]
    if not known:
        yield unknown("what others did on the device is not known")
        return
    theirs, ours = sum(known), _ours_in_window(e)
    said = f"others moved {human_bytes(theirs)} on the device during the window"
    if theirs <= max(t.most_foreign_share * ours, t.enough_bytes):
        yield well(said)
        return
    ranks = e.number("foreign.ranks_here")
    if ranks is not None and ranks > 1:
        yield unknown(
            f"{said}; {ranks:.0f} ranks of this job ran on this machine, and what of it was theirs "
            "is not known here"
        )
        return
    names = [
        f"{row.text('name') or 'unnamed'} ({human_bytes(_moved_by(row))})"
        for row in sorted(e.rows("foreign.processes") or [], key=_moved_by, reverse=True)
        if _moved_by(row)
    ]
    who = f", most of it {_some(names, 3)}" if names else ""
    yield suspect(
        f"{said}{who}, beside {human_bytes(ours)} of ours (at most "
        f"{_percent(t.most_foreign_share)} is wanted); stop them, or use larger blocks if it is "
        "the file system's journal"
    )


def _moved_by(row: Evidence) -> float:
    return (row.number("read_bytes") or 0) + (row.number("write_bytes") or 0)


def _ours_in_window(e: Evidence) -> float:
    window_s = e.number("completeness.window_s")
    rates = [e.number(f"link.{kind}_bytes_per_second") for kind in ("read", "write")]
    if window_s is not None and None not in rates:
        return window_s * sum(rate or 0 for rate in rates)
    return sum(e.number(f"ledger.{kind}.claimed_bytes") or 0 for kind in ("read", "write"))


def _throttled(e: Evidence, t: Thresholds) -> Iterator[Look]:
    limits, stopped = e.words("throttles.io_limits"), e.number("throttles.cpu_throttled_s")
    if limits:
        yield suspect(
            f"an I/O limit is in force ({_some(limits, 2)}), so the limit was measured and not the "
            "device; lift it"
        )
    length_s = e.number("clock.monotonic_s") or e.number("completeness.window_s")
    if stopped is not None and length_s:
        share = stopped / length_s
        if share > t.most_throttled_share:
            yield suspect(
                f"the CPU limit of this cgroup stopped the benchmark for {stopped:.2f} s "
                f"({_percent(share)} of the run); raise the limit"
            )
    if limits is None and stopped is None:
        yield unknown("whether the machine throttles this process is not known")
    else:
        words = {name: e.text(f"throttles.{name}") for name in ("governor", "turbo")}
        facts = ", ".join(f"{name} {word}" for name, word in words.items() if word)
        told = f" ({facts})" if facts else ""
        yield well(f"no throttle of CPU or I/O was at work{told}")


def real_io(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """The one rule that looks at virtual time too."""
    driver = e.text("driver")
    if driver == REAL_IO:
        yield well("real bytes were moved")
    elif driver == VIRTUAL_TIME:
        yield invalid("virtual time: nothing was measured; leave out --virtual-time")
    else:
        yield suspect("whether real bytes were moved is not known; run again")


RULES: Mapping[str, tuple[str, Rule]] = {
    "V1": ("page cache", _of_files("V1", _page_cache)),
    "V2": ("payload", _payload),
    "V3": ("direct I/O", _of_files("V3", _direct_io)),
    "V4": ("interposed calls", _of_files("V4", _interposed)),
    "V5": ("accounted device", _of_files("V5", _accounted)),
    "V6": ("ledger", _ledger),
    "V11": ("amplification", _amplification),
    "V12": ("completeness", _complete),
    "V13": ("client", _client),
    "V14": ("steady state", _steady_state),
    "V15": ("schedule", _schedule),
    "V18": ("storage share", _storage_touched),
    "V19": ("device counters", _of_files("V19", _device)),
    "V21": ("clocks", _clocks),
    "V22": ("verification", _verified),
    "V23": ("foreign I/O", _of_files("V23", _foreign)),
    "V24": ("throttled host", _throttled),
    "V25": ("harness lag", _harness),
    "V26": ("real I/O", real_io),
    "V27": ("memory under the storage", _of_files("V27", memory_foot)),
    "V28": ("unseen foot", _of_files("V28", unseen_foot)),
    "V29": ("gaps", gaps),
    "V30": ("least sample", least_sample),
    "V31": ("durability", _of_files("V31", durability)),
}
"""Every rule by its number. V7 to V10, V16, V17 and V20 are faults of a benchmark's making and
not of a run; where this program avoids them stands in `docs/reference/passport.md`."""
