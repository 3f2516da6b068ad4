"""What a person sees of a run that goes on, as lines of text: `live_lines` of a `Snapshot`.

Pure: it looks at no clock, no terminal and no run; `progress` makes the snapshot and draws the
lines. The first lines matter most, so that a short terminal loses the last ones. There are no
colours, so nothing is lost without them.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from tqdm.utils import disp_len, disp_trim

from kv_cache.core.text import printable
from kv_cache.core.units import GIB, MISSING, ns_to_ms
from kv_cache.metrics.window import NO_LATENCY, Latency

_GAP = 3  # columns between tables side by side
_LEAST_BAR, _MOST_BAR = 8, 40


class Side(Struct, frozen=True, kw_only=True):
    """Reads or writes of a tier in the latest window, for each second of it. `latency` is the
    device's for storage."""

    bytes_per_s: float = 0.0
    operations_per_s: float = 0.0
    latency: Latency = NO_LATENCY


class TierNow(Struct, frozen=True, kw_only=True):
    name: str
    read: Side
    write: Side


class SloNow(Struct, frozen=True, kw_only=True):
    """A percentile of a class as it was last seen (None: not yet, or one that windows do not
    know), and its SLO."""

    name: str
    seen_ns: float | None
    limit_ns: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """How a run stands. Counts of errors are of the whole run; `None` is not known, or there is
    no such thing."""

    phase: str
    elapsed_s: float  # of the phase
    share: float | None = None  # of the phase that is over, 0 to 1
    left_s: float | None = None
    left_requests: int | None = None
    prefix: str = ""
    completed: int = 0
    running: int = 0
    queued: int = 0
    behind: int = 0
    users: int | None = None
    workers: int | None = None
    saturation: float | None = None
    tiers: Sequence[TierNow] = ()
    storage: TierNow | None = None
    slos: Sequence[SloNow] = ()
    failed_operations: int = 0
    failed_requests: int = 0
    rejected: int = 0
    warnings: int = 0
    latest_warning: str = ""


def live_lines(snapshot: Snapshot, width: int, height: int | None = None) -> list[str]:
    """Lines of at most `width` columns, at most `height` of them."""
    lines = [
        *_phase(snapshot, width),
        *_wrapped(_load(snapshot), width),
        *_wrapped(_errors(snapshot), width),
        *_warnings(snapshot),
        *_flow([block for block in _tables(snapshot) if block], width),
    ]
    return [cut(line, width) for line in lines[:height]]


def status_line(now: Snapshot, read_bytes: int, written_bytes: int, bytes_per_s: float) -> str:
    """How a run stands in one line for a log. The bytes of storage are of the whole run so far."""
    of = "" if now.left_s is None else f" of {max(0.0, now.elapsed_s + now.left_s):.0f}"
    left = [] if now.left_requests is None else [f"{_count(now.left_requests)} requests left"]
    bad = {"failed operations": now.failed_operations, "failed requests": now.failed_requests,
           "rejected": now.rejected}  # fmt: skip
    parts = [
        *([now.prefix] if now.prefix else []),
        f"{now.phase} {max(0.0, now.elapsed_s):.0f}{of} s",
        *([] if now.users is None else [f"{_count(now.users)} users"]),
        f"{_count(now.completed)} requests done",
        *left,
        f"{_count(now.running)} running",
        f"{_count(now.queued)} queued",
        *(f"{count} {what}" for what, count in bad.items() if count > 0),
        f"storage read {read_bytes / GIB:.2f} GiB, written {written_bytes / GIB:.2f} GiB",
        f"{max(0.0, bytes_per_s) / GIB:.2f} GiB/s",
    ]
    return ", ".join(parts)


def cut(text: str, width: int) -> str:
    """`text` in one line of at most `width` columns, with an end that says that it was longer."""
    plain = printable(text, instead=" ").rstrip()
    if disp_len(plain) <= width:
        return plain
    return disp_trim(plain, width - 3) + "..." if width > 3 else disp_trim(plain, max(width, 0))


# --- words -----------------------------------------------------------------------------------


def _phase(now: Snapshot, width: int) -> Iterator[str]:
    if now.prefix:
        yield now.prefix
    head = f"{now.phase:<8} {max(0.0, now.elapsed_s):.1f} s"
    share = None if now.share is None else min(1.0, max(0.0, now.share))
    tail = [*([] if share is None else [f"{100 * share:3.0f} %"]), *_left(now)]
    end = "".join(f"  {word}" for word in tail)
    room = min(_MOST_BAR, width - len(head) - len(end) - 4)
    if share is None or room < _LEAST_BAR:
        yield head + end
        return
    full = int(room * share)
    yield f"{head}  [{'#' * full}{'-' * (room - full)}]{end}"


def _left(now: Snapshot) -> list[str]:
    """Whatever ends the phase first is not known, so both are told."""
    parts = []
    if now.left_s is not None:
        parts.append(f"{max(0.0, now.left_s):.1f} s left")
    if now.left_requests is not None:
        parts.append(f"{max(0, now.left_requests)} requests left")
    return parts


def _load(now: Snapshot) -> list[str]:
    return [
        *([] if now.users is None else [f"{_count(now.users)} users"]),
        *([] if now.workers is None else [f"{_count(now.workers)} workers"]),
        f"{_count(now.running)} running",
        f"{_count(now.queued)} queued",
        f"{_count(now.behind)} behind",
        f"{_count(now.completed)} done",
        *([] if now.saturation is None else [f"saturation {max(0.0, now.saturation):.2f}"]),
    ]


def _errors(now: Snapshot) -> list[str]:
    return [
        f"{_count(now.failed_operations)} failed operations",
        f"{_count(now.failed_requests)} failed requests",
        f"{_count(now.rejected)} rejected",
    ]


def _warnings(now: Snapshot) -> list[str]:
    if now.warnings < 1:
        return []
    return [f"{now.warnings} warning{'s' * (now.warnings > 1)}: {now.latest_warning}"]


def _count(number: int) -> int:
    return max(0, number)


# --- tables ----------------------------------------------------------------------------------


def _tables(now: Snapshot) -> Iterator[list[str]]:
    if now.tiers:
        head = f"{'GiB/s':<9}{'read':>7}{'op/s':>7}{'write':>8}{'op/s':>7}"
        yield [
            head,
            *(f"{cut(t.name, 8):<9}{_moved(t.read, 7)}{_moved(t.write, 8)}" for t in now.tiers),
        ]
    if now.storage is not None:
        head = f"{'storage ms':<11}{'p50':>8}{'p95':>8}{'p99':>8}"
        yield [head, _latency("read", now.storage.read), _latency("write", now.storage.write)]
    if now.slos:
        yield [f"{'answers ms':<20}{'now':>8}{'target':>9}", *map(_slo, now.slos)]


def _moved(side: Side, width: int) -> str:
    rate = f"{max(0.0, side.bytes_per_s) / GIB:.2f}"
    return f" {rate:>{width - 1}} {max(0.0, side.operations_per_s):>6.0f}"


def _latency(name: str, side: Side) -> str:
    seen = side.latency
    return f"{name:<11}" + "".join(
        f" {_ms(ns):>7}" for ns in (seen.p50_ns, seen.p95_ns, seen.p99_ns)
    )


def _slo(row: SloNow) -> str:
    over = row.seen_ns is not None and row.seen_ns > row.limit_ns
    return f"{cut(row.name, 20):<20} {_ms(row.seen_ns):>7} {_ms(row.limit_ns):>8}{' !' * over}"


def _ms(ns: float | None) -> str:
    """Three digits that count, where there are not more before the point."""
    if ns is None:
        return MISSING
    ms = max(0.0, ns_to_ms(ns))
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


# --- on a screen of this width ---------------------------------------------------------------


def _wrapped(words: Iterable[str], width: int) -> Iterator[str]:
    """The words on as few lines as they need."""
    line = ""
    for word in words:
        if line and len(line) + 2 + len(word) > width:
            yield line
            line = ""
        line = f"{line}  {word}" if line else word
    if line:
        yield line


def _flow(blocks: Iterable[list[str]], width: int) -> Iterator[str]:
    """Tables side by side as far as there is room, else below each other."""
    row: list[list[str]] = []
    for block in blocks:
        if row and sum(map(_width, [*row, block])) + _GAP * len(row) > width:
            yield from _beside(row)
            row = []
        row.append(block)
    yield from _beside(row)


def _beside(row: Sequence[list[str]]) -> Iterator[str]:
    for number in range(max(map(len, row), default=0)):
        cells = [block[number] if number < len(block) else "" for block in row]
        padded = [
            cell + " " * (_width(block) - disp_len(cell))
            for block, cell in zip(row, cells, strict=True)
        ]
        yield (" " * _GAP).join(padded)


def _width(block: Sequence[str]) -> int:
    return max(map(disp_len, block))
