"""A grid of configurations: `sweep GRID.yaml`.

A grid has a base (a configuration file, and options over it), axes whose values are combined each
with each, options that change together, and cells that are left out. Everything in it is checked
here as far as it can be without looking at a machine; nothing is run and nothing is written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from kv_cache.config.load import load_config
from kv_cache.config.root import Config, options
from kv_cache.config.schema import Option, overlay, show, to_mapping
from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.errors import ConfigError, did_you_mean

MOST_CELLS = 10_000
MOST_REPEATS = 1000
_KEYS = ("config", "base", "vary", "zip", "exclude", "repeat", "seed")
_LONGEST_NAME = 100
_PLAIN = re.compile(r"[^A-Za-z0-9._+-]+")

OURS: Mapping[str, str] = {
    "run.seed": "seed (of the grid) and repeat give each run its own",
    "run.trials": "repeat says how often each cell is run",
    "run.trial_cooldown_s": "repeat says how often each cell is run",
    "output.output": "each run has its result in a directory of its own",
    "output.results_dir": "each run has its result in a directory of its own",
    "output.latency_dump": "all cells would write the same file",
    "output.record": "all cells would write the same file",
    "output.io_trace_log": "all cells would write the same file",
    "output.fio_export": "all cells would write the same file",
    "output.xlsx_output": "all cells would write the same file",
    "output.hdr_log": "all cells would write the same file",
    "output.metrics_port": "all cells would listen at the same port",
    "output.json": "the output of each run goes to its log",
    "output.progress": "the output of each run goes to its log",
}
"""Options that the sweep sets itself, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Options that change together: `values[i]` has one value for each of `paths`."""

    paths: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid, numbered from 1."""

    number: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Readable, and the name of a directory: `cell-003_io.threads-8_run.num_users-50`."""
        said = "".join(f"_{path}-{word(value)}" for path, value in self.values.items())
        return f"cell-{self.number:03}{said}"[:_LONGEST_NAME].rstrip("._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid that has been read; `given` is what its file says, in plain values."""

    source: str
    given: Mapping[str, Any]
    config: str | None
    base: Mapping[str, Any]
    axes: tuple[Axis, ...]
    exclude: tuple[Mapping[str, tuple[Any, ...]], ...]
    repeat: int
    seed: int | None

    @property
    def paths(self) -> tuple[str, ...]:
        """The options that vary, in order."""
        return tuple(path for axis in self.axes for path in axis.paths)

    @property
    def size(self) -> int:
        """Cells before any is left out."""
        return prod(len(axis.values) for axis in self.axes)

    def cells(self) -> Iterator[Cell]:
        """The last axis changes first. Raises ConfigError where all are left out."""
        number = 0
        for chosen in product(*(axis.values for axis in self.axes)):
            values = dict(zip(self.paths, (v for part in chosen for v in part), strict=True))
            if not any(_matches(values, rule) for rule in self.exclude):
                number += 1
                yield Cell(number=number, values=values)
        if not number:
            raise ConfigError(f"{self.source}: exclude leaves no cell; take a rule away")

    def config_of(self, cell: Cell, seed: int) -> Config:
        """The checked configuration of one run. Raises ConfigError that names the cell."""
        path = None if self.config is None else Path(self.config)
        try:
            return load_config(path, {**self.base, **cell.values, "run.seed": seed})
        except ConfigError as error:
            raise ConfigError(f"{self.source}, {told(cell)}: {error}") from None


def told(cell: Cell) -> str:
    """For people: `cell 3 (io.threads 8, run.num_users 50)`."""
    said = ", ".join(f"{path} {show(value)}" for path, value in cell.values.items())
    return f"cell {cell.number} ({said})"


def _matches(values: Mapping[str, Any], rule: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(any(same(values[path], value) for value in some) for path, some in rule.items())


def same(one: Any, other: Any) -> bool:
    """As YAML means it: `true` is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def word(value: Any) -> str:
    """A value as a part of a name; of a path its last part."""
    if isinstance(value, list | tuple):
        return "+".join(map(word, value))
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off", None: "none"}[value]
    return _PLAIN.sub("_", str(value).rstrip("/").rpartition("/")[2])


# --- reading ---------------------------------------------------------------------------------


def read_grid(path: Path, *, many: bool = False) -> Grid:
    """A grid from its file; `many` allows more than MOST_CELLS cells. Raises ConfigError."""
    source = str(path)
    tree = read_yaml(path)
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{source}: a grid is a mapping with vary: {{option: [values]}}")
    for key in tree:
        if key not in _KEYS:
            raise ConfigError(
                f"{source}: {show(key)} is no key of a grid.{did_you_mean(str(key), _KEYS)}"
            )
    base = _options_in(tree.get("base"), source, "base")
    varied = [
        Axis(paths=(name,), values=tuple((value,) for value in values))
        for name, values in _axes_in(tree.get("vary"), source, "vary").items()
    ]
    axes = (*varied, *zipped(_axes_in(tree.get("zip"), source, "zip"), source))
    _require_once(base, axes, source)
    grid = Grid(
        source=source,
        given=to_mapping(tree),
        config=_config_in(tree.get("config"), source),
        base=base,
        axes=axes,
        exclude=_excluded(tree.get("exclude"), axes, source),
        repeat=_repeat(tree.get("repeat", 1), source),
        seed=_seed(tree.get("seed"), source),
    )
    if not axes:
        raise ConfigError(f"{source}: nothing varies; give vary: {{option: [values]}}")
    if grid.size * grid.repeat > MOST_CELLS and not many:
        raise ConfigError(
            f"{source}: the grid has {grid.size} cells and {grid.size * grid.repeat} runs, more "
            f"than {MOST_CELLS}; take values away, or give --many if that is meant"
        )
    return grid


def _options_in(given: Any, source: str, key: str) -> dict[str, Any]:
    """A section of options by dotted path, each value checked on its own."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: {key} is {show(given)}; it must be {{option: value}}")
    for path, value in given.items():
        _require_option(path, source, key)
        _require_value(path, value, source, key)
    return dict(given)


def _axes_in(given: Any, source: str, key: str) -> dict[str, list[Any]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: {key} is {show(given)}; it must be {{option: [values]}}")
    for path, values in given.items():
        _require_option(path, source, key)
        if not isinstance(values, list) or not values:
            what = "no values" if values in ([], None) else show(values)
            raise ConfigError(f"{source}: {key}.{path} has {what}; give a list of values")
        for number, value in enumerate(values):
            _require_value(path, value, source, key)
            if key == "vary" and any(same(value, other) for other in values[:number]):
                raise ConfigError(
                    f"{source}: {key}.{path} has {show(value)} twice; give each value once, and "
                    "repeat: N to run each cell several times"
                )
    return dict(given)


def _require_option(path: object, source: str, key: str) -> None:
    known = options()
    if path in OURS:
        raise ConfigError(f"{source}: {key} has {path}, but {OURS[str(path)]}; leave it out")
    if path in known:
        return
    flags = {option.flag: option.path for option in known.values() if option.flag}
    if path in flags:
        raise ConfigError(
            f"{source}: {key} has the flag {path}; a grid has options by path: {flags[str(path)]}"
        )
    near = did_you_mean(str(path), known)
    raise ConfigError(
        f"{source}: {key} has {show(path)}, which is no option."
        + (near if near.startswith(" Did") else " The command config prints all of them.")
    )


def _require_value(path: str, value: Any, source: str, key: str) -> None:
    overlay(Config(), _nested(path, value), f"{source}, {key}")


def _nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    made: dict[str, Any] = value
    return made


def zipped(columns: Mapping[str, Sequence[Any]], source: str) -> list[Axis]:
    """All of `zip` is one axis."""
    if not columns:
        return []
    lengths = {path: len(values) for path, values in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{path} has {n}" for path, n in lengths.items())
        raise ConfigError(f"{source}: zip has lists of different lengths ({said}); make them equal")
    rows = tuple(zip(*columns.values(), strict=True))
    for number, row in enumerate(rows):
        if any(all(map(same, row, other)) for other in rows[:number]):
            raise ConfigError(f"{source}: zip has the values {show(list(row))} twice; keep one")
    return [Axis(paths=tuple(columns), values=rows)]


def _require_once(base: Mapping[str, Any], axes: Sequence[Axis], source: str) -> None:
    seen = dict.fromkeys(base, "base")
    for axis in axes:
        for path in axis.paths:
            if path in seen:
                raise ConfigError(
                    f"{source}: {path} is given twice, in {seen[path]} too; keep one of them"
                )
            seen[path] = "vary"


def _excluded(
    given: Any, axes: Sequence[Axis], source: str
) -> tuple[Mapping[str, tuple[Any, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise ConfigError(f"{source}: exclude must be a list of {{option: value or [values]}}")
    return tuple(_rule(rule, axes, source) for rule in given)


def _rule(
    rule: Mapping[Any, Any], axes: Sequence[Axis], source: str
) -> Mapping[str, tuple[Any, ...]]:
    known = {
        path: [value[place] for value in axis.values]
        for axis in axes
        for place, path in enumerate(axis.paths)
    }
    if not rule:
        raise ConfigError(f"{source}: exclude has a rule without options, which is every cell")
    made = {}
    for path, wanted in rule.items():
        if path not in known:
            raise ConfigError(
                f"{source}: exclude has {show(path)}, which does not vary."
                f"{did_you_mean(str(path), known)}"
            )
        alone = not isinstance(wanted, list) or any(same(wanted, value) for value in known[path])
        some = (wanted,) if alone else tuple(wanted)
        for value in some:
            if not any(same(value, other) for other in known[path]):
                raise ConfigError(
                    f"{source}: exclude has {path} {show(value)}, which is none of its values"
                )
        made[str(path)] = some
    return made


def _config_in(given: Any, source: str) -> str | None:
    if given is None or (isinstance(given, str) and given):
        return given
    raise ConfigError(f"{source}: config is {show(given)}; it must be a file or a name")


def _repeat(given: Any, source: str) -> int:
    if type(given) is int and 1 <= given <= MOST_REPEATS:
        return given
    raise ConfigError(
        f"{source}: repeat is {show(given)}; it must be a whole number, 1 to {MOST_REPEATS}"
    )


def _seed(given: Any, source: str) -> int | None:
    if given is None:
        return None
    option: Option = options()["run.seed"]
    if type(given) is int and option.rule.allows(given):
        return given
    raise ConfigError(
        f"{source}: seed is {show(given)}; it must be a whole number, {option.bounds}"
    )
