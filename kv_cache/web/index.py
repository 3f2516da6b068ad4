"""The list of all results below a folder, in a database that can be thrown away: it says nothing
that is not in the files, and is made again from them.

A file is read again only if its size or time has changed, or the time of its notes. What cannot be
read, or was changed after its run, is listed with its fault. Notes and labels stand in a file
beside the result, which is sealed and never written to.
"""

import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import orjson
from msgspec import Struct

from kv_cache.app.documents import read_any
from kv_cache.config.profile import SCHEMA as PROFILE
from kv_cache.core.errors import PlaceError, UsageError, os_reason
from kv_cache.files.reading import RESULT_FILE, SECTION
from kv_cache.files.writing import write_atomically
from kv_cache.result.gate import verdict_of
from kv_cache.result.metrics import Json
from kv_cache.result.paths import number_at, value_at
from kv_cache.view.identity import doubts, drive_texts, label_of, run_text
from kv_cache.web.jobs import JOB_FILE

INDEX = ".kv-cache-index.sqlite"
NOTES = ".notes.json"
MOST_ROWS = 1000
_MOST_LEVELS = 5
_NO_RESULTS = (JOB_FILE, "environment.json")
_FRESH_S = 1.0
_VERSION = 3
_COLUMNS = (
    "path", "mtime_ns", "size", "kind", "started", "device", "label", "note", "preset", "setup",
    "verdict", "value", "low", "high", "unit", "model", "seed", "fault", "moved",
)  # fmt: skip
FILTERS = ("kind", "device", "label", "preset", "verdict")
"""Columns by whose value a list can be narrowed; the date goes by `since` and `until`."""

log = logging.getLogger("kv_cache")


class Notes(Struct, frozen=True, kw_only=True):
    """What a person wrote beside a result."""

    label: str = ""
    note: str = ""


class Indexing(Struct, frozen=True):
    """Files that were read of those that have to be; equal when the list is whole."""

    done: int
    total: int


class Index:
    """The list of one folder. One thread reads files; lists are answered meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / INDEX
        self._scanning = threading.Lock()
        self._scanned_s = 0.0
        self.progress = Indexing(0, 0)
        try:
            self._prepare()
        except sqlite3.DatabaseError:  # a damaged one, or something else: it is made again
            self._file.unlink(missing_ok=True)
            self._prepare()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=30)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    def _prepare(self) -> None:
        with closing(self._connect()) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                connection.execute("DROP TABLE IF EXISTS results")
            columns = ", ".join(_COLUMNS[1:])
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS results (path TEXT PRIMARY KEY, {columns})"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS by_date ON results (started)")
            connection.execute(f"PRAGMA user_version={_VERSION}")
            connection.commit()

    # --- reading the folder ----------------------------------------------------------------------

    def refresh(self, *, at_once: bool = False) -> None:
        """Read what has changed, unless a look was taken just now; where another thread reads,
        leave it to that, or wait for it if it must be seen `at_once`."""
        if not self._scanning.acquire(blocking=at_once):
            return
        try:
            if at_once or time.monotonic() - self._scanned_s >= _FRESH_S:
                self._scan()
                self._scanned_s = time.monotonic()
        except sqlite3.Error as error:
            log.error("the list of results: %s", error)
        finally:
            self._scanning.release()

    def _scan(self) -> None:
        present = dict(_files(self._folder, _MOST_LEVELS))
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT path, mtime_ns, size FROM results")
            known = {path: (mtime, size) for path, mtime, size in rows}
            changed = [path for path, stamp in present.items() if known.get(path) != stamp]
            gone = [(path,) for path in known.keys() - present.keys()]
            connection.executemany("DELETE FROM results WHERE path = ?", gone)
            marks = ", ".join("?" * len(_COLUMNS))
            for number, path in enumerate(changed):
                self.progress = Indexing(number, len(changed))
                row = {**_row(self._folder, path), "path": path,
                       "mtime_ns": present[path][0], "size": present[path][1]}  # fmt: skip
                values = [row.get(name) for name in _COLUMNS]
                connection.execute(f"INSERT OR REPLACE INTO results VALUES ({marks})", values)
                if number % 64 == 63:
                    connection.commit()
            connection.commit()
        self.progress = Indexing(len(changed), len(changed))

    # --- answers ---------------------------------------------------------------------------------

    def rows(self, wanted: Mapping[str, str], limit: int, offset: int) -> tuple[list[Json], int]:
        """Return results, the latest first, and how many there are. `wanted`: values of FILTERS,
        `since` and `until` (dates), and `text` anywhere."""
        clauses, values = ["kind IS NOT NULL"], list[str]()
        for name in FILTERS:
            if name in wanted:
                clauses.append(f"{name} = ?")
                values.append(wanted[name])
        for name, clause in (("since", "started >= ?"), ("until", "substr(started, 1, 10) <= ?")):
            if name in wanted:
                clauses.append(clause)
                values.append(wanted[name])
        if "text" in wanted:
            clauses.append("path || label || note || device || preset || kind LIKE ?")
            values.append(f"%{wanted['text']}%")
        where = " AND ".join(clauses)
        with closing(self._connect()) as connection:
            (count,) = connection.execute(
                f"SELECT count(*) FROM results WHERE {where}", values
            ).fetchone()
        rows = self._selected(
            f"FROM results AS o WHERE {where} ORDER BY started DESC, path LIMIT ? OFFSET ?",
            [*values, min(limit, MOST_ROWS), offset],
        )
        return rows, count

    def _selected(self, query: str, values: Sequence[str | int]) -> list[Json]:
        """Return the rows `o` that a query is about."""
        columns = ", ".join(f"o.{name}" for name in _COLUMNS)
        with closing(self._connect()) as connection:
            rows = connection.execute(f"SELECT {columns} {query}", values).fetchall()
        return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]

    def choices(self) -> Json:
        """Return the values that each filter can have."""
        with closing(self._connect()) as connection:
            return {
                name: [value for (value,) in connection.execute(
                    f"SELECT DISTINCT {name} FROM results WHERE {name} != '' ORDER BY 1 LIMIT 200"
                )]
                for name in FILTERS
            }  # fmt: skip

    def file(self, path: str) -> Path:
        """Return the file of a result that is listed. Raises UsageError for any other path."""
        with closing(self._connect()) as connection:
            listed = connection.execute(
                "SELECT 1 FROM results WHERE path = ? AND kind IS NOT NULL", (path,)
            ).fetchone()
        if listed is None:
            raise UsageError(f"there is no result {path!r} in the list; see GET /results")
        return self._folder / path

    def below(self, prefix: str) -> list[Json]:
        """Return the results below a folder, the outermost first."""
        return self._selected(
            "FROM results AS o WHERE kind IS NOT NULL AND substr(path, 1, ?) = ? "
            "ORDER BY length(path) - length(replace(path, '/', '')), path",
            (len(prefix) + 1, f"{prefix}/"),
        )

    def alike(self, path: str) -> list[Json]:
        """Return the results of the same configuration on the same device, the oldest first."""
        return self._selected(
            "FROM results AS r JOIN results AS o ON o.setup = r.setup AND o.device = r.device "
            "WHERE r.path = ? AND r.setup != '' AND o.value IS NOT NULL ORDER BY o.started",
            (path,),
        )

    # --- notes -----------------------------------------------------------------------------------

    def annotate(self, path: str, notes: Notes) -> None:
        """Write a label and a note beside a result. Raises UsageError, PlaceError."""
        file = self.file(path)
        try:
            write_atomically(notes_of(file), msgspec.json.encode(notes))
        except OSError as error:
            reason = os_reason(error)
            raise PlaceError(
                f"the note could not be written beside {path}: {reason}; nothing was changed"
            ) from None
        with closing(self._connect()) as connection:
            connection.execute(
                "UPDATE results SET label = ?, note = ? WHERE path = ?",
                (notes.label, notes.note, path),
            )
            connection.commit()


def notes_of(file: Path) -> Path:
    """Return the file of the notes beside a result."""
    return file.with_name(f"{file.stem}{NOTES}")


def read_notes(file: Path) -> Notes | None:
    """Return the notes beside a result; None where there are none."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(notes_of(file).read_bytes(), type=Notes)
    return None


def _files(folder: Path, levels: int, prefix: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what may be a result below a folder, with its time, or its notes' if they are later,
    and its size; no link is followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    noted = {entry.name: entry for entry in entries if entry.name.endswith(NOTES)}
    for entry in entries:
        if entry.name.startswith("."):
            continue
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                if levels:
                    yield from _files(Path(entry.path), levels - 1, f"{prefix}{entry.name}/")
            elif entry.is_file(follow_symlinks=False) and _may_be_result(entry.name):
                status = entry.stat(follow_symlinks=False)
                notes = noted.get(notes_of(Path(entry.name)).name)
                changed = 0 if notes is None else notes.stat(follow_symlinks=False).st_mtime_ns
                yield f"{prefix}{entry.name}", (max(status.st_mtime_ns, changed), status.st_size)


def _may_be_result(name: str) -> bool:
    if name.endswith((".yaml", ".yml")):
        return name not in ("config.yaml", "config.yml")
    return name.endswith(".json") and not name.endswith(NOTES) and name not in _NO_RESULTS


def _row(folder: Path, path: str) -> Json:
    """Return the row of a file; without a kind it is none of ours."""
    file = folder / path
    try:
        section = read_any(file)[SECTION]
    except UsageError as error:
        fault = str(error).replace(str(file), path)
        return _faulty(file, fault) if _looks_ours(file) else {}
    notes = read_notes(file) or Notes(
        label=label_of(section), note=str(value_at(section, "config.output.note") or "")
    )
    schema = str(section["schema"])
    return {
        "kind": schema.partition("/")[0].removeprefix("kv-cache-").replace("result", "run"),
        "started": section.get("started_utc") or _changed(file),
        "device": "; ".join(drive_texts(section)),
        "label": notes.label,
        "note": notes.note,
        "preset": run_text(section) if value_at(section, "workload") else "",
        "setup": _setup(section),
        "verdict": verdict_of(section) or "",
        "value": number_at(section, "headline.bytes_per_second"),
        "low": number_at(section, "headline.within_run.low"),
        "high": number_at(section, "headline.within_run.high"),
        "unit": "bytes/s",
        "model": value_at(section, "model.name"),
        "seed": section.get("seed"),
        "fault": None,
        "moved": "; ".join(doubts(section, [])),
    }


def _faulty(file: Path, fault: str) -> Json:
    notes = read_notes(file) or Notes()
    return {
        "kind": "unreadable", "started": _changed(file), "device": "", "label": notes.label,
        "note": notes.note, "preset": "", "setup": "", "verdict": "", "fault": fault,
    }  # fmt: skip


def _looks_ours(file: Path) -> bool:
    """Whether a file that cannot be read was meant to be a result of this program."""
    with suppress(OSError):
        if file.name == RESULT_FILE or file.name.startswith("benchmark_results"):
            return True
        with file.open("rb") as content:
            begins = content.read(1 << 16)
        if file.suffix == ".json":
            return b'"kv-cache-' in begins or b'{"requests_completed":' in begins[:64]
        return f"schema: {PROFILE.partition('/')[0]}/".encode() in begins
    return False


def _changed(file: Path) -> str:
    with suppress(OSError):
        return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat()
    return ""


def _setup(section: Json) -> str:
    """Return a digest of what was run: the configuration without its seed and its files."""
    config = section.get("config")
    if not isinstance(config, Mapping):
        return ""
    kept = {name: value for name, value in config.items() if name != "output"}
    kept["run"] = {k: v for k, v in kept.get("run", {}).items() if k != "seed"}
    kept["tiers"] = {k: v for k, v in kept.get("tiers", {}).items() if k != "cache_dir"}
    text = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:16]
