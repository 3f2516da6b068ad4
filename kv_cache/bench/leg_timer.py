"""What one side of an operation took: its calls, and when."""

from collections.abc import Callable, Sequence

from kv_cache.bench.clock import MonotonicClock
from kv_cache.bench.probes.pagecache import SampledPages
from kv_cache.bench.store_calls import StoreCalls
from kv_cache.core.effect import IoChunk, Leg, MetadataStep
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier


class LegTimer:
    """Collects one leg's system calls. The leg is in flight until `leg` is asked for."""

    def __init__(
        self, clock: MonotonicClock, pulse: StoreCalls, cause: Cause, tier: Tier, kind: OpKind
    ) -> None:
        self._clock = clock
        self._pulse = pulse
        self.cause = cause
        self.on_storage = tier is Tier.NVME
        self._tier = tier
        self.kind = kind
        self.engine = "none"
        self.started_ns = clock.now_ns()
        self._last_ns = self.started_ns
        self.device_ns = 0
        self.aside_ns = 0
        self._chunks: list[IoChunk] = []
        self.steps: tuple[MetadataStep, ...] = ()
        self.sampled: SampledPages | None = None
        self.shared = True
        """Calls outside the interpreter are made with those of other legs, whose time is not its
        own; else all is that passes from its first call to its last."""
        self._host_ns: int | None = None  # of such calls
        self._covered_ns = 0
        self._outside: Callable[[], int] | None = None
        self.calling = False
        """Inside a call of the store, or that call has raised."""
        pulse.enter(self)

    @property
    def began_ns(self) -> int:
        """When the call began that goes on; 0 while it waits for others that were asked with it."""
        if self._outside is None or not self.calling:
            return self._last_ns
        began_ns = self._outside()
        return self._clock.of_monotonic(began_ns) if began_ns else 0

    def start(self) -> None:
        """The first call of the leg begins."""
        self.begin()
        self.started_ns = self._last_ns

    def placed(self, steps: Sequence[MetadataStep]) -> None:
        """Its place was taken by these steps just before: they are the first of its device time."""
        self.steps = tuple(steps)
        self.device_ns = sum(step.duration_ns for step in steps)
        self.started_ns = self._last_ns - self.device_ns

    def begin(self) -> None:
        self._last_ns, self._outside = self._clock.now_ns(), None
        self.calling = True  # last: whoever looks takes the instant before for this call's begin

    def begin_outside(self, began_ns: Callable[[], int]) -> None:
        """A call begins outside the interpreter, which tells when it has come to this leg."""
        self._last_ns, self._outside = self._clock.now_ns(), began_ns
        self.calling = True

    def end(self, nbytes: int = 0) -> None:
        """A call ended that the device may have been needed for."""
        began_ns = self._last_ns
        self.end_of_names()
        if nbytes:
            self._chunks.append(IoChunk(self._last_ns, nbytes))
        if self.on_storage:
            self._pulse.ended(began_ns, self._last_ns)
            self._pulse.moved(self.kind, nbytes)

    def move(self, nbytes: int, call: Callable[[], None]) -> None:
        """Make a call of the store that moves so many bytes. Where it fails, what it has moved
        counts all the same, as the kernel counts it. Raises StoreError."""
        self.begin()
        try:
            call()
        except StoreError as error:
            self.end(error.moved_bytes)
            self.calling = True  # it is the call that failed
            raise
        self.end(nbytes)

    def end_of_names(self) -> None:
        """A call ended that finds, makes or closes a file: memory does that while a device hangs,
        so it shows no life of it."""
        now_ns = self._clock.now_ns()
        self.calling = False
        self.device_ns += now_ns - self._last_ns
        self._last_ns = now_ns

    def called(self, began_ns: int, ended_ns: int, nbytes: int, host_ns: int) -> None:
        """A call of this leg was made, if `shared` among those of others: the leg begins with its
        first, and what they took is not its own time. Calls may have been made at the same time."""
        if self.shared:
            if self._host_ns is None:
                self.started_ns, self._host_ns = began_ns - self.device_ns, 0
            self._host_ns += host_ns
        self.made(began_ns, ended_ns, nbytes)

    def made(self, began_ns: int, ended_ns: int, nbytes: int) -> None:
        """A call was made whose instants were taken outside the interpreter, where its bytes were
        counted as well (`StoreCalls.moving`)."""
        self.calling = False
        self.device_ns += max(0, ended_ns - max(began_ns, self._covered_ns))
        self._covered_ns = self._last_ns = max(ended_ns, self._covered_ns)
        if nbytes:
            self._chunks.append(IoChunk(ended_ns, nbytes))
        if self.on_storage:
            self._pulse.ended(began_ns, ended_ns)

    def stepped(self, name: str, began_ns: int, ended_ns: int, *, well: bool) -> None:
        """A step of the leg's file was made among the calls of others; not `well`: it failed, or
        cleaned up after what did. An fsync shows life of the device; names are memory's."""
        if self._host_ns is None and (self.shared or not self.device_ns):
            self.started_ns = began_ns
            self._host_ns = 0 if self.shared else None
        self.calling = False
        self.device_ns += ended_ns - began_ns
        self._covered_ns = self._last_ns = ended_ns
        if well:
            self.steps = (*self.steps, MetadataStep(name, ended_ns - began_ns))
        if name == "fsync" and self.on_storage:
            self._pulse.ended(began_ns, ended_ns)

    def leg(self, nbytes: int) -> Leg:
        """Return the whole leg, which ends here."""
        if self.calling and self.on_storage:  # the call failed, and so it ended too
            self._pulse.ended(self._last_ns, self._clock.now_ns())
        self._pulse.leave(self)
        if self._host_ns is not None:
            whole_ns = self._last_ns - self.started_ns
            self.aside_ns = max(0, whole_ns - self.device_ns - self._host_ns)
        return self._leg(nbytes)

    def so_far(self, now_ns: int) -> Leg:
        """Return a leg in flight as far as it has come: at least the time inside its calls."""
        began_ns = self.began_ns or self._last_ns  # it has ended just now
        called_ns = now_ns - began_ns if self.calling else 0
        leg = self._leg(0)._replace(finished_ns=now_ns, device_ns=self.device_ns + called_ns)
        if self._outside is not None and self._host_ns is None and self.shared:  # its first call
            leg = leg._replace(started_ns=began_ns - self.device_ns)
        return leg._replace(aside_ns=now_ns - leg.started_ns - leg.device_ns)

    def _leg(self, nbytes: int) -> Leg:
        # Its instants are the interpreter's and the kernel's. Where the clock of one is false (V21)
        # it seems to end before it begins; a time below 0 would fit no histogram.
        whole_ns = max(0, self._last_ns - self.started_ns)
        device_ns, aside_ns = (min(max(0, ns), whole_ns) for ns in (self.device_ns, self.aside_ns))
        return Leg(
            self._tier, self.kind, self.engine, nbytes,
            self.started_ns, self.started_ns + whole_ns, device_ns, tuple(self._chunks), aside_ns,
            self.steps,
        )  # fmt: skip

    def leave_host_to_the_other(self) -> None:
        """Of a move's two sides the reading one verifies and waits for the buffer."""
        self.aside_ns = self._last_ns - self.started_ns - self.device_ns
