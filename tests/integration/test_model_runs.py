"""KV types, mixes of models and all ranks of one, through the whole program."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kv_cache.config.build import build_load
from kv_cache.config.load import load_config
from kv_cache.core.seed import Seed
from kv_cache.core.units import PAGE_BYTES, round_up
from tests.cli import SMALL, Ran, prepare, run, small
from tests.traces import ROOT

MIX = [word for word in SMALL if not word.startswith("--model")]
MIX += ["--cache-dir=cache", "--output=R.json"]
_OPERATIONS = ROOT / "datasets/iotrace_sample.csv"
RANKS = ["--tensor-parallel=4", "--num-gpus=4", "--ranks=all"]


def _cache_stats(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return ran.result["summary"]["cache_stats"]


def _prefilled(ran: Ran) -> int:
    """Bytes of new blocks; what is demoted and promoted depends on the size of the objects."""
    return sum(row["bytes"] for row in ran.own["operations"] if row["cause"] == "prefill")


def _planned(directory: Path, count: int, **changed: Any) -> list[int]:
    """Sizes of the objects that the first requests make anew, in memory."""
    prepare(directory)
    given = {"run.model": "tiny-1b", "run.num_users": 4, "run.seed": 3, "run.max_requests": count}
    config = load_config(directory / "small.yaml", given | changed)
    load = build_load(config, config.model_shape(), Seed(3), None, None, None)
    made = {b.key: b.nbytes for r in islice(load.source.plan(), count) for b in r.blocks}
    return list(made.values())


@pytest.mark.parametrize(("dtype", "token_bytes"), [("int8", 12_288), ("int4", 6144)])
def test_files_hold_as_many_bytes_as_the_type_says(
    tmp_path: Path, dtype: str, token_bytes: int
) -> None:
    """The reference writes float32 for int8."""
    ran = small(
        tmp_path, f"--kv-dtype={dtype}", "--max-requests=6", "--keep-cache", "--cpu-mem-gb=0"
    )
    assert _cache_stats(ran)["storage_tokens_processed"] > 0
    wanted = _planned(tmp_path, 6, **{"run.kv_dtype": dtype})
    assert all(nbytes % token_bytes == 0 for nbytes in wanted)
    files = [path.stat().st_size for path in tmp_path.glob("cache/*/??/*.kv")]
    assert Counter(files) == Counter(round_up(nbytes, PAGE_BYTES) for nbytes in wanted)
    assert ran.own["model"]["bytes_per_token"] == token_bytes
    assert ran.own["model"]["dtype"] == dtype


def test_by_layer_each_block_is_as_many_files_of_whole_pages_as_the_model_has_layers(
    tmp_path: Path,
) -> None:
    """100 tokens of 24 KiB are 12 layers of 204,800 bytes: 50 pages each."""
    ran = small(
        tmp_path, "--object=layer", "--block-tokens=100", "--max-requests=6", "--keep-cache",
        "--cpu-mem-gb=0", "--set=workload.prefix_caching=false",
    )  # fmt: skip
    files = [path.stat().st_size for path in tmp_path.glob("cache/*/??/*.kv")]
    assert set(files) == {50 * PAGE_BYTES}
    assert len(files) % 12 == 0
    assert ran.own["tiers"]["storage"]["entries"] == len(files)
    written = ran.own["tiers"]["storage"]["write"]
    assert written["operations"] % 12 == 0
    assert written["object_bytes"]["max"] == 50 * PAGE_BYTES
    client = ran.own["passport"]["evidence"]["client"]
    moved = sum(ran.own["tiers"]["storage"][side]["operations"] for side in ("read", "write"))
    assert client["cpu_us_per_operation"] == pytest.approx(client["cpu_s"] * 1e6 / moved)


def test_by_turn_each_turn_is_an_object_also_where_others_keep_blocks(tmp_path: Path) -> None:
    prepare(tmp_path)
    turns = _planned(tmp_path, 6, **{"semantics.preset": "serving", "semantics.object": "turn"})
    assert turns == _planned(tmp_path, 6)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--object=turn", "--block-tokens=16"], "leave one of them out"),
        (["--object=block"], "give --block-tokens, e.g. 256"),
        (["--object=layer", "--model=gpt-oss-20b-hybrid"], "give --block-tokens, whose layers"),
        (["--object=layer", f"--trace={_OPERATIONS}", "--skip-bad-rows"], "leave it out"),
    ],
)
def test_objects_that_cannot_be_are_one_sentence(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    ran = small(tmp_path, *flags)
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1)
    assert "--object" in ran.err
    assert said in ran.err


def test_a_mix_of_models_is_told_model_by_model(tmp_path: Path) -> None:
    ran = run(
        tmp_path, *MIX, "--model-mix=tiny-1b=0.7,qwen3-8b=0.3", "--virtual-time",
        "--max-requests=120",
    )  # fmt: skip
    assert _cache_stats(ran)["storage_tokens_processed"] is None  # no one size of a token
    model = ran.own["model"]
    assert (model["name"], model["bytes_per_token"]) == ("0.7 tiny-1b, 0.3 qwen3-8b", None)
    assert {n: m["bytes_per_token"] for n, m in model["models"].items()} == {
        "tiny-1b": 24_576,
        "qwen3-8b": 147_456,
    }
    asked = {row["model"]: row["requests"] for row in ran.own["workload"]["models"]}
    assert sum(asked.values()) == 120
    assert min(asked.values()) > 10
    assert ran.own["reuse"]["history_hits"] > 0
    assert ran.own["reuse"]["offered_block_ratio"] >= ran.own["reuse"]["achieved_block_ratio"]


def test_all_ranks_move_what_one_moves_and_count_its_tokens_once(tmp_path: Path) -> None:
    alone = small(tmp_path, "--virtual-time", "--max-requests=60", "--semantics=serving")
    every = small(tmp_path, "--virtual-time", "--max-requests=60", "--semantics=serving", *RANKS)
    for name in ("context_tokens", "hit_tokens", "offered_tokens"):
        assert every.own["reuse"][name] == alone.own["reuse"][name]
    for name in ("looked_up", "hits", "blocks"):
        assert every.own["reuse"][name] == 4 * alone.own["reuse"][name]
    assert _prefilled(every) == _prefilled(alone) > 0
    assert every.own["workload"]["ranks"] == 4


def test_a_turn_of_a_hybrid_model_is_smaller_than_one_with_all_layers_full(tmp_path: Path) -> None:
    written = {}
    for name in ("gpt-oss-20b", "gpt-oss-20b-hybrid"):
        ran = run(tmp_path, *MIX, f"--model={name}", *["--virtual-time", "--max-requests=20"])
        written[name] = _cache_stats(ran)
    full, hybrid = written["gpt-oss-20b"], written["gpt-oss-20b-hybrid"]
    assert hybrid["total_write_bytes"] < full["total_write_bytes"]
    assert full["storage_tokens_processed"] is not None
    assert hybrid["storage_tokens_processed"] is None


def test_a_bad_mix_is_one_sentence(tmp_path: Path) -> None:
    for given, said in (
        ("tiny-1b", "NAME=WEIGHT"),
        ("tiny-1b=", "a number"),
        ("tiny-1b=1,tiny-1b=2", "twice"),
        ("tiny-9b=1", "Did you mean"),
    ):
        ran = run(tmp_path, *MIX, f"--model-mix={given}", "--virtual-time")
        assert ran.code == 2
        assert said in ran.err
        assert len(ran.err.strip().splitlines()) == 1
