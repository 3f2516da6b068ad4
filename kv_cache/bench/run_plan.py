"""What a run is asked to do, and what others do with it while it goes on."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from kv_cache.bench.fill import Filled
from kv_cache.cache.limits import TierSpec
from kv_cache.config.build import Load
from kv_cache.config.root import Config
from kv_cache.core.callbacks import ignore
from kv_cache.core.effect import OpDone
from kv_cache.core.record import RequestRecord
from kv_cache.metrics.slo import Slo
from kv_cache.metrics.window import OnLatencies
from kv_cache.schedule.control import Watch
from kv_cache.schedule.intake import OnArrival, ignore_arrival


class Together(Protocol):
    """What a run that is one of several has to know and do (`crew`)."""

    @property
    def siblings(self) -> Sequence[int]:
        """Processes of the others on this machine."""

    def wait(self, stop: threading.Event, look: Callable[[], None]) -> None:
        """The run is ready. Return at the instant at which all open, or after `stop`; `look` now
        and then, but not just before."""

    def opened(self, ago_ns: int) -> None:
        """The first arrival was let in `ago_ns` ago."""


class RunPlan(Struct, frozen=True):
    """`filled` is what was written to the drives beforehand, `rounds` the load of the
    preconditioning, endless and under other names. `rehearse` runs on storage that keeps nothing
    and takes no time, with all the rest as it is. `promises` as in `build_control`."""

    config: Config
    load: Load
    specs: tuple[TierSpec, ...]
    seed: int
    filled: Filled | None = None
    rounds: Load | None = None
    rehearse: bool = False
    slos: Sequence[Slo] | None = None


class RunHooks(Struct, frozen=True, kw_only=True):
    """`on_arrival` as in `Intake`, but not of the preconditioning's rounds; `watch` as in
    `build_control`; `together` if this is one of several runs."""

    on_record: Callable[[RequestRecord], None] = ignore
    on_op: Callable[[OpDone], None] = ignore
    on_arrival: OnArrival = ignore_arrival
    on_latencies: OnLatencies | None = None
    watch: Watch | None = None
    together: Together | None = None
