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

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from kv_cache.core.errors import UsageError
from kv_cache.report.html import page
from kv_cache.report.reading import RESULT_FILE
from kv_cache.report.result import as_json
from kv_cache.report.writing import write_atomically

PAGE_FILE = "report.html"

log = logging.getLogger("kv_cache")


class RunDirectory:
    """`<results dir>/run-<UTC time>-seed<seed>`, made when a run begins."""

    def __init__(self, results: Path, seed: int) -> None:
        results.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        name, number = f"run-{stamp}-seed{seed}", 1
        while True:
            self.path = results / (name if number == 1 else f"{name}-{number}")
            try:
                self.path.mkdir()
            except FileExistsError:
                number += 1
            else:
                return

    def begin(self, config_yaml: str, environment: Mapping[str, Any]) -> None:
        write_atomically(self.path / "config.yaml", config_yaml.encode())
        write_atomically(self.path / "environment.json", as_json(dict(environment)))

    def end(self, document: Mapping[str, Any]) -> None:
        write_atomically(self.path / "result.json", as_json(document))

    def report(self, document: Mapping[str, Any]) -> Path | None:
        """Write the page of a document that stands here; None, which is logged, if that fails,
        whatever the reason: the result is written already, and is not to look broken."""
        target = self.path / PAGE_FILE
        try:
            # As it is read back, so that `report` makes the same page of the file.
            made = page([orjson.loads(as_json(document))], [f"{self.path.name}/{RESULT_FILE}"])
            write_atomically(target, made.encode())
        except (OSError, UsageError) as error:
            log.warning("no report: %s", error)
            return None
        except Exception:  # a mistake in the page is no mistake in the run
            log.exception("no report, by a mistake of the program; the result is complete")
            return None
        return target
