"""Our own sections of the configuration: every option with its default, unit, bounds and flag.

Sizes are GiB, times seconds, milliseconds or microseconds as the names say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_cache.config.personalities import PERSONALITIES
from kv_cache.config.schema import opt
from kv_cache.core.kinds import RunMode
from kv_cache.core.model import DTYPE_BITS
from kv_cache.core.units import gib_to_bytes, whole_pages
from kv_cache.extensions import Catalogue, makes
from kv_cache.policy.eviction import EVICTION
from kv_cache.tiers.file_options import FSYNC, LAYOUTS

REFERENCE_GPU_GIB = 16.0
REFERENCE_CPU_GIB = 32.0
LAYER, BLOCK, TURN = "layer", "block", "turn"

_ENGINES = Catalogue(
    "kv_cache.engines",
    dict.fromkeys(("auto", "direct", "mmap", "buffered", "uring")),
    makes("region"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What to run, for how many users and for how long."""

    model: str = opt(
        "llama3.1-8b",
        "Model whose KV cache is moved: a built-in name, a key of model_configs, or the path of a "
        "Hugging Face config.json",
        flag="--model", metavar="NAME",
    )  # fmt: skip
    model_mix: Mapping[str, float] = opt(
        {}, "Mix of several models with their weights; every conversation uses one of them, and "
            "models share no blocks", above=0, flag="--model-mix",
        metavar="NAME=WEIGHT,...",
    )  # fmt: skip
    kv_dtype: str | None = opt(
        None, "Element type of the KV cache; if not given, the model's own",
        choices=tuple(DTYPE_BITS), flag="--kv-dtype",
    )  # fmt: skip
    kv_bytes_per_token: int | None = opt(
        None, "Bytes of KV state per token of the whole model, instead of what its geometry "
              "gives: for a model whose config.json is not understood",
        unit="bytes", low=1, high=10**9,
        flag="--kv-bytes-per-token", metavar="N",
    )  # fmt: skip
    mode: str = opt(
        "standard",
        "Stages of a request that are run: all, only those before generation, or only generation "
        "from a populated cache",
        choices=tuple(mode.value for mode in RunMode),
    )
    num_users: int = opt(
        100, "Number of concurrent synthetic users", low=1, high=100_000, flag="--num-users"
    )
    duration_s: float | None = opt(
        None,
        "Length of the measured window; if not given, 60 s, or no limit where max_requests or "
        "replay_cycles already bounds the run; with until the longest, 600 s if not given",
        unit="s", above=0, high=86_400, flag="--duration",
    )  # fmt: skip
    until: str | None = opt(
        None,
        "End the window once half the width of a figure's 95 % interval is at most this share of "
        "it: of the headline (5%), or of a percentile (storage read:p95:5%, "
        "interactive:ttft:p95:10%), which takes 77 windows of monitor.tick_s at least. duration_s "
        "bounds it, or 600 s",
        flag="--until", metavar="[FIGURE:]SHARE%",
    )  # fmt: skip
    warmup_s: float = opt(
        0.0, "Warm-up: load before the measured window, not counted", unit="s", low=0, high=86_400,
        flag="--warmup",
    )  # fmt: skip
    drain_s: float = opt(
        10.0, "How long requests in flight may take to finish after the window; reported "
              "separately", unit="s",
        low=0, high=86_400, flag="--drain",
    )  # fmt: skip
    answer_s: float = opt(
        30.0, "How long a call on storage may hang if nothing else ends the wait for it: "
        "after the drain, and before and after a window. Then the run ends without it (exit code "
        "3)", unit="s", low=0.1, high=86_400,
    )  # fmt: skip
    seed: int | None = opt(
        None, "Random seed of the whole run; if not given, a fresh one, which the result records",
        low=0, high=2**32 - 1, flag="--seed",
    )  # fmt: skip
    max_requests: int = opt(
        0, "Stop after exactly this many requests; 0 = no limit", low=0, high=10**12,
        flag="--max-requests",
    )  # fmt: skip
    generation_mode: str = opt(
        "realistic",
        "Generation time per token, see generation_timing (none = storage only)",
        choices=("none", "fast", "realistic"), flag="--generation-mode",
    )  # fmt: skip
    performance_profile: str = opt(
        "latency", "What overall_passed judges: latency percentiles, or bandwidth only",
        choices=("latency", "throughput"), flag="--performance-profile",
    )  # fmt: skip
    slo_ms: float = opt(
        0.0, "Response-time SLO: the result reports the share of requests that met it; 0 = none",
        unit="ms", low=0, high=86_400_000, flag="--slo-ms",
    )  # fmt: skip
    trials: int = opt(
        1, "Repeat the whole run this many times, each with a seed derived from the seed", low=1,
        high=1000, flag="--trials",
    )  # fmt: skip
    trial_cooldown_s: float = opt(
        0.0, "Pause between trials", unit="s", low=0, high=86_400, flag="--trial-cooldown",
        read_when="run.trials!=1",
    )  # fmt: skip
    clients: int = opt(
        1, "Processes that run together on this machine: each a whole run with its own seed and "
           "directories, started at the same instant, with results added up", low=1, high=256,
        flag="--clients", metavar="N",
    )  # fmt: skip
    mpi: str = opt(
        "auto",
        "Whether the processes of an MPI job run together, like --clients, or independently; "
        "auto = together if mpi4py is installed",
        choices=("auto", "together", "apart"), flag="--mpi",
    )  # fmt: skip
    clients_timeout_s: float = opt(
        600.0,
        "How long ranks wait for the slowest one: to connect and be ready after the first, and "
        "for its result after the first result",
        unit="s", above=0, high=86_400, flag="--clients-timeout",
    )  # fmt: skip
    clients_port: int = opt(
        0, "TCP port on which rank 0's machine listens for the other ranks; 0 = any free port",
        low=0, high=65_535, flag="--clients-port",
    )  # fmt: skip
    virtual_time: bool = opt(
        False,
        "Simulate in virtual time with the models of section sim; no I/O at all",
        flag="--virtual-time",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersConfig:
    """The places for copies: GPU memory, CPU memory and files on NVMe."""

    gpu_mem_gib: float | None = opt(
        None, "GPU memory for the cache on each card; 0 = no GPU tier; if not given, 16, or no GPU "
        "tier where that would be emulated in RAM that is not there", unit="GiB", low=0,
        high=65_536, flag="--gpu-mem-gb",
    )  # fmt: skip
    num_gpus: int = opt(
        1, "Number of GPUs; their memory adds up", low=1, high=65_536, flag="--num-gpus"
    )
    tensor_parallel: int = opt(
        1, "Ranks that share a model: each stores 1/N of an object (at most num_gpus)", low=1,
        high=65_536, flag="--tensor-parallel",
    )  # fmt: skip
    ranks: str = opt(
        "one", "Whose objects are stored: one rank's share of each, as the reference; or those of "
        "all ranks, as many objects as ranks (an MLA latent is stored once)",
        choices=("one", "all"), flag="--ranks", read_when="tiers.tensor_parallel!=1",
    )  # fmt: skip
    gpu: str = opt(
        "auto", "Where the GPU tier is: on a CUDA device, or emulated in CPU memory",
        choices=("auto", "cuda", "emulated"), flag="--gpu",
    )  # fmt: skip
    cpu_mem_gib: float | None = opt(
        None, "CPU memory for the cache; 0 = no CPU tier; if not given, 32, or where that is not "
        "there the largest of 16, 8, 4, 2, 1, 0.5 and 0.25 that half of the RAM holds",
        unit="GiB", low=0, high=131_072, flag="--cpu-mem-gb",
    )  # fmt: skip
    storage_capacity_gib: float = opt(
        0.0, "Storage capacity of the cache; 0 = 95 % of the free space (no limit in virtual "
             "time)", unit="GiB", low=0, high=2**30, flag="--storage-capacity-gb",
    )  # fmt: skip
    free_share: float = opt(
        0.95, "Share of the free space that is taken where storage_capacity_gib is 0; ranks that "
        "write to the same file system divide it among themselves", above=0, high=1,
    )  # fmt: skip
    cache_dir: tuple[str, ...] | None = opt(
        None, "Directory on the device to be measured, or s3://bucket/prefix of an object store; "
        "if not given, a temporary directory; several (one on each drive) share the objects by key",
        flag="--cache-dir", metavar="DIR",
    )  # fmt: skip
    erase_device: str | None = opt(
        None, "Name the block device of cache_dir once more: the run writes to it without a file "
              "system, and all that is on it is lost; needs layout arena. Refused where it is "
              "mounted or in use, or has partitions or a file system",
        flag="--erase-device", metavar="DEVICE",
    )  # fmt: skip
    keep_cache: bool = opt(False, "Leave the cache files behind after the run", flag="--keep-cache")
    reclaim: str | None = opt(
        None, "Remove the cache files that runs of this host, known to be dead, left in the "
              "cache directory; without it a run is refused if files of another host are there, "
              "as they may be in use",
        flag="--reclaim", metavar="HOST",
    )  # fmt: skip
    eviction: str = opt(
        "lru",
        "Eviction policy: which copy leaves a full tier first",
        choices=EVICTION,
        flag="--eviction",
    )

    @property
    def gpu_gib(self) -> float:
        """GPU memory of each card; the reference's where none is given."""
        return REFERENCE_GPU_GIB if self.gpu_mem_gib is None else self.gpu_mem_gib

    @property
    def cpu_gib(self) -> float:
        """CPU memory; the reference's where none is given."""
        return REFERENCE_CPU_GIB if self.cpu_mem_gib is None else self.cpu_mem_gib

    @property
    def storage_bytes(self) -> int | None:
        """Capacity of the storage tier; None: `share_of_free` of what is free where it lies."""
        return gib_to_bytes(self.storage_capacity_gib) or None

    def share_of_free(self, free_bytes: int) -> int:
        """Return what a storage tier without a given capacity takes of these free bytes."""
        return whole_pages(int(free_bytes * self.free_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class IoConfig:
    """How bytes reach the storage tier."""

    personality: str | None = opt(
        None, "Do I/O like a real connector: presets layout, object size, threads, fsync and "
              "dropping; options given explicitly win", choices=tuple(PERSONALITIES),
        flag="--personality",
    )  # fmt: skip
    engine: str = opt(
        "auto", "How files are read and written; auto = direct I/O if the file system supports it",
        choices=_ENGINES, flag="--io-engine",
    )  # fmt: skip
    write_engine: str | None = opt(
        None, "How files are written, if not as they are read",
        choices=_ENGINES,
    )  # fmt: skip
    layout: str = opt(
        "file", "How objects lie in files: one file each (file); extents of a few large files "
                "(arena); appended to files of 256 MiB (bucket)", choices=LAYOUTS, flag="--layout",
    )  # fmt: skip
    rename: bool = opt(
        True, "With layout file, write under a temporary name and rename what is complete",
        read_when=("io.layout=file", "!on_objects"),
    )  # fmt: skip
    verify: str = opt(
        "stamps", "What to verify on each read: the stamp of every page, all bytes, or nothing",
        choices=("stamps", "full", "off"), flag="--verify",
    )  # fmt: skip
    threads: int = opt(
        16, "I/O threads per request, which work on its objects", low=1, high=256,
        flag="--io-threads",
    )  # fmt: skip
    buffer_mib: int = opt(
        16, "Size of one I/O buffer", unit="MiB", choices=(1, 2, 4, 8, 16, 32, 64, 128, 256)
    )
    load_buffers: int = opt(16, "Buffers for reads", low=2, high=1024)
    store_buffers: int = opt(16, "Buffers for writes", low=2, high=1024)
    fsync: str | None = opt(
        None, "When to fsync: never, after each object, or after every 8 objects; if not given, "
        "by semantics.preset", choices=FSYNC, flag="--fsync", read_when="!on_objects",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """The server behind a cache directory s3://bucket/prefix. Keys are not options: they come from
    the environment or the shared credentials file."""

    endpoint: str | None = opt(
        None, "Base URL of the S3 server, as https://host or http://host:port; if not given, "
              "AWS_ENDPOINT_URL or the profile's, else AWS", flag="--s3-endpoint", metavar="URL",
    )  # fmt: skip
    region: str | None = opt(
        None, "Region of the bucket; if not given, AWS_REGION or the profile's, else us-east-1",
        flag="--s3-region", metavar="NAME",
    )  # fmt: skip
    part_mib: int = opt(
        16, "Objects larger than this are uploaded in parts of this size", unit="MiB", low=5,
        high=5120, flag="--s3-part-mib",
    )  # fmt: skip
    part_concurrency: int = opt(
        4, "Parts of one object that are uploaded at the same time", low=1, high=64,
        flag="--s3-part-concurrency",
    )  # fmt: skip
    timeout_s: float = opt(
        30.0, "Time limit of one request; no retry begins once an operation has taken this long",
        unit="s", low=0.1, high=3600,
    )  # fmt: skip
    retries: int = opt(
        3, "How often a request is tried again that timed out, or that the server could not serve",
        low=0, high=20,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticsConfig:
    """What a request does; what is not set is as in the preset."""

    preset: str = opt(
        "mlperf",
        "mlperf = as the MLPerf reference: one object a turn, each looked up by itself, re-read "
        "during generation, written with fsync; serving = as an inference engine: 256-token "
        "blocks, longest prefix, promotion on a hit, write-behind",
        choices=("mlperf", "serving"), flag="--semantics",
    )  # fmt: skip
    block_tokens: int | None = opt(
        None, "Tokens in a block; 0 = one object a turn; if not given, the trace's own blocks "
        "where it has them, else 0 (mlperf) or 256 (serving)", unit="tokens", low=0, high=1_048_576,
        flag="--block-tokens",
    )  # fmt: skip
    object: str | None = opt(
        None, "What one object holds: a layer of a block, as connectors that move layer by layer "
        "have it (of a turn, where there are no blocks), a block, or a whole turn; if not given, "
        "what block_tokens says",
        choices=(LAYER, BLOCK, TURN), flag="--object",
    )  # fmt: skip
    reuse: str | None = opt(
        None, "What is reused: each block of earlier turns by itself, or the longest prefix",
        choices=("each", "prefix"),
    )  # fmt: skip
    decode_rereads: bool | None = opt(None, "Read the whole context again during generation")
    promote: bool | None = opt(
        None, "Promote blocks that are hit into the fastest tier", flag="--promote"
    )
    write_behind: bool | None = opt(
        None,
        "Finish requests before their new blocks are stored; stores continue in the background",
        flag="--write-behind",
    )
    write_behind_queue: int = opt(
        64, "Stores that may be in the write-behind queue: `batch_blocks` each or, if that is not "
        "given, 8 blocks, and of blocks below 2 MiB as many as 16 MiB, at most 64",
        low=1, high=1_000_000,
    )  # fmt: skip
    write_behind_full: str = opt(
        "wait", "When that queue is full: wait for room, or drop the store and count it",
        choices=("wait", "drop"),
    )  # fmt: skip
    gpu_in_place: bool | None = opt(None, "Use GPU hits in place, without a copy")
    prefill_only_from_tokens: int | None = opt(
        None, "Requests of at least this many tokens end after prefill; 0 = never; if not given, "
        "10000 for mlperf with synthetic users, else never", unit="tokens", low=0, high=10**9,
    )  # fmt: skip
    prefill_ms_per_token: float = opt(
        0.0, "Time to compute the KV state of a new token", unit="ms", low=0, high=60_000
    )
    batch_blocks: int | None = opt(
        None, "Blocks that one request stores or promotes at once; if not given, 8, and of blocks "
        "below 8 MiB as many as 64 MiB, at most 64", low=1, high=4096,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """In what order, and how many at once."""

    queue_limit: int = opt(
        10_000, "Requests that may wait; more are rejected and counted", low=1, high=10_000_000
    )
    ageing_s: float = opt(
        10.0, "Waiting time that is worth one step of priority; 0 = first come, first served",
        unit="s", low=0, high=86_400,
    )  # fmt: skip
    max_concurrent_allocs: int = opt(
        0, "Most requests that may store new blocks at the same time; 0 = no limit",
        low=0, high=100_000,
        flag="--max-concurrent-allocs",
    )  # fmt: skip
    max_inflight_gib: float = opt(
        0.0, "Bytes of new blocks that may be in flight; 0 = no limit", unit="GiB", low=0,
        high=131_072,
    )  # fmt: skip
    max_workers: int = opt(
        500, "Requests that are served at the same time, at most", low=1, high=10_000
    )
    workers: int | None = opt(
        None, "Requests that are served at the same time, however many users there are; if not "
        "given, one for each user, up to max_workers", low=1, high=10_000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """What is observed during the run."""

    tick_s: float = opt(
        1.0, "Length of a window; percentiles, rates and the machine's counters are reported by "
        "window", unit="s", low=0.05, high=3600,
    )  # fmt: skip
    latency_tracing: bool = opt(
        False, "Trace the block layer with bpftrace: time in the kernel and in the device",
        flag="--enable-latency-tracing", read_when="!run.virtual_time",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PreconditionConfig:
    """What is done to the device before anything is measured."""

    enabled: bool = opt(
        False, "Fill the device twice, run the workload until throughput is steady (SNIA PTS), "
        "then measure", flag="--precondition", read_when="!run.virtual_time",
    )  # fmt: skip
    size_gib: float = opt(
        0.0, "Total bytes that the fill writes; 0 = twice storage_capacity_gib", unit="GiB", low=0,
        high=2**30, flag="--precondition-size-gb", read_when="precondition.enabled",
    )  # fmt: skip
    threads: int = opt(
        0, "Threads of the fill; 0 = one per core", low=0, high=1024, flag="--precondition-threads",
        read_when="precondition.enabled",
    )  # fmt: skip
    round_s: float = opt(
        60.0, "Length of one preconditioning round of the workload", unit="s", low=0.1, high=86_400,
        flag="--round", read_when="precondition.enabled",
    )  # fmt: skip
    max_rounds: int = opt(
        25, "Give up after this many rounds and report the device as not steady; 0 = fill only",
        low=0, high=1000, flag="--max-rounds", read_when="precondition.enabled",
    )  # fmt: skip


FAIL_ON = ("invalid", "suspect", "slo")
"""What a result is not to be, each with all before it: the last is a missed SLO, or a capacity of
0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Where results go."""

    output: str | None = opt(
        None, "Result JSON; if not given, results/benchmark_results_<date>_<time>.json, or in "
        "results_dir alone", flag="--output", metavar="PATH",
    )  # fmt: skip
    results_dir: str | None = opt(
        None,
        "Directory for the complete record of each run: result, configuration, environment, report",
        flag="--results-dir",
        metavar="DIR",
    )
    label: str | None = opt(
        None, "Short name of the run, shown in its summary and beside the title of its page",
        flag="--label", metavar="TEXT",
    )  # fmt: skip
    note: str | None = opt(
        None, "Remark that the result keeps and its summary and page show", flag="--note",
        metavar="TEXT",
    )  # fmt: skip
    records: bool = opt(
        False, "Write every request and operation to the results directory", flag="--records",
        read_when="output.results_dir",
    )  # fmt: skip
    progress: bool = opt(True, "Show progress on stderr", flag="--no-progress")
    latency_dump: str | None = opt(
        None,
        "Write the latency of each completed request as JSON lines",
        flag="--latency-dump",
        metavar="PATH",
    )
    record: str | None = opt(
        None, "Record the requests as a trace that can be replayed: JSON lines, compressed if "
              "the name ends in .gz or .zst", flag="--record", metavar="PATH",
    )  # fmt: skip
    io_trace_log: str | None = opt(
        None, "Write every tier operation as CSV without doing any I/O, compressed if the name "
              "ends in .gz or .zst; implies --virtual-time, and the result has no performance "
              "figures",
        flag="--io-trace-log", metavar="PATH",
    )  # fmt: skip
    validation_trace: str | None = opt(
        None, "Compare the run with records of a real system: a JSON list with one object per "
              "request", flag="--validation-trace", metavar="PATH",
    )  # fmt: skip
    xlsx_output: str | None = opt(
        None, "Write the summary as a spreadsheet with the reference's sheets, or as CSV if the "
              "name does not end in .xlsx", flag="--xlsx-output", metavar="PATH",
    )  # fmt: skip
    hdr_log: str | None = opt(
        None, "Write the latencies of each window as an HdrHistogram log, compressed if the name "
        "ends in .gz or .zst", flag="--hdr-log", metavar="PATH", read_when="!output.io_trace_log",
    )  # fmt: skip
    metrics_port: int | None = opt(
        None, "Serve Prometheus metrics on this port during the run; 0 = any free port, which is "
        "logged", low=0, high=65_535, flag="--metrics-port", read_when="!run.virtual_time",
    )  # fmt: skip
    metrics_host: str = opt(
        "127.0.0.1", "Address to serve metrics on; 0.0.0.0 = all interfaces, open to everyone "
        "who can reach them", flag="--metrics-host", metavar="ADDRESS",
        read_when="output.metrics_port",
    )  # fmt: skip
    json: bool = opt(False, "Print the summary as one JSON document instead of text", flag="--json")
    fail_on: str | None = opt(
        None, "Exit with 4 where the verdict is invalid; or suspect too; or where an SLO was "
        "missed too, or the capacity is 0", choices=FAIL_ON, flag="--fail-on",
    )  # fmt: skip
    fio_export: str | None = opt(
        None, "Write a fio job file that does the same storage I/O", flag="--fio-export",
        metavar="PATH", read_when="!run.virtual_time",
    )  # fmt: skip
    certify: bool = opt(
        False, "After the run, measure the client's own limit: the same workload on storage that "
        "takes no time", flag="--certify", read_when="!run.virtual_time",
    )  # fmt: skip


FILES_BESIDE = (
    "latency_dump",
    "fio_export",
    "record",
    "io_trace_log",
    "hdr_log",
    "xlsx_output",
)
"""Options of the section output that name a file which a run writes beside its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTier:
    """An assumed tier: a fixed time per operation, then a bandwidth that its servers share."""

    read_latency_us: float = opt(1.0, "Assumed time per read", unit="us", low=0, high=1e9)
    write_latency_us: float = opt(1.0, "Assumed time per write", unit="us", low=0, high=1e9)
    read_gbytes_per_s: float = opt(
        1000.0, "Assumed read bandwidth", unit="GB/s, 10^9 bytes", above=0, high=1e9
    )
    write_gbytes_per_s: float = opt(
        1000.0, "Assumed write bandwidth", unit="GB/s, 10^9 bytes", above=0, high=1e9
    )
    servers: int = opt(1, "Operations that the tier serves at the same time", low=1, high=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """What virtual time assumes about each tier: assumptions, unless a profile was measured."""

    profile: str | None = opt(
        None, "Measured device profile to use instead of the assumed models: a file written by "
        "probe or calibrate", flag="--profile", metavar="PATH", read_when="run.virtual_time",
    )  # fmt: skip
    extrapolate: bool = opt(
        False, "Extrapolate beyond the measured sizes; affected numbers are flagged",
        flag="--extrapolate",
    )  # fmt: skip
    predict: str | None = opt(
        None, "Predict a real run beforehand with such a profile; the result then has "
              "prediction, measurement and error", flag="--predict", metavar="PATH",
        read_when="!run.virtual_time",
    )  # fmt: skip
    gpu: SimTier = field(default_factory=SimTier)
    cpu: SimTier = field(
        default_factory=lambda: SimTier(read_gbytes_per_s=20.0, write_gbytes_per_s=20.0, servers=2)
    )
    nvme: SimTier = field(
        default_factory=lambda: SimTier(
            read_latency_us=80.0,
            write_latency_us=30.0,
            read_gbytes_per_s=6.0,
            write_gbytes_per_s=4.0,
        )
    )
