"""How like a trace the users are that were fitted to it: what a number of their requests come to,
beside the same figures of the trace.

Laws are drawn independently of each other, so that what goes together in a trace (long sessions
and short answers, contexts that are cut) is lost in sums over a session. What is lost is said.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from msgspec import Struct

from kv_cache.config.build import build_load
from kv_cache.config.root import Config
from kv_cache.config.schema import overlay
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.distribution import Spread
from kv_cache.workload.lengths import Law, whole
from kv_cache.workload.stats import StreamFigures

REQUESTS = 20_000
FAR = 0.1
"""A share by which a figure of the users may differ from the trace's without a warning."""

_NO_BLOCKS = {"semantics": {"block_tokens": 1_000_000}}  # prompts as a whole, and none kept
_ONE_USER = {"run": {"num_users": 1}, "arrival": {"mode": "closed"}}  # so that few talks are cut
_SHARES = 200
_MOST = 0.95
_LEAST = 0.05
_NORMAL = NormalDist()


class Likeness(Struct, frozen=True, kw_only=True):
    """One figure of the trace and of the users: the `name` of a `part`."""

    part: str
    name: str
    trace: float
    users: float

    @property
    def off(self) -> float:
        """By which share the users' figure is above the trace's."""
        return self.users / self.trace - 1 if self.trace else math.inf if self.users else 0.0

    def __str__(self) -> str:
        users, trace = (f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in (self.users, self.trace))
        return f"{self.name} {users} (trace {trace}: {100 * self.off:+.1f} %)"


def lines_of(rows: Sequence[Likeness]) -> Iterator[str]:
    """Yield a line for each part."""
    for part, some in groupby(rows, key=lambda row: row.part):
        yield f"{part}: {', '.join(map(str, some))}"


def likeness(
    keys: Mapping[str, Any], stream: StreamFigures, turns: float | None, *, in_blocks: bool
) -> Sequence[Likeness]:
    """Draw requests of users whose sections are `keys`, and compare. `turns` are those of a session
    of the trace; tokens that are found again are compared where it is asked `in_blocks`."""
    config = overlay(Config(), {**keys, **_ONE_USER, **_NO_BLOCKS}, "trace fit")
    load = build_load(config, config.model_shape(), Seed(0), None, None, None)
    requests = list(islice(load.source.plan(), REQUESTS))
    tokens = stream.tokens
    return [
        *_spreads("prompt tokens", tokens.prompt, [request.prompt_tokens for request in requests]),
        *_spreads("answer tokens", tokens.output, [request.output_tokens for request in requests]),
        *(() if turns is None else _sessions(requests, turns, stream, in_blocks)),
    ]


def _spreads(part: str, trace: Spread | None, users: Sequence[int]) -> Iterator[Likeness]:
    if trace is not None:
        yield Likeness(part=part, name="mean", trace=trace.mean, users=fmean(users))
        middle = float(sorted(users)[(len(users) - 1) // 2])
        yield Likeness(part=part, name="median", trace=trace.p50, users=middle)


def _sessions(
    requests: Sequence[Request], turns: float, stream: StreamFigures, in_blocks: bool
) -> Iterator[Likeness]:
    sessions = [[*some] for _, some in groupby(requests, key=lambda request: request.conversation)]
    whole_ones = sessions[:-1] or sessions
    mean = fmean(map(len, whole_ones))
    yield Likeness(part="requests of a session", name="mean", trace=turns, users=mean)
    if in_blocks and stream.reuse.token_hit_ratio:
        again = sum(request.prompt_tokens for some in sessions for request in some[:-1])
        share = again / sum(request.prompt_tokens for request in requests)
        trace = 100 * stream.reuse.token_hit_ratio
        yield Likeness(part="tokens found again, %", name="share", trace=trace, users=100 * share)


def correlation(turns: Law, first: Law, beginnings: Mapping[tuple[int, int], int]) -> float:
    """Return the correlation of `turns` and `first` with which the mean of requests x first prompt,
    over the product of their means, is that of the sessions that were counted: so first prompts
    weigh in the prompts of all requests as in the trace. 0 if it is small."""
    sessions = sum(beginnings.values())
    means = [sum(pair[i] * n for pair, n in beginnings.items()) / sessions for i in (0, 1)]
    wanted = sum(t * tokens * n for (t, tokens), n in beginnings.items()) / sessions
    wanted /= means[0] * means[1]
    places = (np.arange(_SHARES) + 0.5) / _SHARES
    scores = np.array([_NORMAL.inv_cdf(q) for q in places.tolist()])
    requests = np.array([whole(turns.quantile(q)) for q in places.tolist()])
    line = np.linspace(-8, 8, 2001)
    prompts = [whole(first.quantile(_NORMAL.cdf(z))) for z in line.tolist()]

    def product(sought: float) -> float:
        rest = math.sqrt(1 - sought**2)
        tokens = np.interp(sought * scores[:, None] + rest * scores[None, :], line, prompts)
        return float((requests * tokens.mean(axis=1)).mean() / requests.mean() / tokens.mean())

    low, high = -_MOST, _MOST
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if product(middle) < wanted else (low, middle)
    middle = round((low + high) / 2, 2)
    return middle if abs(middle) >= _LEAST else 0.0
