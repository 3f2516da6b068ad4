"""Values out of a document that anybody may have written: whatever is missing or misshapen is one
sentence that says where, and never a traceback."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kv_cache.config.schema import show
from kv_cache.metrics.histogram import BUCKETS, Histogram, bucket_of


class MisshapenError(Exception):
    """A value that is missing or not of its type; the message is a whole sentence."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the document and where it stands."""

    value: Any
    path: str

    def __getitem__(self, name: str) -> "Node":
        if not isinstance(self.value, Mapping):
            raise MisshapenError(f"{self.path} is {show(self.value)}, not a mapping")
        if name not in self.value:
            raise MisshapenError(f"{self.path} has no {name}")
        return Node(self.value[name], f"{self.path}.{name}")

    def find(self, path: str) -> "Node | None":
        """The value at a dotted path; None where it is not there or null."""
        node = self
        for name in path.split("."):
            if not isinstance(node.value, Mapping) or node.value.get(name) is None:
                return None
            node = node[name]
        return node

    def items(self) -> "Iterator[tuple[str, Node]]":
        if not isinstance(self.value, Mapping):
            raise MisshapenError(f"{self.path} is {show(self.value)}, not a mapping")
        for name in self.value:
            yield name, self[name]

    def mapping(self) -> dict[str, Any]:
        """Its keys and values, as a mapping of its own."""
        return {name: node.value for name, node in self.items()}

    def rows(self) -> "list[Node]":
        if not isinstance(self.value, list):
            raise MisshapenError(f"{self.path} is {show(self.value)}, not a list")
        return [Node(row, f"{self.path}[{n}]") for n, row in enumerate(self.value)]

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise MisshapenError(f"{self.path} is {show(self.value)}, not a number")
        return self.value

    def whole(self) -> int:
        """A whole number of 0 or more that a counter can have."""
        if type(self.value) is not int or not 0 <= self.value < 2**63:
            raise MisshapenError(
                f"{self.path} is {show(self.value)}, not a whole number of 0 or more"
            )
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise MisshapenError(f"{self.path} is {show(self.value)}, not text")
        return self.value

    def histogram(self) -> Histogram:
        pairs = _plain_pairs(self["buckets"].value)
        if pairs is None:  # and now with the place of what is wrong
            pairs = [
                (pair[0].whole(), pair[1].whole())
                for pair in (row.rows() for row in self["buckets"].rows())
                if len(pair) == 2
            ]
        buckets = [bucket for bucket, _ in pairs]
        count, total = self["count"].whole(), self["sum"].whole()
        ends = [self[name].whole() if pairs else 0 for name in ("min", "max")]
        sound = (
            len(pairs) == len(self["buckets"].rows())
            and all(low < high for low, high in pairwise(buckets))
            and all(bucket < BUCKETS and 0 < n < 2**48 for bucket, n in pairs)
            and sum(n for _, n in pairs) == count
            and count * ends[0] <= total <= count * ends[1]
            and (not pairs or [bucket_of(end) for end in ends] == [buckets[0], buckets[-1]])
        )
        if not sound:
            raise MisshapenError(f"{self.path} is no histogram whose buckets fit its other numbers")
        in_flight = self.find("in_flight")
        if in_flight is not None and (
            in_flight.find("in_flight") is not None or not in_flight.histogram().count
        ):
            raise MisshapenError(f"{in_flight.path} is no histogram of ages")
        return Histogram.from_json(self.value)


def _plain_pairs(rows: Any) -> list[tuple[int, int]] | None:
    """Pairs of numbers that a counter can have, if it is a list of nothing else: histograms are
    most of a result, so this is fast."""
    if not isinstance(rows, list) or not all(type(row) is list and len(row) == 2 for row in rows):
        return None
    numbers = [number for row in rows for number in row]
    if any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
        return None
    return [(bucket, count) for bucket, count in rows]
