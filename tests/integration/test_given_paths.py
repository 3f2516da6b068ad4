"""What is given means what it says: `~`, two configurations, the reference's file, no sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.cli.wrapper import read
from kv_cache.config.load import load_config
from kv_cache.config.root import options
from kv_cache.core.errors import ConfigError
from tests.cli import SMALL, prepare

VIRTUAL = [*SMALL, "--virtual-time", "--duration=2", "--no-progress"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own home, beside the working directory."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    prepare(tmp_path / "here")
    return tmp_path / "home"


def document(path: Path) -> Any:
    return json.loads(path.read_bytes())["kv_cache"]


PATHS = [path for path, option in options().items() if option.rule.is_path]


@pytest.mark.parametrize("path", PATHS)
def test_a_tilde_is_the_home_in_every_option_that_is_a_path(path: str, home: Path) -> None:
    section, name = path.split(".")
    Path("site.yaml").write_text(f"{section}: {{{name}: ~/x/y}}\n")
    found = getattr(getattr(load_config(Path("site.yaml")), section), name)
    assert found in (f"{home}/x/y", (f"{home}/x/y",))


def test_every_option_whose_name_says_a_file_or_directory_is_a_path() -> None:
    words = ("_dir", "_path", "_log", "_dump", "_trace", "_export", "_output", ".trace", ".profile")
    named = {path for path, option in options().items() if path.endswith(words)}
    assert named - set(PATHS) == {"workload.use_burst_trace", "workload.strict_trace"}
    assert set(PATHS) - named == {"output.output", "output.record", "sim.predict"}


def test_a_tilde_behind_an_equals_sign_is_the_home_in_every_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *VIRTUAL, "--output=~/R.json"]) == 0
    assert main(["report", "~/R.json", "--output=~/R.md"]) == 0
    assert main(["verify", "~/R.json"]) == 0
    assert sorted(path.name for path in home.iterdir()) == ["R.json", "R.md"]
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]
    asked = read(["--rank-output-base=o", "--rank-cache-base=~/c"])
    assert load_config(None, asked.invocation.overrides).tiers.cache_dir == (f"{home}/c",)


def test_the_home_of_nobody_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *VIRTUAL, "--cache-dir=~no-such-user/x"]) == 2
    assert "there is no such user" in capsys.readouterr().err
    assert main(["run", *VIRTUAL, "--output=./~x.json"]) == 0
    assert Path("~x.json").exists()


def test_two_configurations_are_refused_by_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["run"], ["capacity", "--slo=interactive:p95<1s"], ["precondition"]):
        assert main([*command, "--config=quick", "--config", "small.yaml"]) == 2
        assert "--config is given twice, quick and small.yaml" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="given twice"):
        read(["--option=1", "--base-output-dir=o", "--cache-dir=c", "--config=a", "--config=b"])


def test_the_references_file_is_the_defaults_where_there_is_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*VIRTUAL, "--config=config.yaml", "--output=R.json"]
    words.remove("--config=small.yaml")
    assert main(["run", *words]) == 0
    own = document(Path("R.json"))
    assert own["config"]["user_templates"]["coding"]["context_range"] == [4096, 25_000]
    assert any("config.yaml: there is no such file here" in note for note in own["notes"])
    capsys.readouterr()
    assert main(["run", *words[:-1], "--config=other.yaml"]) == 2
    Path("config.yaml").write_text("user_templates: {coding: {context_range: [5, 6]}}")
    assert main(["run", *words]) == 0
    own = document(Path("R.json"))
    assert own["config"]["user_templates"]["coding"]["context_range"] == [5, 6]
    assert not any("there is no such file" in note for note in own["notes"])


def test_a_run_without_sizes_begins_and_its_result_says_which_it_took(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_cache.bench.tier_sizes.available_ram_bytes", lambda: 2 << 30)
    words = [word for word in SMALL if "-mem-gb" not in word]
    words += ["--cache-dir=cache", "--max-requests=8", "--no-progress", "--gpu=emulated"]
    assert main(["run", *words, "--output=R.json"]) == 0
    own = document(Path("R.json"))
    assert [own["config"]["tiers"][name] for name in ("gpu_mem_gib", "cpu_mem_gib")] == [0, 0.5]
    assert sum("as none was given" in note for note in own["notes"]) == 1
    given = [*words, "--gpu-mem-gb=0", "--cpu-mem-gb=0.0625", "--output=S.json"]
    assert main(["run", *given]) == 0
    assert document(Path("S.json"))["schedule"] == own["schedule"]  # of no machine
