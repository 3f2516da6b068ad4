"""From a drive to a prediction and its error: calibrate, predict, run --predict, on a small
directory with real I/O."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.config.hardware import HEADER, read_hardware
from kv_cache.files.environment import Reader, filesystem
from kv_cache.result.verify import recheck
from tests.cli import PATIENCE_S, SMALL, command, environment, prepare, small, start, wait_for
from tests.cli import run as program

FEW = (
    *("--size-gib=0.06", "--seconds=1", "--sizes-mib=0.25,1,2", "--concurrency=1,4"),
    *("--read-shares=0.5", "--no-dram"),
)
RUN = ("run", "--model=tiny-1b", "--gpu-mem-gb=0", "--cpu-mem-gb=0")
LOAD = ("--semantics=serving", "--block-tokens=32", "--max-requests=12", "--cpu-mem-gb=0")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with hw.yaml, measured once."""
    place = tmp_path_factory.mktemp("machine")
    if filesystem(Reader(), place)["type"] == "tmpfs":
        pytest.skip("the temporary directory is in memory")
    ran = program(place, "calibrate", "--cache-dir=cache", "--output=hw.yaml", *FEW)
    assert ran.code == 0, ran.err
    assert "storage.drive   measured" in ran.out
    assert "hardware  hw.yaml" in ran.out
    return place


def use(calibrated: Path, tmp_path: Path) -> Path:
    for name in ("hw.yaml", "hw.drive.probe.yaml"):
        (tmp_path / name).write_bytes((calibrated / name).read_bytes())
    prepare(tmp_path)
    return tmp_path


def test_calibrate_writes_the_probe_and_the_profile_that_names_it(calibrated: Path) -> None:
    found = read_hardware(calibrated / "hw.yaml")
    drive = found.storage["drive"]
    assert (calibrated / "hw.yaml").read_text().startswith(HEADER)
    assert drive.probe == "hw.drive.probe.yaml"
    assert drive.provenance.how == "measured"
    assert drive.provenance.sourced
    assert "kv-cache" in drive.provenance.versions
    grid = found.curves["drive"]
    assert {c.concurrency for c in grid.cells} == {1, 4}
    assert {c.read_share for c in grid.cells} == {0.0, 0.5, 1.0}
    assert {b.concurrency for b in grid.bursts} == {4}
    assert any(c.deletes is not None for c in grid.cells)
    assert grid.facts["io"]["layout"] == "file"
    assert sorted(p.name for p in calibrated.iterdir()) == [
        "hw.drive.probe.yaml", "hw.yaml", "small.yaml",
    ]  # fmt: skip


def test_a_run_holds_its_prediction_the_measurement_and_the_error(
    calibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = use(calibrated, tmp_path)
    ran = small(place, "--predict=hw.yaml", *LOAD)
    assert ran.code == 0, ran.err
    twin = ran.own["twin"]
    assert twin["profile"]["hardware"]["file"] == "hw.yaml"
    assert len(twin["profile"]["sha256"]) == 64
    assert set(twin["prediction"]) == set(twin["measurement"]) == set(twin["error"])
    assert twin["extrapolated"] == []
    for name in ("storage_read_bytes_per_s", "requests_per_s", "storage_load_device_p50_ms"):
        predicted, measured = twin["prediction"][name], twin["measurement"][name]
        assert predicted > 0
        assert measured > 0
        error = twin["error"][name]
        assert error["absolute"] == pytest.approx(predicted - measured)
        assert error["relative"] == pytest.approx((predicted - measured) / measured)
    storage = ran.own["tiers"]["storage"]
    assert twin["measurement"]["storage_read_bytes_per_s"] == storage["read"]["bytes_per_second"]
    assert ran.own["driver"] == "real-io"
    assert "twin" in ran.out
    assert "storage read, GiB/s" in ran.out
    monkeypatch.chdir(place)
    assert main(["verify", "R.json"]) == 0
    document = json.loads((place / "R.json").read_bytes())
    twin = document["kv_cache"]["twin"]
    twin["error"]["requests_per_s"]["relative"] = 0.0
    assert "twin.error.requests_per_s.relative says 0.0" in recheck(document)[0]
    twin["measurement"]["block_hit_ratio"] = 0.123
    assert "twin.measurement.block_hit_ratio says 0.123" in "\n".join(recheck(document))
    del twin["error"]
    assert "kv_cache.twin.error is missing" in "\n".join(recheck(document))
    for form in ("md", "html"):
        assert main(["report", "R.json", f"--output=T.{form}"]) == 0
        assert "storage load device p50" in (place / f"T.{form}").read_text()


def test_a_prediction_names_what_the_run_does_otherwise(calibrated: Path, tmp_path: Path) -> None:
    """Writes through the page cache, and a cache that rounds have filled."""
    more = ("--set=io.write_engine=buffered", "--precondition", "--max-rounds=1", "--round=0.3")
    ran = small(use(calibrated, tmp_path), "--predict=hw.yaml", *LOAD, *more)
    assert ran.code == 0, ran.err
    notes = "\n".join(ran.own["twin"]["notes"])
    assert "measured with write engine direct, the run has buffered" in notes
    assert "the rounds of --precondition leave the run a cache" in notes


def test_predict_moves_nothing_and_says_the_same_in_every_process(
    calibrated: Path, tmp_path: Path
) -> None:
    place = use(calibrated, tmp_path)
    sections = []
    for seed in ("0", "77"):
        done = subprocess.run(
            command(
                "predict", "--profile=hw.yaml", "--config=small.yaml", "--model=tiny-1b", *LOAD,
                "--gpu-mem-gb=0", "--storage-capacity-gb=0.5", "--num-users=4", "--seed=3",
                "--generation-mode=none", "--output=P.json", "--no-progress",
            ),
            cwd=place, env={**environment(), "PYTHONHASHSEED": seed}, capture_output=True,
            text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        document = json.loads((place / "P.json").read_bytes())
        assert document["kv_cache"]["driver"] == "virtual-time"
        sections.append((document["kv_cache"]["twin"], done.stdout))
    assert sections[0] == sections[1]
    assert recheck(document) == []
    document["kv_cache"]["twin"]["prediction"]["requests_per_s"] = 1e9
    assert "twin.prediction.requests_per_s says" in recheck(document)[0]
    twin, told = sections[0]
    assert "measurement" not in twin
    assert twin["prediction"]["storage_write_bytes_per_s"] > 0
    assert "storage store device p50, ms" in told
    assert not (place / "cache").exists()


def test_predict_and_run_foresee_the_same(calibrated: Path, tmp_path: Path) -> None:
    place = use(calibrated, tmp_path)
    ran = small(place, "--predict=hw.yaml", *LOAD)
    args = [*SMALL, "--cache-dir=cache", *LOAD, "--profile=hw.yaml", "--output=P.json", "--json"]
    alone = program(place, "predict", *args)
    assert alone.code == 0, alone.err
    document = json.loads((place / "P.json").read_bytes())
    assert json.loads(alone.out) == document["kv_cache"]["twin"]
    assert document["kv_cache"]["twin"]["prediction"] == ran.own["twin"]["prediction"]


def test_objects_outside_the_probed_sizes_are_refused_or_marked(
    calibrated: Path, tmp_path: Path
) -> None:
    place = use(calibrated, tmp_path)
    load = ("--semantics=serving", "--block-tokens=256", "--max-requests=4", "--cpu-mem-gb=0")
    refused = small(place, "--predict=hw.yaml", *load)
    assert (refused.code, refused.result) == (2, None)
    assert refused.err.count("\n") == 1
    assert "it has measured 256 KiB to 2.0 MiB" in refused.err
    marked = small(place, "--predict=hw.yaml", "--extrapolate", *load)
    assert marked.code == 0, marked.err
    twin = marked.own["twin"]
    assert twin["extrapolated_answers"] > 0
    assert "storage_read_bytes_per_s" in twin["extrapolated"]
    assert "block_hit_ratio" not in twin["extrapolated"]
    assert "* extrapolated" in marked.out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((*RUN, "--predict=none.yaml"), "none.yaml cannot be read"),
        ((*RUN, "--predict=small.yaml"), "its schema is empty"),
        ((*RUN, "--predict=hw.yaml", "--cache-dir=a", "--cache-dir=b"), "has 2 cache directories"),
        (("predict",), "predict needs what was measured: --profile FILE"),
        (("predict", "--profile=hw.yaml", "--trials=2"), "run.trials (--trials) cannot be given"),
        (("predict", "--profile=hw.yaml", "--predict=hw.yaml"), "cannot be given to predict"),
        (("calibrate", "--cache-dir=/dev/shm/x", "--output=o.yaml"), "it is in memory"),
        (("calibrate", "--cache-dir=s3://b/p", "--output=o.yaml"), "an object store is not one"),
        (("calibrate", "--probe=none.yaml", "--output=o.yaml"), "cannot be read"),
        (("calibrate", "--overlay=none.yaml", "--output=o.yaml"), "cannot be read"),
        (("calibrate", "--overlay=late.yaml", "--output=o.yaml"), "and today is"),
        (("calibrate", "--overlay=dram.yaml", "--output=o.yaml"), "dram was measured here"),
        (("calibrate", "--overlay=link.yaml", "--output=o.yaml"), "nvlink is given, but topology"),
        (("calibrate", "--overlay=link.yaml", "--output=o.yaml"), "o.yaml with link.yaml: nvlink"),
        (("calibrate", "--overlay=loop.yaml", "--output=o.yaml"), "inside of what it repeats"),
        (("calibrate", "--no-dram", "--output=o.yaml"), "nothing would be in the profile"),
        (("predict", "--profile=next.yaml"), "its schema is 'kv-cache-hardware/2', not kv-cache-h"),
        (("calibrate", "--output=small.yaml"), "a file of that name is there"),
        (("calibrate", "--read-shares=2", "--cache-dir=c", "--output=o.yaml"), "0.01 to 0.99 ea"),
        (("calibrate", "--probe=a=p", "--cache-dir=a=c", "--output=o.yaml"), "two drives are cal"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_made(
    calibrated: Path,
    tmp_path: Path,
    args: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = use(calibrated, tmp_path)
    head = "schema: kv-cache-hardware/1\n"
    (place / "late.yaml").write_text(
        head + "nic: {bytes_per_s: 1, provenance: {source: a, date: 2999-01-01}}\n"
    )
    (place / "dram.yaml").write_text(head + "dram: {copy_bytes_per_s: 1}\n")
    (place / "link.yaml").write_text(head + "nvlink: {bytes_per_s: 1}\n")
    (place / "loop.yaml").write_text(head + "gpus: &a {h100: *a}\n")
    (place / "next.yaml").write_text(head.replace("/1", "/2"))
    before = sorted(p.name for p in place.iterdir())
    monkeypatch.chdir(place)
    code, told = main(args), capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1), told.err
    assert sentence in told.err
    assert sorted(p.name for p in place.iterdir()) == before


def test_overlays_and_a_probe_that_was_made_before_make_a_profile(
    calibrated: Path, tmp_path: Path
) -> None:
    place = use(calibrated, tmp_path)
    (place / "more.yaml").write_text(
        "schema: kv-cache-hardware/1\n"
        "topology: {gpus_per_node: 8}\n"
        "nvlink: {bytes_per_s: 450e9, provenance: {source: data sheet, date: 2026-01-01}}\n"
    )
    ran = program(
        place, "calibrate", "--probe=nvme=hw.drive.probe.yaml", "--overlay=more.yaml",
        "--output=all.yaml", "--name=lab", "--no-dram",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = read_hardware(place / "all.yaml")
    assert found.name == "lab"
    assert found.nvlink.bytes_per_s == 450e9
    assert found.storage["nvme"].provenance.how == "measured"
    assert "nvlink          overlay    data sheet, 2026-01-01" in ran.out


def test_a_signal_leaves_no_profile_and_no_files(tmp_path: Path) -> None:
    if filesystem(Reader(), tmp_path)["type"] == "tmpfs":
        pytest.skip("the temporary directory is in memory")
    args = ("calibrate", "--cache-dir=cache", "--output=hw.yaml", "--no-dram", "--seconds=300",
            "--size-gib=0.1", "--sizes-mib=1", "--concurrency=1")  # fmt: skip
    with start(tmp_path, args) as process:
        wait_for(lambda: any((tmp_path / "cache").rglob("*.kv")), process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 143, err
    assert "no hardware profile is written" in out
    assert [p.name for p in tmp_path.iterdir()] == ["small.yaml"]


def test_a_dry_run_of_a_calibration_names_all_files_and_makes_none(
    calibrated: Path, tmp_path: Path
) -> None:
    place = use(calibrated, tmp_path)
    before = sorted(p.name for p in place.iterdir())
    ran = program(
        place, "calibrate", "--probe=old=hw.drive.probe.yaml", "--cache-dir=new=cache", "--dry-run",
        "--output=all.yaml", *FEW[:-1],
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    for words in ("old probe", "new directory  cache on", "all.new.probe.yaml", "all.yaml\n"):
        assert words in ran.out
    assert sorted(p.name for p in place.iterdir()) == before


def test_memory_is_measured_and_sourced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_cache.bench.dram.PASSES", 3)
    monkeypatch.setattr("kv_cache.bench.dram._CACHES", 1)  # a rate that is too high does no harm
    ran = program(tmp_path, "calibrate", "--output=hw.yaml")
    assert ran.code == 0, ran.err
    dram: Any = read_hardware(tmp_path / "hw.yaml").dram
    if "memory is not measured" in ran.out:
        assert not dram.has_values
        return
    assert dram.copy_bytes_per_s >= dram.copy_one_thread_bytes_per_s > 1e8
    assert dram.provenance.how == "measured"
    assert str(len(os.sched_getaffinity(0))) in dram.provenance.source


@pytest.mark.parametrize("name", ["calibrate", "predict"])
def test_help_teaches(tmp_path: Path, name: str) -> None:
    ran = program(tmp_path, name, "--help")
    assert ran.code == 0
    for word in ("--output", "examples:", "exit code"):
        assert word in ran.out
