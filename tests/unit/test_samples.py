"""The samples: the same files everywhere, of the shape that they claim."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from kv_cache.core.seed import Seed
from kv_cache.workload.formats.opening import Survey, Trace, open_trace, survey
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.samples import (
    SAMPLE_ROWS,
    SAMPLES,
    burstgpt_lines,
    heavy,
    mooncake_lines,
    sample_bytes,
)
from tests.traces import ROOT

DATASETS = ROOT / "datasets"


def sample(name: str) -> tuple[Trace, Survey, list[TraceRow]]:
    trace = open_trace(str(DATASETS / name))
    return trace, survey(trace), list(trace.rows())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_regenerating_a_sample_gives_the_same_bytes(name: str) -> None:
    assert sample_bytes(name) == (DATASETS / name).read_bytes()


def test_the_script_writes_all_samples_wherever_it_is_told(tmp_path: Path) -> None:
    command = [sys.executable, str(DATASETS / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        name: (DATASETS / name).read_bytes() for name in SAMPLES
    }


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_another_seed_gives_another_sample_and_fewer_rows_its_beginning(name: str) -> None:
    assert sample_bytes(name, seed=1) != sample_bytes(name)
    assert sample_bytes(name).startswith(sample_bytes(name, rows=10).rstrip())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_sample_has_no_bad_and_no_backward_row(name: str) -> None:
    _, found, rows = sample(name)
    assert found.rows == len(rows)
    assert found.rows + found.failed_rows == SAMPLE_ROWS
    assert (found.bad_rows, found.backward_rows) == (0, 0)
    assert found.span_ns == rows[-1].at_ns > 0


def test_the_azure_sample_ends_its_lines_as_the_published_files_do() -> None:
    text = (DATASETS / "azure_sample.csv").read_bytes()
    assert text.count(b"\r\n") == text.count(b"\n") == SAMPLE_ROWS
    assert not text.endswith(b"\n")


def test_the_burstgpt_sample_has_failed_requests() -> None:
    _, found, _ = sample("burstgpt_sample.csv")
    assert 0.06 <= found.failed_rows / SAMPLE_ROWS <= 0.10
    assert sum(",0," in line for line in burstgpt_lines(Seed(0), 50, failed_share=0)) == 0


def prefix_hits(rows: list[TraceRow]) -> tuple[int, int]:
    """Blocks that an unlimited cache has already, and blocks in all."""
    known: set[int] = set()
    hits = blocks = 0
    for row in rows:
        ids = row.hash_ids or ()
        hits += next((i for i, one in enumerate(ids) if one not in known), len(ids))
        blocks += len(ids)
        known.update(ids)
    return hits, blocks


def test_prefix_hits_are_counted_as_in_the_known_answer_of_a_small_trace() -> None:
    ids = [(0, 1, 2), (0, 1, 3), (9, 1), (0, 1, 2)]
    assert prefix_hits([TraceRow(1, 0, 1, 1, i, 512) for i in ids]) == (5, 11)


def test_the_mooncake_sample_reuses_as_the_real_trace_does() -> None:
    _, found, rows = sample("mooncake_sample.jsonl")
    hits, blocks = prefix_hits(rows)
    assert 0.35 <= hits / blocks <= 0.45
    assert found.has_hash_ids
    assert found.block_tokens == 512
    assert 5_000 <= median(row.prompt_tokens for row in rows) <= 7_000
    assert max(row.prompt_tokens for row in rows) <= 32_000
    assert max(row.prompt_tokens for row in rows) > 25_000


def test_mooncake_ids_cover_the_prompt_and_name_one_prefix_each() -> None:
    _, _, rows = sample("mooncake_sample.jsonl")
    before: dict[int, tuple[int, ...]] = {}
    for row in rows:
        ids = row.hash_ids or ()
        assert len(ids) == -(-row.prompt_tokens // 512)
        assert ids[0] == 0
        for place, one in enumerate(ids):
            assert before.setdefault(one, ids[:place]) == ids[:place]
    assert sorted(before) == list(range(len(before)))


def test_mooncake_requests_come_in_steps_of_three_seconds() -> None:
    _, _, rows = sample("mooncake_sample.jsonl")
    steps = {later.at_ns - row.at_ns for row, later in pairwise(rows)}
    assert steps == {0, 3 * 10**9}


def test_without_turns_only_the_first_block_is_shared() -> None:
    rows = [json.loads(line)["hash_ids"] for line in mooncake_lines(Seed(3), 50, turn_share=0)]
    assert len({one for ids in rows for one in ids}) == sum(len(ids) - 1 for ids in rows) + 1


def test_a_heavy_draw_stays_within_its_bounds_and_has_its_median() -> None:
    rng = Seed(1).rng()
    values = [heavy(rng, 100, 0, 10_000) for _ in range(20_000)]
    assert median(values) == pytest.approx(100, rel=0.03)
    assert max(values) <= 10_000
    assert sum(v > 1000 for v in values) / len(values) == pytest.approx(0.0099, rel=0.3)
