"""How often content was used, about: a count-min sketch whose counts sink (Cormode and
Muthukrishnan, J. Algorithms 55(1), 2005; the ageing is TinyLFU's "reset").

Four rows of counters of 0 to 15. Content has one counter in each row and its count is the least of
them, so that it is never too low; only the least are raised (conservative update). After
`10 x contents` uses all counters are halved: what was popular once is forgotten. A row has at least
two counters for each content. O(1) a call on average; halving is one pass over the bytes in C."""

from kv_cache.core.block import Key

MOST = 15
PERIOD = 10  # uses for each content between two halvings

_MULTIPLIERS = (
    0x9E3779B97F4A7C15F39CC0605CEDC835,
    0xC2B2AE3D27D4EB4F165667B19E3779F9,
    0xD6E8FEB86659FD93A0761D6478BD642F,
    0xE7037ED1A0B428DB8EBC6AF09C88C6E3,
)
_MASK = (1 << 128) - 1
_HALVED = bytes(value // 2 for value in range(256))


class Sketch:
    """Counts for about `contents` different contents."""

    def __init__(self, contents: int) -> None:
        bits = max(4, (2 * contents - 1).bit_length())
        self._shift = 128 - bits
        self._rows = [bytearray(1 << bits) for _ in _MULTIPLIERS]
        self._period = PERIOD * contents
        self._uses = 0

    def add(self, key: Key) -> None:
        places = self._places(key)
        least = min(row[at] for row, at in zip(self._rows, places, strict=True))
        if least < MOST:
            for row, at in zip(self._rows, places, strict=True):
                if row[at] == least:
                    row[at] += 1
        self._uses += 1
        if self._uses >= self._period:
            self._halve()

    def count(self, key: Key) -> int:
        return min(row[at] for row, at in zip(self._rows, self._places(key), strict=True))

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._rows))

    def _places(self, key: Key) -> list[int]:
        """Multiply and shift: the high bits of four products."""
        number = int.from_bytes(key, "little")
        return [((number * by) & _MASK) >> self._shift for by in _MULTIPLIERS]

    def _halve(self) -> None:
        self._rows = [row.translate(_HALVED) for row in self._rows]
        self._uses //= 2
