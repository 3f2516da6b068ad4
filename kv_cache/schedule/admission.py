"""How many may do something at once, and with how many bytes: a gate that never blocks.

Who is refused may line up, and awaits a token of his own: it is fired when he has been let in. So
each who leaves wakes no more than can go on, and nobody passes those who wait. The driver does the
waiting.
"""

from collections import deque

from kv_cache.core.effect import Token
from kv_cache.core.signals import Signals


class Gate:
    """At most `slots` holders with at most `max_bytes` together; 0 means no limit.

    One holder is always let in, whatever its size: an object larger than `max_bytes` goes alone.
    Of a queue the bytes are places.
    """

    def __init__(self, gate_id: int, signals: Signals, *, slots: int = 0, max_bytes: int = 0):
        self._name = f"gate-{gate_id}"
        self._signals = signals
        self._slots = slots
        self._max_bytes = max_bytes
        self._line: deque[tuple[Token, int]] = deque()  # who waits, and with how many bytes
        self._lined_up = 0  # so far; numbers their tokens
        self.holders = 0
        self.bytes = 0

    def try_enter(self, nbytes: int = 0) -> bool:
        """Enter, unless there is no room or somebody waits for it."""
        if self._line or not self._has_room(nbytes):
            return False
        self._enter(nbytes)
        return True

    def line_up(self, nbytes: int = 0) -> Token:
        """Stand behind those who wait, after a refusal; return what is fired once inside."""
        self._lined_up += 1
        token = (self._name, self._lined_up)
        self._line.append((token, nbytes))
        return token

    def leave(self, nbytes: int = 0) -> None:
        self.holders -= 1
        self.bytes -= nbytes
        assert self.holders >= 0, "a gate was left more often than entered"
        assert self.bytes >= 0, "a gate was left with more bytes than entered"
        while self._line and self._has_room(self._line[0][1]):
            token, coming = self._line.popleft()
            self._enter(coming)
            self._signals.fire(token)

    def _has_room(self, nbytes: int) -> bool:
        if not self.holders:
            return True
        if self._slots and self.holders >= self._slots:
            return False
        return not self._max_bytes or self.bytes + nbytes <= self._max_bytes

    def _enter(self, nbytes: int) -> None:
        self.holders += 1
        self.bytes += nbytes
