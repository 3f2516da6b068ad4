"""A trace, or what synthetic users ask: arrivals, lengths, the hits of caches of any size, how long
ago blocks were asked for, and sessions."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING

from kv_cache.core.format import figures
from kv_cache.core.units import GIB
from kv_cache.report.pictures.base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LARGEST,
    PURPLE,
    RED,
    SMALL,
    BadDocumentError,
    Json,
    Label,
    NothingToDrawError,
    Panel,
    Picture,
    few_ticks,
    from_zero,
    label_ends,
    logarithmic,
    needed,
    number,
    rows_at,
    short,
    value_at,
    word,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TIME = "seconds since the first request"
_ORDER = "requests"
_TALL = 1.5  # inches


def trace_picture(own: Json) -> Picture:
    """Raises BadDocumentError and NothingToDrawError."""
    if not needed(own, "requests") > 0:
        raise NothingToDrawError("no request is in it")
    makers = (_arrivals, _growth, _lengths, _misses, _reuse_times, _turns, _steps)
    panels = [panel for make in makers for panel in make(own)]
    return Picture(title=_title(own), lines=list(_lines(own)), panels=panels)


def _title(own: Json) -> str:
    files = value_at(own, "workload.files")
    if not isinstance(files, list):
        return f"What {figures(number(own, 'workload.users'))} synthetic users ask"
    name = str(files[0]).rsplit("/", 1)[-1] if files else "no file"
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"Trace {short(name)[1:-1]}{more}"


def _lines(own: Json) -> Iterator[str]:
    count, rows = needed(own, "requests"), number(own, "rows.good")
    of = f" ({word(own, 'workload.format')})" if isfinite(rows) else ""
    bad, failed = (max(0.0, number(own, f"rows.{name}")) for name in ("bad", "notes.failed"))
    left_out = (
        f"; {figures(bad)} bad and {figures(failed)} failed rows left out"
        if bad + failed > 0
        else ""
    )
    yield f"{count:,.0f} requests{of}{left_out}."
    if word(own, "workload.source") == "sessions":
        users = figures(number(own, "workload.users"))
        yield f"Planned: up to {users} sessions at the same time, each request answered at once."
    unique, total = needed(own, "reuse.unique_blocks"), needed(own, "reuse.references")
    size = number(own, "model.block_tokens")
    blocks = f"blocks of {figures(size)} tokens" if size > 0 else "objects, one a turn"
    yield (
        f"{total:,.0f} {blocks}, {unique:,.0f} of them unique: "
        f"{_size(needed(own, 'reuse.footprint_bytes'))} of {word(own, 'model.name')}."
    )
    hits = number(own, "reuse.hit_ratio")
    if not hits > 0:
        yield "Nothing that is asked for is known to have been asked for before."
        return
    tokens = number(own, "reuse.token_hit_ratio")
    yield (
        f"A cache without limits finds {100 * hits:.1f} % of the blocks, {100 * tokens:.1f} % of "
        "the tokens."
    )


def _size(nbytes: float) -> str:
    return (
        f"{figures(nbytes / GIB / 1024)} TiB"
        if nbytes >= 1024 * GIB
        else f"{figures(nbytes / GIB)} GiB"
    )


def _numbers(own: Json, path: str) -> list[float]:
    """A list of numbers; empty where there is none. Raises BadDocumentError."""
    value = value_at(own, path)
    if value is None:
        return []
    if not isinstance(value, list) or not all(map(_is_number, value)):
        raise BadDocumentError(f"{path} is no list of numbers")
    return [float(each) for each in value]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST  # type: ignore[arg-type]


# --- over time -------------------------------------------------------------------------------


def _arrivals(own: Json) -> Iterator[Panel]:
    counts, width = _numbers(own, "arrivals.bins"), number(own, "arrivals.bin_s")
    mean, span = number(own, "arrivals.per_s"), number(own, "arrivals.span_s")
    if not mean > 0 or not width > 0 or not counts:
        return
    ends = [index * width for index in range(len(counts))] + [span]
    if ends[-2] >= span:
        counts, ends = counts[:-1], ends[:-1]
    widths = [end - begin for begin, end in pairwise(ends)]
    rates = [count / each for count, each in zip(counts, widths, strict=True)]
    if widths and widths[-1] < width / 2:  # of a scrap one request more or less is a high rate
        rates[-1] = rates[-2] if len(rates) > 1 else mean
    cv = number(own, "arrivals.gap_cv")

    def draw(axes: "Axes") -> None:
        axes.step(ends, [*rates, rates[-1]], where="post", color=BLUE, linewidth=1.0)
        axes.axhline(mean, color=BLACK, linestyle="--", linewidth=0.9)
        from_zero(axes, rates)
        axes.set_xlim(0, span)
        few_ticks(axes.xaxis, 7)
        label_ends(axes, [Label(mean, f"mean {figures(mean)}", BLACK)])

    if rates:
        title = f"Arrivals in each {figures(width)} s; CV of the gaps {figures(cv)} (Poisson: 1)"
        yield Panel(title=title, x=_TIME, y="requests/s", draw=draw)


def _growth(own: Json) -> Iterator[Panel]:
    """What a cache that drops nothing would hold."""
    rows = rows_at(own, "reuse.growth")
    timed = number(own, "arrivals.per_s") > 0
    x = [needed(row, "at_s" if timed else "requests") for row in rows]
    y = [needed(row, "unique_bytes") / GIB for row in rows]
    if len(rows) < 2 or not x[-1] > x[0]:
        return
    sets = [
        (needed(row, "nbytes") / GIB, _span(needed(row, "window_s")))
        for row in rows_at(own, "reuse.working_sets")
    ]

    def draw(axes: "Axes") -> None:
        axes.plot(x, y, color=BLUE, linewidth=1.4)
        for level, _ in sets:
            axes.axhline(level, color=GREEN, linestyle=":", linewidth=1.0)
        from_zero(axes, [*y, *(level for level, _ in sets)])
        axes.set_xlim(0 if timed else x[0], x[-1])
        few_ticks(axes.xaxis, 7)
        labels = [Label(level, f"last {text}", GREEN) for level, text in sets]
        label_ends(axes, [Label(y[-1], "all so far", BLUE), *labels], _TALL)

    title = "Unique bytes asked for so far" + ("; dotted: working sets (mean)" if sets else "")
    yield Panel(title=title, x=_TIME if timed else _ORDER, y="GiB", draw=draw, height=_TALL)


def _span(seconds: float) -> str:
    if seconds >= 3600:
        return f"{figures(seconds / 3600)} h"
    return f"{figures(seconds / 60)} min" if seconds >= 60 else f"{figures(seconds)} s"


# --- distributions ---------------------------------------------------------------------------


def _lengths(own: Json) -> Iterator[Panel]:
    looks = {"prompt": (BLUE, "-"), "output": (RED, "--")}
    values = {name: _numbers(own, f"tokens.{name}.quantiles") for name in looks}
    there = {name: each for name, each in values.items() if each}
    if there:
        yield _shares(own, "Tokens of a request", "tokens, log", "requests", there, looks)


def _reuse_times(own: Json) -> Iterator[Panel]:
    values = _numbers(own, "reuse.time_s.quantiles")
    if values and max(values) > 0:
        looks = {"reuse": (PURPLE, "-")}
        title = "Time since a reused block was asked for"
        yield _shares(own, title, "seconds, log", "reuses", {"reuse": values}, looks)


def _turns(own: Json) -> Iterator[Panel]:
    values = _numbers(own, "sessions.turns.quantiles")
    if values and max(values) > 1:
        count = number(own, "sessions.sessions")
        looks = {"turns": (GREEN, "-")}
        title = f"Turns of a session ({count:,.0f} sessions)"
        yield _shares(own, title, "turns, log", "sessions", {"turns": values}, looks)


def _steps(own: Json) -> Iterator[Panel]:
    """How long after a turn the next one comes, and what of it was thought."""
    looks = {"thought": (GREEN, "--"), "step": (BLACK, "-")}
    paths = {"thought": "sessions.think_s", "step": "sessions.step_s"}
    values = {name: _numbers(own, f"{path}.quantiles") for name, path in paths.items()}
    there = {name: each for name, each in values.items() if each and max(each) > 0}
    if there and number(own, "arrivals.per_s") > 0:
        title = "Time from turn to turn; dashed: what of it was thought"
        title = title if "thought" in there else "Time from turn to turn"
        yield _shares(own, title, "seconds, log", "turns", there, looks)


def _shares(
    own: Json,
    title: str,
    x: str,
    of: str,
    values: dict[str, list[float]],
    looks: dict[str, tuple[str, str]],
) -> Panel:
    """The share of what is not above each value. What is 0 stands at the left end."""
    shares = [100 * share for share in _numbers(own, "quantiles")]
    if any(len(each) != len(shares) for each in values.values()):
        raise BadDocumentError("a list of quantiles is not as long as quantiles")
    every = [value for each in values.values() for value in each if value > 0]
    low = min(every)
    marked = list(values) if len(values) > 1 else []

    def draw(axes: "Axes") -> None:
        logarithmic(axes, every, x=True)
        for name, each in values.items():
            colour, style = looks[name]
            axes.plot([max(v, low / 1.25) for v in each], shares, style, color=colour,
                      linewidth=1.4, drawstyle="steps-post")  # fmt: skip
        axes.set_ylim(0, 103)
        few_ticks(axes.yaxis)
        for name in marked:
            _name_line(axes, name, values, looks[name][0])
        label_ends(axes, _percentile_labels(values, shares, looks), _TALL)

    return Panel(title=title, x=x, y=f"% of {of}", draw=draw, height=_TALL)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _name_line(axes: "Axes", name: str, values: dict[str, list[float]], colour: str) -> None:
    """The name of the line that is further left stands left of it, and the other's right."""
    first = min(values, key=lambda each: (_middle(values[each]), each)) == name
    share = 0.68 if first else 0.32
    place = values[name][round(share * 100)]
    axes.annotate(
        name, (max(place, axes.get_xlim()[0]), 100 * share), xytext=(-5 if first else 5, 0),
        textcoords="offset points", size=SMALL, ha="right" if first else "left", va="center",
        color=colour, bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def _percentile_labels(
    values: dict[str, list[float]], shares: Sequence[float], looks: dict[str, tuple[str, str]]
) -> Iterator[Label]:
    """p50 and p99 of each line, right of the axes."""
    for offset, (name, each) in enumerate(values.items()):
        for percent in (50, 99):
            at = min(range(len(shares)), key=lambda i: abs(shares[i] - percent))
            y = percent - 0.01 * offset
            yield Label(y, f"p{percent} {figures(each[at])}", looks[name][0])


# --- caches ----------------------------------------------------------------------------------


def _misses(own: Json) -> Iterator[Panel]:
    """The miss-ratio curve, from one block to all of them."""
    rows = rows_at(own, "reuse.lru_curve")
    hit_ratio, nbytes = number(own, "reuse.hit_ratio"), needed(own, "reuse.footprint_bytes")
    if len(rows) < 2 or not hit_ratio > 0 or not nbytes > 0:
        return
    x = [needed(row, "nbytes") / GIB for row in rows]
    y = [100 * (1 - needed(row, "hit_ratio")) for row in rows]
    named = [row for row in rows_at(own, "reuse.lru") if needed(row, "blocks") >= 1]
    least = 100 * (1 - hit_ratio)

    def draw(axes: "Axes") -> None:
        axes.plot(x, y, color=BLUE, linewidth=1.4)
        axes.axhline(least, color=GREY, linestyle="--", linewidth=0.9)
        from_zero(axes, y, 1.08)
        logarithmic(axes, x, x=True)
        labels = [Label(least - 1e-6, f"no limit {least:.1f} %", GREY)]
        for row in named:
            at, miss = needed(row, "nbytes") / GIB, 100 * (1 - needed(row, "hit_ratio"))
            axes.plot(at, miss, "o", color=BLACK, markersize=4, zorder=4)
            labels.append(Label(miss, f"{100 * needed(row, 'share'):.0f} %: {miss:.1f} %", BLACK))
        label_ends(axes, labels, 1.9)

    yield Panel(
        title="Misses of an LRU cache; dots: 5, 10, 25 % of unique blocks",
        x="GiB of cache, log", y="% of blocks", draw=draw, height=1.9,
    )  # fmt: skip
