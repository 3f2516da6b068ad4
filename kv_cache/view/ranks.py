"""What several ranks that ran together show: all of them as one, and each in a line.

Percentiles are those of merged histograms. What each rank saw over time stands in its own result,
which is inside the document.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import fsum

from kv_cache.core.format import as_text, figures
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import MISSING
from kv_cache.result.metrics import METRICS, Json
from kv_cache.result.paths import value_at
from kv_cache.result.published import PublishedRank, PublishedRun, WindowFacts, published
from kv_cache.result.run import SECTION
from kv_cache.view import series, units
from kv_cache.view.counts import counted_facts
from kv_cache.view.identity import doubts, identity_facts, origin_texts
from kv_cache.view.latency import bounded
from kv_cache.view.machine import machine_sections
from kv_cache.view.parts import (
    Cell,
    FactList,
    Figure,
    KeyNumber,
    KeyNumbers,
    Part,
    Remarks,
    ShownColumn,
    Table,
    View,
    ViewSection,
    hidden_section,
    present,
)
from kv_cache.view.run import (
    VIRTUAL,
    flow_sections,
    headline_sentence,
    key_numbers,
    latency_sections,
    metric_column,
    not_timed,
    passport_section,
    requests_sentence,
    tier_table,
    traced_only,
)

_COLUMNS = (
    *("storage.read.bytes_per_second", "storage.write.bytes_per_second"),
    *("storage.read.device_ms.p95", "storage.write.device_ms.p95"),
    *("requests_per_second", "response_ms.p95"),
)
_MOST_LINES = 8
_SKEW = ShownColumn("Start skew", units.MS_OF_NS)


def ranks_view(section: Json) -> View:
    """Ranks as one, from the section `kv_cache` of their document. Raises MisshapenError."""
    run = published(section)
    return View(
        title="Run of several ranks",
        status=run.passport.verdict,
        sentence=_sentence(run, section),
        about=origin_texts(section),
        reasons=doubts(section, run.passport.reasons),
        sections=list(_sections(run, section)),
    )


def _sentence(run: PublishedRun, section: Json) -> str:
    rows = run.ranks or []
    counted = sum(row.counted for row in rows)
    expected = run.crew.expected if run.crew is not None and run.crew.expected else len(rows)
    headline = "" if traced_only(run) or not counted else headline_sentence(section)
    text = f"{headline}{counted} of {expected} ranks count. {requests_sentence(run)}"
    if run.crew is not None and run.crew.ended_early:
        text += f" Ended early for all: {run.crew.ended_early}."
    if run.driver is not None and not run.measured_bytes:
        text += f" {VIRTUAL}"
    return text


def _sections(run: PublishedRun, section: Json) -> Iterator[ViewSection]:
    timed = not_timed(run)
    counted = any(row.counted for row in run.ranks or [])
    if not timed and counted:
        yield hidden_section("Headline", [_headline(run, section)])
    yield hidden_section(
        "Over time",
        [] if timed else _over_time(run),
        timed or "No rank that counts has windows: nothing is known of how it went.",
    )
    yield ViewSection(title="Know first", parts=present(Remarks(texts=run.notes)))
    yield ViewSection(title="What ran", parts=[FactList(rows=identity_facts(section))])
    if counted:
        glance = FactList(rows=[*counted_facts(run), *_start(run)])
        yield ViewSection(title="All ranks", parts=[tier_table(run), glance])
    yield ViewSection(title="Each rank", parts=_rank_parts(run), absent="There are no ranks.")
    yield ViewSection(
        title="Together",
        parts=list(_together(run)),
        absent="Nothing is known of when each rank began.",
    )
    yield from latency_sections(run)
    yield from flow_sections(run)
    yield passport_section(run)
    yield ViewSection(
        title="Not in this report",
        parts=[],
        absent="Each rank has a result of its own, which is inside this document and in the "
        "rank's own file: give that file to report.",
    )
    yield from machine_sections(section)


def _headline(run: PublishedRun, section: Json) -> KeyNumbers:
    numbers = list(key_numbers(run, section).numbers)
    if run.crew is not None and run.crew.start_skew_ns is not None:
        error = run.crew.start_skew_error_ns
        note = "" if error is None else f"± {_SKEW.measured(error)}"
        numbers.append(KeyNumber(column=_SKEW, value=run.crew.start_skew_ns, note=note))
    return KeyNumbers(numbers=numbers)


def _start(run: PublishedRun) -> Iterator[tuple[str, str]]:
    """How far apart they began; in virtual time each has a clock of its own."""
    crew = run.crew
    if crew is None or not run.measured_bytes:
        return
    if crew.start_skew_ns is None:
        yield "start", "skew not known: not every rank has opened its window"
    else:
        error = _SKEW.measured(crew.start_skew_error_ns)
        yield "start", f"skew {_SKEW.measured(crew.start_skew_ns)} ± {error}"


# --- each rank -------------------------------------------------------------------------------


def _rank_parts(run: PublishedRun) -> list[Part]:
    rows = run.ranks or []
    numbers = Table.of(
        rows,
        {
            ShownColumn("rank"): lambda row: str(row.rank),
            ShownColumn("host"): lambda row: row.host or "",
            ShownColumn("verdict", status=True): lambda row: (
                row.verdict or MISSING if row.counted else "not counted"
            ),
            **{metric_column(METRICS[name]): partial(_number, name=name) for name in _COLUMNS},
        },
    )
    reasons = [f"Rank {row.rank}: {text}" for row in rows for text in _reasons(row)]
    seeds = Table.of(
        rows,
        {
            ShownColumn("rank"): lambda row: str(row.rank),
            ShownColumn("seed"): lambda row: as_text(row.seed),
            ShownColumn("measured", units.S): lambda row: row.window_s,
            ShownColumn("fingerprint of its result"): lambda row: row.fingerprint or "",
        },
        title="What each rank ran",
        detail=True,
    )
    return present(numbers, Remarks(texts=reasons), seeds)


def _number(row: PublishedRank, name: str) -> Cell:
    return bounded(METRICS[name], (row.figures or {}).get(name), name in row.at_least)


def _reasons(row: PublishedRank) -> list[str]:
    return [text for text in (row.why_not, row.lost) if text] + row.reasons


# --- together --------------------------------------------------------------------------------


def _together(run: PublishedRun) -> Iterator[Part]:
    """How far they measured at the same time, and when each began."""
    span = run.together
    if span is not None and span.shared_s is not None and span.span_s is not None:
        share = units.PERCENT.measured(span.shared_share)
        text = (
            f"All ranks measured at the same time for {figures(span.shared_s)} s of "
            f"{figures(span.span_s)} s ({share}), from the begin of the first to the end of the "
            "last."
        )
        yield Remarks(texts=[text])
    members = [] if run.crew is None else run.crew.members
    opened = [member.opened_ns for member in members if member.opened_ns is not None]
    if not opened:
        return
    first = min(opened)
    yield Table.of(
        members,
        {
            ShownColumn("rank"): lambda member: str(member.rank),
            ShownColumn("host"): lambda member: member.host or "",
            ShownColumn("began after the first", units.MS_OF_NS): lambda member: (
                None if member.opened_ns is None else member.opened_ns - first
            ),
            ShownColumn("known to ±", units.MS_OF_NS): lambda member: member.offset_error_ns,
            ShownColumn("clock ahead by", units.MS_OF_NS): lambda member: member.offset_ns,
        },
        title="When each rank began",
        caption="A rank begins when it lets its first request in. Instants of several machines are "
        "compared after their clocks' offsets were measured.",
    )


# --- over time -------------------------------------------------------------------------------


def _over_time(run: PublishedRun) -> list[Part]:
    """The storage throughput of each rank, and of all, since each one's window opened."""
    measured = {str(row.rank): _measured(row) for row in run.ranks or [] if row.counted}
    known = {rank: windows for rank, windows in measured.items() if windows}
    if not known:
        return []
    step = series.common_step(list(known.values()))
    note = f"Each point is {figures(step)} s. Each rank's time begins with its measured window."
    if len(known) > _MOST_LINES:
        note += f" {len(known)} ranks are too many lines, so only the sum is drawn."
    return [
        Remarks(texts=[note], detail=True),
        *(_figure(kind, step, known) for kind in (OpKind.READ.value, OpKind.WRITE.value)),
    ]


def _measured(row: PublishedRank) -> list[WindowFacts]:
    """The measured windows of one rank's own result."""
    section = value_at(row.result, SECTION)
    if not isinstance(section, Mapping):
        return []
    return series.measured_windows(published(section))


def _figure(kind: str, step: float, measured: Mapping[str, Sequence[WindowFacts]]) -> Figure:
    rate = series.side_rate("storage", kind)
    rates = {rank: series.stepped(windows, step, rate) for rank, windows in measured.items()}
    steps = sorted({at for each in rates.values() for at in each})
    everywhere = [at for at in steps if all(at in each for each in rates.values())]
    lines = {"all ranks": {at: fsum(each[at] for each in rates.values()) for at in everywhere}}
    if len(rates) <= _MOST_LINES:
        lines |= {f"rank {rank}": each for rank, each in rates.items()}
    return series.stepped_figure(
        f"Storage {kind}", ShownColumn("moved", units.GIB_PER_S), lines, step
    )
