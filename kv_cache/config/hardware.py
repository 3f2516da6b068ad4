"""Hardware profiles: what was measured on a machine, and what is taken from elsewhere, in one file.

    schema: kv-cache-hardware/1
    topology: {gpus_per_node: 8, nodes_per_rack: 8, racks: 20}
    gpus: {h100: {hbm: {…}, compute: {…}}}      by kind
    dram: {…} pcie: {…} nvlink: {…} nic: {…} rack_pool: {…} remote: {…}
    storage: {nvme: {probe: profile-nvme.yaml, probe_sha256: …}}

Each value's unit is in its key: bytes, bytes/s, FLOP/s, microseconds. Each section says in its
`provenance` whether it was measured here or is an overlay, by which source and when. Storage that
was measured is its probe file, by name and digest: curves, not constants.

Nothing is ever filled in: a value that nobody gave is None, and who needs it asks with `require`.
Only `read_hardware` touches files. Every failure is a ConfigError with the file and the place.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from kv_cache.config.profile import Profile, read_profile
from kv_cache.config.schema import from_mapping, opt, show, to_mapping
from kv_cache.config.yaml_files import of_schema, read_yaml
from kv_cache.core.errors import ConfigError, did_you_mean, os_reason

SCHEMA = "kv-cache-hardware/1"
HEADER = "# kv-cache hardware: measured curves, and overlays for what was not measured"
"""The first line of every file that we write; a file that begins so may be replaced."""

MEASURED = "measured"
OVERLAY = "overlay"


def _rate(text: str) -> Any:
    return opt(None, text, unit="bytes/s", above=0, high=1e16)


def _size(text: str) -> Any:
    return opt(None, text, unit="bytes", low=1, high=2**60)


def _delay(text: str) -> Any:
    return opt(None, text, unit="us", low=0, high=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the values of a section are from."""

    how: str = opt(OVERLAY, "Measured here, or taken from elsewhere", choices=(MEASURED, OVERLAY))
    source: str | None = opt(None, "A data sheet, a paper, a tool and its run")
    date: str | None = opt(None, "When it was measured, or the source was read: 2026-11-22")
    versions: Mapping[str, str] = opt({}, "What was measured with: programs, kernel, firmware")

    @property
    def sourced(self) -> bool:
        return self.source is not None and self.date is not None


class _Section:
    """What all sections can say."""

    __slots__ = ()
    provenance: Provenance

    @property
    def has_values(self) -> bool:
        """Whether any value is set."""
        values = to_mapping(self).items()
        return any(value is not None for name, value in values if name != "provenance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How many of what are in what."""

    gpus_per_node: int | None = opt(None, "GPUs of a node; 0 = none", low=0, high=4096)
    nodes_per_rack: int | None = opt(None, "Nodes of a rack", low=1, high=65_536)
    racks: int | None = opt(None, "Racks of the cluster", low=1, high=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hbm(_Section):
    """Memory of one GPU."""

    capacity_bytes: int | None = _size("Memory of the GPU")
    bytes_per_s: float | None = _rate("Bandwidth of that memory")
    latency_us: float | None = _delay("Time per access")
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(_Section):
    """Arithmetic of one GPU, without sparsity."""

    flop_per_s: float | None = opt(None, "Peak, dense", unit="FLOP/s", above=0, high=1e21)
    dtype: str | None = opt(None, "Type of the operands: bf16, fp8")
    fp8_flop_per_s: float | None = opt(
        None, "Peak of FP8 operands, beside that of 16 bits", unit="FLOP/s", above=0, high=1e21
    )
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A kind of GPU."""

    hbm: Hbm = field(default_factory=Hbm)
    compute: Compute = field(default_factory=Compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dram(_Section):
    """Memory of one node. A copied byte is read once and written once, and counts once."""

    capacity_bytes: int | None = _size("Memory of the node")
    copy_bytes_per_s: float | None = _rate("Copying, all cores together")
    copy_one_thread_bytes_per_s: float | None = _rate("Copying by one thread")
    latency_us: float | None = _delay("Time per copy, before its bytes")
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(_Section):
    """PCIe or NVLink: of one GPU, in each direction."""

    bytes_per_s: float | None = _rate("Bandwidth in each direction")
    latency_us: float | None = _delay("Time before the first byte")
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(_Section):
    """The network of one node, in each direction, all its ports together."""

    bytes_per_s: float | None = _rate("Bandwidth in each direction")
    latency_us: float | None = _delay("Time before the first byte, in the rack")
    cross_rack_latency_us: float | None = _delay("The same, to another rack")
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(_Section):
    """Memory or storage behind a fabric: the pool of a rack, the remote store of the cluster."""

    capacity_bytes: int | None = _size("Room")
    read_bytes_per_s: float | None = _rate("Reads, all clients together")
    write_bytes_per_s: float | None = _rate("Writes, all clients together")
    latency_us: float | None = _delay("Time before the first byte")
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage(_Section):
    """A drive of a node: a probe file (curves by size, depth and mix), or constants."""

    probe: str | None = opt(None, "What probe wrote; a relative path is beside this file")
    probe_sha256: str | None = opt(None, "Digest of that file")
    capacity_bytes: int | None = _size("Room")
    read_bytes_per_s: float | None = _rate("Reads, without a probe file")
    write_bytes_per_s: float | None = _rate("Writes, without a probe file")
    read_latency_us: float | None = _delay("Time before a read's first byte")
    write_latency_us: float | None = _delay("Time before a write's first byte")
    provenance: Provenance = field(default_factory=Provenance)


Section = Hbm | Compute | Dram | Link | Nic | Pool | Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a file says."""

    name: str | None = opt(None, "What it is called")
    description: str | None = opt(None, "For a reader")
    topology: Topology = field(default_factory=Topology)
    gpus: Mapping[str, Gpu] = opt({}, "Kinds of GPU")
    dram: Dram = field(default_factory=Dram)
    pcie: Link = field(default_factory=Link)
    nvlink: Link = field(default_factory=Link)
    nic: Nic = field(default_factory=Nic)
    rack_pool: Pool = field(default_factory=Pool)
    remote: Pool = field(default_factory=Pool)
    storage: Mapping[str, Storage] = opt({}, "Drives of a node")

    def sections(self) -> Iterator[tuple[str, Any]]:
        """Each section with its dotted name, whether it was given or not."""
        for kind, gpu in self.gpus.items():
            yield f"gpus.{kind}.hbm", gpu.hbm
            yield f"gpus.{kind}.compute", gpu.compute
        for name in ("dram", "pcie", "nvlink", "nic", "rack_pool", "remote"):
            yield name, getattr(self, name)
        for name, storage in self.storage.items():
            yield f"storage.{name}", storage


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile(Sheet):
    """A checked file. `curves` holds the probe of each storage that was measured, by its name;
    `file` is what messages call it."""

    file: str
    sha256: str | None = None
    curves: Mapping[str, Profile] = field(default_factory=dict)

    def require(self, path: str) -> Any:
        """The value at a dotted path. Raises ConfigError where nobody gave it."""
        value: Any = self
        for word in path.split("."):
            value = value.get(word) if isinstance(value, Mapping) else getattr(value, word, None)
        if value is None:
            raise ConfigError(
                f"hardware {self.file}: {path} is missing, and is needed here; give it in an "
                "overlay (kv-cache.py calibrate --overlay FILE), with its source and date"
            )
        return value

    def describe(self) -> Mapping[str, Any]:
        """What a result says about the profile it was computed with."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "name": self.name,
            "sections": {
                name: {"state": state_of(section), **to_mapping(section.provenance)}
                for name, section in self.sections()
                if section.has_values
            },
        }


def state_of(section: Any) -> str:
    """measured, overlay, unsourced or missing."""
    if not section.has_values:
        return "missing"
    if not section.provenance.sourced:
        return "unsourced"
    return str(section.provenance.how)


# --- reading ---------------------------------------------------------------------------------


def read_hardware(path: str | Path) -> HardwareProfile:
    """The checked profile of a file, and of the probe files that it names. Raises ConfigError."""
    file = Path(path)
    sheet = read_sheet(file)
    curves = {}
    for name, storage in sheet.storage.items():
        if storage.probe is not None:
            curves[name] = _curves(file, name, storage)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return hardware_of(sheet, str(path), curves, digest)


def hardware_of(
    sheet: Sheet, where: str, curves: Mapping[str, Profile], sha256: str | None = None
) -> HardwareProfile:
    """A whole profile: what a sheet says must hold together. Raises ConfigError."""
    _check_topology(sheet, where)
    for name, storage in sheet.storage.items():
        if (storage.probe is not None) is not (name in curves):
            raise ConfigError(
                f"hardware {where}: storage.{name} has {'no' if storage.probe is None else 'a'} "
                "probe file, and its curves say otherwise; give both or neither"
            )
    values = {f.name: getattr(sheet, f.name) for f in fields(sheet)}
    return HardwareProfile(file=where, sha256=sha256, curves=dict(curves), **values)


def read_sheet(file: Path) -> Sheet:
    """What a file says, part of a profile (an overlay) or all of it. Raises ConfigError."""
    return sheet_of(_json(file) if file.suffix == ".json" else read_yaml(file), str(file))


def sheet_of(values: object, where: str) -> Sheet:
    """Plain values, each checked by itself. Raises ConfigError."""
    instead = "give a file that kv-cache.py calibrate wrote, or an overlay with that schema"
    document = of_schema(values, SCHEMA, f"hardware {where}", instead)
    plain = _plain({key: value for key, value in document.items() if key != "schema"})
    _check_units(Sheet, plain, f"hardware {where}", "")
    sheet = from_mapping(Sheet, plain, f"hardware {where}")
    for kind in ("gpus", "storage"):
        for name in getattr(sheet, kind):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"hardware {where}: {kind} has {show(name)}; a name has letters, digits, - "
                    "and _, and no dot, which stands between sections"
                )
    for path, section in sheet.sections():
        _check_provenance(section.provenance, f"hardware {where}: {path}.provenance")
    for name, storage in sheet.storage.items():
        _check_storage(storage, f"hardware {where}: storage.{name}")
    return sheet


def _json(file: Path) -> object:
    def once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table:
                raise ConfigError(f"{file}: duplicate key {show(key)}; keep one")
            table[key] = value
        return table

    try:
        return json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=once)
    except OSError as error:
        reason = os_reason(error)
        raise ConfigError(f"{file} cannot be read: {reason}; give a readable file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}); give JSON, or YAML as .yaml") from None


def _curves(file: Path, name: str, storage: Storage) -> Profile:
    path = file.parent / str(storage.probe)
    profile = read_profile(path)
    digest = profile.facts.get("sha256")
    if storage.probe_sha256 is not None and storage.probe_sha256 != digest:
        raise ConfigError(
            f"hardware {file}: storage.{name}.probe is {storage.probe}, whose SHA-256 is "
            f"{str(digest)[:12]}… and not {storage.probe_sha256[:12]}…: it was changed since; run "
            "kv-cache.py calibrate again"
        )
    return profile


def _plain(value: object) -> object:
    """Dates of YAML as text, and whole floats (80e9) as the whole numbers they are."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


_NAME = re.compile(r"[A-Za-z0-9_-]+")
_UNITS = ("_bytes_per_s", "_flop_per_s", "_bytes", "_us")
_WRONG_UNIT = re.compile(
    r"(^|_)(gbps|gbits?|gbytes?_per_s|gb_per_s|gb_s|mb_per_s|mbps|tflops?|tflop_per_s|flops|gib|gb"
    r"|mb|tb|ms|ns|s|bytes|bandwidth)$",
    re.IGNORECASE,
)


def _check_units(cls: type[Any], values: object, where: str, path: str) -> None:
    """Keys with no unit or another one, and values that bring their own, at any depth: what the
    schema refuses anyway, with the reason."""
    if not isinstance(values, Mapping):
        return
    hints = get_type_hints(cls)
    hints = {f.name: hints[f.name] for f in fields(cls)}
    for key, value in values.items():
        at = f"{path}.{key}" if path else str(key)
        if isinstance(key, str) and key not in hints:
            _check_unit_of(key, hints, f"{where}: {at}")
        hint = hints.get(key)
        if is_dataclass(hint) and isinstance(hint, type):
            _check_units(hint, value, where, at)
        elif get_origin(hint) is not None and is_dataclass(get_args(hint)[-1]):
            for name, inner in value.items() if isinstance(value, Mapping) else ():
                _check_units(get_args(hint)[-1], inner, where, f"{at}.{name}")
        elif isinstance(value, str) and isinstance(key, str) and f"_{key}".endswith(_UNITS):
            raise ConfigError(
                f"{where}: {at} is {show(value)}; it must be a number, whose unit is the key's"
            )


def _check_unit_of(key: str, hints: Mapping[str, Any], at: str) -> None:
    known = [name for name in hints if f"_{name}".endswith(_UNITS)]
    bare = [name for name in known if any(name == f"{key}{unit}" for unit in _UNITS)]
    if bare:
        raise ConfigError(
            f"{at} has no unit in its name, and is not a known key.{did_you_mean(bare[0], bare)}"
        )
    if known and _WRONG_UNIT.search(key) and not did_you_mean(key, hints).startswith(" Did"):
        raise ConfigError(
            f"{at} is not a known key: values are in bytes, bytes_per_s, flop_per_s or us, as the "
            f"keys say.{did_you_mean(_WRONG_UNIT.sub('', key) or key, known)}"
        )


def _check_provenance(provenance: Provenance, at: str) -> None:
    if provenance.date is not None:
        try:
            date.fromisoformat(provenance.date)
        except ValueError:
            raise ConfigError(
                f"{at}.date is {show(provenance.date)}; it must be a day such as 2026-11-22"
            ) from None
    if provenance.how == MEASURED and not provenance.sourced:
        missing = "source" if provenance.source is None else "date"
        raise ConfigError(f"{at}.how is measured, so {missing} must say by what and when; add it")


def _check_storage(storage: Storage, at: str) -> None:
    constants = ("read_bytes_per_s", "write_bytes_per_s", "read_latency_us", "write_latency_us")
    if storage.probe is None:
        if storage.probe_sha256 is not None:
            raise ConfigError(f"{at}.probe_sha256 is of no file; give probe too, or leave it out")
        if storage.provenance.how == MEASURED:
            raise ConfigError(
                f"{at}.provenance.how is measured, but there is no probe file; measure it with "
                "kv-cache.py calibrate, or call it an overlay"
            )
        return
    for name in constants:
        if getattr(storage, name) is not None:
            raise ConfigError(
                f"{at} has a probe file and {name}: what was measured is not overlaid; leave one "
                "of them out"
            )


def _check_topology(sheet: Sheet, where: str) -> None:
    """Raises ConfigError where two things that were given cannot both be."""
    gpus, at = sheet.topology.gpus_per_node, f"hardware {where}"
    if sheet.nvlink.has_values and (gpus is None or gpus < 2):
        state = "is not given" if gpus is None else f"is {gpus}"
        raise ConfigError(
            f"{at}: nvlink is given, but topology.gpus_per_node {state}: it joins GPUs of one "
            "node, of which there must be 2 at least; correct the one or leave out the other"
        )
    if gpus == 0 and (sheet.gpus or sheet.pcie.has_values):
        what = "gpus" if sheet.gpus else "pcie"
        raise ConfigError(
            f"{at}: {what} is given, but topology.gpus_per_node is 0; correct the one or leave out "
            "the other"
        )
    racks, nodes = sheet.topology.racks, sheet.topology.nodes_per_rack
    if racks == 1 and sheet.nic.cross_rack_latency_us is not None:
        raise ConfigError(
            f"{at}: nic.cross_rack_latency_us is given, but topology.racks is 1; correct the one "
            "or leave out the other"
        )
    if sheet.rack_pool.has_values and racks is None and nodes is None:
        raise ConfigError(
            f"{at}: rack_pool is given, but topology.nodes_per_rack is not: nobody can tell whose "
            "pool it is; add it"
        )
    for kind, gpu in sheet.gpus.items():
        slower = gpu.hbm.bytes_per_s
        for name, link in (("pcie", sheet.pcie), ("nvlink", sheet.nvlink)):
            if slower is not None and (link.bytes_per_s or 0) > slower:
                raise ConfigError(
                    f"{at}: {name}.bytes_per_s of {link.bytes_per_s:g} is above "
                    f"gpus.{kind}.hbm.bytes_per_s of {slower:g}, which it is filled from; one of "
                    "them has another unit than bytes/s"
                )
    dram = sheet.dram
    if (dram.copy_one_thread_bytes_per_s or 0) > 1.1 * (dram.copy_bytes_per_s or 1e17):
        raise ConfigError(
            f"{at}: dram.copy_one_thread_bytes_per_s is above copy_bytes_per_s, which is that of "
            "all cores together; correct one of them"
        )


# --- putting together ------------------------------------------------------------------------


def overlaid(base: Sheet, over: Sheet, where: str) -> Sheet:
    """`base` with the sections of an overlay, each taken whole. Raises ConfigError where the
    overlay would replace what was measured, or claims to have measured."""
    taken: dict[str, Any] = {}
    for part in fields(base):
        old, new = getattr(base, part.name), getattr(over, part.name)
        at = f"hardware {where}: {part.name}"
        if isinstance(new, Mapping):
            taken[part.name] = {
                **old,
                **{k: _over(old.get(k), v, f"{at}.{k}") for k, v in new.items()},
            }
        elif isinstance(new, Topology):
            counts = {name: count for name, count in asdict(new).items() if count is not None}
            taken[part.name] = replace(old, **counts)
        else:
            taken[part.name] = _over(old, new, at)
    return Sheet(**taken)


def _over(old: Any, new: Any, at: str) -> Any:
    if isinstance(new, Gpu):
        known = Gpu() if old is None else old
        return Gpu(
            hbm=_over(known.hbm, new.hbm, f"{at}.hbm"),
            compute=_over(known.compute, new.compute, f"{at}.compute"),
        )
    if not isinstance(new, _Section):
        return old if new is None else new
    if not new.has_values:
        return old
    if new.provenance.how == MEASURED:
        raise ConfigError(
            f"{at} claims to be measured, but an overlay is not measured here; call it an overlay "
            "and name its source"
        )
    if old is not None and old.has_values and old.provenance.how == MEASURED:
        raise ConfigError(
            f"{at} was measured here, and an overlay is for what was not; leave it out of the "
            "overlay, or do not measure it"
        )
    return new


# --- writing ---------------------------------------------------------------------------------


def hardware_text(profile: HardwareProfile) -> str:
    """YAML that reads back to an equal profile, if the probe files are there."""
    tree: dict[str, Any] = {"schema": SCHEMA}
    for part in fields(Sheet):
        plain = to_mapping(getattr(profile, part.name))
        named = isinstance(plain, Mapping) and part.name in ("gpus", "storage")
        value = (
            {name: _without_nothing(inner) for name, inner in plain.items()}
            if named
            else _without_nothing(plain)
        )
        if value not in (None, {}):
            tree[part.name] = value
    return f"{HEADER}\n{yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)}"


def _without_nothing(value: Any) -> Any:
    """Without what was not given. A provenance stands only beside values."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_nothing(inner) for key, inner in value.items()}
    kept = {key: inner for key, inner in kept.items() if inner is not None and inner != {}}
    return {} if set(kept) == {"provenance"} else kept


# --- readiness -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionState:
    """What is known of one section, and from where."""

    name: str
    state: str
    source: str | None
    date: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A question, how well the profile can carry it at most, and why not better."""

    question: str
    level: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Which sections are there, and so which questions can be asked."""

    sections: tuple[SectionState, ...]
    questions: tuple[Carried, ...]


_ASKED = (
    ("storage of one node: bandwidth, hits, load times", ("storage.*", "dram")),
    ("offload or compute again (TTFT)", ("storage.*", "dram", "gpus.*.compute", "gpus.*.hbm",
                                         "pcie")),
    ("prefill and decode apart: P:D ratio, transfers",
     ("gpus.*.compute", "gpus.*.hbm", "nic", "nvlink?")),
    ("size of a rack pool", ("rack_pool", "nic", "gpus.*.compute", "gpus.*.hbm")),
    ("a remote store", ("remote", "nic", "storage.*")),
)  # fmt: skip
"""Questions, and what they need; `?` = only where a node has several GPUs."""


def readiness(profile: HardwareProfile) -> Readiness:
    """high: all that a question needs was measured; medium: measured, or an overlay with source
    and date; low: something is missing or nobody knows from where it is."""
    sections = dict(profile.sections())
    states = [
        SectionState(
            name=name,
            state=state_of(section),
            source=section.provenance.source if section.has_values else None,
            date=section.provenance.date if section.has_values else None,
        )
        for name, section in sections.items()
    ]
    names = {state.name for state in states}
    for wanted in ("gpus.*.hbm", "gpus.*.compute", "storage.*"):
        if not any(fnmatchcase(name, wanted) for name in names):
            states.append(SectionState(name=wanted, state="missing", source=None, date=None))
    questions = [_carried(question, needs, states, profile) for question, needs in _ASKED]
    return Readiness(sections=tuple(states), questions=tuple(questions))


def _carried(
    question: str, needs: Sequence[str], states: Sequence[SectionState], profile: HardwareProfile
) -> Carried:
    level, reasons = "high", []
    for need in needs:
        if need.endswith("?") and (profile.topology.gpus_per_node or 1) < 2:
            continue
        for one in (state for state in states if fnmatchcase(state.name, need.removesuffix("?"))):
            if one.state in ("missing", "unsourced"):
                level = "low"
                reasons.append(f"{one.name} is {one.state}")
            elif one.state == OVERLAY:
                level = "medium" if level == "high" else level
                reasons.append(f"{one.name} is not measured here")
    return Carried(question=question, level=level, reasons=tuple(reasons))


def readiness_text(profile: HardwareProfile) -> str:
    """The list for a person."""
    ready = readiness(profile)
    width = max(len(one.name) for one in ready.sections) + 2
    lines = ["sections"]
    for one in ready.sections:
        source = ", ".join(word for word in (one.source, one.date) if word)
        lines.append(f"  {one.name:<{width}}{one.state:<11}{source}".rstrip())
    lines.append("questions, and how well this profile carries them at most")
    for each in ready.questions:
        why = f"  ({'; '.join(each.reasons)})" if each.reasons else ""
        lines.append(f"  {each.level:<8}{each.question}{why}")
    return "\n".join(lines)
