"""What is done to a machine while it measures, in one that is there for that alone."""

import re
from pathlib import Path

import pytest

from tests.guest import needs_guest, run_in_guest
from tests.passports import names, says

pytestmark = [needs_guest, pytest.mark.nightly, pytest.mark.timeout(1000)]

RUN = [
    *("--model=llama3.1-8b", "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=1"),
    *("--generation-mode=none", "--num-users=1", "--block-tokens=512", "--semantics=serving"),
    *("--warmup=2", "--duration=20", "--seed=3", "--set=passport.measurement=false"),
]
"""An emulated machine computes slowly: one user, and objects of 64 MiB."""


@pytest.mark.parametrize("step", ["+1 hour", "-1 hour"])
def test_a_clock_that_is_set_during_a_run_is_named(step: str, tmp_path: Path) -> None:
    own = run_in_guest(tmp_path, *RUN, meanwhile=f'date -s "{step}"')
    names(own, V21="suspect")
    assert re.search("differ by -?(3599|3600)\\.", says(own, "V21"))
    assert own["window_s"] == pytest.approx(20, abs=5)  # it goes by the other clock


SMALL = "/sys/fs/cgroup/small"
MAKE = f"""
mount -t cgroup2 none /sys/fs/cgroup
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir {SMALL}
echo $$ > {SMALL}/cgroup.procs
"""
LIMIT_FOR_A_WHILE = f"""
echo $$ > /sys/fs/cgroup/cgroup.procs
echo $(( $(cat {SMALL}/memory.current) / 2 )) > {SMALL}/memory.high
sleep 8
echo max > {SMALL}/memory.high
"""
"""The run alone meets the limit, and it is lifted as nothing ends within it."""


def test_a_memory_limit_that_makes_a_run_wait_is_named(tmp_path: Path) -> None:
    own = run_in_guest(tmp_path, *RUN, before=MAKE, meanwhile=LIMIT_FOR_A_WHILE)
    names(own, V24="suspect")
    assert "memory.high" in says(own, "V24")


IO_COST = """
mount -t cgroup2 none /sys/fs/cgroup
echo +io > /sys/fs/cgroup/cgroup.subtree_control
drive=$(cat /sys/block/nvme0n1/dev)
echo "$drive enable=1 ctrl=user min=50 max=100" > /sys/fs/cgroup/io.cost.qos
echo "$drive ctrl=user model=linear rbps=300000000 rseqiops=9000 rrandiops=9000 \\
wbps=300000000 wseqiops=9000 wrandiops=9000" > /sys/fs/cgroup/io.cost.model
mkdir /sys/fs/cgroup/run
echo $$ > /sys/fs/cgroup/run/cgroup.procs
"""
"""The kernel's cost model: the drive serves 1.5 GB/s, and the run gets at most 300 MB/s."""


def test_a_drive_that_gives_by_the_cost_of_io_is_named(tmp_path: Path) -> None:
    own = run_in_guest(tmp_path, *RUN, before=IO_COST, meanwhile="true")
    names(own, V24="suspect")
    assert "nvme0n1 io.cost=1 (/sys/fs/cgroup/run)" in says(own, "V24")


def test_a_core_that_is_taken_away_is_not_taken_for_a_false_clock(tmp_path: Path) -> None:
    """The kernel goes on to count its time until then."""
    unplug = "sleep 8; echo 0 > /sys/devices/system/cpu/cpu1/online"
    own = run_in_guest(tmp_path, *RUN, meanwhile=unplug)
    names(own)
    assert own["passport"]["evidence"]["clock"]["cores"] == 2


LOSSY = """
modprobe=$(cat /proc/sys/kernel/modprobe)
$modprobe dm_mod; $modprobe dm_flakey
umount /run/drive
dd if=/dev/urandom of=/dev/nvme0n1 bs=1M oflag=direct status=none || true
sectors=$(blockdev --getsz /dev/nvme0n1)
dmsetup create lossy --table "0 $sectors linear /dev/nvme0n1 0"
mkfs.ext4 -q -F -E nodiscard /dev/dm-0
mount /dev/dm-0 /run/drive
"""
LOSE_WRITES = """
dmsetup suspend lossy
dmsetup load lossy --table "0 $sectors flakey /dev/nvme0n1 0 0 3600 1 drop_writes"
dmsetup resume lossy
"""


def test_a_drive_that_loses_writes_is_named_though_nothing_is_read(tmp_path: Path) -> None:
    once = ("--prefill-only", "--disable-multi-turn", "--disable-prefix-caching")
    own = run_in_guest(tmp_path, *RUN, *once, before=LOSSY, meanwhile=LOSE_WRITES)
    names(own, V22="invalid", also=("V12",))
    assert "loses writes" in says(own, "V22")
