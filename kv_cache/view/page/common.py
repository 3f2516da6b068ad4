"""Sections that every document has: the environment, the configuration, where it is from."""

from collections.abc import Sequence
from typing import Any

from kv_cache.core.format import as_text, figures
from kv_cache.core.units import GIB
from kv_cache.result.chain import fingerprint
from kv_cache.view.page.parts import Doc, Json, dotted, table
from kv_cache.view.page.safe_text import Html
from kv_cache.view.picture.base import rows_at, value_at


def _pairs(caption: str, pairs: Sequence[tuple[str, Any]]) -> Html:
    rows = [
        (dotted(name), _told(name, value))
        for name, value in pairs
        if value not in (None, "", [], {})
    ]
    return table(caption, ("what", "value"), rows, words=2)


def _told(name: str, value: Any) -> str:
    """A value as people write it; of many bytes, how many GiB that is."""
    if name.endswith("_bytes") and isinstance(value, int) and value >= GIB / 10:
        return f"{as_text(value)} ({figures(value / GIB)} GiB)"
    return as_text(value)


def origin(doc: Doc) -> list[Html]:
    """Where a document is from: its file, program, seed and fingerprint."""
    own = doc.own
    rows = [
        ("file", doc.name),
        ("schema", doc.schema),
        ("program", own.get("program_version")),
        ("started", own.get("started_utc")),
        ("seed", own.get("seed")),
        ("schedule (SHA-256)", value_at(own, "schedule.sha256")),
        ("fingerprint", fingerprint(doc.document)),
    ]
    made = [_pairs("Where this is from", rows), *_beside(own)]
    recordings = [
        (str(row.get("what")), row.get("path"), row.get("rows"), row.get("sha256"))
        for row in rows_at(own, "recordings")
    ]
    if recordings:
        heads = ("what", "path", "rows", "SHA-256")
        made.append(table("Traces that the run wrote", heads, recordings, words=4))
    return made


_WRITTEN = (
    ("fio_export", "fio job of the same I/O on storage"),
    ("hdr_log", "latencies as a log of HdrHistogram"),
    ("latency_dump", "latency of each request"),
    ("xlsx_output", "spreadsheet"),
)


def _beside(own: Json) -> list[Html]:
    """Files that the run was asked to write beside its result."""
    rows = [
        (said, path)
        for name, said in _WRITTEN
        if isinstance(path := value_at(own, f"config.output.{name}"), str)
    ]
    if not rows:
        return []
    return [table("Files that the run was asked to write", ("what", "path"), rows, words=2)]
