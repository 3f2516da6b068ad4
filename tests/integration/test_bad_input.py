"""Bad input: one clear sentence, exit code 2, nothing written."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from kv_cache.tiers.nvme import uring
from tests.cli import PATIENCE_S, SMALL, called, command, environment, prepare, run
from tests.stores import mounted

NO_URING = uring.uring_missing()
PIDS = Path("/sys/fs/cgroup/pids")

CASES = {
    "--nmu-users 5": ["--nmu-users", "--num-users"],
    "--model llama3.1-9b": ["llama3.1-9b", "llama3.1-8b"],
    "--model tiny-1b --trace T.csv --trace-format burst": ["burst", "burstgpt"],
    "--num-users 0": ["--num-users", "1"],
    "--num-users -3": ["--num-users"],
    "--gpu-mem-gb nan": ["--gpu-mem-gb", "nan"],
    "--request-rate inf": ["--request-rate"],
    "--duration 100000000": ["--duration"],
    "--seed -1": ["--seed"],
    "--prefill-only --decode-only": ["--decode-only", "--prefill-only"],
    "--tensor-parallel 4": ["tensor_parallel", "--num-gpus"],
    "--config missing.yaml": ["missing.yaml"],
    "--config bad.yaml": ["num_user", "num_users"],
    "--config twice.yaml": ["duplicate key", "line"],
    "--config loop.yaml": ["loop.yaml", "alias"],
    "--config bomb.yaml": ["bomb.yaml", "aliases", "10,000,000"],
    "--cache-dir /etc/kv": ["/etc"],
    "--cache-dir a --cache-dir ./a": ["twice"],
    "--cache-dir a --cache-dir b --layout arena": ["arena", "--layout file"],
    "--layout tree": ["tree", "file"],
    "--fsync yes": ["never", "object", "batch"],
    "--personality lmcahce": ["lmcahce", "lmcache"],
    "--virtual-time --profile missing.yaml": ["missing.yaml"],
    "--fio-export a_file": ["a_file"],
    "verify missing.json": ["missing.json"],
    "verify a_file": ["a_file"],
    "twin a_file": ["a_file"],
    "twin missing.json --dir .": ["missing.json"],
    "probe --cache-dir /etc/kv": ["/etc"],
    "--cache-dir a_file": ["a_file", "director"],
    "--gpu-mem-gb 0 --cpu-mem-gb 100000": ["RAM", "would fit", "GiB"],
    "--gpu-mem-gb 0 --cpu-mem-gb 0 --storage-capacity-gb 900000": ["GiB", "free"],
    "--trace missing.csv": ["missing.csv"],
    "--trace empty.csv": ["empty"],
    "--trace wrong.csv": ["wrong.csv"],
    "--trace rows.csv": ["row", "3", "--skip-bad-rows"],
    "--output nowhere/R.json": ["nowhere"],
    "--output .": ["regular file"],
    "--enable-autoscaling --request-rate 5": ["autoscaler", "--request-rate", "capacity"],
    "--precondition --precondition-size-gb 900000": ["--precondition-size-gb", "GiB", "twice"],
    "--dataset-path x.json": ["x.json", "no such trace"],
    "--dataset-path talk.json": ["talk.json", "item 1", "conversations or messages"],
    "--dataset-path talk.json --trace T.csv": ["--dataset-path", "--trace", "one trace"],
    "--dataset-path talk.json --tokenizer gpt2": ["--tokenizer", "tiktoken:", "hf:"],
    "--enable-rag --rag-num-docs 0": ["--rag-num-docs", "--enable-rag", "at least 1"],
    "--enable-rag --decode-only": ["--enable-rag", "decode-only"],
    "--trace-prompts --disable-prefix-caching --trace T.csv": [
        "--trace-prompts",
        "--disable-prefix-caching",
    ],
    "--gpu-mem-gb 0 --cpu-mem-gb 0 --xlsx-output a_file/x.xlsx": ["--xlsx-output", "directory"],
    "--gpu-mem-gb 0 --cpu-mem-gb 0 --xlsx-output .": ["--xlsx-output", "directory"],
    "--validation-trace x.json": ["--validation-trace"],
    "--nvme-backend cpcs": ["cpcs"],
    "--gpu cuda": ["cuda"],
    "rnu": ["rnu", "run"],
    "config a b": ["config"],
    "config quick --config quick": ["FILE and --config", "give one"],
    "config --set lengths.think_s=3": ["a section of", "lengths.think_s.value"],
}


@pytest.mark.parametrize("line", CASES)
def test_bad_input_ends_with_one_sentence_and_writes_nothing(line: str, tmp_path: Path) -> None:
    files = {
        "a_file": "x",
        "talk.json": '[{"id": 1, "turns": []}]',
        "bad.yaml": "run: {num_user: 5}",
        "twice.yaml": "run:\n  seed: 1\n  seed: 2\n",
        "loop.yaml": "run: &a {seed: *a}\n",
        "bomb.yaml": "a0: &a0 [1, 1]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        "T.csv": "Timestamp,Request tokens,Response tokens\n1,5,5\n",
        "empty.csv": "",
        "wrong.csv": "a,b\n1,2\n",
        "rows.csv": "Timestamp,Request tokens,Response tokens\n1,5,5\n2,x,5\n3,5,5\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ran = run(tmp_path, *line.split())
    assert ran.code == 2, (ran.out, ran.err)
    assert ran.out == ""
    lines = [text for text in ran.err.splitlines() if text]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("kv-cache: ")
    for word in CASES[line]:
        assert word in lines[0], (word, lines[0])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*files, "small.yaml"}


def test_bad_rows_are_skipped_and_counted_when_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "Timestamp,Request tokens,Response tokens\n1,5,5\n2,x,5\n3,5,5\n"
    )
    ran = run(
        tmp_path, "--trace=rows.csv", "--skip-bad-rows", "--virtual-time", "--replay-cycles=1",
        "--output=R.json", "--gpu-mem-gb=0", "--cpu-mem-gb=0",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.own["workload"]["skipped_bad_rows"] == 1
    assert ran.result["requests_completed"] == 2


def test_a_read_only_cache_dir_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "readonly"
    place.mkdir()
    with mounted(place, "tmpfs", "ro"):
        ran = run(tmp_path, "--gpu-mem-gb=0", "--cpu-mem-gb=0", f"--cache-dir={place}/c")
    assert ran.code == 2
    assert "read-only" in ran.err or "writ" in ran.err


@pytest.mark.parametrize("flag", ["-v", "-d"])
@pytest.mark.parametrize("kib", [150_000, 300_000, 700_000])
def test_a_limit_on_memory_that_is_too_low_is_named(kib: int, flag: str, tmp_path: Path) -> None:
    """Libraries, buffers and threads fail in it one after the other as it grows."""
    prepare(tmp_path)
    run = command(*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=1")
    stacks = "--set=io.threads=128"  # 1 GiB of them
    done = subprocess.run(
        ["bash", "-c", f'ulimit {flag} {kib} -s 8192; exec "$@"', "bash", *run, stacks],
        cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("kv-cache: ")]
    assert f"ulimit {flag}" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


@pytest.mark.skipif(NO_URING is not None, reason=NO_URING or "io_uring is here")
@pytest.mark.parametrize(("most", "code"), [(180, 2), (4096, 0)])
def test_rings_raise_the_limit_on_open_files_or_it_is_named(
    most: int, code: int, tmp_path: Path
) -> None:
    """Each of 84 threads has two: runs had tracebacks of whoever opened a file then."""
    prepare(tmp_path)
    ring = ("--io-engine=uring", "--num-users=60", "--set=schedule.workers=60")
    run = command(*SMALL, *ring, "--cache-dir=cache", "--output=R.json", "--duration=1")
    limited = ["prlimit", f"--nofile=128:{most}", *run]
    done = subprocess.run(
        limited, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("kv-cache: ")]
    assert [("ulimit -Hn" in line, "--io-engine direct" in line) for line in sentences] == [
        (True, True)
    ] * (code == 2)


@pytest.mark.skipif(NO_URING is not None, reason=NO_URING or "io_uring is here")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not there")
@pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability")
@pytest.mark.parametrize(("kib", "code"), [(64, 2), (4096, 0)])
def test_rings_for_which_memory_may_not_be_locked_are_named(
    kib: int, code: int, tmp_path: Path
) -> None:
    """Each thread's ring failed by itself: 3,864 of 3,911 writes ended with ENOMEM."""
    prepare(tmp_path)
    run = command(
        *SMALL, "--io-engine=uring", "--layout=arena", "--num-users=60",
        "--set=schedule.workers=60", "--cache-dir=cache", "--output=R.json", "--duration=1",
    )  # fmt: skip
    without = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    done = subprocess.run(
        [*without, "prlimit", f"--memlock={kib << 10}:{kib << 10}", *run], cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    refused = "need an io_uring each" in done.stderr
    if refused != (code == 2):
        pytest.skip("this kernel takes another amount of locked memory for a ring")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    if refused:
        assert "ulimit -l" in done.stderr
        assert not (tmp_path / "R.json").exists()
    else:
        own = orjson.loads((tmp_path / "R.json").read_bytes())["kv_cache"]
        assert "ulimit -l" in own["tiers"]["storage"]["store"]["data_path"]
        assert own["failed_operations"] == []


@pytest.mark.skipif(not PIDS.is_dir(), reason="there is no cgroup that limits threads")
@pytest.mark.parametrize("most", [20, 40])
def test_a_limit_on_threads_is_named(most: int, tmp_path: Path) -> None:
    """Those of native code, or of Python, are too many."""
    prepare(tmp_path)
    group = PIDS / tmp_path.name
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(most))
    except OSError as refused:
        pytest.skip(f"a cgroup cannot be made: {refused}")
    run = command(*SMALL, "--cache-dir=cache", "--output=R.json", "--set=schedule.workers=40")
    join = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    try:
        done = subprocess.run(
            ["bash", "-c", join, "bash", *run], cwd=tmp_path, env=environment(),
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    finally:
        group.rmdir()
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("kv-cache: ")]
    assert "pids.max" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_a_probe_with_too_little_memory_names_its_own_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that no option could save anything, and wanted a larger machine."""
    monkeypatch.setattr("kv_cache.bench.memory.available_ram_bytes", lambda: 4 << 30)
    words = ("probe", "--cache-dir=cache", "--size-gib=1", "--sizes=1MiB", "--dry-run")
    code, _, err = called(tmp_path, *words, "--concurrency=256")
    assert (code, "--concurrency" in err, "256 KiB" in err) == (2, True, True), err
    assert called(tmp_path, *words, "--concurrency=64")[0] == 0


ESCAPE = "\x1b]0;title\x07\x9b31m"
"""Orders to a terminal, in the name of a file that a stranger has sent."""


@pytest.mark.parametrize(
    "words",
    [
        "verify NAME", "report NAME", "compare NAME NAME", "plot NAME", "twin NAME --dir .",
        "verify DIR", "report DIR", "mlperf check DIR", "mlperf summarize DIR", "predict NAME",
        "trace stats NAME", "trace fit NAME", "lab --trace NAME", "sim NAME", "--trace NAME",
        "calibrate --probe NAME --no-dram", "--model NAME --dry-run", "--output NAME --dry-run",
        "probe --cache-dir DIR --dry-run", "--NAME", "sim single-node --set NAME=1",
        "sweep NAME --results-dir runs",
    ],
)  # fmt: skip
def test_no_name_is_an_order_to_the_terminal(words: str, tmp_path: Path) -> None:
    (tmp_path / f"file{ESCAPE}").write_text("{}")
    (tmp_path / f"dir{ESCAPE}").mkdir()
    names = {"NAME": f"file{ESCAPE}", "DIR": f"dir{ESCAPE}"}
    argv = [re.sub("NAME|DIR", lambda name: names[name[0]], word) for word in words.split()]
    _, out, err = called(tmp_path, *argv)
    printed = out + err
    assert "title" in printed, printed
    assert [c for c in printed if not c.isprintable() and c not in "\n\t"] == []


def test_a_log_line_is_no_order_to_the_terminal(tmp_path: Path) -> None:
    """The variable of an option is logged with its value."""
    _, _, err = called(tmp_path, "sim", "--list", KV_CACHE_SIM__OUTPUT=f"x{ESCAPE}")
    assert "KV_CACHE_SIM__OUTPUT=x?]0;title??31m" in err
