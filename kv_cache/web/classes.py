"""What a stranger's browser may set: each option is free, a plain word, a path in the chosen
folders, or never set here.

Numbers, switches and choices are free, and options whose value is called a path are held against
the folders. What else takes text is in the tables below, by its key; `web_class` knows no other, so
an option without a class is a mistake that a test finds.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

from msgspec import Struct

from kv_cache.config.root import Config, options
from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_rules import TIERS
from kv_cache.config.scenarios import scenario_names
from kv_cache.config.schema import Option, describe
from kv_cache.config.unread import value_at
from kv_cache.config.yaml_files import data_folder, shipped_names
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.text import is_utf8
from kv_cache.extensions import Catalogue


class WebClass(StrEnum):
    """How a value is looked at before a command is given it."""

    FREE = "free"
    WORD = "word"  # a name: neither a path, a URL nor a module
    FOLDER = "folder"  # a path, which must lie in a chosen folder
    NEVER = "never"


TEXTS: Mapping[str, WebClass] = {
    "run.model": WebClass.WORD,
    "run.model_mix": WebClass.WORD,
    "run.until": WebClass.FREE,
    "workload.trace_models": WebClass.WORD,
    "workload.trace_format": WebClass.WORD,
    "workload.trace_window": WebClass.FREE,
    "workload.tokenizer": WebClass.WORD,
    "output.label": WebClass.FREE,
    "output.note": WebClass.FREE,
    "capacity.slo": WebClass.FREE,
    "lab.pattern": WebClass.WORD,
    "lab.tiers": WebClass.FREE,
    "lab.tier_scales": WebClass.WORD,
    "lab.prefetch": WebClass.WORD,
    "trace pattern.pattern": WebClass.WORD,
    "lab.policies": WebClass.WORD,
    "lab.admission": WebClass.WORD,
    "lab.capacities": WebClass.WORD,
    "lab.residency": WebClass.WORD,
    "lab.dequant": WebClass.FREE,
    "lab.dequant_source": WebClass.FREE,
    "sim.settings": WebClass.FREE,  # each is an option of a scenario, and is looked at as one
    "verify.fingerprint": WebClass.WORD,
    "probe.sizes": WebClass.WORD,
    "calibrate.sizes": WebClass.WORD,
    "calibrate.name": WebClass.FREE,
    "calibrate.description": WebClass.FREE,
    "datasets make.formats": WebClass.WORD,
    "mlperf run.system_name": WebClass.FREE,
    "mlperf run.org": WebClass.FREE,
    "scenario.name": WebClass.FREE,
    "scenario.question": WebClass.FREE,
    "scenario.network.wires": WebClass.FREE,
    "scenario.instances": WebClass.FREE,
    "scenario.classes": WebClass.FREE,
    "scenario.model.name": WebClass.WORD,
    "scenario.workload.trace_format": WebClass.WORD,
    **{f"scenario.tiers.{tier}.residency": WebClass.WORD for tier in TIERS},
    **{f"scenario.tiers.{tier}.dequant": WebClass.FREE for tier in TIERS},
}
"""Options that take text which is no path. Those of commands have the command before them."""

NEVER: Mapping[str, str] = {
    "tiers.erase_device": "it erases a device",
    "tiers.reclaim": "it removes what another host left",
    "twin.reclaim": "it removes what another host left",
    "probe.reclaim": "it removes what another host left",
    "calibrate.reclaim": "it removes what another host left",
    "mlperf run.reclaim": "it removes what another host left",
    "mlperf run.launch": "it is a command",
    "mlperf run.flags": "they are not looked at one by one",
    "serve.host": "it names an address of this machine",
    "serve.token": "it is a key",
    "s3.endpoint": "it names a host",
    "s3.region": "it belongs to a host",
    "output.metrics_host": "it names an address of this machine",
    "output.metrics_port": "the page sets it itself, to watch the run",
    "run.clients_port": "it opens a port",
    "model_configs": "it takes a mapping; write a configuration file",
    "cpcs": "it takes a mapping that nothing reads",
}
"""Options that are not set here, with why."""

COMMANDS_NEVER: Mapping[str, str] = {
    "compile": "it builds machine code for this installation",
    "completion": "it prints a script for a shell",
    "serve": "it is this page",
}
"""Commands that are not started here, with why."""


def key_of(command: str, option: Option) -> str:
    """Return the name of an option in the tables: those of a run have their path alone."""
    return option.path if command == "run" else f"{command}.{option.path}"


def web_class(command: str, option: Option) -> WebClass:
    """Return the class of an option of a command. Raises LookupError for one that has none."""
    key = key_of(command, option)
    if key in NEVER:
        return WebClass.NEVER
    if key in TEXTS:
        return TEXTS[key]
    if option.rule.is_path:
        return WebClass.FOLDER
    if option.rule.choices is not None or _is_plain(option.kind):
        return WebClass.FREE
    raise LookupError(f"{key} takes text and has no class in web/classes.py")


def _is_plain(kind: Any) -> bool:
    inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return inner in (int, float, bool)


class Folders(Struct, frozen=True):
    """The directories that may be named; whatever is named must end in one of them, also behind
    symbolic links. A name without a directory is a file of the `run_folder`."""

    roots: tuple[Path, ...]
    uploads: Path | None = None
    run_folder: Path | None = None

    def is_upload(self, text: str) -> bool:
        """Whether a path is a file that a browser sent."""
        return self.uploads is not None and Path(text).is_relative_to(self.uploads)

    def inside(self, text: str, name: str) -> str:
        """Return a path without links. Raises PlaceError for one that is outside."""
        if self.run_folder is not None and "/" not in text and not text.startswith(("~", ".")):
            return str(self.run_folder / text)
        real = Path(os.path.realpath(os.path.expanduser(text)))
        if "://" in text or not any(real.is_relative_to(root) for root in self.roots):
            known = ", ".join(map(str, self.roots))
            raise PlaceError(
                f"{name} {text!r} is outside of the folders of this server ({known}); name a path "
                "in one of them, or start serve with --folder for it"
            )
        return str(real)


def checked_text(command: str, option: Option, text: str, folders: Folders) -> str:
    """Return a value as the command is given it. Raises ConfigError, PlaceError."""
    name = option.flag or option.path
    if not is_utf8(text) or "\0" in text:
        raise ConfigError(f"{name} has a character that no argument can have; leave it out")
    match web_class(command, option):
        case WebClass.NEVER:
            why = NEVER[key_of(command, option)]
            raise ConfigError(f"{name} is not set from the page: {why}; use the command line")
        case WebClass.FOLDER:
            known = (*SHIPPED.get(key_of(command, option), ()), *samples())
            if text in known:
                return text
            real = folders.inside(text, name)
            if folders.is_upload(real) and key_of(command, option) not in TRACES:
                raise ConfigError(
                    f"{name} {text!r} was uploaded, and is read as a trace alone; copy what else "
                    "it is into a folder of the server"
                )
            return real
        case WebClass.WORD:
            if "/" in text or ":" in text or text.startswith(("~", ".", "-")):
                raise ConfigError(
                    f"{name} {text!r} is not set from the page: only names are, no paths, modules "
                    "or addresses; use the command line"
                )
    if option.path == "settings" and command == "sim":
        _check_setting(text, folders)
    if isinstance(option.rule.choices, Catalogue):
        _require_ours(name, text, option.rule.choices)
    return text


TRACES = frozenset({
    "workload.trace", "workload.dataset_path", "workload.burst_trace_path",
    "scenario.workload.trace",
    "trace stats.path", "trace plot.path", "trace convert.path", "trace fit.path", "lab.path",
})  # fmt: skip
"""Options that read a trace, and nothing else from it. A grid or a configuration that was uploaded
could say what no form may."""

SHIPPED: Mapping[str, Sequence[str]] = {
    "sim.scenario": scenario_names(),
    "config": shipped_names("configs", ""),
    "config.file": shipped_names("configs", ""),
}
"""Names that mean a file of the program where a path is taken, by option."""


def samples() -> list[str]:
    """List the shipped traces, as every option that takes one knows them."""
    kept = sorted(data_folder("datasets").iterdir())
    return [f"datasets/{path.name}" for path in kept if path.suffix != ".md"]


def _require_ours(name: str, text: str, table: Catalogue[Any]) -> None:
    if ":" in text:
        raise ConfigError(
            f"{name} {text!r} is not set from the page: a module is code; name one of "
            f"{', '.join(table.ours)}, or use the command line"
        )


def scenario_options() -> Mapping[str, Option]:
    """Return the options of a scenario by their path."""
    return {option.path: option for option in describe(Scenario)}


def _check_setting(text: str, folders: Folders) -> None:
    """Look at `PATH=VALUE` of a scenario as at the option that it sets."""
    path, _, value = text.partition("=")
    option = scenario_options().get(path)
    if option is not None:  # what is none, the command refuses
        checked_text("scenario", option, value, folders)


def check_config(config: Config, folders: Folders, chosen: Collection[str]) -> None:
    """Refuse a configuration whose file says what may not be set here; the server has `chosen`
    some options itself. Raises ConfigError, PlaceError."""
    for option in options().values():
        value = value_at(config, option.path)
        if option.path in chosen:
            continue
        if value != option.default and web_class("run", option) in _STRICT:
            for text in _texts(value):
                checked_text("run", option, text, folders)


_STRICT = (WebClass.NEVER, WebClass.FOLDER)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, tuple | list):
        yield from map(str, value)
    elif value is not None:
        yield str(value)
