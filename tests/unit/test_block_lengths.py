"""Whether hash ids stand for as many tokens as they are read with."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats.block_lengths import BlockFit
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import require_usable, survey
from kv_cache.workload.formats.trace_files import open_trace
from tests.examples import examples
from tests.traces import real_trace

PROMPTS = st.lists(st.integers(1, 50_000), min_size=20, max_size=60)


def seen(prompts: list[int], block_tokens: int, stated: int) -> str | None:
    fit = BlockFit(stated)
    for prompt in prompts:
        ids = tuple(range(-(-prompt // block_tokens)))
        fit.see(TraceRow(1, 0, prompt, 1, ids, stated))
    return fit.problem()


@given(prompts=PROMPTS, block_tokens=st.sampled_from([16, 64, 256, 512, 1536]))
@examples(50)
def test_a_trace_that_is_read_as_it_was_written_has_no_problem(
    prompts: list[int], block_tokens: int
) -> None:
    assert seen(prompts, block_tokens, block_tokens) is None


@given(
    prompts=st.lists(st.integers(8_000, 50_000), min_size=20, max_size=60),
    block_tokens=st.sampled_from([16, 64, 256, 1024]),
)  # fmt: skip
@examples(50)
def test_blocks_of_another_length_are_told_with_the_length_that_fits(
    prompts: list[int], block_tokens: int
) -> None:
    problem = seen(prompts, block_tokens, 512)
    assert problem is not None
    assert f"in {len(prompts)} of {len(prompts)} rows" in problem
    assert f"blocks of {block_tokens} tokens would" in problem


def test_one_odd_row_in_ten_is_let_through_and_rows_without_ids_do_not_count() -> None:
    fit = BlockFit(512)
    for number in range(20):
        fit.see(TraceRow(1, 0, 1000, 1, (1, 2) if number > 1 else (1, 2, 3, 4), 512))
        fit.see(TraceRow(1, 0, 1000, 1))
    assert fit.problem() is None
    fit.see(TraceRow(1, 0, 1000, 1, (1, 2, 3, 4), 512))
    assert "in 3 of 21 rows" in (fit.problem() or "")
    assert "no one length fits all" in (fit.problem() or "")


def test_a_real_trace_is_refused_in_other_blocks_and_read_in_its_own() -> None:
    path = str(real_trace("mooncake_conversation_6000.jsonl"))
    own = open_trace(path)
    require_usable(own, survey(own))
    other = open_trace(path, block_tokens=64)
    with pytest.raises(TraceError, match="blocks of 512 tokens would; give --trace-block-tokens"):
        require_usable(other, survey(other))


def test_rows_with_smaller_blocks_have_their_own_bytes_once_their_length_is_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dynamo.jsonl"
    rows = [{"timestamp": 1000 * n, "input_length": 1000 + n, "output_length": 9,
             "hash_ids": list(range(16))} for n in range(24)]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    wrong = open_trace(str(path))
    with pytest.raises(TraceError, match="blocks of 64 tokens would"):
        require_usable(wrong, survey(wrong))
    right = open_trace(str(path), block_tokens=64, time_unit="s")
    found = survey(right)
    require_usable(right, found)
    assert (found.block_tokens, found.span_ns) == (64, 23_000 * 10**9)
    with pytest.raises(TraceError, match="has no hash ids, or says itself how many"):
        open_trace("datasets/azure_sample.csv", block_tokens=64)
