"""Spreadsheets of a result: the reference's sheets and columns with the result's values."""

import csv
import io
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kv_cache.core.errors import PlaceError
from kv_cache.view.parts import Cell
from kv_cache.view.sheets import (
    COLUMNS,
    METRICS,
    PARAMETERS,
    check_target,
    sheets,
    summary_csv,
    target_of,
    workbook,
)
from kv_cache.view.workbook import Sheet, workbook_bytes
from tests.cli import ROOT

RUN = {
    "model": "llama3.1-8b", "model_mix": {}, "num_users": 100, "duration_s": 60.0,
    "generation_mode": "none", "performance_profile": "latency", "max_requests": 0,
}  # fmt: skip
TIERS = {
    "gpu_mem_gib": 16.0, "num_gpus": 2, "tensor_parallel": 1, "cpu_mem_gib": 4.0,
    "cache_dir": None, "storage_capacity_gib": 0.0,
}  # fmt: skip
WORKLOAD = {
    "multi_turn": True, "prefix_caching": False, "dataset_path": None, "trace": None,
    "use_burst_trace": False, "burst_trace_path": "b.csv", "trace_speedup": 1.0, "replay_cycles": 0,
}  # fmt: skip


def document(
    run: Mapping[str, Any] = {}, work: Mapping[str, Any] = {}, **changed: Any
) -> dict[str, Any]:
    """A result as far as a spreadsheet looks at it."""
    percentiles = dict.fromkeys(("mean", "p50", "p95", "p99", "p999", "p9999"), 0.1 + 0.2)
    return {
        "seed": 42,
        "summary": {
            "total_requests": 7,
            "end_to_end_latency_ms": percentiles,
            "cache_stats": {"storage_read_device_p9999_ms": 1 / 3, "cache_hit_rate": 0.5},
            "multi_turn_stats": {"hit_rate": 0.25},
            "system_metrics": {"cpu_count": 12},
            "qos_metrics": {
                "interactive": {"no_data": True},
                "responsive": {
                    "total_requests": 7,
                    "latency_ms": {"p95": 5.5, "p99": 9.5},
                    "sla": {"met": False, "compliance": 0.875},
                },
                "batch": {"no_data": True},
            },
        },
        "kv_cache": {
            "started_utc": "2026-11-21T20:52:33.123456+00:00",
            "config": {
                "run": {**RUN, **run},
                "tiers": TIERS,
                "workload": {**WORKLOAD, **work},
                "rag": {"enabled": True},
                "autoscaler": {"enabled": False},
                "schedule": {"max_concurrent_allocs": 16},
                "arrival": {"request_rate": 0.0},
                "precondition": {"enabled": False, "size_gib": 0.0, "threads": 0},
            },
        },
        **changed,
    }


def row(**more: Any) -> dict[str, Any]:
    [summary] = [sheet for sheet in sheets([document(**more)]) if sheet.name == "Summary"]
    return dict(zip(summary.columns, summary.rows[0], strict=True))


def test_the_summary_has_27_parameters_and_72_metrics() -> None:
    assert (len(PARAMETERS), len(METRICS), len(COLUMNS)) == (27, 72, 99)


def test_the_order_of_the_columns_is_the_references() -> None:
    names = list(COLUMNS)
    assert names[:3] == ["Timestamp", "Model", "Num Users"]
    assert names[26:29] == ["Replay Cycles", "Total Requests", "Total Tokens"]
    assert names[33:35] == ["E2E Latency Mean (ms)", "E2E Latency P50 (ms)"]
    assert names[44:50] == [
        "Storage Latency P99.99 (ms)",
        *(f"Gen Latency {name} (ms)" for name in ("Mean", "P50", "P95", "P99")),
        "Storage Tier Read Total P50 (ms)",
    ]
    assert names[54] == "Storage Tier Write Total P50 (ms)"
    assert names[59] == "Storage Tier Read Device P50 (ms)"
    assert names[78] == "Storage Tier Write Host P99.99 (ms)"
    assert names[79:83] == [
        *("Cache Hit Rate", "Read/Write Ratio", "Total Read (GiB)", "Total Write (GiB)")
    ]
    assert names[83] == "Tier GPU KV Bytes Written (GiB)"
    assert names[88:91] == [
        "Tier Storage KV Bytes Read (GiB)",
        "Tier GPU Read Bandwidth (GiB/s)",
        "Tier GPU Write Bandwidth (GiB/s)",
    ]
    assert names[-4:] == ["GPU Entries", "CPU Entries", "Storage Entries", "Multi-turn Hit Rate"]


def test_values_are_the_results_own() -> None:
    found = row()
    assert found["Timestamp"] == "2026-11-21 20:52:33"
    assert found["Total GPU Memory (GiB)"] == 32.0
    assert found["RAG Enabled"] is True
    assert found["Seed"] == 42
    assert found["Precondition Threads"] == 12
    assert found["E2E Latency P99.99 (ms)"] == 0.1 + 0.2
    assert found["Storage Tier Read Device P99.99 (ms)"] == 1 / 3
    assert found["Multi-turn Hit Rate"] == 0.25
    assert found["Storage Tier Write Device P95 (ms)"] is None  # there were no samples


def test_no_dataset_is_na_and_no_directory_is_temp() -> None:
    assert row()["Dataset Path"] == "N/A"
    assert row()["Cache Dir"] == "temp"
    assert row(work={"dataset_path": "d.json", "trace": "t"})["Dataset Path"] == "d.json"
    assert row(work={"trace": "t.jsonl"})["Dataset Path"] == "t.jsonl"
    assert row(work={"use_burst_trace": True})["Dataset Path"] == "b.csv"


def test_a_duration_that_was_not_given_is_60_s_or_no_limit() -> None:
    assert row(run={"duration_s": None})["Duration (s)"] == 60.0
    assert row(run={"duration_s": None, "max_requests": 5})["Duration (s)"] == "N/A"
    assert row(run={"duration_s": None}, work={"replay_cycles": 1})["Duration (s)"] == "N/A"


def test_a_mix_of_models_is_named_with_its_weights() -> None:
    assert row(run={"model_mix": {"a": 0.7, "b": 0.3}})["Model"] == "a=0.7,b=0.3"


def test_classes_without_requests_have_no_row() -> None:
    [qos] = [sheet for sheet in sheets([document()]) if sheet.name == "QoS Metrics"]
    assert qos.rows == (("responsive", 7, 5.5, 9.5, False, 0.875),)


def test_a_run_for_throughput_is_not_judged_by_latency() -> None:
    made = document(run={"performance_profile": "throughput"})
    [qos] = [sheet for sheet in sheets([made]) if sheet.name == "QoS Metrics"]
    assert qos.rows[0][-2:] == ("N/A (throughput mode)", "N/A (throughput mode)")


def test_tracing_has_two_sheets() -> None:
    buckets = [{"range_us": [64, 128], "count": 95}, {"range_us": [128, 256], "count": 5}]
    open_end = [{"range_us": [None, 10], "count": 1}, {"range_us": [10, None], "count": 3}]
    traced = {
        "lba_read_gb": {"buckets": open_end, "raw": []},
        "d2c_read_us": {"buckets": buckets, "raw": []},
        "fsync_us": {"buckets": [], "raw": []},
    }
    made = {sheet.name: sheet for sheet in sheets([document(device_latency_tracing=traced)])}
    described, places = made["Device Tracing"].rows
    assert described[0] == "D2C Read (us)"
    assert described[2:] == (100, 64, 64, 128, 64, 256)
    assert places[2:] == (4, 10, 10, 10, None, None)
    assert made["Trace Histograms"].rows == (
        ("D2C Read (us)", 64, 128, 95),
        ("D2C Read (us)", 128, 256, 5),
        ("LBA Heatmap Read (GiB)", None, 10, 1),
        ("LBA Heatmap Read (GiB)", 10, None, 3),
    )


def test_without_tracing_there_are_four_sheets() -> None:
    names = [sheet.name for sheet in sheets([document()])]
    assert names == ["Summary", "Run Parameters", "Performance Metrics", "QoS Metrics"]


def test_a_csv_has_a_row_for_each_result() -> None:
    rows = list(csv.DictReader(io.StringIO(summary_csv([document(), document(seed=7)]).decode())))
    assert list(rows[0])[:99] == list(COLUMNS)
    assert [each["Seed"] for each in rows] == ["42", "7"]
    assert float(rows[0]["E2E Latency Mean (ms)"]) == 0.1 + 0.2
    assert rows[0]["Storage Tier Write Device P95 (ms)"] == ""


def test_a_row_says_its_verdict_and_what_that_rests_on() -> None:
    """A table of an invalid run and a valid one had two rows that nothing told apart."""
    doubtful, valid = document(), document()
    doubtful["kv_cache"]["passport"] = {
        "verdict": "invalid",
        "reasons": ["V1 page cache: 9 % came from it", "V9 clock: it jumped"],
    }
    doubtful["kv_cache"]["config"]["passport"] = {"most_unfinished_share": 1.0}
    valid["kv_cache"]["passport"] = {"verdict": "valid", "reasons": []}
    rows = list(csv.DictReader(io.StringIO(summary_csv([doubtful, valid]).decode())))
    assert [each["Verdict"] for each in rows] == ["invalid", "valid"]
    assert rows[0]["Reasons"] == (
        "V1 page cache: 9 % came from it; V9 clock: it jumped; thresholds of the verdict were "
        "moved: most_unfinished_share is 1 (0.1 by default)"
    )
    assert rows[1]["Reasons"] == ""
    [summary] = sheets([doubtful, valid])
    assert [dict(zip(summary.columns, each, strict=True))["Verdict"] for each in summary.rows] == [
        "invalid", "valid",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shown"), [("=1+1", "'=1+1"), ("a\x1b[2Jb", "a [2Jb"), ("m", "m")]
)
def test_a_strangers_name_is_no_formula_and_no_order_to_a_terminal(name: str, shown: str) -> None:
    text = summary_csv([document(run={"model": name})]).decode()
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["Model"] == shown


def test_a_workbook_reads_back_with_the_same_cells() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    made = document(run={"model": "=1+1"}, work={"dataset_path": "http://x/y"})
    book = openpyxl.load_workbook(io.BytesIO(workbook([made])))
    for sheet in sheets([made]):
        page = [tuple(cell.value for cell in row) for row in book[sheet.name].iter_rows()]
        assert page[0] == sheet.columns
        for seen, meant in zip(page[1:], sheet.rows, strict=True):
            numbers = [isinstance(cell, float) for cell in meant]
            assert [s for s, n in zip(seen, numbers, strict=True) if not n] == [
                m for m in meant if not isinstance(m, float)
            ]
            assert [s for s, n in zip(seen, numbers, strict=True) if n] == pytest.approx(
                [m for m in meant if isinstance(m, float)],
                rel=1e-15,  # 16 digits
            )
    assert book["Summary"]["B2"].data_type == "s"  # no formula out of a name


def test_the_same_result_gives_the_same_bytes() -> None:
    assert workbook([document()]) == workbook([document()])


@pytest.mark.parametrize(
    ("asked", "becomes"),
    [("a/S.csv", "a/S.csv"), ("S", "S.csv"), ("run.v2", "run.v2.csv"), ("S.xls", "S.xls.csv")],
)
def test_other_names_get_the_summary_as_csv(asked: str, becomes: str) -> None:
    target = target_of(Path(asked))
    assert target.path == Path(becomes)
    assert (target.note is None) == (asked == becomes)


def test_a_workbook_needs_no_package_beside_the_programs_own(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    code = """if True:
        import sys
        sys.modules |= dict.fromkeys(["xlsxwriter", "openpyxl", "pandas"])
        from tests.unit.test_sheets import Path, check_target, document
        check_target(Path(sys.argv[1])).write(document())
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "S.xlsx")], cwd=ROOT, check=True)
    assert openpyxl.load_workbook(tmp_path / "S.xlsx").sheetnames[0] == "Summary"


@pytest.mark.parametrize(
    ("cell", "seen"),
    [
        ("a\x1b[2Jb", "a_x001B_[2Jb"),
        (" <&>\"' ", " <&>\"' "),
        ("\ud800\uffff", "_xD800__xFFFF_"),
        ("_x0041_", "_x005F_x0041_"),
        ("x" * 40_000, "x" * 32_767),
        (2**80, 2**80),
        (1e-300, 1e-300),
        (0.1 + 0.2, 0.1 + 0.2),
        (float("inf"), "inf"),
        (True, True),
        (None, None),
    ],
)
def test_any_cell_can_be_written_and_is_read_back(cell: Cell, seen: Cell) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    columns = tuple(f"c{number}" for number in range(800))
    sheet = Sheet(name='<&>"', columns=columns, rows=((*columns[:-1], cell),))
    book = openpyxl.load_workbook(io.BytesIO(workbook_bytes([sheet], datetime(2026, 1, 1))))
    page = book['<&>"']
    assert (page["ADT1"].value, page["ADT2"].value) == ("c799", seen)
    assert (page.freeze_panes, page["A1"].font.b, page["A2"].font.b) == ("A2", True, False)
    assert book.properties.created == datetime(2026, 1, 1)


def test_only_files_of_ours_are_replaced(tmp_path: Path) -> None:
    ours, theirs, text = tmp_path / "S.xlsx", tmp_path / "T.xlsx", tmp_path / "U.xlsx"
    check_target(ours).write(document())
    check_target(ours).write(document(seed=1))
    with zipfile.ZipFile(theirs, "w") as packed:
        packed.writestr("docProps/core.xml", "somebody's")
    text.write_text("kv-cache sheets")
    for path in (theirs, text):
        before = path.read_bytes()
        with pytest.raises(PlaceError, match="did not write"):
            check_target(path)
        assert path.read_bytes() == before


def test_a_csv_of_somebody_is_not_replaced(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "S.csv", tmp_path / "T.csv"
    check_target(ours).write(document())
    check_target(ours)
    theirs.write_text("Timestamp,Model\n1,2\n")
    with pytest.raises(PlaceError, match="did not write"):
        check_target(theirs)


@pytest.mark.parametrize("name", ["D", "D.xlsx", "D.csv"])
def test_a_directory_is_no_target(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(PlaceError, match="is a directory"):
        check_target(tmp_path / name)


def test_a_workbook_of_several_results_has_their_summary_alone() -> None:
    [only] = sheets([document(), document()])
    assert (only.name, len(only.rows)) == ("Summary", 2)
