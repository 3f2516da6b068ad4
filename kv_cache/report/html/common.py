"""Sections that every document has: the environment, the configuration, where it is from."""

from collections.abc import Iterator, Sequence
from functools import cache
from math import isfinite
from typing import Any

from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.format import as_text, figures
from kv_cache.core.units import GIB
from kv_cache.report.html.parts import Doc, Json, Section, details, dotted, flat, table
from kv_cache.report.html.text import Html, tag
from kv_cache.report.pictures.base import number, rows_at, value_at, word
from kv_cache.result.chain import fingerprint
from kv_cache.view.identity import drive_texts

_GIVEN_ANYWAY = ("run.seed", "output.output", "output.results_dir")
"""Options that differ from their default in every run, and say nothing of it."""


def common_sections(doc: Doc) -> Iterator[Section]:
    yield Section(
        slug="environment", title="Environment", content=_environment(doc.own),
        absent="The document says nothing of the machine.",
    )  # fmt: skip
    yield Section(
        slug="config", title="Configuration", content=_config(doc.own),
        absent="The document holds no configuration.",
    )  # fmt: skip
    yield Section(slug="origin", title="Origin", content=origin(doc))


_FIRST = ("hostname", "program", "os", "cpu", "memory", "cgroup", "drives")


def _environment(own: Json) -> list[Html]:
    found = value_at(own, "environment")
    if not isinstance(found, dict) or not found:
        return []
    first = [(name, value) for key in _FIRST for name, value in flat(found.get(key), key)]
    rest = [(name, value) for key in found if key not in _FIRST
            for name, value in flat(found[key], key)]  # fmt: skip
    made = [_pairs("The machine and its drives", first)]
    return [*made, details("Everything else", _pairs("The rest of the environment", rest))]


def _pairs(caption: str, pairs: Sequence[tuple[str, Any]]) -> Html:
    rows = [
        (dotted(name), _told(name, value))
        for name, value in pairs
        if value not in (None, "", [], {})
    ]
    return table(caption, ("what", "value"), rows, words=2)


def _told(name: str, value: Any) -> str:
    """A value as people write it; of many bytes, how many GiB that is."""
    if name.endswith("_bytes") and isinstance(value, int) and value >= GIB / 10:
        return f"{as_text(value)} ({figures(value / GIB)} GiB)"
    return as_text(value)


def machine(own: Json) -> Iterator[str]:
    """Where this was measured, in a sentence; nothing where the document does not say."""
    about = [
        text
        for text in (
            word(own, "environment.hostname"),
            word(own, "environment.cpu.model"),
            _counted(number(own, "environment.cpu.usable_cores"), "{} cores"),
            _counted(number(own, "environment.memory.total_bytes") / GIB, "{} GiB of memory"),
            *dict.fromkeys(drive_texts(own)),
        )
        if text
    ]
    if about:
        yield f"Measured on {', '.join(about)}."


def _counted(amount: float, text: str) -> str:
    return text.format(figures(amount)) if isfinite(amount) else ""


@cache
def _defaults() -> dict[str, Any]:
    return dict(flat(to_mapping(Config())))


def _config(own: Json) -> list[Html]:
    given = value_at(own, "config")
    if not isinstance(given, dict) or not given:
        return []
    options, defaults = flat(given), _defaults()
    changed = [
        (dotted(name), as_text(value), as_text(defaults.get(name)))
        for name, value in options
        if value != defaults.get(name) and name not in _GIVEN_ANYWAY
    ]
    made = (
        table("Options that are not at their default", ("option", "value", "default"), changed,
              words=3)
        if changed
        else tag("p", "Every option has its default.")
    )  # fmt: skip
    every = [(dotted(name), as_text(value)) for name, value in options]
    whole = table("The effective configuration", ("option", "value"), every, words=2)
    return [made, details(f"All {len(every)} options", whole)]


def origin(doc: Doc) -> list[Html]:
    """Where a document is from: its file, program, seed and fingerprint."""
    own = doc.own
    rows = [
        ("file", doc.name),
        ("schema", doc.schema),
        ("program", own.get("program_version")),
        ("started", own.get("started_utc")),
        ("seed", own.get("seed")),
        ("schedule (SHA-256)", value_at(own, "schedule.sha256")),
        ("fingerprint", fingerprint(doc.document)),
    ]
    made = [_pairs("Where this is from", rows), *_beside(own)]
    recordings = [
        (str(row.get("what")), row.get("path"), row.get("rows"), row.get("sha256"))
        for row in rows_at(own, "recordings")
    ]
    if recordings:
        heads = ("what", "path", "rows", "SHA-256")
        made.append(table("Traces that the run wrote", heads, recordings, words=4))
    return made


_WRITTEN = (
    ("fio_export", "fio job of the same I/O on storage"),
    ("hdr_log", "latencies as a log of HdrHistogram"),
    ("latency_dump", "latency of each request"),
    ("xlsx_output", "spreadsheet"),
)


def _beside(own: Json) -> list[Html]:
    """Files that the run was asked to write beside its result."""
    rows = [
        (said, path)
        for name, said in _WRITTEN
        if isinstance(path := value_at(own, f"config.output.{name}"), str)
    ]
    if not rows:
        return []
    return [table("Files that the run was asked to write", ("what", "path"), rows, words=2)]
