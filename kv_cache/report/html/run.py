"""The report of one run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from kv_cache.core.format import as_text, figures
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import GIB
from kv_cache.metrics.histogram import merged
from kv_cache.report.html.charts import Book, Curve, percentile_chart
from kv_cache.report.html.common import common_sections, machine
from kv_cache.report.html.flow import TIERS, Flow, flow_content, flows
from kv_cache.report.html.parts import (
    Card,
    Doc,
    Json,
    Section,
    badge,
    bullets,
    cards,
    lead,
    percent,
    reasons,
    reasons_at,
    rule_table,
    share_bar,
    table,
    text_at,
)
from kv_cache.report.html.rounds import rounds_content
from kv_cache.report.html.text import NOTHING, Html, tag
from kv_cache.report.html.times import (
    CLASSES,
    DENSE,
    LOOK_OF_CLASS,
    Timeline,
    last_users,
    time_charts,
    timeline,
)
from kv_cache.report.identity import (
    headline_text,
    interval_text,
    promised,
    run_text,
    tiers_text,
)
from kv_cache.report.pictures.base import number, plain, value_at, word
from kv_cache.report.prediction import prediction_rows
from kv_cache.report.reading import SECTION, histogram
from kv_cache.result.metrics import METRICS, Metric, number_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What several sections of a run look at, read once."""

    doc: Doc
    time: Timeline | None
    flows: Sequence[Flow]

    @property
    def own(self) -> Json:
        return self.doc.own

    @property
    def only_traced(self) -> bool:
        """Whether it was there to write the trace of its operations, and timed nothing."""
        return value_at(self.own, "config.output.io_trace_log") is not None


def read_run(doc: Doc, most_points: int) -> Run:
    """Raises BadDocumentError and UsageError."""
    return Run(doc=doc, time=timeline(doc, most_points), flows=flows(doc))


def not_timed(run: Run) -> str:
    """Why there are no times; empty where there are."""
    if not run.only_traced:
        return ""
    return "The run was there to write the trace of its operations: nothing was timed."


def run_sections(run: Run, book: Book) -> Iterator[Section]:
    """In the order in which they are read."""
    own, doc = run.own, run.doc
    timed = not_timed(run)
    yield Section(
        slug="verdict",
        title="Verdict and headline",
        content=list(verdict_content(run, _sentences(run.own), _headline)),
    )
    yield Section(
        slug="time", title="Over time", content=[] if timed else _over_time(run, book),
        absent=timed or "The document has no windows: nothing is known of how it went.",
    )  # fmt: skip
    if value_at(own, "preconditioning") is not None:
        yield Section(slug="before", title="Preconditioning", content=rounds_content(doc, book))
    yield Section(
        slug="tiers", title="Percentiles of each tier",
        content=[] if timed else tier_curves(run, book),
        absent=timed or "No operation ended in the measured window.",
    )  # fmt: skip
    yield Section(
        slug="classes", title="Percentiles of each QoS class",
        content=[] if timed else class_curves(run, book),
        absent=timed or "No request completed in the measured window.",
    )  # fmt: skip
    yield Section(
        slug="curve", title="Latency over throughput", content=[],
        absent="One run is one point of that curve. A capacity search has all of it: "
        "kv-cache.py capacity, and a report of its result.",
    )  # fmt: skip
    yield Section(
        slug="flow", title="Tier flow", content=flow_content(doc, run.flows),
        absent="No operation ended in the measured window: nothing moved.",
    )  # fmt: skip
    yield Section(
        slug="reuse", title="Reuse", content=reuse_content(own),
        absent="Nothing is known of reuse: no request completed in the measured window.",
    )  # fmt: skip
    policies = policy_rows(own)
    if policies:
        heads = ("policy", "which", "did", "blocks", "GiB")
        yield Section(
            slug="policies", title="Policies",
            content=[table("What policies did, in the whole run", heads, policies, words=3)],
            absent="Nothing is known of policies.",
        )  # fmt: skip
    if isinstance(own.get("twin"), Mapping):
        yield Section(
            slug="twin", title="Predicted before the run", content=_twin(own["twin"]),
            absent="The twin predicted nothing.",
        )  # fmt: skip
    yield passport_section(own)
    yield from common_sections(doc)


def _twin(section: Json) -> list[Html]:
    rows = prediction_rows(section)
    heads = ("quantity", "predicted", "measured", "error")
    return [table("The twin in virtual time beside the run", heads, rows)] if rows else []


_ENDS = ("started", "useful", "late", "wasted", "failed", "no_room")


def policy_rows(own: Json) -> list[tuple[str, ...]]:
    """What policies did that are not the default; nothing where all are."""
    said = value_at(own, "policies")
    if not isinstance(said, Mapping):
        return []
    names = {
        kind: word(own, f"policies.{kind}.name") for kind in ("admission", "write", "prefetch")
    }
    rows: list[tuple[str, ...]] = []

    def row(kind: str, did: str, path: str) -> None:
        blocks = number(own, f"policies.{path}.blocks")
        if isfinite(blocks):
            size = number(own, f"policies.{path}.bytes") / GIB
            rows.append((kind, names[kind], plain(did), f"{blocks:,.0f}", figures(size)))

    tiers = value_at(own, "policies.admission.tiers")
    for tier, told in tiers.items() if isinstance(tiers, Mapping) else ():
        if isinstance(told, Mapping) and told.get("asked") is True:
            row("admission", f"{tier} took", f"admission.tiers.{tier}.admitted")
            refused = told.get("not_admitted")
            for why in refused if isinstance(refused, Mapping) else ():
                row("admission", f"{tier} did not: {why}",
                    f"admission.tiers.{tier}.not_admitted.{why}")  # fmt: skip
    if rows:
        row("admission", "no tier took", "admission.not_stored")
    for did in ("written", "failed", "no_room"):
        row("write", did.replace("_", " "), f"write.{did}")
    for did in _ENDS:
        row("prefetch", did.replace("_", " "), f"prefetch.{did}")
    return rows


def passport_section(own: Json) -> Section:
    changed = value_at(own, "passport.changed_thresholds")
    rows = [
        (name, as_text(value))
        for name, value in (changed.items() if isinstance(changed, Mapping) else ())
    ]
    made = rule_table(own)
    if made and rows:
        heads = ("threshold", "value, default")
        made.append(table("Thresholds that were changed", heads, rows, words=2))
    absent = "The document has no passport: nobody has judged it."
    return Section(slug="passport", title="Passport", content=made, absent=absent)


# --- headline --------------------------------------------------------------------------------

_CARDS: tuple[tuple[str, str], ...] = (
    ("storage.read.bytes_per_second", "Storage read"),
    ("storage.write.bytes_per_second", "Storage write"),
    ("requests_per_second", "Requests"),
    ("output_tokens_per_second", "Output tokens"),
    ("storage.read.device_ms.p95", "Storage read p95"),
    ("storage.write.device_ms.p95", "Storage write p95"),
    ("ttft_ms.p95", "TTFT p95"),
    ("response_ms.p95", "Response p95"),
    ("hit_ratio", "Hit ratio"),
)


def verdict_content(
    run: Run, sentences: Iterable[str], numbers: Callable[[Json], Iterator[Card]]
) -> Iterator[Html]:
    """The verdict with its reasons, what ran, the `numbers` that matter if any were measured, and
    what to know first."""
    own = run.own
    yield tag("p", badge(word(own, "passport.verdict")), class_="verdict")
    yield from reasons(own, "passport.reasons")
    yield lead(*sentences)
    if not run.only_traced and number(own, "window_s") > 0:
        yield cards(numbers(own))
    notes = reasons_at(own, "notes")
    if notes:
        yield tag("h4", "Know first")
        yield from bullets(notes)


def _sentences(own: Json) -> Iterator[str]:
    yield (
        f"{text_at(own, 'model.name') or 'Unknown model'}, "
        f"{word(own, 'semantics_preset') or 'unknown'} semantics, seed {as_text(own.get('seed'))}."
    )
    if own.get("driver") != "real-io":
        yield "Virtual time: all figures come from a model, and nothing was measured."
    if what := run_text(own):
        yield f"{what[0].upper()}{what[1:]}; tiers: {tiers_text(own)}."
    yield from done_sentence(own)
    yield from _asked(own)
    if own.get("driver") == "real-io":
        yield from machine(own)


def ended(own: Json) -> str:
    """How it ended, after what did."""
    known = {"finished": "finished", "interrupted": "was interrupted"}
    return known.get(word(own, "status"), "broke off")


def done_sentence(own: Json) -> Iterator[str]:
    """How it ended, and what became of the requests."""
    seconds = number(own, "window_s")
    if not seconds > 0:
        yield f"The run {ended(own)} before its window began: nothing was measured."
        return
    names = ("completed_in_window", "failed", "rejected", "unfinished")
    done = [figures(number(own, f"requests.{name}")) for name in names]
    yield (
        f"The run {ended(own)}; {figures(seconds)} s were measured. Requests: {done[0]} completed, "
        f"{done[1]} failed, {done[2]} rejected, {done[3]} unfinished."
    )


def _asked(own: Json) -> Iterator[str]:
    files = value_at(own, "workload.files")
    if isinstance(files, list) and files:
        names = ", ".join(Path(str(file)).name for file in files[:3])
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        rows = figures(number(own, "workload.rows"))
        yield f"Trace {names}{more} ({word(own, 'workload.format')}, {rows} rows)."


def _headline(own: Json) -> Iterator[Card]:
    if headline_text(own):
        metric = METRICS[word(own, "headline.metric")]
        yield Card(
            name="Headline: " + metric.label, unit=metric.shown_unit, more=interval_text(own),
            value=metric.shown(number_at(own, "headline.bytes_per_second")),
        )  # fmt: skip
    for name, label in _CARDS:
        metric = METRICS[name]
        value = metric.value(own)
        if value is None:
            yield Card(name=label, value=NOTHING)
        else:
            yield Card(name=label, value=metric.shown_in(own), unit=metric.shown_unit,
                       more=_amount(own, metric))  # fmt: skip
    yield from kept_card(own)


def kept_card(own: Json) -> Iterator[Card]:
    """How many of the classes' promises were kept; nothing where nobody made one, or none was
    judged."""
    if not promised(own):
        return
    met = [row[2] == _KEPT for row in _judged(own) if row[2] != _TOO_FEW]
    if met:
        yield Card(name="Promises kept", value=f"{sum(met)} of {len(met)}", more="by class, below")


def _amount(own: Json, metric: Metric) -> str:
    """How much a bandwidth is of, and how many asked."""
    users = last_users(own)
    if metric.name == "requests_per_second" and isfinite(users):
        return f"{figures(users)} users at the end"
    for kind in (OpKind.READ.value, OpKind.WRITE.value):
        moved = number_at(own, f"tiers.storage.{kind}.bytes")
        if metric.name == f"storage.{kind}.bytes_per_second" and moved is not None:
            return f"{figures(moved / GIB)} GiB"
    return ""


# --- charts ----------------------------------------------------------------------------------


def _over_time(run: Run, book: Book) -> list[Html]:
    if run.time is None:
        return []
    figures_ = [f for chart in time_charts(run.own, run.time) for f in book.figure(chart)]
    if not figures_:
        return []
    said = [_windows_said(run)]
    if value_at(run.own, "workload.files"):
        said.append("A trace has no users, so there is no chart of them.")
    return [tag("p", " ".join(said)), tag("div", *figures_, class_="charts")]


def _windows_said(run: Run) -> str:
    assert run.time is not None
    tick = figures(number(run.own, "series.tick_s"))
    ticks = number(run.own, "series.together")
    each = f"windows of {tick} s" if not ticks > 1 else f"windows of up to {ticks:g} times {tick} s"
    points = f"{sum(len(point.rows) for point in run.time.points):,} {each}"
    if run.time.together > 1:
        points += f", up to {run.time.together} of them in a point: the mean of rates and levels, "
        points += "the median of percentiles"
    if len(run.time.points) > DENSE:
        points += "; faint behind the median of their neighbours, until a part is zoomed into"
    if any(point.scrap for point in run.time.points):
        points += "; one far shorter than the others has no rates"
    if all(point.phase != "measure" for point in run.time.points):
        return f"{points}. All of it was before or after the measured window, and does not count."
    return f"{points}. Shaded parts do not count: only the phase measure does."


def tier_curves(run: Run, book: Book) -> list[Html]:
    """The percentiles of each tier, storage first."""
    made = []
    for tier in reversed(TIERS):
        curves = []
        for kind, look in ((OpKind.READ, 0), (OpKind.WRITE, 1)):
            some = [f for f in run.flows if (f.tier, f.operation) == (tier, kind)]
            total, device = (merged(getattr(f, name) for f in some) for name in ("total", "device"))
            curves.append(Curve(name=f"{kind} whole", histogram=total, look=look))
            curves.append(Curve(name=f"{kind} device", histogram=device, look=look, dash="dash"))
        chart = percentile_chart(
            f"One operation on the {tier} tier", curves,
            "Whole: from asking to the answer. Device: inside the calls alone.",
        )  # fmt: skip
        made += book.figure(chart) if chart else []
    return [tag("div", *made, class_="charts")] if made else []


_DASHES = ("", "dash", "dot")


def class_curves(run: Run, book: Book) -> list[Html]:
    """The percentiles of each class, and whether its promises were kept."""
    made = []
    for measure, title in (("response", "Response"), ("ttft", "Time to first token")):
        curves = [
            Curve(
                name=qos, look=LOOK_OF_CLASS[qos], dash=dash,
                histogram=histogram(
                    row, f"histogram_{measure}", Path(run.doc.name), f"{SECTION}.measured.{qos}"
                ),
            )
            for qos, dash in zip(CLASSES, _DASHES, strict=True)
            if isinstance(row := value_at(run.own, f"measured.{qos}"), Mapping)
        ]  # fmt: skip
        chart = percentile_chart(f"{title} of each class", curves)
        made += book.figure(chart) if chart else []
    promises = _promises(run.own) if made else []
    return [tag("div", *made, class_="charts"), *promises] if made else []


_NINES = {"p999": "p99.9", "p9999": "p99.99"}


_KEPT, _MISSED, _TOO_FEW = "kept", "missed", "too few to say"


NOT_PROMISED = "The reference's default targets of each class, which nobody here has promised"


def _promises(own: Json) -> list[Html]:
    heads = ("class", "percentile", "promise", "actual ms", "promised ms", "within it", "95 %")
    rows = list(_judged(own))
    caption = "What each class was promised" if promised(own) else NOT_PROMISED
    return [table(caption, heads, rows, words=3)] if rows else []


def _judged(own: Json) -> Iterator[tuple[str, ...]]:
    """A row for each promise to a class of which requests ended: the share of them within it, and
    what that says."""
    for qos in CLASSES:
        found = value_at(own, f"measured.{qos}.promises")
        for name, row in found.items() if isinstance(found, Mapping) else ():
            if not isinstance(row, Mapping) or not number(row, "requests") > 0:
                continue
            said = row.get("met")
            met = _TOO_FEW if said is None else _KEPT if said is True else _MISSED
            times = (figures(number(row, f"{which}_ms")) for which in ("actual", "target"))
            count, within = number(row, "requests"), number(row, "within")
            low, high = (figures(100 * number(row, f"share_{end}")) for end in ("low", "high"))
            of = f"{figures(within)} of {figures(count)}"
            yield (
                *(qos, _NINES.get(str(name), str(name)), met),
                *(*times, of, f"{low} to {high} % of all"),
            )


# --- reuse -----------------------------------------------------------------------------------

_COUNTED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("blocks", "blocks of all requests", lambda n: f"{n:,.0f}"),
    ("looked_up", "blocks looked up", lambda n: f"{n:,.0f}"),
    ("hits", "of these, found", lambda n: f"{n:,.0f}"),
    ("offered_blocks", "blocks asked for before, by anybody", lambda n: f"{n:,.0f}"),
    ("context_tokens", "tokens of all contexts", lambda n: f"{n:,.0f}"),
    ("hit_tokens", "tokens found", lambda n: f"{n:,.0f}"),
    ("offered_tokens", "tokens on offer", lambda n: f"{n:,.0f}"),
    ("loaded_bytes", "loaded", lambda n: f"{figures(n / GIB)} GiB"),
    (
        "stored_bytes",
        "stored by the requests themselves, not behind them",
        lambda n: f"{figures(n / GIB)} GiB",
    ),
    ("retrieved_requests", "requests with retrieval (RAG)", lambda n: f"{n:,.0f}"),
)
_KINDS = (
    ("history", "earlier turns of the same conversation"),
    ("shared", "shared prompts"),
    ("retrieved", "retrieved documents (RAG)"),
    ("decode", "loads while decoding"),
)


def reuse_content(own: Json) -> list[Html]:
    """What was on offer and what was found; nothing where nothing was asked for."""
    reuse = value_at(own, "reuse")
    if not isinstance(reuse, Mapping):
        return []
    if not any(number(reuse, name) > 0 for name in ("blocks", "looked_up", "decode_looked_up")):
        return []
    made = [*_offered(reuse), *_found(reuse)]
    counted = [(label, shown(n)) for name, label, shown in _COUNTED
               if isfinite(n := number(reuse, name))]  # fmt: skip
    return [*made, table("Counted in the measured window", ("what", "amount"), counted)]


def _offered(reuse: Json) -> Iterator[Html]:
    """What a cache without limits would have found, and what this one did."""
    rows = []
    for unit in ("token", "block"):
        for side, said in (("offered", "on offer"), ("achieved", "found")):
            share = number(reuse, f"{side}_{unit}_ratio")
            if isfinite(share):
                rows.append((f"{unit}s {said}", percent(share), share_bar(share)))
    if not rows:
        yield tag(
            "p", "What was on offer is not told: everything was stored before the run, or the "
            "result is of an earlier version.",
        )  # fmt: skip
        return
    yield table("Offered and achieved, of everything asked for", ("", "share", ""), rows)
    exact = reuse.get("offered_is_exact")
    yield tag(
        "p",
        "On offer is what a cache without limits would have found."
        if exact is not False
        else "On offer is at least this: more different blocks were asked for than are remembered.",
    )


def _found(reuse: Json) -> Iterator[Html]:
    rows = []
    every = (("", "all that was looked up"), *((f"{name}_", said) for name, said in _KINDS))
    for prefix, said in every:
        looked, hits = number(reuse, f"{prefix}looked_up"), number(reuse, f"{prefix}hits")
        if looked > 0 and isfinite(hits):
            rows.append((said, percent(hits / looked), share_bar(hits / looked),
                         f"{hits:,.0f}", f"{looked:,.0f}"))  # fmt: skip
    if rows:
        heads = ("blocks of", "hit ratio", "", "hits", "looked up")
        yield table("Hits, of what was looked up", heads, rows)
    else:
        yield tag("p", "No block was looked up in the measured window.")
