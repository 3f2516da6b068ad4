"""The client's ceiling as a curve over the size of objects (`--certify`): what it could do without
storage, and below which size it would be the limit itself.

Between two measured sizes the time of an operation is taken to grow evenly. Decisions, locks and
calls take the same at every size, stamping and verifying take it byte by byte; but batches hold
more of small objects, so that one line through all sizes fits badly.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Annotated

from msgspec import Meta, Struct

from kv_cache.core.format import figures, gib_per_s
from kv_cache.core.units import PAGE_BYTES, human_bytes
from kv_cache.metrics.evidence import Evidence

_LONGEST_S = 1e9  # in a file that anybody may have written


class CeilingPoint(Struct, frozen=True, kw_only=True):
    """Reads and writes that the client did in `seconds` with storage that takes no time, and the
    CPU time of its process."""

    seconds: Annotated[float, Meta(gt=0, le=_LONGEST_S)]
    operations: Annotated[int, Meta(ge=0)]
    bytes: Annotated[int, Meta(ge=0)]
    cpu_s: Annotated[float, Meta(ge=0, le=_LONGEST_S)]

    @property
    def object_bytes(self) -> float | None:
        """bytes / operations"""
        return self.bytes / self.operations if self.operations else None

    @property
    def bytes_per_second(self) -> float:
        """bytes / seconds"""
        return self.bytes / self.seconds

    @property
    def operations_per_second(self) -> float:
        """operations / seconds"""
        return self.operations / self.seconds

    @property
    def cores_used(self) -> float:
        """cpu_s / seconds"""
        return self.cpu_s / self.seconds


def smaller_sizes(nbytes: float) -> list[int]:
    """Return the sizes to measure below that of the run: one page, and the geometric mean."""
    between = max(1, round(sqrt(nbytes * PAGE_BYTES) / PAGE_BYTES)) * PAGE_BYTES
    return [size for size in dict.fromkeys((between, PAGE_BYTES)) if size < nbytes]


def limit_object_bytes(points: Sequence[CeilingPoint], bytes_per_second: float) -> int | None:
    """Return the largest size of objects, up to the largest measured, at which the client moves
    less than this; None where it moves as much down to the smallest. With t(s) the time of an
    operation, that is where s = bytes_per_second · t(s)."""
    known = sorted(
        (size, size - bytes_per_second * point.seconds / point.operations)
        for point in points
        if (size := point.object_bytes) is not None
    )
    if known and known[-1][1] < 0:
        return round(known[-1][0])
    for (small, short), (large, spare) in reversed([*pairwise(known)]):
        if short < 0:
            return round(small + (large - small) * short / (short - spare))
    return None


def ceiling_sentence(client: Evidence, *, objects: bool = False) -> str | None:
    """Return what the evidence `client` says of its ceiling, for people; None where it has no
    curve. `objects`: storage was an object store, whose requests null stores do not make."""
    ceiling = Evidence(client.at("ceiling"))
    sizes = [row.number("object_bytes") for row in ceiling.rows("points") or []]
    known = [size for size in sizes if size]
    ops, rate = ceiling.number("operations_per_second"), ceiling.number("bytes_per_second")
    if not known or ops is None or rate is None:
        return None
    cores, ratio = client.number("cores"), ceiling.number("ratio")
    on = "" if cores is None else f" on {figures(cores)} core{'s' if cores != 1 else ''}"
    without = "without what requests to the server cost, " if objects else ""
    could = (
        f"{without}this client could do {ops:,.0f} operations/s or {gib_per_s(rate)} at "
        f"{human_bytes(known[0])}{on}"
    )
    if ratio is None:
        return could
    times = f"{could}, {ratio:.2f} times what was measured"
    return times if objects else f"{times}; {_limit(ceiling, known)}"


def _limit(ceiling: Evidence, sizes: Sequence[float]) -> str:
    limit = ceiling.number("limit_object_bytes")
    if limit is None:
        return f"down to {human_bytes(min(sizes))} it would not be the limit"
    if limit >= round(max(sizes)):
        return "it is the limit itself"
    return f"below {human_bytes(limit)} it would be the limit itself"
