"""`kv-cache.py lab` as a user starts it, and the known answers of the real trace."""

import csv
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from kv_cache.app.lab import unless_stopped
from kv_cache.bench.interrupts import interrupts
from kv_cache.cli import main
from kv_cache.core.seed import Seed
from kv_cache.lab.patterns import PATTERNS
from kv_cache.lab.variants import USUAL
from kv_cache.policy.eviction import EVICTION
from kv_cache.result.run import MisshapenError
from kv_cache.view import units
from kv_cache.view.lab import lab_view
from kv_cache.view.markdown import markdown
from kv_cache.view.parts import Figure, ShownColumn
from kv_cache.view.terminal import terminal
from kv_cache.workload.samples.hashed_traces import mooncake_lines
from tests.cli import ONE_SIGNAL, PATIENCE_S, PROGRAM, ROOT, start, wait_until_at_work
from tests.traces import real_trace


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{line}\n" for line in mooncake_lines(Seed(3), 300))
    (tmp_path / "mooncake.jsonl").write_text(lines)
    return tmp_path


def lab(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """The document's own section."""
    capsys.readouterr()
    assert main(["lab", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["kv_cache"]


def entries(own: Any, capacity: int = 0, table: int = 0, case: int = 0) -> dict[str, Any]:
    """By policy."""
    found = own["cases"][case]["tables"][table]["columns"][capacity]["entries"]
    return {entry["policy"]: entry for entry in found}


# --- known answers ---------------------------------------------------------------------------


def test_mooncake_has_its_known_answers(capsys: pytest.CaptureFixture[str]) -> None:
    path = real_trace("mooncake_conversation_6000.jsonl")
    own = lab(capsys, path, "--capacities", "9971blocks,10%", "--policies", "lru")
    base = own["cases"][0]["base"]
    assert (base["lookups"], base["unique"], base["compulsory"]) == (152_537, 99_716, 99_716)
    for capacity in (0, 1):
        found = entries(own, capacity)
        assert found["unlimited"]["blocks"]["hits"] == 52_821
        assert found["unlimited"]["prefix"]["hits"] == 52_821
        assert found["lru"]["blocks"]["hits"] == 31_657
        evicted = found["lru"]["blocks"]["evictions"]
        assert evicted == 152_537 - 31_657 - 9_971


# --- one trace -------------------------------------------------------------------------------


def test_every_table_has_its_bounds_and_no_policy_is_above_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "mooncake.jsonl", "--refusing")
    for capacity in range(len(own["capacities"])):
        found = entries(own, capacity)
        assert list(found) == ["unlimited", "min", "min-refusing", *USUAL]
        bounds = [found[name]["blocks"]["hits"] for name in ("unlimited", "min-refusing", "min")]
        assert bounds == sorted(bounds, reverse=True)
        for policy in USUAL:
            assert found[policy]["blocks"]["hits"] <= bounds[-1]
            assert found[policy]["prefix"]["hits"] <= found["unlimited"]["prefix"]["hits"]


def test_rows_outside_of_the_window_of_a_trace_are_not_among_those_it_was_asked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = map(json.loads, Path("mooncake.jsonl").read_text().splitlines())
    inside = sum(10_000 <= row["timestamp"] < 40_000 for row in rows)
    assert 0 < inside < 200
    words = ["lab", "mooncake.jsonl", "--policies", "lru", "--trace-window", "10:40"]
    for more in ([], ["--requests", "200"]):
        assert main([*words, *more]) == 0
        assert f": {inside} of 300 rows," in capsys.readouterr().out


def test_the_summary_says_which_rule_is_which_and_its_tables_fit_a_screen(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "mooncake.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 76
    heads = [line for line in lines if line.startswith("hits by ")]
    assert [line[:14].rstrip(" ,") for line in heads] == ["hits by blocks", "hits by prefix"]
    assert max(map(len, heads)) <= 80
    for name in ("unlimited (bound)", *USUAL):
        tables = 2 if name == "unlimited (bound)" else 3
        assert sum(line.startswith(f"{name} ") for line in lines) == tables, name
    assert sum(line.startswith("min (bound) ") for line in lines) == 1, (
        "it is not counted by prefix"
    )


def test_a_hit_ratio_is_the_same_text_in_every_form(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(
        capsys, "mooncake.jsonl", "--policies", "lru,arc", "--capacities", "5%,10%", "-o", "R.json"
    )
    found = entries(own, 1)["arc"]["blocks"]
    golden = ShownColumn("hits", units.PERCENT).text(found["hit_ratio"])
    view = lab_view(own)
    assert re.search(rf"\narc .* {re.escape(golden)}", terminal(view))
    assert golden in markdown(view)
    drawn = [part for part in view.pictures() if isinstance(part, Figure)]
    assert [each.title for each in drawn] == ["misses by blocks", "misses by prefix"]
    assert found["miss_ratio"] in [point.y for point in drawn[0].points()]
    for suffix in ("html", "md", "xlsx"):
        assert main(["report", "R.json", "-o", f"R.{suffix}"]) == 0
    assert golden in (here / "R.html").read_text()
    book = zipfile.ZipFile(here / "R.xlsx")
    sheets = [book.read(name) for name in book.namelist() if "worksheets" in name]
    assert any(f"{100 * found['hit_ratio']:.15g}"[:12].encode() in sheet for sheet in sheets)


def test_the_sentence_is_of_the_middle_capacity_and_says_whom_the_best_is_shown_to_beat(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--pattern", "adversarial_burst", "--policies", "lru,fifo,s3-fifo"]
    view = lab_view(lab(capsys, *words))
    assert view.sentence.startswith("With 25% (46.1 MiB) s3-fifo finds most of the 3 policies, ")
    assert "is shown to be better than all others; without limits it is" in view.sentence
    view = lab_view(lab(capsys, *words, "--capacities", "98%"))
    assert "and is not shown to be better than any" in view.sentence
    equal = lab_view(lab(capsys, *words, "--capacities", "100%")).sentence
    assert "lru finds 71.16 % of the blocks looked up, as each policy here; without" in equal
    alone = lab_view(lab(capsys, *words[:-1], "lru", "--capacities", "100%")).sentence
    assert "lru finds 71.16 % of the blocks looked up; without" in alone


def test_cases_have_a_figure_each_and_their_intervals(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--pattern", "rag_burst,periodic_reuse", "--seeds", 3, "--policies", "lru")
    view = lab_view(own)
    assert view.sentence == "1 policy on 2 patterns at 10%, 25%, 50%."
    drawn = [part for part in view.pictures() if isinstance(part, Figure)]
    assert [each.title for each in drawn] == [
        "rag_burst: misses by blocks", "periodic_reuse: misses by blocks"
    ]  # fmt: skip
    found = entries(own)["lru"]["blocks"]
    line = next(line for line in drawn[0].lines if line.name == "lru")
    missed = line.points[0].interval
    assert missed is not None
    assert missed.low == pytest.approx(1 - found["interval"]["high"])
    assert [line.name for line in drawn[0].lines if line.muted] == ["unlimited", "min"]


def test_a_study_that_lacks_a_table_or_an_entry_says_where(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--pattern", "rag_burst", "--seeds", 3, "--policies", "lru")
    short = deepcopy(own)
    short["cases"][0]["tables"][0]["columns"][1]["entries"].pop()
    with pytest.raises(MisshapenError, match="a table of own has columns of different entries"):
        lab_view(short)
    short = deepcopy(own)
    short["cases"][0]["tables"].pop()
    with pytest.raises(MisshapenError, match="case rag_burst has not as many tables as there are"):
        lab_view(short)


def test_a_document_rows_and_a_picture_are_written_and_the_picture_can_be_drawn_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["lab", "mooncake.jsonl", "-o", "lab.json", "--csv", "lab.csv", "--plot", "lab.svg"]
    words += ["--policies", "lru,arc"]
    assert main(words) == 0
    assert main(words) == 0  # over its own files
    first = (here / "lab.svg").read_bytes()
    assert main(["plot", "lab.json", "--output", "again.svg"]) == 0
    assert (here / "again.svg").read_bytes() == first
    rows = list(csv.DictReader((here / "lab.csv").read_text().splitlines()))
    own = json.loads((here / "lab.json").read_text())["kv_cache"]
    found = entries(own, 2)["lru"]
    row = next(
        row for row in rows
        if (row["policy"], row["rule"], row["capacity"]) == ("lru", "prefix", "10%")
    )  # fmt: skip
    assert float(row["hits"]) == found["prefix"]["hits"]
    assert float(row["hit_ratio"]) == found["prefix"]["hit_ratio"]


def test_a_document_that_was_changed_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab(capsys, "mooncake.jsonl", "--policies", "lru", "--capacities", "10%", "-o", "lab.json")
    assert main(["verify", "lab.json"]) == 0
    assert "lab with the same words does" in capsys.readouterr().out
    found = json.loads((here / "lab.json").read_text())
    found["kv_cache"]["policies"] = ["arc"]
    (here / "lab.json").write_text(json.dumps(found))
    assert main(["verify", "lab.json"]) == 2


def test_objects_of_different_sizes_have_a_limit_beside_min(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--users", "--semantics", "mlperf", "--requests", 500, "--capacities", "5%")
    found = entries(own)
    assert list(found)[:3] == ["unlimited", "limit", "min"]
    assert found["limit"]["blocks"]["at_most"]
    assert [found[name]["kind"] for name in ("limit", "min", "lru")] == ["bound", "rule", "policy"]
    for name in ("min", *USUAL):
        for figure in ("hit_ratio", "byte_hit_ratio"):
            assert found[name]["blocks"][figure] <= found["limit"]["blocks"][figure]


def test_fewer_bits_find_what_as_much_more_room_finds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lab(
        capsys, "mooncake.jsonl", "--capacities", "100blocks", "--residency", "fp16,int4",
        "--dequant", "int4=0.5", "--dequant-source", "a test",
    )  # fmt: skip
    larger = lab(capsys, "mooncake.jsonl", "--capacities", "100blocks,400blocks")
    for table in (0, 1):
        for policy in ("min", *USUAL):
            one = entries(held, table=table)[policy]["blocks"]
            two = entries(larger, table)[policy]["blocks"]
            assert (one["hits"], one["byte_hit_ratio"]) == (two["hits"], two["byte_hit_ratio"])
    whole, part = (entries(held, table=table)["lru"]["blocks"] for table in (0, 1))
    assert whole["dequant_s"] is None
    assert part["dequant_s"] == pytest.approx(part["loaded_bytes"] * 0.5e-9)
    assert [each["ratio"] for each in held["residencies"]] == [1.0, 0.25]
    assert held["residencies"][1]["cost_source"] == "a test"


def test_scales_take_room_and_a_cost_without_a_source_is_called_assumed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mooncake.jsonl", "--residency", "int2", "--capacities", "50blocks")
    bare = entries(lab(capsys, *words))["lru"]["blocks"]
    own = lab(capsys, *words, "--quant-group", 64, "--dequant", "int2=1")
    scaled = entries(own)["lru"]["blocks"]
    assert own["residencies"][0]["cost_source"] == "assumed, no source given"
    assert scaled["hits"] < bare["hits"]


def test_each_policy_stands_behind_each_admission_policy_and_below_min_that_may_refuse(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(
        capsys, "mooncake.jsonl", "--policies", "lru,sieve", "--capacities", "5%,25%",
        "--admission", "always,second-hit,second-hit:memory=16,frequency,depth:max_depth=8,size",
    )  # fmt: skip
    for capacity in (0, 1):
        found = entries(own, capacity)
        assert list(found) == [
            "unlimited", "min", "min-refusing", "lru", "sieve", "lru+second-hit",
            "sieve+second-hit", "lru+second-hit:memory=16", "sieve+second-hit:memory=16",
            "lru+frequency", "sieve+frequency", "lru+depth:max_depth=8", "sieve+depth:max_depth=8",
            "lru+size", "sieve+size",
        ]  # fmt: skip
        for name, entry in found.items():
            assert entry["blocks"]["hits"] <= found["unlimited"]["blocks"]["hits"]
            if name != "unlimited":
                assert entry["blocks"]["hits"] <= found["min-refusing"]["blocks"]["hits"]
        assert found["lru"]["blocks"]["refused"] == 0 < found["lru+second-hit"]["blocks"]["refused"]
        assert found["lru+size"]["blocks"]["hits"] == 0, "blocks of 64 MiB are above 16 MiB"


def test_a_policy_can_be_held_against_itself_with_other_numbers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightgbm", reason="the extra learned")
    own = lab(
        capsys, "mooncake.jsonl", "--capacities", "10%",
        "--policies", "lru,learned:first_training=200,learned:sample=4:first_training=200",
    )  # fmt: skip
    found = entries(own)
    assert list(found)[2:] == [
        "lru", "learned:first_training=200", "learned:sample=4:first_training=200"
    ]  # fmt: skip
    one, two = (found[name]["blocks"]["hits"] for name in list(found)[3:])
    assert one != two


def test_regret_can_be_taken_out_of_regret_aware_and_changes_what_is_found(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("regret-aware", "regret-aware:regret_weight=0", "regret-aware:regret_weight=6")
    own = lab(capsys, "--pattern", "adversarial_burst", "--policies", ",".join(names))
    found = entries(own, capacity=1)
    assert list(found)[2:] == list(names)
    usual, without, same = (found[name]["blocks"]["ratios"] for name in names)
    assert usual == same != without


def numbers_of(name: str) -> dict[str, Any]:
    told = inspect.signature(EVICTION[name]).parameters.values()
    return {each.name: each.default for each in told if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("name", [n for n in EVICTION if n != "learned" and numbers_of(n)])
def test_the_numbers_of_a_policy_given_as_they_are_change_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    said = ":".join((name, *(f"{key}={value}" for key, value in numbers_of(name).items())))
    own = lab(capsys, "mooncake.jsonl", "--capacities", "5%", "--policies", f"{name},{said}")
    plain, given = [entry["blocks"] for entry in entries(own).values()][-2:]
    assert plain == given


@pytest.mark.parametrize(
    ("words", "source", "replays"),
    [
        (["mooncake.jsonl", "--requests", "9"], "first 9 requests of trace mooncake.jsonl", "10"),
        (["--pattern", "rag_burst", "--seeds", "3"], "rag_burst, with 3 seeds each", "18"),
    ],
)
def test_a_dry_run_says_what_would_be_replayed_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], source: str, replays: str
) -> None:
    assert main(["lab", *words, "--policies", "lru,fifo", "--dry-run", "-o", "L.json"]) == 0
    out = capsys.readouterr().out
    assert source in out
    assert f"replays  {replays}\n" in out
    assert not (here / "L.json").exists()


# --- patterns --------------------------------------------------------------------------------


def test_patterns_have_means_and_intervals_over_their_seeds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--pattern", "all", "--seeds", 3)
    assert [case["name"] for case in own["cases"]] == list(PATTERNS)
    for place, case in enumerate(own["cases"]):
        assert case["seeds"] == 3
        for capacity in range(3):
            for entry in entries(own, capacity, case=place).values():
                rate = entry["blocks"]
                assert entry["prefix"] is None
                assert len(rate["ratios"]) == 3
                low, high = rate["interval"]["low"], rate["interval"]["high"]
                assert low - 1e-12 <= rate["hit_ratio"] <= high + 1e-12


def test_the_best_is_told_with_its_lead_over_each_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--pattern", "rag_burst", "--capacities", "10%,50%")
    unclear, clear = (column["order"] for column in own["cases"][0]["tables"][0]["columns"])
    for capacity, order in enumerate((unclear, clear)):
        some = entries(own, capacity)
        ratio = some[order["best"]]["blocks"]["hit_ratio"]
        assert order["best"] not in order["leads"]
        for policy, lead in order["leads"].items():
            assert lead["mean"] == pytest.approx(ratio - some[policy]["blocks"]["hit_ratio"])
            assert lead["interval"]["low"] <= lead["mean"] <= lead["interval"]["high"]
            assert lead["shown"] is (lead["interval"]["low"] > 0)
    assert clear["leads"]["fifo"]["shown"]


def test_two_seeds_are_too_few_for_an_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = lab(capsys, "--pattern", "rag_burst", "--capacities", "50%", "--seeds", 2)
    order = own["cases"][0]["tables"][0]["columns"][0]["order"]
    assert order == {"best": None, "leads": None, "why": "2 seeds are fewer than 3"}


def test_a_policy_that_finds_nothing_where_min_finds_much_is_told_as_a_failure(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--pattern", "prefetch_friendly", "--capacities", "50%")
    found = own["cases"][0]["tables"][0]["failures"]
    assert {(each["policy"], each["kind"]) for each in found} >= {
        ("lru", "no-hits"), ("fifo", "no-hits"),
    }  # fmt: skip


def test_where_first_accesses_are_nearly_all_misses_there_is_no_order(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = lab(capsys, "--pattern", "long_tail_mix", "--capacities", "98%")
    order = own["cases"][0]["tables"][0]["columns"][0]["order"]
    assert order["leads"] is None
    assert order["why"] == "first accesses are 90 % of the worst one's misses, or more"


# --- the same everywhere, and bad input -------------------------------------------------------


def told(words: Sequence[str], hash_seed: str) -> bytes:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "lab", *words, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["mooncake.jsonl"], marks=pytest.mark.nightly),
        ["--pattern", "all", "--seeds", "1", "--seed", "7"],
    ],
)
def test_the_same_is_said_whatever_the_seed_of_hashes(here: Path, words: list[str]) -> None:
    assert told(words, "1") == told(words, "2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no trace is given"),
        (["gone.jsonl"], "there is no such trace"),
        (["mooncake.jsonl", "--policies", "lur"], "'lur' is no policy. Did you mean 'lru'?"),
        (["mooncake.jsonl", "--policies", "lru,lru"], "--policies: duplicate lru"),
        (["mooncake.jsonl", "--policies", "lru:x=1"], "lru has no 'x'; it has no numbers"),
        (["mooncake.jsonl", "--admission", "secondhit"], "Did you mean 'second-hit'?"),
        (["mooncake.jsonl", "--admission", "depth,depth"], "--admission: duplicate depth"),
        (["mooncake.jsonl", "--admission", "depth:deep=1"], "has no 'deep'; it has max_depth"),
        (["mooncake.jsonl", "--admission", "size:memory=9"], "has no 'memory'; it has max_bytes"),
        (["mooncake.jsonl", "--admission", "frequency:memory=0"], "memory is 0; it must be from 1"),
        (["mooncake.jsonl", "--admission", "frequency:memory=99999999999"], "from 1 to 67108864"),
        (["mooncake.jsonl", "--policies", "regret-aware:regret_weight=-1"], "from 0 to 1000000"),
        (["mooncake.jsonl", "--policies", "regret-aware:kept=nan"], "kept is nan; it must be"),
        (["mooncake.jsonl", "--policies", "s3-fifo:to_main=4"], "to_main is 4; it must be from 1"),
        (["mooncake.jsonl", "--policies", "windowed:window=1:window=2"], "duplicate window"),
        (["mooncake.jsonl", "--policies", "learned:sample=0"], "sample is 0; it must be from 1"),
        (["mooncake.jsonl", "--admission", "depth:max_depth=x"], "max_depth= and a whole number"),
        (["mooncake.jsonl", "--capacities", "64Gib"], "which is none. Did you mean 'GiB'?"),
        (["mooncake.jsonl", "--capacities", "0%"], "'0%' is no room at all"),
        (["mooncake.jsonl", "--capacities", "101%"], "give at most 100%"),
        (["mooncake.jsonl", "--capacities", "many"], "'many' is no capacity"),
        (["mooncake.jsonl", "--capacities", "1%,1%"], "duplicate 1%"),
        (["mooncake.jsonl", "--seeds", "3"], "--seeds is of patterns"),
        (["mooncake.jsonl", "--pattern", "all"], "mooncake.jsonl and --pattern are both given"),
        (["--pattern", "rag"], "'rag' is not a pattern"),
        (["--pattern", "rag_burst", "--pages", "8"], "--pages is 8; rag_burst has 22 or more"),
        (["--pattern", "rag_burst", "--model", "tiny-1b"], "says nothing of a pattern"),
        (["--pattern", "rag_burst", "--seeds", "0"], "--seeds is 0; it must be a whole number"),
        (["--pattern", "rag_burst", "--users"], "--users and --pattern are both given"),
        (["mooncake.jsonl", "--residency", "int3"], "'int3' is not a type"),
        (["mooncake.jsonl", "--dequant", "int4=1"], "give --residency too"),
        (["mooncake.jsonl", "--residency", "int4", "--dequant", "int4=x"], "int4 is 'x'; it must"),
        (["mooncake.jsonl", "--residency", "int4", "--dequant", "int8=1"], "holds nothing"),
        (["mooncake.jsonl", "--dequant-source", "me"], "which is not given"),
        (["mooncake.jsonl", "--residency", "int4", "--quant-group", "-1"], "0 to 1000000"),
        (["mooncake.jsonl", "--plot", "x.gif"], "does not end in .svg, .png or .pdf"),
        (["mooncake.jsonl", "--csv", "x.txt"], "does not end in .csv"),
        (["mooncake.jsonl", "--csv", "mine.csv"], "mine.csv"),
        (["mooncake.jsonl", "-o", "mooncake.jsonl"], "mooncake.jsonl"),
        (["mooncake.jsonl", "-o", "a.json", "--csv", "gone/a.csv"], "there is no directory"),
        (["mooncake.jsonl", "--nonsense"], "--nonsense"),
        (["mooncake.jsonl", "--polices", "lru"], "Did you mean '--policies'?"),
        (["--pattern", "rag_burst", "--capacity=5%"], "Did you mean '--capacities'?"),
        (["--users", "--requests", "99999999999"], "it must be 10,000,000 at most"),
        (["mooncake.jsonl", "--eviction", "arc"], "--eviction is of a run's tiers"),
        (["mooncake.jsonl", "--cpu-mem-gb=4"], "--cpu-mem-gb is of a run's tiers"),
        (["mooncake.jsonl", "--capacities", ""], "text that is not empty"),
        (["--pattern", ""], "text that is not empty"),
        (["mooncake.jsonl", "--residency", "int4", "--quant-group", "9" * 30], "0 to 1000000"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    (here / "mine.csv").write_text("a,b\n1,2\n")
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    assert main(["lab", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.parametrize(("number", "code"), ONE_SIGNAL)
def test_a_signal_ends_it_with_one_sentence_and_writes_nothing(
    number: int, code: int, tmp_path: Path
) -> None:
    process = start(
        tmp_path,
        [
            "lab", "--pattern", "all", "--seeds", "500", "-o", "L.json", "--csv", "l.csv",
            "--no-progress",
        ],
    )  # fmt: skip
    wait_until_at_work(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (code, "")
    assert err == f"kv-cache: lab: {signal.Signals(number).name}: nothing is written\n"
    assert not list(tmp_path.glob("[Ll].*"))


def test_a_signal_that_came_before_the_work_began_ends_it_as_well() -> None:
    with interrupts() as caught:
        signal.raise_signal(signal.SIGINT)
        assert unless_stopped(caught, lambda: pytest.fail("it began all the same")) is None
        assert caught.exit_code == 130


# --- a pattern as a trace --------------------------------------------------------------------


def hits_by_policy(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[str, Any]]:
    """Print a study, and return the name and the counts of each row but the random one's."""
    assert main(["lab", *words, "--capacities", "10%,25%", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["kv_cache"]["cases"]
    entries = [each for column in case["tables"][0]["columns"] for each in column["entries"]]
    return [
        (each["policy"], each["blocks"]["hits"]) for each in entries if each["policy"] != "random"
    ]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_and_its_trace_are_the_same_study(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["trace", "pattern", name, "-o", "pattern.jsonl", "--seed", "5"]) == 0
    capsys.readouterr()
    drawn = hits_by_policy(capsys, "--pattern", name, "--seeds", "1", "--seed", "5")
    assert hits_by_policy(capsys, "pattern.jsonl", "--seed", "5") == drawn


@pytest.mark.parametrize("policy", ["lru", "heavy-hitter", "mq"])
def test_a_run_of_a_pattern_hits_as_often_as_the_lab(
    here: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    """13 blocks of 2 MiB, one request at a time."""
    assert main(["trace", "pattern", "rag_burst", "-o", "rag.jsonl"]) == 0
    capsys.readouterr()
    assert (
        main(["lab", "rag.jsonl", "--policies", policy, "--capacities", "13blocks", "--json"]) == 0
    )
    (case,) = json.loads(capsys.readouterr().out)["kv_cache"]["cases"]
    (entry,) = [e for e in case["tables"][0]["columns"][0]["entries"] if e["policy"] == policy]
    run = (
        "run --virtual-time --semantics serving --trace rag.jsonl --duration 330 --replay-cycles 1 "
        "--gpu-mem-gb 0 --cpu-mem-gb 0 --storage-capacity-gb 0.025390625 --output run.json "
        "--eviction"
    )
    main([*run.split(), policy])
    reuse = json.loads(Path("run.json").read_text())["kv_cache"]["reuse"]
    assert reuse["hits"] == entry["blocks"]["hits"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rag_bust -o x.jsonl", "'rag_bust' is not a pattern. Did you mean 'rag_burst'?"),
        ("-o x.jsonl", "NAME of a pattern is missing; give one of chat_continuation"),
        ("rag_burst -o x.jsonl --pages 21", "--pages is 21; rag_burst has 22 or more"),
    ],
)
def test_a_pattern_that_cannot_be_written_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main(["trace", "pattern", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert not Path("x.jsonl").exists()


# --- several tiers ---------------------------------------------------------------------------

TIERS = "gpu=64KB:20us:80MB/s,host=500KB:0.4ms:8MB/s,nvme=4MB:2500us:2MB/s:int4"
OF_TIERS = ["--pattern", "rag_burst", "--seeds", "3", "--block-kib", "4", "--tiers", TIERS]


def test_several_tiers_are_a_study_with_a_row_for_each_combination(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *OF_TIERS, "--policies", "lru,mq", "--prefetch", "none,successor", "--tier-scales", "1,0.5",
        "--residency", "fp16,int4", "--dequant", "int4=30", "-o", "T.json", "--csv", "T.csv",
    ]  # fmt: skip
    assert main(["lab", *words]) == 0
    assert main(["verify", "T.json"]) == 0
    own = json.loads(Path("T.json").read_text())["kv_cache"]
    (case,) = own["cases"]
    keys = [(r["residency"], r["scale"], r["policy"], r["prefetch"]) for r in case["rows"]]
    assert len(set(keys)) == len(keys) == 16
    for row in case["rows"]:
        served = sum(tier["hit_ratio"] for tier in row["tiers"])
        assert served + row["computed"] == pytest.approx(1)
        assert all(tier["peak_bytes"] <= tier["room_bytes"] for tier in row["tiers"])
        assert row["fastest"]["interval"]["low"] <= row["fastest"]["mean"]
    table = csv.DictReader(Path("T.csv").read_text().splitlines())
    assert [float(line["wait_ns"]) for line in table] == [
        row["wait_ns"]["mean"] for row in case["rows"]
    ]
    assert main(["report", "T.json", "-o", "T.md"]) == 0
    assert "lru, prefetch successor" in Path("T.md").read_text()
    capsys.readouterr()
    assert main(["lab", *words[:-4], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_cache"] == own


def test_the_first_tier_waits_for_its_bytes_and_for_widening_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of 4,096 bytes is 1,024 in int4: 20 us, 12.8 us at 80 MB/s, 30.72 us to widen."""
    tier = "gpu=1MB:20us:80MB/s:int4"
    words = ["--pattern", "rag_burst", "--block-kib", "4", "--dequant", "int4=30", "--tiers", tier]
    assert main(["lab", *words, "--policies", "lru", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["kv_cache"]["cases"]
    (row,) = case["rows"]
    assert row["tiers"][0]["wait_ns"] == pytest.approx(20_000 + 12_800 + 30_720)
    assert row["tiers"][0]["peak_bytes"] == pytest.approx(1024 * case["base"]["unique"])


SMALL = "gpu=16KB:20us:80MB/s,host=32KB:400us:8MB/s"


def test_where_nothing_is_found_nobody_waits_the_least(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--pattern", "rag_burst", "--policies", "lru,arc", "--tiers", "gpu=1KB:20us:80MB/s"]
    assert main(["lab", *words]) == 0
    out = capsys.readouterr().out
    assert "No tier has any block that is asked for: all are computed" in out
    assert "the least" not in out.splitlines()[0]


def test_who_finds_nothing_waits_for_nothing_and_is_not_the_best(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--pattern", "adversarial_burst", "--seeds", "5", "--block-kib", "4",
        "--policies", "lru,heavy-hitter", "--tiers", SMALL, "-o", "small.json",
    ]  # fmt: skip
    assert main(["lab", *words]) == 0
    assert "With heavy-hitter, the least is computed" in capsys.readouterr().out
    (case,) = json.loads(Path("small.json").read_text())["kv_cache"]["cases"]
    lru, heavy = case["rows"]
    assert (lru["wait_ns"]["mean"], lru["computed"]) == (0, 1)
    assert lru["behind"]["shown"]
    assert lru["behind"]["mean"] == pytest.approx(lru["computed"] - heavy["computed"])
    assert heavy["behind"] is None


def test_rows_that_compute_as_much_are_behind_by_what_they_wait(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*OF_TIERS, "--policies", "lru,heavy-hitter", "--prefetch", "none,successor", "--json"]
    assert main(["lab", *words]) == 0
    (case,) = json.loads(capsys.readouterr().out)["kv_cache"]["cases"]
    waits = [row["wait_ns"]["mean"] for row in case["rows"]]
    for row in case["rows"]:
        if row["behind"] is not None:
            assert row["behind"]["mean"] == pytest.approx(row["wait_ns"]["mean"] - min(waits))
    assert [row["behind"] is None for row in case["rows"]].count(True) == 1
    assert main(["lab", *words[:-1], "--seeds", "2"]) == 0
    assert "of 2 seeds nothing is known of chance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tiers", "gpu=1MB:20us"], "'gpu=1MB:20us' is not a tier; give NAME=ROOM:LATENCY:RATE"),
        (["--tiers", "gpu=1MB:20:80MB/s"], "gpu has latency '20'; give it as 20us"),
        (["--tiers", f"gpu=1MB:{'9' * 310}ms:80MB/s"], "gpu has a latency of over an hour"),
        (["--tiers", "gpu=1MB:20us:80MB"], "gpu has rate '80MB'; give one above 0, as 80GB/s"),
        (["--tiers", "gpu=1MB:20us:8%/s"], "gpu has rate '8%/s'; give one above 0, as 80GB/s"),
        (["--tiers", "gpu=1MB:20us:0MB/s"], "gpu has rate '0MB/s'; give one above 0, as 80GB/s"),
        (["--tiers", "gpu=1MB:20us:-8MB/s"], "gpu has rate '-8MB/s'; give one above 0, as"),
        (["--tiers", "gpu=1MB:20us:8MB/s,gpu=1MB:20us:8MB/s"], "duplicate gpu; keep one"),
        (["--residency", "int4", "--dequant", "int4=1e300"], "must be a number, 0 to 1000000000"),
        (["--tiers", "gpu=1MB:20us:8MB/s:int5"], "'int5' is not a type"),
        (["--tiers", TIERS, "--capacities", "10%"], "--capacities is of one cache"),
        (["--tiers", TIERS, "--admission", "second-hit"], "--admission is of one cache"),
        (["--tiers", TIERS, "--prefetch", "sucessor"], "Did you mean 'successor'?"),
        (["--tiers", TIERS, "--tier-scales", "1,0"], "--tier-scales is '1,0'; give factors above"),
        (["--tiers", TIERS, "--tier-scales", "1,1.0"], "--tier-scales: duplicate 1.0; keep one"),
        (["--prefetch", "successor"], "are of several tiers; give --tiers too"),
    ],
)  # fmt: skip
def test_tiers_that_cannot_be_meant_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["lab", "--pattern", "rag_burst", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_study_that_is_kept_is_what_the_program_makes(here: Path) -> None:
    """One of its patterns: each has seeds of its own."""
    kept = ROOT / "docs" / "reports"
    script = (kept / "tiers.sh").read_text().replace("\\\n", " ")
    (common,) = re.findall(r'kv-cache.py" lab (.*) "\$@"', script)
    (policies,) = re.findall(r"--pattern all .*--policies (\S+)", script)
    words = [*common.split(), "--pattern", "mixed_locality", "--policies", policies]
    held = ["--residency", "fp16,int4", "--dequant", "int4=29", "--csv", "new.csv"]
    assert main(["lab", *words, *held]) == 0
    head, *rows = (kept / "tiers.csv").read_text().splitlines()
    of_pattern = [row for row in rows if row.startswith("mixed_locality,")]
    assert Path("new.csv").read_text().splitlines() == [head, *of_pattern]
    assert len(of_pattern) == 72
