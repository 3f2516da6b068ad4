"""The same workload under other names: nothing that it stores is what another run looks up.

Preconditioning asks like the run that follows it. Under the same names the run would find the
blocks of its own future and report a reuse that no user had.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kv_cache.core.block import Block, content_key
from kv_cache.core.request import Request
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import Mapped


class Renamed(Mapped):
    """`source`, with `salt` in the name of every user, conversation and block."""

    def __init__(self, source: Source, salt: str) -> None:
        super().__init__(source)
        self._salt = salt

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "renamed": self._salt}

    def _change(self, request: Request) -> Request:
        return replace(
            request,
            user=f"{self._salt}/{request.user}",
            conversation=f"{self._salt}/{request.conversation}",
            blocks=tuple(self._block(block) for block in request.blocks),
        )

    def _block(self, block: Block) -> Block:
        return block._replace(key=content_key(self._salt, block.key.hex()))
