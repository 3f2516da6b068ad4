"""Completions by the shells themselves, where these are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kv_cache.cli import COMMANDS, main

ASK = """
source {script}
COMP_WORDS=({words})
COMP_CWORD={place}
_kv_cache
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "kv.bash"
    path.write_text(text.getvalue())
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("cap", "capacity"),
        ("--num-u", "--num-users"),
        ("capacity --conc", "--concurrency"),
        ("mlperf summarize --mark", "--markdown"),
        ("mlperf che", "check"),
        ("trace fit --la", "--law"),
    ],
)
def test_bash_completes_commands_and_flags(typed: str, offered: str, script: Path) -> None:
    words = ["kv-cache.py", *typed.split()]
    ask = ASK.format(script=script, words=" ".join(words), place=len(words) - 1)
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert offered in done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_offered(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_another_shell_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
