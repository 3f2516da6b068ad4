"""What moved between which tiers, and why: from the operations that ended in the measured window.

Every operation names its tier and its cause. A demotion is a read of the tier it leaves and a write
of the tier it comes to, one or more down, and a promotion is the same upwards; with three tiers at
most, what each pair of tiers exchanged follows from these sums. An operation that the window's edge
cut counts with the side that ended, so the two sides of a pair may differ by a few objects.
"""

from collections.abc import Iterator, Mapping, Sequence

from kv_cache.config.sections import LAYER
from kv_cache.core.kinds import Cause, OpKind, Phase, Tier
from kv_cache.core.units import human_bytes
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.result.paths import number_at, value_at
from kv_cache.result.published import ObjectSizes, OperationFacts, PublishedRun
from kv_cache.view import units
from kv_cache.view.latency import percentile_cells, percentile_figure
from kv_cache.view.parts import (
    Cell,
    FlowArrow,
    FlowDiagram,
    Part,
    Remarks,
    ShownColumn,
    Table,
    present,
)

TIERS = tuple(tier.label for tier in Tier)
_WHY: Mapping[str, str] = {
    Cause.REUSE: "loads of what earlier turns or other requests have left",
    Cause.PREFILL: "stores of newly computed blocks",
    Cause.DECODE: "loads while tokens are generated, and stores that repair a miss there",
    Cause.DEMOTION: "down, to make room",
    Cause.PROMOTION: "up, on a hit",
    Cause.WRITE_THROUGH: "copies in the last tier of what was stored above it",
    Cause.PREFETCH: "up, before a request asks, and what leaves a tier for that",
    Cause.EVICTION: "deleted, to make room",
    Cause.DISCARD: "deleted, as verification failed",
    Cause.POPULATE: "stores before the measured window",
}
_MOVES = (Cause.DEMOTION, Cause.PROMOTION, Cause.WRITE_THROUGH)
_EDGE = 0.01
"""Less than this share past the middle tier is what the window's edge cut."""

Key = tuple[str, str, str]
"""Tier, operation and cause; rows of different engines stand together."""


def moves_parts(run: PublishedRun) -> list[Part]:
    """The diagram, every operation, sizes, and what moved in other phases; nothing if no operation
    ended in the window."""
    window = _grouped(run.operations, Phase.MEASURE)
    if not window:
        return []
    causes = {cause for _, _, cause in window}
    meanings = [f"{cause}: {why}" for cause, why in _WHY.items() if cause in causes]
    return [
        _diagram(window),
        _operations(window),
        Remarks(title="Causes", texts=meanings),
        *_sizes(run),
        *present(_other_phases(run.operations)),
    ]


def _grouped(rows: Sequence[OperationFacts], phase: Phase) -> dict[Key, list[OperationFacts]]:
    groups: dict[Key, list[OperationFacts]] = {}
    for row in rows:
        if row.phase is phase:
            groups.setdefault((row.tier, row.operation, row.cause), []).append(row)
    return {key: groups[key] for key in sorted(groups, key=_order)}


def _order(key: Key) -> tuple[int, str, str]:
    tier, operation, cause = key
    return (TIERS.index(tier) if tier in TIERS else len(TIERS), operation, cause)


def _operations(window: Mapping[Key, Sequence[OperationFacts]]) -> Table:
    percents = (50.0, 95.0, 99.0, 99.99)
    return Table(
        title="Operations of the measured window, by tier, kind and cause",
        columns=[
            *map(ShownColumn, ("tier", "operation", "cause")),
            ShownColumn("operations", units.COUNT),
            ShownColumn("moved", units.GIBIBYTES),
            *(ShownColumn(f"p{percent:g}", units.MS) for percent in percents),
        ],
        rows=[
            [
                *key,
                sum(row.operations for row in rows),
                None if key[1] == OpKind.DELETE else _bytes(rows),
                *percentile_cells(merged(row.histogram_total for row in rows), percents),
            ]
            for key, rows in window.items()
        ],
    )


def _bytes(rows: Sequence[OperationFacts]) -> int:
    return sum(row.bytes for row in rows)


# --- the diagram -----------------------------------------------------------------------------


def _diagram(window: Mapping[Key, Sequence[OperationFacts]]) -> FlowDiagram:
    moved = {key: _bytes(rows) for key, rows in window.items()}
    tiers = [tier for tier in TIERS if any(key[0] == tier for key in window)]
    return FlowDiagram(
        nodes=[(tier, _deleted(window, tier)) for tier in tiers],
        arrows=[*_outside(moved, tiers), *exchanges(moved)],
        caption="Left: what came into a tier from outside. Right: what requests loaded from it. "
        "Between the tiers: what was moved down (demotion) or up (promotion).",
    )


def _deleted(window: Mapping[Key, Sequence[OperationFacts]], tier: str) -> str:
    gone = sum(
        row.operations
        for cause in (Cause.EVICTION, Cause.DISCARD)
        for row in window.get((tier, OpKind.DELETE, cause), ())
    )
    return f"{gone:,} deleted" if gone else ""


def _outside(moved: Mapping[Key, int], tiers: Sequence[str]) -> Iterator[FlowArrow]:
    for tier in tiers:
        for (where, operation, cause), nbytes in moved.items():
            if where == tier and cause not in _MOVES and nbytes > 0:
                write = operation == OpKind.WRITE
                yield FlowArrow(
                    start=None if write else tier, end=tier if write else None, name=cause,
                    bytes=nbytes,
                )  # fmt: skip


def exchanges(moved: Mapping[Key, int]) -> list[FlowArrow]:
    """What went between each pair of tiers, the larger first."""
    arrows = [
        *_exchanged(moved, Cause.DEMOTION, TIERS),
        *_exchanged(moved, Cause.WRITE_THROUGH, TIERS),
        *_exchanged(moved, Cause.PROMOTION, TIERS[::-1]),
    ]
    return sorted(arrows, key=lambda arrow: -arrow.bytes)


def _exchanged(moved: Mapping[Key, int], cause: str, way: Sequence[str]) -> Iterator[FlowArrow]:
    """From the first tier of the way to the last, which nothing leaves; the middle one gets only
    from the first and gives only to the last."""
    first, middle, last = way
    out = moved.get((first, OpKind.READ, cause), 0)
    into_middle = moved.get((middle, OpKind.WRITE, cause), 0)
    into_last = moved.get((last, OpKind.WRITE, cause), 0)
    past = min(into_last, max(0, out - into_middle))
    if past < _EDGE * out:
        past = 0
    for start, end, nbytes in (
        (first, middle, into_middle),
        (first, last, past),
        (middle, last, into_last - past),
    ):
        if nbytes > 0:
            yield FlowArrow(start=start, end=end, name=cause, bytes=nbytes)


# --- the rest --------------------------------------------------------------------------------

SIZE_COLUMNS = ("min", "mean", "p50", "p95", "max")


def _sizes(run: PublishedRun) -> Iterator[Table]:
    """Sizes of the objects that storage moved, and their shares by powers of two."""
    rows = object_sizes(run)
    if not rows:
        return
    yield Table(
        title="Sizes of the objects that storage moved in the measured window",
        columns=[ShownColumn("operation"), ShownColumn("objects", units.COUNT),
                 *map(ShownColumn, SIZE_COLUMNS)],
        rows=[
            [kind, sizes.objects, *(_size(getattr(sizes, name)) for name in SIZE_COLUMNS)]
            for kind, sizes in rows.items()
        ],
        caption=objects_text(run),
    )  # fmt: skip
    yield Table.of(
        [(kind, sizes, *each) for kind, sizes in rows.items() for each in sizes.powers_of_two],
        {
            ShownColumn("operation"): lambda row: row[0],
            ShownColumn("from"): lambda row: human_bytes(row[2]),
            ShownColumn("share", units.PERCENT, bar=True): lambda row: row[3] / row[1].objects,
        },
        title="Objects from a size to below twice as much",
        detail=True,
    )


def object_sizes(run: PublishedRun) -> dict[str, ObjectSizes]:
    """Those of the objects that storage read, and wrote."""
    storage = run.tiers.get("storage")
    sides = {} if storage is None else {"read": storage.read, "write": storage.write}
    sizes = {kind: side.object_bytes for kind, side in sides.items()}
    return {kind: each for kind, each in sizes.items() if each is not None and each.objects}


def _size(nbytes: float | None) -> str:
    return "" if nbytes is None else human_bytes(nbytes)


def objects_text(run: PublishedRun) -> str:
    """What an object is made of, and how many there are on storage at the end."""
    token, storage = run.model.bytes_per_token, run.tiers.get("storage")
    texts = [] if token is None else [f"{token:,.0f} bytes a token", *_divided(run)]
    if storage is not None and storage.entries is not None:
        texts.append(f"{storage.entries:,} objects on storage at the end")
    return ", ".join(texts)


def _divided(run: PublishedRun) -> Iterator[str]:
    """Yield what of a token's bytes an object has, where that is not all of them."""
    ranks = number_at(run.config, "tiers.tensor_parallel") or 1
    if ranks > 1 and value_at(run.config, "tiers.ranks") == "all":
        yield f"in objects of {ranks:.0f} ranks"
    elif ranks > 1:
        yield f"of which one of {ranks:.0f} ranks keeps its share"
    if value_at(run.config, "semantics.object") == LAYER:
        yield "an object for each layer"


def _other_phases(rows: Sequence[OperationFacts]) -> Table:
    cells: list[list[Cell]] = [
        [phase.value, *key, sum(row.operations for row in group), _bytes(group)]
        for phase in Phase
        if phase is not Phase.MEASURE
        for key, group in _grouped(rows, phase).items()
    ]
    return Table(
        title="Outside the measured window",
        columns=[
            *map(ShownColumn, ("phase", "tier", "operation", "cause")),
            ShownColumn("operations", units.COUNT),
            ShownColumn("moved", units.GIBIBYTES),
        ],
        rows=cells,
        detail=True,
    )


# --- latencies -------------------------------------------------------------------------------


def tier_latencies(run: PublishedRun) -> list[Part]:
    """Percentiles of one operation on each tier, storage first."""
    caption = "Whole: from the call of the tier to its answer. Device: inside the calls alone."
    figures = [
        percentile_figure(
            f"One operation on the {tier} tier",
            [
                (f"{kind} {words}", side_times(run, tier, kind, name))
                for kind in (OpKind.READ, OpKind.WRITE)
                for words, name in (("whole", "total"), ("device", "device"))
            ],
            caption,
        )
        for tier in reversed(TIERS)
    ]
    return present(*figures)


def side_times(run: PublishedRun, tier: str, kind: OpKind, name: str) -> Histogram:
    """All times of one tier's reads or writes in the window, in ns."""
    return merged(
        getattr(row, f"histogram_{name}")
        for row in run.operations
        if (row.phase, row.tier, row.operation) == (Phase.MEASURE, tier, kind)
    )
