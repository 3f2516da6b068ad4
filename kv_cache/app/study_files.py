"""The files that `lab` and `sim` write of one document: all are checked before anything is
computed, and one that cannot be written in its place is kept in another."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.path_checks import check_output_file
from kv_cache.core.errors import PlaceError
from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.files.keep import keep
from kv_cache.files.result import Result
from kv_cache.view.parts import View
from kv_cache.view.picture.plot import draw, picture_form, require_matplotlib, require_ours
from kv_cache.view.planned import planned

Document = Mapping[str, Any]
OUTPUT = "output"


class StudyFile(Struct, frozen=True, kw_only=True):
    """One file, by the name of its flag. `check` raises UsageError for a place where it could not
    be written; `form` is its content, None if it is written while the study goes on."""

    name: str
    path: Path
    check: Callable[[Path, str], object]
    form: Callable[[Document], bytes] | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name}"


def output_file(path: str, schema: str) -> StudyFile:
    """Return the document itself. A file there of another schema than `schema`… is refused."""
    return StudyFile(
        name=OUTPUT, path=Path(path), check=lambda at, _: check_output_file(at, schema),
        form=as_json,
    )  # fmt: skip


def picture_file(path: str, title: Path) -> StudyFile:
    """Return the picture; errors call the document `title`."""
    target = Path(path)
    return StudyFile(
        name="plot", path=target, check=_check_picture,
        form=lambda document: draw(as_read_back(document), title, picture_form(target)),
    )  # fmt: skip


def _check_picture(path: Path, flag: str) -> None:
    picture_form(path, flag)
    require_matplotlib(flag)
    require_ours(path)


def as_read_back(document: Document) -> Document:
    """Return a document as a reader of its file gets it, so that both show the same."""
    read: Document = orjson.loads(as_json(document))
    return read


def check_files(files: Sequence[StudyFile], inputs: Mapping[str, Path]) -> None:
    """Raise UsageError for what could not be written; `inputs` are files that are read, by what
    they are. Creates nothing."""
    owners = {path.resolve(): what for what, path in inputs.items()}
    for file in files:
        owner = owners.setdefault(file.path.resolve(), file.flag)
        if owner != file.flag:
            raise PlaceError(f"{file.flag} {file.path} is also {owner}'s file; name another one")
    for file in files:
        file.check(file.path, file.flag)


def write_files(files: Sequence[StudyFile], document: Document, caught: Interrupts) -> Result:
    """Write each form of a document, and return it with where each file is. Raises UsageError."""
    kept = {
        file.name: keep(file.path, file.form(document), f"file of {file.flag}")
        for file in files
        if file.form is not None
    }
    places = {file.name: str(file.path) for file in files if file.name not in kept}
    places |= {name: each.shown for name, each in kept.items() if each.path or name == OUTPUT}
    in_place = all(each.in_place for each in kept.values())
    return Result(
        document=document,
        kept=kept.get(OUTPUT),
        end=Exit(caught.exit_code) or (Exit.DONE if in_place else Exit.EARLY),
        files={file.name: places[file.name] for file in files if file.name in places},
    )


def planned_study(rows: Sequence[tuple[str, str]], files: Sequence[StudyFile]) -> View:
    """Return the view of a study that was checked, with the files that it would write."""
    return planned([*rows, *((file.name, str(file.path)) for file in files)])
