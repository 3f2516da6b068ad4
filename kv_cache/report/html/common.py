"""Sections that every document has: the environment, the configuration, where it is from."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.report.chain import fingerprint
from kv_cache.report.html.parts import Doc, Json, Section, details, dotted, flat, table
from kv_cache.report.html.text import Html, as_text, tag
from kv_cache.report.pictures.base import rows_at, value_at

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
    yield Section(slug="origin", title="Origin", content=_origin(doc))


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
        (dotted(name), as_text(value)) for name, value in pairs if value not in (None, "", [], {})
    ]
    return table(caption, ("what", "value"), rows, words=2)


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


def _origin(doc: Doc) -> list[Html]:
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
    made = [_pairs("Where this is from", rows)]
    recordings = [
        (str(row.get("what")), row.get("path"), row.get("rows"), row.get("sha256"))
        for row in rows_at(own, "recordings")
    ]
    if recordings:
        heads = ("what", "path", "rows", "SHA-256")
        made.append(table("Traces that the run wrote", heads, recordings, words=4))
    return made
