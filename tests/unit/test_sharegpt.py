"""Datasets of conversations: which turns, how many tokens, and what is told."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.base import MAX_ID_CHARS, Reading
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.sharegpt import MODELS, PEOPLE, SYSTEM, ShareGpt
from kv_cache.workload.formats.surveying import require_usable, survey
from kv_cache.workload.formats.tokens import Chars
from kv_cache.workload.formats.trace_files import detect, open_trace
from tests.traces import made_talks

LETTERS = Reading(tokens=Chars(1.0))


def talk(*said: str, **more: Any) -> dict[str, Any]:
    """`talk("h:abc", "g:de")`: a person said abc, the model de."""
    names = {"h": "human", "g": "gpt", "s": "system"}
    return {
        "id": "a",
        "conversations": [{"from": names[one[0]], "value": one[2:]} for one in said],
        **more,
    }


class Read:
    """What the format makes of a list of items."""

    def __init__(self, talks: object, reading: Reading = LETTERS) -> None:
        self.bad: list[tuple[int, str]] = []
        self.notes: Counter[str] = Counter()
        self.rows: list[TraceRow] = list(
            ShareGpt(reading).rows(
                [(1, json.dumps(talks))],
                lambda item, reason: self.bad.append((item, reason)),
                lambda item, note: self.notes.update([note.value]),
            )
        )

    @property
    def turns(self) -> list[tuple[int, int]]:
        return [(row.prompt_tokens, row.output_tokens) for row in self.rows]


def turns(*said: str, reading: Reading = LETTERS) -> list[tuple[int, int]]:
    return Read([talk(*said)], reading).turns


def test_a_row_is_a_turn_which_adds_to_its_session() -> None:
    got = Read([talk("h:abc", "g:de", "h:f", "g:ghij")])
    assert got.rows == [
        TraceRow(1, 0, 3, 2, session="a#1", adds=True),
        TraceRow(1, 0, 1, 4, session="a#1", adds=True),
    ]
    assert (got.bad, got.notes) == ([], {})


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        (["g:abcd", "h:e", "g:f"], [(5, 1)]),
        (["s:abcd", "h:e", "g:f"], [(5, 1)]),
        (["s:ab", "g:cd", "h:e", "g:f"], [(5, 1)]),
        (["g:ab", "g:cd", "h:e", "g:f"], [(5, 1)]),
        (["h:a", "h:bc", "g:d"], [(3, 1)]),
        (["h:a", "g:b", "g:cde", "h:f", "g:g"], [(1, 1), (4, 1)]),
        (["h:a", "g:b", "s:cde", "h:f", "g:g"], [(1, 1), (4, 1)]),
        (["h:a", "g:b", "s:cde", "g:g", "h:f", "g:g"], [(1, 1), (5, 1)]),
        (["h:", "g:b"], [(1, 1)]),
        (["h:a", "g:"], [(1, 0)]),
        (["h:a", "g:b", "g:cc"], [(1, 1)]),
    ],
)
def test_what_nobody_answered_belongs_to_the_next_prompt(
    said: list[str], rows: list[tuple[int, int]]
) -> None:
    assert turns(*said) == rows


def test_a_question_without_an_answer_is_left_out_and_counted() -> None:
    got = Read([talk("h:a", "g:b", "h:c"), talk("h:a"), talk("h:a", "h:b")])
    assert got.turns == [(1, 1)]
    assert got.notes == {"unanswered": 3, "empty": 2, "duplicate": 2}


@pytest.mark.parametrize("said", [[], ["g:abc"], ["s:abc"], ["s:a", "g:b", "g:c"]])
def test_a_conversation_without_a_turn_is_counted_as_empty(said: list[str]) -> None:
    got = Read([talk(*said)])
    assert (got.rows, got.bad, got.notes) == ([], [], {"empty": 1})


def test_a_conversation_ends_where_its_context_would_be_too_long() -> None:
    reading = Reading(tokens=Chars(1.0), max_context_tokens=10)
    got = Read([talk("h:abcd", "g:ef", "h:ghij", "g:k", "h:l", "g:m", "h:n")], reading)
    assert got.turns == [(4, 2), (4, 1)]  # 4 + 2 + 4 = 10 is allowed, and 1 more is not
    assert got.notes == {"too_long": 1, "unanswered": 1}
    got = Read([talk("h:" + "a" * 11, "g:b", "h:c", "g:d")], reading)
    assert (got.turns, got.notes) == ([], {"too_long": 2, "empty": 1})


def test_an_answer_is_cut_and_its_history_with_it() -> None:
    reading = Reading(tokens=Chars(1.0), max_context_tokens=8, max_generation_tokens=3)
    got = Read([talk("h:abcd", "g:" + "x" * 100, "h:e", "g:f")], reading)
    assert got.turns == [(4, 3), (1, 1)]
    assert got.notes == {"cut": 1}


def test_tokens_are_counted_text_by_text() -> None:
    # 4 characters are a token, but a text that is not empty has at least one
    assert turns("s:ab", "h:cd", "g:" + "e" * 11, reading=Reading()) == [(2, 2)]


# --- the other forms ---


def test_openai_messages_are_the_same_conversation() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {}}, "c"]
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "result", "tool_call_id": "1"},
        {"role": "assistant", "content": "de"},
        {"role": "User", "content": "f"},
        {"role": "assistant", "tool_calls": []},
    ]
    got = Read([{"messages": messages}])
    assert got.bad == []
    assert got.turns == [(3, 0), (6, 2), (1, 0)]
    assert {row.session for row in got.rows} == {"#1"}


def test_a_file_of_one_conversation_a_line_is_read_alike(tmp_path: Path) -> None:
    talks = [talk("h:ab", "g:c", id=number) for number in range(3)]
    whole, lines = tmp_path / "a.json", tmp_path / "b.jsonl.gz"
    whole.write_text(json.dumps(talks, indent=2))
    lines.write_bytes(gzip.compress("\r\n".join(map(json.dumps, talks)).encode()))
    read = [list(open_trace(str(path)).rows()) for path in (whole, lines)]
    assert read[0] == read[1]
    assert [row.session for row in read[0]] == ["0#1", "1#2", "2#3"]


def test_a_bad_line_is_told_by_its_item_and_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        f"{json.dumps(talk('h:a', 'g:b'))}\nrubbish\n{json.dumps(talk('h:c', 'g:d'))}\n"
    )
    found = survey(open_trace(str(path)))
    with pytest.raises(
        TraceError, match=r"a\.jsonl: 1 items .*a\.jsonl, item 2: expected one JSON"
    ):
        require_usable(open_trace(str(path)), found)
    assert [r.session for r in open_trace(str(path), skip_bad_rows=True).rows()] == ["a#1", "a#3"]


# --- ids ---


@pytest.mark.parametrize("name", ["../etc/passwd", "a/b", "\U0001f600", "x" * 300, "", "\0", "a#2"])
def test_an_id_is_a_name_and_nothing_else(name: str) -> None:
    got = Read([talk("h:a", "g:b", id=name), talk("h:a", "g:b", id=name)])
    assert [row.session for row in got.rows] == [f"{name}#1", f"{name}#2"]
    assert got.notes == {"duplicate": 1}


def test_ids_that_are_numbers_or_missing_are_told_apart_too() -> None:
    talks = [talk("h:a", "g:b", id=one) for one in (7, "7", None)]
    del talks[2]["id"]
    got = Read([*talks, talk("h:a", "g:b", id=None)])
    assert [row.session for row in got.rows] == ["7#1", "7#2", "#3", "#4"]
    assert got.notes == {"duplicate": 1}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * (MAX_ID_CHARS + 1), "id: expected at most 1000 characters, found 1001"),
        ("\ud800", "half a surrogate pair"),
        (1.5, "id: expected text or a whole number"),
        (True, "id: expected text or a whole number"),
        ({}, "id: expected text or a whole number"),
    ],
)
def test_an_id_that_is_none_is_bad(name: object, says: str) -> None:
    got = Read([talk("h:a", "g:b", id=name)])
    assert got.rows == []
    assert says in got.bad[0][1]


# --- what is no conversation ---


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (3, "expected one JSON object, found '3'"),
        ([], "expected one JSON object"),
        ({"id": "a"}, "expected a list named conversations or messages, found none of them"),
        ({"conversations": {}}, "expected a list named conversations or messages, found {}"),
        ({"conversations": [], "messages": []}, "found 'both'"),
        ({"conversations": ["hi"]}, "message 1: expected an object, found 'hi'"),
        ({"conversations": [{"value": "x"}]}, "message 1: expected a role"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "found 'alien'"),
        ({"conversations": [{"from": 3, "value": "x"}]}, "expected a role (from or role) of assis"),
        ({"conversations": [{"from": "human"}]}, "expected value or content, found neither"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "message 1: expected text, null or a list",
        ),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "expected text, null or a li"),
        ({"messages": [{"role": "user", "content": [{"text": 3}]}]}, "found {'text': 3}"),
    ],
)
def test_an_item_of_another_shape_is_bad_with_its_number(item: object, says: str) -> None:
    got = Read([talk("h:a", "g:b"), item, talk("h:c", "g:d")])
    assert [number for number, _ in got.bad] == [2]
    assert says in got.bad[0][1]
    assert [row.line for row in got.rows] == [1, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[", "ends before its data does"),
        ('[{"conversations": [{"from": "human", "value": "x"', "ends before its data does"),
        ("[]", "no item in it"),
        ("[] []", "expected nothing more"),
        ("", "the file is empty"),
        ("id,text\n1,2\n", "expected a JSON list or object, found 'id,text"),
        ('{"rows": [{"prompt": "x"}]}', "item 1: expected a list named conversations or messages"),
        ('[{"conversations": []}]', r"no request is left to replay \(counted were empty: 1;"),
    ],
)
@pytest.mark.parametrize("skip", [True, False])
def test_a_dataset_that_is_none_is_refused_and_never_replaced(
    tmp_path: Path, content: str, says: str, skip: bool
) -> None:
    path = tmp_path / "d.json"
    path.write_text(content)
    trace = open_trace(str(path), "sharegpt", skip_bad_rows=skip)
    with pytest.raises(TraceError, match=rf"d\.json.*({says})"):
        require_usable(trace, survey(trace))


ITEM = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "conversations", "messages", "from", "role", "value", "content",
                             "text", "tool_calls"]),
            inner | st.sampled_from([*sorted(PEOPLE | MODELS | SYSTEM)]),
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(talks=st.lists(ITEM, max_size=4))
def test_whatever_an_item_is_it_is_rows_or_notes_or_bad(talks: list[object]) -> None:
    got = Read(talks)
    assert len({row.line for row in got.rows}) + got.notes["empty"] + len(got.bad) == len(talks)
    assert all(row.prompt_tokens >= 1 and row.output_tokens >= 0 for row in got.rows)
    assert all("expected" in reason for _, reason in got.bad)


def walked(head: str) -> Iterable[str]:
    return (name for name, of in TRACE_FORMATS.items() if of.matches(head))


@pytest.mark.parametrize(
    "content",
    [
        [talk("h:a", "g:b")],
        [talk(), talk("h:" + "x" * 100_000, "g:b")],
        [{"id": 1, "conversations": [{"value": "x" * 100_000, "from": "human"}]}],
        {"messages": [{"role": "user", "content": "hash_ids requests block_size"}]},
        [talk('h:{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "g:b")],
    ],
)
def test_it_is_told_by_the_first_64_kib_and_no_other_format_is(
    tmp_path: Path, content: object
) -> None:
    path = tmp_path / "unnamed"
    path.write_text(json.dumps(content))
    assert detect(path).name == "sharegpt"
    assert list(walked(json.dumps(content)[: 64 << 10])) == ["sharegpt"]


# --- many ---


def test_many_conversations_have_the_shape_that_a_count_by_hand_gives() -> None:
    path = made_talks()
    reading = Reading(max_context_tokens=8192, max_generation_tokens=2048)
    trace = open_trace(str(path), reading=reading)
    found = survey(trace)
    require_usable(trace, found)
    talks = json.loads(path.read_text())
    first = Counter(one["conversations"][0]["from"] for one in talks if one["conversations"])
    assert len(talks) == 400
    assert min(first["human"], first["gpt"], first["system"]) > 20
    assert (trace.format_name, found.bad_rows) == ("sharegpt", 0)
    assert found.sessions + found.notes["empty"] == 400
    assert found.notes.get("duplicate", 0) == 400 - len({one["id"] for one in talks})
    by_hand = [answers_by_hand(one) for one in talks]
    assert found.rows + found.notes.get("too_long", 0) == sum(by_hand)
    assert 400 - found.notes["empty"] == sum(count > 0 for count in by_hand)


def answers_by_hand(one: dict[str, Any]) -> int:
    """Answers with a person's message since the answer before."""
    said = "".join({"human": "h", "gpt": "g"}.get(m["from"], "") for m in one["conversations"])
    return said.count("hg")
