"""Where and how a result was made: the environment and the configuration, for any kind."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.format import as_text
from kv_cache.core.units import GIB
from kv_cache.result.metrics import Json
from kv_cache.view import units
from kv_cache.view.parts import FactList, ShownColumn, Table, ViewSection, hidden_section

_ALWAYS_SET = ("run.seed", "output.output", "output.results_dir")
"""Options that differ from their default in every run, and say nothing of it."""
_FIRST = ("hostname", "program", "os", "cpu", "memory", "cgroup", "drives")


def machine_sections(section: Json) -> Iterator[ViewSection]:
    """Environment and configuration, from the section `kv_cache` of a document."""
    yield hidden_section(
        "Environment",
        list(_environment(section.get("environment"))),
        "The document says nothing of the machine.",
    )
    yield hidden_section(
        "Configuration",
        list(option_parts(section.get("config"), Config)),
        "The document holds no configuration.",
    )


def _environment(environment: object) -> Iterator[FactList]:
    if not isinstance(environment, Mapping) or not environment:
        return
    first = [fact for key in _FIRST for fact in leaves(environment.get(key), key)]
    rest = [
        fact for key in environment if key not in _FIRST for fact in leaves(environment[key], key)
    ]
    yield FactList(title="The machine and its drives", rows=_facts(first), detail=True)
    yield FactList(title="The rest of the environment", rows=_facts(rest), detail=True)


def _facts(pairs: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [
        (name, _value_text(name, value)) for name, value in pairs if value not in (None, "", [], {})
    ]


def _value_text(name: str, value: Any) -> str:
    """A value as people write it; many bytes in GiB as well."""
    if name.endswith("_bytes") and isinstance(value, int) and value >= GIB / 10:
        return f"{as_text(value)} ({units.GIBIBYTES.measured(value)})"
    return as_text(value)


@cache
def _defaults(kind: Callable[[], object]) -> dict[str, Any]:
    return dict(leaves(to_mapping(kind())))


def option_parts(config: object, kind: Callable[[], object]) -> Iterator[Table | FactList]:
    """Options of a document beside their defaults, by their paths."""
    if not isinstance(config, Mapping) or not config:
        return
    options, defaults = leaves(config), _defaults(kind)
    changed = [
        [name, as_text(value), as_text(defaults.get(name))]
        for name, value in options
        if value != defaults.get(name) and name not in _ALWAYS_SET
    ]
    yield Table(
        title="Options that are not at their default",
        columns=[ShownColumn("option"), ShownColumn("value"), ShownColumn("default")],
        rows=changed,
        caption="" if changed else "Every option has its default.",
    )
    every = [(name, as_text(value)) for name, value in options]
    yield FactList(title=f"All {len(every)} options", rows=every, detail=True)


def leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested mappings by their dotted paths; a list of mappings is numbered."""
    if isinstance(value, Mapping) and value:
        pairs = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        pairs = [(str(number), inner) for number, inner in enumerate(value, start=1)]
    else:
        return [(prefix, value)]
    return [leaf for name, inner in pairs for leaf in leaves(inner, f"{prefix}.{name}".lstrip("."))]
