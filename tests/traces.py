"""Where the real public traces lie that the project does not redistribute."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_trace(name: str) -> Path:
    """The real trace file `name` from $KV_TRACES or ../shared/traces; skips the test without it."""
    place = Path(os.environ.get("KV_TRACES") or ROOT.parent / "shared" / "traces")
    path = place / name
    if not path.exists():
        pytest.skip(f"the real trace {name} is not in {place}; $KV_TRACES may name another place")
    return path
