"""What is decided at each tick of a run, the same in both drivers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from kv_cache.core.kinds import Phase
from kv_cache.metrics.window import Series, Window
from kv_cache.schedule.autoscale.autoscaler import Autoscaler
from kv_cache.schedule.autoscale.rules import Decision
from kv_cache.schedule.saturation import Saturation

Watch = Callable[[Window], bool]


class Orders(NamedTuple):
    """What the driver has to do now: change the number of users, or end the window."""

    users: int | None = None
    stop: bool = False


def _on(window: Window) -> bool:
    return False


class Control(Struct, eq=False):
    """Sees every window of a run. `watch` is asked at each measured one whether it was the last
    that is needed."""

    saturation: Saturation
    autoscaler: Autoscaler | None = None
    watch: Watch = _on
    series: Series = field(default_factory=Series)
    decisions: list[Decision] = field(default_factory=list)
    latest: Window | None = None  # with its saturation

    @property
    def standing(self) -> dict[str, Any] | None:
        """How far the autoscaler has come; None if there is none."""
        return None if self.autoscaler is None else self.autoscaler.standing()

    def see(self, window: Window, *, last: bool = False) -> Orders:
        """Follow the next window. Nothing is decided on the `last` one: there is none left to carry
        it out in."""
        level = self.saturation.see(window)
        window = replace(window, saturation=level)
        self.series.add(window)
        self.latest = window
        if window.phase is not Phase.MEASURE:
            return Orders()
        stop = self.watch(window)
        if last:
            return Orders()
        decision = None if self.autoscaler is None else self.autoscaler.see(window, level)
        if decision is None:
            return Orders(stop=stop)
        self.decisions.append(decision)
        self.saturation.reset()
        return Orders(decision.users, stop or decision.action == "stop")
