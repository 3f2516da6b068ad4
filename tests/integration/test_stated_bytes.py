"""A model whose config.json is not understood is refused, and runs with bytes that are stated."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli import main
from kv_cache.result.verify import recheck
from tests.cli import SMALL, prepare

NEMOTRON = {
    "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 2688,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*",
}  # fmt: skip
STATED = "--kv-bytes-per-token=6144"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano" / "config.json").write_text(json.dumps(NEMOTRON))
    return tmp_path


def words(*more: str) -> list[str]:
    kept = [word for word in SMALL if not word.startswith("--model")]
    return [*kept, "--no-progress", "--cache-dir=cache", *more]


def result(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_a_model_that_is_not_understood_is_refused_before_anything_is_made(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in here.iterdir())
    assert main(["run", *words("--model=nano")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "model_type 'nemotron_h' with hybrid_override_pattern" in said
    assert "--kv-bytes-per-token N" in said
    assert sorted(path.name for path in here.iterdir()) == before


def test_stated_bytes_reach_the_objects_the_result_and_verify(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words("--model=nano", STATED, "--max-requests=12", "--output=R.json", "--records",
                  "--results-dir=runs", "--semantics=serving", "--block-tokens=64",
                  "--cpu-mem-gb=0")  # fmt: skip
    assert main(["run", *asked]) == 0
    document = result(here / "R.json")
    own = document["kv_cache"]
    assert own["config"]["run"]["kv_bytes_per_token"] == 6144
    assert own["model"]["bytes_per_token"] == own["model"]["kv_bytes_per_token"] == 6144
    assert own["model"]["num_layers"] == 52
    assert "nemotron_h (6144 bytes a token)" in capsys.readouterr().out
    (run,) = (here / "runs").iterdir()
    moved = [json.loads(line) for line in (run / "transfers.jsonl").read_text().splitlines()]
    sizes = {leg["bytes"] for row in moved for leg in row["legs"] if leg["operation"] == "write"}
    assert sizes
    assert all(size % 6144 == 0 for size in sizes)
    assert max(sizes) == 64 * 6144
    assert main(["verify", str(run)]) == 0
    assert recheck(document) == []
    own["model"]["bytes_per_token"] = 7000
    assert any("kv_cache.model.bytes_per_token says 7000, but what was counted gives 6144" in s
               for s in recheck(document))  # fmt: skip


def test_a_built_in_model_takes_stated_bytes_and_its_geometry_stays(here: Path) -> None:
    virtual = ["--virtual-time", "--duration=2", "--output=R.json"]
    assert main(["run", *words("--model=tiny-1b", STATED, *virtual)]) == 0
    model = result(here / "R.json")["kv_cache"]["model"]
    assert (model["bytes_per_token"], model["num_layers"]) == (6144, 12)


@pytest.mark.parametrize("more", ["--kv-dtype=fp8", "--model-mix=tiny-1b=1,qwen3-8b=1"])
def test_stated_bytes_are_of_one_model_with_its_type(
    here: Path, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words(STATED, more)]) == 2
    assert "the bytes are of one model, its type included" in capsys.readouterr().err


def test_a_mix_has_a_model_of_stated_bytes_in_its_configuration(here: Path) -> None:
    (here / "small.yaml").write_text(
        (here / "small.yaml").read_text() + "model_configs: {v4: {kv_bytes_per_token: 6880}}\n"
    )
    mix = words("--model-mix=v4=1,tiny-1b=1", "--virtual-time", "--duration=2", "--output=R.json")
    assert main(["run", *mix]) == 0
    document = result(here / "R.json")
    models = document["kv_cache"]["model"]["models"]
    assert models["v4"]["bytes_per_token"] == 6880
    assert recheck(document) == []


def test_a_scenario_takes_such_a_model_by_its_own_option(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = ["sim", "single-node", "--preset=smoke"]
    assert main([*scenario, "--set=model.name=nano"]) == 2
    assert "model.kv_bytes_per_token" in capsys.readouterr().err
    assert main([*scenario, "--set=model.kv_bytes_per_token=6144"]) == 0
