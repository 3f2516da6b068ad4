"""Seeded interleavings of live requests with faults: 60 seeds of 2000 steps, and 200 at night."""

from collections import Counter

import pytest

from tests.simulation.interleaving import Interleaving, draw_setting, outcome_line, reproduction

SEEDS, SEEDS_BY_DAY = 200, 60  # the next twenty have no policy that these have not
STEPS = 2000


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < SEEDS_BY_DAY else pytest.mark.nightly)
        for first in range(0, SEEDS, 20)
    ],
)
def test_no_order_of_events_breaks_a_law_of_the_cache(first: int) -> None:
    for seed in range(first, first + 20):
        setting = draw_setting(seed)
        try:
            Interleaving(setting).run(STEPS)
        except AssertionError as error:
            error.add_note(f"{setting}\nreproduce with: {reproduction(setting, STEPS)}")
            raise


def test_the_settings_meet_every_end_that_a_prefetch_a_door_or_a_copy_below_can_come_to() -> None:
    met: Counter[str] = Counter()
    for seed in range(80):
        world = Interleaving(draw_setting(seed))
        world.run(300)
        made, through = world.cache.prefetches, world.world.through
        for name in ("useful", "late", "wasted", "failed", "no_room"):
            met[name] += getattr(made, name).blocks
        met["refused"] += sum(len(each) for each in world.cache.admission_gate.not_admitted)
        met["not stored"] += world.cache.admission_gate.not_stored.blocks
        met["no backup"] += world.cache.not_backed_up.blocks
        if through is not None:
            met["written"] += through.written.blocks
            met["not written"] += through.failed.blocks
            met["dropped"] += through.dropped_blocks
    assert len(+met) == 11, met


def test_the_same_seed_gives_the_same_records() -> None:
    first, second = (Interleaving(draw_setting(7)) for _ in range(2))
    first.run(500)
    second.run(500)
    assert outcome_line(first.records) == outcome_line(second.records)
    assert first.records
