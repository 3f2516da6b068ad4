"""Results read back: what `twin` and others need before they believe a file.

A result may have been cut short, edited, or be no result at all. Everything that is taken from one
goes through `read_result` and `part`, so that a bad file is one sentence and never a traceback.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson

from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.metrics.histogram import BUCKETS, Histogram
from kv_cache.result.chain import check
from kv_cache.result.kinds import KINDS

SECTION = "kv_cache"
RESULT_FILE = "result.json"
"""What a result is called in a run's directory; naming the directory is enough."""

LARGEST = 256 << 20  # bytes of a result, which may hold those of many ranks; records are apart
DEEPEST = 64  # levels of nesting

_SCHEMA = re.compile(r"kv-cache-result/\d+")

T = TypeVar("T")


def read_result(path: Path, *, measured: bool = True) -> Mapping[str, Any]:
    """The whole document of a result file, or of a run's directory.

    `measured` refuses results of virtual time. Raises UsageError.
    """
    file = path / RESULT_FILE if os.path.isdir(path) else path  # False where nobody may look
    document = _parsed(file)
    own = document.get(SECTION) if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(own, Mapping):
        raise UsageError(
            f"{file} is JSON but no result of this program: it has no section {SECTION!r}; "
            "name the file that run wrote to --output"
        )
    schema = own.get("schema")
    if isinstance(schema, str) and schema.startswith(("kv-cache-ranks/", "kv-cache-trials/")):
        raise UsageError(
            f"{file} is of several runs ({_short(schema)}), where that of one (kv-cache-result/N) "
            "is wanted; name one of theirs, or see report"
        )
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise UsageError(
            f"{file}: its section {SECTION!r} says schema {_short(schema)}, which is none of ours "
            "(kv-cache-result/N); name the file that run wrote to --output"
        )
    if measured and own.get("driver") != "real-io":
        raise UsageError(
            f"{file} was made by {_short(own.get('driver'))}, where no byte is moved; give the "
            "result of a run without --virtual-time"
        )
    return document


def read_document(path: Path, *more: str) -> Mapping[str, Any]:
    """A document of any of the `KINDS`, or whose schema is one of `more`, as it was written.
    Raises UsageError."""
    file = path / RESULT_FILE if os.path.isdir(path) else path
    try:
        document: Any = orjson.loads(result_bytes(file))
    except orjson.JSONDecodeError:
        return read_result(path, measured=False)  # it says what is wrong
    own = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(own, dict) or own.get("schema") not in (*KINDS, *more):
        document = read_result(path, measured=False)
    elif deeper_than(document, DEEPEST):
        raise UsageError(f"result {file} is nested deeper than {DEEPEST}, which no result is")
    made: Mapping[str, Any] = document
    require_intact(made, path)
    return made


def require_intact(document: Mapping[str, Any], path: Path) -> None:
    """Refuse a result that is not as its run wrote it, by its own chain. Raises UsageError."""
    changes = check(document, {})
    if changes:
        what = ", ".join(dict.fromkeys(change.link for change in changes))
        raise UsageError(
            f"{path} was changed after its run ({what}): what is derived from it would be of no "
            "run; give the original, and see verify for the details"
        )


def part(document: Mapping[str, Any], path: str, kind: type[T], file: Path) -> T:
    """The value at a dotted path of the section `kv_cache`, of that type (a number of the JSON may
    be whole where `float` is wanted). Raises UsageError."""
    value: Any = document[SECTION]
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return _typed(value, f"{SECTION}.{path}", kind, file)


def entry(row: Mapping[str, Any], name: str, kind: type[T], file: Path) -> T:
    """The value of one key of a row. Raises UsageError."""
    return _typed(row.get(name), f"{SECTION}.operations[].{name}", kind, file)


def histogram(
    row: Mapping[str, Any], name: str, file: Path, where: str = f"{SECTION}.operations"
) -> Histogram:
    """The histogram of one row of the table at `where`. Raises UsageError."""
    data = _typed(row.get(name), f"{where}[].{name}", dict, file)
    try:
        made = _counted(data)
    except (KeyError, TypeError, ValueError, OverflowError):
        made = None
    if made is None:
        raise UsageError(
            f"{file}: {name} in {where} is not a histogram whose buckets add up to its count; the "
            "file was changed, so give an untouched result"
        )
    return made


def _counted(data: Mapping[str, Any]) -> Histogram | None:
    pairs = [(int(bucket), int(count)) for bucket, count in data["buckets"]]
    if any(not 0 <= bucket < BUCKETS or count < 0 for bucket, count in pairs):
        return None
    made = Histogram.from_json(data)
    ends = made.lowest, made.highest
    if made.count and not all(type(end) is int and end >= 0 for end in ends):
        return None
    return made if made.count == sum(count for _, count in pairs) else None


def _typed(value: Any, where: str, kind: type[T], file: Path) -> T:
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(
            f"{file}: {where} is {_short(value)}, not {_NOUNS.get(kind, kind.__name__)}; the file "
            "was cut or changed, so give an untouched result"
        )
    return value


_NOUNS: Mapping[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
}


def _parsed(file: Path) -> Any:
    return parsed(result_bytes(file), file)


def parsed(data: bytes, file: Path) -> Any:
    """Return the JSON of a file that may be a result, strictly read. Raises UsageError."""
    if not data.strip():
        raise UsageError(f"result {file} is empty; name the file that run wrote to --output")
    try:
        document = orjson.loads(data)  # takes only what can be hashed again
    except orjson.JSONDecodeError as error:
        raise UsageError(f"result {file} {_flaw(data, error)}") from None
    if deeper_than(document, DEEPEST):
        raise UsageError(f"result {file} is nested deeper than {DEEPEST}, which no result is")
    return document


def _flaw(data: bytes, refused: ValueError) -> str:
    """Why it is no JSON; the standard library tells better where a text ends in the middle."""
    try:
        json.loads(data)
    except UnicodeDecodeError:
        return "is not text; name a result file"
    except (ValueError, RecursionError) as error:
        if _cut(error):
            return "ends in the middle: it was cut short; give an untouched result file"
    return f"is not JSON ({refused}); give an untouched result file"


def result_bytes(file: Path) -> bytes:
    """What stands in a file that may be a result. Raises UsageError."""
    try:
        if file.exists() and not file.is_file():
            raise UsageError(f"result {file} is no regular file; name the file that run wrote")
        if file.stat().st_size > LARGEST:
            raise UsageError(
                f"result {file} is larger than {LARGEST >> 20} MiB, which no result is; name the "
                "file that run wrote to --output"
            )
        return file.read_bytes()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(
            f"result {file} cannot be read: {reason}; name a result file or a run's directory"
        ) from None


def deeper_than(value: Any, levels: int) -> bool:
    """Level by level, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _cut(error: Exception) -> bool:
    """Whether the text was JSON as far as it goes."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated") or error.pos >= len(error.doc.rstrip())


def _short(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def require_replaceable(path: Path, mark: str, flag: str) -> None:
    """Refuse an output file whose directory is not there, or that holds something which does not
    begin with `mark`, and so is not ours to replace. Creates nothing. Raises PlaceError."""
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
            raise PlaceError(f"{where}: it is no regular file; name another file")
        with path.open("rb") as file:
            begins = file.read(len(mark.encode()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PlaceError(f"{where}: it cannot be looked at ({reason}); name another file") from None
    if begins != mark.encode():
        raise PlaceError(
            f"{where}: a file of that name is there which this command did not write; name "
            "another file, or move that one away"
        )
