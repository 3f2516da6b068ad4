"""Verdicts on what several runs give together: trials, ranks, the probes of a search."""

from collections.abc import Container, Mapping

from kv_cache.metrics.passport import VALID, Finding, Status, Verdict

FINISHED, INTERRUPTED, BROKEN = "finished", "interrupted", "broken"
"""How a run can end."""

Look = tuple[Status, str]
"""What one rule comes to, and the sentence that says why."""


def status_of(interrupted: str | None, death: str | None) -> str:
    """Return how a run ended that a signal interrupted or an error broke, if anything did."""
    if death is not None:
        return BROKEN
    return FINISHED if interrupted is None else INTERRUPTED


def rule_of(reason: str) -> str:
    """Return the rule that a reason of a verdict is of: `V13` of `V13 client headroom: …`."""
    return reason.partition(" ")[0]


def worst(words: Container[str]) -> str:
    """Return the gravest of several verdicts or statuses, as a verdict."""
    return next((s.value for s in (Status.INVALID, Status.SUSPECT) if s.value in words), VALID)


def verdict_of(names: Mapping[str, str], looks: Mapping[str, Look]) -> Verdict:
    """Return the worst of the rules in `looks`; `names` has what each rule is about."""
    findings = tuple(
        Finding(rule=rule, name=names[rule], status=status, message=message)
        for rule, (status, message) in looks.items()
    )
    return Verdict(verdict=worst({finding.status.value for finding in findings}), findings=findings)
