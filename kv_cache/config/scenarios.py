"""Scenario files of the cluster simulator: one scenario, at a scale, and what varies in it.

Beside the sections of a scenario a file has `presets` (the same question at another scale),
`vary`, `zip` and `variants` (what is compared) and `seeds` (how often each variant is repeated).
All of it is checked before anything is simulated. Reading decides nothing about a scenario's
content: that is in scenario.py, and the rules that hold between its options in scenario_rules.py.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from kv_cache.config.axes import Axis, axes_of, count_of, nested, table_of, word
from kv_cache.config.machine import read_described
from kv_cache.config.scenario import InstanceSection, Scenario
from kv_cache.config.scenario_fitted import fitted_options
from kv_cache.config.scenario_hardware import replaced_by
from kv_cache.config.scenario_rules import PACE, check, not_asked, not_read, refuse
from kv_cache.config.scenario_trace import unread_by_trace
from kv_cache.config.schema import describe, overlay, show
from kv_cache.config.unread import value_at
from kv_cache.config.yaml_files import beside, find_config, read_yaml, shipped_names, yaml_value
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.seed import Seed

__all__ = ["Scenarios", "Variant", "check", "read_scenarios", "scenario_names"]

MOST_RUNS = 10_000
MOST_SEEDS = 1000
PRESETS = ("smoke", "dev", "full")
SYNONYMS = {"prod-eval": "full"}
"""Names of presets in a public simulator."""
PREFETCH, NEXT_IN_SESSION = "tiers.prefetch", "next-in-session"
_FOLDER = "scenarios"
_KEYS = ("presets", "vary", "zip", "variants", "seeds")
SCHEMA = "kv-cache-scenario/1"
_TABLES = ("instances", "network.wires")
"""Tables of sections by name: a path leads to one that the file has."""

_SCALE = re.compile(
    r"seeds|workload\.(requests|warmup_requests|rate_per_s|concurrency|system_prompts|documents)"
    r"|topology\.\w+|instances\.[^.]+\.(count|hbm_gib)|tiers\.\w+\.capacity_gib|watch\.\w+"
)
"""What a preset may set, beside shorter lists of what varies anyway. Room among it: fewer requests
fill less of it, and caches that are never full say nothing of policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One simulation: a point of the axes, with the seed of one repeat."""

    name: str  # of the point: `dram.capacity_gib=4, requests=100`; "" where nothing varies
    values: Mapping[str, Any]
    repeat: int  # from 0
    scenario: Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenarios:
    """A scenario file that has been read: the scenario of which the variants are made, and what
    varies. `labels` name the points of the axis `variants`, where there is one (it is the first).
    """

    source: str
    preset: str
    base: Scenario
    axes: tuple[Axis, ...]
    labels: tuple[str, ...]
    seeds: int
    left_out: tuple[str, ...] = ()
    """Options of the file that do not go with the source, or the hardware profile, that was set in
    place of the file's."""
    explicit: frozenset[str] = frozenset()
    """Options that were set over the file, by path."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The options that vary, in order."""
        return tuple(dict.fromkeys(path for axis in self.axes for path in axis.paths))

    @property
    def size(self) -> int:
        """How many simulations there are, repeats included."""
        return prod(len(axis.values) for axis in self.axes) * self.seeds

    def variants(self) -> Iterator[Variant]:
        """The last axis changes first, and repeats before it."""
        for point in product(*(range(len(axis.values)) for axis in self.axes)):
            values = self._values(point)
            scenario = overlaid(self.base, values, self.source)
            for repeat in range(self.seeds):
                yield Variant(
                    name=self._name(point),
                    values=values,
                    repeat=repeat,
                    scenario=replace(scenario, seed=seed_of(scenario.seed, repeat)),
                )

    @property
    def yields_next_turns(self) -> bool:
        """Whether the prefetch of next turns is the file's alone, and a trace was set over it."""
        typed = any(path.startswith(PREFETCH) for path in self.explicit)
        return "workload.trace" in self.explicit and not typed

    def without_next_turns(self) -> "Scenarios":
        """Return the same for a trace that knows of no next turn, so that nothing is brought."""
        none = {NEXT_IN_SESSION: "none"}
        axes = [
            Axis(
                paths=axis.paths,
                values=tuple(
                    tuple(
                        none.get(value, value) if path == PREFETCH else value
                        for path, value in zip(axis.paths, row, strict=True)
                    )
                    for row in axis.values
                ),
            )
            for axis in self.axes
        ]
        kept = none.get(self.base.tiers.prefetch, self.base.tiers.prefetch)
        base = overlaid(self.base, {PREFETCH: kept}, self.source)
        left_out = (*self.left_out, PREFETCH)
        return replace(self, base=base, axes=tuple(axes), left_out=left_out)

    def _values(self, point: Sequence[int]) -> dict[str, Any]:
        """Of a point; a label says only what it changes."""
        return {
            path: value
            for axis, place in zip(self.axes, point, strict=True)
            for path, value in zip(axis.paths, axis.values[place], strict=True)
            if value is not _AS_IT_IS
        }

    def _name(self, point: Sequence[int]) -> str:
        words = [self.labels[point[0]]] if self.labels else []
        short = short_names(self.paths)
        for axis, place in list(zip(self.axes, point, strict=True))[len(words) :]:
            words += [
                f"{short[path]}={word(value)}"
                for path, value in zip(axis.paths, axis.values[place], strict=True)
            ]
        return ", ".join(words)

    def check(self) -> None:
        """Every variant keeps the rules, and what is given is read by one of them at least.

        Raises ConfigError, and TraceError where a trace says what is read and cannot be opened.
        """
        checked: list[tuple[Scenario, dict[str, str]]] = []
        first = self.axes[: bool(self.labels)]
        joined = [axis for axis in self.axes if axis in first or len(axis.paths) > 1]
        together = {path for axis in joined for path in axis.paths}
        for variant in self.variants():
            if variant.repeat:
                continue
            where = f"{self.source}, {variant.name}" if variant.name else self.source
            check(variant.scenario, where, whole=False)
            idle = not_read(variant.scenario, self.explicit, together)
            idle |= unread_by_trace(variant.scenario.workload, self.explicit)
            checked.append((variant.scenario, idle))
        reasons = {path: why for _, idle in reversed(checked) for path, why in idle.items()}
        nobody = {
            path: why
            for path, why in reasons.items()
            if not any(path not in idle and _gives(of, path) for of, idle in checked)
        }
        refuse(nobody, self.source)


def _gives(scenario: Scenario, path: str) -> bool:
    """Whether an option differs from its default. One that does not is not told as unread, which
    does not mean that it is read."""
    value: Any = scenario
    default: Any = Scenario()
    for name in path.split("."):
        if isinstance(value, Mapping):
            if name not in value:
                return False
            value, default = value[name], type(value[name])()
        else:
            value, default = getattr(value, name), getattr(default, name)
    return bool(value != default)


class _AsItIs(Enum):
    """The value of an option that a label leaves alone. An enum, as it is one object in every
    process."""

    AS_IT_IS = 0


_AS_IT_IS = _AsItIs.AS_IT_IS


def seed_of(seed: int, repeat: int) -> int:
    """The seed of a repeat; the first has the scenario's own."""
    return Seed(seed).child("repeat", repeat).integer() % 2**32 if repeat else seed


def scenario_names() -> tuple[str, ...]:
    """The scenarios that are shipped."""
    return shipped_names("configs", _FOLDER)


def overlaid(scenario: Scenario, values: Mapping[str, object], where: str) -> Scenario:
    """`scenario` with options by dotted path put over it. Raises ConfigError."""
    return overlay(scenario, nested(values), where)


# --- reading ---------------------------------------------------------------------------------


def read_scenarios(path: Path, preset: str | None = None, sets: Sequence[str] = ()) -> Scenarios:
    """A scenario file, or the shipped one of that name, at a scale (none: as the file says), with
    `path=value` settings put over it. Raises ConfigError; `Scenarios.check` holds it against the
    rules."""
    source, tree = _tree(path)
    extras = {key: tree.get(key) for key in _KEYS}
    base = _base({k: v for k, v in tree.items() if k not in _KEYS}, source)
    settings = _by_trace([_setting(text, base, extras) for text in sets])
    scale = _preset(extras["presets"], preset, base, source, extras)
    base, left = _yielded(base, extras, scale, dict(settings), source)
    changed = {**scale, **dict(settings)}
    for name in ("vary", "zip"):
        extras[name] = _changed(extras[name], changed, name, source)
    seeds = count_of(changed.pop("seeds", extras["seeds"]), source, "seeds", MOST_SEEDS)
    labels, variants = _variants(extras["variants"], base, source)
    _not_set(settings, extras, variants)
    varying = axes_of(
        extras,
        source,
        lambda path, value, key: _require(path, value, base, source, key),
        "seeds: N to repeat each variant",
    )
    whole = overlaid(base, changed, source)
    given_back = set[str]()
    if whole.workload.source != "trace":  # which refuses what is set, whatever it is
        of_file = {*(tree.get("vary") or {}), *filter(partial(_gives, base), changed)}
        given_back = {path for path in of_file if path in changed and not _gives(whole, path)}
    scenarios = Scenarios(
        source=source,
        preset=preset or "",
        base=whole,
        axes=(*variants, *varying),
        labels=labels,
        seeds=seeds,
        left_out=left,
        explicit=frozenset(path for path, _ in settings) - given_back,
    )
    _once(scenarios)
    return scenarios


def _by_trace(settings: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Add the source to settings that name a trace and no source."""
    values = dict(settings)
    implied = values.get("workload.trace") is not None and "workload.source" not in values
    return [*settings, ("workload.source", "trace")] if implied else list(settings)


def _base(sections: Mapping[str, object], source: str) -> Scenario:
    """Return the scenario of a file; what it says itself lies over the file of `trace fit` that it
    names."""
    base = overlay(Scenario(), sections, source)
    if base.workload.fitted is None:
        return base
    options = fitted_options(Path(base.workload.fitted), base.workload)
    return overlay(overlaid(Scenario(), options, source), sections, source)


def _yielded(
    base: Scenario,
    extras: dict[str, Any],
    scale: dict[str, Any],
    sets: Mapping[str, str],
    where: str,
) -> tuple[Scenario, tuple[str, ...]]:
    """Return the scenario as another workload that is set leaves it (another source, a file of
    `trace fit`, or users in place of a rate) or a hardware profile, and the options of the file
    that yield to it: they are taken out of what varies and of the preset too. What is set itself
    stays, to be refused or read. A preset that is asked for says how many requests are asked."""
    source, fitted = sets.get("workload.source"), sets.get("workload.fitted")
    foreign: dict[str, object] = {}
    if source is not None and source != base.workload.source:
        foreign = {path: _DEFAULTS[path] for path in not_asked(source)}
    if fitted is not None and source != "trace":
        foreign |= fitted_options(Path(fitted), base.workload)
        new = overlaid(base, foreign, where)
        new = new if source is None else overlaid(new, {"workload.source": source}, where)
        foreign |= _defaults_below([path for path in not_read(new) if path.startswith("workload.")])
    if sets.get("workload.concurrency") and (source or base.workload.source) != "trace":
        foreign |= {path: _DEFAULTS[path] for path in (f"workload.{name}" for name in PACE)}
    for option, profile in sets.items():
        if option.endswith(".profile") and isinstance(profile, str):
            file = find_config(Path(profile), "hardware profile", "hardware")
            described = replaced_by(option, read_described(file))
            foreign |= {path: _default(path) for path in described}
    foreign = {path: value for path, value in foreign.items() if path not in sets}
    left = _taken_out(base, foreign, extras, scale)
    return overlaid(base, foreign, where), left


def _defaults_below(paths: Sequence[str]) -> dict[str, object]:
    """Return the defaults of options, and of all options of sections."""
    return {
        option: default
        for option, default in _DEFAULTS.items()
        if any(f"{option}.".startswith(f"{path}.") for path in paths)
    }


def _taken_out(
    base: Scenario, foreign: dict[str, object], extras: dict[str, Any], scale: dict[str, Any]
) -> tuple[str, ...]:
    """Take options, which get new values, out of what varies and of the preset; return those that
    the file gives otherwise."""
    left = [
        path
        for path, value in foreign.items()
        if value_at(base, path) not in (_default(path), value)
    ]
    for key in ("vary", "zip", "variants"):
        if isinstance(extras[key], Mapping):
            extras[key], varied = _without(extras[key], list(foreign))
            left += varied
    left += [path for path in foreign if scale.get(path, _default(path)) != _default(path)]
    for path in set(foreign) - {"workload.requests"}:
        scale.pop(path, None)
    return tuple(path for path in dict.fromkeys(left) if path not in scale)


def _without(table: Mapping[str, Any], paths: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """A table of what varies without some options, at its first or (variants) second level."""
    kept: dict[str, Any] = {}
    removed = [path for path in paths if path in table]
    for key, value in table.items():
        if isinstance(value, Mapping):
            kept[key], inside = _without(value, paths)
            removed += inside
        elif key not in paths:
            kept[key] = value
    return kept, removed


def _tree(path: Path) -> tuple[str, Mapping[str, Any]]:
    source = str(find_config(path, "scenario", _FOLDER))
    tree = _located(read_yaml(Path(source)), Path(source).parent)
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{source}: a scenario is a mapping of sections; `kv-cache.py sim --print` shows one"
        )
    tree = dict(tree)
    if (schema := tree.pop("schema", SCHEMA)) != SCHEMA:
        raise ConfigError(
            f"{source}: its schema is {show(schema)}, and this version reads {SCHEMA}; "
            "`kv-cache.py sim --print` shows one"
        )
    known = (*_KEYS, "schema", *Scenario.__dataclass_fields__)
    for key in tree:
        if key not in known:
            raise ConfigError(
                f"{source}: {show(key)} is no key of a scenario.{did_you_mean(str(key), known)}"
            )
    return source, tree


def _located(value: Any, folder: Path, path: str = "") -> Any:
    """Return values of a file whose options of files, at any place in it, lead from its folder."""
    if isinstance(value, Mapping):
        return {key: _located(each, folder, str(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [_located(each, folder, path) for each in value]
    is_file = isinstance(value, str) and path.rpartition(".")[2] in _FILES
    return beside(folder, value) if is_file else value


def _preset(
    presets: Any, name: str | None, base: Scenario, source: str, axes: Mapping[str, Any]
) -> dict[str, Any]:
    """What the preset of that name changes; all of them are checked."""
    table = table_of(presets, source, "presets", "{smoke: {option: value}}")
    scales: dict[str, dict[str, Any]] = {}
    for word_, values in table.items():
        if word_ not in PRESETS:
            raise ConfigError(
                f"{source}: presets has {show(word_)}; a preset is one of {', '.join(PRESETS)}"
            )
        where = f"presets.{word_}"
        scales[word_] = {
            path: _scale(path, value, base, source, where, axes)
            for path, value in table_of(values, source, where, "{option: value}").items()
        }
    if name is None:
        return {}
    name = SYNONYMS.get(name, name)
    if name not in PRESETS:
        raise ConfigError(f"--preset {name}: a preset is one of {', '.join(PRESETS)}")
    if name not in scales:
        raise ConfigError(
            f"--preset {name}: {source} has no preset of that name"
            + (f"; it has {', '.join(scales)}" if scales else "; leave --preset out")
        )
    return scales[name]


def _scale(
    path: Any, value: Any, base: Scenario, source: str, where: str, axes: Mapping[str, Any]
) -> Any:
    """A preset asks the same question: it sets sizes, and takes values of what varies away."""
    if _is_list_of(path, value, axes):
        for each in value:
            _require(path, each, base, source, where)
        return value
    if not isinstance(path, str) or not _SCALE.fullmatch(path):
        raise ConfigError(
            f"{source}: {where} has {show(path)}; a preset sets the scale alone (requests, rates, "
            "counts, room, topology, watch, seeds, and lists of what varies): another question is "
            "another scenario"
        )
    if path == "seeds":
        count_of(value, f"{source}, {where}", "seeds", MOST_SEEDS)
    else:
        _require(path, value, base, source, where)
    return value


def _setting(text: str, base: Scenario, axes: Mapping[str, Any]) -> tuple[str, Any]:
    """`instances.gpu.count=4`; the value is YAML. What varies takes a list, checked with it."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text}: it must be option=value, such as workload.requests=100")
    parsed = yaml_value(value, f"--set {path}")
    if path != "seeds" and not _is_list_of(path, parsed, axes):
        _require(path, parsed, base, "--set", "")
    return path, parsed


def _is_list_of(path: str, value: Any, axes: Mapping[str, Any]) -> bool:
    """Whether `value` is a list for what varies."""
    varying = any(isinstance(axes[key], Mapping) and path in axes[key] for key in ("vary", "zip"))
    takes_a_pair = isinstance(_DEFAULTS.get(path), tuple)
    return varying and isinstance(value, list) and not takes_a_pair


def _changed(columns: Any, changed: dict[str, Any], key: str, source: str) -> Any:
    """The lists of an axis, those that a preset gives in place of the file's; a single value for
    an option that varies alone ends its varying."""
    if not isinstance(columns, Mapping):
        return columns
    lists = dict(columns)
    for path in [path for path in changed if path in lists]:
        value = changed[path]
        if _is_list_of(path, value, {"vary": columns, "zip": columns}):
            lists[path] = changed.pop(path)
        elif key == "vary":
            del lists[path]
        else:
            others = " and ".join(other for other in columns if other != path)
            raise ConfigError(
                f"{source}: {path} changes together with {others} (zip); give a list for each of "
                "them, or set another option"
            )
    return lists


_OPTIONS = tuple(describe(Scenario))
_DEFAULTS: Mapping[str, Any] = {option.path: option.default for option in _OPTIONS}


def _default(path: str) -> Any:
    """Return the default of an option, or of one of a group of instances."""
    return _DEFAULTS[path] if path in _DEFAULTS else getattr(InstanceSection(), path.split(".")[-1])


_FILES = frozenset(
    each.path.rpartition(".")[2]
    for each in (*_OPTIONS, *describe(InstanceSection))
    if each.rule.is_path
)
"""The names of options whose values are files."""


def _not_set(
    settings: Sequence[tuple[str, Any]], extras: Mapping[str, Any], variants: Sequence[Axis]
) -> None:
    taken = {path for axis in variants for path in axis.paths}
    for path, _ in settings:
        if path in taken:
            raise ConfigError(
                f"--set {path}: the file's variants are told apart by it; set another option"
            )


def _variants(value: Any, base: Scenario, source: str) -> tuple[tuple[str, ...], tuple[Axis, ...]]:
    """Named variants are one axis; what one of them does not mention stays as it is."""
    table = table_of(value, source, "variants", "{name: {option: value}}")
    if not table:
        return (), ()
    rows: dict[str, Mapping[str, Any]] = {}
    for name, values in table.items():
        where = f"variants.{name}"
        rows[str(name)] = table_of(values, source, where, "{option: value}")
        for path, value in rows[str(name)].items():
            _require(path, value, base, source, where)
    paths = tuple(dict.fromkeys(path for row in rows.values() for path in row))
    values = tuple(tuple(row.get(path, _AS_IT_IS) for path in paths) for row in rows.values())
    return tuple(rows), (Axis(paths=paths, values=values),)


def _require(path: object, value: Any, base: Scenario, source: str, key: str) -> None:
    """That `path` leads to an option of this scenario, and takes `value`."""
    where = f"{source} {path}" if source == "--set" else f"{source}, {key}"
    if not isinstance(path, str):
        raise ConfigError(f"{where}: {show(path)} is no option; give a dotted path")
    for table in _TABLES:
        inside = path.removeprefix(f"{table}.")
        if inside != path or path == table:
            _require_named(table, inside, base, where)
    if path in ("name", "question", "judged_by", "seed") and source != "--set":
        raise ConfigError(f"{where}: {path} does not vary; seeds: N repeats with other seeds")
    if any(option.startswith(f"{path}.") for option in _DEFAULTS):
        raise ConfigError(f"{where}: {path} is a section; give an option of it")
    overlay(base, nested({path: value}), where)


def _require_named(table: str, inside: str, base: Scenario, where: str) -> None:
    there = base.instances if table == "instances" else base.network.wires
    name, dot, _ = inside.partition(".")
    if inside == table:
        raise ConfigError(
            f"{where}: {table} is a table of sections; give {table}.NAME.OPTION, of: "
            f"{', '.join(there) or 'none'}"
        )
    if name not in there or not dot:
        raise ConfigError(
            f"{where}: {table} has no {show(name)}, or the option is missing; give "
            f"{table}.NAME.OPTION.{did_you_mean(name, there)}"
        )


def _once(scenarios: Scenarios) -> None:
    """An option varies on one axis, and the whole stays within reason."""
    seen: set[str] = set()
    for axis in scenarios.axes:
        for path in axis.paths:
            if path in seen:
                raise ConfigError(f"{scenarios.source}: {path} varies twice; keep one of the lists")
            seen.add(path)
    if scenarios.size > MOST_RUNS:
        raise ConfigError(
            f"{scenarios.source}: {scenarios.size} simulations, more than {MOST_RUNS}; take values "
            "away"
        )


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Options as they are called in names: without their section, where that tells them apart."""
    short = {path: path.partition(".")[2] or path for path in paths}
    return short if len(set(short.values())) == len(short) else {path: path for path in paths}
