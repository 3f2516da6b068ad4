"""What `lab` compares, and its numbers for one trace or one pattern as rows of the document."""

from collections.abc import Sequence
from dataclasses import fields
from statistics import fmean
from typing import Any

from msgspec import Struct, to_builtins

from kv_cache.app.compiled import engine_name
from kv_cache.app.study_files import Document
from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses
from kv_cache.lab.capacity import Capacity
from kv_cache.lab.patterns import Pattern
from kv_cache.lab.residency import Residency
from kv_cache.lab.study import Base, Study, study
from kv_cache.lab.table import LabTable, table_of
from kv_cache.lab.variants import PolicyVariant
from kv_cache.result.lab import OWN, lab_document

Row = dict[str, Any]


class Drawn(Struct, frozen=True, kw_only=True):
    """A sequence of accesses, and the seed of what is drawn while it is replayed."""

    seed: Seed
    accesses: Accesses


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

    def case(
        self, name: str, sequences: Sequence[Drawn], element_bits: int, pattern: Pattern | None
    ) -> Row:
        """Return the tables of one trace, or of all seeds of a pattern: one for each residency."""
        studies: list[Study] = []
        tables = []
        for residency in self.residencies:
            studies = [self._study(each, residency, element_bits) for each in sequences]
            tables.append(self._table(studies, residency, pattern))
        sizes = {each.accesses.size for each in sequences}
        base = _mean([each.base for each in studies])
        return {
            "name": name,
            "pattern": None if pattern is None else pattern.about,
            "seeds": len(sequences),
            "base": base | {"block_bytes": sizes.pop() if len(sizes) == 1 else None},
            "tables": to_builtins(tables),
        }

    def _study(self, drawn: Drawn, residency: Residency | None, element_bits: int) -> Study:
        accesses = drawn.accesses
        return study(
            accesses,
            self.variants,
            [each.room_bytes(accesses) for each in self.capacities],
            seed=drawn.seed,
            stored=None if residency is None else residency.sizes(accesses.sizes, element_bits),
            refusing=self.refusing,
        )

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


def _mean(bases: Sequence[Base]) -> Row:
    names = [field.name for field in fields(Base) if field.name != "batches"]
    return {name: fmean(getattr(base, name) for base in bases) for name in names}
