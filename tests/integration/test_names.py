"""Names that are not UTF-8: mount points, directories and variables hold any bytes, and no finished
run is lost for one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kv_cache.cli import console
from kv_cache.cli import main as kv_cache
from kv_cache.config.load import load_config
from kv_cache.core.errors import ConfigError
from kv_cache.core.text import to_json
from tests.cli import PATIENCE_S, ROOT, SMALL, command, environment, prepare

BYTES = b"caf\xe9"
NAME = os.fsdecode(BYTES)
SHOWN = r"caf\xe9"


def in_private_mounts(
    cwd: Path, *program: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run where a tmpfs is mounted on `NAME` below `cwd`, which nobody else on the machine sees."""
    (cwd / NAME).mkdir()
    script = 'mount -t tmpfs -o size=256m none "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, NAME, *program],
        cwd=cwd,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode and ("unshare:" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    return done


def test_a_run_beside_names_that_are_not_utf8_ends_with_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a mount point holds its cache directory, and its environment a variable."""
    prepare(tmp_path)
    (tmp_path / "link").symlink_to(NAME)
    args = ["--cache-dir=link/c", "--output=R.json", "--duration=0.5", "--storage-capacity-gb=0.1"]
    done = in_private_mounts(tmp_path, *command(*SMALL, *args), OMP_NUM_THREADS=NAME)
    assert done.returncode == 0, done.stderr
    environ = json.loads((tmp_path / "R.json").read_bytes())["kv_cache"]["environment"]
    assert environ["filesystem"]["mount_point"].endswith(SHOWN)
    assert environ["filesystem"]["type"] == "tmpfs"
    assert environ["env"]["OMP_NUM_THREADS"] == SHOWN
    assert kv_cache(["verify", str(tmp_path / "R.json")]) == 0, capsys.readouterr().out


def test_a_mount_point_of_anybodys_keeps_nobody_from_looking_at_the_machine(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from kv_cache.bench.fill import discards\n"
        "from kv_cache.bench.memory import available_ram_bytes\n"
        "from kv_cache.files.environment import Reader, filesystem\n"
        "where = Path(sys.argv[1])\n"
        "print(available_ram_bytes() > 0, discards(where), filesystem(Reader(), where)['type'])\n"
    )
    done = in_private_mounts(tmp_path, sys.executable, "-c", code, NAME)
    assert (done.stdout, done.stderr) == ("True False tmpfs\n", "")


@pytest.mark.parametrize(
    "words",
    [
        *(["run", option, NAME] for option in ("--output", "--trace", "--cache-dir")),
        *(["run", option, NAME] for option in ("--latency-dump", "--tokenizer", "--results-dir")),
        *([f"--output={NAME}"], ["trace", "stats", NAME], ["lab", NAME], ["sim", NAME]),
        *(["report", NAME], ["compare", NAME, NAME], ["verify", NAME], ["probe", "--dir", NAME]),
        ["sweep", NAME, "--results-dir", NAME],
    ],
)
def test_an_argument_that_is_not_utf8_is_refused_before_anything_is_done(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["kv-cache.py", *words])
    with pytest.raises(SystemExit) as ended:
        console()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert f"{SHOWN}' is not UTF-8" in err
    assert err.count("\n") == 1
    assert (out, os.listdir(tmp_path)) == ("", [])


def test_what_is_printed_may_hold_any_name(tmp_path: Path) -> None:
    code = f"from kv_cache.cli import console; console(lambda argv: print({NAME!r}) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, rb"caf\udce9" + b"\n", b"")


def test_a_configuration_cannot_smuggle_such_a_name_in(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(r'output: {output: "caf\uDCE9"}')
    with pytest.raises(ConfigError, match="must be text"):
        load_config(tmp_path / "c.yaml", {})


@pytest.mark.parametrize(("text", "shown"), [(NAME, SHOWN), ("\ud800", r"\ud800"), ("é", "é")])
def test_a_document_keeps_every_name_in_utf8(text: str, shown: str) -> None:
    document = {text: [text, (1, text)], "plain": 1.5}
    assert json.loads(to_json(document)) == {shown: [shown, [1, shown]], "plain": 1.5}


def test_what_no_json_can_hold_is_still_a_mistake() -> None:
    with pytest.raises(TypeError):
        to_json({"object": object()})
