"""Block-layer latency tracing: what bpftrace printed, understood, and what follows from it.

bpftrace prints a histogram as one line a bucket. Buckets of `hist()` are powers of two: `(..., 0)`,
`[0]`, `[1]`, `[2, 4)`, … `[512, 1K)`, `[1K, 2K)`, with K, M, G, T, P and E for powers of 1024;
those of `lhist()` are as wide as asked, with an open one at each end: `(..., 10)`, `[10, 20)`,
`[20, ...)`. Every form is taken. The tracing program counts the events of each histogram a second
time, with `stats()`, so that a lost bucket shows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec import Struct, field

from kv_cache.core.units import KIB, NS_PER_S, NS_PER_US
from kv_cache.metrics.histogram import supported

READ, WRITE = "read", "write"

HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "d2c_read_us": ("us", "device: issued to the driver until completed, reads"),
    "d2c_write_us": ("us", "device: issued to the driver until completed, writes"),
    "q2d_read_us": ("us", "queue: in the block layer until issued to the driver, reads"),
    "q2d_write_us": ("us", "queue: in the block layer until issued to the driver, writes"),
    "vfs_read_us": ("us", "system calls that read, as this process saw them"),
    "vfs_write_us": ("us", "system calls that write, as this process saw them"),
    "fsync_us": ("us", "fsync and fdatasync, as this process saw them"),
    "write_to_fsync_us": ("us", "end of a write until the same thread's fsync"),
    "fadvise_to_read_us": ("us", "end of a fadvise until the same thread's read"),
    "bssplit_read_kb": ("KiB", "size of requests, reads"),
    "bssplit_write_kb": ("KiB", "size of requests, writes"),
    "qd_read": ("requests", "reads at the device at once, where there was any, looked up"),
    "qd_write": ("requests", "writes at the device at once, where there was any, looked up"),
    "lba_read_gb": ("GiB", "place on the device, reads"),
    "lba_write_gb": ("GiB", "place on the device, writes"),
}
"""The reference's fifteen: name, unit, what it is of."""

SECOND_COUNT = "n_"
"""Before a histogram's name: the name of its `stats()`, which is in ns or bytes."""
_COUNTED_AGAIN_IN = {"us": NS_PER_US, "KiB": KIB}  # how many of them are one of the histogram's

MOST_MISSED, AT_THE_EDGES = 0.01, 50
"""Missing operations are remarked upon when they are more than this share of the device's, and more
than can be under way when tracing begins and ends."""

_PERCENTS = (50, 95, 99)
_SUFFIXES = "KMGTPE"
_BAR = 52


class Bucket(Struct, frozen=True, kw_only=True):
    """`count` values v of `low` <= v < `high`; None = without end."""

    low: int | None
    high: int | None
    count: int


class TraceHistogram(Struct, frozen=True, kw_only=True):
    """Buckets in order, and the lines that they were printed in."""

    buckets: tuple[Bucket, ...]
    raw: tuple[str, ...]

    @property
    def count(self) -> int:
        return sum(bucket.count for bucket in self.buckets)

    def percentile(self, percent: int) -> Bucket | None:
        """Return the bucket that holds the value of rank ceil(percent/100 * count); None if
        empty."""
        rank = max(1, -(-percent * self.count // 100))
        ends = accumulate(bucket.count for bucket in self.buckets)
        at = (b for b, end in zip(self.buckets, ends, strict=True) if end >= rank)
        return next(at, None)


class Stats(Struct, frozen=True, kw_only=True):
    """A `stats()` of bpftrace."""

    count: int
    total: int


class Printed(Struct, frozen=True, kw_only=True):
    """All that the tracing program printed. `in_flight` are (reads, writes) of each look."""

    histograms: Mapping[str, TraceHistogram] = field(default_factory=dict)
    stats: Mapping[str, Stats] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    in_flight: tuple[tuple[int, int], ...] = ()
    lost_events: int = 0
    complaints: tuple[str, ...] = ()


# --- parsing -----------------------------------------------------------------------------------

_BOUND = r"-?\d+(?:\.\d+)?[KMGTPE]?"
_LINE = re.compile(
    rf"\s*(?:(?P<open>\(\.\.\.,\s*(?P<below>{_BOUND})\))"
    rf"|\[(?P<low>{_BOUND})(?:(?P<one>\])|,\s*(?:(?P<high>{_BOUND})|\.\.\.)\)))"
    r"\s*(?P<count>\d+)\s*\|"
)
_MAP = re.compile(r"@(\w*)(?:\[.*\])?:\s*(.*)")
_STATS = re.compile(r"count (\d+), average -?\d+, total (-?\d+)")
_IN_FLIGHT = re.compile(r"\s*(\d+)\s+(\d+)\s*")
_LOST = re.compile(r"Lost (\d+) events")
_COMPLAINT = re.compile(r"WARNING|ERROR|[Mm]ap full|[Ff]ailed to|[Ss]kipped")


def parse(text: str) -> Printed:
    """Return what bpftrace printed in its text format. A line of no form that is known is none of
    ours, unless it complains."""
    histograms: dict[str, list[tuple[Bucket, str]]] = {}
    stats: dict[str, Stats] = {}
    counts: dict[str, int] = {}
    in_flight: list[tuple[int, int]] = []
    lost, complaints, name = 0, list[str](), ""
    for line in text.splitlines():
        if bucket := parse_bucket(line):
            histograms.setdefault(name, []).append((bucket, line))
        elif entry := _MAP.fullmatch(line):
            name, value = entry.groups()
            if sums := _STATS.fullmatch(value.strip()):
                stats[name] = Stats(count=int(sums[1]), total=int(sums[2]))
            elif value.strip().isdigit():
                counts[name] = int(value)
        elif two := _IN_FLIGHT.fullmatch(line):
            in_flight.append((int(two[1]), int(two[2])))
        elif gone := _LOST.search(line):
            lost += int(gone[1])
        elif _COMPLAINT.search(line):
            complaints.append(line.strip())
    return Printed(
        histograms={key: _histogram(lines) for key, lines in histograms.items()},
        stats=stats,
        counts=counts,
        in_flight=tuple(in_flight),
        lost_events=lost,
        complaints=tuple(dict.fromkeys(complaints)),
    )


def parse_bucket(line: str) -> Bucket | None:
    """Return one line of a histogram; None for any other line."""
    match = _LINE.match(line)
    if not match:
        return None
    count = int(match["count"])
    if match["open"]:
        return Bucket(low=None, high=_bound(match["below"]), count=count)
    low = _bound(match["low"])
    if match["one"]:
        return Bucket(low=low, high=low + 1, count=count)
    return Bucket(
        low=low, high=None if match["high"] is None else _bound(match["high"]), count=count
    )


def _bound(text: str) -> int:
    """`2`, `-10`, `1K`."""
    power = _SUFFIXES.find(text[-1]) + 1
    return int(float(text[:-1]) * 1024**power) if power else int(text)


def _histogram(lines: Sequence[tuple[Bucket, str]]) -> TraceHistogram:
    return TraceHistogram(
        buckets=tuple(bucket for bucket, _ in lines), raw=tuple(line for _, line in lines)
    )


# --- the same the other way ----------------------------------------------------------------------


def histogram_of(values: Iterable[int]) -> TraceHistogram:
    """Values of 0 or more as `hist()` would show them: from the lowest to the highest bucket."""
    counts: dict[int, int] = {}
    for value in values:
        bits = value.bit_length()
        counts[bits] = counts.get(bits, 0) + 1
    if not counts:
        return TraceHistogram(buckets=(), raw=())
    buckets = tuple(
        Bucket(low=1 << bits >> 1, high=1 << bits, count=counts.get(bits, 0))
        for bits in range(min(counts), max(counts) + 1)
    )
    return TraceHistogram(buckets=buckets, raw=tuple(render(buckets)))


def render(buckets: Sequence[Bucket]) -> list[str]:
    """Lines as bpftrace prints them."""
    most = max((bucket.count for bucket in buckets), default=0)
    return [
        f"{_label(bucket):<16} {bucket.count:>8} |{'@' * (_BAR * bucket.count // most):<{_BAR}}|"
        for bucket in buckets
    ]


def _label(bucket: Bucket) -> str:
    if bucket.low is None:
        assert bucket.high is not None
        return f"(..., {_short(bucket.high)})"
    if bucket.high is None:
        return f"[{_short(bucket.low)}, ...)"
    if bucket.high == bucket.low + 1:
        return f"[{bucket.low}]"
    return f"[{_short(bucket.low)}, {_short(bucket.high)})"


def _short(bound: int) -> str:
    """With the largest suffix that leaves a whole number."""
    power = 0
    while bound and bound % 1024 == 0 and power < len(_SUFFIXES):
        bound, power = bound // 1024, power + 1
    return f"{bound}{_SUFFIXES[power - 1] if power else ''}"


# --- what a trace says ---------------------------------------------------------------------------


class Traced(Struct, frozen=True, kw_only=True):
    """The trace of a run, or why there is none: then only `reason` is filled, and the latencies of
    the series (`device_read_ms`, `device_write_ms`) stand in.

    `kernel_operations` are those that the devices' counters rose by meanwhile, by `read` and
    `write`; a few at the edges may be in one and not in the other.
    """

    reason: str | None
    version: str | None = None
    devices: tuple[str, ...] = ()
    tracepoints: tuple[str, ...] = ()
    seconds: float = 0.0
    printed: Printed = field(default_factory=Printed)
    kernel_operations: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def histograms(self) -> Mapping[str, TraceHistogram]:
        """Those that have values, in the order of `HISTOGRAMS`."""
        reads, writes = (
            zip(*self.printed.in_flight, strict=True) if self.printed.in_flight else ((), ())
        )
        histograms = {
            **self.printed.histograms,
            "qd_read": histogram_of(depth for depth in reads if depth),
            "qd_write": histogram_of(depth for depth in writes if depth),
        }
        return {
            name: histograms[name]
            for name in HISTOGRAMS
            if name in histograms and histograms[name].count
        }

    def reference_keys(self) -> dict[str, Any]:
        """Return the value of the reference's key `device_latency_tracing`; a histogram without
        values is left out, and an open end is None."""
        return {
            name: {
                "buckets": [
                    {"range_us": [b.low, b.high], "count": b.count} for b in histogram.buckets
                ],
                "raw": list(histogram.raw),
            }
            for name, histogram in self.histograms.items()
        }

    def section(self) -> dict[str, Any]:
        """Our own summary. Percentiles are the bounds of the bucket that holds them."""
        if self.reason is not None:
            return {"traced": False, "reason": self.reason}
        counts = self.printed.counts
        return {
            "traced": True,
            "reason": None,
            "bpftrace": self.version,
            "devices": list(self.devices),
            "tracepoints": list(self.tracepoints),
            "histograms": {name: self._summary(name, h) for name, h in self.histograms.items()},
            "operations": {
                kind: {
                    "traced": self._traced(kind),
                    "kernel": (self.kernel_operations or {}).get(kind),
                }
                for kind in (READ, WRITE)
            },
            "requeued": counts.get("requeued", 0),
            "overtaken": counts.get("overtaken", 0),
            "unmatched": counts.get("unmatched", 0),
            "lost_events": self.printed.lost_events,
            "remarks": self.remarks(),
        }

    def remarks(self) -> list[str]:
        """Return what is known to be amiss with the trace, as sentences."""
        return [
            *self.notes,
            *self._miscounted(),
            *self._missed(),
            *([f"bpftrace lost {n} events"] if (n := self.printed.lost_events) else []),
            *(f"bpftrace: {complaint}" for complaint in self.printed.complaints),
        ]

    def _traced(self, kind: str) -> int:
        histogram = self.histograms.get(f"d2c_{kind}_us")
        return histogram.count if histogram else 0

    def _miscounted(self) -> list[str]:
        """Histograms whose buckets don't hold as many values as were counted beside."""
        seen = {
            name: (self.printed.histograms[name].count if name in self.printed.histograms else 0)
            for name in HISTOGRAMS
        }
        counted = {name: self.printed.stats.get(SECOND_COUNT + name) for name in HISTOGRAMS}
        return [
            f"{name}: its buckets hold {seen[name]} values, but {stats.count} were counted"
            for name, stats in counted.items()
            if stats is not None and stats.count != seen[name]
        ]

    def _missed(self) -> list[str]:
        kernel = self.kernel_operations or {}
        return [
            f"{self._traced(kind)} {kind}s were traced, but the device ended {kernel[kind]}"
            for kind in (READ, WRITE)
            if kernel.get(kind, 0) - self._traced(kind)
            > max(AT_THE_EDGES, MOST_MISSED * kernel.get(kind, 0))
        ]

    def _summary(self, name: str, histogram: TraceHistogram) -> dict[str, Any]:
        unit, description = HISTOGRAMS[name]
        return {
            "unit": unit,
            "description": description,
            "events": histogram.count,
            "mean": self._mean(name, unit),
            **{
                f"p{p}": _bounds(histogram.percentile(p)) if supported(histogram.count, p) else None
                for p in _PERCENTS
            },
            "lowest": _bounds(next((b for b in histogram.buckets if b.count), None)),
            "highest": _bounds(next((b for b in reversed(histogram.buckets) if b.count), None)),
        }

    def _mean(self, name: str, unit: str) -> float | None:
        """Exact, not from buckets. Of requests at the device it is that of all the time, idle or
        not: their times at the device added up, by Little's law."""
        depth = name.startswith("qd_")
        of = f"d2c_{name.removeprefix('qd_')}_us" if depth else name
        stats = self.printed.stats.get(SECOND_COUNT + of)
        if stats is None or not stats.count:
            return None
        if depth:
            return stats.total / (self.seconds * NS_PER_S) if self.seconds else None
        return stats.total / stats.count / _COUNTED_AGAIN_IN.get(unit, 1)


def _bounds(bucket: Bucket | None) -> list[int | None] | None:
    return None if bucket is None else [bucket.low, bucket.high]
