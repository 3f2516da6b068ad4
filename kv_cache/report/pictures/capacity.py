"""A capacity search: what each load cost in latency, which loads keep their promises, and how much
was done."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING

from kv_cache.core.format import figures
from kv_cache.core.kinds import Qos
from kv_cache.core.units import GIB, NS_PER_MS
from kv_cache.metrics.slo import Promise
from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    SMALL,
    BadDocumentError,
    Json,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    ending,
    few_ticks,
    from_zero,
    highest,
    known,
    label_ends,
    logarithmic,
    needed,
    number,
    promises_at,
    rows_at,
    texts_at,
    value_at,
    word,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSIDE, OUTSIDE, OVERLOADED, CLIENT = "inside", "outside", "overloaded", "client-bound"
_MARKS: Mapping[str, tuple[str, str, str]] = {
    INSIDE: ("o", BLUE, "inside the promises"),
    OUTSIDE: ("X", RED, "outside"),
    OVERLOADED: ("^", BLACK, "overloaded (its queue grows)"),
    CLIENT: ("s", PURPLE, "limited by the client"),
}
_LINES = (("p50", "#a8a8a8", ":", 1.1), ("p95", "#555555", "-", 1.4), ("p99", "#8c8c8c", "--", 1.1))
_CLASS_COLOURS: Mapping[str, str] = {
    Qos.INTERACTIVE: BLUE, Qos.RESPONSIVE: RED, Qos.BATCH: BLACK,
}  # fmt: skip
_WIDE = 4.0  # times the least load: above, the axis of loads is logarithmic


def capacity_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    probes = sorted(rows_at(own, "probes"), key=lambda row: needed(row, "load"))
    if not probes:
        raise NothingToDrawError("no probe came to its end")
    if needed(probes[0], "load") <= 0:
        raise BadDocumentError("a probe's load is not above 0")
    panels = [_key(own, probes), *_latency(own, probes), *_broken(own, probes)]
    panels += [_completed(own, probes), _moved(own, probes)]
    return Picture(title=_title(own), lines=list(_lines(own)), panels=panels)


def _title(own: Json) -> str:
    load, unit = number(own, "answer.load"), _unit(own)
    if not load > 0:
        return "Capacity: no load kept the promises"
    return f"Capacity: {figures(load)} {unit} within the promises"


def _unit(own: Json) -> str:
    return word(own, "unit") or "load"


def _lines(own: Json) -> Iterator[str]:
    yield f"Promised: {', '.join(texts_at(own, 'slo')) or 'nothing'}."
    low, high, load = (number(own, f"answer.{name}") for name in ("low", "high", "load"))
    share = number(own, "answer.confidence")
    if isfinite(low) and isfinite(share):
        above = "more than was tried" if not isfinite(high) else figures(high)
        confirmed = value_at(own, "answer.confirmed") is True
        word_ = "confirmed" if confirmed else "not confirmed"
        yield f"{share:.0%} interval {figures(low)} to {above} {_unit(own)}" + (
            f", {word_} by probes at {figures(load)}." if load > 0 else "."
        )
    what, why = word(own, "limited_by.what"), word(own, "limited_by.why")
    if what:
        yield f"Limited by {what}: {why}."
    model = word(own, "model.name") or "unknown model"
    yield f"{model}, verdict {word(own, 'verdict') or 'none'}, {ending(own)}"


# --- the axis of loads -----------------------------------------------------------------------


def _state(row: Json) -> str:
    if value_at(row, "inside") is True:
        return INSIDE
    if value_at(row, "client_bound") is True:
        return CLIENT
    return OVERLOADED if value_at(row, "overloaded") is True else OUTSIDE


def _x(own: Json) -> str:
    return "users (open loop)" if _unit(own) == "users" else f"load, {_unit(own)}"


def _loads(axes: "Axes", own: Json, probes: Sequence[Json]) -> None:
    """The axis, the answer with its interval, and the knee."""
    loads = [needed(row, "load") for row in probes]
    if loads[-1] / loads[0] > _WIDE:
        logarithmic(axes, loads, x=True)
    else:
        room = 0.04 * (loads[-1] - loads[0]) or 0.1 * loads[0]
        axes.set_xlim(loads[0] - room, loads[-1] + room)
        few_ticks(axes.xaxis, 7, whole=_unit(own) == "users")
    left, right = axes.get_xlim()
    low, high, load = (number(own, f"answer.{name}") for name in ("low", "high", "load"))
    if isfinite(low) and load > 0:
        end = min(high, right) if isfinite(high) else right
        axes.axvspan(max(low, left), end, color=GREEN, alpha=0.13, linewidth=0, zorder=0)
    if load > 0:
        axes.axvline(load, color=GREEN, linewidth=1.6, zorder=1)
    knee = number(own, "knee.load")
    if knee > 0:
        axes.axvline(knee, color=PURPLE, linewidth=1.2, linestyle=":", zorder=1)


def _name_loads(axes: "Axes", own: Json) -> None:
    """Names at the foot of the answer's line and the knee's, at heights of their own: the lower
    load's left of it and the other's right, unless the axis ends there."""
    load, knee = number(own, "answer.load"), number(own, "knee.load")
    named = [(load, f"capacity {figures(load)}", GREEN), (knee, f"knee {figures(knee)}", PURPLE)]
    for index, (at, text, colour) in enumerate(sorted(each for each in named if each[0] > 0)):
        place = axes.transAxes.inverted().transform(axes.transData.transform((at, 1.0)))[0]
        left = place > 0.25 if index == 0 else place > 0.75
        axes.annotate(
            text, (at, 0.03 + 0.08 * index), xycoords=("data", "axes fraction"),
            xytext=(-3 if left else 3, 0), textcoords="offset points", size=SMALL,
            ha="right" if left else "left", va="bottom", color=colour, weight="bold",
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip


def _key(own: Json, probes: Sequence[Json]) -> Panel:
    """What the marks mean: only those that are there."""
    there = [state for state in _MARKS if any(_state(row) == state for row in probes)]

    def draw(axes: "Axes") -> None:
        at = 0.0
        for state in there:
            mark, colour, text = _MARKS[state]
            axes.plot(at, 0.5, mark, color=colour, markersize=6, transform=axes.transAxes,
                      clip_on=False)  # fmt: skip
            axes.annotate(
                text, (at, 0.5), xycoords="axes fraction", xytext=(7, 0), size=SMALL,
                textcoords="offset points", va="center", color=BLACK,
            )  # fmt: skip
            at += 0.1 + 0.0168 * len(text)

    return Panel(x="key", draw=draw, height=0.16, bare=True)


# --- panels ----------------------------------------------------------------------------------


def _through(axes: "Axes", probes: Sequence[Json], values: Sequence[float], look: Json) -> float:
    """A line through the mean of each load; the value at its end."""
    places: dict[float, list[float]] = {}
    for row, value in zip(probes, values, strict=True):
        if isfinite(value):
            places.setdefault(needed(row, "load"), []).append(value)
    means = [fmean(each) for each in places.values()]
    axes.plot(list(places), means, zorder=2, **look)
    return means[-1]


def _points(
    axes: "Axes", probes: Sequence[Json], values: Sequence[float], size: float = 6.0
) -> None:
    for row, value in zip(probes, values, strict=True):
        if isfinite(value):
            mark, colour, _ = _MARKS[_state(row)]
            axes.plot(
                needed(row, "load"), value, mark, color=colour, markersize=size, clip_on=False,
                markeredgecolor="white", markeredgewidth=0.5, zorder=4,
            )  # fmt: skip


def _latency(own: Json, probes: Sequence[Json]) -> Iterator[Panel]:
    values = {
        name: [_positive(number(row, f"response_ms.{name}")) for row in probes]
        for name, *_ in _LINES
    }
    every = [value for each in values.values() for value in each]
    if not known(every):
        return
    limits = [p for p in promises_at(own, "slo") if p.percent <= 99]

    def draw(axes: "Axes") -> None:
        logarithmic(axes, [*every, *(p.limit_ns / NS_PER_MS for p in limits)], room=1.8)
        _loads(axes, own, probes)
        labels = []
        for name, colour, style, width in _LINES:
            if known(values[name]):
                look = {"color": colour, "linestyle": style, "linewidth": width}
                end = _through(axes, probes, values[name], look)
                _points(axes, probes, values[name], 6.5 if name == "p95" else 4.0)
                labels.append(Label(end, name, "#555555"))
        for promise in limits:
            _limit(axes, promise)
        _name_loads(axes, own)
        label_ends(axes, labels, 2.3)

    yield Panel(title="Response of all requests: p50, p95, p99 of each probe", x=_x(own),
                y="ms, log", draw=draw, height=2.3)  # fmt: skip


def _positive(value: float) -> float:
    return value if value > 0 else float("nan")


def _limit(axes: "Axes", promise: Promise) -> None:
    limit, colour = promise.limit_ns / NS_PER_MS, _CLASS_COLOURS[promise.qos.value]
    axes.axhline(limit, color=colour, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
    axes.annotate(
        str(promise), (1, limit), xycoords=("axes fraction", "data"), xytext=(-3, 2),
        textcoords="offset points", size=SMALL, va="bottom", ha="right", color=colour, zorder=3,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def _broken(own: Json, probes: Sequence[Json]) -> Iterator[Panel]:
    """For each promise what it is judged by: the share of requests over its limit."""
    for promise in promises_at(own, "slo"):
        rows = [(probe, look) for probe in probes if (look := _look(probe, str(promise)))]
        if any(isfinite(number(look, "share")) for _, look in rows):
            yield _shares(own, probes, promise, rows)


def _look(probe: Json, promise: str) -> Json | None:
    looks = rows_at(probe, "promises")
    return next((look for look in looks if value_at(look, "promise") == promise), None)


def _shares(
    own: Json, probes: Sequence[Json], promise: Promise, rows: Sequence[tuple[Json, Json]]
) -> Panel:
    allowed = 100 * promise.allowed_share
    shares = [100 * number(look, "share") for _, look in rows]
    highs = [100 * number(look, "high") for _, look in rows]

    def draw(axes: "Axes") -> None:
        for probe, look in rows:
            low, high = number(look, "low"), number(look, "high")
            _, colour, _ = _MARKS[_state(probe)]
            axes.plot([needed(probe, "load")] * 2, [100 * low, 100 * high], color=colour,
                      linewidth=1.0, alpha=0.6, zorder=3)  # fmt: skip
        _points(axes, [probe for probe, _ in rows], shares)
        from_zero(axes, [*shares, *highs, 3 * allowed])
        _loads(axes, own, probes)
        axes.axhline(allowed, color=BLACK, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
        label_ends(axes, [Label(allowed, f"{figures(allowed)} % allowed", BLACK)])

    return Panel(title=f"Requests over {promise} (95 % intervals)", x=_x(own),
                 y="% of requests", draw=draw)  # fmt: skip


def _completed(own: Json, probes: Sequence[Json]) -> Panel:
    done = [number(row, "completed_per_s") for row in probes]
    offered = [number(row, "offered_per_s") for row in probes]

    def draw(axes: "Axes") -> None:
        from_zero(axes, [*done, *offered])
        _loads(axes, own, probes)
        labels = []
        if known(offered):
            look = {"color": GREY, "linestyle": "--", "linewidth": 1.1}
            labels.append(Label(_through(axes, probes, offered, look), "asked", GREY))
        if known(done):
            look = {"color": BLUE, "linestyle": "-", "linewidth": 1.4}
            labels.append(Label(_through(axes, probes, done, look), "completed", BLUE))
            _points(axes, probes, done, 4.5)
        label_ends(axes, labels)

    return Panel(title="Requests asked and completed", x=_x(own), y="requests/s", draw=draw)


def _moved(own: Json, probes: Sequence[Json]) -> Panel:
    rates = {
        kind: [number(row, f"storage_{kind}_bytes_per_s") / GIB for row in probes]
        for kind in ("read", "write")
    }
    looks = {"read": (BLUE, "-", "o"), "write": (RED, "--", "s")}

    def draw(axes: "Axes") -> None:
        from_zero(axes, [value for each in rates.values() for value in each])
        _loads(axes, own, probes)
        labels = []
        for kind, (colour, style, mark) in looks.items():
            if highest(rates[kind]) > 0:
                look = {"color": colour, "linestyle": style, "linewidth": 1.4, "marker": mark,
                        "markersize": 3}  # fmt: skip
                labels.append(Label(_through(axes, probes, rates[kind], look), kind, colour))
        label_ends(axes, labels)

    return Panel(title="Storage throughput", x=_x(own), y="GiB/s", draw=draw)
