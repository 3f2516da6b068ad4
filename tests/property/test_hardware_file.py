"""A hardware profile that is printed reads back equal, whatever is in it."""

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.hardware import SCHEMA, hardware_of, hardware_text, sheet_of
from tests.examples import examples

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1).filter(
    lambda text: text.strip() == text
)
RATE = st.floats(1e-3, 1e15, allow_nan=False)
BYTES = st.integers(1, 2**60)
DELAY = st.floats(0, 1e6, allow_nan=False)


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys, and a provenance."""
    provenance = st.fixed_dictionaries(
        {},
        optional={
            "source": TEXT,
            "date": st.dates().map(str),
            "versions": st.dictionaries(NAMES, TEXT, max_size=2),
        },
    )
    return st.fixed_dictionaries({}, optional={**values, "provenance": provenance})


LINK = some(bytes_per_s=st.floats(1e-3, 1.0), latency_us=DELAY)
POOL = some(capacity_bytes=BYTES, read_bytes_per_s=RATE, write_bytes_per_s=RATE, latency_us=DELAY)
GPU = st.fixed_dictionaries(
    {},
    optional={
        "hbm": some(capacity_bytes=BYTES, bytes_per_s=st.floats(1.0, 1e15), latency_us=DELAY),
        "compute": some(flop_per_s=RATE, dtype=TEXT),
    },
)
STORAGE = some(
    capacity_bytes=BYTES,
    read_bytes_per_s=RATE,
    write_bytes_per_s=RATE,
    read_latency_us=DELAY,
    write_latency_us=DELAY,
)
FILES = st.fixed_dictionaries(
    {"topology": st.fixed_dictionaries(
        {"gpus_per_node": st.integers(2, 64), "nodes_per_rack": st.integers(1, 64)},
        optional={"racks": st.integers(2, 99)},
    )},
    optional={
        "name": TEXT,
        "description": TEXT,
        "gpus": st.dictionaries(NAMES, GPU, max_size=3),
        "dram": some(capacity_bytes=BYTES, copy_bytes_per_s=RATE, latency_us=DELAY),
        "pcie": LINK,
        "nvlink": LINK,
        "nic": some(bytes_per_s=RATE, latency_us=DELAY, cross_rack_latency_us=DELAY),
        "rack_pool": POOL,
        "remote": POOL,
        "storage": st.dictionaries(NAMES, STORAGE, max_size=3),
    },
)  # fmt: skip


@examples(20)
@given(FILES)
def test_a_profile_printed_and_read_again_is_equal(sections: dict[str, Any]) -> None:
    first = hardware_of(sheet_of({"schema": SCHEMA, **sections}, "h.yaml"), "h.yaml", {})
    text = hardware_text(first)
    again = hardware_of(sheet_of(yaml.safe_load(text), "h.yaml"), "h.yaml", {})
    assert hardware_text(again) == text
    for (name, section), (other, read) in zip(first.sections(), again.sections(), strict=True):
        assert name == other
        assert read == section or not (section.has_values or read.has_values)
    assert again.topology == first.topology
