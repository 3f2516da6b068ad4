"""Latencies as a log of HdrHistogram, for the tools that read one (HistogramLogAnalyzer,
hdr-plot, the `hdrh` of Python).

A log is text: a comment with the start of time, a legend, and a line for each interval with its
histogram in the V2 compressed encoding: a header and the counts, packed by zlib, in base64. Counts
are ZigZag LEB128 of at most 9 bytes; a negative one represents that many zeros.

Ours have 256 buckets for each power of two. HdrHistogram's with 3 significant digits have 1024, so
that each of ours holds four of them: its count goes to the one that ends at its middle, which is
the value that a percentile of ours is. The lowest and the highest value are known exactly, and one
count each goes there. So counts are kept, and percentiles are the same within the stated error.
"""

import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from struct import pack
from typing import Any

from msgspec import Struct

from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import Phase, Qos
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.files.records import LineWriter, packing, require_own_name
from kv_cache.metrics.histogram import Histogram, bucket_bounds, merged
from kv_cache.metrics.window import latency_tag
from kv_cache.result.paths import value_at
from kv_cache.result.published import PublishedRun, published
from kv_cache.result.run import SECTION, MisshapenError, not_as_written

MARK = "#[kv-cache latencies in ns"
"""How each log begins; a file that begins so may be replaced."""

DIGITS = 3
LONGEST_NS = 3600 * NS_PER_S  # readers make room for this, at least
_SUB_BITS = 11  # 2048 counts for the first 2048 values, then 1024 for each power of two
_HALF = 1 << (_SUB_BITS - 1)
_COOKIE, _COMPRESSED = 0x1C849313, 0x1C849314

_HEADER = """\
{mark}, of {what}]
#[Histogram log format version 1.2]
#[StartTime: {start:.3f} (seconds since epoch), {date}]
#[BaseTime: {start:.3f} (seconds since epoch)]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""


# --- one histogram ---------------------------------------------------------------------------


def encode(of: Histogram) -> str:
    """Encode a histogram in the V2 compressed encoding, as base64."""
    words = b"".join(_words(_placed(of)))
    highest = max(LONGEST_NS, of.highest or 0)
    head = pack(">IIIIqqd", _COOKIE, len(words), 0, DIGITS, 1, highest, 1.0)
    packed = zlib.compress(head + words)
    return b64encode(pack(">II", _COMPRESSED, len(packed)) + packed).decode()


def _placed(of: Histogram) -> dict[int, int]:
    """Return counts by HdrHistogram's index."""
    counts: dict[int, int] = {}
    for value, count in _values(of):
        index = index_of(value)
        counts[index] = counts.get(index, 0) + count
    return counts


def _values(of: Histogram) -> Iterator[tuple[int, int]]:
    """Yield values that represent the buckets', with their counts."""
    buckets = of.buckets()
    if not buckets:
        return
    assert of.lowest is not None
    assert of.highest is not None
    if of.count > 1:  # a single value is its own lowest and highest
        yield of.highest, 1
        buckets[max(buckets)] -= 1
    yield of.lowest, 1
    buckets[min(buckets)] -= 1
    for bucket, count in buckets.items():
        low, high = bucket_bounds(bucket)
        if count:
            yield min(max((low + high) // 2, of.lowest), of.highest), count


def index_of(value: int) -> int:
    """Return the index at which HdrHistogram counts a value."""
    shift = max(0, value.bit_length() - _SUB_BITS)
    return ((shift + 1) << (_SUB_BITS - 1)) + (value >> shift) - _HALF


def _words(counts: Mapping[int, int]) -> Iterator[bytes]:
    """Encode the counts from index 0 to the last that is not zero."""
    at = 0
    for index in sorted(index for index, count in counts.items() if count):
        if index > at:
            yield zigzag(0 if index - at == 1 else at - index)
        yield zigzag(counts[index])
        at = index + 1


def zigzag(value: int) -> bytes:
    """Encode as ZigZag LEB128 of 64 bits in at most 9 bytes: the ninth holds eight bits."""
    left = (value << 1) ^ (value >> 63)
    left &= (1 << 64) - 1
    encoded = bytearray()
    while left >= 0x80 and len(encoded) < 8:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


# --- a log -----------------------------------------------------------------------------------


def log_header(start_unix_s: float, what: str) -> str:
    """Return what a log begins with. Intervals count from its start."""
    date = f"{datetime.fromtimestamp(start_unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return _HEADER.format(mark=MARK, what=what, start=start_unix_s, date=date)


def log_line(tag: str, start_s: float, length_s: float, of: Histogram) -> str:
    """Return the line of one interval; its largest value is in ms, as other writers have it."""
    longest_ms = (of.highest or 0) / NS_PER_MS
    return f"Tag={tag},{start_s:.3f},{length_s:.3f},{longest_ms:.3f},{encode(of)}\n"


class TimedRun(Struct, frozen=True, kw_only=True):
    """A result of one run, and how it is called."""

    label: str
    path: Path
    run: PublishedRun

    @classmethod
    def of(cls, label: str, path: Path, section: Mapping[str, Any]) -> "TimedRun":
        """Read the section `kv_cache`. Raises UsageError."""
        try:
            return cls(label=label, path=path, run=published(section))
        except MisshapenError as error:
            raise not_as_written(path, f"{SECTION}.{error}") from None

    @property
    def window_start_s(self) -> float:
        """When the measured window began, in seconds since the epoch; virtual time begins with
        it. Raises UsageError."""
        text, begin = self.run.started_utc, self.run.phases_ns.measure_start
        try:
            started = 0.0 if text is None else datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise UsageError(f"{self.path}: {SECTION}.started_utc is not an instant") from None
        if begin is None:
            raise UsageError(f"{self.path}: {SECTION}.phases_ns.measure_start is missing")
        return started + begin / NS_PER_S


def hdr_log(results: Sequence[TimedRun]) -> bytes:
    """Return the measured windows of results of runs, one interval each. Of several results each
    tag begins with the result's label. Raises UsageError."""
    for result in results:
        if result.run.ranks is not None:
            raise UsageError(
                f"{result.path} is of several ranks, each of which has a window of its own; give "
                "the ranks' own results to hdr"
            )
    starts = {result.label: result.window_start_s for result in results}
    begin = min(_started_s(result) for result in results)
    lines = []
    for result in sorted(results, key=lambda result: starts[result.label]):
        prefix = f"{result.label}." if len(results) > 1 else ""
        start_s = starts[result.label] - begin
        for tag, histogram in tagged(result).items():
            lines.append(log_line(f"{prefix}{tag}", start_s, result.run.window_s, histogram))
    if not lines:
        raise UsageError(
            f"{results[0].path}: nothing ended in its window, so there are no latencies"
        )
    names = ", ".join(_named(result, len(results)) for result in results)
    return (log_header(begin, f"the measured window of {names}") + "".join(lines)).encode()


def _started_s(result: TimedRun) -> float:
    return result.window_start_s - (result.run.phases_ns.measure_start or 0) / NS_PER_S


def tagged(result: TimedRun) -> dict[str, Histogram]:
    """Return what a run measured, by tag: tier.operation.device (storage) or .total, response.class
    and ttft.class, of which `all` are all classes. Raises UsageError."""
    run = result.run
    if value_at(run.config, "output.io_trace_log") is not None:
        raise UsageError(f"{result.path}: it wrote the trace of its operations and timed none")
    groups: dict[str, list[Histogram]] = {}
    for row in run.operations:
        if row.phase is Phase.MEASURE:
            tag = latency_tag(row.tier, row.operation)
            name = f"histogram_{tag.rpartition('.')[2]}"
            groups.setdefault(tag, []).append(getattr(row, name))
    for who in ("all", *(qos.value for qos in Qos)):
        for latency in ("response", "ttft"):
            if who in run.measured:
                histogram = getattr(run.measured[who], f"histogram_{latency}")
                groups[f"{latency}.{who}"] = [histogram]
    together = {tag: merged(histograms) for tag, histograms in groups.items()}
    return {tag: histogram for tag, histogram in sorted(together.items()) if histogram.count}


def _named(result: TimedRun, count: int) -> str:
    """Return the file's own name with its verdict, as a comment can hold it."""
    name = "".join(c if c.isprintable() and c not in "[]" else "?" for c in result.path.name)
    name += f" ({result.run.passport.verdict})"
    return f"{result.label} {name}" if count > 1 else name


# --- a log as a run goes on --------------------------------------------------------------------

FLAG = "--hdr-log"


def check_hdr_log(path: Path) -> None:
    """Refuse a file that could not be written, or that holds something else. Raises PlaceError."""
    require_own_name(path, FLAG, lambda first: first.startswith(MARK))


class HdrLog(LineWriter):
    """A line for each measured window and tag; what a window holds is encoded before it goes."""

    def __init__(self, path: Path, begun_unix_s: float) -> None:
        head = log_header(begun_unix_s, "the measured windows of a run")
        super().__init__(path, encode=bytes, head=head.encode(), packed=packing(path, FLAG))

    def on_latencies(
        self, start_ns: int, end_ns: int, phase: Phase, histograms: Mapping[str, Histogram]
    ) -> None:
        if phase is not Phase.MEASURE:
            return
        start_s, length_s = start_ns / NS_PER_S, (end_ns - start_ns) / NS_PER_S
        for tag, histogram in histograms.items():
            self.add(log_line(tag, start_s, length_s, histogram).encode())
