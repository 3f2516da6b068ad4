"""The storage of one run answers, or has fallen silent: then nothing more is asked of it.

Whatever touches storage outside of the measured operations is called through here.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.stillness import answered
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.config.root import Config
from kv_cache.config.storage_targets import Place, storage_places
from kv_cache.core.errors import NoAnswerError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import NS_PER_S, s_to_ns

T = TypeVar("T")


class StorageAnswers:
    def __init__(self, config: Config, clock: MonotonicClock) -> None:
        self.pulse = StoreCalls()
        self.patience_s = config.run.answer_s
        self.directories: list[Place] = []
        """Where the storage tier really is, once it is open."""
        self.silence: str | None = None
        """What storage did not answer."""
        self.unanswered: Mapping[str, Any] | None = None
        """The same for the result."""
        self._configured = storage_places(config)
        self._clock = clock

    @property
    def places(self) -> str:
        """Names of the storage, for messages."""
        return ", ".join(map(str, self.directories or self._configured))

    def call(self, what: str, call: Callable[[], T]) -> T:
        """Call as `answered` does, and remember if there is no answer."""
        try:
            return answered(what, call, self.patience_s)
        except NoAnswerError:
            self._fall_silent(what, [])
            raise

    def call_unless_silent(self, what: str, call: Callable[[], None]) -> None:
        """Call, unless storage has fallen silent; return if it does so now."""
        if self.silence is None:
            with suppress(NoAnswerError):
                self.call(what, call)

    def held(self) -> int:
        """Count the operations that storage has not ended."""
        return len(self.pulse.waiting(self._clock.now_ns()))

    def are_missing(self) -> bool:
        """Whether none of the operations that storage holds has moved for too long."""
        if self.silence is not None:
            return True
        waiting = self.pulse.waiting(self._clock.now_ns())
        ages_ns = [age_ns for _, age_ns in waiting]
        if not ages_ns or min(ages_ns) < s_to_ns(self.patience_s):
            return False
        held = f"{len(waiting)} operations on {self.places}"
        oldest_s = max(ages_ns) / NS_PER_S
        self._fall_silent(f"{held} have stood still for up to {oldest_s:.0f} s", waiting)
        return True

    def _fall_silent(self, what: str, waiting: Sequence[tuple[OpKind, int]]) -> None:
        seconds = "" if waiting else f" has stood still for {self.patience_s:g} s"
        self.silence = f"the device did not answer: {what}{seconds}"
        self.unanswered = {
            "what": what,
            "pid": os.getpid(),
            "directories": [str(place) for place in self.directories],
            "operations": [
                {"operation": kind.value, "still_s": round(age_ns / NS_PER_S, 3)}
                for kind, age_ns in waiting
            ],
        }

    def raise_if_silent(self) -> None:
        """Raise NoAnswerError if storage fell silent, so that it has to be left as it is."""
        if self.silence is not None:
            raise NoAnswerError(
                f"{self.silence}; process {os.getpid()} is left with it, and cache files stay in "
                f"{self.places}"
            )
