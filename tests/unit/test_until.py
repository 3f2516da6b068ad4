"""Ending a run when a figure is sure: what is asked, and whether its interval still holds then."""

import json
import re
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Phase
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.pace import SLOT_NS, Batch, MovedBytes, batch_count
from kv_cache.metrics.until import (
    Precision,
    Until,
    beyond,
    grown_shares,
    parse_until,
    percentile_interval,
)
from kv_cache.metrics.window import Gauges, Window
from kv_cache.result.verify import recheck
from tests.cli import small

Rows = npt.NDArray[np.float64]
Pace = Callable[[int], MovedBytes]
LEVEL = 1e9
SLOT_S = SLOT_NS / NS_PER_S

# --- what is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("5%", Until(share=0.05)),
        (" 2.5% ", Until(share=0.025)),
        (
            "storage read p95:5%",
            Until(share=0.05, name="storage read:p95", tag="storage.read.device", percent=95.0),
        ),
        (
            "Interactive:p99.9:10%",
            Until(
                share=0.1,
                name="interactive:response:p99.9",
                tag="response.interactive",
                percent=99.9,
            ),
        ),
        (
            "batch:ttft:p50:3%",
            Until(share=0.03, name="batch:ttft:p50", tag="ttft.batch", percent=50.0),
        ),
    ],
)
def test_a_figure_and_its_share_are_read(text: str, until: Until) -> None:
    assert parse_until(text) == until


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not end in a share above 0% and at most 50%"),
        ("5", "does not end in a share"),
        ("0%", "does not end in a share"),
        ("51%", "does not end in a share"),
        ("storage read:5%", "has 'read' for a percentile"),
        ("storage read:p20:5%", "has 'p20' for a percentile, which is one of p50 to p99.99"),
        ("storage raed:p95:5%", "names no figure with 'storage raed'. Did you mean 'storage read'"),
        ("interactive:tpot:p95:5%", "names no latency of a class with 'tpot'"),
    ],
)
def test_what_is_no_figure_or_no_share_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_until(text)
    assert why in str(refused.value)
    assert "write one such as '5%'" in str(refused.value)


# --- the interval at the instant of stopping ---------------------------------------------------


def processes(phi: float, runs: int, slots: int, seed: int) -> Rows:
    """Rows of standard normal values whose neighbours correlate by `phi` (autoregressive)."""
    noise = np.random.default_rng(seed).standard_normal((slots, runs)) * sqrt(1 - phi * phi)
    noise[0] /= sqrt(1 - phi * phi)
    for now in range(1, slots):
        noise[now] += phi * noise[now - 1]
    return noise.T


def pace_of(row: Rows, spread: float) -> Pace:
    """A device of LEVEL, whose slots vary by `spread` of it."""
    moved = np.concatenate([[0.0], np.cumsum(LEVEL * SLOT_S * (1 + spread * row))])

    def pace(window_ns: int) -> MovedBytes:
        slots = window_ns // SLOT_NS
        count = batch_count(window_ns / NS_PER_S, 0.0)
        cuts = np.round(np.arange(count + 1) * slots / max(1, count)).astype(int)
        parts = zip(np.diff(cuts), np.diff(moved[cuts]), strict=True)
        batches = tuple(Batch(float(n) * SLOT_S, int(nbytes)) for n, nbytes in parts)
        nbytes = sum(batch.nbytes for batch in batches)
        return MovedBytes(nbytes=nbytes, before_bytes=0, after_bytes=0, call_s=0.0, batches=batches)

    return pace


_GAUGES = Gauges(
    users=1, workers=1, in_flight=0, queued=0, oldest_queued_ns=0, behind=0, submitted=0
)


def tick(precision: Precision, end_s: float) -> bool:
    window = Window(
        start_ns=0, end_ns=round(end_s * NS_PER_S), phase=Phase.MEASURE, gauges=_GAUGES,
        submitted=0, ops={}, classes={},
    )  # fmt: skip
    return precision.watch(window)


def stopped_at(pace: Pace, share: float, longest_s: float) -> float | None:
    precision = Precision(Until(share=share), pace, lambda: 0)
    seconds = 8.0
    while seconds <= longest_s:
        if tick(precision, seconds):
            return seconds
        seconds += 1.0
    return None


COVERED = [
    # correlation of slots of 0.25 s, their spread, what is wanted, seconds at most
    (0.0, 0.3, 0.2, 200),  # as soon as it may be
    (0.0, 0.5, 0.05, 600),
    (0.5, 0.3, 0.2, 400),
    (0.5, 0.3, 0.05, 1200),
    (0.9, 0.2, 0.2, 7200),
    (0.9, 0.2, 0.06, 3600),
]


def coverage(phi: float, spread: float, share: float, longest_s: int, runs: int) -> float:
    held = 0
    for row in processes(phi, runs, 4 * longest_s, seed=25):
        pace = pace_of(row, spread)
        seconds = stopped_at(pace, share, longest_s)
        assert seconds is not None
        interval = pace(round(seconds * NS_PER_S)).interval(seconds)
        assert interval is not None
        assert (interval.high - interval.low) / 2 <= share * LEVEL * (1 + 5 * share)
        held += LEVEL in interval
    return held / runs


@pytest.mark.nightly  # half a minute
@pytest.mark.parametrize(("phi", "spread", "share", "longest_s"), COVERED)
def test_the_interval_holds_the_level_at_the_instant_of_stopping(
    phi: float, spread: float, share: float, longest_s: int
) -> None:
    assert 0.925 <= coverage(phi, spread, share, longest_s, runs=400) <= 0.975


@pytest.mark.parametrize(("phi", "spread", "share", "longest_s"), COVERED[1::2])
def test_the_interval_holds_the_level_at_the_instant_of_stopping_in_few_runs(
    phi: float, spread: float, share: float, longest_s: int
) -> None:
    assert 0.9 <= coverage(phi, spread, share, longest_s, runs=100) <= 0.99


@pytest.mark.nightly  # ten seconds
def test_the_interval_of_a_percentile_holds_it_at_the_instant_of_stopping() -> None:
    """30 latencies in each second, log-normal, whose level wanders from second to second."""
    until, true_ns = parse_until("storage read:p90:25%"), 1e6 * np.exp(1.2816 * 0.5)
    rng, held, runs = np.random.default_rng(7), 0, 200
    for row in processes(0.6, runs, 4000, seed=8):
        precision, seconds, stop = Precision(until, pace_of(row, 0.0), lambda: 0), 0, False
        while not stop:
            level = sqrt(0.2) * row[seconds] + sqrt(0.8) * rng.standard_normal(30)
            found = Histogram()
            for value in 1e6 * np.exp(0.5 * level):
                found.add(int(value))
            precision.see_latencies(0, 0, Phase.MEASURE, {"storage.read.device": found})
            seconds += 1
            stop = tick(precision, float(seconds))
        counts = precision.counts()
        whole = merged(precision._rows)
        assert sum(count for count, _ in counts) == whole.count == 30 * seconds
        interval = percentile_interval(whole, until.percent, grown_shares(counts))
        assert interval is not None
        held += true_ns in interval
    assert 0.92 <= held / runs <= 0.99


def test_a_percentile_has_no_interval_where_that_reaches_beyond_what_was_seen() -> None:
    batches = [Histogram() for _ in range(16)]
    for number, batch in enumerate(batches):
        for value in range(20):
            batch.add(1000 * value + 15_000 * (number == 3))
    whole, counts = merged(batches), beyond(batches, 99.0)
    assert (sum(n for n, _ in counts), sum(far for _, far in counts)) == (320, 3)
    assert percentile_interval(whole, 99.0, grown_shares(counts)) is None
    assert percentile_interval(whole, 50.0, grown_shares(beyond(batches, 50.0))) is not None


@pytest.mark.parametrize(("wide_s", "ends_s"), [(None, 20), (16, 24), (20, 29)])
def test_two_looks_in_a_row_must_be_narrow_and_each_comes_a_fifth_later(
    wide_s: int | None, ends_s: int
) -> None:
    """Looks are at 16 s (64 batches), 20, 24 and 29: there are windows of 1 s."""

    def pace(window_ns: int) -> MovedBytes:
        spread = 0.9 if window_ns == (wide_s or 0) * NS_PER_S else 0.001
        return pace_of(processes(0.0, 1, 400, seed=1)[0], spread)(window_ns)

    precision = Precision(Until(share=0.05), pace, lambda: 0)
    assert not precision.so_far()
    assert next(s for s in range(8, 100) if tick(precision, float(s))) == ends_s
    assert precision.stopped
    assert re.fullmatch(r"headline ±[0-4]\.[0-9]+ %, wanted ±5 %", precision.so_far())


# --- whole runs ------------------------------------------------------------------------------

STEADY = ("--virtual-time", "--max-requests=0", "--duration=120", "--decode-only")


def until(directory: Path, text: str, *more: str) -> dict[str, Any]:
    ran = small(directory, *STEADY, f"--until={text}", *more)
    assert ran.code == 0, ran.err
    own: dict[str, Any] = ran.own
    return own


def test_a_run_ends_when_its_headline_is_sure_and_says_how_sure_it_is(tmp_path: Path) -> None:
    short = until(tmp_path, "10%")
    precision, headline = short["precision"], short["headline"]
    assert 16 <= short["window_s"] < 60
    assert precision["stopped"]
    assert precision["reached"]
    assert precision["half_width"] <= 0.1
    assert precision["interval"] == headline["within_run"]
    assert precision["bound_s"] == 120
    whole = small(tmp_path, *STEADY).own
    assert whole["window_s"] == pytest.approx(120)
    assert whole["precision"] is None
    assert whole["schedule"] == short["schedule"]  # the same prefix, whenever it ends


def test_a_run_that_does_not_become_sure_ends_at_its_bound_and_says_how_wide_it_is(
    tmp_path: Path,
) -> None:
    ran = small(tmp_path, *STEADY, "--until=0.01%", "--duration=30")
    assert ran.own["window_s"] == pytest.approx(30)
    precision = ran.own["precision"]
    assert (precision["stopped"], precision["reached"]) == (False, False)
    assert precision["half_width"] > 0.0001
    assert "Wanted was ±0.01 % of the headline, and it is ±" in ran.out
    assert "at the bound of 30 s" in ran.out


def test_a_run_that_ends_before_its_bound_is_not_said_to_be_at_it(tmp_path: Path) -> None:
    ran = small(tmp_path, *STEADY, "--until=0.01%", "--duration=300", "--max-requests=200")
    assert ran.own["window_s"] < 300
    assert "Wanted was ±0.01 % of the headline, and it " in ran.out
    assert "bound" not in ran.out


def test_trials_say_how_many_of_them_became_as_sure_as_was_wanted(tmp_path: Path) -> None:
    """Each was cut off at its bound, and all together were called valid without a word of it."""
    ran = small(tmp_path, *STEADY, "--until=0.01%", "--duration=30", "--trials=2")
    assert "Wanted was ±0.01 % of the headline in each trial: 0 of 2 reached it (±" in ran.out
    for row, name in zip(ran.own["trials"], ("R.trial1.json", "R.trial2.json"), strict=True):
        each = json.loads((tmp_path / name).read_bytes())["kv_cache"]["precision"]
        assert row["precision"] == {
            key: each[key] for key in ("figure", "share", "half_width", "reached")
        }
    assert (
        "precision" not in small(tmp_path, *STEADY, "--duration=5", "--trials=2").own["trials"][0]
    )


def test_a_run_ends_when_a_percentile_is_sure_and_verify_derives_its_interval(
    tmp_path: Path,
) -> None:
    precision = until(tmp_path, "storage read:p90:20%")["precision"]
    low, high = (precision["interval"][end] for end in ("low", "high"))
    assert low < precision["value"] < high
    assert precision["half_width"] == pytest.approx((high - low) / 2 / precision["value"])
    document = json.loads((tmp_path / "R.json").read_text())
    assert list(recheck(document)) == []
    document["kv_cache"]["precision"]["interval"]["low"] *= 1.01
    assert "kv_cache.precision.interval.low" in str(list(recheck(document)))


@pytest.mark.parametrize(("text", "least"), [("storage read:p90:50%", "76.8 s"), ("50%", "19.2 s")])
def test_a_bound_below_the_shortest_window_is_warned_of(
    text: str, least: str, tmp_path: Path
) -> None:
    """It was measured to its bound without a word, however sure the figure was long before."""
    ran = small(tmp_path, *STEADY, f"--until={text}", "--duration=19")
    assert ran.code == 0
    assert f"(--until) is '{text}' ends no window before {least}, and this one is 19 s" in ran.err
    assert not ran.own["precision"]["stopped"]
    assert "ends no window" not in small(tmp_path, *STEADY, f"--until={text}").err


def test_a_percentile_ends_sooner_where_windows_are_shorter(tmp_path: Path) -> None:
    more = ("--duration=60", "--set=monitor.tick_s=0.25")
    own = until(tmp_path, "storage read:p90:30%", *more)
    assert own["precision"]["stopped"]
    assert 19 <= own["window_s"] < 60


@pytest.mark.nightly  # half a minute
def test_a_real_run_ends_when_its_headline_is_sure(tmp_path: Path) -> None:
    own = small(tmp_path, "--max-requests=0", "--until=45%", "--duration=60").own
    assert own["precision"]["stopped"]
    assert own["window_s"] < 60
    assert own["precision"]["interval"] == own["headline"]["within_run"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--clients=2"], "run.until (--until) ends one process's window"),
        (["--virtual-time", "--io-trace-log=t.csv"], "run.until (--until) waits for a figure"),
        (["--enable-autoscaling"], "run.until (--until) waits for the interval of a level"),
    ],
)
def test_what_has_no_window_or_no_level_of_its_own_is_refused(
    tmp_path: Path, more: list[str], why: str
) -> None:
    ran = small(tmp_path, "--until=5%", *more)
    assert ran.code == 2
    assert why in ran.err
