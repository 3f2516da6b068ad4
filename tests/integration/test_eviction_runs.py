"""Eviction policies by name on real files: the books are in order, every byte that comes back is
the right one, and something was evicted."""

from pathlib import Path

import pytest

from tests.cli import small


@pytest.mark.parametrize("eviction", ["arc", "s3-fifo", "gdsf", "leaf-first"])
def test_a_policy_by_name_on_real_files(eviction: str, tmp_path: Path) -> None:
    ran = small(
        tmp_path,
        f"--eviction={eviction}",
        "--semantics=serving",
        "--block-tokens=64",
        "--storage-capacity-gb=0.0625",
        "--max-requests=60",
    )
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["failed_operations"] == []
    assert own["config"]["tiers"]["eviction"] == eviction
    assert own["requests"]["failed"] == 0
    assert own["evictions"]["dropped_last_copies"] > 0
    assert own["evictions"]["lost_bytes"] == 0
