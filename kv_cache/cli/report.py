"""`kv-cache.py report RESULT…`: results told in a form for people, or for other tools."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kv_cache.app.documents import beside_tree, is_tree, read_any
from kv_cache.app.run_directory import PAGE_FILE
from kv_cache.cli.parsing import CommandParser
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.files.writing import write_atomically
from kv_cache.view.forms import DEFAULT, FORMATS, Format, read_sources

_ABOUT = """\
Tell results in another form: as a page for a browser, or for other programs. Several stand side by
side, the first being the baseline.

A file that report did not write is never replaced.
"""

_EXAMPLES = """\
examples:
  kv-cache.py report result.json
  kv-cache.py report runs/run-20261121T204838Z-seed3
  kv-cache.py report old-drive.json new-drive.json -o drives.html
  kv-cache.py report old.json new.json --output comparison.md
  kv-cache.py report runs/* --output all.csv
  kv-cache.py report result.json --format hdr --output latencies.hlog

exit code: 0 done, 2 bad input or a library that is missing
"""

STDOUT = "-"


def main(argv: Sequence[str]) -> int:
    """Read all, then write; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(list(argv))
    name = options.format or _by_suffix(options.output)
    form = FORMATS[name]
    results = [Path(result) for result in options.results]
    target = _target(options.output, name, form, results)
    if target is not None:
        form.require_ours(target, "--output")
    data = form.render(read_sources(results, read_any))
    if target is None:
        sys.stdout.buffer.write(data)
        return 0
    try:
        write_atomically(target, data)
    except OSError as error:
        raise PlaceError(
            f"--output {target}: it cannot be written ({error.strerror}); name another file"
        ) from None
    print(f"{name}  {target}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py report",
        description=f"{_ABOUT}\nforms:\n{_forms()}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "results", nargs="+", metavar="RESULT",
        help="result of any command that writes one, a run's directory, a profile that probe "
        "wrote, or the tree of mlperf run",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=tuple(FORMATS), metavar="FORM",
        help=f"one of the forms above [default: as --output ends, else {DEFAULT}]",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help=f"where it goes; {STDOUT} = stdout [default: html beside a single RESULT, else "
        "stdout]",
    )  # fmt: skip
    return parser


def _forms() -> str:
    return "".join(f"  {name:<10}{form.says}\n" for name, form in FORMATS.items())


def _by_suffix(output: str | None) -> str:
    """The form that a file's name asks for."""
    if output in (None, STDOUT):
        return DEFAULT
    assert output is not None
    suffix = Path(output).suffix.lower()
    for name, form in FORMATS.items():
        if suffix in form.suffixes:
            return name
    known = ", ".join(s for form in FORMATS.values() for s in form.suffixes)
    raise ConfigError(f"--output {output} ends in none of {known}; say which with --format")


def _target(output: str | None, name: str, form: Format, results: Sequence[Path]) -> Path | None:
    """The file, or None for stdout. Raises ConfigError."""
    if output not in (None, STDOUT):
        assert output is not None
        return Path(output)
    if output is None and form.beside and len(results) > 1:
        raise ConfigError(
            f"{len(results)} results are given, and a report of several has no place of its own; "
            f"say where it goes: -o FILE{form.suffixes[0]}"
        )
    if output is None and form.beside:
        if is_tree(results[0]):
            return beside_tree(results[0], form.suffixes[0])
        if results[0].is_dir():
            return results[0] / PAGE_FILE
        return results[0].with_suffix(form.suffixes[0])
    if not form.printable:
        raise ConfigError(f"--format {name} is no text; name a file with --output")
    return None
