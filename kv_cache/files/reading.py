"""Reads result files, and looks at the place of a file before it is written.

A result may have been cut short, edited, or not be a result at all: a bad file is one sentence and
never a traceback.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from kv_cache.core.errors import PlaceError, UsageError, os_reason
from kv_cache.result.chain import SECTION as SECTION
from kv_cache.result.chain import check
from kv_cache.result.kinds import KINDS
from kv_cache.result.older import modern

RESULT_FILE = "result.json"
"""Name of the result in a run's directory; naming the directory is enough."""

LARGEST = 256 << 20  # bytes of a result, which may hold those of many ranks; records are apart

_SCHEMA = re.compile(r"kv-cache-result/\d+")


def read_result(path: Path, *, measured: bool = True) -> Mapping[str, Any]:
    """Return the unchanged document of a result file, or of the one in a run's directory.

    `measured` refuses results of virtual time. Raises UsageError.
    """
    file = _result_file(path)
    document: Mapping[str, Any] = _parsed(file)
    section = _section(document, file)
    _require_run(section, file)
    if measured and section.get("driver") != "real-io":
        raise UsageError(
            f"{file} was made by {_short(section.get('driver'))}, which moves no bytes; give the "
            "result of a run without --virtual-time"
        )
    require_intact(document, path)
    return modern(document)


def read_document(path: Path, *more: str) -> Mapping[str, Any]:
    """Return an unchanged document of any of the `KINDS`, or whose schema is one of `more`.
    Raises UsageError."""
    file = _result_file(path)
    document: Mapping[str, Any] = _parsed(file)
    section = _section(document, file)
    renamed = modern(document)
    if renamed[SECTION].get("schema") not in (*KINDS, *more):
        _require_run(section, file)
    require_intact(document, path)
    return renamed


def _section(document: Any, file: Path) -> Mapping[str, Any]:
    section = document.get(SECTION) if isinstance(document, Mapping) else None
    if not isinstance(section, Mapping):
        raise UsageError(
            f"{file} is JSON but not a result of this program: it has no section {SECTION!r}; "
            "name the file that run wrote to --output"
        )
    return section


def _require_run(section: Mapping[str, Any], file: Path) -> None:
    """Refuse what is not the result of one run."""
    schema = section.get("schema")
    if isinstance(schema, str) and schema.startswith(("kv-cache-ranks/", "kv-cache-trials/")):
        raise UsageError(
            f"{file} is the result of several runs ({_short(schema)}), and that of one "
            "(kv-cache-result/N) is needed; name one of theirs, or see report"
        )
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise UsageError(
            f"{file}: its section {SECTION!r} has schema {_short(schema)}, which this program does "
            "not know (kv-cache-result/N); name the file that run wrote to --output"
        )


def _result_file(path: Path) -> Path:
    """Return the file of a result; a directory that may not be looked at is taken for the file."""
    return path / RESULT_FILE if os.path.isdir(path) else path


def require_intact(document: Mapping[str, Any], path: Path) -> None:
    """Refuse a result whose hash chain does not hold. Raises UsageError."""
    links = ", ".join(dict.fromkeys(change.link for change in check(document, {})))
    if links:
        raise UsageError(
            f"{path} was changed after its run ({links}): what is derived from it would be of no "
            "run; give the original, and see verify for the details"
        )


def _parsed(file: Path) -> Any:
    return parsed(result_bytes(file), file)


def parsed(data: bytes, file: Path) -> Any:
    """Return the JSON of a file that may be a result, strictly read. Raises UsageError."""
    if not data.strip():
        raise UsageError(f"result {file} is empty; name the file that run wrote to --output")
    try:
        document = orjson.loads(data)  # takes only what can be hashed again
    except orjson.JSONDecodeError as error:
        raise UsageError(f"result {file} {_flaw(str(error))}") from None
    if too_deep(document):
        raise UsageError(f"result {file} is nested deeper than any result is")
    return document


def _flaw(refusal: str) -> str:
    """Return why a text is not JSON."""
    if "not valid UTF-8" in refusal:
        return "is not text; name a result file"
    if refusal.startswith("unexpected end of data"):
        return "ends in the middle: it was cut short; give an untouched result file"
    return f"is not JSON ({refusal}); give an untouched result file"


def result_bytes(file: Path) -> bytes:
    """Return the content of a file that may be a result. Raises UsageError."""
    try:
        if file.exists() and not file.is_file():
            raise UsageError(f"result {file} is not a regular file; name the file that run wrote")
        if file.stat().st_size > LARGEST:
            raise UsageError(
                f"result {file} is larger than {LARGEST >> 20} MiB, which no result is; name the "
                "file that run wrote to --output"
            )
        return file.read_bytes()
    except (OSError, ValueError) as error:
        reason = os_reason(error)
        raise UsageError(
            f"result {file} cannot be read: {reason}; name a result file or a run's directory"
        ) from None


def too_deep(document: Any) -> bool:
    """Return whether a document is nested deeper than orjson writes, which is 253 levels: what goes
    down by calling itself gets so far."""
    try:
        orjson.dumps(document)
    except TypeError:
        return True
    return False


def _short(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def require_replaceable(path: Path, mark: str, flag: str) -> None:
    """Refuse an output file whose directory is missing, or that exists and does not begin with
    `mark`, so that this program did not write it. Creates nothing. Raises PlaceError."""
    where = f"{flag} {path}"
    try:
        if path.is_dir() or not path.parent.is_dir():
            what = "it is a directory" if path.is_dir() else f"there is no directory {path.parent}"
            raise PlaceError(f"{where}: {what}; name a file in a directory that exists")
        if not path.exists():
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise PlaceError(f"{where}: {path.parent} is not writable; name another file")
            return
        if not path.is_file():  # reading a pipe would wait for a writer
            raise PlaceError(f"{where}: it is not a regular file; name another file")
        with path.open("rb") as file:
            begins = file.read(len(mark.encode()))
    except OSError as error:
        reason = os_reason(error)
        raise PlaceError(f"{where}: it cannot be looked at ({reason}); name another file") from None
    if begins != mark.encode():
        raise PlaceError(
            f"{where}: a file of that name is there which this command did not write; name "
            "another file, or move that one away"
        )
