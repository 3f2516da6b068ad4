"""The same workload under other names: nothing that it stores is what another run looks up.

Preconditioning asks like the run that follows it. Under the same names the run would find the
blocks of its own future and report a reuse that no user had.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kv_cache.core.block import Block, content_key
from kv_cache.core.request import Request
from kv_cache.workload.source import Source


class Renamed:
    """`source`, with `salt` in the name of every user, conversation and block."""

    def __init__(self, source: Source, salt: str) -> None:
        self._source = source
        self._salt = salt

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
        return self._rename(self._source.pop(now_ns))

    def after(self, request: Request, finished_ns: int) -> None:
        self._source.after(request, finished_ns)

    def resize(self, users: int, now_ns: int) -> None:
        self._source.resize(users, now_ns)

    def plan(self) -> Iterator[Request]:
        return map(self._rename, self._source.plan())

    def describe(self) -> Mapping[str, Any]:
        return {**self._source.describe(), "renamed": self._salt}

    def _rename(self, request: Request) -> Request:
        return replace(
            request,
            user=f"{self._salt}/{request.user}",
            conversation=f"{self._salt}/{request.conversation}",
            blocks=tuple(self._block(block) for block in request.blocks),
        )

    def _block(self, block: Block) -> Block:
        return block._replace(key=content_key(self._salt, block.key.hex()))
