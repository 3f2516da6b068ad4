"""`kv-cache.py predict … --profile FILE`: what a run would measure, in virtual time.

The same load as `run` with the same options, on what was measured of a machine. Nothing is moved,
so a prediction can be made for a drive that is elsewhere.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kv_cache.app.prepare import Job, prepare
from kv_cache.app.twin_prediction import Foresight, foresee
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.path_checks import nearest_existing
from kv_cache.bench.storage_room import drive_capacities
from kv_cache.bench.tier_sizes import size_tiers
from kv_cache.cli.flags import parse
from kv_cache.cli.printing import print_json, print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.run import begin_logging, loaded
from kv_cache.config.load import Invocation
from kv_cache.config.machine import read_machine
from kv_cache.config.root import Config
from kv_cache.config.storage_targets import storage_places
from kv_cache.core.errors import ConfigError
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB
from kv_cache.files.keep import keep
from kv_cache.files.machine import captured
from kv_cache.result.document import build_result
from kv_cache.view.prediction import prediction_table
from kv_cache.view.terminal import table_lines

log = logging.getLogger("kv_cache")

_ABOUT = """\
usage: kv-cache.py predict --profile FILE [option of run ...]

Simulate the very load that run with these options would serve, on the machine of a profile that
calibrate (or probe) wrote, and print what the run would measure: storage bandwidth, hit ratios,
requests/s, percentiles of loads and stores by tier; with --json as one document. --output FILE
keeps it as a result.

Objects of sizes that were not measured are refused; --extrapolate goes on all the same and marks
every number that it touches. run --predict FILE does this before a real run, and publishes the
error of the one against the other.

examples:
  kv-cache.py calibrate --cache-dir /mnt/nvme/kv --output machine.yaml
  kv-cache.py predict --profile machine.yaml --semantics serving --num-users 50 --duration 300
  kv-cache.py run --predict machine.yaml --cache-dir /mnt/nvme/kv --semantics serving

exit code: 0 done, 1 could not be written, 2 bad input, 130 and 143 interrupted
"""

_USELESS = {
    "sim.predict": "predict takes its profile by --profile",
    "output.certify": "nothing is measured",
    "output.metrics_port": "nothing is measured",
    "output.fio_export": "nothing is measured",
    "output.io_trace_log": "use run --io-trace-log",
    "precondition.enabled": "nothing is measured",
    "run.trials": "one seed has one prediction; give other --seed",
    "run.clients": "the twin is of one process",
    "output.results_dir": "there are no records to keep; see --output",
    "output.record": "use run --record",
    "output.latency_dump": "there are no records to keep; see --output",
    "output.validation_trace": "use run --virtual-time",
    "output.xlsx_output": "use run --virtual-time",
    "output.hdr_log": "use run --virtual-time",
}


def main(argv: Sequence[str]) -> int:
    """Predict; the exit code. UsageError is the caller's to print."""
    if "-h" in argv or "--help" in argv:
        print(_ABOUT, end="")
        return 0
    invocation = parse(argv)
    begin_logging(invocation.log_level)
    invocation.refuse("predict", _USELESS)
    config = invocation.config()
    if config.sim.profile is None:
        raise ConfigError(
            "predict needs what was measured: --profile FILE, as calibrate or probe wrote it"
        )
    config, notes = loaded(_virtual(invocation, config))
    job = prepare(config, notes=notes, progress=TerminalProgress(config.output.progress))
    assert config.sim.profile is not None
    for warning in job.warnings:
        log.warning(warning)
    foresight = foresee(job.config, job.specs, job.seed, job.build, config.sim.profile)
    with interrupts() as caught:
        return _predict(job, foresight, caught)


def _virtual(invocation: Invocation, config: Config) -> Invocation:
    """In virtual time, with the tiers and the room that the run would have here."""
    sized, notes = size_tiers(config)
    for note in notes:
        log.warning(note)
    fixed: dict[str, object] = {
        "run.virtual_time": True,
        "tiers.gpu_mem_gib": sized.tiers.gpu_mem_gib,
        "tiers.cpu_mem_gib": sized.tiers.cpu_mem_gib,
    }
    room = _room(config)
    if room is not None:
        fixed["tiers.storage_capacity_gib"] = room / GIB
    return replace(invocation, overrides={**invocation.overrides, **fixed})


def _room(config: Config) -> int | None:
    """Bytes that a run would take where nobody says how many: those that are free in its cache
    directory, if that is here, else those of the profile's drive; None = as configured."""
    if config.tiers.storage_bytes is not None or config.sim.profile is None:
        return None
    places = storage_places(config)
    if config.tiers.cache_dir is not None and all(
        isinstance(place, Path) and nearest_existing(place).is_dir() for place in places
    ):
        return sum(drive_capacities(config, places))
    storage = read_machine(config.sim.profile).storage
    if storage is None or storage.capacity_bytes is None:
        return None
    return config.tiers.share_of_free(storage.capacity_bytes)


def _predict(job: Job, foresight: Foresight, caught: Interrupts) -> int:
    progress = TerminalProgress(job.config.output.progress)
    with progress.bar("virtual time", unit="requests") as bar:
        outcome = foresight.run(caught.stop.is_set, bar.to)
    if caught.came:
        print("interrupted; nothing is predicted")
        return caught.exit_code
    section = foresight.section(outcome)
    document = build_result(
        job.config, job.model, outcome, captured(*job.directories), twin=section
    )
    kept = keep(job.output, as_json(document), "prediction")
    if job.config.output.json:  # the whole of what is predicted
        print_json(section)
    else:
        print(f"{job.model.name}, seed {job.seed}, schedule {outcome.schedule_sha256[:12]}")
        print("\n".join(table_lines(prediction_table(section, every=True))))
        print(f"result  {kept.shown}")
        print_unwritten(kept)
    return kept.code
