"""The passport where the fault is real: each rule names what was done to a small run, and not a run
to which nothing was done.

Others use this machine too, and a test may not depend on them. That a quiet run is valid is tested
on recorded evidence (`tests/unit/test_passport.py`); of a live run each test says what its device
and its treatment provoke, and that no wrong byte was served. Only the nightly test wants VALID of
a live run.
"""

import ctypes
import gc
import itertools
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from msgspec.structs import replace

from benchmarks.devices import LOOP_TOOLS, ram_directory, why_not
from kv_cache.app.prepare import Job, prepare
from kv_cache.app.verify import VerifyOptions, verify
from kv_cache.bench import storage_room
from kv_cache.bench.client_ceiling import Curve, ceiling
from kv_cache.bench.counters import device_of
from kv_cache.bench.probes import throttles
from kv_cache.bench.probes.interposed import unflushed
from kv_cache.bench.probes.stack import FootKind, stack_of
from kv_cache.bench.run import open_run
from kv_cache.bench.run_plan import RunPlan
from kv_cache.cli.flags import parse
from kv_cache.core.effect import CopyRef
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import GIB, MIB, PAGE_BYTES
from kv_cache.files.environment import captured
from kv_cache.files.writing import write_document
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.passport import RULES, Thresholds, judge
from kv_cache.result.chain import file_digest, sealed_files
from kv_cache.result.document import build_result
from kv_cache.result.verification import RunVerification
from kv_cache.tiers.base import Sink, Store, Tap
from kv_cache.tiers.buffers import aligned_bytes
from kv_cache.tiers.nvme import choose_engine
from kv_cache.tiers.payload import Payload
from kv_cache.view.parts import FactList
from kv_cache.view.run import run_view
from tests import cli
from tests.integration.test_runs import wait_for_objects
from tests.passports import named, names, rule, says, status
from tests.wrappers import LOST, Around, Faulty, SinkAround, Throttled

QUIET = Path(__file__).parents[1] / "data/quiet_evidence.json"
"""Evidence of a valid run of 25 s on a disk (ext4 on vda)."""

BASE = [
    "--model=tiny-1b",
    "--gpu-mem-gb=0",
    "--cpu-mem-gb=0",
    "--storage-capacity-gb=0.5",
    "--generation-mode=none",
    "--seed=3",
    "--num-users=4",
    "--max-requests=30",
    "--io-engine=direct",
]
"""A few hundred MiB read and 100 MiB written, all of it on storage."""

Sections = Mapping[str, Mapping[str, Any]]
Wrap = Callable[[Store], Store]


# --- runs ------------------------------------------------------------------------------------


def configured(cwd: Path, more: Sections) -> Path:
    """The configuration of a small run, and what the test puts over it."""
    template = {
        "context_range": [64, 512], "generation_range": [10, 40], "think_time_range": [0, 0.01],
    }  # fmt: skip
    sections: dict[str, dict[str, Any]] = {
        "io": {"buffer_mib": 1, "load_buffers": 16, "store_buffers": 16, "threads": 4},
        "run": {"drain_s": 5},
        "passport": {
            "sample_every": 2,
            "payload_pages": 64,
            "settle_s": 0.5,
            "measurement": False,
        },
        "user_templates": dict.fromkeys(("chatbot", "coding", "document"), template),
    }
    for name, values in more.items():
        sections[name] = {**sections.get(name, {}), **values}
    path = cwd / "passport.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(sections))))
    return path


def flags(cwd: Path, more: Sequence[str], sections: Sections) -> list[str]:
    config = configured(cwd, sections)
    places = [f"--config={config}", f"--cache-dir={cwd / 'cache'}", f"--output={cwd / 'R.json'}"]
    given = {word.partition("=")[0] for word in more}
    return [word for word in (*BASE, *places) if word.partition("=")[0] not in given] + list(more)


def started(cwd: Path, *more: str, **sections: Mapping[str, Any]) -> "subprocess.Popen[str]":
    return cli.start(cwd, flags(cwd, more, sections))


def ran(cwd: Path, *more: str, **sections: Mapping[str, Any]) -> Any:
    """A run from the command line to its good end: the section `kv_cache` of its result."""
    loaded = {"LD_PRELOAD", "LD_AUDIT"} & os.environ.keys()  # as a process begins
    program = cli.alone if loaded else cli.run
    done = program(cwd, *flags(cwd, more, sections))
    assert done.code == 0, done.err
    return intact(cwd, done)


def intact(cwd: Path, done: cli.Ran) -> Any:
    """`verify` must find every result that was written as the run left it."""
    report = verify(VerifyOptions(result=str(cwd / "R.json")))
    assert isinstance(report, RunVerification)
    assert report.intact, (report.changes, report.deviations)
    assert report.verdict.verdict == done.own["passport"]["verdict"]
    return done.own


def job(cwd: Path, *more: str, **sections: Mapping[str, Any]) -> Job:
    return prepare(parse(flags(cwd, more, sections)).config())


def performed(
    made: Job, wrap: Wrap, beside: AbstractContextManager[object] | None = None
) -> RunOutcome:
    """The run of a job in this process, with something around its stores and beside it."""
    plan = RunPlan(made.config, made.load, made.specs, made.seed)
    with open_run(plan, threading.Event(), wrap=wrap) as run, beside or nullcontext():
        outcome = run.execute(ignore)
    assert outcome.death is None
    return outcome


def told(cwd: Path, made: Job, outcome: RunOutcome) -> Any:
    """The section `kv_cache` of the result that is written."""
    document = build_result(made.config, made.model, outcome, captured(*made.directories))
    write_document(cwd / "R.json", document)
    return intact(cwd, cli.Ran(0, "", "", document))


def measured(
    cwd: Path,
    *more: str,
    wrap: Wrap | None = None,
    beside: AbstractContextManager[object] | None = None,
    **sections: Mapping[str, Any],
) -> Any:
    made = job(cwd, *more, **sections)
    return told(cwd, made, performed(made, wrap or untouched, beside))


def untouched(store: Store) -> Store:
    return store


def ignore(_: object) -> None:
    """Nobody watches."""


# --- a run to which nothing was done ---------------------------------------------------------


@pytest.fixture(scope="module")
def quiet() -> Any:
    """What is said of a quiet run's recorded evidence: whether others are busy now is no matter."""
    evidence = json.loads(QUIET.read_bytes())
    return {"passport": judge(evidence, Thresholds()).to_json()}


@pytest.fixture(scope="module")
def untouched_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A direct run on the file system of the tests, with its records."""
    cwd = tmp_path_factory.mktemp("untouched")
    own = ran(cwd, "--max-requests=80", f"--results-dir={cwd / 'runs'}", "--records")
    if own["passport"]["evidence"]["ledger"]["accounted"] is not True:
        pytest.skip("the tests' directory is on no block device")
    return cwd


@pytest.fixture(scope="module")
def untouched_run(untouched_directory: Path) -> Any:
    return json.loads((untouched_directory / "R.json").read_bytes())["kv_cache"]


def test_a_run_to_which_nothing_was_done_breaks_no_rule_that_can_be_provoked(
    untouched_run: Any,
) -> None:
    names(untouched_run)
    assert untouched_run["passport"]["changed_thresholds"] == {"measurement": [False, True]}


@pytest.mark.nightly
def test_a_run_to_which_nothing_was_done_is_valid_on_an_idle_machine(tmp_path: Path) -> None:
    if {foot.kind for foot in stack_of([tmp_path]).feet} != {FootKind.DISK}:
        pytest.skip("the bytes of the tests' directory end on no disk")
    if throttles.read_throttles().io_limits:
        pytest.skip("an I/O limit is in force")
    measurement = {"measurement": True}
    own = ran(tmp_path, "--max-requests=0", "--duration=20", "--fsync=object", passport=measurement)
    assert named(own) == {}, own["passport"]["reasons"]
    assert own["passport"]["verdict"] == "valid"
    silent = {"V14": "not-judged", "V15": "not-applicable"}
    for number in RULES:
        assert status(own, number) == silent.get(number, "pass"), rule(own, number)


@pytest.mark.parametrize(("declared", "found"), [(True, "invalid"), (False, "not-applicable")])
def test_next_to_no_data_is_no_result_unless_a_test_declares_itself(
    tmp_path: Path, declared: bool, found: str
) -> None:
    own = measured(tmp_path, "--max-requests=5", passport={"measurement": declared})
    names(own, **({"V30": found} if declared else {}))
    assert status(own, "V30") == found, rule(own, "V30")
    assert any("declared to be no measurement" in note for note in own["notes"]) is not declared
    assert own["tiers"]["storage"]["write"]["device_ms"]["p99"] is None


def test_every_section_of_the_evidence_is_there(untouched_run: Any) -> None:
    evidence = untouched_run["passport"]["evidence"]
    unknown = {name for name, value in evidence.items() if value in (None, {})}
    assert not unknown
    assert evidence["page_cache"]["sampled_objects"] > 16
    assert evidence["page_cache"]["descriptors"]["buffered"] == 0
    assert evidence["client"]["harness_lag_p99_ms"] > 0
    assert evidence["client"]["storage_read_p50_ms"] > 0


def test_the_records_are_in_the_chain_with_their_digests(untouched_directory: Path) -> None:
    document = json.loads((untouched_directory / "R.json").read_bytes())
    (directory,) = (untouched_directory / "runs").iterdir()
    files = sealed_files(document)
    assert files.keys() == {"requests.jsonl", "transfers.jsonl"}
    assert files == {name: file_digest(directory / name) for name in files}
    assert verify(VerifyOptions(result=str(directory))).intact


@pytest.fixture(scope="module")
def own_device() -> Iterator[Path]:
    """A directory on a device that nobody else uses."""
    if (missing := why_not(LOOP_TOOLS)) is not None:
        pytest.skip(missing)
    with ram_directory(gib=1) as directory:
        yield directory


def test_on_a_device_of_its_own_a_run_has_no_neighbours(own_device: Path, tmp_path: Path) -> None:
    own = measured(tmp_path, f"--cache-dir={own_device / 'cache'}")
    names(own, V27="invalid")
    assert status(own, "V23") == "pass"


def test_the_journal_of_what_we_sync_is_no_neighbour(tmp_path: Path) -> None:
    """ext4 writes some 26 KiB to it for each file of 64 KiB."""
    if (missing := why_not(LOOP_TOOLS)) is not None:
        pytest.skip(missing)
    with ram_directory(gib=1, journal=True) as directory:
        own = measured(
            tmp_path, f"--cache-dir={directory / 'cache'}", "--fsync=object", "--semantics=serving",
            "--block-tokens=4", "--tensor-parallel=8", "--num-gpus=8", "--cpu-mem-gb=0",
            passport={"enough_mib": 4},
        )  # fmt: skip
    foreign = own["passport"]["evidence"]["foreign"]
    assert foreign["journal_bytes"] > 0.1 * (foreign["own_read_bytes"] + foreign["own_write_bytes"])
    assert status(own, "V23") == "pass", rule(own, "V23")
    assert "where the file system's journal took" in says(own, "V23")


# --- V1: the page cache answers --------------------------------------------------------------


def test_reads_of_pages_that_were_never_written_back_are_named(tmp_path: Path) -> None:
    own = ran(tmp_path, "--io-engine=buffered", "--fsync=never")
    names(own, V1="invalid", V6="invalid")
    assert "in the page cache before a load" in says(own, "V1")
    assert "came from the page cache" in says(own, "V1")
    assert status(own, "V3") == "pass"  # it was asked for


def test_a_buffered_run_that_syncs_and_drops_its_pages_reads_the_device(tmp_path: Path) -> None:
    own = ran(tmp_path, "--io-engine=buffered", "--fsync=object")
    names(own)
    assert status(own, "V1") == "pass", rule(own, "V1")
    assert "as was asked for" in says(own, "V3")


READER = """
import os, sys, time
from pathlib import Path
while os.getppid() == int(sys.argv[2]):
    for path in Path(sys.argv[1]).glob("*/*/*.kv"):
        try:
            path.read_bytes()
        except OSError:
            pass
    time.sleep(0.01)
"""


@contextmanager
def process(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A neighbour, as long as the `with` lasts."""
    quiet = subprocess.DEVNULL
    neighbour = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        yield neighbour
    finally:
        neighbour.kill()
        neighbour.wait()


def test_somebody_who_reads_the_cache_files_too_is_named(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V1") == "pass"
    with process(sys.executable, "-c", READER, str(tmp_path / "cache"), str(os.getpid())):
        own = ran(tmp_path, "--max-requests=60", passport={"sample_every": 1})
    names(own, V1="suspect", also=("V3",))  # a load during which they came into memory
    assert "something else reads the cache files" in says(own, "V1")


# --- V2: the payload -------------------------------------------------------------------------


Write = Callable[[Sink, int, memoryview], None]


class WritingOtherwise(Around):
    """Each buffer goes to the sink through `write`."""

    def __init__(self, store: Store, write: Write) -> None:
        super().__init__(store)
        self._write = write

    def create(self, ref: CopyRef) -> Sink:
        return _OtherSink(self.inner.create(ref), self._write)


class _OtherSink(SinkAround):
    def __init__(self, sink: Sink, write: Write) -> None:
        super().__init__(sink)
        self._write = write

    def write(self, offset: int, data: memoryview) -> None:
        self._write(self._sink, offset, data)


class WhenLoaded(Around):
    """Something happens to the file of a copy each time that it is opened."""

    def __init__(self, store: Store, happens: Callable[[int], None]) -> None:
        super().__init__(store)
        self._happens = happens

    def open(self, ref: CopyRef) -> Tap:
        tap = self.inner.open(ref)
        for span in tap.spans:
            self._happens(span.fd)
        return tap


def path_of(fd: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


def payload_of(fill: Callable[[int], bytes]) -> Wrap:
    """A store that is given other pages than those of the run, by their number in the object."""

    def write(sink: Sink, offset: int, data: memoryview) -> None:
        first = offset // PAGE_BYTES
        pages = b"".join(fill(first + page) for page in range(len(data) // PAGE_BYTES))
        other = aligned_bytes(len(data))
        other[:] = np.frombuffer(pages, np.uint8)
        sink.write(offset, other.data)

    return lambda store: WritingOtherwise(store, write)


NOISE = os.urandom(PAGE_BYTES)
TEXT = b"the quick brown fox jumps over the lazy dog " * 100

PAYLOADS: Mapping[str, tuple[Callable[[int], bytes], str]] = {
    "zeros": (lambda _: bytes(PAGE_BYTES), "zeros"),
    "one page again and again": (lambda _: NOISE, "duplicates"),
    "numbered text": (lambda page: (b"%d " % page + TEXT)[:PAGE_BYTES], "under zlib"),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_that_a_drive_could_reduce_is_named(name: str, tmp_path: Path) -> None:
    fill, word = PAYLOADS[name]
    own = measured(tmp_path, "--verify=off", "--max-requests=30", wrap=payload_of(fill))
    names(own, V2="invalid", V22="invalid")
    assert word in says(own, "V2")


@pytest.mark.parametrize(
    "more",
    [["--verify=off"], ["--prefill-only", "--disable-multi-turn", "--disable-prefix-caching"]],
)
def test_other_data_in_the_place_of_what_was_written_is_named_though_no_load_verifies_it(
    more: list[str], tmp_path: Path
) -> None:
    """As a drive that loses writes has: what was there before, and no drive can reduce it."""
    unique = payload_of(lambda _: os.urandom(PAGE_BYTES))
    own = measured(tmp_path, *more, "--max-requests=30", wrap=unique)
    names(own, V22="invalid")
    assert "do not hold what was stored" in says(own, "V22")
    assert status(own, "V2") == "pass"


# --- V3: a silent fall-back ------------------------------------------------------------------

OPENS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#define MODE va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);
#define NEXT(name) dlsym(RTLD_NEXT, #name)
#define OPEN(name) int name(const char *path, int flags, ...) { MODE DIRECT(flags); \\
    return ((int (*)(const char *, int, ...))NEXT(name))(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { MODE DIRECT(flags); \\
    return ((int (*)(int, const char *, int, ...))NEXT(name))(at, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
"""
STRIPS_DIRECT = "#define DIRECT(flags) flags &= ~O_DIRECT\n" + OPENS
REFUSES_DIRECT = (
    "#define DIRECT(flags) if (flags & O_DIRECT) { errno = EINVAL; return -1; }\n" + OPENS
)
FAKES_FADVISE = """
int posix_fadvise(int fd, long offset, long length, int advice) { return 0; }
int posix_fadvise64(int fd, long offset, long length, int advice) { return 0; }
"""

HALF_SPEED = """
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static long long began;
    int failed = syscall(SYS_clock_gettime, id, t);
    if (failed || id != CLOCK_MONOTONIC) return failed;
    long long now = t->tv_sec * 1000000000LL + t->tv_nsec;
    if (!began) began = now;
    now = began + (now - began) / 2;
    t->tv_sec = now / 1000000000LL;
    t->tv_nsec = now % 1000000000LL;
    return 0;
}
"""
PASSES_FSYNC_ON = """
#include <unistd.h>
#include <sys/syscall.h>
int fsync(int fd) { return syscall(SYS_fsync, fd); }
"""
AUDITS = "unsigned la_version(unsigned version) { return version; }"

LEAVES_NO_WORD = """
#include <string.h>
__attribute__((constructor)) static void leave(int n, char **words, char **names) {
    for (; *names; names++) if (!strncmp(*names, "LD_AUDIT=", 9)) (*names)[0] = 'M';
}
"""
FORBIDS_FSYNC = """
import ctypes, os, struct, sys
def op(code, value, yes=0, no=0):
    return struct.pack("HBBI", code, yes, no, value)
program = b"".join([op(32, 0), op(21, 74, 1, 0), op(21, 75, 0, 3), op(32, 16),
                    op(53, 1 << 20, 1, 0), op(6, 0x50000), op(6, 0x7FFF0000)])
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]
kernel = ctypes.CDLL(None)
assert kernel.prctl(38, 1, 0, 0, 0) == 0
assert kernel.syscall(317, 1, 0, ctypes.byref(Filter(len(program) // 8, program))) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""fsync and fdatasync (74, 75 on x86-64) return 0 and do nothing; of a descriptor from 2^20 on, as
a canary may try one, the kernel answers."""

Preload = Callable[..., None]


@pytest.fixture
def preload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preload:
    """Compiles a library that every program loads which is started from then on."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to compile a library with")

    def use(code: str, *, name: str = "libfake.so", by: str = "LD_PRELOAD") -> None:
        source, library = tmp_path / "fake.c", tmp_path / name
        source.write_text(code)
        command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        monkeypatch.setenv(by, str(library))

    return use


def test_a_library_that_takes_o_direct_away_is_named(
    tmp_path: Path, preload: Preload, quiet: Any
) -> None:
    assert status(quiet, "V3") == "pass"
    preload(STRIPS_DIRECT)
    own = ran(tmp_path)
    names(own, V3="invalid", V4="suspect", V1="invalid", also=("V6",))
    assert "a descriptor without O_DIRECT though the engine says direct" in says(own, "V3")
    assert "open (" in says(own, "V4")


def test_auto_falls_back_where_direct_io_is_refused_and_the_result_says_so(
    tmp_path: Path, preload: Preload
) -> None:
    preload(REFUSES_DIRECT)
    own = ran(tmp_path, "--io-engine=auto")
    names(own, V3="suspect", V4="suspect")
    assert "auto fell back to the page cache (O_DIRECT is refused)" in says(own, "V3")
    assert own["passport"]["evidence"]["engines"]["note"] == "O_DIRECT is refused"


def test_direct_refuses_to_start_where_direct_io_is_refused(
    tmp_path: Path, preload: Preload
) -> None:
    preload(REFUSES_DIRECT)
    done = cli.alone(tmp_path, *flags(tmp_path, ["--io-engine=direct"], {}))
    assert done.code == 2
    (sentence,) = done.err.splitlines()
    assert "cannot do direct I/O (O_DIRECT is refused)" in sentence
    assert "use --io-engine auto or buffered" in sentence
    assert not (tmp_path / "R.json").exists()
    assert not (tmp_path / "cache").exists()


@contextmanager
def mounted(at: Path, *options: str) -> Iterator[Path]:
    """A file system, as long as the `with` lasts."""
    at.mkdir()
    done = subprocess.run(["mount", *options, str(at)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.fixture
def without_direct(tmp_path: Path) -> Iterator[Path]:
    """A file system that refuses O_DIRECT by itself."""
    with mounted(tmp_path / "ramfs", "-t", "ramfs", "ramfs") as directory:
        yield directory


@pytest.mark.root
def test_an_engine_is_chosen_by_what_the_file_system_does(without_direct: Path) -> None:
    engine, note = choose_engine("auto", without_direct)
    assert (engine.name, note) == ("buffered", "O_DIRECT is refused")
    with pytest.raises(PlaceError, match="cannot do direct I/O"):
        choose_engine("direct", without_direct)
    assert not list(without_direct.rglob("*.kv"))


@pytest.mark.root
def test_drives_of_which_one_falls_back_are_named_as_a_mix(
    tmp_path: Path, without_direct: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        storage_room, "check_space", lambda *_: None
    )  # ramfs does not tell its size
    places = (f"--cache-dir={tmp_path / 'cache'}", f"--cache-dir={without_direct / 'cache'}")
    own = measured(tmp_path, *places, "--io-engine=auto")
    names(own, V3="invalid", V5="suspect", also=("V1",))
    assert "one run mixed direct I/O" in says(own, "V3")


@pytest.fixture
def journalled(tmp_path: Path) -> Iterator[Path]:
    """ext4 that journals data takes O_DIRECT, and goes through the page cache all the same."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(GIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    options = ("-o", "loop,data=journal", str(image))
    with mounted(tmp_path / "journalled", *options) as directory:
        yield directory


@pytest.mark.root
def test_a_file_system_that_only_seems_to_do_direct_io_is_named(
    tmp_path: Path, journalled: Path
) -> None:
    def forget(fd: int) -> None:
        """What a machine with little memory does by itself."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    place = f"--cache-dir={journalled / 'cache'}"
    own = measured(tmp_path, place, wrap=lambda store: WhenLoaded(store, forget))
    names(own, V3="invalid", V27="invalid", also=("V6",))  # mount -o loop leaves direct I/O off
    assert "the file system only seems to do direct I/O" in says(own, "V3")


@pytest.mark.root
def test_direct_reads_that_come_from_memory_are_named(tmp_path: Path, journalled: Path) -> None:
    own = measured(tmp_path, f"--cache-dir={journalled / 'cache'}")
    names(own, V1="invalid", V6="invalid", V27="invalid", also=("V3",))
    assert "they are served from memory" in says(own, "V1")


# --- V4: system calls are faked --------------------------------------------------------------


def test_a_library_that_has_the_c_librarys_name_and_not_its_place_is_named(
    tmp_path: Path, preload: Preload
) -> None:
    preload(PASSES_FSYNC_ON, name="librt.so.1")
    own = ran(tmp_path, "--fsync=object")
    names(own, V4="suspect")
    assert f"fsync ({tmp_path / 'librt.so.1'})" in says(own, "V4")


def test_a_library_that_audits_all_calls_is_named(tmp_path: Path, preload: Preload) -> None:
    preload(AUDITS, by="LD_AUDIT")
    own = ran(tmp_path)
    names(own, V4="suspect")
    assert "libfake.so" in says(own, "V4")
    assert own["passport"]["evidence"]["interposed"]["unlisted"] == [str(tmp_path / "libfake.so")]


def test_a_library_that_audits_from_shared_memory_and_hides_the_variable_is_named(
    tmp_path: Path, preload: Preload, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload(AUDITS + LEAVES_NO_WORD, by="LD_AUDIT")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        library = shutil.copy(tmp_path / "libfake.so", memory)
        monkeypatch.setenv("LD_AUDIT", library)
        own = ran(tmp_path)
    names(own, V4="suspect")
    interposed = own["passport"]["evidence"]["interposed"]
    assert (interposed["preload"], interposed["unlisted"]) == (None, [library])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its filter has numbers of x86-64")
def test_an_fsync_that_a_filter_answers_is_named(tmp_path: Path) -> None:
    """Seccomp, as a sandbox has it: the C library and the bare system call lie alike."""
    if unflushed(tmp_path, stack_of([tmp_path]).disks) is None:
        pytest.skip("no disk with a write cache and counters lies below")
    command = [sys.executable, "-c", FORBIDS_FSYNC, *cli.command("run", *flags(
        tmp_path, ["--fsync=object"], {}))]  # fmt: skip
    for _ in range(30):  # whoever else flushes the disk in that moment hides it
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
        own = json.loads((tmp_path / "R.json").read_text())["kv_cache"]
        if status(own, "V31") == "suspect":
            break
    names(own, also=("V4",), V31="suspect")
    assert "let no disk flush" in says(own, "V31")


def test_a_clock_at_half_speed_is_named(tmp_path: Path, preload: Preload, quiet: Any) -> None:
    assert status(quiet, "V21") == "pass"
    preload(HALF_SPEED)
    own = ran(tmp_path, "--max-requests=0", "--duration=0.5")
    names(own, V21="invalid", V4="suspect")
    clock = own["passport"]["evidence"]["clock"]
    assert 1.5 < clock["kernel_s"] / clock["monotonic_s"] < 3  # the two are not read at once
    assert "the time was longer than is said" in says(own, "V21")


def test_eatmydata_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Any) -> None:
    assert status(quiet, "V4") == "pass"
    if (tool := shutil.which("eatmydata")) is None:
        pytest.skip("eatmydata is not installed")
    show = [tool, "sh", "-c", 'echo "$LD_PRELOAD $LD_LIBRARY_PATH"']
    shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    for name, value in zip(("LD_PRELOAD", "LD_LIBRARY_PATH"), shown.split(), strict=False):
        monkeypatch.setenv(name, value)
    own = ran(tmp_path, "--fsync=object")
    names(own, also=("V31",), V4="invalid")
    assert "fsync" in says(own, "V4")
    assert "eatmydata" in says(own, "V4")


def test_a_faked_posix_fadvise_is_named_and_so_is_what_it_does(
    tmp_path: Path, preload: Preload
) -> None:
    preload(FAKES_FADVISE)
    own = ran(tmp_path, "--io-engine=buffered", "--fsync=object")
    names(own, V4="invalid", V1="invalid", also=("V6",))
    assert "posix_fadvise" in says(own, "V4")


# --- V5 and V19: no device counts ------------------------------------------------------------


@pytest.fixture
def memory_directory() -> Iterator[Path]:
    """A directory in memory."""
    if not os.access("/dev/shm", os.W_OK) or device_of(Path("/dev/shm")) is not None:
        pytest.skip("/dev/shm is no file system in memory that we may use")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kv-cache-test-") as directory:
        yield Path(directory)


def test_memory_in_the_place_of_a_device_is_named(
    tmp_path: Path, memory_directory: Path, quiet: Any
) -> None:
    assert status(quiet, "V5") == status(quiet, "V19") == "pass"
    own = ran(tmp_path, f"--cache-dir={memory_directory / 'cache'}", "--io-engine=auto")
    names(own, V5="suspect", V1="invalid", also=("V3",))
    assert "file system tmpfs" in says(own, "V5")
    assert "pages were in the page cache before a load" in says(own, "V1")
    assert status(own, "V19") == "not-applicable"


# --- V6: our ledger against the kernel's -----------------------------------------------------


def test_writes_that_are_acknowledged_and_never_done_are_named(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V6") == "pass"

    def lying(store: Store) -> Store:
        return Faulty(store, lambda _, ref: LOST if ref.copy_id % 2 else None)

    only_writes = ("--prefill-only", "--disable-multi-turn", "--disable-prefix-caching")
    own = measured(tmp_path, *only_writes, "--max-requests=100", wrap=lying)
    names(own, V6="invalid", also=("V2", "V19"))  # V2: what was never written reads as zeros
    assert "that we say were written: our count is wrong" in says(own, "V6")


def test_io_that_no_result_shows_is_named(tmp_path: Path) -> None:
    def twice(sink: Sink, offset: int, data: memoryview) -> None:
        sink.write(offset, data)
        sink.write(offset, data)

    own = measured(tmp_path, wrap=lambda store: WritingOtherwise(store, twice))
    names(own, V6="suspect")
    assert "more written than our ledger has" in says(own, "V6")


# --- V11: the same bytes again and again -----------------------------------------------------


def test_few_bytes_that_are_read_many_times_are_named_where_a_limit_is_set(
    tmp_path: Path, quiet: Any
) -> None:
    assert status(quiet, "V11") == "pass"
    own = measured(tmp_path, passport={"most_read_amplification": 1.1})
    names(own, V11="suspect")
    assert "more than 1.1: a cache in the drive may answer" in says(own, "V11")
    assert own["passport"]["changed_thresholds"] == {
        "measurement": [False, True],
        "most_read_amplification": [1.1, 0.0],
    }


# --- V12: a part is missing ------------------------------------------------------------------


def test_an_interrupted_run_is_named(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V12") == "pass"
    running = started(tmp_path, "--max-requests=0", "--duration=60")
    wait_for_objects(tmp_path / "cache", running, count=60)
    running.send_signal(signal.SIGINT)
    done = cli.finish(running, tmp_path)
    assert done.code == 130, done.err
    own = intact(tmp_path, done)
    names(own, V12="invalid")
    assert "the run was interrupted by SIGINT" in says(own, "V12")


def test_a_run_that_was_interrupted_before_its_window_is_named(tmp_path: Path) -> None:
    running = started(tmp_path, "--max-requests=0", "--duration=60", "--warmup=60")
    wait_for_objects(tmp_path / "cache", running)
    running.send_signal(signal.SIGTERM)
    done = cli.finish(running, tmp_path)
    assert done.code == 143, done.err
    own = intact(tmp_path, done)
    names(own, V12="invalid")
    assert "the measured window never began" in says(own, "V12")


def test_a_window_in_which_nothing_completed_is_named(tmp_path: Path) -> None:
    long = ("--generation-mode=realistic", "--duration=0.0001")  # an answer takes 0.3 s at least
    own = measured(tmp_path, "--max-requests=0", *long)
    names(own, V12="invalid")
    assert "no request completed in the window" in says(own, "V12")


def test_an_operation_that_failed_is_named(tmp_path: Path) -> None:
    turn = itertools.count()

    def cut(fd: int) -> None:
        if next(turn) == 20:
            os.truncate(path_of(fd), PAGE_BYTES)

    own = measured(tmp_path, wrap=lambda store: WhenLoaded(store, cut))
    names(own, V12="invalid")
    assert "operations failed" in says(own, "V12")
    assert {row["reason"] for row in own["failed_operations"]} == {"truncated"}


@pytest.mark.root
def test_records_that_did_not_fit_are_named(tmp_path: Path) -> None:
    with mounted(tmp_path / "tiny", "-t", "tmpfs", "-o", "size=128k", "tmpfs") as tiny:
        runs = (f"--results-dir={tiny / 'runs'}", "--records")
        done = cli.run(tmp_path, *flags(tmp_path, [*runs, "--max-requests=100"], {}))
        own = intact(tmp_path, done)
    names(own, V12="invalid")
    assert "the records are incomplete" in says(own, "V12")


# --- V13: was it the client? -----------------------------------------------------------------


def test_a_run_that_measures_the_client_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each buffer that is stamped or verified costs this client some ms of CPU."""
    work = range(300_000)

    def slowed(name: str) -> None:
        done = getattr(Payload, name)

        def slow(self: Payload, *where: Any, **how: Any) -> Any:
            sum(work)
            return done(self, *where, **how)

        monkeypatch.setattr(Payload, name, slow)

    slowed("bases")  # which both need
    # Far above what any ratio is when the client is most of the time; others use the CPU too.
    wide = {"certify_s": 3, "least_ceiling_ratio": 20, "idle_cores": 0}
    made = job(tmp_path, "--duration=1.5", passport=wide)
    own = told(tmp_path, made, certified(made, performed(made, untouched)))
    assert named(own).get("V13") in ("suspect", "invalid"), rule(own, "V13")
    assert "this client could do" in says(own, "V13")
    names(own)


@pytest.mark.nightly  # by day it would burn what the other tests want
def test_others_who_use_all_cores_are_named(tmp_path: Path) -> None:
    with ExitStack() as burning:
        for _ in range(2 * (os.cpu_count() or 1)):
            burning.enter_context(process(sys.executable, "-c", "while True: pass"))
        own = ran(tmp_path, "--max-requests=0", "--duration=1.5")
    names(own)
    client = own["passport"]["evidence"]["client"]
    of_the_kernel = client["kernel_cpu_s"] / own["window_s"]  # which works for other tests too
    assert client["others_cores"] + of_the_kernel > 0.5
    assert {one["name"] for one in client["busiest"]}
    total_s = own["kernel_counters"]["window"]["host_total_s"]
    assert client["others_cores"] + client["idle_cores"] <= total_s / own["window_s"]
    if client["others_cores"] >= 0.5:
        assert status(own, "V13") == "suspect", client
        assert "our threads waited for them" in says(own, "V13")


def test_cores_that_a_run_may_not_use_are_neither_others_nor_idle(tmp_path: Path) -> None:
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("there is one core alone")
    os.sched_setaffinity(0, {min(mine)})
    try:
        own = ran(tmp_path, "--max-requests=0", "--duration=1.5")
    finally:
        os.sched_setaffinity(0, mine)
    names(own)
    client = own["passport"]["evidence"]["client"]
    window = own["kernel_counters"]["window"]
    assert window["usable_cpus"] == str(min(mine))
    share = (client["others_cores"] + client["idle_cores"]) * own["window_s"]
    assert share < 1.1 * window["host_total_s"] / (os.cpu_count() or 1)


ALONE = {"certify_s": 1, "least_ceiling_ratio": 3, "most_cores_share": 1.0}
"""Whatever others do meanwhile."""


def test_a_client_that_could_do_much_more_passes(tmp_path: Path) -> None:
    rate = 20 * MIB  # far below what null stores do while others burn all cores
    made = job(tmp_path, "--duration=1.5", passport=ALONE)
    outcome = performed(made, lambda store: Throttled(store, bytes_per_second=rate))
    own = told(tmp_path, made, certified(made, outcome))
    names(own)
    assert status(own, "V13") == "pass", rule(own, "V13")
    found = own["passport"]["evidence"]["client"]["ceiling"]
    assert found["measured_bytes_per_second"] < 1.05 * rate
    assert found["ratio"] > 3


def test_a_certified_run_tells_its_ceiling_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    own = ran(tmp_path, "--certify", passport={"certify_s": 2})
    names(own)
    found = dict(own["passport"]["evidence"]["client"]["ceiling"])
    points, limit = found.pop("points"), found.pop("limit_object_bytes")
    assert all(
        math.isfinite(number) and number > 0
        for each in (found, *points)
        for number in each.values()
    )
    assert found["ratio"] == pytest.approx(
        found["bytes_per_second"] / found["measured_bytes_per_second"]
    )
    sizes = [point["object_bytes"] for point in points]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert limit is None or PAGE_BYTES <= limit <= sizes[0] + 1
    assert points[0]["bytes_per_second"] > points[-1]["bytes_per_second"]
    lists = [part for each in run_view(own).sections for part in each.parts]
    rows = dict(row for part in lists if isinstance(part, FactList) for row in part.rows)
    assert rows["client's ceiling"].startswith("this client could do ")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "cache").exists()


def certified(made: Job, outcome: RunOutcome) -> RunOutcome:
    stop = threading.Event()
    found = ceiling(made.config, made.build, made.specs, made.seed, outcome, stop)
    return replace(outcome, ceiling=found)


def test_certifying_gives_memory_and_threads_back(tmp_path: Path) -> None:
    made = job(tmp_path, "--cpu-mem-gb=0.5", "--max-requests=40", passport={"certify_s": 1})
    outcome = performed(made, untouched)
    before = held()
    assert certified(made, outcome).ceiling is not None
    after = held()
    assert after[0] < before[0] + 128 * MIB
    assert after[1] == before[1]


def test_a_rehearsal_that_is_over_before_its_first_window_has_a_ceiling_of_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where threads keep the interpreter so long that no window is cut in time."""
    monkeypatch.setattr(Curve, "watch", lambda *_: False)
    made = job(tmp_path, "--max-requests=40", passport={"certify_s": 1})
    points = certified(made, performed(made, untouched)).ceiling
    assert points is not None
    (point,) = points
    assert point.seconds > 0.6
    assert point.operations > 0 < point.bytes
    assert point.cpu_s > 0


def held() -> tuple[int, int]:
    """Memory and threads of this process."""
    gc.collect()
    return psutil.Process().memory_info().rss, threading.active_count()


def test_certifying_that_is_stopped_says_nothing(tmp_path: Path) -> None:
    made = job(tmp_path, "--max-requests=5", passport={"certify_s": 60})
    outcome = performed(made, untouched)
    stop = threading.Event()
    stop.set()
    assert ceiling(made.config, made.build, made.specs, made.seed, outcome, stop) is None


def test_there_is_no_ratio_to_a_run_that_moved_nothing(tmp_path: Path) -> None:
    made = job(tmp_path, "--cpu-mem-gb=0.5", "--max-requests=3", passport={"certify_s": 1})
    outcome = certified(made, performed(made, untouched))
    assert outcome.ceiling is not None
    own = told(tmp_path, made, outcome)
    assert own["passport"]["evidence"]["client"]["ceiling"]["ratio"] is None


# --- V15 and V25: the harness is late --------------------------------------------------------


@contextmanager
def interpreter_held(hold_s: float, pause_s: float) -> Iterator[None]:
    """Somebody in our process holds the interpreter lock for so long, again and again: in a call
    into C that does not give it back, which no switch interval ends."""
    nap = ctypes.PyDLL(None).usleep
    end = threading.Event()

    def hold() -> None:
        while not end.wait(pause_s):
            nap(round(hold_s * 1e6))

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_harness_that_is_late_is_named(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V25") == "pass"
    own = measured(
        tmp_path, "--max-requests=0", "--duration=1.5", "--io-engine=mmap",  # in Python
        beside=interpreter_held(0.1, 0.2),
        passport={"most_harness_lag_share": 0.001},  # on a busy disk a read takes longer than this
    )  # fmt: skip
    names(own, V25="suspect")
    assert own["passport"]["evidence"]["client"]["harness_lag_p99_ms"] > 50
    assert "of that can be the harness's" in says(own, "V25")


def test_a_run_that_was_stopped_for_a_tenth_of_its_window_is_named(tmp_path: Path) -> None:
    """SIGSTOP, as a frozen cgroup or a paused virtual machine does it."""
    program = started(tmp_path, "--max-requests=0", "--warmup=1", "--duration=10")
    wait_for_objects(tmp_path / "cache", program)
    time.sleep(3)
    worker = cli.worker_of(program)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(1)
    os.kill(worker, signal.SIGCONT)
    done = cli.finish(program, tmp_path)
    assert done.code == 0, done.err
    names(done.own, V25="suspect")
    assert done.own["passport"]["evidence"]["client"]["harness_lag_p99_ms"] > 500


PATIENT = {f"target_latency_{name}_ms": 1_000 for name in ("p95", "p99", "p999", "p9999")}


def test_a_schedule_that_is_not_kept_is_named(tmp_path: Path) -> None:
    own = measured(
        tmp_path, "--request-rate=20", "--max-requests=0", "--duration=3",
        beside=interpreter_held(0.6, 0.2),
        arrival={"mode": "open"},
        qos_profiles=dict.fromkeys(("interactive", "responsive", "batch"), PATIENT),
    )  # fmt: skip
    names(own, V15="suspect")
    assert "the benchmark asked too late" in says(own, "V15")


@pytest.mark.parametrize("tick_s", [1.0, 60.0])
def test_an_open_loop_that_storage_cannot_keep_is_named(tick_s: float, tmp_path: Path) -> None:
    """Also where all of it is one window, which grows by nothing from its first end to its last."""
    own = measured(
        tmp_path, "--request-rate=30", "--max-requests=0", "--duration=4",
        wrap=lambda store: Throttled(store, bytes_per_second=20 * MIB),
        arrival={"mode": "open"}, monitor={"tick_s": tick_s},
    )  # fmt: skip
    names(own, V12="suspect")
    assert "more requests waited at the end of the window" in says(own, "V12")


def test_a_rate_that_waiting_users_do_not_ask_is_named(tmp_path: Path) -> None:
    own = measured(
        tmp_path, "--request-rate=30", "--max-requests=0", "--duration=4",
        wrap=lambda store: Throttled(store, bytes_per_second=20 * MIB),
    )  # fmt: skip
    names(own, V15="suspect")
    assert "/s of 30/s: users were waiting for their answers" in says(own, "V15")


# --- V18: storage was not what was measured --------------------------------------------------


def test_a_run_that_never_touches_storage_is_named(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V18") == "pass"
    own = measured(tmp_path, "--cpu-mem-gb=0.5", "--max-requests=40")
    names(own, V18="invalid")
    assert "no byte touched storage" in says(own, "V18")


def test_a_share_of_storage_below_the_floor_is_named(tmp_path: Path) -> None:
    own = measured(
        tmp_path, "--cpu-mem-gb=0.0625", "--max-requests=60", passport={"least_storage_share": 0.95}
    )
    names(own, V18="invalid")
    assert "other tiers were measured" in says(own, "V18")


def test_too_few_bytes_on_storage_are_named(tmp_path: Path) -> None:
    own = measured(tmp_path, "--max-requests=3", "--num-users=1")
    names(own, V18="suspect")
    assert "raise --duration" in says(own, "V18")


# --- V21: a clock that jumps -----------------------------------------------------------------


def test_a_clock_that_jumps_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Any
) -> None:
    assert status(quiet, "V21") == "pass"
    real, jumped = time.time, threading.Event()
    monkeypatch.setattr(time, "time", lambda: real() + (3600 if jumped.is_set() else 0))

    def jump(_: int) -> None:
        jumped.set()

    own = measured(tmp_path, wrap=lambda store: WhenLoaded(store, jump))
    names(own, V21="suspect")
    assert "differ by 36" in says(own, "V21")
    assert own["window_s"] < 600  # what is measured goes by the other clock


# --- V22: wrong data -------------------------------------------------------------------------


def test_a_bit_that_flipped_on_the_disk_is_named(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V22") == "pass"
    turn = itertools.count()

    def flip(fd: int) -> None:
        if next(turn) == 20:
            with path_of(fd).open("r+b", buffering=0) as file:
                (byte,) = file.read(1)
                file.seek(0)
                file.write(bytes([byte ^ 0x10]))
                os.fsync(file.fileno())

    own = measured(tmp_path, wrap=lambda store: WhenLoaded(store, flip))
    names(own, V22="invalid", V12="invalid")
    assert "did not have the data that was stored" in says(own, "V22")


def test_a_run_that_verifies_nothing_is_named(tmp_path: Path) -> None:
    own = measured(tmp_path, "--verify=off")
    names(own, V22="suspect")
    assert "use --verify stamps" in says(own, "V22")


# --- V23: a neighbour ------------------------------------------------------------------------


def test_a_neighbour_on_the_same_file_system_is_named(tmp_path: Path) -> None:
    if (tool := shutil.which("dd")) is None:
        pytest.skip("no dd")
    if device_of(tmp_path) is None:
        pytest.skip("the tests' directory is on no block device")
    foreign = tmp_path / "foreign"
    command = (tool, "if=/dev/zero", f"of={foreign}", "bs=4M", "count=3000", "oflag=direct")
    with process(*command):
        while not foreign.exists() or not foreign.stat().st_size:
            time.sleep(0.01)
        own = ran(tmp_path, "--max-requests=0", "--duration=1.5")
    foreign.unlink()
    names(own, V23="suspect")
    culprits = own["passport"]["evidence"]["foreign"]["processes"]
    assert "dd" in {one["name"] for one in culprits}


# --- V24: limits -----------------------------------------------------------------------------


@contextmanager
def cgroup(controller: str, **settings: object) -> Iterator[None]:
    """This process in a cgroup of version 1 with these settings, as `throttle.read_bps_device`."""
    parent = Path("/sys/fs/cgroup") / controller
    if os.geteuid() != 0 or not (parent / "cgroup.procs").exists():
        pytest.skip(f"making a cgroup needs root and version 1's {controller} controller")
    made = parent / f"kv-cache-test-{os.getpid()}"
    made.mkdir()
    try:
        for name, value in settings.items():
            (made / f"{controller}.{name}").write_text(str(value))
        (made / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        made.rmdir()


@pytest.fixture
def disk_limit(tmp_path: Path) -> Iterator[str]:
    """A limit on the disk of the tests' directory, too high to be felt; how it is told."""
    device = device_of(tmp_path)
    if device is None or not Path(f"/sys/block/{device}").exists():
        pytest.skip("the tests' directory is not on a whole disk")
    number = Path(f"/sys/block/{device}/dev").read_text().strip()
    with cgroup("blkio", **{"throttle.read_bps_device": f"{number} 900000000000"}):
        yield f"{device} read_bps=900000000000"


@pytest.mark.root
def test_a_limit_on_the_disk_is_named(tmp_path: Path, quiet: Any, disk_limit: str) -> None:
    assert status(quiet, "V24") == "pass"
    own = measured(tmp_path)
    names(own, V24="suspect")
    assert disk_limit in says(own, "V24")


@pytest.mark.root
@pytest.mark.usefixtures("disk_limit")
def test_a_limit_on_another_disk_is_none_of_ours(own_device: Path, tmp_path: Path) -> None:
    own = measured(tmp_path, f"--cache-dir={own_device / 'cache'}")
    names(own, V27="invalid")
    assert status(own, "V24") == "pass"


@pytest.mark.root
def test_a_limit_of_the_cpu_that_stopped_the_run_is_named(tmp_path: Path) -> None:
    """However busy the machine and slow its disk: the cgroup comes before all others, and somebody
    in it always wants more than the limit, but only what the run leaves."""
    spin = ("nice", "-n", "19", sys.executable, "-c", "while True: pass")
    with cgroup("cpu", shares=262_144, cfs_quota_us=20_000), process(*spin):  # of each 100 ms
        own = measured(tmp_path, "--max-requests=10")
    names(own, V24="suspect")
    assert "the CPU limit of this cgroup stopped the benchmark" in says(own, "V24")


# --- V26: nothing was measured ---------------------------------------------------------------


def test_virtual_time_measures_nothing(tmp_path: Path, quiet: Any) -> None:
    assert status(quiet, "V26") == "pass"
    own = ran(tmp_path, "--virtual-time", "--io-engine=auto")
    assert named(own) == {"V26": "invalid"}
    others = {status(own, number) for number in RULES.keys() - {"V26"}}
    assert others == {"not-applicable"}
    assert own["contains_performance"] is False
