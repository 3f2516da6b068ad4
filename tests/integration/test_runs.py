"""Small real runs, end to end, as a user starts them."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kv_cache.bench.witness import Witness
from kv_cache.tiers import native
from tests.cli import (
    LIGHT,
    PATIENCE_S,
    SIGNALS,
    SMALL,
    Ran,
    anything,
    environment,
    finish,
    one_configuration,
    prepare,
    run,
    small,
    start,
    wait_until_at_work,
    worker_of,
)
from tests.passports import names, says
from tests.stores import mounted

MODES = ("standard", "prefill-only", "decode-only")
IN_MEMORY = {"V1": "invalid", "V5": "suspect"}
"""What is named of a run on tmpfs."""


def sound(ran: Ran) -> Any:
    """A finished run whose books are in order; its own section."""
    assert ran.code == 0, ran.err
    own = ran.own
    books = own["requests"]
    ends = ("completed", "failed", "rejected", "unfinished")
    assert books["submitted"] == sum(books[name] for name in ends)
    assert books["failed"] == 0, own["failed_operations"]
    assert own["failed_operations"] == []
    assert own["status"] == "finished"
    return own


@pytest.mark.parametrize("semantics", ["mlperf", "serving"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_runs_and_leaves_nothing_behind(
    mode: str, semantics: str, tmp_path: Path
) -> None:
    flags = [] if mode == "standard" else [f"--{mode}"]
    block_tokens = 0 if semantics == "mlperf" else 64
    ran = small(
        tmp_path,
        f"--semantics={semantics}",
        f"--block-tokens={block_tokens}",
        "--max-requests=40",
        *LIGHT,
        *flags,
    )
    own = sound(ran)
    assert ran.result["requests_completed"] == 40
    causes = {row["cause"] for row in own["operations"] if row["operation"] != "delete"}
    if mode == "decode-only":
        measured = {r["operation"] for r in own["operations"] if r["phase"] == "measure"}
        assert "populate" in causes
        assert "prefill" not in causes
        assert "read" in measured
    else:
        assert "prefill" in causes
    assert ("decode" in causes) == (
        mode == "decode-only" or (semantics, mode) == ("mlperf", "standard")
    )
    assert not (tmp_path / "cache").exists()
    assert "requests" in ran.out


@pytest.mark.parametrize("engine", ["direct", "mmap", "buffered", "auto"])
def test_the_result_names_the_engine_that_was_used_by_each_operation(
    engine: str, tmp_path: Path
) -> None:
    ran = small(tmp_path, f"--io-engine={engine}", "--max-requests=30", "--verify=full")
    own = sound(ran)
    used = {
        row["engine"]
        for row in own["operations"]
        if row["tier"] == "storage" and row["operation"] != "delete"
    }
    assert used == {"direct" if engine == "auto" else engine}
    assert own["verification"]["objects"] > 0
    if not isinstance(native.library(), str):
        moved_by = "native" if engine in ("direct", "auto") else f"python: NvmeStore ({engine}) "
        assert own["tiers"]["storage"]["store"]["data_path"].startswith(moved_by)


def test_claimed_bytes_agree_with_the_kernel(tmp_path: Path) -> None:
    ran = small(tmp_path, "--io-engine=direct", "--max-requests=150")
    books = sound(ran)["reconciliation"]
    for kind in ("read", "write"):
        row = books[kind]
        assert row["claimed_bytes"] > 100e6
        assert row["process_to_claimed"] == pytest.approx(1, abs=0.01)
    demoted = [r for r in ran.own["operations"] if r["cause"] == "demotion"]
    assert sum(row["bytes"] for row in demoted if row["tier"] == "storage") > 0


def test_the_same_seed_asks_the_same_twice(tmp_path: Path) -> None:
    seen = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ran = small(tmp_path / name, *LIGHT, "--max-requests=60", "--storage-capacity-gb=0.25")
        own = sound(ran)
        reuse = own["reuse"]
        seen.append(
            (
                own["schedule"],
                ran.result["requests_completed"],
                ran.result["total_tokens_generated"],
                own["measured"]["all"]["prompt_tokens"],
                reuse["loaded_bytes"],
                reuse["stored_bytes"],
                reuse["hits"],
            )
        )
    assert seen[0] == seen[1]
    assert seen[0][1] == 60


def test_virtual_time_gives_byte_identical_records(tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ran = small(
            tmp_path / name,
            "--virtual-time",
            "--duration=6",
            "--results-dir=runs",
            "--records",
        )
        assert ran.code == 0, ran.err
        assert not ran.result["overall_passed"]
        names(ran.own, V26="invalid")
        assert "virtual time" in says(ran.own, "V26")
        (directory,) = (tmp_path / name / "runs").iterdir()
        rows.append([(directory / f).read_bytes() for f in ("requests.jsonl", "transfers.jsonl")])
    assert rows[0] == rows[1]
    assert len(rows[0][0].splitlines()) > 100


def test_a_run_directory_holds_what_is_needed_to_check_and_repeat(tmp_path: Path) -> None:
    ran = small(tmp_path, "--max-requests=30", "--results-dir=runs", "--records",
                "--latency-dump=dump.jsonl")  # fmt: skip
    own = sound(ran)
    (directory,) = (tmp_path / "runs").iterdir()
    names = sorted(path.name for path in directory.iterdir())
    assert names == [
        "config.yaml",
        "environment.json",
        "report.html",
        "requests.jsonl",
        "result.json",
        "transfers.jsonl",
    ]
    requests = [json.loads(line) for line in lines(directory / "requests.jsonl")]
    assert len(requests) == own["requests"]["submitted"] == 30
    transfers = [json.loads(line) for line in lines(directory / "transfers.jsonl")]
    written = sum(
        leg["bytes"]
        for row in transfers
        for leg in row["legs"]
        if leg["operation"] == "write" and leg["tier"] == "storage"
    )
    assert written == own["reconciliation"]["write"]["claimed_bytes"]
    assert len((tmp_path / "dump.jsonl").read_text().splitlines()) == 30
    again = run(tmp_path, f"--config={directory / 'config.yaml'}", "--virtual-time",
                "--output=again.json")  # fmt: skip
    assert again.code == 0, again.err
    repeated = json.loads((tmp_path / "again.json").read_bytes())
    assert repeated["kv_cache"]["schedule"] == own["schedule"]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_the_run_with_a_result(number: int, code: int, tmp_path: Path) -> None:
    process = start(tmp_path, [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=600"])
    wait_for_objects(tmp_path / "cache", process)
    process.send_signal(number)
    ran = finish(process, tmp_path)
    assert ran.code == code
    assert ran.own["status"] == "interrupted"
    assert ran.result["overall_passed"] is False
    assert not (tmp_path / "cache").exists()


def test_a_signal_while_populating_ends_the_run_with_a_result(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        [*SMALL, "--cache-dir=cache", "--output=R.json", "--decode-only", "--num-users=2000",
         "--storage-capacity-gb=8"],
    )  # fmt: skip
    wait_for_objects(tmp_path / "cache", process)
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert ran.code == 143
    assert ran.own["status"] == "interrupted"
    assert "summary" not in ran.result
    assert not (tmp_path / "cache").exists()


def wait_for_objects(cache: Path, process: "subprocess.Popen[str]", count: int = 5) -> None:
    while not anything(cache, "*/*/*.kv", count):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_a_second_run_on_a_cache_dir_in_use_is_refused(tmp_path: Path) -> None:
    first = start(tmp_path, [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=60"])
    wait_for_objects(tmp_path / "cache", first)
    second = run(tmp_path, *SMALL, "--cache-dir=cache", "--output=second.json")
    assert second.code == 2
    assert str(worker_of(first)) in second.err
    assert not (tmp_path / "second.json").exists()
    first.send_signal(signal.SIGINT)
    assert finish(first, tmp_path).code == 130


def test_kept_cache_files_stay_and_foreign_files_are_never_touched(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "mine.npy").write_text("precious")
    sound(small(tmp_path, "--max-requests=20", "--keep-cache"))
    kept = list(cache.glob("*/*/*.kv"))
    assert kept
    sound(small(tmp_path, "--max-requests=20"))
    assert sorted(kept) == sorted(cache.glob("*/*/*.kv"))
    assert (cache / "mine.npy").read_text() == "precious"


def test_vanished_and_corrupted_files_are_failed_operations_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    process = start(
        tmp_path,
        [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=6", "--cpu-mem-gb=0"],
    )
    wait_for_objects(tmp_path / "cache", process)
    end = threading.Event()

    def harm() -> None:
        for number, path in enumerate(harmed(tmp_path / "cache", end)):
            try:
                if number % 3 == 0:
                    path.unlink()
                elif number % 3 == 1:
                    with path.open("r+b") as file:
                        file.truncate(4096)
                else:
                    with path.open("r+b") as file:
                        file.seek(8192)
                        file.write(b"\0" * 4096)
            except FileNotFoundError:
                continue

    thread = threading.Thread(target=harm)
    thread.start()
    ran = finish(process, tmp_path)
    end.set()
    names(ran.own, V12="invalid", V22="invalid")
    thread.join()
    assert ran.code == 0, ran.err
    reasons = {row["reason"] for row in ran.own["failed_operations"]}
    assert {"vanished", "truncated", "verification-failed"} & reasons
    assert ran.own["requests"]["failed"] > 0
    assert ran.result["requests_completed"] > 0
    assert not (tmp_path / "cache").exists()


def harmed(cache: Path, end: threading.Event) -> Iterator[Path]:
    """Objects of the run, one every few ms, until it ends."""
    while not end.wait(0.02):
        with contextlib.suppress(FileNotFoundError):  # the run is removing its directories
            yield from list(cache.glob("*/*/*.kv"))[:2]


def test_a_full_disk_is_counted_and_named_and_the_run_goes_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "tmpfs", "size=96m"):
        try:
            process = start(
                tmp_path,
                [*SMALL, f"--cache-dir={disk}/cache", "--output=R.json", "--duration=8",
                 "--storage-capacity-gb=0.08", "--cpu-mem-gb=0"],
            )  # fmt: skip
            wait_for_objects(disk / "cache", process)
            ballast = disk / "ballast"  # somebody else fills the disk
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
            ran = finish(process, tmp_path)
            assert ran.code == 0, ran.err
            assert "no-space" in {row["reason"] for row in ran.own["failed_operations"]}
            assert any("no-space" in note for note in ran.own["notes"])
            assert ran.own["requests"]["failed"] > 0
            names(ran.own, **IN_MEMORY, V12="invalid")
            assert ballast.exists()
        finally:
            process.kill()
            process.wait()


def test_a_dead_worker_ends_the_run_with_exit_code_1_and_a_result(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys, functools\n"
        "import kv_cache.cli, kv_cache.app.run as command\n"
        "from tests.wrappers import Faulty\n"
        "def bug(kind, ref):\n"
        "    if ref.copy_id == 20: raise RuntimeError('a bug in the program')\n"
        "command.open_run = functools.partial(\n"
        "    command.open_run, wrap=lambda store: Faulty(store, bug))\n"
        "sys.exit(kv_cache.cli.main(sys.argv[1:]))\n"
    )
    from tests.cli import command, environment, prepare

    prepare(tmp_path)
    words = command(*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=30")
    words[1] = str(script)
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / "R.json").read_bytes())
    assert result["kv_cache"]["status"] == "broken"
    assert any("a bug in the program" in note for note in result["kv_cache"]["notes"])
    assert result["overall_passed"] is False
    assert not (tmp_path / "cache").exists()


def test_a_trace_is_replayed_from_every_format(tmp_path: Path) -> None:
    for name in ("mooncake_sample.jsonl", "burstgpt_sample.csv", "azure_sample.csv"):
        ran = small(
            tmp_path, f"--trace=datasets/{name}", "--trace-speedup=0", "--max-requests=12",
            "--semantics=serving", "--storage-capacity-gb=1",
        )  # fmt: skip
        own = sound(ran)
        assert own["workload"]["format"] == name.split("_")[0]
        assert ran.result["requests_completed"] == 12


def test_a_cycle_ends_when_its_last_request_is_served(tmp_path: Path) -> None:
    ran = small(
        tmp_path, "--use-burst-trace", "--burst-trace-path=datasets/burstgpt_sample.csv",
        "--replay-cycles=2", "--trace-speedup=0", "--block-tokens=4096",
    )  # fmt: skip
    own = sound(ran)
    assert ran.result["requests_completed"] == 2 * own["workload"]["rows"]
    assert own["workload"]["cycles_ended"] == 2


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_signal_ends_virtual_time_too(tmp_path: Path) -> None:
    process = start(tmp_path, [*SMALL, "--virtual-time", "--output=R.json", "--duration=86400"])
    wait_until_at_work(process, cpu_s=1.5)
    process.send_signal(signal.SIGINT)
    ran = finish(process, tmp_path)
    assert ran.code == 130, ran.err
    assert ran.own["status"] == "interrupted"
    assert ran.result["requests_completed"] > 0


def test_space_that_a_dead_run_holds_is_counted_as_free(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "tmpfs", "size=256m"):
        flags = [*SMALL, f"--cache-dir={disk}/cache", "--storage-capacity-gb=0.2", "--cpu-mem-gb=0"]
        process = start(tmp_path, [*flags, "--output=dead.json", "--duration=60"])
        try:
            wait_for_objects(disk / "cache", process, count=30)
            process.kill()
            process.communicate()
            assert len(list((disk / "cache").glob("*/*/*.kv"))) >= 30
            ran = run(tmp_path, *flags, "--output=R.json", "--max-requests=10")
            names(sound(ran), **IN_MEMORY)
            assert not (disk / "cache").exists() or not list((disk / "cache").iterdir())
        finally:
            process.kill()
            process.communicate()


def test_what_a_killed_run_left_in_a_temporary_directory_goes_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (temporary / "kv_cache_notes").mkdir()  # not ours, whatever its name
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = start(tmp_path, [*SMALL, "--output=dead.json", "--duration=60"])
    while len(list(temporary.glob("kv_cache_*/*/*/*.kv"))) < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    sound(run(tmp_path, *SMALL, "--output=R.json", "--max-requests=10"))
    assert [path.name for path in temporary.iterdir()] == ["kv_cache_notes"]


def test_a_signal_while_memory_is_allocated_ends_the_run_with_a_result(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        [*SMALL, "--cache-dir=cache", "--output=R.json", "--cpu-mem-gb=6", "--duration=60"],
    )
    while not (tmp_path / "cache" / ".kv-cache.lock").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert ran.code == 143, ran.err
    assert ran.own["status"] == "interrupted"
    assert ran.result["overall_passed"] is False
    assert not (tmp_path / "cache").exists()


def test_a_run_that_ends_while_warming_up_says_that_nothing_was_measured(tmp_path: Path) -> None:
    ran = small(tmp_path, "--max-requests=5", "--warmup=30")
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["window_s"] == 0
    assert own["phases_ns"]["measure_start"] == own["phases_ns"]["measure_end"]
    assert any("nothing was measured" in note for note in own["notes"])
    assert ran.result["overall_passed"] is False


def test_what_ends_after_the_window_is_not_in_it_however_late_its_beginning_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine looking at all processes took 6 s: a window of 4 s had what ended in 10."""
    look = Witness.open_window

    def late(self: Witness) -> None:
        time.sleep(2)
        look(self)

    monkeypatch.setattr(Witness, "open_window", late)
    ran = run(
        tmp_path, *SMALL, "--max-requests=0", "--duration=1", "--records", "--results-dir=runs",
        "--output=R.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    end_ns = ran.own["phases_ns"]["measure_end"]
    assert end_ns - ran.own["phases_ns"]["measure_start"] == 1e9
    (records,) = tmp_path.glob("runs/*/transfers.jsonl")
    ended = Counter(
        leg["finished_ns"] <= end_ns
        for line in records.read_text().splitlines()
        for leg in json.loads(line)["legs"]
        if leg["tier"] == "storage" and json.loads(line)["error"] is None
    )
    told = Counter[bool]()
    for row in ran.own["operations"]:
        if row["tier"] == "storage":
            told[row["phase"] != "drain"] += row["operations"]
    assert told[False] > 0
    assert told == ended


def test_a_vanished_file_strands_no_capacity(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=4", "--cpu-mem-gb=0"],
    )
    wait_for_objects(tmp_path / "cache", process)
    for path in list((tmp_path / "cache").glob("*/*/*.kv"))[:3]:
        path.unlink(missing_ok=True)
    ran = finish(process, tmp_path)
    assert ran.code == 0, ran.err
    assert ran.own["tiers"]["storage"]["stranded_bytes"] == 0


def test_a_request_rate_paces_a_trace_too(tmp_path: Path) -> None:
    ran = run(
        tmp_path, "--trace=datasets/azure_sample.csv", "--request-rate=5", "--max-requests=100",
        "--virtual-time", "--model=tiny-1b", "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--output=R.json",
        "--generation-mode=none", "--seed=1",
    )  # fmt: skip
    own = sound(ran)
    assert own["window_s"] == pytest.approx(20.0, rel=0.05)


def test_every_promised_percentile_of_a_class_is_judged(tmp_path: Path) -> None:
    (tmp_path / "promises.yaml").write_text(
        "qos_profiles:\n"
        "  batch: {target_latency_p95_ms: 0.000001, target_latency_p99_ms: 0.000001,\n"
        "          target_latency_p999_ms: 3600000, target_latency_p9999_ms: 3600000}\n"
    )
    ran = run(
        tmp_path, "--config=promises.yaml", "--virtual-time", "--duration=20", "--num-users=10",
        "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--model=tiny-1b", "--seed=1", "--output=R.json",
    )  # fmt: skip
    batch = sound(ran)["measured"]["batch"]
    assert batch["completed"] > 0
    met = {name: promise["met"] for name, promise in batch["slos"].items()}
    assert met == {"p95": False, "p99": False, "p999": None, "p9999": None}, "too few to say"


DEFECT = """
import functools, sys
import kv_cache.cli, kv_cache.app.run as command, kv_cache.cli.progress as progress
from kv_cache.core.kinds import Tier
from tests.wrappers import Throttled

def slow(store):
    return Throttled(store, bytes_per_second=20_000_000) if store.tier is Tier.NVME else store

def tick(self, run):
    if run.phase == "measure":
        seen.append(run)
        if len(seen) == 3:
            raise RuntimeError("a defect")

seen = []
progress.RunProgress.tick = tick
command.open_run = functools.partial(command.open_run, wrap=slow)
kv_cache.cli.main(sys.argv[1:])
"""


def test_a_defect_in_the_midst_of_a_run_ends_it_loudly_and_never_hangs(tmp_path: Path) -> None:
    """Requests wait for stores that are written behind, and these are given up."""
    prepare(tmp_path)
    (tmp_path / "behind.yaml").write_text(
        (tmp_path / "small.yaml").read_text()
        + "semantics: {write_behind: true, write_behind_queue: 2}\n"
    )
    args = [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=60", "--num-users=24",
            "--semantics=serving", "--block-tokens=64", "--cpu-mem-gb=0",
            "--storage-capacity-gb=0.1", "--config=behind.yaml"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", DEFECT, *one_configuration(args)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: a defect" in done.stderr
    assert not (tmp_path / "cache").exists()
