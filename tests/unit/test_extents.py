"""Space in a buffer: whatever is taken and given back, none is lost, shared or over a border."""

import random
import threading
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_cache.tiers.extents import Allocation, Extent, Extents
from tests.examples import examples


def test_what_is_given_back_is_joined_up_to_a_border_and_never_over_it() -> None:
    """In every order in which the bytes of regions of two and three can be given back."""
    for order in permutations(range(5)):
        extents = Extents([2, 3])
        assert taken_of(extents, 5).extents == [Extent(0, 2), Extent(2, 3)]
        for at in order:
            extents.give(Allocation([Extent(at, 1)]))
        assert taken_of(extents, 5).extents == [Extent(0, 2), Extent(2, 3)], order


def taken_of(extents: Extents, nbytes: int) -> Allocation:
    room = extents.take(nbytes)
    assert room is not None
    return room


def test_one_size_after_another_takes_what_was_given_back_in_that_order_as_it_was() -> None:
    extents = Extents([10])
    rooms = [taken_of(extents, 2) for _ in range(5)]
    for number in (3, 0, 1):
        rooms[number].seen_as = number
        extents.give(rooms[number])
    assert [taken_of(extents, 2).seen_as for _ in range(3)] == [3, 0, 1]
    for number in (4, 0, 1):
        extents.give(rooms[number])
    assert taken_of(extents, 5).extents == [Extent(0, 4), Extent(8, 1)], "the spare is joined first"


class ExtentsMachine(RuleBasedStateMachine):
    """Against a list of which object owns each byte."""

    @initialize(regions=st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def begin(self, regions: list[int]) -> None:
        self.regions = regions
        self.region_of = [number for number, n in enumerate(regions) for _ in range(n)]
        self.owner: list[int | None] = [None] * sum(regions)
        self.objects: dict[int, Allocation] = {}
        self.made = 0
        self.extents = Extents(regions)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        sizes = [size for size in (1, 3) if size <= self.extents.free_bytes]  # often the one before
        free = st.integers(0, self.extents.free_bytes)
        self.claim(data.draw(st.sampled_from(sizes) | free if sizes else free))

    @rule()
    def take_all_that_is_free(self) -> None:
        self.claim(self.extents.free_bytes)

    def claim(self, nbytes: int) -> None:
        self.made += 1
        taken = taken_of(self.extents, nbytes)
        assert sum(extent.length for extent in taken.extents) == nbytes == taken.nbytes
        for start, length in taken.extents:
            assert length > 0
            assert len(set(self.region_of[start : start + length])) == 1, "it crosses a border"
            assert self.owner[start : start + length] == [None] * length, "it is not free"
            self.owner[start : start + length] = [self.made] * length
        self.objects[self.made] = taken

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.objects)))
        self.extents.give(self.objects.pop(number))
        self.owner = [None if owner == number else owner for owner in self.owner]

    @precondition(lambda self: not self.objects)
    @rule()
    def what_was_all_given_back_is_in_one_piece_a_region(self) -> None:
        taken = taken_of(self.extents, sum(self.regions))
        starts = [sum(self.regions[:number]) for number in range(len(self.regions))]
        assert taken.extents == [Extent(*pair) for pair in zip(starts, self.regions, strict=True)]
        self.extents.give(taken)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.extents.free_bytes == self.owner.count(None)

    def teardown(self) -> None:
        if not hasattr(self, "extents"):
            return
        for taken in self.objects.values():
            self.extents.give(taken)
        self.what_was_all_given_back_is_in_one_piece_a_region()


TestExtents = ExtentsMachine.TestCase
TestExtents.settings = settings(examples(80), stateful_step_count=60)


def test_more_than_there_is_cannot_be_had() -> None:
    extents = Extents([10])
    assert extents.take(11) is None
    assert taken_of(extents, 10).extents == [Extent(0, 10)]
    assert extents.take(1) is None


def test_threads_never_share_space_and_lose_none() -> None:
    extents = Extents([1000, 1000])
    owner = [0] * 2000
    clashes: list[int] = []

    def work(me: int) -> None:
        rng = random.Random(me)
        for _ in range(300):
            taken = taken_of(extents, rng.choice((100, rng.randrange(1, 240))))
            for start, length in taken.extents:
                clashes.extend(o for o in owner[start : start + length] if o)
                owner[start : start + length] = [me] * length
            for start, length in taken.extents:
                clashes.extend(o for o in owner[start : start + length] if o != me)
                owner[start : start + length] = [0] * length
            extents.give(taken)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert taken_of(extents, 2000).extents == [Extent(0, 1000), Extent(1000, 1000)]
