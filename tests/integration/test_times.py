"""The instants of requests in real runs, against those of what they asked for, in every mode."""

import threading
from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.prepare import prepare
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.config.load import load_config
from kv_cache.core.effect import Move, OpDone, Read, Write
from kv_cache.core.kinds import Cause, Outcome
from kv_cache.core.record import RequestRecord
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.outcome import RunOutcome
from tests.cli import ROOT

_SMALL = {
    "run.model": "tiny-1b", "run.num_users": 4, "run.max_requests": 24, "run.seed": 3,
    "run.generation_mode": "fast", "run.kv_bytes_per_token": 3072,
    "tiers.gpu_mem_gib": 0.0, "tiers.cpu_mem_gib": 0.0078125, "tiers.storage_capacity_gib": 0.0625,
    "io.buffer_mib": 1, "io.threads": 4, "passport.measurement": False, "output.progress": False,
    **{
        f"user_templates.{user}.{name}": limits
        for user in ("chatbot", "coding", "document")
        for name, limits in (
            ("context_range", (64, 512)), ("generation_range", (2, 10)),
            ("think_time_range", (0.0, 0.02)),
        )
    },
}  # fmt: skip
_SERVING = {"semantics.preset": "serving", "semantics.block_tokens": 64}
_TRACE = {
    **_SERVING, "semantics.block_tokens": 512, "run.kv_bytes_per_token": 256,
    "workload.trace": str(ROOT / "datasets" / "mooncake_sample.jsonl"),
}  # fmt: skip
_OPEN = {"arrival.mode": "open", "arrival.request_rate": 100.0, "schedule.workers": 2}
_RAG = {
    "rag.enabled": True, "rag.request_probability": 0.5, "rag.chunk_size_tokens": 64,
    "rag.small_model_doc_tokens_min": 200, "rag.small_model_doc_tokens_max": 500,
}  # fmt: skip

MODES: dict[str, dict[str, Any]] = {
    "mlperf": {},
    "serving": _SERVING,
    "stores waited for": {**_SERVING, "semantics.write_behind": False},
    "one store behind at a time": {**_SERVING, "semantics.write_behind_queue": 1},
    "written through": {
        **_SERVING, "semantics.write_behind": False, "semantics.write_behind_queue": 1,
        "policies.write": "through",
    },
    "written through what is used again": {**_SERVING, "policies.write": "through-selective"},
    "prefetch": {**_SERVING, "policies.prefetch": "next-in-session"},
    "prefill only": {"run.mode": "prefill-only"},
    "decode only": {"run.mode": "decode-only"},
    "decode only, serving": {**_SERVING, "run.mode": "decode-only"},
    "fewer workers than users": {"schedule.workers": 1},
    "one store at a time": {"schedule.max_concurrent_allocs": 1},
    "open": _OPEN,
    "open, at random": {**_OPEN, "arrival.process": "poisson"},
    "closed, at a rate": {"arrival.request_rate": 50.0},
    "a trace's instants": {**_TRACE, "workload.trace_speedup": 100.0},
    "a trace as fast as it goes": {**_TRACE, "workload.trace_speedup": 0.0},
    "documents": _RAG,
    "Python": {"io.engine": "mmap"},
    "a ring": {**_SERVING, "io.layout": "arena", "io.engine": "uring"},
    "buckets": {**_SERVING, "io.layout": "bucket"},
    "lmcache": {"semantics.preset": "serving", "io.personality": "lmcache"},
    "all of a window": {"run.max_requests": 0, "run.duration_s": 2, "run.warmup_s": 0.2},
}  # fmt: skip


class _Watched:
    """The requests of a run that ended, each with the operations that it waited for: a thread
    tells of these before it tells of their request."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.requests: list[tuple[RequestRecord, list[OpDone]]] = []
        self._ops: dict[int, list[OpDone]] = defaultdict(list)
        place = {"tiers.cache_dir": (str(directory),), "output.output": str(directory / "R.json")}
        self.job = prepare(load_config(None, {**_SMALL, **place, **options}))

    def run(self) -> RunOutcome:
        job = self.job
        plan = RunPlan(job.config, job.load, job.specs, job.seed)
        hooks = RunHooks(on_record=self._record, on_op=self._op)
        with open_run(plan, threading.Event(), hooks) as run:
            return run.execute(lambda _: None)

    def _op(self, done: OpDone) -> None:
        self._ops[threading.get_ident()].append(done)

    def _record(self, record: RequestRecord) -> None:
        ops = self._ops.pop(threading.get_ident(), [])
        if record.outcome is not Outcome.UNFINISHED:
            self.requests.append((record, ops))


def covered_ns(ops: Iterable[OpDone]) -> int:
    """How long at least one of them went on."""
    covered = until = 0
    for op in sorted(ops, key=lambda op: op.started_ns):
        covered += max(0, op.finished_ns - max(op.started_ns, until))
        until = max(until, op.finished_ns)
    return covered


def loads(done: OpDone) -> bool:
    op = done.op
    return isinstance(op, Read) or (isinstance(op, Move) and op.cause is Cause.PROMOTION)


@pytest.mark.parametrize("mode", MODES)
def test_each_part_of_a_request_holds_what_was_done_in_it_and_no_time_is_in_two(
    mode: str, tmp_path: Path
) -> None:
    watched = _Watched(tmp_path, **MODES[mode])
    outcome = watched.run()
    assert outcome.death is None
    config = watched.job.config
    semantics, policies = config.lifecycle_semantics(synthetic=True), config.policies
    hands_over = semantics.write_behind or (policies.write, policies.prefetch) != ("back", "none")
    assert len(watched.requests) > 10
    for record, ops in watched.requests:
        began_ns, ended_ns = record.started_ns or 0, record.finished_ns or 0
        first_ns = ended_ns if record.first_token_ns is None else record.first_token_ns
        assert record.intended_ns <= record.enqueued_ns <= began_ns <= first_ns <= ended_ns
        for op in ops:
            assert began_ns <= op.started_ns <= op.finished_ns <= ended_ns
        assert record.load_ns >= covered_ns(op for op in ops if loads(op))
        assert record.store_ns >= covered_ns(op for op in ops if isinstance(op.op, Write))
        assert record.load_ns + record.store_ns >= covered_ns(ops)
        generated = record.output_tokens if record.decoded else 0
        assert record.compute_ns >= generated * semantics.decode_ns_per_token
        assert ended_ns - first_ns >= generated * semantics.decode_ns_per_token
        assert (record.tpot_ns is not None) == (generated > 1)
        parts_ns = record.storage_ns + record.compute_ns
        assert record.response_ns == (
            record.lateness_ns + (record.queue_ns or 0) + (record.service_ns or 0)
        )
        assert parts_ns <= ended_ns - began_ns
        assert hands_over or parts_ns == ended_ns - began_ns


def test_a_run_whose_requests_are_told_before_an_operation_has_ended_is_broken(
    tmp_path: Path,
) -> None:
    """The driver's clock is asked 50 ms before those that stamp operations."""
    job = _Watched(tmp_path).job
    plan = RunPlan(job.config, job.load, job.specs, job.seed)
    with open_run(plan, threading.Event()) as run:
        drive = run._machine.drive
        drive._clock = copy(drive._clock)
        drive._clock._origin_ns += NS_PER_S // 20
        outcome = run.execute(lambda _: None)
    assert "told before it ended" in str(outcome.death)
