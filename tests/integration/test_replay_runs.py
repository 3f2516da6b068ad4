"""Traces with history, replayed by the program: what was served from history, and in what order."""

import json
from collections import defaultdict
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.seed import Seed
from kv_cache.workload.samples.hashed_traces import mooncake_lines
from tests.cli import Ran, run
from tests.traces import made_talks, real_trace

SMALL_KV = """
model_configs:
  small: {num_layers: 2, hidden_dim: 256, num_heads: 4, kv_heads: 1, dtype: int8}
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
"""
"""256 bytes a token: 16 KiB for a block of 64."""


def replayed(cwd: Path, *args: str) -> Ran:
    (cwd / "small-kv.yaml").write_text(SMALL_KV)
    ran = run(
        cwd, "--config=small-kv.yaml", "--model=small", "--semantics=serving", "--gpu-mem-gb=0",
        "--cpu-mem-gb=0", "--generation-mode=none", "--replay-cycles=1", "--seed=4",
        "--output=R.json", *args,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.own["requests"]["failed"] == 0
    return ran


def records(cwd: Path) -> list[dict[str, Any]]:
    (found,) = cwd.glob("runs/*/requests.jsonl")
    return [json.loads(line) for line in found.read_text().splitlines()]


# --- ShareGPT, beside a count of its own ----------------------------------------------------------


def served_from_history(path: Path, block: int = 16) -> tuple[int, int, int]:
    """Turns, tokens of all prompts, and those of them that the prompt before it had left in whole
    blocks. Counted here from the file alone: 4 characters a token, 8192 tokens a context at most,
    2048 an answer."""
    turns = prompts = served = 0
    for conversation in json.loads(path.read_text()):
        context = before = new = 0
        asked = False
        for message in conversation["conversations"]:
            tokens = len(message["value"]) // 4 or (1 if message["value"] else 0)
            if message["from"] not in ("gpt", "chatgpt", "bing", "bard") or not asked:
                new += tokens
                asked |= message["from"] in ("human", "user")
                continue
            prompt = context + max(1, new)
            if prompt > 8192:
                break
            turns, prompts = turns + 1, prompts + prompt
            served += before // block * block
            context, before, new, asked = prompt + min(tokens, 2048), prompt, 0, False
    return turns, prompts, served


@pytest.mark.parametrize("users", [pytest.param(1, marks=pytest.mark.nightly), 7])
def test_sharegpt_is_served_from_history_as_an_independent_count_says(
    users: int, tmp_path: Path
) -> None:
    path = made_talks()
    turns, prompts, served = served_from_history(path)
    assert 0.4 < served / prompts < 0.95, "with one turn of each conversation it would be 0"
    reuse = replayed(
        tmp_path, "--virtual-time", f"--dataset-path={path}", "--max-conversations=0",
        "--block-tokens=16", f"--trace-users={users}",
    ).own["reuse"]  # fmt: skip
    assert reuse["requests"] == turns
    assert reuse["context_tokens"] == prompts
    assert reuse["achieved_token_ratio"] == pytest.approx(served / prompts, abs=0.01)
    assert reuse["achieved_token_ratio"] == reuse["offered_token_ratio"]


# --- agents ---------------------------------------------------------------------------------------


def shorter_sessions(cwd: Path, count: int) -> tuple[Path, list[Any]]:
    """A directory with the shortest of the agents' sessions, and the sessions."""
    place = cwd / "sessions"
    place.mkdir()
    files = sorted(real_trace("agentic").glob("*.json"), key=lambda file: file.stat().st_size)
    for file in files[:count]:
        (place / file.name).write_bytes(file.read_bytes())
    return place, [json.loads(file.read_text()) for file in files[:count]]


def reused(sessions: list[Any]) -> tuple[int, int]:
    """Blocks, and those that a cache without limits for each session finds."""
    blocks = [
        (session["id"], each)
        for session in sessions
        for row in session["requests"]
        for each in row["hash_ids"]
    ]
    return len(blocks), len(blocks) - len(set(blocks))


def test_agents_find_what_their_trace_offers_where_everything_fits(tmp_path: Path) -> None:
    place, sessions = shorter_sessions(tmp_path, 6)
    ran = replayed(tmp_path, "--virtual-time", f"--trace={place}", "--trace-users=5")
    reuse = ran.own["reuse"]
    assert (reuse["blocks"], reuse["offered_blocks"]) == reused(sessions)
    assert reuse["hits"] == reuse["offered_blocks"], "every follow-up waits for what it follows"


def test_agents_through_real_files_are_causal_and_lose_only_what_did_not_fit(
    tmp_path: Path,
) -> None:
    """The shortest sessions, on a tier too small for them."""
    place, sessions = shorter_sessions(tmp_path, 3)
    speedup = 100_000.0
    ran = replayed(
        tmp_path, f"--trace={place}", "--trace-users=3", f"--trace-speedup={speedup}",
        "--storage-capacity-gb=0.02", "--cache-dir=cache", "--results-dir=runs", "--records",
        "--drain=120",
    )  # fmt: skip
    think = {
        session["id"]: [row.get("think_time", 0) for row in session["requests"]]
        for session in sessions
    }
    asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in sorted(records(tmp_path), key=lambda row: row["turn"]):
        asked[record["conversation"]].append(record)
    assert {name: len(rows) for name, rows in asked.items()} == {
        name: len(rows) for name, rows in think.items()
    }
    for name, rows in asked.items():
        for before, row in pairwise(rows):
            waited_ns = round(think[name][row["turn"] - 1] * 1e9 / speedup)
            assert row["intended_ns"] >= before["finished_ns"] + waited_ns
            assert row["enqueued_ns"] >= row["intended_ns"]
    blocks, hits = reused(sessions)
    reuse = ran.own["reuse"]
    assert (reuse["blocks"], reuse["offered_blocks"]) == (blocks, hits)
    assert 0 < reuse["hits"] < hits
    assert ran.own["evictions"]["dropped_last_copies"] > 0, "and that is why"


def test_hash_ids_are_looked_up_with_the_references_semantics_too(tmp_path: Path) -> None:
    path = real_trace("mooncake_conversation_6000.jsonl")
    reuse = replayed(
        tmp_path, "--virtual-time", f"--trace={path}", "--trace-speedup=0", "--semantics=mlperf",
        "--max-requests=100",
    ).own["reuse"]  # fmt: skip
    rows = [json.loads(line) for line in path.read_text().splitlines()[:100]]
    blocks = list(chain.from_iterable(row["hash_ids"] for row in rows))
    assert (reuse["blocks"], reuse["looked_up"]) == (len(blocks), len(blocks))
    assert reuse["offered_blocks"] == len(blocks) - len(set(blocks)) > 0


def test_a_trace_without_prefix_information_offers_nothing(tmp_path: Path) -> None:
    path = real_trace("azure_2023_code.csv")
    reuse = replayed(
        tmp_path, "--virtual-time", f"--trace={path}", "--trace-speedup=0", "--max-requests=500"
    ).own["reuse"]
    assert reuse["requests"] == 500
    assert (reuse["offered_blocks"], reuse["hits"]) == (0, 0)


# --- options that a trace has no use for ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("agentic", ["--arrival-scale=2"], "--arrival-scale"),
        ("agentic", ["--trace-window=1:2"], "--trace-window"),
        ("azure_2023_code.csv", ["--trace-users=2"], "--trace-users"),
        ("azure_2023_code.csv", ["--trace-window=900000:"], "no row"),
        ("azure_2023_code.csv", ["--trace-window=2:1"], "workload.trace_window"),
        ("azure_2023_code.csv", ["--trace-window=-1"], "workload.trace_window"),
    ],
)
def test_options_that_a_trace_has_no_use_for_are_refused(
    name: str, args: list[str], told: str, tmp_path: Path
) -> None:
    ran = run(tmp_path, f"--trace={real_trace(name)}", "--virtual-time", "--duration=1", *args)
    assert ran.code == 2, ran.err
    assert told in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_window_replays_only_what_lies_in_it(tmp_path: Path) -> None:
    path = real_trace("azure_2023_code.csv")
    ran = replayed(
        tmp_path, "--virtual-time", f"--trace={path}", "--trace-window=600:900",
        "--trace-speedup=100",
    )  # fmt: skip
    assert 300 < ran.own["requests"]["submitted"] < 2000
    assert ran.own["workload"]["window_s"] == "600:900"
    assert ran.own["window_s"] < 3.5


def test_rows_beyond_every_tier_stop_the_run_or_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = real_trace("azure_2023_code.csv").read_text().splitlines()[: 1 + 2000]
    path.write_text("\n".join(rows) + "\n")
    args = (
        f"--trace={path}", "--model=tiny-1b", "--semantics=mlperf", "--gpu-mem-gb=0",
        "--cpu-mem-gb=0", "--storage-capacity-gb=0.1", "--virtual-time", "--trace-speedup=0",
        "--replay-cycles=1", "--generation-mode=none", "--output=R.json",
    )  # fmt: skip
    large = sum(int(row.split(",")[1]) * 24_576 > 0.1 * 2**30 for row in rows[1:])
    stopped = run(tmp_path, *args)
    assert stopped.code == 2
    assert f"{large} of 2000 rows" in stopped.err
    assert stopped.err.count(", line ") == 5
    assert "found one of " in stopped.err
    assert {p.name for p in tmp_path.iterdir()} == {"rows.csv", "small.yaml"}
    went_on = run(tmp_path, *args, "--skip-bad-rows", "--max-requests=100")
    assert went_on.code == 0, went_on.err
    assert went_on.own["workload"]["skipped_bad_rows"] == large
    assert went_on.own["requests"]["failed"] == 0


def test_a_trace_in_virtual_time_is_one_pass_unless_something_bounds_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in mooncake_lines(Seed(3), 40)))
    args = (
        f"--trace={path}", "--trace-speedup=0", "--virtual-time", "--model=tiny-1b",
        "--generation-mode=none",
    )  # fmt: skip
    submitted = {
        words: run(tmp_path, *args, "--output=R.json", *words).own["requests"]["submitted"]
        for words in ((), ("--duration=3",), ("--replay-cycles=2",), ("--max-requests=100",))
    }
    assert submitted[()] == 40
    assert submitted["--replay-cycles=2",] == 80
    assert submitted["--max-requests=100",] == 100
    assert submitted["--duration=3",] > 40
