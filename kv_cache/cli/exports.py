"""Files that a run writes beside its result, once it is there: checked before it begins."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_cache.config.root import Config
from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.report.sheets import FLAG, check_target, target_of

log = logging.getLogger("kv_cache")


def check_exports(config: Config, taken: Mapping[str, Sequence[str | Path | None]]) -> list[str]:
    """Refuse places that cannot be written, hold somebody else's file, or are `taken` (flag ->
    files) by another of the run's own. Sentences for what will differ from what was asked. Raises
    PlaceError."""
    asked = config.output.xlsx_output
    if asked is None:
        return []
    target = check_target(Path(asked))
    for other, files in taken.items():
        if any(file is not None and _same(target.path, file) for file in files):
            raise PlaceError(f"{FLAG} {asked}: {other} has the same file; name another")
    return [] if target.note is None else [target.note]


def _same(one: Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def write_exports(config: Config, document: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """What was written, by what it is; and whether all was that was asked for and has content."""
    asked = config.output.xlsx_output
    if asked is None:
        return {}, True
    if "summary" not in document:
        log.warning("no request completed, so there is no summary to write to %s", asked)
        return {}, True
    target = target_of(Path(asked))
    try:
        target.write(document)
    except (OSError, UsageError) as error:
        log.error("the summary could not be written to %s: %s", target.path, error)
        return {}, False
    return {"sheets": str(target.path)}, True
