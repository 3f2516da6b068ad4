"""How often content was used, about: a count-min sketch whose counts sink (Cormode and
Muthukrishnan, J. Algorithms 55(1), 2005; the ageing is TinyLFU's "reset").

Four rows of counters of 0 to 15. Content has one counter in each row and its count is the least of
them, so that it is never too low; only the least are raised (conservative update). After
`10 x contents` uses all counters are halved: what was popular once is forgotten. A row has at least
two counters for each content. O(1) a call on average; halving is one pass over the bytes in C."""

from kv_cache.core.block import Key

MOST = 15
PERIOD = 10  # uses for each content between two halvings

_MULTIPLIER = 0x9E3779B97F4A7C15F39CC0605CEDC835  # odd: 2^128 over the golden ratio
_ALL = (1 << 128) - 1
_HALVED = bytes(value // 2 for value in range(256))


class Sketch:
    """Counts for about `contents` different contents."""

    def __init__(self, contents: int) -> None:
        bits = max(4, (2 * contents - 1).bit_length())
        self._mask = (1 << bits) - 1
        self._shift = 128 - bits
        self._rows = tuple(bytearray(1 << bits) for _ in range(4))
        self._period = PERIOD * contents
        self._uses = 0

    def add(self, key: Key) -> None:
        first, second, third, fourth = self._rows
        a, b, c, d = self._places(key)
        least = min(first[a], second[b], third[c], fourth[d])
        if least < MOST:
            for row, at in ((first, a), (second, b), (third, c), (fourth, d)):
                if row[at] == least:
                    row[at] += 1
        self._uses += 1
        if self._uses >= self._period:
            self._halve()

    def count(self, key: Key) -> int:
        first, second, third, fourth = self._rows
        a, b, c, d = self._places(key)
        return min(first[a], second[b], third[c], fourth[d])

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._rows))

    def _places(self, key: Key) -> tuple[int, int, int, int]:
        """Return two hashes out of one product, and two more out of these (Kirsch and Mitzenmacher,
        ESA 2006). The first are the product's highest bits, which depend on all of the key's."""
        mixed = int.from_bytes(key, "little") * _MULTIPLIER & _ALL
        mask = self._mask
        at, step = mixed >> self._shift, (mixed >> 32) | 1
        return at, (at + step) & mask, (at + 2 * step) & mask, (at + 3 * step) & mask

    def _halve(self) -> None:
        self._rows = tuple(row.translate(_HALVED) for row in self._rows)
        self._uses //= 2
