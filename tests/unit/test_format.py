"""Numbers as people read them."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.format import figures, gib_per_s
from kv_cache.core.units import GIB, KIB, MIB, MISSING, human_bytes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1.23456, "1.235"), (0.0123456, "0.01235"), (1.5, "1.5"), (99.996, "100"),
        (1234.5, "1,234"), (1_234_567, "1,234,567"), (-2.25, "-2.25"), (1e-9, "0"), (-1e-9, "0"),
        (3.21e15, "3.21e+15"), (None, MISSING), (nan, MISSING), (inf, MISSING),
    ],
)  # fmt: skip
def test_a_number_has_four_figures_and_none_is_a_dash(value: float | None, text: str) -> None:
    assert figures(value) == text


@given(st.floats(1e-3, 1e11))
def test_what_is_read_is_the_number_to_four_figures(value: float) -> None:
    assert float(figures(value).replace(",", "")) == pytest.approx(value, rel=5.1e-4)


def test_a_rate_is_in_binary_units() -> None:
    assert gib_per_s(1.5 * GIB) == "1.5 GiB/s"


def test_small_sizes_that_differ_are_not_told_as_one() -> None:
    sizes = (512, 1152, 1536, 2 * KIB, 24.4 * KIB, 640 * MIB, 1.5 * GIB)
    told = ["512 B", "1.1 KiB", "1.5 KiB", "2 KiB", "24 KiB", "640.0 MiB", "1.50 GiB"]
    assert list(map(human_bytes, sizes)) == told
