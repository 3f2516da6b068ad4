"""A report for pasting: Markdown with tables, as GitHub and others render it.

Several results stand side by side, the first being the baseline, with the ratios and intervals of
`compare` where they asked the same of their storage. Text out of the files is escaped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kv_cache import __version__
from kv_cache.config.root import options
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import Qos
from kv_cache.core.units import AT_LEAST, GIB, MISSING
from kv_cache.metrics.intervals import Interval
from kv_cache.metrics.passport import VALID
from kv_cache.report.compare import Comparison, Finding, Input, Row, compare, require_comparable
from kv_cache.report.identity import (
    drive_texts,
    headline_text,
    label_of,
    note_of,
    run_text,
    tiers_text,
)
from kv_cache.report.prediction import prediction_rows
from kv_cache.report.sizes import HEADS, about_objects, shares, size_rows
from kv_cache.result.metrics import METRICS, Metric, number_at, words_at

MARK = "<!-- kv-cache report"
"""How each begins; it is not shown."""

Json = Mapping[str, Any]

_LONGEST = 300  # characters of a text out of a file
_ESCAPED = str.maketrans({c: f"\\{c}" for c in "\\`*|[]~"} | {"<": "&lt;", "&": "&amp;"})
_QUIET = ("output.", "run.seed", "tiers.cache_dir")  # options that say nothing about the numbers


def markdown(inputs: Sequence[Input]) -> bytes:
    """The report of one result or several, in their order."""
    parts = [
        [f"{MARK} {__version__} -->"],
        [f"### {_title(inputs)}"],
        _table(_heads(inputs), _heading(inputs)),
        *(list(_reasons(given)) for given in inputs),
        list(_numbers(inputs)),
        _ranks(inputs),
        list(_tiers(inputs)),
        _sizes(inputs),
        list(_classes(inputs)),
        *(_twin(given) for given in inputs),
        list(_where(inputs)),
        list(_settings(inputs)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part).encode() + b"\n"


# --- text ------------------------------------------------------------------------------------


def plain(value: object) -> str:
    """Anything as text that stays in its cell."""
    shown = "".join(c if c.isprintable() else " " for c in str(value))
    cut = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    return cut.translate(_ESCAPED)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Empty without rows. Columns from the second on are numbers where their head ends in a
    colon, which is not shown."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return []
    lines = ["--:" if head.endswith(":") else "---" for head in heads]
    shown = [head.removesuffix(":") for head in heads]
    return [f"| {' | '.join(shown)} |", f"| {' | '.join(lines)} |", *body]


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(value: Any, path: str) -> float | None:
    return number_at(value, path) if isinstance(value, Mapping) else None


def _known(value: Any, unit: str = "") -> str:
    return MISSING if value is None else f"{plain(value)}{unit}"


# --- what it is ------------------------------------------------------------------------------


def _title(inputs: Sequence[Input]) -> str:
    names = dict.fromkeys(plain(_at(given.own, "model.name")) for given in inputs)
    preset = dict.fromkeys(plain(given.own.get("semantics_preset")) for given in inputs)
    return f"KV-cache storage: {', '.join(names)}, {', '.join(preset)} semantics"


def _heads(inputs: Sequence[Input]) -> list[str]:
    return ["", *(given.label for given in inputs)] if len(inputs) > 1 else ["", inputs[0].label]


_FACTS: Mapping[str, str] = {
    "driver": "driver",
    "seed": "seed",
    "program": "program_version",
    "started": "started_utc",
}


_ABOUT: Mapping[str, Callable[[Json], str]] = {
    "label": label_of,
    "note": note_of,
    "run": run_text,
    "tiers": tiers_text,
    "drive": lambda own: "; ".join(drive_texts(own)),
    "headline": headline_text,
}


def _heading(inputs: Sequence[Input]) -> Iterator[list[str]]:
    yield ["**verdict**", *(f"**{plain(given.verdict).upper()}**" for given in inputs)]
    yield ["status", *(_status(given) for given in inputs)]
    yield ["requests", *(_books(given) for given in inputs)]
    for name, text in _ABOUT.items():
        if any(told := [plain(text(given.own)) for given in inputs]):
            yield [name, *(cell or MISSING for cell in told)]
    for name, path in _FACTS.items():
        yield [name, *(_known(_at(given.own, path)) for given in inputs)]
    yield ["schedule", *(", ".join(plain(s[:12]) for s in given.schedules) for given in inputs)]
    yield ["file", *(plain(given.path) for given in inputs)]
    yield ["fingerprint", *((given.fingerprint or MISSING)[:16] for given in inputs)]


def _status(given: Input) -> str:
    own = given.own
    if given.trials is not None:
        return f"{given.trials} of {_known(own.get('planned'))} trials finished"
    seconds = number_at(own, "window_s")
    after = "" if seconds is None else f" after {seconds:.1f} s"
    return f"{plain(own.get('status'))}{after}"


def _books(given: Input) -> str:
    books = _at(given.own, "requests")
    if not isinstance(books, Mapping):
        return MISSING
    names = ("completed_in_window", "failed", "rejected", "unfinished")
    told = ("completed", *names[1:])
    parts = (f"{_known(books.get(n))} {t}" for n, t in zip(names, told, strict=True))
    return ", ".join(parts)


def _reasons(given: Input) -> Iterator[str]:
    """Everything that is to be known before the numbers, of results that have any."""
    notes = given.own.get("notes")
    said = [*given.reasons, *(notes if isinstance(notes, list) else [])]
    if given.own.get("contains_performance") is False:
        said.insert(0, "no byte was moved: virtual time says what models predict")
    if not said:
        return
    yield (
        f"**{given.label} is {plain(given.verdict)}:**"
        if given.verdict != VALID
        else (f"**To {given.label}:**")
    )
    yield ""
    yield from (f"- {plain(sentence)}" for sentence in said)


# --- the numbers -----------------------------------------------------------------------------


def _told(given: Input) -> bool:
    """False for a run that only wrote a trace of its operations: it timed nothing."""
    return _at(given.own, "config.output.io_trace_log") is None


def _numbers(inputs: Sequence[Input]) -> list[str]:
    if not all(_told(given) for given in inputs):
        return []
    compared, why = _compared(inputs)
    rows: dict[tuple[str, str], Row] = {}
    if compared is not None:
        rows = {(row.metric.name, row.label): row for row in compared.rows}
    base, *others = inputs
    heads = ["", "unit", *(f"{given.label}:" for given in inputs)]
    if rows:
        heads += [f"{other.label}/{base.label}, 95 %" for other in others]
    how = list(_how(inputs, compared, why))
    return [*_table(heads, _metric_rows(inputs, others, rows)), *([""] if how else []), *how]


def _metric_rows(
    inputs: Sequence[Input], others: Sequence[Input], rows: Mapping[tuple[str, str], Row]
) -> Iterator[list[str]]:
    for metric in METRICS.values():
        cells = [_value(given, metric) for given in inputs]
        if any(cell != MISSING for cell in cells):
            ratios = [_ratio(rows.get((metric.name, o.label))) for o in others if rows]
            yield [metric.label, metric.shown_unit, *cells, *ratios]


def _value(given: Input, metric: Metric) -> str:
    """Of trials the mean with its interval."""
    if given.trials is None:
        return metric.shown(metric.value(given.own))
    metrics = given.own.get("metrics")
    numbers = metrics.get(metric.name) if isinstance(metrics, Mapping) else None
    mean, low, high = (_number(numbers, n) for n in ("mean", "interval.low", "interval.high"))
    if mean is None or low is None or high is None:
        return metric.shown(mean)
    return f"{metric.shown(mean)} ({metric.shown(low)} to {metric.shown(high)})"


def _ratio(row: Row | None) -> str:
    if row is None or row.ratio is None:
        return MISSING
    between = "" if row.interval is None else f" ({_between(row.interval)})"
    if row.better is None:
        return f"{row.ratio:.3f}{between}"
    word = "better" if row.better else "worse"
    sure = word if row.finding is Finding.DIFFERS else f"{word}?"
    return f"{row.ratio:.3f}{between} {sure}"


def _between(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"


def _compared(inputs: Sequence[Input]) -> tuple[Comparison | None, str | None]:
    """The comparison, or why there is none. Of one result there is neither."""
    if len(inputs) == 1:
        return None, None
    try:
        for other in inputs[1:]:
            require_comparable(inputs[0], other)
    except UsageError as error:
        return None, str(error)
    return compare(inputs), None


def _how(inputs: Sequence[Input], compared: Comparison | None, why: str | None) -> Iterator[str]:
    trials = any(given.trials is not None for given in inputs)
    if trials:
        yield "Means over trials, with their 95 % intervals."
    if why is not None:
        yield f"No ratios: {plain(why)}"
    if compared is None:
        return
    judged = sum(row.interval is not None for row in compared.rows)
    if not judged:
        reasons = dict.fromkeys(row.why_none for row in compared.rows if row.why_none)
        yield f"No ratio has an interval: {plain('; '.join(reasons))}."
    else:
        yield (
            f"Intervals of ratios come from the spread {compared.spread}. *better* and *worse* "
            f"hold for all {judged} together with 95 % (Holm), with ? only alone."
        )
    if judged and not trials:
        yield "Single runs: how much runs differ from each other is not known."


# --- ranks -----------------------------------------------------------------------------------

_OF_RANKS: Mapping[str, str] = {
    "read GiB/s:": "storage.read.bytes_per_second",
    "write GiB/s:": "storage.write.bytes_per_second",
    "read p95 ms:": "storage.read.device_ms.p95",
    "write p95 ms:": "storage.write.device_ms.p95",
    "requests/s:": "requests_per_second",
}


def _ranks(inputs: Sequence[Input]) -> list[str]:
    """Each rank of what was added up over several."""
    rows = [
        [*_of(given, inputs), *row]
        for given in inputs
        if given.ranks is not None
        for row in _rank_rows(given.own)
    ]
    return _table([*_of_head(inputs), "rank", "host", *_OF_RANKS, "verdict"], rows)


def _rank_rows(own: Json) -> Iterator[list[str]]:
    rows = own.get("ranks")
    for row in rows if isinstance(rows, list) else ():
        numbers = _at(row, "figures")
        known = numbers if isinstance(numbers, Mapping) else {}
        shown = (METRICS[name].shown(number_at({"n": known.get(name)}, "n"))
                 for name in _OF_RANKS.values())  # fmt: skip
        counted = _at(row, "counted") is True
        said = _known(_at(row, "verdict")) if counted else f"not counted: {_at(row, 'why_not')}"
        yield [_known(_at(row, "rank")), _known(_at(row, "host")), *shown, plain(said)]


# --- tiers and classes -----------------------------------------------------------------------

_TIER_HEADS = ("tier", "", "GiB/s:", "GiB:", "ops:", "p50 ms:", "p95 ms:", "p99 ms:")


def _tiers(inputs: Sequence[Input]) -> list[str]:
    rows = [
        [*_of(given, inputs), *row]
        for given in inputs
        if _told(given)
        for row in _tier_rows(given.own)
    ]
    return _table([*_of_head(inputs), *_TIER_HEADS], rows)


def _of(given: Input, inputs: Sequence[Input]) -> list[str]:
    return [given.label] if len(inputs) > 1 else []


def _of_head(inputs: Sequence[Input]) -> list[str]:
    return ["of"] if len(inputs) > 1 else []


def _tier_rows(own: Json) -> Iterator[list[str]]:
    tiers = own.get("tiers")
    for label, tier in tiers.items() if isinstance(tiers, Mapping) else ():
        part = "device_ms" if label == "storage" else "total_ms"
        name = f"{plain(label)} ({_known(_at(tier, 'store.engine'))})"
        for kind in ("read", "write"):
            row = _at(tier, kind)
            if not _number(row, "operations"):
                continue
            yield [
                name,
                kind,
                _scaled(_number(row, "bytes_per_second"), GIB),
                _scaled(_number(row, "bytes"), GIB),
                _known(_at(row, "operations")),
                *(_late(row, part, p) for p in ("p50", "p95", "p99")),
            ]


def _sizes(inputs: Sequence[Input]) -> list[str]:
    """Sizes of the objects that storage moved, and their shares by powers of two."""
    rows = [
        [
            *_of(given, inputs),
            row.kind,
            *row.cells,
            ", ".join(f"{low} {100 * share:.0f} %" for low, share in shares(row)),
        ]
        for given in inputs
        for row in size_rows(given.own)
    ]
    about = [plain(f"{given.label}: {about_objects(given.own)}.") for given in inputs if rows]
    heads = [*_of_head(inputs), "storage", *(f"{head}:" for head in HEADS), "share from"]
    return [*_table(heads, rows), *([""] if about else []), *about]


def _late(row: Any, part: str, percentile: str) -> str:
    """A percentile in ms, marked where it is a lower bound."""
    sign = AT_LEAST if percentile in words_at(row, f"{part}.at_least") else ""
    return sign + _scaled(_number(row, f"{part}.{percentile}"), 1)


def _scaled(value: float | None, scale: float) -> str:
    return MISSING if value is None else f"{value / scale:,.2f}"


_CLASS_HEADS = (
    *("class", "completed:", "TTFT p50 ms:", "TTFT p95 ms:", "response p50 ms:"),
    *("response p95 ms:", "response p99 ms:", "target p95"),
)


def _classes(inputs: Sequence[Input]) -> list[str]:
    rows = [
        [*_of(given, inputs), *row]
        for given in inputs
        if _told(given)
        for row in _class_rows(given.own)
    ]
    return _table([*_of_head(inputs), *_CLASS_HEADS], rows)


def _class_rows(own: Json) -> Iterator[list[str]]:
    for qos in Qos:
        row = _at(own, f"measured.{qos.value}")
        if not _number(row, "completed"):
            continue
        told = {"ttft_ms": ("p50", "p95"), "response_ms": ("p50", "p95", "p99")}
        yield [
            qos.value,
            _known(_at(row, "completed")),
            *(_late(row, part, p) for part, names in told.items() for p in names),
            _promise(_at(row, "promises.p95")),
        ]


def _promise(kept: Any) -> str:
    """Promises are of the end-to-end latency."""
    target, count, within = (_number(kept, n) for n in ("target_ms", "requests", "within"))
    if target is None or within is None or not count:
        return MISSING
    met = _at(kept, "met")
    word = "kept" if met is True else "missed" if met is False else "too few to say"
    return f"{word}: {within:,.0f} of {count:,.0f} within {target:,.0f} ms"


# --- where and how ---------------------------------------------------------------------------

_PLACES: Mapping[str, str] = {
    "machine": "hostname",
    "CPU": "cpu.model",
    "cores": "cpu.usable_cores",
    "kernel": "os.kernel",
    "system": "os.release",
    "file system": "filesystem.type",
    "mount options": "filesystem.mount_options",
    "drive": "device.name",
    "drive model": "device.model",
    "scheduler": "device.scheduler",
    "Python": "python.version",
}


def _twin(given: Input) -> list[str]:
    """What was predicted of a run, where it was."""
    section = given.own.get("twin")
    if not isinstance(section, Mapping) or not isinstance(section.get("prediction"), Mapping):
        return []
    rows = [[plain(cell) for cell in row] for row in prediction_rows(section)]
    heads = [f"{given.label}: twin", "predicted:", "measured:", "error:"]
    return _table(heads, rows)


def _where(inputs: Sequence[Input]) -> list[str]:
    rows = []
    for name, path in _PLACES.items():
        found = [_at(given.own.get("environment"), path) for given in inputs]
        if any(value is not None for value in found):
            rows.append([name, *(_known(value) for value in found)])
    memory = [number_at(given.own, "environment.memory.total_bytes") for given in inputs]
    if any(memory):
        shown = (MISSING if n is None else f"{n / GIB:.1f} GiB" for n in memory)
        rows.insert(3, ["memory", *shown])
    return _table(_heads(inputs), rows)


def _settings(inputs: Sequence[Input]) -> list[str]:
    """Options that are not at their default in one of the results."""
    rows = []
    for path, option in options().items():
        if path.startswith(_QUIET):
            continue
        found = [_at(given.own.get("config"), path) for given in inputs]
        if any(value is not None and value != _json(option.default) for value in found):
            rows.append([f"`{path}`", *(_known(value) for value in found)])
    return _table(["option", *_heads(inputs)[1:]], rows)


def _json(value: Any) -> Any:
    """A default as a result has it."""
    return list(value) if isinstance(value, tuple) else value
