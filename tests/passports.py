"""What the passport of a run says: which rules found something, and that no other did."""

from collections.abc import Sequence
from typing import Any

BY_CHANCE = frozenset(
    {"V12", "V13", "V14", "V15", "V18", "V19", "V21", "V23", "V24", "V25", "V29", "V30", "R6", "R7"}
)
"""Rules that others on a busy machine, its limits, or that a test's run is tiny, can break: they
are compared where they are wanted, and all others always."""


def rule(own: Any, number: str) -> Any:
    (found,) = (row for row in own["passport"]["rules"] if row["rule"] == number)
    return found


def status(own: Any, number: str) -> str:
    return str(rule(own, number)["status"])


def says(own: Any, number: str) -> str:
    return str(rule(own, number)["message"])


def named(own: Any) -> dict[str, str]:
    """The rules that found something, with what they found."""
    found = {row["rule"]: row["status"] for row in own["passport"]["rules"]}
    return {number: status for number, status in found.items() if status in ("suspect", "invalid")}


def names(own: Any, *, also: Sequence[str] = (), **wanted: str) -> None:
    """The wanted rules found what they were to find, and no other found anything but by chance.
    Those in `also` may have found the consequences."""
    found, reasons = named(own), own["passport"]["reasons"]
    compared = {n: found[n] for n in found.keys() - (BY_CHANCE.union(also) - wanted.keys())}
    assert compared == wanted, reasons
    evidence = own["passport"].get("evidence")  # of several runs: each has its own
    if evidence is not None and "V22" not in {*wanted, *also}:
        assert evidence["verification"]["errors"] == 0
    statuses = set(found.values())
    gravest = next((word for word in ("invalid", "suspect") if word in statuses), "valid")
    assert own["passport"]["verdict"] == gravest
    assert len(reasons) == len(found)
