"""Requests to an S3 server, through obstore: bounded in time, retried a few times, and counted.

Nothing here hangs: each request has a limit, and no retry begins once that much time is gone, or
the run has ended. Errors become a short reason and the server's own code; the text of an error can
hold keys or signatures, so it is never passed on.
"""

import importlib.metadata
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from kv_cache.core.effect import VANISHED
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.units import KIB
from kv_cache.installing import install_hint
from kv_cache.tiers.objects.account import account_of
from kv_cache.tiers.objects.place import ObjectPlace

CONNECT_S = 5.0
RETRIED = frozenset({"slow-down", "server-error", "timed-out", "unreachable", "connection-lost"})
NO_BUCKET = "no-such-bucket"

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 2.0
_READ_AHEAD = 256 * KIB  # of a body, at least, before it is copied to its place
_LOOKED_AT = 20_000  # characters of an error's text
_FULL = frozenset({"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage"})
_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "TooManyRequests"})
_DENIED = frozenset({"PermissionDeniedError", "UnauthenticatedError"})

T = TypeVar("T")
Listed = Sequence[Mapping[str, Any]]
"""Some objects of a listing, each with `path` and `size`."""


class ServerAnswer(NamedTuple):
    """What may be known of an error: our word, and the server's code or status."""

    reason: str
    code: str


class Client:
    """One bucket. Threads may share it."""

    def __init__(self, place: ObjectPlace, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Connect to nothing yet. `stopped`: the run has ended, so nothing is tried again. Raises
        PlaceError where obstore or the keys are missing."""
        self._obstore = _library()
        self._errors = (self._obstore.exceptions.BaseError, OSError)
        self.place = place
        self._stopped = stopped
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        account = account_of(os.environ)
        self.credentials = account.source
        self._once = self._connect(account.options, retries=0)
        self._tried_inside = self._connect(account.options, retries=place.retries)

    @property
    def version(self) -> str:
        return importlib.metadata.version("obstore")

    @property
    def counts(self) -> Mapping[str, int]:
        """Requests by kind, and how many of them were retries. What is tried again inside a
        multipart upload is not known."""
        with self._lock:
            return dict(self._counts)

    # --- requests: all raise StoreError -----------------------------------------------------

    def put(self, key: str, data: memoryview | bytes, *, again: bool = True) -> None:
        """Store one object, at once; in parts if it is larger than one part."""
        if len(data) > self.place.part_bytes:
            self._put_parts(key, data, len(data), use_multipart=True)
            return
        self._tried(
            "put",
            lambda: self._obstore.put(self._once, key, data, use_multipart=False),
            again=again,
        )

    def put_pieces(self, key: str, pieces: Iterable[bytes], nbytes: int) -> None:
        """Store one object, as its pieces come; if `pieces` raises, the upload is given up."""
        self._put_parts(key, pieces, nbytes, use_multipart=nbytes > self.place.part_bytes)

    def get_into(self, key: str, offset: int, into: memoryview) -> None:
        """Exactly this range of an object, to its place: one copy, from what the socket gave."""
        self._tried("get", lambda: self._fetch(key, offset, into))

    def get(self, key: str) -> bytes:
        """Return a small object."""
        return self._tried("get", lambda: bytes(self._obstore.get(self._once, key).bytes()))

    def delete(self, key: str, *, again: bool = True) -> None:
        self._tried("delete", lambda: self._obstore.delete(self._once, key), again=again)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete objects, at most 1000 in one request."""
        self._tried("delete_many", lambda: self._obstore.delete(self._once, list(keys)))

    def list(self, prefix: str, *, again: bool = True) -> Iterator[Listed]:
        """Yield the objects below a prefix, some at a time. What failed is asked for anew, from
        behind what has come: a listing of the library that has failed is over, as if there was
        nothing more."""
        listing: Iterator[Listed] | None = None
        last: str | None = None

        def more() -> Listed:
            nonlocal listing
            goes_on, listing = listing, None
            if goes_on is None:
                goes_on = self._obstore.list(self._once, prefix=prefix or None, offset=last)
            chunk = next(goes_on, ())
            listing = goes_on  # which has not failed
            return chunk

        while chunk := self._tried("list", more, again=again):
            last = str(chunk[-1]["path"])
            yield chunk

    def directories(self, prefix: str) -> Sequence[str]:
        """Return the next parts of the keys that go on below a prefix, each with all before it."""
        listing = self._tried(
            "list",
            lambda: self._obstore.list_with_delimiter(self._once, prefix=prefix or None),
        )
        return list(listing["common_prefixes"])

    # --- their parts ------------------------------------------------------------------------

    def _connect(self, keys: Mapping[str, str | bool], *, retries: int) -> Any:
        place = self.place
        limit = timedelta(seconds=place.timeout_s)
        options: dict[str, Any] = {"region": place.region or "us-east-1", **keys}
        if place.endpoint is not None:
            options["endpoint"] = place.endpoint
        if place.secure:  # TLS protects the body; a checksum of it all costs half a core a GiB/s
            options["unsigned_payload"] = True
        return self._obstore.store.S3Store(
            place.bucket,
            client_options={
                "allow_http": not place.secure,
                "connect_timeout": timedelta(seconds=min(CONNECT_S, place.timeout_s)),
                "timeout": limit,
                "user_agent": "kv-cache-bench",
            },
            retry_config={"max_retries": retries, "retry_timeout": limit},
            **options,
        )

    def _put_parts(
        self, key: str, data: Iterable[bytes] | memoryview | bytes, nbytes: int, *,
        use_multipart: bool,
    ) -> None:  # fmt: skip
        """Retries are the library's: what was sent of an iterable is gone."""
        self._count("multipart" if use_multipart else "put")
        if use_multipart:
            self._count("multipart_parts", -(-nbytes // self.place.part_bytes))
        try:
            self._obstore.put(
                self._tried_inside,
                key,
                data,
                use_multipart=use_multipart,
                chunk_size=self.place.part_bytes,
                max_concurrency=self.place.part_concurrency,
            )
        except self._errors as error:
            raise _store_error(error) from None

    def _fetch(self, key: str, offset: int, into: memoryview) -> None:
        end = offset + len(into)
        answer = self._obstore.get(self._once, key, options={"range": (offset, end)})
        at = 0
        for piece in answer.stream(min_chunk_size=_READ_AHEAD):
            upto = at + len(piece)
            if upto > len(into):
                raise StoreError("s3-error", "the server sent more than was asked for")
            into[at:upto] = memoryview(piece)
            at = upto
        if at < len(into):
            raise StoreError("truncated", f"{at} bytes came of {len(into)}")

    def _tried(self, kind: str, call: Callable[[], T], *, again: bool = True) -> T:
        """Return the answer, or the last error; `again`: with retries, where they may help."""
        began = time.monotonic()
        for attempt in range(self.place.retries + 1):
            self._count(kind)
            try:
                return call()
            except self._errors as error:
                failed = _store_error(error)
            late = time.monotonic() - began >= self.place.timeout_s
            last = late or not again or attempt == self.place.retries
            if last or failed.reason not in RETRIED or self._stopped():
                raise failed from None
            self._count("retries")
            time.sleep(min(_FIRST_BACKOFF_S * 2**attempt, _LONGEST_BACKOFF_S))
        raise AssertionError("the last attempt returns or raises")

    def _count(self, kind: str, number: int = 1) -> None:
        with self._lock:
            self._counts[kind] += number


def _library() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise PlaceError(
            "--cache-dir s3://…: the library obstore speaks to object stores, and is not "
            f"installed; {install_hint('s3')}"
        ) from None
    return obstore


def _store_error(error: BaseException) -> StoreError:
    refusal = answer_of(error)
    return StoreError(refusal.reason, refusal.code)


def answer_of(error: BaseException) -> ServerAnswer:
    """Return our word for what a request ended with."""
    text = str(error)[:_LOOKED_AT]
    code = _first(r"(?:<Code>|\(code: )([A-Za-z]{1,60})(?:</Code>|\))", text)
    status = int(_first(r"status code: (\d{3})", text) or 0)
    return ServerAnswer(
        _reason(error, text, code, status), code or (f"HTTP {status}" if status else "")
    )


def _reason(error: BaseException, text: str, code: str, status: int) -> str:
    if "169.254.169.254" in text or "/latest/api/token" in text or "WebIdentity" in text:
        return "no-credentials"
    if code == "NoSuchBucket":
        return NO_BUCKET
    if isinstance(error, FileNotFoundError) or status == 404:
        return VANISHED
    if type(error).__name__ in _DENIED or status in (401, 403) or code == "AccessDenied":
        return "permission-denied"
    if status == 416:
        return "truncated"
    if code in _FULL or status == 507:
        return "no-space"
    if code in _BUSY or status in (429, 503):
        return "slow-down"
    if status >= 500 or code == "InternalError":  # in an answer that begins well, too
        return "server-error"
    return "s3-error" if status else _of_the_way(text)


def _of_the_way(text: str) -> str:
    """Return what went wrong before an answer came, or while it came."""
    kind = _first(r"kind: (Timeout|Connect|Interrupted|Decode)", text)
    if kind == "Timeout" or "timed out" in text or "TimedOut" in text:
        return "timed-out"
    if "dns error" in text:
        return "no-such-host"
    if "certificate" in text.lower():
        return "bad-certificate"
    if kind == "Connect":
        return "unreachable"
    lost = ("error sending request", "error decoding response body", "connection", "IncompleteBody",
            "Got invalid")  # fmt: skip
    return "connection-lost" if kind or any(word in text for word in lost) else "s3-error"


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""
