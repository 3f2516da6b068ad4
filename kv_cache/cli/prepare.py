"""From flags to a checked run: everything that can be wrong with the input is found here, before
the first byte is written."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kv_cache.bench.cache_dir import check_name, check_output_file, check_results_dir
from kv_cache.bench.places import check_places
from kv_cache.bench.probes.foreign import count_as_ours
from kv_cache.bench.sizing import size_tiers
from kv_cache.cache.manager import TierSpec
from kv_cache.cli.exports import check_exports
from kv_cache.cli.flags import Invocation
from kv_cache.cli.keep import RESULTS, Kept
from kv_cache.cli.progress import bar_for, to
from kv_cache.cli.supervisor import supervisor, tell
from kv_cache.config.build import Load, build_load, fillable_bytes, tier_specs
from kv_cache.config.load import is_the_references, load_config
from kv_cache.config.machine import read_machine
from kv_cache.config.root import Config, options, value_at
from kv_cache.config.sections import OutputConfig
from kv_cache.config.shared import beyond_all_tiers, check_chunks, ingestion_notes
from kv_cache.config.storage_targets import Place, storage_places
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.model import ModelShape
from kv_cache.core.mpirank import ALONE, MpiRank
from kv_cache.core.seed import Seed, fresh_seed
from kv_cache.core.units import gib_to_bytes
from kv_cache.metrics.outcome import RunOutcome
from kv_cache.report.fio import HEADER
from kv_cache.report.hdr import check_hdr_log
from kv_cache.report.iotrace import check_io_trace
from kv_cache.report.reading import RESULT_FILE, require_replaceable
from kv_cache.report.recording import (
    as_recorded,
    check_recording,
    recording_notes,
)
from kv_cache.report.rundir import new_run_directory
from kv_cache.report.validation import ValidationTrace, read_validation
from kv_cache.sim.run import storage_model
from kv_cache.workload.formats.opening import Trace, open_trace
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import Survey, doubts, read, require_usable, survey
from kv_cache.workload.row_requests import History

if TYPE_CHECKING:
    from kv_cache.cli.crew.seat import Seat
    from kv_cache.cli.twin_prediction import Foresight

QUICK = Path("quick")

log = logging.getLogger("kv_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked run: everything is known, nothing is written yet."""

    config: Config
    model: ModelShape
    seed: int
    load: Load
    build: "Build"  # the same load again, for a configuration that differs
    specs: tuple[TierSpec, ...]
    output: Path
    run_directory: Path | None  # for the whole record of the run, which makes it
    directories: tuple[Place, ...]  # of the storage tier, or the temporary directory's parent
    warnings: tuple[str, ...]
    noted: tuple[str, ...]  # those of them that are of what nobody gave
    trace: Trace | None = None
    found: Survey | None = None
    validation: ValidationTrace | None = None
    start: "Start"
    foreseen: "tuple[Foresight, RunOutcome] | None" = None  # the twin, and what it said
    told: list[dict[str, Any]] | None = None  # of a trial: where its summary for programs goes
    kept: list[Kept] = field(default_factory=list)  # its result each time that it was written


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Who is started, as what, and what the starter has to say."""

    rank: MpiRank = ALONE
    own: "Own | None" = None  # makes its own what all ranks were given; None: nothing is shared
    notes: tuple[str, ...] = ()
    not_submittable: tuple[str, ...] = ()
    seat: "Seat | None" = None  # of a rank that runs together with others


Own = Callable[[Config], Config]


class Build(Protocol):
    """The load of a configuration with the same trace; with a salt, the same under other names."""

    def __call__(self, config: Config, salt: str = "") -> Load: ...


def prepare(
    invocation: Invocation,
    *,
    quick: bool,
    start: Start | None = None,
    name: str = "benchmark_results",
) -> Job:
    """Check everything that was asked for, and build what is pure. `name`: how a result begins that
    is given none. Raises UsageError."""
    start = start or Start()
    path = QUICK if quick and invocation.config_path is None else invocation.config_path
    config = load_config(path, invocation.overrides)
    tell(still_s=2 * config.run.answer_s)
    if (parent := supervisor()) is not None:
        count_as_ours(parent)
    if start.own is not None:
        config = start.own(config)
    config, sizing = size_tiers(config, start.rank.on_machine or 1)
    noted = (*_without_file(path), *sizing)
    model = config.model_shape()
    seed = fresh_seed() if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))
    trace, found = open_workload(config)
    config = as_recorded(config, trace)
    output, place = output_of(config, name), None
    if config.run.trials == 1:
        place, output = places_of_run(config, seed, output)
    check_output(config, output)
    if config.output.results_dir is not None:
        check_results_dir(Path(config.output.results_dir))
    for number in range(1, config.run.trials + 1) if config.run.trials > 1 else ():
        check_output(config, numbered(output, number))
    for asked in (config.output.latency_dump, config.output.fio_export):
        if asked is not None:
            check_output_file(Path(asked))
    if config.output.fio_export is not None:
        require_replaceable(Path(config.output.fio_export), HEADER, "--fio-export")
    _check_recordings(config, output, trace)
    for sentence in _check_exports(config, output, trace):
        log.warning(sentence)
    validation = config.output.validation_trace
    compared = None if validation is None else read_validation(Path(validation))
    specs = tier_specs(config, _storage_bytes(config, start.rank))
    trace, found = _fitting(config, model, specs, trace, found)

    def build(config: Config, salt: str = "") -> Load:
        own = seed if config.run.seed is None else config.run.seed
        room = fillable_bytes(config, specs)
        return build_load(config, model, Seed(own), trace, found, room, salt)

    load = build(config)
    check_chunks(config, load.retriever, load.populate, specs)
    if config.run.virtual_time and config.sim.profile is not None:
        check_machine(config, load)
    return Job(
        config=config,
        model=model,
        seed=seed,
        load=load,
        build=build,
        specs=specs,
        output=output,
        run_directory=place,
        directories=storage_places(config),
        validation=compared,
        trace=trace,
        found=found,
        warnings=(*noted, *warnings_of(config, load, trace, found)),
        noted=noted,
        start=start,
    )


def _without_file(path: Path | None) -> tuple[str, ...]:
    if path is None or not is_the_references(path):
        return ()
    said = "--config config.yaml: there is no such file here, so the defaults are taken"
    return (f"{said}, which are the values of the reference's file of that name",)


def check_machine(config: Config, load: Load) -> None:
    """Refuse objects that the profile of virtual time lacks. Raises UsageError."""
    assert config.sim.profile is not None
    machine = read_machine(config.sim.profile)
    storage_model(config, load, machine.drive, extrapolate=config.sim.extrapolate)


def warnings_of(
    config: Config, load: Load, trace: Trace | None, found: Survey | None
) -> tuple[str, ...]:
    return (
        *config.warnings(),
        *_joined(trace),
        *_without_use(config, trace, found),
        *(doubts(trace, found) if trace and found else ()),
        *ingestion_notes(load.retriever),
        *recording_notes(config, trace),
    )


def _without_use(config: Config, trace: Trace | None, found: Survey | None) -> list[str]:
    """Options that this trace gives nothing to do."""
    if trace is None or found is None:
        return []
    work, name = config.workload, f"the rows of {trace.files[0]} ({trace.format_name})"
    told = []
    if work.trace_history != History.FORMAT and found.has_hash_ids:
        told.append(f"workload.trace_history (--trace-history): no effect, as {name} have hash ids")
    if not trace.format.timed and work.trace_speedup not in (0, 1):
        told.append(f"workload.trace_speedup (--trace-speedup): no effect, as {name} have no times")
    if trace.format.grouped and config.arrival.request_rate > 0:
        told.append(
            "arrival.request_rate (--request-rate) is the most that is asked: the rows of sessions "
            "wait for the answers that they follow, and are asked later than it says"
        )
    return told


def _joined(trace: Trace | None) -> list[str]:
    """Whether the hash ids of several files mean the same is not to be told from the files."""
    if trace is None or len(trace.files) < 2 or trace.format.grouped:
        return []
    count = len(trace.files)
    said = f"workload.trace (--trace) has {count} files, which are replayed one after the other"
    return [f"{said} as one trace: an id means the same in all of them"]


def refuse_given(
    invocation: Invocation, command: str, useless: Mapping[str, str], always: Sequence[str]
) -> None:
    """Options that a command sets itself or has no use for (path -> why) may not be given as flags,
    and those of `always` not in the file either. Raises ConfigError."""
    config = load_config(invocation.config_path, invocation.overrides)
    for path, why in useless.items():
        option = options()[path]
        in_file = path in always and value_at(config, path) != option.default
        if in_file or path in invocation.overrides:
            flag = f" ({option.flag})" if option.flag else ""
            raise ConfigError(f"{path}{flag} cannot be given to {command}: {why}; leave it out")


def _storage_bytes(config: Config, rank: MpiRank) -> int | None:
    if not config.run.virtual_time:
        return check_places(config, rank.on_machine or 1)
    return gib_to_bytes(config.tiers.storage_capacity_gib) or None


def _fitting(
    config: Config,
    model: ModelShape,
    specs: tuple[TierSpec, ...],
    trace: Trace | None,
    found: Survey | None,
) -> tuple[Trace | None, Survey | None]:
    """Rows that no tier can hold are bad ones; the trace is read again where there may be some."""
    unfit = beyond_all_tiers(config, model, specs)
    if trace is None or found is None or unfit is None:
        return trace, found
    largest = TraceRow(0, 0, found.most_tokens, 0, None, found.block_tokens)
    if unfit(largest._replace(nbytes=found.most_bytes)) is None:
        return trace, found
    trace = replace(trace, unfit=unfit)
    with bar_for(config, desc="reading trace", unit=" rows") as bar:
        taken = found.taken
        found = replace(survey(trace, progress=lambda rows: to(bar, rows)), taken=taken)
    require_usable(trace, found)
    return trace, found


def open_workload(config: Config) -> tuple[Trace | None, Survey | None]:
    """Read the whole trace once, so that a bad row is found now and not in an hour."""
    path = config.trace_path()
    if path is None:
        return None, None
    trace = open_trace(
        str(path),
        config.trace_format(),
        skip_bad_rows=config.workload.skip_bad_rows,
        reading=config.trace_reading(),
        time_unit=config.workload.trace_time_unit,
    )
    with bar_for(config, desc="reading trace", unit=" rows") as bar:
        trace, found = read(trace, progress=lambda rows: to(bar, rows))
    require_usable(trace, found)
    return trace, found


def output_of(config: Config, name: str = "benchmark_results") -> Path:
    """Where the result of all goes: as given, else into the directory of results."""
    told = config.output
    if told.output is not None:
        return Path(told.output)
    place = RESULTS if told.results_dir is None else Path(told.results_dir)
    return place / f"{name}_{datetime.now():%Y%m%d_%H%M%S}.json"


def check_output(config: Config, output: Path) -> None:
    """Refuse a result that could not be written. A directory that nobody named is made for it."""
    check_output_file(output, makes_parents=config.output.output is None)


def places_of_run(config: Config, seed: int, output: Path) -> tuple[Path | None, Path]:
    """The directory for one run's record, if any, and the file for its result: `output`, or the
    one in that directory where no other was asked for."""
    told = config.output
    if told.results_dir is None:
        return None, output
    place = new_run_directory(Path(told.results_dir), seed)
    return place, output if told.output is not None else place / RESULT_FILE


def _check_recordings(config: Config, output: Path, trace: Trace | None) -> None:
    """What is written as the run goes on replaces nobody else's file, nor one of the run's own."""
    told = config.output
    checks: dict[str, Callable[[Path], None]] = {
        "output": lambda _: None,  # these have been checked
        "latency_dump": lambda _: None,
        "fio_export": lambda _: None,
        "record": check_recording,
        "io_trace_log": check_io_trace,
        "hdr_log": check_hdr_log,
    }
    others: dict[str, Sequence[str | Path | None]] = {
        "--validation-trace": [told.validation_trace],
        "--profile": [config.sim.profile],
        "--predict": [config.sim.predict],
        "the trace": () if trace is None else trace.files,
    }
    for name, check in checks.items():
        given = output if name == "output" else getattr(told, name)
        if given is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        for path in _each_trial(Path(given), config.run.trials):
            check_name(path, f"{flag} {path}")
            check(path)
            refuse_same(path, flag, others)
        others[flag] = [given]


def refuse_same(path: Path, flag: str, others: Mapping[str, Sequence[str | Path | None]]) -> None:
    """Raise PlaceError where a file that is to be written is another one of this command."""
    for other, files in others.items():
        if any(os.path.realpath(path) == os.path.realpath(file) for file in files if file):
            raise PlaceError(f"{flag} {path}: {other} has the same file; name another")


def _check_exports(config: Config, output: Path, trace: Trace | None) -> list[str]:
    """For each trial where there are several; what is said of one holds for all."""
    told, said = config.output, list[str]()
    for number in range(1, config.run.trials + 1):
        own = own_files(config, number) if config.run.trials > 1 else told
        taken: dict[str, Sequence[str | Path | None]] = {
            "--output": [output, own.output],
            "--latency-dump": [own.latency_dump],
            "--fio-export": [own.fio_export],
            "--record": [own.record],
            "--io-trace-log": [own.io_trace_log],
            "--hdr-log": [own.hdr_log],
            "--validation-trace": [own.validation_trace],
            "the trace": () if trace is None else trace.files,
        }
        said = check_exports(replace(config, output=own), taken)
    return said


def _each_trial(path: Path, trials: int) -> list[Path]:
    return [path] if trials == 1 else [numbered(path, n) for n in range(1, trials + 1)]


# --- names -----------------------------------------------------------------------------------


def own_files(config: Config, number: int) -> OutputConfig:
    """The section `output` of one trial: what it writes, under names of its own."""
    told = config.output
    names = (
        *("output", "latency_dump", "fio_export", "record", "io_trace_log"),
        *("hdr_log", "xlsx_output"),
    )
    own: dict[str, Any] = {
        name: str(numbered(Path(path), number))
        for name in names
        if (path := getattr(told, name)) is not None
    }
    return replace(told, **own)


def numbered(path: Path, number: int) -> Path:
    """`R.json` of the second trial is `R.trial2.json`."""
    return path.with_name(f"{path.stem}.trial{number}{path.suffix}")
