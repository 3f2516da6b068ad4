"""Judges which variant is best, or why none can be called best.

Variants are distinguished only if the intervals of their means over seeds do not overlap. There is
no order at all on a trace (all seeds ask the same, so that their interval is of other chances than
the load's), none where too few instances had work (then nothing was under load), and none of caches
where nearly every miss was the first access to its block (then no cache could have done much), or
of latencies where requests that were turned away are missing among them.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from kv_cache.metrics.intervals import CONFIDENCE
from kv_cache.metrics.order import LEAST_SEEDS, compulsory_share
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
SKEWED = 2.0
"""Times the mean: from here on the distribution of requests is worth a warning."""

_OF_CACHES = "tiers."


class Finding(Struct, frozen=True, kw_only=True):
    """By one measure: the number of the best variant, or None, and why in words."""

    measure: Measure
    best: int | None
    message: str


def headline(variants: Sequence[Json]) -> Measure:
    """Return goodput if there are SLOs, else the TTFT that 95 % of the requests keep; how many
    finish if too many do not, and block hits if nothing takes time, or misses take none."""
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
    others = [measure for measure in JUDGED if measure is not first]
    findings = [_judged(measure, variants, varied, why) for measure in (first, *others)]
    return {
        "by": first.path,
        "best": findings[0].best,
        "message": findings[0].message,
        "no_order": why,
        "measures": {
            each.measure.path: {"best": each.best, "message": each.message}
            for each in findings
            if any(number_of(variant, each.measure.path) is not None for variant in variants)
        },
    }


def no_order(variants: Sequence[Json], varied: Sequence[str]) -> str | None:
    """Return why these variants have no order by anything; None if they may have one."""
    if len(variants) < 2:
        return "there is one variant: nothing to compare it with"
    seeds = min(len(variant["runs"]) for variant in variants)
    if seeds < LEAST_SEEDS:
        many = "1 seed is" if seeds == 1 else f"{seeds} seeds are"
        return f"{many} fewer than {LEAST_SEEDS}: nothing is known of chance; give --seeds 5"
    if all(
        variant["scenario"].get("workload", {}).get("source") == "trace" for variant in variants
    ):
        return (
            "a trace is one sample of what may be asked, whatever the seed; what differs is in the "
            "table, and users like it (`trace fit`) or traces of other days would show whether it "
            "stays"
        )
    idle = _least(variants, "instances.active_share")
    if idle is not None and idle[0] < LEAST_ACTIVE:
        return (
            f"only {100 * idle[0]:.0f} % of the instances of a role had any request in variant "
            f"{idle[1]}, and {100 * LEAST_ACTIVE:.0f} % are needed; ask more, or simulate fewer"
        )
    of_caches = varied and all(path.startswith(_OF_CACHES) for path in varied)
    return _compulsory(variants) if of_caches else None


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


# --- intervals -------------------------------------------------------------------------------


def _ranked(measure: Measure, variants: Sequence[Json]) -> Finding:
    """Return the best one, if its interval lies beyond those of all others."""
    rows = [(variant, variant["numbers"].get(measure.path)) for variant in variants]
    missing = [v["variant"] for v, row in rows if row is None or row["interval"] is None]
    if missing:
        message = (
            f"nobody can be called best by {measure.label}: {_list(missing)} "
            f"{'has' if len(missing) == 1 else 'have'} no interval of it"
        )
        return Finding(measure=measure, best=None, message=message)
    values = [row["values"] for _, row in rows if row is not None]
    if all(each == values[0] for each in values):
        message = f"all variants have the same {measure.label}: {measure.with_reach(rows[0][1])}"
        return Finding(measure=measure, best=None, message=f"{message} {measure.unit}".rstrip())
    sign = -1.0 if measure.better == HIGHER else 1.0
    ranked = sorted(
        ((sign * row["mean"], _ends(row, sign), variant["variant"], row) for variant, row in rows),
        key=lambda each: (each[0], each[2]),
    )
    _, (_, worst), number, best = ranked[0]
    others = ranked[1:]
    near = [other for _, (least, _), other, _ in others if not worst < least]
    if near:
        return Finding(measure=measure, best=None, message=_tied(measure, number, near, ranked))
    return Finding(
        measure=measure, best=number,
        message=f"best by {measure.label} is {name_of(variants, number)}: "
        f"{measure.with_reach(best)} {measure.unit}, the next "
        f"{measure.with_reach(others[0][3])}; {100 * CONFIDENCE:.0f} % intervals of "
        f"{len(rows[0][0]['runs'])} seeds do not overlap",
    )  # fmt: skip


def _ends(row: Json, sign: float) -> tuple[float, float]:
    """Return the interval, as if smaller were better."""
    low, high = sign * row["interval"]["low"], sign * row["interval"]["high"]
    return min(low, high), max(low, high)


def _tied(measure: Measure, number: int, near: Sequence[int], ranked: Sequence[Any]) -> str:
    same = sorted((number, *near))
    sentence = (
        f"nobody can be called best by {measure.label}: the {100 * CONFIDENCE:.0f} % intervals of "
        f"{_list(same)} overlap"
    )
    others = sorted(row[2] for row in ranked if row[2] not in same)
    if not others:
        return sentence
    return f"{sentence}; {_list(others)} {'is' if len(others) == 1 else 'are'} worse"


def _list(numbers: Sequence[int]) -> str:
    """Return `variant 3`, or `variants 1, 2 and 3`."""
    if len(numbers) == 1:
        return f"variant {numbers[0]}"
    return f"variants {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


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
