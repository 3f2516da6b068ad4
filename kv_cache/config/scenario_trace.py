"""The trace of a scenario: opened, read once, and held against what the scenario can carry.

It must never let a trace through whose rows would mean something else in the cluster than they do
where they were written.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kv_cache.config.scenario import Scenario, WorkloadSection
from kv_cache.config.scenario_rules import PACE
from kv_cache.config.schema import show
from kv_cache.config.yaml_files import shipped
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import Lookup
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import (
    Survey,
    doubts,
    facts,
    read,
    refuse_doubts,
    require_usable,
)
from kv_cache.workload.formats.trace_files import AUTO, Trace, open_trace

_WAY_OUT = "Correct the file, or leave such rows out with workload.skip_bad_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWork:
    """A trace that can be simulated, and what it holds."""

    trace: Trace
    survey: Survey

    def row_count(self, work: WorkloadSection) -> int:
        """Return how many rows are simulated."""
        return min(self.survey.rows, work.requests or self.survey.rows)

    def facts(self, work: WorkloadSection) -> dict[str, Any]:
        """For the document."""
        return {**facts(self.trace, self.survey), "asked_rows": self.row_count(work)}

    def doubts(self) -> tuple[str, ...]:
        """Return what a reader has to know of the trace, in whole sentences."""
        return doubts(self.trace, self.survey)


Surveys = dict[Trace, tuple[Trace, Survey]]
"""What was read of traces."""


def open_work(scenario: Scenario, surveys: Surveys | None = None) -> TraceWork | None:
    """The trace that the scenario asks by; None where it draws what is asked. All of it is read
    once, if it is not among `surveys`, into which it comes. Raises TraceError."""
    work = scenario.workload
    if work.source != "trace" or work.trace is None:
        return None
    known, file = {} if surveys is None else surveys, _opened(work, work.trace)
    if file not in known:
        known[file] = read(file)
    trace, survey = known[file]
    require_usable(trace, survey, _WAY_OUT)
    if work.strict_trace:
        refuse_doubts(trace, survey)
    opened = TraceWork(trace=trace, survey=survey)
    problems = (_content(scenario, opened), _length(work, opened), _next_turns(scenario, opened))
    if any(problems):
        raise TraceError("; ".join(filter(None, problems)))
    return opened


def _opened(work: WorkloadSection, path: str) -> Trace:
    file = shipped("datasets", path)
    return open_trace(
        str(file), work.trace_format or AUTO, skip_bad_rows=work.skip_bad_rows,
        time_unit=work.trace_time_unit, include_failed_rows=work.include_failed_rows,
        block_tokens=work.trace_block_tokens,
    )  # fmt: skip


def _content(scenario: Scenario, work: TraceWork) -> str | None:
    of, size, trace_tokens = work.trace, scenario.model.block_tokens, work.survey.block_tokens
    if any(map(_moves_objects, islice(of.rows(), 1))):
        return (
            f"{_name(of)} ({of.format_name}): its rows are reads and writes of objects and no "
            "prompts, which no instance can compute; replay it on a device (kv-cache.py run)"
        )
    if trace_tokens % size:
        return (
            f"{_name(of)} ({of.format_name}): its blocks have {trace_tokens} tokens, which model."
            f"block_tokens {size} does not divide; give block_tokens {trace_tokens}, or a divisor "
            "of it"
        )
    return None


def _moves_objects(row: TraceRow) -> bool:
    request = row.request
    return row.nbytes > 0 if request is None else request.lookup is Lookup.OPERATION


def unread_by_trace(work: WorkloadSection, explicit: Collection[str]) -> dict[str, str]:
    """Return the options of pace that the format of the trace has no use for, though they are in
    `explicit` or differ from their defaults, each with the reason. Raises TraceError."""
    if work.source != "trace" or work.trace is None:
        return {}
    default = WorkloadSection()
    names = [
        name
        for name in (*PACE, "concurrency", "arrival_scale")
        if f"workload.{name}" in explicit or getattr(work, name) != getattr(default, name)
    ]
    if not names:
        return {}
    of = _opened(work, work.trace)
    why = _unread_pace(of, users=work.concurrency > 0)
    return {
        f"workload.{name}": f"is {show(getattr(work, name))}, but {why[name]}"
        for name in names
        if name in why
    }


def _unread_pace(of: Trace, *, users: bool) -> dict[str, str]:
    """Return why the format does not read an option of pace, and what to use, by its name."""
    rows = f"the rows of {_name(of)} ({of.format_name})"
    grouped, timed = of.format.grouped, of.format.timed
    why: dict[str, str] = {}
    if grouped or not timed:
        why["arrival_scale"] = f"{rows} have no instants in common; use workload.rate_per_s" + (
            " or workload.concurrency" if grouped else ""
        )
    if not grouped:
        why["concurrency"] = f"{rows} do not stand session by session; use " + (
            "workload.arrival_scale" if timed else "workload.rate_per_s"
        )
    no_pace = ""
    if not grouped and timed:
        no_pace = f"{rows} have instants of their own; use workload.arrival_scale for another rate"
    elif grouped and users:
        no_pace = (
            f"the sessions of {_name(of)} ({of.format_name}) are those of users, one after the "
            "other (workload.concurrency); leave one of the two out"
        )
    return why | dict.fromkeys(PACE if no_pace else (), no_pace)


def _length(work: WorkloadSection, opened: TraceWork) -> str | None:
    rows = opened.row_count(work)
    if work.warmup_requests < rows:
        return None
    return (
        f"workload.warmup_requests is {work.warmup_requests}, but of {_name(opened.trace)} "
        f"{rows} rows are asked, so that nothing is measured; give fewer"
    )


def _next_turns(scenario: Scenario, opened: TraceWork) -> str | None:
    if scenario.tiers.prefetch != "next-in-session" or opened.survey.follows:
        return None
    of = opened.trace
    return (
        f"tiers.prefetch is next-in-session, but no row of {_name(of)} ({of.format_name}) waits "
        "for the answer to another one, so that nobody knows of a next turn; use on-arrival or none"
    )


def _name(trace: Trace) -> str:
    first, others = Path(trace.files[0]), len(trace.files) - 1
    return f"{first} and {others} more" if others else str(first)
