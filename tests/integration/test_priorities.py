"""What priorities decided: a run in virtual time in which each request finds a worker, and one in
which requests wait for one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import SMALL, prepare, run

STATION = """
sim: {nvme: {read_latency_us: 30700, write_latency_us: 30700, servers: 1,
             read_gbytes_per_s: 1000000, write_gbytes_per_s: 1000000}}
user_templates:
  chatbot: &same {context_range: [100, 100], generation_range: [1, 1], think_time_range: [3.0, 3.4]}
  coding: *same
  document: *same
workload: {multi_turn: false, prefix_caching: false}
"""
"""32.6 requests/s are served; 100 users ask 31."""


def station(cwd: Path, *args: str) -> Any:
    prepare(cwd)
    (cwd / "station.yaml").write_text(STATION)
    ran = run(
        cwd, *SMALL, "--config=station.yaml", "--cpu-mem-gb=0", "--prefill-only", "--virtual-time",
        "--duration=120", "--num-users=100", "--arrival=open", "--output=R.json", *args,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return ran.own


def p95_ms(own: Any, qos: str) -> float:
    return float(own["measured"][qos]["response_ms"]["p95"])


def notes_on_priorities(own: Any) -> list[str]:
    return [note for note in own["notes"] if note.startswith("QoS priorities decided")]


def test_a_result_says_that_priorities_decided_nothing_where_each_request_finds_a_worker(
    tmp_path: Path,
) -> None:
    own = station(tmp_path)
    books = own["requests"]
    assert (books["out_of_turn"], books["out_of_turn_share"]) == (0, 0)
    assert p95_ms(own, "interactive") > 0.8 * p95_ms(own, "batch")
    (note,) = notes_on_priorities(own)
    assert note.startswith(f"QoS priorities decided nothing: 0 of {books['submitted']} requests")
    assert "schedule.workers" in note


def test_with_few_workers_priorities_decide_and_the_result_has_how_often(tmp_path: Path) -> None:
    own = station(tmp_path, "--set=schedule.workers=4")
    books = own["requests"]
    assert books["out_of_turn_share"] == books["out_of_turn"] / books["submitted"] > 0.1
    assert p95_ms(own, "interactive") < 0.5 * p95_ms(own, "batch")
    assert not notes_on_priorities(own)


@pytest.mark.parametrize(
    "args",
    [
        ["--set=schedule.ageing_s=0"],
        [f"--set=qos_distribution.{share}=1" for share in ("interactive_probability",
                                                           "responsive_threshold")],
    ],
)  # fmt: skip
def test_where_no_priorities_differ_nothing_is_said_of_them(
    tmp_path: Path, args: list[str]
) -> None:
    own = station(tmp_path, *args)
    assert own["requests"]["out_of_turn"] is None
    assert own["requests"]["out_of_turn_share"] is None
    assert not notes_on_priorities(own)


def test_verify_finds_a_changed_count_of_requests_out_of_turn(tmp_path: Path) -> None:
    station(tmp_path, "--set=schedule.workers=4")
    assert run(tmp_path, "verify", "R.json").code == 0
    result = json.loads((tmp_path / "R.json").read_text())
    result["kv_cache"]["requests"]["out_of_turn"] += 100
    (tmp_path / "R.json").write_text(json.dumps(result))
    checked = run(tmp_path, "verify", "R.json")
    assert checked.code != 0
    assert "out_of_turn_share" in checked.out + checked.err
