"""The variants of a simulated cluster beside each other, and the first runs of them over time."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from kv_cache.report.cluster.reading import (
    ends_at,
    first_run,
    grid_of,
    label_at,
    levels_on,
    mean_at,
    names_at,
    rates_on,
    variants_of,
)
from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SMALL,
    Json,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    ending,
    few_ticks,
    from_zero,
    known,
    label_ends,
    last_level,
    number,
    plain,
    texts_at,
    value_at,
    word,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY, BLACK)
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "++", "ooo")  # parts are not told by colour alone
_ROW = 0.24  # inches
_LEFT = 2.0  # inches, for the names of variants
_LONGEST_LABEL = 27
_MOST_VARIANTS = 30
_MOST_LINES = 5
_MOST_POINTS, _MOST_RATES = 160, 60
_GB = 1e9

_Bars = Callable[["Axes", Sequence[Json]], None]


def sim_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    variants = variants_of(own)
    if not variants:
        raise NothingToDrawError("no run has ended")
    shown = variants[:_MOST_VARIANTS]
    panels = [*_beside(shown), *_over_time(shown)]
    title = f"Simulated: {word(own, 'name') or 'a cluster'}"
    return Picture(title=title, lines=list(_head(own, len(variants))), panels=panels, left=_LEFT)


def _head(own: Json, variants: int) -> Iterator[str]:
    question = word(own, "question")
    if question and question != "none":
        yield question
    left = variants - _MOST_VARIANTS
    more = f" ({left} are left out)" if left > 0 else ""
    yield (
        f"{variants} variants{more}, {number(own, 'finished'):.0f} of {number(own, 'runs'):.0f} "
        f"runs ended, {ending(own)}"
    )
    says = value_at(own, "verdict.says")
    yield f"Verdict: {plain(says.replace('±', ' +/- ')) if isinstance(says, str) else 'none'}."
    yield from (f"! {text}" for text in texts_at(own, "warnings"))


# --- bars ------------------------------------------------------------------------------------


def _beside(variants: Sequence[Json]) -> Iterator[Panel]:
    tiers = names_at(variants, "blocks.hit_ratios")
    causes = names_at(variants, "bytes_by_cause")
    yield from _panel(
        "Time to first token: bar p95, dot p50, cross p99", "TTFT, ms", variants, _ttft,
        "ttft_ms.p95",
    )  # fmt: skip
    yield from _panel(
        "Requests that kept all promises", "goodput, requests/s", variants, _goodput,
        "goodput.per_s",
    )  # fmt: skip
    yield from _panel(
        "Block hits by tier; line: an unlimited cache", "% of blocks looked up", variants,
        _stacked("blocks.hit_ratios", tiers, 0.01, "blocks.ceiling_ratio"), "blocks.hit_ratio",
        len(tiers),
    )  # fmt: skip
    if causes:
        yield from _panel(
            "Bytes on all links by cause", "GB", variants,
            _stacked("bytes_by_cause", causes, _GB), f"bytes_by_cause.{causes[0]}", len(causes),
        )  # fmt: skip


def _panel(
    title: str, x: str, variants: Sequence[Json], bars: _Bars, needs: str, keys: int = 0
) -> Iterator[Panel]:
    """Nothing where no variant has the number that it `needs`. `keys` of colours stand right."""
    if not known(mean_at(variant, needs) for variant in variants):
        return
    height = max(_ROW * (len(variants) + 0.6), 0.15 * keys)

    def draw(axes: "Axes") -> None:
        axes.set_ylim(len(variants) - 0.5, -0.5)
        axes.set_yticks(range(len(variants)), [label_at(v, _LONGEST_LABEL) for v in variants])
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.6)
        bars(axes, variants)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.02)
        few_ticks(axes.xaxis, 5)

    yield Panel(title=title, x=x, draw=draw, height=height)


def _ttft(axes: "Axes", variants: Sequence[Json]) -> None:
    _errors(axes, variants, "ttft_ms.p95")
    for path, mark in (("ttft_ms.p50", "o"), ("ttft_ms.p99", "x")):
        values = [mean_at(variant, path) for variant in variants]
        axes.plot(values, range(len(variants)), mark, color=BLACK, markersize=4, zorder=4)


def _goodput(axes: "Axes", variants: Sequence[Json]) -> None:
    _errors(axes, variants, "goodput.per_s")


def _errors(axes: "Axes", variants: Sequence[Json], path: str) -> None:
    """Bars with their intervals."""
    means = [mean_at(variant, path) for variant in variants]
    ends = [ends_at(variant, path) for variant in variants]
    sides = [
        [max(0.0, mean - low) for mean, (low, _) in zip(means, ends, strict=True)],
        [max(0.0, high - mean) for mean, (_, high) in zip(means, ends, strict=True)],
    ]
    axes.barh(
        range(len(variants)), means, height=0.6, color=BLUE, xerr=sides, ecolor=BLACK, capsize=2
    )


def _stacked(prefix: str, names: Sequence[str], unit: float, mark: str | None = None) -> _Bars:
    """Parts behind one another, each with its name right of the panel, and a line across at
    `mark`."""

    def bars(axes: "Axes", variants: Sequence[Json]) -> None:
        so_far = [0.0] * len(variants)
        for place, name in enumerate(names):
            values = [_or_zero(mean_at(v, f"{prefix}.{name}")) / unit for v in variants]
            axes.barh(
                range(len(variants)), values, left=so_far, height=0.6, edgecolor="white",
                color=_COLOURS[place % len(_COLOURS)], hatch=_HATCHES[place % len(_HATCHES)],
                linewidth=0.4, label=name,
            )  # fmt: skip
            so_far = [a + b for a, b in zip(so_far, values, strict=True)]
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.01, 1.05), fontsize=SMALL - 1, frameon=False,
            borderaxespad=0, handlelength=1.0, labelspacing=0.2,
        )  # fmt: skip
        if mark is not None:
            levels = [mean_at(variant, mark) / unit for variant in variants]
            lower, upper = ([y + s for y in range(len(variants))] for s in (-0.42, 0.42))
            axes.vlines(levels, lower, upper, color=BLACK, linewidth=1.4)

    return bars


def _or_zero(value: float) -> float:
    return value if isfinite(value) else 0.0


# --- over time -------------------------------------------------------------------------------

_TIME = "seconds of virtual time"


def _over_time(variants: Sequence[Json]) -> Iterator[Panel]:
    some = variants[:_MOST_LINES]
    runs = [first_run(variant) for variant in some]
    names = [f"{number(v, 'variant'):.0f}" if len(some) > 1 else "" for v in some]
    grid = grid_of(runs, _MOST_POINTS)
    if len(runs) == 1:
        where = ("waiting", "prefilling", "transferring", "decoding")
        levels = [(name, levels_on(runs[0], name, grid)) for name in where]
        yield from _lines("Requests: where they are", "requests", grid, levels)
    else:
        waiting = [levels_on(run, "waiting", grid) for run in runs]
        yield from _lines("Requests that wait, by variant", "requests", grid,
                          list(zip(names, waiting, strict=True)))  # fmt: skip
    coarse = grid_of(runs, _MOST_RATES)
    rates = [rates_on(run, "output_tokens", coarse) for run in runs]
    yield from _lines("Output tokens", "tokens/s", coarse, list(zip(names, rates, strict=True)))


_Series = tuple[str, Sequence[float]]


def _lines(
    title: str, unit: str, grid: Sequence[float], every: Sequence[_Series]
) -> Iterator[Panel]:
    some = [(name, y) for name, y in every if any(value > 0 for value in known(y))]
    if not some:
        return

    def draw(axes: "Axes") -> None:
        labels = []
        for place, (name, y) in enumerate(some):
            colour = _COLOURS[place % len(_COLOURS)]
            axes.plot(grid, y, color=colour, linewidth=0.9)
            labels.append(Label(last_level(y), name, colour))
        from_zero(axes, [value for _, y in some for value in y])
        few_ticks(axes.xaxis, 5)
        label_ends(axes, labels)

    yield Panel(title=title, x=_TIME, y=unit, draw=draw)
