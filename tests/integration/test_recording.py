"""What a run asked and what it did, written down and asked again: `--record`, `--io-trace-log`."""

import csv
import gzip
import hashlib
import json
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.config.load import load_config
from kv_cache.files.iotrace import COLUMNS
from kv_cache.result.verify import recheck
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.trace_files import open_trace
from tests.cli import (
    LIGHT,
    SMALL,
    Ran,
    finish,
    one_configuration,
    prepare,
    run,
    small,
    start,
    wait_for,
)
from tests.passports import names

Go = Callable[..., Any]

VIRTUAL = [*SMALL, "--virtual-time", "--no-progress"]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """The program in this process, in an empty directory; the answer is the result."""
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run_here(*args: str, code: int = 0) -> Any:
        output = Path("R.json")
        output.unlink(missing_ok=True)
        mixed = any(arg.startswith("--model-mix") for arg in args)
        common = [arg for arg in VIRTUAL if not (mixed and arg == "--model=tiny-1b")]
        assert main(one_configuration([*common, *args, "--output=R.json"])) == code
        return json.loads(output.read_bytes()) if output.exists() else None

    return run_here


def ledger(result: Any) -> Any:
    """All that was decided: what was found, what moved where and why, what was dropped."""
    own = result["kv_cache"]
    moved: Counter[tuple[str, ...]] = Counter()
    for row in own["operations"]:
        moved[row["tier"], row["operation"], row["cause"], "operations"] += row["operations"]
        moved[row["tier"], row["operation"], row["cause"], "bytes"] += row["bytes"]
    return own["reuse"], own["evictions"], dict(moved)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames or ()) == COLUMNS
        return list(reader)


def requests_of(path: Path) -> list[str]:
    """The rows of a recording, without its header."""
    return path.read_text().splitlines()[1:]


# --- the requests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-requests=150"],
        ["--max-requests=150", "--semantics=serving", "--arrival=open"],
        ["--max-requests=150", "--num-users=20", "--request-rate=300", "--enable-rag"],
        ["--max-requests=100", "--model-mix=tiny-1b=1,mistral-7b=1", "--storage-capacity-gb=2"],
        ["--max-requests=150", "--decode-only"],
        ["--duration=1.5", "--warmup=0.5", "--drain=0"],
    ],
    ids=["closed", "open", "paced-rag", "mix", "decode-only", "window"],
)
def test_a_replay_of_what_was_asked_decides_the_same_operation_by_operation(
    go: Go, flags: list[str]
) -> None:
    first = go(*flags, "--record=asked.jsonl", "--io-trace-log=first.csv")
    again = [flag for flag in flags if not flag.startswith(("--arrival", "--request-rate"))]
    replay = ["--trace=asked.jsonl", "--replay-cycles=1"]
    second = go(*again, *replay, "--record=again.jsonl", "--io-trace-log=second.csv")
    assert len(rows_of(Path("first.csv"))) > 300
    assert Path("first.csv").read_bytes() == Path("second.csv").read_bytes()
    assert requests_of(Path("asked.jsonl")) == requests_of(Path("again.jsonl"))
    assert ledger(first) == ledger(second)


def test_requests_of_a_synthetic_user_stay_what_they_were(go: Go) -> None:
    """From 10000 tokens on a synthetic user's request ends at prefill, a trace's does not."""
    config = Path("long.yaml")
    config.write_text(
        "user_templates:\n"
        + "".join(
            f"  {name}: {{context_range: [9000, 11000], generation_range: [1, 9], "
            "think_time_range: [0, 1]}\n"
            for name in ("chatbot", "coding", "document")
        )
    )
    flags = ["--config=long.yaml", "--max-requests=40", "--storage-capacity-gb=4"]
    first = go(*flags, "--record=asked.jsonl")
    second = go(*flags, "--trace=asked.jsonl", "--replay-cycles=1")
    assert ledger(first) == ledger(second)
    semantics = second["kv_cache"]["config"]["semantics"]
    assert (semantics["block_tokens"], semantics["prefill_only_from_tokens"]) == (0, 10_000)


def test_a_recording_keeps_its_objects_and_another_model_is_told(
    go: Go,
) -> None:
    first = go("--max-requests=30", "--record=asked.jsonl")
    second = go("--trace=asked.jsonl", "--replay-cycles=1", "--kv-dtype=int8")
    assert ledger(first) == ledger(second)
    (note,) = [n for n in second["kv_cache"]["notes"] if "asked.jsonl was recorded by" in n]
    assert "its objects keep the names and sizes" in note
    third = go("--trace=asked.jsonl", "--replay-cycles=1")
    assert not [n for n in third["kv_cache"]["notes"] if "recorded by" in n]


def test_what_came_on_demand_is_asked_on_demand(go: Go) -> None:
    served = ["--num-users=4", "--storage-capacity-gb=2", "--semantics=serving"]
    trace = ["--trace=datasets/mooncake_sample.jsonl", "--trace-speedup=0", "--replay-cycles=1"]
    first = go(*served, *trace, "--record=asked.jsonl.gz", "--io-trace-log=first.csv")
    header = json.loads(gzip.decompress(Path("asked.jsonl.gz").read_bytes()).split(b"\n")[0])
    assert header["timed"] is False
    assert header["load"]["block_tokens"] == 512
    second = go(*served, "--trace=asked.jsonl.gz", "--replay-cycles=1", "--io-trace-log=second.csv")
    assert Path("first.csv").read_bytes() == Path("second.csv").read_bytes()
    assert ledger(first) == ledger(second)


def test_a_real_run_of_one_worker_is_decided_the_same_in_every_world(tmp_path: Path) -> None:
    one = ["--num-users=1", "--max-requests=60", *LIGHT]
    replay = [*one, "--trace=asked.jsonl", "--replay-cycles=1", "--trace-speedup=0"]
    real = small(tmp_path, *one, "--record=asked.jsonl")
    assert real.code == 0, real.err
    assert "trace   asked.jsonl (60 requests)" in real.out
    assert [made["rows"] for made in real.own["recordings"]] == [60]
    assert ledger(real.result)[2]["storage", "write", "demotion", "operations"] > 0
    for world in ([], ["--virtual-time"]):
        again = small(tmp_path, *replay, *world)
        assert again.code == 0, again.err
        assert ledger(again.result) == ledger(real.result), world


def test_the_rounds_of_a_preconditioning_are_not_recorded(tmp_path: Path) -> None:
    ran = small(
        tmp_path, "--storage-capacity-gb=0.1", "--precondition", "--max-rounds=1", "--round=0.3",
        "--max-requests=20", "--record=asked.jsonl",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.own["preconditioning"]["rounds"][0]["completed"] > 0
    users = {json.loads(line)["request"]["user"] for line in requests_of(tmp_path / "asked.jsonl")}
    assert len(requests_of(tmp_path / "asked.jsonl")) == 20
    assert not any("precondition" in user for user in users)


# --- the operations ----------------------------------------------------------------------------


def test_the_trace_holds_every_operation_that_the_result_counts(go: Go) -> None:
    result = go("--duration=1.5", "--drain=0", "--io-trace-log=new/ops.csv")
    rows = rows_of(Path("new/ops.csv"))
    told: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        told[row["Tier"], row["Operation"], "ops"] += 1
        if row["Operation"] != "Delete":
            told[row["Tier"], row["Operation"], "bytes"] += int(row["Object_Size_Bytes"])
    tiers = {"gpu": "Tier-0", "cpu": "Tier-1", "storage": "Tier-2"}
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in result["kv_cache"]["operations"]:
        name = (tiers[row["tier"]], row["operation"].title())
        counted[*name, "ops"] += row["operations"]
        if row["operation"] != "delete":
            counted[*name, "bytes"] += row["bytes"]
    assert told == counted
    times = [float(row["Timestamp"]) for row in rows]
    assert times == sorted(times)
    assert {row["Phase"] for row in rows} == {"Prefill", "Decode", "Evict"}
    assert all(len(bytes.fromhex(row["Key"])) == 16 for row in rows)


def test_one_seed_gives_one_trace_and_the_result_has_its_digest(go: Go) -> None:
    seen = []
    for _ in range(2):
        result = go("--max-requests=100", "--io-trace-log=ops.csv.gz")
        data = Path("ops.csv.gz").read_bytes()
        (made,) = result["kv_cache"]["recordings"]
        assert made["sha256"] == hashlib.sha256(data).hexdigest()
        assert made["rows"] == len(gzip.decompress(data).splitlines()) - 1
        seen.append(data)
    assert seen[0] == seen[1]


def test_a_run_that_only_writes_a_trace_tells_no_performance(
    go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trace-only mode of the reference says PASS and 9.48 GiB/s without any I/O."""
    result = go("--max-requests=100", "--io-trace-log=ops.csv", "--slo-ms=5")
    told = capsys.readouterr().out
    assert result["kv_cache"]["contains_performance"] is False
    assert result["kv_cache"]["driver"] == "virtual-time"
    names(result["kv_cache"], V26="invalid")
    assert result["overall_passed"] is False
    assert result["summary"]["cache_stats"]["storage_health"]["overall_status"] == "FAIL"
    assert recheck(result) == []
    assert result["avg_latency_ms"] is None
    assert result["summary"]["cache_stats"]["tier_storage_read_bandwidth_gbps"] is None
    assert result["summary"]["cache_stats"]["tier_cpu_kv_bytes_read_gb"] > 0
    for word in ("GiB/s", " ms", "PASS", "tokens/s"):
        assert word not in told
    assert main(["verify", "R.json"]) == 0
    assert "Nothing was changed" in capsys.readouterr().out


def test_a_file_that_asks_for_the_trace_implies_virtual_time_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.yaml"
    path.write_text("output: {io_trace_log: ops.csv}\n")
    assert load_config(path).run.virtual_time
    assert not load_config(path, {"output.io_trace_log": None}).run.virtual_time


def renamed(rows: Sequence[dict[str, str]]) -> list[tuple[str, str, str, int]]:
    """(operation, size, tier, object), objects numbered as they come."""
    numbers: dict[str, int] = {}
    return [
        (
            row["Operation"],
            row["Object_Size_Bytes"],
            row["Tier"],
            numbers.setdefault(row["Key"], len(numbers)),
        )
        for row in rows
    ]


ONE_AT_A_TIME = """
semantics: {batch_blocks: 1}
user_templates:
  chatbot: {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0, 0.01]}
  coding: {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0, 0.01]}
  document: {context_range: [64, 512], generation_range: [10, 40], think_time_range: [0, 0.01]}
"""


@pytest.mark.parametrize(
    ("served", "asked"),
    [
        ([], ["--disable-prefix-caching"]),
        (["--gpu-mem-gb=0.0625"], ["--disable-prefix-caching"]),
        ([], ["--decode-only"]),
        (["--config=one.yaml"], []),
        (["--config=one.yaml", "--block-tokens=64"], ["--enable-rag"]),
        (
            ["--config=one.yaml", "--semantics=serving", "--no-promote", "--no-write-behind"],
            ["--block-tokens=64"],
        ),
    ],
    ids=["cpu", "gpu", "decode-only", "prompts", "blocks-rag", "serving"],
)
def test_a_replay_of_the_operations_does_the_same_operations(
    go: Go, served: list[str], asked: list[str]
) -> None:
    """Under the conditions of the how-to: one worker, one object at a time, nothing behind."""
    Path("one.yaml").write_text(ONE_AT_A_TIME)
    served = ["--num-users=1", "--storage-capacity-gb=0.25", *served]
    go(*served, *asked, "--max-requests=200", "--io-trace-log=first.csv")
    replay = ["--trace=first.csv", "--trace-speedup=0", "--replay-cycles=1"]
    go(*served, *replay, "--io-trace-log=second.csv")
    first, second = rows_of(Path("first.csv")), rows_of(Path("second.csv"))
    assert any(row["Phase"] == "Evict" for row in first)
    assert renamed(first) == renamed(second)


# --- signals -----------------------------------------------------------------------------------


def readable(path: Path) -> list[TraceRow]:
    """Every row can be read, the last one too."""
    return list(open_trace(str(path)).rows())


def test_a_signal_leaves_a_recording_that_can_be_replayed(tmp_path: Path) -> None:
    flags = [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=60"]
    process = start(tmp_path, [*flags, "--record=asked.jsonl"])
    partial = tmp_path / "asked.jsonl.partial"
    wait_for(lambda: partial.exists() and partial.stat().st_size > 10_000, process)
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert ran.code == 143, ran.err
    assert not partial.exists()
    rows = readable(tmp_path / "asked.jsonl")
    assert len(rows) == ran.own["requests"]["submitted"] == ran.own["recordings"][0]["rows"]
    assert any("asked.jsonl ends where the run was interrupted" in n for n in ran.own["notes"])
    again = run(
        tmp_path, *SMALL, "--virtual-time", "--trace=asked.jsonl", "--replay-cycles=1",
        "--output=R.json",
    )  # fmt: skip
    assert again.code == 0, again.err
    assert again.result["requests_completed"] == len(rows)


def test_a_signal_leaves_whole_lines_of_a_packed_trace(tmp_path: Path) -> None:
    flags = [*SMALL, "--output=R.json", "--duration=86400", "--io-trace-log=ops.csv.gz"]
    process = start(tmp_path, flags)
    partial = tmp_path / "ops.csv.gz.partial"
    wait_for(lambda: partial.exists() and partial.stat().st_size > 10_000, process)
    process.send_signal(signal.SIGINT)
    ran = finish(process, tmp_path)
    assert ran.code == 130, ran.err
    data = gzip.decompress((tmp_path / "ops.csv.gz").read_bytes())
    assert data.endswith(b"\r\n")
    assert data.count(b"\r\n") == ran.own["recordings"][0]["rows"] + 1
    assert readable(tmp_path / "ops.csv.gz")


# --- trials and bad input ----------------------------------------------------------------------


def test_each_trial_writes_files_of_its_own(go: Go) -> None:
    go("--max-requests=20", "--trials=2", "--record=asked.jsonl.gz", "--io-trace-log=ops.csv")
    for number in (1, 2):
        result = json.loads(Path(f"R.trial{number}.json").read_bytes())
        paths = [made["path"] for made in result["kv_cache"]["recordings"]]
        assert paths == [f"asked.jsonl.trial{number}.gz", f"ops.trial{number}.csv"]
        assert all(Path(path).exists() for path in paths)
    one, two = (Path(f"ops.trial{number}.csv").read_bytes() for number in (1, 2))
    assert one != two


CASES = {
    "--record notes.txt": ["--record", "notes.txt", "did not write"],
    "--record empty": ["empty", "did not write"],
    "--record nowhere/asked.jsonl": ["nowhere", "create it first"],
    "--record .": ["--record", "regular file"],
    "--record asked.xz": [".xz", ".gz"],
    "--record R.json --output R.json": ["--record R.json", "--output"],
    "--record old.jsonl --trace old.jsonl": ["--record old.jsonl", "the trace"],
    "--record a.csv --io-trace-log ./a.csv": ["--io-trace-log", "--record"],
    "--io-trace-log notes.txt": ["--io-trace-log", "notes.txt", "did not write"],
    "--io-trace-log notes.txt/ops.csv": ["notes.txt", "no directory"],
    "--io-trace-log ops.bz2": [".bz2", ".gz"],
    "--io-trace-log old.jsonl": ["old.jsonl", "did not write"],
    "--trials 2 --record asked.jsonl": ["asked.trial2.jsonl", "did not write"],
    "capacity --slo interactive:p95<50ms --io-trace-log ops.csv": ["--io-trace-log", "capacity"],
    "precondition --record asked.jsonl": ["--record", "precondition"],
}


@pytest.fixture(scope="module")
def an_older_recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("older")
    ran: Ran = run(place, *VIRTUAL, "--max-requests=3", "--record=old.jsonl", "--output=R.json")
    assert ran.code == 0, ran.err
    return (place / "old.jsonl").read_bytes()


@pytest.mark.parametrize("line", CASES)
def test_bad_input_ends_with_one_sentence_and_writes_nothing(
    line: str,
    an_older_recording: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {
        "notes.txt": b"mine\n",
        "empty": b"",
        "old.jsonl": an_older_recording,
        "asked.trial2.jsonl": b"{}\n",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (sentence,) = told.err.splitlines()
    for word in CASES[line]:
        assert word in sentence, (word, sentence)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_an_older_recording_is_replaced(go: Go, an_older_recording: bytes) -> None:
    Path("asked.jsonl").write_bytes(an_older_recording)
    go("--max-requests=5", "--record=asked.jsonl")
    assert len(readable(Path("asked.jsonl"))) == 5


def test_a_recording_is_read_as_a_stream(tmp_path: Path) -> None:
    """A cut file loses what is missing, and nothing else."""
    prepare(tmp_path)
    ran = run(tmp_path, *VIRTUAL, "--max-requests=20", "--record=asked.jsonl", "--output=R.json")
    assert ran.code == 0, ran.err
    whole = (tmp_path / "asked.jsonl").read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[: len(whole) * 2 // 3])
    rows = open_trace(str(tmp_path / "cut.jsonl"), skip_bad_rows=True).rows()
    assert 5 < len(list(rows)) < 20
