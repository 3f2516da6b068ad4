"""The merge done again from the ranks' results, and the results themselves checked."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from kv_cache import __version__
from kv_cache.core.crew import Crew, Member
from kv_cache.report.chain import CHAIN, SECTION
from kv_cache.report.node import MisshapenError, Node
from kv_cache.report.ranks.merged import merged_document
from kv_cache.report.recheck import recheck, unlike
from kv_cache.report.result import SCHEMA as RESULT_SCHEMA

_MOST_PLACES = 10

Json = Mapping[str, Any]


def recheck_ranks(document: Json) -> list[str]:
    """What in a document of ranks does not follow from the ranks' results in it, or in one of these
    from the rest of it; one sentence each. Never fails, whatever the document is."""
    try:
        return list(dict.fromkeys(_deviations(Node(document, "the result"))))
    except MisshapenError as error:
        return [str(error)]
    except (orjson.JSONEncodeError, OverflowError):
        return ["numbers in it are larger than any that are counted"]


def _deviations(root: Node) -> Iterator[str]:
    own = root[SECTION]
    rows = own["ranks"].rows()
    results: dict[int, Any] = {}
    for row in rows:
        number = row["rank"].whole()
        if number in results:
            yield f"rank {number} stands in the list of ranks twice"
        results[number] = row["result"].value
        if row["counted"].value is True:
            yield from (f"rank {number}: {said}" for said in _of_one(row["result"].value))
    again = merged_document(
        {rank: result for rank, result in results.items() if result is not None},
        _crew(own["crew"]),
    )
    version = own["program_version"].value
    if version != __version__:
        yield (
            f"the merge was done by version {version!s:.40}, whose sums are not done again here: "
            f"this is {__version__}"
        )
        return
    yield from _differences(root.mapping(), again)


def _of_one(result: Any) -> list[str]:
    if not isinstance(result, Mapping) or not isinstance(result.get(SECTION), Mapping):
        return ["it counts, but is no result of this program"]
    if result[SECTION].get("schema") != RESULT_SCHEMA:
        return [f"it counts, but is not of schema {RESULT_SCHEMA}"]
    return recheck(result)


def _differences(stored: dict[str, Any], again: dict[str, Any]) -> Iterator[str]:
    """The ranks' results stand in both alike, and the chain is looked at elsewhere."""
    found = list(unlike("", _without_chain(stored), _without_chain(again)))
    for path in found[:_MOST_PLACES]:
        yield f"{path} does not follow from the ranks' results"
    if len(found) > _MOST_PLACES:
        yield f"and {len(found) - _MOST_PLACES} more places do not follow from the ranks' results"


def _without_chain(document: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in document[SECTION].items() if name != CHAIN}
    return {**document, SECTION: own}


def _crew(node: Node) -> Crew:
    """What the crew saw, out of the document."""
    return Crew(
        how=node["how"].text(),
        wanted=_limited(node["wanted"]),
        members=[_member(row) for row in node["members"].rows()],
        planned_ns=_whole_or_none(node["planned_ns"]),
        ended_early=_text_or_none(node["ended_early"]),
    )


_MOST_RANKS = 1 << 16


def _limited(node: Node) -> int:
    if node.whole() > _MOST_RANKS:
        raise MisshapenError(f"{node.path} is {node.value}, more ranks than there can be")
    return node.whole()


def _member(row: Node) -> Member:
    return Member(
        rank=_limited(row["rank"]),
        host=_text_or_none(row["host"]),
        pid=_int_or_none(row["pid"]),
        offset_ns=_int_or_none(row["offset_ns"]),
        offset_error_ns=_int_or_none(row["offset_error_ns"]),
        ready_ns=_int_or_none(row["ready_ns"]),
        opened_ns=_int_or_none(row["opened_ns"]),
        ended_ns=_int_or_none(row["ended_ns"]),
        lost=_text_or_none(row["lost"]),
    )


def _text_or_none(node: Node) -> str | None:
    return None if node.value is None else node.text()


def _whole_or_none(node: Node) -> int | None:
    return None if node.value is None else node.whole()


def _int_or_none(node: Node) -> int | None:
    """Offsets of clocks may be below 0."""
    if node.value is None:
        return None
    if type(node.value) is not int or abs(node.value) >= 2**62:
        raise MisshapenError(f"{node.path} is no whole number that a clock can show")
    return node.value
