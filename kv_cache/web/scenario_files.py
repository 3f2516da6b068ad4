"""A scenario of `sim` whose instances were drawn up one by one on the page, as a file that the
command line takes."""

import os
import re
import secrets
from pathlib import Path

import yaml
from msgspec import Struct

from kv_cache.config.scenarios import read_scenarios, scenario_names
from kv_cache.config.yaml_files import find_config, read_yaml
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, os_reason
from kv_cache.files.writing import write_atomically
from kv_cache.web.classes import Folders

FOLDER = "scenarios"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


class DrawnScenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario by another: its groups of instances take the place of the other's."""

    name: str
    base: str
    instances: dict[str, dict[str, int | float | str | None]]


def write_scenario(results: Path, folders: Folders, drawn: DrawnScenario) -> Path:
    """Write the file once it loads; return it. Raises UsageError for what a scenario may not be."""
    if not _NAME.fullmatch(drawn.name):
        raise ConfigError(
            f"the name {drawn.name[:80]!r} is no scenario's: letters, digits, - and _, at most 60"
        )
    known = drawn.base in scenario_names()
    base = drawn.base if known else folders.inside(drawn.base, "base")
    tree = read_yaml(find_config(Path(base), "scenario", "scenarios"))
    if not isinstance(tree, dict):
        raise ConfigError(f"{drawn.base} holds no scenario; name another one")
    target = results / FOLDER / f"{drawn.name}.yaml"
    changed = {**tree, "name": drawn.name, "instances": drawn.instances}
    presets = tree.get("presets")
    if isinstance(presets, dict):
        changed["presets"] = {name: _without_groups(p, drawn) for name, p in presets.items()}
    data = yaml.safe_dump(changed, sort_keys=False, allow_unicode=True).encode()
    draft = target.with_name(f".{secrets.token_hex(8)}.yaml")  # beside it: paths in it are relative
    try:
        target.parent.mkdir(exist_ok=True)
        try:
            write_atomically(draft, data)
            read_scenarios(draft)
            os.link(draft, target)
        except UsageError as error:
            raise ConfigError(str(error).replace(draft.name, target.name)) from None
        except FileExistsError:
            if target.read_bytes() != data:
                raise ConfigError(
                    f"a scenario {drawn.name!r} is there already; give it another name"
                ) from None
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        reason = os_reason(error)
        raise PlaceError(f"the scenario {target} could not be written: {reason}") from None
    return target


def _without_groups(preset: object, drawn: DrawnScenario) -> object:
    """Return a preset without what it says of groups that are not there any more."""
    if not isinstance(preset, dict):
        return preset
    words = {path: str(path).split(".") for path in preset}
    return {
        path: value for path, value in preset.items()
        if words[path][0] != "instances" or words[path][1] in drawn.instances
    }  # fmt: skip
