"""Fits a configuration of synthetic users to a trace, as far as laws can express it.

Lengths, turns and think times become laws (`workload/lengths`), arrivals a rate and a coefficient
of variation. What is written says of each how far it is from the trace: the Kolmogorov-Smirnov
distance is the largest difference between the shares up to a value, 0 (the same) to 1. It also says
what no law carries over, so that the users are not taken for the trace.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, fsum, log10, sqrt
from statistics import fmean
from textwrap import wrap
from typing import Any

import numpy as np
import yaml
from msgspec import Struct

from kv_cache.config.root import Config
from kv_cache.core.errors import ConfigError, UsageError
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import NS_PER_S
from kv_cache.files.fitted_likeness import FAR, REQUESTS, Likeness, correlation, likeness, lines_of
from kv_cache.workload.distribution import Times
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.surveying import Survey
from kv_cache.workload.formats.trace_files import Trace
from kv_cache.workload.lengths import (
    QUANTILES,
    Fit,
    Law,
    fit_empirical,
    fit_lognormal,
    fit_zipf,
)
from kv_cache.workload.paced import Pace
from kv_cache.workload.stats import SessionFigures, StreamFigures

log = logging.getLogger("kv_cache")

CHOICES = ("best", "lognormal", "zipf", "empirical")
NEAR = 0.05
"""A lognormal law that is no further off, nor its mean, is taken: two numbers say more than a
table."""

_NEAR_MEAN = 0.01  # of the trace's mean: how far that of a table may be from it
_LONGEST = (0.98, 0.985, 0.995, 0.998, 0.9995)  # quantiles of a finer table


def _table(values: Sequence[float]) -> Fit:
    """Return an empirical law with as few quantiles as are near enough. Straight lines to the
    longest values lie above them, which shows in the mean."""
    fit = fit_empirical(values)
    for steps in (40, 100):
        if fit.ks > NEAR or _off_mean(fit, values) > _NEAR_MEAN:
            even = (step / steps for step in range(steps + 1))
            fit = fit_empirical(values, sorted({*QUANTILES, *even, *_LONGEST}))
    return fit


def _off_mean(fit: Fit, values: Sequence[float]) -> float:
    """Return how far the law's mean is from that of the values, as a share of it."""
    total = fsum(values)
    return abs(fit.law.mean() * len(values) - total) / total if total else 0.0


_FITS: Mapping[str, Callable[[Sequence[float]], Fit]] = {
    "lognormal": fit_lognormal,
    "zipf": fit_zipf,
    "empirical": _table,
}
_OF_TIMES = "times"  # as best, without zipf, which has whole numbers only
_MOST_SAMPLES = 100_000  # that a law is fitted to; of more, evenly spaced in their order
_FAR = 0.2  # a distance above which a law is only like the trace in its moments
_DRAWS = 20_000  # of the arrival process, to compare with the trace's gaps
_MOST_CV = 100.0
_LIKE_POISSON = 0.05  # a coefficient of variation as near to 1 as that
_MOST_USERS = 100_000
_WIDTH = 96


class Samples:
    """What laws are fitted to. Told each request in its order."""

    def __init__(self) -> None:
        self.prompts: Counter[int] = Counter()  # tokens that a request adds to what was said
        self.firsts: Counter[int] = Counter()  # of them: those of the first of each session
        self.outputs: Counter[int] = Counter()
        self.gaps = Times()
        self.shorter = 0  # prompts that are no longer than the longest of their session
        self._tokens: dict[str, int] = {}
        self._turns: Counter[str] = Counter()
        self._began: dict[str, int] = {}  # first prompts, by session
        self._alone: Counter[int] = Counter()  # prompts of no session
        self._last_ns: int | None = None

    def add(self, request: Request, *, in_session: bool) -> None:
        added = self._added(request) if in_session else request.prompt_tokens
        self.shorter += added <= 0
        self.prompts[max(1, added)] += 1
        if not in_session or request.conversation not in self._turns:
            self.firsts[max(1, added)] += 1
            if in_session:
                self._began[request.conversation] = max(1, added)
        self.outputs[max(1, request.output_tokens)] += 1
        if self._last_ns is not None:
            self.gaps.add(max(0, request.intended_ns - self._last_ns))
        self._last_ns = request.intended_ns
        if in_session:
            self._turns[request.conversation] += 1
        else:
            self._alone[max(1, added)] += 1

    @property
    def begins_otherwise(self) -> bool:
        """Whether first prompts are shown to be of another law than later ones (Kolmogorov and
        Smirnov's test of two samples, 95 %; Smirnov 1948)."""
        later = self.prompts - self.firsts
        counts = self.firsts.total(), later.total()
        if not all(counts):
            return False
        ends = np.array(sorted(self.prompts))
        shares = (
            np.cumsum([counted[end] for end in ends.tolist()]) / counted.total()
            for counted in (self.firsts, later)
        )
        distance = float(np.abs(np.subtract(*shares)).max())
        return distance > 1.358 * sqrt(sum(counts) / (counts[0] * counts[1]))

    @property
    def turns(self) -> Counter[int]:
        """How many sessions have each number of turns; a request of none is one of its own."""
        return Counter(self._turns.values()) + Counter({1: self._alone.total()})

    @property
    def beginnings(self) -> Counter[tuple[int, int]]:
        """How many sessions have each pair of turns and tokens of the first prompt."""
        return Counter({(1, tokens): count for tokens, count in self._alone.items()}) + Counter(
            (turns, self._began[name]) for name, turns in self._turns.items()
        )

    def _added(self, request: Request) -> int:
        """Return by how much a prompt is longer than the longest before it with its answer: users
        forget nothing, so that a context that was cut, or another one for a while, adds nothing."""
        before = self._tokens.get(request.conversation, 0)
        now = request.prompt_tokens + request.output_tokens
        self._tokens[request.conversation] = max(before, now)
        return request.prompt_tokens - before


class _Part(Struct, frozen=True, kw_only=True):
    """One section of the file: what it sets, and the comments before it."""

    name: str
    notes: Sequence[str]
    keys: Mapping[str, Any]


def fit_text(
    samples: Samples,
    stream: StreamFigures,
    sessions: SessionFigures | None,
    thinks: Times,
    *,
    law: str,
    trace: Trace,
    survey: Survey,
    config: Config,
    block_tokens: int,
) -> str:
    """Return the configuration as YAML with its comments. Raises UsageError."""
    of = TRACE_FORMATS[trace.format_name]
    if not stream.requests:
        raise UsageError(f"{trace.files[0]}: there is no request to fit anything to")
    if stream.operations:
        raise UsageError(
            f"{trace.files[0]}: its rows are operations on objects, not prompts, so nothing can be "
            "fitted to them; replay it with run --trace"
        )
    talks = sessions is not None and sessions.one_turn < sessions.sessions
    arrival = _arrival(samples, stream, of.grouped)
    paced = "request_rate" in arrival.keys
    parts = [
        _users(stream, sessions, of.grouped, config, talks=talks),
        arrival,
        _workload(talks=talks),
        _laws(samples, thinks.counted(), law, talks=talks, paced=paced),
    ]
    if block_tokens:
        note = "As long as the blocks that were looked at."
        parts.append(_Part(name="semantics", notes=[note], keys={"block_tokens": block_tokens}))
    head = _head(trace, survey, stream)
    turns = fmean(samples.turns.elements()) if talks else None
    keys = {part.name: part.keys for part in parts}
    rows = likeness(keys, stream, turns, in_blocks=block_tokens > 0)
    _warn(rows)
    again = ["#", f"# What {REQUESTS:,} of their requests come to:", *map(_bullet, lines_of(rows))]
    lost = _lost(samples, stream, of.grouped, talks=talks, coupled="correlation" in keys["lengths"])
    lines = [*head, *again, "#", "# What no law carries over:", *(_bullet(text) for text in lost)]
    return "\n".join([*lines, "", *(line for part in parts for line in _yaml(part))])


def _warn(rows: Sequence[Likeness]) -> None:
    far = list(lines_of([row for row in rows if abs(row.off) > FAR]))
    if far:
        log.warning(
            "these users are more than %.0f %% off the trace: %s; their file says what no law "
            "carries over", 100 * FAR, "; ".join(far),
        )  # fmt: skip


def _head(trace: Trace, survey: Survey, stream: StreamFigures) -> list[str]:
    name = "".join(c if " " <= c <= "~" else "?" for c in trace.files[0].name)
    more = f" and {len(trace.files) - 1} more do" if len(trace.files) > 1 else " does"
    return [
        f"# Synthetic users who ask as {name}{more} ({trace.format_name},",
        f"# sha256 {survey.sha256}; {stream.requests:,} requests),",
        "# fitted by kv-cache.py trace fit. KS: Kolmogorov-Smirnov distance between law and trace,",
        "# the largest difference between the shares up to a value: 0 (the same) to 1.",
    ]


def _lost(
    samples: Samples, stream: StreamFigures, grouped: bool, *, talks: bool, coupled: bool
) -> Iterator[str]:
    reuse = stream.reuse
    share = f"{100 * (reuse.hit_ratio or 0):.1f} % of the trace's blocks had been asked for before"
    if reuse.own_hits is not None or talks:
        yield f"Reuse between sessions: users share nothing but their own history ({share})."
    else:
        yield f"Reuse: these users ask for each block once ({share})."
    apart = " (but for turns and first prompts)" if coupled else ""
    yield (
        f"Order: lengths are drawn independently of each other{apart}, of the hour and of the turn."
    )
    if samples.shorter:
        yield (
            f"Contexts that were cut, and sub-agents: {samples.shorter:,} prompts are no longer "
            "than what their session had come to, and count as one token more."
        )
    if not grouped and stream.arrivals.per_s is not None:
        yield "Changes of the rate over time, and which gaps follow each other."
    if len(stream.models) > 1:
        yield f"Models: the trace asks {len(stream.models)}, these users one (see run.model_mix)."


# --- sections --------------------------------------------------------------------------------


def _users(
    stream: StreamFigures,
    sessions: SessionFigures | None,
    grouped: bool,
    config: Config,
    *,
    talks: bool,
) -> _Part:
    if grouped:
        users = config.workload.trace_users or config.run.num_users
        users = users if sessions is None else min(users, sessions.sessions)
        note = (
            f"{users} sessions go on at the same time, as in a replay with --trace-users {users}."
        )
        return _Part(name="run", notes=[note], keys={"num_users": users})
    if not talks or sessions is None or sessions.step_s is None or not stream.arrivals.span_s:
        note = "Who asks makes no difference: each request is a conversation of its own."
        return _Part(name="run", notes=[note], keys={"num_users": config.run.num_users})
    open_at_once = sessions.step_s.total / stream.arrivals.span_s
    note = (
        f"{open_at_once:.3g} sessions are open at the same time on average (the time between first "
        "and last turns of all sessions, over the trace's)."
    )
    users = min(_MOST_USERS, max(1, ceil(open_at_once)))
    return _Part(name="run", notes=[note], keys={"num_users": users})


def _arrival(samples: Samples, stream: StreamFigures, grouped: bool) -> _Part:
    row = stream.arrivals
    if grouped or row.per_s is None or row.gap_cv is None:
        note = "The trace has no common clock: users wait for their answers, then think."
        return _Part(name="arrival", notes=[note], keys={"mode": "closed"})
    keys: dict[str, Any] = {"mode": "open", "request_rate": _figures(row.per_s, 6)}
    cv = min(_MOST_CV, row.gap_cv)
    if cv < _LIKE_POISSON:
        keys["process"] = "fixed"
    elif abs(cv - 1) < _LIKE_POISSON:
        keys["process"] = "poisson"
    else:
        keys |= {"process": "gamma", "cv": _figures(cv, 4)}
    pace = Pace(rate=row.per_s, process=keys["process"], cv=cv)
    off = _gap_distance(samples.gaps, pace)
    note = f"Gaps have a coefficient of variation of {row.gap_cv:.3g} (Poisson: 1), KS {off:.3f}"
    note += ": rate and variation are the trace's, their shape is not." if off > _FAR else "."
    return _Part(name="arrival", notes=[note], keys=keys)


def _workload(*, talks: bool) -> _Part:
    note = "The trace does not say who shares a system prompt"
    if talks:
        return _Part(name="workload", notes=[f"{note}."], keys={"prefix_caching": False})
    note += ", nor that anybody asks again."
    return _Part(name="workload", notes=[note], keys={"multi_turn": False, "prefix_caching": False})


def _laws(
    samples: Samples, thinks: Mapping[int, int], law: str, *, talks: bool, paced: bool
) -> _Part:
    notes: list[str] = []
    keys: dict[str, Any] = {}
    fitted: dict[str, Law] = {}
    begins = talks and samples.begins_otherwise
    prompts = samples.prompts - samples.firsts if begins else samples.prompts
    what = "tokens that a later request adds" if begins else "tokens that a request adds"
    wanted: list[tuple[str, str, Mapping[int, int], float]] = [
        ("prompt", what if talks else "tokens", prompts, 1),
        ("output", "tokens", samples.outputs, 1),
    ]
    if begins:
        wanted.insert(0, ("first_prompt", "tokens", samples.firsts, 1))
    if talks:
        wanted.append(("turns", "requests of a session", samples.turns, 1))
    if thinks and not paced:
        wanted.append(("think_s", "seconds before a request", thinks, NS_PER_S))
    for name, what, counted, unit in wanted:
        fit, distances = _fitted(expanded(counted, unit), _OF_TIMES if name == "think_s" else law)
        fitted[name] = fit.law
        keys[name] = fit.law.as_config()
        notes.append(f"{name} ({what}): {distances}.")
    if begins and (
        together := correlation(fitted["turns"], fitted["first_prompt"], samples.beginnings)
    ):
        keys["correlation"] = together
        which = "few" if together < 0 else "many"
        notes.append(f"correlation: sessions that begin long have {which} turns.")
    if thinks and paced:
        notes.append("think_s: left out, as the rate says when somebody asks.")
    elif talks and not thinks:
        notes.append("think_s: the trace does not say how long is thought.")
    return _Part(name="lengths", notes=notes, keys=keys)


def _fitted(values: Sequence[float], law: str) -> tuple[Fit, str]:
    """Return the law that is taken, and in words how near each is."""
    fits: dict[str, Fit] = {}
    for name, fit in _FITS.items():
        if law in ("best", name) or (law == _OF_TIMES and name != "zipf"):
            try:
                fits[name] = fit(values)
            except ConfigError:  # a law that has no such values
                continue
    if not fits:
        raise ConfigError(f"--law {law}: some values are 0, and it has none such; use empirical")
    near = fits.get("lognormal")
    if near is None or near.ks > NEAR or _off_mean(near, values) > NEAR:
        near = min(fits.values(), key=lambda fit: fit.ks)
    return near, "KS " + ", ".join(f"{name} {fit.ks:.3f}" for name, fit in fits.items())


def expanded(counted: Mapping[int, int], unit: float = 1) -> list[float]:
    """Return the values as often as they were counted; of many, evenly spaced ones in their
    order."""
    total = sum(counted.values())
    every = max(1.0, total / _MOST_SAMPLES)
    values: list[float] = []
    below = 0
    for value, count in sorted(counted.items()):
        below += count
        while len(values) * every + every / 2 <= below:
            values.append(value / unit)
    return values


def _gap_distance(gaps: Times, pace: Pace) -> float:
    """Return the KS distance between the trace's gaps and those that the process draws."""
    drawn = np.sort(np.fromiter(islice(pace.gaps_ns(Seed(0).child("fit")), _DRAWS), float))
    counted = gaps.counted()
    values, counts = np.array([*counted], float), np.array([*counted.values()])
    upto = np.cumsum(counts)
    below, within = np.searchsorted(drawn, values), np.searchsorted(drawn, values, "right")
    pairs = ((below, upto - counts), (within, upto))
    return max(float(np.abs(mine / _DRAWS - theirs / upto[-1]).max()) for mine, theirs in pairs)


# --- writing ---------------------------------------------------------------------------------


def _yaml(part: _Part) -> Iterator[str]:
    for note in part.notes:
        yield from (f"# {line}" for line in wrap(note, _WIDTH))
    yield f"{part.name}:"
    for key, value in part.keys.items():
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
        yield f"  {key}: {text.removesuffix('...' + chr(10)).strip()}"
    yield ""


def _bullet(text: str) -> str:
    lines = wrap(text, _WIDTH - 4)
    return "\n".join(f"#   {line}" if i else f"# - {line}" for i, line in enumerate(lines))


def _figures(value: float, digits: int) -> float:
    return round(value, max(0, digits - 1 - int(log10(value) // 1))) if value else 0.0
