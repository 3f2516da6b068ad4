"""Sessions of agents: what waits for what, which blocks, and what is told."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.errors import TraceError
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats import agentic as agentic_module
from kv_cache.workload.formats.agentic import Agentic
from kv_cache.workload.formats.base import MAX_ID_CHARS, Reading
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import require_usable, survey
from kv_cache.workload.formats.trace_files import detect, open_trace
from tests.traces import real_trace

S = 10**9


def ask(t: object, *ids: int, **more: Any) -> dict[str, Any]:
    known = {"t": t, "type": "s", "in": 100, "out": 10, "hash_ids": list(ids or (1,))}
    return known | more


def agent(t: object, *requests: Any, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "x", "requests": list(requests), **more}


def session(*requests: Any, **more: Any) -> dict[str, Any]:
    head = {"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    return head | {"requests": list(requests)} | more


class Read:
    """What the format makes of a document."""

    def __init__(self, content: object, *, raw: bool = False) -> None:
        text = str(content) if raw else json.dumps(content)
        self.bad: list[tuple[int, str]] = []
        self.notes: Counter[str] = Counter()
        self.rows: list[TraceRow] = list(
            Agentic().rows(
                [(1, text[:50]), (1, text[50:])],
                lambda item, reason: self.bad.append((item, reason)),
                lambda item, note: self.notes.update([note.value]),
            )
        )

    @property
    def waits(self) -> dict[str | None, tuple[str, ...]]:
        return {row.name: row.after for row in self.rows}

    @property
    def thinks(self) -> dict[str | None, float | None]:
        return {r.name: None if r.think_ns is None else r.think_ns / S for r in self.rows}

    @property
    def times(self) -> list[tuple[str | None, float]]:
        return [(row.name, row.at_ns / S) for row in self.rows]


def test_a_row_is_a_request_behind_the_one_before_it() -> None:
    got = Read(session(ask(2.5, 1, 2, model="m"), ask(9, 1, 2, 3, think_time=4.25)))
    assert got.rows == [
        TraceRow(1, 0, 100, 10, (1, 2), 64, session="a", name="0", scope="a", model="m"),
        TraceRow(
            1, 6_500_000_000, 100, 10, (1, 2, 3), 64, session="a", name="1", after=("0",),
            think_ns=4_250_000_000, scope="a",
        ),
    ]  # fmt: skip
    assert (got.bad, got.notes) == ([], {})


def test_without_a_think_time_it_is_the_gap_to_the_recorded_end() -> None:
    got = Read(
        session(ask(0, api_time=3), ask(10), ask(20, api_time=50), ask(30), ask(90, think_time=1))
    )
    assert got.thinks == {"0": None, "1": 7, "2": None, "3": 0, "4": 1}


@pytest.mark.parametrize(
    ("scope", "meant"), [("local", "a"), ("per_context", "a"), (None, "a"), ("global", "")]
)
def test_ids_mean_what_the_scope_says(scope: str | None, meant: str) -> None:
    got = Read(session(ask(0), agent(1, ask(0)), hash_id_scope=scope))
    assert {row.scope for row in got.rows} == {meant}


def test_a_session_may_say_how_long_its_blocks_are() -> None:
    given = session(ask(0))
    assert Read(given | {"block_size": 16}).rows[0].block_tokens == 16
    del given["block_size"]
    assert Read(given).rows[0].block_tokens == 64


# --- sub-agents ---


def test_sub_agents_between_two_requests_go_on_together_and_are_waited_for() -> None:
    got = Read(
        session(
            ask(0),
            agent(10, ask(0), ask(4)),
            agent(11, ask(0), ask(2)),
            ask(30),
            ask(40),
        )
    )
    assert got.waits == {
        "0": (),
        "1.0": ("0",),
        "2.0": ("0",),
        "2.1": ("2.0",),
        "1.1": ("1.0",),
        "3": ("1.1", "2.1"),
        "4": ("3",),
    }
    assert got.times == [
        ("0", 0), ("1.0", 10), ("2.0", 11), ("2.1", 13), ("1.1", 14), ("3", 30), ("4", 40),
    ]  # fmt: skip


def test_sub_agents_nest() -> None:
    got = Read(session(ask(0), agent(10, ask(0), agent(2, ask(0)), ask(9)), ask(30)))
    assert got.waits == {
        "0": (),
        "1.0": ("0",),
        "1.1.0": ("1.0",),
        "1.2": ("1.1.0",),
        "2": ("1.2",),
    }
    assert dict(got.times) == {"0": 0, "1.0": 10, "1.1.0": 12, "1.2": 19, "2": 30}


def test_a_sub_agent_that_ends_with_others_is_done_when_they_are() -> None:
    got = Read(session(ask(0), agent(1, ask(0), agent(1, ask(0)), agent(2, ask(0))), ask(9)))
    assert got.waits["2"] == ("1.1.0", "1.2.0")


def test_a_sub_agent_before_all_requests_begins_with_the_session() -> None:
    got = Read(session(agent(0, ask(0)), ask(5)))
    assert got.waits == {"0.0": (), "1": ("0.0",)}


def test_an_empty_sub_agent_is_waited_for_by_nobody() -> None:
    got = Read(session(ask(0), agent(1), agent(1, {"t": 0, "in": 5, "out": 0}), ask(5)))
    assert got.waits == {"0": (), "3": ("0",)}
    assert got.notes == {"no_blocks": 1}


@pytest.mark.parametrize("t", [0.0, 1.5])
def test_times_in_a_sub_agent_count_from_its_own_in_the_original(t: float) -> None:
    got = Read(session(ask(0), agent(100, ask(t), ask(t + 3)), ask(200)))
    assert [at for _, at in got.times] == [0, 100 + t, 103 + t, 200]


def test_and_from_the_sessions_start_in_the_published_copies() -> None:
    got = Read(session(ask(0), agent(100.4, ask(100), agent(105, ask(106)), ask(150)), ask(200)))
    assert [at for _, at in got.times] == [0, 100, 106, 150, 200]


def test_the_wait_for_sub_agents_is_no_thinking() -> None:
    # The parent's think_time of 95 is from its answer at 5; of it 4 were left after the last end.
    sub = agent(10, ask(0, think_time=0), ask(80, think_time=2, api_time=6))
    got = Read(session(ask(0, api_time=5), sub, ask(100, think_time=95)))
    assert got.thinks == {"0": None, "1.0": 0, "1.1": 2, "2": 4}
    # The builder's `t` of a node is when its result came back, the latest instant that is known.
    sub = agent(97, ask(0, think_time=0), ask(80, api_time=6))
    got = Read(session(ask(0, api_time=5), sub, ask(100, think_time=95)))
    assert got.thinks["2"] == 3


def test_no_row_of_a_sub_agent_is_later_than_the_request_that_waits_for_it() -> None:
    got = Read(session(ask(0), agent(97, ask(0), ask(80)), ask(100), ask(110)))
    assert got.times == [("0", 0), ("1.0", 97), ("1.1", 100), ("2", 100), ("3", 110)]
    assert got.notes == {}


def test_a_node_before_the_session_is_taken_for_its_beginning() -> None:
    got = Read(session(ask(0), agent(-50, ask(0), ask(2)), ask(9)))
    assert [at for _, at in got.times] == [0, 0, 2, 9]
    assert got.bad == []


def test_sub_agents_nested_without_end_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentic_module, "MAX_DEPTH", 2)
    node = ask(0)
    for _ in range(3):
        node = agent(0, node)
    got = Read(session(ask(0), node, ask(1)))
    assert [row.name for row in got.rows] == ["0", "2"]
    assert got.bad == [
        (1, "request 1.0.0: expected sub-agents nested at most 2 deep, found more"),
    ]


# --- odd rows ---


def test_requests_without_blocks_or_tokens_are_left_out_and_counted() -> None:
    got = Read(
        session(
            ask(0), ask(1, hash_ids=None), ask(2, hash_ids=[]), ask(3, **{"in": 0}),
            {"t": 4, "in": 9, "out": 1}, ask(5, out=0),
        )
    )  # fmt: skip
    assert got.waits == {"0": (), "5": ("0",)}
    assert got.rows[1].output_tokens == 0
    assert (got.notes, got.bad) == ({"no_blocks": 3, "failed": 1}, [])


def test_what_stands_behind_one_that_is_left_out_thinks_from_the_last_that_is_not() -> None:
    got = Read(session(ask(0, api_time=2), ask(10, hash_ids=[]), ask(20, think_time=1)))
    assert got.thinks == {"0": None, "2": 18}


def test_times_that_go_back_are_taken_as_the_time_before() -> None:
    got = Read(session(ask(10), ask(4), agent(20, ask(5), ask(3)), ask(30)))
    assert got.times == [("0", 0), ("1", 0), ("2.0", 15), ("2.1", 15), ("3", 20)]
    assert got.notes == {"backward": 2}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"t": -1}, "t: expected a time in seconds from 0"),
        ({"t": None}, "t: expected a time in seconds"),
        ({"t": "3"}, "t: expected a number, found the text '3'"),
        ({"t": True}, "t: expected a time in seconds"),
        ({"t": 1e300}, "t: expected a time in seconds"),
        ({"in": -5}, "in: expected a whole number from 0"),
        ({"in": 1.5}, "in: expected a whole number"),
        ({"in": None}, "in: expected a whole number"),
        ({"out": "7"}, "out: expected a number, found the text '7'"),
        ({"out": 10**8}, "out: expected a whole number from 0 to 10000000"),
        ({"hash_ids": "abc"}, "hash_ids: expected a list of ids, found 'abc'"),
        ({"hash_ids": [1, -2]}, "hash_ids: expected whole numbers from 0, found -2"),
        ({"hash_ids": [1, "x"]}, "hash_ids: expected whole numbers from 0, found 'x'"),
        ({"hash_ids": [1, True]}, "hash_ids: expected whole numbers from 0, found True"),
        ({"think_time": -1}, "think_time: expected a time in seconds"),
        ({"api_time": "x"}, "api_time: expected a number"),
        ({"model": 3.5}, "model: expected text"),
        ({"requests": 5}, "requests: expected a list, found 5"),
    ],
)
def test_a_request_that_is_none_is_bad_with_its_place(more: dict[str, Any], says: str) -> None:
    got = Read(session(ask(0), ask(5) | more, ask(9)))
    assert len(got.bad) == 1
    assert got.bad[0][0] == 1
    assert got.bad[0][1].startswith(f"request 1: {says}")
    assert got.waits == {"0": (), "2": ("0",)}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"block_size": 0}, "block_size: expected a whole number from 1"),
        ({"block_size": "64"}, "block_size: expected a number"),
        ({"hash_id_scope": "town"}, "hash_id_scope: expected one of local, per_context, global"),
        ({"hash_id_scope": []}, "hash_id_scope: expected one of"),
        ({"id": ["a"]}, "id: expected text or a whole number"),
        ({"id": "x" * (MAX_ID_CHARS + 1)}, "id: expected at most 1000 characters"),
        ({"requests": {}}, "requests: expected a list, found {}"),
        ({"requests": None}, "requests: expected a list, found None"),
    ],
)
def test_a_session_that_is_none_is_bad(more: dict[str, Any], says: str) -> None:
    good = json.dumps(session(ask(0), id="b"))
    spoilt = json.dumps(session(ask(0), agent(1, ask(2))) | more)
    for number, text in ((1, f"{spoilt}\n{good}"), (2, f"{good}\n{spoilt}")):
        got = Read(text, raw=True)
        assert [(item, reason[: len(says)]) for item, reason in got.bad] == [(number, says)]
        assert [row.session for row in got.rows] == ["b"]


def test_a_session_without_rows_is_counted() -> None:
    got = Read(session())
    assert (got.rows, got.bad, got.notes) == ([], [], {"empty": 1})


# --- documents ---


def test_the_order_of_what_a_session_says_of_itself_changes_nothing() -> None:
    given = session(ask(0), agent(1, ask(0)), ask(9), totals={"requests": [1, {"requests": 2}]})
    want = Read(given).rows
    assert len(want) == 3
    for keys in (sorted(given), sorted(given, reverse=True)):
        assert Read({key: given[key] for key in keys}).rows == want
    assert Read(json.dumps(given, indent=1), raw=True).rows == want


def test_sessions_one_a_line_and_in_a_list_are_read_alike() -> None:
    given = [session(ask(0), ask(4), id=f"s{number}") for number in range(3)]
    lines = Read("\n".join(map(json.dumps, given)), raw=True)
    listed = Read(given)
    pretty = Read("\n".join(json.dumps(one, indent=2) for one in given), raw=True)
    assert lines.rows == listed.rows == pretty.rows
    assert [(row.line, row.session) for row in lines.rows[::2]] == [(1, "s0"), (2, "s1"), (3, "s2")]


def test_a_second_session_of_an_id_is_another_session() -> None:
    given = [session(ask(0), id=one) for one in ("a", "a", "a#2", "../x", "a")]
    del given[3]["id"]
    got = Read(given)
    assert [row.session for row in got.rows] == ["a", "a#2", "a#2#3", "#4", "a#5"]
    assert [row.scope for row in got.rows] == [row.session for row in got.rows]
    assert got.notes == {"duplicate": 3}


def test_files_with_the_same_id_are_other_sessions_too(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps(session(ask(number), ask(9))))
    trace = open_trace(str(tmp_path))
    assert [(row.session, row.scope, row.at_ns // S) for row in trace.rows()] == [
        ("a", "a", 0), ("a", "a", 9), ("a@2", "a@2", 0), ("a@2", "a@2", 8), ("a@3", "a@3", 0),
        ("a@3", "a@3", 7),
    ]  # fmt: skip
    found = survey(trace)
    assert (found.sessions, found.notes, found.span_ns) == (3, {"duplicate": 2}, 9 * S)


def test_only_so_many_sessions_are_read_as_are_wanted(tmp_path: Path) -> None:
    for number in range(4):
        text = json.dumps(session(ask(0), ask(9), id=number))
        (tmp_path / f"{number}.json").write_text(text)
    trace = open_trace(str(tmp_path), reading=Reading(max_sessions=3))
    assert [row.session for row in trace.rows()] == ["0", "0", "1", "1", "2", "2"]
    assert survey(trace).sessions == 3


def test_blocks_of_several_sizes_are_refused(tmp_path: Path) -> None:
    for size in (64, 32):
        text = json.dumps(session(ask(0), id=size, block_size=size))
        (tmp_path / f"{size}.json").write_text(text)
    with pytest.raises(TraceError, match="item 1 has blocks of 64 tokens, those before it had 32"):
        survey(open_trace(str(tmp_path)))


@given(at=st.integers(0, 10_000))
def test_a_session_that_is_cut_is_refused(at: int) -> None:
    text = json.dumps(session(ask(0), agent(1, ask(0)), ask(9), totals={}))
    with pytest.raises(TraceError, match="ends before its data does"):
        Read(text[: 1 + at % (len(text) - 1)], raw=True)


SCALAR = st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=3)
NODE = st.recursive(
    SCALAR | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "block_size", "hash_id_scope", "requests", "t", "type", "in",
                             "out", "hash_ids", "think_time", "api_time", "model"]),
            inner,
            max_size=6,
        )
        | st.builds(ask, inner, think_time=inner)
        | st.builds(agent, inner, inner)
    ),
    max_leaves=15,
)  # fmt: skip


@given(nodes=st.lists(NODE, max_size=6))
def test_whatever_a_session_holds_each_row_waits_for_rows_before_it(nodes: list[object]) -> None:
    got = Read(session(*nodes))
    seen: set[str] = set()
    last = 0
    for row in got.rows:
        assert set(row.after) <= seen
        assert row.name is not None
        assert row.name not in seen
        seen.add(row.name)
        assert last <= row.at_ns
        last = row.at_ns
        assert row.think_ns is None or row.think_ns >= 0
        assert row.prompt_tokens >= 1
        assert row.hash_ids
    assert (not got.rows) == bool(got.notes["empty"])
    assert all(item == 1 and "expected" in reason for item, reason in got.bad)


@given(content=NODE)
def test_whatever_a_document_holds_there_is_no_crash(content: object) -> None:
    try:
        got = Read(content)
    except TraceError:
        return
    assert all("expected" in reason for _, reason in got.bad)


def test_it_is_told_by_the_first_64_kib_and_no_other_format_is(tmp_path: Path) -> None:
    path = tmp_path / "unnamed"
    for content in (
        session(ask(0, *range(100_000))),
        session(ask(0), indent=1),
        [session(ask(0))],
        {"requests": [agent(0, ask(0))], "id": "late"},
    ):
        path.write_text(json.dumps(content))
        assert detect(path).name == "agentic"
        head = json.dumps(content)[: 64 << 10]
        assert [name for name, of in TRACE_FORMATS.items() if of.matches(head)] == ["agentic"]


# --- the real ones ---


def test_the_real_sessions_give_the_known_answers() -> None:
    trace = open_trace(str(real_trace("agentic")))
    found = survey(trace)
    require_usable(trace, found)
    assert (trace.format_name, found.sessions, found.rows) == ("agentic", 25, 504)
    assert (found.bad_rows, found.notes, found.block_tokens) == (0, {}, 64)
    caches: dict[tuple[str | None, str], set[int | str]] = {}
    blocks = hits = 0
    for row in trace.rows():
        known = caches.setdefault((row.session, row.scope), set())
        ids = row.hash_ids or ()
        blocks += len(ids)
        hits += next((n for n, one in enumerate(ids) if one not in known), len(ids))
        known.update(ids)
    assert (len(caches), blocks, hits) == (25, 611_886, 561_082)
