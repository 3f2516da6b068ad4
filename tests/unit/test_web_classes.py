"""What a browser may set: every option of every command has a class."""

import os
from pathlib import Path

import pytest

from kv_cache.cli.serve import every_command
from kv_cache.config.load import load_config
from kv_cache.config.root import options
from kv_cache.config.scenario import InstanceSection
from kv_cache.config.schema import describe
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.extensions import Catalogue
from kv_cache.web.classes import (
    COMMANDS_NEVER,
    NEVER,
    TEXTS,
    TRACES,
    Folders,
    check_config,
    checked_text,
    key_of,
    scenario_options,
)

COMMANDS = {command.name: command for command in every_command()}
TABLES = {
    "run": options(),
    "scenario": scenario_options(),
    **{c.name: {o.path: o for o in describe(c.options)} for c in COMMANDS.values()
       if c.name != "run"},
}  # fmt: skip


def test_the_tables_name_options_that_there_are() -> None:
    keys = {key_of(name, option) for name, table in TABLES.items() for option in table.values()}
    assert not {*TEXTS, *NEVER} - keys
    assert COMMANDS_NEVER.keys() <= COMMANDS.keys()
    assert keys >= TRACES


def text(folders: Folders, path: str, value: str) -> str:
    return checked_text("run", options()[path], value, folders)


def test_a_path_must_end_in_a_chosen_folder_also_behind_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    os.symlink(outside, inside / "link")
    folders = Folders((inside,))
    assert text(folders, "tiers.cache_dir", f"{inside}/a/../b") == f"{inside}/b"
    for path in (
        f"{inside}/../out",
        f"{inside}/link/x",
        "/etc",
        "s3://bucket/in",
        "relative",
        "..",
    ):
        with pytest.raises(PlaceError, match="outside of the folders"):
            text(folders, "tiers.cache_dir", path)


@pytest.mark.parametrize(
    ("path", "value"),
    [("tiers.erase_device", "/dev/sda"), ("s3.endpoint", "http://x"),
     ("output.metrics_host", "0.0.0.0"), ("tiers.eviction", "os:system"),
     ("run.model", "../secret"), ("workload.tokenizer", "hf:/etc/passwd"),
     ("output.label", "a\0b")],
)  # fmt: skip
def test_what_is_never_set_from_a_page_is_refused_by_name(path: str, value: str) -> None:
    with pytest.raises(ConfigError, match=options()[path].flag or path):
        text(Folders((Path("/srv"),)), path, value)


def test_a_bare_name_is_a_file_of_the_run_s_own(tmp_path: Path) -> None:
    folders = Folders((tmp_path,), run_folder=tmp_path / "run")
    assert text(folders, "output.hdr_log", "a.hlog") == str(tmp_path / "run/a.hlog")
    for path in ("..", ".", "~", "../a.hlog"):
        with pytest.raises(PlaceError, match="outside of the folders"):
            text(folders, "output.hdr_log", path)


def test_an_upload_is_a_trace_and_nothing_else(tmp_path: Path) -> None:
    """A grid says what its runs may do: one that a browser sent could erase a device."""
    folders = Folders((tmp_path,), tmp_path / "uploads")
    upload = str(tmp_path / "uploads/grid.json")
    assert text(folders, "workload.trace", upload) == upload
    grid = next(o for o in describe(COMMANDS["sweep"].options) if o.rule.is_path)
    with pytest.raises(ConfigError, match="read as a trace alone"):
        checked_text("sweep", grid, upload, folders)


def test_instances_that_are_drawn_up_name_no_code() -> None:
    """They are written into a scenario as they are sent."""
    assert not [o.path for o in describe(InstanceSection) if isinstance(o.rule.choices, Catalogue)]


def test_a_setting_of_a_scenario_is_looked_at_as_the_option_that_it_sets() -> None:
    setting = next(o for o in describe(COMMANDS["sim"].options) if o.path == "settings")
    folders = Folders((Path("/srv"),))
    assert checked_text("sim", setting, "workload.requests=5", folders)
    with pytest.raises(PlaceError):
        checked_text("sim", setting, "workload.trace=/etc/passwd", folders)
    with pytest.raises(ConfigError, match="module is code"):
        checked_text("sim", setting, "tiers.dram.eviction=os:system", folders)


def test_a_configuration_file_may_not_say_what_the_page_may_not(tmp_path: Path) -> None:
    folders = Folders((tmp_path,))
    file = tmp_path / "mine.yaml"
    file.write_text("output: {label: here}\n")
    check_config(load_config(file), folders, ())
    file.write_text("tiers: {cache_dir: /srv/elsewhere}\n")
    with pytest.raises(PlaceError, match="outside of the folders"):
        check_config(load_config(file), folders, ())
    file.write_text("output: {metrics_host: 0.0.0.0}\n")
    with pytest.raises(ConfigError, match="not set from the page"):
        check_config(load_config(file), folders, ())
