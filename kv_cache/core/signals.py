"""Wake-ups as values: pure code fires tokens, the driver wakes who waits for them."""

from kv_cache.core.effect import Token


class Signals:
    """Tokens fired since the driver last looked."""

    def __init__(self) -> None:
        self.fired: list[Token] = []

    def fire(self, token: Token) -> None:
        self.fired.append(token)

    def drain(self) -> list[Token]:
        if not self.fired:
            return []
        fired, self.fired = self.fired, []
        return fired
