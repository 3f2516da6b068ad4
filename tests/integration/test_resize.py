"""Users and workers that come and go while a real run serves: as many as were asked for, nobody
left over, nothing kept."""

from pathlib import Path

import pytest

from benchmarks.resize import measure


@pytest.mark.nightly
def test_ten_thousand_users_come_and_go_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served by 500 workers, as in any run."""
    monkeypatch.chdir(tmp_path)
    seen = measure(few=10, many=10_000, times=0)
    (threads, _), (threads_after, _) = seen.few
    assert threads_after == threads


def test_threads_and_memory_return_when_users_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`measure` itself checks that nobody died and that requests were answered; each change waits
    until there are exactly as many workers as users."""
    monkeypatch.chdir(tmp_path)
    seen = measure(few=4, many=60, times=1)
    (_, _), (threads, rss), (threads_after, rss_after) = seen.few
    assert threads_after == threads
    assert abs(rss_after / rss - 1) < 0.05
    assert not list(tmp_path.iterdir())
