"""What was run, on which drive, and whose promises they are."""

import re
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli.report import main as report
from kv_cache.config.root import Config
from kv_cache.config.schema import to_mapping
from kv_cache.core.units import GIB, MISSING
from kv_cache.files.environment import Reader, foot_disk
from kv_cache.result.published import published
from kv_cache.view.identity import (
    drive_text,
    drive_texts,
    headline_text,
    identity_facts,
    origin_texts,
    run_text,
    slos_set_by_user,
    tiers_text,
)
from kv_cache.view.page import page
from kv_cache.view.run import key_numbers
from tests.cli import small
from tests.reports import run

USERS = {"source": "synthetic-users", "users": 40, "loop": "closed", "multi_turn": True}


@pytest.mark.parametrize(
    ("made", "config", "says"),
    [
        (USERS, {}, "standard mode, 40 synthetic users, closed loop, multi-turn on, RAG off"),
        (
            USERS | {"multi_turn": False, "rag_documents": 10},
            {"autoscaler": {"enabled": True}, "run": {"mode": "prefill-only"}},
            (
                "prefill-only mode, 40 synthetic users at first, autoscaled, closed loop, "
                "multi-turn off, RAG on"
            ),
        ),
        (
            USERS | {"loop": "open", "request_rate_per_s": 12.5, "arrival_process": "poisson"},
            {},
            "standard mode, 40 synthetic users, 12.5 requests/s (poisson), multi-turn on, RAG off",
        ),
        (
            {"source": "trace", "speedup": 4.0},
            {},
            "standard mode, requests of a trace at 4 times its speed, RAG off",
        ),
        (
            {"source": "sessions", "users": 12, "speedup": 1.0},
            {},
            "standard mode, sessions of a trace, 12 at a time, RAG off",
        ),
    ],
)
def test_the_summary_says_mode_source_and_load(
    made: dict[str, Any], config: dict[str, Any], says: str
) -> None:
    own = {"workload": made, "config": {"run": {"mode": "standard"}} | config}
    assert run_text(own) == says


def test_the_tiers_have_their_sizes() -> None:
    tiers = {"cpu": {"capacity_bytes": GIB // 2}, "storage": {"capacity_bytes": None}}
    assert tiers_text({"tiers": tiers}) == "cpu 512.0 MiB, storage without a limit"


NVME = {"name": "nvme0n1", "model": "Fast 9", "firmware": "2B4Q", "size_bytes": 1000 * GIB}


def test_a_drive_has_its_file_system_mount_model_size_and_firmware() -> None:
    row = {"filesystem": {"type": "ext4", "mount_point": "/mnt/kv"}, "device": NVME}
    told = "ext4 at /mnt/kv, on nvme0n1 (model Fast 9, 1000.00 GiB, firmware 2B4Q)"
    assert drive_text(row) == told
    assert drive_text(row | {"disks": [NVME]}) == told
    bare = row | {"device": {"name": "vda", "size_bytes": GIB}, "disks": []}
    said = f"vda (model {MISSING}, 1.00 GiB, firmware {MISSING})"
    assert drive_text(bare) == f"ext4 at /mnt/kv, on {said}"
    striped = row | {"device": {"name": "md0"}, "disks": [NVME, NVME | {"name": "nvme1n1"}]}
    assert drive_text(striped).startswith("ext4 at /mnt/kv, on md0 over nvme0n1 (model Fast 9, ")
    assert " and nvme1n1 (" in drive_text(striped)
    assert drive_text({"filesystem": {"type": "nfs4", "mount_point": "/n"}}) == "nfs4 at /n"


def test_disks_at_the_foot_are_read_by_their_names() -> None:
    """Of this machine: whatever it says of itself, the keys are there."""
    for name in ("no-such-disk", "../../etc"):
        unknown = {"name": name, "model": None, "firmware": None, "size_bytes": None}
        assert foot_disk(Reader(), name) == unknown


def test_the_headline_says_its_interval_or_why_there_is_none() -> None:
    head = {"metric": "storage.bytes_per_second", "bytes_per_second": 1.5 * GIB,
            "within_run": {"low": 1.4 * GIB, "high": 1.6 * GIB, "confidence": 0.95}}  # fmt: skip
    assert headline_text({"headline": head}) == (
        "storage read + write 1.5 GiB/s (1.4 to 1.6 within this run, 95 %)"
    )
    change = {"bytes_per_second_before": 1.9 * GIB, "bytes_per_second_after": GIB, "at_s": 34.2}
    assert headline_text({"headline": head | {"change": change}}).endswith(
        "95 %), which changed: 1.9 before and 1 after 34.2 s"
    )
    none = head | {"within_run": None, "why_none": "8 batches need a window of 8 s"}
    assert headline_text({"headline": none}).endswith(
        "(no interval: 8 batches need a window of 8 s)"
    )
    assert headline_text({}) == headline_text({"headline": {"metric": "x"}}) == ""


def test_a_drive_that_virtual_time_did_not_touch_is_named_nowhere() -> None:
    own = run()["kv_cache"]
    drives = [{"device": {"name": "vda"}, "disks": [{"name": "vda", "model": None}]}]
    own["environment"] = {**own["environment"], "drives": drives}
    assert origin_texts(own)[0] == "vda"
    assert "vda" in drive_texts(own)[0]
    own["driver"] = "virtual-time"
    assert "vda" not in origin_texts(own)
    assert drive_texts(own) == []
    assert "drive" not in dict(identity_facts(own))


def key_names(own: dict[str, Any]) -> list[str]:
    return [number.column.title for number in key_numbers(published(own), own).numbers]


def test_targets_that_the_user_has_not_set_are_not_counted_as_slos() -> None:
    own = run()["kv_cache"]
    profiles: Any = to_mapping(Config())["qos_profiles"]
    row = {"p95": {"target_ms": 50.0, "actual_ms": 20.0, "requests": 9, "met": True}}
    own["measured"]["batch"]["slos"] = row
    own["config"] = {**own["config"], "qos_profiles": profiles}
    assert not slos_set_by_user(own)
    assert "SLOs kept" not in key_names(own)
    batch = profiles["batch"] | {"target_latency_p95_ms": 50.0}
    own["config"] = {**own["config"], "qos_profiles": profiles | {"batch": batch}}
    assert slos_set_by_user(own)
    assert "SLOs kept" in key_names(own)


def test_a_label_and_a_note_are_in_the_summary_on_the_page_and_in_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = small(
        tmp_path,
        "--virtual-time",
        "--duration=1",
        "--label=fresh <drive>",
        "--note=second\x1b[31m attempt",
    )
    assert re.search(r"\nlabel +fresh <drive>\nnote +second \[31m attempt\n", ran.out)
    assert ran.own["config"]["output"]["label"] == "fresh <drive>"
    text = page([ran.result], ["R.json"])
    assert '<h2>Run: fresh &lt;drive&gt;</h2><p class="origin">R.json · ' in text
    assert f"kv-cache {ran.own['program_version']}</p><p>second?[31m attempt</p>" in text
    assert report([str(tmp_path / "R.json"), "--format", "markdown"]) == 0
    assert "| label | fresh \\<drive\\> |" in capsys.readouterr().out


def test_the_drive_the_day_and_the_version_are_beside_the_title() -> None:
    disks = [{"name": "nvme0n1", "model": "Drive 9000"}, {"name": "nvme1n1", "model": None}]
    own = {
        "environment": {"drives": [{"disks": disks}, {"disks": disks}]},
        "started_utc": "2026-11-23T10:00:00+00:00", "program_version": "0.8.0",
    }  # fmt: skip
    assert origin_texts(own) == ["Drive 9000", "nvme1n1", "2026-11-23", "kv-cache 0.8.0"]


@pytest.mark.parametrize("own", [{}, {"workload": 5, "tiers": [], "environment": {"drives": 3}}])
def test_whatever_stands_in_a_document_nothing_fails(own: dict[str, Any]) -> None:
    assert origin_texts(own) == []
    assert [name for name, _ in identity_facts(own)] == ["model"]
    assert (headline_text(own), slos_set_by_user(own)) == ("", False)
