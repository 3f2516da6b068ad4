"""Records on demand: one JSON line for each request and each operation, written by a thread of
its own so that the measured threads only append to a list.

A file has its name only when it is complete: until `close` it is `<name>.partial`.
"""

import hashlib
import importlib
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import asdict

from kv_cache.core.effect import OpDone
from kv_cache.core.errors import PlaceError, TraceError, os_reason
from kv_cache.core.record import RequestRecord
from kv_cache.core.text import to_json
from kv_cache.installing import install_hint
from kv_cache.workload.formats.text_files import open_lines

PARTIAL = ".partial"
_FLUSH_S = 0.2
_FOREIGN_PACKING = (".bz2", ".xz", ".lz4", ".zip", ".7z", ".br")


class Packing(Protocol):
    """Packs a stream: the packed parts, and what is left, make one whole file."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def packing(path: Path, flag: str) -> Packing | None:
    """Return the packer for a file of that name: `.gz`, `.zst` (one frame, level 3), or None. The
    same rows give the same bytes. Raises PlaceError if it is not available here."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return zlib.compressobj(wbits=zlib.MAX_WBITS | 16)  # with gzip's header, which has no time
    if suffix in _FOREIGN_PACKING:
        raise PlaceError(f"{flag} {path}: cannot be packed as {suffix}; use .gz, .zst, or neither")
    if suffix != ".zst":
        return None
    try:
        zstd = importlib.import_module("zstandard")
    except ImportError:
        raise PlaceError(
            f"{flag} {path}: packing with zstd needs the package `zstandard`: "
            f"{install_hint('zstd')}, or use a name without .zst, or with .gz"
        ) from None
    packed: Packing = zstd.ZstdCompressor(level=3).compressobj()
    return packed


def json_line(row: Any) -> bytes:
    return to_json(to_row(row)) + b"\n"


def require_own_name(
    path: Path, flag: str, ours: Callable[[str], bool], *, makes_parents: bool = False
) -> None:
    """Refuse a file that could not be written, or whose name (also that of its unfinished part)
    something has whose first line is not `ours`. Creates nothing. Raises PlaceError."""
    where = f"{flag} {path}"
    packing(path, flag)
    try:
        if path.is_dir():  # also `.` and `..`, which are no names
            raise PlaceError(f"{where}: it is a directory, not a regular file; name another file")
        parent = path.parent
        while makes_parents and not parent.exists():
            parent = parent.parent
        if not parent.is_dir():
            raise PlaceError(f"{where}: there is no directory {parent}; create it first")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PlaceError(f"{where}: {parent} is not writable; name another file")
        for name in (path, partial_name(path)):
            _require_ours(name, where, ours)
    except OSError as error:
        reason = os_reason(error)
        raise PlaceError(f"{where}: it cannot be looked at ({reason}); name another file") from None


def _require_ours(name: Path, where: str, ours: Callable[[str], bool]) -> None:
    if not name.exists() and not name.is_symlink():
        return
    if name.is_file() and not name.stat().st_size and name.suffix == PARTIAL:
        return  # what a run leaves that was killed as it began
    if not name.is_file():
        raise PlaceError(f"{where}: {name.name} is not a regular file; name another file")
    try:
        first = next((text for _, text in open_lines(name)), "")
    except TraceError:  # cut, or nothing like it
        first = ""
    if not ours(first):
        raise PlaceError(
            f"{where}: a file {name.name} exists which this option did not write; name "
            "another file, or move that one away"
        )


def partial_name(path: Path) -> Path:
    """Return the name of a file until it is complete."""
    return path.with_name(path.name + PARTIAL)


class LineWriter:
    """`add` is cheap and thread-safe; rows reach the file within a fifth of a second, unless it is
    packed. `head` precedes the first row."""

    def __init__(
        self,
        path: Path,
        *,
        encode: Callable[[Any], bytes] = json_line,
        head: bytes = b"",
        packed: Packing | None = None,
    ) -> None:
        self.path = path
        self._encode = encode
        self._head = head
        self._packed = packed
        self._sha256 = hashlib.sha256()
        self._partial = partial_name(path)
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
        self._flush(last=True)
        try:
            self._file.close()
            if self._error is None:
                self._partial.rename(self.path)
        except OSError as error:
            self._error = self._error or error
        return None if self._error is None else f"{self.path}: {os_reason(self._error)}"

    @property
    def sha256(self) -> str:
        """Of all that was written, in hexadecimal."""
        return self._sha256.hexdigest()

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_S):
            self._flush()

    def _flush(self, *, last: bool = False) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
        if not (rows or last) or self._error is not None:
            return
        try:
            data = self._head + b"".join(map(self._encode, rows))
            self._head = b""
            if self._packed is not None:
                data = self._packed.compress(data)
                data += self._packed.flush() if last else b""
            self._file.write(data)
            self._sha256.update(data)  # here, so that the end of a run has no file to read again
            self._file.flush()
            self.written += len(rows)
        except OSError as error:
            self._error = error


def to_row(record: Any) -> Any:
    """Return a record as the row of a file."""
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
    op, ref = done.op, done.op.target
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
    """Return a row of the reference's latency dump: completed requests only."""
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
