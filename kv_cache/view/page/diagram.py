"""A flow diagram as SVG: nodes in a column, arrows as thick as what went along them."""

from collections.abc import Iterator, Sequence

from kv_cache.core.kinds import Cause
from kv_cache.view import units
from kv_cache.view.page.safe_text import Html, join, tag
from kv_cache.view.parts import FlowArrow, FlowDiagram

_WIDE, _BOX, _TALL, _GAP, _TOP = 360, 92, 58, 50, 6
_LANE = 30  # beside all, for what goes past a node
_LEFT = (_WIDE - _BOX) / 2
_THICKEST = 9.0
_COLOURED = (Cause.REUSE, Cause.PREFILL, Cause.DECODE, Cause.DEMOTION, Cause.PROMOTION)


def diagram(flow: FlowDiagram) -> Html:
    """Left: what came in from outside; right: what went out; between nodes: what moved."""
    nodes = [name for name, _ in flow.nodes]
    largest = max((arrow.bytes for arrow in flow.arrows), default=0.0) or 1.0
    height = _TOP * 2 + len(nodes) * _TALL + (len(nodes) - 1) * _GAP
    parts = [_box(name, note, index) for index, (name, note) in enumerate(flow.nodes)]
    for index, node in enumerate(nodes):
        parts += _sides(flow.arrows, node, index, largest)
    between = [arrow for arrow in flow.arrows if arrow.start in nodes and arrow.end in nodes]
    for arrow in between:
        parts += _vertical(arrow, nodes, largest)
    steps = [_steps(arrow, nodes) for arrow in between]
    left, right = (_LANE * any(sign * step > 1 for step in steps) for sign in (1, -1))
    return tag(
        "svg", *parts, viewBox=f"{-left} 0 {left + _WIDE + right} {height}", role="img",
        aria_label="What moved into, out of and between tiers; the tables below say the same",
    )  # fmt: skip


def _y(index: int) -> float:
    return _TOP + index * (_TALL + _GAP)


def _box(name: str, note: str, index: int) -> Html:
    texts = [_text(_WIDE / 2, _y(index) + 26, name, "middle", "name")]
    if note:
        texts.append(_text(_WIDE / 2, _y(index) + 44, note, "middle", "small"))
    box = tag("rect", x=f"{_LEFT:g}", y=f"{_y(index):g}", width=_BOX, height=_TALL, rx=8)
    return tag("g", box, *texts)


def _sides(arrows: Sequence[FlowArrow], node: str, index: int, largest: float) -> Iterator[Html]:
    """What comes from the left and goes to the right, each cause with an arrow of its own."""
    for outward in (False, True):
        some = [
            arrow
            for arrow in arrows
            if (arrow.start, arrow.end) == ((node, None) if outward else (None, node))
        ]
        step = (_TALL - 8) / (len(some) or 1)
        for place, arrow in enumerate(some):
            y = _y(index) + step * (place + 0.5) + 10
            start, end = (_LEFT + _BOX + 3, _WIDE - 2) if outward else (2, _LEFT - 3)
            share = arrow.bytes / largest
            yield _arrow(start, y, end, y, share, _kind(arrow))
            above = y - 4 - _THICKEST * share / 2
            yield _text((start + end) / 2, above, _label(arrow), "middle", "small")


def _label(arrow: FlowArrow) -> str:
    return f"{arrow.name} {units.GIBIBYTES.measured(arrow.bytes)}"


def _steps(arrow: FlowArrow, nodes: Sequence[str]) -> int:
    """Nodes that it goes down."""
    return nodes.index(arrow.end or "") - nodes.index(arrow.start or "")


def _vertical(arrow: FlowArrow, nodes: Sequence[str], largest: float) -> Iterator[Html]:
    start, end = nodes.index(arrow.start or ""), nodes.index(arrow.end or "")
    down = start < end
    if abs(start - end) > 1:
        yield from _past(start, end, arrow.bytes / largest, _kind(arrow), _label(arrow))
        return
    x = _WIDE / 2 + (-_BOX / 4 if down else _BOX / 4)
    y1, y2 = (_y(start) + _TALL + 3, _y(end) - 3) if down else (_y(start) - 3, _y(end) + _TALL + 3)
    yield _arrow(x, y1, x, y2, arrow.bytes / largest, _kind(arrow))
    y = _y(min(start, end)) + _TALL + _GAP / 2 + 4
    yield _text(x + (-10 if down else 10), y, _label(arrow), "end" if down else "start", "small")


def _past(start: int, end: int, share: float, kind: str, label: str) -> Iterator[Html]:
    """Around everything that is between: left of it downwards, right of it upwards."""
    down = start < end
    side, x = (_LEFT, -8.0) if down else (_LEFT + _BOX, _WIDE + 8.0)
    y1, y2 = (_y(start) + _TALL - 4, _y(end) + 4) if down else (_y(start) + 4, _y(end) + _TALL - 4)
    path = join((f"{px:.1f},{py:.1f}" for px, py in ((side, y1), (x, y1), (x, y2))), " ")
    yield tag("polyline", points=path, stroke_width=f"{_width(share):.1f}", class_=f"way {kind}",
              stroke_linejoin="round")  # fmt: skip
    yield _arrow(x, y2, side + (-3 if down else 3), y2, share, kind)
    beside, middle = (x - 9 if down else x + 18), (y1 + y2) / 2
    yield tag("text", label, transform=f"translate({beside:.1f} {middle:.1f}) rotate(-90)",
              text_anchor="middle", class_="small")  # fmt: skip


def _kind(arrow: FlowArrow) -> str:
    return arrow.name if arrow.name in _COLOURED else "other"


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
