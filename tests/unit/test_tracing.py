"""What bpftrace prints, and the program that makes it print."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kv_cache.bench.bpftrace_program import ATTACHED, kernel_number, missing, program
from kv_cache.bench.tracing import Tracer, request_devices, why_not
from kv_cache.metrics.tracing import (
    HISTOGRAMS,
    Bucket,
    Printed,
    Stats,
    Traced,
    TraceHistogram,
    histogram_of,
    parse,
    parse_bucket,
    render,
)

PRINTED = """\
Attaching 24 probes...
kv-cache: attached
       0        0
       3       12



@d2c_read_us: 
(..., 0)               1 |@@                                                  |
[0]                    2 |@@@                                                 |
[1]                    0 |                                                    |
[2, 4)                 4 |@@@@@@                                              |
[512, 1K)             30 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[1K, 2K)               5 |@@@@@@@@                                            |
[512K, 1M)             6 |@@@@@@@@@@                                          |
[1M, 2M)       123456789 |@@@@@@@@@@@@                                        |

@lba_read_gb: 
[10, 20)              10 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[8000, ...)            2 |@@@@@@@@@@                                          |

@n_d2c_read_us: count 123456837, average 13108, total 1618316

@requeued: 23
Lost 7 events
Lost 5 events
WARNING: Map full; can't update element
WARNING: Map full; can't update element
"""  # noqa: W291  (as bpftrace does)

BLOCK = {
    f"block:{name}"
    for name in ("block_rq_insert", "block_rq_issue", "block_rq_complete", "block_rq_requeue")
}


def test_every_form_of_a_bucket_is_taken() -> None:
    buckets = parse(PRINTED).histograms["d2c_read_us"].buckets
    assert [(b.low, b.high, b.count) for b in buckets] == [
        (None, 0, 1),
        (0, 1, 2),
        (1, 2, 0),
        (2, 4, 4),
        (512, 1024, 30),
        (1024, 2048, 5),
        (512 << 10, 1 << 20, 6),
        (1 << 20, 2 << 20, 123456789),
    ]
    assert parse_bucket("[-10, 0)    3 |@@@|") == Bucket(low=-10, high=0, count=3)
    assert parse_bucket("(..., 10)   3 |@@@|") == Bucket(low=None, high=10, count=3)
    assert parse_bucket("[1T, 2T)    3 |@@@|") == Bucket(low=1 << 40, high=2 << 40, count=3)
    assert parse_bucket("[1.5K, 2K)  3 |@@@|") == Bucket(low=1536, high=2048, count=3)
    assert parse_bucket("[1, 2]: 3") is None
    assert parse_bucket(ATTACHED) is None


def test_histograms_counts_looks_and_losses_are_told_apart() -> None:
    printed = parse(PRINTED)
    assert printed.histograms["lba_read_gb"].buckets[-1] == Bucket(low=8000, high=None, count=2)
    assert printed.histograms["lba_read_gb"].raw[0].startswith("[10, 20) ")
    assert printed.stats == {"n_d2c_read_us": Stats(count=123456837, total=1618316)}
    assert printed.counts == {"requeued": 23}
    assert printed.in_flight == ((0, 0), (3, 12))
    assert printed.lost_events == 12
    assert printed.complaints == ("WARNING: Map full; can't update element",)


def test_nothing_printed_is_nothing_seen() -> None:
    assert parse("") == Printed()


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=200))
def test_no_bucket_and_no_value_is_lost(values: list[int]) -> None:
    made = histogram_of(values)
    text = "\n".join(["@d2c_read_us: ", *made.raw, ""])
    assert parse(text).histograms["d2c_read_us"] == made
    assert made.count == len(values)
    for bucket in made.buckets:
        assert bucket.low is not None
        assert bucket.high is not None
        assert bucket.count == sum(bucket.low <= value < bucket.high for value in values)


@given(st.integers(-100, 8000), st.integers(1, 3000), st.lists(st.integers(0, 10**9), min_size=1))
def test_linear_buckets_come_back_as_they_were(low: int, step: int, counts: list[int]) -> None:
    inner = [
        Bucket(low=low + i * step, high=low + (i + 1) * step, count=count)
        for i, count in enumerate(counts)
    ]
    outer = [Bucket(low=None, high=low, count=1), Bucket(low=inner[-1].high, high=None, count=2)]
    buckets = (outer[0], *inner, outer[1])
    assert tuple(parse_bucket(line) for line in render(buckets)) == buckets


def test_a_percentile_is_the_bucket_of_its_rank() -> None:
    made = histogram_of([0] * 50 + [5] * 45 + [1000] * 5)
    found = {percent: made.percentile(percent) for percent in (50, 51, 95, 96, 100)}
    assert [b.low for b in found.values() if b] == [0, 4, 4, 512, 512]
    assert TraceHistogram(buckets=(), raw=()).percentile(50) is None


def traced(text: str, **more: object) -> Traced:
    return Traced(reason=None, version="v0", printed=parse(text), **more)  # type: ignore[arg-type]


def test_the_references_keys_have_ranges_counts_and_lines() -> None:
    keys = traced(PRINTED).reference_keys()
    assert list(keys) == [name for name in HISTOGRAMS if name in keys]
    assert keys["d2c_read_us"]["buckets"][4] == {"range_us": [512, 1024], "count": 30}
    assert len(keys["d2c_read_us"]["raw"]) == 8
    assert keys["lba_read_gb"]["buckets"][-1] == {"range_us": [8000, None], "count": 2}
    assert keys["qd_write"]["buckets"] == [{"range_us": [8, 16], "count": 1}]  # idle is left out
    assert len(HISTOGRAMS) == 15


def test_the_summary_has_percentiles_exact_means_and_what_was_lost() -> None:
    text = "\n".join(
        ["@d2c_read_us: ", *histogram_of([10] * 99 + [3000]).raw, "",
         "@n_d2c_read_us: count 100, average 40000, total 4000000", "", "@requeued: 3"]
    )  # fmt: skip
    section = traced(text, kernel_operations={"read": 101, "write": 0}, seconds=0.001).section()
    summary = section["histograms"]["d2c_read_us"]
    assert summary["events"] == 100
    assert summary["mean"] == 40.0
    assert (summary["p50"], summary["highest"]) == ([8, 16], [2048, 4096])
    assert summary["p99"] is None  # of 100
    assert section["operations"]["read"] == {"traced": 100, "kernel": 101}
    assert section["requeued"] == 3
    assert section["remarks"] == []


def test_mean_requests_at_the_device_are_their_times_added_up() -> None:
    text = "       2        0\n@n_d2c_read_us: count 4, average 500000, total 2000000\n"
    section = traced(text, seconds=0.001).section()
    assert section["histograms"]["qd_read"]["mean"] == 2.0


def test_a_bucket_that_was_lost_is_told() -> None:
    lines = [line for line in PRINTED.splitlines() if not line.startswith("[1K")]
    remarks = traced("\n".join(lines)).remarks()
    assert remarks[0] == (
        "d2c_read_us: its buckets hold 123456832 values, but 123456837 were counted"
    )
    assert "bpftrace lost 12 events" in remarks
    assert "bpftrace: WARNING: Map full; can't update element" in remarks
    assert not any("buckets" in remark for remark in traced(PRINTED).remarks())


def test_a_whole_histogram_that_is_missing_is_told() -> None:
    assert traced("@n_fsync_us: count 2, average 3, total 6\n").remarks() == [
        "fsync_us: its buckets hold 0 values, but 2 were counted"
    ]


def test_operations_that_were_not_traced_are_told() -> None:
    remarks = traced("", kernel_operations={"read": 51, "write": 50}).remarks()
    assert remarks == ["0 reads were traced, but the device ended 51"]


def test_without_a_trace_there_is_the_reason_alone() -> None:
    without = Tracer([]).stop()
    assert without.section() == {"traced": False, "reason": "it was not started"}
    assert without.reference_keys() == {}


def test_a_tier_without_a_block_device_cannot_be_traced() -> None:
    with Tracer([]) as tracer:
        reason = tracer.start()
        assert reason == why_not([])
        assert reason is not None
        assert tracer.stop().reason == reason


def test_the_program_asks_only_for_what_the_kernel_has() -> None:
    made = program(BLOCK, [kernel_number(254, 0)], ["/sys/block/vda/inflight"], None)
    assert set(made.tracepoints) == BLOCK
    assert "args->dev == 266338304" in made.text
    assert 'cat("/sys/block/vda/inflight")' in made.text
    assert "syscalls" not in made.text
    assert made.text.count("{") == made.text.count("}")


def test_a_request_begins_when_it_is_made_where_the_kernel_tells_it() -> None:
    made = program(BLOCK | {"block:block_io_start"}, [1, 2], [], 77)
    assert "block:block_io_start" in made.tracepoints
    assert "block:block_rq_insert" not in made.tracepoints
    assert "args->dev == 1 || args->dev == 2" in made.text


def test_system_calls_are_those_of_one_process() -> None:
    calls = {"syscalls:sys_enter_preadv", "syscalls:sys_exit_preadv", "syscalls:sys_enter_fsync"}
    made = program(BLOCK | calls, [1], [], 77)
    assert calls < set(made.tracepoints)
    assert "/@open == 1 && pid == 77/" in made.text


def test_what_is_booked_lies_between_two_signals_where_the_kernel_tells_them() -> None:
    kill = "syscalls:sys_enter_kill"
    assert "@open = 0;" in program(BLOCK | {kill}, [1], [], None).text
    assert f"tracepoint:{kill}\n/args->pid == $1 &&" in program(BLOCK | {kill}, [1], [], 77).text
    without = program(BLOCK, [1], [], 77).text
    assert "BEGIN\n{\n    @open = 1;\n}" in without
    assert kill not in without


def test_tracepoints_without_which_nothing_can_be_traced_are_named() -> None:
    assert missing(BLOCK) == []
    assert missing(BLOCK - {"block:block_rq_issue"}) == ["block:block_rq_issue"]


def test_requests_of_partitions_and_made_up_devices_are_seen_at_the_disks(tmp_path: Path) -> None:
    disks, classes = tmp_path / "devices", tmp_path / "class/block"
    classes.mkdir(parents=True)
    for path in ("sda/sda1", "sdb", "dm-0/slaves", "md0/slaves"):
        (disks / path).mkdir(parents=True)
    (disks / "sda/sda1/partition").write_text("1\n")
    for name, where in (("sda1", "sda/sda1"), ("sdb", "sdb"), ("dm-0", "dm-0"), ("md0", "md0")):
        (classes / name).symlink_to(disks / where)
    (disks / "dm-0/slaves/sda1").symlink_to(disks / "sda/sda1")
    (disks / "md0/slaves/dm-0").symlink_to(disks / "dm-0")
    (disks / "md0/slaves/sdb").symlink_to(disks / "sdb")
    assert request_devices("sdb", tmp_path) == ["sdb"]
    assert request_devices("sda1", tmp_path) == ["sda"]
    assert request_devices("md0", tmp_path) == ["sda", "sdb"]
    assert request_devices("gone", tmp_path) == ["gone"]
