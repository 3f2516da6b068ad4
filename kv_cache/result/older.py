"""Documents of earlier schemas under today's names: the only place that knows the old ones.

What a version did not write stays absent; the types of `result.published` allow for it.
"""

from collections.abc import Mapping
from typing import Any

from kv_cache.result.chain import SECTION

_NAMES = {
    "says": "message",
    "promise": "slo",
    "promises": "slos",
    "promised": "slo",
    "told_by": "source",
    "wanted": "expected",
    "asked": "consulted",
}
_SINCE = {
    "kv-cache-result": 9,
    **dict.fromkeys(
        (
            *("kv-cache-trials", "kv-cache-capacity", "kv-cache-ranks", "kv-cache-sweep"),
            *("kv-cache-sim", "kv-cache-mlperf", "kv-cache-lab"),
        ),
        2,
    ),
}
"""The first schema of each kind that has the new names; the other kinds never had an old one."""
_AS_WRITTEN = ("config", "environment", "evidence")
"""What stays as that version wrote it: options, the machine, and what its rules judged."""


def modern(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document of any schema under today's names. A run's keeps its schema, which says
    that another version made it; other kinds have the first one with these names."""
    section = document[SECTION]
    kind, _, number = str(section.get("schema")).partition("/")
    since = _SINCE.get(kind, 0)
    if not number.isdecimal() or int(number) >= since:
        return document
    renamed = _renamed(section)
    if kind != "kv-cache-result":
        renamed["schema"] = f"{kind}/{since}"
    return {**document, SECTION: renamed}


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "beaten_by" in value:  # an order of policies, of which no differences were kept
        return {"best": None, "leads": None, "why": "an earlier version kept no differences"}
    return {
        _NAMES.get(name, name): each if name in _AS_WRITTEN else _renamed(each)
        for name, each in value.items()
    }
