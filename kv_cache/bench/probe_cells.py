"""What a step of a probe comes to: from what each thread did to a point of the grid.

A thread's first operation of a step meets a device that is not yet busy, so it does not count. The
bandwidth is that of the time in which all threads were at work: each operation counts with the
part of it that lies inside.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kv_cache.config.profile import QUANTILES, Cell, Service
from kv_cache.core.effect import Leg
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import NS_PER_S, NS_PER_US
from kv_cache.metrics.histogram import Histogram

LEAST_PER_THREAD = 3
"""Operations of a thread in a step, the first of which does not count."""

Instants = npt.NDArray[np.int64]


def objects_needed(concurrency: int) -> int:
    """Count the objects that give every thread something unread to read, and room to
    write."""
    return (LEAST_PER_THREAD + 1) * concurrency


class Timed(NamedTuple):
    """The operations of one thread, in order: an array for each of their numbers."""

    started_ns: Instants
    finished_ns: Instants
    device_ns: Instants
    reads: npt.NDArray[np.bool_]

    @classmethod
    def of_legs(cls, legs: Sequence[Leg]) -> "Timed":
        return cls(
            np.array([leg.started_ns for leg in legs], np.int64),
            np.array([leg.finished_ns for leg in legs], np.int64),
            np.array([leg.device_ns for leg in legs], np.int64),
            np.array([leg.kind is OpKind.READ for leg in legs], np.bool_),
        )


def summarise(
    done: Sequence[Timed],
    nbytes: int,
    *,
    read_share: float,
    repeated: bool,
    data_path: str,
    deletes: Sequence[int] = (),
    device_bytes: int | None = None,
) -> Cell | None:
    """Compute one point of the grid from what each thread did; None if they were never all at work,
    or one kind that should be there was not counted."""
    if any(len(each.started_ns) < 2 for each in done):
        return None
    from_ns = max(int(each.finished_ns[0]) for each in done)
    until_ns = min(int(each.finished_ns[-1]) for each in done)
    if until_ns <= from_ns:
        return None
    counted = np.concatenate([each.device_ns[1:] for each in done])
    are_reads = np.concatenate([each.reads[1:] for each in done])
    reads, writes = service_of(counted[are_reads]), service_of(counted[~are_reads])
    if (read_share > 0 and reads is None) or (read_share < 1 and writes is None):
        return None
    inside = [_parts_inside(each, from_ns, until_ns) for each in done]
    busy_ns = sum(float(parts @ each.device_ns) for parts, each in zip(inside, done, strict=True))
    moved_bytes = nbytes * sum(float(parts.sum()) for parts in inside)
    return Cell(
        object_bytes=nbytes,
        concurrency=len(done),
        read_share=read_share,
        data="repeated" if repeated else "first",
        bytes_per_second=moved_bytes / (until_ns - from_ns) * NS_PER_S,
        in_flight=busy_ns / (until_ns - from_ns),
        reads=reads,
        writes=writes,
        deletes=service_of(np.array(deletes, np.int64)),
        data_path=data_path,
        device_bytes=device_bytes,
    )


def _parts_inside(each: Timed, from_ns: int, until_ns: int) -> npt.NDArray[np.float64]:
    inside = np.minimum(each.finished_ns, until_ns) - np.maximum(each.started_ns, from_ns)
    whole = np.maximum(1, each.finished_ns - each.started_ns)
    parts: npt.NDArray[np.float64] = np.maximum(0, inside) / whole
    return parts


def service_of(device_ns: Instants) -> Service | None:
    """Return the mean and percentiles of times; None of none."""
    times = Histogram()
    for value in device_ns.tolist():
        times.add(value)
    if not times.count:
        return None
    return Service(
        operations=times.count,
        mean_us=us(times.mean),
        p50_us=us(times.at_rank(50)),
        p99_us=us(times.at_rank(99)),
        quantiles_us=tuple(us(times.at_rank(p)) for p in QUANTILES),
    )


def us(ns: float | None) -> float:
    """Return microseconds, in whole nanoseconds of which there is one at least."""
    return max(1, round(ns or 0)) / NS_PER_US
