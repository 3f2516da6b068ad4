"""The items of a JSON document, one at a time, from parts of its text.

A dataset is often one JSON list in one line (ShareGPT has 600 MB of it), so that neither the whole
nor a line is ever held. The cursor finds where a value begins and ends by its strings and brackets
alone; what is inside is read by `json`, when the value is whole, and bad JSON in one item spoils
that item. At most one item is held, and none of more than `MAX_ITEM_CHARS`.

What spoils the document itself (its text ends before it does, or goes on behind its end) is a
`BrokenDocumentError`: there is no next item that one could go on with.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

from kv_cache.workload.formats.base import BrokenDocumentError
from kv_cache.workload.formats.line_formats import AROUND
from kv_cache.workload.formats.values import shown

MAX_ITEM_CHARS = 64 << 20

_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
_STRUCTURE = re.compile(r'["\[\]{}]')
_SCALAR = re.compile(r'[^,:\[\]{}" \t\r\n\ufeff]*')
_HEAD_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[\[\]{}"]', re.DOTALL)


class Item(NamedTuple):
    """One element of a document, not yet read."""

    number: int  # from 1
    text: str


# --- where a value ends ---


class _Extent:
    """Finds the end of one list, object or string part by part, each character read once."""

    __slots__ = ("_depth", "_escaped", "_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._inside = False  # a string
        self._escaped = False  # the part ended with a backslash

    def end(self, text: str, at: int) -> int:
        """Return the place behind the value if it ends in `text`, else -1. `at` is where the value
        begins, or 0 in every later part of it."""
        while True:
            if self._inside:
                at = self._string_end(text, at)
                if at < 0:
                    return -1
                self._inside = False
                if not self._depth:
                    return at
            token = _STRUCTURE.search(text, at)
            if token is None:
                return -1
            at = token.end()
            if token[0] == '"':
                self._inside = True
            elif token[0] in "[{":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return at

    def _string_end(self, text: str, at: int) -> int:
        at += self._escaped
        self._escaped = False
        while True:
            quote = text.find('"', at)
            rest = text[at:] if quote < 0 else text[at:quote]
            escaped = (len(rest) - len(rest.rstrip("\\"))) % 2 == 1
            if quote < 0:
                self._escaped = escaped
                return -1
            if not escaped:
                return quote + 1
            at = quote + 1


# --- a place in a document ---


class Cursor:
    """A place in a document, which only goes forward. `parts`: (line at which it begins, text)."""

    __slots__ = ("_at", "_line", "_parts", "_text", "item")

    def __init__(self, parts: Iterable[tuple[int, str]]) -> None:
        self._parts = iter(parts)
        self._text = ""
        self._at = 0
        self._line = 1
        self.item = 0  # for messages; 0 = in none

    @property
    def line(self) -> int:
        return self._line + self._text.count("\n", 0, self._at)

    def peek(self) -> str:
        """Return the next character that is not space; "" at the end of the text."""
        while True:
            self._at = _end(_SPACE, self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> str:
        """Return the text of the value that begins here, and go behind it."""
        first = self.peek()
        if first and first in '"[{':
            text = self._up_to(_Extent().end)
            if text is None:
                self._refuse("")
            return text
        scalar = self._up_to(_scalar_end, may_end=True)
        if not scalar:
            self._refuse("expected a value")
        return scalar

    def elements(self) -> Iterator[str]:
        """Yield the text of each element of the list that begins here."""
        self.take("[", "a list")
        if self.peek() == "]":
            self.take("]", "")
            return
        while True:
            yield self.value()
            if self.take(",]", "a comma or the end of the list") == "]":
                return

    def members(self) -> Iterator[str]:
        """Yield each key of the object that begins here; the cursor is at its value, which the
        caller takes before the next key."""
        self.take("{", "an object")
        if self.peek() == "}":
            self.take("}", "")
            return
        while True:
            if self.peek() != '"':
                self._refuse("expected a key in quotes")
            key = self.value()
            self.take(":", "a colon")
            yield _key(key)
            if self.take(",}", "a comma or the end of the object") == "}":
                return

    def lines(self) -> Iterator[str]:
        """Yield the rest of the text line by line, without blank ones."""
        while self._at < len(self._text) or self._more():
            line = self._up_to(_line_end, may_end=True) or ""
            if line := line.strip(AROUND):
                yield line

    def take(self, chars: str, wanted: str) -> str:
        """Take the next character that is not space, which has to be one of `chars`."""
        char = self.peek()
        if not char or char not in chars:
            self._refuse(f"expected {wanted}")
        self._at += 1
        return char

    def finish(self) -> None:
        """Refuse a document that goes on behind its end."""
        if self.peek():
            self._refuse("expected nothing more, as the document ends before this")

    def at_line_end(self) -> bool:
        """Return whether only space is left of this line."""
        while True:
            rest = self._text[self._at :].lstrip(" \t\r")
            if rest:
                return rest[0] == "\n"
            if not self._more():
                return True

    def _more(self) -> bool:
        """Go on to the next part that is not empty; False if there is none."""
        for line, text in self._parts:
            if text:
                self._line, self._text, self._at = line, text, 0
                return True
        return False

    def _up_to(self, end_in: Callable[[str, int], int], *, may_end: bool = False) -> str | None:
        """Return the text up to where `end_in` says (-1 = in a later part), and go there; None if
        the document ends before, unless it `may_end`."""
        pieces: list[str] = []
        size = 0
        while True:
            end = end_in(self._text, self._at)
            piece = self._text[self._at : end if end >= 0 else None]
            self._at += len(piece)
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ITEM_CHARS:
                raise BrokenDocumentError(
                    f"{self._place()} a value is longer than {MAX_ITEM_CHARS >> 20} Mi characters; "
                    "expected are conversations or sessions, each much shorter"
                )
            if end >= 0:
                return "".join(pieces)
            if not self._more():
                return "".join(pieces) if may_end else None

    def _place(self) -> str:
        return f"line {self.line}, in item {self.item}," if self.item else f"line {self.line}"

    def _refuse(self, wanted: str) -> NoReturn:
        rest = self._text[self._at : self._at + 200].strip(AROUND)
        if not rest:
            raise BrokenDocumentError(
                f"the document ends before its data does ({self._place().rstrip(',')}); it was cut "
                "short: fetch or unpack it again"
            )
        raise BrokenDocumentError(f"{self._place()} {wanted}, found {shown(rest)}")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where a match that may be empty ends."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _scalar_end(text: str, at: int) -> int:
    """Return the end of a number, true, false, null, or what is in their place."""
    end = _end(_SCALAR, text, at)
    return end if end < len(text) else -1


def _line_end(text: str, at: int) -> int:
    return text.find("\n", at) + 1 or -1


def _key(text: str) -> str:
    try:
        key = json.loads(text)
    except ValueError:
        return text
    return str(key)


# --- the items of a document ---


def items(cursor: Cursor) -> Iterator[Item]:
    """Yield the elements of a top-level list; or top-level objects, in a row or one a line.

    They are one a line if the first of them is: then a line that is not JSON spoils itself alone.
    """
    first = cursor.peek()
    if first == "[":
        yield from _numbered(cursor, cursor.elements(), 1)
        cursor.finish()
    elif first == "{":
        cursor.item = 1
        text = cursor.value()
        yield Item(1, text)
        yield from further_items(cursor, one_line="\n" not in text)
    elif first:
        cursor.take("[{", "a JSON list or object")


def further_items(cursor: Cursor, *, one_line: bool) -> Iterator[Item]:
    """Yield the objects behind the first one, which the cursor has just left; see `items`."""
    if one_line and cursor.at_line_end():
        yield from _numbered(cursor, cursor.lines(), 2)
    else:
        yield from _numbered(cursor, _objects(cursor), 2)


def _objects(cursor: Cursor) -> Iterator[str]:
    while cursor.peek() == "{":
        yield cursor.value()
    cursor.finish()


def _numbered(cursor: Cursor, texts: Iterator[str], first: int) -> Iterator[Item]:
    cursor.item = first
    for text in texts:
        yield Item(cursor.item, text)
        cursor.item += 1
    cursor.item = 0


# --- telling documents apart ---


def key_paths(head: str) -> frozenset[tuple[str, ...]]:
    """Return the keys in the beginning of a document, each with those above it; lists add nothing.
    Keys in texts do not count, and the text may be cut anywhere."""
    if not head.lstrip(AROUND).startswith(("{", "[")):
        return frozenset()
    paths: set[tuple[str, ...]] = set()
    stack: list[tuple[str, ...]] = []
    key: tuple[str, ...] = ()
    for match in _HEAD_TOKEN.finditer(head):
        token = match[0]
        if token == '"':  # a string that the cut has left open
            break
        if token in ("{", "["):
            stack.append(key)
        elif token in ("}", "]"):
            key = stack.pop() if stack else ()
        elif match[2] is not None and stack:
            key = (*stack[-1], match[1][1:-1])
            paths.add(key)
    return frozenset(paths)
