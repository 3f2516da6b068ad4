"""How many tokens a text is: a stated rule, or a tokenizer whose vocabulary lies on this machine.

A dataset of texts has no token counts; its reader states what counted them. Nothing is ever
downloaded: an encoding whose vocabulary is not here is a `ConfigError` that says where to put it.
"""

import base64
import binascii
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from msgspec import Struct

from kv_cache.core.errors import ConfigError, did_you_mean, os_reason
from kv_cache.installing import install_hint

CHARS = "chars"
KINDS = (CHARS, "tiktoken:<encoding or file>", "hf:<tokenizer.json or its directory>")
CHARS_PER_TOKEN = 4.0

_OPTION = "workload.tokenizer (--tokenizer)"
_DEFAULT_PATTERN = "cl100k_base"  # how texts are split before a vocabulary file of unknown name


class Tokens(Protocol):
    @property
    def facts(self) -> Mapping[str, Any]:
        """For the result: which tokenizer, its version, and the checksum of its vocabulary."""

    def count(self, text: str) -> int:
        """Return the tokens of a text: 0 if it is empty, else at least 1 with every kind."""


class Chars(Struct, frozen=True):
    """The reference's estimate: `per_token` characters are a token, rounded down, but at least
    1."""

    per_token: float = CHARS_PER_TOKEN

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"tokenizer": CHARS, "chars_per_token": self.per_token}

    def count(self, text: str) -> int:
        return max(1, int(len(text) / self.per_token)) if text else 0


class _Counted:
    """A tokenizer of a library. What looks like a special token in a text is ordinary text."""

    __slots__ = ("_encoded", "facts")

    def __init__(self, encoded: Callable[[str], int], facts: Mapping[str, Any]) -> None:
        self._encoded = encoded
        self.facts = facts

    def count(self, text: str) -> int:
        return max(1, self._encoded(_writable(text))) if text else 0


def _writable(text: str) -> str:
    """Return the text without half surrogate pairs, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def open_tokens(wanted: str, chars_per_token: float = CHARS_PER_TOKEN) -> Tokens:
    """Return the counter that `wanted` names, see `KINDS`. Raises ConfigError."""
    kind, colon, what = wanted.partition(":")
    what = os.path.expanduser(what)
    if wanted == CHARS:
        return Chars(chars_per_token)
    if kind == "tiktoken" and what:
        return _tiktoken(what)
    if kind == "hf" and what:
        return _hugging_face(what)
    near = did_you_mean(kind, (CHARS, "tiktoken", "hf")) if not colon else ""
    raise ConfigError(
        f"{_OPTION} is {wanted!r}; it must be one of {', '.join(KINDS)}."
        f"{near if near.startswith(' Did') else ''}"
    )


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            f"{_OPTION} needs the package `{name}`: {install_hint(name)}, or use "
            f"{CHARS}, which counts characters"
        ) from None


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        reason = os_reason(problem)
        raise ConfigError(f"{_OPTION}: {path} cannot be read: {reason}; give {what}") from None


# --- tiktoken ---


def _tiktoken(what: str) -> Tokens:
    library = _library("tiktoken")
    public = importlib.import_module("tiktoken_ext.openai_public").ENCODING_CONSTRUCTORS
    if os.sep in what or what.endswith(".tiktoken") or os.path.exists(what):
        parameters, facts = _from_file(library, public, Path(what))
    elif what in public:
        parameters, facts = _from_cache(public, what)
    else:
        raise ConfigError(
            f"{_OPTION}: there is no encoding {what!r} in tiktoken {_version(library)}, nor a file "
            f"of that name.{did_you_mean(what, public)}"
        )
    try:
        encoding = library.Encoding(**parameters)
    except Exception as problem:  # noqa: BLE001 - whatever the library says of its file
        raise ConfigError(f"{_OPTION}: {what} is no vocabulary of tiktoken: {problem}") from None
    facts = {"tokenizer": f"tiktoken:{what}", "version": _version(library), **facts}
    return _Counted(lambda text: len(encoding.encode_ordinary(text)), facts)


def _version(library: ModuleType) -> str:
    return str(getattr(library, "__version__", "unknown"))


def _from_cache(public: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a public encoding, from tiktoken's own cache and never from where it would fetch
    it."""
    files: dict[str, str] = {}

    def cached(url: str, expected_sha256: str | None = None) -> bytes:
        path = cache_dir() / hashlib.sha1(url.encode()).hexdigest()
        if not path.is_file():
            raise ConfigError(
                f"{_OPTION}: the vocabulary of {name} is not on this machine, and nothing is "
                f"downloaded: fetch {url} elsewhere, save it as {path} (TIKTOKEN_CACHE_DIR names "
                "another directory), or give the file itself as tiktoken:PATH"
            )
        data = _read(path, "a readable file")
        sha256 = hashlib.sha256(data).hexdigest()
        if expected_sha256 is not None and sha256 != expected_sha256:
            raise ConfigError(
                f"{_OPTION}: {path} is not the vocabulary of {name} (sha256 {sha256}, expected "
                f"{expected_sha256}); fetch {url} again"
            )
        files[str(path)] = sha256
        return data

    with _reading_through(cached):
        parameters = public[name]()
    return parameters, {"vocabulary_sha256": "+".join(files.values())}


def _from_file(
    library: ModuleType, public: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a vocabulary file's encoding. The file does not say how a text is split before its
    tokens are looked for: as the public encoding of its name does, else as cl100k_base."""
    data = _read(path, "a local .tiktoken file")
    ranks = _ranks(path, data)
    like = path.stem if path.stem in public else _DEFAULT_PATTERN
    with _reading_through(lambda url, expected_sha256=None: b""):
        pattern = public[like]()["pat_str"]
    parameters = {
        "name": path.stem,
        "pat_str": pattern,
        "mergeable_ranks": ranks,
        "special_tokens": {},
    }
    facts = {"split_like": like, "vocabulary_sha256": hashlib.sha256(data).hexdigest()}
    return parameters, facts


def _ranks(path: Path, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ConfigError(
                f"{_OPTION}: {path}, line {number}: expected a token in base64 and its rank, as in "
                "a .tiktoken file"
            ) from None
    # Without every single byte there are texts that have no tokens at all; and where a rank is
    # there twice, the library does not raise but panics.
    missing = sum(bytes([value]) not in ranks for value in range(256))
    if missing or len(set(ranks.values())) < len(ranks):
        why = f"{missing} of the 256 single bytes have no rank" if missing else "a rank is twice"
        raise ConfigError(
            f"{_OPTION}: {path} is no vocabulary of tiktoken: {why}; give a local .tiktoken file"
        )
    return ranks


def cache_dir() -> Path:
    """Return where tiktoken keeps its downloads: $TIKTOKEN_CACHE_DIR, $DATA_GYM_CACHE_DIR, or its
    own default (which later versions have moved from the temporary directory)."""
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name])
    default = getattr(importlib.import_module("tiktoken.load"), "_default_cache_dir", None)
    return Path(default()) if default is not None else Path(tempfile.gettempdir(), "data-gym-cache")


@contextmanager
def _reading_through(read: Callable[..., bytes]) -> Iterator[None]:
    """Let tiktoken read every file through `read`. Its own reader fetches what is not there,
    and deletes what is not as expected."""
    load: Any = importlib.import_module("tiktoken.load")
    original = load.read_file_cached
    load.read_file_cached = read
    try:
        yield
    finally:
        load.read_file_cached = original


# --- Hugging Face ---


def _hugging_face(what: str) -> Tokens:
    library = _library("tokenizers")
    path = Path(what)
    file = path / "tokenizer.json" if path.is_dir() else path
    wanted = "a local tokenizer.json, or a directory with one"
    data = _read(file, wanted)
    try:
        tokenizer = library.Tokenizer.from_str(data.decode())
        # A file may ask for cutting and filling up, which would hide how long a text is.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as problem:  # noqa: BLE001 - the library raises bare exceptions
        raise ConfigError(f"{_OPTION}: {file} is no tokenizer: {problem}; give {wanted}") from None
    facts = {
        "tokenizer": f"hf:{what}",
        "version": _version(library),
        "vocabulary_sha256": hashlib.sha256(data).hexdigest(),
    }
    return _Counted(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), facts)
