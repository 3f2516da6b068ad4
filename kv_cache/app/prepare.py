"""From a configuration to a checked run: everything that can be wrong with the input is found here,
before the first byte is written."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, structs

from kv_cache.app.run_directory import new_run_directory
from kv_cache.app.trace_source import open_workload
from kv_cache.bench.path_checks import check_name, check_output_file, check_results_dir
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.bench.storage_room import check_places
from kv_cache.bench.tier_sizes import size_tiers
from kv_cache.cache.limits import TierSpec
from kv_cache.config.build import (
    Load,
    build_load,
    fillable_bytes,
    load_extensions,
    tier_specs,
)
from kv_cache.config.machine import read_machine
from kv_cache.config.root import Config
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.sections import FILES_BESIDE, OutputConfig
from kv_cache.config.shared import beyond_all_tiers, check_chunks, ingestion_notes
from kv_cache.config.storage_targets import Place, storage_places
from kv_cache.core.errors import PlaceError
from kv_cache.core.model import ModelShape
from kv_cache.core.mpirank import ALONE, MpiRank
from kv_cache.core.seed import Seed, fresh_seed
from kv_cache.files.fio import HEADER
from kv_cache.files.hdr import check_hdr_log
from kv_cache.files.iotrace import check_io_trace
from kv_cache.files.keep import RESULTS
from kv_cache.files.reading import RESULT_FILE, require_replaceable
from kv_cache.files.recording import (
    as_recorded,
    check_recording,
    recording_notes,
)
from kv_cache.files.validation import ValidationTrace, read_validation
from kv_cache.sim.run import storage_model
from kv_cache.view.sheets import Target, check_target
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import Survey, doubts, require_usable, survey
from kv_cache.workload.formats.trace_files import Trace
from kv_cache.workload.row_requests import History

if TYPE_CHECKING:
    from kv_cache.crew.seat import Seat

log = logging.getLogger("kv_cache")


class Job(Struct, frozen=True, kw_only=True):
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


class Start(Struct, frozen=True, kw_only=True):
    """Who is started, as what, and what the starter has to say."""

    rank: MpiRank = ALONE
    notes: tuple[str, ...] = ()
    not_submittable: tuple[str, ...] = ()
    seat: "Seat | None" = None  # of a rank that runs together with others


class Build(Protocol):
    """The load of a configuration with the same trace; with a salt, the same under other names;
    `begun`: so many rows of the trace have been answered before."""

    def __call__(self, config: Config, salt: str = "", begun: int = 0) -> Load: ...


def prepare(
    config: Config,
    *,
    start: Start | None = None,
    notes: Sequence[str] = (),
    name: str = "benchmark_results",
    progress: Progress = SILENT,
) -> Job:
    """Check everything that a configuration asks for, and build what is pure. `notes`: warnings
    of whoever made it; `name`: how a result begins that is given none. Raises UsageError."""
    start = start or Start()
    config, sizing = size_tiers(config, start.rank.on_machine or 1)
    noted = (*notes, *sizing)
    load_extensions(config)
    model = config.model_shape()
    seed = fresh_seed() if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))
    trace, trace_survey = open_workload(config, progress)
    config = as_recorded(config, trace)
    output, place = output_of(config, name), None
    if config.run.trials == 1:
        place, output = places_of_run(config, seed, output)
    check_output(config, output)
    if config.output.results_dir is not None:
        check_results_dir(Path(config.output.results_dir))
    for number in range(1, config.run.trials + 1) if config.run.trials > 1 else ():
        check_output(config, numbered(output, number))
    for sentence in _check_files(config, output, trace):
        log.warning(sentence)
    validation = config.output.validation_trace
    compared = None if validation is None else read_validation(Path(validation))
    specs = tier_specs(config, _storage_bytes(config, start.rank))
    trace, trace_survey = _fitting(config, model, specs, trace, trace_survey, progress)

    def build(config: Config, salt: str = "", begun: int = 0) -> Load:
        used_seed = seed if config.run.seed is None else config.run.seed
        room = fillable_bytes(config, specs)
        return build_load(config, model, Seed(used_seed), trace, trace_survey, room, salt, begun)

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
        found=trace_survey,
        warnings=(*noted, *warnings_of(config, load, trace, trace_survey)),
        noted=noted,
        start=start,
    )


def check_machine(config: Config, load: Load) -> None:
    """Refuse objects that the profile of virtual time lacks. Raises UsageError."""
    assert config.sim.profile is not None
    machine = read_machine(config.sim.profile)
    storage_model(config, load, machine.drive, extrapolate=config.sim.extrapolate)


def warnings_of(
    config: Config, load: Load, trace: Trace | None, found: Survey | None
) -> tuple[str, ...]:
    return (
        *config_warnings(config),
        *_joined(trace),
        *_without_use(config, trace, found),
        *(
            doubts(trace, found, shares=config.workload.trace_prompts)
            if trace is not None and found is not None
            else ()
        ),
        *ingestion_notes(load.retriever),
        *recording_notes(config, trace),
    )


def _without_use(config: Config, trace: Trace | None, found: Survey | None) -> list[str]:
    """Options that this trace gives nothing to do."""
    if trace is None or found is None:
        return []
    work, name = config.workload, f"the rows of {trace.files[0]} ({trace.format_name})"
    sentences = []
    if work.trace_history != History.FORMAT and found.has_hash_ids:
        sentences.append(
            f"workload.trace_history (--trace-history): no effect, as {name} have hash ids"
        )
    if not trace.format.timed and work.trace_speedup not in (0, 1):
        sentences.append(
            f"workload.trace_speedup (--trace-speedup): no effect, as {name} have no times"
        )
    if trace.format.grouped and config.arrival.request_rate > 0:
        sentences.append(
            "arrival.request_rate (--request-rate) is the most that is asked: the rows of sessions "
            "wait for the answers that they follow, and are asked later than it says"
        )
    return sentences


def _joined(trace: Trace | None) -> list[str]:
    """Whether the hash ids of several files mean the same is not to be told from the files."""
    if trace is None or len(trace.files) < 2 or trace.format.grouped:
        return []
    count = len(trace.files)
    option = f"workload.trace (--trace) has {count} files, which are replayed one after the other"
    return [f"{option} as one trace: an id means the same in all of them"]


def _storage_bytes(config: Config, rank: MpiRank) -> int | None:
    if not config.run.virtual_time:
        return check_places(config, rank.on_machine or 1)
    return config.tiers.storage_bytes


def _fitting(
    config: Config,
    model: ModelShape,
    specs: tuple[TierSpec, ...],
    trace: Trace | None,
    trace_survey: Survey | None,
    progress: Progress,
) -> tuple[Trace | None, Survey | None]:
    """Rows that no tier can hold are bad ones; the trace is read again where there may be some."""
    unfit = beyond_all_tiers(config, model, specs)
    if trace is None or trace_survey is None or unfit is None:
        return trace, trace_survey
    largest = TraceRow(0, 0, trace_survey.most_tokens, 0, None, trace_survey.block_tokens)
    if unfit(largest._replace(nbytes=trace_survey.most_bytes)) is None:
        return trace, trace_survey
    trace = structs.replace(trace, unfit=unfit)
    with progress.bar("reading trace", unit="rows") as bar:
        taken = trace_survey.taken
        trace_survey = structs.replace(survey(trace, progress=bar.to), taken=taken)
    require_usable(trace, trace_survey)
    return trace, trace_survey


def output_of(config: Config, name: str = "benchmark_results") -> Path:
    """Where the result of all goes: as given, else into the directory of results."""
    output = config.output
    if output.output is not None:
        return Path(output.output)
    place = RESULTS if output.results_dir is None else Path(output.results_dir)
    return place / f"{name}_{datetime.now():%Y%m%d_%H%M%S}.json"


def check_output(config: Config, output: Path) -> None:
    """Refuse a result that could not be written. A directory that nobody named is made for it."""
    check_output_file(output, makes_parents=config.output.output is None)


def places_of_run(config: Config, seed: int, output: Path) -> tuple[Path | None, Path]:
    """The directory for one run's record, if any, and the file for its result: `output`, or the
    one in that directory where no other was asked for."""
    section = config.output
    if section.results_dir is None:
        return None, output
    place = new_run_directory(Path(section.results_dir), seed)
    return place, output if section.output is not None else place / RESULT_FILE


def _check_files(config: Config, output: Path, trace: Trace | None) -> list[str]:
    """Refuse files beside the result that cannot be written, hold somebody else's content, or are
    another one of this run. Sentences for what will differ from what was asked. Raises PlaceError.
    """
    notes: list[str] = []
    section = config.output
    inputs: dict[str, Sequence[str | Path | None]] = {
        "--validation-trace": [section.validation_trace],
        "--profile": [config.sim.profile],
        "--predict": [config.sim.predict],
        "the trace": () if trace is None else trace.files,
    }
    if section.metrics_port is not None and not config.run.virtual_time:
        from kv_cache.bench.endpoint import check_endpoint  # it brings a web server

        check_endpoint(section.metrics_host, section.metrics_port)
    several = config.run.trials > 1
    for number in range(1, config.run.trials + 1):
        outputs = own_files(config, number) if several else section
        taken = dict(inputs)
        files = {"output": numbered(output, number) if several else output}
        files |= {n: Path(path) for n in FILES_BESIDE if (path := getattr(outputs, n)) is not None}
        for name, path in files.items():
            flag = f"--{name.replace('_', '-')}"
            check_name(path, f"{flag} {path}")
            target = _CHECKS[name](path) or Target(path=path)
            refuse_same(target.path, path, flag, taken)
            taken[flag] = [target.path, *([output] if name == "output" else [])]
            if target.note is not None and target.note not in notes:
                notes.append(target.note)
    return notes


def refuse_same(
    path: Path, given: Path, flag: str, others: Mapping[str, Sequence[str | Path | None]]
) -> None:
    """Raise PlaceError where a file that is to be written is another one of this command."""
    for other, files in others.items():
        if any(os.path.realpath(path) == os.path.realpath(file) for file in files if file):
            raise PlaceError(f"{flag} {given}: {other} has the same file; name another")


def _fio_job(path: Path) -> None:
    check_output_file(path)
    require_replaceable(path, HEADER, "--fio-export")


_CHECKS: Mapping[str, Callable[[Path], Target | None]] = {
    "output": lambda path: None,  # checked by check_output
    "latency_dump": check_output_file,
    "fio_export": _fio_job,
    "record": check_recording,
    "io_trace_log": check_io_trace,
    "hdr_log": check_hdr_log,
    "xlsx_output": check_target,
}
"""For each file that a run may write: refuses it, or says where it goes, if that is elsewhere."""


# --- names -----------------------------------------------------------------------------------


def own_files(config: Config, number: int) -> OutputConfig:
    """The section `output` of one trial: what it writes, under names of its own."""
    section = config.output
    paths: dict[str, Any] = {
        name: str(numbered(Path(path), number))
        for name in ("output", *FILES_BESIDE)
        if (path := getattr(section, name)) is not None
    }
    return replace(section, **paths)


def numbered(path: Path, number: int) -> Path:
    """`R.json` of the second trial is `R.trial2.json`."""
    return path.with_name(f"{path.stem}.trial{number}{path.suffix}")
