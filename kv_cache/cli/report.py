"""`kv-cache.py report RESULT…`: results as a page for people."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_cache.cli.parsing import CommandParser
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.report import html
from kv_cache.report.plot import read_document
from kv_cache.report.reading import RESULT_FILE, require_replaceable
from kv_cache.report.writing import write_atomically

_ABOUT = """\
Write a report of one result, or of several side by side, the baseline first: one page that needs
no network and no other file.

What may be compared is compared: for each number the ratio with its 95 % interval.
"""

_EXAMPLES = """\
examples:
  kv-cache.py report result.json
  kv-cache.py report old-drive.json new-drive.json -o drives.html
  kv-cache.py report runs/run-20261121T204838Z-seed3

exit code: 0 written, 2 bad input
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way to write a report. `suffix` is that of its files, `mark` what each begins with, so that
    no other file is replaced."""

    says: str
    suffix: str
    mark: str
    write: Callable[[Sequence[Mapping[str, Any]], Sequence[str]], str]


HTML = "html"
FORMATS: Mapping[str, Format] = {
    HTML: Format(says="a page for a browser", suffix=".html", mark=html.MARK, write=html.page),
}
"""Each format by its name, which is also its flag; the first is written unless another is asked
for."""


def main(argv: Sequence[str]) -> int:
    """Write the report; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(list(argv))
    form = FORMATS[options.format]
    results = [Path(name) for name in options.results]
    target = _target(results, options.output, form)
    if any(_same(target, _file(result)) for result in results):
        raise ConfigError(f"--output {target} is one of the results; name another file")
    require_replaceable(target, form.mark, "--output")
    documents = [read_document(result) for result in results]
    _write(target, form.write(documents, [_name(result) for result in results]).encode())
    print(f"report  {target}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py report",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "results", nargs="+", metavar="RESULT",
        help="result of run, run --trials, capacity or precondition, or a run's directory",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="where the report goes [default: beside a single RESULT, with the format's suffix; "
        "report.html in a run's directory]",
    )  # fmt: skip
    forms = parser.add_mutually_exclusive_group()
    for name, form in FORMATS.items():
        first = " [default]" if name == HTML else ""
        forms.add_argument(
            f"--{name}", dest="format", action="store_const", const=name, default=HTML,
            help=f"{form.says}{first}",
        )  # fmt: skip
    return parser


def _target(results: Sequence[Path], output: Path | None, form: Format) -> Path:
    if output is not None:
        return output
    if len(results) > 1:
        raise ConfigError(
            f"{len(results)} results are given, and a report of several has no place of its own; "
            f"say where it goes: -o FILE{form.suffix}"
        )
    (result,) = results
    if os.path.isdir(result):
        return result / f"report{form.suffix}"
    return result.with_suffix(form.suffix)


def _file(result: Path) -> Path:
    return result / RESULT_FILE if os.path.isdir(result) else result


def _name(result: Path) -> str:
    """How the report calls it: a directory's result by the directory too, as in the run."""
    if os.path.isdir(result):
        return f"{Path(os.path.abspath(result)).name}/{RESULT_FILE}"
    return str(result)


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _write(target: Path, data: bytes) -> None:
    try:
        write_atomically(target, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PlaceError(
            f"--output {target}: it cannot be written ({reason}); name another file"
        ) from None
