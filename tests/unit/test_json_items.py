"""The scanner of JSON documents: items from parts of text, in the memory of one item."""

import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats import json_items as parts_module
from kv_cache.workload.formats.base import BrokenDocumentError
from kv_cache.workload.formats.json_items import Cursor, items, key_paths

TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\{}[],:\n\ud83d\ude00'))
SCALAR = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=5)
SPACE = st.sampled_from(["", " ", "\n", "\r\n\t ", "\ufeff"])


def cut(text: str, places: list[int]) -> Iterator[tuple[int, str]]:
    """The text in parts, each with the line at which it begins."""
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    for begin, end in pairwise(ends):
        yield text.count("\n", 0, begin) + 1, text[begin:end]


def found(text: str, *places: int) -> list[Any]:
    seen = list(items(Cursor(cut(text, list(places)))))
    assert [item.number for item in seen] == list(range(1, len(seen) + 1))
    return [json.loads(item.text) for item in seen]


def dumped(value: object, data: st.DataObject) -> str:
    return json.dumps(
        value,
        ensure_ascii=data.draw(st.booleans(), "ascii"),
        indent=data.draw(st.sampled_from([None, 0, 3]), "indent"),
        separators=data.draw(st.sampled_from([None, (",", ":"), (" ,\n", "\t: ")]), "separators"),
    )


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@given(objects=OBJECTS, places=PLACES, before=SPACE, behind=SPACE, data=st.data())
def test_the_elements_of_any_list_are_found_however_it_is_written_and_cut(
    objects: list[Any], places: list[int], before: str, behind: str, data: st.DataObject
) -> None:
    assert found(before + dumped(objects, data) + behind, *places) == objects


@given(objects=OBJECTS, data=st.data())
def test_one_character_at_a_time_is_as_good_as_all_at_once(
    objects: list[Any], data: st.DataObject
) -> None:
    text = dumped(objects, data)
    assert found(text, *range(len(text))) == objects


@given(objects=OBJECTS, places=PLACES, end=st.sampled_from(["\n", "\r\n", "\n\n \n"]))
def test_objects_one_a_line_are_found_too(objects: list[Any], places: list[int], end: str) -> None:
    text = end.join(json.dumps(one) for one in objects)
    assert found(text, *places) == objects
    assert found(text + end, *places) == objects


@given(objects=OBJECTS, places=PLACES)
def test_objects_over_several_lines_stand_one_behind_the_other(
    objects: list[Any], places: list[int]
) -> None:
    objects = [{"a": 1}, *objects]
    assert found("\n".join(json.dumps(one, indent=1) for one in objects), *places) == objects


@given(objects=OBJECTS, at=st.integers(0, 10_000), places=PLACES, data=st.data())
def test_a_list_that_is_cut_anywhere_is_refused(
    objects: list[Any], at: int, places: list[int], data: st.DataObject
) -> None:
    text = dumped(objects, data)
    text = text[: at % len(text)]
    if text:
        with pytest.raises(BrokenDocumentError, match=r"ends before its data does \(line \d+"):
            found(text, *places)


@given(objects=OBJECTS, places=PLACES, data=st.data())
def test_a_mutated_document_gives_only_a_trace_error_or_items(
    objects: list[Any], places: list[int], data: st.DataObject
) -> None:
    text = dumped(objects, data)
    at, upto = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    text = text[:at] + data.draw(st.text(max_size=5) | st.sampled_from('"[]{}\\,:')) + text[upto:]
    try:
        seen = list(items(Cursor(cut(text, places))))
    except TraceError:
        return
    assert all(item.text for item in seen)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1] 2", "line 1 expected nothing more"),
        ("[1]\n\n]", "line 3 expected nothing more"),
        ("[1 2]", "line 1, in item 2, expected a comma or the end of the list, found '2"),
        ("[1,,2]", "line 1, in item 2, expected a value, found ',"),
        ("[,]", "expected a value"),
        ("[1,]", "in item 2, expected a value, found '"),
        ("3", "line 1 expected a JSON list or object, found '3'"),
        ('"x"', "expected a JSON list or object"),
        ("nonsense", "expected a JSON list or object, found 'n"),
        ('{"a": 1} x', "expected nothing more.* found 'x'"),
        ('{\n"a": 1}\n[2]', "line 3, in item 2, expected nothing more"),
        ("[1", "the document ends before its data does"),
        ('["a\\', "the document ends before its data does"),
        ('[{"a": "b}]', r"ends before its data does \(line 1, in item 1\)"),
    ],
)
def test_a_document_that_is_none_is_refused_with_the_place(text: str, says: str) -> None:
    for places in ([], list(range(len(text)))):
        with pytest.raises(BrokenDocumentError, match=says):
            list(items(Cursor(cut(text, places))))


def test_nothing_has_no_items() -> None:
    for text in ("", " \n\t", "\ufeff", "[]", " [ \n ] "):
        assert found(text) == []


def test_bad_json_in_an_item_is_left_to_whoever_reads_it() -> None:
    seen = [item.text for item in items(Cursor([(1, '[{"a": nul}, {x}, 01, tru, {"b": 2}]')]))]
    assert seen == ['{"a": nul}', "{x}", "01", "tru", '{"b": 2}']


def test_a_bad_line_among_lines_spoils_itself_alone() -> None:
    text = '{"a": 1}\n{"b": "cut\n\nrubbish ] } \n{"c": 3}\n'
    seen = [item.text for item in items(Cursor(cut(text, [9, 11, 20])))]
    assert seen == ['{"a": 1}', '{"b": "cut', "rubbish ] }", '{"c": 3}']


def test_an_item_over_the_limit_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "MAX_ITEM_CHARS", 1 << 20)
    big = json.dumps(["x" * (1 << 20)])
    for text in (f"[1,{big},2]", f'{{"a": 1}}\n{big}'):
        with pytest.raises(BrokenDocumentError, match="in item 2, a value is longer than 1 Mi"):
            list(items(Cursor(cut(text, list(range(0, len(text), 4096))))))


def test_a_list_of_20_mb_in_one_line_is_read_in_the_memory_of_an_item() -> None:
    item = json.dumps({"id": "x", "text": ('a "quoted" \\ text, [not] {nested}' + " x" * 200) * 25})

    def parts() -> Iterator[tuple[int, str]]:
        yield 1, "["
        for number in range(2000):
            yield 1, ("" if number == 0 else ",") + item[:5000]
            yield 1, item[5000:]
        yield 1, "]"

    tracemalloc.start()
    count = size = 0
    for one in items(Cursor(parts())):
        count, size = count + 1, size + len(one.text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, size) == (2000, 2000 * len(item))
    assert size > 20_000_000
    assert peak < 2_000_000


@settings(max_examples=30)
@given(run=st.integers(0, 9), places=PLACES)
def test_backslashes_before_a_quote_count_wherever_they_are_cut(
    run: int, places: list[int]
) -> None:
    objects = [{"a": "\\" * run + '"' + "\\" * run}, {"b": "\\"}]
    assert found(json.dumps(objects), *places) == objects


# --- walking down ---


def test_members_and_elements_walk_into_a_document() -> None:
    cursor = Cursor(cut('{"id": 7, "list": [1, {"a": [2]}, "]"], "more": {}}', [3, 12, 30]))
    seen: dict[str, Any] = {}
    for key in cursor.members():
        if key == "list":
            seen[key] = [json.loads(text) for text in cursor.elements()]
        else:
            seen[key] = json.loads(cursor.value())
    cursor.finish()
    assert seen == {"id": 7, "list": [1, {"a": [2]}, "]"], "more": {}}


@pytest.mark.parametrize("text", ["{1: 2}", '{"a" 1}', '{"a": 1 "b": 2}', '{"a": 1,}', '{"a"'])
def test_an_object_that_is_none_is_refused(text: str) -> None:
    cursor = Cursor([(1, text)])
    with pytest.raises(BrokenDocumentError):
        assert [cursor.value() for _ in cursor.members()]


# --- telling documents apart ---


@given(value=OBJECTS, at=st.integers(0, 10_000), data=st.data())
def test_the_keys_of_a_head_are_those_of_the_document(
    value: list[Any], at: int, data: st.DataObject
) -> None:
    text = dumped(value, data)

    def keys(one: object, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        if isinstance(one, list):
            for inner in one:
                yield from keys(inner, above)
        if isinstance(one, dict):
            for key, inner in one.items():
                yield (*above, key)
                yield from keys(inner, (*above, key))

    whole = {path for path in keys(value) if all(json.dumps(k)[1:-1] == k for k in path)}
    plain = {path for path in key_paths(text) if not any("\\" in key for key in path)}
    assert whole <= plain | {path for path in whole if not all(k.isascii() for k in path)}
    assert key_paths(text[: at % len(text)]) <= key_paths(text)


def test_keys_in_texts_do_not_count() -> None:
    head = '[{"id": "a", "text": "{\\"conversations\\": [{\\"from\\": 1'
    assert key_paths(head) == {("id",), ("text",)}
    assert key_paths("a,b\n1,2\n") == frozenset()
