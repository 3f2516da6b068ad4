"""Results against the first of them: do they differ, by how much, and how sure is that?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_cache.config.schema import opt
from kv_cache.core.errors import UsageError
from kv_cache.files.reading import SECTION, read_document, require_replaceable
from kv_cache.files.writing import write_output
from kv_cache.result import comparison, trials
from kv_cache.result.comparison import LABELS, Comparison, Input, input_of
from kv_cache.result.kinds import RUN
from kv_cache.result.published import RANKS

MARK = '{\n  "schema": "kv-cache-comparison/'
"""How the JSON of every comparison begins; a file that begins so may be replaced."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What is compared, and where the comparison goes."""

    results: tuple[str, ...] = opt(
        (), "Two or more result files or run directories, the baseline first", flag="RESULT",
        metavar="PATH", required=True,
    )  # fmt: skip
    json: str | None = opt(None, "Also write the comparison there", flag="--json", metavar="PATH")
    fail_on: str | None = opt(
        None, "Exit with 4 where a number differs to the worse, or the headline cannot be judged",
        choices=("worse",),
        flag="--fail-on",
    )  # fmt: skip


def compare(options: CompareOptions) -> Comparison:
    """Compare results with the first of them, and write the comparison to the file of `--json`, if
    there is one. Raises UsageError, PlaceError."""
    target = None if options.json is None else Path(options.json)
    if target is not None:
        require_replaceable(target, MARK, "--json")
    compared = comparison.compare(read_inputs([Path(name) for name in options.results]))
    if target is not None:
        write_output(target, comparison.comparison_json(compared), "--json")
    return compared


def read_inputs(paths: Sequence[Path]) -> list[Input]:
    """Return results of runs, of several ranks or of trials, that may be compared with the first.
    Raises UsageError."""
    if not 2 <= len(paths) <= len(LABELS):
        raise UsageError(
            f"compare needs 2 to {len(LABELS)} results, the baseline first, and was given "
            f"{len(paths)}; name more or fewer files"
        )
    inputs = [_read_input(label, path) for label, path in zip(LABELS, paths, strict=False)]
    comparison.require_all_comparable(inputs)
    return inputs


def _read_input(label: str, path: Path) -> Input:
    document = read_document(path)
    schema = str(document[SECTION].get("schema"))
    if not (schema in (RANKS, trials.SCHEMA) or schema.startswith(RUN)):
        raise UsageError(
            f"{path} is of schema {schema}, and compare takes results of run, of several ranks and "
            "of run --trials; see report for others"
        )
    return input_of(label, path, document)
