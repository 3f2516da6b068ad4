"""When each trial was: by the record of a sequence, and by what its results say themselves."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kv_cache.metrics.judging import Look, invalid, unknown
from kv_cache.mlperf.rankfile import RankResult
from kv_cache.mlperf.tree import Tree
from kv_cache.result.ranks.rules import MOST_ASTRAY_S, WANTED_SHARED
from kv_cache.result.run import unix_s

_CLOCKS_S = 1.0  # by which the instants of two trials may be off


class _Span(NamedTuple):
    """A trial, and when it was in seconds since 1970, where that is recorded."""

    option: int
    trial: int
    began_s: float | None
    ended_s: float | None


def delays(tree: Tree, planned: int, wanted_s: float, where: str) -> Iterator[Look]:
    """Judge the rests between the end of one option and the start of the next."""
    spans = list(_spans(tree))
    if len(spans) < planned:
        yield unknown(f"only {len(spans)} of {planned} trials were begun", where)
    for before, after in pairwise(spans):
        if before.option == after.option:
            continue
        if before.ended_s is None or after.began_s is None:
            yield unknown(f"when option {after.option} began is not told", where)
            continue
        waited_s = after.began_s - before.ended_s
        if waited_s < wanted_s - _CLOCKS_S:
            message = f"option {after.option} began {waited_s:.0f} s after option {before.option}"
            yield invalid(f"{message}, and {wanted_s:g} s are planned", where)


def _spans(tree: Tree) -> Iterator[_Span]:
    """Yield the trials as our record has them, else by the instants of their results."""
    if tree.manifest is not None:
        for row in tree.manifest.record.trials:
            yield _Span(row.option, row.trial, unix_s(row.started_utc), unix_s(row.ended_utc))
        return
    for (option, trial), results in _trials(tree).items():
        began = [s for r in results if (s := r.started_s) is not None]
        ended = [s for r in results if (s := r.ended_s) is not None]
        yield _Span(option, trial, min(began, default=None), max(ended, default=None))


def _trials(tree: Tree) -> dict[tuple[int, int], list[RankResult]]:
    trials: dict[tuple[int, int], list[RankResult]] = {}
    for result in tree.ranks:
        trials.setdefault((result.spot.option, result.spot.trial), []).append(result)
    return trials


def in_turn(tree: Tree) -> Iterator[Look]:
    """Yield ranks of a trial that measured at other times than the first, whose rates do not add
    up, and results that began before the same rank's of the trial before had ended."""
    for result in tree.ranks:
        if result.began_s is None:
            yield unknown("does not tell when its window began", result.path)
    for results in _trials(tree).values():
        yield from _apart(results)
    turns = sorted(tree.ranks, key=lambda r: (r.spot.rank, r.spot))
    for before, after in pairwise(turns):
        if before.spot.rank == after.spot.rank and before.ended_s and after.started_s:
            early_s = before.ended_s - after.started_s
            if early_s > _off_s(before, after):
                yield invalid(f"began {early_s:.0f} s before {before.path} had ended", after.path)


def _apart(results: Sequence[RankResult]) -> Iterator[Look]:
    first, *others = sorted(results, key=lambda r: r.began_s or 0.0)
    for result in others:
        if first.began_s and result.began_s:
            late_s = result.began_s - first.began_s
            if late_s - _off_s(first, result) > (1 - WANTED_SHARED) * result.window_s:
                message = f"began to measure {late_s:.0f} s after {first.path}"
                yield invalid(f"{message}: rates of other times do not add up", result.path)


def _off_s(one: RankResult, other: RankResult) -> float:
    """Return by how much the clocks of two results may differ."""
    return MOST_ASTRAY_S[one.hostname != other.hostname]
