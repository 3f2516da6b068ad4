"""Sizes of tiers that nobody gave are the reference's where they fit, else the machine's."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.bench.memory import check_ram
from kv_cache.bench.tier_sizes import ram_parts, size_tiers
from kv_cache.config.load import load_config
from kv_cache.config.mlperf import MLPERF_OPTIONS
from kv_cache.config.root import Config
from kv_cache.core.block import content_key, numbered_keys
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB


def config(**given: Any) -> Config:
    overrides = {f"tiers.{name}": value for name, value in given.items()}
    return load_config(None, {"tiers.gpu": "emulated", **overrides})


def sizes(made: Config) -> tuple[float | None, float | None]:
    return made.tiers.gpu_mem_gib, made.tiers.cpu_mem_gib


def test_where_the_references_sizes_fit_they_are_taken_in_silence() -> None:
    made, said = size_tiers(config(), available=64 * GIB)
    assert sizes(made) == (16, 32)
    assert said == ()


@pytest.mark.parametrize(
    ("available_gib", "cpu_gib"), [(48, 16), (24, 8), (20.78, 8), (12, 4), (3, 1), (1.5, 0.25)]
)
def test_where_they_do_not_fit_the_gpu_tier_goes_and_the_cpu_tier_shrinks(
    available_gib: float, cpu_gib: float
) -> None:
    made, said = size_tiers(config(), available=int(available_gib * GIB))
    assert sizes(made) == (0, cpu_gib)
    check_ram(ram_parts(made), available=int(available_gib * GIB))
    assert "tiers.gpu_mem_gib (--gpu-mem-gb) is 0" in said[0]
    assert f"tiers.cpu_mem_gib (--cpu-mem-gb) is {cpu_gib:g} GiB, as none was given" in said[0]


def test_a_size_that_was_given_stays_and_is_refused_where_it_does_not_fit() -> None:
    made, said = size_tiers(config(gpu_mem_gib=16, cpu_mem_gib=32), available=20 * GIB)
    assert (sizes(made), said) == ((16, 32), ())
    with pytest.raises(PlaceError, match=r"needs 48\.50 GiB of RAM"):
        check_ram(ram_parts(made), available=20 * GIB)
    assert sizes(size_tiers(config(gpu_mem_gib=2), available=20 * GIB)[0]) == (2, 4)
    assert sizes(size_tiers(config(cpu_mem_gib=12), available=20 * GIB)[0]) == (0, 12)


@pytest.mark.parametrize("option", MLPERF_OPTIONS)
def test_the_official_options_have_their_own_sizes_on_every_machine(option: int) -> None:
    known = MLPERF_OPTIONS[option]
    made, said = size_tiers(load_config(None, known.overrides()), available=GIB)
    assert (sizes(made), said) == ((known.gpu_mem_gib, known.cpu_mem_gib), ())


def test_virtual_time_has_the_references_sizes_on_every_machine() -> None:
    made, said = size_tiers(load_config(None, {"run.virtual_time": True}), available=GIB)
    assert (sizes(made), said) == ((16, 32), ())


def test_sizes_that_nobody_gave_keep_the_limits_of_the_site(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("validation_limits: {max_cpu_memory_gb: 3, max_gpu_memory_gb: 1}\n")
    wide = load_config(site, {"tiers.gpu": "emulated"})
    assert sizes(size_tiers(wide, available=64 * GIB)[0]) == (1, 3)
    assert sizes(size_tiers(wide, available=3 * GIB)[0]) == (0, 1)


@given(st.lists(st.one_of(st.text(max_size=9), st.integers()), max_size=3), st.integers(0, 2**40))
def test_keys_of_numbers_are_those_of_their_names(parts: list[str | int], first: int) -> None:
    numbers = range(first, first + 3)
    keys = list(numbered_keys(parts, numbers))
    assert keys == [content_key(*parts, number) for number in numbers]
