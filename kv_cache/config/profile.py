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

from kv_cache.config.schema import Rule, from_mapping, one_line, opt, show, to_mapping
from kv_cache.config.yaml_files import of_schema, read_yaml, shipped
from kv_cache.core.bounded import Count
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
_MOST_ROWS = 100_000

QUANTILES = (1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0)
"""Percentiles of `quantiles_us`, in its order."""


_REQUIRED = Rule(help="Times, or null if there were no such operations", required=True)


def _count(text: str) -> Any:
    return opt(1, text, low=1, high=2**62, required=True)


def _positive(text: str) -> Any:
    return opt(1.0, text, above=0, high=1e18, required=True)


def _ns(microseconds: float) -> int:
    return max(1, round(microseconds * NS_PER_US))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The times that operations of one kind took inside system calls."""

    operations: int = _count("Operations that were measured")
    mean_us: float = _positive("Mean time")
    p50_us: float = _positive("Median")
    p99_us: float = _positive("99th percentile")
    quantiles_us: tuple[float, ...] | None = opt(
        None, "Times of QUANTILES; profiles that were written before have none", above=0
    )

    @property
    def mean_ns(self) -> int:
        return _ns(self.mean_us)

    @property
    def p50_ns(self) -> int:
        return _ns(self.p50_us)

    @property
    def p99_ns(self) -> int:
        return _ns(self.p99_us)

    @property
    def quantiles_ns(self) -> tuple[int, ...]:
        return tuple(map(_ns, self.quantiles_us or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid. `deletes` are those that made room for the writes."""

    object_bytes: int = _count("Size of an object")
    concurrency: int = _count("Operations at the same time")
    read_share: float = opt(1.0, "Share of reads, of operations", low=0, high=1, required=True)
    data: str = opt(
        "first", "Whether reads met data that had been read before, which a host's cache may hold",
        choices=("first", "repeated"), required=True,
    )  # fmt: skip
    bytes_per_second: float = _positive("Bandwidth of both kinds")
    in_flight: float = _positive("Mean number of operations in flight")
    reads: Service | None = field(default=None, metadata={"rule": _REQUIRED})
    writes: Service | None = field(default=None, metadata={"rule": _REQUIRED})
    deletes: Service | None = None  # profiles that were written before have none
    data_path: str | None = opt(
        None, "What was between a thread's operations; profiles that were written before have none",
        choices=("native", "python"),
    )  # fmt: skip
    device_bytes: int | None = opt(
        None, "Bytes moved for one object, where those are more than its own", low=1, high=2**62
    )

    @property
    def repeated(self) -> bool:
        return self.data == "repeated"

    def of(self, kind: OpKind) -> Service | None:
        services = {OpKind.READ: self.reads, OpKind.WRITE: self.writes, OpKind.DELETE: self.deletes}
        return services[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCell:
    """A step that was not measured, and why."""

    object_bytes: Count
    concurrency: Count
    step: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Operations of one kind that were begun at the same instant on an idle device: the mean time
    of one, and that of the last. A device that serves in order has a mean of about half."""

    object_bytes: int = _count("Size of an object")
    concurrency: int = _count("Operations that begin together")
    kind: str = opt("read", "Kind of operation", choices=("read", "write"), required=True)
    mean_us: float = _positive("Mean time")
    last_us: float = _positive("Time of the last one")

    @property
    def mean_ns(self) -> int:
        return _ns(self.mean_us)

    @property
    def last_ns(self) -> int:
        return _ns(self.last_us)


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


def profile_of(section: object, file: Path) -> Profile:
    """Check the values of a profile; `file` is what messages call it. Raises ConfigError."""
    instead = "give a file that kv-cache.py probe wrote"
    values = of_schema(section, SCHEMA, f"profile {file}", instead)
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
        **({"bursts": to_mapping(profile.bursts)} if profile.bursts else {}),
    }


def profile_text(profile: Profile) -> str:
    """Return YAML that reads back to an equal grid."""
    values = profile_values(profile)
    facts = {key: value for key, value in values.items() if key not in _LISTS}
    head = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    lines = [f"- {one_line(row)}" for row in values["grid"]]
    if profile.bursts:
        lines += ["bursts:", *(f"- {one_line(row)}" for row in values["bursts"])]
    about = "# service times are inside system calls; data: first = not read since it was written"
    return "\n".join([HEADER, about, f"{head}grid:", *lines]) + "\n"


# --- reading ---------------------------------------------------------------------------------


def _refusal(file: Path, path: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"profile {file}: {path} is {show(value)}; it must be {wanted}")


def _cell(values: object, file: Path, path: str) -> Cell:
    cell = from_mapping(Cell, values, f"profile {file}", path)
    for times, name, wanted in (
        (cell.reads, "reads", cell.read_share > 0),
        (cell.writes, "writes", cell.read_share < 1),
    ):
        if (times is not None) is not wanted:
            shape = "a mapping of measured times" if wanted else "null"
            value = None if times is None else to_mapping(times)
            shape = f"{shape} where read_share is {cell.read_share:g}"
            raise _refusal(file, f"{path}.{name}", value, shape)
    for name in ("reads", "writes", "deletes"):
        _check_service(getattr(cell, name), file, f"{path}.{name}")
    return cell


def _burst(values: object, file: Path, path: str) -> Burst:
    burst = from_mapping(Burst, values, f"profile {file}", path)
    if burst.mean_us > burst.last_us:
        raise _refusal(file, f"{path}.mean_us", burst.mean_us, "at most last_us")
    return burst


def _check_service(service: Service | None, file: Path, path: str) -> None:
    if service is None:
        return
    if service.p50_us > service.p99_us:
        raise _refusal(file, f"{path}.p50_us", service.p50_us, "at most p99_us")
    quantiles = service.quantiles_us
    if quantiles is None:
        return
    if len(quantiles) != len(QUANTILES):
        shape = f"a list of {len(QUANTILES)} times, of percentiles {QUANTILES}"
        raise _refusal(file, f"{path}.quantiles_us", quantiles, shape)
    if list(quantiles) != sorted(quantiles):
        shape = "a list of times that do not fall"
        raise _refusal(file, f"{path}.quantiles_us", quantiles, shape)


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
    row: dict[str, Any] = to_mapping(cell)
    row["bytes_per_second"] = float(round(cell.bytes_per_second))
    row["in_flight"] = round(cell.in_flight, 3)
    for name in ("deletes", "data_path", "device_bytes"):
        if row[name] is None:
            del row[name]
    for times in filter(None, (row["reads"], row["writes"], row.get("deletes"))):
        if times["quantiles_us"] is None:
            del times["quantiles_us"]
    return row
