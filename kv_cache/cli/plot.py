"""`kv-cache.py plot RESULT…`: pictures of results."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from kv_cache.app.documents import beside_tree, is_tree, read_any
from kv_cache.cli.parsing import CommandParser
from kv_cache.core.errors import ConfigError, UsageError, did_you_mean
from kv_cache.installing import install_hint
from kv_cache.view.picture.plot import (
    FORMATS,
    draw,
    installed,
    picture_of,
    require_ours,
    write_picture,
)

_ABOUT = """\
Draw a result: a run over time, the curve of a capacity search, preconditioning, how far trials
agree, the cells of a sweep, the variants of a simulated cluster, what a trace asks, what policies
find in it, a measured device, or a sequence of MLPerf's. The picture stands beside the result, as
RESULT.svg, if --output does not say otherwise.

The same result gives the same bytes. A file that plot did not write is never replaced.
"""

_EXAMPLES = f"""\
examples:
  kv-cache.py plot result.json
  kv-cache.py plot capacity.json --output capacity.png
  kv-cache.py plot runs/*

needs matplotlib: {install_hint("plot")}

exit code: 0 done, 2 bad input or no matplotlib
"""


def main(argv: Sequence[str]) -> int:
    """Draw all, or write nothing; the exit code. UsageError is the caller's to print."""
    options = _parser().parse_args(list(argv))
    if not installed():
        raise UsageError(
            f"plot needs matplotlib, which is not installed; get it: {install_hint('plot')}"
        )
    targets = _targets([Path(name) for name in options.results], options.output)
    for target in targets:
        require_ours(target)
    pictures = {
        target: draw(read_any(result), result, target.suffix[1:].lower())
        for target, result in targets.items()
    }
    for target, data in pictures.items():
        write_picture(target, data)
        print(f"plot  {target}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kv-cache.py plot",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "results", nargs="+", metavar="RESULT",
        help="result of run, run --trials, capacity, precondition, sweep, sim, trace stats or lab, "
        "a run's directory, a profile that probe wrote, or the tree of mlperf run",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="where the picture of a single RESULT goes: FILE.svg, FILE.png or FILE.pdf "
        "[default: beside RESULT, as .svg]",
    )  # fmt: skip
    return parser


def _targets(results: Sequence[Path], output: Path | None) -> dict[Path, Path]:
    """Each picture's file with its result."""
    if output is not None:
        _check(output, len(results))
        return {output: results[0]}
    targets: dict[Path, Path] = {}
    for result in results:
        target = beside_tree(result, ".svg") if is_tree(result) else picture_of(result)
        other = next((r for t, r in targets.items() if _same(t, target)), None)
        if other is not None:
            raise ConfigError(
                f"the pictures of {other} and {result} would both be {target}; give one of them, "
                "with --output"
            )
        targets[target] = result
    return targets


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _check(output: Path, results: int) -> None:
    if results > 1:
        raise ConfigError(
            f"--output {output} is one file, and {results} results are given; leave it out, or "
            "give one result"
        )
    form = output.suffix[1:].lower()
    if form not in FORMATS:
        raise ConfigError(
            f"--output {output} does not end in .svg, .png or .pdf.{did_you_mean(form, FORMATS)}"
        )
