"""The units in which numbers are shown, and how much of the stored unit is one of each."""

from msgspec import Struct

from kv_cache.core.format import figures
from kv_cache.core.units import GIB, KIB, MIB, MISSING, human_bytes


class DisplayUnit(Struct, frozen=True):
    """A unit that people read, and how much of the stored unit is one of it."""

    name: str
    scale: float = 1.0

    def text(self, value: float | None) -> str:
        """A stored value as people read it, without its unit."""
        return figures(None if value is None else value / self.scale)

    def measured(self, value: float | None) -> str:
        """A stored value with its unit, for a sentence."""
        return MISSING if value is None else f"{self.text(value)} {self.name}".rstrip()


GIB_PER_S = DisplayUnit("GiB/s", GIB)
"""Of stored bytes/s: the unit of every rate of bytes that was measured (decision 0030)."""
GIBIBYTES = DisplayUnit("GiB", GIB)
"""Of stored bytes."""
TEBIBYTES = DisplayUnit("TiB", 1024 * GIB)
"""Of stored bytes."""
MEBIBYTES = DisplayUnit("MiB", MIB)
"""Of stored bytes."""
KIBIBYTES = DisplayUnit("KiB", KIB)
"""Of stored bytes."""
S = DisplayUnit("s")
MS = DisplayUnit("ms")
MS_OF_NS = DisplayUnit("ms", 1e6)
"""Of stored nanoseconds."""
PER_S = DisplayUnit("1/s")
PERCENT = DisplayUnit("%", 0.01)
"""Of stored shares of 1."""
COUNT = DisplayUnit("")


def bytes_text(nbytes: float) -> str:
    """Bytes in the unit that fits, TiB at most."""
    return TEBIBYTES.measured(nbytes) if nbytes >= TEBIBYTES.scale else human_bytes(nbytes)
