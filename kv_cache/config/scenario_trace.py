"""The trace of a scenario: opened, read once, and held against what the scenario can carry.

It must never let a trace through whose rows would mean something else in the cluster than they do
where they were written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kv_cache.config.scenario import Scenario, WorkloadSection
from kv_cache.config.yaml_files import shipped
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import Lookup
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import Survey, facts, read, require_usable
from kv_cache.workload.formats.trace_files import AUTO, Trace, open_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWork:
    """A trace that can be simulated, and what it holds."""

    trace: Trace
    found: Survey

    def asked(self, work: WorkloadSection) -> int:
        """Rows that are asked."""
        return min(self.found.rows, work.requests or self.found.rows)

    def facts(self, work: WorkloadSection) -> dict[str, Any]:
        """For the document."""
        return {**facts(self.trace, self.found), "asked_rows": self.asked(work)}


def open_work(
    scenario: Scenario, progress: Callable[[int], None] | None = None
) -> TraceWork | None:
    """The trace that the scenario asks by; None where it draws what is asked. All of it is read
    once; `progress` is told the number of rows. Raises TraceError."""
    work = scenario.workload
    if work.source != "trace" or work.trace is None:
        return None
    path = shipped("datasets", work.trace)
    trace = open_trace(str(path), work.trace_format or AUTO, time_unit=work.trace_time_unit)
    trace, found = read(trace, progress=progress)
    require_usable(trace, found, "Correct the file; a scenario leaves no rows out")
    opened = TraceWork(trace=trace, found=found)
    for problem in (
        _content(scenario, opened), _pace(work, opened), _length(work, opened),
        _next_turns(scenario, opened),
    ):  # fmt: skip
        if problem is not None:
            raise TraceError(problem)
    return opened


def _content(scenario: Scenario, work: TraceWork) -> str | None:
    of, size, own = work.trace, scenario.model.block_tokens, work.found.block_tokens
    if any(map(_moves_objects, islice(of.rows(), 1))):
        return (
            f"{_name(of)} ({of.format_name}): its rows are reads and writes of objects and no "
            "prompts, which no instance can compute; replay it on a device (kv-cache.py run)"
        )
    if own % size:
        return (
            f"{_name(of)} ({of.format_name}): its blocks have {own} tokens, which model."
            f"block_tokens {size} does not divide; give block_tokens {own}, or a divisor of it"
        )
    return None


def _moves_objects(row: TraceRow) -> bool:
    asked = row.request
    return row.nbytes > 0 if asked is None else asked.lookup is Lookup.OPERATION


def _pace(work: WorkloadSection, opened: TraceWork) -> str | None:
    """Options that this format has no use for."""
    of = opened.trace
    name = f"{_name(of)} ({of.format_name})"
    grouped, timed = of.format.grouped, of.format.timed
    if (grouped or not timed) and work.arrival_scale != 1:
        return (
            f"workload.arrival_scale: the rows of {name} have no instants in common; use "
            "workload.rate_per_s" + (" or workload.concurrency" if grouped else "")
        )
    if not grouped and work.concurrency:
        return f"workload.concurrency: the rows of {name} do not stand session by session; use " + (
            "workload.arrival_scale" if timed else "workload.rate_per_s"
        )
    if work.concurrency and work.rate_per_s != WorkloadSection().rate_per_s:
        return (
            f"workload.rate_per_s: the sessions of {name} are those of users, one after the other "
            "(workload.concurrency); leave one of the two out"
        )
    if not grouped and timed and work.rate_per_s != WorkloadSection().rate_per_s:
        return (
            f"workload.rate_per_s: the rows of {name} have instants of their own; use "
            "workload.arrival_scale for another rate"
        )
    return None


def _length(work: WorkloadSection, opened: TraceWork) -> str | None:
    rows = opened.asked(work)
    if work.warmup_requests < rows:
        return None
    return (
        f"workload.warmup_requests is {work.warmup_requests}, but of {_name(opened.trace)} "
        f"{rows} rows are asked, so that nothing is measured; give fewer"
    )


def _next_turns(scenario: Scenario, opened: TraceWork) -> str | None:
    if scenario.tiers.prefetch != "next-in-session" or opened.found.follows:
        return None
    of = opened.trace
    return (
        f"tiers.prefetch is next-in-session, but no row of {_name(of)} ({of.format_name}) waits "
        "for the answer to another one, so that nobody knows of a next turn; use on-arrival or none"
    )


def _name(trace: Trace) -> str:
    first, others = Path(trace.files[0]), len(trace.files) - 1
    return f"{first} and {others} more" if others else str(first)
