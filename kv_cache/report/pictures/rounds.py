"""Preconditioning: the fill over time, the rounds after it, and whether they are steady."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import isfinite
from typing import TYPE_CHECKING

from kv_cache.core.format import figures
from kv_cache.core.kinds import Phase
from kv_cache.core.units import GIB
from kv_cache.metrics.steady import MOST_CHANGE, MOST_RANGE, ROUNDS
from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREY,
    PALE,
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
    rows_at,
    texts_at,
    value_at,
    word,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PART = Phase.PRECONDITION.value + "ing"
_MOST_PASSES = 12  # whose borders are drawn


def precondition_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    panels = list(rounds_panels(own, wide=True))
    if not panels:
        raise NothingToDrawError("neither a fill nor rounds are in it")
    return Picture(title=_title(own), lines=list(_lines(own)), panels=panels)


def _title(own: Json) -> str:
    words = {
        "steady": "the device is steady",
        "not-steady": "the device is not shown to be steady",
        "not-looked-for": "no steady state was looked for",
    }
    verdict = word(own, "verdict")
    return f"Preconditioning: {words.get(verdict, verdict or 'no verdict')}"


def _lines(own: Json) -> Iterator[str]:
    yield f"{word(own, 'status').capitalize() or 'Unknown end'}, {ending(own)}"
    yield from (f"! {reason}" for reason in texts_at(own, "reasons"))


def rounds_panels(own: Json, *, wide: bool) -> Iterator[Panel]:
    """The panels of a section `preconditioning`; none where there is none. `wide` is for a picture
    of nothing else."""
    done = value_at(own, _PART)
    if done is None:
        return
    fill, rounds = rows_at(own, f"{_PART}.fill.rows"), rows_at(own, f"{_PART}.rounds")
    if fill:
        yield _fill(own, fill, 1.5 if wide else 1.05)
    if rounds:
        yield _rounds(own, rounds, 2.0 if wide else 1.2)
        if value_at(own, f"{_PART}.open_loop") is True:
            yield from _latencies(rounds)


# --- the fill --------------------------------------------------------------------------------


def _fill(own: Json, rows: Sequence[Json], height: float) -> Panel:
    rates = [needed(row, "bytes_per_second") / GIB for row in rows]
    edges = [*(needed(row, "start_s") for row in rows), needed(rows[-1], "end_s")]
    if any(after <= before for before, after in pairwise(edges)):
        raise BadDocumentError("the rows of the fill do not follow each other in time")
    borders = _borders(own, rows)

    def draw(axes: "Axes") -> None:
        axes.step(edges, [*rates, rates[-1]], where="post", color=BLUE, linewidth=1.4)
        axes.fill_between(edges, [*rates, rates[-1]], step="post", color=BLUE, alpha=0.15, lw=0)
        from_zero(axes, rates, 1.3)
        axes.set_xlim(edges[0], edges[-1])
        few_ticks(axes.xaxis, 7)
        ends = [edges[0], *borders]
        for index, (begin, end) in enumerate(zip(ends, [*borders, edges[-1]], strict=True), 1):
            _name_pass(axes, index, begin, end, last=end == edges[-1])

    written, seconds = number(own, f"{_PART}.fill.bytes"), edges[-1]
    title = f"The fill: {figures(written / GIB)} GiB in {figures(seconds)} s"
    return Panel(
        title=f"{title}, {len(borders) + 1} passes" if borders else title,
        x="seconds since the fill began", y="GiB/s written", draw=draw, height=height,
    )  # fmt: skip


def _name_pass(axes: "Axes", index: int, begin: float, end: float, *, last: bool) -> None:
    middle = (begin + end) / 2
    axes.text(middle, axes.get_ylim()[1] * 0.97, f"pass {index}", size=SMALL, ha="center",
              va="top", color=BLACK)  # fmt: skip
    if not last:
        axes.axvline(end, color=GREY, linestyle=":", linewidth=1.0)


def _borders(own: Json, rows: Sequence[Json]) -> list[float]:
    """When each pass over the area ended, but for the last one; nothing where there are many."""
    area = number(own, f"{_PART}.fill.area_bytes")
    sizes = [needed(row, "bytes") for row in rows]
    total = sum(sizes)
    if not area > 0 or not 1 < total / area <= _MOST_PASSES:
        return []
    sums = [0.0, *accumulate(sizes)]
    found = []
    for index in range(1, round(-(-total // area))):
        at = next(i for i, done in enumerate(sums) if done >= index * area) - 1
        begin, end = needed(rows[at], "start_s"), needed(rows[at], "end_s")
        found.append(begin + (index * area - sums[at]) / sizes[at] * (end - begin))
    return found


# --- the rounds ------------------------------------------------------------------------------


def _rounds(own: Json, rows: Sequence[Json], height: float) -> Panel:
    rates = [needed(row, "bytes_per_second") / GIB for row in rows]
    numbers = [needed(row, "round") for row in rows]
    average = number(own, f"{_PART}.proof.average") / GIB

    def draw(axes: "Axes") -> None:
        axes.plot(numbers, rates, "-", color=PALE, linewidth=1.2, zorder=2)
        axes.plot(numbers, rates, "o", color=GREY, markersize=4, zorder=3)
        from_zero(axes, [*rates, average * 1.1], 1.15)
        axes.set_xlim(numbers[0] - 0.6, numbers[-1] + 0.6)
        few_ticks(axes.xaxis, 10, whole=True)
        if len(rows) >= ROUNDS and isfinite(average):
            _last_five(axes, numbers[-ROUNDS:], rates[-ROUNDS:], average, _allowed(own), height)

    return Panel(
        title=_said(own, len(rows)), x="round", y="GiB/s on storage", draw=draw, height=height
    )


def _allowed(own: Json) -> tuple[float, float]:
    """The thresholds of range and change that the run was told."""
    told = (number(own, f"config.passport.most_round_{name}") for name in ("range", "change"))
    most_range, change = told
    return (
        most_range if isfinite(most_range) else MOST_RANGE,
        change if isfinite(change) else MOST_CHANGE,
    )


def _last_five(
    axes: "Axes",
    numbers: Sequence[float],
    rates: Sequence[float],
    average: float,
    allowed: tuple[float, float],
    height: float,
) -> None:
    """The average, half the allowed range on both sides of it, and the least-squares line."""
    half = allowed[0] / 2
    ends = [numbers[0] - 0.4, numbers[-1] + 0.4]
    low, high = average * (1 - half), average * (1 + half)
    axes.fill_between(ends, low, high, color=BLUE, alpha=0.14, lw=0, zorder=1)
    axes.plot(ends, [average, average], color=BLUE, linewidth=1.2, zorder=2)
    line = _best_fit(numbers, rates)
    axes.plot(numbers, line, "--", color=RED, linewidth=1.6, zorder=4)
    axes.plot(numbers, rates, "o", color=BLACK, markersize=5, zorder=5)
    labels = [
        Label(line[-1], "best-fit line", RED),
        Label(average, f"average {figures(average)}", BLUE),
        Label(low, f"\u00b1{100 * half:.3g} % band", BLUE),
    ]
    label_ends(axes, labels, height)


def _best_fit(x: Sequence[float], y: Sequence[float]) -> list[float]:
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - middle) ** 2 for each in x)
    if not spread:
        raise BadDocumentError("the rounds do not count up")
    slope = sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True)) / spread
    return [mean + slope * (each - middle) for each in x]


def _said(own: Json, count: int) -> str:
    found = [number(own, f"{_PART}.proof.{name}_share") for name in ("range", "slope")]
    if not all(isfinite(share) for share in found):
        return f"{count} round{'s' if count > 1 else ''}: too few to judge (five are needed)"
    steady = value_at(own, f"{_PART}.proof.steady") is True
    most_range, most_change = _allowed(own)
    return (
        f"{'Steady' if steady else 'Not steady'}: range {_percent(found[0])} "
        f"({_percent(most_range)} allowed), trend {_percent(found[1])} "
        f"({_percent(most_change)} allowed)"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _latencies(rows: Sequence[Json]) -> Iterator[Panel]:
    """In an open loop they are judged too."""
    numbers = [needed(row, "round") for row in rows]
    looks = {"read": (BLUE, "o-"), "write": (PURPLE, "s--")}
    values = {kind: [number(row, f"{kind}_p95_ms") for row in rows] for kind in looks}
    every = [value for each in values.values() for value in each]
    if not highest(every) > 0:
        return

    def draw(axes: "Axes") -> None:
        for kind, (colour, style) in looks.items():
            axes.plot(numbers, values[kind], style, color=colour, markersize=3.5, linewidth=1.2)
        axes.set_xlim(numbers[0] - 0.6, numbers[-1] + 0.6)
        few_ticks(axes.xaxis, 10, whole=True)
        logarithmic(axes, every)
        ends = {kind: known(values[kind]) for kind in looks}
        label_ends(axes, [Label(v[-1], kind, looks[kind][0]) for kind, v in ends.items() if v])

    yield Panel(title="p95 of storage reads and writes in each round", x="round", y="ms, log",
                draw=draw)  # fmt: skip
