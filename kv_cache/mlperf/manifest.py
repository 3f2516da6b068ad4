"""The record of a sequence: the plan, when each trial ran, and a hash chain over all files.

It is written anew after each trial, so that a sequence that is killed has one too. The chain is
that of results (`result/chain`), with a link for each file of the sequence. It does not cover the
description of the system, which people fill in afterwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from msgspec import Meta, Struct, field, to_builtins

from kv_cache import __version__
from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.files.reading import result_bytes, too_deep
from kv_cache.files.writing import write_atomically
from kv_cache.mlperf.layout import MANIFEST, Place, all_files
from kv_cache.mlperf.plan import Deviation, Plan, longest_window_s
from kv_cache.result.chain import SECTION, Change, check, file_digest, seal, sealed_files
from kv_cache.result.counted import Json
from kv_cache.result.older import modern
from kv_cache.result.run import MisshapenError, converted

SCHEMA = "kv-cache-mlperf/2"
MOST_TRIALS, MOST_RANKS = 1000, 100_000
"""Limits of a sequence that is read: a record with larger numbers is not believed."""

RUNNING, FINISHED, INCOMPLETE, INTERRUPTED = "running", "finished", "incomplete", "interrupted"


class TrialRecord(Struct, frozen=True, kw_only=True):
    """One trial that was begun, from start to end."""

    option: int
    trial: int
    started_utc: str
    ended_utc: str
    arguments: list[Any] = []  # the words of each rank
    exit_codes: list[Any]
    complete: bool
    message: Any = None  # what makes it incomplete
    left_in_cache: int  # files that ranks left there on the machine of the sequence


class PlanRecord(Struct, frozen=True, kw_only=True):
    """The plan of a sequence; a delay of None is the launcher's own."""

    options: Annotated[list[Annotated[int, Meta(ge=1, le=99)]], Meta(min_length=1)]
    trials: Annotated[int, Meta(ge=1, le=MOST_TRIALS)]
    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    seed: int
    option_delay_s: float | None
    config: Any = None
    flags: list[Any]
    launch: list[Any] = []
    command: list[Any]


class SequenceRecord(Struct, frozen=True, kw_only=True):
    """What the record has of a sequence."""

    schema: Literal["kv-cache-mlperf/2"]
    division: str
    system: str
    org: str
    status: str
    started_utc: str
    config: PlanRecord
    environment: Json
    trials: list[TrialRecord]
    deviations: list[Any]
    not_submittable: list[Any]

    def __post_init__(self) -> None:
        if self.config.options != sorted({*self.config.options}):
            raise ValueError("options are not in ascending order")


def utc_now() -> str:
    return datetime.now(UTC).isoformat()


class RunningRecord(Struct, kw_only=True):
    """The record of a sequence that is running."""

    plan: Plan
    place: Place
    environment: Json
    deviations: Sequence[Deviation]
    status: str = RUNNING
    started_utc: str = field(default_factory=utc_now)
    ended_utc: str | None = None
    trials: list[TrialRecord] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether every trial is complete."""
        wanted = len(self.plan.options) * self.plan.trials
        return len(self.trials) == wanted and all(row.complete for row in self.trials)

    def to_json(self) -> Json:
        return {
            "program_version": __version__,
            "division": self.plan.division,
            "org": self.place.org,
            "system": self.place.system,
            "status": self.status,
            "not_submittable": list(self._not_submittable()),
            "started_utc": self.started_utc,
            "ended_utc": self.ended_utc,
            "config": self.plan.to_json(),
            "environment": self.environment,
            "trials": to_builtins(self.trials),
            "deviations": [{"rule": d.rule, "message": d.message} for d in self.deviations],
        }

    def _not_submittable(self) -> Iterator[str]:
        if self.plan.shorten_s is not None:
            why = f"not to be submitted: --shorten ends each window after {self.plan.shorten_s:g} s"
            yield f"{why}, where the options have {longest_window_s():g} s"


class Manifest(Struct, frozen=True, kw_only=True):
    """A record that was read, and what no longer agrees with it."""

    record: SequenceRecord
    files: tuple[str, ...]  # that the chain covers
    record_changes: tuple[Change, ...]
    file_changes: tuple[Change, ...]  # changed and added files

    @property
    def plan(self) -> PlanRecord:
        return self.record.config


def write_manifest(place: Place, record: Mapping[str, Any]) -> None:
    """Replace the record, over all files that exist now. Raises OSError."""
    files = {str(path.relative_to(place.run)): file_digest(path) for path in all_files(place.run)}
    document = seal({SECTION: {"schema": SCHEMA, **record}}, files)
    write_atomically(place.run / MANIFEST, as_json(document))


def read_manifest(place: Place) -> Manifest | None:
    """Read the record; None if there is none (the launcher writes none). Raises UsageError if it is
    not a record, as nothing can be said of the sequence then."""
    path = place.run / MANIFEST
    if not path.exists():
        return None
    document = _parsed(path)
    try:
        record = converted(modern(document)[SECTION], SequenceRecord, SECTION)
    except MisshapenError as error:
        raise UsageError(
            f"{path} is of another schema than {SCHEMA}, or was cut ({error}); give the tree as "
            "mlperf run left it"
        ) from None
    record_changes = check(document, {})
    changes = check(document, _digests(place))
    return Manifest(
        record=record,
        files=tuple(sealed_files(document)),
        record_changes=tuple(record_changes),
        file_changes=tuple(change for change in changes if change not in record_changes),
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(result_bytes(path))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{path} is cut short or not JSON ({error}); give the tree as mlperf run left it"
        ) from None
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict) or too_deep(document):
        raise UsageError(
            f"{path} is not a record of a sequence; give the tree as mlperf run left it"
        )
    return document  # type: ignore[no-any-return]


def _digests(place: Place) -> dict[str, str]:
    return {str(path.relative_to(place.run)): _digest(path) for path in all_files(place.run)}


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; of anything else a text that no file has as its digest."""
    try:
        return file_digest(path) if path.is_file() else "no file"
    except OSError:
        return "cannot be read"


def gone(manifest: Manifest, place: Place) -> list[str]:
    """Return the files of the chain that no longer exist."""
    return [name for name in manifest.files if not (place.run / name).exists()]
