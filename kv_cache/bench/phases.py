"""The phases of a run: allocate, populate, precondition, warm up, measure, drain, check.

What was measured is in the recorder and the windows; this decides when each phase ends.
"""

import logging
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kv_cache.bench.machine import RunMachine
from kv_cache.bench.run_plan import RunPlan, Together
from kv_cache.bench.run_state import RunState
from kv_cache.bench.windows import TICK_S, WindowCutter
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Cause, OpKind, Tier
from kv_cache.core.seed import Seed
from kv_cache.core.units import ns_to_ms, s_to_ns
from kv_cache.lifecycle import populate
from kv_cache.metrics.histogram import supported
from kv_cache.metrics.recorder import Failure
from kv_cache.metrics.steady import Round, proof
from kv_cache.metrics.summary import Flows
from kv_cache.metrics.window import Latency, Window

PAYLOAD_OBJECTS = 64  # whose pages are looked at after the run
_NOT_YET_NS = 2**62  # later than any run: an edge that is not known yet
_ROUNDS_DRAIN_S = 60.0  # for requests of the rounds to end, at least
_GRACE_S = 2.0  # of the drain when a signal ends the run: launchers kill 5 s after it

log = logging.getLogger("kv_cache")


class Phases:
    """`run` them, then `check` what was measured. `preconditioning` and `traced` are for the
    result."""

    def __init__(
        self,
        plan: RunPlan,
        state: RunState,
        machine: RunMachine,
        windows: WindowCutter,
        together: Together | None,
    ) -> None:
        self._config, self._plan = plan.config, plan
        self._state = state
        self._machine = machine
        self._drive, self._witness = machine.drive, machine.witness
        self._windows = windows
        self._stop, self._abort, self._answers = windows.stop, windows.abort, windows.answers
        self._together = together
        self.preconditioning: Mapping[str, Any] | None = (
            None if plan.filled is None else {"fill": plan.filled.to_json()}
        )
        self.traced: Mapping[str, Any] | None = None

    def run(self, *, measure: bool) -> None:
        """Run all phases up to the end of the drain; without `measure`, no warm-up and no
        window."""
        state, drive, edges = self._state, self._drive, self._state.recorder.edges
        self._enter("allocate")
        for arena in self._machine.stores.arenas:
            arena.touch(self._stop.is_set)
        places = self._answers.places
        self._answers.call(f"writing a trial file in {places}", self._witness.begin)
        try:
            self._windows.begin()
            drive.start()
            self._populate()
            edges.populate_end_ns = state.clock.now_ns()
            self._windows.cut()
            self._run_rounds()
            if measure:
                self._measure()
            else:
                edges.measure_start_ns = edges.measure_end_ns = state.clock.now_ns()
            state.phase = "drain"
            drive.close()
            self._drain()
        except BaseException:
            self._abort.set()  # else who waits for what is ended now waits for ever
            raise
        finally:
            drive.stop(self._stop.is_set, self._answers.are_missing)
            self._witness.stop()

    def check(self) -> None:
        """Close the last window, and look back at what was written."""
        self._windows.cut()
        self._end_tracing()
        self._enter("check")
        self._look_back()
        self._state.phase = "done"

    def _enter(self, phase: str) -> None:
        self._state.phase = phase
        self._windows.tick()

    # --- before anything is measured -------------------------------------------------------

    def _populate(self) -> None:
        self._state.phase = "populate"
        world, windows = self._state.world, self._windows
        lives = (populate(blocks, world) for blocks in self._plan.load.populate)

        def look() -> None:
            windows.end_without_answer()
            windows.look()

        self._drive.populate(lives, self._stop, look)

    def _run_rounds(self) -> None:
        """Run the very workload under other names, round by round, until its speed is steady."""
        state, drive, windows = self._state, self._drive, self._windows
        if state.rounds_intake is None:
            return
        edges, state.phase = state.recorder.edges, "precondition"
        state.serving = state.rounds_intake
        edges.precondition_end_ns = None
        edges.measure_start_ns = _NOT_YET_NS
        drive.switch(state.rounds_intake, recorded=False)
        drive.open()
        windows.cut()
        self.preconditioning = {**(self.preconditioning or {}), **self._rounds_until_steady()}
        drive.close()
        drain_s = max(_ROUNDS_DRAIN_S, self._config.run.drain_s)
        late_ns = state.clock.now_ns() + s_to_ns(drain_s)
        while not self._stop.is_set() and not drive.wait(late_ns, TICK_S):
            windows.look()
        if not self._stop.is_set() and not drive.ended:
            drive.fail(TimeoutError("requests of the preconditioning did not end"))
        ended = not self._stop.is_set() and drive.death is None
        if ended:  # else what still runs goes on being the rounds'
            edges.precondition_end_ns = state.clock.now_ns()
            drive.switch(state.intake, recorded=True)
        windows.cut()
        state.serving = state.intake

    def _rounds_until_steady(self) -> dict[str, Any]:
        config, rounds = self._config, list[Round]()
        judged: Mapping[str, Any] | None = None
        limits = config.passport.thresholds().rounds
        capacity = self._state.world.cache.ledgers[-1].capacity
        open_loop = config.has_schedule(sessions=self._plan.load.sessions)
        while len(rounds) < config.precondition.max_rounds and not self._stop.is_set():
            rounds.append(_round_of(self._windows.of_round(config.precondition.round_s)))
            self._state.rounds = rounds
            judged = proof(
                rounds,
                open_loop=open_loop,
                capacity_bytes=capacity,
                limits=limits,
            )
            if self._drive.ended or (judged is not None and judged["steady"]):
                break
        return {
            "rounds": [each.row(number) for number, each in enumerate(rounds, 1)],
            "proof": judged,
            "open_loop": open_loop,
            "capacity_bytes": capacity,
        }

    # --- the window ------------------------------------------------------------------------

    def _measure(self) -> None:
        """Warm up, and measure a window."""
        config, state, windows = self._config, self._state, self._windows
        edges, clock = state.recorder.edges, state.clock
        self._begin_tracing()
        self._wait_for_others()
        edges.measure_start_ns = clock.now_ns() + s_to_ns(config.run.warmup_s)
        window_s = config.window_s()
        end_ns = None if window_s is None else edges.measure_start_ns + s_to_ns(window_s)
        edges.measure_end_ns = end_ns  # what ends later is the drain's, however late we look
        opened_ns = self._drive.open()
        if self._together is not None:
            self._together.opened(clock.now_ns() - opened_ns)
        state.phase = "warmup"
        windows.wait(edges.measure_start_ns)
        windows.cut()
        self._witness.open_window()
        state.phase = "measure"
        windows.wait(end_ns)
        now_ns = clock.now_ns()
        edges.measure_end_ns = now_ns if end_ns is None else min(now_ns, end_ns)
        edges.measure_start_ns = min(edges.measure_start_ns, edges.measure_end_ns)
        windows.cut(last=True)
        self._witness.close_window()

    def _wait_for_others(self) -> None:
        """Wait until all open together; until then the windows are those of a warm-up without
        requests."""
        if self._together is None:
            return
        self._state.phase, self._state.recorder.edges.measure_start_ns = "waiting", _NOT_YET_NS
        self._together.wait(self._stop, self._windows.look)

    # --- tracing of the block layer: from the first arrival to the end of the drain ----------

    def _begin_tracing(self) -> None:
        tracer = self._machine.tracer
        if tracer is None or self._stop.is_set():
            return
        self._state.phase = "attach"
        reason = tracer.start()
        if reason is not None:
            log.warning("--enable-latency-tracing: %s", reason)

    def _end_tracing(self) -> None:
        """End tracing; after a signal nothing waits until bpftrace has printed."""
        tracer = self._machine.tracer
        if tracer is None:
            return
        with tracer:
            if not self._stop.is_set():
                traced = tracer.stop()
                self.traced = {"keys": traced.reference_keys(), "section": traced.section()}

    # --- afterwards ------------------------------------------------------------------------

    def _drain(self) -> None:
        """Let requests in flight finish for a while, then end them at their next buffer."""
        grace_s = _GRACE_S if self._stop.is_set() else self._config.run.drain_s
        clock, stopped = self._state.clock, self._stop.is_set()
        deadline_ns = clock.now_ns() + s_to_ns(grace_s)
        while not self._drive.wait(deadline_ns, TICK_S):
            self._windows.look()
            if self._stop.is_set() and not stopped:
                stopped, deadline_ns = True, clock.now_ns() + s_to_ns(_GRACE_S)
        if not self._drive.ended:
            self._abort.set()

    def _look_back(self) -> None:
        """Let the kernel's counters catch up, then read a sample of what was written."""
        state, answers, stopped = self._state, self._answers, self._stop.is_set
        flows = Flows(state.recorder.flows)
        read, written = (flows.all_bytes(Tier.NVME, kind) for kind in (OpKind.READ, OpKind.WRITE))
        if not stopped():  # after a signal nothing waits for a device
            answers.call_unless_silent(f"flushing files in {answers.places}", self._flush)
        self._witness.settle(read, written, stopped)
        if self._drive.death is not None:
            return
        refs = state.world.cache.sample(Tier.NVME, PAYLOAD_OBJECTS)
        seed = Seed(self._plan.seed).child("payload-sample")
        if not self._plan.rehearse:
            store, payload = self._machine.stores.by_tier[Tier.NVME], self._machine.mover.payload
            answers.call_unless_silent(
                f"reading a sample of {answers.places}",
                lambda: self._witness.examine_payload(store, refs, payload, seed, stopped),
            )

    def _flush(self) -> None:
        """Write what a batch still waits for; if it fails, objects that are complete are not on
        the device, which is a failed operation."""
        for store in self._machine.stores.nvme:
            try:
                store.flush()
            except StoreError as error:
                lost = Failure(Tier.NVME, OpKind.WRITE, Cause.PREFILL, error.reason)
                self._state.recorder.failures[lost] += 1


def _round_of(windows: Sequence[Window]) -> Round:
    """Summarise the windows of a round. Its p95 is the median of the windows', as percentiles do
    not add up; None if there are too few operations for one."""
    sides = {
        kind: [w.ops[Tier.NVME, kind] for w in windows if (Tier.NVME, kind) in w.ops]
        for kind in (OpKind.READ, OpKind.WRITE)
    }
    p95 = {kind: _median_p95_ms([ops.latency for ops in seen]) for kind, seen in sides.items()}
    return Round(
        seconds=sum(window.seconds for window in windows),
        read_bytes=sum(ops.bytes for ops in sides[OpKind.READ]),
        write_bytes=sum(ops.bytes for ops in sides[OpKind.WRITE]),
        read_p95_ms=p95[OpKind.READ],
        write_p95_ms=p95[OpKind.WRITE],
        completed=sum(window.completed for window in windows),
    )


def _median_p95_ms(latencies: Sequence[Latency]) -> float | None:
    seen = [each.rank95_ns for each in latencies if each.rank95_ns is not None]
    enough = supported(sum(each.count for each in latencies), 95)
    return ns_to_ms(median(seen)) if enough and seen else None
