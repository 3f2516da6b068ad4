"""One transfer over the links of a path."""

from typing import Any

from kv_cache.sim.cluster.event_loop import Action
from kv_cache.sim.cluster.links import LinkPath


class NetworkTransfer:
    """`hop`: how many links have accepted it; `last_ns`: when its last byte is behind these."""

    __slots__ = (
        "action", "argument", "cause", "factor", "hop", "last_ns", "nbytes", "number", "path",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        path: LinkPath,
        nbytes: int,
        cause: str,
        action: Action,
        argument: Any,
        factor: float,
    ) -> None:
        self.number = number
        self.path = path
        self.nbytes = nbytes
        self.cause = cause
        self.action = action
        self.argument = argument
        self.factor = factor
        self.hop = 0
        self.last_ns = 0
