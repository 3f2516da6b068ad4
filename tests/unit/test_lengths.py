"""Laws of lengths: what they draw, and that a fit gives a law's parameters back."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kv_cache.config.lengths import build_lengths
from kv_cache.config.root import Config
from kv_cache.config.rules import check
from kv_cache.config.schema import from_mapping
from kv_cache.config.workload_sections import LengthsConfig
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Qos
from kv_cache.core.model import MODELS
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.core.units import s_to_ns
from kv_cache.workload.lengths import (
    Empirical,
    Fixed,
    Law,
    Lengths,
    LogNormal,
    Uniform,
    Zipf,
    fit_empirical,
    fit_lognormal,
    fit_zipf,
    ks_distance,
    whole,
)
from kv_cache.workload.qos import QosMix
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.users import Persona, SyntheticUsers, UsersConfig

_values = st.floats(0, 1e6, allow_nan=False)
_ranges = st.tuples(_values, _values).map(sorted)
_steps = st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(sorted)


def _empirical(pairs: Sequence[tuple[float, float]]) -> Empirical:
    inner = sorted({q for q, _ in pairs if 1e-9 < q < 1 - 1e-9})
    values = sorted(value for _, value in pairs)
    values += [values[-1]] * (len(inner) + 2 - len(values))
    return Empirical(quantiles=(0.0, *inner, 1.0), values=tuple(values[: len(inner) + 2]))


laws = st.one_of(
    st.builds(Fixed, value=_values),
    _ranges.map(lambda r: Uniform(low=r[0], high=r[1])),
    _steps.map(lambda r: Uniform(low=r[0], high=r[1], steps=True)),
    st.builds(
        LogNormal, mu=st.floats(-3, 12), sigma=st.floats(0.01, 3),
    ),
    st.builds(
        lambda median, sigma, cut: LogNormal.of_median(
            median, sigma, low=median / cut, high=median * cut
        ),
        st.floats(1, 1e5), st.floats(0.01, 3), st.floats(1.5, 100),
    ),
    st.builds(
        lambda exponent, ends, step: Zipf(
            exponent=exponent, low=ends[0], high=ends[1], step=step
        ),
        st.floats(0, 5), _steps, st.integers(1, 50),
    ),
    st.lists(st.tuples(st.floats(0, 1), _values), min_size=2, max_size=8).map(_empirical),
)  # fmt: skip


@given(laws, st.floats(0, 1))
@settings(deadline=None)
def test_a_quantile_has_its_share_below_and_up_to_it(law: Law, q: float) -> None:
    value = law.quantile(q)
    assert law.below(value) <= q + 1e-6
    assert law.cdf(value) >= q - 1e-6 or value == law.quantile(1.0)


@given(laws, st.lists(st.floats(0, 1), min_size=2, max_size=6).map(sorted))
@settings(deadline=None)
def test_quantiles_grow(law: Law, points: list[float]) -> None:
    values = [law.quantile(q) for q in points]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(values))
    assert law.quantile(0.0) <= values[0]
    assert values[-1] <= law.quantile(1.0)


@given(laws, st.integers(0, 2**32))
@settings(deadline=None)
def test_a_draw_is_the_quantile_of_one_number(law: Law, seed: int) -> None:
    drawn = law.draw(Seed(seed).rng())
    assert drawn == law.quantile(Seed(seed).rng().random())
    assert 0 <= drawn < math.inf


@given(laws)
@settings(max_examples=60, deadline=None)
def test_the_mean_is_that_of_the_quantiles(law: Law) -> None:
    """Between its least and greatest quantiles, and near the average of many even ones."""
    points = [(i + 0.5) / 4000 for i in range(4000)]
    quantiles = [law.quantile(q) for q in points]
    spread = max(1.0, min(law.quantile(1.0), 1e6) - law.quantile(0.0))
    if isinstance(law, LogNormal) and (law.high == math.inf or law.sigma > 2):
        return  # its tail weighs more than any 4000 points show; see the next test
    assert law.mean() == pytest.approx(sum(quantiles) / 4000, abs=spread * 2e-3)


def test_the_mean_of_a_lognormal_is_the_known_one() -> None:
    assert LogNormal(mu=3, sigma=1.5).mean() == pytest.approx(math.exp(3 + 1.5**2 / 2))
    cut = LogNormal(mu=0, sigma=1, high=1)  # of the lower half: e^0.5 Phi(-1) / 0.5
    assert cut.mean() == pytest.approx(math.exp(0.5) * 0.15865525393145707 / 0.5)
    assert LogNormal(mu=0, sigma=0).mean() == 1


def test_whole_numbers_of_a_uniform_law_have_equal_shares() -> None:
    rng = Seed(1).rng()
    law = Uniform(low=1, high=3, steps=True)
    found = Counter(whole(law.draw(rng)) for _ in range(30_000))
    assert found.keys() == {1, 2, 3}
    assert all(abs(n - 10_000) < 500 for n in found.values())


def test_a_zipf_law_gives_the_kth_value_its_power() -> None:
    law = Zipf(exponent=1, low=10, high=30, step=10)
    total = 1 + 1 / 2 + 1 / 3
    assert [law.cdf(v) for v in (9, 10, 15, 20, 30, 99)] == pytest.approx(
        [0, 1 / total, 1 / total, 1.5 / total, 1, 1]
    )
    assert law.mean() == pytest.approx((10 + 20 / 2 + 30 / 3) / total)


def test_an_empirical_law_is_straight_between_its_points() -> None:
    law = Empirical(quantiles=(0, 0.5, 1), values=(10, 20, 100))
    assert [law.quantile(q) for q in (0, 0.25, 0.5, 0.75, 1)] == [10, 15, 20, 60, 100]
    assert law.mean() == 0.5 * 15 + 0.5 * 60


def test_tokens_are_whole_and_at_least_one() -> None:
    assert [whole(x) for x in (0, 0.4, 1.5, 2.49, 7)] == [1, 1, 2, 2, 7]


# --- fits ------------------------------------------------------------------------------------


def _samples(law: Law, count: int, seed: int = 7) -> list[float]:
    rng = Seed(seed).rng()
    return [law.draw(rng) for _ in range(count)]


@pytest.mark.parametrize(("mu", "sigma"), [(6.0, 0.5), (7.2, 1.3), (2.0, 2.0)])
def test_a_lognormal_fit_gives_its_parameters_back(mu: float, sigma: float) -> None:
    count = 20_000
    fit = fit_lognormal(_samples(LogNormal(mu=mu, sigma=sigma), count))
    assert isinstance(fit.law, LogNormal)
    assert fit.law.mu == pytest.approx(mu, abs=4 * sigma / math.sqrt(count))
    assert fit.law.sigma == pytest.approx(sigma, abs=4 * sigma / math.sqrt(2 * count))
    assert fit.ks < 1.63 / math.sqrt(count)  # 1 % of fits of a true law are further off


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.1, 2.5])
def test_a_zipf_fit_gives_its_exponent_back(exponent: float) -> None:
    true = Zipf(exponent=exponent, low=1, high=1000)
    fit = fit_zipf([1, 1000, *_samples(true, 20_000)])
    assert isinstance(fit.law, Zipf)
    assert fit.law.exponent == pytest.approx(exponent, abs=0.03)
    assert fit.ks < 0.02
    assert (fit.law.low, fit.law.high, fit.law.step) == (1, 1000, 1)


def test_a_zipf_fit_of_a_wide_range_takes_every_nth_value() -> None:
    fit = fit_zipf([1, 200_000, 5, 900, 900, 70_000])
    assert isinstance(fit.law, Zipf)
    assert fit.law.step == 4


@pytest.mark.parametrize(
    "law", [Uniform(low=5, high=90), LogNormal(mu=4, sigma=1), Zipf(exponent=1.2, low=1, high=500)]
)
def test_an_empirical_fit_is_near_whatever_was_drawn(law: Law) -> None:
    samples = _samples(law, 10_000)
    fit = fit_empirical(samples)
    for q in (0.1, 0.5, 0.9, 0.99):
        assert fit.law.quantile(q) == pytest.approx(law.quantile(q), rel=0.12, abs=1)
    assert (fit.law.quantile(0), fit.law.quantile(1)) == (min(samples), max(samples))


def test_the_distance_is_the_largest_difference_of_the_shares() -> None:
    assert ks_distance(Uniform(low=0, high=1), [0.5]) == 0.5
    assert ks_distance(Fixed(value=3), [3, 3, 3]) == 0
    assert ks_distance(Fixed(value=3), [1, 3, 3, 3]) == 0.25
    assert ks_distance(Uniform(low=0, high=4), [1, 2, 3, 4]) == 0.25
    assert ks_distance(Uniform(low=1, high=4, steps=True), [1, 2, 3, 4]) == 0


def test_samples_of_one_value_are_fitted_by_it() -> None:
    fit = fit_lognormal([7.0, 7.0, 7.0])
    assert (fit.law, fit.ks) == (Fixed(value=7), 0)
    zipf, empirical = fit_zipf([7, 7]), fit_empirical([7])
    assert (zipf.law.mean(), zipf.ks) == (7, 0)
    assert (empirical.law.mean(), empirical.ks) == (7, 0)


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ConfigError, match="no samples"):
        fit_empirical([])
    with pytest.raises(ConfigError, match="2 of 4 samples are 0 or less"):
        fit_lognormal([0, 5, 0, 3])


# --- configuration ---------------------------------------------------------------------------


@given(laws)
@settings(max_examples=60, deadline=None)
def test_a_law_written_as_configuration_reads_back_as_itself(law: Law) -> None:
    name = "think_s" if not getattr(law, "steps", True) else "prompt"
    if law.quantile(1.0) > 80_000 and (law.quantile(1.0) < math.inf or law.cdf(1e8) < 1 - 1e-9):
        return  # beyond what a configuration allows
    config = from_mapping(LengthsConfig, {name: law.as_config()})
    read = getattr(build_lengths(config), name)
    assert type(read) is type(law)
    for q in (0.05, 0.3, 0.5, 0.95):
        assert read.quantile(q) == pytest.approx(
            law.quantile(q), rel=1e-4, abs=1e-4 + 1 * (isinstance(law, Zipf))
        )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"law": "fixed"}, "lengths.prompt.value is missing: law fixed needs value"),
        ({"law": "uniform", "low": 3}, "lengths.prompt.high is missing"),
        ({"law": "uniform", "low": 3, "high": 2}, "high of a law is 2; it must be at least low, 3"),
        ({"law": "uniform", "low": 1.5, "high": 2}, "whole"),
        ({"law": "uniform", "low": 1, "high": 2, "sigma": 1}, "lengths.prompt.sigma is 1.0, but"),
        ({"value": 3}, "law personas has no other keys"),
        ({"law": "lognormal", "median": 9, "sigma": 0.1, "low": 900}, "almost nothing between"),
        ({"law": "fixed", "value": 1e9}, "lengths.prompt reaches 1e\\+09; lower it"),
        ({"law": "zipf", "exponent": 1, "low": 1, "high": 10_000_000}, "step of a law is 1"),
        ({"law": "empirical", "quantiles": [0, 1], "values": [1]}, "2 quantiles and 1 values"),
        ({"law": "empirical", "quantiles": [0.1, 1], "values": [1, 2]}, "grow from 0 to 1"),
        ({"law": "empirical", "quantiles": [0, 1], "values": [2, 1]}, "must not decrease"),
    ],
)
def test_a_law_that_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(from_mapping(Config, {"lengths": {"prompt": given}}))


# --- users -----------------------------------------------------------------------------------

PERSONA = Persona(
    name="p", context_range=(100, 200), generation_range=(10, 20), think_time_range=(1.0, 2.0)
)
QOS = QosMix(interactive=0.2, responsive_below=0.5, priorities=(3, 2, 1))


def _asked(lengths: Lengths, count: int = 400, multi_turn: bool = True) -> list[Request]:
    geometry = Geometry(model=MODELS["tiny-1b"], tensor_parallel=1, block_tokens=0)
    config = UsersConfig(
        num_users=3, personas=(PERSONA,), qos=QOS, geometry=geometry, lengths=lengths,
        multi_turn=multi_turn,
    )  # fmt: skip
    plan = SyntheticUsers(config, Seed(5)).plan()
    return [next(plan) for _ in range(count)]


def test_users_ask_as_the_laws_say() -> None:
    laws = Lengths(
        prompt=Fixed(value=333), output=Uniform(low=5, high=6, steps=True),
        think_s=Fixed(value=0.25), turns=Fixed(value=4),
    )  # fmt: skip
    asked = _asked(laws)
    assert {r.prompt_tokens for r in asked} == {333}
    assert {r.output_tokens for r in asked} == {5, 6}
    turns = Counter(r.conversation for r in asked)
    last = {r.user: r.conversation for r in asked}
    assert {turns[c] for c in turns if c not in last.values()} == {4}
    first = next(r for r in asked if r.user == "user_0000")
    assert first.intended_ns == s_to_ns(0.25)


def test_users_without_laws_ask_as_their_kind_does() -> None:
    plain = _asked(Lengths())
    assert all(25 <= r.prompt_tokens <= 200 and 2 <= r.output_tokens <= 20 for r in plain)
    some = _asked(Lengths(output=Fixed(value=7)))
    assert {r.output_tokens for r in some} == {7}
    assert len({r.prompt_tokens for r in some}) > 20


def test_a_number_of_turns_means_nothing_to_users_who_ask_single_questions() -> None:
    asked = _asked(Lengths(turns=Fixed(value=4)), multi_turn=False)
    assert max(Counter(r.conversation for r in asked).values()) == 1


def test_laws_change_neither_classes_nor_who_the_users_are() -> None:
    def classes(requests: list[Request]) -> dict[str, Qos]:
        return {r.user: r.qos for r in requests}

    assert classes(_asked(Lengths())) == classes(_asked(Lengths(prompt=Fixed(value=9))))


def test_a_run_says_which_laws_it_drew_from() -> None:
    laws = Lengths(prompt=LogNormal.of_median(900, 1.25, high=8000), turns=Fixed(value=4))
    geometry = Geometry(model=MODELS["tiny-1b"], tensor_parallel=1, block_tokens=0)
    users = UsersConfig(num_users=1, personas=(PERSONA,), qos=QOS, geometry=geometry)
    told = SyntheticUsers(replace(users, lengths=laws), Seed(1)).describe()["lengths"]
    assert told == [
        {"of": "prompt", "law": "lognormal", "median": 900, "sigma": 1.25, "high": 8000},
        {"of": "turns", "law": "fixed", "value": 4},
    ]


@pytest.mark.parametrize("correlation", [-1.0, -0.6, 0.0, 0.6])
def test_a_first_prompt_keeps_its_law_whatever_it_goes_together_with(correlation: float) -> None:
    laws, rng = Lengths(correlation=correlation), Random(1)
    draws = [rng.random() for _ in range(5000)]
    pairs = [(turns, laws.first_share(turns, rng.random())) for turns in draws]
    shares = sorted(first for _, first in pairs)
    assert max(abs(share - at / len(shares)) for at, share in enumerate(shares)) < 0.03
    mean = fmean((turns - 0.5) * (first - 0.5) for turns, first in pairs)
    spearman = 6 / math.pi * math.asin(correlation / 2)
    assert 12 * mean == pytest.approx(spearman, abs=0.05)
