"""How a table of rules judges something: a rule looks, and its gravest looks are its finding.

The passport of a run (`metrics/passport.py`, rules in `metrics/rules/`) and a tree of results that
is to be submitted (`mlperf/rules.py`) are judged in these words.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """What a rule found."""

    PASS = "pass"
    SUSPECT = "suspect"
    INVALID = "invalid"
    NOT_JUDGED = "not-judged"  # the evidence is missing, or too little
    NOT_APPLICABLE = "not-applicable"  # there is nothing that the rule could be about


class Look(NamedTuple):
    """One look at what is judged. A rule may take several, of which the gravest count."""

    status: Status
    message: str
    where: str = ""  # the file or directory that was looked at, if there are several


def well(message: str, where: str = "") -> Look:
    return Look(Status.PASS, message, where)


def suspect(message: str, where: str = "") -> Look:
    return Look(Status.SUSPECT, message, where)


def invalid(message: str, where: str = "") -> Look:
    return Look(Status.INVALID, message, where)


def unknown(message: str, where: str = "") -> Look:
    return Look(Status.NOT_JUDGED, message, where)


def nothing(message: str, where: str = "") -> Look:
    return Look(Status.NOT_APPLICABLE, message, where)


def gravest(
    looks: Iterable[Look], gravest_first: Sequence[Status]
) -> tuple[Status, tuple[Look, ...]]:
    """Return the status of a rule and the looks that it comes from. Without a look nothing was
    judged."""
    every = tuple(looks)
    statuses = {look.status for look in every}
    status = next((each for each in gravest_first if each in statuses), Status.NOT_JUDGED)
    return status, tuple(look for look in every if look.status is status)
