"""Records on demand: one JSON line for each request and each operation, written by a thread of
its own so that the measured threads only append to a list.

A file stands under its name only when it is complete: until `close` it is `<name>.partial`.
"""

import hashlib
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from kv_cache.core.effect import Move, OpDone
from kv_cache.core.record import RequestRecord

_FLUSH_S = 0.2


class LineWriter:
    """`add` is cheap and thread-safe; rows reach the file within a fifth of a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha256 = hashlib.sha256()
        self._partial = path.with_name(path.name + ".partial")
        self._file = self._partial.open("wb")
        self._rows: list[Any] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: OSError | None = None
        self.written = 0
        self._thread = threading.Thread(target=self._run, name=f"records-{path.name}", daemon=True)
        self._thread.start()

    def add(self, row: Any) -> None:
        with self._lock:
            self._rows.append(row)

    def close(self) -> str | None:
        """Complete the file; the answer says what went wrong, if anything did."""
        self._stop.set()
        self._thread.join()
        self._flush()
        try:
            self._file.close()
            if self._error is None:
                self._partial.rename(self.path)
        except OSError as error:
            self._error = self._error or error
        return None if self._error is None else f"{self.path}: {self._error.strerror}"

    @property
    def sha256(self) -> str:
        """Of all that was written, in hexadecimal."""
        return self._sha256.hexdigest()

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
        if not rows or self._error is not None:
            return
        try:
            data = b"".join(orjson.dumps(to_row(r)) + b"\n" for r in rows)
            self._file.write(data)
            self._sha256.update(data)  # here, so that the end of a run has no file to read again
            self._file.flush()
            self.written += len(rows)
        except OSError as error:
            self._error = error


def to_row(record: Any) -> Any:
    """What a record looks like in a file."""
    if isinstance(record, RequestRecord):
        return request_row(record)
    return op_row(record) if isinstance(record, OpDone) else record


def request_row(record: RequestRecord) -> dict[str, Any]:
    return {
        **asdict(record),
        "lateness_ns": record.lateness_ns,
        "queue_ns": record.queue_ns,
        "service_ns": record.service_ns,
        "response_ns": record.response_ns,
        "ttft_ns": record.ttft_ns,
    }


def op_row(done: OpDone) -> dict[str, Any]:
    op = done.op
    ref = op.target if isinstance(op, Move) else op.copy
    return {
        "operation": type(op).__name__.lower(),
        "cause": op.cause,
        "key": ref.key.hex(),
        "copy_id": ref.copy_id,
        "version": ref.version,
        "started_ns": done.started_ns,
        "finished_ns": done.finished_ns,
        "error": done.error,
        "legs": [
            {
                "tier": leg.tier.label,
                "operation": leg.kind,
                "engine": leg.engine,
                "bytes": leg.nbytes,
                "started_ns": leg.started_ns,
                "finished_ns": leg.finished_ns,
                "total_ns": leg.total_ns,
                "device_ns": leg.device_ns,
                "bytes_moved": sum(chunk.nbytes for chunk in leg.chunks),
                "steps": [list(step) for step in leg.steps],
                "system_calls": [[chunk.finished_ns, chunk.nbytes] for chunk in leg.chunks],
            }
            for leg in done.legs
        ],
    }


def dump_row(record: RequestRecord) -> dict[str, Any] | None:
    """A row of the reference's latency dump: completed requests only."""
    if record.finished_ns is None or record.error is not None:
        return None
    if record.prefilled and record.decoded:
        phase = "PREFILL_DECODE"
    else:
        phase = "DECODE" if record.decoded else "PREFILL"
    return {
        "request_id": record.request_id,
        "qos_level": f"QoSLevel.{record.qos.name}",
        "phase": f"InferencePhase.{phase}",
        "complete_time_s": record.finished_ns / 1e9,
        "e2e_ms": (record.end_to_end_ns or 0) / 1e6,
        "storage_s": record.storage_ns / 1e9,
        "generate_tokens": record.output_tokens,
    }
