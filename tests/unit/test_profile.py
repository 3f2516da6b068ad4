"""Hardware profiles: read strictly, asked inside what was measured, and refused outside."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.app.probe import repeated_reads
from kv_cache.bench.probe_cells import Timed, summarise
from kv_cache.cli.plot import main as plot
from kv_cache.cli.report import main as report
from kv_cache.config.build import build_load, fillable_bytes, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.profile import (
    HEADER,
    Cell,
    Profile,
    Service,
    profile_text,
    profile_values,
    read_profile,
)
from kv_cache.core.effect import IoChunk, Leg
from kv_cache.core.errors import ConfigError, UsageError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import KIB, MIB, MISSING, NS_PER_S, NS_PER_US
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.sim.profile_model import OutsideProfileError, ProfileModel
from kv_cache.sim.run import simulate, storage_model
from kv_cache.view.parts import Remarks, Table
from kv_cache.view.probe import probe_view
from tests.cli import small
from tests.results import numbers

SIZES = (256 * KIB, 2 * MIB, 32 * MIB)
DEPTHS = (1, 4, 16)
RATE = 200_000_000  # bytes/s of everything together


def service(nbytes: int, depth: int, rate: float = RATE) -> Service:
    """What a device of that bandwidth takes with so many at once."""
    mean_us = round(depth * nbytes / rate * NS_PER_S) / NS_PER_US
    return Service(operations=50, mean_us=mean_us, p50_us=mean_us, p99_us=mean_us)


def cells(
    sizes: Sequence[int] = SIZES, depths: Sequence[int] = DEPTHS, rate: float = RATE
) -> Iterator[Cell]:
    for nbytes in sizes:
        for depth in depths:
            for share in (0.0, 0.5, 1.0):
                took = service(nbytes, depth, rate)
                yield Cell(
                    object_bytes=nbytes,
                    concurrency=depth,
                    read_share=share,
                    bytes_per_second=rate,
                    in_flight=depth,
                    reads=took if share > 0 else None,
                    writes=took if share < 1 else None,
                )


def profile(*made: Cell) -> Profile:
    return Profile(name="disk.yaml", cells=made or tuple(cells()))


def model(*made: Cell) -> ProfileModel:
    return ProfileModel(profile(*made))


# --- inside ------------------------------------------------------------------------------------


@given(
    st.integers(SIZES[0], SIZES[-1]),
    st.floats(1, 16),
    st.floats(0, 1),
    st.sampled_from([OpKind.READ, OpKind.WRITE]),
)
def test_a_constant_bandwidth_is_met_everywhere_inside(
    nbytes: int, depth: float, share: float, kind: OpKind
) -> None:
    expected = depth * nbytes / RATE * NS_PER_S
    assert model().service_ns(kind, nbytes, depth, share) == pytest.approx(expected, rel=1e-6)


def test_measured_points_come_back_as_they_are() -> None:
    for cell in cells():
        for kind in (OpKind.READ, OpKind.WRITE):
            told = cell.of(kind)
            if told is not None:
                asked = model().service_ns(
                    kind, cell.object_bytes, cell.concurrency, cell.read_share
                )
                assert asked == told.mean_ns


def test_between_two_shares_of_reads_time_is_on_a_straight_line() -> None:
    made = [
        replace(cell, reads=Service(operations=9, mean_us=1, p50_us=1, p99_us=1))
        if cell.read_share == 0.5
        else replace(cell, reads=Service(operations=9, mean_us=2, p50_us=2, p99_us=2))
        if cell.read_share == 1
        else cell
        for cell in cells()
    ]
    shares = (0.0, 0.5, 0.75, 1.0)
    asked = [model(*made).service_ns(OpKind.READ, MIB, 4, share) for share in shares]
    assert asked == [1000, 1000, 1500, 2000]


def test_data_that_was_read_before_does_not_count() -> None:
    warm = [replace(c, data="repeated", writes=None, reads=service(1, 1)) for c in cells()]
    assert (
        model(*cells(), *warm).service_ns(OpKind.READ, 2 * MIB, 1, 1) == service(2 * MIB, 1).mean_ns
    )


# --- outside -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "depth", "asked"),
    [
        (4 * KIB, 1, "4 KiB at concurrency 1"),
        (33 * MIB, 4, "33.0 MiB at concurrency 4"),
        (MIB, 17, "1.0 MiB at concurrency 17"),
        (MIB, 0.5, "1.0 MiB at concurrency 0.5"),
    ],
)
def test_outside_the_grid_is_refused_with_what_was_asked_and_measured(
    nbytes: int, depth: float, asked: str
) -> None:
    with pytest.raises(OutsideProfileError) as refused:
        model().service_ns(OpKind.READ, nbytes, depth, 1)
    assert isinstance(refused.value, UsageError)
    assert f"profile disk.yaml: reads of {asked}" in str(refused.value)
    assert "256 KiB to 32.0 MiB at concurrency 1 to 16" in str(refused.value)
    assert "--extrapolate" not in str(refused.value)  # as in a scenario, which has no such option


@pytest.mark.parametrize("depth", [1, 64])
def test_a_size_outside_names_the_way_to_extrapolate_and_a_depth_does_not(depth: float) -> None:
    asked = ProfileModel(profile(), extrapolate=False)
    with pytest.raises(OutsideProfileError) as refused:
        asked.service_ns(OpKind.READ, 64 * MIB, depth, 1)
    assert ("--extrapolate," in str(refused.value)) is (depth == 1)
    if depth == 1:  # and that way goes on
        gone_on = ProfileModel(profile(), extrapolate=True)
        assert gone_on.service_ns(OpKind.READ, 64 * MIB, depth, 1) > 0


def test_a_hole_in_the_grid_is_outside_too() -> None:
    made = [c for c in cells() if c.concurrency < 16 or c.object_bytes < 32 * MIB]
    holed = model(*made)
    assert holed.service_ns(OpKind.READ, MIB, 9, 1) > 0
    with pytest.raises(OutsideProfileError, match=r"256 KiB to 2\.0 MiB at concurrency 16 to 16"):
        holed.service_ns(OpKind.READ, 3 * MIB, 9, 1)
    assert holed.depth(256 * KIB, 32 * MIB) == 4
    assert holed.depth(256 * KIB, 2 * MIB) == 16


@pytest.mark.parametrize(
    ("smallest", "largest"), [(4 * KIB, MIB), (MIB, 64 * MIB), (64 * MIB, 64 * MIB)]
)
def test_sizes_that_were_not_measured_have_no_depth(smallest: int, largest: int) -> None:
    with pytest.raises(OutsideProfileError):
        model().depth(smallest, largest)


def test_a_grid_that_begins_above_one_is_refused() -> None:
    with pytest.raises(OutsideProfileError, match="at concurrency 1 are asked"):
        model(*cells(depths=(4, 16))).depth(MIB, MIB)


# --- the file ----------------------------------------------------------------------------------


def write(path: Path, made: Profile) -> Path:
    path.write_text(profile_text(made))
    return path


def test_a_profile_reads_back_equal(tmp_path: Path) -> None:
    facts = {"device": {"name": "sda", "model": None}, "notes": ["a: b"], "measured_utc": "2026"}
    file = write(tmp_path / "p.yaml", replace(profile(), facts=facts))
    assert file.read_text().startswith(HEADER)
    again = read_profile(file)
    assert again.cells == profile().cells
    assert {k: again.facts[k] for k in facts} == facts
    assert again.describe()["device"] == "sda"
    assert len(again.describe()["sha256"]) == 64


Change = Callable[[Any], object]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(schema="kv-cache-profile/9"), "its schema is 'kv-cache-profile/9'"),
        (lambda d: d.pop("schema"), "its schema is empty"),
        (lambda d: d.update(gird=[]), "gird is not a known key"),
        (lambda d: d.update(grid=[]), "grid is .*not empty"),
        (lambda d: d.update(grid={}), "grid is an empty mapping"),
        (lambda d: d["grid"].insert(0, 5), r"grid\[0\] is 5; it must be a mapping"),
        (lambda d: d["grid"][2].pop("reads"), r"grid\[2\]\.reads is missing"),
        (lambda d: d["grid"][2].update(raeds=1), r"raeds is not a known key. Did you mean 'reads'"),
        (
            lambda d: d["grid"][0].update(object_bytes=0),
            "object_bytes is 0; it must be a whole",
        ),
        (lambda d: d["grid"][0].update(object_bytes=True), "object_bytes is true"),
        (lambda d: d["grid"][0].update(concurrency=1.5), "concurrency is 1.5; .*whole"),
        (
            lambda d: d["grid"][0].update(read_share=1.5),
            "read_share is 1.5; .*, 0 to 1",
        ),
        (
            lambda d: d["grid"][0].update(data="warm"),
            "data is 'warm'; .*one of first, repeated",
        ),
        (lambda d: d["grid"][0].update(bytes_per_second=float("nan")), "bytes_per_second is nan"),
        (lambda d: d["grid"][0].update(writes=None), r"writes is empty \(null\); it must be a map"),
        (lambda d: d["grid"][2].update(writes=d["grid"][0]["writes"]), "must be null where"),
        (lambda d: d["grid"][2]["reads"].update(mean_us=-1), "mean_us is -1"),
        (lambda d: d["grid"][2]["reads"].update(p50_us=9e9), "p50_us is .* at most p99_us"),
        (lambda d: d["grid"][2]["reads"].update(p999_us=1), "p999_us is not a known key"),
        (lambda d: d["grid"].append(dict(d["grid"][0])), "twice"),
        (lambda d: d.update(grid=d["grid"][2:3]), "no writes of data: first"),
    ],
)
def test_a_changed_profile_is_refused_in_one_sentence(
    tmp_path: Path, change: Change, sentence: str
) -> None:
    file = write(tmp_path / "p.yaml", profile())
    data = yaml.safe_load(file.read_text())
    change(data)
    file.write_text(yaml.dump(data, Dumper=_Plain))
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_profile(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


class _Plain(yaml.SafeDumper):
    """No anchors: the same mapping twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    for text in ("", "hello", "[1, 2]", "a: 1"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="its schema is"):
            read_profile(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_profile(tmp_path / "none.yaml")


# --- virtual time ------------------------------------------------------------------------------

MODEL = "tiny-1b"  # 24,576 bytes a token


def simulated(tmp_path: Path, **overrides: Any) -> RunOutcome:
    config = load_config(
        None,
        {
            "run.model": MODEL,
            "run.virtual_time": True,
            "run.num_users": 8,
            "run.duration_s": 20,
            "run.generation_mode": "none",
            "run.seed": 5,
            "tiers.gpu_mem_gib": 0,
            "tiers.cpu_mem_gib": 0,
            "tiers.storage_capacity_gib": 64,
            "semantics.preset": "serving",
            "semantics.block_tokens": 64,
            "semantics.write_behind": False,
            "user_templates.chatbot.think_time_range": [0, 0],
            "user_templates.coding.think_time_range": [0, 0],
            "user_templates.document.think_time_range": [0, 0],
            "sim.profile": str(write(tmp_path / "disk.yaml", profile())),
            **overrides,
        },
    )
    specs = tier_specs(config, 64 << 30)
    load = build_load(
        config, config.model_shape(), Seed(5), None, None, fillable_bytes(config, specs)
    )
    return simulate(config, load, specs, 5, progress=_ignore, on_record=_ignore, on_op=_ignore)


def _ignore(_: object) -> None:
    """Nobody watches."""


def test_virtual_time_reaches_the_bandwidth_of_its_profile(tmp_path: Path) -> None:
    outcome = simulated(tmp_path)
    storage = numbers(outcome)["tiers"]["storage"]
    moved = storage["read"]["bytes_per_second"] + storage["write"]["bytes_per_second"]
    assert storage["read"]["bytes"] > 0
    assert moved == pytest.approx(RATE, rel=0.03)


def test_the_result_says_which_profile_it_was_simulated_with(tmp_path: Path) -> None:
    store = numbers(simulated(tmp_path, **{"run.duration_s": 1}))["tiers"]["storage"]["store"]
    assert store["engine"] == "model"
    assert store["profile"]["file"] == str(tmp_path / "disk.yaml")
    assert store["servers"] == 16


def test_a_block_size_that_was_not_measured_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(OutsideProfileError, match=r"reads of 96.0 MiB .* nothing is extrapolated"):
        simulated(tmp_path, **{"semantics.block_tokens": 4096})
    with pytest.raises(OutsideProfileError, match="24 KiB"):
        simulated(tmp_path, **{"semantics.block_tokens": 1})


def test_a_virtual_run_with_a_block_size_outside_its_profile_exits_with_2(tmp_path: Path) -> None:
    write(tmp_path / "disk.yaml", profile())
    (tmp_path / "small.yaml").touch()
    ran = small(
        tmp_path,
        "--virtual-time",
        "--profile=disk.yaml",
        "--semantics=serving",
        "--block-tokens=1",
        "--max-requests=5",
    )
    assert ran.code == 2, ran.err
    assert ran.err.count("\n") == 1
    assert "profile disk.yaml: " in ran.err
    assert ran.result is None


def test_depth_is_that_of_the_sizes_which_are_asked_for(tmp_path: Path) -> None:
    config = load_config(None, {"run.model": MODEL, "semantics.preset": "serving"})
    load = build_load(config, config.model_shape(), Seed(1), None, None, None)
    made = [c for c in cells() if c.concurrency < 16 or c.object_bytes < 32 * MIB]
    assert storage_model(config, load, profile(*made))[1] == 4


# --- what a step of a probe comes to -------------------------------------------------------------


def legs(*spans: tuple[int, int], kind: OpKind = OpKind.READ, nbytes: int = 1000) -> Timed:
    return Timed.of_legs(
        [
            Leg(Tier.NVME, kind, "direct", nbytes, a, b, b - a, (IoChunk(b, nbytes),))
            for a, b in spans
        ]
    )


def test_only_the_time_in_which_all_threads_were_at_work_counts() -> None:
    one = legs((0, 10), (10, 30), (30, 50), (50, 70))
    other = legs((0, 20), (20, 40), (40, 60))
    cell = summarise([one, other], 1000, read_share=1.0, repeated=False, data_path="python")
    assert cell is not None
    # From 20 to 60: half of (10, 30), (30, 50), half of (50, 70); and the other's last two.
    assert cell.bytes_per_second == pytest.approx(4000 / 40 * NS_PER_S)
    assert cell.in_flight == pytest.approx(2.0)
    assert cell.concurrency == 2
    assert cell.reads is not None
    assert (cell.reads.operations, cell.reads.mean_ns) == (5, 20)
    assert cell.writes is None


@pytest.mark.parametrize(
    "done",
    [
        [legs((0, 10))],
        [legs((0, 10), (10, 20)), legs()],
        [legs((0, 10), (10, 20)), legs((30, 40), (40, 50))],
    ],
)
def test_threads_that_never_worked_together_measure_nothing(done: list[Timed]) -> None:
    assert summarise(done, 1000, read_share=1.0, repeated=False, data_path="python") is None


def test_a_mix_without_one_of_its_kinds_measures_nothing() -> None:
    done = [legs((0, 10), (10, 20), (20, 30))]
    assert summarise(done, 1000, read_share=0.5, repeated=False, data_path="python") is None


def test_the_table_has_a_line_for_each_size_and_concurrency() -> None:
    profile = Profile(name="p", cells=tuple(cells()))
    (grid,) = [part for part in probe_view(profile_values(profile)).parts()
               if isinstance(part, Table)]  # fmt: skip
    assert len(grid.rows) == len(SIZES) * len(DEPTHS)
    row = dict(zip(grid.headings, grid.cells()[0], strict=True))
    assert (row["object, MiB"], row["in flight"], row["read, GiB/s"]) == ("0.25", "1", "0.1863")
    assert row["read again, GiB/s"] == MISSING


@pytest.mark.parametrize(
    ("share", "said"), [(0.9, []), (0.5, ["256 KiB x4 (2 in flight), 32.0 MiB x4 (2 in flight)"])]
)
def test_a_profile_says_where_the_machine_asked_for_far_less_than_was_to_be_in_flight(
    share: float, said: list[str]
) -> None:
    asked = (
        replace(cell, in_flight=share * 4) if cell.concurrency == 4 else cell
        for cell in cells(sizes=(SIZES[0], SIZES[-1]))
    )
    parts = probe_view(profile_values(profile(*asked))).parts()
    texts = [text for part in parts if isinstance(part, Remarks) for text in part.texts]
    assert [text.split(": ", 2)[1] for text in texts if "could not ask fast enough" in text] == said


def small_cells() -> Iterator[Cell]:
    for cell in cells(sizes=(512, 4 * KIB)):
        moved = 4 * KIB if cell.object_bytes == 512 else None
        yield replace(cell, data_path="native", device_bytes=moved)


def test_a_profile_of_small_objects_reads_back_equal_and_is_modelled(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", profile(*small_cells()))
    again = read_profile(file)
    assert again.cells == tuple(small_cells())
    for nbytes in (512, 1024, 4 * KIB):
        expected = 4 * nbytes / RATE * NS_PER_S
        asked = ProfileModel(again).service_ns(OpKind.READ, nbytes, 4, 1)
        assert asked == pytest.approx(expected, rel=1e-3)
    text = file.read_text()
    file.write_text(text.replace("data_path: native", "data_path: fast", 1))
    with pytest.raises(ConfigError, match="data_path is 'fast'; it must be one of native, python"):
        read_profile(file)


def test_the_table_of_small_objects_has_operations_and_what_the_device_moved() -> None:
    parts = probe_view(profile_values(profile(*small_cells()))).parts()
    (grid,) = [part for part in parts if isinstance(part, Table)]
    row = dict(zip(grid.headings, grid.cells()[0], strict=True))
    assert (row["object, KiB"], row["in flight"], row["data path"]) == ("0.5", "1", "native")
    assert (row["read, GiB/s"], row["read by device, GiB/s"]) == ("0.1863", "1.49")
    assert (row["read, 1/s"], row["moved for one, KiB"]) == ("390,625", "4")


def test_a_profile_is_reported_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "disk.yaml"
    file.write_text(profile_text(Profile(name="p", cells=tuple(cells()))))
    assert report([str(file)]) == 0
    page = (tmp_path / "disk.html").read_text()
    assert "The device reads up to 0.1863 GiB/s" in page
    for suffix in ("md", "xlsx"):
        assert report([str(file), "-o", str(tmp_path / f"R.{suffix}")]) == 0
    assert "| 0.25 | 1 | 0.1863 | 1.311 |" in (tmp_path / "R.md").read_text()
    pytest.importorskip("matplotlib")
    assert plot([str(file)]) == 0
    assert (tmp_path / "disk.svg").exists()


def test_a_file_of_yaml_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("run: {seed: 3}\n")
    with pytest.raises(ConfigError, match=r"its schema is empty \(null\), not kv-cache-profile/1"):
        report([str(file)])
    assert not (tmp_path / "config.html").exists()


@pytest.mark.parametrize(
    ("ratios", "note"),
    [
        ([0.834, 0.822, 1.05, 1.065, 0.785, 1.072], None),  # of a disk that others use too
        ([1.3], None),
        ([4.8, 5.2, 6.1], "3.94 to 7.23 times the rate: a cache below this machine holds it"),
        ([0.8, 0.82, 0.79], "0.77 to 0.84 times the rate: the device is not steady"),
    ],
)
def test_a_cache_below_is_named_where_sizes_agree_on_it(
    ratios: Sequence[float], note: str | None
) -> None:
    first = [cell for cell in cells(depths=(1, 4)) if cell.read_share == 1][: len(ratios)]
    assert len(first) == len(ratios)
    repeated = [
        replace(cell, data="repeated", bytes_per_second=ratio * cell.bytes_per_second)
        for cell, ratio in zip(first, ratios, strict=True)
    ]
    said = list(repeated_reads([*first, *repeated]))
    assert said == ([] if note is None else [f"data that was read before came at {note}"])
