"""The runs of a simulation: each variant with each seed, and what is written as they end."""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from kv_cache.app.cores import StoppedError, cores, processes_for
from kv_cache.app.sim_plan import PlannedVariant, is_drawn, plan_of
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import Bar, Progress
from kv_cache.config.hardware import OVERLAY, HardwareProfile
from kv_cache.config.machine import read_described
from kv_cache.config.profile import Profile
from kv_cache.config.scenario import Scenario
from kv_cache.config.scenario_hardware import HardwareUsed, described, hardware_used
from kv_cache.config.scenario_rules import block_sizes, check, instances_of
from kv_cache.config.scenario_trace import Surveys, TraceWork, open_work
from kv_cache.config.scenarios import Scenarios, Variant
from kv_cache.config.schema import to_mapping
from kv_cache.config.step_table import StepTable, read_step_table
from kv_cache.config.yaml_files import find_config
from kv_cache.core.callbacks import ignore
from kv_cache.core.errors import UsageError
from kv_cache.files.cluster_events import EventLog
from kv_cache.files.cluster_tables import ColumnsFile
from kv_cache.files.writing import cannot_write, open_atomically
from kv_cache.result.paths import value_at
from kv_cache.result.simulation.document import run_row, variant_row
from kv_cache.sim.cluster.facts import facts, instance_columns, series_columns
from kv_cache.sim.cluster.hardware_models import HardwareModels
from kv_cache.sim.cluster.outcome import ClusterOutcome, ClusterSeries, OnEvent
from kv_cache.sim.cluster.prefix_chain import PrefixChain
from kv_cache.sim.cluster.series import OF_AN_INSTANCE
from kv_cache.sim.cluster.simulate import OnProgress, simulate
from kv_cache.sim.cluster.sources import build_source
from kv_cache.sim.cluster.stretches import stretch_values
from kv_cache.sim.cluster.topology import ClusterTopology
from kv_cache.sim.profile_model import ProfileModel

_LONGEST_NAME = 40
_SHOWN_S = 1.0  # between two looks at the series of a run that goes on
_SHOWN_TIMES = 20  # what a look took, at least, for series of very many instances
_WORTH_S = 2.0  # of runs that are left: to start processes takes half a second

Row = dict[str, Any]


class NothingEndedError(Exception):
    """A signal came before any run had ended: there is nothing to write."""


class VariantRuns(Struct, kw_only=True):
    """A variant with its place in the document, from 1, and its runs so far."""

    number: int
    name: str
    values: Row
    same: list[Row]
    scenario: Row
    runs: list[Row] = field(default_factory=list)

    def row(self) -> Row:
        return variant_row(
            self.number, self.name, self.values, self.scenario, self.runs, same=self.same
        )

    def key(self) -> Row:
        return {"variant": self.number, "name": self.name}


class EndedRun(Struct, frozen=True, kw_only=True):
    """What a document has of one run. `kinds`: how many events of each, where they were counted."""

    facts: Row
    events: int
    stretches: Row
    columns: Row
    kinds: Counter[str] | None


class EndedRuns(Struct, frozen=True, kw_only=True):
    """The `count` runs that ended: rows of the document, the seeds in their order, and the cost."""

    variants: list[Row]
    traces: list[Row]
    doubts: list[str]
    hardware: list[HardwareUsed]
    seeds: list[int]
    count: int
    events: int
    took_s: float


def run_all(
    study: Scenarios,
    inputs: "ScenarioInputs",
    files: Mapping[str, Path],
    caught: Interrupts,
    progress: Progress,
) -> EndedRuns:
    """Simulate until all runs have ended or a signal came, and write what belongs to those that
    ended into `files`, by the names of their flags. Raises NothingEndedError and UsageError, after
    which no file is changed, and AssertionError if a run broke a law."""
    with ExitStack() as stack:
        runs = _Runs(study, inputs, files, caught, progress, stack)
        began = time.monotonic()
        runs.run_each()
        return runs.ended(time.monotonic() - began)


@contextmanager
def _named(study: Scenarios, variant: Variant) -> Iterator[None]:
    """Add to an error in which run it came up, if there are several."""
    try:
        yield
    except UsageError as error:
        if not variant.name:
            raise
        raise type(error)(f"{study.source}, {variant.name}: {error}") from None
    except AssertionError as error:
        error.add_note(f"in {variant.name or study.source}, seed {variant.scenario.seed}")
        raise


class ScenarioInputs:
    """What the scenarios of a study name beside themselves: traces and profiles, each read once,
    before anything is simulated. Raises UsageError if one cannot be read, or does not go with its
    scenario."""

    def __init__(
        self, study: Scenarios, *, surveys: Surveys | None = None, checked: bool = False
    ) -> None:
        """`surveys` were read already; `checked`: in another process."""
        self._surveys: Surveys = {} if surveys is None else surveys
        self._works: dict[object, TraceWork | None] = {}
        self._files: dict[str, Profile | HardwareProfile] = {}
        self._tables: dict[str, StepTable] = {}
        self._models: dict[int, ProfileModel] = {}  # by the identity of what was read
        drawn = []
        for variant in study.variants():
            if not variant.repeat:
                with _named(study, variant):
                    if not checked:
                        self._check(variant.scenario)
                drawn.append(is_drawn(variant.scenario, self.work(variant.scenario)))
        self.plan = plan_of(study, drawn=drawn)

    def _check(self, scenario: Scenario) -> None:
        profiled, models = self.machine(scenario)
        check(profiled, whole=False)
        ClusterTopology(profiled, models.devices, block_sizes(profiled))
        self.work(scenario)

    def work(self, scenario: Scenario) -> TraceWork | None:
        """Return the trace; what the scenario's own checks look at tells them apart."""
        work = scenario.workload
        key = (
            work.source, work.trace, work.trace_format, work.trace_time_unit,
            work.skip_bad_rows, work.include_failed_rows, work.strict_trace,
            work.trace_block_tokens,
            work.arrival_scale, work.concurrency, work.rate_per_s, work.warmup_requests,
            work.requests, scenario.model.block_tokens, scenario.tiers.prefetch,
        )  # fmt: skip
        if key not in self._works:
            self._works[key] = open_work(scenario, self._surveys)
        return self._works[key]

    def requests(self, scenario: Scenario) -> int:
        """Return how many requests one run asks."""
        trace, work = self.work(scenario), scenario.workload
        return work.drawn_requests if trace is None else trace.row_count(work)

    @property
    def runs(self) -> int:
        """How many runs are simulated."""
        return sum(len(planned.runs) for planned in self.plan)

    @property
    def all_requests(self) -> int:
        """How many requests all runs ask."""
        return sum(len(each.runs) * self.requests(each.first.scenario) for each in self.plan)

    def traces(self) -> list[Row]:
        """Return what each trace is and what of it is asked, once."""
        rows: list[Row] = []
        for planned in self.plan:
            scenario = planned.first.scenario
            trace = self.work(scenario)
            row = None if trace is None else trace.facts(scenario.workload)
            if row is not None and row not in rows:
                rows.append(row)
        return rows

    def doubts(self) -> list[str]:
        """Return what a reader has to know of the traces, each sentence once."""
        works = filter(None, self._works.values())
        return list(dict.fromkeys(text for work in works for text in work.doubts()))

    def hardware(self) -> list[HardwareUsed]:
        """Return each described part of the variants' hardware, and where it is from, once."""
        rows: list[HardwareUsed] = []
        for planned in self.plan:
            used = hardware_used(planned.first.scenario, self._read)
            used += self._tables_used(planned.first.scenario)
            rows += [row for row in used if row not in rows]
        return rows

    def machine(self, scenario: Scenario) -> tuple[Scenario, HardwareModels]:
        """Return the scenario as its profiles have it, and what of them is no constant."""
        parts = described(scenario, self._read)
        for curve in parts.curves.values():
            if id(curve) not in self._models:
                self._models[id(curve)] = ProfileModel(curve)
        devices = {tier: self._models[id(curve)] for tier, curve in parts.curves.items()}
        steps = {
            name: self._step_table(group.step_table)
            for name, group in scenario.instances.items()
            if group.compute == "table" and group.step_table is not None
        }
        return parts.scenario, HardwareModels(devices=devices, gpus=parts.gpus, steps=steps)

    def _tables_used(self, scenario: Scenario) -> list[HardwareUsed]:
        steps = self.machine(scenario)[1].steps
        return [
            HardwareUsed(
                part=f"instances.{name}.step_table", file=table.file, sha256=table.sha256,
                state=OVERLAY if table.source else "unsourced", source=table.source, date=None,
            )
            for name, table in steps.items()
        ]  # fmt: skip

    def _step_table(self, path: str) -> StepTable:
        if path not in self._tables:
            self._tables[path] = read_step_table(path)
        return self._tables[path]

    def _read(self, path: str) -> Profile | HardwareProfile:
        if path not in self._files:
            file = find_config(Path(path), "hardware profile", "hardware")
            self._files[path] = read_described(file)
        return self._files[path]


class _Runs:
    """The runs of one command. What it opens, `stack` closes."""

    def __init__(
        self,
        study: Scenarios,
        inputs: ScenarioInputs,
        files: Mapping[str, Path],
        caught: Interrupts,
        progress: Progress,
        stack: ExitStack,
    ) -> None:
        self._study = study
        self._caught = caught
        self._inputs = inputs
        self._variants: dict[int, VariantRuns] = {}
        self._seeds: list[int] = []
        self._ended = self._events = 0
        self._log = _event_log(study, files.get("events"), stack, several=inputs.runs > 1)
        self._names_requests = "events" in files
        title = study.base.name
        self._series = _columns_file(files, "series", title, stack)
        self._instances = _columns_file(files, "per-instance", title, stack, numbered="instance")
        self._bar: Bar = stack.enter_context(
            progress.bar("simulating", unit="requests", total=inputs.all_requests, scale=True)
        )
        self._done = 0
        scenarios = [variant.scenario for variant in study.variants()]
        each = [instances_of(some) for some in scenarios if some.watch.series_per_instance]
        self._most_instances = max(each, default=0)

    def run_each(self) -> None:
        """Perform the runs until a signal comes, the first one here: if it takes its time, the
        others are spread over the cores. Raises NothingEndedError."""
        first, *others = self._plan()
        began = time.monotonic()
        try:
            self._keep(first, self._here(first))
            together = 1 if self._names_requests else processes_for(len(others))
            if together > 1 and (time.monotonic() - began) * len(others) > _WORTH_S:
                self._spread(others, together)
            else:
                for cell in others:
                    self._keep(cell, self._here(cell))
        except StoppedError:
            for file in (self._log, self._series):
                if file is not None:
                    file.rewind()
        if not self._ended:
            raise NothingEndedError

    def ended(self, took_s: float) -> EndedRuns:
        return EndedRuns(
            variants=[each.row() for _, each in sorted(self._variants.items()) if each.runs],
            traces=self._inputs.traces(), doubts=self._inputs.doubts(),
            hardware=self._inputs.hardware(),
            seeds=self._seeds, count=self._ended, events=self._events, took_s=took_s,
        )  # fmt: skip

    def _plan(self) -> Iterator["_Cell"]:
        """Yield all variants with the first seed before any with the second, so that they can be
        compared whenever it ends."""
        for repeat in range(self._study.seeds):
            for variant, planned in enumerate(self._inputs.plan):
                if repeat < len(planned.runs):
                    yield _Cell(variant, repeat)

    def _new(self, planned: PlannedVariant) -> VariantRuns:
        scenario = to_mapping(planned.first.scenario)
        return VariantRuns(
            number=planned.number,
            name=planned.first.name or planned.first.scenario.name,
            values=self._values(planned.first),
            same=[{"name": each.name, "values": self._values(each)} for each in planned.same],
            scenario=scenario,
        )

    def _values(self, variant: Variant) -> Row:
        scenario = to_mapping(variant.scenario)
        return {path: value_at(scenario, path) for path in self._study.paths}

    def _variant(self, cell: "_Cell") -> Variant:
        return self._inputs.plan[cell.variant].runs[cell.repeat]

    def _note(self, cell: "_Cell") -> None:
        planned = self._inputs.plan[cell.variant]
        name = planned.first.name or planned.first.scenario.name
        self._bar.note(f"{planned.number} {name}"[:_LONGEST_NAME])

    def _here(self, cell: "_Cell") -> EndedRun:
        """Perform one run in this process. Raises StoppedError."""
        if self._caught.came:
            raise StoppedError
        variant, before = self._variant(cell), self._done
        show = _now_and_then(lambda each: self._show(cell, series_columns(each)), _SHOWN_S)

        def progress(ended: int, series: ClusterSeries) -> None:
            self._bar.to(before + ended)
            show(series)
            if self._caught.came:
                raise StoppedError

        self._note(cell)
        ids: dict[int, str] | None = {} if self._names_requests else None
        on_event = None if self._log is None else self._log.begin(self._ended + 1, ids)
        with _named(self._study, variant):
            run = simulated(self._inputs, variant.scenario, progress, on_event, ids)
        kinds = None if self._log is None else self._log.end()
        self._done = before + self._inputs.requests(variant.scenario)
        self._bar.to(self._done)
        return replace(run, kinds=kinds)

    def _show(self, cell: "_Cell", columns: Row) -> None:
        """Show the series that a run has until now, where one is written."""
        if self._series is not None:
            variant = self._new(self._inputs.plan[cell.variant]).key()
            run = {"run": self._ended + 1, "seed": self._variant(cell).scenario.seed}
            self._series.show(variant, run, self._series_rows(columns))

    def _spread(self, cells: Sequence["_Cell"], together: int) -> None:
        """Perform runs in so many processes, which leave their series in files as they go on.
        Raises StoppedError."""
        before, counted = self._done, self._log is not None
        with ExitStack() as stack:
            left: list[Path | None] = [None] * len(cells)
            if self._series is not None:
                scratch = stack.enter_context(TemporaryDirectory(prefix="kv-cache-sim-"))
                left = [Path(scratch, str(number)) for number in range(len(cells))]
            spread = stack.enter_context(cores(together, _inputs_again, self._study))
            arguments = (
                (cell, counted, path, _SHOWN_S) for cell, path in zip(cells, left, strict=True)
            )
            current = cells[0], left[0]

            def progress(done: int) -> None:
                self._bar.to(before + done)
                cell, path = current
                if path is None:
                    return
                with suppress(FileNotFoundError):
                    columns = pickle.loads(path.read_bytes())
                    path.unlink()
                    self._show(cell, columns)

            runs = spread.in_order(_run_of, arguments, self._caught, progress)
            for current in zip(cells, left, strict=True):
                self._note(current[0])
                with _named(self._study, self._variant(current[0])):
                    run = next(runs)
                self._keep(current[0], run)

    def _keep(self, cell: "_Cell", run: EndedRun) -> None:
        """Keep the rows of a run that has ended, and write what belongs to it."""
        planned = self._inputs.plan[cell.variant]
        variant_runs = self._variants.setdefault(planned.number, self._new(planned))
        self._ended += 1
        self._events += run.events
        seed = self._variant(cell).scenario.seed
        if seed not in self._seeds:
            self._seeds.append(seed)
        columns = run.columns
        row = run_row(
            self._ended,
            seed,
            run.facts,
            log=run.kinds,
            stretches=run.stretches,
            columns=None if variant_runs.runs else columns,
        )
        variant_runs.runs.append(row)
        if self._series is not None:
            series = self._series_rows(columns["series"]["columns"])
            self._series.write(variant_runs.key(), row, series)
        if self._instances is not None:
            self._instances.write(variant_runs.key(), row, columns["instances"])

    def _series_rows(self, columns: Row) -> Row:
        """Return a series with a column, empty if need be, for each instance of any variant: all
        rows of a file have the same columns."""
        empty = [""] * len(columns["at_ns"])
        numbers = range(self._most_instances)
        names = (f"{name}.{number}" for number in numbers for name in OF_AN_INSTANCE)
        return columns | {name: empty for name in names if name not in columns}


class _Cell(NamedTuple):
    """A run by its place in the plan."""

    variant: int
    repeat: int


def simulated(
    inputs: ScenarioInputs,
    scenario: Scenario,
    progress: OnProgress,
    on_event: OnEvent | None = None,
    ids: dict[int, str] | None = None,
) -> EndedRun:
    """Simulate one run. `ids` is filled with what a trace calls its requests."""
    chain = PrefixChain()
    source = build_source(scenario, chain, inputs.work(scenario), ids)
    profiled, models = inputs.machine(scenario)
    outcome = simulate(
        profiled, source, chain, on_event=on_event, progress=progress, hardware=models
    )
    return EndedRun(
        facts=facts(outcome), events=outcome.events, stretches=stretch_values(outcome),
        columns=_columns_of(outcome), kinds=None,
    )  # fmt: skip


def _inputs_again(study: Scenarios) -> ScenarioInputs:
    return ScenarioInputs(study, checked=True)


def _run_of(
    inputs: ScenarioInputs, cell: _Cell, counted: bool, left: Path | None, every_s: float,
    progress: Callable[[int], None],
) -> EndedRun:  # fmt: skip
    """Simulate a run of the plan, count its events if that is wanted, and leave its series in a
    file, if there is one, every so often."""
    scenario = inputs.plan[cell.variant].runs[cell.repeat].scenario
    log = EventLog(None, several=False) if counted else None

    def leave(series: ClusterSeries) -> None:
        assert left is not None
        part = left.with_suffix(".part")
        with suppress(OSError):  # it is only shown
            part.write_bytes(pickle.dumps(series_columns(series)))
            part.replace(left)

    show = ignore if left is None else _now_and_then(leave, every_s)

    def ended(count: int, series: ClusterSeries) -> None:
        progress(count)
        show(series)

    run = simulated(inputs, scenario, ended, None if log is None else log.begin(1))
    return replace(run, kinds=None if log is None else log.end())


def _now_and_then(
    show: Callable[[ClusterSeries], None], every_s: float
) -> Callable[[ClusterSeries], None]:
    """Return what shows a series every so often, or less often where that takes long."""
    next_s = time.monotonic() + every_s

    def shown(series: ClusterSeries) -> None:
        nonlocal next_s
        began = time.monotonic()
        if began >= next_s:
            show(series)
            next_s = began + max(every_s, _SHOWN_TIMES * (time.monotonic() - began))

    return shown


def _columns_of(outcome: ClusterOutcome) -> Row:
    return {
        "series": {
            "interval_ns": outcome.series.interval_ns, "columns": series_columns(outcome.series),
        },
        "instances": instance_columns(outcome),
    }  # fmt: skip


# --- what is written on the way --------------------------------------------------------------


def _event_log(
    study: Scenarios, path: Path | None, stack: ExitStack, *, several: bool
) -> EventLog | None:
    """Return a log to the file, if one is named; else one that only counts, if the scenario wants
    events."""
    if path is None and not study.base.watch.events:
        return None
    file = None if path is None else stack.enter_context(_writing(path, "--events"))
    return EventLog(file, several=several)


def _columns_file(
    files: Mapping[str, Path], name: str, title: str, stack: ExitStack, numbered: str | None = None
) -> ColumnsFile | None:
    if name not in files:
        return None
    file = stack.enter_context(_writing(files[name], f"--{name}"))
    return ColumnsFile(file, title, numbered=numbered)


@contextmanager
def _writing(path: Path, flag: str) -> Iterator[BinaryIO]:
    """Open a file that is there once all is well. Raises PlaceError."""
    try:
        with open_atomically(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error, flag) from None
