"""Where a run without a cache directory makes its own."""

import tempfile
from pathlib import Path

import pytest

from kv_cache.config.storage_targets import temporary_place
from tests.stores import mounted, real_disk


@pytest.mark.root
def test_a_temporary_directory_in_ram_is_not_taken_unless_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    with mounted(tmp_path, "tmpfs"):
        assert temporary_place() == Path("/var/tmp")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert temporary_place() == tmp_path


def test_a_temporary_directory_on_a_drive_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    with real_disk(tmp_path) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        assert temporary_place() == disk
