"""What a sweep shows: which cell is the best for sure, each metric over the option with the most
values, and every cell in a line."""

from collections.abc import Iterator, Sequence

from kv_cache.metrics.order import LEAST_SEEDS
from kv_cache.result.metrics import METRICS, Json
from kv_cache.result.paths import as_number
from kv_cache.result.run import converted
from kv_cache.result.sweep import (
    FINISHED,
    INTERRUPTED,
    PLANNED,
    SweepCell,
    SweepFacts,
    only_modelled,
)
from kv_cache.result.trials import RunPrecision
from kv_cache.result.verdicts import rule_of
from kv_cache.view import units
from kv_cache.view.identity import moved_thresholds
from kv_cache.view.latency import bounded
from kv_cache.view.parts import (
    Cell,
    FactList,
    Figure,
    Line,
    PlotPoint,
    Remarks,
    ShownColumn,
    Table,
    View,
    ViewSection,
    present,
)
from kv_cache.view.run import VIRTUAL
from kv_cache.view.trials import reached_text, wanted_text

COLUMNS: dict[str, ShownColumn] = {
    "storage.read.bytes_per_second": ShownColumn("read", units.GIB_PER_S),
    "storage.write.bytes_per_second": ShownColumn("write", units.GIB_PER_S),
    "storage.read.device_ms.p95": ShownColumn("read p95", units.MS),
    "storage.write.device_ms.p95": ShownColumn("write p95", units.MS),
    "requests_per_second": ShownColumn("requests", units.PER_S),
    "response_ms.p95": ShownColumn("response p95", units.MS),
}
"""The metrics that are shown, of all that the document has."""

_BEST = (
    "* better than every other cell, in pairs of runs with one seed: 95 % for all pairs together"
)
_RANKED = ("valid", "suspect")


def sweep_view(section: Json) -> View:
    """All cells; figures if an option varies in two numbers or more. Raises MisshapenError."""
    sweep = converted(section, SweepFacts, "")
    return View(
        title="Sweep",
        status=sweep.status,
        sentence=_sentence(sweep),
        about=[
            sweep.grid_file,
            f"seed {sweep.seed}",
            f"means of {sweep.repeat} runs" if sweep.repeat > 1 else "one run a cell",
            f"kv-cache {sweep.program_version}",
        ],
        reasons=[
            *_reasons(sweep.cells),
            *_moved(sweep.cells),
            *_unsure(sweep.cells),
            *_elsewhere(sweep.cells),
        ],
        sections=list(_sections(sweep)),
    )


def _sections(sweep: SweepFacts) -> Iterator[ViewSection]:
    shown = [name for name in COLUMNS if any(name in cell.metrics for cell in sweep.cells)]
    axis = _axis(sweep)
    figures = [] if axis is None else [_figure(sweep.cells, axis, name) for name in shown]
    yield ViewSection(title="Pictures", parts=present(*figures))
    yield ViewSection(title="Cells", parts=[_table(sweep, shown)])
    failed = [text for cell in sweep.cells for text in _failures(cell)]
    remarks = [*sweep.notes, *failed]
    yield ViewSection(title="Know first", parts=present(Remarks(texts=remarks)))
    facts = FactList(
        rows=[
            ("finished", f"{sweep.finished} of {sweep.runs}"),
            ("failed", str(sweep.failed)),
            ("configurations (SHA-256)", sweep.configurations_sha256),
        ],
    )
    yield ViewSection(title="Runs", parts=[facts])


def _reasons(cells: Sequence[SweepCell]) -> Iterator[str]:
    """Why cells are not valid: a line a rule, in the words of the first run that it is of."""
    runs_of: dict[str, list[tuple[int, int, str]]] = {}
    for cell in cells:
        for run in cell.runs:
            for text in run.reasons:
                runs_of.setdefault(rule_of(text), []).append((cell.cell, run.trial, text))
    for runs in runs_of.values():
        numbers = list(dict.fromkeys(number for number, _, _ in runs))
        first, trial, text = runs[0]
        where = f"run {trial}" if len(numbers) == 1 else f"cell {first}, run {trial}"
        more = f"; {len(runs)} runs in all" if len(runs) > 1 else ""
        yield f"{_cells(numbers)}: {text} ({where}{more})"


def _cells(numbers: Sequence[int]) -> str:
    return f"cell{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _verdict(cell: SweepCell) -> str:
    """The verdict with the rules that it is of."""
    rules = dict.fromkeys(rule_of(text) for run in cell.runs for text in run.reasons)
    return f"{cell.verdict} ({', '.join(rules)})" if rules else cell.verdict


def _moved(cells: Sequence[SweepCell]) -> list[str]:
    """What the cells' verdicts rest on beside the runs: thresholds that the user has moved."""
    cells_of: dict[str, list[int]] = {}
    for cell in cells:
        for text in dict.fromkeys(
            t for r in cell.runs for t in moved_thresholds(r.changed_thresholds)
        ):
            cells_of.setdefault(text, []).append(cell.cell)
    if len(cells_of) == 1 and len(*cells_of.values()) == len(cells):
        return list(cells_of)
    return [f"{_cells(numbers)}: {text}" for text, numbers in cells_of.items()]


def _unsure(cells: Sequence[SweepCell]) -> Iterator[str]:
    """Cells of which a run did not become as sure as --until wants, with how sure each one is."""
    for cell in cells:
        precisions = _precisions(cell)
        if not all(each.reached for each in precisions):
            wanted = f"wanted was {wanted_text(precisions[0])} in each run"
            yield f"{_cells([cell.cell])}: {wanted}: {reached_text(precisions)}"


def _elsewhere(cells: Sequence[SweepCell]) -> Iterator[str]:
    """Cells whose runs were on several machines or devices."""
    for cell in cells:
        runs_at: dict[str, list[str]] = {}
        for run in cell.runs:
            if run.place is not None:
                runs_at.setdefault(run.place, []).append(str(run.trial))
        if len(runs_at) > 1:
            where = "; ".join(f"{place} (run {', '.join(n)})" for place, n in runs_at.items())
            yield f"{_cells([cell.cell])}: its runs were not all in one place: {where}"


def _precisions(cell: SweepCell) -> list[RunPrecision]:
    return [run.precision for run in cell.runs if run.precision is not None]


def _sure(cell: SweepCell) -> str:
    """How many runs became as sure as --until wants."""
    precisions = _precisions(cell)
    return f"{sum(each.reached for each in precisions)} of {len(precisions)}" if precisions else ""


def _sentence(sweep: SweepFacts) -> str:
    """Which cell is better than all others, by which metric; or why none is."""
    left = sweep.runs - sweep.finished - sweep.failed
    what = f"{len(sweep.cells)} cells, {sweep.finished} of {sweep.runs} runs finished"
    if sweep.failed or left:
        what += f", {sweep.failed} failed, {left} not run to the end"
    if sweep.interrupted is not None:
        what += f", ended by {sweep.interrupted}"
    best = [_winner(cell) for cell in sweep.cells if any(name in COLUMNS for name in cell.best)]
    models = f" {VIRTUAL}" if all(map(_modelled, sweep.cells)) else ""
    if best:
        return f"{what}. Better than every other cell: {'; '.join(best)}.{models}"
    return f"{what}. {_why_no_best(sweep)}.{models}"


def _modelled(cell: SweepCell) -> bool:
    return only_modelled((run.status, run.reasons) for run in cell.runs)


def _winner(cell: SweepCell) -> str:
    """The cell with its values, and the numbers by which it is the best."""
    values = ", ".join(f"{path.rpartition('.')[2]} {_plain(v)}" for path, v in cell.values.items())
    numbers = [
        f"{COLUMNS[name].title} {COLUMNS[name].measured(cell.metrics[name].mean)}"
        for name in cell.best
        if name in COLUMNS and name in cell.metrics
    ]
    return f"cell {cell.cell} ({values}) by {', '.join(numbers)}"


def _why_no_best(sweep: SweepFacts) -> str:
    if sweep.repeat < LEAST_SEEDS:
        return f"No cell is called the best: {LEAST_SEEDS} runs each are the least; set repeat: 3"
    if not any(cell.verdict in _RANKED or _modelled(cell) for cell in sweep.cells):
        return "No cell is called the best: invalid and unfinished cells have no rank"
    return "No cell is shown to be better than every other"


# --- the table -------------------------------------------------------------------------------


def _table(sweep: SweepFacts, shown: Sequence[str]) -> Table:
    varied = [ShownColumn(name) for name in _last_words(sweep.varied)]
    first = len(varied) + 1
    with_until = any(map(_precisions, sweep.cells))
    rows: list[list[Cell]] = [
        [
            str(cell.cell),
            *(_plain(cell.values[path]) for path in sweep.varied),
            *(_number_of(cell, name) for name in shown),
            *([_sure(cell)] if with_until else []),
            _verdict(cell),
        ]
        for cell in sweep.cells
    ]
    marked = frozenset(
        (number, first + place)
        for number, cell in enumerate(sweep.cells)
        for place, name in enumerate(shown)
        if name in cell.best
    )
    return Table(
        columns=[
            ShownColumn("cell"),
            *varied,
            *(COLUMNS[name] for name in shown),
            *([ShownColumn("as sure as wanted")] if with_until else []),
            ShownColumn("verdict"),
        ],
        rows=rows,
        marked=marked,
        caption=_BEST if marked else "",
    )


def _number_of(cell: SweepCell, name: str) -> Cell:
    numbers = cell.metrics.get(name)
    if numbers is None:
        return None
    return bounded(METRICS[name], numbers.mean, numbers.at_least)


def _last_words(paths: Sequence[str]) -> list[str]:
    """The last words of the paths, if they are told apart by them."""
    last = [path.rpartition(".")[2] for path in paths]
    return [word if last.count(word) == 1 else path for word, path in zip(last, paths, strict=True)]


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _failures(cell: SweepCell) -> Iterator[str]:
    for run in cell.runs:
        if run.status not in (FINISHED, PLANNED, INTERRUPTED):
            yield (
                f"cell {cell.cell}, run {run.trial}: {run.status}, exit code {run.exit_code}: "
                f"{run.message or 'it said nothing'} ({run.directory}/log.txt)"
            )


# --- figures ---------------------------------------------------------------------------------


def _axis(sweep: SweepFacts) -> str | None:
    """The varied option with the most numbers; None if none has two."""
    counts = {
        path: len({_number(cell, path) for cell in sweep.cells})
        for path in sweep.varied
        if all(_number(cell, path) is not None for cell in sweep.cells)
    }
    most = max(counts, key=lambda path: counts[path], default=None)
    return most if most is not None and counts[most] > 1 else None


def _number(cell: SweepCell, path: str) -> float | None:
    return as_number(cell.values.get(path))


def _figure(cells: Sequence[SweepCell], axis: str, name: str) -> Figure | None:
    """A metric over an option; None where no cell has more than a lower bound."""
    lines: dict[str, list[PlotPoint]] = {}
    for cell in cells:
        numbers = cell.metrics.get(name)
        if numbers is None or numbers.at_least:
            continue
        x = _number(cell, axis) or 0.0
        point = PlotPoint(x=x, y=numbers.mean, interval=numbers.interval)
        lines.setdefault(_others(cell, axis), []).append(point)
    if not lines:
        return None
    return Figure(
        title=COLUMNS[name].title.capitalize(),
        x=ShownColumn(axis, units.COUNT),
        y=COLUMNS[name],
        lines=[
            Line(name=line, points=sorted(points, key=lambda point: point.x))
            for line, points in lines.items()
        ],
    )


def _others(cell: SweepCell, axis: str) -> str:
    """The values of the other varied options."""
    others = {path: value for path, value in cell.values.items() if path != axis}
    return ", ".join(f"{path.rpartition('.')[2]} {_plain(v)}" for path, v in others.items())
