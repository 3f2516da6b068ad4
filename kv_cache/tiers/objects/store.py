"""Objects of a bucket as a store: one object a copy, below a prefix that the caller owns.

What a copy is written with in one call is one request, out of the caller's buffer. What takes
several calls is one multipart upload: its parts are on their way while the next ones come, so each
piece is copied once (the buffer is the caller's again when `write` returns). A read is one request
for each call, with a range.

What there is, is known here: neither opening nor deleting asks the server first. An object that
something else removed shows when it is read.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kv_cache.core.effect import CopyRef, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import Capability, Sink, Span, Steps, Tap
from kv_cache.tiers.objects.client import RETRIED, Client

ENGINE = "s3"
SHARDS = 256

_END = b""


class ObjectStore:
    """Copies below `<prefix>/<directory>/` of a bucket."""

    tier = Tier.NVME
    removal = "delete-object"
    capabilities = Capability.DATA

    def __init__(self, client: Client, directory: str) -> None:
        self.client = client
        self._directory = directory
        self._lock = threading.Lock()
        self._there: set[int] = set()  # copies that were committed
        self._doubtful = 0

    def create(self, ref: CopyRef) -> Sink:
        return _ObjectSink(self, ref)

    def open(self, ref: CopyRef) -> Tap:
        with self._lock:
            if ref.copy_id not in self._there:
                raise StoreError("vanished", f"copy {ref.copy_id} is not in the bucket")
        return _ObjectTap(self.client, self.key(ref), ref)

    def delete(self, ref: CopyRef) -> None:
        with self._lock:
            if ref.copy_id not in self._there:
                raise StoreError("vanished", f"copy {ref.copy_id} is not in the bucket")
            self._there.remove(ref.copy_id)
        try:
            self.client.delete(self.key(ref))
        except StoreError:
            with self._lock:
                self._there.add(ref.copy_id)  # as far as anybody knows
            raise

    def describe(self) -> Mapping[str, Any]:
        client, place = self.client, self.client.place
        return {
            "engine": ENGINE,
            "write_engine": ENGINE,
            "engine_note": None,
            "layout": "object",
            "endpoint": urlsplit(place.url).netloc,
            "tls": place.secure,
            "bucket": place.bucket,
            "prefix": place.prefix,
            "region": place.region,
            "credentials": client.credentials,
            "part_bytes": place.part_bytes,
            "part_concurrency": place.part_concurrency,
            "timeout_s": place.timeout_s,
            "retries": place.retries,
            "library": f"obstore {client.version}",
            "requests": dict(sorted(client.counts.items())),
            "maybe_left_by_failed_writes": self._doubtful,
            "emulated": False,
        }

    def close(self) -> None:
        """Objects are removed by the owner of the prefix; connections end with the client."""

    # --- for its sinks ----------------------------------------------------------------------

    def key(self, ref: CopyRef) -> str:
        shard = ref.copy_id % SHARDS
        return self.client.place.key(f"{self._directory}/{shard:02x}/{ref.copy_id:016x}.kv")

    def add(self, ref: CopyRef) -> None:
        with self._lock:
            self._there.add(ref.copy_id)

    def forget(self, ref: CopyRef) -> None:
        """Remove all of a copy. What cannot be removed now is counted, and removed with all the
        rest at the end."""
        with self._lock:
            self._there.discard(ref.copy_id)
        try:
            self.client.delete(self.key(ref), again=False)
        except StoreError:
            with self._lock:
                self._doubtful += 1


class _ObjectSink:
    engine = ENGINE
    spans: Sequence[Span] = ()

    def __init__(self, store: ObjectStore, ref: CopyRef) -> None:
        self.steps = Steps()
        self._store = store
        self._ref = ref
        self._upload: _Upload | None = None
        self._early: dict[int, bytes] = {}  # pieces that came before their turn
        self._sent = 0
        self._maybe_there = False
        self._ended = False

    def write(self, offset: int, data: memoryview) -> None:
        self._require_open()
        whole = self._ref.nbytes
        assert 0 <= offset <= offset + len(data) <= whole, "beyond the object"
        if len(data) == whole:
            self._put(data)
        elif offset != self._sent:
            self._early[offset] = bytes(data)
        else:
            self._send(bytes(data))  # the caller's buffer is used again at once
            while (piece := self._early.pop(self._sent, None)) is not None:
                self._send(piece)

    def commit(self) -> None:
        self._require_open()
        assert self._sent == self._ref.nbytes, "an object is not whole"
        if self._upload is not None:
            with self.steps.timed("complete"):
                self._upload.finish()
        self._ended = True
        self._store.add(self._ref)

    def abort(self) -> None:
        """Also after `commit`."""
        if self._upload is not None:
            self._upload.cancel()
        maybe, self._maybe_there = self._maybe_there, False
        self._ended = True
        self._early.clear()
        if maybe:
            self._store.forget(self._ref)

    def _put(self, data: memoryview) -> None:
        self._maybe_there = True
        try:
            self._store.client.put(self._store.key(self._ref), data)
        except StoreError as error:
            self._maybe_there = error.reason in RETRIED  # else the server has refused it
            raise
        self._sent = len(data)

    def _send(self, piece: bytes) -> None:
        if self._upload is None:
            self._maybe_there = True
            self._upload = _Upload(self._store.client, self._store.key(self._ref), self._ref.nbytes)
        self._upload.feed(piece)
        self._sent += len(piece)

    def _require_open(self) -> None:
        if self._ended:
            raise ValueError("the sink has ended")


class _ObjectTap:
    engine = ENGINE
    spans: Sequence[Span] = ()
    steps: Sequence[MetadataStep] = ()

    def __init__(self, client: Client, key: str, ref: CopyRef) -> None:
        self._client = client
        self._key = key
        self._nbytes = ref.nbytes
        self._open = True

    def read(self, offset: int, into: memoryview) -> None:
        if not self._open:
            raise ValueError("the tap is closed")
        assert 0 <= offset <= offset + len(into) <= self._nbytes, "beyond the object"
        self._client.get_into(self._key, offset, into)

    def close(self) -> None:
        self._open = False


class _CancelledError(Exception):
    """Ends an upload from its own source."""


class _Upload:
    """One multipart upload, in a thread that waits for the pieces. At most one of them waits here;
    what the client has taken is bounded by its parts in flight."""

    def __init__(self, client: Client, key: str, nbytes: int) -> None:
        self._changed = threading.Condition()
        self._piece: bytes | None = None
        self._cancelled = False
        self._over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(client, key, nbytes), name="upload", daemon=True
        )
        self._thread.start()

    def feed(self, piece: bytes) -> None:
        """Waits until the piece before it was taken. Raises what the upload ended with."""
        with self._changed:
            while self._piece is not None and not self._over:
                self._changed.wait()
            if self._over:
                raise self._error or AssertionError("more pieces than the object has")
            self._piece = piece
            self._changed.notify_all()

    def finish(self) -> None:
        try:
            self.feed(_END)
        finally:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self, client: Client, key: str, nbytes: int) -> None:
        error: BaseException | None = None
        try:
            client.put_pieces(key, self._pieces(), nbytes)
        except BaseException as failed:  # noqa: BLE001 - raised again by `feed` or `finish`
            error = failed
        with self._changed:
            self._error, self._over = error, True
            self._changed.notify_all()

    def _pieces(self) -> Iterator[bytes]:
        while (piece := self._next()) != _END:
            yield piece

    def _next(self) -> bytes:
        with self._changed:
            while self._piece is None and not self._cancelled:
                self._changed.wait()
            if self._cancelled or self._piece is None:
                raise _CancelledError
            piece, self._piece = self._piece, None
            self._changed.notify_all()
        return piece
