"""How a table of rules judges something: a rule looks, and its gravest looks are its finding.

The passport of a run (`metrics/passport.py`, rules in `metrics/rules/`) and a tree of results that
is to be submitted (`mlperf/rules.py`) are judged in these words.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
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


well = partial(Look, Status.PASS)
suspect = partial(Look, Status.SUSPECT)
invalid = partial(Look, Status.INVALID)
unknown = partial(Look, Status.NOT_JUDGED)
nothing = partial(Look, Status.NOT_APPLICABLE)


def gravest(
    looks: Iterable[Look], gravest_first: Sequence[Status]
) -> tuple[Status, tuple[Look, ...]]:
    """Return the status of a rule and the looks that it comes from. Without a look nothing was
    judged."""
    every = tuple(looks)
    statuses = {look.status for look in every}
    status = next((each for each in gravest_first if each in statuses), Status.NOT_JUDGED)
    return status, tuple(look for look in every if look.status is status)
