"""The tables of simulations as CSV: a row for each run, each instance, each instant.

Rows of instances and of the series are written run by run, so that no file has to fit in memory.
Those of a run that goes on can be shown, and are taken back by whatever is written next.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from kv_cache.files.reading import SECTION
from kv_cache.result.simulation.measures import leaves

Json = Mapping[str, Any]

_RUN = ("scenario", "variant", "name", "seed", "run")
RUNS_MARK = ",".join(_RUN)
"""How the tables of runs, and of what is in them, begin."""


def runs_csv(document: Json) -> bytes:
    """Return one row for each run: the options in which variants differ, and every number of its
    facts under its path. A counter that a run never touched is 0, what it does not know is
    empty."""
    section = document[SECTION]
    rows = [(variant, run) for variant in section["variants"] for run in variant["runs"]]
    facts = [dict(leaves(run["facts"])) for _, run in rows]
    paths = list(dict.fromkeys(path for each in facts for path in each))
    words = {path for each in facts for path, value in each.items() if isinstance(value, str)}
    lines: list[Sequence[Any]] = [(*_RUN, *section["varied"], *paths)]
    for (variant, run), each in zip(rows, facts, strict=True):
        values = [plain(variant["values"][path]) for path in section["varied"]]
        cells = [each.get(path, "" if path in words else 0) for path in paths]
        lines.append((*_key(section["name"], variant, run), *values, *cells))
    return _csv(lines)


def _key(scenario: str, variant: Json, run: Json) -> tuple[Any, ...]:
    return (scenario, variant["variant"], variant["name"], run["seed"], run["run"])


def plain(value: Any) -> str:
    """Return a value of an option in one cell."""
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


class ColumnsFile:
    """Columns of runs as rows of one file: the series, or the instances (`numbered` from 0)."""

    def __init__(self, file: BinaryIO, scenario: str, *, numbered: str | None = None) -> None:
        self._file = file
        self._scenario = scenario
        self._numbered = numbered
        self._kept = 0  # bytes of the runs that ended

    def write(self, variant: Json, run: Json, columns: Mapping[str, Sequence[Any]]) -> None:
        """Keep the rows of a run that has ended."""
        self.show(variant, run, columns)
        self._kept = self._file.tell()

    def rewind(self) -> None:
        """Take back what was shown of a run that did not end."""
        self._file.seek(self._kept)
        self._file.truncate()

    def show(self, variant: Json, run: Json, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write the rows that a run has until now, so that readers of the file see them."""
        rows = max((len(values) for values in columns.values()), default=0)
        every = list(columns.values())
        names = list(columns)
        if self._numbered is not None:
            every, names = [range(rows), *every], [self._numbered, *names]
        key = _key(self._scenario, variant, run)
        lines = [] if self._kept else [(*_RUN, *names)]
        self._file.seek(self._kept)
        self._file.write(_csv([*lines, *((*key, *row) for row in zip(*every, strict=True))]))
        self._file.truncate()  # after the rows: readers meanwhile find most of them
        self._file.flush()
