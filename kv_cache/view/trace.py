"""What a trace shows, or what synthetic users ask: arrivals, lengths, sessions, and what caches of
any size would find."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import PurePath

from kv_cache.core.format import figures
from kv_cache.result.metrics import Json
from kv_cache.result.run import MisshapenError, converted
from kv_cache.result.trace import TraceFacts
from kv_cache.view import units
from kv_cache.view.identity import origin_texts, trace_text
from kv_cache.view.parts import (
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
from kv_cache.workload.distribution import Spread

_SINCE = ShownColumn("time since the first request", units.S)
_CACHE = ShownColumn("cache", units.GIBIBYTES)

Fact = tuple[str, str]


def trace_view(section: Json) -> View:
    """The document of `trace stats`. Raises MisshapenError."""
    facts = converted(section, TraceFacts, "")
    return View(
        title=_title(facts),
        status="synthetic" if facts.rows is None else "trace",
        sentence=_sentence(facts),
        about=origin_texts(section),
        sections=[
            ViewSection(title="Pictures", parts=_pictures(facts)),
            ViewSection(title="Requests", parts=[FactList(rows=list(_request_facts(facts)))]),
            ViewSection(title="Tokens", parts=[_tokens(facts)] if _moves_blocks(facts) else []),
            ViewSection(title="Arrivals", parts=[FactList(rows=list(_arrival_facts(facts)))]),
            ViewSection(title="Reuse", parts=[*_reuse_parts(facts)]),
        ],
    )


def _title(facts: TraceFacts) -> str:
    files = facts.workload.files
    if facts.rows is None or not files:
        return f"What {figures(facts.workload.users)} synthetic users ask"
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"Trace {PurePath(files[0]).name}{more}"


def _moves_blocks(facts: TraceFacts) -> bool:
    """False for a trace of I/O operations, which says objects and their sizes."""
    return facts.operations != facts.requests


def _sentence(facts: TraceFacts) -> str:
    reuse = facts.reuse
    blocks = f"{reuse.references:,} {_blocks_text(facts)}, {reuse.unique_blocks:,} of them unique"
    text = f"{facts.requests:,} requests for {blocks} ({units.bytes_text(reuse.footprint_bytes)})"
    if not reuse.hits:
        return f"{text}. Nothing that is asked for is known to have been asked for before."
    blocks, tokens = map(units.PERCENT.measured, (reuse.hit_ratio, reuse.token_hit_ratio))
    return f"{text}. A cache without limits finds {blocks} of the blocks, {tokens} of the tokens."


def _blocks_text(facts: TraceFacts) -> str:
    size = facts.model.block_tokens
    if not _moves_blocks(facts):
        return "objects"
    return f"blocks of {size} tokens" if size else "objects, one a turn"


# --- facts -----------------------------------------------------------------------------------


def _request_facts(facts: TraceFacts) -> Iterator[Fact]:
    retrieving = f", {facts.retrieving:,} of them of RAG" if facts.retrieving else ""
    yield "requests", f"{facts.requests:,}{retrieving}"
    if facts.rows is None:
        yield "users", f"{figures(facts.workload.users)} synthetic users"
    else:
        yield "trace", trace_text(facts.workload)
        rest = "".join(f"; {k.replace('_', ' ')} {n:,}" for k, n in facts.rows.notes.items())
        yield "rows", f"{facts.rows.good:,} good, {facts.rows.bad:,} bad{rest}"
    if facts.models:
        shown = ", ".join(f"{row.name} {row.requests:,}" for row in facts.models[:3])
        yield "models", f"{shown}{', ...' if len(facts.models) > 3 else ''}"
    if facts.operations:
        writes = facts.operations - facts.reads
        yield "I/O", f"{facts.reads:,} reads, {writes:,} writes of objects of their own sizes"
    if _moves_blocks(facts):
        model = facts.model
        size = f"{figures(model.bytes_per_token / 1024)} KiB a token"
        yield "sizes", f"{model.name}, {size}, {_blocks_text(facts)}"


def _tokens(facts: TraceFacts) -> Table:
    spreads = {"prompt": facts.tokens.prompt, "output": facts.tokens.output}
    heads = ("total", "mean", "p50", "p90", "p95", "p99", "most")
    return Table(
        columns=[ShownColumn("tokens"), *(ShownColumn(head, units.COUNT) for head in heads)],
        rows=[
            [name, *(getattr(spread, head) for head in heads)]
            for name, spread in spreads.items()
            if spread is not None
        ],
    )


def _arrival_facts(facts: TraceFacts) -> Iterator[Fact]:
    arrivals = facts.arrivals
    if facts.workload.source == "sessions":
        users = f"{figures(facts.workload.users)} sessions at the same time (--trace-users)"
        yield "planned", f"up to {users}, each request answered at once"
    if arrivals.per_s is None:
        timed = facts.rows is None or facts.rows.timed
        why = "all at one instant" if timed else "no instants: each as the one before is answered"
        yield "arrivals", why
    else:
        cv = "" if arrivals.gap_cv is None else f"; CV of gaps {figures(arrivals.gap_cv)}"
        rate = f"{figures(arrivals.per_s)} requests/s over {_seconds(arrivals.span_s)}{cv}"
        gap = f"longest gap {_seconds(arrivals.longest_gap_s)}"
        yield "arrivals", f"{rate} (Poisson: 1), {gap}"
        bursts = [f"{figures(d.index)} in {_seconds(d.window_s)}" for d in arrivals.dispersion]
        if bursts:
            yield "bursts", f"variance/mean of counts: {', '.join(bursts)}"
    yield from _session_facts(facts)


def _session_facts(facts: TraceFacts) -> Iterator[Fact]:
    sessions = facts.sessions
    if sessions is None:
        yield "sessions", "none given"
        return
    turns = "" if sessions.turns is None else f"; turns {_spread(sessions.turns, figures)}"
    yield "sessions", f"{sessions.sessions:,} ({sessions.one_turn:,} of one turn){turns}"
    if sessions.think_s is not None:
        yield "think time", _spread(sessions.think_s, _seconds)
    if sessions.step_s is not None and facts.arrivals.per_s is not None:
        yield "turn to turn", _spread(sessions.step_s, _seconds)


def _reuse_parts(facts: TraceFacts) -> Iterator[FactList | Table]:
    yield FactList(rows=list(_reuse_facts(facts)))
    if facts.reuse.hits:
        yield Table.of(
            facts.reuse.lru,
            {
                ShownColumn("share of unique blocks", units.PERCENT): lambda row: row.share,
                ShownColumn("blocks", units.COUNT): lambda row: row.blocks,
                ShownColumn("size", units.GIBIBYTES): lambda row: row.nbytes,
                ShownColumn("hit ratio", units.PERCENT): lambda row: row.hit_ratio,
            },
            title="LRU caches",
        )


def _reuse_facts(facts: TraceFacts) -> Iterator[Fact]:
    reuse = facts.reuse
    if reuse.never_again:
        blocks = f"{reuse.never_again:,} blocks of rows that name neither content nor session"
        yield "once only", f"{blocks}: no request can ask for them again"
    if not reuse.hits:
        yield "hits", "none: nothing is known to have been asked for before"
        return
    blocks, tokens = map(units.PERCENT.measured, (reuse.hit_ratio, reuse.token_hit_ratio))
    yield "unlimited", f"{blocks} of blocks, {tokens} of tokens"
    if reuse.prefix_hits != reuse.hits:
        yield "leading blocks", f"{units.PERCENT.measured(reuse.prefix_hit_ratio)} of blocks"
    if reuse.own_hits is not None and reuse.own_hits != reuse.hits:
        share = units.PERCENT.measured(reuse.own_hit_ratio)
        yield "by session", f"{share} of blocks, each session for itself"
    if reuse.distance_blocks is not None:
        yield "distance", f"{_spread(reuse.distance_blocks, figures)} other blocks in between"
    if reuse.time_s is not None and reuse.time_s.most:
        yield "since", f"{_spread(reuse.time_s, _seconds)} since the block was asked for"
    for row in reuse.working_sets:
        size = f"{row.blocks:,.0f} blocks, {units.bytes_text(row.nbytes)}"
        yield f"last {_seconds(row.window_s)}", f"working set of {size} (mean)"


# --- pictures --------------------------------------------------------------------------------


def _pictures(facts: TraceFacts) -> list[Part]:
    if not facts.requests:
        return []
    sessions, reuse, tokens = facts.sessions, facts.reuse, facts.tokens
    timed = facts.arrivals.per_s is not None
    named = {"prompt": tokens.prompt, "output": tokens.output}
    steps = {} if sessions is None else {"thought": sessions.think_s, "step": sessions.step_s}
    turns = {} if sessions is None else {"turns": sessions.turns}
    seconds = ShownColumn("time", units.S)
    every = [
        _arrivals(facts),
        _growth(facts),
        _distribution(facts, "Tokens of a request", ShownColumn("tokens", units.COUNT), named),
        _misses(facts),
        _distribution(
            facts, "Time since a reused block was asked for", seconds, {"reuse": reuse.time_s}
        ),
        _distribution(
            facts, "Turns of a session", ShownColumn("turns", units.COUNT), turns, least=1
        ),
        _distribution(facts, "Time from turn to turn", seconds, steps) if timed else None,
    ]
    return present(*every)


def _arrivals(facts: TraceFacts) -> Figure | None:
    """Requests in each stretch of time."""
    arrivals = facts.arrivals
    mean, width, counts = arrivals.per_s, arrivals.bin_s, list(arrivals.bins)
    if not mean or not width or not counts:
        return None
    ends = [index * width for index in range(len(counts))] + [arrivals.span_s]
    if ends[-2] >= arrivals.span_s:
        counts, ends = counts[:-1], ends[:-1]
    widths = [end - begin for begin, end in pairwise(ends)]
    rates = [count / each for count, each in zip(counts, widths, strict=True)]
    if widths and widths[-1] < width / 2:  # of a scrap one request more or less is a high rate
        rates[-1] = rates[-2] if len(rates) > 1 else mean
    if not rates:
        return None
    return Figure(
        title=f"Arrivals in each {figures(width)} s",
        x=_SINCE,
        y=ShownColumn("arrivals", units.DisplayUnit("requests/s")),
        lines=[Line.through("", zip(ends, [*rates, rates[-1]], strict=True))],
        scale=Scale.TIME,
        steps=True,
        levels=[Level(name="mean", y=mean)],
    )


def _growth(facts: TraceFacts) -> Figure | None:
    """What a cache that drops nothing would hold."""
    rows = facts.reuse.growth
    timed = bool(facts.arrivals.per_s)
    sizes = [(row.at_s if timed else float(row.requests), row.unique_bytes) for row in rows]
    if len(sizes) < 2 or sizes[-1][0] <= sizes[0][0]:
        return None
    return Figure(
        title="Unique bytes asked for so far",
        x=_SINCE if timed else ShownColumn("requests", units.COUNT),
        y=ShownColumn("unique", units.GIBIBYTES),
        lines=[Line.through("all so far", sizes)],
        scale=Scale.TIME if timed else Scale.LINEAR,
        levels=[
            Level(name=f"last {_seconds(row.window_s)}", y=row.nbytes)
            for row in facts.reuse.working_sets
        ],
        caption="Dashed: mean working sets." if facts.reuse.working_sets else "",
    )


def _distribution(
    facts: TraceFacts,
    title: str,
    x: ShownColumn,
    spreads: Mapping[str, Spread | None],
    least: float = 0,
) -> Figure:
    """The share of values that are not above each; 0 cannot be drawn on its logarithmic axis."""
    some = {name: spread for name, spread in spreads.items() if spread is not None}
    if any(len(spread.quantiles) != len(facts.quantiles) for spread in some.values()):
        raise MisshapenError("a list of quantiles is not as long as quantiles")
    lines = [
        Line.through(name if len(spreads) > 1 else "", _shares(facts, spread).items())
        for name, spread in some.items()
        if spread.most > least
    ]
    return Figure(
        title=f"{title}: share not above", x=x, y=ShownColumn("share", units.PERCENT), lines=lines,
        scale=Scale.LOG, reach=1.0,
    )  # fmt: skip


def _shares(facts: TraceFacts, spread: Spread) -> dict[float, float]:
    """Each value that is above 0, with its largest share."""
    values = zip(spread.quantiles, facts.quantiles, strict=True)
    return {value: share for value, share in values if value > 0}


def _misses(facts: TraceFacts) -> Figure | None:
    """The miss ratio of an LRU cache, from one block to all of them."""
    rows, limit = facts.reuse.lru_curve, facts.reuse.hit_ratio
    if len(rows) < 2 or not limit or not facts.reuse.footprint_bytes:
        return None
    missed = [(row.nbytes, 1 - row.hit_ratio) for row in rows if row.nbytes > 0]
    return Figure(
        title="Blocks that an LRU cache misses", x=_CACHE, y=ShownColumn("missed", units.PERCENT),
        lines=[Line.through("", missed)], scale=Scale.LOG,
        levels=[Level(name=f"no limit {units.PERCENT.measured(1 - limit)}", y=1 - limit)],
    )  # fmt: skip


# --- text ------------------------------------------------------------------------------------


def _spread(row: Spread, text: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {text(getattr(row, name))}" for name in ("p50", "p90", "p99", "most"))


def _seconds(value: float) -> str:
    for unit, seconds in (("h", 3600), ("min", 60), ("s", 1)):
        if value >= seconds * (1 if unit == "s" else 2) or (value == seconds and unit != "s"):
            return f"{figures(value / seconds)} {unit}"
    return f"{figures(value * 1000)} ms" if value else "0 s"
