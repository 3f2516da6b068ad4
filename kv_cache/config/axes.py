"""What varies in a grid or a scenario file: lists of values by option, alone or together."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kv_cache.config.schema import show
from kv_cache.core.errors import ConfigError

_PLAIN = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Options that change together: `values[i]` has one value for each of `paths`."""

    paths: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as YAML means it: `true` is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def word(value: Any) -> str:
    """Return a value as a part of a name; of a path its last part."""
    if isinstance(value, list | tuple):
        return "+".join(map(word, value))
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off", None: "none"}[value]
    return _PLAIN.sub("_", str(value).rstrip("/").rpartition("/")[2])


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"run": {"seed": 5}}` for `{"run.seed": 5}`."""
    tree: dict[str, Any] = {}
    for path, value in dotted.items():
        *parents, last = path.split(".")
        branch = tree
        for name in parents:
            branch = branch.setdefault(name, {})
        branch[last] = value
    return tree


# --- reading ---------------------------------------------------------------------------------


def table_of(value: Any, source: str, key: str, shape: str) -> Mapping[Any, Any]:
    """Return a mapping of a file, empty if it is left out. Raises ConfigError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {key} is {show(value)}; it must be {shape}")
    return value


def count_of(value: Any, source: str, key: str, most: int) -> int:
    """Return a whole number from 1 to `most`, 1 if it is left out. Raises ConfigError."""
    if value is None:
        return 1
    if type(value) is int and 1 <= value <= most:
        return value
    raise ConfigError(f"{source}: {key} is {show(value)}; it must be a whole number, 1 to {most}")


Require = Callable[[Any, Any, str], None]
"""Refuses an option by its path, or a value of it, that a key of the file may not have."""


def axes_of(
    tree: Mapping[str, object], source: str, require: Require, again: str
) -> tuple[Axis, ...]:
    """Return an axis for each option of `vary`, and one for all those of `zip`. `again` says how to
    repeat a value instead of giving it twice. Raises ConfigError."""
    alone, together = (
        _lists_of(tree.get(key), source, key, require, again) for key in ("vary", "zip")
    )
    separate = [
        Axis(paths=(path,), values=tuple((value,) for value in values))
        for path, values in alone.items()
    ]
    return (*separate, *_zipped(together, source))


def _lists_of(
    value: Any, source: str, key: str, require: Require, again: str
) -> dict[str, Sequence[Any]]:
    """Return the values of each option, of which `require` refuses those that it cannot take. A
    value twice in a list is refused, but not in `zip`; `again` says how to repeat instead. Raises
    ConfigError."""
    table = table_of(value, source, key, "{option: [values]}")
    for path, values in table.items():
        if not isinstance(values, list) or not values:
            what = "no values" if values in ([], None) else show(values)
            raise ConfigError(f"{source}: {key}.{path} has {what}; give a list of values")
        for number, each in enumerate(values):
            require(path, each, key)
            if key == "vary" and any(same(each, other) for other in values[:number]):
                raise ConfigError(
                    f"{source}: {key}.{path} has {show(each)} twice; give each value once, and "
                    f"{again}"
                )
    return dict(table)


def _zipped(columns: Mapping[str, Sequence[Any]], source: str) -> list[Axis]:
    """Return all options of `zip` as one axis. Raises ConfigError."""
    if not columns:
        return []
    lengths = {path: len(values) for path, values in columns.items()}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{path} has {n}" for path, n in lengths.items())
        raise ConfigError(
            f"{source}: zip has lists of different lengths ({words}); make them equal"
        )
    rows = tuple(zip(*columns.values(), strict=True))
    for number, row in enumerate(rows):
        if any(all(map(same, row, other)) for other in rows[:number]):
            raise ConfigError(f"{source}: zip has the values {show(list(row))} twice; keep one")
    return [Axis(paths=tuple(columns), values=rows)]
