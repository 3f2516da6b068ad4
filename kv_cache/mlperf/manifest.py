"""The record of a sequence: what was planned, what was run when, and a hash chain over all files.

It is written anew after each trial, so that a sequence that is killed has one too. The chain is
that of results (`result/chain`), with a link for each file of the sequence; the description of the
system stands beside it, because people fill it in afterwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from kv_cache import __version__
from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.files.reading import DEEPEST, deeper_than, result_bytes
from kv_cache.files.writing import write_atomically
from kv_cache.mlperf.layout import MANIFEST, Place, all_files
from kv_cache.mlperf.plan import Deviation, Plan, longest_window_s
from kv_cache.result.chain import SECTION, Change, check, file_digest, seal, sealed_files

SCHEMA = "kv-cache-mlperf/1"
MOST_TRIALS, MOST_RANKS = 1000, 100_000
"""Of a sequence that is looked at: a file that says more is no reason to look for them all."""

RUNNING, FINISHED, INCOMPLETE, INTERRUPTED = "running", "finished", "incomplete", "interrupted"

Json = Mapping[str, Any]


def utc_now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial, from start to end. `arguments` are the words of each rank; `problem` is what makes
    it incomplete; files that ranks left in the cache directory are counted on this machine."""

    option: int
    trial: int
    started_utc: str
    ended_utc: str
    arguments: Sequence[str]
    exit_codes: Sequence[int]
    problem: str | None
    left_in_cache: int

    @property
    def complete(self) -> bool:
        return self.problem is None

    def to_json(self) -> Json:
        return {
            "option": self.option,
            "trial": self.trial,
            "started_utc": self.started_utc,
            "ended_utc": self.ended_utc,
            "arguments": list(self.arguments),
            "exit_codes": list(self.exit_codes),
            "complete": self.complete,
            "says": self.problem,
            "left_in_cache": self.left_in_cache,
        }


@dataclass(slots=True, kw_only=True)
class SequenceRecord:
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
            "trials": [row.to_json() for row in self.trials],
            "deviations": [{"rule": d.rule, "says": d.says} for d in self.deviations],
        }

    def _not_submittable(self) -> Iterator[str]:
        if self.plan.shorten_s is not None:
            why = f"not to be submitted: --shorten ends each window after {self.plan.shorten_s:g} s"
            yield f"{why}, where the options have {longest_window_s():g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A record that was read, and what is no longer as it says."""

    own: Json
    own_changes: tuple[Change, ...]  # of the record itself
    file_changes: tuple[Change, ...]  # of the files that it seals, and what was added to them

    @property
    def plan(self) -> Json:
        return self.own["config"]  # type: ignore[no-any-return]

    @property
    def options(self) -> tuple[int, ...]:
        return tuple(self.plan["options"])

    def trials(self) -> Iterator[Json]:
        """The trials that were begun, in their order."""
        yield from self.own["trials"]


def write_manifest(place: Place, own: Json) -> None:
    """Replace the record, over all files that are there now. Raises OSError."""
    files = {str(path.relative_to(place.run)): file_digest(path) for path in all_files(place.run)}
    document = seal({SECTION: {"schema": SCHEMA, **own}}, files)
    write_atomically(place.run / MANIFEST, as_json(document))


def read_manifest(place: Place) -> Manifest | None:
    """The record, or None where there is none (the launcher writes none). Raises UsageError where
    it is no record, as nothing can be said of the sequence then."""
    path = place.run / MANIFEST
    if not path.exists():
        return None
    document = _parsed(path)
    own = document[SECTION]
    if not _has_shape(own):
        raise UsageError(
            f"{path} is of schema {str(own.get('schema'))[:40]!r} or was cut: this program knows "
            f"{SCHEMA}; give the tree as mlperf run left it"
        )
    own_changes = check(document, {})
    changes = check(document, _digests(place))
    return Manifest(
        own=own,
        own_changes=tuple(own_changes),
        file_changes=tuple(change for change in changes if change not in own_changes),
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(result_bytes(path))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{path} is cut short or no JSON ({error}); give the tree as mlperf run left it"
        ) from None
    own = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(own, dict) or deeper_than(document, DEEPEST):
        raise UsageError(f"{path} is no record of a sequence; give the tree as mlperf run left it")
    return document  # type: ignore[no-any-return]


_SHAPE: Mapping[str, type] = {
    "division": str, "system": str, "org": str, "status": str, "started_utc": str, "config": dict,
    "environment": dict, "trials": list, "deviations": list, "not_submittable": list,
}  # fmt: skip
_PLAN: Mapping[str, type] = {
    "options": list, "trials": int, "ranks": int, "seed": int, "option_delay_s": float,
    "flags": list, "command": list,
}  # fmt: skip
_TRIAL: Mapping[str, type] = {
    "option": int, "trial": int, "started_utc": str, "ended_utc": str, "complete": bool,
    "left_in_cache": int, "exit_codes": list,
}  # fmt: skip


def _has_shape(own: Json) -> bool:
    def fits(value: Any, shape: Mapping[str, type]) -> bool:
        return isinstance(value, dict) and all(
            isinstance(value.get(k), t) for k, t in shape.items()
        )

    sound = own.get("schema") == SCHEMA and fits(own, _SHAPE) and fits(own["config"], _PLAN)
    return sound and all(fits(row, _TRIAL) for row in own["trials"]) and _numbers(own["config"])


def _numbers(plan: Json) -> bool:
    sides = {MOST_TRIALS: [plan["trials"]], MOST_RANKS: [plan["ranks"]], 99: plan["options"]}
    options = plan["options"]
    whole = all(type(n) is int and 0 < n <= most for most, ns in sides.items() for n in ns)
    return whole and bool(options) and options == sorted({*options})


def _digests(place: Place) -> dict[str, str]:
    return {str(path.relative_to(place.run)): _digest(path) for path in all_files(place.run)}


def _digest(path: Path) -> str:
    """Of what is no file, or cannot be read, one that no file has: it is not as it was."""
    try:
        return file_digest(path) if path.is_file() else "no file"
    except OSError:
        return "cannot be read"


def gone(manifest: Manifest, place: Place) -> list[str]:
    """Files of the chain that are no longer there."""
    return [
        name for name in sealed_files({SECTION: manifest.own}) if not (place.run / name).exists()
    ]
