"""Each personality does the I/O that docs/reference/personalities.md says, by its system calls.

A run is traced with strace, the trace is read here, and what was done below the cache directory is
held against `PROMISES`: the page's table, written down a second time so that an option that is
changed in `config/personalities.py` alone is noticed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from kv_cache.config.personalities import PERSONALITIES
from kv_cache.core.errors import PlaceError
from kv_cache.core.units import MIB, PAGE_BYTES
from kv_cache.tiers.nvme import choose_engine
from tests.cli import PROGRAM, environment
from tests.covering import by_day

TOKEN_BYTES = 12 * 2 * 4 * 128 * 2
"""Of tiny-1b: 12 layers, keys and values, 4 heads of 128 numbers of 2 bytes; 6 pages."""

BUCKET_BYTES = 256 * MIB
BUCKET_OBJECTS = 500
USERS = 2

TRACED = (
    "openat,rename,renameat,renameat2,fsync,fdatasync,unlinkat,pread64,preadv,preadv2,pwrite64,"
    "pwritev,pwritev2,fadvise64,io_uring_enter"
)

SMALL = """
io: {load_buffers: 4, store_buffers: 4}
passport: {measurement: false}
user_templates:
  chatbot: {context_range: [260, 520], generation_range: [5, 20], think_time_range: [0, 0.01]}
  coding: {context_range: [260, 520], generation_range: [5, 20], think_time_range: [0, 0.01]}
  document: {context_range: [260, 520], generation_range: [5, 20], think_time_range: [0, 0.01]}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a personality's page says of its system calls."""

    direct: bool  # O_DIRECT, in both directions; else an object's pages are dropped first
    temporary: bool = False  # written under another name, then renamed
    fsyncs: int = 0  # of each object
    tokens: int | None  # in an object; None = as many as a turn has
    one_call: bool = True  # an object is read and written by one system call
    bucket: bool = False  # many objects in a file
    writers: int | None = None  # objects that are written at the same time, at most
    readers: int | None = None  # that one request reads at the same time, at most


PROMISES: Mapping[str, Promise] = {
    "lmcache": Promise(direct=False, tokens=256, writers=4, readers=1),
    "vllm-fs": Promise(direct=True, temporary=True, tokens=16),
    "hicache": Promise(direct=False, temporary=True, tokens=64, writers=1, readers=1),
    "mooncake": Promise(direct=False, tokens=256, bucket=True, writers=1, readers=1),
    "reference": Promise(direct=False, fsyncs=1, tokens=None, one_call=False, readers=1),
}


# --- reading a trace -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A finished system call; `begun` and `ended` are its lines in the trace."""

    name: str
    thread: int
    begun: int
    ended: int
    args: str
    result: int
    answer: str  # the path of the descriptor that it answers

    @property
    def fd(self) -> int:
        return self.result if self.name == "openat" else int(self.args.partition("<")[0])

    @property
    def path(self) -> str:
        return self.answer if self.name == "openat" else self.args.partition("<")[2].split(">")[0]

    @property
    def last_numbers(self) -> list[int]:
        return [int(word) for word in re.findall(r"(?<=, )\d+(?=,|$)", self.args)]


_BEGUN = re.compile(r"(\d+) +(\w+\(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)$")
_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>)?")


def read_trace(text: str) -> list[Call]:
    """The calls in the order in which they ended; what others interrupted is put together."""
    calls, begun = [], {}
    for number, line in enumerate(text.splitlines()):
        first, rest = number, line
        if found := _BEGUN.match(line):
            begun[found[1]] = (number, found[2])
            continue
        if found := _RESUMED.match(line):
            first, head = begun.pop(found[1])
            rest = f"{found[1]} {head}{found[2]}"
        if found := _CALL.match(rest):
            thread, name, args, result, answer = found.groups()
            call = Call(
                name=name, thread=int(thread), begun=first, ended=number, args=args.strip(),
                result=int(result), answer=answer or "",
            )  # fmt: skip
            calls.append(call)
    return calls


@dataclass(slots=True, eq=False, kw_only=True)
class Use:
    """A file from its opening on."""

    path: str
    thread: int
    begun: int
    flags: frozenset[str]
    writes: list[Call] = field(default_factory=list)
    reads: list[Call] = field(default_factory=list)
    fsyncs: int = 0
    dropped: list[tuple[int, int]] = field(default_factory=list)  # ranges, before the first read

    @property
    def creates(self) -> bool:
        return "O_CREAT" in self.flags

    @property
    def direct(self) -> bool:
        return "O_DIRECT" in self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    uses: Sequence[Use]  # of the files that hold objects
    renames: Mapping[str, str]  # from the new name to the old one
    unlinked: int
    rings: int  # calls of io_uring

    @property
    def stores(self) -> list[Use]:
        return [use for use in self.uses if use.writes]

    @property
    def loads(self) -> list[Use]:
        return [use for use in self.uses if use.reads]


_OBJECTS = re.compile(r"/[0-9a-f]{2}/[0-9a-f]{16}[.a-z]*\.kv$")


_NAMED = re.compile(r'(?:<([^>]*)>, )?"([^"]*)"')
"""The directory that a name is relative to, if any, and the name."""


def trace_of(calls: Sequence[Call]) -> Trace:
    """Objects alone: not the probes of the main thread, nor the single pages that a thread of its
    own reads as a sample after the run."""
    moved = [call for call in calls if re.match(r"p?(read|write)v?", call.name) and call.result > 0]
    pages = {c.thread for c in moved if c.name.startswith("pread") and c.result == PAGE_BYTES}
    workers = {c.thread for c in moved if c.result != PAGE_BYTES or "write" in c.name}
    apart = {calls[0].thread} | (pages - workers)
    uses: list[Use] = []
    open_files: dict[int, Use] = {}
    renames: dict[str, str] = {}
    unlinked = rings = 0
    for call in calls:
        if call.result < 0 or call.thread in apart:
            continue
        if call.name.startswith("rename"):
            old, new = (os.path.join(*found) for found in _NAMED.findall(call.args))
            renames[new] = old
        elif call.name == "unlinkat":
            unlinked += any(_OBJECTS.search(f"/{name}") for _, name in _NAMED.findall(call.args))
        elif call.name == "io_uring_enter":
            rings += 1
        elif _OBJECTS.search(call.path) and not call.path.endswith((".meta.kv", ".probe.kv")):
            if call.name == "openat":
                flags = frozenset(re.findall(r"O_\w+", call.args))
                use = Use(path=call.path, thread=call.thread, begun=call.begun, flags=flags)
                open_files[call.fd] = use
                uses.append(use)
            else:
                _put(open_files[call.fd], call)
    return Trace(uses=uses, renames=renames, unlinked=unlinked, rings=rings)


def _put(use: Use, call: Call) -> None:
    assert use.path == call.path
    if call.name.startswith("pwrite"):
        use.writes.append(call)
    elif call.name.startswith("pread"):
        use.reads.append(call)
    elif call.name.endswith("sync"):
        use.fsyncs += 1
    elif "DONTNEED" in call.args and not use.reads:
        offset, length = call.last_numbers[:2]
        use.dropped.append((offset, length))


# --- holding it against a promise --------------------------------------------------------------


def complaints(trace: Trace, promise: Promise) -> list[str]:
    """One sentence for each way in which the trace is not as promised."""
    said = dict.fromkeys(
        [
            *_about_flags(trace, promise),
            *_about_names(trace, promise),
            *_about_fsync(trace, promise),
            *_about_sizes(trace, promise),
            *_about_files(trace, promise),
            *_about_drops(trace, promise),
            *_about_threads(trace, promise),
        ]
    )
    return list(said)


def _about_flags(trace: Trace, promise: Promise) -> Iterator[str]:
    wrong = "without" if promise.direct else "with"
    for use in trace.uses:
        if use.creates and not use.writes:
            yield "an object is written by no system call"
        if "O_RDONLY" in use.flags and not use.reads:
            yield "an object is read by no system call"
    for use in trace.stores:
        if use.direct != promise.direct:
            yield f"an object is written {wrong} O_DIRECT"
    for use in trace.loads:
        if use.direct != promise.direct:
            yield f"an object is read {wrong} O_DIRECT"
    if trace.rings:
        yield "io_uring is used"


def _about_names(trace: Trace, promise: Promise) -> Iterator[str]:
    renamed = set(trace.renames.values())
    for use in trace.stores:
        if promise.temporary != (use.path in renamed):
            yield "an object is not renamed" if promise.temporary else "an object is renamed"
        if promise.temporary != (".tmp." in use.path):
            yield f"an object is written as {Path(use.path).name}"
    for use in trace.loads:
        if ".tmp." in use.path:
            yield "an object is read that is not complete"


def _about_fsync(trace: Trace, promise: Promise) -> Iterator[str]:
    for use in trace.stores:
        if use.fsyncs != promise.fsyncs:
            yield f"a file has {use.fsyncs} fsyncs, not {promise.fsyncs}"


def _about_sizes(trace: Trace, promise: Promise) -> Iterator[str]:
    for use in trace.uses:
        for calls in _objects(use, promise):
            nbytes = sum(call.result for call in calls)
            if nbytes % PAGE_BYTES or nbytes % TOKEN_BYTES:
                yield f"an object has {nbytes} bytes, which are no whole tokens"
            elif promise.tokens is not None and nbytes != promise.tokens * TOKEN_BYTES:
                yield f"an object has {nbytes // TOKEN_BYTES} tokens, not {promise.tokens}"
            if promise.one_call and len(calls) > 1:
                yield f"an object takes {len(calls)} system calls"


def _objects(use: Use, promise: Promise) -> Iterator[Sequence[Call]]:
    """The calls of each object; one that is written to a bucket is one call, or it shows."""
    if use.reads:
        yield use.reads
    if use.writes and promise.bucket:
        yield from ([call] for call in use.writes)
    elif use.writes:
        yield use.writes


def _about_files(trace: Trace, promise: Promise) -> Iterator[str]:
    names = [use.path for use in trace.stores]
    if len(names) > len(set(names)):
        yield "a file is written twice"
    if (".bucket." in "".join(names)) != promise.bucket:
        yield "objects are not in buckets" if promise.bucket else "objects are in buckets"
    if not promise.bucket:
        return
    for number, use in enumerate(trace.stores):
        sizes = [call.result for call in use.writes]
        if len(sizes) > BUCKET_OBJECTS or sum(sizes) > BUCKET_BYTES:
            yield f"a bucket has {len(sizes)} objects of {sum(sizes)} bytes"
        last = number == len(trace.stores) - 1
        if not last and len(sizes) < BUCKET_OBJECTS and sum(sizes) + sizes[0] <= BUCKET_BYTES:
            yield f"a bucket is full with {len(sizes)} objects of {sum(sizes)} bytes"


def _about_drops(trace: Trace, promise: Promise) -> Iterator[str]:
    for use in trace.loads:
        if use.direct:
            continue
        offsets = [call.last_numbers[-2 if call.name == "preadv2" else -1] for call in use.reads]
        first, last = min(offsets), max(offsets) + use.reads[-1].result
        if not any(at <= first and last <= at + length for at, length in use.dropped):
            yield "an object is read whose pages were not dropped before"


def _about_threads(trace: Trace, promise: Promise) -> Iterator[str]:
    spans = [_span(calls) for use in trace.stores for calls in _objects(use, promise)]
    if promise.writers is not None and (most := _together(spans)) > promise.writers:
        yield f"{most} objects are written at the same time"
    spans = [_span(use.reads) for use in trace.loads]
    if promise.readers is not None and (most := _together(spans)) > promise.readers * USERS:
        yield f"{most} objects are read at the same time by {USERS} users"


def _span(calls: Sequence[Call]) -> tuple[int, int]:
    return calls[0].begun, max(call.ended for call in calls)


def _together(spans: Iterable[tuple[int, int]]) -> int:
    steps: dict[int, int] = defaultdict(int)
    for begun, ended in spans:
        steps[begun] += 1
        steps[ended] -= 1
    most = now = 0
    for line in sorted(steps):
        now += steps[line]
        most = max(most, now)
    return most


# --- real runs ---------------------------------------------------------------------------------


@cache
def strace_missing() -> str | None:
    """Why nothing can be traced here."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False
    )
    return f"strace may not trace: {tried.stderr.strip()}" if tried.returncode else None


def traced(where: Path, name: str, *flags: str) -> Trace:
    """The trace of a small run whose storage tier takes everything."""
    if (why := strace_missing()) is not None:
        pytest.skip(why)
    (where / "small.yaml").write_text(SMALL)
    (where / "cache").mkdir()
    ran = subprocess.run(
        [
            "strace", "-f", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e", f"trace={TRACED}",
            "-o", str(where / "trace"), sys.executable, str(PROGRAM), "run",
            f"--personality={name}", "--config=small.yaml", "--model=tiny-1b",
            f"--num-users={USERS}", "--max-requests=16", "--seed=5", "--generation-mode=none",
            "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=0.75", "--duration=60",
            f"--cache-dir={where / 'cache'}", "--output=R.json", *flags,
        ],
        cwd=where, env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    trace = trace_of(read_trace((where / "trace").read_text()))
    (where / "trace").unlink()
    return trace


def needs_direct(where: Path) -> None:
    try:
        choose_engine("direct", where)
    except PlaceError as error:
        pytest.skip(str(error))


def test_there_is_a_promise_for_each_personality() -> None:
    assert set(PROMISES) == set(PERSONALITIES)


@pytest.mark.parametrize("name", PROMISES)
def test_a_personality_does_what_it_says(name: str, tmp_path: Path) -> None:
    if PROMISES[name].direct:
        needs_direct(tmp_path)
    more = ("--max-requests=110",) if PROMISES[name].bucket else ()  # a second bucket is begun
    trace = traced(tmp_path, name, *more)
    assert complaints(trace, PROMISES[name]) == []
    assert len(trace.loads) >= 8
    if PROMISES[name].bucket:
        assert len(trace.stores) >= 2
    else:
        assert len(trace.stores) >= 8


LIES: Mapping[str, tuple[list[str], list[str]]] = {
    "lmcache": (
        ["--block-tokens=64", "--fsync=object", "--max-concurrent-allocs=0"],
        ["an object has 64 tokens, not 256", "a file has 1 fsyncs, not 0"],
    ),
    "vllm-fs": (
        ["--io-engine=buffered"],
        ["an object is written without O_DIRECT", "an object is read without O_DIRECT"],
    ),
    "hicache": (
        ["--io-engine=mmap"],
        ["an object is written by no system call", "an object is read by no system call"],
    ),
    "mooncake": (["--layout=file"], ["an object is renamed", "objects are not in buckets"]),
    "reference": (["--fsync=never"], ["a file has 0 fsyncs, not 1"]),
}


@pytest.mark.parametrize("name", by_day({name: (name,) for name in LIES}, ["lmcache", "mooncake"]))
def test_a_personality_that_lies_is_caught(name: str, tmp_path: Path) -> None:
    flags, expected = LIES[name]
    said = complaints(traced(tmp_path, name, *flags), PROMISES[name])
    for part in expected:
        assert any(part in sentence for sentence in said), said


# --- recorded traces -----------------------------------------------------------------------------

A, B = "/c/run/00/0000000000000000.kv", "/c/run/01/0000000000000001.kv"
NBYTES = 256 * TOKEN_BYTES
PLAIN = Promise(direct=False, tokens=256, writers=1, readers=1)
HEAD = '1 openat(AT_FDCWD</w>, "/w/main.py", O_RDONLY|O_CLOEXEC) = 3</w/main.py>\n'

STORED = f"""\
7 openat(AT_FDCWD</w>, "{A}", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 5<{A}>
7 pwrite64(5<{A}>, ""..., {NBYTES}, 0) = {NBYTES}
"""
LOADED = f"""\
7 openat(AT_FDCWD</w>, "{A}", O_RDONLY|O_CLOEXEC) = 5<{A}>
7 fadvise64(5<{A}>, 0, {NBYTES}, POSIX_FADV_DONTNEED) = 0
7 preadv2(5<{A}>, [{{iov_base=""..., iov_len={NBYTES}}}], 1, 0, 0) = {NBYTES}
"""
AT_ONCE = f"""\
7 openat(AT_FDCWD</w>, "{A}", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0600 <unfinished ...>
8 openat(AT_FDCWD</w>, "{B}", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 6<{B}>
7 <... openat resumed>) = 5<{A}>
7 pwrite64(5<{A}>, ""..., {NBYTES}, 0 <unfinished ...>
8 pwrite64(6<{B}>, ""..., {NBYTES}, 0 <unfinished ...>
7 <... pwrite64 resumed>) = {NBYTES}
8 <... pwrite64 resumed>) = {NBYTES}
"""


def recorded(text: str) -> Trace:
    return trace_of(read_trace(HEAD + text))


def test_a_recorded_trace_is_read() -> None:
    trace = recorded(STORED + LOADED)
    assert complaints(trace, PLAIN) == []
    assert [use.path for use in trace.stores] == [A]
    assert [call.result for use in trace.loads for call in use.reads] == [NBYTES]


def test_calls_that_others_interrupt_are_put_together() -> None:
    trace = recorded(AT_ONCE)
    assert {use.path: [c.result for c in use.writes] for use in trace.stores} == {
        A: [NBYTES],
        B: [NBYTES],
    }
    assert complaints(trace, PLAIN) == ["2 objects are written at the same time"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LOADED.replace("DONTNEED", "WILLNEED"), "pages were not dropped"),
        (LOADED.replace(f"0, {NBYTES}, POSIX", "0, 4096, POSIX"), "pages were not dropped"),
        (LOADED.replace("O_RDONLY", "O_RDONLY|O_DIRECT"), "is read with O_DIRECT"),
        (STORED.replace("O_WRONLY", "O_WRONLY|O_DIRECT"), "is written with O_DIRECT"),
        (STORED + f"7 fsync(5<{A}>) = 0\n", "has 1 fsyncs, not 0"),
        (STORED + f"7 fdatasync(5<{A}>) = 0\n", "has 1 fsyncs, not 0"),
        (STORED + f'7 rename("{A}", "{B}") = 0\n', "an object is renamed"),
        (STORED.replace(str(NBYTES), "4096"), "no whole tokens"),
        (STORED.replace(str(NBYTES), str(TOKEN_BYTES)), "has 1 tokens, not 256"),
        (STORED + "7 io_uring_enter(4<anon_inode:[io_uring]>, 1, 0, 0, NULL, 8) = 1\n", "io_uring"),
        (STORED + STORED, "a file is written twice"),
        (STORED.splitlines()[0] + "\n", "written by no system call"),
        (LOADED.splitlines()[0] + "\n", "read by no system call"),
        (STORED.replace(".kv", ".tmp.kv"), "is written as"),
        (STORED.replace(".kv", ".bucket.kv"), "objects are in buckets"),
    ],
)
def test_each_way_to_break_a_promise_is_named(text: str, sentence: str) -> None:
    said = complaints(recorded(text), PLAIN)
    assert any(sentence in one for one in said), said


def test_an_object_in_two_calls_is_named() -> None:
    half = NBYTES // 2
    first, write = STORED.splitlines()
    text = "\n".join(
        [
            first,
            write.replace(str(NBYTES), str(half)),
            write.replace(f"{NBYTES}, 0", f"{half}, {half}").replace(str(NBYTES), str(half)),
        ]
    )
    assert complaints(recorded(text), PLAIN) == ["an object takes 2 system calls"]


def test_a_bucket_that_is_closed_too_early_or_too_late_is_named() -> None:
    promise = Promise(direct=False, tokens=256, bucket=True)
    first = STORED.replace(".kv", ".bucket.kv")
    second = first.replace("0000000000000000.bucket", "0000000000000001.bucket")
    assert complaints(recorded(first), promise) == []
    early = complaints(recorded(first + second), promise)
    assert any("is full with 1 objects" in one for one in early)
    crowded = first + first.splitlines()[1].join(["\n"] * 44)
    assert any("a bucket has" in one for one in complaints(recorded(crowded), promise))
