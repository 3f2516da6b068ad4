"""Documents of earlier schemas, under the names that they had, are shown as today's are."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from kv_cache.core.text import as_json
from kv_cache.result.older import modern
from kv_cache.result.run import SECTION
from kv_cache.view.markdown import markdown
from kv_cache.view.views import view_of
from tests import outcomes, reports, trials

OLD = {
    "message": "says", "slo": "promise", "slos": "promises", "source": "told_by",
    "expected": "wanted", "consulted": "asked",
}  # fmt: skip
MADE: dict[str, Callable[[], Any]] = {
    "kv-cache-result/8": reports.run,
    "kv-cache-ranks/1": reports.ranks,
    "kv-cache-trials/1": lambda: trials.of([trials.result(n, 1e9 + n) for n in range(1, 4)]),
    "kv-cache-capacity/1": reports.capacity,
    "kv-cache-sim/1": outcomes.document,
    "kv-cache-sweep/1": reports.sweep,
}


def as_it_was(value: Any) -> Any:
    if isinstance(value, list):
        return [as_it_was(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = ("config", "environment", "evidence")
    return {OLD.get(n, n): v if n in kept else as_it_was(v) for n, v in value.items()}


def text(section: Any) -> str:
    make = view_of(section["schema"])
    assert make is not None, section["schema"]
    return markdown(make(section))


@pytest.mark.parametrize("schema", MADE)
def test_a_document_of_an_earlier_schema_is_shown_as_one_of_todays(schema: str) -> None:
    document = orjson.loads(as_json(MADE[schema]()))
    old = as_it_was(document)
    old[SECTION]["schema"] = schema
    assert old[SECTION] != document[SECTION]
    assert text(modern(old)[SECTION]) == text(document[SECTION])


@pytest.mark.parametrize("schema", ["kv-cache-result/9", "kv-cache-trials/2", "kv-cache-lab/2", 7])
def test_a_document_with_todays_names_is_left_as_it_is(schema: object) -> None:
    document = {SECTION: {"schema": schema, "wanted": 3}}
    assert modern(document) is document


def test_an_order_of_policies_without_differences_is_read_as_none() -> None:
    order = {"beaten_by": {"lru": [], "fifo": ["lru"]}, "why": "by seeds"}
    document = {"kv_cache": {"schema": "kv-cache-lab/1", "order": order}}
    read = modern(document)["kv_cache"]
    assert read["schema"] == "kv-cache-lab/2"
    assert (read["order"]["best"], read["order"]["leads"]) == (None, None)
    assert "earlier version" in read["order"]["why"]
