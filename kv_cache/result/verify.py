"""Derives a result again from its counts, whatever its hashes say.

Everything but the counts follows from them, so a change of one number needs changes of all that
follow from it. Each deviation is one sentence: the place, its value, and what is derived. A few
laws tie the counts to each other; in a run's directory the records are counted again
(`side_files`).

It must never fail: the document may come from anywhere. What is missing or misshapen is a deviation
too.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf, isclose
from typing import Any

from kv_cache import __version__
from kv_cache.config.schema import show
from kv_cache.core.kinds import OpKind, Qos
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.evidence import Thresholds
from kv_cache.metrics.histogram import Histogram, bucket_of
from kv_cache.metrics.pace import batch_count
from kv_cache.metrics.passport import Verdict, judge
from kv_cache.metrics.recorder import SAMPLE_LIMIT
from kv_cache.result.chain import CHAIN
from kv_cache.result.counted import StackFacts
from kv_cache.result.derive import derive
from kv_cache.result.difference import differences
from kv_cache.result.evidence import gather
from kv_cache.result.run import (
    SECTION,
    CountedRun,
    MisshapenError,
    number,
    plain,
    read_run,
    semantics_of,
)
from kv_cache.result.sections import paced
from kv_cache.result.verdicts import FINISHED

SOURCE = "what was counted"
_WORDS = ("rules", "reasons", "changed_thresholds")
_RISING = (
    *(f"{of}_{kind.value}_bytes" for of in ("process", "device", "foot") for kind in OpKind),
    *("rchar", "wchar", "device_io_ms", "process_cpu_ns", "host_busy_s", "host_total_s"),
)
"""Counters of the kernel that never fall."""
_LONGEST_S = 2**63 / NS_PER_S
_ROUNDED_S = 1e-3
_JUDGED = tuple(f"{SECTION}.passport.{name}" for name in _WORDS)
"""Another version may have other rules, and other words for them."""


def recheck(document: Mapping[str, Any]) -> list[str]:
    """Return what in the document does not follow from the rest of it, one sentence each."""
    try:
        run = read_run(document)
        again = plain(derive(run))
        sentences = [*_unlike(document, again, run), *broken_laws(run)]
    except MisshapenError as error:
        return [str(error)]
    return list(dict.fromkeys(sentences))


def _unlike(document: Mapping[str, Any], again: Any, run: CountedRun) -> Iterator[str]:
    stored = {**document, SECTION: without_chain(document[SECTION])}
    for difference in differences(stored, again):
        if run.facts.program_version == __version__ or not difference.path.startswith(_JUDGED):
            yield difference.message(SOURCE)


def without_chain(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != CHAIN}


def unlike_again(section: Mapping[str, Any], again: Mapping[str, Any], source: str) -> list[str]:
    """Return what of a section is otherwise when it is made again of its `source`: one sentence
    each, whichever version wrote it."""
    ours, theirs = without_chain(again), without_chain(section)
    theirs["program_version"] = ours["program_version"]
    mismatches = differences(theirs, ours, SECTION)
    return [f"{each.path} does not follow from {source}" for each in mismatches]


def values(document: Any) -> int:
    """Return how many single values a document holds: all are compared when it is derived again."""
    if isinstance(document, Mapping):
        return sum(map(values, document.values()))
    return sum(map(values, document)) if isinstance(document, list) else 1


def judged_again(document: Mapping[str, Any]) -> Verdict:
    """Judge the document's evidence again, whatever verdict the document has. If its facts cannot
    be read, the evidence is taken as it is, with the default thresholds."""
    try:
        run = read_run(document)
        return judge(plain(gather(run)), run.config.passport.thresholds())
    except MisshapenError:
        passport = document[SECTION].get("passport")
        evidence = passport.get("evidence") if isinstance(passport, Mapping) else None
        return judge(evidence if isinstance(evidence, Mapping) else {}, Thresholds())


# --- laws between counts ---------------------------------------------------------------------


def broken_laws(run: CountedRun) -> Iterator[str]:
    """Yield counts that are taken in different places and must agree."""
    for law in LAWS:
        yield from law(run)


def _requests_add_up(run: CountedRun) -> Iterator[str]:
    requests, classes = run.facts.requests, run.facts.measured
    parts = requests.completed, requests.failed, requests.rejected, requests.unfinished
    if requests.submitted != sum(parts):
        yield (
            f"kv_cache.requests.submitted says {requests.submitted}, but completed + failed + "
            f"rejected + unfinished is {sum(parts)}"
        )
    completed = sum(classes.of(qos).completed for qos in Qos)
    if requests.completed_in_window != completed:
        yield (
            f"kv_cache.requests.completed_in_window says {requests.completed_in_window}, but the "
            f"classes add up to {completed}"
        )


def _histograms_are_of_the_same_operations(run: CountedRun) -> Iterator[str]:
    for n, row in enumerate(run.facts.operations):
        for name in ("device", "bytes"):
            count = getattr(row, f"histogram_{name}").count
            if count != row.histogram_total.count:
                yield (
                    f"kv_cache.operations[{n}].operations says {row.histogram_total.count}, "
                    f"but its histogram of {name} holds {count}"
                )
        if row.tier not in run.facts.tiers:
            yield (
                f"kv_cache.operations[{n}].tier says {show(row.tier)}, which kv_cache.tiers has not"
            )


def _batches_cover_the_window(run: CountedRun) -> Iterator[str]:
    headline = paced(run, run.config.mode)
    count = batch_count(run.window_s, headline.call_s)
    if len(headline.batches) != count:
        yield (
            f"kv_cache.headline.batches.length is {len(headline.batches)}, but window and calls "
            f"give {count}"
        )
    spread = sum(batch.nbytes for batch in headline.batches)
    total = spread + headline.before_bytes - headline.after_bytes
    if headline.batches and total != headline.nbytes:
        yield (
            f"kv_cache.headline.bytes says {headline.nbytes}, but the batches and the edges of the "
            f"window add up to {total}"
        )


def _settings_are_the_configured(run: CountedRun) -> Iterator[str]:
    facts, config = run.facts, run.config
    if facts.seed != config.run.seed:
        yield f"kv_cache.config.run.seed says {config.run.seed}, but kv_cache.seed is {facts.seed}"
    mode = config.io.verify if run.measured else "none"
    if facts.verification.mode != mode:
        yield (
            f"kv_cache.verification.mode says {show(facts.verification.mode)}, but the "
            f"configuration gives {show(mode)}"
        )
    stated, per_token = config.run.kv_bytes_per_token, facts.model.get("kv_bytes_per_token")
    if stated is not None and per_token != stated:
        yield (
            f"kv_cache.model.kv_bytes_per_token says {show(per_token)}, but the configuration has "
            f"{stated}"
        )


def _a_finished_window_is_whole(run: CountedRun) -> Iterator[str]:
    """Users who never stop asking, by themselves, end at --duration alone, unless interrupted."""
    config, duration_s = run.config, run.config.run.duration_s
    bounded = config.run.max_requests or config.run.until or config.replays
    controlled = config.autoscaler.enabled or run.facts.rank.ranks != 1
    if run.facts.status != FINISHED or duration_s is None or bounded or controlled:
        return
    if not isclose(run.window_s, duration_s, abs_tol=_ROUNDED_S):
        yield (
            f"kv_cache.status says {show(FINISHED)}, but the window of {run.window_s:g} s ended "
            f"otherwise than at --duration {duration_s:g}"
        )


def _semantics_are_the_configured(run: CountedRun) -> Iterator[str]:
    for difference in differences(run.facts.semantics, semantics_of(run.config)):
        yield f"kv_cache.semantics.{difference.message('the configuration')}"


def _lists_are_of_the_requests(run: CountedRun) -> Iterator[str]:
    """Single latencies that a result keeps are among those that its histograms count."""
    if run.config.output.io_trace_log is not None:
        return  # which has no figures
    for name, histogram in _listed(run):
        values, counts = getattr(run.counted, name), histogram.buckets()
        kept = min(histogram.count, SAMPLE_LIMIT)
        if len(values) != kept:
            yield f"{name}.length is {len(values)}, but its histogram gives {kept}"
        listed = Counter(bucket_of(round(s * NS_PER_S)) for s in values if 0 <= s < _LONGEST_S)
        lacking = len(values) - sum(min(n, counts.get(b, 0)) for b, n in listed.items())
        if lacking:
            yield f"{name} has {lacking} of {len(values)} values that its histogram does not count"


def _listed(run: CountedRun) -> Iterator[tuple[str, Histogram]]:
    measured = run.facts.measured.together
    yield "end_to_end_latencies", measured.histogram_end_to_end
    yield "storage_latencies", measured.histogram_storage
    yield "generation_latencies", measured.histogram_compute


def _a_part_is_no_more_than_the_whole(run: CountedRun) -> Iterator[str]:
    for label, tier in run.facts.tiers.items():
        if tier.used_bytes > tier.peak_bytes or tier.peak_bytes > (tier.capacity_bytes or inf):
            yield (
                f"kv_cache.tiers.{label} says that it held {tier.used_bytes} bytes at the end, "
                f"{tier.peak_bytes} at most and could hold {tier.capacity_bytes}"
            )
    for name in _RISING:
        part, most = (number(run.kernel(span), name) for span in ("window", "run"))
        if part is not None and most is not None and part > most:
            yield (
                f"kv_cache.kernel_counters.window.{name} says {part}, more than the {most} of the "
                "whole run"
            )


def _stack_is_the_environments(run: CountedRun) -> Iterator[str]:
    """The environment has what lies below the directories too, by directory."""
    stack = run.facts.passport.evidence.stack
    below = [drive.stack for drive in run.machine.drives]
    if stack is None or None in below or not below:
        return  # virtual time; an object store
    for name in StackFacts.__struct_fields__:
        rows = [row for each in below if each is not None for row in getattr(each, name)]
        if stack.get(name, []) != [row for n, row in enumerate(rows) if row not in rows[:n]]:
            yield (
                f"kv_cache.passport.evidence.stack.{name} is not what the environment says of the "
                "directories"
            )


def _judged_rounds_were_run(run: CountedRun) -> Iterator[str]:
    done = run.facts.preconditioning or {}
    proof, rounds = done.get("proof"), done.get("rounds") or []
    if not isinstance(proof, Mapping):
        return
    judged = proof.get("values")
    rates = [row.get("bytes_per_second") if isinstance(row, Mapping) else None for row in rounds]
    if not isinstance(judged, list) or judged != rates[len(rates) - len(judged) :]:
        yield "kv_cache.preconditioning.proof.values are not the last rounds of the preconditioning"


LAWS: tuple[Callable[[CountedRun], Iterator[str]], ...] = (
    _requests_add_up,
    _histograms_are_of_the_same_operations,
    _batches_cover_the_window,
    _settings_are_the_configured,
    _a_finished_window_is_whole,
    _semantics_are_the_configured,
    _lists_are_of_the_requests,
    _a_part_is_no_more_than_the_whole,
    _stack_is_the_environments,
    _judged_rounds_were_run,
)
