"""The merge done again from the ranks' results, and the results themselves checked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from kv_cache.core.crew import Crew, RankNumber
from kv_cache.result.chain import SECTION, check
from kv_cache.result.derive import SCHEMA as RESULT_SCHEMA
from kv_cache.result.difference import differences
from kv_cache.result.metrics import Json
from kv_cache.result.ranks.merged import merged_document
from kv_cache.result.run import MisshapenError, converted
from kv_cache.result.verify import recheck, without_chain

_MOST_PLACES = 10
_LONGEST = 300


class Rechecked(NamedTuple):
    """What does not follow from the rest, one sentence each; and the merge done again, if that was
    possible."""

    deviations: tuple[str, ...]
    again: Json | None


class RankRow(Struct, frozen=True, kw_only=True):
    rank: RankNumber
    counted: bool
    result: Any


class RanksSection(Struct, frozen=True, kw_only=True):
    crew: Crew
    ranks: list[RankRow]


class RanksFacts(Struct, frozen=True, kw_only=True):
    """What the merge is done from."""

    kv_cache: RanksSection


def recheck_ranks(document: Json) -> Rechecked:
    """Return what in a document of ranks does not follow from the ranks' results in it, or in one
    of these from the rest of it. Never fails, whatever the document is."""
    deviations: list[str] = []
    try:
        facts = converted(document, RanksFacts, "").kv_cache
        results = _results(facts.ranks, deviations)
        again = merged_document(results, facts.crew)
        deviations += _differences(dict(document), again)
        return Rechecked(tuple(dict.fromkeys(deviations)), again)
    except MisshapenError as error:
        return Rechecked((*dict.fromkeys(deviations), str(error)), None)
    except (orjson.JSONEncodeError, OverflowError):
        too_large = "numbers in it are larger than any that are counted"
        return Rechecked((*dict.fromkeys(deviations), too_large), None)


def _results(rows: Sequence[RankRow], deviations: list[str]) -> dict[int, Any]:
    """Return the ranks' results; what is wrong with each by itself goes to `deviations`."""
    results: dict[int, Any] = {}
    for row in rows:
        if row.rank in results:
            deviations.append(f"rank {row.rank} is in the list of ranks twice")
        if row.result is not None:
            results[row.rank] = row.result
        if row.counted:
            deviations += (f"rank {row.rank}: {sentence}" for sentence in _of_one(row.result))
    return results


def _of_one(result: Any) -> list[str]:
    """Yield what is wrong with a result that counts."""
    if not isinstance(result, Mapping) or not isinstance(result.get(SECTION), Mapping):
        return ["it counts, but is not a result of this program"]
    if result[SECTION].get("schema") != RESULT_SCHEMA:
        return [f"it counts, but is not of schema {RESULT_SCHEMA}"]
    changed = [f"{link} {message}" for link, message in check(result, {})]
    return changed + [_short(sentence) for sentence in recheck(result)]


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."


def _differences(stored: dict[str, Any], again: dict[str, Any]) -> Iterator[str]:
    """Compare two merged documents. The ranks' results are the same in both, and the chain is
    checked elsewhere."""
    several = list(differences(_unsealed(stored), _unsealed(again)))
    for difference in several[:_MOST_PLACES]:
        yield f"{difference.path} does not follow from the ranks' results"
    if len(several) > _MOST_PLACES:
        yield f"and {len(several) - _MOST_PLACES} more places do not follow from the ranks' results"


def _unsealed(document: Json) -> dict[str, Any]:
    return {**document, SECTION: without_chain(document[SECTION])}
