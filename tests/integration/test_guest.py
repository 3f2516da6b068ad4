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
