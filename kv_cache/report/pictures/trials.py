"""Several runs of one configuration: how far their numbers agree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREY,
    PALE,
    RED,
    SMALL,
    BadDocumentError,
    Json,
    NothingToDrawError,
    Panel,
    Picture,
    ending,
    few_ticks,
    known,
    number,
    texts_at,
    value_at,
    word,
)
from kv_cache.result.metrics import METRICS, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = (
    *("storage.read.bytes_per_second", "storage.write.bytes_per_second"),
    *("storage.read.device_ms.p95", "storage.write.device_ms.p95"),
    *("requests_per_second", "output_tokens_per_second"),
    *("ttft_ms.p95", "response_ms.p95", "hit_ratio"),
)
_ROW = 0.34  # inches
_LEAST, _MOST = 10.0, 150.0  # percent of the median, on both sides of it, that the axis may reach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One metric. All but the median and the share are in percent of the median's distance."""

    metric: Metric
    median: float
    values: Sequence[float]
    low: float
    high: float
    variation: float


def trials_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    rows = [row for name in SHOWN if (row := _row(own, name))]
    if not rows:
        raise NothingToDrawError("no trial has a number above 0")
    panel = Panel(
        x="difference from the median of the trials, %", height=_ROW * len(rows),
        draw=lambda axes: _draw(axes, rows),
    )  # fmt: skip
    return Picture(title=_title(own), lines=list(_lines(own)), panels=[panel], left=2.0)


def _title(own: Json) -> str:
    finished, planned = number(own, "finished"), number(own, "planned")
    model = word(own, "model.name") or "unknown model"
    return f"How far {finished:.0f} of {planned:.0f} trials agree: {model}"


def _lines(own: Json) -> Iterator[str]:
    yield "Dots: trials. Bar: 95 % interval of their mean. Right: coefficient of variation."
    yield f"Verdict {word(own, 'passport.verdict') or 'none'}, {ending(own)}"
    yield from (f"! {reason}" for reason in texts_at(own, "passport.reasons"))


def _row(own: Json, name: str) -> _Row | None:
    """None where there is no median above 0 to compare with."""
    metrics = value_at(own, "metrics")
    given = metrics.get(name) if isinstance(metrics, dict) else None
    if given is None:
        return None
    values = value_at(given, "values")
    if not isinstance(values, list):
        raise BadDocumentError(f"metrics.{name}.values is no list")
    middle = number(given, "median")
    if not middle > 0:
        return None

    def off(value: float) -> float:
        return 100 * (value / middle - 1)

    return _Row(
        metric=METRICS[name],
        median=middle,
        values=[off(v) for v in known(number({"values": v}, "values") for v in values)],
        low=off(number(given, "interval.low")),
        high=off(number(given, "interval.high")),
        variation=number(given, "coefficient_of_variation"),
    )


def _draw(axes: "Axes", rows: Sequence[_Row]) -> None:
    from matplotlib.ticker import NullLocator

    # As far as the dots go; an interval of few trials may go further, and is cut with an arrow.
    far = max(abs(value) for row in rows for value in row.values)
    reach = min(_MOST, max(_LEAST, 1.25 * far))
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.6)
    axes.spines["left"].set_visible(False)
    few_ticks(axes.xaxis, 6)
    axes.axvline(0, color=GREY, linewidth=1.0, zorder=1)
    for place, row in enumerate(rows):
        _draw_row(axes, place, row, reach)


def _draw_row(axes: "Axes", place: int, row: _Row, reach: float) -> None:
    if isfinite(row.low) and isfinite(row.high):
        low, high = max(row.low, -reach), min(row.high, reach)
        axes.plot([low, high], [place, place], color=PALE, linewidth=7, solid_capstyle="butt",
                  zorder=2)  # fmt: skip
        for at, cut, mark in ((low, row.low < -reach, "<"), (high, row.high > reach, ">")):
            if cut:
                axes.plot(at, place, mark, color=GREY, markersize=5, clip_on=False, zorder=3)
    beyond = [v for v in row.values if abs(v) > reach]
    axes.plot(row.values, [place] * len(row.values), "o", color=BLUE, markersize=5, alpha=0.85,
              markeredgecolor="white", markeredgewidth=0.6, zorder=4)  # fmt: skip
    for value in beyond:
        at = reach if value > 0 else -reach
        axes.plot(at, place, ">" if value > 0 else "<", color=RED, markersize=6, clip_on=False,
                  zorder=5)  # fmt: skip
    metric = row.metric
    told = f"{metric.shown(row.median)} {metric.shown_unit}"
    _beside(axes, place, (0, -6), "right", f"{metric.label}\n{told}")
    if isfinite(row.variation):
        _beside(axes, place, (1, 12), "left", f"{100 * row.variation:.1f} %")


def _beside(axes: "Axes", place: int, at: tuple[int, int], side: str, text: str) -> None:
    axes.annotate(
        text, (at[0], place), xycoords=("axes fraction", "data"), xytext=(at[1], 0),
        textcoords="offset points", size=SMALL, ha=side, va="center", color=BLACK,
        linespacing=1.05, annotation_clip=False,
    )  # fmt: skip
