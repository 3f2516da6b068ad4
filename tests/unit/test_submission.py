"""The pure parts of MLPerf's sequence: names, ranks of a launcher, the description of a system."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.mlperf.layout import as_name, new_place, place_of
from kv_cache.mlperf.plan import ranks_of_launch
from kv_cache.mlperf.systems import (
    PLACEHOLDER,
    describe,
    flaws_of_description,
    write_description,
)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("mpirun -n 4 --host a,b", 4),
        ("mpirun -np 2", 2),
        ("srun --ntasks=8", 8),
        ("srun --ntasks 8", 8),
        ("mpirun --host a,b", None),
        ("mpirun -n", None),
        ("mpirun -n many", None),
        ("mpirun -n 0", None),
        ("", None),
    ],
)
def test_a_launchers_words_say_how_many_ranks_it_starts(words: str, ranks: int | None) -> None:
    assert ranks_of_launch(tuple(words.split())) == ranks


@given(st.text(max_size=40))
def test_any_text_becomes_a_name_of_one_directory(text: str) -> None:
    name = as_name(text)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert as_name(name) == name


def test_a_place_is_known_by_its_path() -> None:
    place = new_place(Path("/r"), "closed", "Acme", "Drive", "20260701_120000")
    assert place_of(place.run) == place
    assert place.description == Path("/r/closed/Acme/systems/Drive.yaml")
    assert place_of(Path("/somewhere/else")).division is None


ENVIRONMENT = {
    "cpu": {"model": "EPYC", "physical_cores": 64},
    "memory": {"total_bytes": 256 << 30},
    "os": {"release": "Rocky Linux 9.5 (Blue Onyx)", "kernel": "6.1"},
    "filesystem": {"type": "xfs"},
    "device": {"name": "nvme0n1", "model": "D7", "size_bytes": 3_840_000_000_000},
    "drives": [{}],
}


def test_a_description_has_what_the_runs_knew_and_says_what_they_did_not() -> None:
    described = describe("Drive", [ENVIRONMENT, ENVIRONMENT])["system_under_test"]
    (client,) = described["clients"]
    assert client["quantity"] == 2
    assert client["chassis"]["cpu_cores"] == 64
    assert client["chassis"]["memory_capacity"] == 256
    assert client["chassis"]["cpu_qty"].startswith(PLACEHOLDER)
    assert client["operating_system"] == {
        "name": "Rocky Linux",
        "version": "9.5 (Blue Onyx), kernel 6.1",
    }
    assert client["drives"][0]["interface"] == "nvme"
    assert client["drives"][0]["capacity_in_GB"] == 3840
    assert described["solution"]["architecture"]["storage_location"] == "local"


def test_of_a_network_file_system_no_drive_is_described() -> None:
    remote = {**ENVIRONMENT, "filesystem": {"type": "nfs4"}}
    described = describe("Filer", [remote])["system_under_test"]
    assert described["solution"]["architecture"]["storage_location"] == "remote"
    assert "drives" not in described["clients"][0]


def test_of_a_machine_that_nothing_is_known_of_nothing_is_said() -> None:
    described = describe("Drive", [{}])["system_under_test"]
    chassis = described["clients"][0]["chassis"]
    assert all(str(value).startswith(PLACEHOLDER) for value in chassis.values())


def test_each_placeholder_that_is_left_is_told(tmp_path: Path) -> None:
    path = tmp_path / "systems" / "Drive.yaml"
    write_description(path, describe("Drive", [ENVIRONMENT]))
    flaws = list(flaws_of_description(path, "Drive"))
    assert len(flaws) == path.read_text().count(f"'{PLACEHOLDER}")
    assert "solution.capabilities.multi_host is still" in "".join(flaws)


def test_what_people_filled_in_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "Drive.yaml"
    path.write_text("mine")
    write_description(path, describe("Drive", []))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"deployment": "basement"}, "deployment is 'basement'"),
        ({"clients": []}, "clients is no list of machines"),
        ({"solution": {"submission_name": "Other"}}, "submission_name is 'Other'"),
        ({"solution": {"capabilities": {"multi_host": "maybe"}}}, "neither true nor false"),
        ({"clients": [{"drives": [{"interface": "sata"}]}]}, "interface is 'sata', not"),
        ({"product_nodes": [{"drives": [{"media_type": "SLC"}]}]}, "media_type is 'SLC'"),
        ({"solution": {"architecture": {"client_footprint": "n/a"}}}, "both are n/a, or neither"),
        (
            {"solution": {"capabilities": {
                "remap_time_in_seconds": 0, "simultaneous_write": True, "simultaneous_read": False,
            }}},
            "remap_time_in_seconds is 0",
        ),
        ({"deployment": ""}, "deployment is still ''"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_schema_is_told(
    change: dict[str, object], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "Drive.yaml"
    path.write_text(yaml.safe_dump({"system_under_test": change}))
    assert says in "; ".join(flaws_of_description(path, "Drive"))


def test_a_yaml_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "Drive.yaml"
    path.write_text("- 1")
    assert list(flaws_of_description(path, "Drive")) == ["has no mapping system_under_test"]
