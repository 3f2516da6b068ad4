"""A whole sequence read: every rank's result, and every reason why an option is invalid.

Completeness is a hard rule. What is expected is what the record of the sequence says, else what the
ranks say about themselves; whatever of it is missing, there twice, cut short, foreign, changed,
unfinished or of another configuration makes its option invalid, by name, and nothing is claimed
of that option.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.config.mlperf import MLPERF_OPTIONS, TRIALS
from kv_cache.core.errors import UsageError, os_reason
from kv_cache.mlperf.launcher import LaunchRecord, read_launch
from kv_cache.mlperf.layout import (
    MANIFEST,
    Place,
    locate,
    numbered,
    results_in,
    strangers,
    trial_directory,
)
from kv_cache.mlperf.manifest import (
    MOST_RANKS,
    MOST_TRIALS,
    Manifest,
    PlanRecord,
    gone,
    read_manifest,
)
from kv_cache.mlperf.rankfile import (
    CLIENTS,
    CONFIGS,
    CPU_ONLY,
    DUPLICATE,
    MISSING,
    TAMPERED,
    UNEXPECTED,
    Flaw,
    RankResult,
    Spot,
    read_rank,
)

OWN_OPTIONS = ("run.seed", "tiers.cache_dir", "tiers.reclaim", "tiers.free_share", "output.")
"""What differs between ranks that ran the same: by name, or by how a name begins."""

_MOST_NAMED = 3
_RESULT = re.compile(r"option_([0-9]+)/trial_([0-9]+)/rank_([0-9]+)/kvcache_results_[^/]*")


class Expected(Struct, frozen=True, kw_only=True):
    """What has to be there."""

    options: tuple[int, ...]
    trials: int
    ranks: int
    source: str  # of these numbers

    def has(self, spot: Spot) -> bool:
        """Whether a result belongs there."""
        known = spot.option in self.options
        return known and spot.trial < self.trials and spot.rank < self.ranks


class Tree(Struct, frozen=True, kw_only=True):
    """A sequence as it lies there."""

    place: Place
    manifest: Manifest | None
    launch: LaunchRecord | None
    expected: Expected
    ranks: tuple[RankResult, ...]  # that can be read, by option, trial and rank
    flaws: tuple[Flaw, ...]

    @property
    def division(self) -> str | None:
        """By the path, as MLPerf's own checker has it; else by the record."""
        return self.place.division or self.recorded_division

    @property
    def recorded_division(self) -> str | None:
        if self.manifest is not None:
            return self.manifest.record.division
        return None if self.launch is None else self.launch.division

    @property
    def record_name(self) -> str | None:
        """The file that says how the sequence was called: ours, else the launcher's."""
        if self.manifest is not None:
            return MANIFEST
        return None if self.launch is None else self.launch.name

    @property
    def plan(self) -> PlanRecord | None:
        """How the sequence was called, as that file has it."""
        if self.manifest is not None:
            return self.manifest.plan
        return None if self.launch is None else self.launch.plan(self.expected.ranks)

    @property
    def not_submittable(self) -> tuple[str, ...]:
        """Why this is not a submission, by its record and its results."""
        reasons = () if self.manifest is None else self.manifest.record.not_submittable
        return tuple(
            dict.fromkeys([*reasons, *(why for r in self.ranks for why in r.not_submittable)])
        )

    @property
    def deviations(self) -> tuple[str, ...]:
        """Where it departs from a CLOSED submission, by its record."""
        rows = [] if self.manifest is None else self.manifest.record.deviations
        return tuple(f"{d.get('rule')}: {d.get('message')}" for d in rows if isinstance(d, Mapping))

    def of(self, option: int) -> list[RankResult]:
        return [result for result in self.ranks if result.spot.option == option]

    def flaws_of(self, option: int) -> list[Flaw]:
        return [flaw for flaw in self.flaws if flaw.option in (None, option)]


def read_tree(path: Path) -> Tree:
    """Read the sequence at or below a path. Raises UsageError if there is none."""
    place = locate(path)
    manifest, launch = read_manifest(place), read_launch(place.run)
    files_at = _found(place.run)
    read = {
        spot: read_rank(spot, files[0], place.name(files[0]))
        for spot, files in files_at.items()
        if files
    }
    ranks = [result for result in read.values() if isinstance(result, RankResult)]
    expected = _expected(manifest, launch, files_at, ranks)
    flaws = [
        *_of_manifest(manifest, place),
        *_missing(expected, files_at, place),
        *(result for result in read.values() if isinstance(result, Flaw)),
        *_twice(files_at, ranks, place),
        *_not_expected(expected, files_at, place),
        *_different(ranks, expected),
        *_without_storage(ranks, expected),
    ]
    return Tree(
        place=place,
        manifest=manifest,
        launch=launch,
        expected=expected,
        ranks=tuple(sorted(ranks, key=lambda result: result.spot)),
        flaws=tuple(dict.fromkeys(flaws)),
    )


def _found(run: Path) -> dict[Spot, list[Path]]:
    """Return the result files by their places, among them ranks' directories without any."""
    try:
        return {
            Spot(option, trial, rank): results_in(directory)
            for option, of_option in numbered(run, "option").items()
            for trial, of_trial in numbered(of_option, "trial").items()
            for rank, directory in numbered(of_trial, "rank").items()
        }
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be looked at: {os_reason(error)}") from None


def _expected(
    manifest: Manifest | None,
    launch: LaunchRecord | None,
    files_at: Mapping[Spot, Any],
    ranks: Iterable[RankResult],
) -> Expected:
    if manifest is not None:
        return Expected(
            options=tuple(manifest.plan.options),
            trials=manifest.plan.trials,
            ranks=manifest.plan.ranks,
            source=MANIFEST,
        )
    counts = [result.mpi.ranks for result in ranks if result.mpi.ranks is not None]
    there = 1 + max((spot.rank for spot in files_at), default=0)
    options = tuple(sorted({spot.option for spot in files_at} | set(MLPERF_OPTIONS)))
    if launch is not None:
        count = launch.ranks or min(MOST_RANKS, max(counts, default=there))
        return Expected(options=options, trials=launch.trials, ranks=count, source=launch.name)
    return Expected(
        options=options,
        trials=min(MOST_TRIALS, max([TRIALS, *(1 + spot.trial for spot in files_at)])),
        ranks=min(MOST_RANKS, max(counts, default=there)),
        source="the ranks' own results" if counts else "the directories that are there",
    )


# --- what is wrong ---------------------------------------------------------------------------


def _of_manifest(manifest: Manifest | None, place: Place) -> Iterator[Flaw]:
    """Yield changed and missing files: a changed rank makes its option invalid, a changed record
    every one. Other changes say nothing about numbers, and `check` reports them."""
    if manifest is None:
        return
    for link, message in manifest.record_changes:
        yield Flaw(TAMPERED, None, MANIFEST, f"is not as it was written: {link} {message}")
    for name, message in manifest.file_changes:
        spot = _spot(name)
        if spot is not None:
            yield Flaw(TAMPERED, spot.option, name, message)
    for name in gone(manifest, place):
        spot = _spot(name)
        if spot is not None:
            yield Flaw(MISSING, spot.option, name, "was there when the sequence ended")


def _spot(name: str) -> Spot | None:
    """Return the place of a rank's result by its name; None for other files."""
    match = _RESULT.fullmatch(name)
    return None if match is None else Spot(*map(int, match.groups()))


def _missing(expected: Expected, files_at: Mapping[Spot, Any], place: Place) -> Iterator[Flaw]:
    for option in expected.options:
        for trial in range(expected.trials):
            where = f"option_{option}/trial_{trial}"
            if not trial_directory(place.run, option, trial).is_dir():
                yield Flaw(MISSING, option, where, "is not there")
                continue
            for rank in range(expected.ranks):
                spot = Spot(option, trial, rank)
                if not files_at.get(spot):
                    message = f"has no result ({expected.ranks} ranks, says {expected.source})"
                    yield Flaw(MISSING, option, str(spot), message)


def _twice(
    files_at: Mapping[Spot, list[Path]], ranks: Iterable[RankResult], place: Place
) -> Iterator[Flaw]:
    for spot, files in files_at.items():
        if len(files) > 1:
            names = ", ".join(path.name for path in files[:_MOST_NAMED])
            message = f"has {len(files)} results ({names}), and a launcher reads any of them"
            yield Flaw(DUPLICATE, spot.option, str(spot), message)
    first: dict[str, RankResult] = {}
    timed: dict[str, RankResult] = {}
    for result in ranks:
        other, message = first.setdefault(result.fingerprint, result), "is the result {} again"
        if other is result and result.times_sha256:
            other = timed.setdefault(result.times_sha256, result)
            message = (
                "has each time of storage to the nanosecond as {} has it: it is that run again"
            )
        if other is not result:
            for option in {result.spot.option, other.spot.option}:
                yield Flaw(DUPLICATE, option, result.path, message.format(other.path))
        if result.mpi.rank != result.spot.rank:
            message = f"is the result of rank {result.mpi.rank}, in the place of {result.spot.rank}"
            yield Flaw(DUPLICATE, result.spot.option, result.path, message)


def _not_expected(expected: Expected, files_at: Mapping[Spot, Any], place: Place) -> Iterator[Flaw]:
    for spot in files_at:
        if not expected.has(spot):
            yield Flaw(UNEXPECTED, spot.option, str(spot), "does not belong to the sequence")
    for option, directory in numbered(place.run, "option").items():
        for path in strangers(directory, "trial"):
            yield Flaw(UNEXPECTED, option, place.name(path), "is no trial")
        for trial in numbered(directory, "trial").values():
            for path in strangers(trial, "rank"):
                yield Flaw(UNEXPECTED, option, place.name(path), "is no rank")


def _different(ranks: list[RankResult], expected: Expected) -> Iterator[Flaw]:
    """Yield ranks of one option that did not run the same."""
    for option in sorted({result.spot.option for result in ranks}):
        of_option = [result for result in ranks if result.spot.option == option]
        first = of_option[0]
        for result in of_option:
            differing = list(differences(first.config, result.config))
            if differing:
                named = ", ".join(differing[:_MOST_NAMED])
                more = ", ..." if differing[_MOST_NAMED:] else ""
                message = f"was run with another configuration than {first.path} ({named}{more})"
                yield Flaw(CONFIGS, option, result.path, message)
            seed = first.seed - first.mpi.rank + result.mpi.rank
            if result.seed != seed:
                message = f"has seed {result.seed}, but {seed} follows from {first.path}"
                yield Flaw(CONFIGS, option, result.path, message)
            count = result.mpi.ranks
            if count is not None and count != expected.ranks:
                message = f"is of a job of {count} ranks, not of {expected.ranks}"
                yield Flaw(CLIENTS, option, result.path, message)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that differ, except those that differ between all ranks."""
    for name in sorted({*first, *second}):
        if not name.startswith(OWN_OPTIONS) and first.get(name) != second.get(name):
            yield f"{name} {second.get(name)!r} for {first.get(name)!r}"


def _without_storage(ranks: list[RankResult], expected: Expected) -> Iterator[Flaw]:
    for option in expected.options:
        entries = [result.storage_entries for result in ranks if result.spot.option == option]
        if entries and not any(entries):
            message = (
                "left nothing in storage (storage_entries is 0 for all ranks): RAM was measured"
            )
            yield Flaw(CPU_ONLY, option, f"option_{option}", message)
