"""Results read to be compared; `result.comparison` compares them."""

import os
from collections.abc import Sequence
from pathlib import Path

import orjson

from kv_cache.core.errors import UsageError
from kv_cache.files.reading import (
    DEEPEST,
    RESULT_FILE,
    SECTION,
    deeper_than,
    read_result,
    require_intact,
    result_bytes,
)
from kv_cache.result import trials
from kv_cache.result.comparison import LABELS, Input, input_of, require_all_comparable
from kv_cache.result.metrics import Json
from kv_cache.result.published import RANKS

MARK = '{\n  "schema": "kv-cache-comparison/'
"""How the JSON of every comparison begins; a file that begins so may be replaced."""


def read_inputs(paths: Sequence[Path]) -> list[Input]:
    """Results of runs, of several ranks or of trials, that may be compared with the first. Raises
    UsageError."""
    if not 2 <= len(paths) <= len(LABELS):
        raise UsageError(
            f"compare needs 2 to {len(LABELS)} results, the baseline first, and was given "
            f"{len(paths)}; name more or fewer files"
        )
    inputs = [
        input_of(label, path, read_document(path))
        for label, path in zip(LABELS, paths, strict=False)
    ]
    require_all_comparable(inputs)
    return inputs


def read_document(path: Path) -> Json:
    """The whole document of a run's result, of several ranks or of trials, as it was written.
    Raises UsageError."""
    document = _document_of_several(path) or read_result(path, measured=False)
    require_intact(document, path)
    return document


def _document_of_several(path: Path) -> Json | None:
    """The document, if it is one of trials or ranks; whatever else it is, `read_result` tells."""
    file = path / RESULT_FILE if os.path.isdir(path) else path
    try:
        document = orjson.loads(result_bytes(file))
    except orjson.JSONDecodeError:
        return None
    own = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(own, dict) or own.get("schema") not in (trials.SCHEMA, RANKS):
        return None
    return None if deeper_than(document, DEEPEST) else document
