"""What a run shows: its verdict and headline, what each tier moved, how it went over time, and how
requests fared."""

from collections import Counter
from collections.abc import Iterator

from kv_cache.core.format import as_text, figures
from kv_cache.core.kinds import Qos
from kv_cache.metrics.ceiling import ceiling_sentence
from kv_cache.metrics.evidence import Evidence
from kv_cache.metrics.rules.readings import on_objects
from kv_cache.result.metrics import METRICS, Json, Metric
from kv_cache.result.paths import number_at, value_at
from kv_cache.result.published import (
    ClassFacts,
    Passport,
    PublishedRun,
    SloFacts,
    published,
)
from kv_cache.view import units
from kv_cache.view.counts import counted_facts
from kv_cache.view.identity import (
    doubts,
    headline_text,
    identity_facts,
    origin_texts,
    slos_set_by_user,
)
from kv_cache.view.latency import (
    bounded,
    percentile_cell,
    percentile_columns,
    percentile_figure,
)
from kv_cache.view.machine import machine_sections
from kv_cache.view.moves import moves_parts, tier_latencies
from kv_cache.view.parts import (
    Cell,
    FactList,
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
from kv_cache.view.policies import policy_facts, policy_table
from kv_cache.view.preconditioning import preconditioning_parts
from kv_cache.view.prediction import prediction_part
from kv_cache.view.reuse import reuse_parts
from kv_cache.view.series import series_figures, windows_note

CARDS = (
    *("storage.read.bytes_per_second", "storage.write.bytes_per_second"),
    *("requests_per_second", "output_tokens_per_second"),
    *("storage.read.device_ms.p95", "storage.write.device_ms.p95"),
    *("ttft_ms.p95", "response_ms.p95", "hit_ratio"),
)


def run_view(section: Json) -> View:
    """A run, from the section `kv_cache` of its document. Raises MisshapenError."""
    run = published(section)
    return View(
        title="Run",
        status=run.passport.verdict,
        sentence=_sentence(run, section),
        about=origin_texts(section),
        reasons=doubts(section, run.passport.reasons),
        sections=list(_sections(run, section)),
    )


def traced_only(run: PublishedRun) -> bool:
    """Whether the run was there to write the trace of its operations, and timed nothing."""
    return value_at(run.config, "output.io_trace_log") is not None


def not_timed(run: PublishedRun) -> str:
    """Why there are no times; empty if there are."""
    text = "The run was there to write the trace of its operations: nothing was timed."
    return text if traced_only(run) else ""


def _sections(run: PublishedRun, section: Json) -> Iterator[ViewSection]:
    """In the order in which they are read."""
    timed = not_timed(run)
    if not timed and run.window_s > 0:
        yield hidden_section("Headline", [key_numbers(run, section)])
    yield hidden_section(
        "Over time",
        [] if timed else over_time(run),
        timed or "The document has no windows: nothing is known of how it went.",
    )
    yield ViewSection(title="Know first", parts=present(Remarks(texts=run.notes)))
    yield ViewSection(title="What ran", parts=[FactList(rows=identity_facts(section))])
    yield ViewSection(title="Tiers", parts=[tier_table(run)])
    yield ViewSection(title="At a glance", parts=_glance(run, section))
    if run.preconditioning is not None:
        parts = preconditioning_parts(run.preconditioning, run.config)
        yield ViewSection(title="Preconditioning", parts=parts)
    yield from latency_sections(run)
    yield from flow_sections(run)
    yield hidden_section("Policies", present(policy_table(run)))
    yield passport_section(run)
    yield from machine_sections(section)


def _sentence(run: PublishedRun, section: Json) -> str:
    """The headline, how the run ended, and what became of the requests."""
    if run.window_s <= 0:
        return f"The run {_end_text(run)} before its window began: nothing was measured."
    virtual = "" if run.measured_bytes else f" {VIRTUAL}"
    headline = "" if traced_only(run) else headline_sentence(section)
    return f"{headline}{_precision(section)}{requests_sentence(run)}{virtual}"


def _precision(section: Json) -> str:
    """How sure the figure of --until is, before other sentences; empty where none was asked for."""
    figure = value_at(section, "precision.figure")
    if figure is None:
        return ""
    share, half, value, low, high, bound_s = (
        number_at(section, f"precision.{name}")
        for name in ("share", "half_width", "value", "interval.low", "interval.high", "bound_s")
    )
    wanted = f"Wanted was {reach_text(share)} of the {figure}"
    window_s = number_at(section, "window_s")
    end = (
        ""
        if value_at(section, "precision.stopped") or bound_s is None or (window_s or 0) < bound_s
        else f" at the bound of {figures(bound_s)} s"
    )
    if half is None:
        return f"{wanted}, and it has no interval{end}. "
    text = f"{wanted}, and it is {reach_text(half)}{end}"
    if value_at(section, "precision.unit") == "ms":
        text += f": {figures(value)} ms ({figures(low)} to {figures(high)})"
    return f"{text}. "


def reach_text(share: float | None) -> str:
    return f"±{figures(None if share is None else 100 * share)} %"


VIRTUAL = "Virtual time: models say this, nothing was measured."


def headline_sentence(section: Json) -> str:
    """The headline before other sentences; empty where the document has none."""
    headline = headline_text(section)
    return f"{headline[0].upper()}{headline[1:]}. " if headline else ""


def requests_sentence(run: PublishedRun) -> str:
    """How the run ended, and what became of its requests."""
    books = run.requests
    return (
        f"The run {_end_text(run)} after {figures(run.window_s)} s: "
        f"{as_text(books.completed_in_window)} requests completed, {as_text(books.failed)} failed, "
        f"{as_text(books.rejected)} rejected, {as_text(books.unfinished)} unfinished."
    )


def _end_text(run: PublishedRun) -> str:
    ends = {"finished": "finished", "interrupted": "was interrupted"}
    return ends.get(run.status or "", "broke off")


# --- the headline ----------------------------------------------------------------------------


def key_numbers(run: PublishedRun, section: Json) -> KeyNumbers:
    """The numbers that a reader looks for first."""
    numbers = [
        KeyNumber(
            column=metric_column(METRICS[name]),
            value=bounded(
                METRICS[name], METRICS[name].value(section), METRICS[name].at_least(section)
            ),
            note=_amount(run, name),
        )
        for name in CARDS
    ]
    return KeyNumbers(numbers=[*numbers, *_kept(run, section)])


def metric_column(metric: Metric) -> ShownColumn:
    """The column of one of the METRICS."""
    return ShownColumn(
        metric.label[:1].upper() + metric.label[1:],
        units.DisplayUnit(metric.shown_unit, metric.scale),
    )


def _amount(run: PublishedRun, name: str) -> str:
    """How much a rate is of."""
    storage = run.tiers.get("storage")
    for kind in ("read", "write"):
        if storage is not None and name == f"storage.{kind}.bytes_per_second":
            return units.GIBIBYTES.measured(getattr(storage, kind).bytes)
    windows = [] if run.series is None else run.series.windows
    users = [w.users for w in windows if w.phase == "measure" and w.users is not None]
    if name == "requests_per_second" and users:
        return f"{figures(users[-1])} users at the end"
    return ""


def _kept(run: PublishedRun, section: Json) -> Iterator[KeyNumber]:
    """How many of the SLOs that the user set were kept; nothing if none was judged."""
    rows = [slo for _, _, slo in slo_rows(run) if slo.met is not None]
    if rows and slos_set_by_user(section):
        yield KeyNumber(
            column=ShownColumn("SLOs kept", units.COUNT),
            value=sum(slo.met is True for slo in rows),
            note=f"of {len(rows)}, by class, below",
        )


# --- tiers -----------------------------------------------------------------------------------


def tier_table(run: PublishedRun) -> Table:
    """What each tier moved: storage by the time inside its calls, memory by the whole time."""
    timed = not traced_only(run)
    rows: list[list[Cell]] = []
    for label, tier in run.tiers.items():
        for kind in ("read", "write"):
            side = getattr(tier, kind)
            latency = side.device_ms if label == "storage" else side.total_ms
            name = f"{label} ({tier.store.engine})" if tier.store.engine else label
            rows.append([
                name, kind,
                *([side.bytes_per_second] if timed else []),
                side.bytes, side.operations,
                *(percentile_cell(latency, p) for p in (_TIMES if timed else ())),
            ])  # fmt: skip
    return Table(
        columns=[
            ShownColumn("tier"),
            ShownColumn("operation"),
            *([ShownColumn("rate", units.GIB_PER_S)] if timed else []),
            ShownColumn("moved", units.GIBIBYTES),
            ShownColumn("operations", units.COUNT),
            *(ShownColumn(p, units.MS) for p in (_TIMES if timed else ())),
        ],
        rows=rows,
    )


_TIMES = ("p50", "p95", "p99")


def _glance(run: PublishedRun, section: Json) -> list[Part]:
    """One line for each question that a reader of the terminal has."""
    seen = Evidence(value_at(section, "passport.evidence") or {})
    ceiling = ceiling_sentence(Evidence(seen.at("client")), objects=on_objects(seen))
    client = [] if ceiling is None else [("client's ceiling", ceiling)]
    rows = [*counted_facts(run), *policy_facts(run), *client, *_rules(run)]
    twin = None if run.twin is None else prediction_part(run.twin)
    return present(FactList(rows=rows), twin)


def _rules(run: PublishedRun) -> Iterator[tuple[str, str]]:
    """How many rules say what."""
    counts = Counter(row.status for row in run.passport.rules)
    if counts:
        yield "rules", ", ".join(f"{count} {status}" for status, count in counts.items())


# --- over time, and latencies ----------------------------------------------------------------


def over_time(run: PublishedRun) -> list[Part]:
    note = windows_note(run)
    return present(Remarks(texts=[note] if note else [], detail=True), *series_figures(run))


def latency_sections(run: PublishedRun) -> Iterator[ViewSection]:
    """Percentiles of each tier and of each class, with the SLOs."""
    timed = not_timed(run)
    yield hidden_section(
        "Percentiles of each tier",
        [] if timed else tier_latencies(run),
        timed or "No operation ended in the measured window.",
    )
    yield hidden_section(
        "Percentiles of each QoS class",
        [] if timed else _class_parts(run),
        timed or "No request completed in the measured window.",
    )


def _classes(run: PublishedRun) -> list[tuple[str, ClassFacts]]:
    return [(qos.value, run.measured[qos]) for qos in Qos if qos in run.measured]


def _class_parts(run: PublishedRun) -> list[Part]:
    """Percentiles, requests and SLOs of each class."""
    responses = [(qos, row.histogram_response) for qos, row in _classes(run)]
    first_tokens = [(qos, row.histogram_ttft) for qos, row in _classes(run)]
    requests = Table.of(
        [(qos, row) for qos, row in _classes(run) if row.completed],
        {
            ShownColumn("class"): lambda each: each[0],
            ShownColumn("completed", units.COUNT): lambda each: each[1].completed,
            **percentile_columns(("p50", "p95"), lambda each: each[1].ttft_ms, "TTFT"),
            **percentile_columns(_TIMES, lambda each: each[1].response_ms, "response"),
        },
        title="Requests of each class",
    )
    return present(
        percentile_figure("Response of each class", responses),
        percentile_figure("Time to first token of each class", first_tokens),
        requests,
        slo_table(run),
    )


def flow_sections(run: PublishedRun) -> Iterator[ViewSection]:
    """What moved between tiers, and what was reused."""
    yield hidden_section(
        "Tier flow", moves_parts(run), "No operation ended in the measured window: nothing moved."
    )
    yield hidden_section(
        "Reuse",
        reuse_parts(run),
        "Nothing is known of reuse: no request completed in the measured window.",
    )


# --- SLOs ------------------------------------------------------------------------------------

_NINES = {"p999": "p99.9", "p9999": "p99.99"}
NOT_SET = "The reference's default targets of each class, which this run's user has not set"
_KEPT = {True: "kept", False: "missed", None: "too few to say"}


def slo_rows(run: PublishedRun) -> list[tuple[str, str, SloFacts]]:
    """Class, percentile and outcome of each target of a class of which requests ended."""
    return [
        (qos, _NINES.get(name, name), slo)
        for qos, row in _classes(run)
        for name, slo in row.slos.items()
        if slo.requests
    ]


def slo_table(run: PublishedRun) -> Table:
    """The share of each class's requests within each target, and what that says."""
    by_user = slos_set_by_user({"config": run.config})
    return Table.of(
        slo_rows(run),
        {
            ShownColumn("class"): lambda row: row[0],
            ShownColumn("percentile"): lambda row: row[1],
            ShownColumn("SLO", status=True): lambda row: _KEPT[row[2].met],
            ShownColumn("actual", units.MS): lambda row: row[2].actual_ms,
            ShownColumn("target", units.MS): lambda row: row[2].target_ms,
            ShownColumn("within", units.COUNT): lambda row: row[2].within,
            ShownColumn("requests", units.COUNT): lambda row: row[2].requests,
            ShownColumn("from", units.PERCENT): lambda row: row[2].share_low,
            ShownColumn("to", units.PERCENT): lambda row: row[2].share_high,
        },
        title="SLOs of each class" if by_user else NOT_SET,
        caption="From and to: the 95 % interval of the share of all requests within the target.",
    )


# --- the passport ----------------------------------------------------------------------------


def rule_table(passport: Passport) -> Table:
    return Table.of(
        passport.rules,
        {
            ShownColumn("rule"): lambda row: f"{row.rule} {row.name}",
            ShownColumn("status", status=True): lambda row: row.status,
            ShownColumn("finding"): lambda row: row.message,
        },
        title="What each rule found",
    )


def passport_section(run: PublishedRun) -> ViewSection:
    """What each rule found, and the thresholds that the user changed."""
    changed = FactList(
        title="Thresholds that were changed (value, default)",
        rows=[(name, as_text(value)) for name, value in run.passport.changed_thresholds.items()],
    )
    return hidden_section(
        "Passport",
        present(rule_table(run.passport), changed),
        "The document has no passport: it was not judged.",
    )
