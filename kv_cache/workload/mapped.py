"""A source around a source: the same arrivals, each request changed on its way."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from kv_cache.core.block import Block
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


class Told(Mapped):
    """`source` unchanged; `facts` are put over what it says of itself."""

    def __init__(self, source: Source, facts: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(source)
        self._facts = facts

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), **self._facts()}

    def _change(self, request: Request) -> Request:
        return request


class MappedBlocks(Collection[tuple[Block, ...]]):
    """What is stored before anybody asks, each of `base` changed into `times` others. Made anew by
    whoever asks: there may be many."""

    def __init__(
        self,
        base: Collection[tuple[Block, ...]],
        change: Callable[[tuple[Block, ...]], Iterable[tuple[Block, ...]]],
        times: int = 1,
    ) -> None:
        self._base = base
        self._change = change
        self._times = times

    def __len__(self) -> int:
        return len(self._base) * self._times

    def __iter__(self) -> Iterator[tuple[Block, ...]]:
        for blocks in self._base:
            yield from self._change(blocks)

    def __contains__(self, blocks: object) -> bool:
        return any(blocks == each for each in self)

    @cached_property
    def nbytes(self) -> int:
        """Logical bytes, as they are counted when they are written."""
        return sum(block.nbytes for blocks in self for block in blocks)
