"""A measured device as a model: what `kv-cache.py probe` found, asked for any point in between.

Between the points of the measured grid the service time is a straight line of its logarithm over
the logarithm of the object's size and of the concurrency, and a straight line over the share of
reads: a device whose bandwidth is constant is met exactly. Outside the grid nothing is known, and
nothing is guessed: `OutsideProfileError`.

The share of reads has no outside: it is between 0 and 1. Where no read was measured (a share of 0
has none), the nearest share with reads stands for them; so do writes.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log

from kv_cache.config.profile import Cell, Profile
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import human_bytes


class OutsideProfileError(UsageError):
    """A size or a concurrency that was not measured, nor lies between two that were."""


class _Curve:
    """Mean service time over the object's size, at one concurrency and share of reads."""

    def __init__(self, points: Mapping[int, int]) -> None:
        self.sizes = sorted(points)
        self._logs = [log(size) for size in self.sizes]
        self._times = [log(points[size]) for size in self.sizes]

    def covers(self, nbytes: int) -> bool:
        return self.sizes[0] <= nbytes <= self.sizes[-1]

    def log_ns(self, nbytes: int) -> float:
        at = bisect_left(self.sizes, nbytes)
        if self.sizes[at] == nbytes:
            return self._times[at]
        part = (log(nbytes) - self._logs[at - 1]) / (self._logs[at] - self._logs[at - 1])
        return _between(self._times[at - 1], self._times[at], part)


Curves = dict[float, dict[int, _Curve]]
"""By share of reads, then by concurrency."""


class ProfileModel:
    """Answers how long an operation takes, inside the grid."""

    def __init__(self, profile: Profile) -> None:
        self._name = profile.name
        # As the device answers data that was not read since it was written.
        fresh = [cell for cell in profile.cells if not cell.repeated]
        self._curves = {kind: _curves(fresh, kind) for kind in (OpKind.READ, OpKind.WRITE)}

    def service_ns(self, kind: OpKind, nbytes: int, concurrency: float, read_share: float) -> int:
        """Mean time of one operation, with `concurrency` of them in flight (itself included), of
        which `read_share` are reads. Raises OutsideProfileError."""
        curves = self._curves[kind]
        shares = sorted(curves)
        if not shares:
            raise self._outside(kind, nbytes, concurrency)
        share = min(max(read_share, shares[0]), shares[-1])
        low, high = _neighbours(shares, share)
        below = self._at(curves[low], kind, nbytes, concurrency)
        if low == high:
            return round(below)
        above = self._at(curves[high], kind, nbytes, concurrency)
        return round(_between(below, above, (share - low) / (high - low)))

    def depth(self, smallest: int, largest: int) -> int:
        """The highest concurrency up to which both kinds were measured for all sizes from
        `smallest` to `largest` bytes. Raises OutsideProfileError where there is none."""
        groups = [curves for kind in self._curves.values() for curves in kind.values()]
        deepest = 0
        for concurrency in sorted(set(groups[0]).intersection(*groups)):
            if not all(g[concurrency].covers(n) for g in groups for n in (smallest, largest)):
                break
            deepest = concurrency
        if not deepest or any(min(group) > 1 for group in groups):
            size = smallest if self._covered(smallest, 1) is False else largest
            raise self._outside(OpKind.READ, size, 1)
        return deepest

    def _covered(self, nbytes: int, concurrency: int) -> bool:
        return all(
            concurrency in group and group[concurrency].covers(nbytes)
            for kind in self._curves.values()
            for group in kind.values()
        )

    def _at(
        self, curves: Mapping[int, _Curve], kind: OpKind, nbytes: int, concurrency: float
    ) -> float:
        measured = sorted(curves)
        if not measured[0] <= concurrency <= measured[-1]:
            raise self._outside(kind, nbytes, concurrency)
        low, high = _neighbours(measured, concurrency)
        if not (curves[int(low)].covers(nbytes) and curves[int(high)].covers(nbytes)):
            raise self._outside(kind, nbytes, concurrency)
        below = curves[int(low)].log_ns(nbytes)
        if low == high:
            return exp(below)
        part = (log(concurrency) - log(low)) / (log(high) - log(low))
        return exp(_between(below, curves[int(high)].log_ns(nbytes), part))

    def _outside(self, kind: OpKind, nbytes: int, concurrency: float) -> OutsideProfileError:
        measured = "; ".join(self._extents()) or "nothing"
        return OutsideProfileError(
            f"profile {self._name}: {kind}s of {human_bytes(nbytes)} at concurrency "
            f"{concurrency:g} are asked of it, but it has measured {measured}, and nothing is "
            "extrapolated; run probe with --sizes-mib that reach there, or ask for other objects "
            "(--block-tokens, --model)"
        )

    def _extents(self) -> Iterator[str]:
        """`256 KiB to 80.0 MiB at concurrency 1 to 16`, for each range of sizes."""
        ranges: dict[tuple[int, int], list[int]] = {}
        for kind in self._curves.values():
            for group in kind.values():
                for concurrency, curve in group.items():
                    ranges.setdefault((curve.sizes[0], curve.sizes[-1]), []).append(concurrency)
        for (small, large), found in sorted(ranges.items()):
            yield (
                f"{human_bytes(small)} to {human_bytes(large)} at concurrency {min(found)} to "
                f"{max(found)}"
            )


def _curves(cells: Sequence[Cell], kind: OpKind) -> Curves:
    points: dict[float, dict[int, dict[int, int]]] = {}
    for cell in cells:
        service = cell.of(kind)
        if service is not None:
            by_depth = points.setdefault(cell.read_share, {})
            by_depth.setdefault(cell.concurrency, {})[cell.object_bytes] = service.mean_ns
    return {
        share: {depth: _Curve(sizes) for depth, sizes in by_depth.items()}
        for share, by_depth in points.items()
    }


def _neighbours(values: Sequence[float], value: float) -> tuple[float, float]:
    """The measured values on both sides; the same twice where it was measured itself."""
    at = bisect_left(values, value)
    return (values[at], values[at]) if values[at] == value else (values[at - 1], values[at])


def _between(below: float, above: float, part: float) -> float:
    return below + (above - below) * part
