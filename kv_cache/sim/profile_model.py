"""A measured device as a model: the grid of `kv-cache.py probe`, and any point in between.

Between the points of the measured grid the service time is a straight line of its logarithm over
the logarithm of the object's size and of the concurrency, and a straight line over the share of
reads: a device whose bandwidth is constant is met exactly. Outside the grid nothing is known, and
nothing is guessed: `OutsideProfileError`, unless `extrapolate` was asked for, when every answer
from outside is counted.

The share of reads has no outside: it is between 0 and 1. Where no read was measured (a share of 0
has none), the nearest share with reads is taken; so do writes.

Bursts show in which order a device serves: `evenness`.

Beside its time in the device an operation has the host's: what the probe's threads did between two
system calls. It follows from how many operations were in flight on average.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import Generic, TypeVar

from kv_cache.config.profile import QUANTILES, Cell, Profile
from kv_cache.core.errors import UsageError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import human_bytes

Value = TypeVar("Value")


class OutsideProfileError(UsageError):
    """A size or a concurrency that was not measured, nor lies between two that were."""


class _Curve:
    """Mean time over the object's size, at one concurrency and share of reads."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self.sizes = sorted(points)
        self._logs = [log(size) for size in self.sizes]
        self._times = [log(points[size]) for size in self.sizes]

    def covers(self, nbytes: int) -> bool:
        return self.sizes[0] <= nbytes <= self.sizes[-1]

    def log_ns(self, nbytes: int) -> float:
        """Interpolate; outside, smaller objects take what the smallest does, and larger ones have
        the largest's bandwidth."""
        if nbytes <= self.sizes[0]:
            return self._times[0]
        if nbytes > self.sizes[-1]:
            return self._times[-1] + log(nbytes) - self._logs[-1]
        at = bisect_left(self.sizes, nbytes)
        if self.sizes[at] == nbytes:
            return self._times[at]
        part = (log(nbytes) - self._logs[at - 1]) / (self._logs[at] - self._logs[at - 1])
        return _between(self._times[at - 1], self._times[at], part)


class _BySize(Generic[Value]):
    """Values of the object sizes that were measured, asked for by any size."""

    def __init__(self, values: Mapping[int, Value]) -> None:
        self._values = values
        self._nearest: dict[int, Value] = {}

    def nearest(self, nbytes: int) -> Value | None:
        """Return the value of the nearest size, by ratio; None if none was measured."""
        value = self._nearest.get(nbytes)
        if value is None and self._values:
            size = min(self._values, key=lambda size: (abs(log(size / nbytes)), size))
            value = self._nearest[nbytes] = self._values[size]
        return value


Curves = dict[float, dict[int, _Curve]]
"""By share of reads, then by concurrency."""

_KINDS = (OpKind.READ, OpKind.WRITE)


class ProfileModel:
    """Answers how long an operation takes, inside the grid."""

    def __init__(self, profile: Profile, *, extrapolate: bool | None = None) -> None:
        """`extrapolate` is None where nobody can ask for it."""
        self._name = profile.name
        self._extrapolate = extrapolate
        self.extrapolated = 0
        """Answers for sizes that were not measured."""
        # As the device answers data that was not read since it was written.
        fresh = [cell for cell in profile.cells if not cell.repeated]
        self._curves = {kind: _curves(_means(fresh, kind)) for kind in _KINDS}
        self._totals = {kind: _curves(_with_host(fresh, kind)) for kind in _KINDS}
        self._removals = _removals(fresh)
        self._evenness = {kind: _BySize(_evenness(profile, kind, self)) for kind in _KINDS}
        self._shapes = {kind: _BySize(_shapes(fresh, kind)) for kind in _KINDS}

    def service_ns(self, kind: OpKind, nbytes: int, concurrency: float, read_share: float) -> int:
        """Return mean time of one operation inside system calls, with `concurrency` of them in
        flight (itself included), of which `read_share` are reads. Raises OutsideProfileError."""
        return round(self._time(self._curves[kind], kind, nbytes, concurrency, read_share))

    def total_ns(self, kind: OpKind, nbytes: int, concurrency: float, read_share: float) -> float:
        """Return the same with the host's share: how long a thread is busy with it."""
        return self._time(self._totals[kind], kind, nbytes, concurrency, read_share)

    def removal_ns(self, nbytes: int) -> int:
        """Return mean time of a delete; 0 if none was measured."""
        return 0 if self._removals is None else round(exp(self._removals.log_ns(nbytes)))

    def evenness(self, kind: OpKind, nbytes: int) -> float:
        """Return 1 if all that is in flight proceeds at the same pace, 0 if the device serves in
        the order in which it was asked; by the burst of the nearest size, 0 if none was
        measured."""
        evenness = self._evenness[kind].nearest(nbytes)
        return 0.0 if evenness is None else evenness

    def spread(self, kind: OpKind, nbytes: int, part: float) -> float:
        """Return how many times the mean an operation takes, alone, that is longer than a `part` of
        all: by the quantiles of the nearest size that was measured; 1 if there are none."""
        shape = self._shapes[kind].nearest(nbytes)
        return 1.0 if shape is None else _quantile(shape, part)

    def depth(self, smallest: int, largest: int) -> int:
        """Return the highest concurrency up to which both kinds were measured for all sizes from
        `smallest` to `largest` bytes. Raises OutsideProfileError if there is none."""
        groups = [curves for kind in self._curves.values() for curves in kind.values()]
        deepest = 0
        for concurrency in sorted(set(groups[0]).intersection(*groups)):
            covers = all(g[concurrency].covers(n) for g in groups for n in (smallest, largest))
            if not (covers or self._extrapolate):
                break
            deepest = concurrency
        none_alone = any(min(group) > 1 for group in groups)
        if not deepest or none_alone:
            size = largest if self.covers(smallest) else smallest
            raise self._outside(OpKind.READ, size, 1, by_size=not none_alone)
        return deepest

    def covers(self, nbytes: int) -> bool:
        """Whether nothing has to be extrapolated for objects of this size, one at a time."""
        groups = (group for kind in self._curves.values() for group in kind.values())
        return all(1 in group and group[1].covers(nbytes) for group in groups)

    def _time(
        self, curves: Curves, kind: OpKind, nbytes: int, concurrency: float, read_share: float
    ) -> float:
        shares = sorted(curves)
        if not shares:
            raise self._outside(kind, nbytes, concurrency)
        share = min(max(read_share, shares[0]), shares[-1])
        low, high = _neighbours(shares, share)
        below = self._at(curves[low], kind, nbytes, concurrency)
        if low == high:
            return below
        above = self._at(curves[high], kind, nbytes, concurrency)
        return _between(below, above, (share - low) / (high - low))

    def _at(
        self, curves: Mapping[int, _Curve], kind: OpKind, nbytes: int, concurrency: float
    ) -> float:
        measured = sorted(curves)
        if not measured[0] <= concurrency <= measured[-1]:
            raise self._outside(kind, nbytes, concurrency)
        low, high = _neighbours(measured, concurrency)
        if not (curves[int(low)].covers(nbytes) and curves[int(high)].covers(nbytes)):
            if not self._extrapolate:
                raise self._outside(kind, nbytes, concurrency, by_size=True)
            self.extrapolated += 1
        below = curves[int(low)].log_ns(nbytes)
        if low == high:
            return exp(below)
        part = (log(concurrency) - log(low)) / (log(high) - log(low))
        return exp(_between(below, curves[int(high)].log_ns(nbytes), part))

    def _outside(
        self, kind: OpKind, nbytes: int, concurrency: float, *, by_size: bool = False
    ) -> OutsideProfileError:
        """`by_size`: not by the concurrency, beyond which nothing is ever extrapolated."""
        measured = "; ".join(self._extents()) or "nothing"
        ways = "run probe with --sizes and --concurrency that reach there, or ask for other objects"
        if self._extrapolate is not None:
            ways += " (--block-tokens, --model)"
        if by_size and self._extrapolate is False:
            ways += ", or go on with --extrapolate, which marks every number that it touches"
        return OutsideProfileError(
            f"profile {self._name}: {kind}s of {human_bytes(nbytes)} at concurrency "
            f"{concurrency:g} are asked of it, but it has measured {measured}, and nothing is "
            f"extrapolated; {ways}"
        )

    def _extents(self) -> Iterator[str]:
        """Yield `256 KiB to 80.0 MiB at concurrency 1 to 16`, for each range of sizes."""
        ranges: dict[tuple[int, int], list[int]] = {}
        for kind in self._curves.values():
            for group in kind.values():
                for concurrency, curve in group.items():
                    ranges.setdefault((curve.sizes[0], curve.sizes[-1]), []).append(concurrency)
        for (small, large), extent in sorted(ranges.items()):
            yield (
                f"{human_bytes(small)} to {human_bytes(large)} at concurrency {min(extent)} to "
                f"{max(extent)}"
            )


# --- curves out of cells ---------------------------------------------------------------------

Points = Iterator[tuple[Cell, float]]


def _means(cells: Sequence[Cell], kind: OpKind) -> Points:
    for cell in cells:
        service = cell.of(kind)
        if service is not None:
            yield cell, service.mean_ns


def _with_host(cells: Sequence[Cell], kind: OpKind) -> Points:
    """Yield times with the host's share. A thread is busy with an operation for `concurrency /
    in_flight` of its time in the device; if it made room by a delete, that took its part."""
    for cell, mean_ns in _means(cells, kind):
        reads = cell.reads.mean_ns if cell.reads is not None else 0
        writes = cell.writes.mean_ns if cell.writes is not None else 0
        deletes = cell.deletes.mean_ns if cell.deletes is not None else 0
        each = cell.read_share * reads + (1 - cell.read_share) * writes
        idle = each * max(0.0, cell.concurrency / cell.in_flight - 1)
        yield cell, mean_ns + max(0.0, idle - (1 - cell.read_share) * deletes)


def _curves(points: Points) -> Curves:
    cells: dict[float, dict[int, dict[int, float]]] = {}
    for cell, time_ns in points:
        by_depth = cells.setdefault(cell.read_share, {})
        by_depth.setdefault(cell.concurrency, {})[cell.object_bytes] = time_ns
    return {
        share: {depth: _Curve(sizes) for depth, sizes in by_depth.items()}
        for share, by_depth in cells.items()
    }


def _removals(cells: Sequence[Cell]) -> _Curve | None:
    """Build the curve of deletes by size, whatever else was in flight."""
    sums: dict[int, list[tuple[int, int]]] = {}
    for cell in cells:
        if cell.deletes is not None:
            deletes = (cell.deletes.operations, cell.deletes.mean_ns)
            sums.setdefault(cell.object_bytes, []).append(deletes)
    if not sums:
        return None
    return _Curve(
        {
            size: max(1.0, sum(n * mean for n, mean in deletes) / sum(n for n, _ in deletes))
            for size, deletes in sums.items()
        }
    )


def _evenness(profile: Profile, kind: OpKind, model: "ProfileModel") -> dict[int, float]:
    """Compute by size how far the mean of a burst is from that of a device in order, on the way to
    that of one where all end together."""
    evenness = {}
    share = 1.0 if kind is OpKind.READ else 0.0
    for burst in profile.bursts:
        count = burst.concurrency
        if burst.kind != kind or count < 2:
            continue
        try:
            alone = model.service_ns(kind, burst.object_bytes, 1, share)
        except OutsideProfileError:
            continue
        at_once = min(max(1.0, count * alone / burst.last_ns), float(count))
        in_order = (count + at_once) / (2 * count)
        if in_order < 1:
            part = (burst.mean_ns / burst.last_ns - in_order) / (1 - in_order)
            evenness[burst.object_bytes] = min(1.0, max(0.0, part))
    return evenness


def _shapes(cells: Sequence[Cell], kind: OpKind) -> dict[int, tuple[float, ...]]:
    """Compute by size, for operations that were alone, the quantiles over the mean, such that their
    own mean is 1. What waiting for others adds is the model's to say."""
    shapes = {}
    for cell in cells:
        service = cell.of(kind)
        alone = cell.concurrency == 1 and not 0 < cell.read_share < 1
        if alone and service is not None and service.quantiles_ns:
            mean_ns = _mean_of(service.quantiles_ns)
            shapes[cell.object_bytes] = tuple(time / mean_ns for time in service.quantiles_ns)
    return shapes


_PARTS = (0.0, *(percent / 100 for percent in QUANTILES), 1.0)


def _quantile(shape: Sequence[float], part: float) -> float:
    """Interpolate between the quantiles, level beyond the first and the last."""
    at = bisect_left(_PARTS, part)
    if at == 0:
        return shape[0]
    values = (shape[0], *shape, shape[-1])
    within = (part - _PARTS[at - 1]) / (_PARTS[at] - _PARTS[at - 1])
    return _between(values[at - 1], values[at], within)


def _mean_of(quantiles: Sequence[int]) -> float:
    values = (quantiles[0], *quantiles, quantiles[-1])
    return sum(
        (high - low) * (a + b) / 2
        for low, high, a, b in zip(_PARTS, _PARTS[1:], values, values[1:], strict=False)
    )


def _neighbours(values: Sequence[float], value: float) -> tuple[float, float]:
    """Return the measured values on both sides; the same twice where it was measured itself."""
    at = bisect_left(values, value)
    return (values[at], values[at]) if values[at] == value else (values[at - 1], values[at])


def _between(below: float, above: float, part: float) -> float:
    return below + (above - below) * part
