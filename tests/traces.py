"""Real public traces, packed beside the tests, and conversations that are made."""

import lzma
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from kv_cache.core.seed import Seed
from kv_cache.workload.samples.session_traces import sharegpt_text

ROOT = Path(__file__).resolve().parent.parent
PACKED = ROOT / "tests" / "data" / "traces"


@cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    """One directory for the process, which goes with it."""
    return tempfile.TemporaryDirectory(prefix="kv-traces-")


@cache
def real_trace(name: str) -> Path:
    """A real trace by its name, unpacked; see tests/data/README.md."""
    path = Path(_unpacked().name) / name
    archive = PACKED / f"{name}.tar.xz"
    if archive.exists():
        with tarfile.open(archive) as files:
            # Python 3.11.2, which Debian 12 has, knows no filters yet.
            files.extraction_filter = getattr(tarfile, "data_filter", None)
            files.extractall(path.parent)
        return path
    with lzma.open(PACKED / f"{name}.xz") as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return path


@cache
def made_talks() -> Path:
    """400 conversations in ShareGPT's form, always the same."""
    path = Path(_unpacked().name) / "sharegpt_made_400.json"
    path.write_text(sharegpt_text(Seed(7), 400))
    return path
