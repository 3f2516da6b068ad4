"""Blocks: the KV state of N consecutive tokens, addressed by content.

A key is a 128-bit hash of the block's content and of everything before it (the chained prefix
hash of vLLM, SGLang and the `hash_ids` of public traces): equal keys mean equal bytes, so a hit
never has to compare anything else.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from kv_cache.core.units import PAGE_BYTES, round_up

KEY_BYTES = 16

Key = bytes


class Block(NamedTuple):
    """KV state that a request needs: `nbytes` are logical (unpadded, this rank's share). A tier
    keeps it as `objects` of one size: one, or one for each layer."""

    key: Key
    tokens: int
    nbytes: int
    objects: int = 1

    @property
    def stored_bytes(self) -> int:
        """Bytes in a tier: whole pages of each object."""
        return _stored_bytes(self.nbytes, self.objects)


@lru_cache(4096)  # the blocks of a run have few sizes
def _stored_bytes(nbytes: int, objects: int) -> int:
    return objects * round_up(-(-nbytes // objects), PAGE_BYTES)


of_block: Callable[[tuple[Key, int, int, int]], Block] = partial(tuple.__new__, Block)
"""As the class, of all of its fields, without a frame of Python's."""


def content_key(*parts: str | int) -> Key:
    """Return the key of content that is named rather than given, e.g. one turn of one
    conversation."""
    text = "\x1f".join(str(p) for p in parts).encode()
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()


def numbered_keys(parts: Sequence[str | int], numbers: Iterable[int | str]) -> Iterator[Key]:
    """Yield `content_key(*parts, number)` of each number."""
    begun = hashlib.blake2b(
        "".join(f"{part}\x1f" for part in parts).encode(), digest_size=KEY_BYTES
    )
    for number in numbers:
        name = begun.copy()
        name.update(str(number).encode())
        yield name.digest()


def salted_key(key: Key, salt: Key) -> Key:
    """Return the key of the same content of something else (another model, another rank): as unlike
    it as the two salts are, and for one salt never the same for two keys."""
    mixed = int.from_bytes(key, "little") ^ int.from_bytes(salt, "little")
    return mixed.to_bytes(KEY_BYTES, "little")
