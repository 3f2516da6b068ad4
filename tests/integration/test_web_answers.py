"""Answers of the page's routes at instants that a server in a process of its own cannot be held
at."""

import asyncio
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from kv_cache.web.api import Site, application
from kv_cache.web.classes import Folders
from kv_cache.web.feed import Feeds
from kv_cache.web.index import Index
from kv_cache.web.jobs import Jobs, WebRun
from kv_cache.web.parts import part_of
from tests.cli import ROOT


class EndsWhileItIsListed(Index):
    """A list during whose reading the run ends, as it may at any instant."""

    def __init__(self, folder: Path, jobs: Jobs) -> None:
        super().__init__(folder)
        self._jobs = jobs

    def below(self, prefix: str) -> list[Mapping[str, Any]]:
        rows = super().below(prefix)
        while self._jobs.is_alive(self._jobs.get(prefix)):
            pass
        return rows


def asked(site: Site, path: str) -> Any:
    """Return the document that the application answers a GET with."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    def unguarded(app: Any) -> Any:
        return app

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    asyncio.run(application(site, unguarded)(scope, receive, send))
    return json.loads(b"".join(message.get("body", b"") for message in sent))


def test_a_run_that_is_called_ended_has_its_results(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    site = Site(
        results=tmp_path, folders=Folders((tmp_path,), tmp_path), commands={}, jobs=jobs,
        feeds=Feeds(jobs, 1.0), index=EndsWhileItIsListed(tmp_path, jobs),
    )  # fmt: skip
    name = jobs.new_id("trace stats")
    out = jobs.folder(name) / "out" / "stats.json"
    trace = ROOT / "datasets/mooncake_sample.jsonl"
    jobs.start(name, ["trace", "stats", str(trace), f"--output={out}"], {})
    answer = asked(site, f"/runs/{name}")
    assert answer["state"] == "running" or answer["results"], answer["log"]
    later = asked(site, f"/runs/{name}")
    assert later["state"] == "done"
    assert [row["kind"] for row in later["results"]] == ["trace-stats"]


class ProcessSeenTwice:
    """The process of a run at whose end two threads look: the first has looked just before, and
    goes on when the second has seen the end, or waits for the first."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process, self._looks = process, itertools.count()
        self.looked, self.seen = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        if next(self._looks) == 0:
            self.looked.set()
            self.seen.wait(timeout=0.5)
            return None
        return self._process.returncode


def test_a_run_whose_end_two_threads_see_has_its_exit_code(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    name = jobs.new_id("run")
    job = jobs.start(name, ["run", "--num-users=0"], {})
    jobs._processes[name].wait()
    process: Any = ProcessSeenTwice(jobs._processes[name])
    jobs._processes[name] = process
    first = threading.Thread(target=jobs.state, args=[job])
    first.start()
    process.looked.wait()
    jobs.state(job)
    process.seen.set()
    first.join()
    assert (job.exit_code, jobs.state(job)) == (2, "failed")
    assert json.loads((tmp_path / name / "web.json").read_text())["exit_code"] == 2


async def numbers_after(last: int, feeds: Feeds, job: WebRun) -> list[int]:
    """The numbers of the events that a watcher sees until the run ends."""
    with feeds.watched(job) as feed:
        return [number async for number, _ in feed.watch(last)]


def test_a_watcher_who_comes_back_to_another_server_sees_the_next_second(tmp_path: Path) -> None:
    """It names the last event that it had from the server before, whose numbers began at 1 too."""
    jobs = Jobs(tmp_path)
    name = jobs.new_id("trace stats")
    trace = ROOT / "datasets/mooncake_sample.jsonl"
    job = jobs.start(name, ["trace", "stats", str(trace), f"--output={tmp_path}/s.json"], {})
    assert asyncio.run(numbers_after(500, Feeds(jobs, 0.01), job))[0] == 1


def test_notes_that_came_with_the_folder_are_listed(tmp_path: Path) -> None:
    """A person copies them, or another server writes them, beside a result that is known."""
    index = Index(tmp_path)
    (tmp_path / "a.json").write_bytes((ROOT / "docs/reports/result.json").read_bytes())
    index.refresh(at_once=True)
    (tmp_path / "a.notes.json").write_text('{"label": "of a colleague", "note": ""}')
    index.refresh(at_once=True)
    rows, _ = index.rows({}, 10, 0)
    assert [row["label"] for row in rows] == ["of a colleague"]
    (tmp_path / "a.notes.json").unlink()
    index.refresh(at_once=True)
    rows, _ = index.rows({"label": "of a colleague"}, 10, 0)
    assert rows == []


async def sent(file: Path, wanted: str | None) -> tuple[int, bytes]:
    """The status and the bytes of a file's answer; the file grows as it is sent."""
    answer: Any = part_of(file, wanted)
    with file.open("ab") as growing:
        growing.write(b"after\n")
    return answer.status_code, b"".join([piece async for piece in answer.body_iterator])


def test_a_file_that_grows_is_sent_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"12345\n" * 100_000)
    assert asyncio.run(sent(log, None)) == (200, b"12345\n" * 100_000)
    assert asyncio.run(sent(log, "bytes=-12")) == (206, b"12345\nafter\n")
    assert asyncio.run(sent(log, "bytes=0-5")) == (206, b"12345\n")
    assert part_of(log, "bytes=9000000-").status_code == 204
