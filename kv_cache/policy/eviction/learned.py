"""Learned: evict what a model expects to be asked for the latest (after Song et al., "Learning
relaxed Belady for content distribution network caching", NSDI 2020, with the features of
cklxx/kvcache-sim; see histories.py). The model is LightGBM's (the extra `learned`), of the
logarithm of the accesses until the next use.

It learns from the accesses of its own tier, and knows nothing of what is to come. Of every
`LEARN_EVERY` accesses one present copy is noted, as a candidate for eviction sees it; the lesson is
drawn when twice as many accesses have passed as copies were ever present, whether its content was
asked for meanwhile (also after it was evicted) or not: then it counts as `NEVER`. To learn from
what came back alone would teach that all comes back soon. The model is made anew when twice as many
accesses have come as when it was made, and every `TRAIN_EVERY` at the latest, from the last
`LESSONS` lessons. Before the first model this is LRU.

It is asked at every eviction, of a sample of `SAMPLE` copies at once, that are spread over all
copies and are others after each access; the order of the victims is that of the first sample, then
of the next. So the cost does not depend on how many copies there are: O(1) a call and a sample a
victim; but a sample is some tenths of a millisecond, and a model some tens of milliseconds, in the
call that makes it. All chance is arithmetic on the number of accesses: the same calls have the same
order, on machines where LightGBM computes the same."""

import importlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, log1p
from typing import Any

import numpy as np

from kv_cache.core.block import Key
from kv_cache.core.errors import UsageError
from kv_cache.installing import install_hint
from kv_cache.policy.eviction.base import HoldsCopies, Item
from kv_cache.policy.eviction.histories import Histories, Matrix
from kv_cache.policy.eviction.numbers import MOST, check

SAMPLE = 32
LEARN_EVERY = 8
BATCH = 32  # noted at once, after LEARN_EVERY * BATCH accesses
LESSONS = 4096
LEAST_LESSONS = 200
FIRST_TRAINING = 1024  # accesses
TRAIN_EVERY = 16_384
NEVER = 1e6  # accesses until the next use, or ten times as many as were waited for
TREES = 32
MODEL: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 31,
    "learning_rate": 0.1,
    "max_bin": 63,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}
_MIX = 0x9E3779B97F4A7C15  # multiplies a count into a number that looks like chance


@dataclass(slots=True, eq=False)
class _Note:
    row: int
    when: int
    features: Matrix
    after: int | None = None  # its next use


class Learned(HoldsCopies):
    NUMBERS = (("sample", SAMPLE), ("first_training", FIRST_TRAINING))

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        sample: int = SAMPLE,
        first_training: int = FIRST_TRAINING,
    ) -> None:
        check(sample=(sample, 1, MOST), first_training=(first_training, 1, MOST))
        self._lightgbm = _library()
        self.model: Any = None  # a Booster
        self._size = sample
        self._patience = self._next_training = first_training
        self._accesses = 0
        self._most = 0  # copies that were ever present
        self._histories = Histories()
        self._rows: OrderedDict[int, int] = OrderedDict()  # of present copies, by recency
        super().__init__(self._rows)
        self._keys: dict[int, Key] = {}
        self._ghosts: OrderedDict[Key, int] = OrderedDict()  # rows of content that is gone
        self._waiting: deque[_Note] = deque()  # by age
        self._noted: dict[int, _Note] = {}  # by row, until its next use
        self.lessons: deque[tuple[Matrix, float]] = deque(maxlen=LESSONS)
        self._seats: list[int] = []  # present copies in no order, and those that have just gone
        self._seat: dict[int, int] = {}
        self._left: list[int] = []  # seats of those
        self._samples: dict[int, list[int]] = {}  # ranked since the last change but evictions
        self.consulted = self.unlike_lru = self.trainings = 0

    def insert(self, item: Item) -> None:
        self._settle()
        row = self._ghosts.pop(item.key, None)
        if row is None:
            row = self._histories.take(item.depth)
        self._rows[item.copy_id] = row
        self._keys[item.copy_id] = item.key
        self._seat[item.copy_id] = len(self._seats)
        self._seats.append(item.copy_id)
        self._most = max(self._most, len(self._rows))
        self._used(row)

    def hit(self, copy_id: int) -> None:
        self._settle()
        self._rows.move_to_end(copy_id)
        self._used(self._rows[copy_id])

    def remove(self, copy_id: int, *, evicted: bool) -> None:
        if evicted and self.model is not None:
            self.consulted += 1
            self.unlike_lru += copy_id != next(iter(self._rows))
        row, key = self._rows.pop(copy_id), self._keys.pop(copy_id)
        self._left.append(self._seat.pop(copy_id))
        if evicted:
            self._ghosts[key] = row
            if len(self._ghosts) > max(self._most, BATCH):
                self._forget(self._ghosts.popitem(last=False)[1])
        else:
            self._forget(row)
            self._settle()

    def victims(self) -> Iterator[int]:
        if self.model is None:
            yield from self._rows
            return
        for number in range(-(-len(self._seats) // self._size)):
            if number not in self._samples:
                self._samples[number] = self._rank(self._sample(number, self._size))
            for copy_id in self._samples[number]:
                if copy_id in self._rows:
                    yield copy_id

    @property
    def known(self) -> int:
        """Contents of which a history is kept."""
        return len(self._rows) + len(self._ghosts)

    def notes(self) -> Mapping[str, int]:
        return {
            "trainings": self.trainings,
            "consulted": self.consulted,
            "unlike_lru": self.unlike_lru,
        }

    def _settle(self) -> None:
        """The seats that evictions have left are filled from the end, so that samples change."""
        self._samples.clear()
        for seat in sorted(self._left, reverse=True):
            last = self._seats.pop()
            if seat < len(self._seats):
                self._seats[seat] = last
                self._seat[last] = seat
        self._left.clear()

    def _sample(self, number: int, size: int) -> list[int]:
        """Present copies on the seats from `number` times `size` of a walk that comes to each seat
        once, and is another after each access."""
        seats = self._seats
        chance = (self._accesses * _MIX) % (1 << 64) >> 16
        start, stride = chance % len(seats), 1 + (chance >> 8) % len(seats)
        while gcd(stride, len(seats)) != 1:
            stride += 1
        walk = range(number * size, min((number + 1) * size, len(seats)))
        sample = (seats[(start + step * stride) % len(seats)] for step in walk)
        return [copy_id for copy_id in sample if copy_id in self._rows]

    def _rank(self, copies: list[int]) -> list[int]:
        """Return first what is expected to be used the latest; of equals, the least recent."""
        if not copies:
            return []
        rows = [self._rows[copy_id] for copy_id in copies]
        features = self._histories.features(rows, self._accesses)
        expected = self.model.predict(features, num_threads=1)
        order = np.lexsort((self._histories.last_use(rows), -expected))
        return [copies[at] for at in order.tolist()]

    # --- learning ------------------------------------------------------------------------------

    def _used(self, row: int) -> None:
        self._accesses = now = self._accesses + 1
        note = self._noted.pop(row, None)
        if note is not None:
            note.after = now - note.when
        self._histories.use(row, now)
        if now % (LEARN_EVERY * BATCH) == 0:
            self._note()
        if now >= self._next_training:
            self._train()

    def _note(self) -> None:
        """One note at a time of a copy, so that the same wait is not learned twice."""
        self._conclude()
        rows = [self._rows[copy_id] for copy_id in self._sample(0, BATCH)]
        rows = [row for row in rows if row not in self._noted]
        for row, features in zip(rows, self._histories.features(rows, self._accesses), strict=True):
            note = self._noted[row] = _Note(row, self._accesses, features)
            self._waiting.append(note)

    def _forget(self, row: int) -> None:
        self._noted.pop(row, None)
        self._histories.give_back(row)

    def _conclude(self) -> None:
        """Draw the lessons that are due."""
        wait = 2 * self._most
        never = max(NEVER, 10.0 * wait)
        while self._waiting and self._waiting[0].when + wait <= self._accesses:
            note = self._waiting.popleft()
            if note.after is None or note.after > wait:
                self.lessons.append((note.features, log1p(never)))
            else:
                self.lessons.append((note.features, log1p(note.after)))
            if self._noted.get(note.row) is note:
                del self._noted[note.row]

    def _train(self) -> None:
        if len(self.lessons) < LEAST_LESSONS:
            self._next_training += self._patience
            return
        self._next_training += min(self._accesses, TRAIN_EVERY)
        known = np.array([features for features, _ in self.lessons])
        wanted = np.array([after for _, after in self.lessons])
        data = self._lightgbm.Dataset(known, label=wanted, params=dict(MODEL))
        self.model = self._lightgbm.train(dict(MODEL), data, num_boost_round=TREES)
        self.trainings += 1


def _library() -> Any:
    try:
        return importlib.import_module("lightgbm")
    except ImportError as error:
        raise UsageError(
            f"--eviction learned needs LightGBM, which cannot be imported ({error}); "
            f"{install_hint('learned')}, or choose another policy"
        ) from error
