"""Who is told of each request and operation of a run: the files that were asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kv_cache.app.prepare import Job
from kv_cache.app.run_directory import RunDirectory
from kv_cache.config.schema import print_config
from kv_cache.core.callbacks import ignore
from kv_cache.core.effect import Leg, Op, OpDone
from kv_cache.core.kinds import Phase
from kv_cache.core.record import RequestRecord
from kv_cache.core.request import Request
from kv_cache.files.environment import captured, results_place
from kv_cache.files.hdr import HdrLog
from kv_cache.files.iotrace import IoTrace
from kv_cache.files.recording import (
    Recording,
)
from kv_cache.files.records import LineWriter, dump_row
from kv_cache.metrics.histogram import Histogram
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.window import OnLatencies


class Watchers:
    """Who is told of each request and operation: the files that were asked for.

    Nothing is written before `open`, which comes when the cache directory has been had.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._requests: LineWriter | None = None
        self._transfers: LineWriter | None = None
        self._dump: LineWriter | None = None
        self._recording: Recording | None = None
        self._io_trace: IoTrace | None = None
        self._hdr_log: HdrLog | None = None
        self.run_directory: RunDirectory | None = None
        self.environment = captured(*job.directories)
        if not job.config.run.virtual_time:
            self.environment |= results_place(job.directories, job.output.parent)
        self.written_bytes = 0
        self.files: dict[str, str] = {}  # SHA-256 of the records, by name, once they are closed

    def open(self, begun_unix_s: float = 0.0) -> None:
        """`begun_unix_s`: the run's origin; virtual time begins with the epoch."""
        output = self._job.config.output
        if self._job.run_directory is not None:
            self.run_directory = RunDirectory(self._job.run_directory)
            self.run_directory.begin(print_config(self._job.config), self.environment)
        if self.run_directory is not None and output.records:
            self._requests = LineWriter(self.run_directory.path / "requests.jsonl")
            self._transfers = LineWriter(self.run_directory.path / "transfers.jsonl")
        if output.latency_dump is not None:
            self._dump = LineWriter(Path(output.latency_dump))
        if output.record is not None:
            job = self._job
            self._recording = Recording(Path(output.record), job.config, job.load)
        if output.io_trace_log is not None:
            self._io_trace = IoTrace(Path(output.io_trace_log))
        if output.hdr_log is not None and output.io_trace_log is None:
            self._hdr_log = HdrLog(Path(output.hdr_log), begun_unix_s)

    def on_arrival(self, request: Request) -> None:
        if self._recording is not None:
            self._recording.add(request)

    @property
    def leg_watcher(self) -> Callable[[Op, Leg], None]:
        return ignore if self._io_trace is None else self._io_trace.on_leg

    @property
    def latencies_watcher(self) -> OnLatencies | None:
        """What is told of each window's latencies, if anything is to be written of them."""
        output = self._job.config.output
        is_logged = output.hdr_log is not None and output.io_trace_log is None
        return self._on_latencies if is_logged else None

    def _on_latencies(
        self, start_ns: int, end_ns: int, phase: Phase, found: Mapping[str, Histogram]
    ) -> None:
        if self._hdr_log is not None:  # it is opened with the cache directory
            self._hdr_log.on_latencies(start_ns, end_ns, phase, found)

    def on_record(self, record: RequestRecord) -> None:
        if self._requests is not None:
            self._requests.add(record)
        if self._dump is not None and (row := dump_row(record)) is not None:
            self._dump.add(row)

    @property
    def op_watcher(self) -> Callable[[OpDone], None]:
        """What is told of each operation, if anything is to be written of them."""
        output = self._job.config.output
        records = self._job.run_directory is not None and output.records
        return self._on_op if records or output.io_trace_log is not None else ignore

    def _on_op(self, done: OpDone) -> None:
        if self._transfers is not None:
            self._transfers.add(done)
        if self._io_trace is not None:
            self._io_trace.on_op(done)

    def recordings(self) -> list[dict[str, Any]]:
        """For the result: the traces that were written, once they are closed."""
        output = self._job.config.output
        writers = (
            ("requests", output.record, self._recording),
            ("operations", output.io_trace_log, self._io_trace),
        )
        return [
            {
                "what": what,
                "path": path,
                "rows": writer.written,
                "sha256": writer.sha256,
            }
            for what, path, writer in writers
            if writer is not None and writer.path.exists()
        ]

    def complete(self, outcome: RunOutcome, interrupted: str | None) -> RunOutcome:
        """Complete the files, and let the outcome say what became of them and of the run."""
        start = self._job.start
        ended = () if start.seat is None else start.seat.notes
        notes = (*start.notes, *start.not_submittable, *self._job.warnings, *ended)
        warnings = [*notes, *self._close()]
        if interrupted is not None:
            ends = "ends where the run was interrupted, with a whole line"
            warnings += [f"the trace {made['path']} {ends}" for made in self.recordings()]
        return replace(
            outcome,
            interrupted=interrupted,
            warnings=warnings,
            record_bytes=self.written_bytes,
            rank=start.rank,
            not_submittable=start.not_submittable,
        )

    def _close(self) -> tuple[str, ...]:
        """What could not be written."""
        records = (self._requests, self._transfers)
        wanted = (self._recording, self._io_trace, self._hdr_log, *records, self._dump)
        writers = [writer for writer in wanted if writer is not None]
        closed = [writer.close() for writer in writers]
        there = [writer for writer in writers if writer.path.exists()]
        self.files = {w.path.name: w.sha256 for w in there if w in records}
        self.written_bytes = sum(w.path.stat().st_size for w in there)
        return tuple(f"records are incomplete: {error}" for error in closed if error is not None)
