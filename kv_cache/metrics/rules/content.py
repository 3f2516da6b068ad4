"""V2, V11, V18 and V22: the payload, and how much touched storage, was read again and verified."""

from collections.abc import Iterator

from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Look, invalid, nothing, suspect, unknown, well
from kv_cache.metrics.rules.readings import percent

_FEW_SAMPLES = 16


def payload(e: Evidence, t: Thresholds) -> Iterator[Look]:
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


def amplification(e: Evidence, t: Thresholds) -> Iterator[Look]:
    loaded, moved, unique = e.numbers(
        "amplification", "loaded_bytes", "storage_read_bytes", "unique_read_bytes"
    )
    read = moved if loaded is None else loaded  # a result without it has the bytes of all calls
    if read is None or unique is None:
        yield unknown("how many different bytes were read is not known")
        return
    if not read:
        yield nothing("no load from storage came to its end")
        return
    printed = e.number("amplification.read_amplification")
    actual = read / unique if unique else None
    if actual is None or actual < 0.99:
        yield suspect(
            f"{human_bytes(read)} were read of {human_bytes(unique)} different ones, which cannot "
            "be: the evidence contradicts itself; run again and report it"
        )
        return
    fact = f"each of {human_bytes(unique)} was read {actual:.2f} times"
    written = e.number("amplification.write_amplification")
    if written is not None:
        fact += f", each new block written {written:.2f} times"
    if printed is not None and abs(printed - actual) > 0.01 * actual:
        yield suspect(f"{fact}, but the evidence says {printed:.2f}; run again")
    elif 0 < t.most_read_amplification < actual:
        yield suspect(
            f"{fact}, more than {t.most_read_amplification:g}: a cache in the drive may answer; "
            "use more users or longer contexts"
        )
    else:
        yield well(fact)


def storage_share(e: Evidence, t: Thresholds) -> Iterator[Look]:
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
            f"only {percent(share)} of all bytes touched storage (at least "
            f"{percent(t.least_storage_share)} is wanted): other tiers were measured; {way}"
        )
    elif touched < t.enough_bytes:
        yield suspect(
            f"only {human_bytes(touched)} touched storage, too few for its counters to be "
            "compared; raise --duration"
        )
    else:
        part = "" if share is None else f", {percent(share)} of all bytes"
        yield well(f"{human_bytes(touched)} touched storage{part}")


def verification(e: Evidence, t: Thresholds) -> Iterator[Look]:
    errors = e.number("verification.errors")
    mode = e.text("verification.mode")
    if errors:
        yield invalid(
            f"{errors:.0f} loads did not have the data that was stored: the storage, or what is on "
            "the way to it, corrupts data; do not use its numbers"
        )
        return
    pages, wrong = e.numbers("payload", "pages", "wrong_pages")
    if wrong:
        yield invalid(
            f"{wrong:.0f} pages of the sample that was read back after the run do not hold what "
            "was stored: the storage, or what is on the way to it, loses writes; do not use its "
            "numbers"
        )
        return
    read, checked = e.numbers("verification", "storage_read_bytes", "storage_bytes")
    if read == 0 and pages and wrong is not None:
        yield well(f"{pages:.0f} pages that were read back after the run hold what was stored")
    elif read == 0:
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
