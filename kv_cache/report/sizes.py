"""Sizes of the objects that storage moved in the window, as rows for whoever shows them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kv_cache.core.units import MISSING, human_bytes
from kv_cache.result.metrics import number_at

Json = Mapping[str, Any]

HEADS = ("objects", "min", "mean", "p50", "p95", "max")


class SizeRow(NamedTuple):
    """One side of storage: how many objects, their sizes for people, and how many of them are from
    a power of two to below the next, by that power in bytes."""

    kind: str
    objects: int
    sizes: tuple[str, ...]
    powers: tuple[tuple[int, int], ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Under `HEADS`."""
        return f"{self.objects:,}", *self.sizes


def size_rows(own: Json) -> Iterator[SizeRow]:
    """Of each side that moved whole objects; results before 0.8.0 have none."""
    for kind in ("read", "write"):
        at = f"tiers.storage.{kind}.object_bytes"
        count = number_at(own, f"{at}.objects")
        if not count:
            continue
        sizes = (number_at(own, f"{at}.{name}") for name in HEADS[1:])
        yield SizeRow(
            kind,
            int(count),
            tuple(MISSING if size is None else human_bytes(size) for size in sizes),
            tuple(_pairs(own["tiers"]["storage"][kind]["object_bytes"].get("powers_of_two"))),
        )


def _pairs(rows: Any) -> Iterator[tuple[int, int]]:
    """Those that are pairs of whole numbers: the document may be anybody's."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and [type(each) for each in row] == [int, int]:
            yield row[0], row[1]


def about_objects(own: Json) -> str:
    """What an object is made of, and how many there are on storage at the end."""
    token, entries = (
        number_at(own, "model.bytes_per_token"),
        number_at(own, "tiers.storage.entries"),
    )
    said = [] if token is None else [f"{token:,.0f} bytes a token"]
    said += [] if entries is None else [f"{entries:,.0f} objects on storage at the end"]
    return ", ".join(said)


def shares(row: SizeRow) -> list[tuple[str, float]]:
    """The share of objects from each power of two to below the next."""
    return [(human_bytes(low), count / row.objects) for low, count in row.powers]


def size_lines(own: Json) -> list[str]:
    """For a terminal."""
    lines = []
    for row in size_rows(own):
        named = zip(HEADS[1:], row.sizes, strict=True)
        told = ", ".join(f"{name} {size}" for name, size in named if name != "p50")
        lines.append(f"{row.kind:<6}{row.objects:,}: {told}")
        parts = shares(row)
        if len(parts) > 1:
            told = ", ".join(f"{low} {100 * share:.0f} %" for low, share in parts)
            lines.append(f"      from {told}")
    if lines and (about := about_objects(own)):
        lines.append(about)
    return [f"{'objects' if n == 0 else '':<10}{line}" for n, line in enumerate(lines)]
