"""Results in other forms: pages, texts, tables and logs (`report`), and pictures (`plot`).

All results are read and rendered before the first file is written.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from kv_cache.app.documents import beside_tree, is_tree, read_any
from kv_cache.app.run_directory import PAGE_FILE
from kv_cache.config.schema import opt
from kv_cache.core.errors import ConfigError
from kv_cache.files.writing import write_output
from kv_cache.view.forms import DEFAULT, FORMATS, Format, read_sources
from kv_cache.view.picture.plot import (
    draw,
    picture_form,
    picture_of,
    require_matplotlib,
    require_ours,
    write_picture,
)

STDOUT = "-"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What is reported, in which form, and where it goes."""

    results: tuple[str, ...] = opt(
        (), "Result of any command that writes one, a run's directory, a profile that probe wrote, "
            "or the tree of mlperf run",
        flag="RESULT", metavar="PATH", required=True,
    )  # fmt: skip
    format: str | None = opt(
        None, f"One of the forms above; if not given, as --output ends, else {DEFAULT}",
        choices=tuple(FORMATS), flag="--format",
    )  # fmt: skip
    output: str | None = opt(
        None, f"File to write, or {STDOUT} for stdout; if not given, html goes beside a single "
              "RESULT, and everything else to stdout",
        flag="--output", short="-o", metavar="PATH",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """What is drawn, and where the picture goes."""

    results: tuple[str, ...] = opt(
        (), "Result of run, run --trials, capacity, precondition, sweep, sim, trace stats or lab, "
            "a run's directory, a profile that probe wrote, or the tree of mlperf run",
        flag="RESULT", metavar="PATH", required=True,
    )  # fmt: skip
    output: str | None = opt(
        None, "File of the picture of a single RESULT: FILE.svg, FILE.png or FILE.pdf; if not "
              "given, beside RESULT, as .svg",
        flag="--output", short="-o", metavar="PATH",
    )  # fmt: skip


class Rendered(Struct, frozen=True, kw_only=True):
    """Results in one form, and the file that they were written to; None is for stdout."""

    form: str
    data: bytes
    path: Path | None


# --- reports ---------------------------------------------------------------------------------


def report(options: ReportOptions) -> Rendered:
    """Render results in one form, and write them, unless they are for stdout. Raises UsageError
    before anything is written."""
    output = None if options.output == STDOUT else options.output
    form = options.format or _form_by_suffix(output)
    results = [Path(result) for result in options.results]
    target = Path(output) if output is not None else None
    if target is None:
        beside = options.output is None and FORMATS[form].beside
        target = _beside(FORMATS[form], results) if beside else None
    if target is not None:
        FORMATS[form].require_ours(target, "--output")
    elif not FORMATS[form].printable:
        raise ConfigError(f"--format {form} is not text; name a file with --output")
    data = FORMATS[form].render(read_sources(results, read_any))
    if target is not None:
        write_output(target, data, "--output")
    return Rendered(form=form, data=data, path=target)


def _form_by_suffix(output: str | None) -> str:
    """Return the form that the name of a file stands for. Raises ConfigError."""
    if output is None:
        return DEFAULT
    suffix = Path(output).suffix.lower()
    for name, form in FORMATS.items():
        if suffix in form.suffixes:
            return name
    known = ", ".join(s for form in FORMATS.values() for s in form.suffixes)
    raise ConfigError(f"--output {output} ends in none of {known}; say which with --format")


def _beside(form: Format, results: Sequence[Path]) -> Path:
    """Return the place of a report beside a single result. Raises ConfigError for several."""
    suffix = form.suffixes[0]
    if len(results) > 1:
        raise ConfigError(
            f"{len(results)} results are given, and a report of several has no place of its own; "
            f"say where it goes: -o FILE{suffix}"
        )
    (result,) = results
    if is_tree(result):
        return beside_tree(result, suffix)
    return result / PAGE_FILE if result.is_dir() else result.with_suffix(suffix)


# --- pictures --------------------------------------------------------------------------------


def plot(options: PlotOptions) -> list[Rendered]:
    """Draw a picture of each result, or write nothing. Raises UsageError."""
    require_matplotlib("plot")
    targets = _pictures([Path(name) for name in options.results], options.output)
    for target in targets:
        require_ours(target)
    pictures = [
        Rendered(form=(form := picture_form(target)), data=draw(read_any(path), path, form),
                 path=target)
        for target, path in targets.items()
    ]  # fmt: skip
    for picture in pictures:
        assert picture.path is not None
        write_picture(picture.path, picture.data)
    return pictures


def _pictures(results: Sequence[Path], output: str | None) -> Mapping[Path, Path]:
    """Return the file of each picture, with its result. Raises ConfigError."""
    if output is not None:
        if len(results) > 1:
            raise ConfigError(
                f"--output {output} is one file, and {len(results)} results are given; leave it "
                "out, or give one result"
            )
        _ = picture_form(Path(output))
        return {Path(output): results[0]}
    targets: dict[Path, Path] = {}
    places: dict[str, Path] = {}
    for result in results:
        target = beside_tree(result, ".svg") if is_tree(result) else picture_of(result)
        other = places.setdefault(os.path.realpath(target), result)
        if target in targets or other is not result:
            raise ConfigError(
                f"the pictures of {other} and {result} would both be {target}; give one of them, "
                "with --output"
            )
        targets[target] = result
    return targets
