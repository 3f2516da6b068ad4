"""Sources around a source: the same arrivals, with another instant or each request changed."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from kv_cache.core.block import Block
from kv_cache.core.request import Request
from kv_cache.workload.source import Source


class SourceWrapper:
    """`source` unchanged; a subclass says what differs."""

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
        return self._source.pop(now_ns)

    def after(self, request: Request, finished_ns: int) -> None:
        self._source.after(request, finished_ns)

    def resize(self, users: int, now_ns: int) -> None:
        self._source.resize(users, now_ns)

    def plan(self) -> Iterator[Request]:
        return self._source.plan()

    def describe(self) -> Mapping[str, Any]:
        return self._source.describe()


class Mapped(SourceWrapper):
    """`source`, with each request changed by `_change`: a pure function, which keeps the request's
    number and instant."""

    def pop(self, now_ns: int) -> Request:
        return self._change(self._source.pop(now_ns))

    def plan(self) -> Iterator[Request]:
        return map(self._change, self._source.plan())

    def _change(self, request: Request) -> Request:
        raise NotImplementedError


class Described(SourceWrapper):
    """`source`, with `facts` added to what it says of itself."""

    def __init__(self, source: Source, facts: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(source)
        self._facts = facts

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), **self._facts()}


class StoredBlocks(Collection[tuple[Block, ...]]):
    """What is stored before the first request, made anew by each walk: there may be much of it."""

    def __contains__(self, blocks: object) -> bool:
        return any(blocks == each for each in self)

    @cached_property
    def nbytes(self) -> int:
        """Logical bytes, as they are counted when they are written."""
        return sum(block.nbytes for blocks in self for block in blocks)


class MappedBlocks(StoredBlocks):
    """`base`, each of it changed into `times` others."""

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
