"""Personalities lie under what is given: every word that the user says wins over them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_cache.cli.flags import parse
from kv_cache.config.build import build_world, tier_specs
from kv_cache.config.load import load_config
from kv_cache.config.personalities import PERSONALITIES
from kv_cache.config.root import Config, options
from kv_cache.config.rules import check
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.schema import print_config
from kv_cache.config.unread import value_at
from kv_cache.core.errors import ConfigError
from kv_cache.core.signals import Signals
from kv_cache.policy.eviction import EVICTION
from kv_cache.tiers.nvme import open_storage
from tests.cli import ROOT, small

NAMES = sorted(PERSONALITIES)

OTHER: Mapping[str, tuple[Any, Any]] = {
    "semantics.preset": ("serving", "mlperf"),
    "semantics.block_tokens": (128, 0),
    "semantics.promote": (True, False),
    "semantics.write_behind_full": ("wait", "drop"),
    "semantics.write_behind_queue": (7, 8),
    "schedule.max_concurrent_allocs": (3, 0),
    "tiers.eviction": ("lru", "fifo"),
    "io.layout": ("arena", "file"),
    "io.engine": ("mmap", "direct"),
    "io.rename": (True, False),
    "io.fsync": ("batch", "never"),
    "io.threads": (5, 6),
    "io.buffer_mib": (8, 64),
}
"""Values of the options that personalities set: at least one is not the personality's."""


def loaded(name: str, **overrides: Any) -> Config:
    return load_config(None, {"io.personality": name, **overrides})


def by_flags(*flags: str) -> Config:
    invocation = parse(flags)
    return load_config(invocation.config_path, invocation.overrides)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_and_sets_what_it_says(name: str) -> None:
    config = loaded(name)
    check(config)
    assert config.io.personality == name
    for path, value in PERSONALITIES[name].options.items():
        assert value_at(config, path) == value, path


@pytest.mark.parametrize("name", NAMES)
def test_each_sets_nothing_else(name: str) -> None:
    config, plain = loaded(name), Config()
    changed = {p for p in options() if value_at(config, p) != value_at(plain, p)}
    assert changed <= {*PERSONALITIES[name].options, "io.personality"}


@pytest.mark.parametrize("name", NAMES)
def test_none_warns_of_its_own_options(name: str) -> None:
    assert config_warnings(loaded(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_each_names_a_public_repository_and_a_path(name: str) -> None:
    repository, _, path = PERSONALITIES[name].source.partition(": ")
    assert repository.count("/") == 1
    assert path


def test_without_one_nothing_is_changed() -> None:
    assert load_config(None) == Config()


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_is_given_wins_over_each_of_its_options(name: str) -> None:
    for path, own in PERSONALITIES[name].options.items():
        given = next(value for value in OTHER[path] if value != own)
        config = loaded(name, **{path: given})
        assert value_at(config, path) == given
        for other, value in PERSONALITIES[name].options.items():
            if other != path:
                assert value_at(config, other) == value, f"{other}, with {path} given"


def test_a_flag_wins_over_the_personality() -> None:
    config = by_flags(
        "--personality=lmcache", "--io-threads=9", "--fsync=object", "--block-tokens=32",
        "--io-engine=direct", "--layout=bucket", "--semantics=mlperf",
    )  # fmt: skip
    assert (config.io.threads, config.fsync(), config.resolved_block_tokens()) == (9, "object", 32)
    assert (config.io.engine, config.io.layout) == ("direct", "bucket")
    assert config.semantics.preset == "mlperf"
    assert config.io.rename is False


def test_a_file_wins_over_the_personality_that_a_flag_asks_for(tmp_path: Path) -> None:
    file = written(tmp_path / "a.yaml", "io: {threads: 7}\nsemantics: {write_behind_queue: 3}\n")
    config = by_flags("--personality=lmcache", f"--config={file}")
    assert (config.io.threads, config.semantics.write_behind_queue) == (7, 3)
    assert config.semantics.block_tokens == 256


def test_a_file_may_ask_for_one_and_change_it(tmp_path: Path) -> None:
    file = written(tmp_path / "a.yaml", "io: {personality: hicache, threads: 2}\n")
    config = load_config(file)
    assert config.io.threads == 2
    assert config.semantics.block_tokens == 64


def test_the_flag_wins_over_the_personality_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "a.yaml", "io: {personality: hicache}\n")
    config = by_flags("--personality=mooncake", f"--config={file}")
    assert config.io.personality == "mooncake"
    for path, value in PERSONALITIES["mooncake"].options.items():
        assert value_at(config, path) == value


def test_the_blocks_win_over_those_of_a_trace() -> None:
    assert loaded("hicache").resolved_block_tokens(512) == 64
    assert loaded("reference").resolved_block_tokens(512) == 0


@pytest.mark.parametrize(
    ("said", "meant"), [("lmcach", "lmcache"), ("vllm", "vllm-fs"), ("Mooncake", "mooncake")]
)
def test_an_unknown_name_is_refused_with_the_nearest(said: str, meant: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.yaml", f"io: {{personality: {said}}}\n")
    for flags in ([f"--personality={said}"], [f"--config={file}"]):
        with pytest.raises(ConfigError) as caught:
            by_flags(*flags)
        assert said in str(caught.value)
        assert all(name in str(caught.value) for name in NAMES)
        assert f"Did you mean '{meant}'?" in str(caught.value)


@pytest.mark.parametrize("raw", ["7", "[lmcache]", "{}", "true"])
def test_what_is_not_a_name_is_refused(raw: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.yaml", f"io: {{personality: {raw}}}\n")
    with pytest.raises(ConfigError, match=r"io\.personality is .*must be one of"):
        load_config(file)


@pytest.mark.parametrize("name", NAMES)
def test_the_effective_configuration_is_printed_and_loads_back(name: str, tmp_path: Path) -> None:
    config = loaded(name, **{"io.threads": 11})
    printed = written(tmp_path / "printed.yaml", print_config(config))
    assert load_config(printed) == config


@pytest.mark.parametrize("name", NAMES)
def test_what_is_set_reaches_what_runs(name: str, tmp_path: Path) -> None:
    config, wanted = loaded(name), PERSONALITIES[name].options
    semantics = config.lifecycle_semantics(synthetic=True)
    serving = wanted["semantics.preset"] == "serving"
    assert semantics.reuse_prefix == serving
    assert semantics.write_behind == serving
    assert semantics.promote == wanted.get("semantics.promote", serving)
    assert semantics.write_behind_drop == ("semantics.write_behind_full" in wanted)
    assert config.fsync() == wanted["io.fsync"]
    assert config.tiers.eviction in EVICTION
    world = build_world(config, tier_specs(config, 2**30), Signals())
    assert (world.stores.try_enter(0), world.stores.try_enter(0)) == (
        True,
        wanted.get("schedule.max_concurrent_allocs") != 1,
    )
    store = open_storage(
        tmp_path,
        capacity_bytes=2**20,
        layout=config.io.layout,
        engine=config.io.engine,
        write_engine=config.io.write_engine,
        fsync=config.fsync(),
        rename=config.io.rename,
    )
    described = store.describe()
    store.close()
    assert (described["layout"], described["fsync"]) == (wanted["io.layout"], wanted["io.fsync"])
    if wanted["io.engine"] != "auto":
        assert described["engine"] == described["write_engine"] == wanted["io.engine"]


def test_the_result_holds_the_configuration_that_ran(tmp_path: Path) -> None:
    ran = small(
        tmp_path, "--personality=hicache", "--max-requests=5", "--io-threads=3", "--num-users=2"
    )
    assert ran.code == 0, ran.err
    config = ran.own["config"]
    tree = json.loads(json.dumps(config))
    assert tree["io"]["personality"] == "hicache"
    assert tree["io"]["threads"] == 3
    assert tree["semantics"]["block_tokens"] == 64
    store = ran.own["tiers"]["storage"]["store"]
    assert (store["engine"], store["layout"], store["rename"]) == ("buffered", "file", True)


def test_the_page_shows_the_options_as_they_are() -> None:
    page = (ROOT / "docs" / "reference" / "personalities.md").read_text()
    section = page.partition("## What is set")[2].partition("##")[0]
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    names = rows[0][1:]
    assert sorted(names) == NAMES
    shown = {
        name: {row[0]: row[column] for row in rows[2:] if row[column]}
        for column, name in enumerate(names, start=1)
    }
    for name, personality in PERSONALITIES.items():
        real = {p: str(v).lower() for p, v in personality.options.items()}
        assert shown[name] == real
