"""Whether the hash ids of a trace stand for as many tokens as its format says.

A format names how many tokens an id stands for, and files with the same keys and other blocks are
written. Ids of 64 tokens that are read as 512 make eight times the bytes, so the number of ids is
held against the prompts' lengths: k ids of b tokens cover a prompt of (k - 1) b + 1 to k b tokens.
A few rows may be odd; where more than `MOST_ODD` of them are, the trace is not what it is read as.
"""

from kv_cache.workload.formats.row import TraceRow

MOST_ODD = 0.1
"""Share of the rows with ids."""
_LONGEST = 1 << 20


class BlockFit:
    """Counts rows whose ids cannot have the stated length, and bounds the length that fits all."""

    def __init__(self, block_tokens: int) -> None:
        self._stated = block_tokens
        self._rows = self._odd = 0
        self._low, self._high = 1, _LONGEST

    def see(self, row: TraceRow) -> None:
        if row.hash_ids is None:
            return
        ids, prompt = len(row.hash_ids), row.prompt_tokens
        self._rows += 1
        if not (ids - 1) * self._stated < prompt <= ids * self._stated:
            self._odd += 1
        self._low = max(self._low, -(-prompt // ids))
        if ids > 1:
            self._high = min(self._high, (prompt - 1) // (ids - 1))

    def problem(self) -> str | None:
        """Return what is wrong and what would fit, as the rest of a sentence; None if nothing."""
        if self._odd <= MOST_ODD * self._rows:
            return None
        return (
            f"in {self._odd} of {self._rows} rows the hash ids do not cover the prompt as blocks "
            f"of {self._stated} tokens do; {self._fitting()}"
        )

    def _fitting(self) -> str:
        option = "--trace-block-tokens (workload.trace_block_tokens)"
        low, high = self._low, self._high
        if low > high:
            return f"no one length fits all; if one does but for a few, give it by {option}"
        powers = [1 << n for n in range(_LONGEST.bit_length()) if low <= 1 << n <= high]
        lengths = f"{powers[0]}" if len(powers) == 1 else f"{low} to {high}"
        if low == high:
            lengths = f"{low}"
        return f"blocks of {lengths} tokens would; give {option}"
