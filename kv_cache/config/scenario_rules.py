"""Rules that hold between the options of a scenario, where each option alone is fine.

`check` refuses what cannot be simulated. `not_read` finds what is set and has no effect, because a
choice that is made elsewhere does not look at it. What a size of 0 turns off is no such thing: it
may stay as it is. Whether links are there is for the topology to say.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kv_cache.config.lengths import build_lengths
from kv_cache.config.scenario import (
    LengthsSection,
    ModelSection,
    Scenario,
    SloSection,
    TierSection,
    WireSection,
    WorkloadSection,
)
from kv_cache.config.schema import describe, show
from kv_cache.config.unread import Condition, Fact, conditions_of, holds, unread, value_at
from kv_cache.config.yaml_files import read_model
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.model import DTYPE_BITS, MODELS, PARAMETERS, ModelShape, Parameters
from kv_cache.core.residency import Residency, parts_of, read_residency
from kv_cache.core.units import GIB, s_to_ns
from kv_cache.workload.formats.base import MAX_TIME_NS
from kv_cache.workload.lengths import whole

TIERS = ("dram", "rack_pool", "nvme", "remote")
_ALLOWED_SCOPES: Mapping[str, tuple[str, ...]] = {
    "dram": ("device", "node"),
    "rack_pool": ("device", "node", "rack"),
    "nvme": ("device", "node", "rack", "cluster"),
    "remote": ("cluster",),
}
_PLAIN_BITS = 16
"""Of an element, where only the bytes of a token are given."""
_END = re.compile(r"(instance|node|rack):(0|[1-9][0-9]{0,9})|core")


def model_shape(model: ModelSection) -> ModelShape:
    """The geometry of the model: a built-in one, or that of a Hugging Face config.json.

    Raises ConfigError.
    """
    if model.name in MODELS:
        shape = MODELS[model.name]
    elif Path(model.name).exists():
        shape = read_model(Path(model.name), model.kv_bytes_per_token)
    else:
        raise ConfigError(
            f"model.name is {show(model.name)}; it must be a built-in model, or the path of a "
            f"Hugging Face config.json.{did_you_mean(model.name, MODELS)}"
        )
    return shape if model.kv_dtype is None else replace(shape, dtype=model.kv_dtype)


def kv_bytes_per_token(model: ModelSection) -> int:
    """What is given, or what the geometry says. Raises ConfigError."""
    return model.kv_bytes_per_token or model_shape(model).bytes_per_token


def tier_residency(scenario: Scenario, tier: str) -> Residency | None:
    """Return how blocks lie in a tier; None: as in HBM. Raises ConfigError."""
    section = getattr(scenario.tiers, tier, None)
    if section is None or section.residency is None:
        return None
    where, group = f"tiers.{tier}.residency", section.quant_group
    held = read_residency(section.residency, where, group=group, costs_ns=section.dequant)
    for name in section.dequant:
        if name not in (of for _, of in parts_of(held.name)):
            raise ConfigError(
                f"tiers.{tier}.dequant has {name}, in which the tier holds nothing; leave it out"
            )
    return held


def block_sizes(scenario: Scenario) -> dict[str, int]:
    """Return the bytes of a block as it lies in HBM (`hbm`) and in each tier that is there. Raises
    ConfigError."""
    return {tier: held_block_bytes(scenario, tier) for tier in ("hbm", *lower_tiers(scenario))}


def held_block_bytes(scenario: Scenario, tier: str) -> int:
    """Return the bytes of a block as it lies in a tier, `hbm` among them. Raises ConfigError."""
    model, held = scenario.model, tier_residency(scenario, tier)
    block = kv_bytes_per_token(model) * model.block_tokens
    if held is None:
        return block
    bits = _PLAIN_BITS if model.kv_bytes_per_token else DTYPE_BITS[model_shape(model).dtype]
    return held.nbytes(block, bits)


def parameters(model: ModelSection) -> Parameters:
    """Weights of the model: what is given, else a built-in model's own. Of a mixture whose experts
    nobody knows all weights are in them. Raises ConfigError."""
    known = PARAMETERS.get(model.name)
    if model.params_billion is not None:
        known = Parameters(model.params_billion, model.params_billion)
    if known is None:
        raise ConfigError(
            f"model.params_billion is not given, and nothing says how many weights {model.name} "
            "has; give those that a token of it passes through"
        )
    total = model.total_params_billion or known.total_billion
    if total < known.active_billion:
        raise ConfigError(
            f"model.total_params_billion is {total:g}, less than the {known.active_billion:g} that "
            "a token passes through; correct one of them"
        )
    if total == known.total_billion:
        return known
    return Parameters(known.active_billion, total, known.active_billion / total)


def lower_tiers(scenario: Scenario) -> list[str]:
    """Those below HBM that are there, the fastest first."""
    return [name for name in TIERS if getattr(scenario.tiers, name).capacity_gib > 0]


def is_separated(scenario: Scenario) -> bool:
    """Whether KV state moves between instances: some only prefill, or only decode, or mixed ones
    decode for each other."""
    return scenario.router.decode == "cheapest" or any(
        group.role != "mixed" for group in scenario.instances.values()
    )


def check(scenario: Scenario, where: str = "", *, whole: bool = True) -> None:
    """Raises ConfigError of one sentence; `where` names the file. `whole`: also for what is given
    and not read."""
    for problem in _problems(scenario):
        raise ConfigError(f"{where}: {problem}" if where else problem)
    if whole:
        refuse(not_read(scenario), where)


def refuse(idle: Mapping[str, str], where: str) -> None:
    """Raises ConfigError where there is any option that nothing reads; it names them all."""
    if idle:
        sentences = "; ".join(f"{path} {why}" for path, why in idle.items())
        raise ConfigError(f"{where}: {sentences}" if where else sentences)


def _problems(scenario: Scenario) -> Iterator[str]:
    yield from _model(scenario)
    yield from _roles(scenario)
    yield from _tables(scenario)
    if scenario.topology.profile is None:  # else when it is read, of what it says
        yield from _places(scenario)
        yield from _wires(scenario)
    yield from _capacities(scenario)
    yield from _scopes(scenario)
    yield from _batches(scenario)
    yield from _work(scenario)
    yield from _classes(scenario)
    yield from _network(scenario)
    yield from _judged_by(scenario)


def _model(scenario: Scenario) -> Iterator[str]:
    model = scenario.model
    try:
        model_shape(model)
    except ConfigError as problem:
        yield str(problem)
    if model.kv_bytes_per_token and model.kv_dtype is not None:
        yield (
            f"model.kv_dtype is {model.kv_dtype}, but model.kv_bytes_per_token says already how "
            "large a token is; give one of them"
        )
    if _is_computed(scenario) or _is_profiled(scenario):
        try:
            parameters(model)
        except ConfigError as problem:
            yield str(problem)


def _is_computed(scenario: Scenario) -> bool:
    """Whether the size of the weights decides how long anything takes."""
    return any(group.compute == "roofline" for group in scenario.instances.values())


def _is_profiled(scenario: Scenario) -> bool:
    """Whether the size of the weights decides how much memory is left."""
    return any(group.profile is not None for group in scenario.instances.values())


def _roles(scenario: Scenario) -> Iterator[str]:
    roles = {group.role for group in scenario.instances.values()}
    if not roles:
        yield "instances is empty: nobody can serve; give a group (instances: {gpu: {count: 8}})"
    for all_have, none_has in (("decode", "prefill"), ("prefill", "decode")):
        if roles == {all_have}:
            yield (
                f"instances: no {none_has} instance, all groups have role {all_have}; give one "
                f"role {none_has} or mixed"
            )


def _tables(scenario: Scenario) -> Iterator[str]:
    for name, group in scenario.instances.items():
        if group.compute == "table" and group.step_table is None:
            yield (
                f"instances.{name}.compute is table, but instances.{name}.step_table is empty; "
                "give the path of one"
            )


def _places(scenario: Scenario) -> Iterator[str]:
    wanted, top = instances_of(scenario), scenario.topology
    there = top.racks * top.nodes_per_rack * top.instances_per_node
    if wanted > there:
        yield (
            f"instances: {wanted} instances, but the topology has places for {there} ({top.racks} "
            f"racks x {top.nodes_per_rack} nodes x {top.instances_per_node}); raise one of these, "
            "or take instances away"
        )


def instances_of(scenario: Scenario) -> int:
    return sum(group.count for group in scenario.instances.values())


def _capacities(scenario: Scenario) -> Iterator[str]:
    whole = held_block_bytes(scenario, "hbm")
    sizes = {
        f"instances.{name}.hbm_gib": (group.hbm_gib, whole)
        for name, group in scenario.instances.items()
        if group.profile is None
    }
    for name in TIERS:
        tier: TierSection = getattr(scenario.tiers, name)
        try:
            block = held_block_bytes(scenario, name)
        except ConfigError as problem:
            yield str(problem)
            continue
        if tier.capacity_gib:
            sizes[f"tiers.{name}.capacity_gib"] = (tier.capacity_gib, block)
    for path, (gib, block) in sizes.items():
        if gib * GIB < block:
            yield (
                f"{path} is {gib} GiB ({int(gib * GIB)} bytes), less than one block of "
                f"{scenario.model.block_tokens} tokens ({block} bytes); give at least "
                f"{_gib(block)} GiB"
            )


def _gib(nbytes: int) -> str:
    """Rounded up, so that it is enough."""
    return f"{-(-nbytes * 1_000_000 // GIB) / 1_000_000:g}"


def _scopes(scenario: Scenario) -> Iterator[str]:
    for name, allowed in _ALLOWED_SCOPES.items():
        scope = getattr(scenario.tiers, name).scope
        if scope not in allowed:
            yield (
                f"tiers.{name}.scope is {scope}; it must be "
                + (f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0])
                + ", or use another tier"
            )


def _batches(scenario: Scenario) -> Iterator[str]:
    """A sequence that decodes takes a token of each step."""
    budget = scenario.scheduler.max_num_batched_tokens
    for name, group in scenario.instances.items():
        seqs = group.max_num_seqs or scenario.scheduler.max_num_seqs
        if seqs > budget and group.role != "prefill":
            option = f"instances.{name}" if group.max_num_seqs else "scheduler"
            yield (
                f"scheduler.max_num_batched_tokens is {budget}, too few for {option}.max_num_seqs "
                f"{seqs} (each sequence that decodes takes a token of a step); raise the one or "
                "lower the other"
            )


def _classes(scenario: Scenario) -> Iterator[str]:
    section = scenario.scheduler
    for path, value, rules in (
        ("order", section.order, ("fair", "priority")),
        ("victim", section.victim, ("lowest-priority",)),
    ):
        if value in rules and not scenario.classes:
            yield (
                f"scheduler.{path} is {value}, but there are no classes; give some (classes: "
                "{chat: {share: 9}, batch: {share: 1}})"
            )


def _work(scenario: Scenario) -> Iterator[str]:
    work = scenario.workload
    try:
        laws = build_lengths(work.lengths, "workload.lengths")
    except ConfigError as problem:
        yield str(problem)
        return
    turns = work.turns[1] if laws.turns is None else whole(laws.turns.quantile(1.0))
    think_s = work.think_s[1] if laws.think_s is None else laws.think_s.quantile(1.0)
    ends = work.source == "trace" and work.requests is None  # how soon, only its file says
    if work.warmup_requests >= work.drawn_requests and not ends:
        yield (
            f"workload.warmup_requests is {work.warmup_requests} of {work.drawn_requests} "
            "requests, so that nothing is measured; give fewer, or more workload.requests"
        )
    if work.source == "trace" and work.trace is None:
        yield "workload.source is trace, but workload.trace is empty; give the path of a trace"
    drawn = work.source in ("sessions", "agents")
    if drawn and (turns - 1) * s_to_ns(think_s) > MAX_TIME_NS:
        yield (
            f"workload.turns up to {turns} with workload.think_s up to {think_s:g} s take longer "
            "than the 292 years (2^63 ns) that virtual time has; lower one of them"
        )
    if drawn and work.documents and work.context_tokens < work.documents_per_session:
        yield (
            f"workload.context_tokens is {work.context_tokens}, which leaves nothing for "
            f"{work.documents_per_session} documents each; raise it, or set workload.documents "
            "to 0"
        )


def _wires(scenario: Scenario) -> Iterator[str]:
    seen: dict[frozenset[str], str] = {}
    for name, wire in scenario.network.wires.items():
        yield from _wire(scenario, f"network.wires.{name}", wire)
        first = seen.setdefault(frozenset((wire.a, wire.b)), name)
        if first != name:
            yield (
                f"network.wires.{name} has the same ends as network.wires.{first} ({wire.a}, "
                f"{wire.b}); a wire goes both ways, keep one of them"
            )


def _wire(scenario: Scenario, path: str, wire: WireSection) -> Iterator[str]:
    top = scenario.topology
    there = {
        "instance": instances_of(scenario),
        "node": top.racks * top.nodes_per_rack,
        "rack": top.racks,
    }
    for side, end in (("a", wire.a), ("b", wire.b)):
        match = _END.fullmatch(end)
        if match is None:
            yield (
                f"{path}.{side} is {show(end)}; it must be instance:N, node:N, rack:N or core, "
                "counted from 0"
            )
        elif match[1] and int(match[2]) >= there[match[1]]:
            yield (
                f"{path}.{side} is {end}, but there are {there[match[1]]} of them, counted from "
                "0; name one that is there"
            )
    if wire.a == wire.b:
        yield f"{path} leads from {wire.a} to itself; give it two ends"


def _network(scenario: Scenario) -> Iterator[str]:
    network = scenario.network
    if network.tail_probability and network.tail_multiplier == 1:
        yield (
            f"network.tail_probability is {network.tail_probability:g}, but the tail is no slower "
            "(tail_multiplier 1); raise the multiplier, or set the probability to 0"
        )


def _judged_by(scenario: Scenario) -> Iterator[str]:
    named = scenario.judged_by or ""
    if named.startswith("goodput.") and scenario.slo == SloSection():
        yield (
            f"judged_by is {named}, but no SLO says which requests are good; set an option of slo, "
            "or judge by another number"
        )


# --- what is not read ------------------------------------------------------------------------

_FACTS: Mapping[str, Fact] = {
    "computed": Fact(lambda scenario: _is_computed(scenario), "instances without compute roofline"),
    "profiled": Fact(lambda scenario: _is_profiled(scenario), "instances without a profile"),
    "separated": Fact(
        is_separated, "instances that all have role mixed (and another router.decode than cheapest)"
    ),
    "decode_by_prefix": Fact(
        lambda scenario: is_separated(scenario) and scenario.router.decode == "prefix-aware",
        "routers of decode",
    ),
    "decode_by_cost": Fact(
        lambda scenario: (
            is_separated(scenario) and scenario.router.decode in ("prefix-aware", "cheapest")
        ),
        "routers of decode",
    ),
    "several_turns": Fact(
        lambda scenario: (
            scenario.workload.turns[1] > 1 or scenario.workload.lengths.turns.law != "personas"
        ),
        "sessions of one turn each",
    ),
    "lower_tiers": Fact(
        lambda scenario: bool(lower_tiers(scenario)), "a cluster without a tier below HBM"
    ),
    "shared_max_num_seqs": Fact(
        lambda scenario: not all(g.max_num_seqs for g in scenario.instances.values()),
        "instances that each have a max_num_seqs of their own",
    ),
}
PACE = ("rate_per_s", "arrival_process", "arrival_cv", "day_swing", "day_s")
"""Options of an open loop."""
_SCALE = (*PACE, "concurrency", "requests", "warmup_requests")


def not_asked(source: str) -> tuple[str, ...]:
    """Return the options of a workload that belong to another source than `source`, and are left
    out if that alone is changed: a trace has its own length and pace."""
    scenario = Scenario(workload=WorkloadSection(source=source))
    others = [
        option.path
        for option in describe(WorkloadSection)
        for text in option.rule.read_when
        for condition in conditions_of(text, "workload")
        if text.startswith(".source") and " or " not in text
        if not holds(condition, scenario, _FACTS)
    ]
    if source == "trace":
        others += [f"lengths.{option.path}" for option in describe(LengthsSection)]
    scale = _SCALE if source == "trace" else ()
    return tuple(f"workload.{name}" for name in (*others, *scale))


def not_read(
    scenario: Scenario, explicit: Collection[str] = (), told_apart: Collection[str] = ()
) -> dict[str, str]:
    """Return the options that are set (they differ from their defaults, or are in `explicit`) and
    that nothing reads, each with the reason, as the rest of a sentence. Those that are in
    `told_apart` cannot be set."""
    without = dict.fromkeys(told_apart, _IN_VARIANTS) | dict.fromkeys(explicit, "leave it out")
    reasons = {
        each.path: _not_read(
            each.path, each.value, each.usual, _reader(scenario, each.why), without
        )
        for each in unread(scenario, _FACTS, explicit)
    }
    return reasons | _unwritten_tiers(scenario, without) | _idle_tier_policies(scenario, without)


_IN_VARIANTS = (
    "as variants are told apart by it, take back what it has no effect with, or leave it out of a "
    "copy of the file"
)


def _not_read(path: str, value: Any, usual: Any, reader: str, without: Mapping[str, str]) -> str:
    """Return why an option is not read, and how to leave out what a shipped file gives; of options
    `without` such settings, the way out that stands there."""
    state = "given" if is_dataclass(value) else show(value)
    text = f"is {state}, which has no effect with {reader}; "
    for other, way_out in without.items():
        if f"{other}.".startswith(f"{path}."):
            return text + way_out
    return f"{text}leave it out ({' '.join(_settings(path, value, usual))})"


def _settings(path: str, value: Any, usual: Any) -> Iterator[str]:
    """Yield the settings that bring an option, or those of a section, back to its default."""
    if not is_dataclass(value):
        plain = usual if isinstance(usual, str) else json.dumps(usual, separators=(",", ":"))
        yield f"--set {path}={plain}"
        return
    for field in fields(value):
        here, back = getattr(value, field.name), getattr(usual, field.name)
        if here != back:
            yield from _settings(f"{path}.{field.name}", here, back)


def _reader(scenario: Scenario, why: Condition) -> str:
    """Return what does not read an option: `tiers.write_policy back`, or how a fact is said."""
    if why.is_fact:
        return _FACTS[why.path].otherwise
    value = value_at(scenario, why.path)
    return f"no {why.path}" if value is None else f"{why.path} {value}"


def _unwritten_tiers(scenario: Scenario, without: Mapping[str, str]) -> dict[str, str]:
    """Return the tiers that nothing is ever written to."""
    reader = _why_not_written(scenario)
    if reader is None:
        return {}
    swaps = scenario.scheduler.preemption == "swap"
    swaps = swaps and scenario.scheduler.reservation != "reserve-full"
    sizes = {
        f"tiers.{name}.capacity_gib": getattr(scenario.tiers, name).capacity_gib
        for name in lower_tiers(scenario)[swaps:]
    }
    return {path: _not_read(path, gib, 0, reader, without) for path, gib in sizes.items()}


def _idle_tier_policies(scenario: Scenario, without: Mapping[str, str]) -> dict[str, str]:
    """Return policies for which there are too few tiers, or no next turn."""
    tiers, count = scenario.tiers, len(lower_tiers(scenario))
    reasons: dict[str, str] = {}
    idle = partial(_not_read, "tiers.prefetch", tiers.prefetch, "none", without=without)
    if tiers.write_policy.startswith("through") and not count:
        reasons["tiers.write_policy"] = (
            f"is {tiers.write_policy}, but there is no tier below HBM to write to; give one a "
            "capacity_gib, or use back"
        )
    if tiers.prefetch != "none" and tiers.prefetch_into == "hbm" and not count:
        reasons["tiers.prefetch"] = idle(_FACTS["lower_tiers"].otherwise)
    elif tiers.prefetch != "none" and tiers.prefetch_into == "below" and count < 2:
        reasons["tiers.prefetch"] = (
            f"is {tiers.prefetch}, which brings blocks up to the first tier below HBM, but there "
            "are no two below it; give another one a capacity_gib, set tiers.prefetch_into to hbm, "
            "or use none"
        )
    elif tiers.prefetch == "next-in-session" and not _FACTS["several_turns"].holds(scenario):
        reasons["tiers.prefetch"] = idle(_FACTS["several_turns"].otherwise)
    return reasons


def _why_not_written(scenario: Scenario) -> str | None:
    """Return why nothing comes to a tier below HBM but what is swapped out; None if something
    does."""
    policy = scenario.tiers.write_policy
    if scenario.workload.source == "poisson":
        return "single requests, which share nothing"
    return f"tiers.write_policy {policy}" if policy == "none" else None
