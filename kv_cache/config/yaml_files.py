"""Strict YAML, the files that are shipped, and model files.

YAML is read safely; a duplicate key is an error, because YAML would silently keep the last. Every
failure is a `ConfigError` with the file and, if there is one, the line.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from kv_cache.config.schema import show
from kv_cache.core.errors import ConfigError, did_you_mean, os_reason
from kv_cache.core.hfconfig import model_from_hf
from kv_cache.core.model import ModelShape

Kind = Literal["configs", "datasets"]

_PACKAGE = Path(__file__).resolve().parents[1]
_MERGE_TAG = "tag:yaml.org,2002:merge"


def shipped_names(kind: Kind, folder: str) -> tuple[str, ...]:
    """The YAML files that are shipped in a folder, by name and without their endings."""
    return tuple(sorted(path.stem for path in (data_folder(kind) / folder).glob("*.yaml")))


def find_config(path: Path, what: str, folder: str = "") -> Path:
    """Return a file as it is, else the shipped one of that name, in a folder of `configs`. Raises
    ConfigError that says `what` file there is not."""
    path = path.expanduser()
    if os.path.exists(path):
        return path
    name = path.name if path.suffix in (".yaml", ".yml") else f"{path.name}.yaml"
    plain = path.parent in (Path(), Path(folder), Path("configs", folder))
    if plain and (file := find_shipped("configs", str(Path(folder, name)))):
        return file
    raise ConfigError(
        f"there is no {what} file {show(str(path))}, nor a shipped one of that name."
        f"{did_you_mean(path.stem, shipped_names('configs', folder))}"
    )


def shipped(kind: Kind, text: str) -> Path:
    """`text` as a path; where it says `datasets/...` and is not there, the shipped file."""
    path = Path(text)
    if path.parts[:1] == (kind,) and not os.path.exists(path):
        return find_shipped(kind, str(Path(*path.parts[1:]))) or path
    return path


def beside(folder: Path, text: str) -> str:
    """Return a path that a file in `folder` names, from where the program runs. What the shipped
    files have (`datasets/...`) and the folder has not stays as it is, for `shipped`; so does a word
    without an ending, for `find_config`."""
    path = folder / Path(text).expanduser()
    if os.path.exists(path):
        return str(path)
    if Path(text).name == Path(text).stem == text:
        return text
    kind, *below = Path(text).parts or ("",)
    for shipped_kind in get_args(Kind):
        if kind == shipped_kind and find_shipped(shipped_kind, str(Path(*below))):
            return text
    return str(path)


def read_model(path: Path, kv_bytes_per_token: int = 0) -> ModelShape:
    """The geometry in a Hugging Face config.json, or in the one of a directory, of a model whose
    token costs `kv_bytes_per_token`, if that is above 0."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file_text(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"model {show(str(file))} is not JSON ({error}); give a Hugging Face config.json"
        ) from None
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"model {show(str(file))} holds no JSON object; give a Hugging Face config.json"
        )
    return model_from_hf(config, str(file), kv_bytes_per_token)


def of_schema(values: object, schema: str, where: str, instead: str) -> Mapping[Any, Any]:
    """Return the values of a file that says that it has this schema. Raises ConfigError."""
    if isinstance(values, Mapping) and values.get("schema") == schema:
        return values
    there = values.get("schema") if isinstance(values, Mapping) else None
    raise ConfigError(f"{where}: its schema is {show(there)}, not {schema}; {instead}")


def read_yaml(path: Path) -> object:
    """The plain values of one YAML document; None for an empty file. Raises ConfigError."""
    return yaml_value(file_text(path), str(path))


def yaml_value(text: str, path: str) -> object:
    """The plain values of YAML that stands in `path`. Raises ConfigError."""
    try:
        value = yaml.load(text, _StrictLoader)
        _check_aliases(value, path)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: {_problem(error)}") from None
    except yaml.reader.ReaderError as error:
        line = str(text.count("\n", 0, error.position) + 1)
        raise ConfigError(
            f"{path}, line {line}: a character that text never has; give a YAML file"
        ) from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep; a configuration has few levels") from None
    except ValueError as error:  # an impossible date, a number of thousands of digits
        raise ConfigError(f"{path}: a value cannot be read ({error}); put it in quotes") from None


_MOST_VALUES = 10_000_000


def _check_aliases(root: object, path: str) -> None:
    """What `*name` repeats must be finite, and not a bomb. Raises ConfigError."""
    counted: dict[int, int] = {}  # values in a table or list, once it was gone through
    within: set[int] = set()

    def count(value: object) -> int:
        if not isinstance(value, dict | list):
            return 1
        if (known := counted.get(id(value))) is not None:
            return known
        if id(value) in within:
            raise ConfigError(f"{path}: an alias (*) is inside of what it repeats; write it out")
        within.add(id(value))
        inner = value.values() if isinstance(value, dict) else value
        total = counted[id(value)] = 1 + sum(map(count, inner))
        within.discard(id(value))
        if total > _MOST_VALUES:
            raise ConfigError(
                f"{path}: its aliases (*) repeat more than {_MOST_VALUES:,} values; write out what "
                "is meant"
            )
        return total

    count(root)


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "not YAML"
    if "\\t" in problem:
        return "a tab where YAML wants spaces; indent with spaces"
    return problem


def file_text(path: Path) -> str:
    """Return the text of a file. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text: byte {error.start} is not UTF-8; give a text file"
        ) from None
    except OSError as error:
        reason = os_reason(error)
        raise ConfigError(f"{path} cannot be read: {reason}; give a readable file") from None


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses duplicate keys, and reads `1e3` as the number it is."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here and not when values are made: by then merge keys (<<) have been expanded.
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, object], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
                continue
            if (first := seen.get((key.tag, key.value))) is not None:
                problem = f"duplicate key {show(key.value)}, first in line {first}; keep one"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen[key.tag, key.value] = key.start_mark.line + 1
        return node


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def data_folder(kind: Kind) -> Path:
    """Return where files are shipped: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "_data" / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def find_shipped(kind: Kind, name: str) -> Path | None:
    """Return a shipped file, in the wheel or the checkout; None if it does not exist. `name` may
    have folders in it, but leads nowhere else."""
    folder = data_folder(kind).resolve()
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError):  # no such name can be: too long, or with a NUL in it
        return None
    return path if path.is_relative_to(folder) and os.path.exists(path) else None
