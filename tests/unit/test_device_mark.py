"""Marks on devices: who may be beside whom, and how long a mark lasts."""

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kv_cache.bench import device_mark
from kv_cache.bench.device_mark import (
    DeviceInUseError,
    JobId,
    claim,
    devices_of,
    job_of,
    release,
)
from kv_cache.core.errors import ConfigError
from tests.cli import PATIENCE_S, ROOT

_HOLDER = """
import os, sys
from pathlib import Path
from kv_cache.bench import device_mark
try:
    held = device_mark.claim(Path('/x'), sys.argv[1:], device_mark.job_of(os.environ))
except device_mark.DeviceInUseError as error:
    sys.exit(str(error))
print("held", flush=True)
sys.stdin.read()
"""
_BUSY_CHILD = _HOLDER.replace(
    "print(",
    """
parent = os.getpid()
if not os.fork():
    import time
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(0.5)
    os._exit(0)
print(""",
)


@contextmanager
def holder(
    device: str, environ: dict[str, str], code: str = _HOLDER
) -> Iterator["subprocess.Popen[str]"]:
    """A process that wants a device, and has it until the end of the context if it can."""
    with subprocess.Popen(
        [sys.executable, "-c", code, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT), **environ},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline() != "held\n":
            process.wait(timeout=PATIENCE_S)
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def device() -> str:
    """The name of a device that no other test knows."""
    return f"d{secrets.token_hex(4)}"


def open_mpi(rank: int, size: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({}, {}, False),
        ({"KV_CACHE_JOB": "load it"}, {"KV_CACHE_JOB": "load it"}, True),
        ({"KV_CACHE_JOB": "a"}, {"KV_CACHE_JOB": "b"}, False),
        ({"KV_CACHE_JOB": "a"}, {}, False),
        ({"KV_CACHE_JOB": ""}, {"KV_CACHE_JOB": ""}, False),
        (open_mpi(0, 4), open_mpi(3, 4), True),
        (open_mpi(0, 4), open_mpi(0, 4), False),  # two jobs
        (open_mpi(0, 4), open_mpi(1, 2), False),
        (open_mpi(0, 4), {"PMI_RANK": "1", "PMI_SIZE": "4"}, False),
        (open_mpi(0, 4), {}, False),
        ({**open_mpi(0, 4), "KV_CACHE_JOB": "a"}, {**open_mpi(0, 4), "KV_CACHE_JOB": "a"}, True),
    ],
)
def test_only_runs_of_one_job_are_on_a_device_at_once(
    device: str, first: dict[str, str], second: dict[str, str], both: bool
) -> None:
    with holder(device, first) as one, holder(device, second) as other:
        holding = other.poll() is None
        assert one.poll() is None
        assert holding == both
        if not both:
            assert other.stderr is not None
            sentence = other.stderr.read()
            assert f"another run is using its device {device} (process {one.pid})" in sentence
            assert "KV_CACHE_JOB" in sentence
            assert other.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_mark_ends_with_its_process(device: str, number: int) -> None:
    with holder(device, {}) as one:
        with pytest.raises(DeviceInUseError):
            claim(Path("/x"), (device,), JobId("other"))
        one.send_signal(number)
        one.wait(timeout=PATIENCE_S)
        release(claim(Path("/x"), (device,), JobId("other")))


def test_what_a_killed_process_was_just_starting_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(device_mark, "_PATIENCE_S", PATIENCE_S)
    with holder(device, {}, _BUSY_CHILD) as one:
        one.kill()
        one.wait(timeout=PATIENCE_S)
        release(claim(Path("/x"), (device,), JobId("other")))


def test_a_mark_lasts_as_long_as_somebody_holds_it(device: str) -> None:
    held = claim(Path("/x"), (device,), JobId("page"))
    with ExitStack() as stack:
        (mark,) = held
        child = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, pass_fds=[mark.fileno()])
        )  # fmt: skip
        release(held)
        with pytest.raises(DeviceInUseError):
            claim(Path("/x"), (device,), JobId("other"))
        child.kill()
        child.wait(timeout=PATIENCE_S)
    release(claim(Path("/x"), (device,), JobId("other")))


def test_a_process_has_several_directories_on_its_device(device: str) -> None:
    job = job_of(open_mpi(2, 4))
    held = [*claim(Path("/x"), (device,), job), *claim(Path("/x"), (device,), job)]
    with pytest.raises(DeviceInUseError):
        claim(Path("/x"), (device,), JobId("other"))
    release(held)


def test_names_of_sockets_that_others_made_are_no_marks(device: str) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as odd:
        odd.bind(f"\0kv-cache-device/{device}/x/y/z/w")
        release(claim(Path("/x"), (device,), JobId("mine")))


def test_ranks_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError):
        job_of(open_mpi(4, 4))


def test_without_abstract_sockets_nobody_is_marked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str
) -> None:
    monkeypatch.setattr(device_mark, "_UNIX_SOCKETS", tmp_path / "none")
    assert claim(Path("/x"), (device,), JobId("mine")) == []


def test_a_file_system_in_ram_has_no_device() -> None:
    assert devices_of(Path("/dev/shm/kv-cache")) == ()
