"""Several results side by side: compared where they may be, else listed."""

from collections.abc import Sequence
from pathlib import Path

from kv_cache.core.format import as_text
from kv_cache.result import capacity
from kv_cache.result.comparison import input_of
from kv_cache.result.kinds import RUN
from kv_cache.result.metrics import Json
from kv_cache.result.paths import value_at
from kv_cache.result.published import RANKS
from kv_cache.result.run import SECTION
from kv_cache.result.trials import SCHEMA as TRIALS
from kv_cache.view.capacity import capacities_view
from kv_cache.view.comparison import comparison_view
from kv_cache.view.identity import label_of
from kv_cache.view.parts import ShownColumn, Table, View, ViewSection

Named = tuple[str, str, Json]
"""A label, the name of the file, and its document."""


def together_view(named: Sequence[Named]) -> View:
    """Runs, ranks and trials against the first of them; searches by their answers; of different
    kinds what each is. Raises MisshapenError."""
    schemas = {str(document[SECTION]["schema"]) for _, _, document in named}
    if all(schema in (RANKS, TRIALS) or schema.startswith(RUN) for schema in schemas):
        return comparison_view([input_of(label, Path(name), doc) for label, name, doc in named])
    if schemas == {capacity.SCHEMA}:
        sections = [(label, document[SECTION]) for label, _, document in named]
        return capacities_view(
            [(f"{label} {label_of(section)}".rstrip(), section) for label, section in sections]
        )
    return _listing(named)


def _listing(named: Sequence[Named]) -> View:
    files = Table.of(
        [(label, name, document[SECTION]) for label, name, document in named],
        {
            ShownColumn(""): lambda row: row[0],
            ShownColumn("file"): lambda row: row[1],
            ShownColumn("kind"): lambda row: _kind(str(row[2]["schema"])),
            ShownColumn("verdict", status=True): lambda row: as_text(_verdict(row[2])),
            ShownColumn("model"): lambda row: as_text(value_at(row[2], "model.name")),
            ShownColumn("seed"): lambda row: as_text(row[2].get("seed")),
        },
    )
    return View(
        title="Results",
        status="not compared",
        sentence="These are documents of different kinds: their numbers are not compared.",
        about=[],
        sections=[ViewSection(title="What is side by side", parts=[files])],
    )


def _kind(schema: str) -> str:
    return schema.partition("/")[0].removeprefix("kv-cache-")


def _verdict(section: Json) -> object:
    verdict = value_at(section, "passport.verdict")
    return section.get("verdict") if verdict is None else verdict
