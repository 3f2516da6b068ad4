"""Hardware profiles: strict at any depth, consistent with themselves, and honest about sources."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_cache.config.hardware import (
    HEADER,
    MEASURED,
    SCHEMA,
    Dram,
    HardwareProfile,
    Provenance,
    Sheet,
    hardware_of,
    hardware_text,
    overlaid,
    read_hardware,
    readiness,
    readiness_text,
    sheet_of,
)
from kv_cache.config.machine import read_machine
from kv_cache.config.profile import profile_text
from kv_cache.core.errors import ConfigError
from tests.unit.test_profile import profile

SOURCED = {"source": "data sheet", "date": "2026-01-31"}


def made(**sections: Any) -> HardwareProfile:
    return hardware_of(sheet_of({"schema": SCHEMA, **sections}, "h.yaml"), "h.yaml", {})


def gpu(**hbm: Any) -> dict[str, Any]:
    return {"gpus": {"h100": {"hbm": hbm}}}


# --- what is there -----------------------------------------------------------------------------


def test_values_are_plain_and_typed_and_what_nobody_gave_is_none() -> None:
    found = made(
        topology={"gpus_per_node": 8},
        gpus={"h100": {"hbm": {"capacity_bytes": 80e9, "bytes_per_s": 3.35e12}}},
        nic={"bytes_per_s": 50_000_000_000, "provenance": SOURCED},
    )
    assert found.gpus["h100"].hbm.capacity_bytes == 80_000_000_000
    assert isinstance(found.gpus["h100"].hbm.capacity_bytes, int)
    assert found.nic.bytes_per_s == 50e9
    assert isinstance(found.nic.bytes_per_s, float)
    assert found.nic.has_values
    assert found.nic.latency_us is None
    assert not found.nvlink.has_values
    assert found.topology.racks is None


def test_require_gives_the_value_or_says_what_to_do() -> None:
    found = made(nic={"bytes_per_s": 1e9})
    assert found.require("nic.bytes_per_s") == 1e9
    for path in ("nic.latency_us", "gpus.h100.hbm.bytes_per_s", "no.such"):
        with pytest.raises(ConfigError, match=rf"h\.yaml: {path} is missing, .*--overlay"):
            found.require(path)


def test_json_and_yaml_with_and_without_quotes_around_the_day_are_the_same(tmp_path: Path) -> None:
    plain = {"schema": SCHEMA, "nic": {"bytes_per_s": 1e9, "provenance": SOURCED}}
    (tmp_path / "h.json").write_text(json.dumps(plain))
    (tmp_path / "h.yaml").write_text(
        f"schema: {SCHEMA}\nnic: {{bytes_per_s: 1e9, provenance: {{source: data sheet, "
        "date: 2026-01-31}}\n"
    )
    assert read_hardware(tmp_path / "h.json").nic == read_hardware(tmp_path / "h.yaml").nic


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"nci": {}}, "nci is not a known key. Did you mean 'nic'?"),
        ({"nic": {"bytes_per_sec": 1}}, "nic.bytes_per_sec is not a known key. Did you mean 'by"),
        (gpu(capacity_byts=1), "gpus.h100.hbm.capacity_byts is not a known key. Did you mean"),
        ({"gpus": {"h100": {"hmb": {}}}}, "gpus.h100.hmb is not a known key. Did you mean 'hbm'?"),
        ({"nic": {"provenance": {"sorce": "x"}}}, "nic.provenance.sorce is not a known key. Did"),
        ({"topology": {"gpus": 8}}, "topology.gpus is not a known key"),
        ({"nic": {"latency": 3}}, "nic.latency has no unit in its name.*'latency_us'"),
        ({"dram": {"capacity": 3}}, "dram.capacity has no unit in its name.*'capacity_bytes'"),
        ({"nic": {"gbps": 100}}, "nic.gbps is not a known key: values are in bytes, bytes_per_s"),
        ({"nic": {"bytes_per_s": "100 GB/s"}}, "is '100 GB/s'; it must be a number, whose unit"),
        (gpu(capacity_bytes=-1), "gpus.h100.hbm.capacity_bytes is -1; it must be a whole number"),
        (gpu(capacity_bytes=0), "gpus.h100.hbm.capacity_bytes is 0"),
        (gpu(capacity_bytes=1.5), "gpus.h100.hbm.capacity_bytes is 1.5"),
        (gpu(bytes_per_s=0), "bytes_per_s is 0; it must be a number, above 0"),
        (gpu(bytes_per_s=float("nan")), "bytes_per_s is nan"),
        (gpu(bytes_per_s=True), "bytes_per_s is true"),
        (gpu(latency_us=-1), "latency_us is -1"),
        ({"nic": []}, "nic is .*must be a mapping"),
        ({"gpus": {"a.b": {"hbm": {"capacity_bytes": 1}}}}, "gpus has 'a.b'; a name has letters"),
        ({"storage": {"": {"read_bytes_per_s": 1}}}, "storage has '.*'; a name has letters"),
        ({"nic": {"bytes_per_s": 1, "provenance": {"date": "May"}}}, "date is 'May'; it must be a"),
        ({"nic": {"bytes_per_s": 1, "provenance": {"how": "guessed"}}}, "how is 'guessed'; it mus"),
        (
            {"nic": {"bytes_per_s": 1, "provenance": {"how": "measured", "source": "x"}}},
            "nic.provenance.how is measured, so date must say",
        ),
        ({"storage": {"d": {"probe_sha256": "ab"}}}, "storage.d.probe_sha256 is of no file"),
        (
            {"storage": {"d": {"probe": "p.yaml", "read_bytes_per_s": 1}}},
            "storage.d has a probe file and read_bytes_per_s",
        ),
        (
            {"storage": {"d": {"read_bytes_per_s": 1, "provenance": {**SOURCED, "how": MEASURED}}}},
            "storage.d.provenance.how is measured, but there is no probe file",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    sections: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        made(**sections)
    assert "h.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"nvlink": {"bytes_per_s": 1}}, "nvlink is given, but topology.gpus_per_node is not"),
        (
            {"nvlink": {"bytes_per_s": 1}, "topology": {"gpus_per_node": 1}},
            "nvlink is given, but topology.gpus_per_node is 1: .* 2 at least",
        ),
        (
            {"pcie": {"bytes_per_s": 1}, "topology": {"gpus_per_node": 0}},
            "pcie is given, but topology.gpus_per_node is 0",
        ),
        ({**gpu(bytes_per_s=1), "topology": {"gpus_per_node": 0}}, "gpus is given, but"),
        (
            {**gpu(bytes_per_s=1e12), "pcie": {"bytes_per_s": 64e12}},
            "pcie.bytes_per_s of .* is above gpus.h100.hbm.bytes_per_s",
        ),
        (
            {"nic": {"cross_rack_latency_us": 9}, "topology": {"racks": 1}},
            "cross_rack_latency_us is given, but topology.racks is 1",
        ),
        ({"rack_pool": {"capacity_bytes": 1}}, "rack_pool is given, but topology.nodes_per_rack"),
        (
            {"dram": {"copy_bytes_per_s": 1e9, "copy_one_thread_bytes_per_s": 5e9}},
            "copy_one_thread_bytes_per_s is above copy_bytes_per_s",
        ),
    ],
)
def test_what_contradicts_the_topology_is_refused(
    sections: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        made(**sections)


def test_what_is_no_hardware_profile_is_refused(tmp_path: Path) -> None:
    for name, text, sentence in (
        ("a.yaml", "", "its schema is empty"),
        ("b.yaml", "schema: kv-cache-profile/1", "its schema is 'kv-cache-profile/1'"),
        ("c.json", "{", "is not JSON"),
        ("d.json", '{"schema": 1, "schema": 2}', "duplicate key 'schema'"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            read_hardware(tmp_path / name)
    for name in ("none.yaml", "none.json"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_hardware(tmp_path / name)


# --- the probe that it names -------------------------------------------------------------------


def test_a_probe_is_read_beside_its_profile_and_one_that_was_changed_is_refused(
    tmp_path: Path,
) -> None:
    probe = tmp_path / "p.yaml"
    probe.write_text(profile_text(profile()))
    whole = {"schema": SCHEMA, "storage": {"d": {"probe": "p.yaml"}}}
    file = tmp_path / "h.json"
    file.write_text(json.dumps(whole))
    found = read_hardware(file)
    assert found.curves["d"].cells == profile().cells
    digest = found.curves["d"].facts["sha256"]
    whole["storage"] = {"d": {"probe": "p.yaml", "probe_sha256": digest}}
    file.write_text(json.dumps(whole))
    assert read_machine(file).drive.cells == profile().cells
    probe.write_text(probe.read_text() + "# later\n")
    with pytest.raises(ConfigError, match=r"storage\.d\.probe is p\.yaml, whose SHA-256 .* change"):
        read_hardware(file)


def test_a_machine_needs_one_drive_that_was_measured(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(profile_text(profile()))
    file = tmp_path / "h.yaml"
    file.write_text(f"schema: {SCHEMA}\n")
    with pytest.raises(ConfigError, match="no storage in it was measured"):
        read_machine(file)
    file.write_text(f"schema: {SCHEMA}\nstorage: {{a: {{probe: p.yaml}}, b: {{probe: p.yaml}}}}\n")
    with pytest.raises(ConfigError, match=r"several measured drives \(a, b\)"):
        read_machine(file)
    assert read_machine(tmp_path / "p.yaml").hardware is None


# --- overlays ----------------------------------------------------------------------------------


def sheet(**sections: Any) -> Any:
    return sheet_of({"schema": SCHEMA, **sections}, "o.yaml")


def test_an_overlay_brings_whole_sections_and_later_ones_win() -> None:
    base = Sheet(name="node")
    first = sheet(nic={"bytes_per_s": 1e9, "latency_us": 3}, topology={"gpus_per_node": 8})
    second = sheet(nic={"bytes_per_s": 2e9}, topology={"racks": 2}, **gpu(bytes_per_s=3e12))
    found = overlaid(overlaid(base, first, "1"), second, "2")
    assert (found.nic.bytes_per_s, found.nic.latency_us) == (2e9, None)
    assert (found.topology.gpus_per_node, found.topology.racks) == (8, 2)
    assert found.gpus["h100"].hbm.bytes_per_s == 3e12
    assert found.name == "node"


def test_what_was_measured_is_not_overlaid_and_an_overlay_claims_no_measurement() -> None:
    told = Provenance(how=MEASURED, source="calibrate", date="2026-01-01")
    base = Sheet(dram=Dram(copy_bytes_per_s=1e10, provenance=told))
    with pytest.raises(ConfigError, match="dram was measured here, and an overlay is for what was"):
        overlaid(base, sheet(dram={"copy_bytes_per_s": 1e11}), "o.yaml")
    claims = sheet(nic={"bytes_per_s": 1, "provenance": {**SOURCED, "how": MEASURED}})
    with pytest.raises(ConfigError, match="nic claims to be measured"):
        overlaid(Sheet(), claims, "o.yaml")


# --- readiness ---------------------------------------------------------------------------------


def test_readiness_says_what_is_measured_overlaid_unsourced_or_missing() -> None:
    found = made(
        topology={"nodes_per_rack": 4},
        nic={"bytes_per_s": 1, "provenance": SOURCED},
        pcie={"bytes_per_s": 1},
        dram={"copy_bytes_per_s": 1, "provenance": {**SOURCED, "how": MEASURED}},
    )
    states = {one.name: one.state for one in readiness(found).sections}
    assert states["nic"] == "overlay"
    assert states["pcie"] == "unsourced"
    assert states["dram"] == "measured"
    assert states["storage.*"] == states["gpus.*.hbm"] == states["remote"] == "missing"


def test_a_question_is_carried_as_well_as_its_weakest_section(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(profile_text(profile()))
    measured = {**SOURCED, "how": MEASURED}
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "storage": {"d": {"probe": "p.yaml", "provenance": measured}},
        "dram": {"copy_bytes_per_s": 1e9, "provenance": measured},
    }

    def level(start: str) -> tuple[str, tuple[str, ...]]:
        (tmp_path / "h.json").write_text(json.dumps(whole))
        questions = readiness(read_hardware(tmp_path / "h.json")).questions
        return next((q.level, q.reasons) for q in questions if q.question.startswith(start))

    assert level("storage of one node") == ("high", ())
    assert level("offload")[0] == "low"
    whole |= {
        "gpus": {
            "h100": {
                "hbm": {"bytes_per_s": 3e12, "provenance": SOURCED},
                "compute": {"flop_per_s": 1e15, "provenance": SOURCED},
            }
        },
        "pcie": {"bytes_per_s": 6e10, "provenance": SOURCED},
    }
    assert level("offload")[0] == "medium"
    whole["pcie"] = {"bytes_per_s": 6e10}
    assert level("offload") == (
        "low",
        ("gpus.h100.compute is not measured here", "gpus.h100.hbm is not measured here",
         "pcie is unsourced"),
    )  # fmt: skip


def test_nvlink_is_asked_for_only_where_a_node_has_several_gpus() -> None:
    def reasons(gpus: int) -> str:
        questions = readiness(made(topology={"gpus_per_node": gpus})).questions
        return " ".join(next(q.reasons for q in questions if "P:D" in q.question))

    assert "nvlink" not in reasons(1)
    assert "nvlink is missing" in reasons(8)


def test_the_text_has_a_line_for_each_section_and_question() -> None:
    found = made(nic={"bytes_per_s": 1, "provenance": SOURCED})
    lines = readiness_text(found).splitlines()
    ready = readiness(found)
    assert len(lines) == len(ready.sections) + len(ready.questions) + 2
    assert any(line.split() == ["nic", "overlay", "data", "sheet,", "2026-01-31"] for line in lines)


def test_what_is_written_begins_with_our_header_and_leaves_out_what_is_not_there() -> None:
    text = hardware_text(made(nic={"bytes_per_s": 1e9}))
    assert text.startswith(HEADER)
    assert "null" not in text
    assert "dram" not in text
