"""What preconditioning did to a device: the fill, the rounds, and whether their speed is steady;
of the command itself, or as a section of a run."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from kv_cache.core.format import figures
from kv_cache.metrics.steady import MOST_RANGE, ROUNDS
from kv_cache.result.metrics import Json
from kv_cache.result.paths import number_at
from kv_cache.result.preconditioning import (
    FillFacts,
    Preconditioned,
    PreconditionFacts,
    RoundRow,
    SteadyProof,
)
from kv_cache.result.run import MisshapenError, converted
from kv_cache.view import units
from kv_cache.view.identity import doubts, drive_texts, machine_text, origin_texts
from kv_cache.view.machine import machine_sections
from kv_cache.view.parts import (
    Band,
    FactList,
    Figure,
    Level,
    Line,
    Part,
    Scale,
    ShownColumn,
    Table,
    View,
    ViewSection,
    present,
)

_WORDS = {
    "steady": "The device is steady",
    "not-steady": "The device is not shown to be steady",
    "not-proven": "The device is not proven to be steady",
    "not-looked-for": "No steady state was looked for",
}
_ROUND = ShownColumn("round", units.COUNT)
_RATE = ShownColumn("throughput", units.GIB_PER_S)
_MOST_PASSES = 12
"""More are not drawn one by one."""


def precondition_view(section: Json) -> View:
    """The document of `precondition`. Raises MisshapenError."""
    facts = converted(section, PreconditionFacts, "")
    done = facts.preconditioning
    where = [("drive", text) for text in drive_texts(section)]
    if machine := machine_text(section):
        where.append(("machine", machine))
    return View(
        title="Preconditioning",
        status=facts.verdict,
        sentence=_sentence(facts),
        about=origin_texts(section),
        reasons=doubts(section, facts.reasons),
        sections=[
            ViewSection(
                title="Fill and rounds",
                parts=preconditioning_parts(done, section.get("config")),
                absent="Nothing was written.",
            ),
            ViewSection(title="Where", parts=present(FactList(rows=where))),
            *machine_sections(section),
        ],
    )


def _sentence(facts: PreconditionFacts) -> str:
    words = _WORDS.get(facts.verdict, facts.verdict)
    done = facts.preconditioning
    texts = [] if done.fill is None else [_fill_text(done.fill)]
    if done.rounds:
        last = _RATE.measured(done.rounds[-1].bytes_per_second)
        texts.append(f"{len(done.rounds)} rounds, the last {last}")
    rest = f": {', '.join(texts)}" if texts else ""
    return f"{words}{rest}. Preconditioning {facts.status}; nothing was measured."


def _fill_text(fill: FillFacts) -> str:
    text = f"{units.GIBIBYTES.measured(fill.bytes)} written"
    if fill.seconds:
        text += f" in {figures(fill.seconds)} s ({_RATE.measured(fill.bytes / fill.seconds)})"
    return text


def preconditioning_parts(done: Preconditioned, config: object = None) -> list[Part]:
    """The proof, the fill over time, and each round. Raises MisshapenError."""
    fill = [] if done.fill is None else [("fill", _fill_details(done.fill))]
    parts: list[Part] = [FactList(rows=[*fill, ("steady", _steady_text(done))])]
    if done.fill is not None and done.fill.rows:
        parts.append(_fill_figure(done.fill))
    if done.rounds:
        parts += _round_figures(done.rounds, done.proof, config, open_loop=done.open_loop)
        parts.append(_round_table(done.rounds))
    return parts


def _fill_details(fill: FillFacts) -> str:
    wanted = (
        "" if fill.wanted_bytes is None else f" of {units.GIBIBYTES.measured(fill.wanted_bytes)}"
    )
    area = "" if fill.area_bytes is None else f" over {units.GIBIBYTES.measured(fill.area_bytes)}"
    passes = "" if fill.passes is None else f", {figures(fill.passes)} passes{area}"
    engine = f", {fill.engine}" if fill.engine else ""
    return f"{_fill_text(fill)}{wanted}{passes}{engine}"


def _steady_text(done: Preconditioned) -> str:
    proof = done.proof
    if proof is None or proof.range_share is None or proof.slope_share is None:
        return f"{len(done.rounds or [])} rounds, too few to judge ({ROUNDS} are needed)"
    since = "" if proof.since_round is None else f", since round {proof.since_round}"
    rule = "; ".join([proof.rule, *proof.unproven])
    answer = "yes" if proof.steady and not proof.unproven else "NO"
    return (
        f"{answer}{since}: of the last {ROUNDS} rounds the range is "
        f"{units.PERCENT.measured(proof.range_share)} of the average "
        f"({_RATE.measured(proof.average)}), "
        f"the trend {units.PERCENT.measured(proof.slope_share)}; {rule}"
    )


def _round_table(rounds: Sequence[RoundRow]) -> Table:
    return Table.of(
        rounds,
        {
            _ROUND: lambda row: row.round,
            _RATE: lambda row: row.bytes_per_second,
            ShownColumn("read p95", units.MS): lambda row: row.read_p95_ms,
            ShownColumn("write p95", units.MS): lambda row: row.write_p95_ms,
            ShownColumn("requests", units.COUNT): lambda row: row.completed,
        },
        title="Rounds",
    )


# --- figures ---------------------------------------------------------------------------------


def _fill_figure(fill: FillFacts) -> Figure:
    ends = [fill.rows[0].start_s, *(row.end_s for row in fill.rows)]
    if any(after <= before for before, after in pairwise(ends)):
        raise MisshapenError("the rows of the fill do not follow each other in time")
    rates = [(row.start_s, row.bytes_per_second) for row in fill.rows]
    rates.append((ends[-1], fill.rows[-1].bytes_per_second))
    return Figure(
        title="The fill",
        x=ShownColumn("time since the fill began", units.S),
        y=ShownColumn("written", units.GIB_PER_S),
        lines=[Line.through("", rates)],
        scale=Scale.TIME,
        steps=True,
        bands=_passes(fill, ends),
    )


def _passes(fill: FillFacts, ends: Sequence[float]) -> list[Band]:
    """Each pass over the area, every second one shaded; none if there is one, or there are many."""
    total = sum(row.bytes for row in fill.rows)
    if not fill.area_bytes or not 1 < total / fill.area_bytes <= _MOST_PASSES:
        return []
    sums = [0.0, *accumulate(row.bytes for row in fill.rows)]
    borders = [ends[0]]
    for number in range(1, round(-(-total // fill.area_bytes))):
        target = number * fill.area_bytes
        at = next(index for index, written in enumerate(sums) if written >= target) - 1
        row = fill.rows[at]
        share = (target - sums[at]) / row.bytes
        borders.append(row.start_s + share * (row.end_s - row.start_s))
    return [
        Band(name=f"pass {number}", start=start, end=end, shaded=number % 2 == 0)
        for number, (start, end) in enumerate(pairwise([*borders, ends[-1]]), start=1)
    ]


def _round_figures(
    rounds: Sequence[RoundRow], proof: SteadyProof | None, config: object, *, open_loop: bool
) -> Iterator[Figure]:
    lines = [_line("read + write", rounds, "bytes_per_second")]
    levels = []
    average = None if proof is None else proof.average
    if average is not None and len(rounds) >= ROUNDS:
        half = _most_range(config) / 2
        levels = [
            Level(name="average", y=average),
            Level(name=f"-{units.PERCENT.measured(half)}", y=average * (1 - half)),
            Level(name=f"+{units.PERCENT.measured(half)}", y=average * (1 + half)),
        ]
        lines.append(_best_fit(rounds[-ROUNDS:]))
    yield Figure(
        title="Storage throughput of each round", x=_ROUND, y=_RATE, lines=lines, whole=True,
        levels=levels,
    )  # fmt: skip
    latencies = [_line("read", rounds, "read_p95_ms"), _line("write", rounds, "write_p95_ms")]
    if open_loop and any(line.points for line in latencies):
        yield Figure(
            title="p95 of storage reads and writes in each round", x=_ROUND,
            y=ShownColumn("time", units.MS), lines=latencies, whole=True, log_y=True,
        )  # fmt: skip


def _most_range(config: object) -> float:
    """The share of the average that the range of the last rounds may be."""
    value = number_at(config, "passport.most_round_range") if isinstance(config, Mapping) else None
    return MOST_RANGE if value is None else value


def _line(name: str, rounds: Sequence[RoundRow], field: str) -> Line:
    return Line.through(name, [(row.round, getattr(row, field)) for row in rounds])


def _best_fit(rounds: Sequence[RoundRow]) -> Line:
    """The least-squares line through the rounds that are judged."""
    xs, ys = [row.round for row in rounds], [row.bytes_per_second for row in rounds]
    middle, mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle) ** 2 for x in xs)
    if not spread:
        raise MisshapenError("the rounds do not count up")
    slope = sum((x - middle) * (y - mean) for x, y in zip(xs, ys, strict=True)) / spread
    ends = [(x, mean + slope * (x - middle)) for x in (xs[0], xs[-1])]
    return Line.through("best fit of the last five", ends, muted=True)
