"""Hints of how to install what is missing work as printed, and name no project of a stranger's."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kv_cache import installing
from kv_cache.installing import NEEDED, install_hint
from tests.cli import PROGRAM, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"pyyaml": "yaml"}
STRANGER = {"__init__.py": "from .main import KVStore\n", "main.py": "class KVStore: ...\n"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_from_a_checkout_a_hint_names_the_checkout_and_this_interpreter(extra: str) -> None:
    *command, what = shlex.split(install_hint(extra))
    assert command == [sys.executable, "-m", "pip", "install", "-e"]
    root, name = what.removesuffix("]").rsplit("[", 1)
    assert (Path(root) / "pyproject.toml").samefile(ROOT / "pyproject.toml")
    assert name == extra


def test_a_checkout_with_a_space_in_its_path_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "my drives" / "kv's"
    checkout.mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(installing, "_PACKAGE", checkout / "kv_cache")
    assert shlex.split(install_hint("plot"))[-1] == f"{checkout}[plot]"


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_installed_program_names_the_packages_themselves(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing, "_PACKAGE", tmp_path / "kv_cache")
    *command, first = shlex.split(install_hint(extra))[: 4 + 1]
    assert command == [sys.executable, "-m", "pip", "install"]
    named = {_bare(each) for each in shlex.split(install_hint(extra))[4:]}
    assert named == {_bare(each) for each in EXTRAS[extra]}
    assert not first.startswith(("-", "."))


def test_every_hint_that_the_program_gives_is_of_an_extra_that_there_is() -> None:
    asked = set()
    for path in (ROOT / "kv_cache").rglob("*.py"):
        asked |= set(re.findall(r"install_hint\(['\"](\w+)['\"]\)", path.read_text()))
    assert asked >= {"cuda", "fast", "learned", "mpi", "plot", "s3", "zstd"}
    assert asked <= set(EXTRAS)


def test_no_text_tells_to_install_the_program_from_an_index() -> None:
    named = re.compile(r"kv-cache(-bench)?\[|pip install '?kv-cache")
    texts = [ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / "configs").rglob("*.yaml")]
    for folder, suffix in (("kv_cache", "py"), ("docs", "md"), ("benchmarks", "py")):
        texts += (ROOT / folder).rglob(f"*.{suffix}")
    assert [str(path) for path in texts if named.search(path.read_text(errors="replace"))] == []


def test_the_modules_that_are_needed_are_those_of_the_project() -> None:
    named = [_bare(each) for each in PROJECT["dependencies"]]
    assert tuple(MODULES.get(each, each) for each in named) == NEEDED


@pytest.mark.parametrize("script", ["kv-cache.py", "mlperf_wrapper.py"])
def test_before_anything_is_installed_one_sentence_says_what_to_do(
    script: str, tmp_path: Path
) -> None:
    checkout = tmp_path / "a checkout"
    shutil.copytree(ROOT / "kv_cache", checkout / "kv_cache", ignore=_caches)
    for name in (script, "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, checkout)
    base = ["--rank-output-base=o", "--rank-cache-base=c"] if script != "kv-cache.py" else []
    # -S: the interpreter without any package that was installed for it
    done = _ran(["-S", str(checkout / script), *base, "--num-users=3"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert any(f"no package {module!r}" in done.stderr for module in NEEDED)
    assert f"-r {shlex.quote(str(checkout / 'requirements.txt'))}" in done.stderr


def test_a_checkout_that_was_set_up_names_its_own_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for path in (python, tmp_path / "pyproject.toml"):
        path.touch()
    monkeypatch.setattr(installing, "_PACKAGE", tmp_path / "kv_cache")
    assert f"run the program by {python}" in installing.missing_hint("orjson")


def test_a_stranger_that_was_installed_over_the_program_is_named(tmp_path: Path) -> None:
    package = tmp_path / "site" / "kv_cache"
    shutil.copytree(ROOT / "kv_cache", package, ignore=_caches)
    for name, text in STRANGER.items():
        (package / name).write_text(text)
    console = "from kv_cache.cli import console; console()"
    done = _ran(["-c", console, "--version"], tmp_path, package.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"{package / '__init__.py'} is not this program's" in done.stderr
    assert "pip uninstall kv-cache" in done.stderr


@pytest.mark.parametrize("script", ["kv-cache.py", "mlperf_wrapper.py"])
def test_a_stranger_that_is_imported_first_is_named(script: str, tmp_path: Path) -> None:
    package = tmp_path / "site" / "kv_cache"
    package.mkdir(parents=True)
    for name, text in STRANGER.items():
        (package / name).write_text(text)
    # -P: the script's own directory is not where Python looks first
    done = _ran(["-P", str(PROGRAM.with_name(script)), "--help"], tmp_path, package.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(package / "__init__.py") in done.stderr


def _ran(args: list[str], cwd: Path, *path: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


def _bare(requirement: str) -> str:
    return re.split(r"[<>=!~;\s]", requirement.strip())[0].lower()


_caches = shutil.ignore_patterns("__pycache__")
