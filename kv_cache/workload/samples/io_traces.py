"""Traces of I/O: the benchmark's own CSV, LMCache's calls, and block devices."""

import struct
from collections.abc import Iterator
from random import Random

from msgspec import Struct

from kv_cache.core.seed import Seed
from kv_cache.workload.formats.lmcache import LEVEL, MAGIC, VERSION
from kv_cache.workload.samples.draws import below, heavy, one_of, seconds

# --- the benchmark's CSV ---

_TOKEN_BYTES = 131_072  # llama3.1-8b, 16 bits


def iotrace_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield accesses to objects that are written once and read by later turns; some are demoted to
    storage."""
    rng = seed.rng()
    yield "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"
    micros, known = 1_700_000_000_000_000, list[tuple[str, int]]()
    for row in range(rows):
        micros += int(heavy(rng, 9_000, 10, 4_000_000))
        now = seconds(micros)
        choice = rng.random()
        if not known or choice < 0.35:
            key = f"user_{below(rng, 50):04}_turn_{row}"
            known.append((key, int(heavy(rng, 400, 8, 8_000)) * _TOKEN_BYTES))
            yield f"{now},Write,{known[-1][1]},Tier-1,{key},Prefill"
        elif choice < 0.9:
            key, size = one_of(rng, known)
            yield f"{now},Read,{size},{one_of(rng, ('Tier-1', 'Tier-2'))},{key},Decode"
        else:
            key, size = one_of(rng, known)
            operation, tier = one_of(rng, (("Read", "Tier-1"), ("Write", "Tier-2")))
            yield f"{now},{operation},{size},{tier},{key},Evict"


# --- LMCache ---

_MANAGER = "lmcache.v1.distributed.storage_manager.StorageManager."
_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_LAYOUT = {
    "__t__": "MemoryLayoutDesc",
    "v": {"shapes": [[2, 32, 256, 1024]], "dtypes": ["torch.bfloat16"]},
}


def lmcache_bytes(seed: Seed, rows: int) -> bytes:
    """Return one server's calls for `rows` requests: look up the prompt's chunks, read what is
    there, reserve and write what is not."""
    return b"".join(len(f).to_bytes(4) + f for f in map(_packed, _frames(seed, rows)))


def _frames(seed: Seed, rows: int) -> Iterator[dict[str, object]]:
    rng = seed.rng()
    yield {
        "type": "header",
        "magic": MAGIC,
        "format_version": VERSION,
        "level": LEVEL,
        "trace_schema_version": 1,
        "t_mono_start": 1000.0,
        "t_wall_start": 1_750_000_000.0,
        "sm_config_json": "{}",
        "sm_config_digest": "",
    }
    micros, stored = 0, dict[bytes, int]()
    for _ in range(rows):
        micros += int(heavy(rng, 300_000, 1_000, 30_000_000))
        chunks = _prompt(rng, seed)
        have = next((n for n, chunk in enumerate(chunks) if chunk not in stored), len(chunks))
        for call, part in _calls(chunks, have):
            micros += 200 + below(rng, 5_000)
            yield _record(micros, call, part)
        stored |= dict.fromkeys(chunks, 1)


def _prompt(rng: Random, seed: Seed) -> list[bytes]:
    """Return the chunks of one of 12 conversations that grow, all behind one system prompt."""
    talk, length = below(rng, 12), 1 + int(heavy(rng, 3, 1, 8))
    names = [("system", 0), *((f"talk {talk}", n) for n in range(length))]
    return [seed.child(*name).bits(16) for name in names]


def _calls(chunks: list[bytes], have: int) -> Iterator[tuple[str, list[bytes]]]:
    yield "submit_prefetch_task", chunks
    if have:
        yield "read_prefetched_results.__enter__", chunks[:have]
        yield "read_prefetched_results.__exit__", chunks[:have]
        yield "finish_read_prefetched", chunks[:have]
    if chunks[have:]:
        yield "reserve_write", chunks[have:]
        yield "finish_write", chunks[have:]


def _record(micros: int, call: str, chunks: list[bytes]) -> dict[str, object]:
    keys = [
        {
            "__t__": "ObjectKey",
            "v": {
                "chunk_hash": chunk,
                "model_name": _MODEL,
                "kv_rank": 16_777_472,
                "object_group_id": 0,
            },
        }
        for chunk in chunks
    ]
    sized = call in ("submit_prefetch_task", "reserve_write")
    return {
        "type": "record",
        "t_mono": micros / 1_000_000,
        "t_wall": 1_750_000_000 + micros / 1_000_000,
        "qualname": _MANAGER + call,
        "args": {"keys": keys, "layout_desc": _LAYOUT} if sized else {"keys": keys},
    }


def _packed(value: object) -> bytes:
    """Return `value` as MessagePack, texts and numbers in few of its forms: the sample's bytes."""
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 0x80 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        head = (
            bytes([0xA0 | len(text)]) if len(text) < 32 else b"\xdb" + struct.pack(">I", len(text))
        )
        return head + text
    if isinstance(value, dict):
        pairs = b"".join(_packed(part) for pair in value.items() for part in pair)
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    assert isinstance(value, list), value
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(_packed, value))


# --- block devices ---


class _Io(Struct, frozen=True, kw_only=True):
    micros: int
    kind: str  # read, write, trim
    offset: int
    size: int


def _ios(rng: Random, rows: int) -> Iterator[_Io]:
    """Yield requests to a few hot extents and many cold ones, in bursts."""
    micros = 0
    for _ in range(rows):
        micros += int(heavy(rng, 250, 1, 400_000))
        place = int(heavy(rng, 40, 0, 100_000))
        size = one_of(rng, (4_096, 8_192, 16_384, 65_536, 131_072)) if place > 200 else 65_536
        share = rng.random()
        kind = "read" if share < 0.62 else "write" if share < 0.98 else "trim"
        yield _Io(micros=micros, kind=kind, offset=place * 131_072, size=size)


def msr_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield MSR Cambridge's CSV, which has no header."""
    rng = seed.rng()
    for io in _ios(rng, rows):
        filetime = 128_166_372_003_061_629 + io.micros * 10
        kind = "Read" if io.kind == "read" else "Write"
        yield (
            f"{filetime},web,{below(rng, 2)},{kind},{io.offset},{io.size},"
            f"{int(heavy(rng, 9_000, 300, 4_000_000))}"
        )


_RWBS = {"read": "R", "write": "WS", "trim": "D"}


def blkparse_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield what blkparse prints: each I/O in its stages, then the summary."""
    rng = seed.rng()
    yield "Input file nvme0n1.blktrace.0 added"
    sequence = 0
    for io in _ios(rng, rows):
        where = f"{io.offset // 512} + {io.size // 512}"
        for stage, (action, wait) in enumerate(
            (("Q", 0), ("G", 700), ("I", 1_500), ("D", 2_600), ("C", 90_000))
        ):
            sequence += 1
            nanos = io.micros * 1_000 + wait
            end = "[0]" if action == "C" else "[kv-cache]"
            yield (
                f"259,0  {below(rng, 4):3} {sequence:8} {nanos // 10**9:5}.{nanos % 10**9:09} "
                f"{4000 + stage // 4:5} {action:>2} {_RWBS[io.kind]:>3} {where} {end}"
            )
    yield "CPU0 (nvme0n1):"
    yield f" Reads Queued:    {rows:8}, {rows * 64:8}KiB\t Writes Queued:   {0:8}, {0:8}KiB"
    yield ""
    yield "Throughput (R/W): 1024KiB/s / 512KiB/s"
    yield f"Events (nvme0n1): {sequence} entries"
    yield "Skips: 0 forward (0 -   0.0%)"


_FILE = "/dev/nvme0n1"


def fio3_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield fio's iolog with times."""
    yield "fio version 3 iolog"
    yield f"0 {_FILE} add"
    yield f"12 {_FILE} open"
    last = 12
    for io in _ios(seed.rng(), rows):
        last = 12 + io.micros
        yield f"{last} {_FILE} {io.kind} {io.offset} {io.size}"
    yield f"{last + 40} {_FILE} close"


def fio2_lines(seed: Seed, rows: int) -> Iterator[str]:
    """Yield fio's iolog without times, with waits."""
    yield "fio version 2 iolog"
    yield f"{_FILE} add"
    yield f"{_FILE} open"
    before = 0
    for io in _ios(seed.rng(), rows):
        if io.micros - before > 5_000:
            yield f"{_FILE} wait {io.micros - before} 0"
        before = io.micros
        yield f"{_FILE} {io.kind} {io.offset} {io.size}"
    yield f"{_FILE} close"
