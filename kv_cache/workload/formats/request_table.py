"""Tables of requests by whoever wrote them: columns that are known by their names.

A CSV with a header that names an arrival, prompt tokens and output tokens in one of the ways that
serving tools do (`arrived_at`, `num_prefill_tokens`, `prompt_len`, ...), upper and lower case and
what is between the words aside. A session, a model and an id are read where they are there; a
session's prompt is the whole of it, history included. An arrival is a number, or a date and time of
day as Azure's are. `requests` counts seconds; `requests-ms` is for a column whose name says ms, and
for Mooncake's names without hash ids. A table that is of a format of its own is not taken for one
of these.

Hash ids are refused: how many tokens one stands for, their name does not say.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from kv_cache.workload.formats.azure import Azure, instant_ns
from kv_cache.workload.formats.base import RowError, TimeUnit
from kv_cache.workload.formats.burstgpt import BurstGpt
from kv_cache.workload.formats.line_formats import (
    BareTimes,
    Line,
    LineFormat,
    LineReader,
    first_text,
    head_has_columns,
    header_names,
    picked_cells,
    take_header,
)
from kv_cache.workload.formats.mooncake import MooncakeCsv
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.splitwise import Splitwise
from kv_cache.workload.formats.values import shown, text, time_of_unit_ns, tokens

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
_NEEDED = ("arrival", "prompt tokens", "output tokens")
_OF_THEIR_OWN = (Azure, BurstGpt, Splitwise, MooncakeCsv)
_OF_MOONCAKE = {"timestamp", "input_length", "output_length"}
_UNIT = re.compile(r"(.+?)(?:in)?(s|sec|seconds|ms|us|ns)")
_NO_COLUMN = "\n"  # no header's line has it


class RequestTable(BareTimes, LineFormat):
    WRITTEN_IN = TimeUnit.S
    name: ClassVar[str] = "requests"
    description: ClassVar[str] = (
        "CSV of requests by the columns' names: an arrival (s, or a date and time), prompt tokens, "
        "output tokens, optional session and model, such as arrival_time, prompt_tokens, "
        "output_tokens, session_id"
    )

    def matches(self, head: str) -> bool:
        if any(head_has_columns(head, of.columns) for of in _OF_THEIR_OWN):
            return False
        try:
            columns, unit = _columns(header_names(first_text(head)))
        except RowError:
            return False
        return all(role in columns for role in _NEEDED) and unit is self.WRITTEN_IN

    def reader(self, lines: Iterator[tuple[int, str]]) -> LineReader | None:
        cells = take_header(lines, self._cells)
        return None if cells is None else lambda line: self._row(*cells(line))

    def _cells(self, header: str) -> Callable[[str], tuple[str, ...]]:
        columns, unit = _columns(header_names(header))
        missing = [role for role in _NEEDED if role not in columns]
        if missing:
            raise RowError(f"no column for {', '.join(missing)}, found {shown(header)}")
        if "hash ids" in columns:
            raise RowError(
                f"{columns['hash ids']!r} does not say how many tokens an id stands for; give "
                f"Mooncake's columns ({', '.join(MooncakeCsv.columns)}) and --trace-block-tokens, "
                "or write kv-cache-trace/1"
            )
        if unit is not self.WRITTEN_IN and self.time_unit is self.WRITTEN_IN:
            raise RowError(
                f"{columns['arrival']!r} counts {unit}, and {self.name} {self.WRITTEN_IN}; give "
                f"--trace-time-unit {unit}"
            )
        wanted = [columns[role] for role in _NEEDED]
        others = [columns.get(role, _NO_COLUMN) for role in ("session", "model", "id")]
        return picked_cells(header, wanted, others)

    def _row(
        self, arrival: str, prompt: str, output: str, session: str, model: str, name: str
    ) -> Line:
        at_ns = (
            instant_ns(arrival, "arrival")
            if ":" in arrival
            else time_of_unit_ns("arrival", arrival, self.time_unit)
        )
        return (
            TraceRow(
                0,
                at_ns,
                tokens("prompt tokens", prompt, 1),
                tokens("output tokens", output, 0),
                session=text("session", session.strip()) or None,
                model=text("model", model.strip()) or None,
                request_id=text("id", name.strip()) or None,
            ),
        )


class RequestTableMs(RequestTable):
    WRITTEN_IN = TimeUnit.MS
    name = "requests-ms"
    description = (
        "CSV of requests by the columns' names, whose arrival counts ms: arrival_ms, "
        "prompt_tokens, output_tokens and the like, or timestamp, input_length, output_length"
    )


def _columns(header: Sequence[str]) -> tuple[dict[str, str], TimeUnit]:
    """Return the columns by what they are, and the unit of the arrival. Raises RowError where two
    of them are the same."""
    columns: dict[str, str] = {}
    unit = TimeUnit.MS if set(header) >= _OF_MOONCAKE else TimeUnit.S
    for name in header:
        role, named_unit = _role(name)
        if role is None:
            continue
        if role in columns:
            raise RowError(
                f"{role} are there more than once ({columns[role]!r} and {name!r}); leave one of "
                "them out"
            )
        columns[role], unit = name, named_unit or unit
    return columns, unit


def _role(name: str) -> tuple[str | None, TimeUnit | None]:
    """Return what a column is by its name, and the unit that the name of an arrival ends with."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    role = next((role for role, names in NAMES.items() if plain in names), None)
    match = _UNIT.fullmatch(plain) if role is None else None
    if match is None or match[1] not in NAMES["arrival"]:
        return role, None
    return "arrival", TimeUnit.S if match[2].startswith("s") else TimeUnit(match[2])
