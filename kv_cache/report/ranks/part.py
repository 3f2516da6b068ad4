"""One rank of several: what came of it, and whether it counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kv_cache.core.crew import Crew, Member
from kv_cache.core.units import NS_PER_S
from kv_cache.report.chain import check, fingerprint
from kv_cache.report.node import MisshapenError, Node
from kv_cache.report.result import SCHEMA as RESULT_SCHEMA

SECTION = "kv_cache"
FINISHED = "finished"

_ROOT = "the result"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rank. `document` is what came as its result, whatever it is; where that cannot be
    counted, `flaw` completes "rank 2 ..."."""

    rank: int
    member: Member | None
    document: Any
    flaw: str | None = None
    _node: Node = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        section = self.document.get(SECTION) if isinstance(self.document, Mapping) else None
        object.__setattr__(self, "_node", Node(section, SECTION))

    @property
    def counted(self) -> bool:
        return self.flaw is None

    @property
    def root(self) -> Node:
        return Node(self.document, _ROOT)

    @property
    def own(self) -> Node:
        """Its section `kv_cache`."""
        return self.root[SECTION]

    def said(self, path: str) -> Any:
        """The value at a dotted path of its section; None where there is none."""
        node = self._node.find(path)
        return None if node is None else node.value

    @property
    def host(self) -> str | None:
        name = self.said("environment.hostname")
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
        if opened is None or not self.counted:
            return None
        return opened + _nanoseconds(self.own["config"]["run"]["warmup_s"])

    @property
    def end_ns(self) -> int | None:
        begin = self.begin_ns
        if begin is None:
            return None
        return begin + _nanoseconds(self.own["window_s"])


_LONGEST_S = 1e9


def _nanoseconds(node: Node) -> int:
    if not 0 <= node.number() <= _LONGEST_S:
        raise MisshapenError(f"{node.path} is {node.value}, which is no length of a run in seconds")
    return round(node.number() * NS_PER_S)


def parts_of(results: Mapping[int, Any], crew: Crew) -> list[Part]:
    """All ranks that were wanted, and those that were not, in their order."""
    members = {member.rank: member for member in crew.members}
    numbers = sorted({*range(crew.wanted), *results, *members})
    seen: dict[str, int] = {}
    made = []
    for rank in numbers:
        document = results.get(rank)
        part = Part(rank=rank, member=members.get(rank), document=document)
        flaw = next(_flaws(part, crew), None) or _twice(part, seen)
        made.append(Part(rank=rank, member=part.member, document=document, flaw=flaw))
    return made


def _flaws(part: Part, crew: Crew) -> Iterator[str]:
    if not 0 <= part.rank < crew.wanted:
        yield f"is none of the {crew.wanted} that were started"
    if part.document is None:
        yield "has no result" if part.lost is None else f"has no result: it was lost ({part.lost})"
    if not isinstance(part.document, Mapping) or not isinstance(
        part.document.get(SECTION), Mapping
    ):
        yield "has something that is no result of this program"
    schema = part.said("schema")
    if schema != RESULT_SCHEMA:
        yield f"has a result of schema {str(schema)[:40]}, and this program merges {RESULT_SCHEMA}"
    changed = list(dict.fromkeys(change.link for change in check(part.document, {})))
    if changed:
        yield f"has a result that was cut or changed after its run ({', '.join(changed)})"
    yield from _another(part, crew)


def _another(part: Part, crew: Crew) -> Iterator[str]:
    """A result that says itself that it is another's."""
    rank, ranks = part.said("rank.rank"), part.said("rank.ranks")
    if rank != part.rank:
        yield f"has the result of rank {str(rank)[:20]}"
    if ranks is not None and ranks != crew.wanted:
        yield f"has a result of a job of {str(ranks)[:20]} ranks, not of {crew.wanted}"


def _twice(part: Part, seen: dict[str, int]) -> str | None:
    print_ = fingerprint(part.document)
    if print_ is None:
        return None
    first = seen.setdefault(print_, part.rank)
    return None if first == part.rank else f"has the very result that rank {first} has"


def counted_of(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.counted]


def flawed(part: Part, error: MisshapenError) -> Part:
    """The rank, not counted, as its result lacks something."""
    flaw = f"has a result that is not whole: {str(error).replace(f'{_ROOT}.', '')}"
    return Part(rank=part.rank, member=part.member, document=part.document, flaw=flaw)
