"""The package's face: `from kv_cache import load_config, run, Result`."""

import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import kv_cache
from kv_cache import Config, Result, load_config, run
from kv_cache.bench.interrupts import Interrupts
from kv_cache.core.errors import ConfigError
from tests.cli import ROOT
from tests.passports import names

TINY = {
    "run.model": "tiny-1b",
    "run.num_users": 3,
    "run.virtual_time": True,
    "run.duration_s": 5.0,
    "run.seed": 3,
    "tiers.storage_capacity_gib": 1.0,
}


def configured(tmp_path: Path, **more: object) -> Config:
    return load_config(None, {**TINY, "output.output": str(tmp_path / "R.json"), **more})


def test_a_run_is_a_function_of_its_configuration_that_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(configured(tmp_path))
    assert capfd.readouterr().out == ""
    assert isinstance(result, Result)
    assert result.path == tmp_path / "R.json"
    assert result.run.seed == 3
    names(result.document["kv_cache"], V26="invalid")
    assert result.verdict == "invalid"
    assert Result.read(tmp_path / "R.json").document["kv_cache"]["seed"] == 3


def test_trials_are_handed_over_one_by_one_then_together(tmp_path: Path) -> None:
    seen: list[str] = []
    config = configured(tmp_path, **{"run.trials": 2})
    result = run(config, on_result=lambda each: seen.append(each.schema.split("/")[0]))
    assert seen == ["kv-cache-result", "kv-cache-result", "kv-cache-trials"]
    assert [each.schema for each in result.trials] == ["kv-cache-result/9"] * 2


def test_a_stop_token_ends_a_run_early_with_a_result(tmp_path: Path) -> None:
    stop = Interrupts()
    stop.stop.set()
    result = run(configured(tmp_path), stop=stop)
    assert result.run.status == "interrupted" or result.run.requests is not None
    assert result.path is not None


def test_bad_input_is_an_error_of_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"run\.num_users"):
        load_config(None, {"run.num_users": -1})


def test_times_and_sizes_are_read_with_their_units() -> None:
    config = load_config(None, {"run.duration_s": "5m", "tiers.storage_capacity_gib": "10GB"})
    assert config.run.duration_s == 300
    assert config.tiers.storage_capacity_gib == pytest.approx(10e9 / 2**30)


def test_the_package_alone_imports_nothing_of_what_it_offers() -> None:
    script = "import kv_cache, sys; print(sorted(n for n in sys.modules if n.startswith('kv_c')))"
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "['kv_cache']"
    assert set(kv_cache.__all__) >= {"Config", "Result", "load_config", "run"}


PAGE = (ROOT / "docs" / "how-to" / "use-from-python.md").read_text()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`app\.(\w+\.\w+)`", PAGE))))
def test_every_use_case_of_the_page_is_a_function_that_needs_no_terminal(name: str) -> None:
    module, function = name.split(".")
    loaded = import_module(f"kv_cache.app.{module}")
    assert callable(getattr(loaded, function))
    assert "kv_cache.cli" not in vars(loaded).values()


def test_the_page_names_what_a_result_has() -> None:
    table = PAGE[PAGE.index("| of a `Result`") : PAGE.index("`Result.read")]
    names = [
        name
        for row in table.splitlines()[2:]
        if row
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert names
    known = {field.name for field in fields(Result)} | set(dir(Result))
    assert set(names) <= known


def test_the_first_lines_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    code = code.replace('"/mnt/nvme/kv"', repr(str(tmp_path / "kv"))).replace('"2m"', '"3s"')
    quick = '"quick",\n    {\n        "run.virtual_time": True, "run.warmup_s": 0.0,'
    scope: dict[str, object] = {}
    exec(compile(code.replace('"quick",\n    {', quick), "page", "exec"), scope)
    assert isinstance(scope["result"], Result)
