"""The merge done again from the ranks' results, and the results themselves checked."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from kv_cache.core.crew import Crew, Member
from kv_cache.report.chain import CHAIN, SECTION, check
from kv_cache.report.node import MisshapenError, Node
from kv_cache.report.ranks.merged import merged_document
from kv_cache.report.recheck import recheck, unlike
from kv_cache.report.result import SCHEMA as RESULT_SCHEMA

_MOST_PLACES = 10
_LONGEST = 300

Json = Mapping[str, Any]


class Rechecked(NamedTuple):
    """What does not follow from the rest, one sentence each; and the merge done again, if that was
    possible."""

    deviations: tuple[str, ...]
    again: Json | None


def recheck_ranks(document: Json) -> Rechecked:
    """What in a document of ranks does not follow from the ranks' results in it, or in one of these
    from the rest of it. Never fails, whatever the document is."""
    found: list[str] = []
    try:
        own = Node(document, "the result")[SECTION]
        results = _results(own, found)
        again = merged_document(results, _crew(own["crew"]))
        found += _differences(dict(document), again)
        return Rechecked(tuple(dict.fromkeys(found)), again)
    except MisshapenError as error:
        return Rechecked((*dict.fromkeys(found), str(error)), None)
    except (orjson.JSONEncodeError, OverflowError):
        told = "numbers in it are larger than any that are counted"
        return Rechecked((*dict.fromkeys(found), told), None)


def _results(own: Node, found: list[str]) -> dict[int, Any]:
    """The ranks' results; what is wrong with each by itself goes to `found`."""
    results: dict[int, Any] = {}
    for row in own["ranks"].rows():
        number, result = row["rank"].whole(), row["result"].value
        if number in results:
            found.append(f"rank {number} stands in the list of ranks twice")
        if result is not None:
            results[number] = result
        if row["counted"].value is True:
            found += (f"rank {number}: {said}" for said in _of_one(result))
    return results


def _of_one(result: Any) -> list[str]:
    """Of a result that counts."""
    if not isinstance(result, Mapping) or not isinstance(result.get(SECTION), Mapping):
        return ["it counts, but is no result of this program"]
    if result[SECTION].get("schema") != RESULT_SCHEMA:
        return [f"it counts, but is not of schema {RESULT_SCHEMA}"]
    changed = [f"{link} {says}" for link, says in check(result, {})]
    return changed + [_short(said) for said in recheck(result)]


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."


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
