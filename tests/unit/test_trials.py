"""The document of several trials: numbers, verdict, and what is left out."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from kv_cache.core.units import MISSING
from kv_cache.metrics.intervals import bounded_interval, geometric_mean
from kv_cache.result.chain import check, sealed_files
from kv_cache.result.metrics import METRICS
from kv_cache.result.trials import aggregate, trial_seed
from kv_cache.view.terminal import terminal
from kv_cache.view.trials import trials_view
from tests.passports import names, says
from tests.trials import GB, MASTER, of, requests, result


def test_each_metric_has_every_value_and_what_they_say_together() -> None:
    own = of([result(1, 1.00 * GB), result(2, 1.02 * GB), result(3, 1.01 * GB)])["kv_cache"]
    read = own["metrics"]["storage.read.bytes_per_second"]
    values = [1.00 * GB, 1.02 * GB, 1.01 * GB]
    interval = bounded_interval(values)
    assert interval is not None
    assert read == {
        "unit": "bytes/s",
        "better": "higher",
        "values": values,
        "median": 1.01 * GB,
        "mean": pytest.approx(geometric_mean(values)),
        "interval": {"low": interval.low, "high": interval.high},
        "coefficient_of_variation": pytest.approx(0.01 / 1.01),
        "min": 1.00 * GB,
        "max": 1.02 * GB,
    }
    assert own["metrics"]["requests_per_second"]["median"] == 10
    assert own["metrics"]["output_tokens_per_second"]["median"] == 500
    assert own["metrics"]["interactive.response_ms.p95"]["better"] == "lower"
    assert own["passport"]["verdict"] == "valid"


def test_no_interval_of_short_trials_goes_below_nothing_or_above_everything() -> None:
    """Rates of 0.02 to 0.08 and hit ratios of 10 to 90 % gave -0.03 and 116 %."""
    ratios = ({"looked_up": 10, "reuse_hit_ratio": ratio} for ratio in (0.1, 0.5, 0.9))
    rates = (0.02 * GB, 0.05 * GB, 0.08 * GB)
    several = [
        result(seed, rate, reuse=reuse)
        for seed, (rate, reuse) in enumerate(zip(rates, ratios, strict=True))
    ]
    metrics = of(several)["kv_cache"]["metrics"]
    for name, most in (("storage.read.bytes_per_second", 1e12), ("hit_ratio", 1.0)):
        low, high = metrics[name]["interval"].values()
        assert 0 < low < metrics[name]["mean"] < high < most
    assert metrics["hit_ratio"]["mean"] == pytest.approx(0.5)


def test_what_nothing_was_measured_of_is_no_metric_and_not_zero_milliseconds() -> None:
    metrics = of([result(1), result(2)])["kv_cache"]["metrics"]
    assert "batch.response_ms.p95" not in metrics
    assert "storage.write.device_ms.p50" not in metrics
    assert metrics["storage.write.bytes_per_second"]["values"] == [0.0, 0.0]
    assert metrics["storage.write.bytes_per_second"]["coefficient_of_variation"] is None


def test_one_trial_has_values_and_no_interval() -> None:
    own = of([result(1)])["kv_cache"]
    assert own["metrics"]["hit_ratio"]["interval"] is None
    assert own["passport"]["verdict"] == "valid"
    assert own["passport"]["rules"][2]["status"] == "not-judged"


@pytest.mark.parametrize("status", ["broken", "interrupted"])
def test_a_trial_that_did_not_finish_is_named_and_gives_no_numbers(status: str) -> None:
    own = of([result(1), result(2, 5 * GB, status=status), result(3)], planned=5)["kv_cache"]
    assert own["metrics"]["storage.read.bytes_per_second"]["values"] == [GB, GB]
    assert [row["counted"] for row in own["trials"]] == [True, False, True]
    assert (own["finished"], own["planned"]) == (2, 5)
    assert own["passport"]["verdict"] == "invalid"
    (reason,) = own["passport"]["reasons"]
    assert reason == (
        f"T1 completeness: 2 of 5 trials finished: trial 2 was {status}, trials 4 to 5 have no "
        "result; run all of them again"
    )


@pytest.mark.parametrize("left", [(1, 3), (2, 3), (1, 2, 4)])
def test_trials_of_which_one_was_left_out_are_told_by_their_seeds(left: Sequence[int]) -> None:
    own = of([result(number) for number in left])["kv_cache"]
    names(own, T1="invalid")
    assert f"trial {len(left)} has a seed that does not follow from 7" in says(own, "T1")


def test_no_finished_trial_gives_no_numbers_and_is_told() -> None:
    document = of([result(1, status="interrupted")], planned=2)
    assert document["kv_cache"]["metrics"] == {}
    assert document["kv_cache"]["headline"] is None
    view = trials_view(document["kv_cache"])
    assert view.sentence == "0 of 2 trials finished."
    assert "No trial finished, so there are no numbers." in [s.absent for s in view.sections]


@pytest.mark.parametrize("word", ["suspect", "invalid"])
def test_the_whole_is_worth_what_its_worst_trial_is(word: str) -> None:
    passport = of([result(1), result(2, verdict=word)])["kv_cache"]["passport"]
    assert passport["verdict"] == word
    assert passport["reasons"] == [f"T2 trials: trial 2 is {word} (V9 clock: it jumped)"]


def test_a_number_that_few_trials_have_says_how_many() -> None:
    nobody = {name: requests(0) for name in ("all", "interactive", "responsive", "batch")}
    section = of([result(1), result(2, measured=nobody), result(3)])["kv_cache"]
    text = terminal(trials_view(section))
    assert "response p50, ms (2 of 3 trials)" in text
    assert "storage read, GiB/s " in text


def test_a_rule_that_several_trials_break_is_told_once() -> None:
    trials = [result(k, verdict="suspect") for k in (1, 2)]
    trials[1]["kv_cache"]["passport"]["reasons"] = ["V9 clock: it stood", "V25 lag: late"]
    (reason,) = of([*trials, result(3)])["kv_cache"]["passport"]["reasons"]
    assert reason == (
        "T2 trials: trials 1, 2 are suspect (V9 clock: it jumped); "
        "trial 2 is suspect (V25 lag: late)"
    )


def test_trials_that_disagree_are_suspect_and_the_furthest_is_named() -> None:
    slow = of([result(1), result(2), result(3, 0.5 * GB), result(4)])["kv_cache"]
    assert slow["passport"]["verdict"] == "suspect"
    assert "trial 3 with 0.4657 GiB/s is furthest" in slow["passport"]["reasons"][0]
    assert slow["most_cv"] == 0.05
    assert slow["passport"]["changed_thresholds"] == {}


def test_the_spread_of_trials_is_divided_into_that_of_a_window_and_that_between_runs() -> None:
    """Runs differ by 3 %, and each window leaves 2 % open: in 300 trials both are found."""
    rng = Random(15)
    rates = [GB * (1 + rng.gauss(0, 0.03) + rng.gauss(0, 0.02)) for _ in range(300)]
    heads = [{"bytes_per_second": rate, "standard_error": 0.02 * GB} for rate in rates]
    trials = [result(k, head["bytes_per_second"], headline=head) for k, head in enumerate(heads)]
    found = of(trials)["kv_cache"]["variance"]
    assert found["within_run"] == pytest.approx(0.02, rel=0.01)
    assert found["between_runs"] == pytest.approx(0.03, rel=0.1)
    assert found["all"] == pytest.approx(0.036, rel=0.1)
    text = terminal(trials_view(of(trials)["kv_cache"]))
    assert "is what one run's window leaves open, " in text


def test_trials_without_intervals_of_their_own_say_nothing_of_the_kind() -> None:
    assert of([result(1), result(2)])["kv_cache"]["variance"] is None


def test_without_storage_traffic_requests_are_the_headline() -> None:
    quiet = of([result(1, 0.0), result(2, 0.0)])["kv_cache"]
    assert quiet["headline"] == "requests_per_second"


def test_seeds_schedules_and_files_are_named_and_sealed() -> None:
    document = of([result(1), result(2)], cooldown_s=3.0)
    own = document["kv_cache"]
    assert (own["seed"], own["cooldown_s"]) == (7, 3.0)
    assert [row["seed"] for row in own["trials"]] == [trial_seed(7, 1), trial_seed(7, 2)]
    assert len({row["schedule_sha256"] for row in own["trials"]}) == 2
    assert [row["file"] for row in own["trials"]] == ["R.trial1.json", "R.trial2.json"]
    assert sealed_files(document) == {row["file"]: row["sha256"] for row in own["trials"]}
    assert check(document, {}) == []
    own["metrics"]["hit_ratio"]["median"] = 0.9
    assert [change.link for change in check(document, {})] == ["measurements"]


def test_seeds_are_of_32_bits_and_differ_between_trials_and_masters() -> None:
    seeds = {trial_seed(master, k) for master in range(50) for k in range(1, 51)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_runs_of_other_configurations_are_no_trials_of_each_other() -> None:
    with pytest.raises(ValueError, match="trial 2 differs"):
        of([result(1), result(2, driver="virtual-time")])
    with pytest.raises(ValueError, match="0 results"):
        of([], planned=2)
    with pytest.raises(ValueError, match="3 results in 3 files of 2 trials"):
        of([result(1), result(2), result(3)], planned=2)


def test_the_summary_is_read_in_ten_seconds() -> None:
    document = of([result(1), result(2, 1.02 * GB)])
    text = terminal(trials_view(document["kv_cache"])).splitlines()
    assert text[0] == (
        "Trials: VALID. Storage read + write 0.9406 GiB/s (mean, 0.8294 to 1.067 with 95 %); "
        "2 of 2 trials finished."
    )
    assert any(
        line.split(", schedule")[0].split()
        == ["model", "Tiny", "1B,", "serving", "semantics,", "seed", "7"]
        for line in text
    )
    read = next(line for line in text if line.startswith("storage read, GiB/s"))
    assert read.split() == [
        "storage",
        "read,",
        "GiB/s",
        "0.9406",
        "0.9406",
        "0.8294",
        "1.067",
        "1.4",
    ]
    assert len(text) < 50


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, MISSING), (0.0, "0"), (0.00123456, "0.001235"), (12.3456, "12.35"), (1e6, "1,000,000")],
)
def test_numbers_are_shown_with_four_digits_that_count(value: float | None, text: str) -> None:
    assert METRICS["ttft_ms.p50"].shown(value) == text


def test_two_trials_that_differ_by_far_have_no_interval_and_are_shown() -> None:
    """Its end was beyond any number of a document, and the summary ended in a traceback."""
    document = of([result(1, 1.5 * GB), result(2, 0.03 * GB)])
    assert document["kv_cache"]["metrics"]["storage.read.bytes_per_second"]["interval"] is None
    text = terminal(trials_view(document["kv_cache"])).splitlines()
    (row,) = (line for line in text if line.startswith("storage read, "))
    assert row.split().count(MISSING) == 2


def test_trials_that_were_not_all_in_one_place_are_told() -> None:
    """Another drive that is mounted between two of them makes their mean that of two drives."""

    def at(trial: int, source: str) -> dict[str, Any]:
        drives = [{"filesystem": {"source": source}, "device": {"name": "x"}}]
        return result(trial, environment={"hostname": "here", "drives": drives})

    documents = [at(1, "/dev/vda"), at(2, "/dev/loop0"), at(3, "/dev/vda")]
    files = {f"R.trial{n}.json": f"{n:064x}" for n in (1, 2, 3)}
    own = aggregate(documents, files, master_seed=MASTER, planned=3)["kv_cache"]
    (rule,) = (each for each in own["passport"]["rules"] if each["rule"] == "T1")
    assert rule["status"] == "invalid"
    assert (
        "trial 2 was on host here, /dev/loop0, and trial 1 on host here, /dev/vda"
        in rule["message"]
    )
