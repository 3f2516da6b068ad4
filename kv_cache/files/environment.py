"""The machine that a run was measured on, as plain JSON values.

Reads files only: no subprocess, of the environment variables only those that change what is
measured, and no network, but that an object store's server is asked what it calls itself. Nothing
here may break a run: what cannot be read is null and is listed under "unreadable" with its reason.
"""

import fnmatch
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil

import kv_cache
from kv_cache.bench.linux import usable_cpus
from kv_cache.bench.path_checks import (
    device_bytes,
    device_number,
    is_block_device,
    nearest_existing,
)
from kv_cache.bench.probes.stack import stack_of
from kv_cache.bench.probes.throttles import Reads, as_limit, cpu_limit, io_limits
from kv_cache.bench.procfs import cgroup_directories
from kv_cache.core.errors import PlaceError, os_reason
from kv_cache.core.mounts import RAW_DEVICE, mount_of, parse_mounts
from kv_cache.tiers.objects.place import ObjectPlace

PACKAGES = ("numpy", "psutil", "PyYAML", "tqdm", "orjson", "msgspec")
OPTIONAL_PACKAGES = (
    *("torch", "cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "zstandard", "obstore"),
)
VARIABLES = ("LD_PRELOAD", "*_NUM_THREADS")
DEVICE_KEYS = (
    *("name", "partition", "major_minor", "model", "firmware", "rotational", "scheduler"),
    *("nr_requests", "max_sectors_kb", "logical_block_bytes", "write_cache", "size_bytes"),
    *("backing_file", "built_on", "reason"),
)

FILESYSTEM_KEYS = (
    *("type", "mount_point", "source", "mount_options", "total_bytes", "free_bytes"),
)

T = TypeVar("T")

_ASK_SERVER_S = 2.0
_LONGEST_NAME = 120
_SECTOR_BYTES = 512  # the unit of sysfs `size`, whatever the device's own
_NO_LIMIT_V1 = 1 << 62  # cgroup v1 writes "no limit" as the largest page-aligned number


class Reader:
    """Reads small files and remembers which could not be read."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.unreadable: list[str] = []

    def note(self, key: str, why: object) -> None:
        self.unreadable.append(f"{key}: {why}")

    def text(self, key: str, path: str, *, optional: bool = False) -> str | None:
        """Return the stripped content. `optional`: the file may be absent without being listed as
        unreadable."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="surrogateescape").strip()
        except OSError as err:
            if not (optional and isinstance(err, FileNotFoundError)):
                self.note(key, f"{path} ({os_reason(err)})")
            return None

    def number(self, key: str, path: str) -> int | None:
        text = self.text(key, path)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d+", text):
            self.note(key, f"{path} ({text!r} is not a number)")
            return None
        return int(text)


def captured(*places: Path | ObjectPlace) -> dict[str, Any]:
    """Describe the machine, the program and the storage behind the places, with the stack below
    each; `filesystem` and `device` are the first place's, `drives` has all."""
    reader = Reader()
    drives = [_drive(reader, place) for place in places]
    facts: dict[str, Any] = {
        "hostname": platform.node(),
        "program": _program(reader),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "packages": _packages(reader),
        "os": _os(reader),
        "cpu": _cpu(reader),
        "memory": _memory(reader),
        "filesystem": drives[0]["filesystem"],
        "device": drives[0]["device"],
        "drives": drives,
        "cgroup": cgroup_limits(reader),
        "limits": _limits(),
        "env": _variables(),
    }
    return facts | {"unreadable": reader.unreadable}


def _drive(reader: Reader, place: Path | ObjectPlace) -> dict[str, Any]:
    if isinstance(place, ObjectPlace):
        return _bucket(reader, place)
    stack = stack_of([place])
    return {
        "stack": stack.to_json(),
        "disks": [foot_disk(reader, foot.name) for foot in stack.feet],
        "cache_dir": str(place),
        "filesystem": filesystem(reader, place),
        "device": _device_behind(reader, place),
    }


def _bucket(reader: Reader, place: ObjectPlace) -> dict[str, Any]:
    """Describe a bucket by the keys of a drive and its own. Credentials are not known here."""
    server = urlsplit(place.url)
    return {
        "cache_dir": str(place),
        "filesystem": dict.fromkeys(FILESYSTEM_KEYS) | {"type": "s3", "source": server.netloc},
        "device": dict.fromkeys(DEVICE_KEYS) | {"reason": "an object store, over the network"},
        "object_store": {
            "endpoint": server.netloc,
            "tls": place.secure,
            "bucket": place.bucket,
            "prefix": place.prefix,
            "region": place.region,
            "server": _server_name(reader, place),
        },
    }


def _server_name(reader: Reader, place: ObjectPlace) -> str | None:
    """Return the server's name in its answer to a request without a signature."""
    import http.client  # it brings TLS, which few runs need

    server = urlsplit(place.url)
    kind = http.client.HTTPSConnection if place.secure else http.client.HTTPConnection
    connection = kind(server.hostname or "", server.port, timeout=_ASK_SERVER_S)
    try:
        connection.request("HEAD", "/")
        name = connection.getresponse().getheader("Server")
    except (OSError, http.client.HTTPException) as err:
        reader.note("object_store.server", type(err).__name__)
        return None
    finally:
        connection.close()
    return None if name is None else name[:_LONGEST_NAME]


def _program(reader: Reader) -> dict[str, Any]:
    package = Path(kv_cache.__file__).resolve().parent
    return {
        "name": "kv-cache",
        "version": kv_cache.__version__,
        "git_commit": git_commit(reader, package.parent),
    }


def git_commit(reader: Reader, root: Path) -> str | None:
    """Return the commit checked out at `root`; None when `root` is not the top of a checkout."""
    try:
        git_dir = _git_dir(root)
        if git_dir is None:
            return None
        head = (git_dir / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        return _git_ref(git_dir, head.removeprefix("ref: "))
    except (OSError, ValueError) as err:
        reader.note("program.git_commit", err)
        return None


def _git_dir(root: Path) -> Path | None:
    """Return `.git`, or the directory that the file of that name points to in a linked work
    tree."""
    path = root / ".git"
    if path.is_dir():
        return path
    if not path.is_file():
        return None
    return root / path.read_text().strip().removeprefix("gitdir: ")


def _git_ref(git_dir: Path, name: str) -> str:
    """Return a loose ref or a packed one; a linked work tree has its branches in the common
    directory."""
    common_file = git_dir / "commondir"
    common = git_dir / common_file.read_text().strip() if common_file.is_file() else git_dir
    for place in (git_dir, common):
        if (place / name).is_file():
            return (place / name).read_text().strip()
    packed = common / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return commit
    raise ValueError(f"no commit for {name}")


def _packages(reader: Reader) -> dict[str, str | None]:
    versions = {name: _version(name) for name in (*PACKAGES, *OPTIONAL_PACKAGES)}
    for name in PACKAGES:
        if versions[name] is None:
            reader.note(f"packages.{name}", "no metadata")
    return {
        name: version
        for name, version in versions.items()
        if version is not None or name in PACKAGES
    }


@cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _os(reader: Reader) -> dict[str, Any]:
    try:
        release: str | None = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError as err:
        reader.note("os.release", err)
        release = None
    return {"kernel": platform.release(), "machine": platform.machine(), "release": release}


def _cpu(reader: Reader) -> dict[str, Any]:
    model = cpu_model(reader.text("cpu.model", "/proc/cpuinfo") or "")
    if model is None:
        reader.note("cpu.model", "/proc/cpuinfo names none")
    physical = psutil.cpu_count(logical=False)
    if physical is None:
        reader.note("cpu.physical_cores", "unknown to the kernel")
    return {
        "model": model,
        "logical_cores": os.cpu_count(),
        "physical_cores": physical,
        "usable_cores": usable_cpus(),
        "governor": reader.text(
            "cpu.governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", optional=True
        ),
    }


def cpu_model(cpuinfo: str) -> str | None:
    """Return the CPU's name: x86 has a `model name` for each core, ARM boards one `Model` or
    `Hardware` at the end."""
    for wanted in ("model name", "Model", "Hardware", "cpu model", "cpu"):
        for line in cpuinfo.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == wanted and value.strip():
                return value.strip()
    return None


def _memory(reader: Reader) -> dict[str, Any]:
    pages = reader.text(
        "memory.transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"
    )
    return {
        "total_bytes": psutil.virtual_memory().total,
        "transparent_hugepage": selected(pages),
    }


def selected(text: str | None) -> str | None:
    """Return the chosen one of `always [madvise] never`; the whole text if none is in brackets."""
    if text is None:
        return None
    bracketed = re.search(r"\[(.+?)\]", text)
    return bracketed.group(1) if bracketed else text


def _limits() -> dict[str, Any]:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return {"nofile_soft": None, "nofile_hard": None}
    soft, hard = (
        None if value == resource.RLIM_INFINITY else value
        for value in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return {"nofile_soft": soft, "nofile_hard": hard}


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in VARIABLES)
    }


def filesystem(reader: Reader, cache_dir: Path) -> dict[str, Any]:
    """Return the file system that `cache_dir` is on or will be created on; of a raw device, that
    there is none."""
    facts: dict[str, Any] = dict.fromkeys(FILESYSTEM_KEYS)
    if is_block_device(cache_dir):
        size = device_bytes(cache_dir)
        return facts | {"type": RAW_DEVICE, "source": str(cache_dir), "total_bytes": size}
    if not hasattr(os, "statvfs"):
        reader.note("filesystem", f"{sys.platform} has no statvfs")
        return facts
    try:
        path = str(nearest_existing(cache_dir))
        number, space = os.stat(path).st_dev, os.statvfs(path)
    except (OSError, PlaceError) as err:
        reader.note("filesystem", err)
        return facts
    facts["total_bytes"] = space.f_blocks * space.f_frsize
    facts["free_bytes"] = space.f_bavail * space.f_frsize
    mounts = parse_mounts(reader.text("filesystem.type", "/proc/self/mountinfo") or "")
    mount = mount_of(path, f"{os.major(number)}:{os.minor(number)}", mounts)
    if mount is None:
        reader.note("filesystem.type", f"no mount holds {path}")
        return facts
    return facts | {
        "type": mount.kind,
        "mount_point": mount.point,
        "source": mount.source,
        "mount_options": f"{mount.options};{mount.super_options}",
    }


def same_filesystem(one: Path, other: Path) -> bool:
    """Return whether both are on one, also if one is a subvolume or a bind mount of the other's."""
    places = [nearest_existing(path) for path in (one, other)]
    if os.stat(places[0]).st_dev == os.stat(places[1]).st_dev:
        return True
    mounts = [filesystem(Reader(), path) for path in places]
    source, kind = mounts[0]["source"], mounts[0]["type"]
    return "/" in str(source) and (mounts[1]["source"], mounts[1]["type"]) == (source, kind)


def results_place(cache: Sequence[Path | ObjectPlace], results: Path) -> dict[str, Any]:
    """Describe where results go, and whether that is the file system of the cache as well."""
    try:
        same = any(same_filesystem(each, results) for each in cache if isinstance(each, Path))
    except (OSError, PlaceError):
        same = None
    described = {"path": str(results), **filesystem(Reader(), results)}
    return {"results": described, "same_filesystem": same}


def _device_behind(reader: Reader, cache_dir: Path) -> dict[str, Any]:
    try:
        number = device_number(cache_dir)
    except (OSError, PlaceError) as err:
        reader.note("device", err)
        return dict.fromkeys(DEVICE_KEYS) | {"reason": str(err)}
    return block_device(reader, os.major(number), os.minor(number))


def block_device(reader: Reader, major: int, minor: int) -> dict[str, Any]:
    """Return the disk (for a partition the whole one) with this number; all null with a reason if
    none."""
    link = reader.root / f"sys/dev/block/{major}:{minor}"
    empty: dict[str, Any] = dict.fromkeys(DEVICE_KEYS)
    if major == 0:
        why = "the file system has no block device of its own (tmpfs, overlay, FUSE, network, …)"
        return empty | {"reason": why}
    if not link.exists():
        reader.note("device", f"{link} is not there")
        return empty | {"reason": f"{link} is not there"}
    device = Path(os.path.realpath(link))
    partition = device.name if (device / "partition").exists() else None
    whole = device.parent if partition else device
    return (
        empty
        | {"name": whole.name, "partition": partition, "major_minor": f"{major}:{minor}"}
        | _disk(reader, f"/{whole.relative_to(os.path.realpath(reader.root))}")
    )


def foot_disk(reader: Reader, name: str) -> dict[str, Any]:
    """Describe a disk at the foot of a stack; null if it is not this machine's."""
    facts: dict[str, Any] = {"name": name, "model": None, "firmware": None, "size_bytes": None}
    disk = f"/sys/class/block/{name}"
    if "/" in name or not (reader.root / disk.lstrip("/")).exists():
        return facts
    model = reader.text("disks.model", f"{disk}/device/model", optional=True)
    sectors = reader.number("disks.size_bytes", f"{disk}/size")
    size = None if sectors is None else sectors * _SECTOR_BYTES
    return facts | {"model": model, "firmware": _firmware(reader, disk), "size_bytes": size}


def _firmware(reader: Reader, disk: str) -> str | None:
    """Return the firmware's version; NVMe, SCSI and MMC each have their own file for it, others
    have none."""
    files = ("firmware_rev", "rev", "fwrev")
    texts = (reader.text("device.firmware", f"{disk}/device/{f}", optional=True) for f in files)
    return next((text for text in texts if text), None)


def _disk(reader: Reader, disk: str) -> dict[str, Any]:
    """Describe a whole disk by sysfs; `disk` is its directory, below the reader's root."""

    def text(key: str, path: str, *, optional: bool = False) -> str | None:
        return reader.text(f"device.{key}", f"{disk}/{path}", optional=optional)

    def number(key: str, path: str) -> int | None:
        return reader.number(f"device.{key}", f"{disk}/{path}")

    rotational = number("rotational", "queue/rotational")
    sectors = number("size_bytes", "size")
    return {
        "model": text("model", "device/model"),
        "firmware": _firmware(reader, disk),
        "rotational": None if rotational is None else bool(rotational),
        "scheduler": selected(text("scheduler", "queue/scheduler")),
        "nr_requests": number("nr_requests", "queue/nr_requests"),
        "max_sectors_kb": number("max_sectors_kb", "queue/max_sectors_kb"),
        "logical_block_bytes": number("logical_block_bytes", "queue/logical_block_size"),
        "write_cache": text("write_cache", "queue/write_cache"),
        "size_bytes": None if sectors is None else sectors * _SECTOR_BYTES,
        "backing_file": text("backing_file", "loop/backing_file", optional=True),
        "built_on": _below(reader, f"{disk}/slaves"),
    }


def _below(reader: Reader, directory: str) -> list[str] | None:
    """Return the disks that a RAID or LVM volume consists of; empty for a plain one."""
    try:
        return sorted(os.listdir(reader.root / directory.lstrip("/")))
    except OSError as err:
        reader.note("device.built_on", f"{directory} ({os_reason(err)})")
        return None


def cgroup_limits(reader: Reader) -> dict[str, Any]:
    """Return the limits of RAM (bytes), CPUs and I/O that hold for this process; null is no limit.

    A limit of any cgroup above counts as well, so the least is returned; of the I/O throttles, all.
    """
    cgroups = reader.text("cgroup", "/proc/self/cgroup") or ""
    mounts = reader.text("cgroup", "/proc/self/mountinfo") or ""

    def of_all(name: str, controller: str, limit_of: Callable[[int, Reads], T]) -> dict[str, T]:
        def reads(directory: str) -> Reads:
            return lambda file: reader.text(name, f"{directory}/{file}", optional=True)

        version, directories = cgroup_directories(controller, cgroups, mounts)
        return {directory: limit_of(version, reads(directory)) for directory in directories}

    throttles = of_all("cgroup.io", "blkio", io_limits)  # which version 2 calls io
    return {
        "memory_limit_bytes": _least(of_all("cgroup.memory", "memory", _memory_limit).values()),
        "cpu_limit": _least(of_all("cgroup.cpu", "cpu", cpu_limit).values()),
        "io_throttles": [
            {"cgroup": directory, "device": device, **limits}
            for directory, rows in throttles.items()
            for device, limits in rows
        ],
    }


def _least(limits: Iterable[float | None]) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _memory_limit(version: int, read: Reads) -> int | None:
    limit = as_limit(read("memory.limit_in_bytes" if version == 1 else "memory.max"))
    return limit if limit is not None and limit < _NO_LIMIT_V1 else None
