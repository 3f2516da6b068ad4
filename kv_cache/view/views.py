"""Each kind of document that is shown by a view, by its schema."""

from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name

from msgspec.structs import replace

from kv_cache.config.profile import SCHEMA as PROFILE
from kv_cache.result import kinds
from kv_cache.result.metrics import Json
from kv_cache.result.run import SECTION, plain
from kv_cache.result.submission import SCHEMA as SUBMISSION
from kv_cache.view.identity import label_of, note_of
from kv_cache.view.parts import View

MakeView = Callable[[Json], View]
"""From the section `kv_cache` of a document. Raises MisshapenError, which says where."""

VIEWS: Mapping[str, str] = {
    kinds.TRIALS: "trials:trials_view",
    kinds.PRECONDITIONING: "preconditioning:precondition_view",
    kinds.CAPACITY: "capacity:capacity_view",
    kinds.RANKS: "ranks:ranks_view",
    kinds.LAB: "lab:lab_view",
    kinds.LAB_TIERS: "lab_tiers:tiers_view",
    kinds.SIM: "simulation:sim_view",
    kinds.TRACE: "trace:trace_view",
    PROFILE: "probe:probe_view",
    SUBMISSION: "submission:submission_view",
    kinds.SWEEP: "sweep:sweep_view",
}
"""Module and function of each kind, imported where one is shown: a run that begins needs none."""


def made_view(document: Json) -> View:
    """How a document that was just made is shown: as those who read its file will have it."""
    section = plain(document)[SECTION]
    make = view_of(section["schema"])
    assert make is not None, section["schema"]
    return make(section)


def view_of(schema: object) -> MakeView | None:
    """How a kind is shown; None for a schema that is no kind of ours."""
    run = isinstance(schema, str) and schema.startswith(kinds.RUN)
    place = "run:run_view" if run else VIEWS.get(str(schema))
    return None if place is None else partial(_labelled, resolve_name(f"kv_cache.view.{place}"))


def _labelled(make: MakeView, section: Json) -> View:
    """What a kind shows, with what the user calls it."""
    return replace(make(section), label=label_of(section), note=note_of(section))
