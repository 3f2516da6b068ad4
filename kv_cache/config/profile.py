"""Hardware profiles as files: strict reading of what `kv-cache.py probe` wrote, and the writing.

    schema: kv-cache-profile/1
    device: {…} filesystem: {…} io: {…}        facts, free inside
    grid:
    - {object_bytes: 2097152, concurrency: 4, read_share: 1.0, data: first, …}

Every failure is a ConfigError with the file and the place in it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kv_cache.config.schema import Rule, from_mapping, opt, show, to_mapping
from kv_cache.config.yaml_files import read_yaml, shipped
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import NS_PER_US

SCHEMA = "kv-cache-profile/1"
HEADER = "# kv-cache hardware profile"
"""The first line of every profile that we write; a file that begins so may be replaced."""

_FACTS = (
    *("program_version", "measured_utc", "cache_dir", "device", "filesystem", "kernel", "io"),
    *("probe", "counted", "notes", "refused"),
)
_LISTS = ("grid", "bursts")
_DATA = {"first": False, "repeated": True}
"""Whether reads met data that had been read before."""

_MOST_ROWS = 100_000

QUANTILES = (1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0)
"""Percentiles of `quantiles_us`, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The times that operations of one kind took inside system calls. `quantiles_ns` are those of
    `QUANTILES`; empty in profiles that were written before there were any."""

    operations: int
    mean_ns: int
    p50_ns: int
    p99_ns: int
    quantiles_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid. `read_share` is of operations; `repeated` says that reads met data
    which had been read before, which a host's cache may hold; `bytes_per_s` is of both kinds.
    `deletes` are those that made room for the writes."""

    object_bytes: int
    concurrency: int
    read_share: float
    repeated: bool
    bytes_per_s: float
    in_flight: float
    reads: Service | None = None
    writes: Service | None = None
    deletes: Service | None = None

    def of(self, kind: OpKind) -> Service | None:
        services = {OpKind.READ: self.reads, OpKind.WRITE: self.writes, OpKind.DELETE: self.deletes}
        return services[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Operations of one kind that were begun at the same instant on an idle device: the mean time
    of one, and that of the last. A device that serves in order has a mean of about half."""

    object_bytes: int
    concurrency: int
    kind: OpKind
    mean_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measured device. `facts` is what else its file says; `name` is what messages call it."""

    name: str
    cells: tuple[Cell, ...]
    bursts: tuple[Burst, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> Mapping[str, Any]:
        """What a result says about the profile that it was simulated with."""
        device = self.facts.get("device")
        return {
            "file": self.name,
            "sha256": self.facts.get("sha256"),
            "device": device.get("name") if isinstance(device, Mapping) else None,
            "model": device.get("model") if isinstance(device, Mapping) else None,
            "measured_utc": self.facts.get("measured_utc"),
        }


def read_profile(path: str | Path) -> Profile:
    """Read the checked profile of a file, or of a shipped one (`configs/profiles/…`). Raises
    ConfigError."""
    file = shipped("configs", str(path))
    profile = profile_of(read_yaml(file), file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return replace(profile, name=str(path), facts={**profile.facts, "sha256": sha256})


def profile_of(values: object, file: Path) -> Profile:
    """Check the values of a profile; `file` is what messages call it. Raises ConfigError."""
    if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
        schema = values.get("schema") if isinstance(values, Mapping) else None
        raise ConfigError(
            f"profile {file}: its schema is {show(schema)}, not {SCHEMA}; give a file that "
            "kv-cache.py probe wrote"
        )
    for key in values:
        if key not in (*_FACTS, "schema", *_LISTS):
            word = key if isinstance(key, str) else show(key)
            known = did_you_mean(word, (*_FACTS, *_LISTS))
            raise ConfigError(f"profile {file}: {word} is not a known key.{known}")
    rows = values.get("grid")
    if not isinstance(rows, list) or not 0 < len(rows) <= _MOST_ROWS:
        raise ConfigError(
            f"profile {file}: grid is {show(rows)}; it must be a list of measured points, not empty"
        )
    cells = tuple(_cell(row, file, f"grid[{n}]") for n, row in enumerate(rows))
    _check_grid(cells, file)
    bursts = values.get("bursts", [])
    if not isinstance(bursts, list) or len(bursts) > _MOST_ROWS:
        raise ConfigError(f"profile {file}: bursts is {show(bursts)}; it must be a list")
    return Profile(
        name=str(file),
        cells=cells,
        bursts=tuple(_burst(row, file, f"bursts[{n}]") for n, row in enumerate(bursts)),
        facts={key: values[key] for key in _FACTS if key in values},
    )


def profile_values(profile: Profile) -> dict[str, Any]:
    """Return what a profile's file holds: `profile_of` reads an equal grid from it."""
    return {
        "schema": SCHEMA,
        **{key: value for key, value in profile.facts.items() if key in _FACTS},
        "grid": [_row(cell) for cell in profile.cells],
        **({"bursts": [_burst_row(each) for each in profile.bursts]} if profile.bursts else {}),
    }


def profile_text(profile: Profile) -> str:
    """Return YAML that reads back to an equal grid."""
    values = profile_values(profile)
    facts = {key: value for key, value in values.items() if key not in _LISTS}
    head = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    lines = [f"- {_flow(row)}" for row in values["grid"]]
    if profile.bursts:
        lines += ["bursts:", *(f"- {_flow(row)}" for row in values["bursts"])]
    about = "# service times are inside system calls; data: first = not read since it was written"
    return "\n".join([HEADER, about, f"{head}grid:", *lines]) + "\n"


# --- reading ---------------------------------------------------------------------------------


def _count(text: str) -> Any:
    return opt(1, text, low=1, high=2**62, required=True)


def _positive(text: str) -> Any:
    return opt(1.0, text, above=0, high=1e18, required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServiceRow:
    operations: int = _count("Operations that were measured")
    mean_us: float = _positive("Mean time")
    p50_us: float = _positive("Median")
    p99_us: float = _positive("99th percentile")
    quantiles_us: tuple[float, ...] | None = opt(
        None, "Times of QUANTILES; profiles that were written before have none", above=0
    )


_REQUIRED = Rule(help="Times, or null if there were no such operations", required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CellRow:
    object_bytes: int = _count("Size of an object")
    concurrency: int = _count("Operations at the same time")
    read_share: float = opt(1.0, "Share of reads", low=0, high=1, required=True)
    data: str = opt("first", "Whether data was read before", choices=_DATA, required=True)
    bytes_per_second: float = _positive("Bandwidth of both kinds")
    in_flight: float = _positive("Mean number of operations in flight")
    reads: _ServiceRow | None = field(default=None, metadata={"rule": _REQUIRED})
    writes: _ServiceRow | None = field(default=None, metadata={"rule": _REQUIRED})
    deletes: _ServiceRow | None = None  # profiles that were written before have none


@dataclass(frozen=True, slots=True, kw_only=True)
class _BurstRow:
    object_bytes: int = _count("Size of an object")
    concurrency: int = _count("Operations that begin together")
    kind: str = opt("read", "Kind of operation", choices=("read", "write"), required=True)
    mean_us: float = _positive("Mean time")
    last_us: float = _positive("Time of the last one")


def _refusal(file: Path, path: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"profile {file}: {path} is {show(value)}; it must be {wanted}")


def _cell(values: object, file: Path, path: str) -> Cell:
    row = from_mapping(_CellRow, values, f"profile {file}", path)
    for times, name, wanted in (
        (row.reads, "reads", row.read_share > 0),
        (row.writes, "writes", row.read_share < 1),
    ):
        if (times is not None) is not wanted:
            shape = "a mapping of measured times" if wanted else "null"
            value = None if times is None else to_mapping(times)
            shape = f"{shape} where read_share is {row.read_share:g}"
            raise _refusal(file, f"{path}.{name}", value, shape)
    return Cell(
        object_bytes=row.object_bytes,
        concurrency=row.concurrency,
        read_share=row.read_share,
        repeated=_DATA[row.data],
        bytes_per_s=row.bytes_per_second,
        in_flight=row.in_flight,
        reads=_service(row.reads, file, f"{path}.reads"),
        writes=_service(row.writes, file, f"{path}.writes"),
        deletes=_service(row.deletes, file, f"{path}.deletes"),
    )


def _burst(values: object, file: Path, path: str) -> Burst:
    row = from_mapping(_BurstRow, values, f"profile {file}", path)
    if row.mean_us > row.last_us:
        raise _refusal(file, f"{path}.mean_us", row.mean_us, "at most last_us")
    return Burst(
        object_bytes=row.object_bytes,
        concurrency=row.concurrency,
        kind=OpKind(row.kind),
        mean_ns=_ns(row.mean_us),
        last_ns=_ns(row.last_us),
    )


def _service(row: _ServiceRow | None, file: Path, path: str) -> Service | None:
    if row is None:
        return None
    if row.p50_us > row.p99_us:
        raise _refusal(file, f"{path}.p50_us", row.p50_us, "at most p99_us")
    quantiles = row.quantiles_us
    if quantiles is not None:
        if len(quantiles) != len(QUANTILES):
            shape = f"a list of {len(QUANTILES)} times, of percentiles {QUANTILES}"
            raise _refusal(file, f"{path}.quantiles_us", quantiles, shape)
        if list(quantiles) != sorted(quantiles):
            shape = "a list of times that do not fall"
            raise _refusal(file, f"{path}.quantiles_us", quantiles, shape)
    return Service(
        operations=row.operations,
        mean_ns=_ns(row.mean_us),
        p50_ns=_ns(row.p50_us),
        p99_ns=_ns(row.p99_us),
        quantiles_ns=tuple(map(_ns, quantiles or ())),
    )


def _ns(microseconds: float) -> int:
    return max(1, round(microseconds * NS_PER_US))


def _check_grid(cells: tuple[Cell, ...], file: Path) -> None:
    seen: set[tuple[object, ...]] = set()
    for cell in cells:
        point = (cell.object_bytes, cell.concurrency, cell.read_share, cell.repeated)
        if point in seen:
            raise ConfigError(
                f"profile {file}: grid has {cell.object_bytes} bytes at concurrency "
                f"{cell.concurrency}, read_share {cell.read_share:g} twice; keep one of them"
            )
        seen.add(point)
    for kind in (OpKind.READ, OpKind.WRITE):
        if not any(cell.of(kind) and not cell.repeated for cell in cells):
            raise ConfigError(
                f"profile {file}: grid has no {kind}s of data: first, which virtual time needs; "
                "run kv-cache.py probe again"
            )


# --- writing ---------------------------------------------------------------------------------


def _row(cell: Cell) -> dict[str, Any]:
    return {
        "object_bytes": cell.object_bytes,
        "concurrency": cell.concurrency,
        "read_share": cell.read_share,
        "data": "repeated" if cell.repeated else "first",
        "bytes_per_second": float(round(cell.bytes_per_s)),
        "in_flight": round(cell.in_flight, 3),
        "reads": _times(cell.reads),
        "writes": _times(cell.writes),
        **({} if cell.deletes is None else {"deletes": _times(cell.deletes)}),
    }


def _burst_row(burst: Burst) -> dict[str, Any]:
    return {
        "object_bytes": burst.object_bytes,
        "concurrency": burst.concurrency,
        "kind": burst.kind.value,
        "mean_us": burst.mean_ns / NS_PER_US,
        "last_us": burst.last_ns / NS_PER_US,
    }


def _times(service: Service | None) -> dict[str, Any] | None:
    if service is None:
        return None
    return {
        "operations": service.operations,
        "mean_us": service.mean_ns / NS_PER_US,
        "p50_us": service.p50_ns / NS_PER_US,
        "p99_us": service.p99_ns / NS_PER_US,
        **(
            {"quantiles_us": [time / NS_PER_US for time in service.quantiles_ns]}
            if service.quantiles_ns
            else {}
        ),
    }


def _flow(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9)
    return text.strip()
