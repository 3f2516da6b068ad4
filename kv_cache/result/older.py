"""Documents of earlier schemas under today's names: the only place that knows the old ones.

What a version did not write stays absent; the types of `result.published` allow for it.
"""

from collections.abc import Mapping
from typing import Any

from kv_cache.result.kinds import KINDS
from kv_cache.result.run import SCHEMA, SECTION

_NAMES = {
    "says": "message",
    "promise": "slo",
    "promises": "slos",
    "promised": "slo",
    "told_by": "source",
    "wanted": "expected",
    "asked": "consulted",
}
"""Names before `kv-cache-result/9`, and in the first schemas of the other kinds."""
_AS_WRITTEN = ("config", "environment", "evidence", "result")
"""What stays as that version wrote it: options, the machine, what its rules judged, and a rank's
own result."""
_NEWEST = {schema.partition("/")[0]: schema for schema in KINDS}


def modern(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document of any schema under today's names. A run's keeps its schema, by which
    results are told that another version made; other kinds have today's."""
    section = document[SECTION]
    schema = section.get("schema")
    newest = _NEWEST.get(str(schema).partition("/")[0])
    if schema in (SCHEMA, newest):
        return document
    renamed = {**_renamed(section), "schema": newest or schema}
    return {**document, SECTION: renamed}


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {
        _NAMES.get(name, name): each if name in _AS_WRITTEN else _renamed(each)
        for name, each in value.items()
    }
