"""Documents of every kind, wherever they are: a result, a device's profile, a tree of MLPerf's."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kv_cache.config.profile import profile_of
from kv_cache.config.yaml_files import read_yaml
from kv_cache.files.reading import RESULT_FILE, SECTION, read_document

_YAML = (".yaml", ".yml")


def read_any(path: Path) -> Mapping[str, Any]:
    """Read a result file, a run's directory, a profile that `probe` wrote, or the tree of a
    sequence, as a document that a view shows. Raises UsageError."""
    if path.suffix.lower() in _YAML and not os.path.isdir(path):
        values = read_yaml(path)
        profile_of(values, path)
        return {SECTION: values}
    tree = _tree(path)
    return read_document(path) if tree is None else tree


def _tree(path: Path) -> Mapping[str, Any] | None:
    """The document of the sequence at or below a directory; None where there is none."""
    if not is_tree(path):
        return None
    from kv_cache.mlperf.document import tree_document
    from kv_cache.mlperf.tree import read_tree

    return tree_document(read_tree(path))


def is_tree(path: Path) -> bool:
    """Whether a path is a directory with a sequence of MLPerf's, and not one of a run."""
    if not os.path.isdir(path) or os.path.exists(path / RESULT_FILE):
        return False
    from kv_cache.mlperf.layout import holds_sequence

    return holds_sequence(path)


def beside_tree(tree: Path, suffix: str) -> Path:
    """Where a report of a tree belongs: not in it, as a file more would be one that was added."""
    whole = tree.resolve()
    return whole.with_name(f"{whole.name}{suffix}")
