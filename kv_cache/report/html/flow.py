"""What moved between which tiers, and why: from the operations that ended in the measured window.

Every operation names its tier and its cause. A demotion is a read of the tier it leaves and a write
of the tier it comes to, one or more down, and a promotion is the same upwards; with three tiers at
most, what each pair of tiers exchanged follows from these sums. An operation that the window's edge
cut counts with the side that ended, so the two sides of a pair may differ by a few objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_cache.core.format import figures
from kv_cache.core.kinds import Cause, OpKind, Phase, Tier
from kv_cache.core.units import GIB
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.report.html.charts import figures_ms
from kv_cache.report.html.parts import Doc, Json, bullets, details, share_bar, table
from kv_cache.report.html.text import NOTHING, Html, join, tag
from kv_cache.report.pictures.base import needed, rows_at, word
from kv_cache.report.reading import histogram
from kv_cache.report.sizes import HEADS, about_objects, shares, size_rows

TIERS = tuple(tier.label for tier in Tier)
_WHY: Mapping[str, str] = {
    Cause.REUSE: "loads of what earlier turns or other requests have left",
    Cause.PREFILL: "stores of newly computed blocks",
    Cause.DECODE: "loads while tokens are generated, and stores that repair a miss there",
    Cause.DEMOTION: "down, to make room",
    Cause.PROMOTION: "up, on a hit",
    Cause.WRITE_THROUGH: "copies in the last tier of what was stored above it",
    Cause.PREFETCH: "up, before anybody asks, and what leaves a tier for that",
    Cause.EVICTION: "deleted, to make room",
    Cause.DISCARD: "deleted, as verification failed",
    Cause.POPULATE: "stores before the measured window",
}
_MOVES = (Cause.DEMOTION.value, Cause.PROMOTION.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """All operations of one kind on one tier for one cause."""

    tier: str
    operation: str
    cause: str
    operations: int
    bytes: float
    total: Histogram
    device: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What went from one tier to another."""

    start: str
    end: str
    cause: str
    bytes: float


def flows(doc: Doc, phase: str = Phase.MEASURE) -> list[Flow]:
    """Of the operations that ended in a phase, those of different engines together. Raises
    BadDocumentError and UsageError."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for row in rows_at(doc.own, "operations"):
        if word(row, "phase") == phase:
            names = (word(row, "tier"), word(row, "operation"), word(row, "cause"))
            groups.setdefault(names, []).append(row)
    return [_flow(doc, names, groups[names]) for names in sorted(groups, key=_order)]


def _order(names: tuple[str, str, str]) -> tuple[int, str, str]:
    tier, *rest = names
    return (TIERS.index(tier) if tier in TIERS else len(TIERS), *rest)  # type: ignore[return-value]


def _flow(doc: Doc, names: tuple[str, str, str], rows: Sequence[Json]) -> Flow:
    file = Path(doc.name)
    tier, operation, cause = names
    return Flow(
        tier=tier, operation=operation, cause=cause,
        operations=int(sum(needed(row, "operations") for row in rows)),
        bytes=sum(needed(row, "bytes") for row in rows),
        total=merged(histogram(row, "histogram_total", file) for row in rows),
        device=merged(histogram(row, "histogram_device", file) for row in rows),
    )  # fmt: skip


def exchanges(every: Sequence[Flow]) -> list[Exchange]:
    """Between each pair of tiers, the larger first."""
    found = [
        *_exchanged(every, Cause.DEMOTION.value, TIERS),
        *_exchanged(every, Cause.WRITE_THROUGH.value, TIERS),
        *_exchanged(every, Cause.PROMOTION.value, TIERS[::-1]),
    ]
    return sorted(found, key=lambda each: -each.bytes)


def _exchanged(every: Sequence[Flow], cause: str, way: Sequence[str]) -> Iterator[Exchange]:
    """From the first tier of the way to the last, which nothing leaves; the middle one gets only
    from the first and gives only to the last."""
    first, middle, last = way
    given = {tier: moved(every, tier, OpKind.READ, cause) for tier in way}
    got = {tier: moved(every, tier, OpKind.WRITE, cause) for tier in way}
    past = min(got[last], max(0.0, given[first] - got[middle]))
    if past < _EDGE * given[first]:  # what the window's edge cut, and no move past the middle
        past = 0.0
    for start, end, nbytes in (
        (first, middle, got[middle]),
        (first, last, past),
        (middle, last, got[last] - past),
    ):
        if nbytes > 0:
            yield Exchange(start=start, end=end, cause=cause, bytes=nbytes)


_EDGE = 0.01


def moved(every: Sequence[Flow], tier: str, operation: str, cause: str) -> float:
    """Bytes."""
    return sum(
        flow.bytes
        for flow in every
        if (flow.tier, flow.operation, flow.cause) == (tier, operation, cause)
    )


# --- shown -----------------------------------------------------------------------------------


def flow_content(doc: Doc, every: Sequence[Flow]) -> list[Html]:
    """The picture, what moved between tiers, and every operation."""
    if not every:
        return []
    return [
        tag("div", _picture(every), class_="flow"),
        tag(
            "p",
            "Left: what came into a tier from outside. Right: what requests loaded from it. "
            "Between the tiers: what was moved down (demotion) or up (promotion).",
        ),
        *_between(every),
        table(
            "Operations of the measured window, by tier, kind and cause",
            ("tier", "operation", "cause", "operations", "GiB", "p50 ms", "p95 ms", "p99 ms",
             "p99.99 ms"),
            [_row(flow) for flow in every],
            words=3,
        ),
        *_meanings(every),
        *_sizes(doc.own),
        *_other_phases(doc),
    ]  # fmt: skip


def _between(every: Sequence[Flow]) -> list[Html]:
    rows = [
        (f"{each.start} → {each.end}", each.cause, figures(each.bytes / GIB))
        for each in exchanges(every)
    ]
    if not rows:
        return [tag("p", "Nothing moved from one tier to another in the measured window.")]
    return [table("Moved between tiers", ("way", "cause", "GiB"), rows, words=2)]


def _row(flow: Flow) -> tuple[object, ...]:
    return (
        flow.tier,
        flow.operation,
        flow.cause,
        f"{flow.operations:,}",
        NOTHING if flow.operation == OpKind.DELETE else figures(flow.bytes / GIB),
        *figures_ms(flow.total, (50, 95, 99, 99.99)),
    )


def _meanings(every: Sequence[Flow]) -> list[Html]:
    there = {flow.cause for flow in every}
    return bullets([f"{cause}: {why}" for cause, why in _WHY.items() if cause in there], "small")


def _sizes(own: Json) -> list[Html]:
    """How large the objects are that storage moved."""
    rows = list(size_rows(own))
    if not rows:
        return []
    parts = [
        (row.kind, low, f"{100 * share:.1f}", share_bar(share))
        for row in rows
        for low, share in shares(row)
    ]
    return [
        table("Sizes of the objects that storage moved in the measured window",
              ("operation", *HEADS), [(row.kind, *row.cells) for row in rows]),
        tag("p", f"{about_objects(own)}.", class_="small"),
        details("Sizes by powers of two",
                table("Objects from a size to below twice as much",
                      ("operation", "from", "share, %", ""), parts)),
    ]  # fmt: skip


def _other_phases(doc: Doc) -> list[Html]:
    rows = [
        (phase.value, flow.tier, flow.operation, flow.cause, f"{flow.operations:,}",
         figures(flow.bytes / GIB))
        for phase in Phase
        if phase is not Phase.MEASURE
        for flow in flows(doc, phase)
    ]  # fmt: skip
    if not rows:
        return []
    heads = ("phase", "tier", "operation", "cause", "operations", "GiB")
    return [details("Other phases", table("Outside the measured window", heads, rows, words=4))]


# --- the picture -----------------------------------------------------------------------------

_WIDE, _BOX, _TALL, _GAP, _TOP = 360, 92, 58, 50, 6
_LANE = 30  # beside all, for what goes past a tier
_LEFT = (_WIDE - _BOX) / 2
_THICKEST = 9.0


def _picture(every: Sequence[Flow]) -> Html:
    tiers = [tier for tier in TIERS if any(flow.tier == tier for flow in every)]
    largest = max((flow.bytes for flow in every), default=0.0) or 1.0
    height = _TOP * 2 + len(tiers) * _TALL + (len(tiers) - 1) * _GAP
    parts = [_box(every, tier, index) for index, tier in enumerate(tiers)]
    for index, tier in enumerate(tiers):
        parts += _sides(every, tier, index, largest)
    between = [e for e in exchanges(every) if e.start in tiers and e.end in tiers]
    for each in between:
        parts += _vertical(each, tiers, largest)
    past = [each for each in between if _steps(each, tiers) in (-2, 2)]
    left, right = (_LANE * any(_steps(e, tiers) == steps for e in past) for steps in (2, -2))
    return tag(
        "svg", *parts, viewBox=f"{-left} 0 {left + _WIDE + right} {height}", role="img",
        aria_label="What moved into, out of and between tiers; the tables below say the same",
    )  # fmt: skip


def _y(index: int) -> float:
    return _TOP + index * (_TALL + _GAP)


def _box(every: Sequence[Flow], tier: str, index: int) -> Html:
    gone = sum(
        flow.operations
        for flow in every
        if flow.tier == tier
        and flow.operation == OpKind.DELETE
        and flow.cause in (Cause.EVICTION, Cause.DISCARD)
    )
    said = [_text(_WIDE / 2, _y(index) + 26, tier, "middle", "name")]
    if gone:
        said.append(_text(_WIDE / 2, _y(index) + 44, f"{gone:,} deleted", "middle", "small"))
    box = tag("rect", x=f"{_LEFT:g}", y=f"{_y(index):g}", width=_BOX, height=_TALL, rx=8)
    return tag("g", box, *said)


def _sides(every: Sequence[Flow], tier: str, index: int, largest: float) -> Iterator[Html]:
    """What comes from the left and goes to the right, each cause with an arrow of its own."""
    for operation, outward in ((OpKind.WRITE, False), (OpKind.READ, True)):
        some = [
            (flow.cause, flow.bytes)
            for flow in every
            if (flow.tier, flow.operation) == (tier, operation)
            and flow.cause not in (*_MOVES, Cause.WRITE_THROUGH.value)
            and flow.bytes > 0
        ]
        step = (_TALL - 8) / (len(some) or 1)
        for place, (cause, nbytes) in enumerate(some):
            y = _y(index) + step * (place + 0.5) + 10
            start, end = (_LEFT + _BOX + 3, _WIDE - 2) if outward else (2, _LEFT - 3)
            share = nbytes / largest
            yield _arrow(start, y, end, y, share, _kind(cause))
            above = y - 4 - _THICKEST * share / 2
            said = f"{cause} {figures(nbytes / GIB)} GiB"
            yield _text((start + end) / 2, above, said, "middle", "small")


def _steps(each: Exchange, tiers: Sequence[str]) -> int:
    """Tiers that it goes down."""
    return tiers.index(each.end) - tiers.index(each.start)


def _vertical(each: Exchange, tiers: Sequence[str], largest: float) -> Iterator[Html]:
    start, end = tiers.index(each.start), tiers.index(each.end)
    down = start < end
    said = f"{each.cause} {figures(each.bytes / GIB)} GiB"
    if abs(start - end) > 1:
        yield from _past(start, end, each.bytes / largest, _kind(each.cause), said)
        return
    x = _WIDE / 2 + (-_BOX / 4 if down else _BOX / 4)
    y1, y2 = (_y(start) + _TALL + 3, _y(end) - 3) if down else (_y(start) - 3, _y(end) + _TALL + 3)
    yield _arrow(x, y1, x, y2, each.bytes / largest, _kind(each.cause))
    where = _y(min(start, end)) + _TALL + _GAP / 2 + 4
    yield _text(x + (-10 if down else 10), where, said, "end" if down else "start", "small")


def _past(start: int, end: int, share: float, kind: str, said: str) -> Iterator[Html]:
    """Around everything that is between: left of it downwards, right of it upwards."""
    down = start < end
    side, x = (_LEFT, -8.0) if down else (_LEFT + _BOX, _WIDE + 8.0)
    y1, y2 = (_y(start) + _TALL - 4, _y(end) + 4) if down else (_y(start) + 4, _y(end) + _TALL - 4)
    path = join((f"{px:.1f},{py:.1f}" for px, py in ((side, y1), (x, y1), (x, y2))), " ")
    yield tag("polyline", points=path, stroke_width=f"{_width(share):.1f}", class_=f"way {kind}",
              stroke_linejoin="round")  # fmt: skip
    yield _arrow(x, y2, side + (-3 if down else 3), y2, share, kind)
    beside, middle = (x - 9 if down else x + 18), (y1 + y2) / 2
    yield tag("text", said, transform=f"translate({beside:.1f} {middle:.1f}) rotate(-90)",
              text_anchor="middle", class_="small")  # fmt: skip


def _kind(cause: str) -> str:
    known = (Cause.REUSE, Cause.PREFILL, Cause.DECODE, *_MOVES)
    return cause if cause in known else "other"


def _width(share: float) -> float:
    return 1.2 + (_THICKEST - 1.2) * min(1.0, share)


def _arrow(x1: float, y1: float, x2: float, y2: float, share: float, kind: str) -> Html:
    """A line that is as wide as its share, with a head."""
    width = _width(share)
    head = 3.5 + width / 2
    across, along = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    bx, by = x2 - across * head * 1.4, y2 - along * head * 1.4
    line = tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{bx:.1f}", y2=f"{by:.1f}",
               stroke_width=f"{width:.1f}")  # fmt: skip
    points = ((x2, y2), (bx - along * head, by - across * head),
              (bx + along * head, by + across * head))  # fmt: skip
    tip = tag("polygon", points=join((f"{x:.1f},{y:.1f}" for x, y in points), " "))
    return tag("g", line, tip, class_=f"arrow {kind}")


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=kind)
