"""How many may do something at once, and how much they may take: a gate that never blocks.

Who is refused may line up, and awaits a token of his own: it is fired when he has been let in. So
each who leaves wakes no more than can go on, and nobody passes those who wait. The driver does the
waiting.
"""

from collections import deque

from kv_cache.core.effect import Token
from kv_cache.core.signals import Signals


class Gate:
    """At most `slots` holders who have taken at most `most` together (bytes, or places of a queue);
    0 means no limit.

    One holder is always let in, whatever it takes: an object larger than `most` goes alone.
    """

    def __init__(self, gate_id: int, signals: Signals, *, slots: int = 0, most: int = 0):
        self._name = f"gate-{gate_id}"
        self._signals = signals
        self._slots = slots
        self._most = most
        self._line: deque[tuple[Token, int]] = deque()  # who waits, and how much he takes
        self._lined_up = 0  # so far; numbers their tokens
        self.holders = 0
        self.taken = 0

    def try_enter(self, amount: int = 0) -> bool:
        """Enter, unless there is no room or somebody waits for it."""
        if self._line or not self._has_room(amount):
            return False
        self._enter(amount)
        return True

    def line_up(self, amount: int = 0) -> Token:
        """Stand behind those who wait, after a refusal; return what is fired once inside."""
        self._lined_up += 1
        token = (self._name, self._lined_up)
        self._line.append((token, amount))
        return token

    def leave(self, amount: int = 0) -> None:
        self.holders -= 1
        self.taken -= amount
        assert self.holders >= 0, "a gate was left more often than entered"
        assert self.taken >= 0, "a gate was left with more than was taken"
        while self._line and self._has_room(self._line[0][1]):
            token, coming = self._line.popleft()
            self._enter(coming)
            self._signals.fire(token)

    def _has_room(self, amount: int) -> bool:
        if not self.holders:
            return True
        if self._slots and self.holders >= self._slots:
            return False
        return not self._most or self.taken + amount <= self._most

    def _enter(self, amount: int) -> None:
        self.holders += 1
        self.taken += amount
