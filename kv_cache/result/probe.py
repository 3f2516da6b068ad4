"""What a profile of a device says beside its grid, typed; `config/profile` reads the grid."""

from msgspec import Struct

from kv_cache.config.profile import RefusedCell
from kv_cache.core.bounded import Count, Number


class ProbedDevice(Struct, frozen=True, kw_only=True):
    """The block device below the directory; without a name there is none of its own."""

    name: str | None = None
    model: str | None = None


class ProbedFilesystem(Struct, frozen=True, kw_only=True):
    """The file system of the directory."""

    type: str | None = None
    mount_point: str | None = None


class ProbedIo(Struct, frozen=True, kw_only=True):
    """How files were laid out and accessed."""

    engine: str | None = None
    layout: str | None = None
    fsync: str | None = None
    block_bytes: Count | None = None


class ProbeRun(Struct, frozen=True, kw_only=True):
    """How much was measured."""

    data_bytes: Count | None = None
    wall_seconds: Number | None = None
    verified_objects: Count | None = None
    failed_operations: Count | None = None


class ProbeFacts(Struct, frozen=True, kw_only=True):
    """What is shown of a profile beside its grid. Profiles may be written by hand, with the grid
    alone."""

    program_version: str | None = None
    measured_utc: str | None = None
    cache_dir: str | None = None
    kernel: str | None = None
    device: ProbedDevice = ProbedDevice()
    filesystem: ProbedFilesystem = ProbedFilesystem()
    io: ProbedIo = ProbedIo()
    probe: ProbeRun = ProbeRun()
    notes: list[str] = []
    refused: list[RefusedCell] = []
