"""`compile`: the engine as machine code gives the numbers of its Python text."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app import compile_engine
from kv_cache.app.compiled import MODULES
from kv_cache.core.errors import UsageError
from kv_cache.lab.variants import USUAL
from kv_cache.policy import eviction
from tests.cli import PATIENCE_S, command, environment, wait_for

HARD = """\
name: hard
workload: {requests: 300, rate_per_s: 60, think_s: [0, 2], context_tokens: 300, documents: 6}
topology: {instances_per_node: 4}
instances:
  prefill: {count: 2, role: prefill, hbm_gib: 0.3}
  decode: {count: 2, role: decode, hbm_gib: 0.2}
tiers: {dram: {capacity_gib: 0.5}, nvme: {capacity_gib: 2}, hbm_eviction: arc}
scheduler: {preemption: swap, max_num_batched_tokens: 256}
vary: {network.discipline: [fifo, fair-share]}
"""

compiles = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("clang") is None,
    reason="there is no C compiler",
)
has_mypyc = pytest.mark.skipif(
    importlib.util.find_spec("mypyc") is None, reason="the extra `fast` is not installed"
)


def run(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*words), cwd=folder, capture_output=True, text=True, check=False,
        env={**environment(), "XDG_CACHE_HOME": str(folder / "cache"), **(environ or {})},
    )  # fmt: skip


def simulated(folder: Path, scenario: str, *words: str) -> tuple[Any, bytes]:
    done = run(folder, "sim", scenario, "--json", "--events", "events.jsonl", *words)
    assert done.returncode == 0, done.stderr
    events = folder / "events.jsonl"
    told = events.read_bytes()
    events.unlink()
    return json.loads(done.stdout)["kv_cache"], told


def studied(folder: Path, *words: str) -> Any:
    """Every policy, and some with other numbers, before and behind an admission policy."""
    policies = ",".join((*USUAL, "windowed:window=3", "s3-fifo:small_share=0.2"))
    done = run(
        folder, "lab", "--users", "--requests", "300", "--policies", policies,
        "--admission", "always,frequency", "--json", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["kv_cache"]


@compiles
@has_mypyc
@pytest.mark.nightly
def test_the_compiled_engine_gives_the_same_numbers_and_is_gone_when_removed(
    tmp_path: Path,
) -> None:
    (tmp_path / "hard.yaml").write_text(HARD)
    done = run(tmp_path, "compile")
    assert done.returncode == 0, done.stderr
    assert run(tmp_path, "compile").stdout.startswith("compiled already")
    for scenario, words in (("hard.yaml", ()), ("single-node", ("--preset", "smoke"))):
        fast, fast_events = simulated(tmp_path, scenario, *words)
        slow, slow_events = simulated(tmp_path, scenario, *words, "--pure")
        assert (fast["engine"], slow["engine"]) == ("compiled", "python")
        assert fast["variants"] == slow["variants"]
        assert fast_events == slow_events
    late = run(tmp_path, "sim", "hard.yaml", environ={"KV_CACHE_SIM__PURE": "true"})
    assert (late.returncode, late.stdout) == (2, "")
    assert "the compiled engine is loaded already; give --pure as a flag" in late.stderr
    fast, slow = studied(tmp_path), studied(tmp_path, "--pure")
    assert (fast["engine"], slow["engine"]) == ("compiled", "python")
    assert fast["cases"] == slow["cases"]
    cache = tmp_path / "cache" / "kv-cache"
    next(cache.rglob("arc.*.so")).unlink()
    assert studied(tmp_path)["engine"] == "python", "what is not whole is not used"
    (cache / "compiling-killed").mkdir()
    assert run(tmp_path, "compile", "--remove").returncode == 0
    assert not list(cache.iterdir())
    assert simulated(tmp_path, "hard.yaml")[0]["engine"] == "python"


def test_all_eviction_policies_are_compiled_as_one_cannot_inherit_from_a_compiled_one() -> None:
    texts = {path.stem for path in Path(eviction.__path__[0]).glob("*.py")} - {"__init__"}
    assert texts == set(MODULES["kv_cache.policy.eviction"])


def test_without_a_c_compiler_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        command("compile"), cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**environment(), "XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "compile needs a C compiler" in done.stderr
    assert not list(tmp_path.iterdir())


@compiles
@has_mypyc
def test_a_compile_that_fails_shows_what_the_compiler_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "root" / "kv_cache"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "wrong.py").write_text("def number() -> int:\n    return nowhere\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_engine, "ROOT", tmp_path / "root")
    monkeypatch.setattr(compile_engine, "module_names", lambda: ["kv_cache.wrong"])
    with pytest.raises(UsageError, match=r'wrong\.py:2: error: Name "nowhere" is not defined'):
        compile_engine.compile_engine()
    assert not list((tmp_path / "cache" / "kv-cache").iterdir())


@compiles
@has_mypyc
def test_a_compile_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "kv-cache"
    compiling = subprocess.Popen(
        command("compile"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment(), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    while not list(cache.glob("compiling-*/errors.txt")):
        assert compiling.poll() is None
        time.sleep(0.01)
    time.sleep(1.0)  # it has begun; how far it came is all the same
    compiling.terminate()
    out, err = compiling.communicate(timeout=PATIENCE_S)
    assert (compiling.returncode, out) == (143, "")
    assert "SIGTERM: nothing was kept" in err
    assert not list(cache.iterdir())
    wait_for(
        lambda: not [cwd for cwd in Path("/proc").glob("[0-9]*/cwd") if str(cache) in _target(cwd)]
    )


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


@pytest.mark.parametrize("cache", [None, "locked"])
def test_lab_and_sim_need_no_directory_for_what_was_compiled(
    cache: str | None, tmp_path: Path
) -> None:
    """A user without a home, and one whose home is another's."""
    words = (
        "lab", "--pattern", "rag_burst", "--seeds", "2", "--length", "50", "--policies", "lru",
        "--json",
    )  # fmt: skip
    inherited = {k: v for k, v in environment().items() if k not in ("HOME", "XDG_CACHE_HOME")}
    if cache is not None:
        (tmp_path / cache).write_text("no directory")
        inherited["XDG_CACHE_HOME"] = str(tmp_path / cache)
    code = (
        "import pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "from kv_cache.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    for argv, exits, said in (
        (words, 0, '"engine": "python"'),
        (("compile",), 2, "set XDG_CACHE_HOME"),
        (("compile", "--remove"), 0 if cache else 2, "" if cache else "set XDG_CACHE_HOME"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], cwd=tmp_path, capture_output=True, text=True,
            check=False, env=inherited,
        )  # fmt: skip
        assert done.returncode == exits, done.stderr
        assert said in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
