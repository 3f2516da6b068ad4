"""Markup in which every text is escaped unless it was made here.

Names of files, of data sets and of machines, and all that stands in a document, may have been
written by anybody: `tag` escapes whatever is not `Html`, and only this module makes `Html`.
"""

from collections.abc import Iterable
from html import escape
from math import isfinite
from typing import Any

import orjson

from kv_cache.core.format import as_text

LONGEST_TEXT = 600


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def plain(value: object) -> str:
    """A value as text: on one line, without what cannot be seen or turns the line around, and not
    without end."""
    text = value if isinstance(value, str) else as_text(value)
    shown = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 1]}…"


def safe(value: object) -> Html:
    """Markup as it is, and anything else as escaped text."""
    return value if isinstance(value, Html) else Html(escape(plain(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(safe(part) for part in parts))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; True is an attribute
    without a value, and None or False is none."""
    written = "".join(
        f" {_name(key)}" + ("" if value is True else f'="{escape(plain(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def _name(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def verbatim(trusted: str) -> Html:
    """Markup, a style or a script of our own files."""
    return Html(trusted)


def embedded(value: Any) -> Html:
    """JSON that may stand inside a script element: no markup can begin in it."""
    text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Html(text)


def rounded(value: float, digits: int = 4) -> float | int | None:
    """As many figures as count; four are more than a chart can show. None where there is none."""
    if not isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
