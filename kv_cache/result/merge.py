"""What several runs counted as if one recorder had seen all of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import fields, replace

from kv_cache.core.kinds import TIER_LABELS, Qos
from kv_cache.metrics.histogram import Histogram
from kv_cache.result.counted import (
    Classes,
    EvictionCounts,
    FailureRow,
    Json,
    MergeableCounts,
    MetadataRow,
    OperationRow,
    RequestAccounts,
    RequestCounts,
    ReuseCounts,
    TierCounts,
    Verified,
    pooled,
)

T = TypeVar("T", bound=Struct)
K = TypeVar("K")


def merged(several: Sequence[MergeableCounts]) -> MergeableCounts:
    """Merge the counts of several runs, whose order makes no difference."""
    if len(several) == 1:
        return several[0]
    if not several:
        return nothing()
    failures = _grouped(several, lambda counts: counts.failed_operations, failure_key)
    return MergeableCounts(
        requests=_requests([counts.requests for counts in several]),
        measured=Classes(
            **{qos.value: pooled([counts.measured.of(qos) for counts in several]) for qos in Qos}
        ),
        reuse=pooled([counts.reuse for counts in several]),
        tiers={
            label: _tier([counts.tiers[label] for counts in several if label in counts.tiers])
            for label in TIER_LABELS
            if any(label in counts.tiers for counts in several)
        },
        operations=_grouped(several, lambda counts: counts.operations, operation_key),
        metadata=_grouped(several, lambda counts: counts.metadata, metadata_key),
        failed_operations=sorted(failures, key=failure_order),
        verification=replace(
            pooled([counts.verification for counts in several]),
            mode="+".join(sorted({counts.verification.mode for counts in several})),
        ),
        evictions=replace(pooled([counts.evictions for counts in several]), policies=UNSET),
    )


def nothing() -> MergeableCounts:
    """Return the counts of no run at all."""

    def zeros(kind: type[T], **others: Any) -> T:
        return kind(**{**{field.name: 0 for field in fields(kind)}, **others})

    histograms = {
        field.name: Histogram()
        for field in fields(RequestCounts)
        if field.name.startswith("histogram_")
    }
    return MergeableCounts(
        requests=zeros(RequestAccounts, errors={}, out_of_turn=None),
        measured=Classes(**{qos.value: zeros(RequestCounts, **histograms) for qos in Qos}),
        reuse=zeros(ReuseCounts, offered_is_exact=True),
        tiers={},
        operations=[],
        metadata=[],
        failed_operations=[],
        verification=zeros(Verified, mode="none"),
        evictions=zeros(EvictionCounts, policies=UNSET),
    )


# --- rows ------------------------------------------------------------------------------------

Key = tuple[str, ...]


def operation_key(row: OperationRow) -> Key:
    """Return what rows of operations are counted by, in the order of a result's rows: tiers from
    the fastest."""
    return (row.phase, str(TIER_LABELS.index(row.tier)), row.operation, row.cause, row.engine)


def metadata_key(row: MetadataRow) -> Key:
    """Return what rows of metadata are counted by, in the same order."""
    return (row.phase, str(TIER_LABELS.index(row.tier)), row.operation, row.step)


def failure_key(row: FailureRow) -> Key:
    """Return what failed operations are counted by."""
    return (row.reason, row.tier, row.operation, row.cause)


def failure_order(row: FailureRow) -> tuple[int, Key]:
    """Sort the most frequent failures first."""
    return (-row.count, failure_key(row))


def _grouped(
    several: Iterable[MergeableCounts],
    rows_of: Callable[[MergeableCounts], Iterable[T]],
    key: Callable[[T], Key],
) -> list[T]:
    groups: dict[Key, list[T]] = {}
    for counts in several:
        for row in rows_of(counts):
            groups.setdefault(key(row), []).append(row)
    return [pooled(groups[each]) for each in sorted(groups)]


# --- requests and tiers ----------------------------------------------------------------------


def _requests(several: Sequence[RequestAccounts]) -> RequestAccounts:
    """Return the longest queue is the longest of any run."""
    errors = added(accounts.errors for accounts in several)
    turns = [accounts.out_of_turn for accounts in several]
    known = [count for count in turns if isinstance(count, int)]
    return replace(
        pooled([replace(accounts, out_of_turn=UNSET) for accounts in several]),
        out_of_turn=UNSET if UNSET in turns else sum(known) if known else None,
        longest_queue=max(accounts.longest_queue for accounts in several),
        errors=dict(sorted(errors.items())),
    )


def added(several: Iterable[Mapping[K, int]]) -> dict[K, int]:
    """Add counts by name; the order is that in which names first occur."""
    total: dict[K, int] = {}
    for counts in several:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def _tier(several: Sequence[TierCounts]) -> TierCounts:
    limits = [tier.capacity_bytes for tier in several]
    return replace(
        pooled(several),
        capacity_bytes=None if None in limits else sum(limit or 0 for limit in limits),
        store=_store([tier.store for tier in several]),
    )


def _store(stores: Sequence[Json]) -> Json:
    """Return what all stores have in common; their engines are joined by `+`."""
    shared: Json = dict(common(stores) or {})
    for name in ("engine", "write_engine"):
        engines = {part for store in stores for part in str(store.get(name) or "").split("+")}
        if engines - {""}:
            shared[name] = "+".join(sorted(engines - {""}))
    return shared


# --- plain values ----------------------------------------------------------------------------


class _Differs:
    """Stands for a value that is not the same in all."""


_DIFFERS = _Differs()


def common(values: Sequence[Any]) -> Any:
    """Return what plain values have in common: a mapping without the keys whose values differ;
    None if nothing is the same."""
    shared = _common(values) if values else None
    return None if isinstance(shared, _Differs) else shared


def _common(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values[1:]):
        return first
    if not all(isinstance(value, Mapping) for value in values):
        return _DIFFERS
    shared = {
        name: _common([value[name] for value in values])
        for name in first
        if all(name in value for value in values)
    }
    return {name: value for name, value in shared.items() if not isinstance(value, _Differs)}
