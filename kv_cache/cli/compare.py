"""`kv-cache.py compare A B [C...]`: do results differ, by how much, and how sure is that?"""

from collections.abc import Iterator, Sequence

from kv_cache.app.compare import CompareOptions, compare
from kv_cache.cli.command import Command
from kv_cache.cli.printing import gated, print_plain
from kv_cache.core.exits import Exit
from kv_cache.result.comparison import Comparison, Finding
from kv_cache.view.comparison import comparison_view
from kv_cache.view.terminal import terminal

COMMAND = Command(
    name="compare",
    options=CompareOptions,
    about="""\
    Compare results of runs, or of run --trials, with the first of them: for each metric the ratio
    with its 95 % interval, and whether that is better or worse.

    Only results of the same model, semantics, driver, mode, schedule and number of trials are
    compared. Drives, machines and directories may differ, and are shown.
    """,
    epilog="""\
    examples:
      kv-cache.py compare old-drive.json new-drive.json
      kv-cache.py compare runs/20261121-101500 runs/20261121-103000 --json comparison.json

    exit code: 0 compared, whatever the answer; 2 bad input, or results that are not comparable;
    4 with --fail-on worse where a number of one is worse than the first's, or the headline of one
    cannot be judged
    """,
)


def main(argv: Sequence[str]) -> int:
    """Compare; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    comparison = compare(options)
    print(terminal(comparison_view(comparison.inputs)))
    if options.json is not None:
        print_plain(f"\njson  {options.json}")
    failed = () if options.fail_on is None else _failed(comparison)
    return gated(Exit.DONE, [f"kv-cache: --fail-on {options.fail_on}: {why}" for why in failed])


def _failed(comparison: Comparison) -> Iterator[str]:
    """Yield what is worse, and where nobody can tell of the number that the runs are there for."""
    for row in comparison.rows:
        if row.finding is Finding.DIFFERS and row.better is False:
            yield f"{row.label} is worse in {row.metric.name}"
        elif row.finding is Finding.NOT_JUDGED and row.metric is comparison.headline:
            yield f"whether {row.label} is worse in {row.metric.name} is not known: {row.why_none}"
