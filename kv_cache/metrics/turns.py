"""By how much two sides differ that were measured in turns, A B A B and so on, while the speed of
their device wanders.

What wanders is slow against sides that change with each turn. So the slow half of all frequencies
(cosines over the time of all turns) is fitted together with the difference of the sides, and takes
trends, steps and waves. The quick half is left, and tells how sure the difference is. Each turn is
held against both of its neighbours; pairs use but one of them, take a trend for a difference, and
what changes from pair to pair makes them unsure. benchmarks/turns.py holds it to series that drift.
"""

from collections.abc import Sequence
from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt

from kv_cache.metrics.order import PairedDifference

Series = Sequence[float] | npt.NDArray[np.generic]

LEAST_TURNS = 8
"""Of each side: of fewer, pairs say as much."""


def difference_in_turns(
    one: Series, other: Series, one_at: Series, other_at: Series
) -> PairedDifference | None:
    """Return how much more the other side has, measured at these instants (in any unit). None of
    fewer than 8 turns of a side, where a value is not finite, or of sides that took no turns: their
    difference is as slow as what wanders."""
    values = np.array([*one, *other], dtype=np.float64)
    if min(len(one), len(other)) < LEAST_TURNS or not all(map(isfinite, values)):
        return None
    at = np.array([*one_at, *other_at], dtype=np.float64)
    side = np.repeat([0.0, 1.0], [len(one), len(other)])
    slow = _slow(at)
    quick_side, quick = (each - slow @ (slow.T @ each) for each in (side, values))
    weight = float(quick_side @ quick_side)
    if weight < _LEAST_QUICK * len(values) / 4:
        return None
    mean = float(quick_side @ quick) / weight
    left = quick - mean * quick_side
    dof = len(values) - slow.shape[1] - 1
    return PairedDifference(mean=mean, error=sqrt(float(left @ left) / dof / weight), dof=dof)


_LEAST_QUICK = 0.25
"""Part of the sides' own variance that is quick: nearly all where they take turns."""


def _slow(at: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return an orthonormal basis of what is slow: half as many cosines as there are instants."""
    spacing = (at.max() - at.min()) / (len(at) - 1)
    share = (at - at.min() + spacing / 2) / (at.max() - at.min() + spacing)
    cosines = np.cos(np.pi * np.outer(share, np.arange(len(at) // 2)))
    return np.asarray(np.linalg.qr(cosines)[0], dtype=np.float64)
