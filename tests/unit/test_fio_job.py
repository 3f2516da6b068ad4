"""The fio job of a result: what it takes over, and what it refuses."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.core.kinds import OpKind
from kv_cache.core.units import KIB, MIB, MISSING, NS_PER_MS, PAGE_BYTES
from kv_cache.files.fio import (
    CLASSES,
    HEADER,
    Twin,
    derive,
    job_text,
    size_classes,
    what_it_does,
)
from kv_cache.files.fio_report import read_answer, read_logs
from kv_cache.files.reading import read_result, require_replaceable
from kv_cache.metrics.histogram import Histogram
from kv_cache.view.beside_fio import beside_fio_view
from kv_cache.view.terminal import terminal
from tests.results import WINDOW_S, document, row, write

FILE = Path("R.json")
READ_MS, WRITE_MS = 4 * NS_PER_MS, 5 * NS_PER_MS


def twin(rows: Sequence[dict[str, Any]], **store: Any) -> Twin:
    return derive(document(rows, **store), FILE)


def sections(text: str) -> dict[str, dict[str, str]]:
    """The job file, as fio reads it."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            found[name] = {}
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[name][key] = value
    return found


def job(rows: Sequence[dict[str, Any]], **store: Any) -> dict[str, dict[str, str]]:
    return sections(job_text(twin(rows, **store), 10))


def reads(count: int = 100, size: int = 2 * MIB, ns: int = READ_MS, **more: Any) -> dict[str, Any]:
    return row("read", [size] * count, [ns] * count, **more)


# --- sizes -----------------------------------------------------------------------------------


def histogram(values: Sequence[int]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


pages = st.integers(1, 40_000).map(lambda n: n * PAGE_BYTES)


@given(st.lists(pages, min_size=1, max_size=300))
def test_classes_of_sizes_keep_the_bytes_within_one_percent(values: list[int]) -> None:
    classes = size_classes(histogram(values))
    assert 1 <= len(classes) <= CLASSES
    assert sum(c.percent for c in classes) == 100
    assert all(c.nbytes % PAGE_BYTES == 0 and c.percent >= 1 for c in classes)
    mean = sum(values) / len(values)
    told = sum(c.nbytes * c.percent for c in classes) / 100
    assert abs(told - mean) <= max(0.01 * mean, PAGE_BYTES / 2)


@given(pages, st.integers(1, 500))
def test_objects_of_one_size_are_one_class(size: int, count: int) -> None:
    (only,) = size_classes(histogram([size] * count))
    assert (only.nbytes, only.percent) == (size, 100)


def test_two_sizes_in_whole_percents_are_two_classes() -> None:
    classes = size_classes(histogram([256 * KIB] * 30 + [2 * MIB] * 70))
    assert [c.percent for c in classes] == [30, 70]
    assert classes[1].nbytes == 2 * MIB


# --- concurrency -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_flight", "threads", "think_ms"), [(4.0, 4, 0), (0.5, 1, 4.0), (2.5, 3, 0.8), (0.99, 1, 0)]
)
def test_threads_think_so_that_littles_law_holds(
    in_flight: float, threads: int, think_ms: float
) -> None:
    count = round(in_flight * WINDOW_S / 0.004)
    (side,) = twin([reads(count)]).sides
    assert side.in_flight == pytest.approx(in_flight, rel=1e-3)
    assert side.threads == threads
    assert side.think_ns / NS_PER_MS == pytest.approx(think_ms, rel=1e-2)


def test_reads_and_writes_are_jobs_of_their_own() -> None:
    made = job([reads(5000), row("write", [MIB] * 250, [WRITE_MS] * 250)])
    assert made["reads"]["numjobs"] == "2"
    assert made["writes"]["numjobs"] == "1"
    assert int(made["writes"]["thinktime"]) == pytest.approx(35_000, rel=1e-2)
    assert made["reads"]["bs"] == str(2 * MIB)
    assert made["writes"]["bs"] == str(MIB)
    assert all("new_group" in made[name] for name in ("reads", "writes"))


def test_operations_outside_the_window_do_not_count() -> None:
    only = twin([reads(10), reads(90, phase="warmup"), reads(90, phase="drain")])
    assert only.sides[0].operations == 10


def test_all_causes_of_a_read_are_one_side() -> None:
    both = twin([reads(10), row("read", [MIB] * 30, [READ_MS] * 30, cause="promotion")])
    assert both.sides[0].operations == 40
    assert [(s.nbytes, s.percent) for s in both.sides[0].sizes] == [(MIB, 75), (2 * MIB, 25)]


# --- engines and layouts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "name", "direct"),
    [
        ("direct", "psync", "1"),
        ("buffered", "psync", "0"),
        ("mmap", "mmap", "0"),
        ("uring", "io_uring", "1"),
    ],
)
def test_each_engine_has_its_equivalent(engine: str, name: str, direct: str) -> None:
    made = job([reads(engine=engine)])
    assert (made["reads"]["ioengine"], made["reads"]["direct"]) == (name, direct)


def test_an_engine_that_fio_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"engine of its storage reads is 'null'.*--io-engine"):
        twin([reads(engine="null")])


def test_a_file_an_object_is_opened_anew_for_each() -> None:
    made = job([reads(), row("write", [MIB] * 9, [WRITE_MS] * 9)], layout="file")
    for name, rw in (("reads", "read"), ("writes", "write")):
        # Not rand*: with one open file of one object fio would stay with the first for good.
        assert made[name]["rw"] == rw
        assert made[name]["filesize"] == made[name]["bs"]
        assert made[name]["openfiles"] == "1"
    assert "create_on_open" in made["writes"]
    assert "create_on_open" not in made["reads"]


def test_an_arena_is_one_preallocated_file() -> None:
    made = job([reads(1000), row("write", [MIB] * 9, [WRITE_MS] * 9)], layout="arena")
    assert made["reads"]["rw"] == "randread"
    assert made["reads"]["filename"] == "reads.kv"
    assert made["reads"]["filesize"] == str(32 * MIB)
    assert made["reads"]["blockalign"] == str(2 * MIB)
    assert made["writes"]["overwrite"] == "1"


def test_a_raw_device_is_one_file_in_parts_of_its_own() -> None:
    made = document([reads(1000), row("write", [MIB] * 9, [WRITE_MS] * 9)], layout="arena")
    place = {"type": "raw device", "source": "/dev/nvme1n1"}
    made["kv_cache"]["environment"]["filesystem"] = place
    on_device = derive(made, FILE)
    jobs = sections(job_text(on_device, 10))
    assert {each["filename"] for each in (jobs["reads"], jobs["writes"])} == {"/dev/nvme1n1"}
    assert (jobs["reads"]["offset"], jobs["reads"]["size"]) == ("0", str(32 * MIB))
    assert jobs["writes"]["offset"] == str(32 * MIB)
    assert any("its writes overwrite it" in text for text in on_device.unlike())


def test_a_mix_of_sizes_goes_to_one_file_and_says_so() -> None:
    mixed = twin([row("read", [MIB, 3 * MIB] * 50, [READ_MS] * 100)], layout="file")
    made = sections(job_text(mixed, 10))
    assert made["reads"]["bssplit"] == f"{MIB}/50:{3 * MIB}/50"
    assert "norandommap" in made["reads"]
    assert any("cannot differ in size" in text for text in mixed.unlike())


def test_the_calls_of_an_object_follow_each_other() -> None:
    made = job([reads(size=8 * MIB, calls=4)], layout="arena")
    assert made["reads"]["bs"] == str(2 * MIB)
    assert made["reads"]["rw"] == "randread:4"
    assert made["reads"]["blockalign"] == str(8 * MIB)


def test_calls_of_objects_that_differ_in_size_are_told_apart_from_fios() -> None:
    mixed = twin([row("read", [MIB, 3 * MIB] * 50, [READ_MS] * 100, calls=3)])
    assert mixed.sides[0].calls == 1
    assert any("3.0 system calls for an object" in text for text in mixed.unlike())


@pytest.mark.parametrize(
    ("fsync", "wanted"), [("never", None), (False, None), ("object", "dsync"), (True, "dsync")]
)
def test_fsync_is_inside_fios_latency(fsync: str | bool, wanted: str | None) -> None:
    made = job([row("write", [MIB] * 9, [WRITE_MS] * 9)], fsync=fsync)
    assert made["writes"].get("sync") == wanted


def test_reads_and_writes_may_have_engines_of_their_own() -> None:
    made = job([reads(), row("write", [MIB] * 9, [WRITE_MS] * 9, engine="buffered")])
    assert (made["reads"]["direct"], made["writes"]["direct"]) == ("1", "0")


def test_one_fsync_for_several_writes_is_one_in_fio_too() -> None:
    made = twin([row("write", [MIB] * 9, [WRITE_MS] * 9)], fsync="batch")
    assert sections(job_text(made, 10))["writes"]["fsync"] == "8"
    assert any("fsync" in text for text in made.unlike())


def test_directories_are_named_as_fio_wants_them() -> None:
    text = job_text(twin([reads()]), 10, ["/mnt/a", "/mnt/b:c"])
    assert sections(text)["reads"]["directory"] == r"/mnt/a:/mnt/b\:c"
    assert text.startswith(HEADER)


def test_a_mix_of_sizes_goes_to_a_file_in_each_directory() -> None:
    """fio puts a file that is named into the first of its directories alone."""
    mixed = twin([reads(100), reads(100, size=MIB)], peak_bytes=64 * MIB)
    text = job_text(replace(mixed, drives=2), 100, ["/mnt/a", "/mnt/b:c"])
    job = sections(text)["reads"]
    assert job["filename"] == r"/mnt/a/reads.kv:/mnt/b\:c/reads.kv"
    assert int(job["filesize"]) == 32 * MIB


@given(
    sizes=st.lists(st.integers(1, 2000), min_size=2, max_size=4),
    in_flight=st.tuples(st.floats(0.1, 40), st.floats(0.1, 40)),
    spare=st.floats(1, 4),
    drives=st.integers(1, 3),
    layout=st.sampled_from(["file", "arena"]),
)
def test_files_take_no_more_than_the_run_held(
    sizes: list[int], in_flight: tuple[float, float], spare: float, drives: int, layout: str
) -> None:
    """The disk held that, beside what else was on it."""
    *read_sizes, write_size = [pages * PAGE_BYTES for pages in sizes]
    each = [read_sizes * 20, [write_size] * 30]
    rows = [
        row(kind, of_kind, [round(busy * WINDOW_S * 1e9 / len(of_kind))] * len(of_kind))
        for kind, of_kind, busy in zip(("read", "write"), each, in_flight, strict=True)
    ]
    # One object a directory and side, and so few writers that each has an object of its own.
    held = round(spare * 2 * drives * max(*read_sizes, write_size))
    both = replace(twin(rows, peak_bytes=held, layout=layout), drives=drives)
    assert 0 < both.space_bytes(1000) <= held * 1.02  # sizes of a mix are classes


def test_files_take_no_more_than_the_run_held_or_fio_can_get_through() -> None:
    small = twin([reads(1000)])
    assert small.space_bytes(1000) == pytest.approx(64 * MIB, rel=0.05)
    writes = row("write", [MIB] * 5000, [10 * WRITE_MS] * 5000)  # by 25 threads
    full = sections(job_text(twin([reads(5000), writes], peak_bytes=30 * MIB), 1000))
    assert (full["reads"]["nrfiles"], full["writes"]["nrfiles"]) == ("1", "1")
    slow = twin([reads(10)], peak_bytes=1 << 40)
    assert slow.space_bytes(10) == 40 * MIB


def test_buffers_hold_one_system_call_of_the_run_where_whole_objects_do_not_fit() -> None:
    sizes = [64 * MIB] * 50 + [8 * MIB] * 50
    mixed = twin([row("read", sizes, [READ_MS * 100] * 100, calls=9)], peak_bytes=1 << 30)
    (side,) = mixed.sides
    assert mixed.memory_bytes() == side.threads * 64 * MIB
    frugal = mixed.in_less_memory()
    assert frugal.memory_bytes() == side.threads * 4 * MIB
    assert sections(job_text(frugal, 10))["reads"]["bs"] == str(4 * MIB)
    assert any("too little RAM" in text for text in frugal.unlike())
    assert twin([reads()]).in_less_memory().memory_bytes() == twin([reads()]).memory_bytes()


# --- what fio answers --------------------------------------------------------------------------


def report(kind: str) -> dict[str, Any]:
    told = {"50.000000": 2_000_000, "95.000000": 3_000_000, "99.000000": 4_000_000}
    numbers = {"io_bytes": 1 << 30, "bw_bytes": 1e9, "clat_ns": {"N": 1000, "percentile": told}}
    job = {"jobname": f"{kind}s", kind: numbers, "job_runtime": 2000}
    return {"fio version": "fio-3", "jobs": [job | {"usr_cpu": 10.0, "sys_cpu": 15.0}]}


def test_the_comparison_has_both_numbers_and_their_ratio() -> None:
    mine = twin([reads(1000)])
    answer = read_answer(mine, report("read"), {})
    assert answer.cpu_ns_per_gib == pytest.approx(0.5e9)
    text = terminal(beside_fio_view(mine, answer, ["fio is even"]))
    lines = {line[:13].strip(): line.split()[-3:] for line in text.splitlines()}
    assert text.startswith(
        "Beside fio: COMPARED. Of what fio-3 moved a second the run moved 0.2097"
    )
    assert "  ! fio is even" in text
    assert lines["read, GiB/s"] == ["0.1953", "0.9313", "0.2097"]
    assert [float(x) for x in lines["read p50, ms"]] == pytest.approx([4.0, 2.0, 2.0])
    assert float(lines["read p99, ms"][1]) == 4.0
    assert lines["CPU, s/GiB"][1] == "0.5"
    assert "1 thread, thinking 6.00 ms, 2 MiB, direct" in what_it_does(mine)


def test_there_is_no_ratio_to_a_side_on_which_fio_moved_nothing() -> None:
    mine, still = twin([reads(1000)]), report("read")
    still["jobs"][0]["read"]["bw_bytes"] = 0
    text = terminal(beside_fio_view(mine, read_answer(mine, still, {}), []))
    assert f"the run moved {MISSING} in reads." in text
    assert text.splitlines()[3].split()[-1] == MISSING


def test_the_latency_of_an_object_is_the_sum_of_its_calls(tmp_path: Path) -> None:
    mine = twin([reads(size=8 * MIB, calls=4)])
    assert f"write_lat_log={tmp_path}/read" in job_text(mine, 10, logs=tmp_path)
    calls = [*[10, 20, 30, 40] * 21, *[1, 1, 1, 1] * 20, 7]  # the last object was not finished
    (tmp_path / "read_clat.1.log").write_text("".join(f"5, {n}, 0, 99, 0\n" for n in calls))
    logs = read_logs(mine, tmp_path)
    answer = read_answer(mine, report("read"), logs)
    assert answer.sides[OpKind.READ].latency_ns == {50.0: 100.0, 95.0: None, 99.0: None}


# --- bad input ---------------------------------------------------------------------------------


def changed(change: Callable[[Any], object]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(document([reads()])))
    change(made["kv_cache"])
    return made


def first(own: Any) -> Any:
    return own["operations"][0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda own: first(own).pop("histogram_bytes"), "no sizes of objects.*older"),
        (lambda own: first(own).pop("system_calls"), "no sizes of objects.*older"),
        (lambda own: own.pop("operations"), "nothing was read from storage"),
        (lambda own: own["operations"].clear(), "nothing was read from storage"),
        (lambda own: own["operations"].insert(0, 7), r"operations\[0\]: expected object, got int"),
        (lambda own: own.update(window_s="long"), "window_s: expected float, got str"),
        (lambda own: own.update(window_s=0), "nothing was read from storage"),
        (lambda own: own["tiers"].clear(), "tiers.storage is missing"),
        (lambda own: own.update(kernel_counters=[]), "kernel_counters: expected object, got array"),
        (lambda own: first(own).update(bytes=True), "bytes: expected int, got bool"),
        (lambda own: first(own).update(bytes=0), "do not fit together"),
        (lambda own: first(own).update(operations=3), "do not fit together"),
        (
            lambda own: first(own).update(histogram_device=[]),
            "histogram_device: is not a histogram",
        ),
        (lambda own: first(own)["histogram_device"].update(buckets=[[1]]), "is not a histogram"),
        (
            lambda own: first(own)["histogram_device"].update(count=99),
            "buckets fit its other numbers",
        ),
        (lambda own: first(own)["histogram_device"].update(min=None), "is not a histogram"),
        (
            lambda own: first(own)["histogram_bytes"].update(buckets=[[10**9, 100]]),
            "is not a histogram",
        ),
    ],
)
def test_a_changed_result_is_refused_in_one_sentence(
    change: Callable[[Any], object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        derive(changed(change), FILE)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not text"),
        (b"hello", "is not JSON"),
        (b'{"kv_cache": {"schema": "kv-ca', "cut short"),
        (b'{"kv_cache": {', "cut short"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "not a result of this program"),
        (b'{"summary": {}}', "no section 'kv_cache'"),
        (b'{"kv_cache": {"schema": "other/1"}}', "schema 'other/1'"),
        (b'{"kv_cache": {}}', "schema missing"),
        (b'{"kv_cache": 1' + b"0" * 30 + b"}", "no section 'kv_cache'|is not JSON"),
        (b'{"kv_cache": "\\ud800"}', "is not JSON"),
        (b'{"kv_cache": ' + b"[" * 300 + b"]" * 300 + b"}", "nested deeper"),
        (b'{"kv_cache": {"schema": "kv-cache-result/1", "driver": "virtual-time"}}', "virtual"),
    ],
)
def test_what_is_no_result_is_refused_in_one_sentence(
    tmp_path: Path, text: bytes, sentence: str
) -> None:
    file = tmp_path / "R.json"
    file.write_bytes(text)
    with pytest.raises(UsageError, match=sentence) as refused:
        read_result(file)
    assert str(file) in str(refused.value)


def test_what_is_no_file_or_too_large_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        read_result(Path("/dev/zero"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_result(tmp_path / ("x" * 300))
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(257 << 20)
    with pytest.raises(UsageError, match="larger than 256 MiB"):
        read_result(large)


def test_a_result_cannot_bring_commands_of_its_own_to_fio(tmp_path: Path) -> None:
    evil = "direct\n[global]\nexec_prerun=touch pwned\n#"
    few = reads()
    few.update(engine=evil, cause="promotion", bytes=1)
    with pytest.raises(UsageError) as refused:
        derive(document([reads(), few]), tmp_path / "R.json")
    assert "\n" not in str(refused.value)
    made = derive(document([reads()], layout=evil), tmp_path / "a\n[global]\nexec_prerun=x.json")
    lines = job_text(made, 1).splitlines()
    assert not [line for line in lines if line.startswith("exec_prerun")]
    assert lines.count("[global]") == 1


def test_a_result_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: no such file"):
        read_result(tmp_path / "none.json")


def test_a_runs_directory_stands_for_its_result(tmp_path: Path) -> None:
    write(tmp_path / "result.json", document([reads()]))
    assert read_result(tmp_path)["kv_cache"]["window_s"] == WINDOW_S


def test_virtual_time_is_read_where_it_is_wanted(tmp_path: Path) -> None:
    made = changed(lambda own: own.update(driver="virtual-time"))
    assert read_result(write(tmp_path / "R.json", made), measured=False)


def test_a_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "job.fio"
    require_replaceable(file, HEADER, "--fio-export")
    file.write_text(f"{HEADER}\n[global]\n")
    require_replaceable(file, HEADER, "--fio-export")
    file.write_text("[global]\n")
    with pytest.raises(PlaceError, match="this command did not write"):
        require_replaceable(file, HEADER, "--fio-export")
    with pytest.raises(PlaceError, match="it is a directory"):
        require_replaceable(tmp_path, HEADER, "--fio-export")
    with pytest.raises(PlaceError, match="there is no directory"):
        require_replaceable(tmp_path / "no" / "job.fio", HEADER, "--fio-export")
