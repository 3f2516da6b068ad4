"""Trees of MLPerf's sequence: what is added up, what makes an option invalid, what rules see."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from msgspec import structs

from kv_cache.cli.mlperf import main
from kv_cache.cli.plot import main as plot
from kv_cache.cli.report import main as report
from kv_cache.cli.verify import main as verify
from kv_cache.core.errors import UsageError
from kv_cache.core.text import as_json
from kv_cache.core.units import NS_PER_S
from kv_cache.metrics.histogram import Histogram, merged
from kv_cache.metrics.judging import Status
from kv_cache.metrics.pace import batch_count
from kv_cache.mlperf import rankfile
from kv_cache.mlperf.aggregate import run_summary, summarize
from kv_cache.mlperf.document import tree_document
from kv_cache.mlperf.rankfile import (
    CLIENTS,
    CONFIGS,
    CPU_ONLY,
    DUPLICATE,
    FOREIGN,
    MISSING,
    SCHEMAS,
    TAMPERED,
    TRUNCATED,
    UNEXPECTED,
    UNFINISHED,
    RankResult,
    Spot,
)
from kv_cache.mlperf.rules import RULES, TreeFinding, check_tree
from kv_cache.mlperf.tree import Tree, read_tree
from kv_cache.result.run import plain
from kv_cache.view.submission import check_view, submission_view
from kv_cache.view.terminal import terminal
from tests.submission import (
    STAMP,
    Document,
    Edit,
    Made,
    consistent,
    derived,
    launched,
    make,
    real_result,
    resealed,
    short,
    take_longer,
)

Json = Mapping[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _each_text_is_read_and_checked_once() -> Iterator[None]:
    """Most ranks of the trees are the same bytes, and what takes time depends on those alone."""
    check_again, read_again = rankfile._changes, rankfile._result

    @cache
    def changes(raw: bytes) -> tuple[str, ...]:
        return tuple(check_again(orjson.loads(raw), raw))

    @cache
    def result(spot: Spot, name: str, raw: bytes) -> RankResult:
        return read_again(spot, name, orjson.loads(raw))

    with patch.multiple(
        rankfile,
        _changes=lambda _, raw: iter(changes(raw)),
        _result=lambda spot, name, document: result(spot, name, orjson.dumps(document)),
    ):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return real_result(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def whole(base: Document, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A tree with nothing wrong; nobody changes it."""
    return make(tmp_path_factory.mktemp("whole") / "tree", base)


@pytest.fixture
def made(whole: Made, tmp_path: Path) -> Made:
    """A copy to do things to."""
    top = tmp_path / "tree"
    shutil.copytree(whole.top, top)
    run = top / whole.place.run.relative_to(whole.top)
    own = json.loads(json.dumps(whole.own))
    return Made(top=top, place=structs.replace(whole.place, run=run), own=own)


def edited(path: Path, change: Callable[[Document], None]) -> None:
    """A result that somebody changed who knows the program."""
    document = orjson.loads(path.read_bytes())
    change(document)
    path.write_bytes(as_json(resealed(document)))


def call(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    return code, out.getvalue()


# --- what is added up --------------------------------------------------------------------------


def figure(base: Document, path: str) -> float:
    value: Any = base["summary"]
    for name in path.split("."):
        value = value[name]
    return float(value)


def test_a_tree_that_is_whole_is_complete_and_intact(whole: Made, base: Document) -> None:
    assert consistent(base) == []
    tree = whole.tree()
    assert tree.flaws == ()
    assert len(tree.ranks) == 18
    assert tree.division == "closed"


def test_by_the_rules_ranks_are_added_and_trials_averaged(base: Document, tmp_path: Path) -> None:
    def slower(option: int, trial: int, rank: int, document: Document) -> None:
        if option == 1:
            stretch(document, "storage", 1 + trial + rank / 10)

    tree = make(tmp_path / "tree", base, edit=slower).tree()
    numbers = summarize(tree)["options"]["1"]
    one = figure(base, "storage_throughput_tokens_per_sec")
    sums = [one / (1 + trial) + one / (1.1 + trial) for trial in range(3)]
    rules = numbers["by_the_rules"]
    assert rules["aggregated_storage_throughput_tokens_per_sec"] == pytest.approx(
        fmean(sums), rel=0.01
    )
    read = figure(base, "cache_stats.tier_storage_read_bandwidth_gbps")
    assert rules["aggregated_read_bandwidth_gbps"] == pytest.approx(2 * read)
    p95 = figure(base, "cache_stats.storage_read_device_p95_ms")
    assert rules["aggregated_device_read_p95_ms"] == p95
    spread = numbers["spread"]["storage_throughput_tokens_per_sec"]
    assert spread["values"] == pytest.approx(sums, rel=0.01)
    assert spread["median"] == pytest.approx(sums[1], rel=0.01)
    assert spread["interval"]["low"] < fmean(sums) < spread["interval"]["high"]


def test_pooled_percentiles_are_those_of_all_samples_together(
    base: Document, tmp_path: Path
) -> None:
    def one_is_slow(option: int, trial: int, rank: int, document: Document) -> None:
        if option == 3 and rank == 1:
            stretch(document, "response", 10)

    tree = make(tmp_path / "tree", base, edit=one_is_slow).tree()
    response = summarize(tree)["options"]["3"]["pooled_ms"]["response"]
    ranks = [json.loads(path.read_bytes()) for path in tree.place.run.glob("option_3/*/*/*.json")]
    parts = [r["kv_cache"]["measured"]["all"]["histogram_response"] for r in ranks]
    pool = merged(Histogram.from_json(part) for part in parts)
    assert response["count"] == pool.count == sum(part["count"] for part in parts)
    assert response["p50"] == pytest.approx((pool.at_rank(50) or 0) / 1e6)
    each = [Histogram.from_json(part).at_rank(50) or 0 for part in parts]
    assert min(each) / 1e6 < response["p50"] <= max(each) / 1e6
    assert response["p50"] != pytest.approx(fmean(each) / 1e6)
    assert response["p999"] is None  # of so few


def stretch(document: Document, latency: str, factor: float) -> None:
    """Let a latency of all requests be `factor` times as long."""
    classes, times_s = document["kv_cache"]["measured"], []
    for name in ("interactive", "responsive", "batch"):
        slow = Histogram()
        for bucket, count in classes[name][f"histogram_{latency}"]["buckets"]:
            for _ in range(count):
                ns = round(factor * bucket_middle(bucket))
                slow.add(ns)
                times_s.append(ns / NS_PER_S)
        classes[name][f"histogram_{latency}"] = slow.to_json()
    if f"{latency}_latencies" in document:
        document[f"{latency}_latencies"] = times_s


def bucket_middle(bucket: int) -> int:
    from kv_cache.metrics.histogram import bucket_bounds

    return sum(bucket_bounds(bucket)) // 2


def test_the_launchers_own_tree_is_read_without_a_record(base: Document, tmp_path: Path) -> None:
    made = make(tmp_path / "tree", base, manifest=False)
    made.file(1, 2, 1).unlink()
    tree = made.tree()
    assert tree.manifest is None
    assert [flaw.kind for flaw in tree.flaws] == [MISSING]
    assert "the ranks' own results" in tree.flaws[0].message
    assert [told["valid"] for told in summarize(tree)["options"].values()] == [False, True, True]


def test_a_sequence_is_read_where_it_was_copied_to(whole: Made, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(whole.place.run, tmp_path / "sequence"))
    tree = read_tree(copied)
    assert tree.flaws == ()
    assert tree.place.org is None
    assert short(tree) == set()


# --- what makes an option invalid --------------------------------------------------------------


def missing(made: Made) -> None:
    made.file(2, 1, 1).unlink()


def directory_missing(made: Made) -> None:
    shutil.rmtree(made.file(2, 1).parents[1])


def two_results(made: Made) -> None:
    shutil.copy(made.file(2), made.file(2).with_name("kvcache_results_20260701_130000.json"))


def copied_rank(made: Made) -> None:
    shutil.copy(made.file(2, 0, 0), made.file(2, 0, 1))


def truncated(made: Made) -> None:
    made.file(2).write_bytes(made.file(2).read_bytes()[:5000])


def empty(made: Made) -> None:
    made.file(2).write_bytes(b"")


def foreign(made: Made) -> None:
    made.file(2).write_text(json.dumps({"requests_completed": 5, "summary": {"cache_stats": {}}}))


def not_a_mapping(made: Made) -> None:
    made.file(2).write_text("[1, 2]")


def number_changed(made: Made) -> None:
    document = orjson.loads(made.file(2).read_bytes())
    document["summary"]["cache_stats"]["tier_storage_read_bandwidth_gbps"] *= 2
    made.file(2).write_bytes(as_json(document))


def number_changed_and_sealed(made: Made) -> None:
    def change(document: Document) -> None:
        document["summary"]["cache_stats"]["tier_storage_read_bandwidth_gbps"] *= 2

    edited(made.file(2), change)


def spelled_anew(made: Made) -> None:
    made.file(2).write_text(json.dumps(json.loads(made.file(2).read_bytes())))


def another_schema(made: Made) -> None:
    def change(document: Document) -> None:
        document["kv_cache"]["schema"] = "kv-cache-result/3"

    edited(made.file(2, 1), change)


def another_config(made: Made) -> None:
    def change(document: Document) -> None:
        document["kv_cache"]["config"]["eviction"]["target_usage_ratio"] = 0.7

    edited(made.file(2, 1), change)


def another_seed(made: Made) -> None:
    def change(document: Document) -> None:
        own = document["kv_cache"]
        own["seed"] = document["seed"] = own["config"]["run"]["seed"] = 99

    edited(made.file(2, 1), change)


def interrupted(made: Made) -> None:
    def change(document: Document) -> None:
        own = document["kv_cache"]
        own["status"] = "interrupted"
        document["overall_passed"] = False
        own["passport"]["evidence"]["completeness"]["status"] = "interrupted"

    edited(made.file(2, 1), change)


def of_another_job(made: Made) -> None:
    def change(document: Document) -> None:
        document["kv_cache"]["rank"]["ranks"] = 8
        document["kv_cache"]["passport"]["evidence"]["sample"]["ranks"] = 8

    edited(made.file(2, 1), change)


def one_rank_too_many(made: Made) -> None:
    path = made.file(2, 1, 2)
    path.parent.mkdir()
    document = orjson.loads(made.file(2, 1, 1).read_bytes())
    own = document["kv_cache"]
    own["rank"]["rank"] = 2
    own["seed"] = document["seed"] = own["config"]["run"]["seed"] = 44
    take_longer(document, 1)
    path.write_bytes(as_json(derived(document)))


def without_storage(made: Made) -> None:
    def change(document: Document) -> None:
        document["kv_cache"]["tiers"]["storage"]["entries"] = 0
        document["summary"]["cache_stats"]["storage_entries"] = 0

    for path in made.place.run.glob("option_2/*/*/*.json"):
        edited(path, change)


FLAWS: Mapping[Callable[[Made], None], str] = {
    missing: MISSING,
    directory_missing: MISSING,
    two_results: DUPLICATE,
    copied_rank: DUPLICATE,
    truncated: TRUNCATED,
    empty: TRUNCATED,
    foreign: FOREIGN,
    not_a_mapping: FOREIGN,
    number_changed: TAMPERED,
    number_changed_and_sealed: TAMPERED,
    spelled_anew: TAMPERED,
    another_schema: SCHEMAS,
    another_config: CONFIGS,
    another_seed: CONFIGS,
    interrupted: UNFINISHED,
    of_another_job: CLIENTS,
    one_rank_too_many: UNEXPECTED,
    without_storage: CPU_ONLY,
}


@pytest.mark.parametrize("spoil", FLAWS, ids=lambda spoil: spoil.__name__)
def test_one_bad_rank_makes_its_option_invalid_by_name_and_no_other(
    spoil: Callable[[Made], None], made: Made
) -> None:
    spoil(made)
    made.seal()  # by somebody who knows how
    tree = made.tree()
    assert {flaw.kind for flaw in tree.flaws} == {FLAWS[spoil]}, tree.flaws
    options = summarize(tree)["options"]
    assert [options[o]["valid"] for o in "123"] == [True, False, True]
    assert "by_the_rules" not in options["2"]
    text = terminal(submission_view(plain(summarize(tree))))
    assert "INVALID: option 2: nothing is claimed of it." in text
    assert f"! option 2: {FLAWS[spoil]}: option_2" in text
    launchers = run_summary(tree, STAMP)["options"]["2"]
    assert launchers["partial_failure"]
    assert launchers["aggregated_read_bandwidth_gbps"] is None


def test_a_trial_that_is_copied_over_another_is_told_by_its_times(made: Made) -> None:
    def change(document: Document) -> None:
        document["kv_cache"]["started_utc"] = "2026-07-01T12:59:00+00:00"

    shutil.copy(made.file(2, 0, 1), made.file(2, 1, 1))
    edited(made.file(2, 1, 1), change)
    made.seal()
    told = [str(flaw) for flaw in made.tree().flaws]
    assert told
    assert all(flaw.startswith("duplicate: option_2/trial_1/rank_1") for flaw in told)
    assert not summarize(made.tree())["options"]["2"]["valid"]


@pytest.mark.parametrize("kind", ["pipe", "link to itself"])
def test_what_is_no_file_spoils_its_option_and_no_other(kind: str, made: Made) -> None:
    path = made.file(2)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name)
    options = summarize(made.tree())["options"]
    assert [options[o]["valid"] for o in "123"] == [True, False, True]
    kinds = {row["kind"] for row in options["2"]["invalid_because"]}
    assert kinds == {MISSING, TAMPERED}


def test_names_that_are_no_text_can_be_told(made: Made) -> None:
    (made.file(2).parent.parent / "rank_0\udcff").mkdir()
    (made.file(2).parent / "added\udcff").touch()
    for command in ("summarize", "check"):
        assert call(command, str(made.top))[0] == 1
        assert r"rank_0\\xff" in call(command, str(made.top), "--json")[1]


def test_verify_knows_a_record_and_sends_to_check(made: Made) -> None:
    def verified() -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = verify([str(made.place.run / "kvcache_sequence.json")])
        return code, out.getvalue()

    code, out = verified()
    assert code == 0, out
    assert "files        19 of 19 that it names are there" in out
    assert "mlperf check looks at the whole tree" in out
    made.file(2).write_bytes(b"")
    code, out = verified()
    assert code == 2
    assert "option_2/trial_0/rank_0/kvcache_results_20260701_120000.json was changed" in out


def test_an_invalid_option_is_exit_code_1(made: Made) -> None:
    missing(made)
    for command in ("summarize", "check"):
        code, out = call(command, str(made.top))
        assert code == 1
        assert "option_2/trial_1/rank_1" in out


def test_a_changed_rank_is_found_by_the_record_too(made: Made) -> None:
    edited(
        made.file(2), lambda document: document.update(avg_latency_ms=document["avg_latency_ms"])
    )
    made.file(2).write_bytes(made.file(2).read_bytes() + b" ")
    assert {(f.kind, f.option) for f in made.tree().flaws} == {(TAMPERED, 2)}


def test_a_changed_record_makes_every_option_invalid(made: Made) -> None:
    record = made.place.run / "kvcache_sequence.json"
    document = json.loads(record.read_bytes())
    document["kv_cache"]["config"]["trials"] = 2
    record.write_bytes(as_json(document))
    assert not any(told["valid"] for told in summarize(made.tree())["options"].values())


# --- the rules, each broken alone --------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """How a rule is broken: in the results before they are sealed, or in the tree afterwards."""

    edit: Edit | None = None
    tree: Callable[[Made], None] | None = None
    also: tuple[str, ...] = ()  # what cannot be whole then


def setting(path: str, value: Any, *, where: Callable[[int, int, int], bool] | None = None) -> Edit:
    """A value of our section, in the results where it applies."""

    def edit(option: int, trial: int, rank: int, document: Document) -> None:
        if where is None or where(option, trial, rank):
            *parents, last = path.split(".")
            inner = document["kv_cache"]
            for name in parents:
                inner = inner[name]
            inner[last] = value
            if path == "rank.ranks":  # which the evidence repeats
                document["kv_cache"]["passport"]["evidence"]["sample"]["ranks"] = value

    return edit


def other_seeds(option: int, trial: int, rank: int, document: Document) -> None:
    own = document["kv_cache"]
    own["seed"] = document["seed"] = own["config"]["run"]["seed"] = 7 + rank


def lagging(option: int, trial: int, rank: int, document: Document) -> None:
    """The harness woke up too late."""
    client = document["kv_cache"]["passport"]["evidence"]["client"]
    client |= LAG


LAG: Mapping[str, float] = {
    "harness_lag_p99_ms": 50.0,
    "harness_lag_p50_ms": 1.0,
    "storage_read_p50_ms": 1.0,
}


def only_ram(option: int, trial: int, rank: int, document: Document) -> None:
    if option == 2:
        document["kv_cache"]["tiers"]["storage"]["entries"] = 0
        document["summary"]["cache_stats"]["storage_entries"] = 0


def record(path: str, value: Any) -> Callable[[Made], None]:
    def change(made: Made) -> None:
        *parents, last = path.split(".")
        inner = made.own
        for name in parents:
            inner = inner[name]
        inner[last] = value
        made.seal()

    return change


def hurried(made: Made) -> None:
    made.own["trials"][3]["started_utc"] = made.own["trials"][2]["ended_utc"]
    made.seal()


def behind_a_launcher(made: Made) -> None:
    made.own["config"]["launch"] = ["mpirun", "-n", "2"]
    made.file(1, 0, 1).unlink()
    made.seal()


def summed_wrong(name: str) -> Callable[[Made], None]:
    def change(made: Made) -> None:
        (path,) = made.place.run.glob("kvcache_run_summary_*.json")
        document = json.loads(path.read_bytes())
        document["options"]["2"][name] *= 1.5
        path.write_text(json.dumps(document))
        made.seal()

    return change


def nobody(made: Made) -> None:
    (made.top / "closed" / "Acme").rename(made.top / "closed" / "submitter")


def in_the_yaml(made: Made) -> None:
    assert made.place.description is not None
    text = made.place.description.read_text()
    made.place.description.write_text(text.replace("onprem", "'FILL IN: onprem or cloud'"))


def without_pdf(made: Made) -> None:
    assert made.place.description is not None
    made.place.description.with_suffix(".pdf").unlink()


def lost(made: Made) -> None:
    made.file(3, 1).unlink()
    made.seal()


def rewritten(made: Made) -> None:
    number_changed(made)
    made.seal()


BROKEN: Mapping[str, Broken] = {
    "kvcacheFixedWorkloadPerOption": Broken(
        edit=setting("config.run.num_users", 199, where=lambda option, *_: option == 1)
    ),
    "kvcacheClosedSequenceLocks": Broken(edit=other_seeds),
    "kvcacheAutoscalingProhibited": Broken(edit=setting("config.autoscaler.enabled", True)),
    "kvcacheClientDefinition": Broken(edit=setting("rank.ranks", None)),
    "kvcacheScaleUpModel": Broken(
        edit=setting("config.run.num_users", 10, where=lambda *at: at == (3, 0, 1)),
        also=("kvcacheFixedWorkloadPerOption", "completeness"),
    ),
    "kvcachePerClientIsolation": Broken(edit=setting("config.tiers.cache_dir", ["/mnt/nvme/kv"])),
    "kvcacheSharedResultsDir": Broken(tree=behind_a_launcher, also=("completeness",)),
    "kvcacheAggregateBandwidth": Broken(tree=summed_wrong("aggregated_write_bandwidth_gbps")),
    "kvcacheAggregateThroughput": Broken(
        tree=summed_wrong("aggregated_storage_throughput_tokens_per_sec")
    ),
    "kvcacheAggregateDeviceLatency": Broken(tree=summed_wrong("aggregated_device_read_p95_ms")),
    "kvcacheLatencyValidity": Broken(edit=only_ram),
    "kvcachePosixCacheDir": Broken(tree=record("environment.same_filesystem", True)),
    "kvcachePosixIoModel": Broken(edit=setting("tiers.storage.store.layout", "log")),
    "kvcacheObjectViaGateway": Broken(
        edit=lambda o, t, r, d: setting("config.tiers.cache_dir", [f"s3://b/rank_{r}"])(o, t, r, d)
    ),
    "kvcacheObjectLatencyScope": Broken(
        edit=setting("environment.filesystem", {"type": "nfs4", "mount_options": None})
    ),
    "kvcacheClosedImmutable": Broken(edit=setting("config.eviction.target_usage_ratio", 0.7)),
    "kvcacheOpenInvocationNote": Broken(tree=record("config.command", [])),
    "submitterRootDirectory": Broken(tree=nobody),
    "topLevelSubdirectories": Broken(tree=lambda made: (made.top / "notes").mkdir()),
    "requiredSubdirectories": Broken(
        tree=lambda made: shutil.rmtree(made.top / "closed" / "Acme" / "code"),
        also=("codeDirectoryContents",),
    ),
    "codeDirectoryContents": Broken(
        tree=lambda made: (made.top / "closed" / "Acme" / "code" / ".code-hash.json").unlink()
    ),
    "divisionOfPath": Broken(tree=record("division", "open")),
    "systemsDirectoryFiles": Broken(tree=without_pdf),
    "identicalSystemConfig": Broken(
        edit=setting("environment.os.kernel", "5.0", where=lambda o, trial, r: trial == 1)
    ),
    "systemDescription": Broken(tree=in_the_yaml),
    "trialsInTurn": Broken(
        edit=setting("started_utc", "2026-07-01T12:00:30+00:00", where=lambda *at: at == (2, 0, 1))
    ),
    "completeness": Broken(tree=lost),
    "intactResults": Broken(tree=rewritten),
    "hashChain": Broken(tree=lambda made: (made.place.run / "added.txt").touch()),
    "passport": Broken(edit=lagging),
    "submittable": Broken(edit=setting("not_submittable", ["only to try it out"])),
}
NEVER_SHORT = {
    "kvcacheHeadlineResult",  # below
    "trialSpread",  # below
    "mlpstorageGeneratesHierarchy",  # below
    "kvcacheOpenAllowances",
}


def test_every_rule_is_broken_below() -> None:
    assert set(BROKEN) | NEVER_SHORT == set(RULES)


def test_nothing_falls_short_in_a_tree_that_keeps_all_rules(whole: Made) -> None:
    assert short(whole.tree()) == set()
    code, out = call("check", str(whole.top))
    assert code == 0
    assert out.startswith("MLPerf check: NOTHING FALLS SHORT. ")
    for rule in RULES:
        assert rule in out


@pytest.mark.parametrize("rule", BROKEN)
def test_exactly_the_rule_that_is_broken_falls_short(
    rule: str, base: Document, made: Made, tmp_path: Path
) -> None:
    broken = BROKEN[rule]
    if broken.edit is not None:
        made = make(tmp_path / "edited", base, edit=broken.edit)
    if broken.tree is not None:
        broken.tree(made)
    tree = made.tree()
    assert short(tree) == {rule, *broken.also}
    text = terminal(check_view(tree_document(tree)["kv_cache"]))
    assert text.startswith("MLPerf check: FALLS SHORT. ")
    assert f"! {rule} ({RULES[rule][0]}): falls short" in text


def test_a_sequence_without_an_option_names_it_as_missing(whole: Made) -> None:
    tree = whole.tree()
    ranks = tuple(rank for rank in tree.ranks if rank.spot.option != 3)
    less = structs.replace(
        tree, ranks=ranks, expected=structs.replace(tree.expected, options=(1, 2))
    )
    assert short(whole.tree()) == set()
    assert short(less) == {"kvcacheFixedWorkloadPerOption"}
    looks = [look for finding in check_tree(less) for look in finding.looks]
    assert any(look.where == "option_3" and "was not run" in look.message for look in looks)


def test_an_option_without_a_latency_has_no_headline(whole: Made) -> None:
    tree = whole.tree()
    ranks = tuple(replace(r, figures={**r.figures, "device_read_p95_ms": None}) for r in tree.ranks)
    assert short(structs.replace(tree, ranks=ranks)) == {
        "kvcacheHeadlineResult", "kvcacheAggregateDeviceLatency"
    }  # fmt: skip


def one_window_for_all_trials(option: int, trial: int, rank: int, document: Document) -> None:
    document["kv_cache"]["started_utc"] = f"2026-07-01T1{option}:00:00+00:00"


def a_trial_run_again(option: int, trial: int, rank: int, document: Document) -> None:
    """In the place of one that was worse."""
    if (option, trial) == (1, 1):
        document["kv_cache"]["started_utc"] = "2026-07-09T09:00:00+00:00"


def on_another_machine(option: int, trial: int, rank: int, document: Document) -> None:
    if trial == 1:
        environment = document["kv_cache"]["environment"]
        environment["hostname"], environment["cpu"]["model"] = "faster", "Faster"


def on_two_drives(option: int, trial: int, rank: int, document: Document) -> None:
    if option == 2:
        own = document["kv_cache"]
        own["environment"]["drives"] *= 2
        own["config"]["tiers"]["cache_dir"] = [f"/{drive}/rank_{rank}" for drive in "ab"]


def a_sixth_of_the_window(option: int, trial: int, rank: int, document: Document) -> None:
    """As if a launcher had ended it."""
    own = document["kv_cache"]
    own["phases_ns"]["measure_end"] -= 250 * 10**9
    headline = own["headline"]
    count = batch_count(50.0, headline["call_s"])
    headline["batches"] = [[50 / count, 0]] * (count - 1) + [[50 / count, headline["bytes"]]]


@pytest.mark.parametrize(
    ("edit", "rule", "says"),
    [
        (one_window_for_all_trials, "trialsInTurn", " s before option_1/trial_0/rank_0"),
        (a_trial_run_again, "trialsInTurn", "before option_1/trial_1/rank_0"),
        (on_another_machine, "identicalSystemConfig", "cpu.model is 'Faster'"),
        (on_two_drives, "identicalSystemConfig", "drive 2 filesystem.type is "),
        (a_sixth_of_the_window, "kvcacheFixedWorkloadPerOption", "was 50 s long, and 300 s are"),
        (setting("config.tiers.free_share", 0.01), "kvcacheClosedImmutable", "free_share is 0.01"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_results_that_are_not_of_one_sequence_on_one_system_fall_short(
    edit: Edit, rule: str, says: str, base: Document, tmp_path: Path
) -> None:
    tree = make(tmp_path / "tree", base, edit=edit).tree()
    assert short(tree) == {rule}
    assert says in judged(tree)[rule].looks[0].message


def test_ranks_of_a_host_may_have_a_drive_each(base: Document, tmp_path: Path) -> None:
    drive = setting("environment.device.name", "nvme1n1", where=lambda o, t, rank: rank == 1)
    assert short(make(tmp_path / "tree", base, edit=drive).tree()) == set()


@pytest.mark.parametrize(
    ("name", "value"), [("rank_count", 16), ("trial_count", 5), ("partial_failure", True)]
)
def test_a_summary_of_more_ranks_or_trials_than_there_are_has_no_headline(
    name: str, value: object, made: Made
) -> None:
    launched(made)
    (path,) = made.place.run.glob("kvcache_run_summary_*.json")
    document = json.loads(path.read_bytes())
    document["options"]["2"][name] = value
    path.write_text(json.dumps(document))
    assert short(made.tree()) == {"kvcacheHeadlineResult"}


def test_an_option_that_follows_too_soon_breaks_the_locks(made: Made) -> None:
    hurried(made)
    assert short(made.tree()) == {"kvcacheClosedSequenceLocks"}


def test_open_may_differ_and_says_how(base: Document, tmp_path: Path) -> None:
    made = make(tmp_path / "tree", base, division="open", edit=BROKEN["kvcacheClosedImmutable"].edit
                or setting("seed", 1))  # fmt: skip
    assert short(made.tree()) == set()
    code = made.place.code
    assert code is not None
    code.rename(made.top / "open" / "Acme" / "code")  # where CLOSED has it
    assert short(made.tree()) == {"requiredSubdirectories", "codeDirectoryContents"}


NEEDS_OURS = {"hashChain", "codeDirectoryContents"}
"""What is not judged in a tree of the launcher: ours, and what is its own checker's."""


def judged(tree: Tree) -> dict[str, TreeFinding]:
    return {finding.rule: finding for finding in check_tree(tree)}


def test_an_open_sequence_of_the_launcher_has_as_many_trials_as_it_was_asked_for(
    base: Document, tmp_path: Path
) -> None:
    made = make(tmp_path / "tree", base, division="open", trials=2)
    (made.place.run / "kvcache_sequence.json").unlink()
    assert {flaw.kind for flaw in made.tree().flaws} == {"missing"}
    name = launched(made, trials=2, inter_option_delay=1, model="tiny-1b").name
    tree = made.tree()
    assert not tree.flaws
    assert (tree.expected.trials, tree.expected.ranks, tree.expected.source) == (2, 2, name)
    found = judged(tree)
    assert short(tree) == set()
    assert {r for r, f in found.items() if f.status is Status.NOT_JUDGED} == NEEDS_OURS
    assert "trials: 2, and 3 are fixed" in found["kvcacheOpenAllowances"].looks[0].message
    assert "mpirun -n 2" in found["kvcacheOpenInvocationNote"].looks[0].message
    assert "/opt/kv/kv-cache.py" in found["codeDirectoryContents"].looks[0].message
    code, out = call("summarize", str(made.top))
    assert (code, "2 trials each" in out) == (0, True)


LOCKS: Sequence[tuple[Mapping[str, object], str | None]] = [
    ({}, None),
    ({"inter_option_delay": 20}, None),  # as 6.6.1 has it
    ({"inter_option_delay": 90, "seed": 42, "trials": 3}, None),
    ({"inter_option_delay": 5}, "option_delay_s: 5, and 90 or 20 is fixed"),
    ({"seed": 7}, "seed: 7, and 42 is fixed"),
    ({"config": "mine.yaml"}, "config: mine.yaml, and none is allowed"),
]


@pytest.mark.parametrize(("arguments", "says"), LOCKS)
def test_the_locks_of_a_closed_sequence_are_judged_by_the_launchers_record(
    arguments: Mapping[str, object], says: str | None, made: Made
) -> None:
    launched(made, **arguments)
    found = judged(made.tree())
    assert short(made.tree()) == (set() if says is None else {"kvcacheClosedSequenceLocks"})
    assert {r for r, f in found.items() if f.status is Status.NOT_JUDGED} == NEEDS_OURS
    looks = [look.message for look in found["kvcacheClosedSequenceLocks"].looks]
    assert says is None or looks == [says]


def test_an_option_of_the_launcher_that_follows_too_soon_breaks_the_locks(
    base: Document, tmp_path: Path
) -> None:
    soon = setting("started_utc", "2026-07-01T11:25:15+00:00", where=lambda *at: at[:2] == (2, 0))
    made = make(tmp_path / "tree", base, edit=soon)
    launched(made, num_processes=2)
    assert short(made.tree()) == {"kvcacheClosedSequenceLocks"}
    (look,) = judged(made.tree())["kvcacheClosedSequenceLocks"].looks
    assert "s after option 1, and 20 s are planned" in look.message


@pytest.mark.parametrize("record", ["ours", "the launcher's"])
def test_an_open_tree_that_was_moved_under_closed_is_judged_as_closed_and_told(
    record: str, base: Document, tmp_path: Path
) -> None:
    edit = setting("config.run.num_users", 10)
    made = make(tmp_path / "tree", base, division="open", edit=edit)
    if record != "ours":
        launched(made, mode="open", num_processes=2)
    assert short(made.tree()) == set()
    (made.top / "open").rename(made.top / "closed")
    assert read_tree(made.top).division == "closed"
    assert short(read_tree(made.top)) == {
        *("divisionOfPath", "kvcacheFixedWorkloadPerOption"),
        *("requiredSubdirectories", "codeDirectoryContents"),  # which lies elsewhere in OPEN
    }


@pytest.mark.parametrize(
    ("arguments", "division"),
    [
        ({"mode": "closed"}, "closed"),
        ({"mode": None, "closed": False}, "open"),  # as launchers before v3.0 have it
        ({"mode": None, "closed": True}, "closed"),
        ({"mode": "whatif"}, None),
    ],
)
def test_a_tree_of_the_launcher_out_of_its_place_has_the_division_of_its_record(
    arguments: Mapping[str, object], division: str | None, made: Made
) -> None:
    launched(made, **arguments)
    moved = made.place.run.rename(made.top / "somewhere")
    assert read_tree(moved).division == division


@pytest.mark.parametrize("text", ["", "{", "[]", '{"args": {}}', '{"benchmark_type": "training"}'])
def test_metadata_that_is_not_of_this_benchmark_is_told(text: str, made: Made) -> None:
    launched(made).write_text(text)
    assert short(made.tree()) == {"mlpstorageGeneratesHierarchy"}


@pytest.mark.parametrize(
    ("engine", "fsync", "passes"),
    [
        ("direct", "object", True),
        ("uring", "object", True),
        ("buffered", "object", True),  # --personality reference
        ("mmap", "object", False),
        ("direct", "batch", False),
        ("direct", "never", False),
    ],
)
def test_io_that_is_durable_and_cold_is_what_6_4_2_is_for(
    engine: str, fsync: str, passes: bool, whole: Made
) -> None:
    tree = whole.tree()
    store = {"engine": engine, "write_engine": engine, "layout": "file"}
    ranks = tuple(replace(rank, storage=store, fsync=fsync) for rank in tree.ranks)
    found = judged(structs.replace(tree, ranks=ranks))["kvcachePosixIoModel"]
    assert found.status is (Status.PASS if passes else Status.INVALID)
    assert not passes or "device write latency is create, write" in found.looks[-1].message


SUMS = {f"kvcacheAggregate{what}" for what in ("Bandwidth", "DeviceLatency", "Throughput")}
"""What the recorded sums fall short of, where a test changed what they are of."""


def test_trials_that_differ_far_are_told(whole: Made) -> None:
    tree = whole.tree()

    def scaled(by: float) -> set[str]:
        ranks = tuple(
            replace(r, figures={k: (v or 0) * (by if r.spot.trial else 1)
                                for k, v in r.figures.items()})
            for r in tree.ranks
        )  # fmt: skip
        return short(structs.replace(tree, ranks=ranks))

    assert scaled(1.1) == SUMS
    assert scaled(1.3) == {"trialSpread", *SUMS}


def test_the_launchers_own_file_at_the_top_is_no_stranger(made: Made) -> None:
    (made.top / "mlperf-results.yaml").write_text("orgname: Acme")
    assert short(made.tree()) == set()


def test_names_of_later_rules_are_not_judged_and_the_edition_is_said(made: Made) -> None:
    (made.top / "closed" / "Acme" / "code-images").mkdir()
    found = judged(made.tree())["requiredSubdirectories"]
    assert found.status is Status.NOT_JUDGED
    assert "v3.0" in found.looks[0].message
    assert "By MLPerf Storage v3.0 (" in call("check", str(made.top))[1]
    assert json.loads(call("check", str(made.top), "--json")[1])["edition"].startswith("MLPerf")


def test_the_values_of_the_references_own_file_are_no_change(
    base: Document, tmp_path: Path
) -> None:
    def published(option: int, trial: int, rank: int, document: Document) -> None:
        config = document["kv_cache"]["config"]
        config["gpu_backend"]["memory_fraction"] = 0.9
        config["validation_limits"] |= {"max_gpu_memory_gb": 1024.0, "max_cpu_memory_gb": 16384.0}
        if option < 3:
            config["model_configs"] = {"llama3.1-8b": {"num_layers": layers, "hidden_dim": 4096}}

    layers = 32
    assert short(make(tmp_path / "a", base, edit=published).tree()) == set()
    layers = 2
    changed = short(make(tmp_path / "b", base, edit=published).tree())
    assert changed == {"kvcacheClosedImmutable"}


def test_a_rank_whose_results_lie_on_the_caches_file_system_is_told(
    base: Document, tmp_path: Path
) -> None:
    shared = setting("environment.same_filesystem", True, where=lambda *at: at == (2, 1, 0))
    made = make(tmp_path / "tree", base, edit=shared)
    assert short(made.tree()) == {"kvcachePosixCacheDir"}
    launched(made, num_processes=2)
    assert short(made.tree()) == {"kvcachePosixCacheDir"}


ABOUT_EACH_RESULT = (
    *("kvcacheFixedWorkloadPerOption", "kvcacheAutoscalingProhibited", "kvcacheClientDefinition"),
    *("kvcacheScaleUpModel", "kvcachePerClientIsolation", "kvcacheLatencyValidity"),
    *("kvcacheObjectViaGateway", "kvcacheObjectLatencyScope", "kvcacheClosedImmutable"),
    *("identicalSystemConfig", "passport"),
)


@pytest.mark.parametrize("left", [0, 1])
def test_no_rule_about_results_passes_on_results_that_nobody_could_read(
    left: int, made: Made
) -> None:
    for path in sorted(made.place.run.rglob("kvcache_results_*.json"))[left:]:
        path.write_bytes(b"")
    made.seal()
    found = judged(made.tree())
    passed = {rule for rule, finding in found.items() if finding.status is Status.PASS}
    assert not passed & {*ABOUT_EACH_RESULT, "completeness", "intactResults", "submittable"}
    assert "kvcacheSharedResultsDir" not in passed
    assert found["passport"].status is Status.NOT_JUDGED
    says = found["passport"].looks[0].message
    assert says == ("only 1 of 18 results are there and can be judged" if left
                    else "no rank's result can be read")  # fmt: skip


@pytest.mark.parametrize("what", ["no time", "no trials"])
def test_delays_that_the_record_does_not_tell_are_not_judged(what: str, made: Made) -> None:
    if what == "no time":
        made.own["trials"][2]["ended_utc"] = "some time"
    else:
        del made.own["trials"][3:]
    made.seal()
    found = judged(made.tree())
    assert found["kvcacheClosedSequenceLocks"].status is Status.NOT_JUDGED


def test_a_file_system_that_is_not_recorded_is_not_judged(base: Document, tmp_path: Path) -> None:
    def unknown(option: int, trial: int, rank: int, document: Document) -> None:
        document["kv_cache"]["environment"].pop("filesystem", None)

    made = make(tmp_path / "tree", base, edit=unknown)
    found = judged(made.tree())
    assert found["kvcacheObjectLatencyScope"].status is Status.NOT_JUDGED


@pytest.mark.parametrize("options", [[], [1, 1, 2], [2, 1, 3]])
def test_a_record_of_no_option_or_of_one_twice_is_no_record(options: Any, made: Made) -> None:
    made.own["config"]["options"] = options
    made.seal()
    with pytest.raises(UsageError, match="is of another schema"):
        made.tree()


# --- told --------------------------------------------------------------------------------------


def test_a_summary_says_what_is_not_as_in_closed(made: Made) -> None:
    made.own["deviations"] = [{"rule": "kvcacheClosedImmutable", "message": "--model tiny-1b"}]
    made.seal()
    for form in ([], ["--markdown"], ["--json"]):
        assert (
            "kvcacheClosedImmutable: --model tiny-1b" in call("summarize", str(made.top), *form)[1]
        )


def test_what_a_passport_says_against_the_numbers_stands_beside_them(
    base: Document, tmp_path: Path
) -> None:
    made = make(tmp_path / "tree", base, edit=BROKEN["passport"].edit or setting("seed", 1))
    _, text = call("summarize", str(made.top))
    _, markdown = call("summarize", str(made.top), "--markdown")
    assert "not valid by their passports: " in text
    assert "not valid by their passports: " in markdown


def test_the_summary_is_told_as_json_and_as_markdown(whole: Made) -> None:
    code, out = call("summarize", str(whole.top), "--json")
    summary = json.loads(out)
    assert code == 0
    assert summary["complete"]
    assert summary["schema"] == "kv-cache-mlperf-summary/2"
    assert summary["options"]["2"]["pooled_ms"]["device_read"]["count"] > 0
    _, text = call("summarize", str(whole.top), "--markdown")
    assert text.startswith("<!-- kv-cache report")
    assert text.count("\n| ") >= 10
    _, found = call("check", str(whole.top), "--json")
    assert {row["rule"] for row in json.loads(found)["rules"]} == set(RULES)


def test_a_tree_is_reported_in_every_form_beside_it(whole: Made, tmp_path: Path) -> None:
    """Not in it: a file more in a sequence would be one that was added."""
    assert report([str(whole.top)]) == 0
    page = whole.top.with_name(f"{whole.top.name}.html").read_text()
    for text in ("MLPerf Storage KV cache", "kvcacheFixedWorkloadPerOption", "1 host"):
        assert text in page
    for suffix in ("md", "xlsx"):
        assert report([str(whole.top), "-o", str(tmp_path / f"R.{suffix}")]) == 0
    assert "| 1 Max Storage Stress | complete |" in (tmp_path / "R.md").read_text()
    assert short(whole.tree()) == set()
    pytest.importorskip("matplotlib")
    assert plot([str(whole.top), "-o", str(tmp_path / "R.svg")]) == 0


def nothing_there(top: Path) -> Path:
    return top / "nowhere"


def a_file(top: Path) -> Path:
    return next(top.rglob("*.json"))


def no_tree(top: Path) -> Path:
    (top / "empty").mkdir()
    return top / "empty"


def two_sequences(top: Path) -> Path:
    run = next(top.rglob("run"))
    shutil.copytree(run / STAMP, run / "20260702_120000")
    return top


def record_cut(top: Path) -> Path:
    path = next(top.rglob("kvcache_sequence.json"))
    path.write_bytes(path.read_bytes()[:100])
    return top


def record_of_nothing(top: Path) -> Path:
    next(top.rglob("kvcache_sequence.json")).write_text('{"kv_cache": {"schema": "x"}}')
    return top


@pytest.mark.parametrize(
    "spoil",
    [nothing_there, a_file, no_tree, two_sequences, record_cut, record_of_nothing],
    ids=lambda spoil: spoil.__name__,
)
def test_what_is_no_tree_is_refused_in_a_sentence(
    spoil: Callable[[Path], Path], made: Made
) -> None:
    path = spoil(made.top)
    for command in ("check", "summarize"):
        with pytest.raises(UsageError, match=r"[;:] (name|give) "):
            main([command, str(path)])
