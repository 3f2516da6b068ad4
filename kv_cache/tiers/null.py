"""A store that keeps nothing and takes no time: what is left to measure is the harness."""

from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache.core.effect import CopyRef, MetadataStep
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import Capability, Span, call_nothing


class NullStore:
    """Accepts everything; what it gives back is whatever the buffer held."""

    engine = "null"
    capabilities = Capability.NONE
    removal = "null"
    steps: Sequence[MetadataStep] = ()
    spans: Sequence[Span] = ()

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def create(self, ref: CopyRef) -> "NullStore":
        return self

    def open(self, ref: CopyRef) -> "NullStore":
        return self

    def delete(self, ref: CopyRef) -> None:
        pass

    def write(self, offset: int, data: memoryview) -> None:
        pass

    def read(self, offset: int, into: memoryview) -> None:
        pass

    def commit(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass

    def describe(self) -> Mapping[str, Any]:
        return {"engine": self.engine, "emulated": False}


class RehearsalStore(NullStore):
    """The same, giving the interpreter lock away as often as system calls would: what a thread
    waits for until it has it again is a part of what the client costs."""

    def create(self, ref: CopyRef) -> "RehearsalStore":
        call_nothing()
        return self

    def open(self, ref: CopyRef) -> "RehearsalStore":
        for _ in ("open", "fstat"):
            call_nothing()
        return self

    def delete(self, ref: CopyRef) -> None:
        call_nothing()

    def commit(self) -> None:
        for _ in ("close", "rename"):
            call_nothing()

    def close(self) -> None:
        call_nothing()
