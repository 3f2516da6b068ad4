"""When policies have an order, where they fail, what blocks of fewer bits weigh, and how requests
become accesses."""

import inspect
import re

import numpy as np
import pytest

from benchmarks.order import equal_stretches
from kv_cache.cli import main
from kv_cache.core.block import Block, content_key
from kv_cache.core.kinds import Qos
from kv_cache.core.request import Request
from kv_cache.core.residency import Residency
from kv_cache.core.seed import Seed
from kv_cache.lab.accesses import BATCHES, gathered, held_sizes
from kv_cache.lab.bounds import leading
from kv_cache.lab.judge import (
    PolicyFailure,
    Shares,
    dominated,
    failures,
    family_of,
    policy_order,
)
from kv_cache.lab.study import study
from kv_cache.lab.variants import Named, PolicyVariant
from kv_cache.metrics.order import compared
from kv_cache.policy.eviction import EVICTION


def shares(policy: str, *values: float) -> Shares:
    return Shares(policy=policy, mean=sum(values) / len(values), values=values)


def request(*names: str, once: bool = False, nbytes: int = 8) -> Request:
    return Request(
        request_id=0, intended_ns=0, user="", conversation="", turn=0, qos=Qos.BATCH, priority=0,
        prompt_tokens=1, output_tokens=0, once=once,
        blocks=tuple(Block(content_key(name), 1, nbytes) for name in names),
    )  # fmt: skip


# --- order -----------------------------------------------------------------------------------


def shown_behind(rows: list[Shares], *, seeds: bool = True) -> list[str] | None:
    """Whom the best one is shown to be better than; None without an order."""
    leads = policy_order(rows, seeds=seeds).leads
    return None if leads is None else [name for name, lead in leads.items() if lead and lead.shown]


def test_policies_that_differ_in_no_way_but_chance_are_not_told_apart() -> None:
    rows = [
        shares("a", 0.10, 0.11, 0.12), shares("b", 0.50, 0.51, 0.52), shares("c", 0.51, 0.5, 0.51)
    ]  # fmt: skip
    order = policy_order(rows, seeds=True)
    assert order.best == "b"
    assert shown_behind(rows) == ["a"]


def test_two_seeds_and_one_policy_give_no_order() -> None:
    few = [shares("a", 0.1, 0.1), shares("b", 0.9, 0.9)]
    assert policy_order(few, seeds=True).why == "2 seeds are fewer than 3"
    assert shown_behind(few) is None
    assert shown_behind([shares("a", 0.1, 0.1, 0.1)]) is None
    assert shown_behind([]) is None


def test_all_that_are_as_good_as_the_best_are_called_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["lab", "--pattern", "rag_burst", "--seeds", "12", "--block-kib", "256"]
    command += ["--policies", "fifo,lru,leaf-first"]
    assert main([*command, "--capacities", "25%"]) == 0
    text = capsys.readouterr().out
    assert "lru, leaf-first find most of the 3 policies" in text
    assert "and are shown to be better than the other one" in text
    assert re.findall(r"^(\S+) +best$", text, re.MULTILINE) == ["lru", "leaf-first"]
    tiers = ["--tiers", "a=8MiB:1us:1GB/s,b=30MiB:10us:1GB/s"]
    assert main([*command, *tiers]) == 0
    text = capsys.readouterr().out
    assert "With lru or leaf-first, an access waits " in text
    assert "and shown to be better than the other one" in text
    assert re.findall(r"^(\S+) .* best$", text, re.MULTILINE) == ["lru", "leaf-first"]
    both = [*command, *tiers, "--pattern", "rag_burst,periodic_reuse"]
    assert main([*both[:1], *both[3:]]) == 0
    assert "With lru or leaf-first, accesses wait the least, on average, in 2 of 2 tables" in (
        capsys.readouterr().out
    )


def test_nobody_is_best_where_all_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for found in (0.0, 0.3):
        order = policy_order([shares(name, found, found, found) for name in "ab"], seeds=True)
        assert (order.best, order.why) == (None, "all find the same")
    command = ["lab", "--pattern", "periodic_reuse", "--seeds", "3", "--policies", "lru,fifo"]
    assert main([*command, "--capacities", "1blocks,8blocks"]) == 0
    assert "No order at 1blocks, 8blocks, as all find the same." in capsys.readouterr().out
    assert main([*command, "--tiers", "gpu=8GB:20us:80MB/s,host=9GB:400us:8MB/s"]) == 0
    text = capsys.readouterr().out
    assert "as all policies here do" in text
    assert "behind" not in text


@pytest.mark.parametrize("seeds", [True, False])
def test_a_difference_that_is_sure_but_small_is_none(seeds: bool) -> None:
    rows = [shares("a", *[0.5009] * 6), shares("b", *[0.5] * 6)]
    assert shown_behind(rows, seeds=seeds) == []


@pytest.mark.parametrize("seeds", [True, False])
def test_what_moves_both_alike_hides_no_difference(seeds: bool) -> None:
    worse = [0.1, 0.5, 0.2, 0.9, 0.3, 0.4, 0.8, 0.7, 0.6, 0.1]
    a = shares("a", *(value + 0.02 + 0.001 * (place % 3) for place, value in enumerate(worse)))
    b = shares("b", *worse)
    assert shown_behind([b, a], seeds=seeds) == ["b"]


def test_a_difference_that_one_stretch_alone_makes_is_not_shown() -> None:
    b = shares("b", *[0.5] * BATCHES)
    a = shares("a", *[0.5] * (BATCHES - 1), 1.0)
    assert shown_behind([a, b], seeds=False) == []


def test_a_policy_that_warms_up_slowly_hides_no_difference_of_others() -> None:
    """Cases of an arm with a trend beside two that differ by 13 points throughout."""
    rng = np.random.default_rng(11)
    noise = rng.normal(0, 0.01, (3, BATCHES))
    rows = [
        shares("best", *(0.5 + noise[0])),
        shares("worse", *(0.37 + noise[1])),
        *(
            shares(f"slow {each}", *(0.2 + each / 50 + np.linspace(0, 0.2, BATCHES) + noise[2]))
            for each in range(4)
        ),
    ]
    assert "worse" in (shown_behind(rows, seeds=False) or [])


def test_stretches_in_which_a_cache_fills_are_not_judged() -> None:
    """In stretches of ten the fifty-fifth block comes in the sixth, and no five hundred do."""
    names = [*range(120), *([*range(80, 120)] * 5)[:180]]
    accesses = gathered([request(str(name)) for name in names])
    study_ = study(accesses, [PolicyVariant(Named("lru", ()))], [8 * 55, 8 * 500], seed=Seed(1))
    assert list(study_.filling) == [6, BATCHES // 2]


@pytest.mark.parametrize("alike", [pytest.param(0.0, marks=pytest.mark.nightly), 0.6])
def test_fifteen_equal_policies_are_seldom_put_in_an_order(alike: float) -> None:
    """Their stretches differ by chance alone, neighbours more or less alike."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(100):
        rows = []
        for name in range(15):
            noise = [0.0]
            for draw in rng.normal(0, 0.02, BATCHES + 20):
                noise.append(alike * noise[-1] + draw)
            rows.append(shares(str(name), *(0.5 + each for each in noise[-BATCHES:])))
        wrong += bool(family_of(rows, seeds=False).shown)
    assert wrong <= 10


@pytest.mark.parametrize(
    ("compulsory", "misses", "none"), [(89, 100, False), (90, 100, True), (0, 0, True)]
)
def test_first_accesses_of_nine_in_ten_misses_forbid_an_order(
    compulsory: int, misses: int, none: bool
) -> None:
    assert (dominated(compulsory, misses) is not None) is none


@pytest.mark.parametrize("alike", [0.6, 0.9])
def test_two_equal_variants_with_few_stretches_are_seldom_told_apart(alike: float) -> None:
    """20 stretches whose neighbours correlate by 0.6 gave 11 false differences of 100."""
    rng = np.random.default_rng(5)
    wrong = sum(
        bool(compared(equal_stretches(rng, 2, 20, alike), in_order=True).shown) for _ in range(300)
    )
    assert wrong <= 0.08 * 300


# --- failures --------------------------------------------------------------------------------


def test_failures_are_told_by_kind() -> None:
    table = {
        "1%": [shares("lru", 0.3, 0.3), shares("fifo", 0.2, 0.2), shares("x", 0.0, 0.0)],
        "2%": [shares("lru", 0.4, 0.4), shares("fifo", 0.1, 0.1), shares("random", 0.2, 0.2)],
    }
    found = failures(table, {"1%": 0.5, "2%": 0.5}, seeds=True)
    assert [(each.policy, each.capacity, each.kind) for each in found] == [
        ("fifo", "1%", "below-lru"),
        ("x", "1%", "below-fifo"),
        ("x", "1%", "below-lru"),
        ("x", "1%", "no-hits"),
        ("fifo", "2%", "below-random"),
        ("fifo", "2%", "below-lru"),
        ("random", "2%", "below-lru"),
        ("fifo", "2%", "more-room-fewer-hits"),
    ]
    assert found[-1] == PolicyFailure(
        policy="fifo", capacity="2%", kind="more-room-fewer-hits", hit_ratio=0.1, against=0.2
    )


def test_finding_nothing_is_no_failure_where_min_finds_nothing_either() -> None:
    table = {"1%": [shares("lru", 0.0, 0.0)]}
    assert failures(table, {"1%": 0.009}, seeds=False) == []


# --- accesses --------------------------------------------------------------------------------


def test_requests_become_numbers_by_first_appearance() -> None:
    given = gathered(
        [
            request("a", "b"),
            request(),
            request("b", "c"),
            request("a", "a", once=True),
            request("a"),
        ]
    )
    assert given.blocks.tolist() == [0, 1, 1, 2, 3, 4, 0]
    assert given.begins.tolist() == [0, 2, 4, 6]
    assert given.sizes.tolist() == [8] * 5
    assert given.first().tolist() == [True, True, False, True, True, True, False]
    assert (given.lookups, given.unique, given.requests, given.alone) == (7, 5, 4, False)


def test_leading_hits_end_at_the_first_miss_of_each_request() -> None:
    given = gathered([request("a", "b"), request("a", "c", "b"), request("b", "a")])
    missed = given.first()
    assert missed.tolist() == [True, True, False, True, False, False, False]
    assert leading(given, missed).tolist() == [False, False, True, False, False, True, True]


def test_a_size_is_that_of_the_first_access_and_one_for_all_or_none() -> None:
    same, other = gathered([request("a", "b")]), gathered([request("a"), request("b", nbytes=9)])
    assert (same.size, other.size) == (8, None)
    assert gathered([]).size is None
    assert gathered([request("a"), request("a", nbytes=9)]).sizes.tolist() == [8]


def test_batches_add_up_and_no_part_is_lost_in_a_long_sequence() -> None:
    """Several parts, each of whole requests, one of them longer than a part."""
    names = [str(number % 90_000) for number in range(140_000)]
    given = gathered(
        [request(*names[:3]), request(*names[3:80_000]), *(request(*names[at : at + 500])
         for at in range(80_000, 140_000, 500))]
    )  # fmt: skip
    found = study(given, [PolicyVariant(Named("lru"))], [50_000 * 8, 200_000 * 8], seed=Seed(1))
    assert sum(len(part.blocks) for part in given.parts()) == given.lookups == 140_000
    for row in (found.unlimited, *found.rows):
        assert len(row.blocks.batches) == BATCHES
        assert sum(row.blocks.batches) == row.blocks.hits
        assert row.blocks.hit_bytes == 8 * row.blocks.hits
    assert found.rows[-1].blocks.hits == found.unlimited.blocks.hits == 50_000
    assert found.rows[0].policy == "min"
    assert found.rows[1].blocks.hits == 0


# --- residency -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "group", "own_bits", "nbytes"),
    [
        ("fp16", 0, 16, 1024), ("fp8", 0, 16, 512), ("int8", 0, 16, 512), ("int4", 0, 16, 256),
        ("int2", 0, 16, 128), ("fp16", 0, 32, 512), ("fp16", 64, 16, 1024),
        ("int4", 64, 16, 256 + 8 * 4), ("int2", 100, 16, 128 + 6 * 4),
        ("4fp16+28int4", 0, 16, 128 + 224), ("1fp16+2int8", 0, 16, 340 + 342),
        ("1fp16+1int4", 64, 16, 512 + 128 + 4 * 4),
    ],
)  # fmt: skip
def test_a_block_of_fewer_bits_weighs_its_elements_and_its_scales(
    name: str, group: int, own_bits: int, nbytes: int
) -> None:
    held = Residency(name=name, group=group)
    assert held_sizes(np.array([1024, 1024]), held, own_bits).tolist() == [nbytes, nbytes]


def test_widening_costs_what_the_caller_says_or_is_not_known() -> None:
    assert Residency(name="int4", costs_ns={"int4": 0.5}).seconds(4_000_000_000) == 2.0
    parts = Residency(name="1fp16+4int4", costs_ns={"int4": 0.5})  # half of the bytes each
    assert parts.seconds(4_000_000_000) == 1.0
    assert (parts.bits, parts.scaled) == (6.4, True)
    assert Residency(name="1fp16+4int4", costs_ns={"int2": 1.0}).seconds(1) is None
    assert Residency(name="int4").seconds(4_000_000_000) is None


@pytest.mark.parametrize("name", EVICTION)
def test_the_numbers_of_a_policy_are_its_arguments_as_they_are_if_nobody_changes_them(
    name: str,
) -> None:
    arguments = inspect.signature(EVICTION[name]).parameters.values()
    usual = [(each.name, each.default) for each in arguments if each.kind is each.KEYWORD_ONLY]
    assert list(getattr(EVICTION[name], "NUMBERS")) == usual  # noqa: B009
