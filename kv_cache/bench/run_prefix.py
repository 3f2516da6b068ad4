"""The objects of a run in a bucket: checked before anything is written, gone when the run is over.

    <prefix>/
      kv-cache-runs/
        <utc>-<hex>/                  `RunPrefix.directory`; unique, so that no two runs meet
          OWNER.json                  whose it is; written first and removed last
          <2 hex digits>/<name>.kv    the objects

It must never delete what this program did not write: only keys of these forms, below a directory
whose name was made up here, or whose owner file says that a run of this very machine made it which
is dead. What another machine's run left cannot be distinguished from what it still uses: that is
reported.
"""

import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kv_cache.bench.owner import (
    OWNER_NAME,
    Life,
    life_of,
    may_be_removed,
    parse_record,
    run_identity,
)
from kv_cache.bench.removal import Removed
from kv_cache.core.effect import VANISHED
from kv_cache.core.errors import PlaceError, StoreError
from kv_cache.core.text import to_json
from kv_cache.tiers.objects import Client, ObjectPlace, ObjectStore
from kv_cache.tiers.objects.client import NO_BUCKET

RUNS = "kv-cache-runs"

_OURS = re.compile(r"[0-9a-f]{2}/[0-9a-f]{16}\.kv")
_BATCH = 1000  # keys that one request deletes
_MOST_OWNERS = 100  # owner files that are looked at before a run

log = logging.getLogger("kv_cache")

_REMEDIES: Mapping[str, str] = {
    "permission-denied": "the server refuses these keys{code}; check them, and that they may "
    "read, write, list and delete there",
    "no-credentials": "no keys were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE",
    NO_BUCKET: "there is no such bucket; create it, or name another",
    VANISHED: "there is no such bucket, or no S3 server behind {host}; create the bucket, or name "
    "another",
    "unreachable": "{host} cannot be reached (nothing listens there, or a firewall is between); "
    "check --s3-endpoint or AWS_ENDPOINT_URL",
    "no-such-host": "{host} is not the name of a host; check --s3-endpoint or AWS_ENDPOINT_URL",
    "timed-out": "{host} did not answer within {limit:g} s; check --s3-endpoint or "
    "AWS_ENDPOINT_URL, or raise s3.timeout_s",
    "connection-lost": "{host} ended the connection without an answer; check that it speaks S3, "
    "and http or https as --s3-endpoint says",
    "bad-certificate": "the certificate of {host} is not trusted; set SSL_CERT_FILE to that of its "
    "authority",
}


def check_bucket(place: ObjectPlace) -> None:
    """Write, read, list and delete one small object. Raises PlaceError; leaves nothing."""
    client = Client(place)
    directory = place.key(f"{RUNS}/probe-{secrets.token_hex(8)}")
    key, data = f"{directory}/probe", secrets.token_bytes(64)
    with _as_place_error(place):
        client.put(key, data, again=False)
        try:
            content = client.get(key)
            chunks = client.list(directory, again=False)
            listed = [str(o["path"]) for chunk in chunks for o in chunk]
        except StoreError:
            _forget(client, key)
            raise
        client.delete(key, again=False)
    if content != data or listed != [key]:
        raise PlaceError(
            f"--cache-dir {place}: an object that was just written is not there as it was written, "
            "so nothing could be verified; name another place"
        )


def _forget(client: Client, key: str) -> None:
    try:
        client.delete(key, again=False)
    except StoreError as error:
        log.warning("the object %s could not be removed: %s", key, error)


@contextmanager
def _as_place_error(place: ObjectPlace) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        code = str(error).partition(": ")[2]
        remedy = _REMEDIES.get(
            error.reason, "it cannot be used ({reason}{code}); name another place"
        )
        text = remedy.format(
            host=place.url.partition("://")[2],
            limit=place.timeout_s,
            reason=error.reason,
            code=f" ({code})" if code else "",
        )
        raise PlaceError(f"--cache-dir {place}: {text}") from None


class RunPrefix:
    """Possession of a fresh directory below a prefix, from the constructor to `close`. Raises
    PlaceError."""

    def __init__(self, place: ObjectPlace, *, run: str, reclaim: str | None = None) -> None:
        self.path = place
        self._client = Client(place)
        self._run = run
        self._reclaim = reclaim
        now = datetime.now(UTC)
        self.directory = f"{RUNS}/{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(8)}"
        self._closed = False
        with _as_place_error(place):
            self._remove_leftovers()
            self._write_owner(kept=False)

    def store(self, stopped: Callable[[], bool]) -> ObjectStore:
        return ObjectStore(Client(self.path, stopped=stopped), self.directory)

    def close(self, *, keep: bool = False) -> Removed:
        """Delete all objects of the run, or leave them for good. What cannot be deleted is in the
        answer, and stays owned, so that a later run here tries again. Calling again is fine."""
        if self._closed:
            return Removed()
        self._closed = True
        try:
            if keep:
                self._write_owner(kept=True)
            else:
                self._clear(self.directory)
        except StoreError as error:
            where = f"{self.path}/{self.directory}/"
            what = "marked as kept" if keep else "removed"
            return Removed(failed=(f"{where} (the objects could not all be {what}: {error})",))
        return Removed()

    def _remove_leftovers(self) -> None:
        """Remove what dead runs of this machine left; what may be in use stays."""
        foreign: list[str] = []
        runs = self._client.directories(self.path.key(RUNS))
        for path in runs[:_MOST_OWNERS]:
            directory = f"{RUNS}/{path.rstrip('/').rpartition('/')[2]}"
            owner = self._owner(directory)
            if owner is None or owner.get("kept"):
                continue
            if may_be_removed(owner, device=None, reclaim=self._reclaim):
                self._clear(directory)
            elif life_of(owner, device=None) is Life.ELSEWHERE:
                foreign.append(directory)
        if foreign:
            log.info(
                "%s: %d runs of other machines are, or were, at work there (%s)",
                self.path, len(foreign), ", ".join(foreign[:3]),
            )  # fmt: skip

    def _owner(self, directory: str) -> dict[str, Any] | None:
        """None if there is no proof that it is a run's of ours."""
        try:
            return parse_record(self._client.get(self.path.key(f"{directory}/{OWNER_NAME}")))
        except StoreError as error:
            if error.reason == VANISHED:
                return None
            raise

    def _write_owner(self, *, kept: bool) -> None:
        record = {**run_identity(self._run), "kept": kept}
        self._client.put(self.path.key(f"{self.directory}/{OWNER_NAME}"), to_json(record))

    def _clear(self, directory: str) -> None:
        """All objects of a run, then its owner file; what is foreign stays."""
        base, foreign = self.path.key(directory), 0
        doomed: list[str] = []
        for chunk in self._client.list(base):
            for entry in chunk:
                key = str(entry["path"])
                if _OURS.fullmatch(key.removeprefix(f"{base}/")):
                    doomed.append(key)
                elif key != f"{base}/{OWNER_NAME}":
                    foreign += 1
            while len(doomed) >= _BATCH:
                self._delete(doomed[:_BATCH])
                del doomed[:_BATCH]
        self._delete(doomed)
        if foreign:
            log.warning("%s/%s/ holds %d objects that are not ours", self.path, directory, foreign)
        self._client.delete(f"{base}/{OWNER_NAME}")

    def _delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._client.delete_all(keys)
