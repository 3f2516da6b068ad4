"""Documents and system prompts in real runs: real bytes before the window, and loads in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import ROOT, Ran, small

TRACE = str(ROOT / "datasets" / "mooncake_sample.jsonl")

_YAML = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 5}
rag:
  request_probability: 0.5
  chunk_size_tokens: 64
  small_model_doc_tokens_min: 200
  small_model_doc_tokens_max: 500
  generation_range: [5, 20]
prefix_cache: {prompt_tokens: [512, 1024, 40], system_prompt_hit_probability: 1}
user_templates:
  chatbot: {context_range: [16, 64], generation_range: [10, 40], think_time_range: [0, 0.01]}
  coding: {context_range: [16, 64], generation_range: [10, 40], think_time_range: [0, 0.01]}
  document: {context_range: [16, 64], generation_range: [10, 40], think_time_range: [0, 0.01]}
"""

_MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "float16",
}
"""256 bytes a token, so that a trace's long prompts are little I/O."""


def ran(where: Path, *args: str) -> Ran:
    where.mkdir(exist_ok=True)
    (where / "rag.yaml").write_text(_YAML)
    (where / "tiny.json").write_text(json.dumps(_MODEL))
    done = small(where, "--config=rag.yaml", "--enable-rag", *args)
    assert done.code == 0, done.err
    assert done.own["failed_operations"] == []
    assert done.own["requests"]["failed"] == 0
    return done


def moved(own: Any, phase: str, operation: str) -> int:
    return sum(
        row["bytes"]
        for row in own["operations"]
        if (row["phase"], row["operation"]) == (phase, operation)
    )


def sum_of_retrieved(done: Ran) -> int:
    count = done.own["reuse"]["retrieved_requests"]
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("semantics", ["mlperf", "serving"])
def test_documents_are_stored_before_the_window_and_hits_are_loads(
    semantics: str, tmp_path: Path
) -> None:
    flags = (f"--semantics={semantics}", "--max-requests=50", "--cpu-mem-gb=0")
    found = {
        reuse: ran(tmp_path / reuse, *flags, f"--chunk-reuse={reuse}")
        for reuse in ("independent", "prefix")
    }
    for done in found.values():
        own, reuse = done.own, done.own["reuse"]
        assert own["workload"]["rag_documents"] == own["workload"]["rag_ingested_documents"] == 10
        stored = moved(own, "populate", "write")
        assert stored == own["workload"]["rag_ingested_bytes"] > 0
        assert done.result["requests_completed"] == 50
        assert reuse["retrieved_requests"] > 10
        assert moved(own, "measure", "read") >= reuse["retrieved_loaded_bytes"] > 0
        assert reuse["offered_token_ratio"] >= reuse["achieved_token_ratio"]
        assert own["verification"]["objects"] > 0
        line = next(line for line in done.out.splitlines() if line.startswith("rag "))
        assert f"{reuse['retrieved_requests']} retrievals" in line
    one, other = (found[name].own["reuse"] for name in ("independent", "prefix"))
    assert one["retrieved_requests"] == other["retrieved_requests"]
    assert one["retrieved_hit_ratio"] == 1.0
    assert other["retrieved_hit_ratio"] < 0.8


def test_a_trace_with_prompts_and_documents_and_the_same_seed_is_the_same_schedule(
    tmp_path: Path,
) -> None:
    flags = ("--model=tiny.json", "--max-requests=60", f"--trace={TRACE}", "--trace-speedup=0")
    real = ran(tmp_path / "real", *flags, "--trace-prompts", "--block-tokens=512")
    again = ran(
        tmp_path / "again", *flags, "--trace-prompts", "--block-tokens=512", "--virtual-time"
    )
    plain = ran(tmp_path / "plain", *flags, "--block-tokens=512", "--virtual-time")
    assert real.own["schedule"] == again.own["schedule"] != plain.own["schedule"]
    for done in (real, again):
        work, reuse = done.own["workload"], done.own["reuse"]
        assert work["trace_prompts"] is True
        assert work["prompted_requests"] == 60 - sum_of_retrieved(done)
        assert work["shared_prompt_tokens"] == [512, 1024], "40 is below min_prefix_length"
        assert reuse["retrieved_requests"] > 10
        assert reuse["retrieved_hits"] > 0
        assert reuse["offered_block_ratio"] >= reuse["achieved_block_ratio"] > 0
        told = done.result["summary"]["prefix_cache_stats"]
        assert told["prefix_hits"] == reuse["shared_hits"]
        assert told["prefix_hits"] + told["prefix_misses"] == reuse["shared_looked_up"]
        assert told["bytes_saved"] == reuse["shared_hit_bytes"]
    assert "trace_prompts" not in plain.own["workload"]
    assert plain.own["reuse"]["shared_looked_up"] == 0
