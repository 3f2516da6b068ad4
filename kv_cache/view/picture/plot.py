"""Pictures of documents, drawn by matplotlib (the extra `plot`).

The same document gives the same bytes, on every machine with the same matplotlib: no date, no
random identifiers, and none of the user's own settings of matplotlib.
"""

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import ModuleType

import orjson

from kv_cache.core.errors import ConfigError, PlaceError, UsageError, did_you_mean, os_reason
from kv_cache.core.text import as_json
from kv_cache.files.reading import (
    RESULT_FILE,
    SECTION,
    require_replaceable,
)
from kv_cache.files.writing import write_output
from kv_cache.installing import install_hint
from kv_cache.result.metrics import Json
from kv_cache.result.run import MisshapenError, not_as_written
from kv_cache.view.picture.base import NothingToDrawError, Picture, paint
from kv_cache.view.picture.shown import view_picture
from kv_cache.view.views import view_of

log = logging.getLogger("kv_cache")

FORMATS = ("svg", "png", "pdf")
MARK = "kv-cache plot"
"""In the metadata of each picture: one that says so may be replaced."""


_METADATA: Mapping[str, Mapping[str, str | None]] = {
    "svg": {"Creator": MARK, "Date": None},
    "png": {"Software": MARK},
    "pdf": {"Creator": MARK, "Producer": "matplotlib", "CreationDate": None},
}
_DOTS_PER_INCH = 160  # of a PNG
_EDGE_BYTES = 4096  # of a file, in which its metadata stand


def plot_beside(document: Json, result: Path) -> Path | None:
    """The picture of a document beside its file; None where there is none, which is logged."""
    if not installed():
        log.info("no picture: matplotlib is missing; get it with %s", install_hint("plot"))
        return None
    target = picture_of(result)
    try:
        require_ours(target)
        # As it is read back, so that `plot RESULT` draws the same picture.
        data = draw(orjson.loads(as_json(document)), result, "svg")
        write_picture(target, data)
    except UsageError as error:
        log.warning("no picture: %s", error)
        return None
    return target


def installed() -> bool:
    """Whether matplotlib is there. It is imported only to draw."""
    return find_spec("matplotlib") is not None


def picture_of(result: Path) -> Path:
    """Where the picture of a result, or of a run's directory, belongs."""
    file = result / RESULT_FILE if os.path.isdir(result) else result
    return file.with_suffix(".svg")


# --- drawing ---------------------------------------------------------------------------------


def draw(document: Json, path: Path, form: str) -> bytes:
    """The picture of a document as a file's bytes. `path` names the document in errors, `form` is
    one of FORMATS. Raises UsageError."""
    section = document[SECTION]
    schema = str(section.get("schema"))
    make = view_of(schema)
    if make is None:
        raise UsageError(f"{path}: there is no picture of schema {schema!r}; give a result of ours")
    try:
        return _drawn(view_picture(make(section)), form)
    except MisshapenError as error:
        raise not_as_written(path, f"{SECTION}: {error}") from None
    except NothingToDrawError as error:
        raise UsageError(
            f"{path}: there is nothing to draw, as {error}; give a result that has data"
        ) from None


def _drawn(picture: Picture, form: str) -> bytes:
    matplotlib = _matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("font", family="DejaVu Sans")  # which matplotlib brings along
        matplotlib.rc("svg", hashsalt=MARK, fonttype="path")  # looks the same everywhere
        matplotlib.rc("text", parse_math=False)  # a "$" in a model's name is a "$"
        matplotlib.rc("savefig", dpi=_DOTS_PER_INCH)
        buffer = BytesIO()
        paint(picture).savefig(buffer, format=form, metadata=dict(_METADATA[form]))
    return buffer.getvalue()


def _matplotlib() -> ModuleType:
    """Raises UsageError."""
    try:
        return import_module("matplotlib")
    except ImportError as error:
        raise UsageError(
            f"pictures are drawn by matplotlib, which cannot be used here ({error}); get it: "
            f"{install_hint('plot')}"
        ) from None


# --- writing ---------------------------------------------------------------------------------


def require_matplotlib(user: str) -> None:
    """Raise UsageError if pictures cannot be drawn; `user` is what would draw one."""
    if not installed():
        raise UsageError(
            f"{user} needs matplotlib, which is not installed; get it: {install_hint('plot')}"
        )


def picture_form(target: Path, flag: str = "--output") -> str:
    """Return the form of a picture by its file's name. Raises ConfigError."""
    form = target.suffix[1:].lower()
    if form not in FORMATS:
        raise ConfigError(
            f"{flag} {target} does not end in .svg, .png or .pdf.{did_you_mean(form, FORMATS)}"
        )
    return form


def require_ours(target: Path) -> None:
    """Refuse a place that cannot be written, or holds something that is no picture of ours.
    Raises PlaceError."""
    try:
        if target.exists() and not target.is_dir() and not target.is_file():
            raise PlaceError(f"picture {target}: it is no regular file; name another file")
        require_replaceable(target, "", "picture")  # what it holds is looked at below
        if target.exists() and not _ours(target):
            raise PlaceError(
                f"picture {target}: a file of that name is there which plot did not write; name "
                "another one with --output, or move that one away"
            )
    except OSError as error:
        raise PlaceError(f"picture {target}: it cannot be looked at ({os_reason(error)})") from None


def _ours(target: Path) -> bool:
    with target.open("rb") as file:
        begin = file.read(_EDGE_BYTES)
        file.seek(max(0, target.stat().st_size - _EDGE_BYTES))
        return MARK.encode() in begin or MARK.encode() in file.read()


def write_picture(target: Path, data: bytes) -> None:
    """Raises PlaceError."""
    write_output(target, data, "picture", "name another file with --output")
