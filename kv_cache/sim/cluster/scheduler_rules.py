"""The rules that all instances of a cluster follow."""

from dataclasses import dataclass

from kv_cache.config.scenario import ClassSection, Scenario
from kv_cache.config.scenario_rules import is_separated


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`SchedulerSection` in the terms of an instance."""

    block_tokens: int
    batched_tokens: int
    chunked: bool
    order: str
    weights: tuple[float, ...]  # of the classes, in their order; of one where there are none
    priorities: tuple[int, ...]
    pause_lower: bool
    reserve_all: bool
    reserve_prompt: bool
    preemption: str
    victim: str
    central: bool  # whether requests wait in one queue for all instances
    max_queue: int
    max_retries: int
    overlap_load: bool
    separated: bool  # whether some instances only prefill, or only decode


def rules_of(scenario: Scenario) -> Rules:
    """Build the rules of a scenario."""
    section = scenario.scheduler
    classes = tuple(scenario.classes.values()) or (ClassSection(),)
    return Rules(
        block_tokens=scenario.model.block_tokens,
        batched_tokens=section.max_num_batched_tokens,
        chunked=section.chunked_prefill,
        order=section.order,
        weights=tuple(each.weight for each in classes),
        priorities=tuple(each.priority for each in classes),
        pause_lower=section.pause_lower
        and section.order == "priority"
        and section.reservation != "reserve-full",
        reserve_all=section.reservation == "reserve-full",
        reserve_prompt=section.reservation != "on-demand",
        preemption=section.preemption,
        victim=section.victim,
        central=section.queue == "central",
        max_queue=section.max_queue,
        max_retries=section.max_retries,
        overlap_load=scenario.tiers.overlap_load,
        separated=is_separated(scenario),
    )
