"""Grids: what their cells are, how they are named, and what is refused before anything is run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.config.axes import Axis
from kv_cache.config.grid import Cell, Grid, read_grid
from kv_cache.core.errors import ConfigError


def grid(tmp_path: Path, tree: Any, **options: bool) -> Grid:
    path = tmp_path / "grid.yaml"
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return read_grid(path, **options)


def made(axes: list[tuple[str, list[Any]]], **more: Any) -> Grid:
    return Grid(
        source="g", tree={}, config=None, base={}, repeat=1, seed=None,
        axes=tuple(Axis(paths=(name,), values=tuple((v,) for v in vs)) for name, vs in axes),
        exclude=more.get("exclude", ()),
    )  # fmt: skip


def test_every_value_is_combined_with_every_other(tmp_path: Path) -> None:
    found = grid(
        tmp_path,
        {
            "vary": {"io.threads": [4, 8], "run.num_users": [10, 50]},
            "zip": {"tiers.cpu_mem_gib": [0, 4], "tiers.gpu_mem_gib": [1, 2]},
            "exclude": [{"io.threads": 4, "run.num_users": [50]}],
        },
    )
    cells = [tuple(cell.values.values()) for cell in found.cells()]
    assert cells == [
        *((4, 10, 0, 1), (4, 10, 4, 2)),
        *((8, 10, 0, 1), (8, 10, 4, 2), (8, 50, 0, 1), (8, 50, 4, 2)),
    ]
    assert [cell.number for cell in found.cells()] == list(range(1, 7))


def test_a_run_of_a_cell_has_the_base_the_cell_and_its_seed(tmp_path: Path) -> None:
    found = grid(
        tmp_path,
        {"config": "quick", "base": {"run.num_users": 7}, "vary": {"io.threads": [4, 8]}},
    )
    config = found.config_of(list(found.cells())[1], 99)
    assert (config.run.num_users, config.io.threads, config.run.seed) == (7, 8, 99)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"io.threads": 8, "run.num_users": 50}, "cell-003_io.threads-8_run.num_users-50"),
        ({"tiers.cache_dir": ["/mnt/a b/kv", "/x"]}, "cell-003_tiers.cache_dir-kv+x"),
        ({"io.rename": True, "run.max_requests": None}, "cell-003_io.rename-on_run.max_requests"),
    ],
)
def test_a_cell_has_a_name_that_can_be_read(values: dict[str, Any], name: str) -> None:
    assert Cell(number=3, values=values).name.startswith(name)


values_of = st.lists(st.integers() | st.text(), min_size=1, max_size=4)
axes_of = st.lists(
    st.tuples(st.text("abc.", min_size=1), values_of),
    max_size=4, unique_by=lambda axis: axis[0],
)  # fmt: skip


@settings(deadline=None)
@given(axes=axes_of)
def test_there_are_as_many_cells_as_the_product_and_all_differ_in_name(
    axes: list[tuple[str, list[Any]]],
) -> None:
    found = made(axes)
    cells = list(found.cells())
    assert len(cells) == found.size
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(len(cell.name) <= 100 and "/" not in cell.name for cell in cells)
    assert all(tuple(cell.values) == found.paths for cell in cells)


BAD: list[tuple[Any, str]] = [
    ("", "a grid is a mapping"),
    ({"vary": {}}, "nothing varies"),
    ({"vari": {}}, "'vari' is no key of a grid. Did you mean 'vary'?"),
    ({"vary": {"io.thread": [4]}}, "'io.thread', which is no option. Did you mean 'io.threads'?"),
    ({"vary": {"--num-users": [4]}}, "the flag --num-users; .* by path: run.num_users"),
    ({"vary": {"io.threads": []}}, r"vary.io.threads has no values; give a list"),
    ({"vary": {"io.threads": 4}}, r"vary.io.threads has 4; give a list"),
    ({"vary": {"io.threads": [0]}}, "io.threads is 0; it must be a whole number"),
    ({"vary": {"io.threads": ["x"]}}, "io.threads is 'x'; it must be"),
    ({"vary": {"io.threads": [4, 8, 4]}}, "has 4 twice"),
    ({"vary": {"run.seed": [1, 2]}}, "seed .of the grid. and repeat"),
    ({"vary": {"output.output": ["a"]}}, "a directory of its own"),
    ({"base": {"io.threads": 4}, "vary": {"io.threads": [8]}}, "is given twice, in base too"),
    ({"vary": {"io.threads": [8]}, "zip": {"io.threads": [8]}}, "is given twice"),
    ("vary: {io.threads: [4], io.threads: [8]}", "duplicate key"),
    ({"zip": {"io.threads": [4], "run.num_users": [1, 2]}}, "lists of different lengths"),
    ({"zip": {"io.threads": [4, 4], "run.num_users": [1, 1]}}, "twice; keep one"),
    ({"vary": {"io.threads": [4]}, "exclude": [{"run.mode": "x"}]}, "which does not vary"),
    ({"vary": {"io.threads": [4]}, "exclude": [{"io.threads": 5}]}, "none of its values"),
    ({"vary": {"io.threads": [4]}, "exclude": [{}]}, "every cell"),
    ({"vary": {"io.threads": [4]}, "exclude": 3}, "must be a list"),
    ({"vary": {"io.threads": [4]}, "repeat": 0}, "repeat is 0"),
    ({"vary": {"io.threads": [4]}, "repeat": True}, "repeat is"),
    ({"vary": {"io.threads": [4]}, "seed": -1}, "seed is -1"),
    ({"vary": {"io.threads": [4]}, "config": 4}, "config is 4"),
    ({"vary": {"io.threads": [4]}, "base": []}, "base is"),
    ({"vary": {"run.num_users": list(range(1, 102)), "io.threads": list(range(1, 101))}},
     "10100 cells"),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "says"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_a_bad_grid_is_one_sentence(tmp_path: Path, tree: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        grid(tmp_path, tree)
    assert "grid.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_cells_may_be_meant(tmp_path: Path) -> None:
    tree = {"vary": {"io.threads": [1, 2]}, "repeat": 1000}
    assert grid(tmp_path, tree).size == 2
    tree["vary"]["run.num_users"] = list(range(1, 7))  # type: ignore[index]
    with pytest.raises(ConfigError, match="--many"):
        grid(tmp_path, tree)
    assert grid(tmp_path, tree, many=True).size == 12


def test_a_grid_whose_cells_are_all_left_out_is_empty(tmp_path: Path) -> None:
    found = grid(tmp_path, {"vary": {"io.threads": [4]}, "exclude": [{"io.threads": 4}]})
    with pytest.raises(ConfigError, match="leaves no cell"):
        list(found.cells())


def test_what_contradicts_itself_names_its_cell(tmp_path: Path) -> None:
    found = grid(tmp_path, {"vary": {"run.model": ["tiny-1b", "tiny-2b"]}})
    first, second = found.cells()
    found.config_of(first, 1).model_shape()
    with pytest.raises(ConfigError):
        found.config_of(second, 1).model_shape()
