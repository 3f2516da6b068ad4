"""One transfer over the links of a path."""

from dataclasses import dataclass
from typing import Any

from kv_cache.sim.cluster.event_loop import Action
from kv_cache.sim.cluster.links import LinkPath


@dataclass(slots=True, eq=False)
class NetworkTransfer:
    """`action(argument)` is called when the last of `nbytes` is there. `hop`: how many links have
    accepted it; `last_ns`: when its last byte is behind these."""

    number: int
    path: LinkPath
    nbytes: int
    cause: str
    action: Action
    argument: Any
    factor: float
    hop: int = 0
    last_ns: int = 0
