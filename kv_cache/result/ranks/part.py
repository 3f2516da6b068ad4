"""One rank of several: what came of it, and whether it counts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kv_cache.core.crew import Crew, Member
from kv_cache.core.units import NS_PER_S
from kv_cache.result.chain import check, fingerprint
from kv_cache.result.derive import SCHEMA as RESULT_SCHEMA
from kv_cache.result.paths import value_at
from kv_cache.result.run import SECTION, CountedRun, MisshapenError, read_run


class Part(Struct, frozen=True, kw_only=True):
    """One rank. `document` is what came as its result, whatever it is; where that cannot be
    counted, `flaw` completes "rank 2 ..."."""

    rank: int
    member: Member | None
    document: Any
    run: CountedRun | None = None
    flaw: str | None = None

    @property
    def counted(self) -> bool:
        return self.flaw is None

    def value_at(self, path: str) -> Any:
        """Return the value at a dotted path of its section, None if there is none."""
        return value_at(self.document, f"{SECTION}.{path}")

    @property
    def host(self) -> str | None:
        name = self.value_at("environment.hostname")
        if isinstance(name, str):
            return name
        return None if self.member is None else self.member.host

    @property
    def lost(self) -> str | None:
        return None if self.member is None else self.member.lost

    @property
    def begin_ns(self) -> int | None:
        """When its window began, by the coordinator's clock."""
        opened = None if self.member is None else self.member.opened_ns
        if opened is None or self.run is None:
            return None
        return opened + round(self.run.config.run.warmup_s * NS_PER_S)

    @property
    def wall_begin_s(self) -> float | None:
        """When its window began, by its host's wall clock, in seconds since 1970."""
        return None if self.run is None else self.run.wall_begin_s

    @property
    def end_ns(self) -> int | None:
        begin = self.begin_ns
        if begin is None or self.run is None:
            return None
        return begin + round(self.run.window_s * NS_PER_S)


def parts_of(results: Mapping[int, Any], crew: Crew) -> list[Part]:
    """Return all ranks that were planned, and others of which there is anything, in their order."""
    members = {member.rank: member for member in crew.members}
    numbers = sorted({*range(crew.expected), *results, *members})
    seen: dict[str, int] = {}
    return [_part(rank, members.get(rank), results.get(rank), crew, seen) for rank in numbers]


def _part(
    rank: int, member: Member | None, document: Any, crew: Crew, seen: dict[str, int]
) -> Part:
    part = Part(rank=rank, member=member, document=document)
    flaw = next(_flaws(part, crew), None) or _twice(part, seen)
    if flaw is not None:
        return replace(part, flaw=flaw)
    try:
        return replace(part, run=read_run(document))
    except MisshapenError as error:
        return replace(part, flaw=f"has a result that is not whole: {error}")


def _flaws(part: Part, crew: Crew) -> Iterator[str]:
    if not 0 <= part.rank < crew.expected:
        yield f"is not one of the {crew.expected} that were started"
    if part.document is None:
        yield "has no result" if part.lost is None else f"has no result: it was lost ({part.lost})"
    if not isinstance(part.document, Mapping) or not isinstance(
        part.document.get(SECTION), Mapping
    ):
        yield "has something that is not a result of this program"
    schema = part.value_at("schema")
    if schema != RESULT_SCHEMA:
        yield f"has a result of schema {str(schema)[:40]}, and this program merges {RESULT_SCHEMA}"
    changed = list(dict.fromkeys(change.link for change in check(part.document, {})))
    if changed:
        yield f"has a result that was cut or changed after its run ({', '.join(changed)})"
    yield from _another(part, crew)


def _another(part: Part, crew: Crew) -> Iterator[str]:
    """Yield why a result is another rank's, by what it has itself."""
    rank, ranks = part.value_at("rank.rank"), part.value_at("rank.ranks")
    if rank != part.rank:
        yield f"has the result of rank {str(rank)[:20]}"
    if ranks is not None and ranks != crew.expected:
        yield f"has a result of a job of {str(ranks)[:20]} ranks, not of {crew.expected}"
    ours = None if part.member is None else part.member.host
    if ours is not None and part.host != ours:
        yield f"has a result of host {str(part.host)[:60]}, but ran on {ours}"
    siblings = part.value_at("passport.evidence.foreign.siblings.pids")
    strangers = set(siblings if isinstance(siblings, list) else ()) - {m.pid for m in crew.members}
    if strangers:
        named = ", ".join(str(pid)[:20] for pid in sorted(strangers, key=str)[:4])
        yield f"has the result of another job, beside whose processes ({named}) it ran"


def _twice(part: Part, seen: dict[str, int]) -> str | None:
    print_ = fingerprint(part.document)
    if print_ is None:
        return None
    first = seen.setdefault(print_, part.rank)
    return None if first == part.rank else f"has the very result that rank {first} has"


def counted_of(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.counted]


def runs_of(parts: Sequence[Part]) -> list[CountedRun]:
    """Return the facts of those that count."""
    return [part.run for part in parts if part.run is not None]
