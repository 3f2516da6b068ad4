"""How many may do something at once, and with how many bytes: a gate that never blocks.

Who is refused awaits the gate's token and tries again; the driver does the waiting.
"""

from kv_cache.core.effect import Token
from kv_cache.core.signals import Signals


class Gate:
    """At most `slots` holders with at most `max_bytes` together; 0 means no limit.

    One holder is always let in, whatever its size: an object larger than `max_bytes` goes alone.
    """

    def __init__(self, gate_id: int, signals: Signals, *, slots: int = 0, max_bytes: int = 0):
        self.token: Token = ("gate", gate_id)
        self._signals = signals
        self._slots = slots
        self._max_bytes = max_bytes
        self.holders = 0
        self.bytes = 0

    def try_enter(self, nbytes: int = 0) -> bool:
        if self.holders:
            if self._slots and self.holders >= self._slots:
                return False
            if self._max_bytes and self.bytes + nbytes > self._max_bytes:
                return False
        self.holders += 1
        self.bytes += nbytes
        return True

    def leave(self, nbytes: int = 0) -> None:
        self.holders -= 1
        self.bytes -= nbytes
        assert self.holders >= 0, "a gate was left more often than entered"
        assert self.bytes >= 0, "a gate was left with more bytes than entered"
        self._signals.fire(self.token)
