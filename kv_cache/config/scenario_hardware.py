"""The hardware of a scenario, as files that describe it have it.

A `profile` is a probe file (tiers alone) or a hardware profile. Of the latter a tier takes the
section of its own name (`nvme`: the one drive of `storage`): curves where it was measured, else
constants in place of the scenario's bandwidths and latencies. A group of instances takes its one
kind of GPU, whose memory is divided; the network takes links, the topology takes counts. A
bandwidth that nobody gave is asked for; a latency that nobody gave is 0, as for `predict`.

It must never change what has no profile, nor a tier's capacity: that is the scenario's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct

from kv_cache.config.hardware import (
    MEASURED,
    OVERLAY,
    HardwareProfile,
    Section,
    Topology,
    state_of,
)
from kv_cache.config.profile import Profile
from kv_cache.config.scenario import (
    InstanceSection,
    LinkSection,
    ModelSection,
    NetworkSection,
    Scenario,
    TierSection,
    TopologySection,
)
from kv_cache.config.scenario_rules import (
    TIERS,
    kv_bytes_per_token,
    lower_tiers,
    model_shape,
    parameters,
)
from kv_cache.core.errors import ConfigError
from kv_cache.core.units import BYTES_PER_GB, GIB, NS_PER_US

Read = Callable[[str], Profile | HardwareProfile]

_FP8_BITS = 8
_LINKS = ("nvlink", "pcie", "nic")
_OF_A_DEVICE = ("gbytes_per_s", "latency_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGroup:
    """The GPUs of one instance, which share each layer, and how all their memory is divided.

    `kv_copies`: how often a token's state is there: more than once where GPUs outnumber KV heads,
    and of a latent on every GPU. `link_*`: of one GPU to the others, each way."""

    gpus: int
    weights_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_copies: float
    link_bytes_per_s: float
    link_latency_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedScenario:
    """A scenario with constants where its profiles have those; the curves of measured devices by
    the names of their tiers, and GPUs by the names of their groups."""

    scenario: Scenario
    curves: Mapping[str, Profile]
    gpus: Mapping[str, GpuGroup]


def described(scenario: Scenario, read: Read) -> DescribedScenario:
    """The scenario as its profiles have it. Raises ConfigError."""
    curves: dict[str, Profile] = {}
    tiers: dict[str, Any] = {}
    for name in TIERS:
        tier = getattr(scenario.tiers, name)
        if tier.profile is None:
            continue
        profile = read(tier.profile)
        if isinstance(profile, Profile):
            curves[name] = profile
            continue
        drive = _drive(profile) if name == "nvme" else ""
        if drive in profile.curves:
            curves[name] = profile.curves[drive]
        else:
            tiers[name] = _constants(tier, profile, f"storage.{drive}" if drive else name)
    gpus: dict[str, GpuGroup] = {}
    groups = dict(scenario.instances)
    for name, group in groups.items():
        if group.profile is not None:
            hardware = _hardware(read, group.profile, f"instances.{name}.profile")
            gpus[name] = _gpus(group, scenario.model, hardware, f"instances.{name}")
            groups[name] = _instance(group, scenario.model, hardware, gpus[name])
    return DescribedScenario(
        scenario=replace(
            scenario,
            tiers=replace(scenario.tiers, **tiers),
            instances=groups,
            network=_network(scenario, read),
            topology=_topology(scenario, read),
        ),
        curves=curves,
        gpus=gpus,
    )


def replaced_by(option: str, profile: Profile | HardwareProfile) -> list[str]:
    """Return the options whose place a profile takes that stands in `option`."""
    section, names = option.removesuffix(".profile"), list[str]()
    if section.startswith("tiers."):
        names = [f"{way}_{what}" for way in ("read", "write") for what in _OF_A_DEVICE]
    elif section.startswith("instances."):
        names = ["hbm_gib", "tflops", "hbm_gbytes_per_s"]
    elif isinstance(profile, HardwareProfile) and section == "network":
        links = [name for name in _LINKS if getattr(profile, name).has_values]
        names = [f"{name}.{field}" for name in links for field in _OF_A_DEVICE]
        if profile.nic.cross_rack_latency_us is not None:
            names.append("uplink.latency_us")
    elif isinstance(profile, HardwareProfile):
        there = profile.topology
        counts = (there.racks, there.nodes_per_rack, there.gpus_per_node)
        places = ("racks", "nodes_per_rack", "instances_per_node")
        names = [name for name, count in zip(places, counts, strict=True) if count is not None]
    return [f"{section}.{name}" for name in names]


def _hardware(read: Read, path: str, option: str) -> HardwareProfile:
    profile = read(path)
    if isinstance(profile, HardwareProfile):
        return profile
    raise ConfigError(
        f"{option} is {path}, the file of one device; give a hardware profile, as "
        "kv-cache.py calibrate writes"
    )


class HardwareUsed(Struct, frozen=True, kw_only=True):
    """A part of a scenario's hardware that a file describes. Its `state` is as `calibrate` says
    it: measured, overlay or unsourced (counts, which have no source in a profile, are an overlay);
    every part without a file is assumed by the scenario."""

    part: str
    file: str
    sha256: str | None
    state: str
    source: str | None
    date: str | None


def hardware_used(scenario: Scenario, read: Read) -> list[HardwareUsed]:
    """Return the parts that are as a profile has them, and where that is from; not what nothing
    reads. Raises ConfigError."""
    used: list[HardwareUsed] = []
    for name in lower_tiers(scenario):
        path = getattr(scenario.tiers, name).profile
        if path is not None:
            used.append(_used_tier(name, path, read(path)))
    for name, group in scenario.instances.items():
        if group.profile is not None:
            hardware = _hardware(read, group.profile, f"instances.{name}.profile")
            gpu = hardware.gpus[_kind(hardware)]
            sections: dict[str, Section] = {"hbm": gpu.hbm}
            if group.compute == "roofline":
                sections["compute"] = gpu.compute
            if _adds_up(group):
                sections["nvlink"] = hardware.nvlink
            used += _used(f"instances.{name}", group.profile, hardware, sections)
    if scenario.network.profile is not None:
        hardware = _hardware(read, scenario.network.profile, "network.profile")
        links = {name: getattr(hardware, name) for name in _LINKS}
        used += _used("network", scenario.network.profile, hardware, links)
    if scenario.topology.profile is not None:
        hardware = _hardware(read, scenario.topology.profile, "topology.profile")
        if hardware.topology != Topology():
            used.append(
                HardwareUsed(
                    part="topology", file=scenario.topology.profile, sha256=hardware.sha256,
                    state=OVERLAY, source=None, date=None,
                )
            )  # fmt: skip
    return used


def _used_tier(name: str, file: str, profile: Profile | HardwareProfile) -> HardwareUsed:
    if isinstance(profile, Profile):
        facts = profile.describe()
        source, date = facts["model"] or facts["device"], facts["measured_utc"]
        return HardwareUsed(
            part=f"tiers.{name}", file=file, sha256=facts["sha256"], state=MEASURED,
            source=source, date=date,
        )  # fmt: skip
    section = profile.storage[_drive(profile)] if name == "nvme" else getattr(profile, name)
    (used,) = _used("tiers", file, profile, {name: section})
    return used


def _used(
    where: str, file: str, profile: HardwareProfile, sections: Mapping[str, Section]
) -> list[HardwareUsed]:
    return [
        HardwareUsed(
            part=f"{where}.{name}", file=file, sha256=profile.sha256, state=state_of(section),
            source=section.provenance.source, date=section.provenance.date,
        )
        for name, section in sections.items()
        if section.has_values
    ]  # fmt: skip


# --- tiers -----------------------------------------------------------------------------------


def _drive(hardware: HardwareProfile) -> str:
    """Measured or not."""
    return _only(hardware, "storage", "a tier nvme is one kind of drive")


def _only(hardware: HardwareProfile, table: str, why: str) -> str:
    names = getattr(hardware, table)
    if len(names) == 1:
        return str(next(iter(names)))
    has = ", ".join(names) or "none"
    raise ConfigError(
        f"hardware {hardware.file}: {why}, and {table} in it has {has}; give a file with the one "
        "that is meant"
    )


def _constants(tier: TierSection, hardware: HardwareProfile, path: str) -> TierSection:
    section = hardware.storage[path.split(".")[1]] if "." in path else getattr(hardware, path)
    if path == "dram":  # a copied byte is read once and written once, and counts once
        reads = writes = hardware.require("dram.copy_bytes_per_s")
    else:
        reads = hardware.require(f"{path}.read_bytes_per_s")
        writes = hardware.require(f"{path}.write_bytes_per_s")
    both = getattr(section, "latency_us", None)
    return replace(
        tier,
        profile=None,
        read_gbytes_per_s=reads / BYTES_PER_GB,
        write_gbytes_per_s=writes / BYTES_PER_GB,
        read_latency_us=both or getattr(section, "read_latency_us", None) or 0.0,
        write_latency_us=both or getattr(section, "write_latency_us", None) or 0.0,
    )


# --- GPUs ------------------------------------------------------------------------------------


def _kind(hardware: HardwareProfile) -> str:
    return _only(hardware, "gpus", "a group of instances has one kind of GPU")


def _gpus(
    group: InstanceSection, model: ModelSection, hardware: HardwareProfile, path: str
) -> GpuGroup:
    """Divide the memory of one instance: weights, activations, and the rest for KV state. Raises
    ConfigError where the model does not fit, and says how many GPUs would do."""
    count, shape = group.tensor_parallel, model_shape(model)
    if shape.num_heads % count:
        raise ConfigError(
            f"{path}.tensor_parallel is {count}, but the {shape.num_heads} heads of {model.name} "
            "are split evenly; give a divisor of them"
        )
    node = hardware.topology.gpus_per_node
    if node is not None and count > node:
        raise ConfigError(
            f"{path}.tensor_parallel is {count}, but a node of {hardware.file} has {node} GPUs, "
            "and layers are shared inside of one; give at most as many"
        )
    kind = _kind(hardware)
    capacity = hardware.require(f"gpus.{kind}.hbm.capacity_bytes")
    weights = round(parameters(model).total_billion * 1e9 * model.weight_bits / 8)
    block = kv_bytes_per_token(model) * model.block_tokens

    def room(gpus: int) -> int:
        return int(gpus * capacity * (1 - group.activation_share)) - weights

    copies = count * shape.rank_bytes(block, count) / block
    if room(count) < block * copies:
        enough = [n for n in range(count, shape.num_heads + 1) if shape.num_heads % n == 0]
        fitting = [n for n in enough if room(n) >= n * shape.rank_bytes(block, n)]
        way_out = f"tensor_parallel {fitting[0]} would do" if fitting else "lower model.weight_bits"
        raise ConfigError(
            f"{path}: the weights of {model.name} are {weights / 1e9:,.1f} GB, and leave no block "
            f"of {count} x {capacity / 1e9:,.1f} GB less activation_share "
            f"{group.activation_share:g}; {way_out}"
        )
    shared = _adds_up(group)
    return GpuGroup(
        gpus=count,
        weights_bytes=weights,
        activation_bytes=int(count * capacity) - weights - room(count),
        kv_bytes=room(count),
        kv_copies=copies,
        link_bytes_per_s=hardware.require("nvlink.bytes_per_s") if shared else 0.0,
        link_latency_ns=(hardware.nvlink.latency_us or 0.0) * NS_PER_US if shared else 0.0,
    )


def _adds_up(group: InstanceSection) -> bool:
    """Whether adding up what several GPUs computed takes a time of its own: rates and tables have
    it."""
    return group.compute == "roofline" and group.tensor_parallel > 1


def _instance(
    group: InstanceSection, model: ModelSection, hardware: HardwareProfile, gpus: GpuGroup
) -> InstanceSection:
    """The group with the memory and the peaks of its GPUs together."""
    kind = _kind(hardware)
    flops, rate = group.tflops * 1e12, group.hbm_gbytes_per_s * BYTES_PER_GB
    if group.compute == "roofline":
        compute = hardware.gpus[kind].compute
        peak = compute.fp8_flop_per_s if model.weight_bits == _FP8_BITS else None
        flops = gpus.gpus * (peak or hardware.require(f"gpus.{kind}.compute.flop_per_s"))
        rate = gpus.gpus * hardware.require(f"gpus.{kind}.hbm.bytes_per_s")
    return replace(
        group,
        profile=None,
        hbm_gib=gpus.kv_bytes / gpus.kv_copies / GIB,
        tflops=flops / 1e12,
        hbm_gbytes_per_s=rate / BYTES_PER_GB,
    )


# --- links and counts --------------------------------------------------------------------------


def _network(scenario: Scenario, read: Read) -> NetworkSection:
    """Links of instances have the bandwidth of the GPUs of the smallest one. A way between nodes
    has a card at each end, and one between racks two uplinks: each has half of the latency."""
    network = scenario.network
    if network.profile is None:
        return network
    hardware = _hardware(read, network.profile, "network.profile")
    links = [name for name in _LINKS if getattr(hardware, name).has_values]
    default = NetworkSection()
    _refuse_both("network", network, default, "network", network.profile, links)
    gpus = min((group.tensor_parallel for group in scenario.instances.values()), default=1)
    nic, uplink = hardware.nic, network.uplink
    if nic.cross_rack_latency_us is not None:
        _refuse_both(
            "network.uplink", uplink, default.uplink, "network", network.profile, ["latency_us"]
        )
        beyond_us = max(0.0, nic.cross_rack_latency_us - (nic.latency_us or 0.0))
        uplink = replace(uplink, latency_us=beyond_us / 2)
    return replace(
        network,
        profile=None,
        nvlink=_link(hardware, "nvlink", gpus, 1) if "nvlink" in links else network.nvlink,
        pcie=_link(hardware, "pcie", gpus, 1) if "pcie" in links else network.pcie,
        nic=_link(hardware, "nic", 1, 2) if "nic" in links else network.nic,
        uplink=uplink,
    )


def _link(hardware: HardwareProfile, name: str, times: int, ends: int) -> LinkSection:
    rate = times * hardware.require(f"{name}.bytes_per_s")
    latency_us = getattr(hardware, name).latency_us or 0.0
    return LinkSection(gbytes_per_s=rate / BYTES_PER_GB, latency_us=latency_us / ends)


def _topology(scenario: Scenario, read: Read) -> TopologySection:
    """The counts that the profile has; an instance takes the place of as many GPUs as it has."""
    topology = scenario.topology
    if topology.profile is None:
        return topology
    there = _hardware(read, topology.profile, "topology.profile").topology
    each = max((group.tensor_parallel for group in scenario.instances.values()), default=1)
    counts = {"racks": there.racks, "nodes_per_rack": there.nodes_per_rack}
    if there.gpus_per_node is not None:
        if there.gpus_per_node < each:
            raise ConfigError(
                f"topology.profile {topology.profile} has {there.gpus_per_node} GPUs in a node, "
                f"but an instance has {each} (tensor_parallel), and no place; lower it, or give "
                "another profile"
            )
        counts["instances_per_node"] = there.gpus_per_node // each
    known = {name: count for name, count in counts.items() if count is not None}
    _refuse_both("topology", topology, TopologySection(), "topology", topology.profile, list(known))
    return TopologySection(
        racks=known.get("racks", topology.racks),
        nodes_per_rack=known.get("nodes_per_rack", topology.nodes_per_rack),
        instances_per_node=known.get("instances_per_node", topology.instances_per_node),
    )


def _refuse_both(
    path: str, section: object, default: object, of: str, profile: str, names: Sequence[str]
) -> None:
    """Raises ConfigError where the scenario sets what its profile has too."""
    for name in names:
        if getattr(section, name) != getattr(default, name):
            raise ConfigError(
                f"{path}.{name} is given, and {of}.profile {profile} has it too; leave one of "
                "them out"
            )
