"""What must not change unnoticed. A wanted change: KV_REGOLD=1 pytest tests/golden, and a line in
the CHANGELOG where it moves a number."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli import TRACE, run, small

HERE = Path(__file__).parent


def golden(name: str, text: str) -> None:
    path = HERE / name
    if os.environ.get("KV_REGOLD"):
        path.write_text(text)
    assert text == path.read_text(), f"{name} has changed; see {__file__}"


def key_paths(value: Any, path: str = "") -> set[str]:
    """Every key of a document, with list items and variable names folded into one."""
    if isinstance(value, dict):
        found = {path} if path else set()
        for key, item in value.items():
            found |= key_paths(item, f"{path}.{key}" if path else key)
        return found
    if isinstance(value, list):
        return {path}.union(*(key_paths(item, f"{path}[]") for item in value))
    return {path}


def test_the_help_text(tmp_path: Path) -> None:
    for flag, name in (("--help", "help.txt"), ("--help-all", "help_all.txt")):
        ran = run(tmp_path, flag)
        assert ran.code == 0
        golden(name, ran.out)


def test_the_keys_of_a_result(tmp_path: Path) -> None:
    ran = small(tmp_path, "--max-requests=60", "--results-dir=runs")
    assert ran.code == 0, ran.err
    keys = key_paths(ran.result)
    symbols = "kv_cache.passport.evidence.interposed.symbols."  # as the machine's C library has
    variable = ("kv_cache.config.", "kv_cache.environment.", "kv_cache.model.", symbols)
    lines = sorted(
        key
        for key in keys
        if not key.startswith(variable)
        and not (key.startswith("kv_cache.passport.") and "[]" in key)  # as the machine was busy
    )
    golden("result_keys.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("semantics", ["mlperf", "serving"])
def test_hits_misses_and_bytes_of_the_small_trace(semantics: str, tmp_path: Path) -> None:
    ran = run(tmp_path, *TRACE, f"--semantics={semantics}")
    assert ran.code == 0, ran.err
    own = ran.own
    rows = [
        f"{r['tier']:8} {r['operation']:7} {r['cause']:10} {r['operations']:7} {r['bytes']:15}"
        for r in own["operations"]
    ]
    reuse = [f"{name} {value}" for name, value in own["reuse"].items()]
    text = "\n".join([own["schedule"]["sha256"], *reuse, *rows]) + "\n"
    golden(f"small_trace_{semantics}.txt", text)


def test_unlimited_capacity_finds_every_prefix_of_the_small_trace(tmp_path: Path) -> None:
    """2,098 of 5,797 blocks, counted by hand from the hash ids."""
    sample = Path(__file__).parents[2] / "datasets" / "mooncake_sample.jsonl"
    seen: set[int] = set()
    blocks = hits = 0
    for line in sample.read_text().splitlines():
        ids = json.loads(line)["hash_ids"]
        blocks += len(ids)
        for hash_id in ids:
            if hash_id not in seen:
                break
            hits += 1
        seen.update(ids)
    ran = run(
        tmp_path, "--virtual-time", "--semantics=serving", "--gpu-mem-gb=0", "--cpu-mem-gb=0",
        "--trace=datasets/mooncake_sample.jsonl", "--trace-speedup=0", "--replay-cycles=1",
        "--num-users=1", "--output=R.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert (ran.own["reuse"]["looked_up"], ran.own["reuse"]["hits"]) == (blocks, hits)
    assert (blocks, hits) == (5797, 2098)


def test_the_program_names_its_version(tmp_path: Path) -> None:
    from kv_cache import __version__

    ran = run(tmp_path, "--version")
    assert (ran.code, ran.out.strip()) == (0, f"kv-cache {__version__}")
