"""A sweep: a whole run for each cell of a grid.

Each run is a child process with a directory of its own below the results' directory, which holds
its configuration, log, result and exit code. What is in these directories is the truth: a sweep
that is started again keeps the runs that finished with a result that is intact, and does the
others.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

import kv_cache
from kv_cache.app.prepare import prepare
from kv_cache.app.sweep_document import (
    DOCUMENT,
    TABLE,
    cell_row,
    run_row,
    sweep_csv,
    sweep_document,
)
from kv_cache.app.sweep_runs import CODE, CONFIG, LOG, RESULT, Pool, Pooling, local_pool
from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.path_checks import check_name
from kv_cache.bench.progress import SILENT, Progress
from kv_cache.bench.storage_room import check_places
from kv_cache.bench.tier_sizes import size_tiers
from kv_cache.config.grid import Cell, Grid, cell_title, read_grid
from kv_cache.config.load import Invocation
from kv_cache.config.root import Config
from kv_cache.config.schema import opt, print_config, show
from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, os_reason
from kv_cache.core.exits import Exit
from kv_cache.core.seed import fresh_seed
from kv_cache.core.text import as_json, printable
from kv_cache.files.keep import Kept, keep
from kv_cache.files.reading import SECTION, require_intact, result_bytes
from kv_cache.files.result import Result
from kv_cache.files.writing import write_atomically, write_document
from kv_cache.metrics.turns import LEAST_TURNS
from kv_cache.result.chain import check, file_digest
from kv_cache.result.sweep import SCHEMA
from kv_cache.result.trials import trial_seed
from kv_cache.result.verdicts import FINISHED
from kv_cache.view.picture.plot import plot_beside

_LOCK = ".kv-cache-sweep.lock"
_WRITE_S = 2.0  # between two writings of the document while runs go on, at least
_LOOK_S = 1.0
_PATIENCE_S = 10.0  # with ranks that were interrupted too, and may be gone
_TAIL_BYTES, _LONGEST_SAYS = 4096, 300

log = logging.getLogger("kv_cache")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What is swept, and where its results go."""

    grid: str = opt("grid.yaml", "What varies", flag="GRID.yaml", metavar="PATH", required=True)
    results_dir: str = opt(
        "results", "New, empty, or of the same sweep, which is then continued",
        flag="--results-dir", metavar="DIR", required=True,
    )  # fmt: skip
    jobs: int = opt(
        1, "Runs at the same time. More than 1 only for virtual time: runs of real I/O disturb "
           "each other, which is then noted in the result", low=1, high=256, flag="--jobs",
        metavar="N",
    )  # fmt: skip
    many: bool = opt(False, "Allow more than 10,000 runs", flag="--many")
    dry_run: bool = opt(
        False, "Check all cells and list their runs, and run none", flag="--dry-run"
    )


@dataclass(frozen=True, kw_only=True)
class SweepResult(Result):
    """`place` is the sweep's directory; with `ranks_gone` mpirun has ended the other ranks."""

    place: Path
    ranks_gone: bool = False


def sweep(
    options: SweepOptions,
    *,
    pool: Pooling = local_pool,
    stop: Interrupts | None = None,
    progress: Progress = SILENT,
) -> SweepResult:
    """Run every cell of a grid that has no result yet. Raises UsageError before the first run."""
    plan = planned(options, progress=progress)
    caught = stop or Interrupts()
    with _locked(plan.place), pool(options.jobs, caught) as runs:
        return _Sweep(plan, runs, caught, progress).run()


# --- checking --------------------------------------------------------------------------------


class Run(Struct, frozen=True, kw_only=True):
    """One run of a cell. `directory` is its own, below the results' directory."""

    cell: Cell
    trial: int
    seed: int
    directory: Path

    def __str__(self) -> str:
        return f"{cell_title(self.cell)}, run {self.trial}"


class Plan(Struct, frozen=True, kw_only=True):
    """A checked sweep. `runs` go through all cells before the second run of any, so that whatever
    changes slowly changes all of them alike."""

    grid: Grid
    place: Path
    seed: int
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    real: bool  # whether any cell does real I/O

    def config_of(self, run: Run) -> Config:
        return self.grid.config_of(run.cell, run.seed)


def planned(options: SweepOptions, *, progress: Progress = SILENT) -> Plan:
    """Return the plan of a sweep, which looks for everything that can be known to be wrong with the
    grid and its place; writes nothing. Raises UsageError."""
    grid = read_grid(Path(options.grid), many=options.many)
    place = Path(options.results_dir)
    before = _before(place)
    seed = grid.seed
    if before is not None:
        _require_same(before, grid, place)
        seed = int(before["seed"])
    seed = fresh_seed() if seed is None else seed
    cells = tuple(grid.cells())
    runs = tuple(
        Run(
            cell=cell,
            trial=trial,
            seed=trial_seed(seed, trial),
            directory=place / cell.name / f"trial{trial}",
        )
        for trial in range(1, grid.repeat + 1)
        for cell in (cells if trial % 2 or grid.repeat >= LEAST_TURNS else cells[::-1])
    )
    # Few pairs are to have no trend in them, so every other one is the other way round; many turns
    # tell a trend from a difference, and each is better between two of the other side.
    plan = Plan(grid=grid, place=place, seed=seed, cells=cells, runs=runs, real=False)
    plan = replace(plan, real=_check_cells(plan, runs[: len(cells)], progress))
    for run in runs if before is not None else ():
        _require_as_it_was(run, plan)
    return plan


def _check_cells(plan: Plan, firsts: Sequence[Run], progress: Progress) -> bool:
    """Each cell as `run` would; cells that ask the same trace have it read once. Whether any does
    real I/O."""
    seen: set[bytes] = set()
    real = False
    with (
        tempfile.TemporaryDirectory(prefix="kv-cache-sweep-") as scratch,
        progress.bar("checking", unit="cells", total=len(firsts)) as bar,
    ):
        for number, run in enumerate(firsts):
            bar.to(number)
            config = plan.config_of(run)
            real = real or not config.run.virtual_time
            workload = _asked(config)
            try:
                if workload is None or workload not in seen:
                    prepare(_invocation(plan.grid, run, Path(scratch)).config())
                elif not config.run.virtual_time:
                    check_places(size_tiers(config)[0])
            except UsageError as error:
                raise UsageError(f"{plan.grid.source}, {cell_title(run.cell)}: {error}") from None
            if workload is not None:
                seen.add(workload)
    return real


def _asked(config: Config) -> bytes | None:
    """What a trace is read with; None without one."""
    if config.trace_path() is None:
        return None
    return repr((config.workload, config.tiers, config.run.model, config.run.virtual_time)).encode()


def _invocation(grid: Grid, run: Run, scratch: Path) -> Invocation:
    path = None if grid.config is None else Path(grid.config)
    scratch_paths = {
        "run.seed": run.seed,
        "output.output": str(scratch / RESULT),
        "output.progress": False,
    }
    overrides = {**grid.base, **run.cell.values, **scratch_paths}
    return Invocation(config_path=path, overrides=overrides)


def _before(place: Path) -> Mapping[str, Any] | None:
    """The sweep that is there, to be continued; None where the place is new or empty. Raises
    PlaceError for anything else, UsageError for a document that was changed."""
    where = f"--results-dir {place}"
    check_name(place / DOCUMENT, where)
    try:
        if not place.exists():
            if not place.parent.is_dir():
                raise PlaceError(f"{where}: there is no directory {place.parent}; create it first")
            _require_writable(place.parent, where)
            return None
        if not place.is_dir():
            raise PlaceError(f"{where}: it is no directory; name a new or an empty one")
        names = sorted(entry.name for entry in place.iterdir() if entry.name != _LOCK)
    except OSError as error:
        reason = os_reason(error)
        raise PlaceError(f"{where}: it cannot be looked at ({reason}); name another") from None
    _require_writable(place, where)
    if DOCUMENT not in names:
        if names:
            raise PlaceError(
                f"{where}: it holds {show(names[0])} and no {DOCUMENT}, so it is no sweep of ours; "
                "name a new or an empty directory"
            )
        return None
    return _document(place / DOCUMENT, where)


def _require_writable(directory: Path, where: str) -> None:
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PlaceError(f"{where}: {directory} is not writable; name another directory")


def _document(path: Path, where: str) -> Mapping[str, Any]:
    try:
        document: Any = orjson.loads(result_bytes(path))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{where}: {path.name} there is not JSON ({error}); name a new or an empty directory"
        ) from None
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict) or section.get("schema") != SCHEMA:
        raise PlaceError(
            f"{where}: {path.name} there is no document of a sweep; name a new or empty directory"
        )
    require_intact(document, path)
    return section


def _require_same(before: Mapping[str, Any], grid: Grid, place: Path) -> None:
    """The sweep that is there is of the same program and grid. Raises ConfigError."""
    if before["program_version"] != kv_cache.__version__:
        raise ConfigError(
            f"--results-dir {place}: the sweep there was begun by version "
            f"{before['program_version']}, and this is {kv_cache.__version__}; finish it with "
            "that, or name a new directory"
        )
    plain_grid = orjson.loads(orjson.dumps(grid.tree))
    changed = _difference(before["grid"], plain_grid)
    if changed is not None:
        name, was, now = changed
        raise ConfigError(
            f"{grid.source}: {name} was {was} when the sweep in {place} was begun, and is {now}; "
            "name a new --results-dir, or give the grid as it was"
        )


def _require_as_it_was(run: Run, plan: Plan) -> None:
    """The configuration that a run was begun with is the one it would have now."""
    path = run.directory / CONFIG
    if not path.exists():
        return
    text = print_config(plan.config_of(run))
    if path.read_text(encoding="utf-8") == text:
        return
    with tempfile.TemporaryDirectory(prefix="kv-cache-sweep-") as scratch:
        now = Path(scratch) / CONFIG
        now.write_text(text, encoding="utf-8")
        changed = _difference(read_yaml(path), read_yaml(now))
    name, was, value = changed or ("its text", "another", "different")
    raise ConfigError(
        f"{plan.grid.source}, {run}: {name} was {was} when the sweep was begun, and is {value} "
        f"({path}); name a new --results-dir, or give {plan.grid.config} as it was"
    )


def _difference(was: Any, now: Any, path: str = "") -> tuple[str, str, str] | None:
    """The first place where two trees of plain values differ, with both values."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            first = _difference(was.get(key), now.get(key), f"{path}.{key}" if path else str(key))
            if first is not None:
                return first
        return None
    return None if was == now else (path, show(was), show(now))


# --- running ---------------------------------------------------------------------------------


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """The place is ours alone. Raises PlaceError."""
    try:
        place.mkdir(exist_ok=True)
        file = (place / _LOCK).open("wb")
    except OSError as error:
        reason = os_reason(error)
        raise PlaceError(f"--results-dir {place}: it cannot be written ({reason})") from None
    with file:
        try:
            import fcntl  # here: Windows has none

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlaceError(
                f"--results-dir {place}: another sweep works there; wait for it, or name another"
            ) from None
        except (ModuleNotFoundError, OSError) as error:  # a file system without locks
            log.warning("--results-dir %s cannot be locked (%s)", place, os_reason(error))
        yield


class _Sweep:
    """Does the runs that are missing, and keeps the document of all."""

    def __init__(self, plan: Plan, pool: Pool, caught: Interrupts, progress: Progress) -> None:
        self._plan, self._pool, self._caught = plan, pool, caught
        self._progress = progress
        self._rows: dict[tuple[int, int], dict[str, Any]] = {}
        self._digest = hashlib.sha256()
        self._written_at = 0.0
        self._notes = list(self._disturbed())

    def _disturbed(self) -> Iterator[str]:
        if self._plan.real and self._pool.workers > 1:
            note = (
                f"{self._pool.workers} runs of real I/O go on at the same time: unless each has a "
                "machine and a drive of its own they disturb each other"
            )
            log.warning(note)
            yield note

    def run(self) -> SweepResult:
        try:
            left = self._prepare()
            self._write()  # before any cell has a directory, so that it can be continued
            self._make(left)
        except OSError as error:
            log.error("the sweep could not be written: %s", error)
            return SweepResult(document={}, end=Exit.EARLY, place=self._plan.place)
        try:
            self._do(left)
            document = self._write()
        except OSError as error:
            return self._elsewhere(error)
        files = {"table": str(self._path(TABLE))}
        if not self._caught.came and (picture := plot_beside(document, self._path(DOCUMENT))):
            files["plot"] = str(picture)
        end = self._caught.exit_code or (Exit.EARLY if document[SECTION]["failed"] else Exit.DONE)
        kept = Kept(data=as_json(document), path=self._path(DOCUMENT))
        return SweepResult(
            document=document, kept=kept, end=Exit(end), files=files, place=self._plan.place,
            ranks_gone=self._caught.came and self._pool.gone,
        )  # fmt: skip

    def _elsewhere(self, error: OSError) -> SweepResult:
        """Keep what the runs measured, if the sweep's directory cannot be written."""
        document = self._document()
        kept = keep(self._path(DOCUMENT), as_json(document), "document of the sweep")
        log.error("the sweep has ended early: %s", error)
        return SweepResult(document=document, kept=kept, end=Exit.EARLY, place=self._plan.place)

    def _path(self, name: str) -> Path:
        return self._plan.place / name

    def _prepare(self) -> list[Run]:
        """The runs that are still to be done, with a row for each of all."""
        left = []
        for run in self._plan.runs:
            text = print_config(self._plan.config_of(run)).encode()
            self._digest.update(text)
            row = self._kept(run)
            self._rows[run.cell.number, run.trial] = row or self._row(run)
            if row is None:
                left.append(run)
        if len(left) < len(self._plan.runs):
            log.info("%d of %d runs are there", len(self._plan.runs) - len(left), len(self._rows))
        return left

    def _make(self, left: Sequence[Run]) -> None:
        """Their directories and configurations."""
        for run in left:
            run.directory.mkdir(parents=True, exist_ok=True)
            if not (run.directory / CONFIG).exists():
                text = print_config(self._plan.config_of(run)).encode()
                write_atomically(run.directory / CONFIG, text)

    def _row(self, run: Run, **found: Any) -> dict[str, Any]:
        directory = str(run.directory.relative_to(self._plan.place))
        return run_row(run.trial, run.seed, directory, **found)

    def _kept(self, run: Run) -> dict[str, Any] | None:
        """The row of a run that was done before, if it finished and its result is intact."""
        try:
            code = int((run.directory / CODE).read_bytes())
        except (OSError, ValueError):
            return None
        row = self._read(run, code)
        return row if row["status"] == FINISHED else None

    def _read(self, run: Run, code: int, before_ns: int | None = None) -> dict[str, Any]:
        path = run.directory / RESULT
        if _changed_ns(path) == before_ns:  # no result, or only that of an earlier attempt
            return self._row(run, exit_code=code, message=_last_words(run.directory / LOG))
        try:
            document = orjson.loads(result_bytes(path))
            sound = not check(document, {}) and document[SECTION]["seed"] == run.seed
        except (UsageError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            return self._row(run, exit_code=code or Exit.EARLY, message=f"its result: {error}")
        if not sound:
            changed = "its result was changed after the run"
            return self._row(run, exit_code=code or Exit.EARLY, message=changed)
        message = None if code == 0 else _last_words(run.directory / LOG)
        return self._row(
            run, exit_code=code, document=document, sha256=file_digest(path), message=message
        )

    def _do(self, left: Sequence[Run]) -> None:
        before = {run.directory: _changed_ns(run.directory / RESULT) for run in left}
        for run in left:
            (run.directory / CODE).unlink(missing_ok=True)
        if self._caught.came:
            return
        done = 0
        futures = {self._pool.submit(str(run.directory)): run for run in left}
        with self._progress.bar("sweep", unit="runs", total=len(left)) as shown:
            for future in self._ended(futures, lambda: shown.note("sweep")):
                run = futures[future]
                code = None if future.cancelled() else self._code(future, run)
                if code is None:
                    continue
                row = self._read(run, code, before[run.directory])
                self._rows[run.cell.number, run.trial] = row
                done += 1
                shown.to(done)
                log.info("%s: %s", run, row["verdict"] or row["message"] or row["status"])
                if time.monotonic() - self._written_at >= _WRITE_S:
                    self._write()

    def _code(self, future: "Future[int | None]", run: Run) -> int | None:
        error = future.exception()
        if error is None:
            return future.result()
        log.error("%s could not be started: %s", run, error)
        return Exit.EARLY

    def _ended(
        self, futures: Mapping["Future[int | None]", Run], waiting: Callable[[], object]
    ) -> Iterator["Future[int | None]"]:
        """As they end; `waiting` is called about once a second. A signal is written down at once:
        mpirun may end us soon after it. From then on none begins, and those that may be gone are
        not waited for for ever."""
        ended: SimpleQueue[Future[int | None] | None] = SimpleQueue()
        pass_on = self._caught.on_signal

        def woken() -> None:
            pass_on()
            ended.put(None)

        self._caught.on_signal = woken
        for future in futures:
            future.add_done_callback(ended.put)
        left = len(futures)
        while left:
            last = self._caught.came
            try:
                found = ended.get(timeout=_PATIENCE_S if last else _LOOK_S)
            except Empty:
                waiting()
                if last and self._pool.gone:
                    return
                continue
            if found is not None:
                left -= 1
                yield found
                continue
            self._write()
            for future in futures:
                future.cancel()

    def _write(self) -> dict[str, Any]:
        document = self._document()
        write_document(self._path(DOCUMENT), document)
        write_atomically(self._path(TABLE), sweep_csv(document))
        self._written_at = time.monotonic()
        return document

    def _document(self) -> dict[str, Any]:
        plan = self._plan
        cells = [
            cell_row(
                cell.number,
                cell.name,
                cell.values,
                [self._rows[cell.number, trial] for trial in range(1, plan.grid.repeat + 1)],
            )
            for cell in plan.cells
        ]
        return sweep_document(
            plan.grid.tree, cells, source=plan.grid.source, paths=plan.grid.paths, seed=plan.seed,
            repeat=plan.grid.repeat, digest=self._digest.hexdigest(), workers=self._pool.workers,
            real=plan.real, interrupted=self._caught.name, notes=self._notes,
        )  # fmt: skip


def _changed_ns(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _last_words(path: Path) -> str | None:
    """The last line of a log that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return None
    words = [line.strip() for line in lines if line.strip()]
    return printable(words[-1])[:_LONGEST_SAYS] if words else None
