"""A simulated cluster: each variant of a scenario with each seed, in virtual time, on all
cores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_cache.app.compiled import engine_name, require_pure
from kv_cache.app.sim_runs import EndedRuns, NothingEndedError, ScenarioInputs, run_all
from kv_cache.app.study_files import (
    Document,
    StudyFile,
    as_read_back,
    check_files,
    output_file,
    picture_file,
    planned_study,
    write_files,
)
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_trace import Surveys, open_work
from kv_cache.config.scenarios import (
    MOST_SEEDS,
    NEXT_IN_SESSION,
    PREFETCH,
    PRESETS,
    SYNONYMS,
    Scenarios,
    overlaid,
    read_scenarios,
    scenario_names,
)
from kv_cache.config.schema import opt, print_config, to_mapping
from kv_cache.core.errors import ConfigError
from kv_cache.files.cluster_events import LINES
from kv_cache.files.cluster_tables import RUNS_MARK, runs_csv
from kv_cache.files.reading import require_replaceable
from kv_cache.files.records import require_own_name
from kv_cache.files.result import Result
from kv_cache.result.simulation.document import sim_document
from kv_cache.view.parts import View


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """The scenario, its scale and changes, and the files."""

    scenario: str | None = opt(None, "A file, or a shipped one", flag="SCENARIO", metavar="PATH")
    list_all: bool = opt(False, "Show the shipped scenarios and what they ask", flag="--list")
    show: bool = opt(
        False, "Show every option of SCENARIO (or of none: the defaults) with its unit and bounds, "
        "as a scenario that loads; nothing runs", flag="--print",
    )  # fmt: skip
    preset: str | None = opt(
        None, "The same question at a scale", choices=(*PRESETS, *SYNONYMS), flag="--preset"
    )
    settings: tuple[str, ...] = opt(
        (), "An option of the scenario, such as workload.requests=500; may be repeated",
        flag="--set", metavar="PATH=VALUE",
    )  # fmt: skip
    seeds: int | None = opt(
        None, "How often each variant runs, each time with other draws; if not given, as the "
        "scenario says, or 1", low=1, high=MOST_SEEDS, flag="--seeds", metavar="N",
    )  # fmt: skip
    output: str | None = opt(
        None, "Write the result there, as JSON", flag="--output", short="-o", metavar="FILE"
    )
    csv: str | None = opt(
        None, "Write a row for each run, with every number", flag="--csv", metavar="FILE"
    )
    events: str | None = opt(
        None, "Write the event log, as JSON lines", flag="--events", metavar="FILE"
    )
    series: str | None = opt(
        None, "Write the time series of each run, as CSV", flag="--series", metavar="FILE"
    )
    per_instance: str | None = opt(
        None, "Write a row for each instance of each run", flag="--per-instance", metavar="FILE"
    )
    html: str | None = opt(
        None, "Write a page for a browser, which needs no network", flag="--html", metavar="FILE"
    )
    plot: str | None = opt(None, "Draw a picture: FILE.svg, .png or .pdf", flag="--plot",
                           metavar="FILE")  # fmt: skip
    json: bool = opt(False, "Print the result, in place of its summary", flag="--json")
    pure: bool = opt(False, "Do not use the compiled engine (see compile)", flag="--pure")
    dry_run: bool = opt(
        False, "Check everything, print what would be done, and do nothing", flag="--dry-run"
    )


@dataclass(frozen=True, kw_only=True)
class SimResult(Result):
    """A result with how many events were simulated, and how long that took."""

    events: int
    took_s: float


def listed() -> Iterator[str]:
    """Yield each shipped scenario with its question, its scales and how many runs it is."""
    for name in scenario_names():
        study = read_scenarios(Path(name))
        yield f"{name:<22}{study.base.question}"
        yield f"{'':<22}runs {study.size:,}{_presets(name)}"


def _presets(name: str) -> str:
    scales = []
    for preset in PRESETS:
        try:
            scales.append(f"{preset} {read_scenarios(Path(name), preset).size:,}")
        except ConfigError:  # it has none of that name
            continue
    return f"; with --preset: {', '.join(scales)}" if scales else ""


def scenario_text(options: SimOptions) -> str:
    """Return every option of the scenario, without what varies, as YAML. Raises ConfigError."""
    return print_config(Scenario() if options.scenario is None else _study(options, {}).base)


def sim(
    options: SimOptions,
    *,
    argv: Sequence[str] = (),
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
) -> SimResult | None:
    """Simulate all variants, and write the result of the runs that ended before `stop`; None if
    none did, when nothing is written. `argv`: the command, for the document. Raises UsageError
    before anything is simulated, and AssertionError if a law of the simulation is broken."""
    caught = stop or Interrupts()
    require_pure(options.pure)
    study, inputs, files = _checked(options)
    try:
        paths = {file.name: file.path for file in files}
        ended = run_all(study, inputs, paths, caught, progress)
    except NothingEndedError:
        return None
    document = _document(study, inputs, ended, argv, caught.name)
    result = write_files(files, document, caught)
    return SimResult(**vars(result), events=ended.events, took_s=ended.took_s)


def planned_sim(options: SimOptions) -> View:
    """Check a simulation and show what it would do. Raises UsageError."""
    study, inputs, files = _checked(options)
    return planned_study(
        [
            ("scenario", study.source),
            ("runs", _runs_text(study, inputs)),
            ("requests", f"{inputs.all_requests:,} in all"),
        ],
        files,
    )


def _runs_text(study: Scenarios, inputs: ScenarioInputs) -> str:
    variants = study.size // study.seeds
    text = f"{inputs.runs:,}: {variants:,} variants with {study.seeds:,} seeds each"
    return text if inputs.runs == study.size else f"{text}, of which others would be the same"


# --- before anything runs --------------------------------------------------------------------


def _checked(options: SimOptions) -> tuple[Scenarios, ScenarioInputs, Sequence[StudyFile]]:
    surveys: Surveys = {}
    study = _study(options, surveys)
    files = _files(options, study)
    check_files(files, {"the scenario": Path(study.source)})
    return study, ScenarioInputs(study, surveys=surveys), files


def _study(options: SimOptions, surveys: Surveys) -> Scenarios:
    """Raises ConfigError. What is read of traces comes into `surveys`."""
    if options.scenario is None:
        raise ConfigError(
            f"sim: no scenario is given; name a file, or one of {', '.join(scenario_names())}"
        )
    settings = list(options.settings)
    if options.seeds is not None:
        if any(text.partition("=")[0] == "seeds" for text in settings):
            raise ConfigError("--seeds and --set seeds= are both given; keep one of them")
        settings.append(f"seeds={options.seeds}")
    study = read_scenarios(Path(options.scenario), options.preset, settings)
    study.check()
    return _known(study, surveys)


def _known(study: Scenarios, surveys: Surveys) -> Scenarios:
    """Return the study without a prefetch of next turns that its file has, where a trace that is
    set tells of none."""
    for variant in study.variants() if study.yields_next_turns else ():
        if variant.scenario.tiers.prefetch == NEXT_IN_SESSION:
            without = overlaid(variant.scenario, {PREFETCH: "none"}, study.source)
            work = open_work(without, surveys)
            if work is not None and not work.survey.follows:
                return study.without_next_turns()
    return study


def _files(options: SimOptions, study: Scenarios) -> Sequence[StudyFile]:
    files = []
    if options.output is not None:
        files.append(output_file(options.output, "kv-cache-sim/"))
    for name, path, check, form in (
        ("csv", options.csv, _check_table, runs_csv),
        ("events", options.events, _check_events, None),
        ("series", options.series, _check_table, None),
        ("per-instance", options.per_instance, _check_table, None),
        ("html", options.html, _check_page, _page),
    ):
        if path is not None:
            files.append(StudyFile(name=name, path=Path(path), check=check, form=form))
    if options.plot is not None:
        files.append(picture_file(options.plot, Path(study.source)))
    return files


def _check_table(path: Path, flag: str) -> None:
    require_replaceable(path, RUNS_MARK, flag)


def _check_events(path: Path, flag: str) -> None:
    require_own_name(path, flag, lambda first: first.startswith(LINES))


def _check_page(path: Path, flag: str) -> None:
    from kv_cache.view.page import MARK  # long to import, and seldom wanted

    require_replaceable(path, MARK, flag)


# --- what is written -------------------------------------------------------------------------


def _document(
    study: Scenarios,
    inputs: ScenarioInputs,
    ended: EndedRuns,
    argv: Sequence[str],
    interrupted: str | None,
) -> Document:
    return sim_document(
        source=study.source, argv=argv, scenario=to_mapping(study.base), varied=study.paths,
        seeds=ended.seeds, planned=inputs.runs, variants=ended.variants,
        traces=ended.traces, doubts=ended.doubts, hardware=ended.hardware,
        left_out=study.left_out,
        interrupted=interrupted if ended.count < inputs.runs else None,
        preset=study.preset or None, engine=engine_name(),
    )  # fmt: skip


def _page(document: Document) -> bytes:
    from kv_cache.view.page import page

    read = as_read_back(document)
    return page([read], [read["kv_cache"]["name"]]).encode()
