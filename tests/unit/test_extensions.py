"""What a user brings along: found by MODULE:CLASS and by entry points, held against the laws."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from kv_cache import load_config, run
from kv_cache.cli import main
from kv_cache.core.errors import ConfigError
from kv_cache.extensions import Catalogue, makes
from kv_cache.policy.admission import ADMISSION
from kv_cache.policy.eviction import EVICTION, Eviction
from kv_cache.policy.eviction.lru import Lru
from kv_cache.testing import check_admission, check_engine, check_eviction
from kv_cache.tiers.nvme.engines import ENGINES
from kv_cache.tiers.nvme.uring import uring_missing
from tests.cli import ROOT

PAGE = (ROOT / "docs" / "how-to" / "bring-your-own.md").read_text()
_BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with the page's `mru.py`."""
    (tmp_path / "mru.py").write_text(_BLOCKS[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "mru", raising=False)
    return tmp_path


def test_the_example_of_the_page_keeps_the_laws_and_has_thirty_lines(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(_BLOCKS[0].splitlines()) <= 30
    monkeypatch.syspath_prepend(str(example))
    exec(compile(_BLOCKS[1], "page", "exec"), {})


def test_lab_compares_a_policy_of_the_users_own(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "lab --pattern chat_continuation --policies lru,mru:Mru --seeds 3 --capacities 10%"
    assert main(words.split()) == 0
    assert "mru:Mru" in capsys.readouterr().out


def test_a_run_evicts_by_a_policy_of_the_users_own(example: Path) -> None:
    config = load_config(
        None,
        {
            "tiers.eviction": "mru:Mru", "run.virtual_time": True, "run.duration_s": 3.0,
            "run.model": "tiny-1b", "run.num_users": 3, "tiers.storage_capacity_gib": 1.0,
            "semantics.preset": "serving", "output.output": "R.json",
        },
    )  # fmt: skip
    assert run(config).section["config"]["tiers"]["eviction"] == "mru:Mru"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mru:Nothing", "cannot be imported"),
        ("nowhere_at_all:X", "cannot be imported"),
        ("mru:__doc__", "cannot be called"),
        ("builtins:int", "it has no insert, hit, remove, victims"),
    ],
)
def test_what_cannot_be_had_is_refused_before_the_run(
    name: str, says: str, example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--eviction", name, "--virtual-time", "--output=R.json"]) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1
    assert says in printed[0]
    assert not (example / "R.json").exists()


def test_reading_a_configuration_imports_nothing(example: Path) -> None:
    (example / "evil.py").write_text("raise SystemExit('imported')")
    assert load_config(None, {"tiers.eviction": "evil:X"}).tiers.eviction == "evil:X"


def test_an_entry_point_has_a_plain_name(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue: Catalogue[Any] = Catalogue("kv_cache.eviction", {"ours": Lru}, makes())
    point = EntryPoint("theirs", "kv_cache.policy.eviction.fifo:Fifo", "kv_cache.eviction")
    monkeypatch.setattr("kv_cache.extensions.entry_points", lambda group: [point])
    assert list(catalogue) == ["ours", "theirs"]
    assert catalogue["theirs"].__name__ == "Fifo"
    assert "other" not in catalogue
    with pytest.raises(KeyError):
        catalogue["other"]


@pytest.mark.parametrize("name", sorted(set(EVICTION.ours) - {"learned"}))
def test_our_policies_pass_the_check(name: str) -> None:
    check_eviction(EVICTION[name], histories=20)


@pytest.mark.parametrize("name", sorted(ADMISSION.ours))
def test_our_admission_policies_pass_the_check(name: str) -> None:
    check_admission(ADMISSION[name], histories=30)


@pytest.mark.parametrize("name", sorted(ENGINES.ours))
def test_our_engines_pass_the_check(name: str, tmp_path: Path) -> None:
    if name == "direct":
        pytest.importorskip("fcntl")
    if name == "uring" and (missing := uring_missing()) is not None:
        pytest.skip(missing)
    check_engine(ENGINES[name], tmp_path)


class _Forgetful(Lru):
    """Loses its last victim."""

    def victims(self) -> Any:
        return list(super().victims())[:-1]


class _Counting(Lru):
    """Its order depends on how many policies there were."""

    made = 0

    def __init__(self, capacity: int | None) -> None:
        super().__init__(capacity)
        _Counting.made += 1
        self._odd = _Counting.made % 2

    def victims(self) -> Any:
        order = list(super().victims())
        return reversed(order) if self._odd else iter(order)


@pytest.mark.parametrize(("broken", "law"), [(_Forgetful, "Law 5"), (_Counting, "Law")])
def test_a_broken_policy_is_named_with_its_law(broken: type[Eviction], law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_eviction(broken)


def test_a_name_that_is_neither_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'lru'"):
        load_config(None, {"tiers.eviction": "lru2"})
