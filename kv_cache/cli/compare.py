"""`kv-cache.py compare A B [C...]`: do results differ, by how much, and how sure is that?"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from kv_cache.app.comparison import MARK, read_inputs
from kv_cache.cli.parsing import CommandParser
from kv_cache.core.errors import PlaceError
from kv_cache.files.reading import require_replaceable
from kv_cache.files.writing import write_atomically
from kv_cache.result.comparison import compare, comparison_json
from kv_cache.view.comparison import comparison_view
from kv_cache.view.terminal import terminal

_ABOUT = """\
Compare results of runs, or of run --trials, with the first of them: for each metric the ratio with
its 95 % interval, and whether that is better or worse.

Only what asked the same of its storage is compared: same model, semantics, driver, mode, schedule
and number of trials. Drives, machines and directories may differ, and are told.
"""

_EXAMPLES = """\
examples:
  kv-cache.py compare old-drive.json new-drive.json
  kv-cache.py compare runs/20261121-101500 runs/20261121-103000 --json comparison.json

exit code: 0 compared, whatever was found; 2 bad input, or results that are not comparable
"""


def main(argv: Sequence[str]) -> int:
    """Compare; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(list(argv))
    target: Path | None = options.json
    if target is not None:
        require_replaceable(target, MARK, "--json")
    inputs = read_inputs([Path(name) for name in options.results])
    view = comparison_view(inputs)
    if target is not None:
        _write(target, comparison_json(compare(inputs)))
    print(terminal(view))
    if target is not None:
        print(f"\njson  {target}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py compare",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "results",
        nargs="+",
        metavar="RESULT",
        help="two or more result files or run directories, the baseline first",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the comparison there")
    return parser


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise PlaceError(
            f"--json {path}: it cannot be written ({error.strerror}); name another file"
        ) from None
