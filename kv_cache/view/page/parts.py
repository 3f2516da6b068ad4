"""What reports are put together from: documents, sections, tables, cards and small pictures."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from kv_cache.files.reading import SECTION
from kv_cache.result.metrics import Json
from kv_cache.view.page.safe_text import Html, join, plain, safe, tag
from kv_cache.view.parts import Cell, KeyNumber, ShownColumn, Table


class Doc(Struct, frozen=True, kw_only=True):
    """One document of a report. `label` is a letter, `name` says where it comes from."""

    label: str
    name: str
    document: Json

    @property
    def section(self) -> Json:
        section: Json = self.document[SECTION]
        return section

    @property
    def schema(self) -> str:
        return str(self.section.get("schema"))

    def id(self, slug: str) -> str:
        """An identifier on the page, different in each document."""
        return f"{self.label.lower()}-{slug}"


class Section(Struct, frozen=True, kw_only=True):
    """A part of a report with a heading; where there is no content, `absent` says why."""

    slug: str
    title: str
    content: Sequence[Html]
    absent: str = ""


def drawn_section(doc: Doc, section: Section) -> Html:
    where = doc.id(section.slug)
    heading = tag("h3", section.title, id=f"{where}-title")
    inner = section.content or [tag("p", section.absent, class_="absent")]
    return tag("section", heading, *inner, id=where, aria_labelledby=f"{where}-title")


# --- tables ----------------------------------------------------------------------------------


def table(
    caption: str,
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    words: int = 1,
) -> Html:
    """A table that can be scrolled by keyboard. The first `words` columns are text, and the first
    of all names its row; numbers are right-aligned."""
    columns = [
        tag("th", head, scope="col", class_=_align(i, words)) for i, head in enumerate(heads)
    ]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=_room(row[0])),
            *(
                tag("td", cell, class_=_align(column, words) or _room(cell))
                for column, cell in enumerate(row[1:], start=1)
            ),
        )
        for row in rows
    ]
    drawn = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", tag("tr", *columns)),
        tag("tbody", *body),
    )
    return tag("div", drawn, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _align(column: int, words: int) -> str | None:
    return None if column < words else "n"


def part_table(caption: str, part: Table) -> Html:
    """A table of a view: verdicts as badges, shares with bars."""
    words = next(
        (n for n, column in enumerate(part.columns) if column.unit is not None), len(part.columns)
    )
    cells = [
        [
            _cell(column, text, cell)
            for column, text, cell in zip(part.columns, texts, row, strict=True)
        ]
        for texts, row in zip(part.cells(), part.rows, strict=True)
    ]
    return table(caption, part.headings, cells, words=words or 1)


def _cell(column: ShownColumn, text: str, cell: Cell) -> object:
    if column.status:
        return badge(text)
    if column.bar and isinstance(cell, float | int):
        return join((safe(text), share_bar(cell)), " ")
    return text


_LONG_WORD, _LONG_TEXT = 22, 30


def _room(cell: object) -> str | None:
    """How a cell of text shares the width: a long word may break anywhere, a sentence wants room,
    and what is short stays whole."""
    if isinstance(cell, Html):
        return None
    text = plain(cell)
    if any(len(each) > _LONG_WORD for each in text.split()):
        return "long"
    return "text" if len(text) > _LONG_TEXT else None


def details(summary: str, *content: object, open_: bool = False) -> Html:
    return tag("details", tag("summary", summary), *content, open=open_)


# --- words -----------------------------------------------------------------------------------

_SIGNS: Mapping[str, str] = {"good": "✓", "poor": "!", "bad": "✕"}
_WORDS: Mapping[str, Sequence[str]] = {
    "good": ("valid", "steady", "pass", "complete", "nothing falls short", "kept", "better"),
    "poor": (
        *("suspect", "not-steady", "not-proven", "client-bound", "incomplete", "cannot be judged"),
        *("better?", "worse?"),
    ),
    "bad": ("invalid", "falls short", "missed", "worse"),
}
"""The words of each kind; other words are of none."""


def badge(status: str) -> Html:
    """A status as a word with a sign: its colour alone says nothing."""
    kind = next((kind for kind, words in _WORDS.items() if status in words), "none")
    sign = tag("span", _SIGNS.get(kind, "·"), aria_hidden="true")
    return tag("span", sign, " ", status or "none", class_=f"badge {kind}")


def bullets(texts: Sequence[object], class_: str | None = None) -> list[Html]:
    return [tag("ul", *(tag("li", text) for text in texts), class_=class_)] if texts else []


def ruled(texts: Sequence[str]) -> list[Html]:
    """Reasons as a list, in which a rule's name stands out."""
    return bullets([_reason(text) for text in texts], "reasons")


def _reason(text: str) -> Html:
    rule, colon, rest = text.partition(": ")
    if not colon or len(rule) > _LONGEST_RULE:
        return tag("strong", text)
    return join((tag("strong", f"{rule}:"), safe(f" {rest}")))


_LONGEST_RULE = 64


# --- cards -----------------------------------------------------------------------------------


def cards(numbers: Iterable[KeyNumber]) -> Html:
    """The numbers of a headline."""
    return tag("dl", *map(_card, numbers), class_="cards")


def _card(number: KeyNumber) -> Html:
    unit = number.column.unit.name if number.column.unit else ""
    return tag(
        "div",
        tag("dt", number.column.title),
        tag("dd", tag("strong", number.column.text(number.value)), " ", tag("span", unit)),
        *([tag("dd", number.note, class_="more")] if number.note else []),
    )


# --- small pictures in tables ----------------------------------------------------------------

NARROW, HIGH = 120.0, 14.0


def share_bar(share: float) -> Html:
    """A share of one as a bar; the number stands beside it."""
    width = NARROW * min(1.0, max(0.0, share))
    return tag(
        "svg",
        tag("rect", x=0, y=2, width=NARROW, height=10, class_="track"),
        tag("rect", x=0, y=2, width=f"{width:.1f}", height=10, class_="fill"),
        viewBox=f"0 0 {NARROW:g} {HIGH:g}", class_="bar", aria_hidden="true",
    )  # fmt: skip
