"""Messages between a rank and the coordinator, over real sockets."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT
from kv_cache.config.root import Config
from kv_cache.config.sections import OutputConfig, RunConfig, TiersConfig
from kv_cache.crew.coordinator import (
    Coordinator,
    Plan,
    progress_line,
    read_result,
    too_little_room,
)
from kv_cache.crew.seat import comparable
from kv_cache.crew.wire import Gone, Listener, Wire, addresses_of_this_machine, connect
from tests.cli import PATIENCE_S

KEY = b"a key that both know"


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    found = Listener(KEY, everywhere=True)
    yield found
    found.close()


@pytest.fixture(scope="module")
def ends(listener: Listener) -> Iterator[tuple[Wire, Wire]]:
    near = connect(addresses_of_this_machine(listener.port), KEY)
    far = listener.next(PATIENCE_S)
    assert far is not None
    yield near, far
    near.close()
    far.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=50)
@given(told=json_values, attached=st.none() | st.binary(max_size=100_000))
def test_what_is_sent_is_what_is_received(
    told: object, attached: bytes | None, ends: tuple[Wire, Wire]
) -> None:
    near, far = ends
    sending = threading.Thread(target=near.send, args=("x", attached), kwargs={"told": told})
    sending.start()
    message = far.receive(PATIENCE_S)
    sending.join()
    assert message is not None
    assert (message["what"], message["told"]) == ("x", told)
    assert message.get("attached") == attached


def test_nothing_comes_in_time(ends: tuple[Wire, Wire]) -> None:
    assert ends[1].receive(0.01) is None


def test_whoever_has_another_key_is_not_let_in(listener: Listener) -> None:
    with pytest.raises(Gone):
        connect([("127.0.0.1", listener.port)], b"another key", patience_s=0)
    assert listener.next(0.2) is None


def test_a_stranger_who_says_nothing_holds_up_nobody(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)):
        wire = connect([("127.0.0.1", listener.port)], KEY)
        assert listener.next(PATIENCE_S) is not None
        wire.close()


def test_a_stranger_who_talks_is_sent_away(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        try:
            while stranger.recv(1000):
                pass
        except ConnectionError:
            pass
    assert listener.next(0.2) is None


def test_an_end_that_leaves_is_gone(listener: Listener) -> None:
    near = connect([("127.0.0.1", listener.port)], KEY)
    far = listener.next(PATIENCE_S)
    assert far is not None
    near.close()
    with pytest.raises(Gone):
        far.receive(PATIENCE_S)
    with pytest.raises(Gone):
        _keep_sending(far)


def _keep_sending(wire: Wire) -> None:
    """Until it is known that nobody is there."""
    for _ in range(100):
        wire.send("x")
        time.sleep(0.01)


def test_what_is_no_message_is_the_end(listener: Listener) -> None:
    near = connect([("127.0.0.1", listener.port)], KEY)
    far = listener.next(PATIENCE_S)
    assert far is not None
    near._connection.send_bytes(b"not JSON")
    with pytest.raises(Gone):
        far.receive(PATIENCE_S)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
    with pytest.raises(Gone, match=f"port {port}"):
        connect([("127.0.0.1", port)], KEY, patience_s=0)


def test_ranks_may_differ_in_what_is_their_own_alone() -> None:
    one = Config()
    own = Config(
        run=RunConfig(seed=4),
        tiers=TiersConfig(cache_dir=("elsewhere",), free_share=0.1),
        output=OutputConfig(output="R.rank1.json"),
    )
    assert comparable(one) == comparable(own)
    other = comparable(Config(run=RunConfig(num_users=7)))
    assert [p for p, value in comparable(one).items() if other[p] != value] == ["run.num_users"]


def test_progress_tells_sums_and_the_worst_percentile() -> None:
    told = [
        {
            "what": "totals", "phase": "measure", "elapsed_s": 3.0, "completed": 10, "failed": 0,
            "in_flight": 1, "queued": 2, "bytes_per_s": {"storage.read": 2.0**30},
            "storage_p95_ns": {"read": ms * 1e6, "write": None},
        }
        for ms in (5, 80)
    ]  # fmt: skip
    assert progress_line(told, 3) == (
        "3 ranks  measure    3.0 s  20 done  2 running  4 queued  read 2.00 GiB/s (p95 80 ms)  "
        "write 0.00 GiB/s"
    )
    assert progress_line([], 2).startswith("2 ranks  starting")


@pytest.mark.parametrize(
    ("attached", "why"),
    [
        (b"", "not JSON"), (b'{"kv_cache": {', "not JSON"), (b"\xff", "not JSON"),
        (b"[" * 5000, "not JSON"), (None, "wrote no result (exit code 3)"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_result_are_a_reason_and_no_failure(
    attached: bytes | None, why: str
) -> None:
    result, said = read_result(attached, 3)
    assert result is None
    assert said is not None
    assert why in said
    assert read_result(b"[1]", 0) == ([1], None)


def _room(wanted: int, *, device: int = 1, dead: int = 0) -> list[dict[str, Any]]:
    there = {"directory": "/mnt/kv/rank", "device": device, "free_bytes": 100}
    return [{**there, "wanted_bytes": wanted, "dead_bytes": dead}]


def test_room_that_each_rank_finds_for_itself_must_be_there_for_all() -> None:
    short = too_little_room({0: ("a", _room(60)), 1: ("a", _room(60)), 2: ("b", _room(60))})
    assert short is not None
    assert short.startswith("ranks 0, 1 want 120 B together on the file system of /mnt/kv/rank")
    assert "--storage-capacity-gb" in short
    enough: list[dict[int, tuple[str, list[dict[str, Any]]]]] = [
        {0: ("a", _room(50)), 1: ("a", _room(50))},
        {0: ("a", _room(60)), 1: ("b", _room(60))},  # other machines
        {0: ("a", _room(60)), 1: ("a", _room(60, device=2))},  # other drives
        {0: ("a", _room(60, dead=20)), 1: ("a", _room(60))},  # what dead runs left goes first
        {0: ("a", []), 1: ("a", [])},
    ]
    for told in enough:
        assert too_little_room(told) is None


def unused(value: object) -> None:
    raise AssertionError(value)


def plan_of(address: tuple[str, int], ranks: int) -> Plan:
    return Plan(
        how="clients", expected=ranks, config=Config(), output=Path("R.json"),
        addresses=[address], key=KEY,
    )  # fmt: skip


class _Breaking(Coordinator):
    """One whose only rank is here, and that breaks in the midst of the run."""

    def _start_children(self) -> None:
        near = self._listener.next(PATIENCE_S)
        self._ranks[0].wire = near

    def _gather(self) -> None:
        self._welcomed = True

    def _begin(self) -> None:
        raise RuntimeError("a defect")


def test_ranks_of_a_coordinator_that_breaks_are_told_to_end() -> None:
    listener = Listener(KEY, everywhere=False)
    address = ("127.0.0.1", listener.port)
    rank = connect([address], KEY)
    plan = plan_of(address, 1)
    with pytest.raises(RuntimeError, match="a defect"):
        _Breaking(plan, listener).run(Interrupts(), SILENT, unused, unused)
    first, second = rank.receive(PATIENCE_S), rank.receive(PATIENCE_S)
    rank.close()
    assert first is not None
    assert second is not None
    assert (first["what"], second["what"]) == ("stop", "bye")
    assert "RuntimeError" in first["why"]


def test_a_rank_that_dies_as_it_comes_is_nobody_s_wire_any_more() -> None:
    """It has said who it is, and is gone before it is answered."""
    listener = Listener(KEY, everywhere=False)
    address = ("127.0.0.1", listener.port)
    plan = plan_of(address, 1)
    rank = connect([address], KEY)
    near = listener.next(PATIENCE_S)
    assert near is not None
    coordinator = Coordinator(plan, listener)
    coordinator._strangers = [near]
    rank.send("join", rank=0, ranks=1)
    near.send("unread")  # so that its end is a reset
    for wire in (near, rank):
        assert select.select([wire], [], [], PATIENCE_S)[0]
    rank.close()
    for _ in range(3):
        coordinator._pump(0.1)
    assert coordinator._ranks[0].wire is None
    coordinator.close()


def test_ranks_open_together_again_and_wait_for_none_that_has_ended() -> None:
    listener = Listener(KEY, everywhere=False)
    address = ("127.0.0.1", listener.port)
    plan = plan_of(address, 2)
    coordinator, ranks = Coordinator(plan, listener), []
    coordinator._caught = Interrupts()
    for number in range(2):
        ranks.append(connect([address], KEY))
        coordinator._ranks[number].wire = listener.next(PATIENCE_S)

    def look() -> None:
        for _ in range(3):
            coordinator._pump(0.05)
        coordinator._look()

    def told(rank: Wire) -> list[str]:
        messages = iter(lambda: rank.receive(0.1), None)
        return [message["what"] for message in messages if message["what"] != "ping"]

    coordinator._exchange = lambda rank, number: None  # type: ignore[method-assign]
    for rank in ranks:
        rank.send("ready")
        rank.send("opened", at_ns=1)
    look()
    assert [told(rank) for rank in ranks] == [["go"], ["go"]]
    planned_ns = coordinator._planned_ns
    ranks[0].send("ready")
    look()
    assert [told(rank) for rank in ranks] == [[], []]
    ranks[1].send("ready")
    look()
    assert [told(rank) for rank in ranks] == [["go"], ["go"]]
    ranks[0].send("ready")
    ranks[1].send("result", attached=b"{}", code=0)
    look()
    assert told(ranks[0]) == ["go"]
    assert coordinator._planned_ns == planned_ns
    for rank in ranks:
        rank.close()
    coordinator.close()
