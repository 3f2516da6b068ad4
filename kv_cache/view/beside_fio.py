"""What a run measured beside fio, which did the same I/O."""

from collections.abc import Iterator, Sequence

from kv_cache.core.format import figures
from kv_cache.core.units import GIB, NS_PER_S
from kv_cache.files.fio import PERCENTILES, Twin
from kv_cache.files.fio_report import Answer, ours
from kv_cache.view import units
from kv_cache.view.parts import Cell, Remarks, ShownColumn, Table, View, ViewSection, present

_Pair = tuple[str, float | None, float | None]
"""A number's name with its unit, ours and fio's."""


def beside_fio_view(twin: Twin, answer: Answer, notes: Sequence[str]) -> View:
    """Both programs' numbers, and in what the two are unlike."""
    shares = [
        f"{figures(_ratio(ours(side, twin.window_s).bytes_per_s, fio.bytes_per_s))} in {side.kind}s"
        for side in twin.sides
        for fio in (answer.sides[side.kind],)
    ]
    columns = [ShownColumn(""), *(ShownColumn(name, units.COUNT) for name in _COLUMNS)]
    rows: list[list[Cell]] = [
        [name, mine, fio, _ratio(mine, fio)] for name, mine, fio in _pairs(twin, answer)
    ]
    return View(
        title="Beside fio",
        status="compared",
        sentence=f"Of what {answer.version} moved a second the run moved {', '.join(shares)}.",
        about=[],
        sections=[
            ViewSection(title="Side by side", parts=[Table(columns=columns, rows=rows)]),
            ViewSection(title="How they differ", parts=present(Remarks(texts=list(notes)))),
        ],
    )


_COLUMNS = ("ours", "fio", "ours/fio")


def _ratio(mine: float | None, fio: float | None) -> float | None:
    return mine / fio if fio and mine is not None else None


def _pairs(twin: Twin, answer: Answer) -> Iterator[_Pair]:
    for side in twin.sides:
        mine, fio = ours(side, twin.window_s), answer.sides[side.kind]
        yield f"{side.kind}, GiB/s", mine.bytes_per_s / GIB, fio.bytes_per_s / GIB
        for percent in PERCENTILES:
            own_ns, fio_ns = mine.latency_ns[percent], fio.latency_ns[percent]
            yield (
                f"{side.kind} p{percent:.0f}, ms",
                own_ns and own_ns / 1e6,
                fio_ns and fio_ns / 1e6,
            )
    if twin.cpu_ns is not None:
        own_cpu = twin.cpu_ns / (sum(side.nbytes for side in twin.sides) / GIB)
        yield "CPU, s/GiB", own_cpu / NS_PER_S, answer.cpu_ns_per_gib / NS_PER_S
