"""A run directory: everything that is needed to check a result and to repeat it.

    config.yaml        the effective configuration, written first
    environment.json   the machine
    requests.jsonl     with --records: every request
    transfers.jsonl    with --records: every physical operation
    result.json        the result, written last

Never a file named `summary.json` or `*_metadata.json`: the MLPerf launcher takes a directory that
holds one for a run of its own.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kv_cache.report.result import as_json
from kv_cache.report.writing import write_atomically


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
