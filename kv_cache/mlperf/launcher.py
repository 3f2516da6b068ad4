"""What MLPerf's launcher, mlpstorage, recorded of a sequence: the arguments of its call."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from kv_cache.config.mlperf import MLPERF_OPTIONS, SEED, TRIALS
from kv_cache.core.errors import UsageError
from kv_cache.files.reading import result_bytes
from kv_cache.mlperf.layout import DIVISIONS, LAUNCHERS_METADATA
from kv_cache.mlperf.manifest import MOST_RANKS, MOST_TRIALS, PlanRecord
from kv_cache.mlperf.plan import CLOSED, OPEN

_Ranks = Annotated[int, Meta(ge=1, le=MOST_RANKS)]


class _Arguments(Struct, frozen=True, kw_only=True):
    """Of `mlpstorage MODE kvcache run`; None is the launcher's default."""

    mode: str | None = None
    closed: bool | None = None  # of launchers before v3.0, in place of the mode
    trials: Annotated[int, Meta(ge=1, le=MOST_TRIALS)] | None = None
    seed: int | None = None
    inter_option_delay: float | None = None
    config: str | None = None
    hosts: list[str] | None = None
    npernode: _Ranks | None = None
    num_processes: _Ranks | None = None
    kvcache_bin_path: str | None = None

    @property
    def division(self) -> str | None:
        if self.mode is None and self.closed is not None:
            return CLOSED if self.closed else OPEN
        return self.mode if self.mode in DIVISIONS else None

    @property
    def ranks(self) -> int | None:
        if self.num_processes is not None or self.npernode is None:
            return self.num_processes
        return min(MOST_RANKS, self.npernode * max(1, len(self.hosts or ())))


class _Metadata(Struct, frozen=True, kw_only=True):
    benchmark_type: Literal["kv_cache"]
    args: _Arguments
    executed_command: str | None = None


class LaunchRecord(Struct, frozen=True, kw_only=True):
    """A sequence as its launcher recorded it."""

    name: str  # of the file
    division: str | None
    trials: int
    ranks: int | None
    seed: int
    option_delay_s: float | None
    config: str | None
    program: str | None  # the kv-cache.py that was named in place of the launcher's own
    command: tuple[str, ...]  # the last one that it ran

    def plan(self, ranks: int) -> PlanRecord:
        """Return the plan, of so many ranks."""
        return PlanRecord(
            options=sorted(MLPERF_OPTIONS), trials=self.trials, ranks=ranks, seed=self.seed,
            option_delay_s=self.option_delay_s, config=self.config, flags=[], launch=["mpirun"],
            command=list(self.command),
        )  # fmt: skip


def metadata_files(run: Path) -> list[Path]:
    """Return the launcher's records of a sequence."""
    return sorted(run.glob(LAUNCHERS_METADATA))


def read_launch(run: Path) -> LaunchRecord | None:
    """Return what the launcher recorded; None where nothing that can be read is a record of this
    benchmark."""
    for path in metadata_files(run):
        try:
            metadata = msgspec.json.decode(result_bytes(path), type=_Metadata)
        except (UsageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        arguments = metadata.args
        return LaunchRecord(
            name=path.name,
            division=arguments.division,
            trials=TRIALS if arguments.trials is None else arguments.trials,
            ranks=arguments.ranks,
            seed=SEED if arguments.seed is None else arguments.seed,
            option_delay_s=arguments.inter_option_delay,
            config=arguments.config,
            program=arguments.kvcache_bin_path,
            command=tuple((metadata.executed_command or "").split()),
        )
    return None
