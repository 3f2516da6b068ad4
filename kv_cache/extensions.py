"""Tables of what a user may bring along: policies, trace formats, storage engines.

A `Catalogue` is a table of ours. It also has what installed packages offer under an entry point
group, by its name, and whatever is named as `module:Class`. Nothing of the package is edited, and
nothing of a user's is imported unless it is asked for.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from kv_cache.core.errors import ConfigError

T = TypeVar("T")


class Catalogue(Mapping[str, T], Generic[T]):
    """Our entries by name, then those of the entry points of `group`, then `module:Class`.

    `adapt` turns what was imported into an entry; it raises TypeError for what cannot be one.
    """

    def __init__(self, group: str, table: Mapping[str, T], adapt: Callable[[Any], T]) -> None:
        self.group = group
        self.ours = dict(table)
        self._adapt = adapt
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Raises KeyError for a name that there is not, ConfigError for one that fails to load."""
        if name in self.ours:
            return self.ours[name]
        if name not in self._loaded:
            entry = self._loaded[name] = self._load(name)
            if isinstance(called := getattr(entry, "name", None), str):
                self._loaded.setdefault(called, entry)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Return whether a name can be meant. Imports nothing: a result that is read may name
        anything."""
        if not isinstance(name, str):
            return False
        return name in self.ours or is_an_extension(name) or name in self._offered

    def __iter__(self) -> Iterator[str]:
        yield from self.ours
        yield from (name for name in self._offered if name not in self.ours)

    def __len__(self) -> int:
        return len(list(iter(self)))

    @cached_property
    def _offered(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, name: str) -> T:
        if is_an_extension(name):
            module, _, attribute = name.partition(":")
            loaded = _imported(name, module, attribute)
        elif name in self._offered:
            point = self._offered[name]
            loaded = _imported(f"{name} ({point.value})", point.module, point.attr)
        else:
            raise KeyError(name)
        try:
            return self._adapt(loaded)
        except TypeError as error:
            raise ConfigError(
                f"{name} is not what {self.group} wants: {error}; see kv_cache.testing and "
                "docs/how-to/bring-your-own.md"
            ) from error


def _imported(name: str, module: str, attribute: str) -> Any:
    """Import as `python -m` does, with the working directory among the places. Raises
    ConfigError."""
    missing = "" not in sys.path
    if missing:
        sys.path.insert(0, "")
    try:
        value: Any = import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{name} cannot be imported ({what}); give MODULE:CLASS of a module in the working "
            "directory or an installed package"
        ) from error
    finally:
        if missing:
            sys.path.remove("")
    return value


def is_an_extension(name: str) -> bool:
    """Return whether a name is `module:Class`."""
    module, colon, attribute = name.partition(":")
    return bool(colon and attribute and module.replace(".", "").replace("_", "a").isidentifier())


def makes(*methods: str) -> Callable[[Any], Any]:
    """Return what adapts: a factory is taken as it is, a class if it has these methods. It raises
    TypeError."""

    def adapt(value: Any) -> Any:
        if not callable(value):
            raise TypeError(f"{value!r} cannot be called")
        missing = [name for name in methods if not hasattr(value, name)]
        if isinstance(value, type) and missing:
            raise TypeError(f"it has no {', '.join(missing)}")
        return value

    return adapt


def an_instance(value: Any) -> Any:
    """Adapt: a class is called without arguments, an instance taken as it is."""
    return value() if isinstance(value, type) else value
