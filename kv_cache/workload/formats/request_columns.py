"""Columns of requests by whoever wrote them, known by their names.

Serving tools call the same things differently (`arrived_at`, `num_prefill_tokens`, `prompt_len`,
...). A name is read without its case and without what is between its words. An arrival whose name
ends with a unit counts that; one without counts what its format says.

Hash ids are refused: how many tokens one stands for, their name does not say.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from kv_cache.workload.formats.azure import instant_ns
from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.mooncake import FOREIGN_KEYS, KEYS
from kv_cache.workload.formats.values import time_of_unit_ns

_WORDS = {
    "arrival": "arrival arrivaltime arrivaltimestamp arrivedat created createdat createdtime "
    "requesttime senttime starttime time timestamp",
    "prompt tokens": "contexttokens inputlen inputlength inputtokens numinputtokens "
    "numprefilltokens numprompttokens prefilltokens prompt promptlen promptlength promptsize "
    "prompttokens requesttokens",
    "output tokens": "completiontokens decodetokens generatedtokens generationlength gentokens "
    "numdecodetokens numoutputtokens output outputlen outputlength outputsize outputtokens "
    "responselength responsetokens tokensize",
    "session": "conversation conversationid session sessionid threadid",
    "model": "model modelname",
    "id": "id request requestid",
    "hash ids": "blockhashes blockids hashes hashids",
}
NAMES: Mapping[str, frozenset[str]] = {
    role: frozenset(words.split()) for role, words in _WORDS.items()
}
"""How a column is called, without what is between words and without a unit behind an arrival."""
NEEDED = ("arrival", "prompt tokens", "output tokens")
OPTIONAL = ("session", "model", "id")
_OF_MOONCAKE = frozenset(KEYS) - {"hash_ids"}
_UNIT = re.compile(r"(.+?)(?:in)?(s|sec|seconds|ms|us|ns)")


class RequestColumns(Struct, frozen=True, kw_only=True):
    """The names of columns by what they hold, and the unit that the arrival's name says; None if
    it says none."""

    names: Mapping[str, str]
    unit: TimeUnit | None

    def are_of(self, written_in: TimeUnit) -> bool:
        """Return whether a format whose arrivals count `written_in` has such columns."""
        needed = all(role in self.names for role in NEEDED)
        return needed and (self.unit or TimeUnit.S) is written_in

    def require(self, name: str, written_in: TimeUnit, read_in: TimeUnit) -> None:
        """Raise RowError unless the format `name`, whose arrivals count `written_in` unless they
        are read in another unit, can read them."""
        missing = [role for role in NEEDED if role not in self.names]
        if missing:
            raise RowError(f"expected {', '.join(NEEDED)}, found no {', '.join(missing)}")
        if "hash ids" in self.names:
            raise RowError(
                f"{self.names['hash ids']!r} does not say how many tokens an id stands for; give "
                f"Mooncake's names ({', '.join(KEYS)}) and --trace-block-tokens, or write "
                "kv-cache-trace/1"
            )
        if self.unit not in (None, written_in) and read_in is written_in:
            raise RowError(
                f"{self.names['arrival']!r} counts {self.unit}, and {name} {written_in}; give "
                f"--trace-time-unit {self.unit}"
            )


def columns_of(names: Iterable[str]) -> RequestColumns:
    """Return the columns by their names. Raises RowError where two of them are the same."""
    columns: dict[str, str] = {}
    unit = _unit_of(frozenset(names))
    for name in names:
        role, named_unit = _role(name)
        if role is None:
            continue
        if role in columns:
            raise RowError(
                f"{role} are there more than once ({columns[role]!r} and {name!r}); leave one of "
                "them out"
            )
        columns[role], unit = name, named_unit or unit
    return RequestColumns(names=columns, unit=unit)


def arrival_ns(value: object, unit: TimeUnit) -> int:
    """Return an arrival that is a number, or a date and time of day as Azure's."""
    if isinstance(value, str) and ":" in value:
        return instant_ns(value, "arrival")
    return time_of_unit_ns("arrival", value, unit)


def _unit_of(names: frozenset[str]) -> TimeUnit | None:
    """Return the unit of Mooncake's and Qwen-Bailian's names, which are the same."""
    if not names >= _OF_MOONCAKE:
        return None
    return TimeUnit.S if names & set(FOREIGN_KEYS) else TimeUnit.MS


def _role(name: str) -> tuple[str | None, TimeUnit | None]:
    """Return what a column is by its name, and the unit that the name of an arrival ends with."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    role = next((role for role, names in NAMES.items() if plain in names), None)
    match = _UNIT.fullmatch(plain) if role is None else None
    if match is None or match[1] not in NAMES["arrival"]:
        return role, None
    return "arrival", TimeUnit.S if match[2].startswith("s") else TimeUnit(match[2])
