"""The layout of a tree, as MLPerf's launcher makes it and its rules require it.

    <tree>/<division>/<org>/results/<system>/kv_cache/<model>/run/<date>_<time>/     one sequence
        option_<O>/trial_<T>/rank_<N>/kvcache_results_<date>_<time>.json             one rank
    <tree>/<division>/<org>/systems/<system>.yaml, .pdf                              what was tested

Trials and ranks are counted from 0, options from 1. The names are the launcher's; what this program
adds to a sequence begins with `kvcache_` or ends in `.log`, and is nothing that the launcher's
report generator takes for a run (`summary.json`, `*_metadata.json`).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from kv_cache.core.errors import PlaceError, UsageError, os_reason

DIVISIONS = ("closed", "open")
BENCHMARK = "kv_cache"
MODEL = "llama3.1-8b"
"""The directory's name for a sequence of all options; the launcher takes its default model's."""

RESULTS = "kvcache_results_*.json"
MANIFEST = "kvcache_sequence.json"
SUMMARY = "kvcache_run_summary_"
CONFIG = "kvcache_config.yaml"
LAUNCHERS_METADATA = "*_metadata.json"
"""Only the launcher writes one; never this program."""

SENTINEL = "mlperf-results.yaml"
"""What `mlpstorage init` leaves at the top of a tree."""

NOBODY = "submitter"
"""Where no organisation was named."""

_DEEPEST = 10  # levels between a tree's top and a sequence: the layout has 8
_MOST_DIRECTORIES = 20_000
_NUMBERED = re.compile(r"(option|trial|rank)_(0|[1-9]\d{0,5})")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]")


class Place(Struct, frozen=True, kw_only=True):
    """One sequence, and what its path says where it lies in the layout of a submission."""

    run: Path
    division: str | None = None
    org: str | None = None
    system: str | None = None

    @property
    def submitter(self) -> Path | None:
        """The directory with `results` and `systems`."""
        return None if self.division is None else self.run.parents[5]

    @property
    def description(self) -> Path | None:
        """Where the description of the system belongs."""
        top = self.submitter
        return None if top is None else top / "systems" / f"{self.system}.yaml"

    @property
    def code(self) -> Path | None:
        """Where the copy of the launcher's sources belongs."""
        top = self.submitter
        if top is None:
            return None
        return (self.run.parents[2] if self.division == "open" else top) / "code"

    def name(self, path: Path) -> str:
        """Return a path as it is shown: from the sequence's directory, or from the submitter's."""
        for base in (self.run, self.submitter):
            if base is not None and path.is_relative_to(base):
                return str(path.relative_to(base))
        return str(path)


def new_place(tree: Path, division: str, org: str, system: str, stamp: str) -> Place:
    """Return the place of a new sequence. Creates nothing."""
    parts = (division, org, "results", system, BENCHMARK, MODEL, "run", stamp)
    return Place(run=tree.joinpath(*parts), division=division, org=org, system=system)


def trial_directory(run: Path, option: int, trial: int) -> Path:
    return run / f"option_{option}" / f"trial_{trial}"


def as_name(text: str) -> str:
    """Return a text as a directory's name: each other character becomes a dash, as the rules
    say."""
    return _NOT_IN_A_NAME.sub("-", text).lstrip(".") or "-"


def numbered(directory: Path, kind: str) -> dict[int, Path]:
    """Return the directories `<kind>_<number>` in it, by number."""
    directories = {}
    for path in _entries(directory):
        match = _NUMBERED.fullmatch(path.name)
        if match and match[1] == kind and path.is_dir():
            directories[int(match[2])] = path
    return dict(sorted(directories.items()))


def strangers(directory: Path, kind: str) -> list[Path]:
    """Return the directories in it that are not of that kind, so that a person put them there."""
    known = set(numbered(directory, kind).values())
    return [path for path in _entries(directory) if path.is_dir() and path not in known]


def results_in(directory: Path) -> list[Path]:
    """Return the files that launchers take for a rank's result."""
    return sorted(path for path in directory.glob(RESULTS) if not path.is_dir())


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (NotADirectoryError, FileNotFoundError):
        return []
    except OSError as error:
        raise UsageError(f"{directory} cannot be looked at: {os_reason(error)}") from None


def locate(tree: Path) -> Place:
    """Return the sequence in a tree: TREE itself, or the only one below it. Raises UsageError."""
    top = Path(os.path.abspath(tree))
    if not top.is_dir():
        what = "is no directory" if top.exists() else "is not there"
        raise UsageError(
            f"tree {tree} {what}; name the --results-dir of mlperf run, or a run below"
        )
    runs = list(_sequences(top))
    if not runs:
        raise UsageError(
            f"tree {tree} has no directory option_<number> in it: it holds no KV-cache sequence; "
            "name the --results-dir of mlperf run, or of mlpstorage"
        )
    if len(runs) > 1:
        names = ", ".join(str(path.relative_to(top)) for path in runs[:3])
        raise UsageError(
            f"tree {tree} holds {len(runs)} sequences ({names}{', ...' if runs[3:] else ''}): "
            "name one of them"
        )
    return place_of(runs[0])


def holds_sequence(directory: Path) -> bool:
    """Whether there is a sequence at or below a directory, or several."""
    return next(_sequences(Path(os.path.abspath(directory))), None) is not None


def place_of(run: Path) -> Place:
    """Return what the path of a sequence says."""
    above = [parent.name for parent in run.parents[:7]]
    fixed = ("run", BENCHMARK, "results")
    if len(above) < 7 or (above[0], above[2], above[4]) != fixed or above[6] not in DIVISIONS:
        return Place(run=run)
    return Place(run=run, division=above[6], org=above[5], system=above[3])


def _sequences(top: Path) -> Iterator[Path]:
    for seen, (directory, names, _) in enumerate(os.walk(top)):
        if seen > _MOST_DIRECTORIES:
            raise UsageError(
                f"tree {top} has more than {_MOST_DIRECTORIES} directories and no end of them in "
                "sight; name the directory of one sequence"
            )
        names.sort()
        path = Path(directory)
        if numbered(path, "option"):
            names.clear()
            yield path
        elif len(path.relative_to(top).parts) >= _DEEPEST:
            names.clear()


def all_files(run: Path) -> list[Path]:
    """Return every file of a sequence but its record."""
    files = [Path(where) / name for where, _, names in os.walk(run) for name in names]
    return sorted(path for path in files if path != run / MANIFEST)


def require_empty(directory: Path) -> None:
    """Refuse a place for results that has anything in it. Creates nothing. Raises PlaceError."""
    where = f"--results-dir {directory}"
    try:
        there = sorted(directory.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise PlaceError(f"{where}: it is no directory; name another") from None
    except OSError as error:
        raise PlaceError(
            f"{where}: it cannot be looked at ({os_reason(error)}); name another"
        ) from None
    if there:
        raise PlaceError(
            f"{where}: {there[0].name} is in it, and a sequence is neither resumed nor mixed with "
            "another; name a new directory"
        )
