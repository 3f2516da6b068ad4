"""Each kind of document that is shown by a view, by its schema."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from kv_cache.config.profile import SCHEMA as PROFILE
from kv_cache.result import capacity, lab, preconditioning, submission, sweep, trace, trials
from kv_cache.result.kinds import RUN
from kv_cache.result.metrics import Json
from kv_cache.result.published import RANKS
from kv_cache.result.run import SECTION, converted, plain
from kv_cache.result.simulation.document import SCHEMA as SIM
from kv_cache.view.capacity import capacity_view
from kv_cache.view.identity import label_of, note_of
from kv_cache.view.lab import lab_view
from kv_cache.view.parts import View
from kv_cache.view.preconditioning import precondition_view
from kv_cache.view.probe import probe_view
from kv_cache.view.ranks import ranks_view
from kv_cache.view.run import run_view
from kv_cache.view.simulation import sim_view
from kv_cache.view.submission import submission_view
from kv_cache.view.sweep import sweep_view
from kv_cache.view.trace import trace_view
from kv_cache.view.trials import trials_view

MakeView = Callable[[Json], View]
"""From the section `kv_cache` of a document. Raises MisshapenError, which says where."""

VIEWS: Mapping[str, MakeView] = {
    trials.SCHEMA: trials_view,
    preconditioning.SCHEMA: precondition_view,
    capacity.SCHEMA: capacity_view,
    RANKS: ranks_view,
    lab.SCHEMA: lab_view,
    SIM: sim_view,
    trace.SCHEMA: trace_view,
    PROFILE: probe_view,
    submission.SCHEMA: submission_view,
    sweep.SCHEMA: lambda section: sweep_view(converted(section, sweep.SweepFacts, "")),
}


def made_view(document: Json) -> View:
    """How a document that was just made is shown: as those who read its file will have it."""
    section = plain(document)[SECTION]
    make = view_of(section["schema"])
    assert make is not None, section["schema"]
    return make(section)


def view_of(schema: object) -> MakeView | None:
    """How a kind is shown; None for a schema that is no kind of ours."""
    run = isinstance(schema, str) and schema.startswith(RUN)
    make = run_view if run else VIEWS.get(str(schema))
    return None if make is None else partial(_labelled, make)


def _labelled(make: MakeView, section: Json) -> View:
    """What a kind shows, with what the user calls it."""
    return replace(make(section), label=label_of(section), note=note_of(section))
