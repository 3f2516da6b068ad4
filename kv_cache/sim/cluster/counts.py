"""What a cluster counts while it runs: requests, tokens, blocks, and times between tokens.

It counts what it is given; nothing is decided here, and nothing is read back by a decision.
"""

from collections import Counter, defaultdict

from kv_cache.metrics.histogram import bucket_of
from kv_cache.sim.cluster.flight import ENDED, QUEUED, Flight
from kv_cache.sim.cluster.level import CountOverTime
from kv_cache.sim.cluster.outcome import Blocks, Requests

_MOST_PARTS = 40
MOST_GAPS = 4096  # different times between tokens that are kept before they go into buckets


class ClusterCounts:
    def __init__(self) -> None:
        self.phases = [CountOverTime() for _ in range(ENDED + 1)]
        self.central = CountOverTime()
        self.hbm = 0, 0  # blocks in HBM until the last end: integrated, and the most
        self.tickets = 0  # of those that have begun to decode: each time another one
        self.output_tokens = 0
        self.prefill_tokens = 0
        self.gaps: defaultdict[int, int] = defaultdict(int)  # ns between two tokens: how often
        self.itl_parts: list[Counter[int]] = [Counter()]  # by bucket, of equal parts of arrivals
        self._each = self._left = 1  # measured arrivals of a part; until the next one
        self.requests = Requests()
        self.blocks = Blocks()
        self.prefetch_useful: Counter[str] = Counter()
        self.prefetch_late: Counter[str] = Counter()
        self.new_blocks = 0  # of content that came into HBM by being computed, or sent
        self.began_ns = -1
        self.ended_ns = 0
        self.spent_ns = 0
        self.concurrency_ns = 0
        self._present = 0
        self._changed_ns = 0

    def queued(self, now_ns: int) -> None:
        """Count one more flight in its first phase."""
        self.phases[QUEUED].change(1, now_ns)

    def turn(self, flight: Flight, phase: int, now_ns: int) -> None:
        """Move a flight to another phase."""
        self.phases[flight.phase].change(-1, now_ns)
        self.phases[phase].change(1, now_ns)
        flight.phase = phase

    def change_presence(self, now_ns: int, change: int) -> None:
        """Count `change` more requests in the system from now on."""
        self.concurrency_ns += self._present * (now_ns - self._changed_ns)
        self._changed_ns = now_ns
        self._present += change

    def concurrency_at(self, now_ns: int) -> int:
        """Return `concurrency_ns` up to now."""
        return self.concurrency_ns + self._present * (now_ns - self._changed_ns)

    def fold_gaps(self) -> None:
        """Put the times between tokens into their buckets."""
        latest = self.itl_parts[-1]
        for ns, count in self.gaps.items():
            latest[bucket_of(ns)] += count
        self.gaps.clear()

    def begin_part(self) -> None:
        """Count times between tokens in a part of their own, as another measured request arrives
        behind those of the part before; parts are joined by twos where there are too many."""
        if self._left:
            self._left -= 1
            return
        self.fold_gaps()
        parts = self.itl_parts
        if len(parts) == _MOST_PARTS:
            parts[:] = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
            self._each *= 2
        parts.append(Counter())
        self._left = self._each - 1
