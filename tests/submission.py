"""Trees of MLPerf's sequence made by hand out of one real result: each test breaks one thing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from kv_cache.config.load import load_config
from kv_cache.config.mlperf import MLPERF_OPTIONS
from kv_cache.config.schema import to_mapping
from kv_cache.core.text import as_json
from kv_cache.metrics.judging import Status
from kv_cache.metrics.pace import batch_count
from kv_cache.mlperf.aggregate import run_summary
from kv_cache.mlperf.layout import Place, new_place, trial_directory
from kv_cache.mlperf.manifest import write_manifest
from kv_cache.mlperf.rules import check_tree
from kv_cache.mlperf.systems import describe, write_description
from kv_cache.mlperf.tree import Tree, read_tree
from kv_cache.result.chain import seal
from kv_cache.result.derive import derive
from kv_cache.result.run import read_run
from kv_cache.result.verify import judged_again, recheck
from tests.cli import PATIENCE_S, ROOT

Document = dict[str, Any]

SMALL = """
io: {buffer_mib: 1, load_buffers: 16, store_buffers: 16, threads: 4}
run: {drain_s: 1}
user_templates:
  chatbot: &user {context_range: [1, 4], generation_range: [10, 40], think_time_range: [0, 0.01]}
  coding: *user
  document: *user
"""
"""Small objects, so that there are enough of them; everything else is the rules'."""

STAMP = "20260701_120000"


def real_result(cwd: Path) -> Document:
    """A real rank of two that did little."""
    (cwd / "small.yaml").write_text(SMALL)
    words = (
        "--rank-output-base out --rank-cache-base cache --config small.yaml --duration 60 "
        "--max-requests 260 --model llama3.1-70b-instruct --num-users 3 --gpu-mem-gb 0 "
        "--cpu-mem-gb 0 --max-concurrent-allocs 4 --generation-mode none --storage-capacity-gb 1"
    )
    told = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "mlperf_wrapper.py"), *words.split()],
        cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, **told, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = (cwd / "out" / "rank_0").glob("*.json")
    document: Document = orjson.loads(path.read_bytes())
    shutil.rmtree(cwd / "out")
    return _quiet(document)


def _stretch(own: Document) -> None:
    """Its window is the rules', in which storage did little."""
    ends, headline = own["phases_ns"], own["headline"]
    ends["measure_end"] = ends["measure_start"] + 300 * 10**9
    count = batch_count(300.0, headline["call_s"])
    each = headline["bytes"] // count
    headline["batches"] = [[300 / count, each] for _ in range(count)]
    headline["batches"][-1][1] += headline["bytes"] - each * count
    headline["before_bytes"] = headline["after_bytes"] = 0


_NOISE = ("foreign", "throttles", "interposed", "page_cache", "payload", "clock", "stack")


def _quiet(document: Document) -> Document:
    """Without what this machine did meanwhile: a test's tree begins with valid ranks."""
    own = document["kv_cache"]
    own["metadata"] = []  # takes long to be computed again
    _stretch(own)
    evidence = own["passport"]["evidence"]
    evidence["gaps"] = None  # which are held against the times of metadata
    evidence["client"] = {}
    for name in _NOISE:
        if judged_again(document).verdict != "valid":
            evidence[name] = None
    assert judged_again(document).verdict == "valid", judged_again(document).reasons
    return derived(document)


def derived(document: Document) -> Document:
    """With everything that follows from its counts, as a run would have written it."""
    document["kv_cache"].pop("chain", None)
    return seal(derive(read_run(document)), {})


def resealed(document: Document) -> Document:
    """With the verdict that follows, and hashes that fit, as a run would have written it."""
    own = document["kv_cache"]
    own.pop("chain", None)
    evidence = own["passport"]["evidence"]
    own["passport"] = {**judged_again(document).to_json(), "evidence": evidence}
    own["passport"]["rules"] = json.loads(orjson.dumps(own["passport"]["rules"]))
    return seal(document, {})


def short(tree: Tree) -> set[str]:
    """The rules that a tree falls short of."""
    return {found.rule for found in check_tree(tree) if found.status is Status.INVALID}


def take_longer(document: Document, ns: int) -> None:
    """Storage takes so much longer: no two runs take as long, to the nanosecond."""
    for row in document["kv_cache"]["operations"]:
        for what in ("device", "total"):
            if row["tier"] == "storage" and row["operations"]:
                row[f"histogram_{what}"]["sum"] += ns


@cache
def as_rank(base: bytes, option: int, trial: int, rank: int, ranks: int) -> bytes:
    """The result as if it were of that option, and 300 s had been wanted."""
    document: Document = orjson.loads(base)
    own = document["kv_cache"]
    config = to_mapping(load_config(None, MLPERF_OPTIONS[option].overrides()))
    config["run"]["seed"] = 42 + rank
    config["tiers"]["cache_dir"] = [f"/mnt/nvme/kv/rank_{rank}"]
    config["output"]["output"] = (
        f"/r/option_{option}/trial_{trial}/rank_{rank}/kvcache_results_1.json"
    )
    own["passport"]["evidence"]["sample"] |= {"mode": config["run"]["mode"], "ranks": ranks}
    own["config"] = config
    own["seed"] = document["seed"] = 42 + rank
    own["rank"] = {"rank": rank, "ranks": ranks, "on_machine": ranks, "source": "PMI_RANK"}
    own["started_utc"] = f"2026-07-01T1{option}:{10 * trial:02}:00+00:00"
    own["not_submittable"] = []
    take_longer(document, 100 * option + 10 * trial + rank)
    own["environment"] |= {"hostname": "node", "same_filesystem": False}
    return as_json(derived(document))


Edit = Callable[[int, int, int, Document], None]
"""Changes the result of an option, trial and rank before it is sealed."""


def _nothing(option: int, trial: int, rank: int, document: Document) -> None:
    """As it was."""


@dataclass(slots=True)
class Made:
    """A tree on disk."""

    top: Path
    place: Place
    own: dict[str, Any]

    def file(self, option: int, trial: int = 0, rank: int = 0) -> Path:
        name = f"kvcache_results_{STAMP}.json"
        return trial_directory(self.place.run, option, trial) / f"rank_{rank}" / name

    def seal(self) -> None:
        write_manifest(self.place, self.own)

    def tree(self) -> Tree:
        return read_tree(self.top)


def make(
    top: Path,
    base: Document,
    *,
    division: str = "closed",
    ranks: int = 2,
    trials: int = 3,
    edit: Edit = _nothing,
    manifest: bool = True,
) -> Made:
    """A sequence that keeps every rule that a program can keep, but for what `edit` changes."""
    place = new_place(top, division, "Acme", "Drive9000", STAMP)
    made = Made(top=top, place=place, own=_record(division, ranks, trials))
    whole = as_json(base)
    for option in MLPERF_OPTIONS:
        for trial in range(trials):
            for rank in range(ranks):
                at = (option, trial, rank)
                path = made.file(option, trial, rank)
                path.parent.mkdir(parents=True)
                path.write_bytes(_edited(as_rank(whole, option, trial, rank, ranks), at, edit))
    assert place.code is not None
    place.code.mkdir()
    (place.code / ".code-hash.json").write_text("{}")
    assert place.description is not None
    description = _filled(describe("Drive9000", [base["kv_cache"]["environment"]]))
    write_description(place.description, description)
    place.description.with_suffix(".pdf").write_bytes(b"%PDF-1.4")
    if manifest:
        made.seal()
    summary = run_summary(made.tree(), STAMP)
    (place.run / f"kvcache_run_summary_{STAMP}.json").write_bytes(as_json(summary))
    if manifest:
        made.seal()
    return made


def launched(made: Made, **arguments: object) -> Path:
    """The same as `mlpstorage` leaves it: no record of ours, and its own. What an argument of None
    means is the launcher's default."""
    (made.place.run / "kvcache_sequence.json").unlink(missing_ok=True)
    said = {
        "mode": made.place.division, "trials": None, "seed": None, "inter_option_delay": None,
        "config": None, "hosts": ["127.0.0.1"], "npernode": 2, "num_processes": None,
        "cache_dir": "/mnt/nvme/kv", "results_dir": str(made.top), "loops": 1,
        "kvcache_bin_path": "/opt/kv/kv-cache.py",
    }  # fmt: skip
    path = made.place.run / f"kv_cache_{STAMP}_metadata.json"
    metadata = {
        "benchmark_type": "kv_cache", "model": "llama3.1-8b", "command": "run", "runtime": 3000.0,
        "args": {**said, **arguments}, "executed_command": "mpirun -n 2 python mlperf_wrapper.py",
    }  # fmt: skip
    path.write_text(json.dumps(metadata))
    return path


def _edited(usual: bytes, at: tuple[int, int, int], edit: Edit) -> bytes:
    """Return a result after `edit`; it is derived anew only if that changes it."""
    if edit is _nothing:
        return usual
    document: Document = orjson.loads(usual)
    edit(*at, document)
    return usual if document == orjson.loads(usual) else as_json(derived(document))


def _record(division: str, ranks: int, trials: int) -> dict[str, Any]:
    rows = [
        {
            "option": option, "trial": trial, "exit_codes": [0] * ranks, "complete": True,
            "started_utc": f"2026-07-01T1{option}:{10 * trial:02}:00+00:00",
            "ended_utc": f"2026-07-01T1{option}:{10 * trial + 5:02}:00+00:00",
            "left_in_cache": 0, "message": None,
        }
        for option in MLPERF_OPTIONS
        for trial in range(trials)
    ]  # fmt: skip
    return {
        "program_version": "1", "division": division, "org": "Acme", "system": "Drive9000",
        "status": "finished", "not_submittable": [], "deviations": [],
        "started_utc": "2026-07-01T11:00:00+00:00", "ended_utc": "2026-07-01T14:00:00+00:00",
        "config": {
            "options": [1, 2, 3], "trials": trials, "ranks": ranks, "seed": 42,
            "option_delay_s": 90.0, "shorten_s": None, "config": None, "flags": [],
            "launch": [], "command": ["kv-cache.py", "mlperf", "run"],
        },
        "environment": {"hostname": "node", "same_filesystem": False},
        "trials": rows,
    }  # fmt: skip


_FILLED = {
    "product_API": "block",
    "client_footprint": "open_source",
    "client_installation": "in_box",
    "multi_host": False,
    "simultaneous_write": True,
    "simultaneous_read": True,
    "remap_time_in_seconds": 0,
    "deployment": "onprem",
    "interface": "SATA",
    "media_type": "TLC",
}


def _filled(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner) for inner in value]
    if isinstance(value, str) and value.startswith("FILL IN"):
        return _FILLED.get(name, "filled in")
    return value


def consistent(document: Document) -> list[str]:
    """What contradicts itself in a document that a test made."""
    return list(recheck(document))
