"""The eviction seam: one policy object orders the copies of one tier.

The caller guarantees:
 1. `insert` is called once for a copy before anything else names it, and never again after
    `remove` (copy ids are not reused).
 2. `hit` and `remove` name copies that are present.
The policy guarantees:
 3. `victims` yields each present copy exactly once, the best victim first, and changes nothing.
 4. `len` is the number of present copies.
 5. The order depends on the calls alone: no clock, no chance.
The caller stops iterating `victims` before it changes the policy.
"""

from collections.abc import Iterator
from typing import Protocol


class Eviction(Protocol):
    def insert(self, copy_id: int, nbytes: int) -> None: ...

    def hit(self, copy_id: int) -> None: ...

    def remove(self, copy_id: int) -> None: ...

    def victims(self) -> Iterator[int]: ...

    def __len__(self) -> int: ...

    def __contains__(self, copy_id: object) -> bool: ...
