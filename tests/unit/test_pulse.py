"""Which calls are in flight, and how long none ended."""

import time
from dataclasses import dataclass
from functools import partial

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.leg_timer import LegTimer
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.core.effect import Leg
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.metrics.gaps import Silence

S = 1_000_000_000


@dataclass(eq=False)
class _Call:
    began_ns: int
    calling: bool = True
    on_storage: bool = True
    cause: Cause = Cause.REUSE

    def so_far(self, now_ns: int) -> Leg:
        return Leg(
            Tier.NVME, OpKind.READ, "direct", 0, self.began_ns, now_ns, now_ns - self.began_ns, ()
        )


def test_a_silence_begins_with_the_last_end_where_calls_were_in_flight_all_the_time() -> None:
    pulse, other = StoreCalls(), _Call(S)
    pulse.enter(other)
    pulse.ended(S, 2 * S)
    pulse.ended(5 * S, 7 * S)
    assert pulse.silences(7 * S)[1:] == [Silence(2 * S, 7 * S), Silence(7 * S, 7 * S)]


def test_idle_time_is_no_silence() -> None:
    pulse = StoreCalls()
    pulse.ended(S, 2 * S)
    pulse.ended(9 * S, 9 * S + 5)
    assert pulse.silences(30 * S)[1:] == [Silence(9 * S, 9 * S + 5)]


def test_what_never_ends_is_a_silence_that_goes_on() -> None:
    pulse, hung = StoreCalls(), _Call(3 * S)
    pulse.enter(hung)
    pulse.ended(S, 2 * S)
    assert pulse.silences(20 * S)[-1] == Silence(3 * S, 20 * S)
    pulse.leave(hung)
    assert pulse.silences(20 * S)[-1].end_ns < 20 * S


def test_calls_of_memory_and_pauses_between_calls_are_not_waited_for() -> None:
    pulse = StoreCalls()
    pulse.enter(_Call(S, on_storage=False))
    pulse.enter(_Call(S, calling=False))
    assert pulse.silences(20 * S) == []
    assert [leg.finished_ns for _, leg in pulse.in_flight(20 * S)] == [20 * S, 20 * S]


def test_what_waits_for_others_of_its_call_is_not_in_flight_until_the_call_comes_to_it() -> None:
    pulse, come_to = StoreCalls(), {"first": 0, "second": 0}
    clock = MonotonicClock()
    for name in come_to:
        timer = LegTimer(clock, pulse, Cause.REUSE, Tier.NVME, OpKind.READ)
        timer.begin_outside(partial(come_to.__getitem__, name))
    assert (pulse.in_flight(clock.now_ns()), pulse.silences(clock.now_ns())) == ([], [])
    come_to["first"] = time.monotonic_ns()
    began_ns = clock.of_monotonic(come_to["first"])
    ((_, leg),) = pulse.in_flight(began_ns + S)
    assert (leg.started_ns, leg.finished_ns, leg.device_ns) == (began_ns, began_ns + S, S)
    assert pulse.waiting(began_ns + S) == [(OpKind.READ, S)]
    assert pulse.silences(began_ns + S)[-1] == Silence(began_ns, began_ns + S)
