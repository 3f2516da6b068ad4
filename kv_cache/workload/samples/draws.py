"""Draws that are the same on every machine.

Lengths and gaps are log-logistic with shape 2, median * sqrt(u / (1 - u)): a heavy tail from
division and square root alone, which IEEE 754 rounds the same everywhere, and from `random()`, the
one method that Python keeps stable.
"""

from collections.abc import Sequence
from math import sqrt
from random import Random
from typing import TypeVar

T = TypeVar("T")


def heavy(rng: Random, median: float, low: float, high: float) -> float:
    """Return a log-logistic draw of shape 2 within [low, high]; one outside is drawn again.

    Again, and not cut: no real trace has a heap of rows at exactly the cap.
    """
    while True:
        u = rng.random()
        value = median * sqrt(u / (1 - u))
        if low <= value <= high:
            return value


def below(rng: Random, limit: int) -> int:
    """Return a whole number from 0 to `limit` - 1."""
    return int(rng.random() * limit)


def one_of(rng: Random, choices: Sequence[T]) -> T:
    return choices[below(rng, len(choices))]


def seconds(micros: int) -> str:
    """Return microseconds as seconds with six decimals."""
    return f"{micros // 1_000_000}.{micros % 1_000_000:06}"


class NewIds:
    """Ids of blocks, which count up in the order in which their contents first appear."""

    def __init__(self, first: int) -> None:
        self._next = first

    def cover(self, ids: tuple[int, ...], blocks: int) -> tuple[int, ...]:
        """Return `ids` and behind them new ones, `blocks` in all if they are fewer."""
        begin = self._next
        self._next += max(0, blocks - len(ids))
        return (*ids, *range(begin, self._next))
