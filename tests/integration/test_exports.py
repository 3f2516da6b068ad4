"""What a run writes and prints beside its result."""

import csv
import json
import re
import signal
import socket
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli import LIGHT, PATIENCE_S, SMALL, finish, small, start
from tests.passports import named, names

SHORT = (*LIGHT, "--max-requests=60")


def test_a_spreadsheet_has_the_values_of_the_result(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    ran = small(tmp_path, *SHORT, "--xlsx-output=S.xlsx")
    assert ran.code == 0, ran.err
    assert "sheets  S.xlsx" in ran.out
    book = openpyxl.load_workbook(tmp_path / "S.xlsx")
    names, values = (tuple(c.value for c in row) for row in book["Summary"].iter_rows())
    assert len(names) == 99 + 2
    assert names[-2:] == ("Verdict", "Reasons")
    found = dict(zip(names, values, strict=True))
    summary, stats = ran.result["summary"], ran.result["summary"]["cache_stats"]
    assert found["Total Requests"] == summary["total_requests"] > 0
    for column, value in {
        "Requests/sec": summary["requests_per_second"],
        "Storage Tier Write Device P95 (ms)": stats["storage_write_device_p95_ms"],
        "Tier Storage Read Bandwidth (GiB/s)": stats["tier_storage_read_bandwidth_gbps"],
        "Storage Entries": stats["storage_entries"],
    }.items():
        assert found[column] == pytest.approx(value, rel=1e-15)
    assert found["Verdict"] == ran.own["passport"]["verdict"]
    assert not any(value is None for value in values[:-1])
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_trials_have_a_spreadsheet_each_and_print_one_document(tmp_path: Path) -> None:
    ran = small(tmp_path, *SHORT, "--trials=2", "--xlsx-output=S.csv", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["schema"] == "kv-cache-trials-summary/1"
    assert told["finished"] == 2
    assert told["files"] == {"result": "R.json"}
    for number, one in enumerate(told["trials"], start=1):
        assert one["files"] == {
            "result": f"R.trial{number}.json",
            "sheets": f"S.trial{number}.csv",
        }
        with (tmp_path / one["files"]["sheets"]).open() as file:
            [row] = csv.DictReader(file)
        assert int(row["Seed"]) == one["seed"]
        result = json.loads((tmp_path / one["files"]["result"]).read_bytes())
        assert row["Requests/sec"] == repr(result["summary"]["requests_per_second"])


def test_json_prints_the_summary_as_one_document(tmp_path: Path) -> None:
    ran = small(tmp_path, *SHORT, "--json", "--latency-dump=D.jsonl")
    assert ran.code == 0, ran.err
    told, own = json.loads(ran.out), ran.own
    names(own)
    assert list(told)[:3] == ["schema", "verdict", "reasons"]
    assert told["verdict"] == own["passport"]["verdict"]
    assert {reason.split()[0] for reason in told["reasons"]} == named(own).keys()
    assert told["fingerprint"] == own["chain"][-1]["chained"]
    read = told["metrics"]["storage.read.bytes_per_second"]
    assert read["value"] == own["tiers"]["storage"]["read"]["bytes_per_second"]
    assert (read["unit"], read["better"]) == ("bytes/s", "higher")
    assert told["files"] == {"result": "R.json", "latency_dump": "D.jsonl"}


def test_bad_input_prints_no_document(tmp_path: Path) -> None:
    ran = small(tmp_path, "--json", "--num-users=0")
    assert (ran.code, ran.out) == (2, "")


def test_a_run_without_a_completed_request_has_no_spreadsheet(tmp_path: Path) -> None:
    ran = small(tmp_path, "--virtual-time", "--duration=0.000001", "--xlsx-output=S.csv")
    assert ran.code == 0, ran.err
    assert "summary" not in ran.result
    assert "no request completed" in ran.err
    assert not (tmp_path / "S.csv").exists()


def test_two_outputs_may_not_be_one_file(tmp_path: Path) -> None:
    ran = small(tmp_path, "--xlsx-output=same.csv", "--latency-dump=./same.csv")
    assert (ran.code, ran.result) == (2, None)
    assert "--latency-dump has the same file" in ran.err


# --- metrics -----------------------------------------------------------------------------------


def scrape(port: int) -> dict[str, Any]:
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def bytes_moved(found: dict[str, Any], **labels: str) -> float:
    samples = found["kv_cache_bytes"].samples if "kv_cache_bytes" in found else ()
    return float(sum(s.value for s in samples if labels.items() <= s.labels.items()))


def test_a_run_tells_its_metrics_while_it_goes_on(tmp_path: Path) -> None:
    found, doing, moved = list[dict[str, Any]](), set[str](), [0.0]
    args = [*SMALL, "--cache-dir=cache", "--output=R.json", "--duration=600", "--log-level=INFO"]
    process = start(tmp_path, [*args, "--metrics-port=0"])
    assert process.stderr is not None
    told = next(line for line in process.stderr if "metrics at " in line)
    port = int(re.findall(r"127\.0\.0\.1:(\d+)/metrics", told)[0])
    while sum(each > 0 for each in moved) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.3)
        found.append(scrape(port))
        doing |= {s.labels["what"] for s in found[-1]["kv_cache_doing"].samples}
        moved.append(bytes_moved(found[-1], tier="storage", phase="measure"))
    process.send_signal(signal.SIGTERM)
    ran = finish(process, tmp_path)
    assert ran.code == 143, ran.err
    assert "measure" in doing
    [info] = found[-1]["kv_cache_run_info"].samples
    assert (info.labels["model"], info.labels["seed"]) == ("tiny-1b", "3")
    assert moved == sorted(moved)
    tiers = ran.own["tiers"]["storage"]
    assert 0 < moved[-1] <= tiers["read"]["bytes"] + tiers["write"]["bytes"]
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_a_port_in_use_is_said_before_the_run(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        ran = small(tmp_path, *SHORT, f"--metrics-port={port}")
    assert (ran.code, ran.out, ran.result) == (2, "", None)
    assert ran.err.startswith(f"kv-cache: --metrics-port {port}: it is in use")
    assert not (tmp_path / "cache").exists()


def test_there_are_no_metrics_in_virtual_time(tmp_path: Path) -> None:
    ran = small(tmp_path, *SHORT, "--virtual-time", "--metrics-port=1")
    assert ran.code == 0, ran.err
    assert "--metrics-port" in ran.err


# --- the log of HdrHistogram -------------------------------------------------------------------


def intervals(path: Path, tag: str) -> list[Any]:
    module = pytest.importorskip("hdrh.log")
    histogram = pytest.importorskip("hdrh.histogram").HdrHistogram
    reader = module.HistogramLogReader(str(path), histogram(1, 3600 * 10**9, 3))
    found = iter(reader.get_next_interval_histogram, None)
    kept = [one for one in found if one.get_tag() == tag]
    reader.close()
    return kept


def test_a_hdr_log_has_the_measured_windows_as_the_series_has_them(tmp_path: Path) -> None:
    ran = small(tmp_path, *LIGHT, "--duration=3", "--warmup=1", "--drain=2", "--hdr-log=L.hlog")
    assert ran.code == 0, ran.err
    assert "hdr log L.hlog" in ran.out
    rows = [row for row in ran.own["series"]["windows"] if row["phase"] == "measure"]
    for tag, tier, kind in (
        ("storage.read.device", "storage", "read"), ("cpu.write.total", "cpu", "write"),
    ):  # fmt: skip
        found = intervals(tmp_path / "L.hlog", tag)
        moved = [row for row in rows if kind in row["tiers"].get(tier, {})]  # none on a busy disk
        sides = [row["tiers"][tier][kind] for row in moved]
        assert [one.get_total_count() for one in found] == [side["operations"] for side in sides]
        for one, side in zip(found, sides, strict=True):
            assert one.get_max_value() / 1e6 == pytest.approx(side["max_ms"], rel=1 / 1024)
        spans = [one.get_end_time_stamp() - one.get_start_time_stamp() for one in found]
        lasted = [1e3 * (row["end_s"] - row["start_s"]) for row in moved]
        assert spans == pytest.approx(lasted, abs=2)


def test_a_hdr_log_of_somebody_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "L.hlog").write_text("#[mine]\n")
    ran = small(tmp_path, *SHORT, "--hdr-log=L.hlog")
    assert (ran.code, ran.result) == (2, None)
    assert ran.err.startswith("kv-cache: --hdr-log L.hlog")
    assert (tmp_path / "L.hlog").read_text() == "#[mine]\n"


def test_virtual_time_has_a_hdr_log_that_repeats(tmp_path: Path) -> None:
    logs = []
    for name in ("a", "b"):
        ran = small(tmp_path, *SHORT, "--virtual-time", f"--hdr-log={name}.hlog", "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["files"]["hdr_log"] == f"{name}.hlog"
        logs.append((tmp_path / f"{name}.hlog").read_bytes())
    assert logs[0] == logs[1]
    assert intervals(tmp_path / "a.hlog", "storage.write.device")
