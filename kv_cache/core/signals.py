"""Wake-ups as values: pure code fires tokens, the driver wakes who waits for them."""

from kv_cache.core.effect import Token


class Signals:
    """Tokens fired since the driver last looked."""

    def __init__(self) -> None:
        self._fired: list[Token] = []

    def fire(self, token: Token) -> None:
        self._fired.append(token)

    def drain(self) -> list[Token]:
        if not self._fired:
            return []
        fired, self._fired = self._fired, []
        return fired
