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
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from kv_cache.workload.formats.base import BrokenDocumentError, shown

MAX_ITEM_CHARS = 64 << 20

_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
_BLANK = " \t\r\n\ufeff"
_STRUCTURE = re.compile(r'["\[\]{}]')
_SCALAR = re.compile(r'[^,:\[\]{}" \t\r\n\ufeff]*')
_HEAD_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[\[\]{}"]', re.DOTALL)


class Item(NamedTuple):
    """One element of a document, not yet read."""

    number: int  # from 1
    text: str


# --- where a value ends ---


class _Extent:
    """Finds the end of one list, object or string, part by part: every character is looked at once,
    however the text is cut."""

    __slots__ = ("_depth", "_escaped", "_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._inside = False  # a string
        self._escaped = False  # the next part begins with what a backslash stands before

    def end(self, text: str, at: int) -> int:
        """The place behind the value if it ends in `text`, else -1. `at` is where the value begins,
        or 0 in every later part of it."""
        while True:
            if self._inside:
                at = self._string_end(text, at)
                if at < 0:
                    return -1
                self._inside = False
                if not self._depth:
                    return at
            found = _STRUCTURE.search(text, at)
            if found is None:
                return -1
            at = found.end()
            char = found[0]
            if char == '"':
                self._inside = True
            elif char in "[{":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return at

    def _string_end(self, text: str, at: int) -> int:
        begin = at + self._escaped
        self._escaped = False
        at = begin
        while True:
            quote = text.find('"', at)
            stop = quote if quote >= 0 else len(text)
            run = stop
            while run > begin and text[run - 1] == "\\":
                run -= 1
            escaped = bool((stop - run) % 2)
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
        """The next character that is not space; "" at the end of the text."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> str:
        """The text of the value that begins here; the cursor stands behind it."""
        first = self.peek()
        if first and first in '"[{':
            return self._joined(self._bracketed())
        text = self._joined(self._scalar())
        if not text:
            self._refuse("expected a value")
        return text

    def elements(self) -> Iterator[str]:
        """The text of each element of the list that begins here."""
        self.take("[", "a list")
        if self.peek() == "]":
            self.take("]", "")
            return
        while True:
            yield self.value()
            if self.take(",]", "a comma or the end of the list") == "]":
                return

    def members(self) -> Iterator[str]:
        """Each key of the object that begins here; the cursor stands at its value, which whoever
        asks takes before the next key."""
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
        """The rest of the text line by line, without blank ones."""
        while self._at < len(self._text) or self._more():
            text = self._joined(self._line_pieces()).strip(_BLANK)
            if text:
                yield text

    def take(self, chars: str, wanted: str) -> str:
        """The next character that is not space, which has to be one of `chars`."""
        found = self.peek()
        if not found or found not in chars:
            self._refuse(f"expected {wanted}")
        self._at += 1
        return found

    def finish(self) -> None:
        """Nothing but space may follow."""
        if self.peek():
            self._refuse("expected nothing more, as the document ends before this")

    def at_line_end(self) -> bool:
        """Whether only space is left of this line."""
        while True:
            rest = self._text[self._at :].lstrip(" \t\r")
            if rest:
                return rest[0] == "\n"
            if not self._more():
                return True

    def _more(self) -> bool:
        """Goes on to the next part that is not empty."""
        for line, text in self._parts:
            if text:
                self._line, self._text, self._at = line, text, 0
                return True
        return False

    def _bracketed(self) -> Iterator[str]:
        extent = _Extent()
        end = extent.end(self._text, self._at)
        while end < 0:
            yield self._rest()
            if not self._more():
                self._refuse("")
            end = extent.end(self._text, 0)
        yield self._up_to(end)

    def _scalar(self) -> Iterator[str]:
        """A number, true, false, null, or what stands in their place."""
        while True:
            found = _SCALAR.match(self._text, self._at)
            end = found.end() if found else self._at
            ended = end < len(self._text)
            yield self._up_to(end)
            if ended or not self._more():
                return

    def _line_pieces(self) -> Iterator[str]:
        while True:
            end = self._text.find("\n", self._at)
            if end >= 0:
                yield self._up_to(end + 1)
                return
            yield self._rest()
            if not self._more():
                return

    def _joined(self, pieces: Iterator[str]) -> str:
        held: list[str] = []
        size = 0
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size > MAX_ITEM_CHARS:
                raise BrokenDocumentError(
                    f"{self._place()} a value is longer than {MAX_ITEM_CHARS >> 20} Mi characters; "
                    "expected are conversations or sessions, each much shorter"
                )
        return "".join(held)

    def _rest(self) -> str:
        return self._up_to(len(self._text))

    def _up_to(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        return text

    def _place(self) -> str:
        return f"line {self.line}, in item {self.item}," if self.item else f"line {self.line}"

    def _refuse(self, wanted: str) -> NoReturn:
        rest = self._text[self._at : self._at + 200].strip(_BLANK)
        if not rest:
            raise BrokenDocumentError(
                f"the document ends before its data does ({self._place().rstrip(',')}); it was cut "
                "short: fetch or unpack it again"
            )
        raise BrokenDocumentError(f"{self._place()} {wanted}, found {shown(rest)}")


def _key(text: str) -> str:
    try:
        key = json.loads(text)
    except ValueError:
        return text
    return str(key)


# --- the items of a document ---


def items(cursor: Cursor) -> Iterator[Item]:
    """The elements of a top-level list; or top-level objects, one behind the other or one a line.

    They are one a line where the first of them is: then a line that is no JSON spoils itself alone.
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
    """The objects behind the first one, which the cursor has just left; see `items`."""
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
    """The keys in the beginning of a document, each with those that it stands under; lists add
    nothing. Keys in texts do not count, and the text may be cut anywhere."""
    if not head.lstrip(_BLANK).startswith(("{", "[")):
        return frozenset()
    paths: set[tuple[str, ...]] = set()
    stack: list[tuple[str, ...]] = []
    key: tuple[str, ...] = ()
    for found in _HEAD_TOKEN.finditer(head):
        token = found[0]
        if token == '"':  # a string that the cut has left open
            break
        if token in ("{", "["):
            stack.append(key)
        elif token in ("}", "]"):
            key = stack.pop() if stack else ()
        elif found[2] is not None and stack:
            key = (*stack[-1], found[1][1:-1])
            paths.add(key)
    return frozenset(paths)
