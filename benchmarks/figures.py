"""What the benchmark scripts share: a figure that was asked for beside what was seen, and the
statistics of ABBA groups."""

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

_COVERAGE = 0.9  # of an interval for the median, where there are values enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table that `make bench` prints."""

    number: str
    what: str
    wanted: str
    seen: str
    met: bool


def table(figures: Sequence[Figure]) -> str:
    """Columns as wide as what stands in them."""
    rows = [("", "what", "wanted", "seen (spread)", "met")]
    rows += [(f.number, f.what, f.wanted, f.seen, "yes" if f.met else "NO") for f in figures]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def finish(figures: Iterable[Figure]) -> NoReturn:
    """Print the table, and exit with 1 if a figure is not met."""
    rows = list(figures)
    print(table(rows))
    sys.exit(0 if all(row.met for row in rows) else 1)


def share_of_a_core(
    taken: Mapping[str, Sequence[float]], part: str, every_s: float, most: float, *,
    number: str, what: str,
) -> Figure:  # fmt: skip
    """Prints the CPU time of each part (us) that comes every so often, and judges one: its p95, as
    a share of a core, is to be below `most`."""
    whole_us = every_s * 1e6
    shares = {}
    print(f"{'':<16}{'median':>9}{'p95':>9}{'share of a core':>18}")
    for name, values in taken.items():
        usual, high = statistics.median(values), percentile(values, 95)
        shares[name] = usual / whole_us, high / whole_us
        print(f"{name:<16}{usual:>9.0f}{high:>9.0f}{usual / whole_us:>17.3%}", flush=True)
    share, high = shares[part]
    return Figure(
        number=number, what=what, wanted=f"< {most:.0%}", met=high < most,
        seen=f"{share:.3%} (p95 {high:.3%})",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A median with the interval that it lies in."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def middle(values: Sequence[float]) -> Middle:
    """The median and its interval from order statistics: free of any assumption but independence.
    Too few values (under 5) give their extremes, whose coverage is below 90 %."""
    ordered = sorted(values)
    out = 0  # values left out on each side
    while _covered(len(ordered), out + 1) >= _COVERAGE:
        out += 1
    return Middle(
        median=statistics.median(ordered), low=ordered[out], high=ordered[len(ordered) - 1 - out]
    )


def middle_ratio(ratios: Sequence[float]) -> Middle:
    """The same of ratios, by their logarithms: 2 and 1/2 are as far from 1."""
    logs = middle([math.log(ratio) for ratio in ratios])
    return Middle(median=math.exp(logs.median), low=math.exp(logs.low), high=math.exp(logs.high))


def _covered(count: int, out: int) -> float:
    """Probability that the median lies inside, `out` values left out on each side: the sign test's
    1 - 2 P(Binomial(count, 1/2) <= out)."""
    if count < 2 * out + 2:
        return 0.0
    tail: float = sum(math.comb(count, k) for k in range(out + 1)) / 2**count
    return 1 - 2 * tail


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation; 0 for a single value or a mean of 0."""
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if len(values) > 1 and mean else 0.0
