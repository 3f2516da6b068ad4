"""Text as JSON can hold it.

Names of files, mount points and values of environment variables are any bytes. Python carries
those that are not UTF-8 as surrogates, which work as a path and which no JSON may hold. Nothing
that was measured is lost for a name: it is written with such bytes as `\\xe9`.
"""

from collections.abc import Mapping
from typing import Any

import orjson


def to_json(value: Any, option: int | None = None) -> bytes:
    """Serialise with orjson; texts that are not UTF-8 are written with replaced characters."""
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # also for what is no JSON at all, which the second try refuses as well
        return orjson.dumps(in_utf8(value), option=option)


def as_json(document: Any) -> bytes:
    """Serialise a document as its file has it: indented, with a newline at its end."""
    return to_json(document, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def in_utf8(value: Any) -> Any:
    """Replace what is not UTF-8 in a text, and in all texts of a plain value."""
    if isinstance(value, str):
        return value if is_utf8(value) else _replaced(value)
    if isinstance(value, Mapping):
        return {in_utf8(key): in_utf8(inner) for key, inner in value.items()}
    return [in_utf8(inner) for inner in value] if isinstance(value, list | tuple) else value


def printable(text: str, *, longest: int | None = None, instead: str = "?") -> str:
    """Return a text that anybody may have written as a terminal can show it, on one line: `instead`
    of what cannot be printed, and dots after the `longest` that is shown."""
    shown = "".join(c if c.isprintable() else instead for c in text)
    return shown if longest is None or len(shown) <= longest else f"{shown[:longest]}..."


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _replaced(text: str) -> str:
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # a surrogate that stands for no byte, from an escape in a JSON file
        return text.encode(errors="backslashreplace").decode()
