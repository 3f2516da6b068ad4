"""The gate: nobody passes who waits, and each who leaves wakes no more than can go on."""

from hypothesis import given
from hypothesis import strategies as st

from kv_cache.core.effect import Token
from kv_cache.core.signals import Signals
from kv_cache.schedule.admission import Gate

COMING = st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40)


@given(slots=st.integers(0, 3), most=st.integers(0, 12), coming=COMING)
def test_who_waits_is_let_in_in_turn_and_woken_once_there_is_room(
    slots: int, most: int, coming: list[tuple[int, bool]]
) -> None:
    """`coming`: the bytes of each who comes, and whether the first who is inside leaves before."""
    signals = Signals()
    gate = Gate(0, signals, slots=slots, most=most)
    inside: list[int] = []
    waiting: dict[Token, int] = {}
    came = let_in = 0

    def look() -> None:
        nonlocal let_in
        for token in signals.drain():
            assert token == next(iter(waiting)), "somebody was passed"
            inside.append(waiting.pop(token))
            let_in += 1
        assert (gate.holders, gate.taken) == (len(inside), sum(inside))
        assert not slots or len(inside) <= slots
        assert not most or sum(inside) <= most or len(inside) == 1
        if waiting:
            first = next(iter(waiting.values()))
            full = slots and len(inside) == slots
            assert full or (most and sum(inside) + first > most), "there is room for who waits"

    for nbytes, leaves in coming:
        if leaves and inside:
            gate.leave(inside.pop(0))
            look()
        came += 1
        if gate.try_enter(nbytes):
            assert not waiting, "somebody was passed"
            inside.append(nbytes)
            let_in += 1
        else:
            waiting[gate.line_up(nbytes)] = nbytes
        look()
    while inside:
        gate.leave(inside.pop(0))
        look()
    assert came == let_in, "somebody was left to wait"
