"""Admission, write policies and prefetch by name, on real files and in virtual time: the books are
in order and say what was done."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli import LIGHT, TRACE, run, small

FILES = (
    "--semantics=serving",
    "--block-tokens=64",
    *LIGHT,
    "--storage-capacity-gb=0.0078125",
    "--max-requests=60",
)
VIRTUAL = ("--virtual-time",)
FEW = ("--max-requests=20",)
"""Where a sentence is all that is looked at."""


def refused(own: Any) -> dict[str, dict[str, int]]:
    """Blocks by tier and reason, without what is zero."""
    rows = own["policies"]["admission"]["tiers"].items()
    found = {t: {w: n["blocks"] for w, n in row["not_admitted"].items()} for t, row in rows}
    return {tier: why for tier, why in found.items() if why}


@pytest.mark.parametrize(
    ("admission", "why", "how"),
    [
        ("second-hit", "first-time", ()),
        ("frequency", "infrequent", ()),
        ("depth", "too-deep", VIRTUAL),
    ],
)
def test_an_admission_policy_by_name_turns_away_and_fails_nothing(
    admission: str, why: str, how: tuple[str, ...], tmp_path: Path
) -> None:
    ran = small(tmp_path, f"--admission={admission}", "--admission-at=all", *FILES, *how)
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["failed_operations"] == []
    assert own["requests"]["failed"] == 0
    assert own["config"]["policies"]["admission"] == admission
    assert own["policies"]["admission"]["name"] == admission
    assert {reason for tier in refused(own).values() for reason in tier} <= {why}
    if admission == "second-hit":
        assert refused(own)
        assert own["policies"]["admission"]["not_stored"]["blocks"] > 0
    assert re.search(rf"\nadmission +{admission}: cpu took", ran.out)


def test_what_a_tier_refuses_goes_to_the_next_that_takes_it(tmp_path: Path) -> None:
    """Blocks of 512 tokens are above 1 MiB: only the fastest tier, which is not asked, has any."""
    (tmp_path / "size.yaml").write_text("policies: {admission: size, admission_max_mib: 1}\n")
    rows = (*TRACE, "--max-requests=100")
    ran = run(tmp_path, *rows, "--config=size.yaml")
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["tiers"]["cpu"]["write"]["bytes"] == own["tiers"]["storage"]["write"]["bytes"] == 0
    gone = refused(own)
    assert gone["cpu"] == gone["storage"] == {"too-large": own["evictions"]["dropped_last_copies"]}
    assert own["policies"]["admission"]["not_stored"] == {"blocks": 0, "bytes": 0}
    ran = run(tmp_path, *rows, "--config=size.yaml", "--admission-at=storage")
    assert refused(ran.own).keys() == {"storage"}
    assert ran.own["tiers"]["cpu"]["write"]["bytes"] > 0


def test_second_hit_writes_less_to_storage(tmp_path: Path) -> None:
    written = {}
    for admission in ("always", "second-hit"):
        ran = run(tmp_path, *TRACE, f"--admission={admission}", "--admission-at=storage")
        assert ran.code == 0, ran.err
        written[admission] = ran.own["tiers"]["storage"]["write"]["bytes"]
    assert 0 < written["second-hit"] < 0.5 * written["always"]


@pytest.mark.parametrize(("write", "how"), [("through", VIRTUAL), ("through-selective", ())])
def test_a_write_policy_by_name(write: str, how: tuple[str, ...], tmp_path: Path) -> None:
    ran = small(
        tmp_path,
        f"--write-policy={write}",
        "--admission=depth",
        "--semantics=serving",
        "--block-tokens=64",
        *LIGHT,
        "--max-requests=60",
        "--verify=full",
        *how,
    )
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["failed_operations"] == []
    assert own["requests"]["failed"] == 0
    written = own["policies"]["write"]["written"]
    assert written["blocks"] > 0
    rows = [row for row in own["operations"] if row["cause"] == "write-through"]
    by = {
        kind: sum(r["bytes"] for r in rows if r["operation"] == kind) for kind in ("read", "write")
    }
    assert by["read"] == by["write"] == written["bytes"]
    assert {r["tier"] for r in rows if r["operation"] == "write"} == {"storage"}
    assert not any(row["cause"] == "demotion" for row in own["operations"])
    assert re.search(rf"\nwrite +{write}: {written['blocks']} blocks", ran.out)


@pytest.mark.parametrize(("prefetch", "how"), [("next-in-session", VIRTUAL), ("successor", ())])
def test_a_prefetch_policy_by_name(prefetch: str, how: tuple[str, ...], tmp_path: Path) -> None:
    """Users in turn, who read where it is what does not fit above."""
    ran = small(
        tmp_path,
        f"--prefetch={prefetch}",
        "--semantics=serving",
        "--no-promote",
        "--block-tokens=64",
        *LIGHT,
        "--max-requests=80",
        "--verify=full",
        *how,
    )
    assert ran.code == 0, ran.err
    own = ran.own
    assert own["failed_operations"] == []
    assert own["requests"]["failed"] == 0
    said = own["policies"]["prefetch"]
    ends = sum(said[name]["blocks"] for name in ("useful", "late", "wasted", "failed"))
    assert said["started"]["blocks"] == ends + said["unread_blocks"] > 0
    rows = [r for r in own["operations"] if r["cause"] == "prefetch"]
    up = sum(r["bytes"] for r in rows if (r["tier"], r["operation"]) == ("cpu", "write"))
    assert up == said["started"]["bytes"]
    assert re.search(rf"\nprefetch +{prefetch}: {said['started']['blocks']} blocks", ran.out)


def test_prefetch_pays_where_prompts_come_in_turn_and_the_next_one_has_just_gone(
    tmp_path: Path,
) -> None:
    """The example of docs/reference/policies.md."""
    rows = (
        {
            "timestamp": 500 * n, "input_length": 8192, "output_length": 20,
            "hash_ids": [100 * (n % 4) + i for i in range(16)],
        }
        for n in range(60)
    )  # fmt: skip
    (tmp_path / "cycle.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = {}
    for prefetch in ("none", "successor", "next-in-session"):
        ran = run(
            tmp_path, "run", "--virtual-time", "--semantics=serving", "--trace=cycle.jsonl",
            "--model=tiny-1b", "--gpu-mem-gb=0", "--cpu-mem-gb=0.6", "--storage-capacity-gb=8",
            "--generation-mode=fast", "--seed=1", f"--prefetch={prefetch}", "--output=R.json",
            "--duration=60",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        own = found[prefetch] = ran.own
        assert own["requests"]["completed"] == 122
    ttft = {name: own["measured"]["all"]["ttft_ms"] for name, own in found.items()}
    assert ttft["successor"]["mean"] < 0.4 * ttft["none"]["mean"]
    assert ttft["next-in-session"] == ttft["none"]
    brought = found["successor"]["policies"]["prefetch"]
    assert (brought["started"]["blocks"], brought["useful"]["blocks"]) == (1664, 1632)
    read = {n: own["tiers"]["storage"]["read"]["operations"] for n, own in found.items()}
    assert read == {"none": 1792, "successor": 1824, "next-in-session": 1792}


def test_the_defaults_are_policies_that_do_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, *TRACE)
    assert ran.code == 0, ran.err
    said = ran.own["policies"]
    assert (said["eviction"], said["admission"]["name"]) == ("lru", "always")
    assert not any(row["consulted"] for row in said["admission"]["tiers"].values())
    assert said["write"] == {"name": "back", **dict.fromkeys(
        ("written", "failed", "no_room", "dropped_blocks")
    )}  # fmt: skip
    assert said["prefetch"]["name"] == "none"
    assert {value for name, value in said["prefetch"].items() if name != "name"} == {None}
    assert not any(
        line.startswith(("admission", "write ", "prefetch")) for line in ran.out.splitlines()
    )


def test_options_without_effect_are_told(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("policies: {admission_max_depth: 3, admission: size}\n")
    ran = run(tmp_path, *TRACE, *FEW, "--config=p.yaml", "--gpu-mem-gb=0", "--cpu-mem-gb=0")
    assert "policies.admission_max_depth is 3: no effect, as policies.admission" in ran.err
    assert "storage is the only tier" in ran.err
    ran = run(tmp_path, *TRACE, *FEW, "--write-policy=through-selective")
    assert "the same as through" in ran.err
    through = ("--write-policy=through", "--admission=size", "--admission-at=storage")
    ran = run(tmp_path, *TRACE, *FEW, *through)
    assert "no effect, as policies.write (--write-policy) is 'through'" in ran.err
    assert ran.code == 0, ran.err
    assert not any(row["consulted"] for row in ran.own["policies"]["admission"]["tiers"].values())
