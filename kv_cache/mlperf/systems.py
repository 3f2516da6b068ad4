"""The description of the system under test that a submission carries, as far as the runs know it.

Its keys are those of MLPerf Storage's schema. What no program can know from within a client (who
sells it, how many rack units, which power supplies) is left as a placeholder that says what belongs
there; `check` reports each one that is still there. Nothing is guessed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.units import GIB
from kv_cache.files.writing import write_atomically
from kv_cache.result.paths import value_at

PLACEHOLDER = "FILL IN: "
_INTERFACES, _MEDIA = ("nvme", "SAS", "SATA", "other"), ("HDD", "TLC", "QLC", "other")

_HEADER = """\
# The system under test, for MLPerf Storage. What the runs knew about their machines stands here;
# put what is true in the place of each text that begins with "FILL IN", and leave out what you do
# not have (networking of a local drive, for example). `kv-cache.py mlperf check` says what is left.
"""

_NETWORK = re.compile(r"nfs|cifs|smb|fuse|ceph|lustre|gpfs|beegfs|9p|glusterfs|afs")

Json = Mapping[str, Any]


def describe(system: str, environments: Sequence[Json]) -> dict[str, Any]:
    """Return the description of a system whose clients are machines with these environments, one
    each."""
    first = environments[0] if environments else {}
    remote = _is_remote(first)
    return {
        "system_under_test": {
            "solution": {
                "submission_name": system,
                "friendly_description": _fill("a sentence on what is submitted"),
                "architecture": {
                    "storage_location": "remote" if remote else "local",
                    "benchmark_API": "file",
                    "product_API": _fill("file, object or block"),
                    "client_footprint": _fill("open_source, closed_source or n/a"),
                    "client_installation": _fill("in_box, installable or n/a"),
                },
                "capabilities": {
                    "multi_host": _fill("true or false"),
                    "simultaneous_write": _fill("true or false"),
                    "simultaneous_read": _fill("true or false"),
                    "remap_time_in_seconds": _fill("whole seconds from writing to reading"),
                },
            },
            "deployment": _fill("onprem or cloud"),
            "clients": [_client(kind, n, remote) for kind, n in _kinds(environments)],
            "product_nodes": _fill("the storage's own nodes and drives, or leave this out"),
            "total_rack_units": _fill("a whole number, clients not counted; cloud: leave this out"),
        }
    }


def write_description(path: Path, description: Json) -> None:
    """Write it unless there is one, which people may have filled in. Raises OSError."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(description, sort_keys=False, allow_unicode=True, width=100)
    write_atomically(path, (_HEADER + text).encode())


def _fill(what: str) -> str:
    return f"{PLACEHOLDER}{what}"


def _is_remote(environment: Json) -> bool:
    kind = value_at(environment, "filesystem.type")
    return isinstance(kind, str) and bool(_NETWORK.match(kind))


def _kinds(environments: Sequence[Json]) -> list[tuple[Json, int]]:
    """Group machines that are alike, with their number."""
    kinds: dict[tuple[Any, ...], list[Json]] = {}
    for environment in environments:
        names = ("cpu.model", "cpu.physical_cores", "memory.total_bytes", "os.release")
        kinds.setdefault(tuple(value_at(environment, name) for name in names), []).append(
            environment
        )
    return [(alike[0], len(alike)) for alike in kinds.values()]


def _client(environment: Json, quantity: int, remote: bool) -> dict[str, Any]:
    name, version = _system(environment)
    memory = value_at(environment, "memory.total_bytes")
    described = {
        "friendly_description": _fill("what these clients are"),
        "quantity": quantity,
        "chassis": {
            "model_name": _fill("model of the chassis, or of the cloud instance"),
            "rack_units": _fill("a whole number; cloud: leave this out"),
            "cpu_model": _known(environment, "cpu.model", "name of the CPU"),
            "cpu_qty": _fill("number of sockets"),
            "cpu_cores": _known(environment, "cpu.physical_cores", "cores of all sockets"),
            "memory_capacity": round(memory / GIB) if isinstance(memory, int) else _fill("GiB"),
        },
        "operating_system": {"name": name, "version": version},
        "networking": _fill("a list of ports with unit_count, type, state, speed and traffic"),
    }
    return described if remote else {**described, "drives": [_drive(environment)]}


def _drive(environment: Json) -> dict[str, Any]:
    """Describe the drive below the cache directory by what its kernel shows."""
    device = value_at(environment, "device")
    device = device if isinstance(device, Mapping) else {}
    size = device.get("size_bytes")
    nvme = str(device.get("name")).startswith("nvme")
    return {
        "unit_count": len(environment.get("drives") or [None]),
        "vendor_name": _fill("vendor of the drive"),
        "model_name": device.get("model") or _fill("the vendor's name of the drive"),
        "interface": "nvme" if nvme else _fill(f"{', '.join(_INTERFACES)}"),
        "media_type": _fill(f"{', '.join(_MEDIA)}"),
        "capacity_in_GB": round(size / 1e9) if isinstance(size, int) else _fill("GB of 10^9 bytes"),
    }


def _system(environment: Json) -> tuple[str, str]:
    """Return name and version: `Debian GNU/Linux 12 (bookworm)` is Debian GNU/Linux, 12
    (bookworm)."""
    release = value_at(environment, "os.release")
    kernel = value_at(environment, "os.kernel")
    match = re.fullmatch(r"(.*?)\s+(\d.*)", release) if isinstance(release, str) else None
    after = f", kernel {kernel}" if kernel else ""
    if match is None:
        return (release or _fill("name of the operating system"), f"{kernel or _fill('version')}")
    return match[1], f"{match[2]}{after}"


def _known(environment: Json, path: str, what: str) -> Any:
    value = value_at(environment, path)
    return _fill(what) if value is None else value


# --- read back -------------------------------------------------------------------------------

_ENUMS: Mapping[str, tuple[str, ...]] = {
    "solution.architecture.storage_location": ("remote", "local", "remote_and_local"),
    "solution.architecture.benchmark_API": ("file", "object"),
    "solution.architecture.product_API": ("file", "object", "block"),
    "solution.architecture.client_footprint": ("open_source", "closed_source", "n/a"),
    "solution.architecture.client_installation": ("in_box", "installable", "n/a"),
    "deployment": ("onprem", "cloud"),
}
_FLAGS = ("multi_host", "simultaneous_write", "simultaneous_read")


def flaws_of_description(path: Path, system: str | None) -> Iterator[str]:
    """Yield what is still to be filled in, or does not have the shape that the rules require.
    Raises ConfigError if it is not YAML."""
    document = read_yaml(path)
    root = document.get("system_under_test") if isinstance(document, Mapping) else None
    if not isinstance(root, Mapping):
        yield "has no mapping system_under_test"
        return
    yield from (f"{where} is still {text!r}" for where, text in _placeholders(root, ""))
    yield from _pairs(root)
    yield from _drives(root)
    for where, allowed in _ENUMS.items():
        value = value_at(root, where)
        if not _is_open(value) and value not in allowed:
            yield f"{where} is {value!r}, not one of {', '.join(allowed)}"
    for name in _FLAGS:
        value = value_at(root, f"solution.capabilities.{name}")
        if not _is_open(value) and not isinstance(value, bool):
            yield f"solution.capabilities.{name} is {value!r}, neither true nor false"
    if system is not None and value_at(root, "solution.submission_name") != system:
        named = value_at(root, "solution.submission_name")
        yield f"solution.submission_name is {named!r}, and the file is {system}.yaml"
    if not isinstance(root.get("clients"), list) or not root["clients"]:
        yield "clients is no list of machines"


def _pairs(root: Json) -> Iterator[str]:
    """Yield what two values say against each other."""
    names = ("client_footprint", "client_installation")
    client = [value_at(root, f"solution.architecture.{name}") for name in names]
    if not any(map(_is_open, client)) and client.count("n/a") == 1:
        yield f"{' and '.join(names)} are {client[0]!r} and {client[1]!r}: both are n/a, or neither"
    able = value_at(root, "solution.capabilities") or {}
    seconds = able.get("remap_time_in_seconds") if isinstance(able, Mapping) else None
    if isinstance(seconds, int) and isinstance(able, Mapping):
        at_once = able.get("simultaneous_write") is True and able.get("simultaneous_read") is True
        if at_once == (seconds != 0):
            yield (
                f"solution.capabilities.remap_time_in_seconds is {seconds}: it is 0 if written and "
                "read at the same time, and else not"
            )


def _drives(root: Json) -> Iterator[str]:
    for kind in ("clients", "product_nodes"):
        for machine, node in enumerate(_mappings(root.get(kind))):
            for number, drive in enumerate(_mappings(node.get("drives"))):
                for name, words in (("interface", _INTERFACES), ("media_type", _MEDIA)):
                    value = drive.get(name)
                    if not _is_open(value) and value not in words:
                        where = f"{kind}[{machine}].drives[{number}].{name}"
                        yield f"{where} is {value!r}, not one of {', '.join(words)}"


def _mappings(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _is_open(value: Any) -> bool:
    """Whether it is for people to fill in; the launcher leaves empty what it does not know."""
    return value == "" or (isinstance(value, str) and value.startswith(PLACEHOLDER))


def _placeholders(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _placeholders(inner, f"{where}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _placeholders(inner, f"{where}[{number}]")
    elif _is_open(value):
        yield where, value
