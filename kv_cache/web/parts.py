"""A file of a run, or a part of it, as it is at this instant: runs write, cut and rename their
files while they are read, so what is sent ends where the file ended as it was opened."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_PIECE = 1 << 18


def part_of(file: Path, wanted: str | None) -> Response:
    """Return a file to be kept, or the part that a header `Range: bytes=A-B` wants; without content
    where there is nothing of that. Raises OSError."""
    opened = file.open("rb")
    size = opened.seek(0, 2)
    start, end = _ends(wanted, size)
    if start >= end:
        opened.close()
        return Response(status_code=204)
    headers = {
        "Content-Security-Policy": "sandbox",
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(file.name, safe='')}",
        "Accept-Ranges": "bytes",
        "Content-Range": f"bytes {start}-{end - 1}/{size}",
    }
    if wanted is None:
        del headers["Content-Range"]
    return StreamingResponse(
        _pieces(opened, start, end), 200 if wanted is None else 206, headers,
        "application/octet-stream",
    )  # fmt: skip


def _ends(wanted: str | None, size: int) -> tuple[int, int]:
    """Return the first byte, and that after the last; of what cannot be read, the whole file."""
    match = _RANGE.fullmatch(wanted or "")
    if match is None or not (match[1] or match[2]):
        return 0, size
    if not match[1]:
        return max(0, size - int(match[2])), size
    return int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)


def _pieces(opened: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    with opened:
        opened.seek(start)
        while start < end and (piece := opened.read(min(_PIECE, end - start))):
            start += len(piece)
            yield piece
