"""Where a document is from: its file, program, seed and fingerprint, and the files beside it."""

from collections.abc import Iterator
from typing import Any

from kv_cache.core.format import as_text
from kv_cache.result.chain import fingerprint
from kv_cache.result.metrics import Json
from kv_cache.result.paths import value_at
from kv_cache.result.run import SECTION, converted
from kv_cache.view.parts import FactList, Part, ShownColumn, Table, ViewSection

_BESIDE = {
    "fio_export": "fio job of the same I/O on storage",
    "hdr_log": "latencies as a log of HdrHistogram",
    "latency_dump": "latency of each request",
    "xlsx_output": "spreadsheet",
}


def origin_section(name: str, document: Json) -> ViewSection:
    """The section of a document that is in the file `name`. Raises MisshapenError."""
    return ViewSection(title="Origin", parts=list(_parts(name, document)))


def _parts(name: str, document: Json) -> Iterator[Part]:
    section = document[SECTION]
    rows = (
        ("file", name),
        ("schema", section.get("schema")),
        ("program", section.get("program_version")),
        ("started", section.get("started_utc")),
        ("seed", section.get("seed")),
        ("schedule (SHA-256)", value_at(section, "schedule.sha256")),
        ("fingerprint", fingerprint(document)),
    )
    facts = [(what, as_text(value)) for what, value in rows if value is not None]
    yield FactList(title="Where this is from", rows=facts)
    beside = [
        (what, path)
        for option, what in _BESIDE.items()
        if isinstance(path := value_at(section, f"config.output.{option}"), str)
    ]
    if beside:
        yield FactList(title="Files that the run was asked to write", rows=beside)
    recordings = section.get("recordings")
    if recordings:
        yield _recordings(converted(recordings, list[dict[str, Any]], "recordings"))


def _recordings(rows: list[dict[str, Any]]) -> Table:
    keys = {"what": "what", "path": "path", "rows": "rows", "SHA-256": "sha256"}
    return Table(
        title="Traces that the run wrote",
        columns=list(map(ShownColumn, keys)),
        rows=[[as_text(row.get(key)) for key in keys.values()] for row in rows],
    )
