"""Answers of the page's routes at instants that a server in a process of its own cannot be held
at."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from kv_cache.web.api import Site, application
from kv_cache.web.classes import Folders
from kv_cache.web.feed import Feeds
from kv_cache.web.index import Index
from kv_cache.web.jobs import Jobs
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
