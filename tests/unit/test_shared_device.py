"""A measured device in virtual time: it does as much as was measured, in the order that bursts
told, and the real driver's threads and buffers stand before it."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_cache.config.profile import Burst, Cell, Profile, Service, profile_text, read_profile
from kv_cache.core.effect import CopyRef, Leg
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import OpKind, Tier
from kv_cache.core.units import MIB, NS_PER_S
from kv_cache.result.prediction import compared, error, twin_section
from kv_cache.sim.io_workers import IoWorkers, Next
from kv_cache.sim.profile_model import ProfileModel
from kv_cache.sim.shared_device import SharedDevice
from kv_cache.view.prediction import prediction_table
from kv_cache.view.terminal import table_lines
from tests.unit.test_profile import RATE, cells, profile, service

READ, WRITE, DELETE = OpKind.READ, OpKind.WRITE, OpKind.DELETE


class Clock:
    """Calls what is due, in order."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_ns, self._number, action))

    def run(self) -> None:
        while self._due:
            self.now_ns, _, action = heapq.heappop(self._due)
            action()


def ref(number: int, nbytes: int = 2 * MIB) -> CopyRef:
    return CopyRef(number, b"", Tier.NVME, nbytes, 0)


class Bench:
    """A device with its clock, and the legs that ended."""

    def __init__(self, made: Profile, *, draw: Callable[[], float] = lambda: 0.5, **room: int):
        self.clock = Clock()
        wanted = {"depth": 16, "loads": 16, "stores": 16, **room}
        self.device = SharedDevice(ProfileModel(made), draw=draw, **wanted)
        self.device.bind(self.clock.at)
        self.legs: list[Leg] = []

    def ask(self, count: int, kind: OpKind = READ, nbytes: int = 2 * MIB) -> None:
        for n in range(count):
            self.device.ask(ref(n, nbytes), kind, self.clock.now_ns, self.legs.append)

    def steadily(self, depth: int, total: int, kind: OpKind = READ) -> None:
        """`depth` at once, until `total` have been asked."""
        left = [total]

        def go(leg: Leg | None = None) -> None:
            if leg is not None:
                self.legs.append(leg)
            if left[0]:
                left[0] -= 1
                self.device.ask(ref(left[0]), kind, self.clock.now_ns, go)

        for _ in range(depth):
            go()
        self.clock.run()


def in_burst(mean: float, at_once: int = 8) -> Profile:
    """A constant bandwidth; the mean of a burst over its last."""
    last = service(2 * MIB, at_once).mean_ns
    bursts = tuple(
        Burst(object_bytes=2 * MIB, concurrency=at_once, kind=kind.value,
              mean_us=round(mean * last) / 1e3, last_us=last / 1e3)
        for kind in (READ, WRITE)
    )  # fmt: skip
    return replace(profile(), bursts=bursts)


ALONE_NS = service(2 * MIB, 1).mean_ns


# --- how much, and in which order ----------------------------------------------------------------


@pytest.mark.parametrize("even", [0.5625, 0.7, 1.0])
@pytest.mark.parametrize("depth", [1, 3, 16])
def test_a_steady_load_gets_what_was_measured_whatever_the_order(even: float, depth: int) -> None:
    bench = Bench(in_burst(even))
    bench.steadily(depth, 200)
    moved = sum(leg.nbytes for leg in bench.legs)
    assert moved / bench.clock.now_ns * NS_PER_S == pytest.approx(RATE, rel=0.01)


def test_a_burst_on_a_device_in_order_ends_one_after_the_other() -> None:
    bench = Bench(in_burst((8 + 1) / 16))
    bench.ask(8)
    bench.clock.run()
    ends = [leg.finished_ns / ALONE_NS for leg in bench.legs]
    assert ends == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8], rel=1e-3)
    assert [leg.device_ns for leg in bench.legs] == [leg.finished_ns for leg in bench.legs]


def test_a_burst_on_a_device_that_shares_ends_all_at_once() -> None:
    bench = Bench(in_burst(1.0))
    bench.ask(8)
    bench.clock.run()
    ends = [leg.finished_ns / ALONE_NS for leg in bench.legs]
    assert ends == pytest.approx([8] * 8, rel=1e-3)


def test_without_bursts_a_device_serves_in_order() -> None:
    model = ProfileModel(profile())
    assert model.evenness(READ, MIB) == 0
    assert ProfileModel(in_burst(0.9)).evenness(READ, 32 * MIB) == pytest.approx(0.771, abs=0.01)


@given(st.lists(st.tuples(st.sampled_from([READ, WRITE]), st.integers(256 * 1024, 32 * MIB))))
def test_whatever_is_asked_ends_once_and_never_faster_than_the_bandwidth(
    asked: list[tuple[OpKind, int]],
) -> None:
    bench = Bench(in_burst(0.7))
    for n, (kind, nbytes) in enumerate(asked):
        bench.device.ask(ref(n, nbytes), kind, 0, bench.legs.append)
    bench.clock.run()
    assert len(bench.legs) == len(asked)
    total = sum(nbytes for _, nbytes in asked)
    assert bench.clock.now_ns == pytest.approx(total / RATE * NS_PER_S, rel=0.02, abs=1000)
    assert all(0 < leg.device_ns <= leg.total_ns for leg in bench.legs)


# --- the host around it --------------------------------------------------------------------------


def test_who_waits_for_a_buffer_is_not_in_the_device() -> None:
    bench = Bench(in_burst(0.5625), loads=2)
    bench.ask(4)
    bench.clock.run()
    assert [round(leg.finished_ns / ALONE_NS) for leg in bench.legs] == [1, 2, 3, 4]
    assert [round(leg.device_ns / ALONE_NS) for leg in bench.legs] == [1, 2, 2, 2]


def test_loads_and_stores_have_buffers_of_their_own() -> None:
    bench = Bench(in_burst(0.5625), loads=1, stores=1)
    bench.ask(3, READ)
    bench.ask(1, WRITE)
    bench.clock.run()
    order = [leg.kind for leg in bench.legs]
    assert order.index(WRITE) < 3


def test_what_is_more_than_was_measured_at_once_waits() -> None:
    bench = Bench(profile(*cells(depths=(1, 4))), depth=4)
    bench.ask(12)
    bench.clock.run()
    ends = [leg.finished_ns / ALONE_NS for leg in bench.legs]
    assert ends == pytest.approx(range(1, 13), rel=1e-3)
    assert bench.device.deepest == 12


def test_a_thread_that_is_not_always_in_the_device_is_slower_than_it() -> None:
    made = [replace(c, in_flight=c.concurrency * 0.8, bytes_per_second=0.8 * RATE) for c in cells()]
    bench = Bench(profile(*made))
    bench.steadily(4, 200)
    moved = sum(leg.nbytes for leg in bench.legs)
    assert moved / bench.clock.now_ns * NS_PER_S == pytest.approx(0.8 * RATE, rel=0.01)
    inside = sum(leg.device_ns for leg in bench.legs) / sum(leg.total_ns for leg in bench.legs)
    assert inside == pytest.approx(0.8, rel=0.01)


def test_deletes_take_the_time_that_was_measured_beside_the_rest() -> None:
    gone = Service(operations=10, mean_us=5000, p50_us=4000, p99_us=9000)
    made = [replace(c, deletes=gone if c.read_share < 1 else None) for c in cells()]
    bench = Bench(profile(*made))
    bench.ask(2, DELETE)
    bench.ask(1, READ)
    bench.clock.run()
    assert [leg.finished_ns for leg in bench.legs] == [5_000_000, 5_000_000, ALONE_NS]
    bench = Bench(profile())
    bench.ask(1, DELETE)
    bench.clock.run()
    assert bench.legs[0].finished_ns == 0


def test_times_have_the_spread_of_an_operation_that_was_alone_and_its_mean() -> None:
    shape = tuple(round(ALONE_NS * part) / 1e3 for part in (0.5, 0.6, 0.7, 0.8, 1.2, 1.6, 2.4))
    made = [
        replace(c, reads=None if c.reads is None else replace(c.reads, quantiles_us=shape))
        for c in cells()
    ]
    steps = 1000
    draws = iter([(n + 0.5) / steps for n in range(steps)])
    bench = Bench(profile(*made), draw=lambda: next(draws))
    bench.steadily(1, steps)
    took = sorted(leg.device_ns for leg in bench.legs)
    assert sum(took) / steps == pytest.approx(ALONE_NS, rel=0.01)
    mean = ProfileModel(profile(*made)).spread(READ, 2 * MIB, 0.5)
    assert took[steps // 2] == pytest.approx(ALONE_NS * mean, rel=0.02)
    assert took[steps // 2] < 0.9 * ALONE_NS


# --- I/O workers --------------------------------------------------------------------------------


def starts(began: list[str], going: dict[str, Next], *names: str) -> list[Callable[[Next], None]]:
    def start(name: str) -> Callable[[Next], None]:
        def begin(further: Next) -> None:
            began.append(name)
            going[name] = further

        return begin

    return [start(name) for name in names]


def test_helpers_help_the_batch_that_asked_first_and_each_worker_goes_on_with_its_own() -> None:
    began: list[str] = []
    going: dict[str, Next] = {}
    io_workers = IoWorkers(1)
    io_workers.work(starts(began, going, "a1", "a2", "a3"), shared=True)
    io_workers.work(starts(began, going, "b1", "b2"), shared=True)
    assert began == ["a1", "a2", "b1"]
    going["a2"]()
    assert began[3:] == ["a3"]
    going["a1"]()  # its worker has nothing left to do
    assert len(began) == 4
    going["a3"]()  # the helper turns to the other batch
    assert began[4:] == ["b2"]


def test_a_batch_that_is_not_shared_is_done_one_after_the_other() -> None:
    began: list[str] = []
    going: dict[str, Next] = {}
    IoWorkers(4).work(starts(began, going, "a", "b"), shared=False)
    assert began == ["a"]
    going["a"]()
    assert began == ["a", "b"]


# --- the profile's later parts -------------------------------------------------------------------


def test_quantiles_deletes_and_bursts_read_back_equal(tmp_path: Any) -> None:
    spread = Service(operations=9, mean_us=5, p50_us=4, p99_us=9,
                     quantiles_us=(1, 2, 3, 4, 6, 8, 9))  # fmt: skip
    made: list[Cell] = [replace(c, deletes=spread if c.read_share < 1 else None) for c in cells()]
    whole = replace(in_burst(0.7), cells=tuple(made))
    file = tmp_path / "p.yaml"
    file.write_text(profile_text(whole))
    again = read_profile(file)
    assert (again.cells, again.bursts) == (whole.cells, whole.bursts)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("kind: read", "kind: reed", r"bursts\[0\]\.kind is 'reed'; it must be one of read, write"),
        ("last_us: ", "lst_us: ", "lst_us is not a known key. Did you mean 'last_us'"),
        ("mean_us: 587", "mean_us: 5879", r"bursts\[0\]\.mean_us is .* at most last_us"),
        ("bursts:\n", "bursts: 5\nnotes:\n", "bursts is 5; it must be a list"),
    ],
)
def test_a_changed_burst_is_refused(tmp_path: Any, old: str, new: str, sentence: str) -> None:
    file = tmp_path / "p.yaml"
    text = profile_text(in_burst(0.7))
    at = text.index("bursts:")
    file.write_text(text[:at] + text[at:].replace(old, new, 1))
    with pytest.raises(ConfigError, match=sentence):
        read_profile(file)


# --- errors ------------------------------------------------------------------------------------


def test_an_error_is_prediction_less_measurement_and_a_share_of_the_measurement() -> None:
    assert error(110.0, 100.0) == {"absolute": 10.0, "relative": pytest.approx(0.1)}
    assert error(1.0, 0.0) == {"absolute": 1.0, "relative": None}
    assert error(None, 1.0) is None
    assert error(1.0, None) is None


def test_what_is_extrapolated_or_assumed_is_said() -> None:
    predicted = {"storage_read_bytes_per_s": 1e8, "block_hit_ratio": 0.5}
    section = twin_section(
        predicted, compare=True, profile={}, assumed=["cpu"], extrapolated=3, notes=["a note"]
    )
    section |= compared(predicted, {"storage_read_bytes_per_s": 2e8, "block_hit_ratio": 0.4})
    assert section["extrapolated"] == ["storage_read_bytes_per_s"]
    text = "\n".join(table_lines(prediction_table(section)))
    assert "-50.0 %" in text
    assert "0.09313*" in text
    assert "+10.00 pt" in text
    assert "Times of cpu are assumed" in text
    assert "a note" in text
