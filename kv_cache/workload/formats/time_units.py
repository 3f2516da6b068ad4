"""Which unit a trace's times are in, where its format writes bare numbers.

A format names its unit, and a converted file often has another one. A trace in seconds that is read
as ms is replayed 1,000 times too fast, so the pace that the format's unit gives is held against
what any service was asked for. The format's unit stays unless that pace is beyond belief in each
of its numbers and another unit gives an everyday one: a fast trace must never be taken for a slow
one. What is only unlikely is reported and not changed.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from kv_cache.workload.formats.base import TimeUnit

FEWEST_ROWS = 20
"""Fewer rows do not show a pace."""
MOST_TOKENS_PER_S = 10_000_000
SHORTEST_S = 10
"""Tokens a second above, and a length below, that no known trace has. Published ones have up to
50 requests/s, 100 thousand tokens/s and at least some minutes."""
MOST_REQUESTS_PER_S = 1_000
FEWEST_REQUESTS_PER_S = 0.005
LONGEST_S = 10 * 365 * 86_400
USUAL_REQUESTS_PER_S = (0.01, 10.0)
"""The pace that another unit must give to be chosen without the option."""


class TracePace(Struct, frozen=True, kw_only=True):
    """How fast a trace is, in the unit that it was read in."""

    rows: int
    tokens: int
    span_s: float

    @property
    def per_s(self) -> float:
        return (self.rows - 1) / self.span_s

    def times(self, factor: float) -> "TracePace":
        """Return the pace of the same numbers in a unit `factor` times as long."""
        return TracePace(rows=self.rows, tokens=self.tokens, span_s=self.span_s * factor)

    def __str__(self) -> str:
        return f"{_short(self.per_s)} requests/s over {_short(self.span_s)} s"


class UnitChoice(Struct, frozen=True, kw_only=True):
    """The unit that a trace is read in, and its origin: `option`, `format` or `detected`. `doubt`
    says, as a sentence, what speaks against the format's unit."""

    unit: TimeUnit
    origin: str
    why: str = ""
    doubt: str = ""


def chosen_unit(stated: TimeUnit, pace: TracePace) -> UnitChoice:
    """Return the unit of a trace whose pace in the format's `stated` unit is `pace`."""
    if pace.rows < FEWEST_ROWS or pace.span_s <= 0:
        return UnitChoice(unit=stated, origin="format")
    others = {unit: pace.times(unit.ns / stated.ns) for unit in TimeUnit if unit is not stated}
    for strange, unlikely, unit_fits in _TESTS:
        near = {unit: then for unit, then in others.items() if unit_fits(unit, stated)}
        usual = [unit for unit, then in near.items() if _is_usual(then)]
        if strange(pace) and len(usual) == 1:
            why = f"as {stated} it would be {pace}, as {usual[0]} it is {near[usual[0]]}"
            return UnitChoice(unit=usual[0], origin="detected", why=why)
        if unlikely(pace) and near:
            return UnitChoice(unit=stated, origin="format", doubt=_doubt(stated, pace, near))
    return UnitChoice(unit=stated, origin="format")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _doubt(stated: TimeUnit, pace: TracePace, near: Mapping[TimeUnit, TracePace]) -> str:
    other = next((unit for unit, then in near.items() if _is_usual(then)), None)
    alternative = f"; as {other} it would be {near[other]}" if other else ""
    return f"read as {stated}, as the format says, it is {pace}{alternative}"


def _is_usual(pace: TracePace) -> bool:
    low, high = USUAL_REQUESTS_PER_S
    return low <= pace.per_s <= high


def _beyond_belief(pace: TracePace) -> bool:
    return pace.tokens / pace.span_s > MOST_TOKENS_PER_S and pace.span_s < SHORTEST_S


def _too_fast(pace: TracePace) -> bool:
    return pace.per_s > MOST_REQUESTS_PER_S or pace.tokens / pace.span_s > MOST_TOKENS_PER_S


_Test = tuple[
    Callable[[TracePace], bool], Callable[[TracePace], bool], Callable[[TimeUnit, TimeUnit], bool]
]
_TESTS: tuple[_Test, ...] = (
    (_beyond_belief, _too_fast, lambda unit, stated: unit.ns > stated.ns),
    (
        lambda pace: pace.span_s > LONGEST_S,
        lambda pace: pace.per_s < FEWEST_REQUESTS_PER_S,
        lambda unit, stated: unit.ns < stated.ns,
    ),
)
