"""The section `passport`: how evidence is gathered, and where its rules change their mind."""

from dataclasses import dataclass
from typing import TypeVar, get_args, get_type_hints

from msgspec.structs import fields

from kv_cache.config.schema import opt
from kv_cache.core.units import MIB
from kv_cache.metrics.evidence import Thresholds

T = TypeVar("T")

_IN_MIB = "enough_bytes"


def _called(name: str) -> str:
    """Return what the option of a threshold is called."""
    return "enough_mib" if name == _IN_MIB else name


THRESHOLDS = tuple(map(_called, Thresholds.__struct_fields__))
"""The options of this section at which a rule changes its mind."""


def _with_thresholds(section: type[T]) -> type[T]:
    """Add an option for each threshold, as `Thresholds` says it."""
    hints = get_type_hints(Thresholds, include_extras=True)
    for field in fields(Thresholds):
        name, default, (kind, says) = field.name, field.default, get_args(hints[field.name])
        if name == _IN_MIB:
            kind, default = float, default / MIB
        low = None if says.high is None else says.low
        section.__annotations__[_called(name)] = kind
        setattr(
            section,
            _called(name),
            opt(default, says.help, unit=says.unit, low=low, high=says.high),
        )
    return section


@dataclass(frozen=True, slots=True, kw_only=True)
@_with_thresholds
class PassportConfig:
    """What a run proves about itself. Thresholds that are not at their default are named in the
    result, beside its verdict."""

    sample_every: int = opt(
        32, "Every so many loads from storage, one is looked up in the page cache before and after",
        low=1, high=1_000_000,
    )  # fmt: skip
    payload_pages: int = opt(
        512, "Pages that are read back from storage to judge the payload", unit="pages of 4 KiB",
        low=16, high=65_536,
    )  # fmt: skip
    settle_s: float = opt(
        2.0, "Longest wait for the kernel's counters to catch up with the run", unit="s", low=0,
        high=600,
    )  # fmt: skip
    certify_s: float = opt(
        5.0, "Length of the run against null stores that --certify adds", unit="s", above=0,
        high=3600,
    )  # fmt: skip

    def thresholds(self) -> Thresholds:
        values = {name: getattr(self, _called(name)) for name in Thresholds.__struct_fields__}
        return Thresholds(**values | {_IN_MIB: round(values[_IN_MIB] * MIB)})
