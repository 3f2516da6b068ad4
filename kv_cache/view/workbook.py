"""A workbook as bytes: SpreadsheetML in a zip file, made by the standard library alone, so that it
can be written wherever the program runs. The same sheets give the same bytes."""

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from math import isfinite

from msgspec import Struct

from kv_cache.view.parts import Cell

MARK = "kv-cache sheets"
"""In the properties of each workbook: one that says so may be replaced."""

CORE = "docProps/core.xml"
"""The member with the properties."""

_LONGEST_TEXT = 32_767  # characters that a cell can hold
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = "application/vnd.openxmlformats-"
_STYLES = (
    f'<styleSheet xmlns="{_MAIN}"><fonts count="2">'
    '<font><sz val="11"/><name val="Calibri"/></font>'
    '<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>'
    '<fills count="2"><fill><patternFill patternType="none"/></fill>'
    '<fill><patternFill patternType="gray125"/></fill></fills>'
    "<borders><border><left/><right/><top/><bottom/><diagonal/></border></borders>"
    '<cellStyleXfs><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
    '<cellXfs count="2"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>'
    '<cellStyles><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
)
_BOLD = ' s="1"'


class Sheet(Struct, frozen=True, kw_only=True):
    """`columns` is the first row; each of `rows` has as many cells."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def workbook_bytes(sheets: Sequence[Sheet], created: datetime) -> bytes:
    """Return a file of these sheets that says when its content was made."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in _members(sheets, created):
            entry = zipfile.ZipInfo(name)  # of 1980: the clock of now would change the bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, _HEAD + text)
    return buffer.getvalue()


def _members(sheets: Sequence[Sheet], created: datetime) -> Iterator[tuple[str, str]]:
    pages = [f"worksheets/sheet{number}.xml" for number in range(1, 1 + len(sheets))]
    kinds = {f"/xl/{page}": "officedocument.spreadsheetml.worksheet" for page in pages}
    kinds |= {
        "/xl/workbook.xml": "officedocument.spreadsheetml.sheet.main",
        "/xl/styles.xml": "officedocument.spreadsheetml.styles",
        f"/{CORE}": "package.core-properties",
    }
    yield (
        "[Content_Types].xml",
        f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        f'ContentType="{_TYPES}package.relationships+xml"/><Default Extension="xml" '
        'ContentType="application/xml"/>'
        + "".join(
            f'<Override PartName="{part}" ContentType="{_TYPES}{kind}+xml"/>'
            for part, kind in kinds.items()
        )
        + "</Types>",
    )
    book = (f"{_OFFICE}/officeDocument", "xl/workbook.xml")
    core = (f"{_PACKAGE}/relationships/metadata/core-properties", CORE)
    yield "_rels/.rels", _relations([book, core])
    parts = [(f"{_OFFICE}/worksheet", page) for page in pages]
    yield "xl/_rels/workbook.xml.rels", _relations([*parts, (f"{_OFFICE}/styles", "styles.xml")])
    yield CORE, _core(created)
    yield "xl/styles.xml", _STYLES
    named = "".join(
        f'<sheet name="{_spoken(sheet.name)}" sheetId="{number}" r:id="rId{number}"/>'
        for number, sheet in enumerate(sheets, start=1)
    )
    yield (
        "xl/workbook.xml",
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{named}</sheets></workbook>',
    )
    for page, sheet in zip(pages, sheets, strict=True):
        yield f"xl/{page}", _page(sheet)


def _relations(parts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f'<Relationship Id="rId{number}" Type="{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(parts, start=1)
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{rows}</Relationships>'


def _core(created: datetime) -> str:
    instant = f'xsi:type="dcterms:W3CDTF">{created:%Y-%m-%dT%H:%M:%SZ}<'
    return (
        f'<cp:coreProperties xmlns:cp="{_PACKAGE}/metadata/core-properties" '
        'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:dcterms="http://purl.org/dc/terms/" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><dc:creator>kv-cache</dc:creator>'
        f"<dc:description>{MARK}</dc:description><dcterms:created {instant}/dcterms:created>"
        f"<dcterms:modified {instant}/dcterms:modified></cp:coreProperties>"
    )


def _page(sheet: Sheet) -> str:
    """Return a sheet whose first row is bold and stays in sight."""
    widths = "".join(
        f'<col min="{n}" max="{n}" width="{max(10, len(name) + 2)}" customWidth="1"/>'
        for n, name in enumerate(sheet.columns, start=1)
    )
    rows = [_row(1, sheet.columns, _BOLD)]
    rows += [_row(number, row, "") for number, row in enumerate(sheet.rows, start=2)]
    return (
        f'<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0"><pane ySplit="1" '
        'topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>'
        + (f"<cols>{widths}</cols>" if widths else "")
        + f"<sheetData>{''.join(rows)}</sheetData></worksheet>"
    )


def _row(number: int, cells: Sequence[Cell], style: str) -> str:
    text = "".join(
        _cell(f"{_letters(column)}{number}", cell, style)
        for column, cell in enumerate(cells)
        if cell is not None
    )
    return f'<row r="{number}">{text}</row>'


def _cell(place: str, cell: str | float, style: str) -> str:
    if isinstance(cell, bool):
        return f'<c r="{place}"{style} t="b"><v>{cell:d}</v></c>'
    if isinstance(cell, int | float) and isfinite(cell):
        return f'<c r="{place}"{style}><v>{cell!r}</v></c>'
    text = _spoken(str(cell)[:_LONGEST_TEXT])
    return f'<c r="{place}"{style} t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _spoken(text: str) -> str:
    """Return a text as XML has it; what XML cannot say is spelled as spreadsheets do."""
    return escape(_UNSPEAKABLE.sub(lambda match: f"_x{ord(match[0]):04X}_", text))


def _letters(column: int) -> str:
    """Return the name of a column counted from 0: A to Z, AA and so on."""
    before, last = divmod(column, 26)
    return (_letters(before - 1) if before else "") + chr(ord("A") + last)
