"""Engines whose steps take what a table says, and rates that only some sequences share."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.cli import main
from kv_cache.config.scenario import InstanceSection, ModelSection
from kv_cache.config.step_table import StepGrid, StepTable, read_step_table
from kv_cache.core.errors import ConfigError
from kv_cache.sim.cluster.compute import ComputeModel, make_compute, pairs_of
from kv_cache.sim.profile_model import OutsideProfileError

HEAD = "# an engine, measured in 2026\nphase,tokens,context,ms\n"
ROWS = (
    "prefill,100,0,10\nprefill,100,1000,20\nprefill,300,0,50\nprefill,300,1000,80\n"
    "decode,1,0,2\ndecode,1,1000,4\ndecode,9,0,6\ndecode,9,1000,24\n"
)
MS = 1_000_000


def table(tmp_path: Path, text: str = HEAD + ROWS) -> Path:
    file = tmp_path / "steps.csv"
    file.write_text(text)
    return file


def computed(tmp_path: Path, **more: Any) -> ComputeModel:
    section = InstanceSection(compute="table", step_table="steps.csv", **more)
    return make_compute(section, ModelSection(), 9, table=read_step_table(table(tmp_path)))


def test_steps_take_what_the_points_say_and_between_them_what_lies_between(
    tmp_path: Path,
) -> None:
    model = computed(tmp_path)
    assert model.step_ns(300, pairs_of(0, 300), 0, 0, 0) == 50 * MS
    assert model.step_ns(200, pairs_of(500, 200), 500, 0, 0) == 40 * MS  # the middle of all four
    assert model.step_ns(0, 0, 0, 1, 500) == 3 * MS
    assert model.step_ns(0, 0, 0, 5, 5 * 500) == 9 * MS
    assert model.step_ns(100, pairs_of(0, 100), 0, 9, 9000) == 34 * MS  # both, added
    assert model.step_ns(7, pairs_of(0, 7), 0, 0, 0) == 10 * MS  # the least counts below
    assert computed(tmp_path, step_overhead_us=5).step_ns(0, 0, 0, 1, 0) == 2 * MS + 5000


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            (301, pairs_of(0, 301), 0, 0, 0),
            "prefill: a step of 301 tokens over a context of 0",
        ),
        ((100, pairs_of(1001, 100), 1001, 0, 0), "which ends at 300 tokens and 1,000; add rows"),
        ((0, 0, 0, 10, 10), "decode: a step of 10 tokens"),
        ((0, 0, 0, 2, 2002), "over a context of 1,001 lies outside of the table"),
    ],
)
def test_a_step_beyond_the_table_is_refused(
    step: tuple[int, int, int, int, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OutsideProfileError) as refused:
        computed(tmp_path).step_ns(*step)
    assert message in str(refused.value)
    with pytest.raises(OutsideProfileError, match="over a context of 1,001"):
        computed(tmp_path).require_run(1, 1, 1001)


def test_an_estimate_goes_on_beyond_the_table(tmp_path: Path) -> None:
    """Chunks of 300 behind 0, 300 and 600 tokens, and one of 100 behind 900."""
    found = computed(tmp_path).prefill_ns(1000, 0)
    assert found == pytest.approx((50 + 59 + 68 + 19) * MS, abs=2)
    assert computed(tmp_path).prefill_ns(300, 5000) == 80 * MS


@st.composite
def grids(draw: st.DrawFn) -> StepGrid:
    tokens = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=4)))
    contexts = sorted(draw(st.sets(st.integers(0, 3000), min_size=1, max_size=5)))
    ns = st.floats(1, 1e6)
    rows = [[draw(ns) for _ in contexts] for _ in tokens]
    return StepGrid(
        tokens=(*tokens, 100), contexts=(*contexts, 10_000),
        rows_ns=tuple((*row, row[-1]) for row in (*rows, rows[-1])),
    )  # fmt: skip


@given(grids(), st.integers(1, 100), st.integers(0, 3000), st.integers(1, 900), st.floats(0, 500))
def test_a_run_of_steps_is_their_sum_and_is_found_again_by_its_time(
    grid: StepGrid, sequences: int, each: int, steps: int, overhead: float
) -> None:
    found = StepTable(file="t", sha256="", source=None, prefill=grid, decode=grid)
    section = InstanceSection(compute="table", step_overhead_us=overhead / 1000)
    model = make_compute(section, ModelSection(), 64, table=found)
    context = each * sequences + sequences // 2
    alone = [model.step_ns(0, 0, 0, sequences, context + i * sequences) for i in range(steps)]
    whole = model.run_ns(sequences, context, steps)
    assert -2 <= sum(alone) - whole <= steps + sum(alone) * 1e-9
    enough = model.steps_in(sequences, context, whole)
    assert model.run_ns(sequences, context, enough) >= whole
    assert enough == steps or model.run_ns(sequences, context, enough - 1) < whole
    assert model.least_ns(0, sequences * steps) <= whole * (1 + 1e-9) + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + ROWS.replace("decode,9,0,6\n", ""), "decode has no row of 9 tokens over a context"),
        (HEAD + ROWS.replace("decode,9,0,6\n", ""), "of 0 (1 of 4 are missing); give one for each"),
        (HEAD + ROWS + "decode,1,0,3\n", "line 11: decode of 1 tokens over a context of 0"),
        (HEAD + ROWS.partition("decode")[0], "it has no row of decode; give both"),
        (HEAD + ROWS + "decode,2,0,0\n", "line 11: tokens must be at least 1, context at least 0"),
        (HEAD + ROWS + "decode,2,0,nan\n", "and ms above 0"),
        (HEAD + ROWS + "decode,2.5,0,1\n", "tokens and context must be whole, and ms a number"),
        (HEAD + ROWS + "verify,2,0,1\n", "is 'verify,2,0,1'; it must be prefill or decode, tokens"),
        ("batch,context,ms\n1,2,3\n", "line 1: the columns must be phase,tokens,context,ms"),
        ("", "it has no row of prefill"),
        (HEAD + '"prefill\n",100,0,10\n' + ROWS, "line 3 is 'prefill'; it must be prefill or"),
        (HEAD + f"prefill,{'9' * 200_000},0,10\n" + ROWS, "line 3: tokens and context must be"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_whole_is_refused_in_one_sentence(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_step_table(table(tmp_path, text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


SCENARIO = """\
workload: {source: poisson, requests: 40, prompt_tokens: [50, 400], output_tokens: [2, 40]}
instances: {g: {count: 2, hbm_gib: 4, compute: table, step_table: steps.csv}}
scheduler: {max_num_seqs: 9, max_num_batched_tokens: 300}
"""


def test_a_scenario_is_served_by_a_table_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    command = ["sim", str(tmp_path / "s.yaml")]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "instances.g.step_table overlay (steps.csv, an engine, measured in 2026)" in text
    assert main([*command, "--set", "workload.output_tokens=[2000, 2000]"]) == 2
    assert "lies outside of the table, which ends at 9 tokens" in capsys.readouterr().err
    assert main([*command, "--set", "instances.g.step_table=none.csv"]) == 2
    assert "none.csv cannot be read" in capsys.readouterr().err
    (tmp_path / "s.yaml").write_text(SCENARIO.replace(", step_table: steps.csv", ""))
    assert main(command) == 2
    assert "instances.g.step_table is empty; give the path of one" in capsys.readouterr().err


def test_a_run_that_a_newcomer_cuts_off_inside_of_the_table_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first would end alone over 1,048 tokens; with the second the mean is 983 by then, of
    which the table says as much as of any other."""
    table(tmp_path)
    rows = tmp_path / "rows.txt"
    rows.write_text("# id arrival_ms prompt_tokens gen_tokens streaming\n0 0 100 950 0\n")
    text = SCENARIO.partition("\n")[2].replace("count: 2", "count: 1")
    (tmp_path / "s.yaml").write_text(f"workload: {{source: trace, trace: rows.txt}}\n{text}")
    assert main(["sim", str(tmp_path / "s.yaml")]) == 2
    assert "decode: a step of 1 tokens over a context of 1,048" in capsys.readouterr().err
    with rows.open("a") as file:
        file.write("1 100 10 960 0\n")
    assert main(["sim", str(tmp_path / "s.yaml")]) == 0


def test_of_more_sequences_than_share_a_rate_each_is_as_fast_as_of_so_many() -> None:
    section = InstanceSection(
        compute="rate", decode_tokens_per_s=500 * 0.8, decode_sharing_cap=8
    )  # an efficiency of 0.8 is part of the rate
    model = make_compute(section, ModelSection(), 16)
    assert model.run_ns(4, 0, 100) == 100 * 4 * 2_500_000
    assert model.run_ns(8, 0, 100) == model.run_ns(16, 0, 100) == 100 * 8 * 2_500_000
    assert model.steps_in(16, 0, 100 * 8 * 2_500_000) == 100
    assert model.least_ns(0, 1600) == model.run_ns(16, 0, 100)
