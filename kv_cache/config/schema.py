"""The declarative layer under the configuration: dataclasses whose fields explain themselves.

An option is a dataclass field made by `opt`; a section is a frozen dataclass of options and of
sections, each with a default.
`from_mapping` reads plain values strictly, `describe` lists the options, `print_config` writes YAML
that reads back equal. This module knows nothing of any particular option.

It must never guess: a key it does not know, a value of the wrong type or out of bounds is a
`ConfigError` of one sentence that names the place, the rule and a way out.
"""

import dataclasses
import math
import os
import re
import textwrap
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from fractions import Fraction
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from msgspec import Struct

from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.text import is_utf8
from kv_cache.extensions import Catalogue

T = TypeVar("T")
_S = TypeVar("_S", bound=Struct)

_NOUNS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}
_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one option accepts, and the words that explain it. Bounds hold for each element."""

    help: str
    unit: str | None = None
    low: float | None = None
    above: float | None = None  # an exclusive lower bound
    high: float | None = None
    choices: Collection[Any] | None = None
    flag: str | None = None  # `--name`, or a bare NAME for a word that needs no flag
    short: str | None = None
    metavar: str | None = None
    required: bool = False
    rare: bool = False  # in --help-all alone
    read_when: tuple[str, ...] = ()  # conditions without which it has no effect: config/unread.py

    @property
    def is_path(self) -> bool:
        """Whether it names files or directories, by what its value is called."""
        return (self.metavar or "").endswith(("PATH", "DIR", "FILE"))

    @property
    def words(self) -> list[str]:
        """The choices for a person; of a table that may be extended ours, and how."""
        if isinstance(self.choices, Catalogue):
            return [*self.choices.ours, "MODULE:CLASS"]
        return [str(choice) for choice in self.choices or ()]

    @property
    def bounds(self) -> str:
        """`1 to 100000`, `above 0, at most 86400`, `one of lru, fifo`; empty without bounds."""
        if self.choices is not None:
            return f"one of {', '.join(self.words)}"
        if self.low is not None and self.high is not None:
            return f"{_number(self.low)} to {_number(self.high)}"
        parts = []
        if self.low is not None:
            parts.append(f"at least {_number(self.low)}")
        if self.above is not None:
            parts.append(f"above {_number(self.above)}")
        if self.high is not None:
            parts.append(f"at most {_number(self.high)}")
        return ", ".join(parts)

    def allows(self, value: Any) -> bool:
        if self.choices is not None:
            return value in self.choices
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a configuration: where it stands, its default and its rule."""

    path: str
    hint: Any
    default: Any
    rule: Rule

    @property
    def flag(self) -> str | None:
        return self.rule.flag

    @property
    def kind(self) -> Any:
        """The type without its `| None`."""
        return _without_none(self.hint)[0]

    @property
    def optional(self) -> bool:
        return _without_none(self.hint)[1]


def opt(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Collection[Any] | None = None,
    flag: str | None = None,
    short: str | None = None,
    metavar: str | None = None,
    required: bool = False,
    rare: bool = False,
    read_when: str | tuple[str, ...] = (),
) -> Any:
    """Declare one option as a dataclass field; `help` is one line without the bounds and the unit.
    A number with a unit is also read from text that has one, as `10GB` or `5m`."""
    rule = Rule(
        help=help, unit=unit, low=low, above=above, high=high, choices=choices, flag=flag,
        short=short, metavar=metavar, required=required, rare=rare,
        read_when=(read_when,) if isinstance(read_when, str) else read_when,
    )  # fmt: skip
    if isinstance(default, Mapping):
        table = dict(default)
        return dataclasses.field(default_factory=lambda: dict(table), metadata={"rule": rule})
    return dataclasses.field(default=default, metadata={"rule": rule})


def same_option(section: type, name: str, default: Any = dataclasses.MISSING) -> Any:
    """Declare the option `name` of another section again, with another default if one is given."""
    field = next(field for field in dataclasses.fields(section) if field.name == name)
    chosen = field.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=chosen, metadata=field.metadata)


# --- reading -------------------------------------------------------------------------------


def from_mapping(cls: type[T], mapping: object, where: str = "", path: str = "") -> T:
    """Return a `cls` of plain values; what is missing takes its default, if it is not required.
    `where` names the file, and `path` the place in it. Raises ConfigError.
    """
    return _section(cls(), mapping, _At(where, path), whole=True)


def overlay(base: T, mapping: object, where: str = "") -> T:
    """Return `base` with the values of `mapping` over it, at any depth. Raises ConfigError."""
    return _section(base, mapping, _At(where, ""))


def read_text(option: Option, text: str, name: str) -> Any:
    """The value of a scalar option from a word of the command line, where it is called `name`."""
    at = _At("", name)
    origin, inner = get_origin(option.kind), get_args(option.kind)
    if origin is None:
        raw: object = _number_in(option.kind, option.rule, text, at)
    elif origin is not tuple:
        raw = _pairs(inner[1], option.rule, text, at)
    elif inner[0] is str:
        raw = text
    else:
        raw = [_number_in(inner[0], option.rule, word, at) for word in text.split(",")]
    return _value(option.hint, option.rule, option.default, raw, at)


def _pairs(kind: type, rule: Rule, text: str, at: "_At") -> dict[str, object]:
    """`llama3.1-8b=0.7,qwen3-8b=0.3`; a name may have `=` in it, its value may not."""
    table: dict[str, object] = {}
    for pair in text.split(","):
        key, equals, value = pair.rpartition("=")
        if not key or not equals:
            raise at.error(f"is {show(text)}; it must be {rule.metavar or 'NAME=VALUE,...'}")
        if key in table:
            raise at.error(f"has {show(key)} twice; give each name once")
        table[key] = _number_in(kind, rule, value, at.key(key))
    return table


def _number_in(kind: Any, rule: Rule, text: str, at: "_At") -> object:
    """Text as the number that is wanted, or as it is if none is."""
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is not int and kind is not float:
        return text
    try:
        number: object = kind(text)
    except ValueError:
        if (number := number_with_unit(text, rule.unit, kind)) is None:
            raise at.error(f"is {show(text)}; it must be {_wanted(kind, rule, text)}") from None
    return number


_SIZES: Mapping[str, Fraction] = {
    "b": Fraction(1),
    "bytes": Fraction(1),
    **{f"{letter}b": Fraction(1000**power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": Fraction(1024**power) for power, letter in enumerate("kmgt", 1)},
}
_TIMES: Mapping[str, Fraction] = {
    **{unit: Fraction(1, 10**power) for unit, power in (("ns", 9), ("us", 6), ("µs", 6))},
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]{1,3})? ?([a-zA-Zµ]+)")


def number_with_unit(text: str, unit: str | None, kind: type) -> float | int | None:
    """Return `10GB` or `5m` as a number of `unit` (bytes, KiB … TiB, ns … s); None if it is not
    one, or not a whole number of units if `kind` is int.

    Sizes may be written in any case, but not as bits (`Gb`); times only as they are (`ms`).
    """
    matched = _WITH_UNIT.fullmatch(text.strip())
    if matched is None or unit is None:
        return None
    number, word = Fraction(f"{matched[1]}{matched[2] or ''}"), matched[3]
    if unit.lower() in _SIZES and not re.fullmatch("[KMGT]i?b", word):
        factor, base = _SIZES.get(word.lower()), _SIZES[unit.lower()]
    elif unit in _TIMES:
        factor, base = _TIMES.get(word), _TIMES[unit]
    else:
        return None
    if factor is None:
        return None
    return _as_number(number * factor / base, kind)


def _as_number(exact: Fraction, kind: type) -> float | int | None:
    if kind is int:
        return exact.numerator if exact.denominator == 1 else None
    try:
        return float(exact)
    except OverflowError:
        return None


def _units_of(rule: Rule) -> str:
    """Return a hint at the units that an option is read with; empty if it takes none."""
    unit = rule.unit or ""
    if unit.lower() in _SIZES:
        return f" of {unit}, or one with B, KB, KiB, MB, MiB, GB, GiB, TB or TiB"
    if unit in _TIMES:
        return f" of {unit}, or one with ns, us, ms, s, m, h or d"
    return ""


@dataclass(frozen=True, slots=True)
class _At:
    """A place in a configuration, for messages."""

    where: str
    path: str

    def key(self, key: object) -> "_At":
        plain = isinstance(key, str) and key.isprintable() and 0 < len(key) <= 60
        word = str(key) if plain else show(key)
        return _At(self.where, f"{self.path}.{word}" if self.path else word)

    def error(self, text: str) -> ConfigError:
        prefix = f"{self.where}: " if self.where else ""
        return ConfigError(f"{prefix}{self.path or 'the top level'} {text}")


def _section(base: T, raw: object, at: _At, *, whole: bool = False) -> T:
    """Return `base` with the values of `raw`, which if it is to be `whole` has all that the section
    requires."""
    hints = _hints(type(base))
    rules = _rules(type(base))
    required = [name for name, rule in rules.items() if whole and rule and rule.required]
    if raw is None and not required:  # a section in YAML whose keys are all commented out
        return base
    values = {}
    for key, value in _mapping(raw, at).items():
        if key not in hints:
            word = key if isinstance(key, str) else show(key)
            raise at.key(key).error(f"is not a known key.{did_you_mean(word, hints)}")
        values[key] = _value(hints[key], rules[key], getattr(base, key), value, at.key(key))
    for name in required:
        if name not in values:
            raise at.key(name).error("is missing")
    return dataclasses.replace(base, **values)  # type: ignore[type-var]


def _value(hint: Any, rule: Rule | None, base: Any, raw: object, at: _At) -> Any:
    if is_dataclass(hint):
        return _section(base, raw, at)
    kind, optional = _without_none(hint)
    if raw is None and optional:
        return None
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _section(kind(), raw, at, whole=True)
    assert rule is not None, f"{at.path} is neither a section nor made by opt"
    origin = get_origin(kind)
    if origin is tuple:
        return _sequence(get_args(kind), rule, raw, at)
    if origin is not None:
        return _table(get_args(kind)[1], rule, base, raw, at)
    return _scalar(kind, rule, raw, at)


def _scalar(kind: type, rule: Rule, raw: object, at: _At) -> Any:
    raw = _converted(kind, rule, raw)
    value = _typed(kind, rule, raw)
    if value is None or not rule.allows(value):
        hint = did_you_mean(raw, rule.choices) if rule.choices and isinstance(raw, str) else ""
        hint = hint if hint.startswith(" Did") else ""
        quotes = kind is str and rule.choices is None and isinstance(raw, int | float)
        text = f"is {show(raw)}; it must be {_wanted(kind, rule, raw)}"
        raise at.error(text + (" (put it in quotes)" if quotes else "") + (hint and f".{hint}"))
    return _at_home(value, at) if rule.is_path else value


def _converted(kind: type, rule: Rule, raw: object) -> object:
    """Return text with a unit as the number that it is, anything else as it is."""
    if not isinstance(raw, str) or kind not in (int, float):
        return raw
    number = number_with_unit(raw, rule.unit, kind)
    return raw if number is None else number


def _at_home(path: str, at: _At) -> str:
    """A path whose `~` or `~user` is replaced by that home, as a shell does it."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise at.error(
            f"is {show(path)}, and there is no such user; for a directory of that name write ./~..."
        )
    return expanded


def _typed(kind: type, rule: Rule, raw: object) -> Any:
    """`raw` as a `kind`, or None. A bool is no number; a whole number is a fine float."""
    if kind is str:
        if raw is False and rule.choices and "off" in rule.choices:
            return "off"  # YAML reads a bare `off` as false
        if not isinstance(raw, str) or not raw or "\0" in raw:
            return None
        return raw if is_utf8(raw) else None
    if kind is bool or isinstance(raw, bool):
        return raw if kind is bool and isinstance(raw, bool) else None
    if kind is int:
        return raw if isinstance(raw, int) else None
    if not isinstance(raw, int | float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _sequence(kinds: tuple[Any, ...], rule: Rule, raw: object, at: _At) -> tuple[Any, ...]:
    """`[low, high]` for tuple[X, X], a list that is not empty for tuple[X, ...], where one text
    may stand for itself."""
    kind, pair = kinds[0], kinds[-1] is not Ellipsis
    shape = "a pair [low, high]" if pair else "a list, not empty,"
    nouns = "texts that are not empty" if kind is str else f"{_NOUNS[kind][2:]}s"
    wanted = f"{shape} of {nouns}" + (f", {rule.bounds} each" if rule.bounds else "")
    if kind is str and isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list | tuple) or (len(raw) != 2 if pair else not raw):
        raise at.error(f"is {show(raw)}; it must be {wanted}")
    values = tuple(_typed(kind, rule, _converted(kind, rule, item)) for item in raw)
    for item, value in zip(raw, values, strict=True):
        if value is None or not rule.allows(value):
            raise at.error(f"has {show(item)} in it; it must be {wanted}")
    if pair and values[0] > values[1]:
        raise at.error(f"is {show(raw)}; the first number must not be above the second")
    return tuple(_at_home(value, at) for value in values) if rule.is_path else values


def _table(kind: Any, rule: Rule, base: Mapping[str, Any], raw: object, at: _At) -> dict[str, Any]:
    """Mapping[str, Section], whose sections are put over those that are there; Mapping[str, float]
    or of texts, which is replaced as a whole; or Mapping[str, Any] of plain values that nobody
    looks at here."""
    table = {} if kind in _NOUNS else dict(base)
    for key, value in _mapping(raw, at).items():
        if not isinstance(key, str):
            raise at.error(f"has the key {show(key)}; keys are text (put it in quotes)")
        if is_dataclass(kind):
            assert isinstance(kind, type)
            table[key] = _section(table[key] if key in table else kind(), value, at.key(key))
        elif kind in _NOUNS:
            table[key] = _scalar(kind, rule, value, at.key(key))
        elif any(isinstance(v, list | Mapping) for v in _as_list(value)):
            raise at.key(key).error(f"is {show(value)}; it must be a plain value or a list of them")
        else:
            table[key] = value
    return table


def _mapping(raw: object, at: _At) -> Mapping[Any, Any]:
    if not isinstance(raw, Mapping):
        raise at.error(f"is {show(raw)}; it must be a mapping of `key: value` lines")
    return raw


def _wanted(kind: type, rule: Rule, raw: object) -> str:
    if rule.choices is not None:
        return rule.bounds
    noun = _NOUNS[kind] + (" that is not empty" if kind is str else "")
    if kind in (int, float) and isinstance(raw, str):
        noun += _units_of(rule)
    return f"{noun}, {rule.bounds}" if rule.bounds else noun


# --- writing -------------------------------------------------------------------------------


def to_mapping(obj: Any) -> Any:
    """Plain dicts, lists and scalars of a section, such as YAML and JSON hold."""
    if is_dataclass(obj):
        return {f.name: to_mapping(getattr(obj, f.name)) for f in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return {key: to_mapping(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_mapping(value) for value in obj]
    return obj


def same_fields(cls: type[_S], section: Any) -> _S:
    """Return a `cls` whose every field is the option of that name in a section."""
    return cls(**{name: getattr(section, name) for name in cls.__struct_fields__})


def describe(cls: type[Any]) -> Iterator[Option]:
    """All options of a section, at any depth, in the order in which they are declared."""
    yield from _describe(cls(), "")


def _describe(base: Any, prefix: str) -> Iterator[Option]:
    hints, rules = _hints(type(base)), _rules(type(base))
    for name, hint in hints.items():
        value, rule = getattr(base, name), rules[name]
        if rule is None:
            yield from _describe(value, f"{prefix}{name}.")
        else:
            yield Option(path=f"{prefix}{name}", hint=hint, default=value, rule=rule)


def print_config(config: Any) -> str:
    """YAML with a comment above each option; it loads back to an equal configuration."""
    return "\n".join(("# null = not given", *_lines(config, 0))) + "\n"


def _lines(obj: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    rules = _rules(type(obj))
    for name, rule in rules.items():
        value = getattr(obj, name)
        if depth == 0:
            yield ""
        if rule is None:
            if depth == 0:
                yield from _comment(type(value).__doc__ or "", indent)
            yield f"{indent}{name}:"
            yield from _lines(value, depth + 1)
        else:
            notes = "; ".join(n for n in (rule.unit, rule.bounds, rule.flag) if n)
            yield from _comment(rule.help + (f" [{notes}]" if notes else ""), indent)
            yield f"{indent}{name}: {one_line(to_mapping(value))}"


def _comment(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=start,
        subsequent_indent=start,
        break_on_hyphens=False,
        break_long_words=False,
    )


def one_line(value: object) -> str:
    """Return one line of YAML. PyYAML ends a bare scalar with a document end marker; that goes."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9)
    return text.removesuffix("...\n").rstrip("\n")


# --- helpers -------------------------------------------------------------------------------


def show(value: object) -> str:
    """A value in a message: short, whatever it holds."""
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        if len(value) > 4 or any(isinstance(v, list | tuple | Mapping) for v in value):
            return f"a list of {len(value)}"
        return f"[{', '.join(show(v) for v in value)}]"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print whole numbers of more than 4300 digits
        return "a number with thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [arg for arg in get_args(hint) if arg is not type(None)]
        assert len(kinds) == 1, f"{hint} is not `X | None`"
        return kinds[0], True
    return hint, False


def is_optional(cls: type, name: str) -> bool:
    """Whether an option of a section need not be set: it may be None."""
    return _without_none(_hints(cls)[name])[1]


def _hints(cls: type) -> Mapping[str, Any]:
    """Return the type of each field."""
    if cls not in _HINTS:
        hints = get_type_hints(cls)
        _HINTS[cls] = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    return _HINTS[cls]


_HINTS: dict[type, Mapping[str, Any]] = {}  # for files with thousands of equal sections


def _rules(cls: type) -> dict[str, Rule | None]:
    """Return the rule of each field; None for a section."""
    return {f.name: f.metadata.get("rule") for f in dataclasses.fields(cls)}
