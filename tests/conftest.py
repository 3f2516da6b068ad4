"""What all tests have in common: no test fails because a machine was slow (timings are figures, and
stand in `benchmarks/`), what hypothesis tries is the same each time (`pytest
--hypothesis-profile=explore` tries other things), and simulations in this process run as Python,
whatever was compiled. Processes of tests keep the bytecode that they make: it takes a third of the
time of a short one. One worker of xdist takes all of a file, whose tests share runs, and all files
that would disturb each other. What was skipped is counted by its reason at the end."""

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import kv_cache.sim.cluster.cluster  # noqa: F401
from kv_cache.cli.progress import Status
from tests import covering, passports

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["KV_CACHE_JOB"] = "tests"  # which share a device
sys.dont_write_bytecode = False
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # processes of tests inherit what nohup ignores
gc.freeze()  # what pytest and its plugins hold makes each collection slow: a third of a test's time
gc.set_threshold(100_000, 50, 100)
Status.__init__.__defaults__ = (time.monotonic, 3600.0)  # what takes some seconds says nothing
any_time: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", max_examples=500, **any_time)
settings.register_profile("same", derandomize=True, max_examples=30, **any_time)
settings.load_profile("same")


ONE_AT_A_TIME = {
    "devices": (
        *("test_device_mark", "test_devices", "test_hosts", "test_names"),
        *("test_no_answer", "test_serve_devices"),
        *("test_printed_commands", "test_raw_device", "test_stack", "test_stalls"),
    ),
    "fio": ("test_predict", "test_probe", "test_twin"),
    "system calls": ("test_left_behind", "test_personalities", "test_tracing"),
    "cgroups": ("test_passport", "test_probes"),
}
"""Files of `tests/integration` by what they have to themselves: devices and mounts (a namespace of
mounts has a copy of each that there is, and keeps its device busy), the speed of the disk, strace
and bpftrace, the limits of a cgroup."""
_GROUPS = {file: group for group, files in ONE_AT_A_TIME.items() for file in files}
_SHARES_NOTHING = "tests/contract/"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker all tests of a file, or of a group of files, in the order of collection.

    xdist's own groups are marks that it writes into the name of a test, which pytest 9.2 ignores.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return nodeid if path.startswith(_SHARES_NOTHING) else _GROUPS.get(Path(path).stem, path)


@pytest.fixture(autouse=True)
def _every_run_has_its_set_of_rules() -> Iterator[None]:
    yield
    passports.compare_the_rest()


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_configure(config: pytest.Config) -> None:
    covering.at_night = "nightly" in config.getoption("-m")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What wants an idle machine, or much time, runs only where it is asked for."""
    if "nightly" in config.getoption("-m"):
        return
    left_out = [item for item in items if "nightly" in item.keywords]
    items[:] = [item for item in items if "nightly" not in item.keywords]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last words before the count: how many tests were skipped, and what each lacked."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        longrepr = report.longrepr
        said = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        reasons[said.removeprefix("Skipped: ")] += 1
    told = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"skipped: {reasons.total()}{f' ({told})' if told else ''}")
