"""The lines of the live view, from snapshots made by hand."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm.utils import disp_len

from kv_cache.cli.live import Side, SloNow, Snapshot, TierNow, cut, live_lines, status_line
from kv_cache.cli.progress import STATUS_S, Status, StatusBar
from kv_cache.core.units import GIB, NS_PER_MS
from kv_cache.metrics.window import Latency

SEEN = Latency(count=9, p50_ns=51.45e6, p95_ns=71.17e6, p99_ns=175.37e6, highest_ns=200 * NS_PER_MS)
STORAGE = TierNow(
    name="storage",
    read=Side(bytes_per_s=0.25 * GIB, operations_per_s=21, latency=SEEN),
    write=Side(bytes_per_s=1.24 * GIB, operations_per_s=105),
)
RUN = Snapshot(
    phase="measure", elapsed_s=7.2, share=0.36, left_s=12.8,
    completed=188, running=9, queued=3, behind=2, users=4, workers=16, saturation=0.91,
    tiers=[TierNow(name="gpu", read=Side(), write=Side()), STORAGE], storage=STORAGE,
    slos=[
        SloNow(name="interactive p95", seen_ns=31.2e6, limit_ns=50 * NS_PER_MS),
        SloNow(name="batch ttft p99.9", seen_ns=None, limit_ns=1000 * NS_PER_MS),
        SloNow(name="responsive p95", seen_ns=250e6, limit_ns=200 * NS_PER_MS),
    ],
    failed_operations=1, failed_requests=2, rejected=3,
    warnings=2, latest_warning="the clock\njumped",
)  # fmt: skip

WIDE = """\
measure  7.2 s  [##############--------------------------]   36 %  12.8 s left
4 users  16 workers  9 running  3 queued  2 behind  188 done  saturation 0.91
1 failed operations  2 failed requests  3 rejected
2 warnings: the clock jumped
GiB/s       read   op/s   write   op/s   storage ms      p50     p95     p99   answers ms               now   target
gpu         0.00      0    0.00      0   read           51.5    71.2     175   interactive p95         31.2     50.0
storage     0.25     21    1.24    105   write             –       –       –   batch ttft p99.9           –     1000
                                                                               responsive p95           250      200 !
"""  # noqa: E501, RUF001

NARROW = """\
measure  7.2 s   36 %  12.8 s left
4 users  16 workers  9 running  3 queued
2 behind  188 done  saturation 0.91
1 failed operations  2 failed requests
3 rejected
2 warnings: the clock jumped
GiB/s       read   op/s   write   op/s
gpu         0.00      0    0.00      0
storage     0.25     21    1.24    105
storage ms      p50     p95     p99
read           51.5    71.2     175
write             –       –       –
answers ms               now   target
interactive p95         31.2     50.0
batch ttft p99.9           –     1000
responsive p95           250      200 !
"""  # noqa: RUF001


@pytest.mark.parametrize(("width", "text"), [(119, WIDE), (40, NARROW)])
def test_tables_stand_side_by_side_where_there_is_room(width: int, text: str) -> None:
    assert live_lines(RUN, width) == text.splitlines()


def test_a_line_of_status_says_where_a_run_stands() -> None:
    now = Snapshot(
        phase="measure", elapsed_s=20.04, left_s=39.96, left_requests=12, prefix="40 users",
        completed=312, running=9, queued=3, users=24, failed_operations=2,
    )  # fmt: skip
    assert status_line(now, 4 * GIB, 3 * GIB + GIB // 2, 0.39 * GIB) == (
        "40 users, measure 20 of 60 s, 24 users, 312 requests done, 12 requests left, 9 running, "
        "3 queued, 2 failed operations, storage read 4.00 GiB, written 3.50 GiB, 0.39 GiB/s"
    )
    assert status_line(Snapshot(phase="drain", elapsed_s=3.0), 0, 0, 0.0).startswith("drain 3 s, 0")


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"desc": "filling", "unit": "B", "unit_scale": True}, "filling: 10.0GB ["),
        ({"desc": "checking", "total": 200e9}, "checking: 5 %, 10000000000 of 200000000000"),
        (
            {"total": 1e11, "bar_format": "{bar:20} {percentage:3.0f} % {desc}", "desc": "x"},
            "10 % x",
        ),
    ],
)
def test_a_bar_is_a_line_every_ten_seconds_where_nobody_looks(
    options: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    with StatusBar(Status(clock, STATUS_S), mininterval=0, **options) as bar:
        for _ in range(25):
            clock.now_s += 1
            bar.update(10**9)
        bar.refresh()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(says)
    assert "|" not in first + second


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115
    monkeypatch.setattr("sys.stderr", full)
    Status(Clock()).say("a line")
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_short_terminal_loses_the_last_lines() -> None:
    assert live_lines(RUN, 119, 2) == WIDE.splitlines()[:2]


def test_what_ends_a_run_is_told_as_it_is_known() -> None:
    by_count = Snapshot(phase="measure", elapsed_s=1.0, share=0.5, left_requests=7)
    assert live_lines(by_count, 80)[0].endswith("]   50 %  7 requests left")
    endless = Snapshot(phase="drain", elapsed_s=1.0, prefix="probe 1/12: 8 users")
    assert live_lines(endless, 80)[:2] == ["probe 1/12: 8 users", "drain    1.0 s"]


def test_a_long_name_is_cut_with_a_sign_that_it_was() -> None:
    assert cut("a warning of many words", 12) == "a warning..."
    assert cut("twelve chars", 12) == "twelve chars"
    assert cut("\x1b[2Jgone\ttabs", 40) == " [2Jgone tabs"
    assert [cut("name", width) for width in range(4)] == ["", "n", "na", "nam"]


numbers = st.integers(-(2**63), 2**63)
floats = st.floats(-1e18, 1e18, allow_nan=False)
names = st.text(max_size=60)
latencies = st.builds(
    Latency, count=numbers, p50_ns=floats | st.none(), p95_ns=floats | st.none(),
    p99_ns=floats | st.none(), highest_ns=numbers | st.none(),
)  # fmt: skip
sides = st.builds(Side, bytes_per_s=floats, operations_per_s=floats, latency=latencies)
tiers = st.builds(TierNow, name=names, read=sides, write=sides)
slos = st.builds(SloNow, name=names, seen_ns=floats | st.none(), limit_ns=numbers)


def snapshots() -> st.SearchStrategy[Snapshot]:
    some: dict[str, Any] = {"phase": names, "prefix": names, "latest_warning": names}
    counts = (
        *("completed", "running", "queued", "behind", "warnings"),
        *("failed_operations", "failed_requests", "rejected"),
    )
    some |= dict.fromkeys(counts, numbers)
    some |= dict.fromkeys(("users", "workers", "left_requests"), numbers | st.none())
    some |= dict.fromkeys(("share", "left_s", "saturation"), floats | st.none())
    return st.builds(
        Snapshot, elapsed_s=floats, tiers=st.lists(tiers, max_size=3),
        storage=tiers | st.none(), slos=st.lists(slos, max_size=4), **some,
    )  # fmt: skip


@given(snapshot=snapshots(), width=st.integers(0, 200), height=st.none() | st.integers(1, 60))
def test_no_line_is_wider_than_the_screen_and_none_tears_it(
    snapshot: Snapshot, width: int, height: int | None
) -> None:
    lines = live_lines(snapshot, width, height)
    assert all(disp_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    assert height is None or len(lines) <= height


@given(snapshot=snapshots())
def test_no_number_is_negative(snapshot: Snapshot) -> None:
    plain = {"phase": "p", "prefix": "", "latest_warning": ""}
    tier = TierNow(name="t", read=snapshot.tiers[0].read, write=Side()) if snapshot.tiers else None
    made = Snapshot(
        **{name: getattr(snapshot, name) for name in Snapshot.__struct_fields__} | plain
        | {"tiers": [tier] if tier else [], "storage": tier, "slos": []}
    )  # fmt: skip
    words = " ".join(live_lines(made, 1000)).replace("[", " ").split()
    assert not [word for word in words if word.startswith("-") and word.strip("-]")]
