"""What it takes for one thing to be called better than another, whatever is compared.

Results (`result/comparison.py`), policies without time (`lab/judge.py`) and simulated variants
(`result/simulation/judge.py`) have in common that intervals are of `intervals.CONFIDENCE`; the
latter two have no order under the conditions below.
"""

from collections.abc import Callable, Sequence

LEAST_SEEDS = 3
"""With fewer, nothing is known of chance."""

MOST_COMPULSORY = 0.9
"""Share of the misses of the one with most of them that are first accesses, which no cache has:
from here on caches have no order."""


def compulsory_share(compulsory: float, missed: float) -> float | None:
    """Return the share of misses that were first accesses, if it leaves no order; else None."""
    share = compulsory / missed
    return share if share >= MOST_COMPULSORY else None


def holm(tests: Sequence[Callable[[float], bool]], alpha: float) -> set[int]:
    """Return which of the tests (each: does it reject at this level?) reject at a chance of `alpha`
    that even one does so falsely.

    Holm steps down from the smallest p value: the k-th smallest is held against alpha / (m - k + 1)
    until one fails. The same without p values: all that reject at alpha / (m - rejected) are
    rejected, until no more come.
    """
    rejected: set[int] = set()
    while len(rejected) < len(tests):
        level = alpha / (len(tests) - len(rejected))
        now = rejected | {index for index, test in enumerate(tests) if test(level)}
        if now == rejected:
            break
        rejected = now
    return rejected
