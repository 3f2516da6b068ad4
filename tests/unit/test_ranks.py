"""Which rank the environment tells, and what is each rank's own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.bench.memory import check_ram_of_ranks
from kv_cache.bench.path_checks import check_output_file
from kv_cache.config.root import Config
from kv_cache.config.sections import OutputConfig, RunConfig, TiersConfig
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.launched import rank_of
from kv_cache.core.mpirank import ALONE, MpiRank
from kv_cache.core.units import GIB
from kv_cache.crew.per_rank import alone_note, config_of_rank, own_file
from kv_cache.metrics.evidence import Evidence, Thresholds
from kv_cache.metrics.judging import Status
from kv_cache.metrics.rules import RULES

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
SLURM_STEP = {
    "SLURM_PROCID": "4",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OPEN_MPI, (3, 8, 4, "OMPI_COMM_WORLD_RANK")),
        (MPICH, (1, 2, 2, "PMI_RANK")),
        (SLURM_STEP, (4, 5, 1, "SLURM_PROCID")),
        (SLURM_STEP | MPICH | OPEN_MPI, (3, 8, 4, "OMPI_COMM_WORLD_RANK")),
        (SLURM_STEP | MPICH, (1, 2, 2, "PMI_RANK")),
        ({"PMI_RANK": "5"}, (5, None, None, "PMI_RANK")),
        ({"OMPI_COMM_WORLD_RANK": "", "PMI_RANK": "0", "PMI_SIZE": "1"}, (0, 1, 1, "PMI_RANK")),
        ({}, (0, 1, 1, None)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, 1, None)),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (0, 1, 1, None)),
        (
            OPEN_MPI | {"KV_CACHE_RANK": "1", "KV_CACHE_RANKS": "2", "KV_CACHE_RANKS_HERE": "2"},
            (1, 2, 2, "KV_CACHE_RANK"),
        ),
        ({"PMIX_RANK": "2"}, (0, 1, 1, None)),  # Open MPI says it in its own words too
    ],
)
def test_the_rank_is_what_the_starter_says(
    environ: dict[str, str], expected: tuple[object, ...]
) -> None:
    found = rank_of(environ)
    assert (found.rank, found.ranks, found.on_machine, found.source) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_RANK": "first"},
        {"PMI_RANK": "-1"},
        {"PMI_RANK": "²"},
        {"PMI_RANK": "2", "PMI_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "many"},
    ],
)
def test_a_rank_that_makes_no_sense_is_refused_and_not_taken_for_rank_0(
    environ: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match=r"the environment says .*unset"):
        rank_of(environ)


@given(st.lists(st.integers(0, 5000), unique=True, min_size=2, max_size=5))
def test_no_two_ranks_have_a_file_a_directory_or_a_seed_in_common(numbers: list[int]) -> None:
    config = Config(
        run=RunConfig(seed=2**32 - 1),
        tiers=TiersConfig(cache_dir=("/tmp/a", "/tmp/b")),
        output=OutputConfig(
            output="R.json", latency_dump="d.jsonl", record="t.jsonl.zst", results_dir="runs"
        ),
    )
    owned = []
    for number in numbers:
        rank = MpiRank(rank=number, ranks=None, on_machine=None)
        made = config_of_rank(config, rank, own_file(Path("R.json"), rank))
        told = made.output
        owned.append((told.output, told.latency_dump, told.record, told.results_dir))
        assert made.run.seed == (2**32 - 1 + number) % 2**32
        assert made.tiers.cache_dir == (f"/tmp/a/rank_{number}", f"/tmp/b/rank_{number}")
    for things in zip(*owned, strict=True):
        assert len(set(things)) == len(numbers)


def test_rank_0_has_the_file_that_was_given() -> None:
    assert own_file(Path("x/R.json"), MpiRank(rank=0, ranks=4)) == Path("x/R.json")
    assert own_file(Path("x/R.json"), MpiRank(rank=3, ranks=4)) == Path("x/R.rank3.json")


def test_ranks_of_one_machine_divide_the_free_space_that_they_share(tmp_path: Path) -> None:
    config = Config(tiers=TiersConfig(cache_dir=(str(tmp_path),)))
    rank = MpiRank(rank=1, ranks=8, on_machine=4)
    assert config_of_rank(config, rank, Path("R.json")).tiers.free_share == pytest.approx(0.95 / 4)
    nowhere = Config(tiers=TiersConfig(cache_dir=("/proc/kv",)))  # no local file system
    assert config_of_rank(nowhere, rank, Path("R.json")).tiers.free_share == pytest.approx(0.95 / 8)
    assert config_of_rank(config, ALONE, Path("R.json")).tiers.free_share == 0.95


def test_only_one_of_several_says_that_it_is_no_sum() -> None:
    assert alone_note(ALONE) == ()
    (note,) = alone_note(MpiRank(rank=1, ranks=2, source="PMI_RANK"))
    assert note.startswith("this is rank 1 of 2 (PMI_RANK) alone")


def test_ranks_that_a_machine_cannot_hold_together_are_refused() -> None:
    parts = {"cpu tier": 4 * GIB, "buffers": GIB}
    check_ram_of_ranks(parts, 1, total=GIB)  # one alone is judged by what is available
    check_ram_of_ranks(parts, 3, total=20 * GIB)
    with pytest.raises(
        PlaceError, match=r"4 ranks .* 20.00 GiB .*--cpu-mem-gb 3 would fit for each"
    ):
        check_ram_of_ranks(parts, 4, total=20 * GIB)


@pytest.mark.parametrize("name", ["summary.json", "kvcache_20260101_metadata.json"])
def test_a_name_that_confuses_the_report_generator_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="MLPerf's report generator"):
        check_output_file(tmp_path / name)
    check_output_file(tmp_path / "my_summary.json")


@pytest.mark.parametrize(("ranks", "status"), [(1, Status.SUSPECT), (2, Status.NOT_JUDGED)])
def test_other_ranks_are_no_foreigners(ranks: int, status: Status) -> None:
    moved = {"read_bytes": GIB, "write_bytes": GIB, "processes": [], "ranks_here": ranks}
    evidence = Evidence({"foreign": moved, "completeness": {"window_s": 1.0}})
    _, rule = RULES["V23"]
    assert [look.status for look in rule(evidence, Thresholds())] == [status]
