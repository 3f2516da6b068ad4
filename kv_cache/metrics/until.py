"""How sure a figure shall be before a run ends (`--until`), and when it is.

A run that ends as soon as an interval is narrow ends where it is narrow by chance. What keeps the
interval true all the same, as `tests/unit/test_until.py` shows on processes whose level is known:
it is first looked at with 64 batches; it must be narrow at two looks, of which each comes a fifth
later than the one before; batches must be so long that they hardly correlate, and 24 at least.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf

from msgspec import Struct

from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.kinds import OpKind, Phase, Qos, Tier
from kv_cache.core.units import ns_to_s, s_to_ns
from kv_cache.metrics.histogram import Histogram, merged, supported
from kv_cache.metrics.intervals import Batches, Interval, grown
from kv_cache.metrics.pace import MOST_BATCHES, SLOT_NS, MovedBytes
from kv_cache.metrics.slo import SloMeasure
from kv_cache.metrics.window import Window, latency_tag

FIRST_LOOK_BATCHES = 64
LOOKS_IN_A_ROW = 2
LOOK_EVERY = 1.2
"""times the window of the look before."""
_ROOM = 0.95  # of what is wanted: calls in flight move the end by a little
LONGEST_S = 600.0
"""Of a window that nobody bounds."""


class Until(Struct, frozen=True, kw_only=True):
    """Half the width of a figure's interval shall be at most `share` of it. `tag` is of the
    latency (`latency_tag`) whose percentile is the figure; None is the headline."""

    share: float
    name: str = "headline"
    tag: str | None = None
    percent: float = 0.0


def least_window_s(until: Until, tick_s: float) -> float:
    """Return the length of the shortest window that may end: two looks, the first of which takes so
    many batches. Those of the headline may be longer, where calls are."""
    batch_s = ns_to_s(SLOT_NS) if until.tag is None else tick_s
    return FIRST_LOOK_BATCHES * batch_s * LOOK_EVERY ** (LOOKS_IN_A_ROW - 1)


_SHARE = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)%")
_PERCENT = re.compile(r"p([0-9]{2}(?:\.[0-9]{1,2})?)")
_EXAMPLE = "'5%', 'storage read:p95:5%' or 'interactive:ttft:p95:10%'"


def parse_until(text: str) -> Until:
    """Parse `SHARE%`, `storage read|write:pPERCENT:SHARE%` or
    `CLASS:[ttft:|response:]pPERCENT:SHARE%`, in which a blank is as good as a colon. Raises
    ConfigError."""
    words = [word for word in re.split(r"[:\s]+", text.lower()) if word]
    match = _SHARE.fullmatch(words[-1]) if words else None
    if match is None or not 0 < float(match[1]) <= 50:
        raise _bad(text, "does not end in a share above 0% and at most 50%")
    share = float(match[1]) / 100
    if len(words) == 1:
        return Until(share=share)
    *what, percentile = words[:-1]
    percent = _PERCENT.fullmatch(percentile)
    if percent is None or not 50 <= float(percent[1]) <= 99.99:
        raise _bad(text, f"has {percentile!r} for a percentile, which is one of p50 to p99.99")
    name, tag = _figure(text, what)
    return Until(share=share, name=f"{name}:{percentile}", tag=tag, percent=float(percent[1]))


def _figure(text: str, what: Sequence[str]) -> tuple[str, str]:
    classes, figure = [qos.value for qos in Qos], " ".join(what)
    for kind in (OpKind.READ, OpKind.WRITE):
        if figure == f"storage {kind}":
            return figure, latency_tag(Tier.NVME.label, kind)
    if not what or what[0] not in classes:
        known = [*classes, "storage read", "storage write"]
        raise _bad(text, f"names no figure with {figure!r}.{did_you_mean(figure, known)}")
    measure = what[1] if len(what) > 1 else SloMeasure.RESPONSE.value
    if len(what) > 2 or measure not in [each.value for each in SloMeasure]:
        raise _bad(text, f"names no latency of a class with {' '.join(what[1:])!r}")
    return f"{what[0]}:{measure}", f"{measure}.{what[0]}"


def _bad(text: str, why: str) -> ConfigError:
    return ConfigError(f"--until {text!r} {why}; write one such as {_EXAMPLE}")


# --- percentiles -----------------------------------------------------------------------------

Counts = tuple[int, int]
"""Of a batch: how many values it has, and how many of them lie beyond the whole run's
percentile."""


def beyond(batches: Sequence[Histogram], percent: float) -> list[Counts]:
    """Return the counts of batches, by the percentile of all of them."""
    whole = merged(batches)
    value = whole.at_rank(percent)
    if value is None:
        return []
    within = [batch.counts_at_most([int(value)])[0] if batch.count else 0 for batch in batches]
    return [(batch.count, batch.count - low) for batch, low in zip(batches, within, strict=True)]


def grown_shares(counts: Sequence[Counts]) -> Batches | None:
    """Return the share beyond the percentile in batches that hardly depend on each other."""
    total, over = (sum(each[side] for each in counts) for side in (0, 1))
    if not total:
        return None
    share, mean = over / total, total / len(counts)
    return grown([share + (far - share * count) / mean for count, far in counts])


def percentile_interval(
    whole: Histogram, percent: float, batches: Batches | None
) -> Interval | None:
    """Return from where to where a percentile may lie: how far its share moves between batches,
    read off at the values that have such shares below them. None where that reaches beyond what
    was seen."""
    if batches is None or not supported(whole.count, percent):
        return None
    reach = 100 * batches.reach()
    if percent + reach >= 100 or percent - reach <= 0:
        return None
    return Interval(*whole.at_ranks((percent - reach, percent + reach)))


# --- looks -----------------------------------------------------------------------------------

ReadPace = Callable[[int], MovedBytes]


class Precision:
    """Follows the windows of a run, and says when its figure is as sure as it is wanted. `pace`
    reads what storage moved in so many ns since the measured window opened at `start_ns`."""

    def __init__(self, until: Until, pace: ReadPace, start_ns: Callable[[], int]) -> None:
        self.until = until
        self.stopped = False
        self.share: float | None = None  # as `_share` at the last look
        self._pace, self._start_ns = pace, start_ns
        self._next_ns, self._narrow = 0, 0
        self._rows: list[Histogram] = []
        self._together, self._last = 1, 0  # ticks in a row, and in the last one

    def see_latencies(
        self, _start_ns: int, _end_ns: int, phase: Phase, by_tag: Mapping[str, Histogram]
    ) -> None:
        """Keep the values of a tick; neighbours are put together where they become too many."""
        if self.until.tag is None or phase is not Phase.MEASURE:
            return
        if not self._rows or self._last >= self._together:
            if len(self._rows) == MOST_BATCHES:
                self._rows = [merged(self._rows[i : i + 2]) for i in range(0, MOST_BATCHES, 2)]
                self._together *= 2
            self._rows.append(Histogram())
            self._last = 0
        self._last += 1
        if (histogram := by_tag.get(self.until.tag)) is not None:
            self._rows[-1].merge(histogram)

    def watch(self, window: Window) -> bool:
        """Whether the window that ends now was the last that is needed."""
        elapsed_ns = window.end_ns - self._start_ns()
        if elapsed_ns < self._next_ns:
            return False
        share = self._share(elapsed_ns)
        if share is None:
            return False
        self.share, self._next_ns = share, round(elapsed_ns * LOOK_EVERY)
        self._narrow = self._narrow + 1 if share <= _ROOM * self.until.share else 0
        self.stopped = self._narrow >= LOOKS_IN_A_ROW
        return self.stopped

    def so_far(self) -> str:
        """Say how sure the figure was at the last look, empty before the first."""
        if self.share is None:
            return ""
        seen = "not known yet" if self.share == inf else f"±{100 * self.share:.3g} %"
        return f"{self.until.name} {seen}, wanted ±{100 * self.until.share:g} %"

    def counts(self) -> list[Counts]:
        """Return the batches of a percentile; none of the headline, which has its own."""
        return beyond(self._rows, self.until.percent) if self.until.tag is not None else []

    def _share(self, elapsed_ns: int) -> float | None:
        """Half the width of the interval by the figure, infinite where there is none; None where
        it is too early to look."""
        return self._of_headline(elapsed_ns) if self.until.tag is None else self._of_percentile()

    def _of_headline(self, elapsed_ns: int) -> float | None:
        call_s = self._pace(elapsed_ns).call_s
        # What calls in flight have moved is not known yet: it would be missing at the end.
        paced = self._pace(max(0, elapsed_ns - s_to_ns(2 * call_s)))
        if len(paced.batches) < FIRST_LOOK_BATCHES:
            return None
        batches = paced.grown()
        seconds = sum(batch.seconds for batch in paced.batches)
        moved = sum(batch.nbytes for batch in paced.batches)
        if batches is None or not batches.settled or not moved:
            return inf
        edges = abs(moved / seconds * call_s / 2 - paced.before_bytes)
        return batches.reach() * seconds / moved + edges / moved

    def _of_percentile(self) -> float | None:
        if len(self._rows) < FIRST_LOOK_BATCHES:
            return None
        whole = merged(self._rows)
        batches = grown_shares(beyond(self._rows, self.until.percent))
        interval = percentile_interval(whole, self.until.percent, batches)
        value = whole.percentile(self.until.percent)
        if batches is None or not batches.settled or interval is None or not value:
            return inf
        return (interval.high - interval.low) / 2 / value
