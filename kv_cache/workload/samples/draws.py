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
    """A log-logistic draw of shape 2 within [low, high]; one outside is drawn again.

    Again, and not cut: a heap of rows at exactly the cap is no real shape.
    """
    while True:
        u = rng.random()
        value = median * sqrt(u / (1 - u))
        if low <= value <= high:
            return value


def below(rng: Random, limit: int) -> int:
    """A whole number from 0 to `limit` - 1."""
    return int(rng.random() * limit)


def one_of(rng: Random, choices: Sequence[T]) -> T:
    return choices[below(rng, len(choices))]
