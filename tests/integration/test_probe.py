"""`kv-cache.py probe`: a real device is measured, and nothing but the profile stays."""

import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.devices import LOOP_TOOLS, ram_directory, why_not
from kv_cache.bench.cache_dir import LOCK_NAME
from kv_cache.cli.report import main as report
from kv_cache.config.profile import HEADER, read_profile
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import KIB, MIB, MISSING, PAGE_BYTES
from kv_cache.files.environment import Reader, filesystem
from kv_cache.sim.profile_model import ProfileModel
from kv_cache.tiers import native
from tests.cli import ONE_SIGNAL, PATIENCE_S, called, command, environment, small, wait_for

FEW = ("--size-gib=0.05", "--sizes-mib=0.25,1", "--concurrency=2", "--seconds=1")


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if filesystem(Reader(), tmp_path)["type"] in ("tmpfs", "ramfs"):
        pytest.skip("the temporary directory is in memory")
    return tmp_path


def start(cwd: Path, *args: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command("probe", *args), cwd=cwd, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def run(cwd: Path, *args: str) -> tuple[int, str, str]:
    return called(cwd, "probe", *args)


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@dataclass(frozen=True, slots=True)
class Measured:
    """A small grid of a real device: its directory afterwards, and what was printed."""

    place: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    place = tmp_path_factory.mktemp("grid")
    if filesystem(Reader(), place)["type"] in ("tmpfs", "ramfs"):
        pytest.skip("the temporary directory is in memory")
    return Measured(place, *run(place, "--cache-dir=cache", "--profile=disk.yaml", *FEW))


@dataclass(frozen=True, slots=True)
class Small:
    """Small objects of a device with sectors of so many bytes."""

    sector_bytes: int
    profile: Path
    out: str


def test_a_small_grid_is_measured_and_only_the_profile_stays(measured: Measured) -> None:
    assert (measured.code, measured.err) == (0, ""), measured.out
    out = measured.out
    assert tree(measured.place) == ["disk.yaml"]
    assert out.endswith("profile  disk.yaml\n")
    found = read_profile(measured.place / "disk.yaml")
    points = {(c.object_bytes, c.concurrency, c.read_share, c.repeated) for c in found.cells}
    assert points == {
        (size, depth, share, repeated)
        for size in (256 * KIB, MIB)
        for depth in (1, 2)
        for share, repeated in ((0.0, False), (0.5, False), (1.0, False), (1.0, True))
    }
    assert out.startswith("Device profile: COMPLETE. The device reads up to ")
    rows = [words for line in out.splitlines() if (words := line.split())[:1] in (["0.25"], ["1"])]
    assert [words[:2] for words in rows] == [["0.25", "1"], ["0.25", "2"], ["1", "1"], ["1", "2"]]
    assert all(len(words) == 10 and words[2] != MISSING != words[7] for words in rows)
    assert found.facts["refused"] == []
    assert found.facts["io"]["engine"] == "direct"
    assert found.facts["filesystem"]["type"]
    assert found.facts["probe"]["failed_operations"] == 0
    assert found.facts["probe"]["verified_objects"] > 0
    told = found.facts["counted"]
    if told["device_read_bytes"] is not None:
        assert told["process_read_bytes"] == pytest.approx(told["claimed_read_bytes"], rel=0.05)


def test_virtual_time_takes_the_profile_that_was_written(
    measured: Measured, tmp_path: Path
) -> None:
    shutil.copy(measured.place / "disk.yaml", tmp_path)
    ran = small(
        tmp_path,
        "--virtual-time",
        "--profile=disk.yaml",
        "--semantics=serving",
        "--block-tokens=32",
        "--max-requests=20",
    )
    assert ran.code == 0, ran.err
    assert ran.own["tiers"]["storage"]["store"]["profile"]["file"] == "disk.yaml"


def test_the_profile_is_named_after_the_device_and_none_is_overwritten(on_disk: Path) -> None:
    for _ in range(2):
        code, out, _ = run(on_disk, "--cache-dir=cache", *FEW)
        assert code == 0, out
    names = tree(on_disk)
    assert len(names) == 2
    assert all(name.startswith("profile-") and name.endswith(".yaml") for name in names)


def test_sizes_that_do_not_fit_are_refused_and_said(on_disk: Path) -> None:
    code, out, _ = run(
        on_disk,
        *("--cache-dir=cache", "--profile=p.yaml", "--size-gib=0.05", "--seconds=1"),
        *("--sizes-mib=0.25,4", "--concurrency=1,8"),
    )
    assert code == 0, out
    assert "! not measured: 4.0 MiB x8: needs 128.0 MiB of data (--size-gib)" in out
    found = read_profile(on_disk / "p.yaml")
    # On a busy machine a thread may also have had nothing to do while others worked.
    too_large = [r for r in found.facts["refused"] if "of data (--size-gib)" in r["reason"]]
    assert {(r["object_bytes"], r["concurrency"]) for r in too_large} == {(4 * MIB, 8)}
    assert not any(c.object_bytes == 4 * MIB and c.concurrency == 8 for c in found.cells)


@pytest.mark.parametrize("size", ["1MiB", "4KiB"])
@pytest.mark.parametrize(("number", "code"), ONE_SIGNAL)
def test_a_signal_leaves_nothing_behind(
    on_disk: Path, number: signal.Signals, code: int, size: str
) -> None:
    mine = on_disk / "cache" / "mine.txt"
    mine.parent.mkdir()
    mine.touch()
    args = ("--cache-dir=cache", "--profile=p.yaml", "--size-gib=0.05", f"--sizes={size}")
    with start(on_disk, *args, "--seconds=300") as process:
        wait_for(lambda: any((on_disk / "cache").rglob("*.arena.kv")), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, err
    assert "no profile is written" in out
    assert tree(on_disk) == ["cache", "cache/mine.txt"]


def test_after_a_kill_the_next_probe_removes_what_was_left(on_disk: Path) -> None:
    args = ("--cache-dir=cache", "--size-gib=0.05", "--sizes-mib=1", "--seconds=300")
    with start(on_disk, *args) as process:
        wait_for(lambda: any((on_disk / "cache").rglob("*.arena.kv")), process)
        process.kill()
        process.communicate()
    assert (on_disk / "cache" / LOCK_NAME).exists()
    assert run(on_disk, "--cache-dir=cache", "--profile=p.yaml", *FEW)[0] == 0
    assert [name for name in tree(on_disk) if name != "cache"] == ["p.yaml"]


def test_a_file_system_in_memory_is_refused(tmp_path: Path) -> None:
    if filesystem(Reader(), Path("/dev/shm"))["type"] != "tmpfs":
        pytest.skip("/dev/shm is not a tmpfs")
    code, out, err = run(tmp_path, "--cache-dir=/dev/shm/kv-probe-test", *FEW)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "it is in memory (tmpfs), where no device accounts" in err
    assert not Path("/dev/shm/kv-probe-test").exists()


def test_a_foreign_profile_is_not_replaced_and_nothing_is_measured(tmp_path: Path) -> None:
    mine = tmp_path / "p.yaml"
    mine.write_text("mine: 1\n")
    code, out, err = run(tmp_path, "--cache-dir=cache", "--profile=p.yaml", *FEW)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--profile p.yaml: a file of that name is there" in err
    assert mine.read_text() == "mine: 1\n"
    assert tree(tmp_path) == ["p.yaml"]


def test_a_profile_of_ours_is_replaced(on_disk: Path) -> None:
    (on_disk / "p.yaml").write_text(f"{HEADER}\nold\n")
    assert run(on_disk, "--cache-dir=cache", "--profile=p.yaml", *FEW)[0] == 0
    assert read_profile(on_disk / "p.yaml").cells


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "probe: --cache-dir is missing"),
        (("--cache-dir=/etc/kv",), "system directory"),
        (("--cache-dir=c", "--size-gib=0"), "--size-gib is 0.0; it must be a number, above 0"),
        (("--cache-dir=c", "--size-gib=1000000"), "more than 90 % of the free space"),
        (("--cache-dir=c", "--size-gib=0.1"), "objects of 80.0 MiB need 320.0 MiB of data"),
        (("--cache-dir=c", "--seconds=0"), "--seconds is 0.0; it must be a number, 1 to 86400"),
        (("--cache-dir=c", "--sizes-mib=a"), "--sizes-mib is 'a'; it must be a number"),
        (("--cache-dir=c", "--sizes-mib=0.3"), "not a multiple of 4 KiB"),
        (("--cache-dir=c", "--sizes-mib=0"), "of numbers, 0.00048828125 to 1024 each"),
        (("--cache-dir=c", "--sizes=a"), "--sizes has 'a' in it; it must be a list of whole bytes"),
        (("--cache-dir=c", "--sizes=512,"), "--sizes has '' in it"),
        (("--cache-dir=c", "--sizes=511"), "512 to 1GiB each, such as 512,4KiB,2MiB"),
        (("--cache-dir=c", "--sizes=2GiB"), "512 to 1GiB each"),
        (("--cache-dir=c", "--sizes=700"), "700 is not a multiple of 512 B, which direct I/O"),
        (("--cache-dir=c", "--sizes=262656"), "is not a multiple of 4 KiB, which direct I/O"),
        (("--cache-dir=c", "--sizes=4KiB", "--sizes-mib=1"), "the former name of --sizes; give"),
        (
            ("--cache-dir=c", "--sizes=512", "--layout=file"),
            "objects of 512 B, which are not whole pages of 4 KiB, are measured by native code",
        ),
        (("--cache-dir=c", "--sizes=512", "--fsync=object"), "--fsync never alone"),
        (
            ("--cache-dir=c", "--concurrency=1.5"),
            "is '1.5'; it must be a whole number, 1 to 256",
        ),
        (
            ("--cache-dir=c", "--concurrency=nan"),
            "is 'nan'; it must be a whole number, 1 to 256",
        ),
        (("--cache-dir=c", "--profile=no/p.yaml"), "there is no directory no"),
        (("--cache-dir=c", "--profile=."), "it is a directory"),
        (("--cache-dir=c", "--quick"), "--quick is not a flag"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_made(
    tmp_path: Path, args: tuple[str, ...], sentence: str
) -> None:
    if filesystem(Reader(), tmp_path)["type"] == "tmpfs":
        pytest.skip("the temporary directory is in memory")
    code, out, err = run(tmp_path, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert tree(tmp_path) == []


def test_a_dry_run_says_what_would_be_done_and_makes_nothing(on_disk: Path) -> None:
    code, out, err = run(on_disk, "--cache-dir=cache", "--profile=p.yaml", "--dry-run", *FEW)
    assert (code, err) == (0, "")
    told = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert told["directory"].startswith("cache on ")
    assert told["data"] == "48.0 MiB of files, removed at the end"
    assert told["time"] == "about 1 s"
    assert told["profile"] == "p.yaml"
    assert tree(on_disk) == []


# --- small objects -------------------------------------------------------------------------------

SMALL = ("--size-gib=0.04", "--sizes=512,1536,256KiB", "--concurrency=2", "--seconds=5")


@pytest.fixture(scope="module", params=[512, 4096])
def in_memory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Small objects on a device with sectors of so many bytes, and what was printed."""
    reason = why_not(LOOP_TOOLS)
    if reason is not None or isinstance(native.library(), str):
        pytest.skip(reason or str(native.library()))
    place = tmp_path_factory.mktemp("small")
    with ram_directory(0.1, sector_bytes=request.param) as directory:
        code, out, err = run(place, f"--cache-dir={directory}/c", "--profile=p.yaml", *SMALL)
        assert (code, err, list(directory.glob("c"))) == (0, "", []), out
    return Small(request.param, place / "p.yaml", out)


def test_small_objects_are_moved_in_the_least_that_the_device_moves(in_memory: Small) -> None:
    profile = read_profile(in_memory.profile)
    assert profile.facts["io"]["block_bytes"] == in_memory.sector_bytes
    assert profile.facts["refused"] == []
    points = {(c.object_bytes, c.concurrency, c.read_share, c.repeated) for c in profile.cells}
    assert len(points) == 3 * 2 * 4
    assert all(cell.data_path == "native" for cell in profile.cells)
    moved = {cell.object_bytes: cell.device_bytes for cell in profile.cells}
    larger = None if in_memory.sector_bytes == 512 else PAGE_BYTES
    assert moved == {512: larger, 1536: larger, 256 * KIB: None}
    counted = profile.facts["counted"]
    for kind in ("read", "write"):
        claimed = counted[f"claimed_{kind}_bytes"]
        assert counted[f"process_{kind}_bytes"] == pytest.approx(claimed, rel=0.02)
        assert counted[f"device_{kind}_bytes"] == pytest.approx(claimed, rel=0.02)


def test_useful_bytes_and_those_of_the_device_are_both_shown(in_memory: Small) -> None:
    heading = next(line for line in in_memory.out.splitlines() if line.startswith("object, KiB"))
    rows = [line.split() for line in in_memory.out.splitlines() if line.split()[-1:] == ["native"]]
    assert [row[:2] for row in rows] == [[k, n] for k in ("0.5", "1.5", "256") for n in ("1", "2")]
    assert "read, 1/s" in heading
    assert "write, 1/s" in heading
    both = in_memory.sector_bytes == 4096
    assert ("read by device, GiB/s" in heading) == ("moved for one, KiB" in heading) == both
    if both:
        assert {row[-2] for row in rows} == {"4", "256"}
        assert float(rows[0][3]) == pytest.approx(8 * float(rows[0][2]), rel=0.01)
    assert "operations/s (" in in_memory.out.splitlines()[0]


def test_virtual_time_and_every_form_take_small_objects(
    in_memory: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = read_profile(in_memory.profile)
    model = ProfileModel(profile)
    for nbytes in (512, 1024, 4096):
        assert model.service_ns(OpKind.READ, nbytes, 2, 1.0) > 0
    assert model.depth(512, 4096) == 2
    monkeypatch.chdir(in_memory.profile.parent)
    assert report([str(in_memory.profile)]) == 0
    page = in_memory.profile.with_suffix(".html").read_text()
    assert "Read operations" in page
    assert page.index("Read operations") < page.index("Write operations")


def test_the_former_name_of_sizes_means_the_same(on_disk: Path) -> None:
    plans = []
    for sizes in ("--sizes-mib=0.25,2", "--sizes=262144,2MiB", "--set=sizes=256KiB,2048KiB"):
        code, out, err = run(on_disk, "--cache-dir=cache", "--dry-run", "--size-gib=0.2", sizes)
        assert (code, err) == (0, "")
        plans.append([line for line in out.splitlines() if line.startswith("objects")])
    assert plans[0] == plans[1] == plans[2]
    assert "256 KiB, 2.0 MiB, with 1, 4, 16 in flight" in plans[0][0]


def test_without_the_library_small_objects_are_whole_pages_and_say_so(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", lambda: "the library was not built")
    code, _, err = run(on_disk, "--cache-dir=c", "--sizes=512", "--size-gib=0.01")
    assert (code, err.count("\n")) == (2, 1)
    assert "are measured by native code (the library was not built); give multiples" in err
    few = ("--size-gib=0.01", "--sizes=4KiB", "--concurrency=1", "--seconds=1")
    code, _, err = run(on_disk, "--cache-dir=c", "--profile=p.yaml", *few)
    assert code == 0, err
    assert {cell.data_path for cell in read_profile(on_disk / "p.yaml").cells} == {"python"}


def test_help_teaches() -> None:
    code, out, _ = run(Path.cwd(), "--help")
    assert code == 0
    for word in ("--size-gib", "--seconds", "--profile", "examples:", "exit code"):
        assert word in out
