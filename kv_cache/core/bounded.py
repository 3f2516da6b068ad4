"""Numbers that a document may hold: what is larger was not counted by anybody. msgspec refuses it
where a document is read."""

from typing import Annotated

from msgspec import Meta

LARGEST = 1e18
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""No number of a document is larger: not a byte count, nor an instant in nanoseconds."""
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What a counter can have reached."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
"""A time that a run can have taken."""
