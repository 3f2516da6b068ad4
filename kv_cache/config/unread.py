"""Options that are set and have no effect, by what their declarations say: `opt(read_when=...)`.

    rag.enabled            read while this option is on: true, not 0, not empty; or, if it need not
                           be set, while it is
    !run.virtual_time      read while it is not
    policies.prefetch=a|b  read while it has one of these values, or is a user's own class
    policies.prefetch!=a   read while it has another one
    .admission=size        the same of an option of the same section
    replays                read while a fact about the whole holds

All conditions of an option must hold; of alternatives (`a or b`) one is enough. An option is set if
it differs from its default, or is in `explicit`. This module knows no particular option.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from kv_cache.config.schema import Rule, is_optional
from kv_cache.extensions import is_an_extension


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that follows from several options, and how it is said if it is not so."""

    holds: Callable[[Any], bool]
    otherwise: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One alternative of a condition: an option by its path, or a fact by its name."""

    path: str
    operator: str = ""
    values: tuple[str, ...] = ()

    @property
    def is_fact(self) -> bool:
        return "." not in self.path


@dataclass(frozen=True, slots=True)
class Unread:
    """An option or, without a rule, a section that is set and not read. `why` is a condition that
    does not hold, `usual` the default."""

    path: str
    value: Any
    usual: Any
    rule: Rule | None
    why: Condition


def unread(
    root: Any, facts: Mapping[str, Fact], explicit: Collection[str] = ()
) -> Iterator[Unread]:
    """Return what is set in a configuration and not read, in the order of declaration. `explicit`:
    options by path that are set, whatever their values."""
    yield from _unread(root, root, type(root)(), "", facts, explicit)


def conditions_of(text: str, section: str = "") -> list[Condition]:
    """Return the alternatives of a condition that an option of `section` has."""
    return [_condition(word, section) for word in text.split(" or ")]


def holds(condition: Condition, root: Any, facts: Mapping[str, Fact]) -> bool:
    """Whether a condition holds in a configuration."""
    expected = condition.operator != "!"
    if condition.is_fact:
        return facts[condition.path].holds(root) is expected
    parent, value = _at(root, condition.path)
    if not condition.values:
        return _is_on(parent, condition.path.rpartition(".")[2], value) is expected
    if isinstance(value, str) and is_an_extension(value):  # it may read anything
        return True
    return (str(value) in condition.values) is (condition.operator == "=")


def value_at(root: Any, path: str) -> Any:
    """Return the value of an option, or of one of a section in a table, by its dotted path."""
    return _at(root, path)[1]


def _unread(
    root: Any,
    section: Any,
    default: Any,
    prefix: str,
    facts: Mapping[str, Fact],
    explicit: Collection[str],
) -> Iterator[Unread]:
    for field in dataclasses.fields(section):
        value, usual = getattr(section, field.name), getattr(default, field.name)
        path, rule = f"{prefix}{field.name}", field.metadata.get("rule")
        if value == usual and not any(f"{name}.".startswith(f"{path}.") for name in explicit):
            continue
        read_when = field.metadata.get("read_when", ()) if rule is None else rule.read_when
        why = _broken(root, prefix.rstrip("."), read_when, facts)
        if why is not None:
            yield Unread(path, value, usual, rule, why)
        elif is_dataclass(value):
            yield from _unread(root, value, usual, f"{path}.", facts, explicit)
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                if is_dataclass(inner) and not isinstance(inner, type):
                    yield from _unread(
                        root, inner, type(inner)(), f"{path}.{name}.", facts, explicit
                    )


def _broken(
    root: Any, section: str, read_when: tuple[str, ...], facts: Mapping[str, Fact]
) -> Condition | None:
    """Return the first alternative of a condition of which none holds."""
    for text in read_when:
        alternatives = conditions_of(text, section)
        if not any(holds(each, root, facts) for each in alternatives):
            return alternatives[0]
    return None


def _condition(word: str, section: str) -> Condition:
    operator = "!" if word.startswith("!") else ""
    path, equals, values = word.removeprefix("!").partition("=")
    if equals:
        operator = "!=" if path.endswith("!") else "="
    path = path.rstrip("!")
    if path.startswith("."):
        path = f"{section}{path}"
    return Condition(path, operator, tuple(values.split("|")) if equals else ())


def _at(root: Any, path: str) -> tuple[Any, Any]:
    """Return the section that an option is in, and its value."""
    parent, value = None, root
    for name in path.split("."):
        parent, value = value, value[name] if isinstance(value, Mapping) else getattr(value, name)
    return parent, value


def _is_on(section: Any, name: str, value: object) -> bool:
    return value is not None if is_optional(type(section), name) else bool(value)
