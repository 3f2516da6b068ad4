"""The mix of QoS classes and the SLO of each."""

from random import Random

from msgspec import Struct

from kv_cache.core.kinds import Qos


class QosMix(Struct, frozen=True, kw_only=True):
    """`interactive` is a probability, `responsive_below` a cumulative one (the reference's
    `responsive_threshold`); the rest is batch. A higher priority is served first."""

    interactive: float
    responsive_below: float
    priorities: tuple[int, int, int]

    def draw(self, rng: Random) -> Qos:
        point = rng.random()
        if point < self.interactive:
            return Qos.INTERACTIVE
        return Qos.RESPONSIVE if point < self.responsive_below else Qos.BATCH

    def priority(self, qos: Qos) -> int:
        return self.priorities[tuple(Qos).index(qos)]
