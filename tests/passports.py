"""What the passport of a run says: which rules found something, and that no other did."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

BY_CHANCE = frozenset(
    {"V12", "V13", "V14", "V15", "V18", "V19", "V21", "V23", "V24", "V25", "V29", "V30", "R6", "R7"}
    | {"T2", "T3"}
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


not_compared: list[Any] = []
"""Sections of runs that came to a good end, whose rules no test has compared yet."""


def named(own: Any) -> dict[str, str]:
    """The rules that found something, with what they found."""
    not_compared[:] = [other for other in not_compared if other is not own]
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
    assert own["passport"]["verdict"] == gravest(found)
    assert len(reasons) == len(found)


def compare_the_rest() -> None:
    """What a test compares no rules of is a run that it did nothing to: in virtual time nothing is
    measured, and else no rule finds anything but by chance."""
    rest = not_compared[:]
    not_compared.clear()
    for own in rest:
        rules = {row["rule"] for row in own["passport"]["rules"]}  # of trials: others
        virtual = own.get("driver") == "virtual-time" and "V26" in rules
        names(own, **({"V26": "invalid"} if virtual else {}))


def gravest(found: Mapping[str, str]) -> str:
    return next((word for word in ("invalid", "suspect") if word in found.values()), "valid")


def answer_names(own: Any, **wanted: str) -> None:
    """The same of a capacity search: of each of its probes, and of its answer, whose verdict is the
    worst of what its probes' rules found and of what it says itself."""
    chance = BY_CHANCE - wanted.keys()
    for probe in own["probes"]:
        assert {reason.split()[0] for reason in probe["reasons"]} - chance == wanted.keys(), probe
    told = [re.match(r"(V\d+) .* is (suspect|invalid) in \d", text) for text in own["reasons"]]
    found = {each[1]: each[2] for each in told if each}
    assert {n: found[n] for n in found.keys() - chance} == wanted, own["reasons"]
    word = gravest(found)
    if own["status"] != "finished":
        word = "invalid"
    elif word != "invalid" and own["answer"]["ended"] == "client-bound":
        word = "client-bound"
    elif word == "valid" and own["reasons"]:  # of the answer itself
        word = "suspect"
    assert own["verdict"] == word, own["reasons"]
