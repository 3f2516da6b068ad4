"""The twin of a run: the same load, in virtual time, by what was measured of the machine.

Used by `predict`, which does only this, and by `run --predict`, which does it before the run.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.app.prepare import Build, check_machine
from kv_cache.cache.limits import TierSpec
from kv_cache.config.machine import Machine, read_machine
from kv_cache.config.root import Config
from kv_cache.config.storage_targets import storage_places
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import ConfigError
from kv_cache.core.kinds import Tier
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.result.collect import collect
from kv_cache.result.prediction import quantities, twin_section
from kv_cache.result.sections import body
from kv_cache.sim.run import known_tiers, simulate


class Foresight(Struct, frozen=True, kw_only=True):
    """A checked twin: what it will simulate, and how."""

    config: Config
    specs: tuple[TierSpec, ...]
    machine: Machine
    seed: int
    build: Build

    def run(
        self,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = ignore,
    ) -> RunOutcome:
        """The outcome in virtual time. The same configuration and seed give the same."""
        return simulate(
            self.config,
            self.build(self.config),
            self.specs,
            self.seed,
            progress=progress,
            on_record=ignore,
            on_op=ignore,
            stopped=stopped,
        )

    def section(self, predicted: RunOutcome, measured: RunOutcome | None = None) -> dict[str, Any]:
        """The result's part `twin`."""
        store = next(facts.store for facts in predicted.tiers if facts.tier is Tier.NVME)
        known = {Tier.NVME, *known_tiers(self.config, self.machine)}
        return twin_section(
            quantities(body([collect(self.config, predicted, model={}, environment={})])),
            compare=measured is not None,
            profile=self.machine.describe(),
            assumed=[s.tier.label for s in self.specs if s.tier not in known],
            extrapolated=store["extrapolated"],
            notes=[*self._notes(store), *notes_of(predicted, measured)],
        )

    def _notes(self, store: Mapping[str, Any]) -> list[str]:
        sentences = list(differences(self.config, self.machine))
        if self.config.precondition.enabled and self.config.precondition.max_rounds:
            sentences.append(
                "the rounds of --precondition leave the run a cache with their objects in it, and "
                "the twin begins with an empty one: until that is full it deletes nothing"
            )
        if store["deepest"] > store["servers"]:
            sentences.append(
                f"up to {store['deepest']} operations would be on storage at once, and "
                f"{store['servers']} were measured: what is more waits in the twin; calibrate with "
                "a larger --concurrency"
            )
        return sentences


def notes_of(predicted: RunOutcome, measured: RunOutcome | None) -> list[str]:
    """Why the two may say little, or not the same."""
    notes = []
    if not predicted.recorder.all.completed:
        notes.append("no request completes inside the window: little can be predicted")
    if measured is not None and (measured.interrupted or measured.death):
        notes.append(
            f"the run ended after {measured.window_s:.1f} s of its window, the prediction is of "
            f"{predicted.window_s:.1f} s"
        )
    return notes


def foresee(
    config: Config, specs: tuple[TierSpec, ...], seed: int, build: Build, path: str
) -> Foresight:
    """Check that the profile at `path` can carry this run. Raises UsageError."""
    machine = read_machine(path)
    if any(not isinstance(place, Path) for place in storage_places(config)):
        raise ConfigError(
            f"{path}: the run's storage is an object store, and the twin is of a drive; leave "
            "--predict out"
        )
    if len(storage_places(config)) > 1:
        raise ConfigError(
            f"{path}: the run has {len(storage_places(config))} cache directories, and the twin "
            "carries one drive; give one --cache-dir"
        )
    virtual = replace(
        config,
        run=replace(config.run, virtual_time=True),
        sim=replace(config.sim, profile=path, predict=None),
    )
    check_machine(virtual, build(virtual))
    return Foresight(config=virtual, specs=specs, machine=machine, seed=seed, build=build)


def differences(config: Config, machine: Machine) -> list[str]:
    """In what the drive was measured otherwise than the run uses it."""
    io = machine.drive.facts.get("io")
    if not isinstance(io, Mapping):
        return ["the profile does not say how its drive was measured"]
    engine = "direct" if config.io.engine in ("auto", "direct") else config.io.engine
    wanted = {"layout": config.io.layout, "fsync": config.fsync(), "engine": engine}
    measured = {name: io.get(name) for name in wanted}
    if config.io.write_engine is not None:
        wanted["write engine"], measured["write engine"] = config.io.write_engine, io.get("engine")
    sentences = []
    for name, mine in wanted.items():
        if measured[name] != mine:
            sentences.append(
                f"the drive was measured with {name} {measured[name]}, the run has {mine}: what "
                "that costs is not in the twin"
            )
    return sentences
