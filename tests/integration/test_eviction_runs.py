"""Eviction policies by name on real files: the books are in order, every byte that comes back is
the right one, and something was evicted."""

import subprocess
import sys
from pathlib import Path

import pytest

from kv_cache.installing import install_hint
from tests.cli import LIGHT, SMALL, environment, prepare, small


@pytest.mark.parametrize("eviction", ["arc", "s3-fifo", "gdsf", "leaf-first"])
def test_a_policy_by_name_on_real_files(eviction: str, tmp_path: Path) -> None:
    ran = small(
        tmp_path,
        f"--eviction={eviction}",
        "--semantics=serving",
        "--block-tokens=64",
        *LIGHT,
        "--storage-capacity-gb=0.0078125",
        "--max-requests=60",
    )
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["failed_operations"] == []
    assert own["config"]["tiers"]["eviction"] == eviction
    assert own["requests"]["failed"] == 0
    assert own["evictions"]["dropped_last_copies"] > 0
    assert own["evictions"]["lost_bytes"] == 0


SERVING = [
    *("--eviction=learned", "--semantics=serving", "--set=run.kv_bytes_per_token=3072"),
    *("--cpu-mem-gb=0.0078125", "--storage-capacity-gb=0.0078125"),
]
"""Many blocks of few bytes: it learns from how often they are asked for."""


def test_the_learned_policy_decides_on_real_files(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm", reason="the extra `learned` is not installed")
    ran = small(tmp_path, *SERVING, "--block-tokens=16", "--max-requests=140")
    assert ran.code == 0, ran.err
    assert ran.own["failed_operations"] == []
    notes = ran.own["evictions"]["policies"]["storage"]
    assert notes["trainings"] >= 1
    assert 0 < notes["unlike_lru"] <= notes["consulted"]


def test_the_learned_policy_decides_the_same_in_virtual_time_again(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm", reason="the extra `learned` is not installed")
    notes = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        more = ("--virtual-time", "--block-tokens=16", "--max-requests=140")
        ran = small(tmp_path / name, *SERVING, *more)
        assert ran.code == 0, ran.err
        notes.append((ran.own["evictions"], ran.own["reuse"]))
    assert notes[0] == notes[1]
    assert notes[0][0]["policies"]["storage"]["consulted"] > 0


def test_without_its_library_the_learned_policy_is_refused_in_a_sentence(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['lightgbm'] = None; from kv_cache.cli import console; "
    prepare(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", f"{hidden}sys.exit(console())", *SMALL, *SERVING, "--output=R.json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "--eviction learned" in ran.stderr
    assert install_hint("learned") in ran.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}
