"""What a run would measure, in virtual time: the same load as `run` with the same options, on what
was measured of a machine. No byte is moved, so the drive may be elsewhere."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_cache.app.prepare import prepare
from kv_cache.app.twin_prediction import foresee
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.path_checks import nearest_existing
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.bench.storage_room import drive_capacities
from kv_cache.bench.tier_sizes import size_tiers
from kv_cache.config.load import Invocation
from kv_cache.config.machine import read_machine
from kv_cache.config.root import Config
from kv_cache.config.sections import FILES_BESIDE
from kv_cache.config.storage_targets import storage_places
from kv_cache.core.errors import ConfigError
from kv_cache.core.exits import Exit
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB
from kv_cache.files.environment import captured
from kv_cache.files.keep import keep
from kv_cache.files.result import Result
from kv_cache.result.document import build_result

log = logging.getLogger("kv_cache")

_NOTHING = "nothing is measured"
USELESS = {
    "sim.predict": "predict takes its profile by --profile",
    "output.certify": _NOTHING,
    "output.metrics_port": _NOTHING,
    "precondition.enabled": _NOTHING,
    "run.trials": "one seed has one prediction; give other --seed",
    "run.clients": "the twin is of one process",
    "output.results_dir": "there are no records to keep; see --output",
    "output.validation_trace": "use run --virtual-time",
    **{f"output.{name}": "use run --virtual-time" for name in FILES_BESIDE},
    "output.fio_export": _NOTHING,
    "output.io_trace_log": "use run --io-trace-log",
    "output.latency_dump": "there are no records to keep; see --output",
    "output.record": "use run --record",
}
"""Options of a run that have no use here, and why."""


def configured(invocation: Invocation) -> Config:
    """Return the configuration of the prediction: in virtual time, with the tiers and the room that
    the run would have on this machine. Raises UsageError."""
    invocation.refuse("predict", USELESS)
    config = invocation.config()
    if config.sim.profile is None:
        raise ConfigError(
            "predict needs what was measured: --profile FILE, as calibrate or probe wrote it"
        )
    sized, notes = size_tiers(config)
    for note in notes:
        log.warning(note)
    fixed: dict[str, object] = {
        "run.virtual_time": True,
        "tiers.gpu_mem_gib": sized.tiers.gpu_mem_gib,
        "tiers.cpu_mem_gib": sized.tiers.cpu_mem_gib,
    }
    room = _room(config, config.sim.profile)
    if room is not None:
        fixed["tiers.storage_capacity_gib"] = room / GIB
    return replace(invocation, overrides={**invocation.overrides, **fixed}).config()


def _room(config: Config, profile: str) -> int | None:
    """Return the bytes that a run would take if none are given: those that are free in its cache
    directory, if that is on this machine, else those of the profile's drive; None = as
    configured."""
    if config.tiers.storage_bytes is not None:
        return None
    places = storage_places(config)
    if config.tiers.cache_dir is not None and all(
        isinstance(place, Path) and nearest_existing(place).is_dir() for place in places
    ):
        return sum(drive_capacities(config, places))
    storage = read_machine(profile).storage
    if storage is None or storage.capacity_bytes is None:
        return None
    return config.tiers.share_of_free(storage.capacity_bytes)


def predict(
    config: Config,
    *,
    notes: Sequence[str] = (),
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
) -> Result | None:
    """Simulate a `configured` run, and write the prediction as a result; None if `stop` ended it.
    Raises UsageError."""
    caught = stop or Interrupts()
    job = prepare(config, notes=notes, progress=progress)
    for warning in job.warnings:
        log.warning(warning)
    assert config.sim.profile is not None
    foresight = foresee(job.config, job.specs, job.seed, job.build, config.sim.profile)
    with progress.bar("virtual time", unit="requests") as bar:
        outcome = foresight.run(caught.stop.is_set, bar.to)
    if caught.came:
        return None
    document = build_result(
        job.config, job.model, outcome, captured(*job.directories), twin=foresight.section(outcome)
    )
    kept = keep(job.output, as_json(document), "prediction")
    return Result(document=document, kept=kept, end=kept.code or Exit.DONE)


def prediction(result: Result) -> Mapping[str, Any]:
    """Return the section `twin` of a prediction."""
    twin: Mapping[str, Any] = result.section["twin"]
    return twin
