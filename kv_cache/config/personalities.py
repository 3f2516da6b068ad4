"""How real connectors do KV-cache I/O, as options: `--personality NAME` puts these under whatever
is given explicitly. `docs/reference/personalities.md` says what each imitates and what it cannot.

Each is the connector as it comes, with no setting changed. What an engine drops when its host
memory is full of stores that wait is told as a queue: so many groups of `semantics.batch_blocks`
(8) objects as that memory holds of a Llama-3.1-8B in bf16 (128 KiB a token).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Personality:
    """`options` by dotted path; `source` names the code that does it so."""

    options: Mapping[str, Any]
    source: str


PERSONALITIES: Mapping[str, Personality] = {
    "lmcache": Personality(
        options={
            "semantics.preset": "serving",
            "semantics.block_tokens": 256,
            "semantics.write_behind_full": "drop",
            "semantics.write_behind_queue": 20,  # 5 GiB of host memory
            "schedule.max_concurrent_allocs": 4,  # the pool that stores, a chunk a job
            "io.layout": "file",
            "io.engine": "buffered",
            "io.rename": False,
            "io.fsync": "never",
            "io.threads": 1,  # a request's chunks are loaded one after the other
            "io.buffer_mib": 32,  # a chunk is one system call
        },
        source="LMCache/LMCache: lmcache/v1/storage_backend/local_disk_backend.py",
    ),
    "vllm-fs": Personality(
        options={
            "semantics.preset": "serving",
            "semantics.block_tokens": 16,
            "semantics.write_behind_full": "drop",
            "semantics.write_behind_queue": 640,  # 10 GiB of host memory, as in its guide
            "io.layout": "file",
            "io.engine": "auto",  # it probes for O_DIRECT too, and else goes without
            "io.rename": True,
            "io.fsync": "never",
            "io.threads": 16,
        },
        source="vllm-project/vllm: vllm/v1/kv_offload/tiering/fs/{manager,io,thread_pool}.py",
    ),
    "hicache": Personality(
        options={
            "semantics.preset": "serving",
            "semantics.block_tokens": 64,
            "semantics.write_behind_full": "drop",
            "semantics.write_behind_queue": 512,  # host memory of twice a GPU tier of 16 GiB
            "schedule.max_concurrent_allocs": 1,  # one backup thread
            "io.layout": "file",
            "io.engine": "buffered",
            "io.rename": True,
            "io.fsync": "never",
            "io.threads": 1,  # a request's pages are loaded one after the other
        },
        source="sgl-project/sglang: python/sglang/srt/mem_cache/hicache_storage.py, HiCacheFile",
    ),
    "mooncake": Personality(
        options={
            "semantics.preset": "serving",
            "semantics.block_tokens": 256,
            "semantics.promote": False,
            "semantics.write_behind_full": "drop",
            "semantics.write_behind_queue": 6250,  # 50,000 objects may wait to be offloaded
            "schedule.max_concurrent_allocs": 1,  # one offload thread
            "tiers.eviction": "fifo",
            "io.layout": "bucket",
            "io.engine": "buffered",
            "io.fsync": "never",
            "io.threads": 1,
            "io.buffer_mib": 32,  # an object is one system call
        },
        source="kvcache-ai/Mooncake: mooncake-store/src/storage_backend.cpp, BucketStorageBackend",
    ),
    "reference": Personality(
        options={
            "semantics.preset": "mlperf",
            "semantics.block_tokens": 0,
            "io.layout": "file",
            "io.engine": "buffered",
            "io.rename": False,
            "io.fsync": "object",
            "io.threads": 1,  # a request's objects are read one after the other
        },
        source="mlcommons/storage: kv_cache_benchmark/kv_cache/backends.py, NVMeBackend",
    ),
}
