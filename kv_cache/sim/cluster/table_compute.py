"""How long steps take by a table of such steps that were measured elsewhere: bilinear between its
points.

Below the least tokens or context of a grid the least one counts; beyond the largest nothing is
known, and a step there is refused. All sequences of a step count with their mean context, and all
its chunks as one with their mean context before them. Where a step has both, the times of both are
added: that is an upper bound, as measured apart each of them reads the weights.

Estimates (of loads, for routers) and runs of steps that are planned go on beyond the grid as at its
end: nobody computes them, or not all of them before somebody joins.
"""

from bisect import bisect_right
from math import ceil

from kv_cache.config.step_table import StepGrid, StepTable
from kv_cache.sim.profile_model import OutsideProfileError


class Surface:
    """ns over the tokens of a step and their context."""

    def __init__(self, grid: StepGrid, name: str) -> None:
        self._grid = grid
        self._name = name  # for messages
        self._rows: dict[int, tuple[float, ...]] = {}
        self.most_tokens = grid.tokens[-1]
        self.most_context = grid.contexts[-1]
        self.least_token_ns = min(
            min(row) / tokens for tokens, row in zip(grid.tokens, grid.rows_ns, strict=True)
        )

    def require(self, tokens: int, context: float) -> None:
        """Raises OutsideProfileError where the table says nothing."""
        if tokens > self.most_tokens or context > self.most_context:
            raise OutsideProfileError(
                f"{self._name}: a step of {tokens} tokens over a context of {context:,.0f} lies "
                f"outside of the table, which ends at {self.most_tokens} tokens and "
                f"{self.most_context:,}; add rows to it, or ask for less at a time "
                "(scheduler.max_num_seqs, max_num_batched_tokens, shorter prompts)"
            )

    def row(self, tokens: int) -> tuple[float, ...]:
        """Return the times of so many tokens over each context of the grid."""
        row = self._rows.get(tokens)
        if row is None:
            grid = self._grid
            place = bisect_right(grid.tokens, tokens)
            if place == 0 or place == len(grid.tokens):
                row = grid.rows_ns[max(0, place - 1)]
            else:
                low, high = grid.tokens[place - 1], grid.tokens[place]
                share = (tokens - low) / (high - low)
                row = tuple(
                    a + share * (b - a)
                    for a, b in zip(grid.rows_ns[place - 1], grid.rows_ns[place], strict=True)
                )
            self._rows[tokens] = row
        return row

    def total(self, tokens: int, context: float, steps: int) -> float:
        """Return the time of `steps` steps whose context grows by 1 with each: along each piece of
        the line between two points of the grid times are an arithmetic series."""
        row, contexts = self.row(tokens), self._grid.contexts
        total, done = 0.0, 0
        while done < steps:
            at = context + done
            place = bisect_right(contexts, at)
            base, slope, count = row[max(0, place - 1)], 0.0, steps - done
            if place < len(contexts):
                count = min(count, ceil(contexts[place] - at))
                if place:
                    low = contexts[place - 1]
                    slope = (row[place] - row[place - 1]) / (contexts[place] - low)
                    base += slope * (at - low)
            total += count * base + slope * count * (count - 1) / 2
            done += count
        return total


class TableCompute:
    """A `ComputeModel` (`compute.py`) of a table, with `overhead` ns more for each step."""

    def __init__(self, table: StepTable, overhead: float, max_num_seqs: int) -> None:
        self._prefill = Surface(table.prefill, f"step table {table.file}, prefill")
        self._decode = Surface(table.decode, f"step table {table.file}, decode")
        self._overhead = overhead
        sequences = min(max_num_seqs, self._decode.most_tokens)
        middle = self._decode.most_context / 2
        self.token_ns = (overhead + self._decode.total(sequences, middle, 1)) / sequences

    def step_ns(self, chunks: int, pairs: int, read: int, sequences: int, context: int) -> int:
        total = self._overhead
        if chunks:
            before = max(0.0, (pairs - chunks * (chunks + 1) // 2) / chunks)
            self._prefill.require(chunks, before)
            total += self._prefill.total(chunks, before, 1)
        if sequences:
            self._decode.require(sequences, context / sequences)
            total += self._decode.total(sequences, context / sequences, 1)
        return ceil(total)

    def run_ns(self, sequences: int, context: int, steps: int) -> int:
        return ceil(self._run(sequences, context, steps))

    def require_run(self, sequences: int, context: int, steps: int) -> None:
        self._decode.require(sequences, context / sequences + steps - 1)

    def _run(self, sequences: int, context: int, steps: int) -> float:
        return steps * self._overhead + self._decode.total(sequences, context / sequences, steps)

    def steps_in(self, sequences: int, context: int, ns: int) -> int:
        if ns <= 0:
            return 0
        shortest = self._overhead + min(self._decode.row(sequences))
        low, high = 1, int(ns / shortest) + 2
        while low < high:
            middle = (low + high) // 2
            if ceil(self._run(sequences, context, middle)) >= ns:
                high = middle
            else:
                low = middle + 1
        return low

    def prefill_ns(self, tokens: int, before: int) -> int:
        total, left = 0.0, tokens
        while left > 0:
            chunk = min(left, self._prefill.most_tokens)
            total += self._overhead + self._prefill.total(chunk, before + tokens - left, 1)
            left -= chunk
        return ceil(total)

    def least_ns(self, prompts: int, tokens: int) -> float:
        return prompts * self._prefill.least_token_ns + tokens * self._decode.least_token_ns
