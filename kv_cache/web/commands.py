"""A command as a form: its options from the tables that the command line is made of, and what was
filled in as the words that the command line would be given.

Nothing here knows any particular option of any particular command but those that decide where
files go, so that a command added to the command line appears by itself.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import get_args, get_origin

from kv_cache.config.root import Config, options
from kv_cache.config.scenario import InstanceSection
from kv_cache.config.scenarios import scenario_names
from kv_cache.config.schema import Option, Rule, describe, to_mapping
from kv_cache.config.storage_targets import storage_places
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.text import printable
from kv_cache.result.metrics import Json
from kv_cache.web.classes import (
    NEVER,
    SHIPPED,
    Folders,
    WebClass,
    check_config,
    checked_text,
    key_of,
    scenario_options,
    web_class,
)

Values = Mapping[str, bool | str | list[str]]

_CONFIG = Option(
    path="config", hint=str | None, default=None,
    rule=Rule(help="YAML configuration: a file, or a shipped one; what is set here overrides it",
              flag="--config", metavar="FILE"),
)  # fmt: skip
_FIRST = (
    "config", "tiers.cache_dir", "run.model", "run.num_users", "workload.trace",
    "semantics.preset", "tiers.storage_capacity_gib", "run.duration_s", "run.trials",
    "output.label",
)  # fmt: skip
"""The ten options of a run that matter most, as the first page of its help has them; the label is
there for where its results go, which the page says itself."""
_OUTPUTS = {
    "report": "report.html", "plot": "picture.svg", "trace plot": "picture.svg",
    "trace convert": "trace.jsonl", "trace pattern": "trace.jsonl",
    "trace fit": "users.yaml", "probe": "profile.yaml",
    "calibrate": "hardware.yaml",
}  # fmt: skip
"""What the file that a command writes is called, where it is no JSON."""


class WebCommand:
    """A command of the command line. `check` parses words as it does; it returns the configuration
    where the command makes a run, and raises UsageError."""

    def __init__(
        self,
        name: str,
        about: str,
        table: type,
        check: Callable[[Sequence[str]], Config | None],
        *,
        of_run: bool,
        measures: bool,
    ) -> None:
        self.name, self.about, self.check = name, about, check
        self.of_run, self.measures = of_run, measures
        self._table = table

    @cached_property
    def own(self) -> Mapping[str, Option]:
        """The options that the command has itself."""
        return {option.path: option for option in describe(self._table)}

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """All options by their path: the command's own go before those of a run."""
        of_run = {"config": _CONFIG, **options()} if self.of_run else {}
        return {**of_run, **self.own}

    def class_of(self, path: str) -> WebClass:
        """Return how a value of an option is looked at."""
        return web_class(self._owner(path), self.options[path])

    def _owner(self, path: str) -> str:
        return self.name if path in self.own else "run"

    # --- the form --------------------------------------------------------------------------------

    def form(self) -> Json:
        """Return what a page needs for the form of this command."""
        fields = [self._field(option) for option in self.options.values()]
        return {
            "command": self.name,
            "about": " ".join(self.about.split("\n\n")[0].split()),
            "measures": self.measures,
            "presets": list(SHIPPED["config"]) if self.of_run else [],
            "scenarios": list(scenario_names()) if self.name == "sim" else [],
            "instance": _instance() if self.name == "sim" else [],
            "scenario": _scenario() if self.name == "sim" else [],
            "options": fields,
        }

    def _field(self, option: Option) -> Json:
        path, owner = option.path, self._owner(option.path)
        refused = NEVER.get(key_of(owner, option))
        row = _row(option)
        first = path in _FIRST if owner == "run" else not option.rule.rare
        return {**row, "first": first, "class": str(self.class_of(path)), "why_never": refused}

    # --- the command line ------------------------------------------------------------------------

    def words(self, values: Values, folders: Folders, places: Values) -> list[str]:
        """Return the arguments that say what was filled in, and the `places` that the server
        chose. Raises ConfigError, PlaceError."""
        flags: list[str] = []
        bare: list[str] = []
        for path, value in {**values, **places}.items():
            option = self.options.get(path)
            if option is None:
                near = did_you_mean(path, self.options)
                raise ConfigError(f"{printable(path)} is no option of {self.name}.{near}")
            texts = _texts(option, value)
            if path not in places:
                texts = [self._checked(option, text, folders) for text in texts]
            if option.flag is not None and not option.flag.startswith("-"):
                bare += texts
            else:
                flags += self._flagged(option, texts)
        return [*self.name.split(), *flags, *bare]

    def _checked(self, option: Option, text: str, folders: Folders) -> str:
        return checked_text(self._owner(option.path), option, text, folders)

    def _flagged(self, option: Option, texts: Sequence[str]) -> Iterator[str]:
        if option.flag is None:
            yield from (f"--set={option.path}={text}" for text in texts)
        elif option.kind is not bool:
            yield from (f"{option.flag}={text}" for text in texts)
        elif option.optional:
            yield option.flag if texts == ["true"] else f"--no-{option.flag[2:]}"
        elif texts != [str(option.default).lower()]:
            yield option.flag  # a switch sets the opposite of its default

    def checked(self, words: Sequence[str], folders: Folders, places: Values) -> Config | None:
        """Refuse what the command would refuse as it starts, and what a configuration file that
        was named says that is not set here. Raises UsageError."""
        config = self.check(words[len(self.name.split()) :])
        if config is not None:
            check_config(config, folders, places)
            config.model_shape()
        return config

    def places(self, values: Values, folder: Path) -> Values:
        """Return where a command writes, a folder of its own, and the port at which a run can be
        watched, if nobody said otherwise."""
        if self.name == "run":
            places = {"output.results_dir": str(folder)}
            if "run.clients" not in values and values.get("run.virtual_time") != "true":
                places["output.metrics_port"] = "0"
        else:
            file = folder / _OUTPUTS.get(self.name, "result.json")
            known = self.own if "output" in self.own else self.options
            candidates = {"results_dir": folder, "output": file, "output.output": file}
            if self.name == "probe":
                candidates = {"profile": file}
            wanted = [path for path in candidates if path in known]
            places = {path: str(candidates[path]) for path in wanted[:1]}
            if "series" in self.own:  # what a simulation has to be watched by
                places["series"] = str(folder / "series.csv")
        return {path: text for path, text in places.items() if path not in values}

    @property
    def has_dry_run(self) -> bool:
        """Whether it can say what it would do."""
        return "dry_run" in self.own or (self.of_run and not self.name.startswith("trace "))

    def places_used(self, values: Values, config: Config | None) -> list[Path]:
        """List the directories that the command will measure, or write to as it measures."""
        if not self.measures or (config is not None and config.run.virtual_time):
            return []
        if config is not None:
            return [place for place in storage_places(config) if isinstance(place, Path)]
        named = values.get("cache_dir", [])
        return [Path(str(path)) for path in (named if isinstance(named, list) else [named])]


def shown(words: Sequence[str]) -> str:
    """Return the command as a person types it."""
    return shlex.join(["kv-cache.py", *words])


def _texts(option: Option, value: bool | str | list[str]) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    texts = value if isinstance(value, list) else [value]
    if option.kind is bool and texts not in (["true"], ["false"]):
        raise ConfigError(f"{option.path} is {texts}; it must be true or false")
    return texts


def _row(option: Option) -> Json:
    """Return one option for a form: kind, bounds, unit and help, as the tables have them."""
    rule, kind = option.rule, option.kind
    several = get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis
    inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
    word = {bool: "switch", int: "whole", float: "number"}.get(inner, "text")
    return {
        "path": option.path,
        "flag": option.flag,
        "kind": "path" if rule.is_path else word,
        "several": several,
        "optional": option.optional,
        "required": rule.required,
        "default": to_mapping(option.default),
        "help": rule.help,
        "unit": rule.unit,
        "bounds": "" if rule.choices is not None else rule.bounds,
        "choices": [word for word in rule.words if word != "MODULE:CLASS"],
        "placeholder": rule.metavar,
    }


def _instance() -> list[Json]:
    return [_row(option) for option in describe(InstanceSection)]


def _scenario() -> list[Json]:
    rows = scenario_options().values()
    return [_row(option) for option in rows if option.path != "instances"]
