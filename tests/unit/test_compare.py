"""Comparing: who may be compared, what a difference is, and how sure it is."""

import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.app.compare import MARK, read_inputs
from kv_cache.core.errors import UsageError
from kv_cache.metrics.order import holm
from kv_cache.result.chain import seal
from kv_cache.result.comparison import (
    Comparison,
    Finding,
    Row,
    batches,
    compare,
    comparison_json,
    input_of,
)
from kv_cache.result.derive import SCHEMA
from kv_cache.view.comparison import comparison_view
from kv_cache.view.terminal import terminal
from tests.trials import GB, LATENCIES, of, requests, result, series, windows

READ = "storage.read.bytes_per_second"
MODEL = {"name": "Tiny 1B", "num_layers": 12}
CONFIG = {"run": {"mode": "standard", "seed": 1}, "tiers": {"cache_dir": ["/a"]}}


def compared(directory: Path, *documents: dict[str, Any]) -> Comparison:
    return compare(read_inputs(written(directory, *documents)))


def written(directory: Path, *documents: dict[str, Any]) -> list[Path]:
    paths = [directory / f"{label}.json" for label in "ABCDEFGH"[: len(documents)]]
    for path, document in zip(paths, documents, strict=True):
        path.write_bytes(orjson.dumps(document))
    return paths


def row(comparison: Comparison, metric: str, label: str = "B") -> Row:
    return next(r for r in comparison.against(label) if r.metric.name == metric)


def claims(comparison: Comparison) -> bool:
    """Whether it says of even one metric that it differs."""
    return any(row.finding is Finding.DIFFERS for row in comparison.rows)


def trials(level: float, seed: int = 1, count: int = 5, spread: float = 0.01) -> dict[str, Any]:
    """Trials that read about `level` bytes/s."""
    rng = random.Random(seed)
    rates = [level * rng.lognormvariate(0, spread) for _ in range(count)]
    return of([result(k, rate) for k, rate in enumerate(rates, start=1)])


def run(rates: Sequence[float], **changed: Any) -> dict[str, Any]:
    """One run whose windows read at these rates."""
    mean = sum(rates) / len(rates)
    return result(1, mean, series=series(windows(rates, latency=LATENCIES)), **changed)


def noisy(level: float, seed: int, count: int = 60, spread: float = 0.05) -> list[float]:
    rng = random.Random(seed)
    return [level * rng.lognormvariate(0, spread) for _ in range(count)]


# --- trials ----------------------------------------------------------------------------------


def test_trials_of_a_drive_half_as_fast_differ_by_two_with_an_interval(tmp_path: Path) -> None:
    found = row(compared(tmp_path, trials(GB), trials(GB / 2, seed=2)), READ)
    assert found.finding is Finding.DIFFERS
    assert found.better is False
    assert found.ratio == pytest.approx(0.5, rel=0.02)
    assert found.interval is not None
    assert 0.5 in found.interval
    assert found.value is not None
    assert found.baseline is not None
    assert found.ratio == pytest.approx(found.value / found.baseline)


def test_a_lower_latency_is_better_and_a_lower_rate_worse(tmp_path: Path) -> None:
    def drive(seconds: float, seed: int) -> dict[str, Any]:
        rng = random.Random(seed)
        documents = []
        for trial in range(1, 6):
            ms = {name: v * seconds * rng.lognormvariate(0, 0.01) for name, v in LATENCIES.items()}
            reads = {"operations": 9, "bytes_per_second": GB / seconds, "device_ms": ms}
            documents.append(result(trial, tiers={"storage": {"read": reads}}))
        return of(documents)

    comparison = compared(tmp_path, drive(1, 1), drive(2, 2), drive(0.5, 3))
    assert row(comparison, "storage.read.device_ms.p95", "B").better is False
    assert row(comparison, "storage.read.device_ms.p95", "C").better is True
    assert row(comparison, READ, "B").better is False
    assert row(comparison, READ, "C").better is True


def test_trials_of_the_same_drive_are_seldom_told_apart(tmp_path: Path) -> None:
    def pair(seed: int) -> Comparison:
        return compared(tmp_path, trials(GB, 2 * seed), trials(GB, 2 * seed + 1))

    false = sum(claims(pair(seed)) for seed in range(60))
    assert false <= 6  # 5 % of 60 with room: 7 or more would have a chance of 3 %


def test_trials_of_a_drive_whose_speed_wanders_are_seldom_told_apart(tmp_path: Path) -> None:
    """Neighbours correlate by 0.6, and the test knows it from the order in which they ran."""

    def wanders(seed: int) -> dict[str, Any]:
        rng, away, rates = random.Random(seed), 0.0, []
        for _ in range(24):
            away = 0.6 * away + rng.gauss(0, 0.01)
            rates.append(GB * math.exp(away))
        return of([result(k, rate) for k, rate in enumerate(rates, start=1)])

    pairs = (compared(tmp_path, wanders(2 * seed), wanders(2 * seed + 1)) for seed in range(100))
    told = sum(row(pair, READ).finding is Finding.DIFFERS for pair in pairs)
    assert told <= 10  # as independent ones: 25


def machine(speed: float, rng: random.Random, trials: int = 5) -> dict[str, Any]:
    """Trials in which every number has noise of its own."""

    def around(value: float) -> float:
        return value * speed * rng.lognormvariate(0, 0.012)

    def side() -> dict[str, Any]:
        ms = {name: around(value) for name, value in LATENCIES.items()}
        return {"operations": 900, "bytes_per_second": around(GB), "device_ms": ms}

    def of_class() -> dict[str, Any]:
        ms = {name: around(value) for name, value in LATENCIES.items()}
        return {**requests(), "completed": around(100), "response_ms": ms, "ttft_ms": ms}

    classes = ("all", "interactive", "responsive", "batch")
    return of(
        [
            result(
                trial,
                tiers={"storage": {"read": side(), "write": side()}},
                measured={name: of_class() for name in classes},
            )
            for trial in range(1, trials + 1)
        ]
    )


HEADLINE = "storage.bytes_per_second"


def test_a_headline_that_is_five_percent_lower_is_worse_whatever_else_was_measured(
    tmp_path: Path,
) -> None:
    """130 MB/s beside 137: 0.952 with 0.935 to 0.970, which 25 other numbers made no difference."""
    noise = random.Random(4)
    a, b = machine(1, noise, trials=4), machine(1, noise, trials=4)
    for document, factors in ((a, [1.0] * 4), (b, [0.9424, 0.9616] * 2)):
        numbers = document["kv_cache"]["metrics"][HEADLINE]
        numbers["values"] = [137e6 * factor for factor in factors]
        document.update(seal({"kv_cache": document["kv_cache"]}, {}))
    comparison = compared(tmp_path, a, b)
    first = comparison.rows[0]
    assert first.metric.name == comparison.headline.name == HEADLINE
    assert first.interval is not None
    assert (first.interval.low, first.interval.high) == pytest.approx((0.935, 0.970), abs=0.002)
    assert (first.finding, first.better) == (Finding.DIFFERS, False)
    assert told(comparison).startswith(
        "Comparison: COMPARED. Storage read + write of B is worse: 0.952 of A's (0.93"
    )


def test_two_of_the_same_have_a_false_headline_or_another_false_number_in_5_percent_each() -> None:
    rng, headline, others = random.Random(25), 0, 0
    for _ in range(200):
        documents = [machine(1, rng) for _ in range(2)]
        sides = zip("AB", documents, strict=True)
        comparison = compare([input_of(label, Path(label), each) for label, each in sides])
        false = {row.metric.name for row in comparison.rows if row.finding is Finding.DIFFERS}
        headline += HEADLINE in false
        others += bool(false - {HEADLINE})
        assert comparison.family == 22
    # 5 % of 200 is 10; more than 17 would have a chance of 1 %.
    assert headline <= 17
    assert others <= 17


def test_a_quantity_that_is_the_same_twice_counts_once(tmp_path: Path) -> None:
    """These trials read alone, so that read + write is the headline again; latencies of all
    requests and of the one class are the same too."""
    comparison = compared(tmp_path, trials(GB), trials(GB / 2, seed=2))
    assert row(comparison, READ).finding is Finding.DIFFERS
    judged = [each for each in comparison.rows if each.interval is not None]
    assert len(judged) == 16
    assert comparison.family == 1  # all the others have one ratio, 1, and no spread


def test_what_schedules_ask_beyond_each_other_drops_out_of_the_ratio(tmp_path: Path) -> None:
    """Each trial's load moves its rate by up to 2, the drive by 10 %; trials ran in two orders."""
    loads = {1: 1.0, 2: 0.5, 3: 0.8, 4: 0.6, 5: 0.9}
    a = of([result(k, GB * load) for k, load in loads.items()])
    b = of([result(k, GB * loads[k] * (1.1 + 0.001 * k)) for k in (3, 1, 5, 2, 4)])
    found = row(compared(tmp_path, a, b), READ)
    assert found.finding is Finding.DIFFERS
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((1.101, 1.105), abs=0.0005)


def test_trials_of_one_schedule_have_no_pairs(tmp_path: Path) -> None:
    """A trace asks for the same whatever the seed: no trial belongs to one of the other side."""

    def replay(rates: Sequence[float]) -> dict[str, Any]:
        schedule = {"sha256": "f" * 64}
        return of([result(k, GB * r, schedule=schedule) for k, r in enumerate(rates, start=1)])

    comparison = compared(tmp_path, replay([1.0, 0.5, 0.8]), replay([1.1, 0.55, 0.88]))
    assert comparison.spread == "between trials"
    assert row(comparison, READ).finding is Finding.NONE_FOUND


def test_one_trial_or_one_that_lacks_a_metric_gives_a_ratio_and_no_interval(
    tmp_path: Path,
) -> None:
    found = row(compared(tmp_path, trials(GB, count=1), trials(GB / 2, count=1)), READ)
    assert (found.interval, found.finding) == (None, Finding.NOT_JUDGED)
    assert found.ratio == pytest.approx(0.5, rel=0.1)
    assert found.why_none == "one trial shows no spread"
    lacking = of([result(1), result(2, reuse={"looked_up": 0})])
    found = row(compared(tmp_path, of([result(1), result(2)]), lacking), "hit_ratio")
    assert found.why_none == "not every trial has it"


def test_two_trials_far_apart_have_no_interval_instead_of_an_error(tmp_path: Path) -> None:
    wild = of([result(1, 1.0), result(2, 1e300)])
    assert row(compared(tmp_path, wild, wild), READ).finding is not Finding.DIFFERS


def test_percentiles_within_the_resolution_of_histograms_do_not_differ(tmp_path: Path) -> None:
    def drive(p95: float) -> dict[str, Any]:
        ms = {**LATENCIES, "p95": p95}
        reads = {"operations": 9, "bytes_per_second": GB, "device_ms": ms}
        return of([result(k, tiers={"storage": {"read": reads}}) for k in range(1, 6)])

    name = "storage.read.device_ms.p95"
    near = row(compared(tmp_path, drive(8.0), drive(8.01)), name)
    assert near.finding is Finding.NONE_FOUND  # though no trial moved at all
    assert row(compared(tmp_path, drive(8.0), drive(8.1)), name).finding is Finding.DIFFERS


# --- single runs -----------------------------------------------------------------------------


def test_a_run_half_as_fast_differs_and_its_ratio_is_of_the_whole_runs(tmp_path: Path) -> None:
    a, b = run(noisy(GB, 1)), run(noisy(GB / 2, 2))
    found = row(compared(tmp_path, a, b), READ)
    assert found.finding is Finding.DIFFERS
    means = [d["kv_cache"]["tiers"]["storage"]["read"]["bytes_per_second"] for d in (a, b)]
    assert found.ratio == pytest.approx(means[1] / means[0])
    assert found.interval is not None
    assert found.ratio in found.interval


def test_runs_of_the_same_rate_are_seldom_told_apart(tmp_path: Path) -> None:
    def pair(seed: int) -> Comparison:
        return compared(tmp_path, run(noisy(GB, 2 * seed)), run(noisy(GB, 2 * seed + 1)))

    assert sum(claims(pair(seed)) for seed in range(60)) <= 6


def test_windows_that_depend_on_each_other_give_a_wider_interval(tmp_path: Path) -> None:
    def wander(seed: int) -> list[float]:
        """Neighbours correlate by 0.8, so that 60 windows tell as much as seven."""
        rng, state, rates = random.Random(seed), 0.0, []
        for _ in range(60):
            state = 0.8 * state + 0.6 * rng.gauss(0, 1)
            rates.append(GB * 1.05**state)
        return rates

    def pair(seed: int) -> Comparison:
        return compared(tmp_path, run(wander(2 * seed)), run(wander(2 * seed + 1)))

    assert sum(claims(pair(seed)) for seed in range(60)) <= 6


def test_a_run_that_drifts_has_no_interval(tmp_path: Path) -> None:
    drifting = run([GB * (1 + k / 60) for k in range(60)])
    found = row(compared(tmp_path, run(noisy(GB, 1)), drifting), READ)
    assert found.finding is Finding.NOT_JUDGED
    assert found.why_none is not None
    assert "it drifts" in found.why_none


def test_a_percentile_made_by_rare_moments_has_no_interval(tmp_path: Path) -> None:
    """99 of 100 windows have a p99 of 9 ms, and the run has one of 90."""
    rows = windows(noisy(GB, 1), latency=LATENCIES)
    ms = {**LATENCIES, "p99": 90.0}
    reads = {"operations": 9, "bytes_per_second": GB, "device_ms": ms}
    rare = result(1, series=series(rows), tiers={"storage": {"read": reads}})
    found = row(compared(tmp_path, run(noisy(GB, 2)), rare), "storage.read.device_ms.p99")
    assert found.why_none == "rare moments make it: no batch is like the whole run"
    assert row(compared(tmp_path, run(noisy(GB, 2)), rare), READ).interval is not None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "the result has no series"),
        ({"series": series(windows([GB] * 9))}, "fewer than 10 windows were measured: run longer"),
        (
            {"series": series(windows([GB] * 60, phase="warmup"))},
            "fewer than 10 windows were measured: run longer",
        ),
        (
            {"series": series(windows([GB] * 20))},
            "a batch has none of it, to which there is no ratio: run longer",
        ),
    ],
)
def test_a_run_without_batches_has_ratios_and_says_why_no_interval(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    name = "storage.write.bytes_per_second" if "none of it" in why else READ
    writes = {"read": {"operations": 1, "bytes_per_second": GB, "device_ms": LATENCIES}}
    changed = {**changed, "tiers": {"storage": {**writes, "write": writes["read"]}}}
    found = row(compared(tmp_path, result(1, **changed), result(1, **changed)), name)
    assert (found.ratio, found.why_none) == (1.0, why)


def test_percentiles_that_most_batches_lack_have_no_interval(tmp_path: Path) -> None:
    rows = windows([GB] * 20, latency=LATENCIES)
    for bare in rows[8:]:
        bare["classes"] = {}
    found = compared(tmp_path, *[result(1, series=series(rows))] * 2)
    name = "interactive.response_ms.p50"
    assert row(found, name).why_none == "too many batches have none of it"
    assert row(found, READ).interval is not None


def test_latencies_of_all_classes_and_hits_have_no_interval_in_single_runs(tmp_path: Path) -> None:
    comparison = compared(tmp_path, run(noisy(GB, 1)), run(noisy(GB, 2)))
    for name in ("ttft_ms.p95", "response_ms.p50", "hit_ratio"):
        assert row(comparison, name).why_none == "windows do not have it"
    assert row(comparison, "interactive.response_ms.p95").interval is not None


def test_batches_are_of_equal_time_and_hold_each_measured_window_once() -> None:
    rows = windows([GB] * 3, phase="warmup") + windows([GB] * 57) + windows([GB], phase="drain")
    parts = batches(result(1, series=series(rows))["kv_cache"])
    assert not isinstance(parts, str)
    assert sorted(map(len, parts)) == [5, 5, 5, 6, 6, 6, 6, 6, 6, 6]
    assert [w for part in parts for w in part] == rows[3:60]


def test_windows_of_very_different_lengths_are_no_batches() -> None:
    long = {**windows([GB])[0], "start_s": 100.0, "end_s": 1000.0}
    assert batches({"series": series([*windows([GB] * 30), long])}) == (
        "its windows are of very different lengths"
    )


def test_a_zero_has_no_ratio(tmp_path: Path) -> None:
    found = row(compared(tmp_path, result(1, 0.0), result(1, 1.0)), READ)
    assert (found.ratio, found.finding) == (None, Finding.NOT_JUDGED)


# --- several at once -------------------------------------------------------------------------


def by(p: float) -> Callable[[float], bool]:
    return lambda alpha: p <= alpha


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_without_p_values_rejects_what_holm_with_them_does(ps: list[float]) -> None:
    expected: set[int] = set()
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[index] > 0.05 / (len(ps) - rank):
            break
        expected.add(index)
    assert holm([by(p) for p in ps], 0.05).rejected == expected


def test_what_differs_only_on_its_own_is_said_to_be_uncertain() -> None:
    assert holm([by(0.04)], 0.05).rejected == {0}
    assert holm([by(0.04), by(0.5)], 0.05).rejected == set()


def test_more_results_need_more_certainty(tmp_path: Path) -> None:
    """A difference that stands in a comparison of two need not stand in one of eight."""
    a, b = trials(GB, 1, spread=0.03), trials(1.05 * GB, 2, spread=0.03)
    others = [trials(GB, seed, spread=0.03) for seed in range(3, 9)]
    few = row(compared(tmp_path, a, b), HEADLINE)
    many = row(compared(tmp_path, a, b, *others), HEADLINE)
    assert few.interval == many.interval
    assert (few.finding, many.finding) == (Finding.DIFFERS, Finding.UNCERTAIN)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"schema": "kv-cache-result/0"}, f"schema is kv-cache-result/0, not {SCHEMA}"),
        ({"driver": "virtual-time"}, "driver is virtual-time, not real-io"),
        ({"model": {**MODEL, "name": "Huge"}}, "model.name is Huge, not Tiny 1B"),
        ({"model": {**MODEL, "num_layers": 80}}, "model.num_layers is 80, not 12"),
        ({"semantics_preset": "mlperf"}, "semantics preset is mlperf, not serving"),
        ({"semantics": {"promote": False}}, "semantics.promote is False, not True"),
        ({"semantics": {}}, "semantics.promote is missing, not True"),
        (
            {"config": {**CONFIG, "run": {"mode": "prefill-only"}}},
            "mode is prefill-only, not standard",
        ),
        (
            {"schedule": {"sha256": "f" * 64}},
            "its schedule is ffffffffffff (seed 3967688544), not 000000000000 (seed 3967688544)",
        ),
    ],
)
def test_what_is_not_comparable_is_refused_with_both_values(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        compared(tmp_path, result(1), result(1), result(1, **changed))
    assert f"{tmp_path}/C.json cannot be compared with {tmp_path}/A.json: {says};" in str(
        refused.value
    )


def test_only_where_a_model_was_read_may_differ(tmp_path: Path) -> None:
    assert compared(tmp_path, result(1), result(1, model={**MODEL, "source": "a file"})).rows


def test_trials_are_compared_with_as_many_trials_of_the_same_seeds(tmp_path: Path) -> None:
    three = of([result(k) for k in (1, 2, 3)])
    with pytest.raises(UsageError, match="is of a single run, not of 3 finished trials"):
        compared(tmp_path, three, result(1))
    with pytest.raises(UsageError, match="is of 2 finished trials, not of 3 finished trials"):
        compared(tmp_path, three, of([result(k) for k in (1, 2)]))
    with pytest.raises(UsageError, match=r"its schedule is 0+ \(seed 8\), not 0+ \(seed 7\)"):
        compared(tmp_path, three, of([result(k) for k in (1, 2, 4)], master_seed=8))


def test_trials_of_which_none_finished_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of its trials finished"):
        compared(tmp_path, result(1), of([result(1, status="broken")]))


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    for changed in (result(1), of([result(1), result(2)])):
        changed["kv_cache"]["passport"]["verdict"] = "suspect"
        with pytest.raises(UsageError, match=r"B\.json was changed after its run \(verdict\)"):
            compared(tmp_path, result(1), changed)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"kv_cache": {"schema": "other/1"}}', "\xff"])
def test_a_file_that_is_no_result_is_one_sentence(tmp_path: Path, text: str) -> None:
    paths = written(tmp_path, result(1), result(1))
    paths[1].write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"B\.json"):
        read_inputs(paths)


@pytest.mark.parametrize("name", ["passport", "schedule"])
def test_a_sealed_file_without_what_every_result_has_is_one_sentence(
    tmp_path: Path, name: str
) -> None:
    bare = result(1)
    del bare["kv_cache"][name]
    with pytest.raises(
        UsageError, match=rf"B\.json: kv_cache\.{name}\S*: expected (str|object), got null"
    ):
        compared(tmp_path, result(1), seal(bare, {}))


def test_one_result_or_too_many_are_refused(tmp_path: Path) -> None:
    paths = written(tmp_path, result(1))
    for count in (1, 27):
        with pytest.raises(UsageError, match=f"needs 2 to 26 results, .* given {count};"):
            read_inputs(paths * count)


# --- what is told ----------------------------------------------------------------------------


def told(comparison: Comparison) -> str:
    return terminal(comparison_view(comparison.inputs))


def test_an_invalid_result_is_compared_and_named_first(tmp_path: Path) -> None:
    text = told(compared(tmp_path, result(1), result(1, verdict="invalid"))).splitlines()
    assert text[1] == "  ! B is invalid: V9 clock: it jumped"
    assert any(line.startswith("storage read, GiB/s") for line in text)


def test_drives_machines_and_directories_may_differ_and_are_told(tmp_path: Path) -> None:
    def on(host: str, drive: str, directory: str) -> dict[str, Any]:
        drives = [{"device": {"name": drive}, "filesystem": {"type": "ext4", "free_bytes": 1}}]
        config = {**CONFIG, "tiers": {"cache_dir": [directory]}, "output": {"output": directory}}
        return result(1, environment={"hostname": host, "drives": drives}, config=config)

    comparison = compared(tmp_path, on("here", "vda", "/a"), on("there", "nvme0n1", "/b"))
    assert [(d.kind, d.name, d.values) for d in comparison.differs] == [
        ("machine", "hostname", ("here", "there")),
        ("drive", "drive 1 device.name", ("vda", "nvme0n1")),
        ("place", "tiers.cache_dir", (["/a"], ["/b"])),
    ]
    assert re.search(r"drive 1 device.name +drive +vda +nvme0n1", told(comparison))
    assert "Configurations differ" not in told(comparison)


def test_another_configuration_is_compared_with_a_warning(tmp_path: Path) -> None:
    other = {**CONFIG, "io": {"engine": "uring"}}
    comparison = compared(tmp_path, result(1), result(1, config=other))
    assert re.search(r"io.engine +configuration +\S +uring", told(comparison))
    assert "the ratios are of that as much as of the drives" in told(comparison)


def test_single_runs_are_told_not_to_know_how_runs_differ(tmp_path: Path) -> None:
    assert "--trials 5" in told(compared(tmp_path, run(noisy(GB, 1)), run(noisy(GB, 2))))
    assert "--trials 5" not in told(compared(tmp_path, trials(GB, 1), trials(GB, 2)))


def test_without_any_interval_nothing_is_said_about_differences(tmp_path: Path) -> None:
    text = told(compared(tmp_path, result(1), result(1, GB / 2)))
    assert "No number has an interval: nothing is said" in text
    assert "worse" not in text.split("B is")[1].split("No interval")[0]


def test_the_same_result_twice_is_told(tmp_path: Path) -> None:
    comparison = compared(tmp_path, trials(GB, 1), trials(GB, 1))
    before, _, _ = told(comparison).partition("\nfile ")
    assert "B is the very result that A is (same fingerprint)" in before
    assert all(r.finding in (Finding.NONE_FOUND, Finding.NOT_JUDGED) for r in comparison.rows)


def test_lines_fit_a_terminal_of_100_columns(tmp_path: Path) -> None:
    comparison = compared(tmp_path, trials(GB, 1), trials(GB / 2, 2))
    table = [line for line in told(comparison).splitlines() if line.startswith(("storage", "resp"))]
    assert len(table) > 5
    assert max(map(len, table)) <= 105


def test_the_json_tells_all_that_the_text_does(tmp_path: Path) -> None:
    comparison = compared(tmp_path, trials(GB, 1), trials(GB / 2, 2), trials(GB, 3))
    data = comparison_json(comparison)
    assert data.startswith(MARK.encode())
    document = orjson.loads(data)
    assert document["spread"] == "between pairs of trials"
    assert [row["label"] for row in document["inputs"]] == ["A", "B", "C"]
    (read,) = [row for row in document["metrics"] if (row["metric"], row["result"]) == (READ, "B")]
    assert read["finding"] == "differs"
    assert read["to_the_better"] is False
    assert read["interval"]["low"] < 0.5 < read["interval"]["high"]
    assert read["unit"] == "bytes/s"
