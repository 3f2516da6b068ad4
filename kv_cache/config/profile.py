"""Hardware profiles as files: strict reading of what `kv-cache.py probe` wrote, and the writing.

    schema: kv-cache-profile/1
    device: {…} filesystem: {…} io: {…}        facts, free inside
    grid:
    - {object_bytes: 2097152, concurrency: 4, read_share: 1.0, data: first, …}

Every failure is a ConfigError with the file and the place in it.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kv_cache.config.load import read_yaml, shipped
from kv_cache.config.schema import show
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
    cells = tuple(_cell(row, _At(file, f"grid[{n}]")) for n, row in enumerate(rows))
    _check_grid(cells, file)
    bursts = values.get("bursts", [])
    if not isinstance(bursts, list) or len(bursts) > _MOST_ROWS:
        raise ConfigError(f"profile {file}: bursts is {show(bursts)}; it must be a list")
    return Profile(
        name=str(file),
        cells=cells,
        bursts=tuple(_burst(row, _At(file, f"bursts[{n}]")) for n, row in enumerate(bursts)),
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


class _At:
    """A place in a profile, for messages."""

    def __init__(self, file: Path, path: str) -> None:
        self.file = file
        self.path = path

    def key(self, name: str) -> "_At":
        return _At(self.file, f"{self.path}.{name}")

    def error(self, value: object, wanted: str) -> ConfigError:
        return ConfigError(
            f"profile {self.file}: {self.path} is {show(value)}; it must be {wanted}"
        )


_CELL_KEYS = (
    *("object_bytes", "concurrency", "read_share", "data", "bytes_per_second", "in_flight"),
    *("reads", "writes"),
)
_BURST_KEYS = ("object_bytes", "concurrency", "kind", "mean_us", "last_us")
_LATER_CELL_KEYS = ("deletes",)  # profiles that were written before have none
_SERVICE_KEYS = ("operations", "mean_us", "p50_us", "p99_us")
_LATER_SERVICE_KEYS = ("quantiles_us",)


def _cell(row: object, at: _At) -> Cell:
    values = _exactly(row, _CELL_KEYS, at, _LATER_CELL_KEYS)
    share = _number(values["read_share"], at.key("read_share"), low=0, high=1)
    if values["data"] not in _DATA:
        raise at.key("data").error(values["data"], "first or repeated")
    reads = _service(values["reads"], at.key("reads"))
    writes = _service(values["writes"], at.key("writes"))
    for times, name, wanted in ((reads, "reads", share > 0), (writes, "writes", share < 1)):
        if (times is not None) is not wanted:
            what = "a mapping of measured times" if wanted else "null"
            raise at.key(name).error(values[name], f"{what} where read_share is {share:g}")
    return Cell(
        object_bytes=_whole(values["object_bytes"], at.key("object_bytes")),
        concurrency=_whole(values["concurrency"], at.key("concurrency")),
        read_share=share,
        repeated=_DATA[values["data"]],
        bytes_per_s=_number(values["bytes_per_second"], at.key("bytes_per_second")),
        in_flight=_number(values["in_flight"], at.key("in_flight")),
        reads=reads,
        writes=writes,
        deletes=_service(values.get("deletes"), at.key("deletes")),
    )


def _burst(row: object, at: _At) -> Burst:
    values = _exactly(row, _BURST_KEYS, at)
    if values["kind"] not in ("read", "write"):
        raise at.key("kind").error(values["kind"], "read or write")
    mean_ns, last_ns = (_ns(values[name], at.key(name)) for name in ("mean_us", "last_us"))
    if mean_ns > last_ns:
        raise at.key("mean_us").error(values["mean_us"], "at most last_us")
    return Burst(
        object_bytes=_whole(values["object_bytes"], at.key("object_bytes")),
        concurrency=_whole(values["concurrency"], at.key("concurrency")),
        kind=OpKind(values["kind"]),
        mean_ns=mean_ns,
        last_ns=last_ns,
    )


def _service(value: object, at: _At) -> Service | None:
    if value is None:
        return None
    values = _exactly(value, _SERVICE_KEYS, at, _LATER_SERVICE_KEYS)
    mean, p50, p99 = (_ns(values[name], at.key(name)) for name in _SERVICE_KEYS[1:])
    if p50 > p99:
        raise at.key("p50_us").error(values["p50_us"], "at most p99_us")
    return Service(
        operations=_whole(values["operations"], at.key("operations")),
        mean_ns=mean,
        p50_ns=p50,
        p99_ns=p99,
        quantiles_ns=_quantiles(values.get("quantiles_us"), at.key("quantiles_us")),
    )


def _quantiles(value: object, at: _At) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) != len(QUANTILES):
        raise at.error(value, f"a list of {len(QUANTILES)} times, of percentiles {QUANTILES}")
    times = tuple(_ns(one, at.key(str(n))) for n, one in enumerate(value))
    if list(times) != sorted(times):
        raise at.error(value, "a list of times that do not fall")
    return times


def _ns(value: object, at: _At) -> int:
    return max(1, round(_number(value, at) * NS_PER_US))


def _exactly(
    value: object, keys: tuple[str, ...], at: _At, may: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """A mapping with all of `keys`, which may have those of `may`, and no others."""
    if not isinstance(value, Mapping):
        raise at.error(value, f"a mapping of {', '.join(keys)}")
    for key in value:
        if key not in (*keys, *may):
            word = key if isinstance(key, str) else show(key)
            known = did_you_mean(word, (*keys, *may))
            raise ConfigError(f"profile {at.file}: {at.path}.{word} is not a known key.{known}")
    missing = [key for key in keys if key not in value]
    if missing:
        raise at.error(value, f"a mapping with {missing[0]}, which is missing")
    return value


def _number(value: object, at: _At, *, low: float = 0, high: float = 1e18) -> float:
    """Above 0 (with `high` 1: at least 0), or ConfigError."""
    ends = "0 to 1" if high == 1 else f"a number above 0, up to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise at.error(value, ends)
    if not low <= value <= high or (high != 1 and value == 0):
        raise at.error(value, ends)
    return float(value)


def _whole(value: object, at: _At) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**62:
        raise at.error(value, "a whole number above 0")
    return value


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
