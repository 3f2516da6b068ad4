"""The server of `serve` as a process: runs over HTTP, and everything that may be wrong with what is
asked of it."""

import http.client
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from kv_cache.core.units import GIB
from kv_cache.result import kinds
from kv_cache.result.chain import seal
from kv_cache.web.feed import MOST_WATCHERS
from kv_cache.web.guard import MOST_JSON_BYTES, MOST_UPLOAD_BYTES
from kv_cache.web.index import INDEX
from kv_cache.web.trends import trend_of
from tests.cli import PATIENCE_S, PROGRAM, ROOT, environment, wait_for
from tests.serving import TINY, Served, serving, write_months

SHORT = {**TINY, "run.duration_s": "2"}
LONG = {**TINY, "run.duration_s": "600"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with serving(folder) as server:
        yield server


def events(server: Served, name: str, headers: dict[str, str] | None = None) -> list[Any]:
    """All events of a run until its end."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=PATIENCE_S
    )
    connection.request("GET", f"/runs/{name}/events", headers=headers or {})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    blocks = answer.read().decode().split("\n\n")
    connection.close()
    assert blocks[-2].startswith("event: end")
    return [json.loads(re.findall("^data: (.*)$", each, re.M)[0]) for each in blocks[:-2]]


def begun(server: Served, name: str) -> None:
    """Wait until a run has its directory, which it makes when it has its storage."""
    wait_for(lambda: list((server.results / name).glob("out/run-*")))


def test_a_run_leaves_the_files_of_the_command_line_and_shows_its_command(served: Served) -> None:
    name = served.start(**{**SHORT, "run.duration_s": "6", "output.label": "first"})
    seen = events(served, name)
    now = [event["now"] for event in seen if "now" in event and event["now"]["tiers"]]
    storage = [numbers["tiers"].get("storage", {}) for numbers in now]
    assert any(numbers.get("write_gib_s", 0) > 0 for numbers in storage)
    assert {"measure"} <= {numbers["phase"] for numbers in now}
    assert all(len(numbers["slos"]) == 3 for numbers in now)
    assert seen[-1]["state"] == "done"
    run = served.ended(name)
    assert run["line"].startswith("kv-cache.py run --model=tiny-1b ")
    assert f"--results-dir={served.results / name / 'out'}" in run["line"]
    (row,) = run["results"]
    assert row["label"] == "first"
    assert row["path"].startswith(f"{name}/out/run-")
    folder = (served.results / row["path"]).parent
    assert {file.name for file in folder.iterdir()} == {
        "config.yaml", "environment.json", "report.html", "result.json",
    }  # fmt: skip
    _, document = served.ask(f"/runs/{name}/result")
    assert document == json.loads((folder / "result.json").read_text())
    words = [*run["line"].split()[1:], "--dry-run"]
    checked = subprocess.run([sys.executable, str(PROGRAM), *words], env=environment(), check=False)
    assert checked.returncode == 0


def test_what_the_command_line_refuses_is_refused_with_its_sentence(served: Served) -> None:
    status, answer = served.ask(
        "/runs", {"command": "run", "values": {"run.num_users": "0", "io.fsync": "nevr"}}
    )
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "run", "--num-users=0", "--fsync=nevr"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert (status, answer["error"]["kind"]) == (422, "config")
    assert answer["error"]["sentence"] in done.stderr


def test_what_only_the_start_finds_is_told_by_the_check_and_by_the_run(served: Served) -> None:
    values = {
        **SHORT,
        "tiers.cache_dir": str(served.results.parent),
        "tiers.storage_capacity_gib": "9e6",
    }
    wanted = {"command": "run", "values": values}
    status, answer = served.ask("/check?dry_run=1", wanted)
    assert status == 200
    assert "the run wants" in answer["refusal"]["sentence"]
    run = served.ended(served.start(**values))
    assert (run["state"], run["exit_code"]) == ("failed", 2)
    sentences = run["refusal"], answer["refusal"]["sentence"]
    assert len({re.sub("[0-9.]+", "N", each) for each in sentences}) == 1, sentences  # free space


def test_the_check_says_what_will_be_done_and_does_nothing(served: Served) -> None:
    before = sorted(served.results.rglob("*"))
    status, answer = served.ask("/check?dry_run=1", {"command": "run", "values": SHORT})
    assert status == 200, answer
    assert "2 s with real I/O" in answer["planned"]
    assert "tier storage" in answer["planned"]
    assert "num_users: 4" in answer["yaml"]
    assert sorted(served.results.rglob("*")) == before


def test_a_run_that_is_stopped_keeps_what_was_measured(served: Served) -> None:
    name = served.start(**LONG)
    begun(served, name)
    status, stopped = served.ask(f"/runs/{name}/stop", {})
    assert status == 200, stopped
    run = served.ended(name)
    assert (run["state"], run["exit_code"]) == ("stopped", 130)
    _, document = served.ask(f"/runs/{name}/result")
    assert document["kv_cache"]["status"] == "interrupted"


def test_a_run_that_is_cancelled_leaves_no_result(served: Served) -> None:
    name = served.start(**LONG)
    begun(served, name)
    status, _ = served.ask(f"/runs/{name}", method="DELETE")
    assert status == 200
    run = served.ended(name)
    assert run["state"] == "cancelled"
    assert run["files"] == [f"{name}/stderr.txt", f"{name}/stdout.txt", f"{name}/web.json"]
    status, answer = served.ask(f"/runs/{name}", method="DELETE")
    assert (status, answer["error"]["kind"]) == (409, "busy")


def test_results_that_cannot_be_read_are_listed_with_their_fault(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    good = (ROOT / "docs/reports/result.json").read_bytes()
    (results / "good.json").write_bytes(good)
    (results / "short.json").write_bytes(good[: len(good) // 2])
    (results / "changed.json").write_bytes(good.replace(b'"seed":42', b'"seed":43'))
    shutil.copy(ROOT / "tests/data/result_7.json", results / "older.json")
    (results / "benchmark_results_empty.json").touch()
    (results / "package.json").write_text('{"name": "none of ours"}')
    (results / INDEX).write_text("not a database, which is made again from the folder " * 100)
    with serving(tmp_path) as server:
        _, listed = server.ask("/results?fresh=1")
        faults = {row["path"]: row["fault"] for row in listed["results"]}
        assert faults["good.json"] is None
        assert faults["older.json"] is None
        assert "cut short" in faults["short.json"]
        assert "was changed after its run" in faults["changed.json"]
        assert "empty" in faults["benchmark_results_empty.json"]
        assert len(faults) == 5
        assert listed["indexing"]["done"] == listed["indexing"]["total"]
        status, answer = server.ask("/results/short.json")
        assert status == 422
        assert "cut short" in answer["error"]["sentence"]
        _, filtered = server.ask("/results?kind=run&verdict=valid")
        assert [row["path"] for row in filtered["results"]] == ["good.json"]


def test_notes_stand_beside_the_result_which_stays_sealed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    target = Path(shutil.copy(ROOT / "docs/reports/result.json", results / "good.json"))
    before = target.read_bytes()
    notes = {"label": "<b>mine</b>", "note": "cold drive"}
    with serving(tmp_path) as server:
        server.ask("/results?fresh=1")
        assert server.ask("/notes/good.json", notes, "PUT") == (200, notes)
        status, answer = server.ask("/notes/..%2f..%2fetc%2fpasswd", notes, "PUT")
        assert (status, answer["error"]["kind"]) == (422, "usage")
        _, listed = server.ask("/results?fresh=1&label=%3Cb%3Emine%3C%2Fb%3E")
    assert [row["note"] for row in listed["results"]] == ["cold drive"]
    assert target.read_bytes() == before
    assert json.loads((results / "good.notes.json").read_text()) == notes
    with sqlite3.connect(results / INDEX) as index:
        index.execute("DELETE FROM results")
    index.close()
    with serving(tmp_path) as server:  # the database is thrown away: nothing is lost
        _, listed = server.ask("/results?fresh=1")
    assert [row["label"] for row in listed["results"]] == ["<b>mine</b>"]


MONTHS = [3.0, 3.02, 2.99, 3.01, 2.98, 3.0, 3.01, 2.7, 2.71, 2.69, 2.7, 2.68]
"""GiB/s of runs day after day, one of which is the first after a change for the worse."""


def test_a_trend_finds_the_run_with_which_storage_became_slower(tmp_path: Path) -> None:
    write_months(tmp_path / "results", MONTHS)
    with serving(tmp_path) as server:
        server.ask("/results?fresh=1")
        status, trend = server.ask("/trend?result=day-02.json")
    assert status == 200, trend
    assert [row["path"] for row in trend["rows"]] == [f"day-{n:02d}.json" for n in range(1, 13)]
    (step,) = trend["steps"]
    assert step["at"] == 7
    assert step["low"] < 2.696 / 3.0014 < step["high"] < 1
    assert trend["sentence"].startswith("Storage became slower by 10.2 % (95 %: ")
    assert trend["sentence"].endswith("with run 8 of 12, of 2026-03-08.")
    assert trend["pair"] == ["day-07.json", "day-08.json"]
    assert trend["line"].endswith("day-07.json " + str(tmp_path / "results/day-08.json"))
    assert trend["levels"][:7] == pytest.approx([3.0014 * GIB] * 7, rel=1e-3)


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (["valid"] * 5, "No step is shown between any two of 5 runs"),
        (
            ["valid", "invalid", "valid", "suspect", "valid"],
            "No step is shown between any two of 4",
        ),
        (["invalid"] * 4 + ["valid"], "There are not two runs"),
    ],
)
def test_invalid_runs_are_in_no_trend(tmp_path: Path, verdicts: list[str], sentence: str) -> None:
    rows = [
        {"path": f"{n}.json", "value": 1.0 if verdict == "invalid" else 100.0 + n % 2,
         "verdict": verdict, "started": "2026-03-01"}
        for n, verdict in enumerate(verdicts)
    ]  # fmt: skip
    trend = trend_of(rows, tmp_path)
    assert trend["sentence"].startswith(sentence)
    assert [level is None for level in trend["levels"]] == [v == "invalid" for v in verdicts]


def test_the_list_names_thresholds_that_were_moved_beside_the_verdict(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    document = json.loads((ROOT / "docs/reports/result.json").read_text())
    document["kv_cache"]["config"]["passport"]["idle_cores"] = 1
    (results / "a.json").write_text(json.dumps(seal(document, {})))
    with serving(tmp_path) as server:
        _, listed = server.ask("/results?fresh=1")
    (row,) = listed["results"]
    assert row["moved"] == "thresholds of the verdict were moved: idle_cores is 1 (0.5 by default)"


def test_the_list_has_the_verdict_of_each_kind_of_result(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for name, schema in (("a.json", kinds.CAPACITY), ("b.json", kinds.PRECONDITIONING)):
        section = {"schema": schema, "verdict": "invalid", "config": {}}
        (results / name).write_text(json.dumps(seal({"kv_cache": section}, {})))
    with serving(tmp_path) as server:
        _, listed = server.ask("/results?fresh=1")
    assert {row["kind"]: row["verdict"] for row in listed["results"]} == {
        "capacity": "invalid", "precondition": "invalid",
    }  # fmt: skip


def test_a_page_is_one_file_that_needs_nothing_else(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for name in ("a.json", "b.json"):
        shutil.copy(ROOT / "docs/reports/result.json", results / name)
    with serving(tmp_path) as server:
        server.ask("/results?fresh=1")
        status, html = server.ask("/page?result=a.json&result=b.json&save=1")
        assert status == 200
        assert html.startswith(b"<!doctype html>\n<!-- kv-cache report")
        assert b"Side by side" in html
        status, _ = server.ask("/page?result=a.json&result=/etc/passwd")
        assert status == 422


def test_a_trace_is_uploaded_looked_at_and_replayed(served: Served) -> None:
    trace = (ROOT / "datasets/mooncake_sample.jsonl").read_bytes()
    octets = {"Content-Type": "application/octet-stream"}
    status, kept = served.ask("/traces?name=mine.jsonl", trace, headers=octets)
    assert status == 201, kept
    assert Path(kept["path"]).read_bytes() == trace
    status, answer = served.ask("/traces?name=mine.jsonl", trace, headers=octets)
    assert "is there already" in answer["error"]["sentence"]
    for name in ("../up.jsonl", "a/b.csv", ".hidden", "config.yaml", ""):
        status, answer = served.ask(f"/traces?name={name}", trace, headers=octets)
        assert (status, answer["error"]["kind"]) == (422, "config"), name
    _, known = served.ask("/commands")
    assert kept["path"] in known["traces"]
    run = served.ended(served.start("trace stats", path=kept["path"]))
    assert run["state"] == "done"
    (row,) = run["results"]
    assert row["kind"] == "trace-stats"


def test_of_two_uploads_of_one_name_at_once_one_is_kept_whole(served: Served) -> None:
    """Both have begun before either ends, each with bytes of its own."""
    address = urlsplit(served.url)
    pieces = (b"a,b\n", b"c,d\n")
    connections = []
    for piece in pieces:
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=PATIENCE_S
        )
        connection.putrequest("POST", "/traces?name=twice.csv")
        connection.putheader("Content-Type", "application/octet-stream")
        connection.putheader("Content-Length", str(2000 * len(piece)))
        connection.endheaders(1000 * piece)
        connections.append(connection)
    time.sleep(0.3)
    _, known = served.ask("/commands")
    assert not [path for path in known["traces"] if "twice" in path or path.endswith(".part")]
    for connection, piece in zip(connections, pieces, strict=True):
        connection.send(1000 * piece)
    answers = [connection.getresponse() for connection in connections]
    assert sorted(answer.status for answer in answers) == [201, 422]
    won = next(piece for answer, piece in zip(answers, pieces, strict=True) if answer.status == 201)
    folder = served.results / "uploads"
    assert (folder / "twice.csv").read_bytes() == 2000 * won
    assert not list(folder.glob(".*"))
    for connection in connections:
        connection.close()


def test_odd_numbers_and_names_are_answered(served: Served) -> None:
    """A position in the events of any length, and a result whose name no header can hold."""
    run = served.ended(served.start("sim", scenario="single-node", preset="smoke"))
    assert events(served, run["id"], {"Last-Event-ID": "9" * 5000})
    source = served.results / run["results"][0]["path"]
    shutil.copy(source, served.results / "\u03a9.json")
    served.ask("/results?fresh=1")
    status, html = served.ask("/page?save=1&result=%CE%A9.json")
    assert status == 200, html
    assert html.startswith(b"<!doctype html>")


def test_a_simulation_is_started_with_instances_of_its_own(served: Served) -> None:
    groups = {"small": {"count": 2, "hbm_gib": 16}, "large": {"count": 1, "hbm_gib": 80}}
    drawn = {"name": "unequal", "base": "single-node", "instances": groups}
    status, written = served.ask("/scenarios", drawn)
    assert status == 201, written
    run = served.ended(served.start("sim", scenario=written["path"], preset="smoke"))
    assert run["state"] == "done", run["log"]
    assert [row["kind"] for row in run["results"]] == ["sim"]
    _, document = served.ask(f"/runs/{run['id']}/result")
    assert set(document["kv_cache"]["config"]["instances"]) == {"small", "large"}
    for wrong in ({"name": "../up"}, {"instances": {"a": {"count": 0}}}, {"base": "/etc/passwd"}):
        status, answer = served.ask("/scenarios", {**drawn, "name": "other", **wrong})
        assert status == 422, answer
    assert [path.name for path in (served.results / "scenarios").iterdir()] == ["unequal.yaml"]


# --- who may ask -----------------------------------------------------------------------------


def raw(server: Served, head: str, body: bytes = b"") -> bytes:
    address = urlsplit(server.url)
    with socket.create_connection(
        (address.hostname or "", address.port or 0), timeout=PATIENCE_S
    ) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = b""
        while part := sock.recv(65536):
            answer += part
        return answer


def test_a_stranger_s_name_for_this_machine_is_not_served(served: Served) -> None:
    answer = raw(served, "GET /runs HTTP/1.1\nHost: evil.example\nConnection: close")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"foreign-host" in answer


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_a_stranger_s_page_can_do_and_read_nothing(served: Served, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/runs"), ("GET", "/runs"), ("DELETE", "/runs/x")):
        body = {"command": "run", "values": SHORT} if method == "POST" else None
        status, answer = served.ask(path, body, method, headers)
        assert (status, answer["error"]["kind"]) == (403, "foreign-origin")


def test_a_link_in_a_mail_leads_to_results_and_nothing_else_does(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(ROOT / "docs/reports/result.json", results / "a.json")
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document"}  # fmt: skip
    with serving(tmp_path) as server:
        server.ask("/results?fresh=1")
        assert server.ask("/page?result=a.json", headers=link)[0] == 200
        assert server.ask("/page?result=a.json", headers={**link, "Sec-Fetch-Dest": "image"})[
            0] == 403  # fmt: skip
        assert server.ask("/results/a.json", headers=link)[0] == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_form_of_another_site_can_send_is_not_taken(served: Served, kind: str) -> None:
    body = json.dumps({"command": "run", "values": SHORT}).encode()
    for path in ("/runs", "/traces?name=a.csv"):
        status, answer = served.ask(path, body, headers={"Content-Type": kind})
        assert (status, answer["error"]["kind"]) == (415, "content-type")


def test_another_address_needs_a_token_and_the_token_opens_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "serve", "--port=0", "--host=0.0.0.0"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "KV_CACHE_SERVE__TOKEN" in done.stderr
    token = "0123456789abcdef"
    with serving(tmp_path, "--host=0.0.0.0", variables={"KV_CACHE_SERVE__TOKEN": token}) as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        status, answer = server.ask("/runs")
        assert (status, answer["error"]["kind"]) == (401, "no-token")
        assert server.ask("/static/uPlot.min.css")[0] == 200  # the page asks for the token
        assert server.ask("/runs", headers={"Authorization": f"Bearer {token}"})[0] == 200
        assert server.ask("/runs", headers={"Cookie": f"kv_cache_token={token}"})[0] == 200
        assert server.ask("/runs", headers={"Authorization": f"Bearer {token}x"})[0] == 401
        assert server.ask("/login", "wrong")[0] == 401
        assert server.ask("/login", token)[0] == 200


def test_a_port_in_use_is_one_sentence(served: Served, tmp_path: Path) -> None:
    port = urlsplit(served.url).port
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "serve", f"--port={port}"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"--port {port}: it is in use on 127.0.0.1" in done.stderr


# --- bounds ----------------------------------------------------------------------------------


def test_a_body_of_a_gigabyte_is_refused_before_it_is_read(served: Served) -> None:
    host = urlsplit(served.url).netloc
    for path, kind in (("/runs", "application/json"), ("/traces?name=a.csv",
                                                       "application/octet-stream")):  # fmt: skip
        head = f"POST {path} HTTP/1.1\nHost: {host}\nContent-Type: {kind}\n"
        answer = raw(served, f"{head}Content-Length: {1 << 30}", b"x" * 1000)
        assert answer.startswith(b"HTTP/1.1 413 ")
        bound = MOST_JSON_BYTES if path == "/runs" else MOST_UPLOAD_BYTES
        assert f"more than {bound >> 20} MiB".encode() in answer


def test_a_body_without_a_length_has_the_same_bound(served: Served) -> None:
    head = (f"POST /runs HTTP/1.1\nHost: {urlsplit(served.url).netloc}\n"
            "Content-Type: application/json\nTransfer-Encoding: chunked")  # fmt: skip
    chunks = b"100000\r\n" + b" " * 0x100000 + b"\r\n1\r\n \r\n0\r\n\r\n"
    answer = raw(served, head + "\nConnection: close", chunks)
    assert b"too-large" in answer


def test_a_thousand_connections_that_say_nothing_keep_nobody_out(served: Served) -> None:
    address = urlsplit(served.url)
    with ExitStack() as stack:
        for _ in range(1000):
            sock = socket.create_connection(
                (address.hostname or "", address.port or 0), timeout=PATIENCE_S
            )
            stack.enter_context(sock)
        assert served.ask("/runs")[0] == 200
    limit = int(re.findall(r"Max open files\s+(\d+)",
                           Path(f"/proc/{served.process.pid}/limits").read_text())[0])  # fmt: skip
    assert len(os.listdir(f"/proc/{served.process.pid}/fd")) < min(limit, 300)


def test_watchers_who_go_away_are_forgotten(served: Served) -> None:
    name = served.start(**SHORT)
    address = urlsplit(served.url)
    for _ in range(80):  # more than may watch at once
        with socket.create_connection((address.hostname or "", address.port or 0)) as sock:
            sock.sendall(f"GET /runs/{name}/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
                         .encode())  # fmt: skip
            assert sock.recv(20).startswith(b"HTTP/1.1 ")
    served.ended(name)
    assert events(served, name)[-1]["state"] == "done"


def test_of_watchers_in_one_instant_as_many_are_let_in_as_may_watch(served: Served) -> None:
    name = served.start(**LONG)
    address = urlsplit(served.url)
    head = f"GET /runs/{name}/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    with ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection((address.hostname or "", address.port)))
            for _ in range(MOST_WATCHERS + 20)
        ]
        for sock in socks:
            sock.sendall(head)
        answers = [sock.recv(12) for sock in socks]
        assert answers.count(b"HTTP/1.1 200") == MOST_WATCHERS
        assert answers.count(b"HTTP/1.1 409") == 20
    served.ask(f"/runs/{name}", method="DELETE")
    served.ended(name)
    assert events(served, name)[-1]["state"] == "cancelled"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_on_a_full_disk_each_request_has_an_answer_and_nothing_is_lost(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(results)], check=True)
    try:
        shutil.copy(ROOT / "docs/reports/result.json", results / "kept.json")
        with serving(tmp_path) as server:
            server.ask("/results?fresh=1")
            subprocess.run(
                ["dd", "if=/dev/zero", f"of={results}/filler", "bs=4096"],
                check=False, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            values = {**SHORT, "run.virtual_time": "true"}
            status, answer = server.ask("/runs", {"command": "run", "values": values})
            assert (status, answer["error"]["kind"]) == (422, "place"), answer
            assert "no space left" in answer["error"]["sentence"]
            octets = {"Content-Type": "application/octet-stream"}
            status, answer = server.ask("/traces?name=a.csv", b"a,b\n" * 9000, headers=octets)
            assert (status, answer["error"]["kind"]) == (507, "place")
            notes = {"label": "x", "note": "y" * 9000}
            status, answer = server.ask("/notes/kept.json", notes, "PUT")
            assert (status, answer["error"]["kind"]) == (422, "place")
            (results / "filler").unlink()
            _, listed = server.ask("/results?fresh=1")
            assert [row["path"] for row in listed["results"]] == ["kept.json"]
            assert server.ask("/notes/kept.json", notes, "PUT")[0] == 200
    finally:
        subprocess.run(["umount", "-l", str(results)], check=True)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "serve", "--port=0", f"--results={tmp_path}/file"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "it cannot be written to" in done.stderr


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/runs/none", None, 404),
        ("GET", "/runs/..%2f..%2fetc/result", None, 404),
        ("GET", "/static/..%2f..%2f..%2fcli%2frun.py", None, 404),
        ("GET", "/results/..%2f..%2fetc%2fpasswd", None, 422),
        ("GET", "/results?limit=x", None, 422),
        ("POST", "/runs", b"[1,", 422),
        ("POST", "/runs", b'{"command":"run","values":{"run.seed":[{}]}}', 422),
        ("POST", "/runs", b'{"command":"run","wrong":1}', 422),
        ("POST", "/runs", b'{"command":"rm -rf /"}', 422),
        ("POST", "/runs", b'{"command":"compile"}', 422),
        ("POST", "/runs", b'{"command":"run","values":{"run.seeds":"1"}}', 422),
        ("POST", "/runs", b'{"command":"run","values":{"run.seed":"$(id)"}}', 422),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_said_in_a_sentence(
    served: Served, method: str, path: str, body: bytes | None, status: int
) -> None:
    answered, answer = served.ask(path, body, method)
    assert answered == status
    assert len(answer["error"]["sentence"]) > 20


def test_the_openapi_document_names_every_route_and_every_option_that_may_be_set(
    served: Served,
) -> None:
    status, document = served.ask("/openapi.json")
    assert status == 200
    assert {"/runs", "/runs/{id}", "/runs/{id}/events", "/runs/{id}/result"} <= set(
        document["paths"]
    )
    assert set(document["paths"]["/runs/{id}"]) == {"get", "delete"}
    commands = {
        each["properties"]["command"]["const"]: each["properties"]["values"]["properties"]
        for each in document["components"]["schemas"]["Wanted"]["oneOf"]
    }
    assert "run.num_users" in commands["run"]
    assert "tiers.erase_device" not in commands["run"]
    assert "compile" not in commands
