"""Each kind of document that is shown by a view, by its schema."""

from collections.abc import Callable, Mapping

from kv_cache.result import sweep
from kv_cache.result.run import converted
from kv_cache.view.parts import View
from kv_cache.view.sweep import sweep_view

VIEWS: Mapping[str, Callable[[Mapping[str, object]], View]] = {
    sweep.SCHEMA: lambda section: sweep_view(converted(section, sweep.SweepFacts, "")),
}
"""From the section `kv_cache` of a document. Raises MisshapenError, which says where."""
