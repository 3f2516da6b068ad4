"""V1 and V3: whether reads came from the device or from memory, and past the page cache."""

from collections.abc import Iterator

from kv_cache.core.format import gib_per_s
from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, Status, invalid, nothing, suspect, unknown, well
from kv_cache.metrics.rules.readings import (
    CACHED_ENGINES,
    DIRECTIONS,
    SHORT_WINDOW_S,
    moved,
    percent,
    too_few,
)

_FEW_PAGES = 256  # 1 MiB; fewer sampled pages say nothing about a share


def page_cache(e: Evidence, t: Thresholds) -> Iterator[Look]:
    claimed = e.number("ledger.read.claimed_bytes")
    if claimed is None:
        yield suspect("how much was read from storage is unknown; run again")
        return
    if not claimed:
        yield nothing("nothing was read from storage")
        return
    looks = [_cached_by_counters(e, t, claimed), _cached_by_residency(e, t)]
    yield from looks
    yield from above_the_link(e, t)
    if claimed >= t.enough_bytes and all(look.status is Status.NOT_JUDGED for look in looks):
        yield suspect(
            "nothing shows where reads came from, as neither the kernel's counters of this process "
            "nor the page cache could be looked at; run where /proc/self/io can be read"
        )


def _cached_by_counters(e: Evidence, t: Thresholds, claimed: float) -> Look:
    if claimed < t.enough_bytes:
        return too_few(claimed, "read")
    process = e.number("ledger.read.process_bytes")
    if process is None:
        return unknown("the kernel's count of this process's reads is not known")
    share = process / claimed
    if share >= 1 - t.counter_tolerance:
        return well(f"the kernel counted {percent(share)} of the bytes read as I/O")
    if e.flag("ledger.accounted") is not True:
        return unknown("no block device counts the reads of this file system")
    return invalid(
        f"the kernel counted only {percent(share)} of the {human_bytes(claimed)} read as I/O: the "
        "rest came from the page cache; use --io-engine direct, or read far more than RAM holds"
    )


def _cached_by_residency(e: Evidence, t: Thresholds) -> Look:
    pages, resident = e.numbers("page_cache", "pages", "resident_before")
    if pages is None or resident is None:
        return unknown("the page cache was not sampled before loads")
    if pages < _FEW_PAGES:
        return unknown(f"only {pages:.0f} pages were looked up in the page cache")
    share = resident / pages
    seen = f"{percent(share)} of {pages:.0f} sampled pages were in the page cache before a load"
    if share <= t.most_resident_share:
        return well(seen)
    if _proven_from_device(e, t) and moved(e, "write", cached=True):
        return well(
            f"{seen}, left there by the run's own writes; reads were direct and came from the "
            "device all the same"
        )
    if _proven_from_device(e, t):
        return suspect(
            f"{seen}, though reads were direct and the device delivered them: something else "
            "reads the cache files; keep backups and indexers away from them"
        )
    return invalid(
        f"{seen}: they are served from memory; use --io-engine direct on a file system that is on "
        "a device"
    )


def _proven_from_device(e: Evidence, t: Thresholds) -> bool:
    """Direct reads go to the device even for pages that are in the page cache."""
    claimed, process = e.numbers("ledger.read", "claimed_bytes", "process_bytes")
    counted = claimed and process is not None and process >= (1 - t.counter_tolerance) * claimed
    return bool(counted) and not moved(e, "read", cached=True)


def above_the_link(e: Evidence, t: Thresholds) -> Iterator[Look]:
    link, source = e.number("link.bytes_per_second"), e.text("link.source") or "source unknown"
    if t.link_gbytes_per_s:
        link, source = t.link_gbytes_per_s * 1e9, "passport.link_gbytes_per_s"
    window_s = e.number("completeness.window_s")
    if not link or (window_s is not None and window_s < SHORT_WINDOW_S):
        return
    for kind in ("read", "write"):
        rate = e.number(f"link.{kind}_bytes_per_second")
        if rate is not None and rate > link * (1 + t.link_tolerance):
            yield invalid(
                f"{kind}s ran at {gib_per_s(rate)}, above the {gib_per_s(link)} that the link can "
                f"carry ({source}): memory answered; use --io-engine direct, or set "
                "passport.link_gbytes_per_s if the link is known wrong"
            )


def direct_io(e: Evidence, t: Thresholds) -> Iterator[Look]:
    if e.rows("engines.rows") is None:
        yield unknown("which engine moved the bytes is not known")
        return
    direct, cached = (moved(e, None, cached=flag) for flag in (False, True))
    chosen = sum(moved(e, kind, cached=True) for kind, _ in DIRECTIONS if _cache_requested(e, kind))
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
    if not moved(e, "read", cached=True):
        yield from _direct_in_fact(e, t)


def _cache_requested(e: Evidence, kind: str) -> bool:
    """Writes may have an engine of their own."""
    write_engine = e.text("engines.write_requested") if kind == "write" else None
    return (write_engine or e.text("engines.requested")) in CACHED_ENGINES


def _mixed(e: Evidence) -> bool:
    """Whether one direction used both, which cannot be configured."""
    return any(
        moved(e, kind, cached=True) and moved(e, kind, cached=False) for kind, _ in DIRECTIONS
    )


def _fell_back(e: Evidence, cached: float) -> Look:
    requested, note = e.text("engines.requested"), e.text("engines.note")
    why = f" ({note})" if note else ""
    if requested == "auto":
        return suspect(
            f"auto fell back to the page cache{why}; use a file system that can do direct I/O, or "
            "--io-engine buffered to say that the page cache is meant"
        )
    return invalid(
        f"{human_bytes(cached)} went through the page cache{why} though "
        f"{requested or 'an unknown engine'} was asked for; use a file system "
        "that can do direct I/O"
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
            f"{percent(came)} of {pages:.0f} sampled pages came into the page cache by loads "
            f"that were to be direct: the file system only seems to do direct I/O; {way}"
        )
    elif there > t.most_resident_share and not proven and e.number("ledger.read.process_bytes"):
        yield invalid(
            f"{percent(there)} of {pages:.0f} sampled pages are in the page cache after loads "
            "that were to be direct, and the kernel did not count all of them as I/O: the file "
            f"system only seems to do direct I/O; {way}"
        )
    elif came > t.most_resident_share:
        yield suspect(
            f"{percent(came)} of {pages:.0f} sampled pages came into the page cache meanwhile, "
            "though the loads came from the device: something else reads the files; stop it"
        )
