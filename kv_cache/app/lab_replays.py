"""The replays of a study of `lab`: each depends on its sequence alone, so that they are spread over
the cores where they take their time, and the result is the same to the byte."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from kv_cache.app.cores import Progress as Count
from kv_cache.app.cores import StoppedError, cores, processes_for
from kv_cache.app.study_files import Document
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import Progress
from kv_cache.core.callbacks import ignore
from kv_cache.core.residency import Residency
from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import Accesses
from kv_cache.lab.patterns import Pattern

Row = dict[str, Any]
Found = Sequence[Any]
"""What each part of a comparison found in one sequence."""

_WORTH_S = 2.0  # of replays that are left: to start processes takes half a second
_ENOUGH = 4  # whole sequences for each process; of fewer each is parted


class Drawn(Struct, frozen=True, kw_only=True):
    """A sequence of accesses, and the seed of what is drawn while it is replayed."""

    seed: Seed
    accesses: Accesses


class Sequences(Protocol):
    """What is replayed: of each case so many sequences, whose blocks have elements of
    `element_bits` bits."""

    @property
    def names(self) -> Sequence[str]:
        """Those of the cases."""

    @property
    def seeds(self) -> int: ...

    @property
    def element_bits(self) -> int: ...

    def drawn(self, case: int, number: int) -> Drawn:
        """Return one sequence, always the same. Raises ConfigError."""


class SequenceReplays(Protocol):
    """What is found in one sequence, each part for itself."""

    def part(self, number: int) -> Any: ...


class LabComparison(Protocol):
    """What is done with each sequence, in `parts`, and what is made of it."""

    @property
    def replays(self) -> int:
        """How often each sequence is replayed, without bounds."""

    @property
    def residencies(self) -> Sequence[Residency | None]:
        """What blocks are held in, None for as they are."""

    @property
    def parts(self) -> int: ...

    def of_sequence(
        self, drawn: Drawn, element_bits: int, on_part: Callable[[], None]
    ) -> SequenceReplays:
        """`on_part` is called on the way, and may raise."""

    def case(self, name: str, found: Sequence[Found], pattern: Pattern | None) -> Row:
        """Return what all sequences of a trace or a pattern come to."""

    def document(
        self, cases: Sequence[Row], *, seed: int, source: Row, element_bits: int,
        config: Row | None,
    ) -> Document:  # fmt: skip
        """Return the document of these cases; blocks have elements of `element_bits` bits."""


class _ReplayCell(NamedTuple):
    """Parts [first, after) of one sequence."""

    case: int
    number: int
    first: int
    after: int


class _Replaying:
    """Replays in one process, which has one sequence at a time."""

    def __init__(self, comparison: LabComparison, sequences: Sequences) -> None:
        self._comparison, self._sequences = comparison, sequences
        self._at: tuple[int, int] | None = None
        self._replays: SequenceReplays | None = None
        self._tell: Callable[[], None] = ignore

    def found(self, cell: _ReplayCell, progress: Count) -> list[Any]:
        results: list[Any] = []
        self._tell = lambda: progress(len(results))
        replays = self._of(cell.case, cell.number)
        for number in range(cell.first, cell.after):
            results.append(replays.part(number))
            progress(len(results))
        return results

    def _of(self, case: int, number: int) -> SequenceReplays:
        if self._replays is None or self._at != (case, number):
            self._replays = None  # never is there the room of two
            drawn = self._sequences.drawn(case, number)
            bits = self._sequences.element_bits
            self._replays = self._comparison.of_sequence(drawn, bits, lambda: self._tell())
            self._at = case, number
        return self._replays


def _found(replaying: _Replaying, cell: _ReplayCell, progress: Count) -> list[Any]:
    return replaying.found(cell, progress)


def replay_all(
    comparison: LabComparison, sequences: Sequences, caught: Interrupts, progress: Progress
) -> Iterator[Sequence[Found]]:
    """Yield of each case what was found in its sequences. Raises ConfigError, and StoppedError
    after a signal that came while processes were at work."""
    parts, seeds = comparison.parts, sequences.seeds
    count = len(sequences.names) * seeds
    step = parts if count >= _ENOUGH * processes_for(count) else 1
    cells = [
        _ReplayCell(case, number, first, min(parts, first + step))
        for case in range(len(sequences.names))
        for number in range(seeds)
        for first in range(0, parts, step)
    ]
    results: list[Any] = []
    with progress.bar("replaying", unit="replays", total=count * parts) as bar:

        def here(done: int) -> None:
            bar.to(before + done)

        replaying, began_s = _Replaying(comparison, sequences), time.monotonic()
        for at, cell in enumerate(cells):
            before, left = len(results), len(cells) - at
            if at and (time.monotonic() - began_s) / at * left > _WORTH_S:
                together = processes_for(left)
                if together > 1:
                    del replaying
                    results += _spread(together, comparison, sequences, cells[at:], caught, here)
                    break
            results += replaying.found(cell, here)
    each = [results[at : at + parts] for at in range(0, len(results), parts)]
    for at in range(0, count, seeds):
        yield each[at : at + seeds]


def _spread(
    together: int, comparison: LabComparison, sequences: Sequences, cells: Sequence[_ReplayCell],
    caught: Interrupts, progress: Count,
) -> list[Any]:  # fmt: skip
    """Replay in so many processes. A signal is only noted meanwhile: what its handler raises could
    come while the pool waits for its own thread, which then never ends."""
    raising, caught.on_signal = caught.on_signal, ignore
    try:
        with cores(together, _Replaying, comparison, sequences) as processes:
            each = processes.in_order(_found, ((cell,) for cell in cells), caught, progress)
            results = [one for some in each for one in some]
    finally:
        caught.on_signal = raising
    if caught.came:
        raise StoppedError
    return results
