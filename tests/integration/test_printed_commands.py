"""Every command that the README, the tutorial and the how-tos print runs as it is printed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from kv_cache.view.run import run_view
from kv_cache.view.terminal import terminal
from tests.cli import ROOT, environment
from tests.printed import PAGES, commands

MISSING = [name for name in ("unshare", "mkfs.ext4", "fio", "xz") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What became of each command, by its page; all pages in one process, which has the mounts."""
    scratch = tmp_path_factory.mktemp("printed")
    report = scratch / "report.json"
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-m", "tests.printed", str(scratch), str(report)],
        cwd=ROOT, env={**environment(), "MPLBACKEND": "agg"}, capture_output=True, text=True,
        check=False, timeout=1100,
    )  # fmt: skip
    if "unshare failed" in done.stderr or "failed to setup loop device" in done.stderr:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("image", "device"):
        (scratch / name).unlink()
    rows: dict[str, list[dict[str, Any]]] = {page: [] for page in PAGES}
    for row in json.loads(report.read_text()):
        rows[row["page"]].append(row)
    return rows


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs_as_printed(
    page: str, tried: dict[str, list[dict[str, Any]]]
) -> None:
    problems = [
        f"{page}:{row['line']}: {row['command']}\n    {row['problem']}"
        for row in tried[page]
        if row["problem"] is not None
    ]
    assert not problems, "\n".join(problems)


def test_the_pages_print_as_many_commands_as_are_found(
    tried: dict[str, list[dict[str, Any]]],
) -> None:
    """Else a page whose blocks are written in another way would be tried by nobody."""
    silent = []
    for page in PAGES:
        said = [line for line in (ROOT / page).read_text().splitlines()
                if line.startswith("python kv-cache.py ")]  # fmt: skip
        if len(tried[page]) < len(said):
            silent.append((page, len(said), len(tried[page])))
    assert not silent
    assert sum(map(len, tried.values())) > 100


_ANSWER = re.compile(
    r"…\n"  # a part of what a command prints
    r"|[A-Z][^:]*: [A-Z][A-Z ,-]*\. "  # what it is of, and its verdict
    r"|measure +[\d.]+ s  \["  # what is drawn while it goes on
)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_command_prints_begins_with_its_answer_in_the_pages_too(page: str) -> None:
    """Pages showed what versions before had printed."""
    for lang, block in re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M):
        columns = re.search(r"^\w[^\n]*\S {2,}\S", block, re.M)
        files = re.match(r"\S+/", block)
        if not lang and columns and not files and not list(commands(block)):
            assert _ANSWER.match(block), block.splitlines()[0]


def test_the_readme_shows_what_is_printed_of_the_report() -> None:
    document = orjson.loads((ROOT / "docs" / "reports" / "result.json").read_bytes())
    assert (
        f"```\n{terminal(run_view(document['kv_cache']))}\n```" in (ROOT / "README.md").read_text()
    )


def test_the_mounts_are_nobody_elses() -> None:
    assert not Path("/mnt/drive").exists()
