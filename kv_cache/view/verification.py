"""What `verify` shows: is a document intact, what was changed or contradicts itself, and what its
evidence is worth."""

from collections.abc import Iterable, Iterator, Mapping

from kv_cache.result.kinds import CAPACITY, PRECONDITIONING, SWEEP
from kv_cache.result.verification import (
    ChainVerification,
    RanksVerification,
    RunVerification,
    Verification,
)
from kv_cache.result.verify import values
from kv_cache.view.parts import FactList, View, ViewSection

_MOST_ROWS = 20
"""Of one name; the others are counted."""

Rows = Iterator[tuple[str, str]]


def verification_view(verification: Verification) -> View:
    """Show a verification of any kind."""
    match verification:
        case RunVerification():
            details, good = _run_rows(verification), _run_sentence(verification)
        case RanksVerification():
            details, good = _ranks_rows(verification), _ranks_sentence(verification)
        case ChainVerification():
            details, good = _chain_rows(verification), "Nothing was changed."
    rows = [("fingerprint", verification.fingerprint or "none"), *details]
    return View(
        title=f"Verification of {verification.path}",
        status="intact" if verification.intact else "changed",
        sentence=good if verification.intact else "It is not as its run left it.",
        about=[verification.schema],
        sections=[ViewSection(title="Findings", parts=[FactList(rows=rows)])],
    )


def _run_sentence(verification: RunVerification) -> str:
    count = values(verification.document)
    return f"Nothing was changed, and all {count:,} values follow from the counts."


def _run_rows(verification: RunVerification) -> Rows:
    verdict = verification.verdict
    missing = "none: name the run's directory to look at its records too"
    yield "files", ", ".join(verification.files) or missing
    yield from _flaws(verification)
    yield "verdict", verdict.verdict
    yield from (("reason", str(finding)) for finding in verdict.reasons)
    yield from (("not judged", str(finding)) for finding in verdict.not_judged)
    for name, (value, default) in verdict.changed_thresholds.items():
        yield "threshold", f"{name} is {value:g} (default {default:g})"


def _ranks_sentence(verification: RanksVerification) -> str:
    counted = sum(row["counted"] for row in verification.ranks)
    return (
        f"Nothing was changed; each of {counted} results follows from what it counted, and so does "
        "the merge of them."
    )


def _ranks_rows(verification: RanksVerification) -> Rows:
    for row in verification.ranks:
        yield f"rank {row['rank']}", f"fingerprint {row['fingerprint'] or 'none'}"
    yield from _flaws(verification)
    yield "verdict", verification.verdict or "not known"
    yield from (("reason", reason) for reason in verification.reasons)


_AGAIN: Mapping[str, str] = {
    "kv-cache-trials/": "verify it beside the results of all trials",
    "kv-cache-mlperf/": "mlperf check looks at the whole tree",
    "kv-cache-trace-stats/": "trace stats of the same trace does",
    "kv-cache-sim/": "sim of the same scenario does",
    "kv-cache-lab/": "lab with the same words does",
}
"""What derives the numbers again of a kind whose chain alone is checked."""


_FROM_WITHIN: Mapping[str, str] = {
    CAPACITY: "of the answer and its verdict are derived again from what the probes saw",
    PRECONDITIONING: "of the proof and the verdict are derived again from the fill and the rounds",
    SWEEP: "of cells are derived again from the runs, and these from results that are there",
}
"""The same of documents that hold what their numbers come from."""


def _chain_rows(verification: ChainVerification) -> Rows:
    if verification.named:
        yield "files", f"{verification.present} of {verification.named} that it names are there"
    yield from _flaws(verification)
    if verification.derived:
        yield "numbers", "are derived again from those files"
        return
    if verification.schema in _FROM_WITHIN:
        yield "numbers", _FROM_WITHIN[verification.schema]
        return
    again = (words for kind, words in _AGAIN.items() if verification.schema.startswith(kind))
    words = next(again, "verify the results of single runs")
    yield "numbers", f"are not derived again: {words}"


def _flaws(verification: Verification) -> Rows:
    yield from _capped("changed", (f"{link} {message}" for link, message in verification.changes))
    yield from _capped("disagrees", verification.deviations)


def _capped(name: str, texts: Iterable[str]) -> Rows:
    rows = list(texts)
    yield from ((name, text) for text in rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        yield "", f"and {len(rows) - _MOST_ROWS} more"
