"""Who used the CPU beside us."""

import os
import time
from pathlib import Path

from kv_cache.bench.probes.cpu_users import between, snapshot
from kv_cache.bench.procfs import ProcessStat, cpu_times, listed, parse_stat

TICKS = os.sysconf("SC_CLK_TCK")


def use(
    seconds: float, *, started: int = 1, parent: int = 1, name: str = "p", cpu: int = 0
) -> ProcessStat:
    return ProcessStat(0, name, "S", parent, round(seconds * TICKS), started, cpu)


def test_a_process_is_read_as_proc_describes_it() -> None:
    columns = ["S", "3", *["0"] * 9, str(TICKS), str(2 * TICKS), str(4 * TICKS), "0", *["0"] * 4]
    found = parse_stat(f"12 (a) (b c) {' '.join([*columns, '77', *['0'] * 16, '5'])} 0 0\n")
    assert found == ProcessStat(12, "a) (b c", "S", 3, 7 * TICKS, 77, 5)


def test_each_group_has_its_seconds_and_the_busiest_others_come_first() -> None:
    before = {1: use(5), 10: use(1), 11: use(2), 12: use(0, parent=2), 13: use(9), 14: use(3)}
    after = {
        1: use(5), 10: use(8), 11: use(4), 12: use(0.5, parent=2), 14: use(3.25, name="cc"),
        13: use(1, started=9, name="ld"), 15: use(2, name="as"),
    }  # fmt: skip
    found = between(before, after, ours=[10], siblings=[11], cpus=[0], seconds=10)
    assert (found.siblings_cpu_s, found.kernel_cpu_s) == (2.0, 0.5)
    named = [(one.pid, one.name, one.cpu_s) for one in found.busiest]
    assert named == [(15, "as", 2.0), (13, "ld", 1.0), (14, "cc", 0.25)]


def test_who_works_on_other_cores_than_ours_is_not_among_them() -> None:
    after = {10: use(1), 11: use(2, cpu=3), 12: use(4, parent=2, cpu=3), 13: use(5, cpu=3)}
    found = between({}, after, ours=[], siblings=[11], cpus=range(2), seconds=10)
    assert (found.siblings_cpu_s, found.kernel_cpu_s) == (0, 0)
    assert [one.pid for one in found.busiest] == [10]


def test_who_was_given_the_life_of_a_child_that_ended_is_not_named() -> None:
    """A shell whose command of two minutes ends in a window of six seconds."""
    before, after = {10: use(1), 11: use(3)}, {10: use(115), 11: use(7)}
    found = between(before, after, ours=[], siblings=[], cpus=range(2), seconds=6)
    assert [(one.pid, one.cpu_s) for one in found.busiest] == [(11, 4.0)]


def test_times_of_cores_are_added_up_as_the_kernel_lists_them() -> None:
    """user nice system idle iowait irq softirq steal guest guest_nice, in ticks."""
    stat = f"cpu  9 9 9 9 9 9 9 9 9 9\n{_line(0, 1)}{_line(1, 10)}{_line(10, 100)}intr 5\n"
    found = cpu_times(stat, listed("0-1,10"))
    assert found is not None
    assert [round(s * TICKS) for s in found] == [6 * 111, 8 * 111]
    assert cpu_times(stat, listed("0,2")) is None  # of a core that it does not show
    assert listed("0-3,8") == {0, 1, 2, 3, 8}


def _line(number: int, ticks: int) -> str:
    return f"cpu{number} {' '.join([str(ticks)] * 10)}\n"


def test_this_process_is_seen_to_work() -> None:
    before, end = snapshot(), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    after = snapshot()
    assert after[os.getpid()].ticks - before[os.getpid()].ticks >= 0.1 * TICKS - 2


def test_processes_that_vanish_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "10").mkdir()
    (tmp_path / "self").mkdir()
    assert snapshot(tmp_path) == {}
