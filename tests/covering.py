"""Covering arrays. Of the product of several choices a test needs only as many combinations as
bring each two choices together; the whole product runs at night (marker `nightly`)."""

from collections.abc import Iterable, Mapping
from itertools import combinations

import pytest
from _pytest.mark import ParameterSet

at_night = False
"""Whether nightly cases are asked for; else those of a product are not even collected."""


def covering(choices: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the names of a covering array: each choice, and each two choices that some case has
    together, are in one of its cases. Always next is the case that adds most of them."""
    brings = {name: _alone_and_in_pairs(tuple(words)) for name, words in choices.items()}
    missing = set().union(*brings.values())
    chosen = set()
    while missing:
        best = max(brings, key=lambda name: len(brings[name] & missing))
        chosen.add(best)
        missing -= brings[best]
    return frozenset(chosen)


def _alone_and_in_pairs(words: tuple[str, ...]) -> set[tuple[str, ...]]:
    return {(word,) for word in words} | set(combinations(words, 2))


def by_day(cases: Mapping[str, tuple[object, ...]], chosen: Iterable[str]) -> list[ParameterSet]:
    """Return the parameters of the chosen cases, and at night of the others, marked `nightly`."""
    day = frozenset(chosen)
    return [
        pytest.param(*values, id=name, marks=() if name in day else pytest.mark.nightly)
        for name, values in cases.items()
        if name in day or at_night
    ]
