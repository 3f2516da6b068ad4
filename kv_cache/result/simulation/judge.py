"""Judges which variant is best, or why none can be called best.

Variants are compared in pairs (`metrics/order.py`), all of them by one measure as one family: by
seeds, of which every variant has the same, or on a trace, of which all seeds ask the same, by
stretches of its requests. There is no order at all where too few instances had work (then nothing
was under load), and none of caches where nearly every miss was the first access to its block (then
no cache could have done much), or of latencies where requests that were turned away are missing
among them.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from msgspec import Struct, to_builtins

from kv_cache.metrics.intervals import CONFIDENCE, autocorrelation
from kv_cache.metrics.order import LEAST_SEEDS, ComparedSides, Lead, compared, compulsory_share
from kv_cache.result.metrics import HIGHER, Json
from kv_cache.result.simulation.measures import (
    FINISHED_RATE,
    GOODPUT,
    HIT_RATIO,
    JUDGED,
    LATENCIES,
    Measure,
    number_of,
)

LEAST_ACTIVE = 0.5
"""Of the instances of each role: with fewer there is no verdict."""
MOST_LOST = 0.01
"""Of the requests of any variant: if more were rejected or aborted, latencies have no order."""
SAME_HITS = 0.01
"""Of the blocks looked up: up to here variants load the same where nothing is computed."""
MOST_ALIKE = 0.75
"""The correlation of neighbouring stretches of a variant from which on times have no order."""
SKEWED = 2.0
"""Times the mean: from here on the distribution of requests is worth a warning."""

_OF_CACHES = "tiers."


class Finding(Struct, frozen=True, kw_only=True):
    """By one measure: the number of the best variant, or None, and why in words. `first` has the
    best mean, and `leads` by how much it is better than each other (the larger the better)."""

    measure: Measure
    best: int | None
    message: str
    first: int | None = None
    leads: dict[int, Lead | None] | None = None

    def row(self) -> dict[str, Any]:
        leads = None if self.leads is None else to_builtins(self.leads, str_keys=True)
        return {"best": self.best, "message": self.message, "first": self.first, "leads": leads}


def headline(variants: Sequence[Json]) -> Measure:
    """Return what the scenario names, else goodput if there are SLOs, else the TTFT that 95 % of
    the requests keep; how many finish if too many do not, and block hits if nothing takes time, or
    misses take none."""
    named = variants[0]["scenario"].get("judged_by") if variants else None
    if named is not None:
        return JUDGED[named]
    if _free_misses(variants) is not None:
        return HIT_RATIO
    if variants and all(number_of(v, GOODPUT.path) is not None for v in variants):
        return GOODPUT
    if _lost(variants) is not None:
        return FINISHED_RATE
    ttft = next(measure for measure in LATENCIES if measure.path == "ttft_ms.p95")
    return ttft if any(number_of(v, ttft.path) for v in variants) else HIT_RATIO


def verdict(variants: Sequence[Json], varied: Sequence[str]) -> dict[str, Any]:
    """Return the section of the document. `variants` have their numbers over seeds, `varied` are
    the options in which they differ."""
    first = headline(variants)
    why = no_order(variants, varied)
    others = [measure for measure in JUDGED.values() if measure is not first]
    findings = [_judged(measure, variants, varied, why) for measure in (first, *others)]
    return {
        "by": first.path,
        "best": findings[0].best,
        "message": findings[0].message,
        "no_order": why,
        "measures": {
            each.measure.path: each.row()
            for each in findings
            if any(number_of(variant, each.measure.path) is not None for variant in variants)
        },
    }


def no_order(variants: Sequence[Json], varied: Sequence[str]) -> str | None:
    """Return why these variants have no order by anything; None if they may have one."""
    if len(variants) < 2:
        return "there is one variant: nothing to compare it with"
    seeds = min(len(variant["runs"]) for variant in variants)
    if seeds < LEAST_SEEDS and not _traced(variants):
        many = "1 seed is" if seeds == 1 else f"{seeds} seeds are"
        return f"{many} fewer than {LEAST_SEEDS}: nothing is known of chance; give --seeds 5"
    idle = _least(variants, "instances.active_share")
    if idle is not None and idle[0] < LEAST_ACTIVE:
        return (
            f"only {100 * idle[0]:.0f} % of the instances of a role had any request in variant "
            f"{idle[1]}, and {100 * LEAST_ACTIVE:.0f} % are needed; ask more, or simulate fewer"
        )
    of_caches = varied and all(path.startswith(_OF_CACHES) for path in varied)
    return _compulsory(variants) if of_caches else None


def _traced(variants: Sequence[Json]) -> bool:
    """Return whether all ask what a trace has, whatever the seed."""
    return all(
        variant["scenario"].get("workload", {}).get("source") == "trace" for variant in variants
    )


def _compulsory(variants: Sequence[Json]) -> str | None:
    """Return why caches have no order: nearly all misses of the variant that misses most are first
    accesses, which are the same for all."""
    rows = [
        (number_of(variant, "blocks.missed") or 0.0, number_of(variant, "blocks.compulsory") or 0.0)
        for variant in variants
    ]
    missed, compulsory = max(rows)
    if not missed:
        return "no block was missed"
    share = compulsory_share(compulsory, missed)
    if share is None:
        return None
    return f"{100 * share:.1f} % of the worst one's misses are first accesses, which no cache has"


def _lost(variants: Sequence[Json]) -> str | None:
    least = _least(variants, "requests.finished_share")
    if least is None or 1 - least[0] <= MOST_LOST:
        return None
    return (
        f"{100 * (1 - least[0]):.1f} % of the requests were rejected or aborted in variant "
        f"{least[1]}, and latencies are of the others"
    )


def _free_misses(variants: Sequence[Json]) -> str | None:
    """Return why latencies have no order: if nothing is computed, a variant that finds less loads
    less and is faster."""
    if any(number_of(variant, "instances.utilisation") for variant in variants):
        return None
    hits = [ratio for v in variants if (ratio := number_of(v, HIT_RATIO.path)) is not None]
    if not hits or max(hits) - min(hits) <= SAME_HITS:
        return None
    return "nothing is computed, so that a miss takes no time"


def _least(variants: Sequence[Json], path: str) -> tuple[float, int] | None:
    """Return the smallest value of a number, with its variant."""
    values = [
        (value, variant["variant"])
        for variant in variants
        if (value := number_of(variant, path)) is not None
    ]
    return min(values, default=None)


def _judged(
    measure: Measure, variants: Sequence[Json], varied: Sequence[str], why: str | None
) -> Finding:
    why = why or (_lost(variants) if measure in LATENCIES else None)
    why = why or (_free_misses(variants) if measure is not HIT_RATIO else None)
    why = why or (_compulsory(variants) if measure is HIT_RATIO else None)
    if why is None:
        return _ranked(measure, variants)
    if len(variants) < 2:
        return Finding(measure=measure, best=None, message=why)
    return Finding(
        measure=measure, best=None, message=f"nobody can be called best by {measure.label}: {why}"
    )


# --- differences -----------------------------------------------------------------------------


def _ranked(measure: Measure, variants: Sequence[Json]) -> Finding:
    """Return the best one, if it is shown to be better than all others."""
    traced = _traced(variants)
    pairs = [_by_stretch(v, measure) if traced else _by_seed(v, measure) for v in variants]
    if why := _why_no_pairs(measure, variants, pairs, traced=traced):
        return Finding(
            measure=measure, best=None,
            message=f"nobody can be called best by {measure.label}: {why}",
        )  # fmt: skip
    rows = [variant["numbers"][measure.path] for variant in variants]
    if all(values == pairs[0] for values in pairs):
        message = f"all variants have the same {measure.label}: {measure.with_reach(rows[0])}"
        return Finding(measure=measure, best=None, message=f"{message} {measure.unit}".rstrip())
    sign = 1.0 if measure.better == HIGHER else -1.0
    if traced and measure is not HIT_RATIO and (why := _swinging(variants, pairs)):
        return Finding(
            measure=measure, best=None,
            message=f"nobody can be called best by {measure.label}: {why}",
        )  # fmt: skip
    count = min(map(len, pairs))
    sides = [[sign * value for value in values[:count]] for values in pairs]
    family = compared(sides, in_order=traced)
    if traced and all(pair is None for pair in family.pairs.values()):
        return Finding(
            measure=measure, best=None,
            message=f"nobody can be called best by {measure.label}: neighbouring stretches of the "
            f"trace are so alike that too few of the {count} are independent; ask more of it",
        )  # fmt: skip
    places = sorted(range(len(sides)), key=lambda place: -fmean(sides[place]))
    return _finding(measure, variants, family, places, f"{count} {_PAIRS[traced]}")


_PAIRS = {True: "stretches of the trace", False: "seeds"}


def _by_seed(variant: Json, measure: Measure) -> list[float]:
    """Return the value of each seed; none where one has none."""
    row = variant["numbers"].get(measure.path)
    values = [] if row is None else row["values"]
    return [] if None in values else list(values)


def _by_stretch(variant: Json, measure: Measure) -> list[float]:
    """Return the value of each stretch, the mean of the seeds."""
    runs = [run["stretches"].get(measure.path) for run in variant["runs"]]
    if None in runs or len({len(run) for run in runs}) != 1:
        return []
    return [fmean(values) for values in zip(*runs, strict=True)]


def _why_no_pairs(
    measure: Measure, variants: Sequence[Json], pairs: Sequence[list[float]], *, traced: bool
) -> str | None:
    without = [v["variant"] for v, values in zip(variants, pairs, strict=True) if not values]
    if without:
        has = "has" if len(without) == 1 else "have"
        where = " in each of 20 stretches or more: ask more of the trace" if traced else ""
        return f"{_list(without)} {has} too few values of it{where}"
    if not traced:
        return None
    works = [variant["scenario"]["workload"] for variant in variants]
    if len({work.get("trace") for work in works}) > 1:
        return "the variants ask by different traces, so that their stretches are no pairs"
    parts = {tuple(work.get(name) for name in _ROWS) for work in works}
    if len(parts) > 1 or len({len(values) for values in pairs}) > 1:
        return "the variants ask different parts of the trace"
    return None


def _swinging(variants: Sequence[Json], pairs: Sequence[Sequence[float]]) -> str | None:
    """Return why stretches are no sample, where those of a variant follow one slow swing, as where
    a queue grows for most of a trace: what it is like there has chance in it that is hardly seen
    from one stretch to the next. Held to queues of known order by benchmarks/queues.py."""
    alike = [autocorrelation(values) + 1 / len(values) for values in pairs]
    numbers = [v["variant"] for v, r in zip(variants, alike, strict=True) if r >= MOST_ALIKE]
    if not numbers:
        return None
    return (
        f"of {_list(numbers)} it follows one swing along the trace (neighbouring stretches "
        f"correlate by {max(alike):.2f}, and below {MOST_ALIKE:g} is needed), as where requests "
        "queue up; ask less at a time (workload.arrival_scale below 1), or a longer trace"
    )


_ROWS = ("requests", "warmup_requests", "include_failed_rows", "skip_bad_rows", "trace_format")
"""Options that say which rows of a trace are asked, and counted."""


def _finding(
    measure: Measure,
    variants: Sequence[Json],
    family: ComparedSides,
    places: Sequence[int],
    by: str,
) -> Finding:
    """Say by how much the first of `places` leads the others."""
    numbers = [variant["variant"] for variant in variants]
    first, *others = places
    leads = {numbers[other]: family.lead(first, other) for other in others}
    shown = [number for number, lead in leads.items() if lead is not None and lead.shown]
    near = [number for number in leads if number not in shown]
    sure = f"{100 * CONFIDENCE:.0f} % for all differences together, in {by}"
    name = name_of(variants, numbers[first])
    value = measure.with_reach(variants[first]["numbers"][measure.path])
    if not near:
        lead = leads[shown[0]]
        text = "" if lead is None else f", better than the next by {measure.lead(lead)}"
        message = f"best by {measure.label} is {name}: {value} {measure.unit}{text}; {sure}"
        return Finding(
            measure=measure, best=numbers[first], message=message, first=numbers[first],
            leads=leads,
        )  # fmt: skip
    is_or_are = "is" if len(near) == 1 else "are"
    message = (
        f"nobody can be called best by {measure.label}: {name} has {value} {measure.unit}, and "
        f"{_list(sorted(near))} {is_or_are} not shown to be worse"
    )
    if shown:
        message += f"; {_list(sorted(shown))} {'is' if len(shown) == 1 else 'are'} worse"
    return Finding(
        measure=measure, best=None, message=f"{message} ({sure})", first=numbers[first], leads=leads
    )


def _list(numbers: Sequence[int]) -> str:
    """Return `variant 3`, `variants 1, 2 and 3`, or of more than six how many they are."""
    if len(numbers) == 1:
        return f"variant {numbers[0]}"
    if len(numbers) > _MOST_LISTED:
        return f"{len(numbers)} variants"
    return f"variants {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


_MOST_LISTED = 6


def name_of(variants: Sequence[Json], number: int) -> str:
    """Return `variant 2 (eviction=arc)`."""
    name = next(variant["name"] for variant in variants if variant["variant"] == number)
    return f"variant {number} ({name})" if name else f"variant {number}"


# --- warnings --------------------------------------------------------------------------------


def warnings(variants: Sequence[Json]) -> list[str]:
    """Return what a reader has to know before the numbers, each once, with the variants that it is
    of."""
    whose: dict[str, list[int]] = {}
    for variant in variants:
        for text in (*_of_load(variant), *_of_runs(variant)):
            whose.setdefault(text, []).append(variant["variant"])
    return [
        text if len(numbers) == len(variants) else f"{_list(numbers)}: {text}"
        for text, numbers in whose.items()
    ]


def _of_load(variant: Json) -> list[str]:
    """Return warnings about the distribution of requests over instances, and about lost
    requests."""
    skew, active = (
        number_of(variant, path) for path in ("instances.skew", "instances.active_share")
    )
    finished = number_of(variant, "requests.finished_share")
    sentences = []
    if finished is not None and 1 - finished > MOST_LOST:
        sentences.append(
            f"{100 * (1 - finished):.1f} % of the requests were rejected or aborted: latencies are "
            "of the others"
        )
    if skew is not None and skew >= SKEWED:
        sentences.append(
            f"requests are skewed: one instance had {skew:.1f} times the mean of its role "
            f"(a warning from {SKEWED:g} on)"
        )
    if active is not None and active < LEAST_ACTIVE:
        sentences.append(
            f"only {100 * active:.0f} % of the instances of a role had any request (a warning "
            f"below {100 * LEAST_ACTIVE:.0f} %): the cluster was not under load"
        )
    return sentences


def _of_runs(variant: Json) -> list[str]:
    """Return the warnings of the simulations themselves."""
    texts = (text for run in variant["runs"] for text in run["facts"]["warnings"])
    return list(dict.fromkeys(texts))
