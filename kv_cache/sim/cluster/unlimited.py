"""What a cache without limits or delay would have had: the ceiling of a cluster's hits."""

from collections.abc import Sequence

from kv_cache.sim.cluster.prefix_chain import PrefixChain


class UnlimitedCache:
    """Remembers which nodes of the chain were ever asked for or answered."""

    def __init__(self, chain: PrefixChain) -> None:
        self._chain = chain
        self._seen = bytearray(1)

    def asked(self, path: Sequence[int]) -> int:
        """Return how many blocks of a prompt it has, without a gap; from now on it has them all."""
        blocks, had = self._chain.blocks, 0
        seen = self._seen_up_to(len(blocks))
        for node in path:
            if not seen[node]:
                break
            had += blocks[node]
        for node in path:
            seen[node] = 1
        return had

    def answered(self, leaf: int) -> None:
        """Store an answer."""
        self._seen_up_to(leaf + 1)[leaf] = 1

    def _seen_up_to(self, nodes: int) -> bytearray:
        """Return which nodes of the chain it has, for `nodes` of them at least."""
        self._seen.extend(bytes(max(0, nodes - len(self._seen))))
        return self._seen
