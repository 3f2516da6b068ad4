"""Scenarios that were drawn up on the page get a file each."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import yaml

from kv_cache.core.errors import ConfigError
from kv_cache.web.classes import Folders
from kv_cache.web.scenario_files import DrawnScenario, write_scenario

DRAWERS = 8


def drawn(count: int) -> DrawnScenario:
    groups: dict[str, dict[str, int | float | str | None]] = {"one": {"count": count}}
    return DrawnScenario(name="mine", base="single-node", instances=groups)


def test_of_scenarios_drawn_under_one_name_at_once_one_is_kept(tmp_path: Path) -> None:
    barrier = Barrier(DRAWERS)

    def draw(count: int) -> int | str:
        barrier.wait()
        try:
            write_scenario(tmp_path, Folders((tmp_path,)), drawn(count))
        except ConfigError as error:
            return str(error)
        return count

    for turn in range(5):
        with ThreadPoolExecutor(DRAWERS) as pool:
            answers = list(pool.map(draw, range(1, DRAWERS + 1)))
        (kept,) = [each for each in answers if isinstance(each, int)]
        others = {each for each in answers if each != kept}
        assert others == {"a scenario 'mine' is there already; give it another name"}, turn
        (file,) = (tmp_path / "scenarios").iterdir()
        assert yaml.safe_load(file.read_text())["instances"] == {"one": {"count": kept}}
        file.unlink()


def test_the_same_scenario_may_be_drawn_again(tmp_path: Path) -> None:
    folders = Folders((tmp_path,))
    again = [write_scenario(tmp_path, folders, drawn(2)) for _ in range(2)]
    assert again[0] == again[1]


def test_a_scenario_that_does_not_load_is_named_by_its_own_name_and_not_kept(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"/mine\.yaml: instances"):
        write_scenario(tmp_path, Folders((tmp_path,)), drawn(0))
    assert not list((tmp_path / "scenarios").iterdir())
