"""What `lab` compares, and its numbers for one trace or one pattern as rows of the document."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import product
from statistics import fmean

from msgspec import Struct, to_builtins

from kv_cache.app.compiled import engine_name
from kv_cache.app.lab_replays import Drawn, Found, Row
from kv_cache.app.study_files import Document
from kv_cache.core.residency import Residency
from kv_cache.lab.accesses import held_sizes
from kv_cache.lab.capacity import Capacity
from kv_cache.lab.patterns import Pattern
from kv_cache.lab.study import Base, Replays, Study, StudyFrame, StudyRow, rows_of
from kv_cache.lab.table import LabTable, table_of
from kv_cache.lab.variants import PolicyVariant
from kv_cache.result.lab import OWN, lab_document


class PolicyComparison(Struct, frozen=True, kw_only=True):
    """Each policy at each capacity, with blocks held in each type. `residencies` has None for
    blocks as they are; `refusing` adds MIN that may refuse a block."""

    variants: Sequence[PolicyVariant]
    capacities: Sequence[Capacity]
    residencies: Sequence[Residency | None]
    cost_source: str
    refusing: bool

    @property
    def replays(self) -> int:
        """How often each sequence is replayed, without bounds."""
        return len(self.variants) * len(self.capacities) * len(self.residencies)

    @property
    def parts(self) -> int:
        """What a study has beside its rows, and each row, of each residency."""
        return len(self.residencies) * self._of_residency

    @property
    def _of_residency(self) -> int:
        return 1 + len(self.capacities) * len(rows_of(self.variants, refusing=self.refusing))

    def of_sequence(
        self, drawn: Drawn, element_bits: int, on_part: Callable[[], None]
    ) -> "_PolicyReplays":
        return _PolicyReplays(self, drawn, element_bits, on_part)

    def case(self, name: str, found: Sequence[Found], pattern: Pattern | None) -> Row:
        """Return the tables of one trace, or of all seeds of a pattern: one for each residency."""
        studies: list[Study] = []
        tables = []
        step = self._of_residency
        for place, residency in enumerate(self.residencies):
            frames, *rows = zip(*(each[place * step :][:step] for each in found), strict=True)
            studies = [
                frame.study(ranked)
                for frame, ranked in zip(frames, zip(*rows, strict=True), strict=True)
            ]
            tables.append(self._table(studies, residency, pattern))
        sizes = {each[0].size for each in found}
        base = _mean([each.base for each in studies])
        return {
            "name": name,
            "pattern": None if pattern is None else pattern.about,
            "seeds": len(found),
            "base": base | {"block_bytes": sizes.pop() if len(sizes) == 1 else None},
            "tables": to_builtins(tables),
        }

    def _table(
        self, studies: Sequence[Study], residency: Residency | None, pattern: Pattern | None
    ) -> LabTable:
        capacities = [each.text for each in self.capacities]
        residency = residency or Residency(name=OWN)
        return table_of(studies, capacities, residency, seeds=pattern is not None)

    def document(
        self,
        cases: Sequence[Row],
        *,
        seed: int,
        source: Row,
        element_bits: int,
        config: Row | None,
    ) -> Document:
        """Return the document of these cases; blocks have elements of `element_bits` bits."""
        return lab_document(
            engine=engine_name(), seed=seed, source=source, cases=cases, config=config,
            policies=[str(variant) for variant in self.variants],
            capacities=[each.text for each in self.capacities],
            residencies=[self._residency_row(each, element_bits) for each in self.residencies],
        )  # fmt: skip

    def _residency_row(self, residency: Residency | None, element_bits: int) -> Row:
        """Return a residency with its ratio of stored to logical bytes, without scales."""
        if residency is None:
            return {"name": OWN, "ratio": 1.0, "group": 0, "cost_ns": None, "cost_source": None}
        return {
            "name": residency.name,
            "ratio": residency.bits / element_bits,
            "group": residency.group if residency.scaled else 0,
            "cost_ns": residency.cost_ns,
            "cost_source": None if residency.cost_ns is None else self.cost_source,
        }


class _PolicyReplays:
    """Frame and rows of each residency, in the order of the comparison."""

    def __init__(
        self,
        comparison: PolicyComparison,
        drawn: Drawn,
        element_bits: int,
        on_part: Callable[[], None],
    ) -> None:
        self._comparison, self._drawn, self._bits = comparison, drawn, element_bits
        self._on_part = on_part
        self._rooms = [each.room_bytes(drawn.accesses) for each in comparison.capacities]
        policies = rows_of(comparison.variants, refusing=comparison.refusing)
        self._rows = list(product(self._rooms, policies))
        self._place = -1
        self._replays: Replays | None = None

    def part(self, number: int) -> StudyFrame | StudyRow:
        place, row = divmod(number, 1 + len(self._rows))
        replays = self._of_residency(place)
        if not row:
            return replays.frame(self._rooms)
        room, policy = self._rows[row - 1]
        return replays.row(policy, room)

    def _of_residency(self, place: int) -> Replays:
        if self._replays is None or self._place != place:
            residency, accesses = self._comparison.residencies[place], self._drawn.accesses
            sizes, bits = accesses.sizes, self._bits
            self._replays = Replays(
                accesses,
                seed=self._drawn.seed,
                stored=None if residency is None else held_sizes(sizes, residency, bits),
                on_part=self._on_part,
            )
            self._place = place
        return self._replays


def _mean(bases: Sequence[Base]) -> Row:
    names = [field.name for field in fields(Base) if field.name != "batches"]
    return {name: fmean(getattr(base, name) for base in bases) for name in names}
