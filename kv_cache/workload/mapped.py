"""A source around a source: the same arrivals, each request changed on its way."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_cache.core.request import Request
from kv_cache.workload.source import Source


class Mapped:
    """Whoever derives from it says in `_change` what becomes of a request: a pure function, which
    keeps its number and its instant."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def on_demand(self) -> bool:
        return self._source.on_demand

    @property
    def exhausted(self) -> bool:
        return self._source.exhausted

    @property
    def users(self) -> int | None:
        return self._source.users

    def next_ns(self) -> int | None:
        return self._source.next_ns()

    def pop(self, now_ns: int) -> Request:
        return self._change(self._source.pop(now_ns))

    def after(self, request: Request, finished_ns: int) -> None:
        self._source.after(request, finished_ns)

    def resize(self, users: int, now_ns: int) -> None:
        self._source.resize(users, now_ns)

    def plan(self) -> Iterator[Request]:
        return map(self._change, self._source.plan())

    def describe(self) -> Mapping[str, Any]:
        return self._source.describe()

    def _change(self, request: Request) -> Request:
        raise NotImplementedError
