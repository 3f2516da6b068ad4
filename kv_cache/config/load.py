"""Configurations: a file or a shipped one, the personality under it, and overrides over it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kv_cache.config.axes import nested
from kv_cache.config.personalities import PERSONALITIES
from kv_cache.config.root import Config, options
from kv_cache.config.rules import check
from kv_cache.config.schema import overlay
from kv_cache.config.unread import value_at
from kv_cache.config.yaml_files import find_config, read_yaml
from kv_cache.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What a command line sets of a run: `overrides` by dotted option path, of which `environment`
    holds the variables that set some; `flags` are those of the line."""

    config_path: Path | None
    overrides: Mapping[str, Any]
    log_level: str = "INFO"
    flags: frozenset[str] = frozenset()
    dry_run: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def config(self) -> Config:
        """The checked configuration. Raises ConfigError."""
        return load_config(self.config_path, self.overrides)

    def refuse(self, command: str, useless: Mapping[str, str], always: Sequence[str] = ()) -> None:
        """Raise ConfigError for options that `command` sets itself or has no use for (path -> why)
        and that are given as flags; those of `always` not in the file either."""
        config = self.config()
        for path, why in useless.items():
            option = options()[path]
            in_file = path in always and value_at(config, path) != option.default
            if in_file or path in self.overrides:
                source = self.environment.get(path) or option.flag
                name = f"{path} ({source})" if source else path
                raise ConfigError(f"{name} cannot be given to {command}: {why}; leave it out")


def load_config(
    path: Path | str | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Return the checked configuration of a file, or of the name of a shipped one (`quick`), or of
    the defaults (None), with `overrides` by dotted path (`{"run.num_users": 5}`) put over it.

    Sizes and times are in the unit of the option's name, or text with a unit (`"10GB"`, `"5m"`).
    Raises ConfigError.
    """
    overrides = overrides or {}
    path = config_file(None if path is None else Path(path))
    tree = None if path is None else read_yaml(path)
    config = overlay(Config(), nested(_personality(tree, overrides)))
    config = overlay(config, tree, str(path))
    config = overlay(config, nested(overrides))
    if config.output.io_trace_log is not None:  # as in the reference, no I/O is done
        config = replace(config, run=replace(config.run, virtual_time=True))
    check(config)
    return config


def _personality(tree: object, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the personality that is asked for sets, by dotted path: it lies under what is given."""
    name = overrides.get("io.personality")
    if name is None and isinstance(tree, Mapping) and isinstance(tree.get("io"), Mapping):
        name = tree["io"].get("personality")
    known = PERSONALITIES.get(name) if isinstance(name, str) else None
    return {} if known is None else known.options


def config_file(path: Path | None) -> Path | None:
    """The file of a configuration; None where the defaults are meant. Raises ConfigError."""
    if path is None or is_the_references(path):
        return None
    return find_config(path, "configuration")


def is_the_references(path: Path) -> bool:
    """Whether it is the file that the reference's documents name, where there is none: its values
    are the defaults here."""
    return path == Path("config.yaml") and not os.path.exists(path)
