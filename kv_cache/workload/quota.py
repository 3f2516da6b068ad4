"""Which requests a run with a limit consists of, when users ask at their own pace."""

from collections import Counter
from collections.abc import Callable, Iterator

from kv_cache.core.request import Request

Counts = Callable[[Request], int]
"""How many requests of the run one of the plan is, with those that are sent beside it."""


def one(_: Request) -> int:
    """Count the request alone."""
    return 1


class Quota:
    """The first `size` requests of the plan, user by user: the same requests are sent however
    fast each user is served. The plan is walked no further than a user has come. Each request
    takes of `size` as much as it `counts`, and the last may count more than is left."""

    def __init__(self, plan: Iterator[Request], size: int, counts: Counts = one) -> None:
        self._plan = plan
        self._left = size
        self._counts = counts
        self._planned: Counter[str] = Counter()  # by user, not yet taken

    @property
    def spent(self) -> bool:
        """No user has a request left."""
        return not self._left and not self._planned

    def take(self, user: str) -> bool:
        """Take the next request of the user, and return whether there is one."""
        while self._left and not self._planned[user]:
            request = next(self._plan, None)
            if request is None:
                self._left = 0
                break
            self._planned[request.user] += 1
            self._left = max(0, self._left - self._counts(request))
        if not self._planned[user]:
            return False
        self._planned[user] -= 1
        if not self._planned[user]:
            del self._planned[user]
        return True
