"""What pictures are made of: panels with titles, direct labels, and axes with few ticks.

The paper is as wide as a column of text and as a phone held upright.
"""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, log10, nan
from textwrap import wrap
from typing import TYPE_CHECKING

from msgspec import Struct

from kv_cache.core.format import figures
from kv_cache.view.drawing import COLOURS, round_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, RED, GREEN, PURPLE = COLOURS[:4]
BLACK, GREY, PALE = "#1a1a1a", "#6f6f6f", "#d5d5d5"

SMALL, NORMAL, LARGE = 8.0, 9.0, 11.5  # points
_WIDTH, _LEFT, _RIGHT = 5.6, 0.72, 0.92  # inches
_TITLE, _TICKS, _NEXT = 0.24, 0.40, 0.14  # inches: of a panel's title, its last axis, and between
_LINE = 0.155  # inches of a line of small text
_LETTER = 0.062  # inches of an average letter of small text
_BOLD_LETTER = 1.15 * _LETTER
_LONGEST_TEXT = 300


class NothingToDrawError(Exception):
    """The document is as it should be, and has no data. The text says what is missing."""


def plain(text: str) -> str:
    """Text out of a file that anybody may have written: only what every font has, and not long."""
    shown = "".join(c if " " <= c <= "~" or c == "±" else "?" for c in text)
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 3]}..."


def known(values: Iterable[float]) -> list[float]:
    return [value for value in values if isfinite(value)]


# --- a picture -------------------------------------------------------------------------------


class Panel(Struct, frozen=True, kw_only=True):
    """One pair of axes. Neighbours of the same `x` share that axis, which the last of them shows.
    A `bare` panel has no axes at all."""

    title: str = ""
    x: str
    draw: "Callable[[Axes], None]"
    height: float  # inches
    bare: bool = False


class Picture(Struct, frozen=True, kw_only=True):
    """What is seen, in words and panels. `lines` stand under the title and are wrapped."""

    title: str
    lines: Sequence[str]
    panels: Sequence[Panel]
    left: float = _LEFT  # inches
    right: float = _RIGHT


def paint(picture: Picture) -> "Figure":
    """The figure. It must be drawn under the settings it was made with."""
    from matplotlib.figure import Figure

    across = _WIDTH - 0.16
    head = wrap(picture.title, int(across / (_BOLD_LETTER * LARGE / SMALL)))
    lines = [part for line in picture.lines for part in wrap(line, int(across / _LETTER))]
    top = 0.12 + 0.2 * len(head) + _LINE * len(lines) + 0.08
    height = top + sum(_outer(p, n) for p, n in _neighbours(picture.panels)) + 0.06
    figure = Figure(figsize=(_WIDTH, height))
    _write_head(figure, height, head, lines)
    _place_panels(figure, picture, height, top)
    return figure


def _neighbours(panels: Sequence[Panel]) -> list[tuple[Panel, Panel | None]]:
    return list(zip(panels, [*panels[1:], None], strict=True))


def _shares(panel: Panel, after: Panel | None) -> bool:
    return after is not None and after.x == panel.x


def _outer(panel: Panel, after: Panel | None) -> float:
    """Inches of a panel with all that is around it."""
    inner = (_TITLE if panel.title else 0.04) + panel.height
    if panel.bare:
        return inner
    return inner + _NEXT + (0.0 if _shares(panel, after) else _TICKS)


def _write_head(figure: "Figure", height: float, head: list[str], lines: list[str]) -> None:
    y = height - 0.12
    for text in head:
        figure.text(
            0.08 / _WIDTH, y / height, text, size=LARGE, weight="bold", va="top", color=BLACK
        )
        y -= 0.2
    for text in lines:
        figure.text(0.08 / _WIDTH, y / height, text, size=SMALL, va="top", color=GREY)
        y -= _LINE


def _place_panels(figure: "Figure", picture: Picture, height: float, top: float) -> None:
    down, shared = top, None
    width = _WIDTH - picture.left - picture.right
    for panel, after in _neighbours(picture.panels):
        upper = down + (_TITLE if panel.title else 0.04)
        place = (
            picture.left / _WIDTH,
            (height - upper - panel.height) / height,
            width / _WIDTH,
            panel.height / height,
        )
        axes = figure.add_axes(place, sharex=shared)
        _dress(axes, panel, picture.left, picture.right)
        panel.draw(axes)
        if panel.bare:
            axes.set_axis_off()
        if panel.bare or _shares(panel, after):
            axes.tick_params(axis="x", labelbottom=False, length=0, which="both")
        else:
            axes.set_xlabel(panel.x, size=SMALL, color=BLACK)
        shared = axes if _shares(panel, after) else None
        down += _outer(panel, after)


def _dress(axes: "Axes", panel: Panel, left: float, right: float) -> None:
    if panel.title:
        begin = -(left - 0.08) / (_WIDTH - left - right)
        axes.set_title(panel.title, size=NORMAL, weight="bold", loc="left", x=begin, pad=5)
    axes.tick_params(labelsize=SMALL, color=PALE, length=2.5)
    axes.grid(visible=True, axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9a9a9a")


# --- axes ------------------------------------------------------------------------------------


def from_zero(axes: "Axes", values: Iterable[float]) -> None:
    """The y axis from 0 to a little above the largest."""
    axes.set_ylim(0, max(known(values), default=0.0) * 1.15 or 1.0)
    few_ticks(axes.yaxis)


def few_ticks(axis: "Axis", most: int = 4, *, whole: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: figures(value)))


def logarithmic(axes: "Axes", values: Iterable[float], *, x: bool = False) -> None:
    """A logarithmic axis around the positive values, with ticks that people count in."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    some = [value for value in known(values) if value > 0]
    low, high = (min(some) / 1.25, max(some) * 1.25) if some else (0.1, 10.0)
    axis = axes.xaxis if x else axes.yaxis
    (axes.set_xlim if x else axes.set_ylim)(low, high)  # first: zeros alone have no log scale
    (axes.set_xscale if x else axes.set_yscale)("log")
    axis.set_major_locator(FixedLocator(round_numbers(low, high, most=7 if x else 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: figures(value)))


# --- labels ----------------------------------------------------------------------------------


class Label(Struct, frozen=True):
    """A name beside the end of a line. `y` is in data."""

    y: float
    text: str
    colour: str


def label_ends(axes: "Axes", labels: Iterable[Label], height: float) -> None:
    """Names right of the axes, each as near to its line's end as the others let it. The limits of
    the axes must be as they stay."""
    placed = sorted(
        ((_share(axes, label.y), label) for label in labels if isfinite(label.y)),
        key=lambda pair: (pair[0], pair[1].text),
    )
    for y, (_, label) in zip(
        spread([share for share, _ in placed], gap=0.15 / height), placed, strict=True
    ):
        axes.annotate(
            label.text, (1, y), xycoords="axes fraction", xytext=(4, 0),
            textcoords="offset points", size=SMALL, va="center", color=label.colour,
            annotation_clip=False,
        )  # fmt: skip


def _share(axes: "Axes", y: float) -> float:
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        y, low, high = log10(max(y, low)), log10(low), log10(high)
    return min(1.0, max(0.0, (y - low) / (high - low)))


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Sorted places moved as little as need be to be `gap` apart, the last at 1 at most."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    ceiling = 1.0
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved


def last_level(values: Sequence[float]) -> float:
    """Where a line's name belongs: the mean of its last tenth."""
    some = known(values)
    tail = some[-max(1, len(some) // 10) :]
    return sum(tail) / len(tail) if tail else nan
