"""Units, converted at the edges only: inside, sizes are bytes and times integer nanoseconds."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
BYTES_PER_GB = 1e9

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

MISSING = "\u2013"
"""What people are shown instead of a number that there is not: an en dash."""
AT_LEAST, AT_MOST = "\u2265", "\u2264"
"""And before a lower bound: greater than or equal to."""

PAGE_BYTES = 4096
"""Objects of a run are whole pages: direct I/O needs it, and the payload has one stamp a page."""
SECTOR_BYTES = 512
"""The least that any device moves; what is not whole pages has a stamp in each."""


def gib_to_bytes(gib: float) -> int:
    """GiB (2^30) to bytes, rounded down to a whole page."""
    return whole_pages(int(gib * GIB))


def s_to_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def ns_to_s(ns: float) -> float:
    return ns / NS_PER_S


def ns_to_ms(ns: float) -> float:
    return ns / NS_PER_MS


def whole_pages(nbytes: int) -> int:
    """Round down to a multiple of `PAGE_BYTES`."""
    return nbytes // PAGE_BYTES * PAGE_BYTES


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def human_bytes(nbytes: float) -> str:
    """`1.50 GiB`, `640.0 MiB`, `24 KiB`: for people, never for files."""
    few = 1 if abs(nbytes) < 10 * KIB and nbytes % KIB else 0  # 1,536 and 2,048 are not one size
    for unit, size, digits in (("GiB", GIB, 2), ("MiB", MIB, 1), ("KiB", KIB, few)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.{digits}f} {unit}"
    return f"{nbytes:.0f} B"
