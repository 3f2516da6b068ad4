"""A rank's end of the wire: what a run that is one of several sends the coordinator, and receives.

One thread listens and sends the state of the run once a second; it does nothing else while the run
measures. When the coordinator ends the run for all, or is gone itself, the run ends as by SIGTERM:
it writes its result, and only then tries to hand it over. Nothing here touches what is measured.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kv_cache import __version__
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.owner import this_host
from kv_cache.bench.run import RealRun
from kv_cache.bench.storage_room import wanted_space
from kv_cache.config.root import Config
from kv_cache.core.crew import is_own
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.kinds import OpKind, Outcome
from kv_cache.core.mpirank import MpiRank
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.crew.wire import PATIENCE_S, Gone, Message, Wire

TELL_S = 1.0
_LOOK_S = 0.2  # between two looks at signals
_SPIN_NS = NS_PER_MS // 5  # before the instant: a sleep ends late by the timer's slack of 50 µs

log = logging.getLogger("kv_cache")


class Refused(ConfigError):  # noqa: N818
    """The coordinator ends the run before anything has begun, and reports why itself."""


class Seat:
    """One rank's place among those that run together."""

    def __init__(self, wire: Wire, rank: MpiRank) -> None:
        """Join. Raises Refused if the coordinator refuses this rank, PlaceError if it is gone."""
        self.rank = rank
        self.siblings: Sequence[int] = ()  # processes of the others on this machine
        self.ended: str | None = None  # why the run was ended for all
        self._wire = wire
        self._run: RealRun | None = None
        self._caught: Interrupts | None = None
        self._told_signal = False
        self._done = False  # the result is handed over: nothing is left to be ended
        self._refused: str | None = None
        self._instant_ns = 0
        self._calm: tuple[int, os.sched_param] | None = None  # how this thread is scheduled else
        self._patience_s = PATIENCE_S
        self._placed, self._welcome = threading.Event(), threading.Event()
        self._go, self._bye = threading.Event(), threading.Event()
        self.output = Path()
        threading.Thread(target=self._listen, name="crew", daemon=True).start()
        self._send("join", **self._about())
        self._await(self._placed)

    def _about(self) -> dict[str, Any]:
        here = this_host()
        return {
            "rank": self.rank.rank,
            "ranks": self.rank.ranks,
            "host": here.name,
            "pid": os.getpid(),
            "machine": here.key or f"{here.name} {os.getpid()}",  # else like nobody's
            "version": __version__,
        }

    # --- what the run does -------------------------------------------------------------------

    def introduce(self, config: Config, caught: Interrupts) -> None:
        """Wait until all ranks have checked everything, before anything is written. Raises Refused
        if one of them cannot begin, or has another configuration. `caught` notes signals from now
        on."""
        self._caught = caught
        self._patience_s = config.run.clients_timeout_s + PATIENCE_S
        self._send("hello", config=comparable(config), room=wanted_space(config))
        self._await(self._welcome)

    def refuse(self, why: str) -> bool:
        """Report that this rank cannot begin. Return whether the coordinator knows, which then
        tells the user."""
        return self.ended is None and self._send("refusal", why=why)

    def watch(self, run: RealRun) -> None:
        self._run = run

    def wait(self, stop: threading.Event, look: Callable[[], None]) -> None:
        """Report that this rank is ready. Return at the instant at which all ranks open, or after
        `stop`."""
        self._send("ready")
        while not self._go.wait(_LOOK_S):
            if stop.is_set():
                return
            look()
        self._go.clear()
        self._calm = os.sched_getscheduler(0), os.sched_getparam(0)
        _hurry(os.SCHED_FIFO, os.sched_param(1))
        _until(self._instant_ns, stop)

    def opened(self, ago_ns: int) -> None:
        at_ns = time.monotonic_ns() - ago_ns
        if self._calm is not None:
            _hurry(*self._calm)
        self._send("opened", at_ns=at_ns)

    def conclude(self, code: int, result: bytes | None) -> None:
        """Hand over the result that was written, and wait until all ranks have: a launcher may end
        the others when the first one leaves."""
        if self._send("result", attached=result, code=code):
            self._done = True
            self._bye.wait(self._patience_s)
        self._wire.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the result."""
        return () if self.ended is None else (f"the run was ended for all ranks: {self.ended}",)

    # --- what the wire says ------------------------------------------------------------------

    def _send(self, what: str, attached: bytes | None = None, **fields: Any) -> bool:
        """Return whether it was sent; the listener handles a coordinator that is gone."""
        try:
            self._wire.send(what, attached, **fields)
        except Gone:
            return False
        return True

    def _await(self, event: threading.Event) -> None:
        """Wait for an event. A signal ends the process meanwhile: nothing is written yet."""
        while not event.wait(_LOOK_S):
            if self._caught is not None and self._caught.came:
                raise PlaceError(f"{self._caught.name} came before all ranks were there")
        if self.ended is not None:
            raise PlaceError(f"{self.rank} ends before it has begun: {self.ended}")
        if self._refused is not None:
            raise Refused(self._refused)

    def _listen(self) -> None:
        due_s = time.monotonic() + TELL_S
        try:
            while True:
                message = self._wire.receive(min(_LOOK_S, due_s - time.monotonic()))
                if message is not None:
                    self._take(message)
                self._tell_signal()
                if time.monotonic() >= due_s:
                    self._wire.send("totals", **({} if self._run is None else totals(self._run)))
                    due_s = time.monotonic() + TELL_S
        except Gone:
            if not self._bye.is_set():
                self._end("the coordinator is gone")
            self._bye.set()

    def _take(self, message: Message) -> None:
        match message["what"]:
            case "ping":
                at_ns = time.monotonic_ns()
                self._wire.send("pong", number=message["number"], at_ns=at_ns)
            case "place":
                self.output = Path(message["output"])
                self._placed.set()
            case "welcome":
                self.siblings = tuple(message["siblings"])
                self._welcome.set()
            case "refused":
                self._refuse(message["why"])
            case "go":
                self._instant_ns = message["at_ns"]
                self._go.set()
            case "stop":
                self._end(message["why"])
            case "bye":
                self._bye.set()

    def _refuse(self, why: str) -> None:
        self._refused = why
        for event in (self._placed, self._welcome):
            event.set()

    def _end(self, why: str) -> None:
        """End the run: refuse it if it has not begun, otherwise send this process SIGTERM."""
        if self._done or self.ended is not None or self._refused is not None:
            return
        self.ended = why
        if not self._welcome.is_set():
            self._refuse(why)
        elif self._caught is None or not self._caught.came:
            os.kill(os.getpid(), signal.SIGTERM)

    def _tell_signal(self) -> None:
        """Report a signal that came to this rank alone: it ends the run for all."""
        caught = self._caught
        if caught is None or not caught.came or self._told_signal or self.ended is not None:
            return
        self._told_signal = True
        self._wire.send("signal", name=caught.name)


def _hurry(policy: int, param: "os.sched_param") -> None:
    """Raise the priority, so that this thread, which sleeps, gets a core at the instant although
    the first rank on this machine to open keeps them all busy; if we may (root, CAP_SYS_NICE).
    Without it a rank was 1 to 70 ms late on a machine with fewer cores than ranks."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, param)


def _until(at_ns: int, stop: threading.Event) -> None:
    """Sleep until an instant, and spin at the end."""
    while (left_ns := at_ns - _SPIN_NS - time.monotonic_ns()) > 0 and not stop.is_set():
        time.sleep(min(left_ns / NS_PER_S, _LOOK_S))
    while time.monotonic_ns() < at_ns and not stop.is_set():
        pass


def totals(run: RealRun) -> dict[str, Any]:
    """Return the state of the run, without taking its lock. Rates are those of the latest window:
    bytes a second, by tier and direction."""
    ends, window = run.totals, run.latest
    totals_so_far: dict[str, Any] = {
        "phase": run.phase,
        "elapsed_s": run.elapsed_s,
        "completed": ends.requests(Outcome.COMPLETED),
        "failed": ends.requests(Outcome.FAILED),
        "in_flight": run.serving.in_flight,
        "queued": run.serving.queued,
    }
    if window is None:
        return totals_so_far
    seconds = max(window.seconds, 1e-9)
    rates = {
        f"{tier.label}.{kind.value}": ops.bytes / seconds
        for (tier, kind), ops in window.ops.items()
    }
    p95 = {kind.value: window.storage_p95_ns(kind) for kind in (OpKind.READ, OpKind.WRITE)}
    return {**totals_so_far, "bytes_per_s": rates, "storage_p95_ns": p95}


def comparable(config: Config) -> dict[str, Any]:
    """Return the options that all ranks must have in common, with their values."""
    return {path: value for path, value in _flat(asdict(config), "") if not is_own(path)}


def _flat(values: Mapping[str, Any], above: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        path = f"{above}{name}"
        pairs += _flat(value, f"{path}.") if isinstance(value, dict) and value else [(path, value)]
    return pairs
