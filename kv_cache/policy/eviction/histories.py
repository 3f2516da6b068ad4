"""What is known of how contents were asked for, in rows of one table, so that what a model wants to
know of many of them is computed at once. Time is the number of accesses.

The eight features are those of cklxx/kvcache-sim's learned policy: log1p of the accesses since the
last use; of the uses; of the mean, the standard deviation, the least and the most of the accesses
between uses; uses by a horizon; the depth in the sequence."""

import numpy as np
from numpy.typing import NDArray

LAST, USES, SUM, SQUARES, LEAST, MOST, DEPTH, WIDTH = range(8)
HORIZON = 1000  # accesses
FEATURES = (
    "recency",
    "uses",
    "mean_interval",
    "std_interval",
    "least_interval",
    "most_interval",
    "uses_by_horizon",
    "depth",
)

Matrix = NDArray[np.float64]


class Histories:
    """Rows are taken and given back; who holds which is the caller's to know."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._table: Matrix = np.zeros((0, WIDTH))
        self._grow(64)

    def take(self, depth: int) -> int:
        """Return a row of content that was never used."""
        if not self._free:
            self._grow(2 * len(self._table))
        row = self._free.pop()
        self._table[row] = 0.0
        self._cells[row * WIDTH + DEPTH] = depth
        return row

    def give_back(self, row: int) -> None:
        self._free.append(row)

    def use(self, row: int, now: int) -> None:
        cells, at = self._cells, row * WIDTH
        uses = cells[at + USES]
        if uses:
            interval = now - cells[at]
            cells[at + SUM] += interval
            cells[at + SQUARES] += interval * interval
            if uses == 1 or interval < cells[at + LEAST]:
                cells[at + LEAST] = interval
            if interval > cells[at + MOST]:
                cells[at + MOST] = interval
        cells[at] = now
        cells[at + USES] = uses + 1

    def features(self, rows: list[int], now: int) -> Matrix:
        """Return a line of `FEATURES` for each row."""
        known = self._table[rows]
        uses = known[:, USES]
        intervals = np.maximum(uses - 1, 1)
        mean = known[:, SUM] / intervals
        variance = np.maximum(known[:, SQUARES] / intervals - mean * mean, 0.0)
        out = np.empty((len(rows), len(FEATURES)))
        out[:, 0] = now - known[:, LAST]
        out[:, 1] = uses
        out[:, 2] = mean
        out[:, 3] = np.sqrt(variance)
        out[:, 4] = known[:, LEAST]
        out[:, 5] = known[:, MOST]
        np.log1p(out[:, :6], out=out[:, :6])
        out[:, 6] = uses / HORIZON
        out[:, 7] = known[:, DEPTH]
        return out

    def last_use(self, rows: list[int]) -> Matrix:
        last: Matrix = self._table[rows, LAST]
        return last

    def _grow(self, rows: int) -> None:
        table = np.zeros((rows, WIDTH))
        old = len(self._table)
        table[:old] = self._table
        self._table = table
        self._cells = memoryview(table.data).cast("B").cast("d")  # an element at a time, by Python
        self._free.extend(range(rows - 1, old - 1, -1))
