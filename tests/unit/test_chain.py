"""The hash chain: whatever is changed after the run is named."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.kinds import Phase
from kv_cache.result.chain import check, file_digest, fingerprint, seal, sealed_files
from tests.unit.test_passport import leaves, put

FILES = {"requests.jsonl": "ab" * 32, "transfers.jsonl": "cd" * 32}

DOCUMENT: dict[str, Any] = {
    "seed": 5,
    "p99_latency_ms": 1.25,
    "summary": {"elapsed_time": 30.0},
    "kv_cache": {
        "schema": "kv-cache-result/1",
        "window_s": 0.1,
        "operations": [{"phase": Phase.MEASURE, "bytes": 4096}],
        "config": {"run": {"seed": 5, "duration_s": 30.0}},
        "environment": {"cpu": {"model": "one"}},
        "passport": {"verdict": "valid", "reasons": [], "evidence": {"driver": "real-io"}},
    },
}

PARTS = {
    "config": ("kv_cache", "config", "run", "seed"),
    "environment": ("kv_cache", "environment", "cpu", "model"),
    "evidence": ("kv_cache", "passport", "evidence", "driver"),
    "verdict": ("kv_cache", "passport", "verdict"),
    "measurements": ("kv_cache", "operations", 0, "bytes"),
    "reference keys": ("summary", "elapsed_time"),
}


def sealed() -> dict[str, Any]:
    return seal(DOCUMENT, FILES)


def test_a_sealed_document_is_unchanged_also_after_it_was_written_and_read() -> None:
    document = sealed()
    assert check(document, FILES) == []
    assert check(orjson.loads(orjson.dumps(document)), FILES) == []
    assert sealed_files(document) == FILES
    assert "chain" not in DOCUMENT["kv_cache"]


@pytest.mark.parametrize("part", PARTS)
def test_the_part_that_was_changed_is_named(part: str) -> None:
    document = sealed()
    put(document, PARTS[part], "other")
    assert [change.link for change in check(document, FILES)] == [part]


def test_a_records_file_that_was_changed_or_added_is_named() -> None:
    document = sealed()
    now = {**FILES, "transfers.jsonl": "00" * 32, "more.jsonl": "11" * 32}
    assert [change.link for change in check(document, now)] == ["transfers.jsonl", "more.jsonl"]
    assert check(document, {}) == []  # what is not there is not looked at


def test_a_key_that_was_added_or_removed_is_named() -> None:
    added, removed = sealed(), sealed()
    added["kv_cache"]["new"] = None
    del removed["p99_latency_ms"]
    assert [change.link for change in check(added, {})] == ["measurements"]
    assert [change.link for change in check(removed, {})] == ["reference keys"]


def test_a_hash_that_was_made_to_fit_breaks_the_chain() -> None:
    document = sealed()
    document["kv_cache"]["config"]["run"]["seed"] = 6
    again = {link["name"]: link for link in seal(document, FILES)["kv_cache"]["chain"]}
    for link in document["kv_cache"]["chain"]:
        link["sha256"] = again[link["name"]]["sha256"]
    found = check(document, FILES)
    assert [change.link for change in found] == ["chain"]
    assert "config" in found[0].message


@pytest.mark.parametrize(
    "chain",
    [None, [], {}, "x", [5], [{}], [{"name": 1, "sha256": "a", "chained": "b"}], [None, None]],
)
def test_a_chain_that_is_missing_or_of_another_shape_is_told(chain: Any) -> None:
    document = sealed()
    document["kv_cache"]["chain"] = chain
    assert [change.link for change in check(document, FILES)] == ["chain"]
    assert fingerprint(document) is None
    assert sealed_files(document) == {}


def test_links_that_are_lost_swapped_or_invented_are_told() -> None:
    whole = sealed()["kv_cache"]["chain"]
    invented = {"name": "zero", "sha256": "a", "chained": "b"}
    for links in (whole[1:], whole[:-1], whole[::-1], [*whole, whole[-1]], [*whole, invented]):
        document = sealed()
        document["kv_cache"]["chain"] = deepcopy(links)
        assert check(document, {}), links


def test_the_fingerprint_stands_for_everything() -> None:
    seen = {fingerprint(sealed()), fingerprint(seal(DOCUMENT, {}))}
    for path in PARTS.values():
        document = deepcopy(DOCUMENT)
        put(document, path, "other")
        seen.add(fingerprint(seal(document, FILES)))
    assert len(seen) == len(PARTS) + 2


def test_the_order_of_keys_does_not_matter_and_types_do() -> None:
    turned = {key: DOCUMENT[key] for key in reversed(DOCUMENT)}
    assert fingerprint(seal(turned, FILES)) == fingerprint(sealed())
    document = sealed()
    document["seed"] = 5.0
    assert check(document, {})


@given(st.sampled_from(leaves(DOCUMENT)), st.sampled_from([None, "other", 7, [], {}, -0.5]))
def test_any_value_that_is_changed_is_noticed(path: tuple[Any, ...], value: Any) -> None:
    document = sealed()
    before = orjson.dumps(document)
    put(document, path, value)
    if not isinstance(document["kv_cache"], dict):
        document["kv_cache"] = {}
    assert bool(check(document, {})) == (orjson.dumps(document) != before)


def test_a_file_is_digested(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert file_digest(path) == ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
