"""The I/O trace (`--io-trace-log`): every physical operation of a run in virtual time, as CSV.

The columns are those of the MLPerf reference benchmark. Rows are in the order in which operations
are asked for, with the instant of asking, so that one seed always gives the same bytes; what the
run's end cut off is left out, as it is in the result. `docs/how-to/record-and-replay.md` says what
the words mean.
"""

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kv_cache.core.effect import Leg, Op, OpDone
from kv_cache.core.kinds import Cause, OpKind
from kv_cache.core.units import NS_PER_S, NS_PER_US
from kv_cache.files.records import LineWriter, packing, require_own_name

COLUMNS = ("Timestamp", "Operation", "Object_Size_Bytes", "Tier", "Key", "Phase")
HEAD = ",".join(COLUMNS) + "\r\n"
FLAG = "--io-trace-log"

PHASES: Mapping[Cause, str] = {
    Cause.PREFILL: "Prefill",
    Cause.POPULATE: "Prefill",  # as in the reference
    Cause.DECODE: "Decode",
    Cause.REUSE: "Decode",  # the reference's word for reads of earlier turns
    Cause.DEMOTION: "Evict",
    Cause.EVICTION: "Evict",
    Cause.PROMOTION: "Promote",
    Cause.WRITE_THROUGH: "Write-through",
    Cause.PREFETCH: "Prefetch",
    Cause.DISCARD: "Discard",
}
_OPERATIONS: Mapping[OpKind, str] = {
    OpKind.READ: "Read",
    OpKind.WRITE: "Write",
    OpKind.DELETE: "Delete",
}


class _Row(Struct, eq=False):
    """A side of an operation; it counts once all of the operation has ended."""

    op: Op  # kept, so that no other gets its id
    line: bytes
    ended: bool = False


class IoTrace(LineWriter):
    """Observes the driver: each side when it is requested, and each operation when it has ended."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)  # as the reference does
        super().__init__(
            Path(os.path.realpath(path)),
            encode=bytes,
            head=HEAD.encode(),
            packed=packing(path, FLAG),
        )
        self._sides: deque[_Row] = deque()  # from the first that has not ended
        self._going: dict[int, list[_Row]] = {}

    def on_leg(self, op: Op, leg: Leg) -> None:
        row = _Row(op, line_of(op, leg))
        self._sides.append(row)
        self._going.setdefault(id(op), []).append(row)

    def on_op(self, done: OpDone) -> None:
        for row in self._going.pop(id(done.op), ()):
            row.ended = True
        while self._sides and self._sides[0].ended:
            self.add(self._sides.popleft().line)

    def close(self) -> str | None:
        """Complete the file; the answer says what went wrong, if anything did."""
        for row in self._sides:
            if row.ended:
                self.add(row.line)
        return super().close()


def check_io_trace(path: Path) -> None:
    """Refuse a name that the trace cannot be written under. Raises PlaceError."""
    require_own_name(path, FLAG, lambda first: first == HEAD.rstrip(), makes_parents=True)


def line_of(op: Op, leg: Leg) -> bytes:
    """Return one row. A promotion's read was requested; its write follows from it."""
    requested = op.cause is Cause.PROMOTION and leg.kind is OpKind.READ
    phase = PHASES[Cause.REUSE if requested else op.cause]
    seconds, rest_ns = divmod(leg.started_ns, NS_PER_S)
    # None of these can hold a comma or a quote.
    return (
        f"{seconds}.{rest_ns // NS_PER_US:06d},{_OPERATIONS[leg.kind]},{leg.nbytes},"
        f"Tier-{leg.tier.value},{op.target.key.hex()},{phase}\r\n"
    ).encode()
