"""A run directory: everything that is needed to check a result and to repeat it.

    config.yaml        the effective configuration, written first
    environment.json   the machine
    requests.jsonl     with --records: every request
    transfers.jsonl    with --records: every physical operation
    result.json        the result
    report.html        the same as a page for people, written last

Never a file named `summary.json` or `*_metadata.json`: the MLPerf launcher takes a directory that
holds one for a run of its own.
"""

import itertools
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.files.reading import RESULT_FILE
from kv_cache.files.writing import write_atomically

PAGE_FILE = "report.html"

log = logging.getLogger("kv_cache")


def new_run_directory(results: Path, seed: int) -> Path:
    """`<results dir>/run-<UTC time>-seed<seed>`, with a number where that is taken. Makes none."""
    name = f"run-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-seed{seed}"
    numbers = itertools.count(2)
    path = results / name
    while os.path.lexists(path):
        path = results / f"{name}-{next(numbers)}"
    return path


class RunDirectory:
    """The directory of one run, made when it begins."""

    def __init__(self, path: Path) -> None:
        """`path`: as `new_run_directory` named it. Raises OSError."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()

    def begin(self, config_yaml: str, environment: Mapping[str, Any]) -> None:
        write_atomically(self.path / "config.yaml", config_yaml.encode())
        write_atomically(self.path / "environment.json", as_json(dict(environment)))

    @property
    def result(self) -> Path:
        return self.path / RESULT_FILE

    def end(self, document: Mapping[str, Any]) -> None:
        write_atomically(self.result, as_json(document))

    def report(self, document: Mapping[str, Any]) -> Path | None:
        """Write the page of a document that stands here; None, which is logged, if that fails,
        whatever the reason: the result is written already, and is not to look broken."""
        target = self.path / PAGE_FILE
        try:
            # As it is read back, so that `report` makes the same page of the file.
            from kv_cache.view.page import page  # a run that begins needs none

            html = page([orjson.loads(as_json(document))], [f"{self.path.name}/{RESULT_FILE}"])
            write_atomically(target, html.encode())
        except (OSError, UsageError) as error:
            log.warning("no report: %s", error)
            return None
        except Exception:  # a mistake in the page is no mistake in the run
            log.exception("no report, by a mistake of the program; the result is complete")
            return None
        return target
