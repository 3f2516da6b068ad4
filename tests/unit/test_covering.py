"""Covering arrays: nothing that two choices do together is left for the night."""

from itertools import combinations, product

import pytest

from tests.covering import by_day, covering

LAYOUTS, ENGINES, SIZES = ("file", "arena", "bucket"), ("direct", "mmap", "uring"), ("1", "2", "9")


def test_each_two_choices_come_together_in_a_case_of_the_array() -> None:
    cases = {"-".join(words): words for words in product(LAYOUTS, ENGINES, SIZES)}
    chosen = covering(cases)
    wanted = {pair for words in cases.values() for pair in combinations(words, 2)}
    assert {pair for name in chosen for pair in combinations(cases[name], 2)} == wanted
    assert 9 <= len(chosen) < len(cases) / 2


def test_a_choice_that_nothing_goes_with_is_a_case_of_its_own() -> None:
    assert covering({"cpu": ["cpu"], "file-mmap": ["file", "mmap"], "file": ["file"]}) == {
        "cpu",
        "file-mmap",
    }


def test_what_is_not_chosen_runs_at_night(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"a": (1, 2), "b": (3, 4)}
    monkeypatch.setattr("tests.covering.at_night", False)
    assert [case.id for case in by_day(cases, {"a"})] == ["a"]
    monkeypatch.setattr("tests.covering.at_night", True)
    day, night = by_day(cases, {"a"})
    assert (day.values, [mark.name for mark in day.marks]) == ((1, 2), [])
    assert (night.values, [mark.name for mark in night.marks]) == ((3, 4), ["nightly"])
