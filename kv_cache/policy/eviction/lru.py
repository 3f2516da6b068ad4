"""Least recently used (Mattson et al., "Evaluation techniques for storage hierarchies", IBM
Systems Journal 9(2), 1970): evict what was not asked for the longest. O(1) a call."""

from kv_cache.policy.eviction.fifo import Fifo


class Lru(Fifo):
    """A queue like FIFO's in which a hit goes to the back."""

    def hit(self, copy_id: int) -> None:
        self._order.move_to_end(copy_id)
