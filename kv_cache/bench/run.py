"""One real run: populate, warm up, measure, drain, close.

`open_run` takes from the machine what a run needs (threads, memory, cache directories), yields the
run once all of it is there, and gives all of it back, also when it is interrupted. It prints
nothing and writes no result.
"""

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from kv_cache.bench.machine import open_machine
from kv_cache.bench.phases import Phases
from kv_cache.bench.removal import Removed
from kv_cache.bench.run_plan import RunHooks, RunPlan
from kv_cache.bench.run_state import RunState
from kv_cache.bench.so_far import reasons
from kv_cache.bench.storage_answers import StorageAnswers
from kv_cache.bench.stores import Opening, Wrap
from kv_cache.bench.windows import WindowCutter
from kv_cache.config.build import follow_precision, policy_facts, tier_facts
from kv_cache.core.garbage import rarely_looked_for
from kv_cache.core.kinds import Tier
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.metrics.passport import Finding
from kv_cache.schedule.autoscale.rules import decision_row
from kv_cache.tiers.base import Store
from kv_cache.tiers.native import AbortFlag
from kv_cache.workload.digest import ScheduleDigest, schedule_digest

SWITCH_INTERVAL_S = 0.0001
"""Of threads whose instants are Python's: its own of 5 ms shows in every short operation (decision
0009). Each turn that is forced costs, and where instants are native none is needed."""
NO_HOOKS = RunHooks()

Tick = Callable[["RealRun"], None]

log = logging.getLogger("kv_cache")


def _unwrapped(store: Store) -> Store:
    return store


@contextmanager
def open_run(
    plan: RunPlan,
    stop: threading.Event,
    hooks: RunHooks = NO_HOOKS,
    *,
    wrap: Wrap = _unwrapped,
) -> Iterator["RealRun"]:
    """Open a run with real bytes, to be `execute`d once. `wrap` puts something around each store.
    Raises NoAnswerError on leaving if storage did not answer, now or before."""
    with ExitStack() as closing:
        run = RealRun(plan, stop, hooks, Opening(AbortFlag(), closing, wrap))
        closing.callback(run.close)  # before what its threads work on is closed and removed
        yield run
    run.raise_if_silent()


class RealRun(RunState):
    """A run whose storage is open and whose threads are ready; see `open_run`."""

    def __init__(
        self, plan: RunPlan, stop: threading.Event, hooks: RunHooks, opening: Opening
    ) -> None:
        super().__init__(plan, hooks)
        self._plan, self._config = plan, plan.config
        self._stop, self._abort = stop, opening.abort
        self._together = hooks.together
        self._answers = StorageAnswers(plan.config, self.clock)
        self._machine = open_machine(plan, hooks, self, self._answers, opening)
        self._directories = self._machine.directories
        self.precision = follow_precision(
            self._config, self.recorder, self.control, self._machine.drive.locked
        )

    @property
    def left_behind(self) -> Sequence[str]:
        """What could not be removed, each with its reason; known once the run is closed."""
        return self._directories.left_behind

    def close(self) -> None:
        """Wait for operations that a signal has left behind, and let the threads and the buffers
        go: a closed run can be read, and not be executed."""
        drive, answers = self._machine.drive, self._answers
        if drive.left and answers.silence is None:
            log.warning(
                "%d operations on %s are waited for until none has moved for %g s "
                "(run.answer_s)", answers.held(), answers.places, answers.patience_s,
            )  # fmt: skip
        try:
            drive.join(answers.are_missing)
        finally:
            del self._machine  # the memory of its buffers goes back now

    def raise_if_silent(self) -> None:
        self._answers.raise_if_silent()

    def resize(self, users: int) -> None:
        """Serve `users` from now on, with the workers that they need."""
        self._machine.resize(users)

    def move_less(self, share: float) -> None:
        """Move only so much of each object from now on; no more than before."""
        self._machine.mover.share = share

    def execute(self, tick: Tick, *, measure: bool = True) -> RunOutcome:
        """Run all phases; without `measure`, those before the warm-up. `tick` is called a few
        times a second, to show progress."""
        digest = schedule_digest(self._plan.load.source.plan(), self._config.run.max_requests)
        windows = WindowCutter(
            self, self._machine, self._answers, (self._stop, self._abort), partial(tick, self)
        )
        phases = Phases(self._plan, self, self._machine, windows, self._together)
        with _undisturbed(native=self._machine.native):
            phases.run(measure=measure)
        phases.check()
        return self._outcome(digest, phases)

    def reasons_so_far(self) -> tuple[Finding, ...]:
        """Return what already speaks against the run, from any thread; its verdict is made at the
        end."""
        machine = getattr(self, "_machine", None)  # it is gone once the run is closed
        return () if machine is None else reasons(machine.witness, self.recorder, self._config)

    # --- the result ------------------------------------------------------------------------

    def _outcome(self, digest: ScheduleDigest, phases: Phases) -> RunOutcome:
        machine, answers, config = self._machine, self._answers, self._config
        death = machine.drive.death
        if death is None and answers.silence is None and not self._abort.is_set():
            self.world.cache.check()  # at idle its laws hold; a run that broke one is not a result
        removed = self._directories.removed
        edges, witness = self.recorder.edges, machine.witness
        gaps = witness.gaps(edges.measure_start_ns, edges.measure_end_ns or 0)
        stores = {tier: dict(store.describe()) for tier, store in machine.stores.by_tier.items()}
        if machine.stores.nvme:
            stores[Tier.NVME]["data_path"] = machine.data_path
        return RunOutcome(
            driver="real-io",
            recorder=self.recorder,
            submitted=self.intake.submitted,
            longest_queue=self.intake.longest_queue,
            out_of_turn=self.intake.out_of_turn if self.intake.has_order else None,
            offered_forgotten=self.intake.offered.forgotten,
            tiers=tier_facts(self.world, stores),
            dropped_last_copies=self.world.cache.dropped_last_copies,
            dropped_stores=self.world.dropped_stores,
            lost_bytes=self.world.cache.lost_bytes,
            policies=policy_facts(config, self.world),
            schedule_sha256=digest.sha256,
            schedule_requests=digest.requests,
            workload=self._plan.load.source.describe(),
            seed=self._plan.seed,
            started_unix_s=self.clock.started_unix_s,
            death=answers.silence or (death and f"{type(death).__name__}: {death}") or None,
            unanswered=answers.unanswered,
            kernel=witness.kernel,
            witness={**witness.evidence(), "gaps": gaps},
            series=self.control.series,
            slos=[str(slo) for slo in self.meter.slos],
            decisions=[decision_row(decision) for decision in self.control.decisions],
            standing=self.control.standing,
            precision=self.precision,
            preconditioning=phases.preconditioning,
            tracing=phases.traced,
            buffers=machine.buffer_facts(),
            leftovers=None if removed == Removed() else removed.to_json(),
            kept_in=", ".join(map(str, answers.directories)) if config.tiers.keep_cache else None,
        )


@contextmanager
def _undisturbed(*, native: bool) -> Iterator[None]:
    """Let threads take turns often, if instants are not `native`, and the garbage collector look
    rarely, and forget all that was there before: else one look stops every thread for 40 ms."""
    interval_s = sys.getswitchinterval()
    if not native:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    try:
        with rarely_looked_for():
            yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval_s)
