"""The verdict on a run: every rule's finding, and the worst of them.

A pure function of evidence that the result carries, so that anybody who has the file can judge
again. The evidence is gathered while the program runs; the rules are in `metrics/rules/`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Status, gravest
from kv_cache.metrics.rules import RULES
from kv_cache.metrics.rules.machine import VIRTUAL_TIME, real_io

__all__ = ["RULES", "VALID", "Finding", "Status", "Thresholds", "Verdict", "judge"]

VALID = "valid"
"""The verdict where nothing is suspect or invalid; the other two are the statuses' own words."""

_GRAVEST_FIRST = (
    Status.INVALID,
    Status.SUSPECT,
    Status.PASS,
    Status.NOT_JUDGED,
    Status.NOT_APPLICABLE,
)
"""A rule of several looks is judged once one of them could judge."""


class Finding(Struct, frozen=True, kw_only=True):
    """What one rule found: a sentence with the numbers and, unless all is well, a way out."""

    rule: str
    name: str
    status: Status
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.name}: {self.message}"


class Verdict(Struct, frozen=True, kw_only=True):
    """`verdict` is valid, suspect or invalid. A rule that could not be judged changes nothing;
    where that would be too kind, the rule itself is suspect."""

    verdict: str
    findings: tuple[Finding, ...]
    changed_thresholds: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """Why the verdict is not `valid`, the gravest first."""
        return self._with(Status.INVALID) + self._with(Status.SUSPECT)

    @property
    def not_judged(self) -> tuple[Finding, ...]:
        """Rules that had nothing to go by."""
        return self._with(Status.NOT_JUDGED)

    def _with(self, status: Status) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status is status)

    def to_json(self) -> dict[str, Any]:
        """Return what a result carries beside the evidence."""
        return {
            "verdict": self.verdict,
            "reasons": [str(finding) for finding in self.reasons],
            "rules": [asdict(finding) for finding in self.findings],
            "changed_thresholds": dict(self.changed_thresholds),
        }


def judge(evidence: Mapping[str, Any], thresholds: Thresholds) -> Verdict:
    """Return the verdict on a run. Any mapping can be judged."""
    facts = Evidence(evidence)
    findings = tuple(_find(rule, facts, thresholds) for rule in RULES)
    statuses = {finding.status for finding in findings}
    worst = next((s.value for s in (Status.INVALID, Status.SUSPECT) if s in statuses), VALID)
    return Verdict(verdict=worst, findings=findings, changed_thresholds=thresholds.changed())


SO_FAR = ("V1", "V4", "V21", "V23", "V24", "V27", "V28", "V29", "V31")
"""Rules whose evidence is there while a run goes on; the others wait for its end."""


def reasons_so_far(facts: Evidence, thresholds: Thresholds) -> tuple[Finding, ...]:
    """Return what these rules find in what a run shows until now that would not be valid."""
    findings = (_find(rule, facts, thresholds) for rule in SO_FAR)
    return tuple(f for f in findings if f.status in (Status.INVALID, Status.SUSPECT))


def findings_below(stack: Mapping[str, Any]) -> Iterator[str]:
    """Return what V27 and V28 find in a stack (`bench/probes/stack`) alone, in the words of a
    verdict."""
    facts = Evidence({"stack": stack})
    for finding in (_find(rule, facts, Thresholds()) for rule in ("V27", "V28")):
        if finding.status in (Status.INVALID, Status.SUSPECT):
            yield f"{finding.status.value}: {finding}"


def _find(rule: str, facts: Evidence, thresholds: Thresholds) -> Finding:
    name, look_at = RULES[rule]
    if facts.text("driver") == VIRTUAL_TIME and look_at is not real_io:
        message = "virtual time: there is nothing to look at"
        return Finding(rule=rule, name=name, status=Status.NOT_APPLICABLE, message=message)
    status, looks = gravest(look_at(facts, thresholds), _GRAVEST_FIRST)
    message = "; ".join(look.message for look in looks)
    return Finding(rule=rule, name=name, status=status, message=message)
