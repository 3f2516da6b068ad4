"""What the profile of a measured device shows: the fastest it was, and bandwidth and times by size
of object and concurrency."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from kv_cache.config.profile import Cell as GridCell
from kv_cache.config.profile import Profile, RefusedCell, Service, profile_of
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import KIB, human_bytes
from kv_cache.metrics.histogram import supported
from kv_cache.result.metrics import Json
from kv_cache.result.probe import ProbeFacts
from kv_cache.result.run import MisshapenError, converted
from kv_cache.view import units
from kv_cache.view.parts import (
    Cell,
    FactList,
    Figure,
    Line,
    Part,
    PlotPoint,
    Remarks,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    present,
)

_SMALL_BYTES = 64 * KIB
"""Objects of this size and smaller are sold by operations/s."""
_FAR_BELOW = 0.75
"""Share of the operations that were to be in flight, below which it is the machine that is slow."""
_SIZE = ShownColumn("object", units.MEBIBYTES)
_SMALL_SIZE = ShownColumn("object", units.KIBIBYTES)
_IN_FLIGHT = ShownColumn("in flight", units.COUNT)
_RATE = ShownColumn("bandwidth", units.GIB_PER_S)
_OPERATIONS = ShownColumn("operations", units.PER_S)
_TIME = ShownColumn("time", units.MS_OF_NS)

Value = Callable[[GridCell], float | None]
Steps = Mapping[tuple[float, bool], GridCell]
"""The cells of one size and concurrency, by share of reads and whether data was read before."""
RowValue = Callable[[Steps], Cell]


def probe_view(section: Json) -> View:
    """The profile of a device, from the values of its file. Raises MisshapenError."""
    try:
        profile = profile_of(section, Path("of a device"))
    except ConfigError as error:
        raise MisshapenError(str(error)) from None
    facts = converted(section, ProbeFacts, "")
    whole = not facts.refused and not facts.probe.failed_operations
    return View(
        title="Device profile",
        status="complete" if whole else "incomplete",
        sentence=_sentence(profile),
        about=list(_about(facts)),
        sections=list(_sections(profile, facts)),
    )


def _about(facts: ProbeFacts) -> Iterator[str]:
    """Device with its model, file system, data, date and version."""
    name = facts.device.name or "no device of its own"
    yield f"{name} ({facts.device.model})" if facts.device.model else name
    if facts.filesystem.type:
        yield facts.filesystem.type
    if facts.probe.data_bytes is not None:
        yield f"{human_bytes(facts.probe.data_bytes)} of data"
    if facts.probe.wall_seconds is not None:
        yield f"{facts.probe.wall_seconds:.0f} s"
    if facts.measured_utc:
        yield facts.measured_utc[:10]
    if facts.program_version:
        yield f"kv-cache {facts.program_version}"


def _sections(profile: Profile, facts: ProbeFacts) -> Iterator[ViewSection]:
    yield hidden_section("Operations", _operations(profile))
    yield hidden_section("Bandwidth", _bandwidths(profile))
    yield hidden_section("Times", _times(profile))
    yield ViewSection(title="Grid", parts=[_grid(profile)])
    notes = [*facts.notes, *_of_the_machine(profile), *refusal_texts(facts.refused)]
    yield ViewSection(title="Know first", parts=present(Remarks(texts=notes)))
    yield hidden_section("Bursts", present(_bursts(profile)))
    how = present(FactList(rows=list(_how(facts))))
    yield hidden_section("How it was measured", how)


# --- the answer ------------------------------------------------------------------------------


def _sentence(profile: Profile) -> str:
    """The fastest reads and writes, in operations too where objects are small, and how long the
    smallest object takes alone."""
    reads, writes = _step(profile, OpKind.READ), _step(profile, OpKind.WRITE)
    steps = {"reads": reads, "writes": writes} if reads or writes else {"moves": profile.cells}
    fastest = [f"{verb} up to {_fastest(cells)}" for verb, cells in steps.items() if cells]
    return f"The device {' and '.join(fastest)}{_alone(reads)}."


def _fastest(cells: Sequence[GridCell]) -> str:
    best = max(cells, key=lambda cell: cell.bytes_per_second)
    text = f"{_RATE.measured(best.bytes_per_second)} ({_point_text(best)})"
    most = max(filter(_is_small, cells), key=_operations_per_s, default=None)
    if most is None:
        return text
    return f"{text}, {units.COUNT.text(_operations_per_s(most))} operations/s ({_point_text(most)})"


def _point_text(cell: GridCell) -> str:
    return f"{human_bytes(cell.object_bytes)}, {cell.concurrency} in flight"


def _is_small(cell: GridCell) -> bool:
    return cell.object_bytes <= _SMALL_BYTES


def _operations_per_s(cell: GridCell) -> float:
    return cell.bytes_per_second / cell.object_bytes


def _moved_bytes(cell: GridCell) -> int:
    return cell.device_bytes or cell.object_bytes


def _size_column(profile: Profile) -> ShownColumn:
    return _SMALL_SIZE if any(map(_is_small, profile.cells)) else _SIZE


def _alone(reads: Sequence[GridCell]) -> str:
    """How long the smallest object takes where nothing else is in flight; empty if not known."""
    alone = [cell for cell in reads if cell.concurrency == 1]
    least = min(alone, key=lambda cell: cell.object_bytes, default=None)
    median = None if least is None else _percentile(least.reads, 50)
    if least is None or median is None:
        return ""
    return f"; a {human_bytes(least.object_bytes)} read alone takes {_TIME.measured(median)} (p50)"


def _step(profile: Profile, kind: OpKind) -> list[GridCell]:
    """The cells of that kind alone, on data that was not read before."""
    share = 1.0 if kind is OpKind.READ else 0.0
    return [cell for cell in profile.cells if cell.read_share == share and not cell.repeated]


def _percentile(service: Service | None, percent: int) -> float | None:
    """The p50 or p99 in ns; None where too few operations support it."""
    if service is None or not supported(service.operations, percent):
        return None
    return service.p50_ns if percent == 50 else service.p99_ns


# --- the table -------------------------------------------------------------------------------


def _grid(profile: Profile) -> Table:
    """A row for each size and concurrency; rates of both kinds together where they are mixed. Where
    objects are small, with operations/s, and with what the device moves if that is more."""
    shares = sorted({cell.read_share for cell in profile.cells} - {0.0, 1.0})
    columns: dict[ShownColumn, RowValue] = {
        _size_column(profile): lambda steps: _any_of(steps).object_bytes,
        _IN_FLIGHT: lambda steps: _any_of(steps).concurrency,
        **_side(profile, OpKind.READ),
        ShownColumn("read again", units.GIB_PER_S): lambda steps: _rate(steps.get((1.0, True))),
        **{
            ShownColumn(
                "mixed" if share == 0.5 else f"{100 * share:g} % reads", units.GIB_PER_S
            ): partial(_rate_of, share)
            for share in shares
        },
        **_side(profile, OpKind.WRITE),
    }
    if any(cell.device_bytes for cell in profile.cells):
        columns[ShownColumn("moved for one", units.KIBIBYTES)] = lambda steps: _moved_bytes(
            _any_of(steps)
        )
    if any(map(_is_small, profile.cells)):
        columns[ShownColumn("data path")] = lambda steps: _any_of(steps).data_path
    ranked = sorted(profile.cells, key=_point)
    rows = [
        {(cell.read_share, cell.repeated): cell for cell in cells}
        for _, cells in groupby(ranked, key=_point)
    ]
    return Table.of(
        rows, columns, caption="Again: the same data once more, which a cache may hold."
    )


def _side(profile: Profile, kind: OpKind) -> dict[ShownColumn, RowValue]:
    share = 1.0 if kind is OpKind.READ else 0.0
    word = kind.value
    columns: dict[ShownColumn, RowValue] = {
        ShownColumn(word, units.GIB_PER_S): partial(_rate_of, share)
    }
    if any(cell.device_bytes for cell in profile.cells):
        columns[ShownColumn(f"{word} by device", units.GIB_PER_S)] = partial(_device_rate, share)
    if any(map(_is_small, profile.cells)):
        columns[ShownColumn(word, units.PER_S)] = partial(_operations_of, share)
    for percent in (50, 99):
        columns[ShownColumn(f"{word} p{percent}", units.MS_OF_NS)] = partial(
            _time_in, share, kind, percent
        )
    return columns


def _point(cell: GridCell) -> tuple[int, int]:
    return cell.object_bytes, cell.concurrency


def _any_of(steps: Steps) -> GridCell:
    return next(iter(steps.values()))


def _rate_of(share: float, steps: Steps) -> float | None:
    return _rate(steps.get((share, False)))


def _device_rate(share: float, steps: Steps) -> float | None:
    cell = steps.get((share, False))
    return None if cell is None else _operations_per_s(cell) * _moved_bytes(cell)


def _operations_of(share: float, steps: Steps) -> float | None:
    cell = steps.get((share, False))
    return None if cell is None else _operations_per_s(cell)


def _time_in(share: float, kind: OpKind, percent: int, steps: Steps) -> float | None:
    cell = steps.get((share, False))
    return None if cell is None else _percentile(cell.of(kind), percent)


def _rate(cell: GridCell | None) -> float | None:
    return None if cell is None else cell.bytes_per_second


def _of_the_machine(profile: Profile) -> Iterator[str]:
    """Yield where far fewer operations were inside system calls than were to be in flight."""
    least: dict[str, float] = {}
    for cell in sorted(profile.cells, key=_point):
        if cell.in_flight < _FAR_BELOW * cell.concurrency:
            point = f"{human_bytes(cell.object_bytes)} x{cell.concurrency}"
            least[point] = min(cell.in_flight, least.get(point, cell.in_flight))
    if least:
        points = ", ".join(f"{point} ({number:.2g} in flight)" for point, number in least.items())
        yield (
            f"this machine could not ask fast enough: {points}: there the bandwidth is the "
            "machine's, and the device may do more; use more cores, or stop what else runs here"
        )


def refusal_texts(refused: Sequence[RefusedCell]) -> Iterator[str]:
    """Yield what was not measured, by reason."""
    points: dict[str, dict[str, None]] = {}
    for step in refused:
        point = f"{human_bytes(step.object_bytes)} x{step.concurrency}"
        points.setdefault(step.reason, {})[point] = None
    for reason, each in points.items():
        yield f"not measured: {', '.join(each)}: {reason}"


def _bursts(profile: Profile) -> Table:
    return Table.of(
        profile.bursts,
        {
            _size_column(profile): lambda burst: burst.object_bytes,
            _IN_FLIGHT: lambda burst: burst.concurrency,
            ShownColumn("operation"): lambda burst: burst.kind,
            ShownColumn("mean", units.MS_OF_NS): lambda burst: burst.mean_ns,
            ShownColumn("last", units.MS_OF_NS): lambda burst: burst.last_ns,
            ShownColumn("mean of last", units.PERCENT): lambda burst: burst.mean_ns / burst.last_ns,
        },
        caption="Begun at one instant on an idle device: a mean of about half of the last says "
        "that it serves in order.",
    )


def _how(facts: ProbeFacts) -> Iterator[tuple[str, str]]:
    block = facts.io.block_bytes
    rows = (
        ("cache directory", facts.cache_dir),
        ("kernel", facts.kernel),
        ("engine", facts.io.engine),
        ("layout", facts.io.layout),
        ("fsync", facts.io.fsync),
        ("least direct I/O", "" if block is None else human_bytes(block)),
        ("objects verified", _whole(facts.probe.verified_objects)),
        ("operations failed", _whole(facts.probe.failed_operations)),
        ("measured", facts.measured_utc),
    )
    yield from ((name, text) for name, text in rows if text)


def _whole(count: int | None) -> str:
    return "" if count is None else ShownColumn("", units.COUNT).text(count)


# --- figures ---------------------------------------------------------------------------------


def _operations(profile: Profile) -> list[Part]:
    """Operations/s over the size of objects, where some are small."""
    if not any(map(_is_small, profile.cells)):
        return []
    return present(*(
        _figure(f"{kind.value.capitalize()} operations", _OPERATIONS, _step(profile, kind),
                _operations_per_s, log_y=True)
        for kind in (OpKind.READ, OpKind.WRITE)
    ))  # fmt: skip


def _bandwidths(profile: Profile) -> list[Part]:
    again = [cell for cell in profile.cells if cell.read_share == 1.0 and cell.repeated]
    small = any(map(_is_small, profile.cells))  # beside which large ones would be all that is seen
    return present(
        _figure("Read", _RATE, _step(profile, OpKind.READ), _rate, log_y=small),
        _figure("Write", _RATE, _step(profile, OpKind.WRITE), _rate, log_y=small),
        _figure("Read again", _RATE, again, _rate, log_y=small, detail=True),
    )


def _times(profile: Profile) -> list[Part]:
    return present(*(
        _figure(f"{kind.value.capitalize()} p{percent}", _TIME, _step(profile, kind),
                _time_of(kind, percent), log_y=True)
        for kind in (OpKind.READ, OpKind.WRITE)
        for percent in (50, 99)
    ))  # fmt: skip


def _time_of(kind: OpKind, percent: int) -> Value:
    return lambda cell: _percentile(cell.of(kind), percent)


def _figure(
    title: str,
    y: ShownColumn,
    cells: Sequence[GridCell],
    value: Value,
    *,
    log_y: bool = False,
    detail: bool = False,
) -> Figure:
    """A line for each concurrency over the size of objects; of one size, one over concurrency."""
    several = len({cell.object_bytes for cell in cells}) > 1
    sizes = _SMALL_SIZE if any(map(_is_small, cells)) else _SIZE
    x = sizes if several else _IN_FLIGHT
    lines: dict[str, list[PlotPoint]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.concurrency, cell.object_bytes)):
        height = value(cell)
        if height is not None:
            at = cell.object_bytes if several else cell.concurrency
            name = f"{cell.concurrency} in flight" if several else ""
            lines.setdefault(name, []).append(PlotPoint(x=at, y=height))
    return Figure(
        title=title,
        x=x,
        y=y,
        lines=[Line(name=name, points=points) for name, points in lines.items()],
        scale=Scale.LOG,
        axis=sorted({c.object_bytes if several else c.concurrency for c in cells}),
        log_y=log_y,
        detail=detail,
    )
