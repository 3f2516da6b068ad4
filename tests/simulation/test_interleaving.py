"""Seeded interleavings of live requests with faults: 200 seeds x 2000 steps."""

import pytest

from tests.simulation.interleaving import Interleaving, draw_setting, outcome_line, reproduction

SEEDS = 200
STEPS = 2000


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_no_order_of_events_breaks_a_law_of_the_cache(first: int) -> None:
    for seed in range(first, first + 20):
        setting = draw_setting(seed)
        try:
            Interleaving(setting).run(STEPS)
        except AssertionError as error:
            error.add_note(f"{setting}\nreproduce with: {reproduction(setting, STEPS)}")
            raise


def test_the_same_seed_gives_the_same_records() -> None:
    first, second = (Interleaving(draw_setting(7)) for _ in range(2))
    first.run(500)
    second.run(500)
    assert outcome_line(first.records) == outcome_line(second.records)
    assert first.records
