"""What a storage engine owes its store (`tiers/nvme/engines.py`), on real files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kv_cache.core.errors import StoreError
from kv_cache.core.units import PAGE_BYTES
from kv_cache.tiers.base import Capability, Span
from kv_cache.tiers.buffers import aligned_bytes
from kv_cache.tiers.nvme.engines import Engine

_PAGES = 16


def check_engine(make: Callable[[], Engine], directory: Path) -> None:
    """Write and read spans of a file below `directory` with an engine. Raises AssertionError, which
    says what does not hold."""
    engine = make()
    assert engine.name, "an engine has a name, which results show"
    assert engine.capabilities & Capability.DATA, "an engine keeps what is written (DATA)"
    direct = bool(engine.open_flags & getattr(os, "O_DIRECT", 0))
    assert direct == bool(engine.capabilities & Capability.DIRECT), "DIRECT is what O_DIRECT opens"
    path = directory / "engine-check.kv"
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | engine.open_flags
    fd = os.open(path, flags, 0o600)
    try:
        os.ftruncate(fd, _PAGES * PAGE_BYTES)
        os.posix_fallocate(fd, 0, _PAGES * PAGE_BYTES)
        _spans_keep_their_bytes(engine, fd)
        _beyond_the_end_is_an_error(engine, fd)
    finally:
        os.close(fd)
        path.unlink()


def _spans_keep_their_bytes(engine: Engine, fd: int) -> None:
    rng = np.random.default_rng(7)
    spans = [(0, 4), (4, 1), (5, 8), (13, 3)]  # offset and length in pages
    written = {}
    for offset, pages in spans:
        data = aligned_bytes(pages * PAGE_BYTES)
        data[:] = rng.integers(0, 256, pages * PAGE_BYTES, np.uint8)
        region = engine.region(Span(fd, offset * PAGE_BYTES, data.nbytes), writable=True)
        region.write(0, data.data)
        region.flush()
        region.close()
        written[offset] = data
    os.fsync(fd)
    for offset, data in written.items():
        back = aligned_bytes(data.nbytes)
        region = engine.region(Span(fd, offset * PAGE_BYTES, data.nbytes), writable=False)
        half = data.nbytes // PAGE_BYTES // 2 * PAGE_BYTES
        if half:
            region.read(0, back.data[:half])
        region.read(half, back.data[half:])
        region.close()
        assert np.array_equal(back, data), f"the span at page {offset} came back with other bytes"


def _beyond_the_end_is_an_error(engine: Engine, fd: int) -> None:
    back = aligned_bytes(2 * PAGE_BYTES)
    try:
        region = engine.region(Span(fd, (_PAGES - 1) * PAGE_BYTES, back.nbytes), writable=False)
        region.read(0, back.data)
    except (StoreError, OSError):
        return
    raise AssertionError("a read beyond the end of the file is a StoreError, not silence")
