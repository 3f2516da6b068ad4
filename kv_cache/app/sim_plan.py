"""Which runs of a study are simulated: each once. Variants that differ only in options that nothing
reads are one, and so are all seeds where nothing is drawn."""

from collections.abc import Sequence

from msgspec import Struct, field

from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_rules import TIERS, is_separated, lower_tiers, not_read
from kv_cache.config.scenario_trace import TraceWork
from kv_cache.config.scenarios import Scenarios, Variant
from kv_cache.config.schema import to_mapping
from kv_cache.result.paths import flat

_CHANCE = "power-of-two"
"""Of the routers the one that draws."""


class PlannedVariant(Struct, kw_only=True):
    """A variant with its number in the document, from 1, its runs, each with a seed of its own, and
    the variants that are the same."""

    number: int
    runs: Sequence[Variant]
    same: list[Variant] = field(default_factory=list)

    @property
    def first(self) -> Variant:
        return self.runs[0]


def is_drawn(scenario: Scenario, trace: TraceWork | None) -> bool:
    """Return whether anything in a run depends on its seed: requests that are no trace's or begin
    at drawn instants, classes, errors of lengths, a router that draws, links with jitter or a
    tail."""
    if trace is None:
        return True
    form, network = trace.trace.format, scenario.network
    routers = {scenario.router.kind, *([scenario.router.decode] if is_separated(scenario) else ())}
    return (
        not (form.timed or (form.grouped and scenario.workload.concurrency))
        or _CHANCE in routers
        or len(scenario.classes) > 1
        or scenario.scheduler.length_error_cv > 0
        or network.jitter_cv > 0
        or (network.tail_probability > 0 and network.tail_multiplier > 1)
    )


def plan_of(study: Scenarios, *, drawn: Sequence[bool]) -> list[PlannedVariant]:
    """Return the runs of all variants; `drawn` says of each whether its seeds differ."""
    every, known = list(study.variants()), dict[str, PlannedVariant]()
    for place, by_seed in enumerate(drawn):
        runs = every[place * study.seeds : (place + 1) * study.seeds]
        key = _as_read(runs[0].scenario)
        if key in known:
            known[key].same.append(runs[0])
        else:
            known[key] = PlannedVariant(number=len(known) + 1, runs=runs if by_seed else runs[:1])
    return list(known.values())


def _as_read(scenario: Scenario) -> str:
    """Return a scenario as text, without the options that nothing reads, those of tiers without
    room among them: they have their defaults."""
    without = (name for name in TIERS if name not in lower_tiers(scenario))
    idle = (*not_read(scenario), *(f"tiers.{name}" for name in without))
    defaults = dict(flat(to_mapping(Scenario())))
    values = {
        path: defaults.get(path) if _below(path, idle) else value
        for path, value in flat(to_mapping(scenario))
    }
    return repr(sorted(values.items()))


def _below(path: str, idle: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in idle)
