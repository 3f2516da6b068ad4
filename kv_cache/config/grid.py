"""A grid of configurations: `sweep GRID.yaml`.

A grid has a base (a configuration file, and options over it), axes whose values are combined each
with each, options that change together, and cells that are left out. Everything in it is checked
here as far as it can be without looking at a machine; nothing is run and nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from kv_cache.config.axes import Axis, axes_of, count_of, nested, same, table_of, word
from kv_cache.config.load import load_config
from kv_cache.config.root import Config, options
from kv_cache.config.schema import Option, overlay, show, to_mapping
from kv_cache.config.sections import FILES_BESIDE
from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.errors import ConfigError, did_you_mean

MOST_CELLS = 10_000
MOST_REPEATS = 1000
_KEYS = ("config", "base", "vary", "zip", "exclude", "repeat", "seed")
_LONGEST_NAME = 100

OURS: Mapping[str, str] = {
    "run.seed": "seed (of the grid) and repeat give each run its own",
    "run.trials": "repeat says how often each cell is run",
    "run.trial_cooldown_s": "repeat says how often each cell is run",
    "output.output": "each run has its result in a directory of its own",
    "output.results_dir": "each run has its result in a directory of its own",
    **{f"output.{name}": "all cells would write the same file" for name in FILES_BESIDE},
    "output.metrics_port": "all cells would listen at the same port",
    "output.json": "the output of each run goes to its log",
    "output.progress": "the output of each run goes to its log",
    "output.fail_on": "its exit code would make a finished run a failed one; cells have verdicts",
}
"""Options that the sweep sets itself, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid, numbered from 1."""

    number: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Readable, and the name of a directory: `cell-003_io.threads-8_run.num_users-50`."""
        words = "".join(f"_{path}-{word(value)}" for path, value in self.values.items())
        return f"cell-{self.number:03}{words}"[:_LONGEST_NAME].rstrip("._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid that has been read; `tree` is what its file says, in plain values."""

    source: str
    tree: Mapping[str, Any]
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
            ours = {"run.seed": seed, "output.fail_on": None}
            return load_config(path, {**self.base, **cell.values, **ours})
        except ConfigError as error:
            raise ConfigError(f"{self.source}, {cell_title(cell)}: {error}") from None


def cell_title(cell: Cell) -> str:
    """Return `cell 3 (io.threads 8, run.num_users 50)`."""
    words = ", ".join(f"{path} {show(value)}" for path, value in cell.values.items())
    return f"cell {cell.number} ({words})"


def _matches(values: Mapping[str, Any], rule: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(any(same(values[path], value) for value in some) for path, some in rule.items())


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
    axes = axes_of(
        tree,
        source,
        lambda path, value, key: _require(path, value, source, key),
        "repeat: N to run each cell several times",
    )
    _require_once(base, axes, source)
    grid = Grid(
        source=source,
        tree=to_mapping(tree),
        config=_config_in(tree.get("config"), source),
        base=base,
        axes=axes,
        exclude=_excluded(tree.get("exclude"), axes, source),
        repeat=count_of(tree.get("repeat", 1), source, "repeat", MOST_REPEATS),
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


def _options_in(value: Any, source: str, key: str) -> dict[str, Any]:
    """A section of options by dotted path, each value checked on its own."""
    table = table_of(value, source, key, "{option: value}")
    for path, each in table.items():
        _require(path, each, source, key)
    return dict(table)


def _require(path: object, value: Any, source: str, key: str) -> None:
    """Raise ConfigError if a grid may not set an option, or not to this value."""
    _require_option(path, source, key)
    overlay(Config(), nested({str(path): value}), f"{source}, {key}")


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
    value: Any, axes: Sequence[Axis], source: str
) -> tuple[Mapping[str, tuple[Any, ...]], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(rule, Mapping) for rule in value):
        raise ConfigError(f"{source}: exclude must be a list of {{option: value or [values]}}")
    return tuple(_rule(rule, axes, source) for rule in value)


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
    chosen: dict[str, tuple[Any, ...]] = {}
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
        chosen[str(path)] = some
    return chosen


def _config_in(value: Any, source: str) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise ConfigError(f"{source}: config is {show(value)}; it must be a file or a name")


def _seed(value: Any, source: str) -> int | None:
    if value is None:
        return None
    option: Option = options()["run.seed"]
    if type(value) is int and option.rule.allows(value):
        return value
    raise ConfigError(
        f"{source}: seed is {show(value)}; it must be a whole number, {option.rule.bounds}"
    )
