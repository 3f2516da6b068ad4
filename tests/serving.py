"""A server of `serve` as a process, and requests to it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kv_cache.core.units import GIB
from kv_cache.result.chain import seal, sealed_files
from tests.cli import PATIENCE_S, PROGRAM, ROOT, environment

TINY = {
    "run.model": "tiny-1b",
    "tiers.gpu_mem_gib": "0",
    "tiers.cpu_mem_gib": "0.0078125",
    "tiers.storage_capacity_gib": "0.0625",
    "run.generation_mode": "none",
    "run.num_users": "4",
    "run.seed": "3",
    "run.warmup_s": "0",
    "run.drain_s": "1",
    "run.kv_bytes_per_token": "3072",
    "passport.measurement": "false",
}
"""A run that takes little."""


class Served:
    """A server that listens."""

    def __init__(
        self, url: str, results: Path, process: "subprocess.Popen[str] | None" = None
    ) -> None:
        self.url, self.results, self._process = url, results, process

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    def ask(
        self, path: str, body: Any = None, method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:  # fmt: skip
        """Return the status and the document of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(
            self.url + path, data, sent, method=method or ("GET" if data is None else "POST")
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                content, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            content, status = error.read(), error.code
        return status, json.loads(content) if content[:1] in (b"{", b"[", b'"') else content

    def start(self, command: str = "run", **values: Any) -> str:
        """Start a command; its id."""
        status, started = self.ask("/runs", {"command": command, "values": values})
        assert status == 201, started
        name: str = started["id"]
        return name

    def ended(self, name: str, limit_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the end of a run; return what is known of it."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            _, run = self.ask(f"/runs/{name}")
            if run["state"] != "running":
                assert isinstance(run, dict)
                return run
            time.sleep(0.1)
        raise AssertionError(f"{name} goes on after {limit_s:g} s: {run['log']}")


def write_months(results: Path, levels: Sequence[float]) -> None:
    """Write a result of one configuration for each day, of so many GiB/s."""
    document = json.loads((ROOT / "docs/reports/result.json").read_text())
    files = sealed_files(document)
    own = document["kv_cache"]
    headline = own["headline"]
    results.mkdir(exist_ok=True)
    for day, level in enumerate(levels, start=1):
        own["started_utc"] = f"2026-03-{day:02d}T09:00:00+00:00"
        headline["bytes_per_second"] = level * GIB
        headline["within_run"] |= {"low": 0.97 * level * GIB, "high": 1.03 * level * GIB}
        (results / f"day-{day:02d}.json").write_text(json.dumps(seal(document, files)))


@contextmanager
def serving(
    folder: Path, *words: str, variables: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Serve the results of a folder at any free port, until the end of the context."""
    results = folder / "results"
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "serve", "--port=0", f"--results={results}",
         f"--folder={folder}", *words],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**environment(), **(variables or {})},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline()) and "serving http" not in line:
            lines.append(line)
        match = re.search(r"serving (http://\S+)/", line)
        assert match is not None, lines
        yield Served(match[1], results, process)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
        for file in results.glob("*/web.json"):
            pid = json.loads(file.read_text())
            if pid["exit_code"] is None and Path(f"/proc/{pid['pid']}").exists():
                end(pid["pid"])


def end(pid: int) -> None:
    """End a run that a test left behind."""
    try:
        os.killpg(pid, 9)
    except ProcessLookupError:
        return
