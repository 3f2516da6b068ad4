"""One run's facts with its configuration, and what formulas ask of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import fsum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec.structs import asdict

from kv_cache.config.root import Config
from kv_cache.config.schema import from_mapping, show
from kv_cache.core.errors import ConfigError, UsageError
from kv_cache.core.kinds import OpKind, Phase, TierLabel
from kv_cache.core.model import ModelShape
from kv_cache.core.text import to_json
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.summary import per_second
from kv_cache.result.chain import SECTION as SECTION
from kv_cache.result.counted import (
    Counted,
    Facts,
    Kernel,
    MachineFacts,
    MergeableCounts,
    OperationRow,
    WindowCounts,
    WorkloadFacts,
)
from kv_cache.result.histograms import decode

T = TypeVar("T")

_MOST_FLOWS = 1000  # phases x tiers x operations x causes x engines


class MisshapenError(Exception):
    """A value of a document that is missing or not of its type; the message says where."""


def unix_s(text: str) -> float | None:
    """Return an instant in seconds since 1970; None for a text that is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True)
class CountedRun:
    """What a run counted, and the configuration that it ran with."""

    counted: Counted
    config: Config

    @property
    def facts(self) -> Facts:
        return self.counted.kv_cache

    @property
    def window_s(self) -> float:
        """Length of the measured window; 0 if it never began."""
        ends = self.facts.phases_ns
        return max(0, (ends.measure_end or 0) - ends.measure_start) / 1e9

    @property
    def wall_begin_s(self) -> float | None:
        """When the window began, by its host's wall clock, in seconds since 1970."""
        started_s = unix_s(self.facts.started_utc or "")
        since_s = self.facts.phases_ns.measure_start / NS_PER_S
        return None if started_s is None else started_s + since_s

    @cached_property
    def ledger(self) -> "OperationLedger":
        return OperationLedger(self.facts.operations)

    @cached_property
    def windows(self) -> list[WindowCounts]:
        """What is derived from the windows. Raises MisshapenError."""
        return converted(self.facts.series.windows, list[WindowCounts], "kv_cache.series.windows")

    @property
    def measured(self) -> bool:
        """Whether bytes were moved, rather than simulated."""
        return self.facts.driver == "real-io"

    def kernel(self, span: str) -> Kernel:
        """Return the kernel's counters over `run` or `window`; empty in virtual time."""
        return self.facts.kernel_counters.get(span, {})

    @cached_property
    def workload(self) -> WorkloadFacts:
        """What is derived from the source's description. Raises MisshapenError."""
        return converted(self.facts.workload, WorkloadFacts, "kv_cache.workload")

    @cached_property
    def machine(self) -> MachineFacts:
        """What is derived from the environment. Raises MisshapenError."""
        return converted(self.facts.environment, MachineFacts, "kv_cache.environment")

    @property
    def host(self) -> str:
        return self.machine.hostname or ""


class OperationLedger:
    """The rows of physical operations, asked by phase, tier and kind."""

    def __init__(self, rows: Sequence[OperationRow]) -> None:
        self.rows = rows

    def where(self, keep: Callable[[OperationRow], bool]) -> list[OperationRow]:
        return [row for row in self.rows if keep(row)]

    def window(self, tier: TierLabel | None, kind: OpKind) -> list[OperationRow]:
        """Return what ended inside the measured window; `tier` None is all tiers."""
        return self.where(
            lambda row: (
                row.phase is Phase.MEASURE and row.operation is kind and tier in (None, row.tier)
            )
        )

    def all_bytes(self, tier: TierLabel, kind: OpKind) -> int:
        """Return bytes of the whole run, all phases."""
        return total_bytes(self.where(lambda row: row.tier == tier and row.operation is kind))


def total_bytes(rows: Iterable[OperationRow]) -> int:
    return sum(row.bytes for row in rows)


def total_operations(rows: Iterable[OperationRow]) -> int:
    """Return how many operations ended well; each is in the histograms."""
    return sum(row.histogram_total.count for row in rows)


def times(rows: Iterable[OperationRow], name: str) -> Histogram:
    """Return the histograms `name` (total, device, host, bytes) of rows as one."""
    return merged(getattr(row, f"histogram_{name}") for row in rows)


def rate(runs: Sequence[CountedRun], amount: Callable[[CountedRun], float]) -> float:
    """Return the sum of the runs' rates: what each counted over its own window, per second."""
    return fsum(per_second(amount(run), run.window_s) for run in runs)


def totals(runs: Sequence[CountedRun]) -> list[MergeableCounts]:
    return [run.facts for run in runs]


def agreed(values: Iterable[Any]) -> Any:
    """Return the value that all have; None if they differ, or there is none."""
    several = list(values)
    return several[0] if several and all(each == several[0] for each in several) else None


def number(kernel: Kernel, name: str) -> float | int | None:
    """Return a counter by name; None if the kernel has none. Raises MisshapenError."""
    value = kernel.get(name)
    if isinstance(value, str):
        raise MisshapenError(f"kv_cache.kernel_counters has {name} {show(value)}, not a number")
    return value


def semantics_of(config: Config) -> Any:
    """Return what the lifecycle does by a configuration, as a result has it."""
    semantics = config.lifecycle_semantics(synthetic=not config.replays)
    return plain({**asdict(semantics), "fsync": config.fsync()})


# --- reading ---------------------------------------------------------------------------------


def read_run(document: Mapping[str, Any]) -> CountedRun:
    """Return the facts of a document of this schema. Raises MisshapenError."""
    counted = converted(document, Counted, "")
    if len(counted.kv_cache.operations) > _MOST_FLOWS:
        count = len(counted.kv_cache.operations)
        raise MisshapenError(f"kv_cache.operations has {count} rows, more than there can be")
    try:
        config = from_mapping(Config, counted.kv_cache.config, "kv_cache.config")
    except ConfigError as error:
        raise MisshapenError(str(error)) from None
    return CountedRun(counted, config)


def converted(value: Any, kind: type[T], place: str) -> T:
    """Return a plain value as `kind`. Raises MisshapenError, which begins with the place."""
    try:
        return msgspec.convert(value, kind, dec_hook=decode)
    except msgspec.ValidationError as error:
        raise MisshapenError(_placed(str(error), place)) from None


def not_as_written(file: Path | str, what: object) -> UsageError:
    """Return the error of a file that does not have what every result has."""
    return UsageError(f"{file}: {what}; the file was cut or changed, so give an untouched result")


def _placed(message: str, place: str) -> str:
    """Return msgspec's "Expected `int`, got `str` - at `$.a.b`" with the place first."""
    what, _, path = message.partition(" - at `$")
    path = path.removesuffix("`")
    where = f"{place}{path}" if place else path.removeprefix(".")
    return f"{where or 'the result'}: {what[:1].lower()}{what[1:]}".replace("`", "")


def plain(value: Any) -> Any:
    """Return a value as a reader of its file has it."""
    return orjson.loads(to_json(value))


def shape_of(row: Mapping[str, Any], place: str = "kv_cache.model") -> ModelShape:
    """Return the geometry that a section of a model has. Raises MisshapenError."""
    try:
        return converted(row, ModelShape, place)
    except ConfigError as error:
        raise MisshapenError(f"{place} cannot be: {error}") from None
