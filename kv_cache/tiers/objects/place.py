"""`s3://bucket/prefix`, read once into a value. Keys are never a part of it, and what might hold
some is not repeated in a message."""

import re
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from kv_cache.core.errors import ConfigError
from kv_cache.core.units import MIB

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9_.=+,:!-]+")
_LONGEST = 800  # bytes of a prefix: a key has 1024, and the run's part goes behind it
_WAY = "write s3://bucket/prefix"


class ObjectUrl(NamedTuple):
    """`prefix` is empty, or has no slash at its ends."""

    bucket: str
    prefix: str


class ObjectPlace(Struct, frozen=True, kw_only=True):
    """A prefix of a bucket, and how its server is spoken to. `endpoint` and `region` are None
    where they are the service's own."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    part_bytes: int = 16 * MIB
    part_concurrency: int = 4
    timeout_s: float = 30.0
    retries: int = 3

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def url(self) -> str:
        """Base URL of the S3 server."""
        return self.endpoint or f"https://s3.{self.region or 'us-east-1'}.amazonaws.com"

    @property
    def secure(self) -> bool:
        return self.url.startswith("https:")

    def key(self, name: str) -> str:
        """Return the key of what has this name below the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


def is_object_url(text: str) -> bool:
    """Return whether a cache directory is meant to be an object store's: anything with a scheme."""
    return _SCHEME.match(text) is not None


def below(place: str, name: str) -> str:
    """Return what lies below a cache directory, or below a prefix of a bucket."""
    return f"{place.rstrip('/')}/{name}" if is_object_url(place) else str(Path(place) / name)


def parse_url(text: str) -> ObjectUrl:
    """Raises ConfigError."""
    where = f"--cache-dir {_shown(text)}"
    scheme = _SCHEME.match(text)
    if scheme is None or scheme.group(1) != "s3":
        raise ConfigError(f"{where}: of object stores only S3's protocol is spoken; {_WAY}")
    if not text.startswith("s3://"):
        raise ConfigError(f"{where}: two slashes come after s3: in a URL; {_WAY}")
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    if "@" in text or "?" in text or "#" in text:
        raise ConfigError(
            f"{where}: a bucket and a prefix are all that a URL may have, and keys come from the "
            f"environment or the shared credentials file; {_WAY}"
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise ConfigError(
            f"{where}: {bucket[:80]!r} cannot be a bucket (3 to 63 of a-z, 0-9, dots and dashes); "
            f"{_WAY}"
        )
    prefix = prefix.removesuffix("/")
    for segment in prefix.split("/") if prefix else ():
        if not _SEGMENT.fullmatch(segment) or segment in (".", ".."):
            raise ConfigError(
                f"{where}: {segment[:80]!r} cannot be a part of a prefix (letters, digits and "
                f"_ . = + , : ! - are possible); {_WAY}"
            )
    if len(prefix) > _LONGEST:
        raise ConfigError(
            f"{where[:120]}…: the prefix has {len(prefix)} characters; give at most {_LONGEST}"
        )
    return ObjectUrl(bucket, prefix)


def _shown(text: str) -> str:
    """Behind an @ or a question mark there may be keys, and before an @ as well."""
    return f"{text.partition(':')[0]}://…" if "@" in text or "?" in text else text[:1000]
